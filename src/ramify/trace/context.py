"""The prompt of a node: the path's concatenation, or the explicit context that the node names.
Training rows are built from this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.trace.message import Message
from ramify.trace.node import Context, Insert, Node, PathRest, Span
from ramify.trace.path import Part, Path, as_messages


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a model saw before it sampled. ``tokens``: int32 (T,), or None where any part of it has text only."""

    tokens: np.ndarray | None
    messages: tuple[Message, ...]


def shown(
    node: Node, node_of: Callable[[str], Node], path_of: Callable[[str], Path], context_of: Callable[[str], Context]
) -> Shown:
    """What the model saw when it sampled ``node``; the callables find nodes, paths and contexts by id, e.g. those of a Run.

    Raises UserError where the context shows what is not there.
    """
    parts: list[Part] = []
    if node.context is not None:
        parts = resolve(context_of(node.context), node_of, node)
    elif node.parent is not None:
        parts = [(part, 0, kept) for part, kept in path_of(node.parent).upto(node.offset).segments]
    return Shown(tokens_of(parts), tuple(as_messages(parts)))


def resolve(context: Context, node_of: Callable[[str], Node], sampled: Node) -> list[Part]:
    """The parts of the context that ``sampled`` was sampled from. Raises UserError when a span is outside its node, or a rest
    follows a node that is not on the path."""
    parts: list[Part] = []
    for part in context.parts:
        if isinstance(part, Insert):
            parts.append(part)
            continue
        if isinstance(part, PathRest):
            parts += _following(part.node, node_of, sampled)
            continue
        source = node_of(part.node)
        if not 0 <= part.start <= part.end <= len(source):
            spot = f"{part.start} to {part.end} of node {source.id}, which has length {len(source)}"
            raise UserError(f"the context of node {sampled.id} shows {spot}")
        parts.append((source, part.start, part.end))
    return parts


def _following(name: str, node_of: Callable[[str], Node], sampled: Node) -> list[Part]:
    """What follows the node ``name`` on the path to ``sampled``: walked upwards, so a long path before it costs nothing."""
    parts: list[Part] = []
    below = sampled
    while below.parent is not None and below.parent != name:
        parent = node_of(below.parent)
        parts.append((parent, 0, below.offset))
        below = parent
    if below.parent is None:
        raise UserError(f"the context of node {sampled.id} shows what follows node {name}, which is not on its path")
    return parts[::-1]


HISTORY = "history"
"""In the data of a node whose context is a rendering of its history: the hash of that history as a context, "" for the path."""


def seen(path: Path, node_of: Callable[[str], Node], context_of: Callable[[str], Context]) -> list[Part]:
    """The history of a model that continues after ``path``, pieces of length 0 left out.

    The path; or, where a node on it was sampled from an explicit context, that context, the last such node, and all that follows
    it. Of a context that a chat template rendered it is the history which was rendered:
    the template renders it anew at every turn.
    """
    start, name = 0, None
    for i, (node, _) in enumerate(path.segments):
        history = node.context and node.data.get(HISTORY, node.context)
        if history:
            start, name = i, history
    parts = [] if name is None else resolve(context_of(name), node_of, path.segments[start][0])
    return [*parts, *((node, 0, kept) for node, kept in path.segments[start:] if kept)]


def changed(node: Node) -> bool:
    """Whether the history of ``node`` differs from its path: something was compacted or edited."""
    return bool(node.context and node.data.get(HISTORY, node.context))


def context_of_parts(parts: Iterable[Part]) -> Context:
    """The context that shows ``parts``: the inverse of :func:`resolve`."""
    return Context(tuple(part if isinstance(part, Insert) else Span(part[0].id, part[1], part[2]) for part in parts))


def with_rest(parts: Sequence[Span | Insert], before: Sequence[tuple[Node, int]]) -> Context:
    """The context that shows ``parts`` to a node sampled after the path ``before``: as far as they end like the path does, its
    last part is that rest. :func:`resolve` gives the same parts again."""
    same = 0
    while same < min(len(parts), len(before) - 1):
        node, kept = before[-1 - same]
        if parts[-1 - same] != Span(node.id, 0, kept):
            break
        same += 1
    if same == 0:
        return Context(tuple(parts))
    return Context((*parts[: len(parts) - same], PathRest(before[-1 - same][0].id)))


def tokens_of(parts: Iterable[Part]) -> np.ndarray | None:
    """int32 (T,): the tokens of ``parts``; None where any has text only."""
    pieces = [np.zeros(0, np.int32)]
    for part in parts:
        if isinstance(part, Insert):
            tokens = None if part.tokens is None else np.asarray(part.tokens, np.int32)
        else:
            source, start, end = part
            if not len(source):
                continue
            tokens = None if source.tokens is None else source.tokens[start:end]
        if tokens is None:
            return None
        pieces.append(tokens)
    return np.concatenate(pieces)


def whole_tokens(parts: Iterable[Part]) -> np.ndarray:
    """int32 (T,): the tokens of ``parts``. Raises NeedsError naming the first that has text only."""
    parts = list(parts)
    tokens = tokens_of(parts)
    if tokens is None:
        named = next((p[0].id for p in parts if not isinstance(p, Insert) and p[0].tokens is None and len(p[0])), "")
        what = f"node {named} has text only" if named else "the context holds inserted text without tokens"
        raise NeedsError(
            f"{what}, and this needs token ids: record the run with a model that returns tokens (text is never tokenised again)"
        )
    return tokens
