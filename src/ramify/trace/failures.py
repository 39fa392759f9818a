"""Attempts that a failure ended (of the environment, a provider, another tool), and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramify.base.words import plural
from ramify.trace.aliases import FAILURES, message_of
from ramify.trace.node import AttemptRecord, Node

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
    """Every failed attempt of a run. In trees without records those that end at a failed node."""
    records = run.attempts()
    recorded = {record.tree for record in records}
    reasons = {record.leaf: record.failure for record in records if record.failure is not None}
    reasons |= {node.id: str(failure_of(node)) for node in run.failed() if node.tree not in recorded}
    return Failures(len({*run.ends(), *reasons}) if reasons else 0, reasons)


def failure_of(end: Node, record: AttemptRecord | None = None) -> str | None:
    """Why the attempt that ends at ``end`` failed; None where no failure ended it."""
    if record is not None and record.failure is not None:
        return record.failure
    if end.stop != "failed":
        return None
    about = [end.data, *(value for name in ("sample", "record", "response") if isinstance(value := end.data.get(name), Mapping))]
    for fields in about:
        for name in FAILURES:
            if why := message_of(fields.get(name)):
                return why
    return "a failure that says no more"
