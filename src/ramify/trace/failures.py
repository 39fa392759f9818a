"""Attempts that a failure ended (of the environment, a provider, another tool), and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramify.base.words import plural
from ramify.trace.aliases import FAILURES, message_of
from ramify.trace.node import Node, Score

if TYPE_CHECKING:
    from ramify.trace.db import Run


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed attempts of a run."""

    attempts: int
    """How many attempts there are, the failed ones included; 0 where none failed."""
    reasons: Mapping[str, str]
    """The reason by the node at which each failed attempt ends."""

    @property
    def all(self) -> bool:
        """Whether there are attempts and every one failed."""
        return 0 < self.attempts <= len(self.reasons)

    @property
    def counted(self) -> dict[str, int]:
        """How many attempts failed for each reason, the most frequent first."""
        return dict(Counter(self.reasons.values()).most_common())

    def sentence(self, most: int = 3) -> str:
        """How many failed and why, the ``most`` frequent reasons; "" where none did."""
        if not self.reasons:
            return ""
        lines = [f"{count} x {reason}" for reason, count in self.counted.items()]
        lines = [*lines[:most], *([f"and {plural(len(lines) - most, 'other reason')}"] if len(lines) > most else [])]
        if self.all:
            return f"{'the only attempt' if self.attempts == 1 else f'all {self.attempts} attempts'} failed: {'; '.join(lines)}"
        return f"{len(self.reasons)} of {self.attempts} attempts failed: {'; '.join(lines)}"


def failures(run: Run) -> Failures:
    """Every failed attempt of a run."""
    found = {score.node: why for score in run.unscored() if (why := reported_by(score)) is not None}
    for node in run.failed():
        if node.id not in found:
            found[node.id] = str(failure_of(node))
    return Failures(len({*run.ends(), *found}) if found else 0, found)


def failure_of(end: Node, score: Score | None = None) -> str | None:
    """Why the attempt that ends at ``end`` failed; None where no failure ended it."""
    reported = None if score is None else reported_by(score)
    if reported is not None or end.stop != "failed":
        return reported
    about = [end.data, *(value for name in ("sample", "record", "response") if isinstance(value := end.data.get(name), Mapping))]
    for record in about:
        for name in FAILURES:
            if why := message_of(record.get(name)):
                return why
    return "a failure that says no more"


def reported_by(score: Score) -> str | None:
    """The infrastructure failure that ended an attempt, from its score; None without one."""
    evidence = score.evidence if isinstance(score.evidence, Mapping) else {}
    why = evidence.get("failure")
    return None if why is None else str(why)
