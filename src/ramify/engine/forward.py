"""One forward pass over a tile of tokens, each a row of its own with its own position and its own cached keys.

Every token, prompt or drawn, takes the same path: linear layers on a tile whose row count is a multiple of 4, attention as a single
query over the row's cached keys. With ``MKL_CBWR`` pinned (see ``ramify.engine``), a row's result then has the same bits whatever
else is in the tile, so keys and values do not depend on how or when a position was computed.

Axis legend: M tile rows, S cached positions, D width, H query heads, G key/value heads, E head size, C = 2GE, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.engine.cache import Arena
from ramify.engine.tiny import Tap, TinyConfig, TinyLM, rotary_tables

TILE = 4
"""Row counts are multiples of this."""
SPAN = 32
"""Attention looks at a multiple of this many positions; those past a row's own are masked."""


def padded(rows: int, unit: int = TILE) -> int:
    """``rows`` rounded up to a multiple of ``unit``."""
    return -(-rows // unit) * unit


class Tile:
    """Tokens to run and where their keys and values go.

    ``tokens`` and ``positions`` are int64 [M]. ``row`` None: entry m belongs to arena row m (decoding). ``row`` r: all entries are
    consecutive positions of arena row r (prompt). ``longest`` is the largest position.
    """

    def __init__(
        self, arena: Arena, kv_heads: int, tokens: Tensor, positions: Tensor, longest: int, row: int | None = None
    ) -> None:
        self.tokens, self.positions = tokens, positions
        M, kv = len(tokens), arena.kv
        S = min(padded(longest + 1, SPAN), arena.capacity)
        head_size = kv.shape[3] // (2 * kv_heads)
        if row is None:
            slots = positions + torch.arange(0, M * arena.capacity, arena.capacity, device=kv.device)
            seen = kv[:, :M, :S]
        else:
            slots = positions + row * arena.capacity
            seen = kv[:, row : row + 1, :S].expand(-1, M, -1, -1)
        self._slots = slots
        self._flat = kv.flatten(1, 2).unbind(0)
        # [L, M, S, C] -> per layer keys and values [M, G, S, E], views of the arena
        split = seen.unflatten(3, (2, kv_heads, head_size)).permute(3, 0, 1, 4, 2, 5)
        self._keys, self._values = split[0].unbind(0), split[1].unbind(0)
        later = torch.arange(S, device=kv.device) > positions[:, None]
        self._mask = torch.zeros((M, S), device=kv.device).masked_fill_(later, float("-inf"))[:, None, None]

    def attend(self, layer: int, q: Tensor, kv: Tensor, scale: float) -> Tensor:
        """Store ``kv`` [M, C], attend with ``q`` [M, H, E]; returns [M, H * E]."""
        self._flat[layer].index_copy_(0, self._slots, kv)
        keys, values = self._keys[layer], self._values[layer]
        gqa = keys.shape[1] != q.shape[1]
        mixed = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, self._mask, scale=scale, enable_gqa=gqa)
        return mixed.reshape(len(q), -1)


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
    """A :class:`TinyLM` with q/k/v and gate/up fused into one matrix each and as few operations a layer as possible."""

    def __init__(self, module: TinyLM) -> None:
        c = module.config
        self.module, self.c = module, c
        self.layers, self.kv_heads, self.kv_size = c.layers, c.kv_heads, 2 * c.kv_heads * c.head_size
        self.vocab, self.width, self.context = c.vocab, c.width, c.context
        self.device = module.head.device
        self._rotary = (torch.empty(0), torch.empty(0))
        self.refresh()

    def refresh(self) -> None:
        """Fuse the weights anew."""
        with torch.inference_mode():
            self._fused = [_fuse(block, self.c) for block in self.module.model.layers]

    def hidden(self, tile: Tile, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        c = self.c
        M, width, scale = len(tile.tokens), c.heads + c.kv_heads, c.head_size**-0.5
        x = F.embedding(tile.tokens, self.module.model.embed_tokens.weight)
        cos, sin = self._tables(tile.positions)
        if tap is not None:
            x = tap(0, x)
        for layer, (norm1, qkv, bias, norms, out, norm2, gate_up, down) in enumerate(self._fused):
            mixed = F.linear(F.rms_norm(x, (c.width,), norm1, c.norm_eps), qkv, bias)
            rows = mixed.view(M, width + c.kv_heads, c.head_size)
            qk = rows[:, :width]
            if norms is not None:
                qk = F.rms_norm(qk, (c.head_size,), None, c.norm_eps).mul_(norms)
            turned = torch.roll(qk, c.head_size // 2, -1).mul_(sin)
            torch.addcmul(turned, qk, cos, out=rows[:, :width])
            attended = tile.attend(layer, rows[:, : c.heads], mixed[:, c.heads * c.head_size :], scale)
            x = torch.addmm(x, attended, out)
            both = F.linear(F.rms_norm(x, (c.width,), norm2, c.norm_eps), gate_up)
            x = torch.addmm(x, F.silu(both[:, : c.ffn]).mul_(both[:, c.ffn :]), down)
            if tap is not None:
                x = tap(layer + 1, x)
        return F.rms_norm(x, (c.width,), self.module.model.norm.weight, c.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] to [M, V]."""
        return F.linear(hidden, self.module.head)

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        return self.module.hidden(tokens, tap=tap)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [M, 1, E]; the sign of ``rotate``'s halves is folded into the sine."""
        if self._rotary[0].shape[0] < self.context + 64:  # padding may run past the context
            cos, sin = rotary_tables(self.context + 64, self.c.head_size, self.c.rope_theta)
            sin[:, : self.c.head_size // 2].neg_()
            self._rotary = (cos.unsqueeze(1).to(self.device), sin.unsqueeze(1).to(self.device))
        return self._rotary[0][positions], self._rotary[1][positions]


Fused = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor, Tensor]


def _fuse(block: Any, c: TinyConfig) -> Fused:
    attention, mlp = block.self_attn, block.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = None
    if c.qk_norm:
        q_norm, k_norm = attention.q_norm.weight, attention.k_norm.weight
        norms = torch.cat((q_norm.expand(c.heads, -1), k_norm.expand(c.kv_heads, -1)))
    return (
        block.input_layernorm.weight.detach(),
        torch.cat([p.weight for p in parts]),
        torch.cat([p.bias for p in parts]) if c.qkv_bias else None,
        norms,
        attention.o_proj.weight.detach().t(),
        block.post_attention_layernorm.weight.detach(),
        torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)),
        mlp.down_proj.weight.detach().t(),
    )


