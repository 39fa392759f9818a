"""How a drafter is trained: apart from the training, so that the verbs can be listed without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ramify.base.config import Config


class DrafterTraining(Config):
    """How to train a drafter. The defaults are the paper's for DSpark, but for the size of the run."""

    steps: int = Field(3000, ge=1)
    """Optimiser steps."""
    rows: int = Field(12, ge=1)
    """Sequences per step."""
    anchors: int = Field(24, ge=1)
    """Blocks per sequence and step, at positions sampled without replacement."""
    lr: float = Field(3e-3, ge=0)
    """Peak learning rate (linear warm-up, cosine decay to 0)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Of the drafter's matrices; muon is what speculators takes, at rates of 0.01 and more."""
    confidence: float = Field(1.0, ge=0)
    """Weight of the confidence head's loss."""
    seed: int = 0
    """Decides batches and anchors."""


class TrainOptions(DrafterTraining):
    """A drafter, the text it learns from, and how it is trained."""

    BASIC = "steps lr seed kind layers block sequences length temperature"
    kind: Literal["dspark", "dflash", "eagle3"] = "dspark"
    """dspark; dflash (no sequential head, no confidences); eagle3 (token by token)"""
    layers: int = Field(3, ge=1, le=64)
    """draft layers; eagle3 has one"""
    block: int = Field(7, ge=1, le=256)
    """most tokens of one draft"""
    rank: int = Field(32, ge=0)
    """rank of dspark's sequential head; the paper's is 256 for a vocabulary of 150,000"""
    head: Literal["vanilla", "gated", "rnn"] = "vanilla"
    """kind of the sequential head"""
    vocabulary: int = Field(0, ge=0)
    """tokens that are drafted: so many of the most frequent ones of what the target writes; 0: all. A head of 49,152 tokens costs
    more than the draft layers"""
    sequences: int = Field(1200, ge=2)
    """replies of the target to learn from; prompts of a file are used in turns"""
    length: int = Field(96, ge=4)
    """tokens of a reply at most"""
    temperature: float = Field(1.0, ge=0)
    """temperature at which the target writes; take the one it will be used at"""
    steps: int = Field(1500, ge=1)
    """optimiser steps"""
    layout: Literal["deepspec", "speculators"] = "deepspec"
    """of the drafter's folder: vLLM serves speculators' as it is (`vllm serve DRAFTER`); it takes eagle3, and dspark with the
    head vanilla"""

    def training(self) -> DrafterTraining:
        """The settings of the optimiser."""
        return DrafterTraining(**{name: getattr(self, name) for name in DrafterTraining.model_fields})
