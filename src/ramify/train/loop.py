"""The trainer: rows through a sum of registered losses, one AdamW step per minibatch. It knows no method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.engine.adapters import Adapter
from ramify.engine.generic import attends_here
from ramify.engine.sharing import SharedRows, sharing
from ramify.engine.tiny import TinyLM, distinct_weights, set_distinct_weights
from ramify.train.batch import Batch, Row, collate, in_tree_order, micro_batches, share_of_rows, shared_batches
from ramify.train.losses import Scores
from ramify.train.settings import TrainConfig as TrainConfig

SHARED = 0.125
"""Least share of tokens in common at which rows are computed as a tree."""
_shares: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def token_logprobs(module: nn.Module, batch: Batch) -> Tensor:
    """Log-probability of each masked token given those before it, [B, T]; 0 elsewhere. Logits are made only where needed."""
    return score_batch(module, batch).logprobs


def score_batch(module: nn.Module, batch: Batch) -> Scores:
    """Log-probabilities of the masked tokens and, where rows carry the token values ``rival``, of the tokens these name instead.

    Raises UserError where a rival is not a token of the model.
    """
    where = batch.mask[:, 1:]
    if batch.shared is not None and batch.source is not None:
        logits = _shared_logits(module, batch.shared, batch.source)
    elif isinstance(module, TinyLM):
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
        raise UserError(f"training row: rival {int(outside[0])} is not a token; the model knows 0 to {logits.shape[1] - 1}")
    return Scores(of(batch.tokens), of(rival.long()))


def batches(module: nn.Module, rows: Sequence[Row], max_tokens: int, share: bool = True) -> Iterator[tuple[list[Row], Batch]]:
    """Every row in one batch of at most ``max_tokens`` tokens through the model, with the rows of that batch in its order. With
    ``share`` and a model that allows it, what rows have in common at their start is in a batch once,
    where that is an eighth of them or more."""
    device = next(module.parameters()).device
    ordered = in_tree_order(rows) if share else []
    share = share and share_of_rows(ordered) >= SHARED and shares(module)
    for pack in shared_batches(ordered, max_tokens) if share else micro_batches(rows, max_tokens):
        yield pack, collate(pack, device, share)


def shares(module: nn.Module) -> bool:
    """Whether the model can compute what rows share once: the decoders here, and transformers models with attention calls that
    land in the engine and that give two short rows the same logits so, tried once."""
    if module not in _shares:
        _shares[module] = isinstance(module, TinyLM) or (attends_here(module) and _tried(module))
    return _shares[module]


def _tried(module: nn.Module) -> bool:
    rows = [np.array(numbers, np.int32) for numbers in ((1, 0, 1, 1, 0, 0), (1, 0, 1, 0, 0, 1, 1))]
    device = next(module.parameters()).device
    with torch.no_grad():
        try:
            laid_out = SharedRows.of(rows, device)
            shared = _shared_logits(module, laid_out, torch.from_numpy(np.concatenate(laid_out.places)).to(device))
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return False
        alone = [module(input_ids=torch.from_numpy(row[None]).long().to(device), use_cache=False).logits[0] for row in rows]
    wanted = torch.cat(alone).float()
    return torch.allclose(shared, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


def _shared_logits(module: nn.Module, rows: SharedRows, source: Tensor) -> Tensor:
    """Logits after the tokens at ``source``, [N, V]."""
    if isinstance(module, TinyLM):
        return nn.functional.linear(module.hidden_shared(rows)[source], module.head)
    with sharing(rows):
        output = module(input_ids=rows.tokens[None], position_ids=rows.positions[None], use_cache=False)
    logits: Tensor = output.logits[0][source].float()
    return logits


def with_reference(reference: nn.Module, rows: Sequence[Row], max_tokens: int = 16384) -> list[Row]:
    """Rows with the token values ``reference``: log-probs of their trained tokens under another model, for the KL to it.

    Rows of pairs (token values ``rival``) get ``rival_reference`` as well. Rows are returned in the order of their batches.
    """
    out = []
    with torch.no_grad():
        for pack, batch in batches(reference, rows, max_tokens):
            scores = score_batch(reference, batch)
            scored = {"reference": scores.logprobs, "rival_reference": scores.rivals}
            known = {name: values.cpu().numpy() for name, values in scored.items() if values is not None}
            for i, row in enumerate(pack):
                of_row = {name: values[i, : len(row.tokens)] for name, values in known.items()}
                out.append(Row(row.tokens, row.mask, {**row.token_values, **of_row}))
    return out


class Trainer:
    """AdamW over ``module``. Deterministic given rows, seed and thread count."""

    def __init__(self, module: nn.Module, config: TrainConfig, seed: int = 0, adapter: Adapter | None = None) -> None:
        """``adapter``: train its low-rank parts alone. Raises UserError where nothing can be trained."""
        self.module, self.config, self.seed, self.adapter = module, config, seed, adapter
        self.steps = 0
        if adapter is not None:
            for name, weight in module.named_parameters():
                weight.requires_grad_(name in adapter.parts)
            self._added()
            weights = [part.requires_grad_() for pair in adapter.parts.values() for part in pair]
        else:
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

        Returns each loss's mean per token, the gradient norm and the tokens trained.
        No row with a trained token: nothing happens.
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
        self._forget()
        for _, batch in batches(self.module, rows, self.config.micro_tokens, self.config.share_prefixes):
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
        self._forget()
        loss.backward()
        return self._descend()

    def _forget(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.adapter is not None:
            self.module.zero_grad(set_to_none=True)

    def _descend(self) -> float:
        weights: Iterable[Tensor] = self.module.parameters()
        if self.adapter is not None:
            grads = {name: weight.grad for name, weight in self.module.named_parameters() if name in self.adapter.parts}
            self.adapter.pull(
                {name: torch.zeros_like(self.adapter.base[name]) if grad is None else grad for name, grad in grads.items()}
            )
            weights = [part for pair in self.adapter.parts.values() for part in pair]
        norm = float(nn.utils.clip_grad_norm_(weights, self.config.clip_norm))
        if math.isfinite(norm):  # a step along a gradient that is not a number would lose the model
            self.optimizer.step()
            self._added()
        self.steps += 1
        return norm

    def _added(self) -> None:
        """Bring the module's weights to what the adapter's parts make of them."""
        if self.adapter is not None:
            weights = dict(self.module.named_parameters())
            with torch.no_grad():
                for name, weight in self.adapter.merged().items():
                    weights[name].copy_(weight)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to continue: tensors by name (weights or an adapter's parts, moments) and a JSON record."""
        if self.adapter is None:
            tensors = {f"weight.{name}": value.cpu() for name, value in distinct_weights(self.module).items()}
        else:
            tensors = {
                f"adapter.{i}.{name}": half.detach() for name, pair in self.adapter.parts.items() for i, half in enumerate(pair)
            }
        moments = self.optimizer.state_dict()["state"]
        for index, moment in moments.items():
            for name, value in moment.items():
                tensors[f"moment.{index}.{name}"] = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value)
        return tensors, {"steps": self.steps}

    def restore(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        if self.adapter is None:
            weights = {name.removeprefix("weight."): value for name, value in tensors.items() if name.startswith("weight.")}
            set_distinct_weights(self.module, weights)
        else:
            with torch.no_grad():
                for name, pair in self.adapter.parts.items():
                    for i, half in enumerate(pair):
                        half.copy_(tensors[f"adapter.{i}.{name}"])
            self._added()
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("moment."):
                _, index, name = key.split(".", 2)
                moments.setdefault(int(index), {})[name] = value.clone()
        state = self.optimizer.state_dict()
        state["state"] = moments
        self.optimizer.load_state_dict(state)
        self.steps = int(record["steps"])
