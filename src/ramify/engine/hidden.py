"""Hidden states of given rows of tokens at named positions and layers, from any causal language model. The LM head never runs.

Layers are counted as everywhere in ramify: 0 is the embedding as it enters the first block, l the output of block l (the residual
stream), and ``FINAL`` (-1) the last state **after the final norm**, which the LM head reads. The state at position p is the one
that predicts token p + 1. Rows are teacher-forced: their states equal those of generation to rounding,
and padding on either side changes none.

Axis legend: N rows, T tokens, P positions, K layers asked for, D width, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel, batches_of
from ramify.engine.tiny import TinyLM

FINAL = -1
"""The layer after the final norm."""
Side = Literal["right", "left"]


@dataclass(frozen=True, slots=True, eq=False)
class StateBatch:
    """States of some of the rows: ``rows`` are their numbers, ``states`` [B, T, K, D] in the model's dtype;
    only ``mask`` [B, T] is real."""

    rows: list[int]
    states: Tensor
    mask: Tensor


def collect(
    model: LocalModel | nn.Module,
    rows: Sequence[Sequence[int] | np.ndarray],
    positions: Sequence[int] | Sequence[Sequence[int]],
    layers: Sequence[int] = (FINAL,),
    *,
    dtype: Literal["float16", "float32"] = "float32",
    batch_tokens: int = 8192,
    pad: Side = "right",
) -> np.ndarray:
    """States of N ``rows`` of token ids at P ``positions`` and K ``layers``: an array [N, P, K, D].

    ``positions`` is one list for all rows or one list of equal length per row; -1 is a row's last token. ``model`` is a
    LocalModel, a TinyLM or a transformers causal language model; ``batch_tokens`` bounds the padded tokens of one pass. Raises
    UserError where a row, a position or a layer does not fit the model, or where a state does not fit float16.
    """
    where = _positions(rows, positions)
    out: np.ndarray | None = None
    for batch in stream(model, rows, layers, batch_tokens=batch_tokens, pad=pad):
        first = batch.mask.to(torch.int64).argmax(dim=1)  # the first real column of each row: not 0 when padded on the left
        columns = torch.from_numpy(where[batch.rows]).to(first.device) + first[:, None]
        picked = batch.states[torch.arange(len(batch.rows), device=first.device)[:, None], columns].float().cpu().numpy()
        if out is None:
            out = np.empty((len(rows), *picked.shape[1:]), dtype)
        if dtype == "float16" and np.abs(picked).max(initial=0.0) > np.finfo(np.float16).max:
            raise UserError("a hidden state is too large for float16: collect in float32")
        out[batch.rows] = picked
    return np.zeros((0, where.shape[1], len(layers), Network(model).width), dtype) if out is None else out


def stream(
    model: LocalModel | nn.Module,
    rows: Sequence[Sequence[int] | np.ndarray],
    layers: Sequence[int] = (FINAL,),
    *,
    batch_tokens: int = 8192,
    pad: Side = "right",
) -> Iterator[StateBatch]:
    """Every position of ``rows`` in batches of at most ``batch_tokens`` padded tokens (one row at least), longest rows first.

    Tensors stay on the model's device and carry no gradient. Raises UserError like :func:`collect`.
    """
    net = Network(model)
    wanted = [net.layer(layer) for layer in layers]
    ids = [net.checked(row, i) for i, row in enumerate(rows)]
    for numbers in batches_of([len(row) for row in ids], batch_tokens):
        longest = len(ids[numbers[0]])
        tokens = torch.zeros((len(numbers), longest), dtype=torch.long)
        mask = torch.zeros((len(numbers), longest), dtype=torch.bool)
        for b, i in enumerate(numbers):
            span = slice(0, len(ids[i])) if pad == "right" else slice(longest - len(ids[i]), longest)
            tokens[b, span], mask[b, span] = torch.from_numpy(ids[i]), True
        tokens, mask = tokens.to(net.device), mask.to(net.device)
        yield StateBatch(numbers, net.states(tokens, mask, wanted, padded_left=pad == "left"), mask)


def hop(length: int, n: int = 100) -> np.ndarray:
    """``n`` positions spread over a span: floor(linspace(0, length - 1, n)), int64 (n,);
    they repeat where length < n. (E171, 3.3)"""
    if length < 1:
        raise UserError("a span of no tokens has no positions")
    return np.floor(np.linspace(0, length - 1, n)).astype(np.int64)


def pool(states: np.ndarray, n: int = 100) -> np.ndarray:
    """Means of ``n`` chunks of ``states`` [T, ...] with edges floor(linspace(0, T, n + 1)):
    [n, ...]; an empty chunk is its first state."""
    if len(states) < 1:
        raise UserError("a span of no tokens has no states")
    edges = np.floor(np.linspace(0, len(states), n + 1)).astype(np.int64)
    return np.stack([states[a : max(b, a + 1)].mean(axis=0) for a, b in pairwise(edges)])


class Network:
    """One view of a LocalModel, a TinyLM or a transformers model: its shape, and its states layer by layer."""

    def __init__(self, model: LocalModel | nn.Module) -> None:
        self.module: nn.Module = model.module if isinstance(model, LocalModel) else model
        if isinstance(self.module, TinyLM):
            c = self.module.config
            self.layers, self.width, self.vocab, self.context = c.layers, c.width, c.vocab, c.context
            self.device = self.module.device
            return
        if not hasattr(self.module, "base_model") or not hasattr(self.module, "config"):
            raise UserError(
                f"states are collected from a LocalModel, a TinyLM or a transformers model, not from {type(model).__name__}"
            )
        config: Any = self.module.config.get_text_config()  # type: ignore[operator, union-attr]
        self.layers, self.width, self.vocab = int(config.num_hidden_layers), int(config.hidden_size), int(config.vocab_size)
        self.context = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
        self.device = next(self.module.parameters()).device

    def layer(self, layer: int) -> int:
        """``layer`` if the model has it. Raises UserError."""
        if not FINAL <= layer <= self.layers:
            raise UserError(
                f"layer {layer} does not exist; the model has 0 (embedding) to {self.layers}, and -1 (after the final norm)"
            )
        return layer

    def checked(self, row: Sequence[int] | np.ndarray, number: int) -> np.ndarray:
        """``row`` as int64 (T,). Raises UserError where it is empty, too long or holds an id the model does not know."""
        ids = np.ascontiguousarray(row, dtype=np.int64)
        if ids.ndim != 1 or not len(ids):
            raise UserError(f"row {number} has no tokens")
        if ids.min() < 0 or ids.max() >= self.vocab:
            raise UserError(
                f"row {number} holds token {ids.max() if ids.min() >= 0 else ids.min()}; the model knows 0 to {self.vocab - 1}"
            )
        if len(ids) > self.context:
            raise UserError(f"row {number} has {len(ids)} tokens, more than the model's context of {self.context}")
        return ids

    @torch.no_grad()
    def states(self, tokens: Tensor, mask: Tensor, layers: Sequence[int], padded_left: bool = False) -> Tensor:
        """States [B, T, K, D] of ``tokens`` int64 [B, T], of which ``mask`` [B, T] are real."""
        seen: dict[int, Tensor] = {}

        def tap(layer: int, x: Tensor) -> Tensor:
            if layer in layers:
                seen[layer] = x
            return x

        was_training = self.module.training
        self.module.eval()
        try:
            seen[FINAL] = self._run(tokens, mask if padded_left else None, tap, layers)
        finally:
            self.module.train(was_training)
        return torch.stack([seen[layer] for layer in layers], dim=2)

    def _run(self, tokens: Tensor, mask: Tensor | None, tap: Callable[[int, Tensor], Tensor], layers: Sequence[int]) -> Tensor:
        """The state after the final norm. Padding on the right needs no mask: causal attention never looks there."""
        if isinstance(self.module, TinyLM):
            return self.module.hidden(tokens, None if mask is None else _causal(mask), tap)
        options: dict[str, Any] = {"use_cache": False}
        if mask is not None:
            options |= {"attention_mask": mask.long(), "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}
        module: Any = self.module
        body = module.get_decoder() if hasattr(module, "get_decoder") else module.base_model
        with _hooked(self.module, self.layers, tap, layers):
            last: Tensor = body(input_ids=tokens, **options).last_hidden_state
        return last


@contextmanager
def _hooked(module: nn.Module, count: int, tap: Callable[[int, Tensor], Tensor], layers: Sequence[int]) -> Iterator[None]:
    """Pass ``tap`` the embedding as it enters the first block and the output of every requested block."""
    if all(layer == FINAL for layer in layers):
        yield
        return
    from ramify.engine.generic import blocks_of

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tap(0, args[0] if args else kwargs["hidden_states"])

    blocks = blocks_of(module, count)
    with ExitStack() as stack:
        stack.callback(blocks[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
        for layer, block in enumerate(blocks, 1):

            def leave(_: nn.Module, __: Any, output: Any, layer: int = layer) -> None:
                tap(layer, output[0] if isinstance(output, tuple) else output)

            if layer in layers:
                stack.callback(block.register_forward_hook(leave).remove)
        yield


def _causal(mask: Tensor) -> Tensor:
    """Where a row may look, bool [B, 1, T, T], for ``mask`` [B, T] of real columns;
    a padded row sees itself, so that nothing is NaN."""
    T = mask.shape[1]
    lower = torch.ones((T, T), dtype=torch.bool, device=mask.device).tril()
    diagonal = torch.eye(T, dtype=torch.bool, device=mask.device)
    return ((lower & mask[:, None, :]) | diagonal)[:, None]


def _positions(rows: Sequence[Sequence[int] | np.ndarray], positions: Sequence[int] | Sequence[Sequence[int]]) -> np.ndarray:
    """Positions from 0 as int64 [N, P]. Raises UserError naming the row where one does not exist."""
    shared = len(positions) == 0 or np.ndim(positions[0]) == 0
    lists: Sequence[Any] = [positions] * len(rows) if shared else positions
    if len(lists) != len(rows) or len({len(places) for places in lists}) > 1:
        raise UserError(f"positions are one list for all {len(rows)} rows, or one list of equal length for each")
    where = np.array(lists, dtype=np.int64).reshape(len(rows), len(lists[0]) if len(lists) else len(positions))
    lengths = np.array([len(row) for row in rows], dtype=np.int64).reshape(-1, 1)
    for row, column in np.argwhere((where < -lengths) | (where >= lengths))[:1]:
        raise UserError(f"position {where[row, column]} does not exist in row {row}, which has {lengths[row, 0]} tokens")
    return np.where(where < 0, where + lengths, where)
