"""The trainer: rows through a sum of registered losses, one AdamW step per minibatch. It knows no method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ramify.base import registry
from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import generator
from ramify.engine.adapters import Adapter
from ramify.engine.generic import attends_here, linear_layers
from ramify.engine.sharing import SharedRows, sharing
from ramify.engine.tiny import TinyLM, distinct_weights, set_distinct_weights
from ramify.train.batch import Batch, Row, collate, in_tree_order, micro_batches, share_of_rows, shared_batches
from ramify.train.large import chosen_logprobs, head_weight, is_large, most_tokens, recomputed, trained
from ramify.train.losses import Scores
from ramify.train.muon import Muon
from ramify.train.settings import TrainConfig as TrainConfig

SHARED = 0.125
"""Least share of tokens in common at which rows are computed as a tree."""
_shares: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def token_logprobs(module: nn.Module, batch: Batch) -> Tensor:
    """Log-probability of each masked token given those before it, [B, T]; 0 elsewhere. Logits are made only where needed."""
    return score_batch(module, batch).logprobs


def score_batch(module: nn.Module, batch: Batch, adapter: Adapter | None = None) -> Scores:
    """Log-probabilities of the masked tokens and, where rows carry the token values ``rival``, of the tokens these name instead.
    Gradients for an ``adapter`` are taken within :func:`ramify.train.large.trained`.

    Raises UserError where a rival is not a token of the model.
    """
    where = batch.mask[:, 1:]
    head = head_weight(module, adapter)
    if batch.shared is not None and batch.source is not None:
        states = _shared(module, batch.shared, head is not None)[batch.source]
    elif isinstance(module, TinyLM):
        states = module.hidden(batch.tokens[:, :-1])[where]
    elif head is not None:
        states = module.base_model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state[where]  # type: ignore[operator]
    else:
        states = module(input_ids=batch.tokens[:, :-1], use_cache=False).logits[where]
    vocab = states.shape[1] if head is None else len(head)
    rival = batch.token_values.get("rival")
    targets = [batch.tokens[:, 1:][where]]
    if rival is not None:
        targets.append(rival[:, 1:][where].long())
        outside = targets[1][(targets[1] < 0) | (targets[1] >= vocab)]
        if len(outside):
            raise UserError(f"training row: rival {int(outside[0])} is not a token; the model knows 0 to {vocab - 1}")
    if head is None:
        chosen = [-nn.functional.cross_entropy(states.float(), row, reduction="none") for row in targets]
    else:
        chosen = list(chosen_logprobs(states, head, torch.stack(targets)))

    def laid_out(values: Tensor) -> Tensor:
        out = torch.zeros(batch.tokens.shape, dtype=values.dtype, device=values.device)
        out[:, 1:][where] = values
        return out

    return Scores(*map(laid_out, chosen))


def batches(module: nn.Module, rows: Sequence[Row], max_tokens: int, share: bool = True) -> Iterator[tuple[list[Row], Batch]]:
    """Every row in one batch of at most ``max_tokens`` tokens through the model, with the rows of that batch in its order. With
    ``share`` and a model that allows it, what rows have in common at their start is in a batch once, where that is an eighth of
    them or more; of a large model in any case, whose rows then lie end to end without padding."""
    device = next(module.parameters()).device
    ordered = in_tree_order(rows) if share else []
    share = share and (is_large(module) or share_of_rows(ordered) >= SHARED) and shares(module)
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
            shared = _shared(module, laid_out, False)[torch.from_numpy(np.concatenate(laid_out.places)).to(device)].float()
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return False
        alone = [module(input_ids=torch.from_numpy(row[None]).long().to(device), use_cache=False).logits[0] for row in rows]
    wanted = torch.cat(alone).float()
    return torch.allclose(shared, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


def _shared(module: nn.Module, rows: SharedRows, states: bool) -> Tensor:
    """States [T, D] after the tokens of ``rows``, or logits [T, V]."""
    if isinstance(module, TinyLM):
        return module.hidden_shared(rows)
    call: Any = module.base_model if states else module
    with sharing(rows):
        output = call(input_ids=rows.tokens[None], position_ids=rows.positions[None], use_cache=False)
    after: Tensor = (output.last_hidden_state if states else output.logits)[0]
    return after


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

    def __init__(
        self,
        module: nn.Module,
        config: TrainConfig,
        seed: int = 0,
        adapter: Adapter | None = None,
        matrices: Sequence[Tensor] = (),
    ) -> None:
        """``adapter``: train its low-rank parts alone. ``matrices``: weights whose steps are Muon's. Raises UserError where
        nothing can be trained."""
        self.module, self.config, self.seed, self.adapter = module, config, seed, adapter
        self.steps = 0
        if adapter is not None:
            if other := sorted(adapter.parts.keys() - {name for name, _, _ in linear_layers(module)}):
                raise NeedsError(f"the adapter changes '{other[0]}', which is not a linear layer's: that cannot be trained here")
            module.requires_grad_(False)
            self._added()
            weights = [part.requires_grad_() for pair in adapter.parts.values() for part in pair]
        else:
            weights = [w for w in module.parameters() if w.requires_grad]
        if not weights:
            raise UserError("the model has no trainable weight")
        c = config
        fused = is_large(module) or None  # one pass over the weights, of which there are many; None is torch's choice
        settings: Any = {"lr": c.lr, "betas": (c.beta1, c.beta2), "weight_decay": c.weight_decay, "fused": fused}
        self.optimizer = Muon(weights, matrices, **settings) if matrices else torch.optim.AdamW(weights, **settings)

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
        self.optimizer.zero_grad(set_to_none=True)
        most = most_tokens(self.module, self.config.micro_tokens)
        with trained(self.module, self.adapter):
            for _, batch in batches(self.module, rows, most, self.config.share_prefixes):
                whole = batch.tokens.numel() if batch.shared is None else len(batch.shared.tokens)
                with recomputed(self.module) if most < min(whole, self.config.micro_tokens) else nullcontext():
                    scores = score_batch(self.module, batch, self.adapter)
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
        weights: Iterable[Tensor] = self.module.parameters()
        if self.adapter is not None:
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
            self.adapter.merge_into(self.module)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to continue: tensors by name (weights or an adapter's parts, moments) and a JSON record. Drops
        the gradients of the last step: who copies the state needs the memory."""
        self.optimizer.zero_grad(set_to_none=True)
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
        self.optimizer.state.clear()
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("moment."):
                _, index, name = key.split(".", 2)
                weight = self.optimizer.param_groups[0]["params"][int(index)]
                alike = value.shape == weight.shape  # a fused step wants them to lie in memory as the weight does
                value = torch.empty_like(weight, requires_grad=False).copy_(value) if alike else value.clone()
                moments.setdefault(int(index), {})[name] = value
        state = self.optimizer.state_dict()
        state["state"] = moments
        self.optimizer.load_state_dict(state)
        self.steps = int(record["steps"])
