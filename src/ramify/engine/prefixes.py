"""A store of prefixes: keys and values that outlive their rows, shared block by block.

A block may hold the first layers only; a row that has more of them for the same tokens completes it.

Axis legend: L layers, C numbers a position keeps in one layer (keys then values of all key/value heads).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

BLOCK = 16


@dataclass(eq=False, slots=True)
class Block:
    """Up to 16 tokens after their parent's, with their keys and values [L, tokens, C]."""

    tokens: tuple[int, ...]
    kv: Tensor
    parent: Block | None
    children: dict[int, list[Block]] = field(default_factory=dict)
    """By first token."""

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return self.kv.numel() * self.kv.element_size()


class PrefixStore:
    """A tree of blocks under a byte budget. What was parked once is found again by any row that starts the same way.

    Least recently used blocks go first; a walk touches children before parents, so a parent never goes before its child.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._root = Block((), torch.empty(0), None)
        self._recent: OrderedDict[int, Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def clear(self) -> None:
        """Forget everything."""
        self._root.children.clear()
        self._recent.clear()
        self.bytes = 0

    def match(self, tokens: np.ndarray, limit: int) -> list[Tensor]:
        """Keys and values of the longest known prefix of ``tokens[:limit]``, piece by piece, each [its L, n, C]."""
        ids = tokens[:limit].tolist()
        pieces: list[Tensor] = []
        walk: list[Block] = []
        node, at = self._root, 0
        while at < len(ids):
            best, length = None, 0
            for child in node.children.get(ids[at], ()):
                same = _common(child.tokens, ids, at)
                if same > length:
                    best, length = child, same
            if best is None:
                break
            pieces.append(best.kv[:, :length])
            walk.append(best)
            at += length
            if length < BLOCK:
                break
            node = best
        self._touch(walk)
        return pieces

    def insert(self, tokens: np.ndarray, read: Callable[[int, int], Tensor], layers: Callable[[int], int]) -> None:
        """Keep the keys and values of a row's ``tokens``; ``read(start, stop)`` gives a fresh copy of a stretch, of ``layers(stop)``."""
        if self.budget <= 0:
            return
        ids = tokens.tolist()
        walk: list[Block] = []
        node = self._root
        for at in range(0, len(ids), BLOCK):
            chunk = tuple(ids[at : at + BLOCK])
            siblings = node.children.setdefault(chunk[0], [])
            found = next((b for b in siblings if b.tokens[: len(chunk)] == chunk), None)
            if found is None:
                for shorter in [b for b in siblings if chunk[: len(b.tokens)] == b.tokens]:
                    self._drop(shorter)
                found = Block(chunk, read(at, at + len(chunk)), node)
                siblings = node.children.setdefault(chunk[0], [])
                siblings.append(found)
                self._recent[id(found)] = found
                self.bytes += found.nbytes
            elif len(found.kv) < layers(at + len(found.tokens)) and found.tokens == chunk:
                self.bytes -= found.nbytes
                found.kv = read(at, at + len(chunk))
                self.bytes += found.nbytes
            walk.append(found)
            node = found
        self._touch(walk)
        while self.bytes > self.budget:
            self._drop(next(iter(self._recent.values())))

    def _touch(self, walk: list[Block]) -> None:
        for block in reversed(walk):
            self._recent.move_to_end(id(block))

    def _drop(self, block: Block) -> None:
        for children in list(block.children.values()):
            for child in list(children):
                self._drop(child)
        if block.parent is not None:
            siblings = block.parent.children[block.tokens[0]]
            siblings.remove(block)
            if not siblings:
                del block.parent.children[block.tokens[0]]
        del self._recent[id(block)]
        self.bytes -= block.nbytes


def _common(block: tuple[int, ...], ids: list[int], at: int) -> int:
    """How many tokens of ``block`` agree with ``ids`` from ``at``."""
    stretch = ids[at : at + len(block)]
    if tuple(stretch) == block:
        return len(block)
    return next((i for i, (a, b) in enumerate(zip(block, stretch, strict=False)) if a != b), len(stretch))
