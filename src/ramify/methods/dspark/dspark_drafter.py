"""DSpark (spec 3.2 to 3.4): a block drafted in one pass, then a light sequential head; DFlash is its special case without heads.

Axis legend: N context tokens, R rows, B sequences, T tokens, A anchors, K slots of a block, D width, m target layers, V
vocabulary, L draft layers, G key/value heads, E head size, r rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.registry import register
from ramify.engine.batch import UNIT
from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafts, Pick
from ramify.engine.stack import Stack, twice
from ramify.engine.tiny import ResidualBlock, RMSNorm, rotate
from ramify.methods.dspark.drafters import DrafterConfig, Qwen3Drafter, block_batch, unit


class MarkovHead(nn.Module):
    """What the previous token adds to the logits (spec 3.3):
    W2 of a vector made of W1[x], of the hidden state (gated) or a state (rnn)."""

    def __init__(self, c: DrafterConfig) -> None:
        super().__init__()
        self.kind, self.rank = c.head, c.rank
        self.markov_w1 = nn.Embedding(c.vocab, c.rank)
        self.markov_w2 = nn.Linear(c.rank, c.logits, bias=False)
        if c.head == "gated":
            self.gate_proj = nn.Linear(c.width + c.rank, c.rank)
        elif c.head == "rnn":
            self.joint_proj = nn.Linear(2 * c.rank + c.width, 3 * c.rank)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What W2 is applied to, [..., r], and the next state,
        from ``embedded`` = W1[previous token] [..., r] and ``hidden`` [..., D].

        ``state`` is None at the first slot of a block.
        """
        if self.kind == "vanilla":
            return embedded, None
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat((hidden, embedded), -1))) * embedded, None
        before = torch.zeros_like(embedded) if state is None else state
        gate, candidate, out = self.joint_proj(torch.cat((before, embedded, hidden), -1)).chunk(3, -1)
        share = torch.sigmoid(gate)
        return torch.tanh(out), share * before + (1 - share) * torch.tanh(candidate)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Logits added at every slot of teacher-forced blocks: [..., K, r] and [..., K, D] to [..., K, V]."""
        if self.kind != "rnn":
            return F.linear(self.step(embedded, hidden, None)[0], self.markov_w2.weight)
        made, state = [], None
        for k in range(embedded.shape[-2]):
            latent, state = self.step(embedded[..., k, :], hidden[..., k, :], state)
            made.append(latent)
        return F.linear(torch.stack(made, -2), self.markov_w2.weight)


class ConfidenceHead(nn.Module):
    """One linear layer: the logit of a token's acceptance (spec 3.4)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)


class _Ready(NamedTuple):
    """What a drafter makes of its weights before it drafts."""

    stack: Stack
    context: Tensor
    """``fc``, and its negative for the norm that follows (see :meth:`Stack.rms`), [m*D, 2D]."""
    context_norm: Tensor
    kv: Tensor
    """Keys and values of all layers, [D, L*C]."""
    key_norms: Tensor
    """[L, G, E]."""
    norm: Tensor
    into: Tensor | None
    """W1 [V, r] and W2 [r, tokens drafted] of the sequential head."""
    out: Tensor | None
    reads: Tensor | None
    """What the confidence reads of the hidden state, [D]."""
    belief: Tensor | None
    """What a token adds to the confidence in the next one, [V]."""


