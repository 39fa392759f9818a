"""Something that may flip, tried again and again until it is settled whether it succeeds often enough, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ramify.base.words import plural
from ramify.render.numbers import percent, percent_interval
from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval, wilson
from ramify.stats.rates import RateTest, Settled
from ramify.stats.repeats import OverTasks, all_of, flips

MOST_FAILED = 3
"""Runs in a row without an outcome after which nothing more is tried."""
SHOWN = 3
"""Reasons of failures that are shown, the most frequent."""


@dataclass
class Repeated:
    """Runs so far; with a ``test`` until it is settled, without one as many as somebody makes."""

    test: RateTest | None = None
    counts: Counts = field(default_factory=lambda: Counts(0, 0))
    reasons: Counter[str] = field(default_factory=Counter)
    """Why runs failed, and how often."""
    broken: str = ""
    """Why the last run had no outcome."""
    in_a_row: int = 0

    def add(self, success: bool | None, why: str = "") -> None:
        """One run more; None has no outcome and counts as neither."""
        self.counts += Counts.of([success])
        self.in_a_row = self.in_a_row + 1 if success is None else 0
        if success is None:
            self.broken = why
        elif not success:
            self.reasons[why] += 1

    @property
    def settled(self) -> Settled | None:
        """What the test says; None while another run can change it."""
        return None if self.test is None else self.test.settled(self.counts)

    @property
    def over(self) -> bool:
        """Whether nothing more is tried: it is settled, or too many runs in a row had no outcome."""
        return self.settled is not None or self.in_a_row >= MOST_FAILED

    @property
    def interval(self) -> Interval:
        """95 % interval of the rate: exact after the test has stopped, else Wilson's."""
        return wilson(self.counts.k, self.counts.n) if self.test is None else self.test.interval(self.counts)

    @property
    def measures(self) -> Mapping[str, OverTasks]:
        """``success``, pass^k and ``flip rate`` with their intervals, by name; empty without a run."""
        counts, ends = [self.counts], self.interval
        named = {"success" if k == 1 else f"pass^{k}": all_of(counts, k, ends) for k in (1, 2, 4, 8)}
        return {name: over for name, over in {**named, "flip rate": flips(counts, ends)}.items() if over is not None}

    @property
    def sentence(self) -> str:
        """How many succeeded, and what that shows."""
        counts, test = self.counts, self.test
        said = f"{counts.k} of {plural(counts.n, 'run')} succeeded"
        said += f" ({percent(counts.rate)}, 95 % interval {percent_interval(self.interval)})" if counts.n else ""
        said += f"; {plural(counts.missing, 'run')} without an outcome not counted" if counts.missing else ""
        if test is None:
            return f"{said}."
        if self.settled is None:
            return f"{said}; that settles nothing: {self.broken or 'there were too few'}."
        shows = "shows" if self.settled == "passed" else "does not show"
        usually = "" if shows == "shows" else f"; it would, {test.power:.0%} of the time, at a rate of {test.usual:.4g}"
        return f"{said}: that {shows} a rate of {test.at_least:.4g} or more ({test.confidence:.0%} confidence{usually})."

    @property
    def message(self) -> str:
        """The same with pass^k, the flip rate, and why runs failed, a line each."""
        told = [f"{name} {percent(over.value)} {percent_interval(over.interval)}" for name, over in self.measures.items()]
        why = [f"{count} x {reason}" for reason, count in self.reasons.most_common(SHOWN)]
        more = len(self.reasons) - SHOWN
        return "\n".join(
            [self.sentence, ", ".join(told[1:]), *why, *([f"and {plural(more, 'other reason')}"] if more > 0 else [])]
        )

    @property
    def properties(self) -> dict[str, str]:
        """As properties of a JUnit test case."""
        return properties_of(self.counts, self.measures)


def properties_of(counts: Counts, measures: Mapping[str, OverTasks]) -> dict[str, str]:
    """Counts and measures with the ends of their intervals as properties of a JUnit test case."""
    named = {"runs": str(counts.n), "successes": str(counts.k), "without outcome": str(counts.missing)}
    for name, over in measures.items():
        low, high = over.interval
        named |= {name: f"{over.value:.6g}", f"{name} low": f"{low:.6g}", f"{name} high": f"{high:.6g}"}
    return {f"ramify {name}": value for name, value in named.items()}
