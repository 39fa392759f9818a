"""What `eval` and `audit` do; what they find is stored in the runs they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.waiting import wait_for
from ramify.methods.world_model import evaluation as measure
from ramify.methods.world_model.environment import simulated
from ramify.methods.world_model.judging import rubric_judge
from ramify.methods.world_model.predict import BASELINES, ModelPredictor, baseline
from ramify.methods.world_model.results import WorldAudit, WorldEvaluation
from ramify.methods.world_model.training import read_sources
from ramify.rollout.components import find_environment
from ramify.trace.db import Run
from ramify.trace.sources import conclude


def evaluation(
    world: str,
    data: Sequence[Path],
    known: Sequence[Path],
    modes: Sequence[Any],
    judge: str,
    count_failures: bool,
    limit: int,
    progress: Progress = SILENT,
    form: str | None = None,
) -> WorldEvaluation:
    """Everything ``eval`` finds. The baselines answer from ``known``; without it only ``copy`` can."""
    environment = simulated(world)
    trajectories = read_sources(data, form)[:limit]
    recorded = read_sources(known, form) if known else []
    names = BASELINES if recorded else ("copy",)
    found, results = measure.compared(
        environment, [baseline(name, recorded) for name in names], trajectories, modes, progress, count_failures
    )
    caveats = []
    if environment.rules.controls:
        caveats.append(f"{world} has controls: what they change counts as wrong, unless the real environment did the same")
    rubric = None
    if judge != "none":
        chosen = rubric_judge(judge)
        if isinstance(environment.predictor, ModelPredictor) and environment.predictor.model.identity.name in chosen.name:
            caveats.append("the judge is the world model itself: its scores are no evidence")
        rubric = wait_for(measure.scored(results[modes[0]], trajectories, chosen, count_failures))
    found = replace(found, world=world, rubric=rubric)
    lost = [why for source in data if (why := conclude(source, measure.EVAL, measure.eval_findings(found)))]
    return replace(found, caveats=(*caveats, *lost))


def audit(
    folder: Path, env: str | None, real: Path | None, seed: int = 0, strict: bool = False, progress: Progress = SILENT
) -> WorldAudit:
    """Everything ``audit`` finds; its findings are stored in the run.
    Raises UserError where both ways, or attempts, are missing."""
    attempts: list[measure.ReplayedAttempt] = []
    caveats = []
    with Run.open(folder) as run:
        found = WorldAudit(str(folder), measure.noted(run), strict=strict)
        if env is not None:
            attempts = measure.replayed(run, find_environment(env), seed, progress)
            if not attempts:
                raise UserError(f"{folder} holds no attempt to play in {env}")
            replay = measure.audited(attempts)
            found = replace(found, replay=replay, loophole=replay.loophole, drift=replay.drift)
            if replay.unstable:
                caveats.append(
                    f"{env} answers the same actions differently with other luck in {replay.unstable} of {replay.attempts} "
                    "attempts, so no loophole is looked for: play the agent in it and give that run as --real"
                )
        if real is not None:
            with Run.open(real) as other:
                beside = measure.against_real(run, other)
            if not beside.tasks:
                raise UserError(f"{folder} and {real} have no task in common")
            found = replace(found, beside=beside, loophole=beside.loophole)
    conclude(folder, measure.AUDIT, measure.audit_findings(found, attempts))
    return replace(found, caveats=tuple(caveats))
