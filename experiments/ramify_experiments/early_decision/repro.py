"""Reproduction 7(a): organisms whose thinking is known, measured as if it were not. The paper has no model known to deliberate; here is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.stats.checks import Check
from ramify.stats.intervals import wilson
from ramify_experiments.early_decision.measure import POSITIONS, SHARES, hybrid_study, ideal, study
from ramify_experiments.lab import Cells, sized

Cell = dict[str, Any]
MIDDLE = slice(2, 9)
"""20 to 80 % among the eleven positions of a trace."""


@dataclass(frozen=True, slots=True)
class Limits:
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
        "seeds": (0, 1, 2, 3, 4),
        "recipe": {},
        "study": {"prompts": 400, "ambiguous": 100, "opened": 80, "draws": 6, "shuffles": 199},
        "limits": Limits(),
    },
    "quick": {
        "seeds": (0,),
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
        "study": {"prompts": 160, "ambiguous": 30, "opened": 30, "draws": 4, "shuffles": 199},
        "limits": Limits(0.75, 1.5, 0.4, 1.0, 0.3, 0.4, 0.5, 0.2, 0.5, 0.6, 0.05, 0.15, 0.6, 1.1),
    },
}
HYBRID_SEEDS = (0, 1, 2)
KNOWN_MISSES = {
    "deliberative: performative share of cuts": "an exact deliberator has 0.447 itself: neutral chunks belong to the segment before, so its "
    "cuts compare ties with ties (docs/methods/early-decision.md)"
}


@sized("early-decision")
def reproduce(size: str, cells: Cells, first: int = 0) -> list[Check]:
    """Section 7(a). ``cpu``: 5 seeds; ``quick``: one seed, smaller organisms with shorter traces, looser thresholds, no hybrid."""
    chosen, seeds = SIZES[size], tuple(first + seed for seed in SIZES[size]["seeds"])
    calls = {
        f"{kind} {seed}": {"recipe": {**chosen["recipe"], "kind": kind, "seed": seed}, **chosen["study"]}
        for seed in seeds
        for kind in ("locked", "deliberative")
    }
    done = cells.map(study, calls, workers=1 if size == "quick" else 2)  # a process costs the quick size more than it saves
    locked, deliberative = ([done[f"{kind} {seed}"] for seed in seeds] for kind in ("locked", "deliberative"))
    checks = _ambiguous(locked, deliberative, seeds, chosen["limits"]) + _judged(locked, deliberative, seeds, chosen["limits"])
    checks += [
        check for kind, found in (("locked", locked), ("deliberative", deliberative)) for check in _told(kind, found, seeds)
    ]
    checks = [check for check in checks if check.n]
    if size == "quick":
        return checks
    found = cells.get("ideal", ideal, traces=40_000)
    name = "an exact deliberator: performative share of cuts"
    checks.append(
        Check(
            name,
            found["performative"],
            wilson(round(found["performative"] * found["cuts"]), found["cuts"]),
            found["cuts"],
            (0,),
            "report",
        )
    )
    return checks + _hybrid(cells, HYBRID_SEEDS)


def _mean(
    name: str, values: Sequence[float | None], seeds: Sequence[int], op: str = "report", threshold: float | None = None
) -> Check:
    return Check.mean(name, values, seeds, op, threshold, KNOWN_MISSES.get(name, ""))


def _of(found: Sequence[Cell], get: Callable[[Cell], float]) -> list[float]:
    return [get(cell) for cell in found]


def _variance(where: str, mode: str, share: int) -> Callable[[Cell], float]:
    return lambda cell: float(cell[where][mode][str(share)]["variance"])


def _ambiguous(locked: Sequence[Cell], deliberative: Sequence[Cell], seeds: Sequence[int], limits: Limits) -> list[Check]:
    """Where deliberation should matter most comes first: prompts whose cues balance, and nearly do."""
    checks = []
    for kind, found in (("locked", locked), ("deliberative", deliberative)):
        for score, where in ((0, "even"), (1, "near")):
            for what in ("first token", "20 %"):
                values = [cell["even"][f"{what}, |s| = {score}"] for cell in found]
                checks.append(_mean(f"{kind}, |s| = {score}: AUROC at {what}", values, seeds))
            for mode in ("closed", "open"):
                for share in SHARES:
                    values = _of(found, _variance(where, mode, share))
                    checks.append(_mean(f"{kind}, |s| = {score}: {mode} variance at {share} %", values, seeds))
    start, early = (np.array(_of(locked, _variance("even", "open", share))) for share in (0, 20))
    return [
        *checks,
        _mean("locked, |s| = 0: open variance with nothing kept, wanted near 1", start.tolist(), seeds, ">=", limits.even),
        _mean(
            "locked, |s| = 0: open variance at 20 % / with nothing kept", (early / start).tolist(), seeds, "<=", limits.even_fall
        ),
    ]


def _judged(locked: Sequence[Cell], deliberative: Sequence[Cell], seeds: Sequence[int], limits: Limits) -> list[Check]:
    """The thresholds of section 7(a)."""

    def over_null(cell: Cell, value: str, null: str) -> float:
        return float(cell["decoded"][value] - cell["decoded"][null])

    def valley(cell: Cell, end: int) -> float:
        j = cell["decoded"]["j"]
        return float(j[end] / np.mean(j[MIDDLE]))

    closed = {share: _variance("continued", "closed", share) for share in SHARES}
    opened = {share: _variance("continued", "open", share) for share in SHARES}

    def flips(cell: Cell) -> float:
        return float(cell["continued"]["open"]["20"]["flip"])

    def play(cell: Cell) -> float:
        return float(cell["oscillations"]["performative"])

    wanted: list[tuple[str, Sequence[Cell], Callable[[Cell], float], str, float]] = [
        ("locked: AUROC at the first token", locked, lambda c: float(c["decoded"]["first token"]), ">=", limits.first),
        ("locked: text of the first token, AUROC - 95th percentile of shuffled labels", locked, lambda c: over_null(c, "text", "text null"), "<=", limits.null),
        ("locked: J at the start / mean from 20 to 80 %", locked, lambda c: valley(c, 0), ">=", limits.valley),
        ("locked: J at the end / mean from 20 to 80 %", locked, lambda c: valley(c, -1), ">=", limits.valley),
        ("locked: closed variance at 20 %, judged", locked, closed[20], "<=", limits.closed),
        ("locked: closed variance at 20 % / without thinking", locked, lambda c: closed[20](c) / closed[0](c), "<=", limits.fall),
        ("locked: open flip rate at 20 %, judged", locked, flips, "<=", limits.flips),
        ("locked: performative share of cuts", locked, play, ">=", limits.play),
        ("deliberative: AUROC at the first token - 95th percentile of shuffled labels", deliberative, lambda c: over_null(c, "first token", "null"), "<=", limits.null),
        ("deliberative: open variance at 20 %, judged", deliberative, opened[20], ">=", limits.open_early),
        ("deliberative: open variance at 80 %, judged", deliberative, opened[80], ">=", limits.open_late),
        *((f"deliberative: closed variance at {share} %, judged", deliberative, closed[share], "<=", limits.closed_late) for share in (40, 60, 80)),
        ("deliberative: performative share of cuts", deliberative, play, "<=", limits.meant),
    ]  # fmt: skip
    checks = [_mean(name, _of(found, get), seeds, op, threshold) for name, found, get, op, threshold in wanted]
    apart = np.subtract(_of(locked, play), _of(deliberative, play)).tolist()
    return [*checks, _mean("performative share of cuts, locked - deliberative", apart, seeds, ">=", limits.apart)]


def _told(kind: str, found: Sequence[Cell], seeds: Sequence[int]) -> list[Check]:
    """Everything else that was measured, without a threshold."""
    reports: dict[str, Callable[[Cell], Any]] = {
        name: (lambda cell, key=key: cell["decoded"][key])  # type: ignore[misc]
        for name, key in (
            ("AUROC at state A (prompt only)", "state A"),
            ("balanced accuracy at the first token", "balanced"),
            ("AUROC at the first token, 95th percentile of shuffled labels", "null"),
            ("AUROC of the first token's text", "text"),
            ("AUROC of the prompt's words", "prompt"),
            ("depth of the valley of J", "depth"),
        )
    }
    for p in range(POSITIONS):
        reports[f"AUROC at {10 * p} % of the thinking"] = lambda cell, p=p: cell["decoded"]["along"][p]  # type: ignore[misc]
        reports[f"J at {10 * p} % of the thinking"] = lambda cell, p=p: cell["decoded"]["j"][p]  # type: ignore[misc]
    for share in SHARES:
        for mode in ("closed", "open"):
            reports[f"{mode} variance at {share} %"] = _variance("continued", mode, share)
        reports[f"open flip rate at {share} %"] = lambda cell, s=share: cell["continued"]["open"][str(s)]["flip"]  # type: ignore[misc]
    for name, key in (("rollouts with an oscillation", "with_any"), ("cuts locked before", "locked"), ("cuts", "cuts")):
        reports[name] = lambda cell, key=key: cell["oscillations"][key]  # type: ignore[misc]
    for name, key in (("shown equivalent", "equivalent"), ("shown to differ", "different"), ("undecided", "undecided")):
        reports[f"cuts {name}, margin 10 points"] = lambda cell, key=key: (  # type: ignore[misc]
            cell["oscillations"]["equality"][key] / max(1, cell["oscillations"]["cuts"])
        )
    reports["prompts whose majority thinking does not move"] = lambda cell: cell["continued"]["thinking"]["unchanged"]
    reports["traces without an answer"] = lambda cell: cell["lost"]
    return [_mean(f"{kind}: {name}", [get(cell) for cell in found], seeds) for name, get in reports.items()]


def _hybrid(cells: Cells, seeds: Sequence[int]) -> list[Check]:
    """One prompt in five needs its thinking: the whole's curve must be the mixture of its slices'."""
    calls = {f"hybrid {s}": {"recipe": {"kind": "hybrid", "seed": s}, "prompts": 400, "opened": 120, "draws": 6} for s in seeds}
    done = list(cells.map(hybrid_study, calls).values())
    checks, gaps = [], []
    weights = {"mixed": 1.0, "cues": -0.8, "bits": -0.2}
    for mode in ("closed", "open"):
        for share in SHARES:
            found = {name: [cell[name][mode][str(share)] for cell in done] for name in weights}
            for name, points in found.items():
                checks.append(_mean(f"hybrid, {name}: {mode} variance at {share} %", [f["variance"] for f in points], seeds))
            gap = sum(w * f["variance"] for name, w in weights.items() for f in found[name])
            error = math.sqrt(sum((w * f["error"]) ** 2 for name, w in weights.items() for f in found[name]))
            gaps.append(abs(gap) / error)
    name = "hybrid: largest distance of its curve from the mixture of its slices, in standard errors"
    return [*checks, Check(name, max(gaps), None, len(gaps), tuple(seeds), "<=", 3.0)]
