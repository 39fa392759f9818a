"""The KV cache: keys and values of running sequences, one slot each, and of finished prefixes, shared block by block.

A slot is a row of one tensor, as long as the longest sequence needs; :class:`PrefixCache` keeps what outlives its slot.

Axis legend: L layers, R slots, S positions, C numbers a position keeps in one layer (keys then values of all key/value heads).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SLOTS, POSITIONS = 4, 64
"""What a cache begins with."""
SPAN, WHOLE, SPLIT, PART = 32, 512, 384, 192
"""Attention looks at a multiple of SPAN positions. Its kernel takes WHOLE at a time, and a last part of SPLIT or more as it takes
a whole one, of PART or less as the beginning of one. What lies between is divided in other places,
and so has other bits: it is looked at as SPLIT."""
BLOCK = 16
"""Tokens of a block of the prefix cache."""


class Views(NamedTuple):
    """Views of the cache, layer by layer."""

    flat: tuple[Tensor, ...]
    """[R * S, C]."""
    keys: tuple[Tensor, ...]
    """[slots, G, positions, E]."""
    values: tuple[Tensor, ...]
    masks: Tensor
    """[S, positions]: row S - 1 - p is the additive mask of position p, a view of 2 S numbers."""


class KVCache:
    """Keys and values of running sequences, one tensor ``kv`` [L, R, S, C].
    Slots and positions grow by doubling; contents survive. Where one of them grows, what is no longer asked for of the other is
    given up; while contents move, old and new memory exist together.

    ``most`` bounds R x S. ``spare`` positions past every sequence are kept free for what a forward pass writes there.
    ``prefixes`` holds ``prefix_bytes`` at most; it takes the first ``stored`` layers of positions that have features there, else
    the first ``bare`` (by default all layers either way).
    """

    def __init__(
        self,
        layers: int,
        size: int,
        device: torch.device,
        most: int | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        spare: int = 0,
        prefix_bytes: int = 0,
        bare: int | None = None,
        stored: int | None = None,
    ) -> None:
        self.kv = torch.zeros((layers, 0, 0, size), device=device, dtype=dtype)
        self.most, self.spare = most, spare
        self.prefixes = PrefixCache(prefix_bytes)
        self._bare, self._stored = bare or layers, stored or layers
        self._views: dict[tuple[int, int], Views] = {}

    @property
    def slots(self) -> int:
        """Slots there is room for."""
        return self.kv.shape[1]

    @property
    def capacity(self) -> int:
        """Positions there is room for in each slot."""
        return self.kv.shape[2]

    @property
    def bytes(self) -> int:
        """Memory of the slots and the prefixes."""
        return self.prefixes.bytes + self.kv.nbytes

    @property
    def longest(self) -> int | None:
        """Longest sequence that one slot may hold; None: no bound."""
        if self.most is None:
            return None
        S = POSITIONS
        while self.most >= SLOTS * 2 * S:
            S *= 2
        return min(S, _usable(S)) - self.spare if self.most >= SLOTS * S else 0

    def fits(self, slots: int, length: int) -> bool:
        """Whether there may be so many slots for sequences of at most ``length`` tokens."""
        return _within(slots, length + self.spare, self.most)

    def reserve(self, slots: int, length: int) -> None:
        """Make room for so many sequences, the longest of ``length`` tokens. New memory is zero: a masked position must be
        finite."""
        positions = length + self.spare
        if slots <= self.slots and positions <= _usable(self.capacity):
            return
        R, S, old = doubled(SLOTS, slots), _capacity(POSITIONS, positions), self.kv
        self.kv = torch.zeros((old.shape[0], R, S, old.shape[3]), device=old.device, dtype=old.dtype)
        r, s = min(R, old.shape[1]), min(S, old.shape[2])
        self.kv[:, :r, :s] = old[:, :r, :s]
        self._views.clear()

    def views(self, kv_heads: int, first: int, count: int, positions: int) -> Views:
        """What a forward batch attends to: the first ``positions`` of ``count`` slots from ``first``."""
        if first == 0 and (count, positions) in self._views:
            return self._views[count, positions]
        seen = self.kv[:, first : first + count, :positions]
        keys, values = seen.unflatten(3, (2, kv_heads, -1)).permute(3, 0, 1, 4, 2, 5)
        zeros = torch.zeros(self.capacity, device=self.kv.device, dtype=self.kv.dtype)
        steps = torch.cat((zeros, zeros - float("inf"))).unfold(0, positions, 1)  # entry S-1-p: zero up to position p
        views = Views(self.kv.flatten(1, 2).unbind(0), keys.unbind(0), values.unbind(0), steps)
        if first == 0:
            self._views[count, positions] = views
        return views

    def copy(self, source: int, start: int, stop: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` into slots ``start`` to ``stop``."""
        if (source, source + 1) != (start, stop):
            self.kv[:, start:stop, :length] = self.kv[:, source : source + 1, :length]

    # -- prefixes

    def match(self, tokens: np.ndarray, limit: int) -> list[Tensor]:
        """The cached part of the first ``limit`` of ``tokens``, piece by piece, each [its layers, n, C]."""
        return self.prefixes.match(tokens, limit)

    def load(self, slot: int, pieces: Sequence[Tensor]) -> int:
        """Put what :meth:`match` found at the front of a slot; returns how many positions have all ``stored`` layers."""
        whole = next((i for i, piece in enumerate(pieces) if piece.size(0) < self._stored), len(pieces))
        ends = []
        start = 0
        for some, layers in ((pieces[:whole], self._stored), (pieces[whole:], self._bare)):
            if some:
                kv = torch.cat([piece[:layers] for piece in some], dim=1)
                self.kv[:layers, slot, start : start + kv.shape[1]] = kv
                start += kv.shape[1]
            ends.append(start)
        return ends[0]

    def store(self, slot: int, tokens: Sequence[int], whole: int) -> None:
        """Keep the keys and values of ``tokens``, which a slot holds from its front;
        the first ``whole`` have all ``stored`` layers."""
        if not self.slots or self.prefixes.budget <= 0:
            return

        def layers(stop: int) -> int:
            return self._stored if stop <= whole else self._bare

        self.prefixes.insert(tokens, lambda start, stop: self.kv[: layers(stop), slot, start:stop].clone(), layers)

    # -- memory

    def rest(self) -> None:
        """Release memory when nothing runs or waits: one long sequence must not hold it for good."""
        if self.kv.nbytes > self.prefixes.budget:
            self._free()

    def clear(self) -> None:
        """Forget everything."""
        self.prefixes.clear()
        self._free()

    def _free(self) -> None:
        self.kv = self.kv.new_zeros((self.kv.shape[0], 0, 0, self.kv.shape[3]))
        self._views.clear()


