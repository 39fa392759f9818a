"""Settings of ``ramify improve``: apart from what trains, so that it can be listed without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ramify.base.config import Config
from ramify.env.builtin.agents import with_agent
from ramify.jobs.critic import CriticConfig
from ramify.jobs.sampling import SplittingConfig
from ramify.methods.graph_credit.algorithm import GraphCreditSettings
from ramify.methods.tree_rollouts.algorithm import UUCB, Allocation, TreeConfig
from ramify.train.settings import TrainConfig

MOST_PASSES = 4
"""Passes of one update, by default: more was not tried."""


@dataclass(frozen=True)
class TrainingArm:
    """One way to spend the tokens: how attempts are sampled, how steps are credited, how is learned from them."""

    sampling: str
    """Name of its sampling (see ``ramify list sampling``)."""
    credit: str
    """Name of its credit rule (see ``ramify list credit``)."""
    lr: float = 5e-4
    """Default learning rate. That and the passes are what the tuning of the comparison (``ramify repro improve``) found for most
    arms."""
    passes: int = 200
    """Passes over the rows in all updates together, about: up to 50 updates take :data:`MOST_PASSES` each, very many take one."""
    minibatches: int = 1
    """Optimiser steps a pass."""


ARMS = {
    "imitate": TrainingArm("flat", "imitate"),
    "auto": TrainingArm("auto", "imitate"),
    "infotree+g2po": TrainingArm("infotree", "g2po"),
    "g2po": TrainingArm("flat", "g2po"),
    "grpo": TrainingArm("flat", "grpo"),
    "grpo+allocator": TrainingArm("allocator", "grpo"),
    "grpo+resample": TrainingArm("resample", "grpo"),
}
"""imitate: supervised training on successes (RAFT), the default: the simplest, and no other is clearly better (docs/improve.md).
auto: the same, with splitting at tasks that are rarely won.
infotree+g2po: branching rollouts, allocator and graph credit. g2po: graph credit on independent attempts. grpo: independent
attempts, one credit per attempt; with the allocator, or with half of the tokens spent at a time on new tasks."""


RANK = 8
"""Rank of the adapter that is trained of a pretrained model unless another is asked for."""


def pretrained_rate(weights: int, adapter: bool) -> float:
    """Default learning rate for a pretrained model of so many ``weights``: 5e-4 for an adapter up to 135 million; for all weights
    5e-4 at 0.36 million, which is what the tuning of the comparison found there, and less by the root of the size beyond."""
    base, size = (5e-4, 135e6) if adapter else (5e-4, 0.36e6)
    return min(base, base * math.sqrt(size / weights))


class TrainingConfig(TrainConfig):
    """How ``ramify improve`` trains."""

    lr: float = Field(default=0.0, ge=0)
    """Learning rate of AdamW at the start, from where it falls linearly to 0; 0 takes the arm's own."""
    minibatches: int = Field(default=0, ge=0)
    """Optimiser steps per pass, each on its share of the rows; 0 takes the arm's own."""
    epochs: int = Field(default=0, ge=0)
    """Passes over the rows of an update; 0 takes the arm's own."""

    def of(self, arm: str, updates: int, lr: float = 0.0) -> TrainingConfig:
        """These settings with the arm's own where they are 0, for so many ``updates``; ``lr`` replaces the arm's own rate."""
        arms = ARMS[arm]
        defaults = {
            "lr": lr or arms.lr,
            "minibatches": arms.minibatches,
            "epochs": min(MOST_PASSES, max(1, round(arms.passes / updates))),
        }
        return self.model_copy(update={name: getattr(self, name) or value for name, value in defaults.items()})


class KeepConfig(Config):
    """What a pretrained model must not lose by training; ignored for a model that ramify made."""

    perplexity: float = Field(default=1.1, ge=0)
    """Largest allowed perplexity of general texts, as a multiple of the start's (from 1): an update beyond is taken back, and
    training ends there; 0 (or off, or inf): measured only."""
    texts: str = ""
    """File of texts to measure it on, one a line; default: sixteen of ramify's own."""
    episodes: int = Field(default=0, ge=0)
    """Episodes that validate each of up to five checkpoints; 0: a quarter of eval_episodes, at least 24 of them"""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint is kept: the best at validation (of equals the earliest, which may be the start), or the last."""

    @field_validator("perplexity", mode="before")
    @classmethod
    def _bound(cls, value: Any) -> Any:
        return 0.0 if value in ("off", "inf", math.inf) else value

    @field_validator("perplexity")
    @classmethod
    def _at_least(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("must be 1 or more, a multiple of the start's perplexity, or 0 for no bound")
        return value


class CreditSettings(GraphCreditSettings):
    """The credit rule and its settings; a rule ignores settings it has no parameter for."""

    ITSELF = "name"

    name: str = ""
    """Credit rule: a name of ``ramify list credit``, NAME:ARGUMENT, or FILE.py:CLASS of your own; default: the arm's."""


