"""Decoder blocks on a batch, with q/k/v and gate/up fused into one matrix each and as few operations a layer as possible.

Axis legend: M batch rows, D width, H query heads, G key/value heads, E head size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.engine.batch import ForwardBatch
from ramify.engine.products import Int8, linear
from ramify.engine.tiny import Tap, TinyConfig, rotary_tables

SOON = 1 << 16
"""Positions whose rotary tables are made at once; a context that a config.json merely claims costs nothing."""


class Buffers:
    """Work space of one batch size and its views, made once.

    The residual stream ``x`` is kept alongside its negative: the layer norm of (x, -x) has mean 0 and variance mean(x^2), so its
    first half is the RMS norm of x, in one fused kernel where torch's RMS norm takes six.
    """

    def __init__(self, c: TinyConfig, M: int, device: torch.device) -> None:
        heads = c.heads + 2 * c.kv_heads
        self.used = M
        self.both_signs = torch.zeros((M, 2 * c.width), device=device)
        self.x, self.opposite = self.both_signs.chunk(2, dim=1)
        self.mixed = torch.zeros((M, heads * c.head_size), device=device)
        rows = self.mixed.view(M, heads, c.head_size)
        self.qk, self.q = rows[:, : c.heads + c.kv_heads], rows[:, : c.heads]
        self.unit, self.turned = torch.zeros((2, *self.qk.shape), device=device).unbind(0)
        self.qk_halves, self.unit_halves, self.turned_halves = (x.chunk(2, dim=2) for x in (self.qk, self.unit, self.turned))
        self.scale = torch.zeros((M, c.heads + c.kv_heads, 1), device=device)
        self.tables = torch.zeros((M, 2, c.head_size), device=device)
        self.cos, sin = self.tables.split(1, dim=1)
        self.sines = sin.chunk(2, dim=2)
        self.kv = self.mixed[:, c.heads * c.head_size :]
        self.attended = torch.zeros((M, c.heads * c.head_size), device=device)
        sizes = (c.heads * c.head_size, c.kv_heads * c.head_size, c.kv_heads * c.head_size)
        self.parts = self.mixed.split(sizes, dim=1)
        self.gate_up = torch.empty((M, 2 * c.ffn), device=device)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)


class Fused(NamedTuple):
    """The weights of one block; the fused matrices are copies."""

    norm1: Tensor
    qkv: Tensor
    bias: Tensor | None
    norms: Tensor | None
    """Of q and k, [H + G, E]."""
    out: Tensor
    norm2: Tensor
    into: Tensor
    down: Tensor

    def mix(self, x: Tensor, b: Buffers) -> None:
        """q, k and v of ``x`` into ``b.mixed``."""
        torch.mm(x, self.qkv, out=b.mixed)
        if self.bias is not None:
            b.mixed.add_(self.bias)

    def add_attended(self, attended: Tensor, b: Buffers) -> None:
        """Add what attention found to ``b.x``."""
        torch.addmm(b.x, attended, self.out, out=b.x)

    def add_gated(self, x: Tensor, b: Buffers) -> None:
        """Add SwiGLU of ``x`` to ``b.x``."""
        torch.mm(x, self.into, out=b.gate_up)
        torch.addmm(b.x, F.silu(b.gate).mul_(b.up), self.down, out=b.x)


class Whole(NamedTuple):
    """As :class:`Fused`, with the module's own matrices (:mod:`ramify.engine.products`)."""

    norm1: Tensor
    parts: tuple[nn.Linear, nn.Linear, nn.Linear]
    norms: Tensor | None
    out: Tensor
    norm2: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor

    def mix(self, x: Tensor, b: Buffers) -> None:
        """q, k and v of ``x`` into ``b.mixed``."""
        for part, into in zip(self.parts, b.parts, strict=True):
            into.copy_(linear(x, part.weight, part.bias))

    def add_attended(self, attended: Tensor, b: Buffers) -> None:
        """Add what attention found to ``b.x``."""
        b.x.add_(linear(attended, self.out))

    def add_gated(self, x: Tensor, b: Buffers) -> None:
        """Add SwiGLU of ``x`` to ``b.x``."""
        b.x.add_(linear(F.silu(linear(x, self.gate)).mul_(linear(x, self.up)), self.down))


class Rounded(NamedTuple):
    """As :class:`Whole`, in int8. Rows that only fill the batch up are left out: these products need no such."""

    norm1: Tensor
    qkv: Int8
    norms: Tensor | None
    out: Int8
    norm2: Tensor
    into: Int8
    down: Int8

    def mix(self, x: Tensor, b: Buffers) -> None:
        """q, k and v of ``x`` into ``b.mixed``."""
        mixed = b.mixed.narrow(0, 0, b.used)
        torch.mul(*self.qkv.sums(x.narrow(0, 0, b.used)), out=mixed)
        if self.qkv.bias is not None:
            mixed.add_(self.qkv.bias)

    def add_attended(self, attended: Tensor, b: Buffers) -> None:
        """Add what attention found to ``b.x``."""
        b.x.narrow(0, 0, b.used).add_(torch.mul(*self.out.sums(attended.narrow(0, 0, b.used))))

    def add_gated(self, x: Tensor, b: Buffers) -> None:
        """Add SwiGLU of ``x`` to ``b.x``."""
        sums, heat = self.into.sums(x.narrow(0, 0, b.used))
        gate, up = sums.mul_(heat).chunk(2, dim=1)
        b.x.narrow(0, 0, b.used).add_(torch.mul(*self.down.sums(F.silu(gate).mul_(up))))


