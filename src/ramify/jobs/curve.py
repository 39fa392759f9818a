"""The curve of success over tokens of each arm of a run: held-out before, independent attempts while training, held-out after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ramify.stats.intervals import Interval, wilson
from ramify.trace.db import Run

STRETCHES = 6
"""Stretches of training whose updates are put together."""


class CurvePoint(NamedTuple):
    """Success at some point of a training."""

    tokens: float
    """Generated for training until then."""
    k: int
    """Successes."""
    n: int

    @property
    def rate(self) -> float:
        """Their share."""
        return self.k / self.n

    @property
    def interval(self) -> Interval:
        """95 % (Wilson)."""
        return wilson(self.k, self.n)


def curves(run: Run) -> dict[str, list[CurvePoint]]:
    """Arm -> its curve, the run's own arm first. The first point and the last are the held-out evaluations, where they are there.

    Between them are the attempts that were played from start to end at tasks where nothing was split, in :data:`STRETCHES`
    stretches; where an arm has none in a stretch, it has no point."""
    own = str(run.config.get("arm", ""))
    updates: dict[str, list[Mapping[str, Any]]] = {own: []}
    for entry in run.journal("update"):
        if isinstance(entry.payload, Mapping) and {"tokens", "arm"} <= entry.payload.keys():
            updates.setdefault(str(entry.payload["arm"]), []).append(entry.payload)
    evals = {entry.key: entry.payload for entry in run.journal("eval")}
    found = {}
    for arm, rows in updates.items():
        points = [_held_out(evals["before"], 0.0)] if "before" in evals else []
        points += _sampled(rows)
        after = evals.get("after" if arm == own else f"after-{arm}")
        if after is not None and rows:
            points.append(_held_out(after, float(rows[-1]["tokens"])))
        found[arm] = points
    return found


def _held_out(evaluation: Mapping[str, Any], tokens: float) -> CurvePoint:
    return CurvePoint(tokens, round(evaluation["success"] * evaluation["n"]), int(evaluation["n"]))


def _sampled(updates: Sequence[Mapping[str, Any]]) -> list[CurvePoint]:
    points = []
    ends = [0.0, *(float(one["tokens"]) for one in updates)]
    for stretch in range(STRETCHES):
        first, last = (number * len(updates) // STRETCHES for number in (stretch, stretch + 1))
        rows = updates[first:last]
        counts = [one["independent"] for one in rows]
        if n := sum(int(count[1]) for count in counts):
            tokens = (ends[first] + ends[last]) / 2
            points.append(CurvePoint(tokens, sum(int(count[0]) for count in counts), n))
    return points
