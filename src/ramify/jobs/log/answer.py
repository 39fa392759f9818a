"""What ``ramify why --judge`` says: the step that judges name in a log, how far they agree, and what they name in successful
logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ramify.base.words import plural
from ramify.jobs.why import tables
from ramify.jobs.why.records import BrokenRule, Ends
from ramify.render.numbers import percent, percent_interval
from ramify.render.result import Result, Section, table
from ramify.rollout.commands import NOBODY, Commands

NOTE = "An opinion about a log: this is not a counterfactual"


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one judge names in one way; ``judge`` is ``rules`` for the rule that names a step."""

    judge: str
    way: str
    node: str | None
    """The step's reply; None where none was named."""
    step: int | None
    """The number of the reply in its attempt, from 1."""
    action: str = ""
    reason: str = ""
    asked: int = 0
    """Questions."""
    unread: int = 0
    """Answers that could not be read."""
    failure: str = ""
    """Why the judge could not run."""

    @property
    def spoke(self) -> bool:
        """Whether it came to an answer, be it that no step is wrong."""
        return self.node is not None or (not self.failure and not self.unread and self.asked > 0)


@dataclass(frozen=True, slots=True)
class InSuccesses:
    """What the same judges say of successful attempts, where nothing lost."""

    n: int
    named: int
    """In how many a step is named."""
    as_agreed: int
    """In how many as large a share of the judges names one step as here."""

    @property
    def p(self) -> float:
        """The chance that a successful attempt of their kind has a step on which as many agree, at most."""
        return (self.as_agreed + 1) / (self.n + 1)


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """How often two of those that were asked name the same step, where both named one."""

    first: str
    second: str
    k: int
    n: int
    interval: Ends
    """Wilson's, at 95 %."""


@dataclass(frozen=True, repr=False)
class WhyJudged(Result):
    """The step that judges name. ``verdict`` is ``step`` where at most ``level`` of the successful attempts would have one named
    with as much agreement, ``opinion`` where that is not so or was not asked, ``none`` where none is named."""

    tree: str
    attempt: str
    """Its last node."""
    success: bool
    verdict: Literal["step", "opinion", "none"]
    headline: str
    node: str | None
    """The reply that most judges name, of several the first."""
    action: str | None
    votes: int
    """Answers that name it."""
    of: int
    """Answers."""
    opinions: tuple[Opinion, ...]
    agreement: tuple[JudgeAgreement, ...] = ()
    successes: InSuccesses | None = None
    """None where nobody was asked about successful attempts."""
    broken: tuple[BrokenRule, ...] = ()
    """Steps that break a rule, the rarest first."""
    level: float = 0.05
    counterfactual: bool = False
    run: str = ""
    commands: Commands = NOBODY

    def sections(self) -> Iterable[Section]:
        """The headline, who names what, what is said of successful attempts, what to do next."""
        rows = [
            (
                entry.judge,
                entry.way,
                "-" if entry.step is None else str(entry.step),
                tables.cut(tables.named(entry.action)),
                entry.reason,
                entry.asked,
                entry.unread,
                entry.failure,
            )
            for entry in self.opinions
        ]
        head = ("judge", "way", "step", "action", "reason", "questions", "not read", "failed")
        yield Section.of("", self.headline, table(head, rows), told_agreement(self.agreement), self._null())
        yield from (entry for entry in (tables.broken(self.broken),) if entry.parts)
        yield Section.of("what to do next", f"Look at it: `{self.commands.show}`")

    def _null(self) -> str:
        if self.successes is None:
            return "Nobody was asked about successful attempts (`--successes N`): a judge may name a step there too."
        known = self.successes
        return (
            f"Of {plural(known.n, 'successful attempt')} the same judges name a step in {known.named}, with as much agreement in "
            f"{known.as_agreed}: p = {known.p:.3g}, and a step is named for certain at {self.level:g}."
        )

    def __repr__(self) -> str:
        return f"<why {self.tree!r}, judged:\n {self.headline}>"


@dataclass(frozen=True)
class WhyJudgedAll(Result):
    """What judges name in one failed attempt of every tree, and how far they agree."""

    all: tuple[WhyJudged, ...]
    agreement: tuple[JudgeAgreement, ...]

    def sections(self) -> Iterable[Section]:
        """How many have a step, the steps, and the agreement."""
        steps, named = (sum(entry.verdict == word for entry in self.all) for word in ("step", "opinion"))
        count = (
            f"In {steps} of {plural(len(self.all), 'failed attempt')} a step is named, in {named} it is a mere opinion. {NOTE}."
        )
        rows = [
            (entry.tree, entry.verdict, tables.cut(entry.action or "-"), f"{entry.votes} of {entry.of}", (entry.node or "-")[:12])
            for entry in self.all
        ]
        yield Section.of("", count, table(("tree", "verdict", "step", "votes", "node"), rows), told_agreement(self.agreement))


def told_agreement(pairs: Iterable[JudgeAgreement]) -> str:
    """How far pairs agree, a line each."""
    return "\n".join(
        f"  {entry.first} and {entry.second} name the same step in {entry.k} of {entry.n}"
        + (f": {percent(entry.k / entry.n, 0)} {percent_interval(entry.interval)}" if entry.n > 1 else "")
        for entry in pairs
        if entry.n
    )
