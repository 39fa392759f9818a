"""What `eval` and `audit` do and print; what they find is stored in the runs they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.waiting import wait_for
from ramify.methods.world_model import evaluation as measure
from ramify.methods.world_model.algorithm import RUBRIC
from ramify.methods.world_model.environment import simulated
from ramify.methods.world_model.judging import rubric_judge
from ramify.methods.world_model.predict import BASELINES, ModelPredictor, baseline
from ramify.methods.world_model.training import read_sources
from ramify.render.terminal import table
from ramify.rollout.components import find_environment
from ramify.trace.db import Run
from ramify.trace.sources import conclude, run_folder


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
) -> dict[str, Any]:
    """Everything ``eval`` prints. The baselines answer from ``known``; without it only ``copy`` can."""
    environment = simulated(world)
    trajectories = read_sources(data, form)[:limit]
    recorded = read_sources(known, form) if known else []
    names = BASELINES if recorded else ("copy",)
    found, results = measure.compared(
        environment, [baseline(name, recorded) for name in names], trajectories, modes, progress, count_failures
    )
    found["world"], found["warnings"] = world, []
    if environment.controls:
        found["warnings"].append(
            f"{world} has controls: what they change counts as wrong, unless the real environment did the same"
        )
    if judge != "none":
        chosen = rubric_judge(judge)
        if isinstance(environment.predictor, ModelPredictor) and environment.predictor.model.identity.name in chosen.name:
            found["warnings"].append("the judge is the world model itself: its scores are no evidence")
        found["rubric"] = wait_for(measure.scored(results[modes[0]], trajectories, chosen, count_failures))
    for source in data:
        if run_folder(source) is not None and (why := conclude(source, measure.EVAL, measure.eval_findings(found, world))):
            found["warnings"].append(why)
    return found


def evaluation_text(found: Mapping[str, Any]) -> str:
    """Tables of an evaluation."""
    arms: list[tuple[str, Any]] = [(name, found[name]) for name in measure.MODES if name in found]
    arms += [(f"baseline {name}", own) for name, own in found.get("baselines", {}).items()]
    rows = [
        [
            name,
            _percent(own["exact"]["value"]),
            _ends(own["exact"]["interval"]),
            own["exact"]["n"],
            own["failed"],
            _percent(own["macro over tools"]),
        ]
        for name, own in arms
    ]
    text = table(["", "exact", "95 % interval", "turns", "failed", "mean over tools"], rows)
    for name in (name for name in measure.MODES if name in found):
        text += f"\n{name}: answered by {_answered(found[name])}"
    if "better" in found:
        text += f"\n{_beside_baselines(found)}"
    tools = sorted({tool for _, own in arms for tool in own["by tool"]})
    if len(tools) > 1:
        parts = [[tool, *(_percent(own["by tool"].get(tool, {}).get("value")) for _, own in arms)] for tool in tools[:20]]
        text += "\n\n" + table(["tool", *(name for name, _ in arms)], parts)
    if "drift" in found:
        own = found["drift"]
        curve = own["curve"]
        rows = [[turn, _percent(f), _percent(c), n] for turn, f, c, n in curve[:20]]
        text += "\n\n" + table(["turn", "exact on true history", "exact on its own", "trajectories"], rows)
        verdict = "drift: errors feed on errors" if own["found"] else "no drift found"
        text += (
            f"\n{verdict}: closed loop is wrong on {own['gap']:+.1%} of the turns more than on true history (p {own['p']:.2g})"
        )
    if "rubric" in found:
        own = found["rubric"]
        scores = ", ".join(f"{name} {own[name]:.2f}" for name in RUBRIC if own[name] is not None)
        text += (
            f"\n\nrubric by {own['judge']}: {_number(own['of 100'])} of 100 ({scores or 'no single scores'}; {own['failed']} "
            "failed)"
        )
    return text


def _beside_baselines(found: Mapping[str, Any]) -> str:
    """Whether the world is better than looking answers up, one line: by the baseline against which that is least clear."""
    name, own = max(found["baselines"].items(), key=lambda item: (not item[1]["against"]["found"], item[1]["against"]["p"]))
    by = own["against"]
    verdict = "better than every baseline" if found["better"] else f"NOT shown to be better than the baseline {name}"
    counts = f"fewer wrong turns than {name} in {by['more wrong']} trajectories, more in {by['less wrong']} (p {by['p']:.2g})"
    return f"{verdict}: {counts}" + ("" if len(found["baselines"]) > 1 else "; --train gives the others")


def audit(folder: Path, env: str | None, real: Path | None, seed: int = 0, progress: Progress = SILENT) -> dict[str, Any]:
    """Everything ``audit`` prints; its findings are stored in the run.
    Raises UserError where both ways, or attempts, are missing."""
    found: dict[str, Any] = {"run": str(folder), "warnings": []}
    attempts: list[measure.ReplayedAttempt] = []
    with Run.open(folder) as run:
        found["noted"] = measure.noted(run)
        if env is not None:
            attempts = measure.replayed(run, find_environment(env), seed, progress)
            if not attempts:
                raise UserError(f"{folder} holds no attempt to play in {env}")
            found |= measure.audited(attempts)
            if found["unstable"]:
                found["warnings"].append(
                    f"{env} answers the same actions differently with other luck in {found['unstable']} of {found['attempts']} "
                    "attempts, so no "
                    "loophole is looked for: play the agent in it and give that run as --real"
                )
        if real is not None:
            with Run.open(real) as other:
                beside = measure.against_real(run, other)
            if not beside["tasks"]:
                raise UserError(f"{folder} and {real} have no task in common")
            found |= beside
    if why := conclude(folder, measure.AUDIT, measure.audit_findings(found, attempts)):
        found["warnings"].append(why)
    return found


def audit_text(found: Mapping[str, Any]) -> str:
    """Tables of an audit."""
    text = ""
    if "simulated success" in found:
        rows = [
            [
                name,
                _percent(found[f"{name} success"]["value"]),
                _ends(found[f"{name} success"]["interval"]),
                found[f"{name} success"]["n"],
            ]
            for name in ("simulated", "real")
            if found[f"{name} success"]
        ]
        text += table(["success", "", "95 % interval", "attempts"], rows)
        verdict = "success that is NOT real" if found["loophole"] else "no loophole found"
        text += f"\n{verdict} (p {found['p of a loophole']:.2g})"
    if "turns" in found:
        curve = found["true so far"]
        verdict = "drift" if found["drift"] else "no drift found"
        text += (
            f"\n{verdict}: {found['different turns']} of {found['turns']} observations are not the real ones (p "
            f"{found['p of drift']:.2g})"
        )
        rows = [[turn, _percent(share), n] for turn, share, n in curve[:20]]
        text += "\n\n" + table(["turn", "all observations true so far", "attempts"], rows)
    own = found["noted"]
    text += f"\n\nanswered by: {_answered(own)}"
    if own["invented"]:
        text += "\ninvented fields: " + ", ".join(f"{name} ({count})" for name, count in own["invented"].items())
    return text.strip()


def _answered(own: Mapping[str, Any]) -> str:
    by = ", ".join(f"{name} {count}" for name, count in own["answered by"].items()) or "nobody says"
    return by + (f"; {own['cut']} without the oldest turns, which did not fit the model's context" if own["cut"] else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _ends(ends: Any) -> str:
    return "-" if ends is None else f"{ends[0]:.1%} to {ends[1]:.1%}"
