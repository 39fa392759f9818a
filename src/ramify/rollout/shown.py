"""The prompt at a position, in parts of the tree: a node's own tokens wherever they are still shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.model.chat import ChatTemplate, JinjaTemplate
from ramify.model.protocol import Prefix
from ramify.model.rendered import Filled, Known, RenderedPiece, rendered
from ramify.trace.message import Message
from ramify.trace.node import Insert, Node
from ramify.trace.path import Part, by_message, message_of, text_between


@dataclass
class Position:
    """Where the next message goes: the path so far, in the form the model wants."""

    parent: Node
    offset: int
    tokens: list[np.ndarray]
    messages: list[Message]
    reward: float
    turns: int
    begun: str | None = None
    """Text of the reply begun already, when a fork continues inside it."""
    shown: list[Part] | None = None
    """The model's history where that is not the path: something was compacted or edited.
    What it is shown of it, its template says."""
    insert: Node | None = None
    """The parent where it is an edit, which is stored with what is sampled after it:
    one that the model refuses leaves nothing."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one reply."""

    prefix: Prefix
    rendered: list[Part] | None
    """The template's rendering of the history, where it differs."""
    head: np.ndarray | None
    """The tokens that open the reply."""


def head_of(template: ChatTemplate, messages: Sequence[Message]) -> np.ndarray:
    """int32 (T,): the tokens that open a reply to ``messages`` where a template only ever adds to what it rendered."""
    return np.asarray(template.open("assistant", messages[-1].role if messages else ""), np.int32)


def rendered_parts(template: JinjaTemplate, parts: Sequence[Part], opens: bool) -> tuple[list[Part] | None, np.ndarray | None]:
    """What ``template`` shows of the history ``parts``, None where it is the history itself;
    and the tokens (T,) that open a reply.

    ``opens`` is False where the last message is the agent's own, begun: it is shown as it is, and there is no header. Raises
    InfrastructureError("template") where the template refuses the history.
    """
    groups = by_message(parts)
    begun = [] if opens else groups.pop()
    messages = [message_of(group) for group in groups]
    known = [Known(m.role, m.text, tuple(map(_piece, group))) for m, group in zip(messages, groups, strict=True)]
    try:
        found = rendered(template, known)
    except NeedsError as error:
        raise InfrastructureError("template", str(error)) from error
    head = np.asarray(found.header, np.int32) if opens else None
    if found.pieces is None:
        return None, head
    made: list[Part] = []
    for piece in found.pieces:
        if isinstance(piece, Filled):
            made.append(Insert(piece.text, piece.tokens, piece.role))
            continue
        part = groups[piece.message][piece.piece]
        if not isinstance(part, Insert):
            made.append((part[0], part[1] + piece.start, part[1] + piece.end))
        elif (piece.start, piece.end) == (0, len(part.tokens or ())):
            made.append(part)
        else:
            made.append(Insert(part.text, tuple(part.tokens or ())[piece.start : piece.end], part.role))
    return [*made, *begun], head


def _piece(part: Part) -> RenderedPiece:
    if isinstance(part, Insert):
        return RenderedPiece(np.asarray(part.tokens or (), np.int32), part.text)
    node, start, end = part
    tokens = np.zeros(0, np.int32) if node.tokens is None else node.tokens[start:end]
    ends = None if node.ends is None else node.ends[start:end] - (node.ends[start - 1] if start else 0)
    return RenderedPiece(tokens, text_between(node, start, end), None if node.sampled is None else node.sampled[start:end], ends)
