"""GSPO's loss (Zheng et al. 2025, as section 3.4 of the paper uses it), registered for the trainer."""

from __future__ import annotations

import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.train.batch import Batch
from ramify.train.losses import LossConfig, Scores


@register("loss", "gspo")
def gspo(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    """-min(s A, clip(s) A) of each sequence, spread evenly over its tokens: every sequence counts the same, however long.

    ``s`` is the length-normalised ratio of the whole sequence, ``(pi(y|x) / pi_old(y|x)) ** (1 / |y|)``. Token
    values: ``advantage`` (one number, at each token) and ``logprobs``.
    GSPO's own clip range is 3e-4 to 4e-4, not the default of 0.2.
    """
    for name in ("advantage", "logprobs"):
        if name not in batch.token_values:
            raise UserError(
                f"loss 'gspo' needs the token values '{name}'; the rows carry {', '.join(sorted(batch.token_values)) or 'none'}"
            )
    mask = batch.mask.to(scores.logprobs.dtype)
    length = mask.sum(dim=1, keepdim=True).clamp(min=1.0)
    gap = ((scores.logprobs - batch.token_values["logprobs"]) * mask).sum(dim=1, keepdim=True) / length
    ratio = torch.exp(gap)
    advantage = (batch.token_values["advantage"] * mask).sum(dim=1, keepdim=True) / length
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return (-torch.minimum(ratio * advantage, clipped * advantage) / length).expand_as(mask)
