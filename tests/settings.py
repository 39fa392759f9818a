"""Settings of a made-up job, for tests of what reads settings."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from ramify.base.config import Config


class Train(Config):
    """How the weights move."""

    lr: float = 0.1
    """Learning rate."""
    steps: int = 3
    """Updates."""


class Job(Config):
    """A job."""

    BASIC = "env seeds compare"
    train: Train = Train()
    """How the weights move."""
    env: str = "household"
    """Environment
    to act in."""
    mode: Literal["fast", "slow"] = "fast"
    """Speed."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds."""
    compare: bool = False
    """Run the other arms too."""
    cap: int | None = None
    """Most tokens."""

    @model_validator(mode="after")
    def _possible(self) -> Job:
        if self.compare and self.cap == 0:
            raise ValueError("compare needs a cap above 0")
        return self
