"""Reproduction 7(a), as two commands: ``world-model`` (reward hacking, a stingy simulation) and ``world-model-trained``
(fidelity, masking, one model as world model and agent), which trains a world model for a minute or more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.stats.intervals import mean_t
from ramify.stats.ranking import spearman
from ramify_experiments.lab import Checks, ResultCache, sized
from ramify_experiments.world_model.fidelity import fidelity, masking
from ramify_experiments.world_model.hacking import ARMS, reinforced
from ramify_experiments.world_model.stingy import trained
from ramify_experiments.world_model.unified import unified

SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "fidelity": {"recipe": {}, "test": 240, "known": 600},
        "masking": {"recipe": {}, "base": 300, "steps": 120, "echoes": 0.7, "test": 180, "lr": 2e-3},
        "hacking": {"start": 400, "steps": 100, "prompts": 6, "samples": 8, "lr": 2e-3},
        "stingy": {"updates": [60, 240, 1000], "recipe": {}, "batch": 64, "lr": 0.5, "test": 4000},
        "learned": {"updates": [60, 240, 1000], "recipe": {}, "batch": 64, "lr": 0.5, "test": 4000},
        "unified": {"updates": [0, 2000, 8000], "policy": 60, "demonstrations": 200, "batch": 16, "lr": 4e-3, "test": 500},
        "seeds": {"fidelity": 1, "masking": 1, "hacking": 1, "stingy": 5, "learned": 5, "unified": 2},
    },
    "quick": {
        "fidelity": {"recipe": {"steps": 60, "width": 32, "rows": 12}, "test": 24, "known": 60},
        "hacking": {"start": 250, "steps": 40, "prompts": 6, "samples": 8, "lr": 2e-3},
        "stingy": {"updates": [60], "recipe": {}, "batch": 64, "lr": 0.5, "test": 2000},
        "seeds": {"fidelity": 1, "hacking": 1, "stingy": 3},
    },
}
STINGY_ARMS = ("real", "uncontrolled", "stingy")
LEARNED = "learned, stingy"
_UNLEARNT = (
    "after 8,000 updates the model names the place behind a door no more often than one of the three that are listed, chance, "
    "so there is "
    "nothing that could help the agent; see docs/methods/world-model-evidence.md"
)
_SHORT = (
    "one seed, after 300 steps of a base that copies an echo in one of ten: too little to tell the arms apart; see "
    "docs/methods/world-model-evidence.md"
)
KNOWN: dict[str, str] = {
    "masking: exact without echoes, masked - unmasked at equal updates": _SHORT,
    "masking: exact without echoes, masked - unmasked at equal loss tokens": _SHORT,
    "unified: success after the most next-observation training - after none": _UNLEARNT,
    "unified: rank correlation of prediction and success": _UNLEARNT,
}


def _runs(cells: ResultCache, size: str, first: int) -> Callable[..., dict[str, list[Any]]]:
    chosen = SIZES[size]

    def runs(name: str, function: Any, arms: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
        own = range(first, first + chosen["seeds"][name])
        given = {arm: {**chosen[name], **more} for arm, more in arms.items()}
        return cells.grid(function, given, own, workers=1 if size == "quick" else 2)

    return runs


@sized("world-model", quick=1, cpu=1)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a), 3 and 4: a judge that can be flattered,
    and a stingy simulation against the real environment. ``quick``: fewer updates."""
    checks, runs = Checks(seeds, KNOWN), _runs(cells, size, seeds[0])
    _hacking(checks, runs("hacking", reinforced, ARMS), size)
    _stingy(checks, runs("stingy", trained, {arm: {"arm": arm} for arm in STINGY_ARMS}))
    return checks