@register("drafter", "dspark")
class DSpark(Qwen3Drafter):
    """The drafter of the paper; with rank 0 and no confidence it is DFlash in the same framework.
    Weights are decided by ``seed``.

    Without a configuration it is a small one, for a check of the class.
    """

    def __init__(self, config: DrafterConfig | None = None, seed: int = 0) -> None:
        c = config or small("dspark")
        super().__init__(c)
        shape = c.block_shape()
        self.fc = nn.Linear(len(c.target_layers) * c.width, c.width, bias=False)
        self.hidden_norm = RMSNorm(c.width, c.norm_eps)
        self.blocks = nn.ModuleList(ResidualBlock(shape) for _ in range(c.layers))
        self.norm = RMSNorm(c.width, c.norm_eps)
        self.markov_head = MarkovHead(c) if c.rank else None
        self.reads_token = c.confidence_markov and c.rank > 0
        self.confidence_head = ConfidenceHead(c.width + c.rank * self.reads_token) if c.confidence else None
        self._made: _Ready | None = None
        self.init_weights(seed)

    def train(self, mode: bool = True) -> DSpark:
        """See :class:`torch.nn.Module`; forgets the fused weights."""
        self._made = None
        return super().train(mode)

    def _ready(self) -> _Ready:
        if self._made is None:
            c, head = self.config, self.markov_head
            stack = Stack(self.blocks, c.block_shape(), self.head.device, c.block + UNIT)
            reads = belief = into = out = None
            if self.confidence_head is not None:
                read = self.confidence_head.proj
                reads, belief = read.weight[0, : c.width], read.bias.expand(c.vocab)
                if self.reads_token and head is not None:
                    belief = belief + head.markov_w1.weight @ read.weight[0, c.width :]
            if head is not None:
                into, out = head.markov_w1.weight, head.markov_w2.weight.t()
            self._made = _Ready(
                stack,
                torch.cat((self.fc.weight, -self.fc.weight)).t(),
                twice(self.hidden_norm.weight),
                torch.cat([fused.qkv.t()[c.heads * c.head_size :] for fused in stack.fused]).t(),
                torch.stack([fused.norms[c.heads :] for fused in stack.fused if fused.norms is not None]),
                twice(self.norm.weight),
                into,
                out,
                reads,
                belief,
            )
        return self._made

    @torch.inference_mode()
    def absorb(self, cache: KVCache, first: int, slots: Tensor, positions: Tensor, features: Tensor, following: Tensor) -> None:
        """See :meth:`Drafter.absorb`; ``following`` is not read."""
        c, made = self.config, self._ready()
        context = torch.layer_norm(torch.mm(features, made.context), (2 * c.width,), made.context_norm, None, c.norm_eps)
        heads = torch.mm(context.narrow(1, 0, c.width), made.kv).view(len(slots), c.layers, 2, c.kv_heads, c.head_size)
        into = heads.select(2, 0)
        keys = unit(into, c.norm_eps) * made.key_norms
        cos, sin = made.stack.tables(positions)
        torch.addcmul(torch.roll(keys, c.head_size // 2, -1).mul_(sin[:, None]), keys, cos[:, None], out=into)
        where = torch.add(positions, slots, alpha=cache.capacity)
        cache.kv[first : first + c.layers].view(c.layers, -1, c.kv_size).index_copy_(1, where, heads.flatten(2).transpose(0, 1))

    @torch.inference_mode()
    def draft(
        self, cache: KVCache, first: int, slots: Tensor, anchors: Tensor, positions: Tensor, pick: Pick, depth: int
    ) -> Drafts:
        """See :meth:`Drafter.draft`: one pass of the backbone, then the sequential head slot by slot.

        Only ``depth`` slots run, which costs in proportion;
        training always has the whole block, so a shorter one is accepted a little less.
        """
        c, R, made, head = self.config, len(slots), self._ready(), self.markov_head
        batch = block_batch(cache, c, slots, anchors, positions, depth)
        buffers = made.stack.buffers(batch.size)
        buffers.x.copy_(F.embedding(batch.tokens, self.embedding))
        made.stack.run(batch, buffers, first)
        hidden = made.stack.rms(buffers, made.norm).narrow(0, 0, batch.used)
        chain, state = [anchors], None
        # the vanilla head reads no hidden state
        states = [hidden] * depth if head is None or head.kind == "vanilla" else hidden.view(R, depth, -1).unbind(1)
        for k, at in enumerate(F.linear(hidden, self.head).view(R, depth, -1).unbind(1)):
            if head is not None and made.into is not None and made.out is not None:
                latent, state = head.step(made.into.index_select(0, chain[-1]), states[k], state)
                at = torch.addmm(at, latent, made.out)
            chain.append(pick(k, self.spread(at)))
        tokens = torch.stack(chain, 1)
        if made.reads is None or made.belief is None:
            scores = torch.full((R, depth), float("nan"), device=anchors.device)
        else:
            scores = torch.mv(hidden, made.reads).view(R, depth).add_(made.belief[tokens.narrow(1, 0, depth)])
        return Drafts(tokens.narrow(1, 1, depth), self.confidences(scores), scores)

    def scores(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Confidence logits [..., K] of slots with hidden states [..., K, D] and W1[previous token] [...,
        K, r]; nan without the head."""
        if self.confidence_head is None:
            return torch.full(hidden.shape[:-1], float("nan"), device=hidden.device)
        if self.reads_token and embedded is not None:
            hidden = torch.cat((hidden, embedded), -1)
        scores: Tensor = self.confidence_head.proj(hidden)[..., 0]
        return scores

    # -- training

    def forward(self, tokens: Tensor, features: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher-forced blocks at ``anchors`` int64 [B, A] of ``tokens`` int64 [B,
        T] with ``features`` [B, T, m*D], in one pass.

        Logits [B, A, K, V] (V: the tokens that are drafted) and confidence logits [B, A, K]. A block sees the features before its
        anchor and itself; slots whose previous token lies past the end of the row repeat its last token, and are for the caller
        to leave out.
        """
        hidden = self.hidden(tokens, features, anchors)
        logits = F.linear(hidden, self.head)
        if self.markov_head is None:
            return logits, self.scores(hidden, None)
        steps = torch.arange(self.config.block, device=tokens.device)
        where = (anchors[..., None] + steps).clamp(max=tokens.shape[1] - 1)
        previous = tokens.gather(1, where.flatten(1)).view(where.shape)
        embedded = self.markov_head.markov_w1(previous)
        return logits + self.markov_head(embedded, hidden), self.scores(hidden, embedded)

    def hidden(self, tokens: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
        """Hidden states after the final norm, [B, A, K, D]; arguments as in :meth:`forward`."""
        c = self.config
        (B, T), A, K = tokens.shape, anchors.shape[1], c.block
        context = _normed(self.hidden_norm, self.fc(features))
        positions = (anchors[..., None] + torch.arange(K, device=tokens.device)).flatten(1)
        tables = self.rotary(T + K, tokens.device)
        near, far = tables[:, :T, None], tables[:, positions][:, :, :, None]
        ids = torch.full((B, A, K), c.mask_token, dtype=torch.long, device=tokens.device)
        ids[..., 0] = tokens.gather(1, anchors)
        x = F.embedding(ids.view(B, A * K), self.embedding)
        mask = block_mask(anchors, T, K)
        for block in self.blocks:
            x = _block(block, x, context, near, far, mask)  # type: ignore[arg-type]
        return _normed(self.norm, x).view(B, A, K, -1)


def block_mask(anchors: Tensor, T: int, K: int) -> Tensor:
    """[B, 1, A*K, T + A*K], 0 where a slot may look, -inf elsewhere:
    it sees the context before its anchor and all of its own block."""
    B, A = anchors.shape
    context = torch.arange(T, device=anchors.device) < anchors[..., None]
    own = torch.eye(A, dtype=torch.bool, device=anchors.device).expand(B, A, A).repeat_interleave(K, 2)
    seen = torch.cat((context, own), 2).repeat_interleave(K, 1)[:, None]
    return torch.zeros(seen.shape, device=anchors.device).masked_fill_(~seen, float("-inf"))


class _Norm(torch.autograd.Function):
    """RMSNorm in half the time of torch's, which differentiates six kernels one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        plain = x * scale
        ctx.save_for_backward(plain, scale, weight)
        return plain * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        plain, scale, weight = ctx.saved_tensors
        grad = grads[0] * weight
        along = (grad * plain).mean(-1, keepdim=True)
        return torch.addcmul(grad, plain, along, value=-1).mul_(scale), (grads[0] * plain).flatten(0, -2).sum(0), None


def _normed(norm: RMSNorm, x: Tensor) -> Tensor:
    out: Tensor = _Norm.apply(x, norm.weight, norm.eps)
    return out


def _block(block: ResidualBlock, x: Tensor, context: Tensor, near: Tensor, far: Tensor, mask: Tensor) -> Tensor:
    """One draft layer on all blocks of a batch: ``x`` [B, A*K, D], ``context`` [B, T, D],
    which the layer's input norm leaves alone."""
    attention, c = block.self_attn, block.self_attn.c
    B, Q, _ = x.shape
    normed = _normed(block.input_layernorm, x)
    q = rotate(_normed(attention.q_norm, attention.q_proj(normed).view(B, Q, c.heads, c.head_size)), *far)
    both = torch.cat((context, normed), 1)
    keys = _normed(attention.k_norm, attention.k_proj(both).view(B, -1, c.kv_heads, c.head_size))
    T = context.shape[1]
    k = torch.cat((rotate(keys[:, :T], *near), rotate(keys[:, T:], *far)), 1)
    v = attention.v_proj(both).view(B, -1, c.kv_heads, c.head_size)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=c.kv_heads != c.heads)
    x = x + attention.o_proj(mixed.transpose(1, 2).reshape(B, Q, -1))
    out: Tensor = x + block.mlp(_normed(block.post_attention_layernorm, x))
    return out


@register("drafter", "dflash")
class DFlash(DSpark):
    """DFlash in the same framework: no sequential head, no confidence."""

    def __init__(self, config: DrafterConfig | None = None, seed: int = 0) -> None:
        super().__init__(config or small("dflash"), seed)


def small(kind: str) -> DrafterConfig:
    """The shape of a drafter small enough to check a class with."""
    heads = kind == "dspark"
    return DrafterConfig(
        kind=kind,
        vocab=32,
        width=16,
        heads=4,
        kv_heads=2,
        head_size=8,
        ffn=32,
        target_depth=4,
        target_layers=(0, 2),
        mask_token=31,
        layers=1 if kind == "eagle3" else 2,
        block=4,
        rank=8 if heads else 0,
        confidence=heads,
        context=128,
    )
