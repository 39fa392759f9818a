"""Registered losses: each maps a batch and its scores to one value per token; the loop masks, weighs, sums and normalises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.train.batch import Batch
from ramify.train.settings import LossConfig as LossConfig


@dataclass(frozen=True, eq=False)
class Scores:
    """What the model says of a batch: log-probability of each token, [B, T]; entry 0 and unmasked entries are 0."""

    logprobs: Tensor
    rivals: Tensor | None = None
    """The same for the token that ``rival`` names instead at each position; None where no row has it."""


Loss = Callable[[Batch, Scores, LossConfig], Tensor]


def _token_values(batch: Batch, name: str, loss: str) -> Tensor:
    if name not in batch.token_values:
        raise UserError(
            f"loss '{loss}' needs the token values '{name}'; the rows carry {', '.join(sorted(batch.token_values)) or 'none'}"
        )
    return batch.token_values[name]


@register("loss", "cross_entropy")
def cross_entropy(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    """-log p of each token, times its ``weight`` where the rows carry one."""
    weight = batch.token_values.get("weight")
    return -scores.logprobs if weight is None else -scores.logprobs * weight


@register("loss", "policy_gradient")
def policy_gradient(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    """Clipped policy gradient (PPO, Schulman et al. 2017, equation 7): -min(rho A, clip(rho) A), rho against the sampler."""
    advantage = _token_values(batch, "advantage", "policy_gradient")
    ratio = torch.exp(scores.logprobs - _token_values(batch, "logprobs", "policy_gradient"))
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return -torch.minimum(ratio * advantage, clipped * advantage)


@register("loss", "reference_kl")
def reference_kl(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    """Low-variance estimate of KL(policy || reference) per token:
    exp(d) - d - 1 with d = log ref - log p (Schulman 2020, "k3")."""
    gap = _token_values(batch, "reference", "reference_kl") - scores.logprobs
    return torch.exp(gap) - gap - 1.0


@register("loss", "preference")
def preference(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    """Preference for one token over its ``rival`` in the same place (DPO, Rafailov et al.
    2023, equation 7; responses of one token).

    -log sigmoid(beta ((log p(token) - log ref(token)) - (log p(rival) - log ref(rival)))). Both are scored after the same row, so
    a pair is one row and one forward pass, and nothing after the token (an end of turn) enters. Token values: ``rival`` (a token
    id), ``reference`` and ``rival_reference`` (see :func:`ramify.train.loop.with_reference`).
    """
    _token_values(batch, "rival", "preference")
    held = _token_values(batch, "reference", "preference") - _token_values(batch, "rival_reference", "preference")
    if scores.rivals is None:
        raise UserError("loss 'preference' needs the rivals' log-probs, and these scores have none")
    return -torch.nn.functional.logsigmoid(config.beta * (scores.logprobs - scores.rivals - held))
