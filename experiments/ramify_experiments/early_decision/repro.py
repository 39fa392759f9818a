"""Reproduction 7(a): organisms whose thinking is known, measured as if it were not.
The paper has no model known to deliberate; here is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify_experiments.early_decision.measure import POSITIONS, SHARES, hybrid_study, ideal, study
from ramify_experiments.lab import Checks, ResultCache, columns, sized

Cell = dict[str, Any]
MIDDLE = slice(2, 9)
"""20 to 80 % among the eleven positions of a trace."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds; the defaults are the specification's."""

    first: float = 0.85
    """Locked: least AUROC at the first token."""
    valley: float = 3.0
    """Locked: least ratio of J at either end to its mean from 20 to 80 %."""
    closed: float = 0.10
    """Locked: most closed variance at 20 % ..."""
    fall: float = 0.5
    """... and its most ratio to that without thinking."""
    flips: float = 0.12
    """Locked: most open flips at 20 %."""
    play: float = 0.80
    """Locked: least share of performative cuts."""
    open_early: float = 0.70
    """Deliberative: least open variance at 20 % ..."""
    open_late: float = 0.35
    """... and at 80 %."""
    closed_late: float = 0.25
    """Deliberative: most closed variance from 40 % on."""
    meant: float = 0.45
    """Deliberative: most performative cuts."""
    apart: float = 0.35
    """Least difference of the two."""
    null: float = 0.0
    """How far a control may lie above the 95th percentile of its shuffled labels."""
    even: float = 0.8
    """Locked, even cues: least open variance with nothing kept ..."""
    even_fall: float = 0.7
    """... and the most of it that is left at 20 %."""


SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "recipe": {},
        "study": {"prompts": 400, "ambiguous": 100, "opened": 80, "samples": 6, "shuffles": 199},
        "limits": Thresholds(),
    },
    "quick": {
        "recipe": {
            "steps": 350,
            "rows": 32,
            "examples": 6000,
            "shortest": 4,
            "longest": 8,
            "width": 32,
            "lr": 1e-2,
            "cut": 0.5,
            "answer_weight": 10.0,
        },
        "study": {"prompts": 160, "ambiguous": 30, "opened": 30, "samples": 4, "shuffles": 199},
        "limits": Thresholds(0.75, 1.5, 0.4, 1.0, 0.3, 0.4, 0.5, 0.2, 0.5, 0.6, 0.05, 0.15, 0.6, 1.1),
    },
}
HYBRID_SEEDS = (0, 1, 2)
KNOWN_MISSES = {
    "deliberative: performative share of cuts": "an exact deliberator has 0.447 itself: neutral chunks belong to the segment "
    "before, so its "
    "cuts compare ties with ties (docs/methods/early-decision.md)"
}


