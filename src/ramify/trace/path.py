"""Paths: the history from a root to one node, as tokens, text or messages. Nothing here ever encodes text into tokens.

Axis legend: T tokens of the whole path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.trace.message import Message
from ramify.trace.node import Insert, Node

Part = tuple[Node, int, int] | Insert
"""Tokens (or messages) start to end of a node, or text that is on no node: what a model is shown is a list of these."""


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Nodes from a root downwards; ``segments[i] = (node, kept)``: the first ``kept`` tokens (or messages, 0 or 1) of each."""

    segments: tuple[tuple[Node, int], ...] = field(default=())

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Path:
        """The path along ``nodes``, each the parent of the next; a child's offset cuts its parent. The last one is whole."""
        kept = [child.offset for child in nodes[1:]]
        if nodes:
            kept.append(len(nodes[-1]))
        return cls(tuple(zip(nodes, kept, strict=True)))

    def upto(self, offset: int) -> Path:
        """This path with its last node cut to ``offset`` tokens (or messages).

        Raises UserError when the last node is shorter than that.
        """
        if not self.segments:
            raise UserError("an empty path has no node to cut")
        node, kept = self.segments[-1]
        if not 0 <= offset <= kept:
            raise UserError(f"offset {offset} is outside node {node.id}, which has {kept} {_unit(node)}")
        return Path((*self.segments[:-1], (node, offset)))

    def __len__(self) -> int:
        """Length in the unit of offsets: tokens, plus 1 for each whole text-only message."""
        return sum(kept for _, kept in self.segments)

    @property
    def cut(self) -> bool:
        """Whether the last reply on it ended at its limit of tokens, and not by itself."""
        return next((node.stop == "length" for node, _ in reversed(self.segments) if node.role == "assistant"), False)

    @property
    def tokens(self) -> np.ndarray:
        """int32 (T,): the concatenated tokens. Raises NeedsError when a node has text only."""
        return self._array("tokens", np.int32)

    @property
    def sampled(self) -> np.ndarray:
        """bool (T,): which tokens a model sampled. Raises NeedsError when a node has text only."""
        return self._array("sampled", np.bool_)

    @property
    def logprobs(self) -> np.ndarray:
        """float32 (T,): log-probability of each sampled token, 0 elsewhere. Raises NeedsError when a node has text only."""
        return self._array("logprobs", np.float32)

    def along(self, values: Mapping[str, np.ndarray], fill: float = 0.0) -> np.ndarray:
        """float32 (T,): values along the path from values by node id; ``fill`` on nodes that have none."""
        pieces = []
        for node, kept in self._with_tokens():
            piece = values.get(node.id)
            pieces.append(np.full(kept, fill, np.float32) if piece is None else np.asarray(piece[:kept], np.float32))
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    @property
    def text(self) -> str:
        """The concatenated text. Raises NeedsError when a node is cut inside and carries no character ends of its tokens."""
        return "".join(text_between(node, 0, kept) for node, kept in self.segments)

    def messages(self) -> list[Message]:
        """The messages, nodes that continue inside a message merged into it; an empty root node is none."""
        return as_messages((node, 0, kept) for node, kept in self.segments)

    def _with_tokens(self) -> tuple[tuple[Node, int], ...]:
        for node, _ in self.segments:
            if node.tokens is None and len(node) > 0:
                raise NeedsError(
                    f"node {node.id} has text only, and this needs token ids: "
                    "record the run with a model that returns tokens (text is never tokenised again)"
                )
        return self.segments

    def _array(self, name: str, dtype: Any) -> np.ndarray:
        pieces = []
        for node, kept in self._with_tokens():
            values = getattr(node, name)
            pieces.append(np.zeros(kept, dtype) if values is None else values[:kept])
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype)


def _unit(node: Node) -> str:
    return "messages" if node.tokens is None else "tokens"


def text_between(node: Node, start: int, end: int) -> str:
    """Text of tokens (or messages) ``start`` to ``end`` of one node.

    Raises NeedsError when that cuts a token node which carries no character ends.
    """
    if start == 0 and end == len(node):
        return node.text
    if end == start:
        return ""
    if node.ends is None:
        raise NeedsError(
            f"node {node.id} is cut at token {end} but carries no character ends of its tokens, so its text is unknown"
        )
    return node.text[int(node.ends[start - 1]) if start else 0 : int(node.ends[end - 1])]


def opens_after(node: Node, first: Part) -> bool:
    """Whether ``node`` opens a message after the one that ``first`` opens. A completion goes on with the text of its prompt, and
    is a reply to it all the same."""
    return node.opens or node.role != (first.role if isinstance(first, Insert) else first[0].role)


def by_message(parts: Iterable[Part]) -> list[list[Part]]:
    """``parts`` grouped into messages; those that do not open a message continue the one before. An empty root is none, nor is a
    message of which nothing is kept: what continues it is that message anew."""
    groups: list[list[Part]] = []
    anew = False
    for part in parts:
        if isinstance(part, Insert):
            opens = part.role != ""
        else:
            node, start, end = part
            if (node.role == "root" and not node.text) or (end == start and node.opens and len(node) > 0):
                anew = anew or node.role != "root"
                continue
            opens = start == 0 and (anew or not groups or opens_after(node, groups[-1][0]))
        if opens or not groups:
            groups.append([part])
        else:
            groups[-1].append(part)
        anew = False
    return groups


def message_of(group: Sequence[Part]) -> Message:
    """The message that ``group``, parts of one message, says; its data are those of the node that opens it."""
    first, *rest = group
    if isinstance(first, Insert):
        role, text, data = first.role, first.text, {}
    else:
        role, text, data = first[0].role, text_between(*first), dict(first[0].data)
    for part in rest:
        text += part.text if isinstance(part, Insert) else text_between(*part)
    return Message(role, text, data)


def as_messages(parts: Iterable[Part]) -> list[Message]:
    """Messages of consecutive parts."""
    return [message_of(group) for group in by_message(parts)]
