"""One forward pass over a tile of tokens, each a row of its own with its own position and its own cached keys.

Every token, prompt or drawn, takes the same path: linear layers on a tile whose row count is a multiple of 4, attention as a single
query over the row's cached keys. With ``MKL_CBWR`` pinned (see ``ramify.engine``), a row's result then has the same bits whatever
else is in the tile, so keys and values do not depend on how or when a position was computed.

Axis legend: M tile rows, S cached positions, D width, H query heads, G key/value heads, E head size, C = 2GE, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.engine.cache import Arena
from ramify.engine.tiny import Tap, TinyConfig, TinyLM, rotary_tables

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
    """Tokens to run and where their keys and values go.

    ``tokens`` are the used entries' ids, ``positions`` their positions; the tile is filled up to a multiple of 4 rows with token 0.
    ``row`` None: entry m belongs to arena row m (decoding). ``row`` r: the entries are consecutive positions of arena row r (prompt).
    """

    def __init__(
        self, arena: Arena, kv_heads: int, tokens: Sequence[int], positions: Sequence[int], row: int | None = None
    ) -> None:
        used, kv, capacity = len(tokens), arena.kv, arena.capacity
        self.used = used
        self.size = M = padded(used)
        spare = M - used
        longest = max(positions)
        if row is None:
            slots = [m * capacity + p for m, p in enumerate(positions)] + [m * capacity for m in range(used, M)]
            where = [*positions, *[0] * spare]
        else:
            # unused entries write past the used ones, where nothing has been computed yet
            where = [*positions, *range(longest + 1, longest + 1 + spare)]
            slots = [row * capacity + p for p in where]
        S = min(padded(longest + 1, SPAN), capacity)
        table = np.array([[*tokens, *[0] * spare], where, slots, [capacity - 1 - p for p in where]])
        self.tokens, self.positions, self._slots, masks = torch.from_numpy(table).to(kv.device).unbind(0)
        self._flat, self._keys, self._values, mask = arena.views(kv_heads, used, S, row)
        self._mask = mask.index_select(0, masks[:used])[:, None, None]

    def attend(self, layer: int, q: Tensor, kv: Tensor, scale: float) -> Tensor:
        """Store ``kv`` [M, C], attend with ``q`` [M, H, E]; returns [used, H * E] for the used entries."""
        self._flat[layer].index_copy_(0, self._slots, kv)
        keys, values = self._keys[layer], self._values[layer]
        gqa = keys.shape[1] != q.shape[1]
        single = q.narrow(0, 0, self.used).unsqueeze(2)
        mixed = F.scaled_dot_product_attention(single, keys, values, self._mask, scale=scale, enable_gqa=gqa)
        return mixed.reshape(self.used, -1)


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
    """A :class:`TinyLM` with q/k/v and gate/up fused into one matrix each and as few operations a layer as possible.

    The fused matrices are copies (about two thirds of the weights again); :meth:`refresh` makes them anew.
    """

    def __init__(self, module: TinyLM) -> None:
        c = module.config
        self.module, self.c = module, c
        self.layers, self.kv_heads, self.kv_size = c.layers, c.kv_heads, 2 * c.kv_heads * c.head_size
        self.vocab, self.width, self.context = c.vocab, c.width, c.context
        self.weights = sum(weight.numel() for weight in module.parameters())
        self.device = module.head.device
        self._rotary = torch.empty(0)
        self._buffers: dict[int, _Buffers] = {}
        self.refresh()

    def refresh(self) -> None:
        """Fuse the weights anew."""
        with torch.inference_mode():
            self._fused = [_fuse(block, self.c) for block in self.module.model.layers]
            self._last = _twice(self.module.model.norm.weight)

    def hidden(self, tile: Tile, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        c, M = self.c, tile.size
        buffers = self._buffers.get(M)
        if buffers is None:
            buffers = self._buffers[M] = _Buffers(c, M, self.device)
        x, opposite, both_signs = buffers.x, buffers.opposite, buffers.both_signs
        mixed, qk, q, kv, gate_up, gate, up = (
            buffers.mixed,
            buffers.qk,
            buffers.q,
            buffers.kv,
            buffers.gate_up,
            buffers.gate,
            buffers.up,
        )
        D, E, doubled, half, scale = c.width, c.head_size, (2 * c.width,), c.head_size // 2, c.head_size**-0.5
        x.copy_(F.embedding(tile.tokens, self.module.model.embed_tokens.weight))
        cos, sin = self._tables(tile.positions)
        if tap is not None:
            _replace(x, tap(0, x))
        for layer, (norm1, qkv, bias, norms, out, norm2, into, down) in enumerate(self._fused):
            torch.neg(x, out=opposite)
            normed = torch.layer_norm(both_signs, doubled, norm1, None, c.norm_eps).narrow(1, 0, D)
            torch.mm(normed, qkv, out=mixed)
            if bias is not None:
                mixed.add_(bias)
            unit = qk if norms is None else torch.rms_norm(qk, (E,), None, c.norm_eps).mul_(norms)
            turned = torch.roll(unit, half, -1).mul_(sin)
            torch.addcmul(turned, unit, cos, out=qk)
            attended = tile.attend(layer, q, kv, scale)
            if tile.used < M:
                buffers.attended.narrow(0, 0, tile.used).copy_(attended)
                attended = buffers.attended
            torch.addmm(x, attended, out, out=x)
            torch.neg(x, out=opposite)
            normed = torch.layer_norm(both_signs, doubled, norm2, None, c.norm_eps).narrow(1, 0, D)
            torch.mm(normed, into, out=gate_up)
            torch.addmm(x, F.silu(gate).mul_(up), down, out=x)
            if tap is not None:
                _replace(x, tap(layer + 1, x))
        torch.neg(x, out=opposite)
        return torch.layer_norm(both_signs, doubled, self._last, None, c.norm_eps).narrow(1, 0, D)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] to [M, V]."""
        return F.linear(hidden, self.module.head)

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        return self.module.hidden(tokens, tap=tap)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [M, 1, E]; the sign of ``rotate``'s halves is folded into the sine."""
        if not len(self._rotary):
            cos, sin = rotary_tables(self.context + TILE, self.c.head_size, self.c.rope_theta)  # padding may run past the context
            sin[:, : self.c.head_size // 2].neg_()
            self._rotary = torch.stack((cos, sin), dim=1).to(self.device)
        both = self._rotary.index_select(0, positions)
        return both.narrow(1, 0, 1), both.narrow(1, 1, 1)


class _Buffers:
    """Work space of one tile size and its views, made once.

    The residual stream ``x`` is kept beside its negative: the layer norm of (x, -x) has mean 0 and variance mean(x^2), so its first half
    is the RMS norm of x, in one fused kernel where torch's RMS norm takes six.
    """

    def __init__(self, c: TinyConfig, M: int, device: torch.device) -> None:
        heads = c.heads + 2 * c.kv_heads
        self.both_signs = torch.zeros((M, 2 * c.width), device=device)
        self.x, self.opposite = self.both_signs.chunk(2, dim=1)
        self.mixed = torch.zeros((M, heads * c.head_size), device=device)
        rows = self.mixed.view(M, heads, c.head_size)
        self.qk, self.q = rows[:, : c.heads + c.kv_heads], rows[:, : c.heads]
        self.kv = self.mixed[:, c.heads * c.head_size :]
        self.attended = torch.zeros((M, c.heads * c.head_size), device=device)
        self.gate_up = torch.zeros((M, 2 * c.ffn), device=device)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)