@sized("early-decision", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a). ``quick``: smaller organisms with shorter traces, looser thresholds, no hybrid."""
    chosen, checks = SIZES[size], Checks(seeds, KNOWN_MISSES)
    arms = {kind: {"recipe": {**chosen["recipe"], "kind": kind}, **chosen["study"]} for kind in ("locked", "deliberative")}
    # a process costs the quick size more than it saves
    found = cells.grid(study, arms, seeds, workers=1 if size == "quick" else 2)
    _ambiguous(checks, found, chosen["limits"])
    _judged(checks, found["locked"], found["deliberative"], chosen["limits"])
    for kind, runs in found.items():
        _unchecked(checks, kind, runs)
    checks[:] = [check for check in checks if check.n]
    if size == "quick":
        return checks
    exact, one = cells.get("ideal", ideal, traces=40_000), Checks((0,))
    one.share("an exact deliberator: performative share of cuts", round(exact["performative"] * exact["cuts"]), exact["cuts"])
    checks += one
    checks += _hybrid(cells)
    return checks


def _of(found: Sequence[Cell], get: Callable[[Cell], float]) -> list[float]:
    return [get(cell) for cell in found]


def _value(share: Cell | None) -> float:
    """Of a share of counts; not a number where there was nothing to count."""
    return math.nan if share is None else float(share["value"])


def _variance(where: str, mode: str, share: int) -> Callable[[Cell], float]:
    return lambda cell: float(cell[where][mode][str(share)]["variance"])


def _ambiguous(checks: Checks, done: Mapping[str, Sequence[Cell]], limits: Thresholds) -> None:
    """Where deliberation should matter most comes first: prompts whose cues balance, and nearly do."""
    for kind, found in done.items():
        for score, where in ((0, "even"), (1, "near")):
            for what in ("first token", "20 %"):
                values = [cell["even"][f"{what}, |s| = {score}"] for cell in found]
                checks.mean(f"{kind}, |s| = {score}: AUROC at {what}", values)
            for mode in ("closed", "open"):
                for share in SHARES:
                    checks.mean(f"{kind}, |s| = {score}: {mode} variance at {share} %", _of(found, _variance(where, mode, share)))
    start, early = (np.array(_of(done["locked"], _variance("even", "open", share))) for share in (0, 20))
    checks.mean("locked, |s| = 0: open variance with nothing kept, wanted near 1", start, ">=", limits.even)
    checks.mean("locked, |s| = 0: open variance at 20 % / with nothing kept", early / start, "<=", limits.even_fall)


def _judged(checks: Checks, locked: Sequence[Cell], deliberative: Sequence[Cell], limits: Thresholds) -> None:
    """The thresholds of section 7(a)."""

    def over_null(cell: Cell, value: str, null: str) -> float:
        return float(cell["decoded"][value] - cell["decoded"][null])

    def valley(end: int) -> list[float]:
        return [float(cell["decoded"]["j"][end] / np.mean(cell["decoded"]["j"][MIDDLE])) for cell in locked]

    def variance(found: Sequence[Cell], mode: str, share: int) -> np.ndarray:
        return np.array(_of(found, _variance("continued", mode, share)))

    play = [np.array(_of(found, lambda cell: _value(cell["oscillations"]["performative"]))) for found in (locked, deliberative)]
    fall = variance(locked, "closed", 20) / variance(locked, "closed", 0)
    checks.mean("locked: AUROC at the first token", [cell["decoded"]["first token"] for cell in locked], ">=", limits.first)
    text = [over_null(cell, "text", "text null") for cell in locked]
    checks.mean("locked: text of the first token, AUROC - 95th percentile of shuffled labels", text, "<=", limits.null)
    checks.mean("locked: J at the start / mean from 20 to 80 %", valley(0), ">=", limits.valley)
    checks.mean("locked: J at the end / mean from 20 to 80 %", valley(-1), ">=", limits.valley)
    checks.mean("locked: closed variance at 20 %, judged", variance(locked, "closed", 20), "<=", limits.closed)
    checks.mean("locked: closed variance at 20 % / without thinking", fall, "<=", limits.fall)
    flips = [cell["continued"]["open"]["20"]["flip"] for cell in locked]
    checks.mean("locked: open flip rate at 20 %, judged", flips, "<=", limits.flips)
    checks.mean("locked: performative share of cuts", play[0], ">=", limits.play)
    first = [over_null(cell, "first token", "null") for cell in deliberative]
    checks.mean("deliberative: AUROC at the first token - 95th percentile of shuffled labels", first, "<=", limits.null)
    for share, least in ((20, limits.open_early), (80, limits.open_late)):
        checks.mean(f"deliberative: open variance at {share} %, judged", variance(deliberative, "open", share), ">=", least)
    for share in (40, 60, 80):
        late = variance(deliberative, "closed", share)
        checks.mean(f"deliberative: closed variance at {share} %, judged", late, "<=", limits.closed_late)
    checks.mean("deliberative: performative share of cuts", play[1], "<=", limits.meant)
    checks.mean("performative share of cuts, locked - deliberative", play[0] - play[1], ">=", limits.apart)


def _unchecked(checks: Checks, kind: str, found: Sequence[Cell]) -> None:
    """Everything else that was measured, without a threshold."""
    decoded, continued, cuts = (columns([cell[part] for cell in found]) for part in ("decoded", "continued", "oscillations"))
    for name, key in (
        ("AUROC at state A (prompt only)", "state A"),
        ("balanced accuracy at the first token", "balanced"),
        ("AUROC at the first token, 95th percentile of shuffled labels", "null"),
        ("AUROC of the first token's text", "text"),
        ("AUROC of the prompt's words", "prompt"),
        ("depth of the valley of J", "depth"),
    ):
        checks.mean(f"{kind}: {name}", decoded[key])
    for p in range(POSITIONS):
        checks.mean(f"{kind}: AUROC at {10 * p} % of the thinking", [along[p] for along in decoded["along"]])
        checks.mean(f"{kind}: J at {10 * p} % of the thinking", [j[p] for j in decoded["j"]])
    for share in SHARES:
        for mode in ("closed", "open"):
            checks.mean(f"{kind}: {mode} variance at {share} %", _of(found, _variance("continued", mode, share)))
        checks.mean(f"{kind}: open flip rate at {share} %", [one[str(share)]["flip"] for one in continued["open"]])
    for name, key in (("rollouts with an oscillation", "with_any"), ("cuts locked before", "locked")):
        checks.mean(f"{kind}: {name}", [_value(one) for one in cuts[key]])
    checks.mean(f"{kind}: cuts", cuts["cuts"])
    for name, key in (("shown equivalent", "equivalent"), ("shown to differ", "different"), ("undecided", "undecided")):
        values = [one[key] / max(1, n) for one, n in zip(cuts["equality"], cuts["cuts"], strict=True)]
        checks.mean(f"{kind}: cuts {name}, margin 10 points", values)
    checks.mean(
        f"{kind}: prompts whose majority thinking does not move", [_value(one["unchanged"]) for one in continued["thinking"]]
    )
    checks.mean(f"{kind}: traces without an answer", columns(found)["lost"])


def _hybrid(cells: ResultCache) -> Checks:
    """One prompt in five needs its thinking: the whole's curve must be the mixture of its slices'."""
    arm = {"recipe": {"kind": "hybrid"}, "prompts": 400, "opened": 120, "samples": 6}
    checks, gaps = Checks(HYBRID_SEEDS), []
    done = columns(cells.grid(hybrid_study, {"hybrid": arm}, HYBRID_SEEDS)["hybrid"])
    weights = {"mixed": 1.0, "cues": -0.8, "bits": -0.2}
    for mode in ("closed", "open"):
        for share in SHARES:
            found = {name: columns([run[mode][str(share)] for run in done[name]]) for name in weights}
            for name, points in found.items():
                checks.mean(f"hybrid, {name}: {mode} variance at {share} %", points["variance"])
            gap = sum(w * sum(found[name]["variance"]) for name, w in weights.items())
            error = math.sqrt(sum((w * e) ** 2 for name, w in weights.items() for e in found[name]["error"]))
            gaps.append(abs(gap) / error)
    checks.value(
        "hybrid: largest distance of its curve from the mixture of its slices, in standard errors",
        max(gaps),
        len(gaps),
        "<=",
        3.0,
    )
    return checks
