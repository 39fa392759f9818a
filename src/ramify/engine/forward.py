"""One forward pass over a tile of tokens, each a row of its own with its own position and its own cached keys.

Every token, prompt, drawn or drafted, takes the same path: linear layers on a tile whose row count is a multiple of 4, attention over the
row's cached keys up to its own. With ``MKL_CBWR`` pinned (see ``ramify.engine``), a row's result then has the same bits whatever
else is in the tile, so keys and values do not depend on how or when a position was computed.

Axis legend: M tile rows, S cached positions, D width, H query heads, G key/value heads, E head size, C = 2GE, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.engine.cache import Arena
from ramify.engine.stack import Stack, replace, twice
from ramify.engine.tiny import Tap, TinyLM

TILE = 4
"""Row counts are multiples of this."""
SPAN = 32
"""Attention looks at a multiple of this many positions; those past a row's own are masked."""

SMALL = 1 << 24
"""Multiplications of a tile (rows x weights) up to which one thread is fastest: half a millisecond of one core."""


def padded(rows: int, unit: int = TILE) -> int:
    """``rows`` rounded up to a multiple of ``unit``."""
    return -(-rows // unit) * unit


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """One thread for a tile of so few multiplications that a second would cost more than it brings. No bit depends on it."""
    threads = torch.get_num_threads()
    if threads == 1 or work > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Tile:
    """Tokens to run and where their keys and values go: entry m is ``tokens[m]`` at ``positions[m]`` of arena row ``rows[m]``.

    ``rows`` ascend and name a row as often as it has entries; None: entry m belongs to row m (decoding); one number: all entries are that
    row's (prompt). An entry attends to its row up to its own position, or up to ``sees[m]``. The tile is filled up to a multiple of 4
    with token 0, stored just past the last entry, where nothing has been computed yet: the arena must have room for that.

    Attention runs on a rectangle of R rows with c queries each, c the most entries any row has. The bits are those of c = 1: with the
    kernels pinned, a query's product with keys or values does not depend on the other queries (:func:`probe` looks).
    """

    def __init__(
        self,
        arena: Arena,
        kv_heads: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        rows: int | Sequence[int] | None = None,
        sees: Sequence[int] | None = None,
    ) -> None:
        used, capacity, device = len(tokens), arena.capacity, arena.kv.device
        self.used = used
        self.size = M = padded(used)
        owners: Sequence[int] = range(used) if rows is None else [rows] * used if isinstance(rows, int) else rows
        past = owners[-1] * capacity + positions[-1] + 1
        slots = [row * capacity + p for row, p in zip(owners, positions, strict=True)]
        spare = [0] * (M - used)
        seen = positions if sees is None else sees
        masks = [capacity - 1 - p for p in seen]
        table = np.array([[*tokens, *spare], [*positions, *spare], [*slots, *range(past, past + M - used)], [*masks, *spare]])
        self.tokens, self.positions, self.slots, mask = torch.from_numpy(table).to(device).unbind(0)
        mask = mask.narrow(0, 0, used)
        self._gather: Tensor | None = None
        self._place: Tensor | None = None
        self._shape = (used, 1) if rows is None else (1, used)
        if rows is not None and not isinstance(rows, int):
            mask = self._arrange(np.array(rows) - rows[0], mask, capacity - 1)
        R, c = self._shape
        S = min(padded(max(seen) + 1, SPAN), capacity)
        self._flat, self._keys, self._values, steps = arena.views(kv_heads, owners[0], R, S)
        self._mask = steps.index_select(0, mask).view(R, 1, c, S)

    def _arrange(self, row: np.ndarray, mask: Tensor, empty: int) -> Tensor:
        """Lay entries of rows [used] out as a rectangle; returns the mask of each of its places. A full one needs no index."""
        counts = np.bincount(row)
        self._shape = R, c = len(counts), int(counts.max())
        if R * c == len(row):
            return mask
        place = row * c + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        gather = np.zeros(R * c, np.int64)
        gather[place] = np.arange(len(row))
        self._gather, self._place = torch.from_numpy(gather).to(mask.device), torch.from_numpy(place).to(mask.device)
        return torch.full((R * c,), empty, device=mask.device).index_copy_(0, self._place, mask)

    def attend(self, layer: int, q: Tensor, kv: Tensor, scale: float) -> Tensor:
        """Store ``kv`` [M, C], attend with ``q`` [M, H, E]; returns [used, H * E] for the used entries.

        The query heads of one key/value head ask together: fewer products, same bits.
        """
        self._flat[layer].index_copy_(0, self.slots, kv)
        keys, values = self._keys[layer], self._values[layer]
        (R, c), G, E = self._shape, keys.shape[1], q.shape[2]
        if self._gather is not None:
            q = q.index_select(0, self._gather)
        elif self.used < self.size:
            q = q.narrow(0, 0, self.used)
        if c == 1:
            found = F.scaled_dot_product_attention(q.view(R, G, -1, E), keys, values, self._mask, scale=scale).reshape(R, -1)
        else:
            asked = q.view(R, c, G, -1, E).transpose(1, 2)
            if self._mask.shape[2] != c * asked.shape[3]:
                self._mask = self._mask.repeat_interleave(asked.shape[3], 2)
            mixed = F.scaled_dot_product_attention(asked.flatten(2, 3), keys, values, self._mask, scale=scale)
            found = mixed.view(asked.shape).transpose(1, 2).reshape(R * c, -1)
        return found if self._place is None else found.index_select(0, self._place)


class Forward(Protocol):
    """What the scheduler needs of a network."""

    layers: int
    kv_heads: int
    kv_size: int
    """C: numbers a position keeps in one layer."""
    vocab: int
    width: int
    """D."""
    context: int
    weights: int
    """Numbers a row is multiplied with, all layers together."""
    device: torch.device
    dtype: torch.dtype
    """Of the weights, and so of the cache."""

    def hidden(self, tile: Tile, tap: Tap | None = None) -> Tensor:
        """Run a tile; last hidden state [M, D]. ``tap`` as in :meth:`TinyLM.hidden`, with [M, D]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] to [M, V]."""
        ...

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """Ordinary causal forward over right-padded rows int64 [B, T]: last hidden state [B, T, D]."""
        ...

    def refresh(self) -> None:
        """Take over changed weights."""
        ...


class TinyForward:
    """A :class:`TinyLM` as a :class:`ramify.engine.stack.Stack`.

    Its fused matrices are copies (about two thirds of the weights again); :meth:`refresh` makes them anew.
    """

    def __init__(self, module: TinyLM) -> None:
        c = module.config
        self.module, self.c = module, c
        self.layers, self.kv_heads, self.kv_size = c.layers, c.kv_heads, 2 * c.kv_heads * c.head_size
        self.vocab, self.width, self.context = c.vocab, c.width, c.context
        self.weights = sum(weight.numel() for weight in module.parameters())
        self.device, self.dtype = module.head.device, module.head.dtype
        self.refresh()

    def refresh(self) -> None:
        """Fuse the weights anew."""
        with torch.inference_mode():
            self._stack = Stack(self.module.model.layers, self.c, self.device, TILE)  # padding may run past the context
            self._last = twice(self.module.model.norm.weight)

    def hidden(self, tile: Tile, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        buffers = self._stack.buffers(tile.size)
        buffers.x.copy_(F.embedding(tile.tokens, self.module.model.embed_tokens.weight))
        if tap is not None:
            replace(buffers.x, tap(0, buffers.x))
        self._stack.run(tile, buffers, tap=tap)
        return self._stack.rms(buffers, self._last)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] to [M, V]."""
        return F.linear(hidden, self.module.head)

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        return self.module.hidden(tokens, tap=tap)


def probe(forward: Forward) -> bool:
    """Whether this machine keeps a row's bits apart from its tile: one short row computed four ways on the real weights.

    As one prompt tile; token by token in the smallest tile; token by token as the sixth row of a full tile, beside a row far longer than
    itself; and several tokens at a time beside rows with other numbers of tokens.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(forward.vocab, (8,), generator=generator).tolist()
    far = min(forward.context, 600) - 1
    arenas = [Arena(forward.layers, forward.kv_size, forward.device) for _ in range(4)]
    with torch.inference_mode():
        for arena in arenas[2:]:
            arena.reserve(12, far + 1 + TILE)
            arena.kv[:, 6].normal_()

        def run(arena: Arena, tokens: Sequence[int], positions: Sequence[int], rows: int | Sequence[int] | None = None) -> Tensor:
            return forward.logits(forward.hidden(Tile(arena, forward.kv_heads, tokens, positions, rows)))

        def others(count: int, below: int) -> list[int]:
            return torch.randint(below, (count,), generator=generator).tolist()

        single, crowd, ragged = [], [], []
        for t in range(8):
            single.append(run(arenas[1], [ids[t]], [t])[0])
            tokens, positions = others(12, forward.vocab), others(12, far)
            tokens[5], positions[5], positions[6] = ids[t], t, far
            crowd.append(run(arenas[2], tokens, positions)[5])
        for start, stop in ((0, 1), (1, 4), (4, 8)):
            tokens = [*others(2, forward.vocab), *ids[start:stop], *others(1, forward.vocab)]
            rows = [4, 4, *[5] * (stop - start), 6]
            ragged.append(run(arenas[3], tokens, [7, 8, *range(start, stop), far], rows)[2 : 2 + stop - start])
        results = [run(arenas[0], ids, range(8), 0), torch.stack(single), torch.stack(crowd), torch.cat(ragged)]
        kept = [arena.kv[:, row, :8] for arena, row in zip(arenas, (0, 0, 5, 5), strict=True)]
        return all(torch.equal(results[0], r) for r in results) and all(torch.equal(kept[0], k) for k in kept)
