"""The trainer: rows through a sum of registered losses, one AdamW step per minibatch. It knows no method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from ramify.base import registry
from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.engine.tiny import TinyLM, distinct_weights, set_distinct_weights
from ramify.train.batch import Batch, Row, collate, micro_batches
from ramify.train.losses import LossConfig, Scores


class TrainConfig(Config):
    """How to train."""

    lr: float = Field(default=3e-4, ge=0)
    """Learning rate of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's first moment decay."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's second moment decay."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm of a step."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps per call, each on its share of the rows."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the rows per call."""
    micro_tokens: int = Field(default=16384, ge=1)
    """Padded tokens of one forward pass: bounds memory, changes no result beyond rounding."""
    loss: LossConfig = LossConfig()
    """Constants of the losses."""


def token_logprobs(module: nn.Module, batch: Batch) -> Tensor:
    """Log-probability of each masked token given those before it, [B, T]; 0 elsewhere. Logits are made only where needed."""
    return score_batch(module, batch).logprobs


def score_batch(module: nn.Module, batch: Batch) -> Scores:
    """Log-probabilities of the masked tokens and, where rows carry the token values ``rival``, of the tokens these name instead.

    Raises UserError where a rival is not a token of the model.
    """
    where = batch.mask[:, 1:]
    if isinstance(module, TinyLM):
        logits = nn.functional.linear(module.hidden(batch.tokens[:, :-1])[where], module.head)
    else:
        logits = module(input_ids=batch.tokens[:, :-1], use_cache=False).logits[where].float()

    def of(tokens: Tensor) -> Tensor:
        chosen = -nn.functional.cross_entropy(logits, tokens[:, 1:][where], reduction="none")
        out = torch.zeros(batch.tokens.shape, dtype=chosen.dtype, device=chosen.device)
        out[:, 1:][where] = chosen
        return out

    rival = batch.token_values.get("rival")
    if rival is None:
        return Scores(of(batch.tokens))
    outside = rival[:, 1:][where]
    outside = outside[(outside < 0) | (outside >= logits.shape[1])]
    if len(outside):
        raise UserError(f"training row: rival {int(outside[0])} is no token; the model knows 0 to {logits.shape[1] - 1}")
    return Scores(of(batch.tokens), of(rival.long()))


def with_reference(reference: nn.Module, rows: Sequence[Row], max_tokens: int = 16384) -> list[Row]:
    """Rows with the token values ``reference``: log-probs of their trained tokens under another model, for the KL to it.

    Rows of pairs (token values ``rival``) get ``rival_reference`` as well. Rows are returned in order of length.
    """
    out = []
    with torch.no_grad():
        for pack in micro_batches(rows, max_tokens):
            scores = score_batch(reference, collate(pack, next(reference.parameters()).device))
            found = {"reference": scores.logprobs, "rival_reference": scores.rivals}
            known = {name: values.cpu().numpy() for name, values in found.items() if values is not None}
            for i, row in enumerate(pack):
                own = {name: values[i, : len(row.tokens)] for name, values in known.items()}
                out.append(Row(row.tokens, row.mask, {**row.token_values, **own}))
    return out


class Trainer:
    """AdamW over ``module``. Deterministic given rows, seed and thread count."""

    def __init__(self, module: nn.Module, config: TrainConfig, seed: int = 0) -> None:
        self.module, self.config, self.seed = module, config, seed
        self.steps = 0
        weights = [w for w in module.parameters() if w.requires_grad]
        if not weights:
            raise UserError("the model has no trainable weight")
        c = config
        self.optimizer = torch.optim.AdamW(weights, lr=c.lr, betas=(c.beta1, c.beta2), weight_decay=c.weight_decay)

    def set_rate(self, lr: float) -> None:
        """Continue at the learning rate ``lr``."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def update(self, rows: Sequence[Row], losses: Mapping[str, float]) -> dict[str, float]:
        """Train on ``rows`` with the weighted sum of ``losses`` (name -> weight), averaged over trained tokens.

        Returns each loss's mean per token, the gradient norm and the tokens trained. No row with a trained token: nothing happens.
        """
        rows = [row for row in rows if row.mask[1:].any()]
        totals = dict.fromkeys(losses, 0.0)
        tokens = 0
        norm = 0.0
        for epoch in range(self.config.epochs if rows else 0):
            order = generator(self.seed, "minibatches", self.steps, epoch).permutation(len(rows))
            for share in np.array_split(order, min(self.config.minibatches, len(rows))):
                part, count, norm = self._step([rows[i] for i in share], losses)
                tokens += count
                for name, value in part.items():
                    totals[name] += value
        return {**{name: value / max(1, tokens) for name, value in totals.items()}, "grad_norm": norm, "tokens": tokens}

    def _step(self, rows: Sequence[Row], losses: Mapping[str, float]) -> tuple[dict[str, float], int, float]:
        count = sum(int(row.mask[1:].sum()) for row in rows)
        totals = dict.fromkeys(losses, 0.0)
        device = next(self.module.parameters()).device
        self.module.eval()  # no dropout: rows are scored by the model that sampled them, and a resumed run must end as this one
        self.optimizer.zero_grad(set_to_none=True)
        for pack in micro_batches(rows, self.config.micro_tokens):
            batch = collate(pack, device)
            scores = score_batch(self.module, batch)
            total = torch.zeros((), device=device)
            for name, weight in losses.items():
                value = registry.get("loss", name)(batch, scores, self.config.loss)[batch.mask].sum()
                totals[name] += float(value.detach())
                total = total + weight * value
            (total / count).backward()
        return totals, count, self._descend()

    def descend(self, loss: Tensor) -> float:
        """One step along the gradient of ``loss``, which was made elsewhere; the norm of the gradient."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return self._descend()

    def _descend(self) -> float:
        norm = float(nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip_norm))
        if math.isfinite(norm):  # a step along a gradient that is not a number would lose the model
            self.optimizer.step()
        self.steps += 1
        return norm

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to continue: tensors by name (weights, moments) and a JSON record."""
        tensors = {f"weight.{name}": value.cpu() for name, value in distinct_weights(self.module).items()}
        moments = self.optimizer.state_dict()["state"]
        for index, moment in moments.items():
            for name, value in moment.items():
                tensors[f"moment.{index}.{name}"] = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value)
        return tensors, {"steps": self.steps}

    def restore(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        weights = {name.removeprefix("weight."): value for name, value in tensors.items() if name.startswith("weight.")}
        set_distinct_weights(self.module, weights)
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("moment."):
                _, index, name = key.split(".", 2)
                moments.setdefault(int(index), {})[name] = value.clone()
        state = self.optimizer.state_dict()
        state["state"] = moments
        self.optimizer.load_state_dict(state)
        self.steps = int(record["steps"])
