"""A batch of tokens as the layers see it: where each reads and writes its keys and values, and its attention.

Axis legend: M batch rows, R rectangle rows, G key/value heads, E head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.engine.cache import KVCache, span

UNIT = 4
"""Row counts are multiples of this."""


def padded(rows: int, unit: int = UNIT) -> int:
    """``rows`` rounded up to a multiple of ``unit``."""
    return -(-rows // unit) * unit


class _Views(NamedTuple):
    """What :meth:`ForwardBatch.attend` reads and writes in every layer."""

    q: Tensor
    queries: Tensor
    """The queries as attention takes them, [R, G, together, E], filled up to a multiple of 4."""
    into: Tensor | None
    """Where in ``queries`` the queries go, [R, G, c, heads, E]; None where ``queries`` is a view of them."""
    source: Tensor | None
    """The queries in that shape; None where they have to be gathered."""
    out: Tensor | None
    """Where the results go; None where they have to be gathered, or go nowhere."""
    together: int
    """Queries of one key/value head."""


class ForwardBatch:
    """Tokens to run and where their keys and values go: entry m is ``tokens[m]`` at ``positions[m]`` of cache slot ``rows[m]``.

    ``rows`` ascend and name a row as often as it has entries; None: entry m belongs to row m (decoding); one number: all entries
    are that row's (prompt). An entry attends to its row up to its own position, or up to ``sees[m]``. The batch is filled up to a
    multiple of 4 with token 0, stored just past the last entry, where nothing has been computed yet:
    the cache must have room for that.

    Attention runs on a rectangle of R rows with c queries each, c the most entries any row has. The bits are those of c = 1: with
    the kernels pinned, a query's product with keys or values does not depend on the other queries (:func:`probe` looks). The
    query heads of one key/value head ask together, and are filled up to a multiple of 4 as the batch is.
    """

    def __init__(
        self,
        cache: KVCache,
        kv_heads: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        rows: int | Sequence[int] | None = None,
        sees: Sequence[int] | None = None,
    ) -> None:
        used, capacity, device = len(tokens), cache.capacity, cache.kv.device
        self.used = used
        self.size = M = padded(used)
        owners: Sequence[int] = range(used) if rows is None else [rows] * used if isinstance(rows, int) else rows
        past = owners[-1] * capacity + positions[-1] + 1
        slots = [row * capacity + p for row, p in zip(owners, positions, strict=True)]
        spare = [0] * (M - used)
        seen = positions if sees is None else sees
        masks = [capacity - 1 - p for p in seen]
        table = np.array([[*tokens, *spare], [*positions, *spare], [*slots, *range(past, past + M - used)], [*masks, *spare]])
        self.tokens, self.positions, self.slot_mapping, mask = torch.from_numpy(table).to(device).unbind(0)
        mask = mask.narrow(0, 0, used)
        self._gather: Tensor | None = None
        self._scatter: Tensor | None = None
        self._filled: Tensor | None = None
        self._views: _Views | None = None
        self._shape = (used, 1) if rows is None else (1, used)
        if rows is not None and not isinstance(rows, int):
            mask = self._arrange(rows, mask, capacity - 1)
        R, c = self._shape
        S = min(span(max(seen) + 1), capacity)
        self._flat, self._keys, self._values, steps = cache.views(kv_heads, owners[0], R, S)
        self._mask = steps.index_select(0, mask).view(R, 1, c, S)

    def _arrange(self, rows: Sequence[int], mask: Tensor, empty: int) -> Tensor:
        """Lay entries of rows [used] out as a rectangle; returns the mask of each of its places. A full one needs no index."""
        R = rows[-1] - rows[0] + 1
        c = len(rows) // R
        if R * c == len(rows) and all(rows[i * c] == rows[i * c + c - 1] == rows[0] + i for i in range(R)):
            self._shape = R, c
            return mask
        row = np.array(rows) - rows[0]
        counts = np.bincount(row)
        self._shape = R, c = len(counts), int(counts.max())
        scatter = row * c + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        gather = np.zeros(R * c, np.int64)
        gather[scatter] = np.arange(len(row))
        self._gather, self._scatter = torch.from_numpy(gather).to(mask.device), torch.from_numpy(scatter).to(mask.device)
        return torch.full((R * c,), empty, device=mask.device).index_copy_(0, self._scatter, mask)

    def attend(self, layer: int, q: Tensor, kv: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
        """Store ``kv`` [M, C], attend with ``q`` [M, H, E]; returns [used, H * E] for the used entries.

        Where entries fill the batch up, ``out`` [M, H * E] takes them in, and is returned. Views of ``q`` and ``out`` are made
        once for all layers that pass the same two.
        """
        self._flat[layer].index_copy_(0, self.slot_mapping, kv)
        if self._views is None or self._views.q is not q:
            self._views = self._prepare(q, out)
        queries, into, source, taken = self._views.queries, self._views.into, self._views.source, self._views.out
        (R, c), together = self._shape, self._views.together
        if into is not None and source is not None:
            into.copy_(source)
        elif into is not None and self._gather is not None:
            into.copy_(q.index_select(0, self._gather).view(R, c, into.shape[1], -1, q.shape[2]).transpose(1, 2))
        mixed = F.scaled_dot_product_attention(queries, self._keys[layer], self._values[layer], self._mask, scale=scale)
        if mixed.shape[2] > together:
            mixed = mixed.narrow(2, 0, together)
        if c > 1:
            mixed = mixed.view(R, mixed.shape[1], c, -1, q.shape[2]).transpose(1, 2)
        if out is not None and taken is not None and self.used < self.size:
            taken.copy_(mixed)
            return out
        attended = mixed.reshape(R * c, -1)
        if self._scatter is not None:
            attended = attended.index_select(0, self._scatter)
        if out is None or self.used == self.size:
            return attended
        out.narrow(0, 0, self.used).copy_(attended)
        return out

    def _prepare(self, q: Tensor, out: Tensor | None) -> _Views:
        """Views of the queries, and of where the results go, for all layers."""
        (R, c), G, E = self._shape, self._keys[0].shape[1], q.shape[2]
        heads = q.shape[1] // G
        together = heads * c
        used = None if self._gather is not None else q.narrow(0, 0, self.used) if self.used < self.size else q
        target = None if out is None or self._scatter is not None else out.narrow(0, 0, self.used)
        if (c == 1 or heads == 1) and together % UNIT == 0 and used is not None:
            queries = used.view(R, G, together, E) if c == 1 else used.view(R, c, G, E).transpose(1, 2)
            taken = None if target is None else target.view(R, G, together, E) if c == 1 else target.view(R, c, G, 1, E)
            return _Views(q, queries, None, None, taken, together)
        if self._filled is None:
            self._filled = q.new_zeros((R, G, padded(together), E))
            if c > 1:  # rows that only fill up attend like a row's first query
                self._mask = self._mask.index_select(2, _queries(heads, together, q.device))
        into = self._filled.narrow(2, 0, together).view(R, G, c, heads, E)
        source = None if used is None else used.view(R, c, G, heads, E).transpose(1, 2)
        taken = None
        if target is not None:
            taken = target.view(R, G, together, E) if c == 1 else target.view(R, c, G, heads, E)
        return _Views(q, self._filled, into, source, taken, together)


@lru_cache(256)
def _queries(heads: int, together: int, device: torch.device) -> Tensor:
    """For each query row, filled up to a multiple of 4, the entry it belongs to."""
    return torch.tensor([i // heads for i in range(together)] + [0] * (padded(together) - together), device=device)