def doubled(start: int, least: int) -> int:
    """``start`` times the smallest power of two that reaches ``least``."""
    while start < least:
        start *= 2
    return start


def span(positions: int) -> int:
    """How many positions attention looks at so that the first ``positions`` are seen;
    those past them are masked, and change no bit."""
    rounded = -(-positions // SPAN) * SPAN
    last = rounded % WHOLE
    return rounded - last + SPLIT if PART < last < SPLIT else rounded


def _usable(capacity: int) -> int:
    """Positions of which attention can look at a whole :func:`span`."""
    return PART if PART < capacity < SPLIT else capacity


def _capacity(start: int, least: int) -> int:
    capacity = doubled(start, least)
    return capacity if least <= _usable(capacity) else 2 * capacity


def _within(slots: int, positions: int, most: int | None) -> bool:
    return most is None or doubled(SLOTS, slots) * _capacity(POSITIONS, positions) <= most


@dataclass(eq=False, slots=True)
class Block:
    """Up to 16 tokens after their parent's, with their keys and values [L, tokens, C]; may hold the first layers only."""

    tokens: tuple[int, ...]
    kv: Tensor
    parent: Block | None
    children: list[Block] = field(default_factory=list)
    """Sorted by their tokens, none of which begins with all of another's:
    so what agrees most with a text lies beside the text's place."""

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return self.kv.numel() * self.kv.element_size()


class PrefixCache:
    """A tree of blocks under a byte budget. What one sequence computed is found again by any that starts the same way.

    Least recently used blocks go first; a walk touches children before parents, so a parent never goes before its child. A block
    with the first layers only is completed by a sequence that has more of them for the same tokens.
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
            chunk = tuple(ids[at : at + BLOCK])
            place = _place(node.children, chunk)
            best, length = None, 0
            for child in node.children[max(0, place - 1) : place + 1]:
                same = _common(child.tokens, chunk)
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

    def insert(self, tokens: Sequence[int], read: Callable[[int, int], Tensor], layers: Callable[[int], int]) -> None:
        """Keep the keys and values of a sequence's ``tokens``;
        ``read(start, stop)`` gives a fresh copy of a stretch, of ``layers(stop)``."""
        if self.budget <= 0:
            return
        walk: list[Block] = []
        node = self._root
        for at in range(0, len(tokens), BLOCK):
            chunk, siblings = tuple(tokens[at : at + BLOCK]), node.children
            place = _place(siblings, chunk)
            block = siblings[place] if place < len(siblings) else None
            if block is None or block.tokens[: len(chunk)] != chunk:
                if place and chunk[: len(siblings[place - 1].tokens)] == siblings[place - 1].tokens:
                    self._drop(siblings[place - 1])  # what is kept now begins with all of it
                    place -= 1
                block = Block(chunk, read(at, at + len(chunk)), node)
                siblings.insert(place, block)
                self._recent[id(block)] = block
                self.bytes += block.nbytes
            elif block.tokens == chunk and block.kv.size(0) < layers(at + len(chunk)):
                self.bytes -= block.nbytes
                block.kv = read(at, at + len(chunk))
                self.bytes += block.nbytes
            walk.append(block)
            node = block
        self._touch(walk)
        while self.bytes > self.budget:
            self._drop(next(iter(self._recent.values())))

    def _touch(self, walk: list[Block]) -> None:
        for block in reversed(walk):
            self._recent.move_to_end(id(block))

    def _drop(self, block: Block) -> None:
        for child in list(block.children):
            self._drop(child)
        if block.parent is not None:
            siblings = block.parent.children
            del siblings[_place(siblings, block.tokens)]
        del self._recent[id(block)]
        self.bytes -= block.nbytes


_tokens_of = attrgetter("tokens")


def _place(siblings: list[Block], chunk: tuple[int, ...]) -> int:
    """Where ``chunk`` stands or would stand among sorted ``siblings``."""
    return bisect_left(siblings, chunk, key=_tokens_of)


def _common(block: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """How many tokens agree from the first."""
    if chunk[: len(block)] == block:
        return len(block)
    return next((i for i, (a, b) in enumerate(zip(block, chunk, strict=False)) if a != b), min(len(block), len(chunk)))