Fused = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor, Tensor]


def _fuse(block: Any, c: TinyConfig) -> Fused:
    attention, mlp = block.self_attn, block.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = None
    if c.qk_norm:
        q_norm, k_norm = attention.q_norm.weight, attention.k_norm.weight
        norms = torch.cat((q_norm.expand(c.heads, -1), k_norm.expand(c.kv_heads, -1)))
    return (
        _twice(block.input_layernorm.weight),
        torch.cat([p.weight for p in parts]).t(),
        torch.cat([p.bias for p in parts]) if c.qkv_bias else None,
        norms,
        attention.o_proj.weight.detach().t(),
        _twice(block.post_attention_layernorm.weight),
        torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).t(),
        mlp.down_proj.weight.detach().t(),
    )


def _twice(weight: Tensor) -> Tensor:
    return torch.cat((weight, weight))


def _replace(x: Tensor, new: Tensor) -> None:
    if new is not x:
        x.copy_(new)


def probe(forward: Forward) -> bool:
    """Whether this machine keeps a row's bits apart from its tile: one short row computed three ways on the real weights.

    As one prompt tile; token by token in the smallest tile; and token by token as the sixth row of a full tile, beside a row far
    longer than itself.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(forward.vocab, (8,), generator=generator).tolist()
    far = min(forward.context, 600) - 1
    arenas = [Arena(forward.layers, forward.kv_size, forward.device) for _ in range(3)]
    results: list[Tensor] = []
    with torch.inference_mode():
        arenas[2].reserve(12, far + 1)
        arenas[2].kv[:, 6].normal_()

        def run(arena: Arena, tokens: Sequence[int], positions: Sequence[int], row: int | None = None) -> Tensor:
            return forward.logits(forward.hidden(Tile(arena, forward.kv_heads, tokens, positions, row)))

        results.append(run(arenas[0], ids, range(8), 0))
        single, crowd = [], []
        for t in range(8):
            single.append(run(arenas[1], [ids[t]], [t])[0])
            tokens = torch.randint(forward.vocab, (12,), generator=generator).tolist()
            positions = torch.randint(far, (12,), generator=generator).tolist()
            tokens[5], positions[5], positions[6] = ids[t], t, far
            crowd.append(run(arenas[2], tokens, positions)[5])
        results += [torch.stack(single), torch.stack(crowd)]
        kept = [arena.kv[:, row, :8] for arena, row in zip(arenas, (0, 0, 5), strict=True)]
        return all(torch.equal(results[0], r) for r in results) and all(torch.equal(kept[0], k) for k in kept)
