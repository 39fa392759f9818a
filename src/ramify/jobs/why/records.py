"""What `ramify why` counts: chances of success, what others did, steps, their shares, changes that were tried, moves of tools.

Help reads the types of a verb's result, and starts faster without numpy: this module loads none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramify.render.numbers import percent

if TYPE_CHECKING:
    from ramify.stats.drops import Counts

LEAST = 0.05
"""The change of success that a step must exceed to stand out, unless another is asked for."""
OTHER = "something else"
"""The alternatives of agents that never say the same twice, as one."""
GROUPED = " …"
"""Ends the name of alternatives that stand together by their first word."""
Ends = tuple[float, float]
"""Of an interval."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A chance of success: ``k`` of ``n`` attempts, and its interval (Wilson)."""

    p: float | None
    """Share of successes; None of none."""
    interval: Ends
    k: int
    n: int
    exact: bool = False
    """The attempt had ended, so there is no error."""
    failed: int = 0
    """Continuations without an outcome, which are not counted."""

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.n or (self.p is None) != (self.n == 0):
            raise ValueError(f"{self.k} of {self.n} is not a chance")
        _finite(self.p, self.interval)

    @classmethod
    def of(cls, counts: Counts, level: float = 0.95, exact: bool = False) -> Chance:
        """The chance that ``counts`` say."""
        from ramify.stats.intervals import wilson

        if exact and counts.n:
            k = int(counts.k > 0)
            return cls(float(k), (float(k), float(k)), k, 1, True)
        p = counts.k / counts.n if counts.n else None
        return cls(p, wilson(counts.k, counts.n, level), counts.k, counts.n, failed=counts.missing)

    def __str__(self) -> str:
        return percent(self.p, 0)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What other attempts did in the state before the step, and what became of them."""

    action: str
    n: int
    """How many did."""
    p: float
    """The share of them that succeeded."""
    interval: Ends
    """At 95 % (Wilson)."""

    @classmethod
    def of(cls, action: str, counts: Counts) -> Alternative:
        """What ``counts``, of one attempt at least, say of ``action``."""
        from ramify.stats.intervals import wilson

        return cls(action, counts.n, counts.k / counts.n, wilson(counts.k, counts.n))

    @property
    def repeatable(self) -> bool:
        """Whether it is one action, and not several under one name."""
        return self.action != OTHER and not self.action.endswith(GROUPED)


@dataclass(frozen=True, slots=True)
class StepChance:
    """One step of the attempt: the chance of success after it, where it was counted, and how far it fell there."""

    node: str
    """The reply."""
    action: str
    after: Chance | None
    change: float | None = None
    """Success after it minus success before it; None where one of the two was not counted."""
    interval: Ends | None = None
    """Of the change, corrected over the steps and the looks."""
    stands_out: bool = False
    conversation: int = 0
    """Whose step it is, where the agent has subagents: 0 is the conversation it began with."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A step of a log that breaks a rule (:data:`ramify.jobs.log.rules.RULES`), and how many successful logs have such a step."""

    rule: str
    step: int
    """The number of the reply in its attempt, from 1."""
    node: str
    """The reply."""
    action: str
    shown: str
    """The node that shows it: a result, a plan, or the reply itself."""
    why: str
    """What is wrong, one clause with what was read."""
    k: int
    """Of ``n`` successful attempts: those that break this rule or a rarer one."""
    n: int
    of_run: bool
    """Those of the run; else public ones (:data:`ramify.jobs.log.rarity.PUBLIC_LOGS`)."""

    @property
    def p(self) -> float:
        """The chance that a successful attempt of their kind has such a step, at most."""
        return (self.k + 1) / (self.n + 1)


@dataclass(frozen=True, slots=True)
class StepShare:
    """How much of the change from the start to the end is one step's."""

    node: str
    """The reply."""
    action: str
    share: float | None
    """Its Shapley value, below 0 where holding it lost success; None where no walk was finished."""
    interval: Ends | None
    """Corrected over the steps and the looks."""
    credited: bool
    """The interval lies beyond the least change."""

    def __post_init__(self) -> None:
        _finite(self.share, self.interval)


@dataclass(frozen=True, slots=True)
class Share:
    """Credit shared over the steps of an attempt (:mod:`ramify.jobs.share`); the shares sum to ``end`` minus ``start``."""

    walks: int
    start: Chance
    """With no step held."""
    end: Chance
    """With every step held."""
    samples: int
    """Continuations that were played for it, now or earlier."""
    steps: tuple[StepShare, ...]
    failed: int = 0
    spent: bool = False
    """The budget ended it before it was decided which steps get credit."""

    @property
    def credited(self) -> list[StepShare]:
        """The steps with credit, the largest share first."""
        return sorted((one for one in self.steps if one.credited), key=lambda one: -abs(one.share or 0.0))


@dataclass(frozen=True, slots=True)
class Helped:
    """One change at the step that lost an attempt: what came of forks with it, and of as many without it."""

    attempt: str
    """The last node of the attempt."""
    do: str
    """The kind of change (:data:`ramify.jobs.helped.KINDS`)."""
    value: str
    node: str
    """Where it was made."""
    changed: Chance
    control: Chance
    difference: float
    """Success with it minus success without it."""
    interval: Ends
    """Of the difference, at 95 % (Newcombe)."""
    p_corrected: float
    """Fisher's exact test, corrected over all changes of one call."""


@dataclass(frozen=True, slots=True)
class ToolMove:
    """A tool, and the worst of its moves by what the attempts did that are there; None where none can be compared."""

    tool: str
    steps: int
    """How many call it."""
    action: str | None = None
    task: str | None = None
    node: str | None = None
    difference: float | None = None
    """Mean reward of those that took the move minus that of the others in its state."""
    takers: int | None = None
    others: int | None = None
    p_corrected: float | None = None
    """Over all moves."""


@dataclass(frozen=True, slots=True)
class LostByTool:
    """How many attempts were lost at a step that calls a tool, the mean change of success there, and the worst such step."""

    tool: str
    lost: int
    change: float
    action: str
    tree: str
    node: str


def _finite(value: float | None, interval: Ends | None) -> None:
    """Raises ValueError where a share of 1, or its interval, is none."""
    if not all(abs(one) <= 1 + 1e-9 for one in (value or 0.0, *(interval or ()))):
        raise ValueError(f"{value} with the interval {interval} is no share or change of success")
    if not all(map(math.isfinite, interval or ())):
        raise ValueError(f"the interval {interval} has no ends")
