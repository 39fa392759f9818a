"""An Eagle3-style drafter (spec 3.5, baselines): one layer that drafts token by token, fed with its own hidden state.

Column t of the layer reads the token at t + 1 and the target's features at t, and predicts the token at t + 2. Drafting starts at
the column before the anchor; every later column reads the token drafted before it and the layer's own last output instead of
features.

Axis legend: N context tokens, R rows, B sequences, T tokens, D width, m target layers, V vocabulary, H query heads, G key/value
heads, E head size, C = 2GE.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.registry import register
from ramify.engine.batch import UNIT, padded
from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafts, Pick
from ramify.engine.stack import Stack, twice
from ramify.engine.tiny import ResidualBlock, RMSNorm, TinyConfig, rotate
from ramify.methods.dspark.drafters import DrafterConfig, Qwen3Drafter, block_batch, unit
from ramify.methods.dspark.dspark_drafter import small


class EagleBlock(ResidualBlock):
    """A decoder block whose attention reads [norm(embedding); norm(hidden state)], 2D wide."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__(c)
        self.hidden_norm = RMSNorm(c.width, c.norm_eps)
        self.self_attn.q_proj = nn.Linear(2 * c.width, c.heads * c.head_size, bias=False)
        self.self_attn.k_proj = nn.Linear(2 * c.width, c.kv_heads * c.head_size, bias=False)
        self.self_attn.v_proj = nn.Linear(2 * c.width, c.kv_heads * c.head_size, bias=False)


@register("drafter", "eagle3")
class Eagle3(Qwen3Drafter):
    """The autoregressive baseline. The hidden state of each context column lies in cache layers of its own, after the keys and
    values."""

    def __init__(self, config: DrafterConfig | None = None, seed: int = 0) -> None:
        c = config or small("eagle3")
        super().__init__(c)
        self.fc = nn.Linear(len(c.target_layers) * c.width, c.width, bias=False)
        self.midlayer = EagleBlock(c.block_shape())
        self.norm = RMSNorm(c.width, c.norm_eps)
        self._stack: Stack | None = None
        self.init_weights(seed)

    @property
    def layers(self) -> int:
        """One layer of keys and values, and as many as a hidden state fills."""
        return 1 + math.ceil(self.config.width / self.config.kv_size)

    def train(self, mode: bool = True) -> Eagle3:
        """See :class:`torch.nn.Module`; forgets the fused weights."""
        self._stack = None
        return super().train(mode)

    def _ready(self) -> Stack:
        if self._stack is None:
            c = self.config
            self._stack = Stack([self.midlayer], c.block_shape(), self.head.device, c.block + UNIT)
        return self._stack

    def _input(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What the attention reads: [N] tokens and [N, D] states to [N, 2D]."""
        layer, eps = self.midlayer, self.config.norm_eps
        embedded = unit(F.embedding(tokens, self.embedding), eps) * layer.input_layernorm.weight
        return torch.cat((embedded, unit(hidden, eps) * layer.hidden_norm.weight), -1)

    @torch.inference_mode()
    def absorb(self, cache: KVCache, first: int, slots: Tensor, positions: Tensor, features: Tensor, following: Tensor) -> None:
        """See :meth:`Drafter.absorb`. The token after the last column may be unknown: :meth:`draft` runs that column again."""
        c, stack = self.config, self._ready()
        fused = stack.fused[0]
        assert fused.norms is not None
        hidden = F.linear(features, self.fc.weight)
        heads = torch.mm(self._input(following, hidden), fused.qkv[:, c.heads * c.head_size :])
        heads = heads.view(len(slots), 2, c.kv_heads, c.head_size)
        keys = unit(heads[:, 0], c.norm_eps) * fused.norms[c.heads :]
        cos, sin = stack.tables(positions)
        torch.addcmul(torch.roll(keys, c.head_size // 2, -1).mul_(sin), keys, cos, out=heads[:, 0])
        where = slots * cache.capacity + positions
        flat = cache.kv.flatten(1, 2)
        flat[first].index_copy_(0, where, heads.flatten(1))
        for i, part in enumerate(hidden.split(c.kv_size, 1), first + 1):
            flat[i, :, : part.shape[1]].index_copy_(0, where, part)

    @torch.inference_mode()
    def draft(
        self, cache: KVCache, first: int, slots: Tensor, anchors: Tensor, positions: Tensor, pick: Pick, depth: int
    ) -> Drafts:
        """See :meth:`Drafter.draft`. The column before the anchor is written again, now with the anchor as its token."""
        c, R, stack = self.config, len(slots), self._ready()
        before = slots * cache.capacity + positions - 1
        parts = cache.kv[first + 1 : first + self.layers].flatten(1, 2).index_select(1, before)
        buffers = stack.buffers(padded(R))
        buffers.x.narrow(0, 0, R).copy_(parts.transpose(0, 1).flatten(1)[:, : c.width])
        last = twice(self.norm.weight)
        token, sampled = anchors, []
        for k in range(depth):
            batch = block_batch(cache, c, slots, token, positions - 1 + k, 1)
            stack.run(batch, buffers, first, read=self._input(batch.tokens, buffers.x))
            token = pick(k, self.spread(F.linear(stack.rms(buffers, last).narrow(0, 0, R), self.head)))
            sampled.append(token)
        scores = torch.full((R, depth), float("nan"), device=anchors.device)
        return Drafts(torch.stack(sampled, 1), scores, scores)

    # -- training

    def forward(self, tokens: Tensor, features: Tensor) -> Iterator[Tensor]:
        """Training-time test over ``tokens`` int64 [B, T] with ``features`` [B, T, m*D]:
        logits [B, T, V] of step 0 up to block - 1.

        Step j at column t has read tokens up to t + 1 + j and predicts the one at t + 2 + j: it sees the columns up to t of step
        0 and its own of the later steps. Columns whose tokens lie past the end repeat the last token,
        and are for the caller to leave out.
        """
        c, layer, T = self.config, self.midlayer, tokens.shape[1]
        attention, columns = layer.self_attn, torch.arange(T, device=tokens.device)
        group, scale = c.heads // c.kv_heads, c.head_size**-0.5
        later = torch.full((T, T), float("-inf"), device=tokens.device).triu(1)
        tables = self.rotary(T + c.block, tokens.device)
        hidden = self.fc(features)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for j in range(c.block):
            token = tokens[:, (columns + 1 + j).clamp(max=T - 1)]
            read = torch.cat((layer.input_layernorm(F.embedding(token, self.embedding)), layer.hidden_norm(hidden)), -1)
            near = tables[:, j : j + T, None]
            q = rotate(attention.q_norm(attention.q_proj(read).unflatten(-1, (c.heads, -1))), *near).transpose(1, 2) * scale
            k = rotate(attention.k_norm(attention.k_proj(read).unflatten(-1, (c.kv_heads, -1))), *near)
            v = attention.v_proj(read).unflatten(-1, (c.kv_heads, -1))
            keys.append(k.transpose(1, 2).repeat_interleave(group, 1))
            values.append(v.transpose(1, 2).repeat_interleave(group, 1))
            looks = [q @ keys[0].transpose(-1, -2) + later, *((q * own).sum(-1, keepdim=True) for own in keys[1:])]
            weights = torch.cat(looks, -1).softmax(-1)
            mixed = weights[..., :T] @ values[0]
            for i, own in enumerate(values[1:]):
                mixed = mixed + weights[..., T + i : T + i + 1] * own
            hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            yield F.linear(self.norm(hidden), self.head)