def probe(forward: Forward) -> bool:
    """Whether this machine keeps a row's bits apart from its tile: one short row computed three ways on the real weights.

    As one prompt tile; token by token in the smallest tile; and token by token as the sixth row of a full tile, beside a row far
    longer than itself.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(forward.vocab, (8,), generator=generator)
    far = min(forward.context, 600) - 1
    arenas = [Arena(forward.layers, forward.kv_size, forward.device) for _ in range(3)]
    results: list[Tensor] = []
    with torch.inference_mode():
        arenas[2].reserve(12, far + 1)
        arenas[2].kv[:, 6].normal_()

        def run(arena: Arena, tokens: Tensor, positions: Tensor, longest: int, row: int | None = None) -> Tensor:
            on = forward.device
            return forward.hidden(Tile(arena, forward.kv_heads, tokens.to(on), positions.to(on), longest, row))

        results.append(forward.logits(run(arenas[0], ids, torch.arange(8), 7, 0)))
        single, crowd = [], []
        for t in range(8):
            tokens, positions = torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long)
            tokens[0], positions[0] = ids[t], t
            single.append(forward.logits(run(arenas[1], tokens, positions, t))[0])
            tokens = torch.randint(forward.vocab, (12,), generator=generator)
            positions = torch.randint(far, (12,), generator=generator)
            tokens[5], positions[5], positions[6] = ids[t], t, far
            crowd.append(forward.logits(run(arenas[2], tokens, positions, far))[5])
        results += [torch.stack(single), torch.stack(crowd)]
        kept = [arena.kv[:, row, :8] for arena, row in zip(arenas, (0, 0, 5), strict=True)]
        return all(torch.equal(results[0], r) for r in results) and all(torch.equal(kept[0], k) for k in kept)