class Stack:
    """Blocks of one shape. ``room``: positions past the context that a batch may use. ``copies``: with fused copies of the
    matrices, else with the blocks' own."""

    def __init__(self, blocks: Iterable[Any], c: TinyConfig, device: torch.device, room: int, copies: bool = True) -> None:
        self.c, self.device = c, device
        self.fused = [_fuse(block, c) for block in blocks] if copies else []
        self.blocks: list[Fused | Whole | Rounded] = [*self.fused] if copies else [_own(block, c) for block in blocks]
        self._buffers: dict[int, Buffers] = {}
        self._eps, self._size = torch.tensor([c.norm_eps, float(c.head_size)], device=device).unbind(0)
        self._longest = c.context + room
        self._rotary = self._tables(min(self._longest, SOON))

    def buffers(self, M: int) -> Buffers:
        """The work space of batches of ``M`` rows."""
        if M not in self._buffers:
            self._buffers[M] = Buffers(self.c, M, self.device)
        return self._buffers[M]

    def run(
        self, batch: ForwardBatch, buffers: Buffers, first: int = 0, tap: Tap | None = None, read: Tensor | None = None
    ) -> None:
        """Run the residual stream ``buffers.x`` [M, D] through all blocks,
        whose keys and values are cache layers ``first`` and up.

        ``read``: what the first block's attention reads instead of its normed input.
        """
        c, b = self.c, buffers
        b.used = batch.used
        scale = c.head_size**-0.5
        torch.index_select(self._tables_for(batch.positions), 0, batch.positions, out=b.tables)
        for layer, block in enumerate(self.blocks):
            block.mix(self.rms(b, block.norm1) if read is None else read, b)
            read, norms = None, block.norms
            unit, halves = b.qk, b.qk_halves
            if norms is not None:  # torch.rms_norm's own steps, bit for bit
                torch.mul(b.qk, b.qk, out=b.turned)
                torch.sum(b.turned, -1, True, out=b.scale)
                torch.addcdiv(self._eps, b.scale, self._size, out=b.scale).rsqrt_()
                unit, halves = torch.mul(b.qk, b.scale, out=b.unit).mul_(norms), b.unit_halves
            torch.mul(halves[1], b.sines[0], out=b.turned_halves[0])
            torch.mul(halves[0], b.sines[1], out=b.turned_halves[1])
            torch.addcmul(b.turned, unit, b.cos, out=b.qk)
            attended = batch.attend(first + layer, b.q, b.kv, scale, b.attended)
            block.add_attended(attended, b)
            block.add_gated(self.rms(b, block.norm2), b)
            if tap is not None:
                replace(b.x, tap(layer + 1, b.x))

    def rms(self, b: Buffers, weight: Tensor) -> Tensor:
        """RMS norm of ``b.x`` times a weight that was :func:`twice`-d, [M, D]."""
        torch.neg(b.x, out=b.opposite)
        D = self.c.width
        return torch.layer_norm(b.both_signs, (2 * D,), weight, None, self.c.norm_eps).narrow(1, 0, D)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin of ``positions`` [M], [M, 1, E]; the sign of ``rotate``'s halves is folded into the sine."""
        both = self._tables_for(positions).index_select(0, positions)
        return both.narrow(1, 0, 1), both.narrow(1, 1, 1)

    def _tables_for(self, positions: Tensor) -> Tensor:
        """cos and signed sin of all positions up to the largest of ``positions``, [at least so many, 2, E]."""
        have = len(self._rotary)
        if have < self._longest and (wanted := int(positions.max()) + 1) > have:
            self._rotary = self._tables(min(self._longest, max(wanted, 2 * have)))
        return self._rotary

    def _tables(self, length: int) -> Tensor:
        cos, sin = rotary_tables(length, self.c.head_size, self.c.rope_theta)
        sin[:, : self.c.head_size // 2].neg_()
        return torch.stack((cos, sin), dim=1).to(self.device)


def _norms(attention: Any, c: TinyConfig) -> Tensor | None:
    if not c.qk_norm:
        return None
    return torch.cat((attention.q_norm.weight.expand(c.heads, -1), attention.k_norm.weight.expand(c.kv_heads, -1)))


def _own(block: Any, c: TinyConfig) -> Whole | Rounded:
    attention, mlp = block.self_attn, block.mlp
    if attention.qkv_proj is not None:
        norm1, norm2 = twice(block.input_layernorm.weight), twice(block.post_attention_layernorm.weight)
        norms = _norms(attention, c)
        return Rounded(norm1, attention.qkv_proj, norms, attention.o_proj, norm2, mlp.gate_up_proj, mlp.down_proj)
    return Whole(
        twice(block.input_layernorm.weight),
        (attention.q_proj, attention.k_proj, attention.v_proj),
        _norms(attention, c),
        attention.o_proj.weight.detach(),
        twice(block.post_attention_layernorm.weight),
        mlp.gate_proj.weight.detach(),
        mlp.up_proj.weight.detach(),
        mlp.down_proj.weight.detach(),
    )


def _fuse(block: Any, c: TinyConfig) -> Fused:
    attention, mlp = block.self_attn, block.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return Fused(
        twice(block.input_layernorm.weight),
        torch.cat([p.weight for p in parts]).t(),
        torch.cat([p.bias for p in parts]) if c.qkv_bias else None,
        _norms(attention, c),
        attention.o_proj.weight.detach().t(),
        twice(block.post_attention_layernorm.weight),
        torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).t(),
        mlp.down_proj.weight.detach().t(),
    )


def twice(weight: Tensor) -> Tensor:
    """A weight of :meth:`Stack.rms`: once for x, once for its negative."""
    return torch.cat((weight, weight))


def replace(x: Tensor, new: Tensor) -> None:
    """Take over what a tap returned."""
    if new is not x:
        x.copy_(new)