class ImproveConfig(Config):
    """Settings of ``ramify improve``."""

    BASIC = (
        "model env tasks arm sampling compare seed updates tokens tasks_per_update train_tasks eval_episodes "
        "lora all_weights keep.perplexity temperature max_reply backend device credit train.lr"
    )
    model: str = "builtin"
    """The agent's checkpoint: builtin (the one that goes with the environment), or hf:PATH of a folder transformers can load."""
    chat_template: str | None = None
    """File with a chat template (jinja) to use instead of the checkpoint's own;
    it is stored with the run and the improved agent."""
    env: str = "household"
    """Environment the agent acts in (see ``ramify list env``)."""
    tasks: str | None = None
    """JSON lines of your own tasks; one in four is held out. Default: tasks the environment generates."""
    arm: Literal["imitate", "auto", "infotree+g2po", "g2po", "grpo", "grpo+allocator", "grpo+resample"] = "imitate"
    """Way to spend the tokens: a sampling, a credit rule, and how to train on them."""
    sampling: str = ""
    """How attempts are sampled: a name of ``ramify list sampling``; default: the arm's."""
    compare: bool = False
    """Run the other arms as well, each from the same start at the same generated tokens."""
    seed: int = 0
    """Seed of the run; each sample's seed is derived from it and the sample's position in the tree."""
    updates: int = Field(default=50, ge=1)
    """Training updates; the token budget is spread over them."""
    tokens: int = Field(default=150_000, ge=1)
    """Tokens the agent may generate for training (evaluation not counted)."""
    tasks_per_update: int = Field(default=16, ge=1)
    """Tasks of one update; auto, splitting and resample take up to four times as many, as the tokens allow."""
    train_tasks: int = Field(default=512, ge=1)
    """Tasks to generate for training."""
    eval_episodes: int = Field(default=400, ge=2)
    """Held-out episodes before and after."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature, in training and evaluation alike. For a pretrained model, where none is given: 0.7 or 0.4 where a
    trial hardly succeeds at 1."""
    max_reply: int = Field(default=24, ge=1)
    """Longest reply of the agent, in tokens. For a pretrained model, where none is given: 24, 48 or 96, as a trial needs."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes in flight at once; changes no result. For a pretrained model, where none is given: fewer where a trial's rows are
    so long that their keys and values would take more memory than the weights."""
    backend: str = "local"
    """Where episodes are played: local, processes:WORKERS or ray:WORKERS (see ``ramify list backend``); changes no result."""
    device: str = ""
    """Where a model of this machine runs: cpu, cuda, cuda:1, ...; default: what RAMIFY_DEVICE says, else cpu."""
    lora: int = Field(default=0, ge=0)
    """Train a LoRA adapter of this rank alone, and save it alone; 0: the checkpoint's own adapter where it is one, of
    rank 8 for a pretrained model, all weights of a model that ramify made."""
    all_weights: bool = False
    """Train all weights of a pretrained model, too, instead of an adapter."""
    changes: int = Field(default=10, ge=0, le=100)
    """States of held-out attempts at which the report says what the agent now does, and what comes of it; 0 for none."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL to the starting agent."""
    tree: TreeConfig = TreeConfig(unit="tokens", roots=2, least=0.25, parallel=4, selector=UUCB(lam=0.0))
    """How one task's tree is sampled by ``infotree``. The selector's entropy weight is 0 here:
    this agent is least sure in lost states."""
    allocation: Allocation = Allocation()
    """How ``infotree`` and ``allocator`` move budget between tasks."""
    splitting: SplittingConfig = SplittingConfig()
    """How ``splitting`` and ``auto`` continue attempts."""
    critic: CriticConfig = CriticConfig()
    """The critic of samplings and credit rules that ask one."""
    credit: CreditSettings = CreditSettings()
    """How steps are credited."""
    keep: KeepConfig = KeepConfig()
    """What a pretrained model must not lose."""
    train: TrainingConfig = TrainingConfig()
    """How to train."""

    @property
    def validation_episodes(self) -> int:
        """Episodes that validate one checkpoint."""
        return self.keep.episodes or min(self.eval_episodes, max(24, self.eval_episodes // 4))

    _agent = model_validator(mode="before")(with_agent)
