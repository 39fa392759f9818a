"""What a model was shown: the path's concatenation, or the explicit context a node names. Training rows are built from this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ramify.base.errors import UserError
from ramify.trace.node import Context, Insert, Node
from ramify.trace.path import Path, Said, as_messages


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a model saw before it drew. ``tokens``: int32 (T,), or None where any part of it has text only."""

    tokens: np.ndarray | None
    messages: tuple[Said, ...]


def shown(
    node: Node, node_of: Callable[[str], Node], path_of: Callable[[str], Path], context_of: Callable[[str], Context]
) -> Shown:
    """What the model saw when it drew ``node``; the callables find nodes, paths and contexts by id, e.g. those of a Run.

    Raises UserError when a span of the context is outside its node.
    """
    parts: list[tuple[Node, int, int] | Insert]
    if node.context is not None:
        parts = [
            part if isinstance(part, Insert) else (node_of(part.node), part.start, part.end)
            for part in context_of(node.context).parts
        ]
    elif node.parent is not None:
        parts = [(part, 0, kept) for part, kept in path_of(node.parent).upto(node.offset).segments]
    else:
        parts = []
    pieces: list[np.ndarray | None] = []
    for part in parts:
        if isinstance(part, Insert):
            pieces.append(None if part.tokens is None else np.asarray(part.tokens, np.int32))
            continue
        source, start, end = part
        if not 0 <= start <= end <= len(source):
            raise UserError(
                f"the context of node {node.id} shows {start} to {end} of node {source.id}, which has length {len(source)}"
            )
        if len(source):
            pieces.append(None if source.tokens is None else source.tokens[start:end])
    whole = [piece for piece in pieces if piece is not None]
    tokens = np.concatenate([np.zeros(0, np.int32), *whole]) if len(whole) == len(pieces) else None
    return Shown(tokens, tuple(as_messages(parts)))
