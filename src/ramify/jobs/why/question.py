"""What is asked of an attempt: how much is sampled, and when a step stands out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.jobs.why.records import LEAST
from ramify.trace.node import Provenance


@dataclass(frozen=True, slots=True)
class WhyQuestion:
    """See :func:`ramify.jobs.why.why`. Raises UserError where ``first`` is more than ``n``."""

    n: int = 48
    """At most so many continuations from one position."""
    first: int = 4
    samples: int | None = None
    """At most so many in all."""
    level: float = 0.05
    least: float = LEAST
    describe: int = 16
    share: bool = False
    scorer: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.n:
            raise UserError(f"first={self.first} forks a position cannot be more than n={self.n}, nor less than 1")

    @property
    def budget(self) -> float:
        """``samples`` as a number."""
        return math.inf if self.samples is None else self.samples

    def identity(self, agent: Provenance | None) -> dict[str, Any]:
        """What decides the answer besides the run: these settings, and the agent that continues."""
        settings: dict[str, Any] = codec.to_json(self)
        return settings if agent is None else settings | {"agent": agent.to_json()}
