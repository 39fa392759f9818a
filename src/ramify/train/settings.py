"""How to train: apart from what trains, so that it can be listed without torch."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ramify.base.config import Config


@dataclass(frozen=True)
class Fidelity:
    """How well a model predicts general texts that it is not trained on."""

    perplexity: float
    kl: float
    """KL(start || now), mean of a token, nats."""


class LossConfig(Config):
    """Constants of the losses."""

    clip_low: float = Field(0.2, ge=0, le=1)
    """Ratios are clipped at 1 - clip_low ..."""
    clip_high: float = Field(0.2, ge=0)
    """... and 1 + clip_high."""
    beta: float = Field(0.1, gt=0)
    """Strength of a preference: how far the odds of a pair may leave the reference's."""


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
    """Tokens of one forward pass, padding included: bounds memory, changes no result beyond rounding."""
    share_prefixes: bool = True
    """Compute what rows have in common at their start once, as in a tree of attempts: faster, no other result beyond rounding."""
    loss: LossConfig = LossConfig()
    """Constants of the losses."""