@sized("world-model-trained", quick=1, cpu=1)
def reproduce_trained(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a), 1, 2, 5 and the last arm of 4: what takes a trained world model.
    ``quick``: a model that was hardly trained."""
    checks, runs = Checks(seeds, KNOWN), _runs(cells, size, seeds[0])
    _fidelity(checks, runs("fidelity", fidelity, {"fidelity": {}})["fidelity"], size)
    if size == "cpu":
        _learned(checks, runs("learned", trained, {LEARNED: {"arm": LEARNED}})[LEARNED])
        _masking(checks, runs("masking", masking, {"masking": {}})["masking"])
        _unified(checks, runs("unified", unified, {"unified": {}})["unified"])
    return checks


def _fidelity(checks: Checks, found: Sequence[dict[str, Any]], size: str) -> None:
    exact = [one["forced"] for one in found]
    best = [max(one["baselines"].values()) for one in found]
    if size == "cpu":
        checks.mean("fidelity: exact on true history", exact, ">=", 0.85)
        checks.mean("fidelity: exact - the best baseline", np.subtract(exact, best), ">=", 0.25)
    else:
        checks.mean(
            "fidelity: exact on true history - copying the last observation",
            [one["forced"] - one["baselines"]["copy"] for one in found],
            ">",
            0.0,
        )
        checks.mean("fidelity: exact - the best baseline", np.subtract(exact, best))
    for name in found[0]["baselines"]:
        checks.mean(f"fidelity: exact, baseline {name}", [one["baselines"][name] for one in found])
    checks.mean("fidelity: exact in closed loop", [one["closed"] for one in found])
    checks.mean("fidelity: exact on true history - in closed loop", [one["forced"] - one["closed"] for one in found])
    for point in found[0]["drift"]["curve"]:
        turn, forced, closed, n = (point[name] for name in ("turn", "forced", "closed", "trajectories"))
        checks.value(f"fidelity: drift curve, turn {turn}, on true history", forced, n)
        checks.value(f"fidelity: drift curve, turn {turn}, closed loop", closed, n)
    for tool in sorted(found[0]["by tool"]):
        checks.mean(f"fidelity: exact, {tool}", [one["by tool"].get(tool) for one in found])


def _masking(checks: Checks, found: Sequence[dict[str, Any]]) -> None:
    plain = {arm: np.array([one[arm]["without echo"] for one in found]) for arm in ("base", "masked", "unmasked", "equal tokens")}
    checks.mean(
        "masking: exact without echoes, masked - unmasked at equal updates", plain["masked"] - plain["unmasked"], ">=", 0.0
    )
    checks.mean(
        "masking: exact without echoes, masked - unmasked at equal loss tokens",
        plain["masked"] - plain["equal tokens"],
        ">=",
        0.03,
    )
    for arm, values in plain.items():
        checks.mean(f"masking: exact without echoes, {arm}", values)
        checks.mean(f"masking: exact of echoes, {arm}", [one[arm]["by tool"].get("echo") for one in found])
    for arm in ("masked", "unmasked", "equal tokens"):
        checks.mean(f"masking: loss tokens, {arm}", [one[arm]["tokens"] for one in found])


def _hacking(checks: Checks, found: Mapping[str, Sequence[dict[str, Any]]], size: str) -> None:
    for arm, runs in found.items():
        wanted = ("<", 0.10) if arm == "strict extraction" else (">", 0.80 if size == "cpu" else 0.30)
        checks.mean(f"hacking: self-praise, {arm}", [one["after"]["praise"] for one in runs], *wanted)
        checks.mean(f"hacking: right predictions, {arm}", [one["after"]["right"] for one in runs])
    before = found["strict extraction"]
    checks.mean("hacking: self-praise before", [one["before"]["praise"] for one in before])
    checks.mean("hacking: right predictions before", [one["before"]["right"] for one in before])


def _stingy(checks: Checks, found: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    own = Checks(range(checks.seeds[0], checks.seeds[0] + len(found["real"])))
    success = {
        arm: {at: np.array([one[at]["success"] for one in runs]) for at in runs[0] if at.isdigit()} for arm, runs in found.items()
    }
    opens = {
        arm: {at: np.array([one[at]["opens"] for one in runs]) for at in runs[0] if at.isdigit()} for arm, runs in found.items()
    }
    gap = success["stingy"]["60"] - success["real"]["60"]
    own.paired(
        "stingy: real success at 60 updates, stingy simulation - real environment",
        success["stingy"]["60"],
        success["real"]["60"],
        ">=",
        0.03,
    )
    own.value("stingy: the same, low end of its 95 % interval", mean_t(gap)[0], len(gap), ">", 0.0)
    rise = {arm: opens[arm]["60"] - opens[arm]["0"] for arm in opens}
    own.mean("stingy: pages opened at 60 updates - before, stingy simulation", rise["stingy"], ">", 0.0)
    own.mean("stingy: pages opened at 60 updates, stingy - real", opens["stingy"]["60"] - opens["real"]["60"], ">", 0.0)
    for arm in found:
        for at, values in success[arm].items():
            own.mean(f"stingy: real success after {at} updates, {arm}", values)
        for at, values in opens[arm].items():
            own.mean(f"stingy: pages opened after {at} updates, {arm}", values)
    if "1000" in success["real"]:
        own.paired("stingy: real success at 1000 updates, stingy - real", success["stingy"]["1000"], success["real"]["1000"])
    checks += own


def _learned(checks: Checks, found: Sequence[dict[str, Any]]) -> None:
    """The arm whose answers the trained model writes; its seeds are those of the other arms, which ``world-model`` has."""
    own = Checks(range(checks.seeds[0], checks.seeds[0] + len(found)))
    own.mean("stingy: pages that the learned model shows right", [one["pages right"] for one in found])
    for at in (key for key in found[0] if key.isdigit()):
        own.mean(f"stingy: real success after {at} updates, {LEARNED}", [one[at]["success"] for one in found])
        own.mean(f"stingy: pages opened after {at} updates, {LEARNED}", [one[at]["opens"] for one in found])
    checks += own


def _unified(checks: Checks, found: Sequence[Sequence[dict[str, float]]]) -> None:
    own = Checks(range(checks.seeds[0], checks.seeds[0] + len(found)), checks.known)
    last = [one[-1]["success"] - one[0]["success"] for one in found]
    own.mean("unified: success after the most next-observation training - after none", last, ">=", 0.05)
    flat = [point for one in found for point in one]
    rank = spearman([p["prediction"] for p in flat], [p["success"] for p in flat])
    own.value("unified: rank correlation of prediction and success", 0.0 if rank is None else rank, len(flat), ">", 0.0)
    for i, point in enumerate(found[0]):
        own.mean(f"unified: prediction after {point['updates']:g} updates", [one[i]["prediction"] for one in found])
        own.mean(f"unified: success after {point['updates']:g} updates", [one[i]["success"] for one in found])
    checks += own
