"""What makes training a large model on a CPU quick and small: products through oneDNN, gradients of an adapter's parts alone, the
loss over the vocabulary in pieces, and blocks that are computed again where their activations would take too much.

None of it changes a result beyond rounding. Small models without an adapter train as torch does it.

Axis legend: N tokens, D width, V vocabulary, K targets of a token, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ramify.engine.adapters import Adapter, head_of
from ramify.engine.generic import attends_here, blocks_of, linear_layers
from ramify.engine.products import LARGE
from ramify.engine.sharing import shared_rows, sharing
from ramify.engine.tiny import TinyLM

PIECE = 1 << 23
"""Most logits that are there at once."""
HEAD = 1 << 22
"""Numbers of an output matrix up to which its logits are made in one piece where they are few enough."""
ROOM, LEAST_ROOM = 0.75, 1 << 28
"""Share of the weights' bytes that the activations of a pass may take, and bytes that they may take in any case."""
HOLES = 1.5
"""Memory that activations take for each byte of them: freed pieces leave holes. Measured with 135 million weights."""
FLOAT = 4
"""Bytes."""


def is_large(module: nn.Module) -> bool:
    """Whether it is a large model (:mod:`ramify.engine.products`) in float32 on a CPU."""
    weights = list(module.parameters())
    return sum(w.numel() for w in weights) >= LARGE and all(w.device.type == "cpu" and w.dtype == torch.float32 for w in weights)


