"""Settings of ``ramify improve``: apart from what trains, so that it can be listed without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

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


class TrainingConfig(TrainConfig):
    """How ``ramify improve`` trains."""

    lr: float = Field(default=0.0, ge=0)
    """Learning rate of AdamW at the start, from where it falls linearly to 0; 0 takes the arm's own."""
    minibatches: int = Field(default=0, ge=0)
    """Optimiser steps per pass, each on its share of the rows; 0 takes the arm's own."""
    epochs: int = Field(default=0, ge=0)
    """Passes over the rows of an update; 0 takes the arm's own."""

    def of(self, arm: str, updates: int) -> TrainingConfig:
        """These settings with the arm's own where they are 0, for so many ``updates``."""
        arms = ARMS[arm]
        defaults = {
            "lr": arms.lr,
            "minibatches": arms.minibatches,
            "epochs": min(MOST_PASSES, max(1, round(arms.passes / updates))),
        }
        return self.model_copy(update={name: getattr(self, name) or value for name, value in defaults.items()})


class CreditSettings(GraphCreditSettings):
    """The credit rule and its settings; a rule ignores settings it has no parameter for."""

    ITSELF = "name"

    name: str = ""
    """Credit rule: a name of ``ramify list credit``, NAME:ARGUMENT, or FILE.py:CLASS of your own; default: the arm's."""


class ImproveConfig(Config):
    """Settings of ``ramify improve``."""

    BASIC = (
        "model env tasks arm sampling compare seed updates tokens tasks_per_update train_tasks eval_episodes "
        "lora temperature max_reply backend device credit train.lr"
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
    """Sampling temperature, in training and evaluation alike."""
    max_reply: int = Field(default=24, ge=1)
    """Longest reply of the agent, in tokens."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes in flight at once; changes no result."""
    backend: str = "local"
    """Where episodes are played: local, processes:WORKERS or ray:WORKERS (see ``ramify list backend``); changes no result."""
    device: str = ""
    """Where a model of this machine runs: cpu, cuda, cuda:1, ...; default: what RAMIFY_DEVICE says, else cpu."""
    lora: int = Field(default=0, ge=0)
    """Train a LoRA adapter of this rank alone, and save it alone; 0:
    all weights, or the checkpoint's own adapter where it is one."""
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
    train: TrainingConfig = TrainingConfig()
    """How to train."""

    _agent = model_validator(mode="before")(with_agent)
