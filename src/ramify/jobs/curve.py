"""The curve of success over tokens of each arm of a run: held-out before, independent attempts while training, held-out after."""

from __future__ import annotations

from collections.abc import Sequence

from ramify.jobs.results import CurvePoint, Evaluation, UpdateReport
from ramify.trace.db import Run

STRETCHES = 6
"""Stretches of training whose updates are put together."""


def curves(run: Run) -> dict[str, list[CurvePoint]]:
    """Arm -> its curve, the run's own arm first. The first point and the last are the held-out evaluations, where they are there.

    Between them are the attempts that were played from start to end at tasks where nothing was split, in :data:`STRETCHES`
    stretches; where an arm has none in a stretch, it has no point."""
    main = str(run.config.get("arm", ""))
    updates: dict[str, list[UpdateReport]] = {main: []}
    for update in run.memo("update", UpdateReport).values():
        updates.setdefault(update.arm, []).append(update)
    evals = run.memo("eval", Evaluation)
    by_arm = {}
    for arm, rows in updates.items():
        points = [_held_out(evals["before"], 0.0)] if "before" in evals else []
        points += _sampled(rows)
        after = evals.get("after" if arm == main else f"after-{arm}")
        if after is not None and rows:
            points.append(_held_out(after, float(rows[-1].tokens)))
        by_arm[arm] = points
    return by_arm


def _held_out(evaluation: Evaluation, tokens: float) -> CurvePoint:
    return CurvePoint(tokens, round(evaluation.success * evaluation.n), evaluation.n)


def _sampled(updates: Sequence[UpdateReport]) -> list[CurvePoint]:
    points = []
    ends = [0.0, *(float(update.tokens) for update in updates)]
    for stretch in range(STRETCHES):
        first, last = (number * len(updates) // STRETCHES for number in (stretch, stretch + 1))
        rows = updates[first:last]
        if n := sum(update.independent[1] for update in rows):
            tokens = (ends[first] + ends[last]) / 2
            points.append(CurvePoint(tokens, sum(update.independent[0] for update in rows), n))
    return points
