"""What a detour is, and what detours cost, on plain values: no run is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from ramify.base.config import Config
from ramify.render.numbers import percent, percent_interval, points, points_interval
from ramify.render.result import Result, Section, table
from ramify.stats.drops import Counts, SuccessDifference, SuccessShare
from ramify.stats.intervals import ClusteredShare, clustered_share, difference_of_proportions


class DetoursConfig(Config):
    """Settings of `ramify detours find`."""

    fork: int = Field(default=0, ge=0)
    """Continuations from the state before each detour; 0: none."""
    scorer: str | None = None
    """Scorer that decides which attempts succeeded."""


def first_return(states: Sequence[str]) -> tuple[int, int] | None:
    """(step, since): the first step that led to a state the agent had been in, and the step before which it was there first.
    A step that changes nothing is one, too. ``states`` (steps + 1,): before each step, and at the end."""
    return next(((at - 1, states.index(state)) for at, state in enumerate(states) if state in states[:at]), None)


@dataclass(frozen=True)
class Detour:
    """The first detour of one attempt."""

    task: str
    before: str
    """Node of the observation before the step."""
    reply: str
    """Node of the reply after which the agent was back."""
    step: int
    since: int
    """The step before which it was in that state first."""
    success: bool
    """Of the attempt."""
    forks: SuccessShare | None = None
    """Of continuations from the state before the step."""

    @property
    def sentence(self) -> str:
        """What happened, and how often the agent succeeds from before it."""
        back = f"after step {self.step} the agent is back in the state it was in before step {self.since}"
        if self.forks is None:
            return back
        share = f"{self.forks.successes} of {self.forks.n} continuations succeed, {percent_interval(self.forks.interval)}"
        return f"{back}; from before it {share}"


@dataclass(frozen=True)
class Detours(Result):
    """Attempts with a detour and without one, and what follows from before the detours."""

    with_detour: SuccessShare
    without: SuccessShare
    difference: SuccessDifference | None
    """Success with a detour minus success without one; None where all attempts are of one kind."""
    costly: bool
    """Whether the whole 95 % interval of it lies below 0."""
    detours: tuple[Detour, ...]
    forks: ClusteredShare | None
    """All continuations together; those from one state are no independent samples."""

    @property
    def verdict(self) -> str:
        """What it comes to, in a sentence or two."""
        said = "there is nothing to compare: the attempts are all of one kind"
        if self.difference is not None:
            said = "detours are costly" if self.costly else "nothing stands out, the difference may be chance"
            by, ends = points(self.difference.success), points_interval(self.difference.interval)
            said = f"{said}: success of attempts with a detour differs from that of the others by {by} points, {ends}"
        if self.forks is None:
            return said
        return f"{said}; from before a detour {percent(self.forks.value)} succeed, {percent_interval(self.forks.interval)}"

    def sections(self) -> Iterable[Section]:
        """Both kinds of attempts, the verdict, a row for each detour."""
        rows = [
            (name, kind.n, kind.successes, percent(kind.success), percent_interval(kind.interval))
            for name, kind in (("with a detour", self.with_detour), ("without", self.without))
        ]
        yield Section.of("", table(("attempts", "n", "successes", "success", "95 % interval"), rows), f"{self.verdict}.")
        places = [(one.task, one.reply[:12], one.step, one.since, one.success, *_cells(one.forks)) for one in self.detours]
        head = ("task", "reply", "step", "back to step", "success", "continuations", "successes", "95 % interval")
        yield Section.of("Where", table(head, places))


def _cells(forks: SuccessShare | None) -> tuple[int | str | None, ...]:
    return (None, None, None) if forks is None else (forks.n, forks.successes, percent_interval(forks.interval))


def weigh(detours: Sequence[Detour], without: Iterable[bool], forks: Mapping[str, Counts]) -> Detours:
    """What detours come to beside attempts ``without`` one (whether each succeeded). ``forks``: of the node before a detour."""
    kind, other = Counts.of(one.success for one in detours), Counts.of(without)
    difference = None
    if kind.n and other.n:
        interval = difference_of_proportions(kind.k, kind.n, other.k, other.n)
        difference = SuccessDifference(kind.rate - other.rate, interval)
    costly = difference is not None and difference.interval[1] < 0
    hits = [(i < counts.k, node) for node, counts in forks.items() for i in range(counts.n)]
    pooled = clustered_share([hit for hit, _ in hits], [node for _, node in hits])
    played = tuple(replace(one, forks=forks[one.before].share if one.before in forks else None) for one in detours)
    return Detours(kind.share, other.share, difference, costly, played, pooled)