def bytes_a_token(module: nn.Module) -> float:
    """Bytes that one token keeps for the gradient in all blocks, about: of each 10 widths, 3 of keys or values, 4 of the inner
    layer."""
    config: Any = module.config
    if isinstance(module, TinyLM):
        layers, width, inner, values = config.layers, config.width, config.ffn, config.kv_heads * config.head_size
    else:
        config = config.get_text_config()
        layers, width, heads = (
            int(getattr(config, name)) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        inner = int(getattr(config, "intermediate_size", 0) or getattr(config, "n_inner", 0) or 4 * width)
        head = int(getattr(config, "head_dim", None) or width // heads)
        values = head * int(getattr(config, "num_key_value_heads", None) or heads)
    return float(FLOAT * layers * (10 * width + 3 * values + 4 * inner))


def pass_bytes(module: nn.Module, tokens: float, trained: float, vocab: int) -> int:
    """Bytes of a pass over so many ``tokens``, of which ``trained`` have a loss: activations and three pieces of logits."""
    logits = FLOAT * 3 * min(PIECE, min(trained, tokens) * vocab)
    return int(HOLES * (tokens * bytes_a_token(module) + logits))


def most_tokens(module: nn.Module, micro_tokens: int) -> int:
    """Tokens of one pass: ``micro_tokens``, of a large model fewer where their activations would take more than :data:`ROOM`."""
    if not is_large(module):
        return micro_tokens
    room = max(LEAST_ROOM, ROOM * FLOAT * sum(weight.numel() for weight in module.parameters()))
    return max(1, min(micro_tokens, int(room / bytes_a_token(module))))


@contextmanager
def trained(module: nn.Module, adapter: Adapter | None) -> Iterator[None]:
    """Within, the linear layers of ``module`` hand gradients to the parts of ``adapter``, or those of a large model multiply
    through oneDNN; the weights must be what the adapter makes of them."""
    large, parts = is_large(module), {} if adapter is None else adapter.parts
    apart = head_of(module) if head_weight(module, None) is not None else None  # its product is not the layer's own
    layers = [entry for entry in linear_layers(module) if entry[1] is not apart]
    changed = [entry for entry in layers if large or entry[0] in parts]
    for name, layer, turned in changed:
        low = parts.get(name)
        layer.forward = partial(_through, layer, turned, low, adapter.scale if adapter else 1.0, large)
    try:
        yield
    finally:
        for _, layer, _ in changed:
            del layer.forward


def _through(layer: Any, turned: bool, low: tuple[Tensor, Tensor] | None, scale: float, large: bool, x: Tensor) -> Tensor:
    weight = layer.weight.t() if turned else layer.weight
    down, up = (None, None) if low is None else (half.to(x.device) for half in low)
    out: Tensor = _Product.apply(x, weight, layer.bias, down, up, scale, large)
    return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, large: bool) -> Tensor:
    """x W^T + b."""
    if large and torch.backends.mkldnn.is_available():
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


class _Product(torch.autograd.Function):
    """x W^T + b, where W already holds ``scale`` up down: gradients go to what is trained and to nothing else."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor | None,
        up: Tensor | None,
        scale: float,
        large: bool,
    ) -> Tensor:
        learns = ctx.needs_input_grad[1] or down is not None
        ctx.save_for_backward(x if learns else None, weight, down, up)
        ctx.scale, ctx.large = scale, large
        return _product(x, weight, bias, large)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, down, up = ctx.saved_tensors
        grad, needs = grads[0], ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        into = of_weight = of_bias = of_down = of_up = None
        if needs[0]:
            into = _product(grad, weight.t(), None, ctx.large)
        if needs[1]:  # laid out as the weight is
            given = x.flatten(0, -2)
            plain = weight.is_contiguous()
            of_weight = (
                _product(flat.t(), given.t(), None, ctx.large) if plain else _product(given.t(), flat.t(), None, ctx.large).t()
            )
        if needs[2]:
            of_bias = flat.sum(0)
        if down is not None:
            given = x.flatten(0, -2)
            of_down = ctx.scale * ((flat @ up).t() @ given)
            of_up = ctx.scale * (flat.t() @ (given @ down.t()))
        return into, of_weight, of_bias, of_down, of_up, None, None


def head_weight(module: nn.Module, adapter: Adapter | None) -> Tensor | None:
    """The output matrix [V, D], through which an adapter's parts for it get their gradient; None where logits are more than a
    product with one."""
    if isinstance(module, TinyLM):
        weight, name = module.head, "lm_head.weight"
    else:
        head = head_of(module)
        if not attends_here(module) or not isinstance(head, nn.Linear) or head.bias is not None:
            return None
        weight, name = head.weight, next(name for name, layer in module.named_modules() if layer is head) + ".weight"
    if adapter is None or name not in adapter.parts:
        return weight
    down, up = (half.to(weight.device) for half in adapter.parts[name])
    whole: Tensor = _Merged.apply(weight, down, up, adapter.scale)
    return whole


class _Merged(torch.autograd.Function):
    """W, which already holds ``scale`` up down, with gradients for these."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(down, up)
        ctx.scale = scale
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        down, up = ctx.saved_tensors
        return None, ctx.scale * up.t() @ grads[0], ctx.scale * grads[0] @ down.t(), None


def chosen_logprobs(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities [K, N] of ``targets`` int64 [K, N] after the states ``hidden`` [N, D] with the output matrix ``head``
    [V, D]: at most :data:`PIECE` logits exist at once, and none is kept for the gradient."""
    if head.numel() <= HEAD and len(hidden) * len(head) <= PIECE:
        logits = F.linear(hidden, head).float()
        return torch.stack([-F.cross_entropy(logits, row, reduction="none") for row in targets])
    chosen: Tensor = _Chosen.apply(hidden, head, targets)
    return chosen


class _Chosen(torch.autograd.Function):
    """The gradient of log p(t) with respect to the state is head[t] minus the mean of the rows of ``head`` under p. With a frozen
    head that mean is all that is kept; else logits are made a second time."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        n, large = len(hidden), head.device.type == "cpu" and head.dtype == torch.float32
        out, total = (hidden.new_empty(shape, dtype=torch.float32) for shape in (targets.shape, (n,)))
        mean = torch.empty_like(hidden) if ctx.needs_input_grad[0] and not ctx.needs_input_grad[1] else None
        for part in _pieces(n, len(head)):
            logits = _product(hidden[part], head, None, large).float()
            total[part] = logits.logsumexp(1)
            out[:, part] = logits.gather(1, targets[:, part].t()).t() - total[part]
            if mean is not None:
                mean[part] = _product(logits.sub_(total[part, None]).exp_().to(head.dtype), head.t(), None, large)
        ctx.save_for_backward(hidden if mean is None else None, head, targets, total, mean)
        ctx.large = large
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        hidden, head, targets, total, mean = ctx.saved_tensors
        grad = grads[0]
        every = grad.sum(0)[:, None]
        if mean is not None:
            into = -every * mean
            for row, of_row in zip(targets, grad, strict=True):
                into += of_row[:, None] * head[row]
            return into, None, None
        into, of_head = torch.empty_like(hidden), torch.zeros_like(head)
        for part in _pieces(len(hidden), len(head)):
            chance = _product(hidden[part], head, None, ctx.large).float().sub_(total[part, None]).exp_().mul_(-every[part])
            chance = chance.scatter_add_(1, targets[:, part].t(), grad[:, part].t()).to(head.dtype)
            into[part] = _product(chance, head.t(), None, ctx.large)
            of_head.addmm_(chance.t(), hidden[part])
        return into, of_head, None


def _pieces(n: int, vocab: int) -> Iterator[slice]:
    step = max(1, PIECE // vocab)
    return (slice(at, at + step) for at in range(0, n, step))


@contextmanager
def recomputed(module: nn.Module) -> Iterator[None]:
    """Within, a block keeps its input alone, and is computed again for the gradient, which must be taken within, too."""
    layers = len(module.model.layers) if isinstance(module, TinyLM) else module.config.get_text_config().num_hidden_layers  # type: ignore
    blocks = blocks_of(module, layers)
    for block in blocks:
        block.forward = partial(_again, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _again(forward: Any, *args: Any, **kwargs: Any) -> Any:
    rows = shared_rows.get()

    def block(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if rows is None else sharing(rows):
            return forward(*args, **kwargs)

    return checkpoint(block, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
