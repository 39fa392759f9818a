"""Where keys and values of the rows being drawn live. (What outlives its row is in :mod:`ramify.engine.prefixes`.)

Axis legend: L layers, R rows, S positions, C numbers a position keeps in one layer (keys then values of all key/value heads).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS, POSITIONS = 4, 64
"""What an arena begins with."""


class Views(NamedTuple):
    """Views of the arena, layer by layer."""

    flat: tuple[Tensor, ...]
    """[R * S, C]."""
    keys: tuple[Tensor, ...]
    """[rows, G, positions, E]."""
    values: tuple[Tensor, ...]
    masks: Tensor
    """[S, positions]: row S - 1 - p is the additive mask of position p, a view of 2 S numbers."""


class Arena:
    """Keys and values of the active rows, one tensor [L, R, S, C]. Rows and positions grow by doubling; contents survive.

    ``most`` bounds R x S. Where both cannot grow within it, rows that are no longer asked for are given up for positions, and the other
    way round; while contents move, old and new memory exist together.
    """

    def __init__(
        self, layers: int, size: int, device: torch.device, most: int | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.kv = torch.zeros((layers, ROWS, POSITIONS, size), device=device, dtype=dtype)
        self.most = most
        self._views: dict[tuple[int, int], Views] = {}

    @property
    def rows(self) -> int:
        """Rows there is room for."""
        return self.kv.shape[1]

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return self.kv.shape[2]

    def reserve(self, rows: int, positions: int) -> None:
        """Make room. New memory is zero: a masked position must be finite."""
        R, S = doubled(self.rows, rows), doubled(self.capacity, positions)
        if self.most is not None and self.most < R * S:
            R, S = doubled(ROWS, rows), doubled(POSITIONS, positions)
        if (self.rows, self.capacity) != (R, S):
            old = self.kv
            self.kv = torch.zeros((old.shape[0], R, S, old.shape[3]), device=old.device, dtype=old.dtype)
            r, s = min(R, old.shape[1]), min(S, old.shape[2])
            self.kv[:, :r, :s] = old[:, :r, :s]
            self._views.clear()

    def views(self, kv_heads: int, first: int, count: int, positions: int) -> Views:
        """What a tile attends to: the first ``positions`` of ``count`` rows from ``first``."""
        if first == 0 and (count, positions) in self._views:
            return self._views[count, positions]
        seen = self.kv[:, first : first + count, :positions]
        keys, values = seen.unflatten(3, (2, kv_heads, -1)).permute(3, 0, 1, 4, 2, 5)
        zeros = torch.zeros(self.capacity, device=self.kv.device, dtype=self.kv.dtype)
        steps = torch.cat((zeros, zeros - float("inf"))).unfold(0, positions, 1)  # entry C-1-p: zero up to position p
        views = Views(self.kv.flatten(1, 2).unbind(0), keys.unbind(0), values.unbind(0), steps)
        if first == 0:
            self._views[count, positions] = views
        return views

    def copy(self, source: int, start: int, stop: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` into rows ``start`` to ``stop``."""
        self.kv[:, start:stop, :length] = self.kv[:, source : source + 1, :length]

    def write(self, row: int, start: int, kv: Tensor) -> None:
        """Put ``kv`` [first layers, P, C] at the positions of ``row`` from ``start``."""
        self.kv[: len(kv), row, start : start + kv.shape[1]] = kv

    def read(self, row: int, start: int, stop: int, layers: int | None = None) -> Tensor:
        """A copy of positions ``start`` to ``stop`` of ``row`` in the first ``layers``, [layers, stop - start, C]."""
        return self.kv[:layers, row, start:stop].clone()


def doubled(start: int, least: int) -> int:
    """``start`` times the smallest power of two that reaches ``least``."""
    while start < least:
        start *= 2
    return start


def fits(rows: int, positions: int, most: int | None) -> bool:
    """Whether an arena of at most ``most`` places holds so many rows and positions."""
    return most is None or doubled(ROWS, rows) * doubled(POSITIONS, positions) <= most
