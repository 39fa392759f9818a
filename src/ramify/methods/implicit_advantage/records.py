"""Score records: the grades of one attempt under every aggregation, so that a choice among them needs no model; what forks say of
a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, StrictBool

from ramify.stats.drops import SuccessShare
from ramify.stats.intervals import Interval

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass(frozen=True)
class ScoredStep:
    """A step's grades, in nats times beta, and what they come from; ``confidence`` and ``certainty`` stand together."""

    i: int
    n_tokens: Number
    A_sum: Number
    A_mean: Number
    A_last: Number
    A_min: Number
    A_max: Number
    logp_theta: Number
    logp_ref: Number
    truncated: StrictBool
    confidence: Number | None = None
    certainty: Number | None = None
    action: str | None = None
    node: str | None = None

    def __post_init__(self) -> None:
        if (self.confidence is None) != (self.certainty is None):
            raise ValueError("'confidence' and 'certainty' stand together, and one of them is missing")

    def grade(self, token: str) -> float:
        """The grade under the token aggregator ``token``."""
        found: float = getattr(self, f"A_{token}")
        return found


@dataclass(frozen=True)
class ScoreRecord:
    """The grades of one attempt, by whom and how, and how it ended where that is known."""

    trajectory_id: str
    task_id: str
    steps: tuple[ScoredStep, ...]
    policy_id: str = ""
    policy: str = ""
    reference: str = ""
    beta: float = 1.0
    order: str = "ratio"
    token_agg: str = ""
    step_agg: str = ""
    keep_truncated: StrictBool = False
    score: Number | None = None
    decisions: str = ""
    reward: Number | None = None
    success: StrictBool | None = None
    warnings: tuple[str, ...] = ()
    baselines: Mapping[str, Number | None] = field(default_factory=dict)
    """Grades of other judges, by their names."""
    judges: Mapping[str, str] = field(default_factory=dict)
    end: str = ""
    """The node of a run that the attempt ends at."""

    @property
    def counted(self) -> list[ScoredStep]:
        """The steps that count: those the length limit cut into do not, unless they were kept."""
        return [step for step in self.steps if self.keep_truncated or not step.truncated]

    @property
    def graded(self) -> list[ScoredStep]:
        """Those of them with a graded token."""
        return [step for step in self.counted if step.n_tokens]


@dataclass(frozen=True)
class ForkTest:
    """What attempts from before and from after a step show (:func:`ramify.methods.implicit_advantage.confirm.confirm`)."""

    before: SuccessShare
    after: SuccessShare
    difference: float | None
    difference_interval: Interval
    p: float
    p_corrected: float
    confirmed: bool | None

    @property
    def word(self) -> str:
        """Whether the step is confirmed, in a word or two."""
        return {True: "confirmed", False: "not confirmed", None: "not measured"}[self.confirmed]
