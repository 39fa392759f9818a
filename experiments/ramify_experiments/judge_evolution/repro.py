"""Reproduction on two CPU cores (section 7(a)): erasure, gaming of a fixed judge, removal of a bias,
and all of it with learned parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.methods.judge_evolution.algorithm import best_belief, checkpoints, gate_open
from ramify_experiments.judge_evolution.learned import ARMS as LEARNED
from ramify_experiments.judge_evolution.learned import learned
from ramify_experiments.judge_evolution.toys import arms, bias, false_promotions, gaming
from ramify_experiments.lab import Checks, ResultCache, columns, sized

CAPS: Mapping[str, float | None] = {"none": 0.0, ".10": 0.10, ".15": 0.15, ".20": 0.20, ".25": 0.25, ".50": 0.5, "no cap": None}
RULES = {"best belief": "best_belief", "paired test": "mcnemar", "chosen and confirmed": "confirm"}


@sized("judge-evolution", quick=1, cpu=3)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a) items 1 to 4 and the statistics of section 8.
    ``seeds`` are those of the learned part; the others have 20 to 100 of their own.

    ``quick``: fewer seeds, and one seed of a learned part with half the updates, with looser thresholds.
    """
    quick, first = size == "quick", seeds[0]
    checks = _exact(first)
    checks += _erasure(cells, range(first, first + (20 if quick else 100)))
    checks += _gaming(cells, range(first, first + (12 if quick else 20)), quick)
    checks += _bias(cells, range(first, first + (6 if quick else 20)), quick)
    checks += _promotions(cells, first, 100 if quick else 400)
    checks += _learned(cells, seeds, quick)
    return checks


def _exact(first: int) -> Checks:
    checks = Checks((first,))
    table = {(10, 0): 0.76160, (9, 1): 0.63564, (18, 2): 0.72945, (3, 7): 0.13508, (60, 40): 0.51744, (600, 400): 0.57424}
    checks.worst("exact: best belief, largest error", [abs(float(best_belief(*k)) - v) for k, v in table.items()], "<=", 5e-6)
    sizes, n = {}, 1
    for outcome in range(12_289):
        sizes[outcome] = n
        n += gate_open(outcome, n, 0.6)
    wanted = {16: 6, 64: 13, 256: 28, 1024: 64, 12_288: 285}
    checks.worst("exact: size of the archive, largest error", [abs(sizes[at] - v) for at, v in wanted.items()], "==", 0)
    checks.value("exact: outcomes exposed to checkpoints 8, 16, ... below 1,024", sum(checkpoints(8, 2, 1024)), 1, "==", 1016)
    return checks


def _erasure(cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Item 1."""
    checks = Checks(seeds)
    found = cells.grid(arms, {"erased": {"erase": True}, "kept": {"erase": False}}, seeds, workers=1)
    erased, kept = columns(found["erased"]), columns(found["kept"])
    correlations = {"without erasure": float(np.mean(kept["correlation"])), "with erasure": float(np.mean(erased["correlation"]))}
    checks.value(
        "arms: rank correlation before and after the switch, without erasure",
        correlations["without erasure"],
        len(seeds),
        ">=",
        0.90,
    )
    checks.value("arms: size of the rank correlation, with erasure", abs(correlations["with erasure"]), len(seeds), "<=", 0.10)
    checks.mean("arms: regret of the chosen arm, without erasure", kept["regret"])
    checks.mean("arms: regret of the chosen arm, with erasure", erased["regret"])
    checks.mean("arms: regret, baseline: the best arm before the switch", kept["kept"])
    checks.value(
        "arms: regret without erasure / with erasure",
        float(np.mean(kept["regret"]) / np.mean(erased["regret"])),
        len(seeds),
        ">=",
        3.0,
    )
    return checks


def _gaming(cells: ResultCache, seeds: Sequence[int], quick: bool) -> Checks:
    """Item 2, under the paper's rule; the other rules and baselines beside it."""
    checks = Checks(seeds)
    plan: dict[str, dict[str, Any]] = {"fixed": {"arm": "fixed"}}
    plan |= {f"hill climbing, {each} outcomes a child": {"arm": "greedy", "each": each} for each in (8, 16, 32)}
    plan |= {
        f"hill climbing and the judge with most items right, {each} outcomes a child": {"arm": "greedy-judge", "each": each}
        for each in (8, 16, 32)
    }
    for name, rule in RULES.items():
        plan |= {f"{arm}, {name}": {"arm": arm, "rule": rule} for arm in ("no-erasure", "full")}
    plan["full, best belief, nodes chosen by their own outcomes"] = {"arm": "full", "by": "node"}
    if quick:
        plan = {name: plan[name] for name in ("fixed", "no-erasure, best belief", "full, best belief", "full, paired test")}
    found = cells.grid(gaming, {f"gaming {name}": more for name, more in plan.items()}, seeds)
    got = {name: columns(found[f"gaming {name}"]) for name in plan}
    for name, one in got.items():
        checks.mean(f"gaming: quality at the end, {name}", one["quality"])
    full, old, fixed = (got[name]["quality"] for name in ("full, best belief", "no-erasure, best belief", "fixed"))
    checks.paired("gaming: quality, full - fixed", full, fixed, ">=", 0.4 if quick else 1.0)
    low = [check.interval[0] for check in checks if check.name == "gaming: quality, full - fixed" and check.interval]
    if not quick:
        checks.value("gaming: quality, full - fixed, lower 95 % bound", low[0], len(seeds), ">", 0.0)
        checks.paired("gaming: quality, full - no erasure", full, old, ">=", 0.0)
        climbing = max((n for n in plan if "most items right" in n), key=lambda name: float(np.mean(got[name]["quality"])))
        checks.paired("gaming: quality, full - the best hill climbing that replaces its judge", full, got[climbing]["quality"])
    for name in [one for one in ("fixed", "full, best belief", "full, paired test", "full, chosen and confirmed") if one in got]:
        checks.mean(f"gaming: anchor accuracy of the last judge, {name}", got[name]["judge"])
    for name in [one for one in got if one.startswith("full")]:
        checks.mean(f"gaming: judges replaced, {name}", got[name]["replaced"])
        checks.mean(f"gaming: outcomes erased, {name}", got[name]["erased"])
    for name in ("no-erasure, best belief", "full, best belief"):
        checks.mean(f"gaming: rank correlation over the last replacement, {name}", got[name]["rank"])
    checks.mean("gaming: acceptance at the end, fixed", got["fixed"]["acceptance"])
    return checks


def _bias(cells: ResultCache, seeds: Sequence[int], quick: bool) -> Checks:
    """Item 3: the pool's share is what decides."""
    checks = Checks(seeds)
    plan: dict[str, dict[str, Any]] = {f"bias {name}": {"cap": cap} for name, cap in CAPS.items()}
    plan |= {f"bias {name}, paired test": {"cap": cap, "rule": "mcnemar"} for name, cap in CAPS.items()}
    found = {name: columns(one) for name, one in cells.grid(bias, plan, seeds).items()}
    start, none = float(np.mean(found["bias none"]["start"])), found["bias none"]
    checks.value("bias: machine / human at the start", start, len(seeds), ">=", 1.4)
    checks.value("bias: machine / human without a pool", float(np.mean(none["ratio"])), len(seeds), ">=", 1.1)
    for name in CAPS:
        for more in ("", ", paired test"):
            checks.mean(f"bias: machine / human, pool {name}{more}", found[f"bias {name}{more}"]["ratio"])
            checks.mean(f"bias: accuracy, pool {name}{more}", found[f"bias {name}{more}"]["accuracy"])
    ratio = {name: float(np.mean(found[f"bias {name}"]["ratio"])) for name in CAPS}
    best = min((name for name in CAPS if name != "none"), key=lambda name: abs(ratio[name] - 1))
    checks.value(
        f"bias: distance of the ratio from 1 at the best share, {best}",
        abs(ratio[best] - 1),
        len(seeds),
        "<=",
        0.2 if quick else 0.1,
    )
    kept = float(np.mean(found[f"bias {best}"]["accuracy"]) / np.mean(none["accuracy"]))
    checks.value(f"bias: accuracy at that share / without a pool, {best}", kept, len(seeds), ">=", 0.95)
    checks.value("bias: machine / human without a cap", ratio["no cap"], len(seeds), "<", 0.5)
    return checks


def _promotions(cells: ResultCache, first: int, n: int) -> Checks:
    """How often one of equally good challengers takes over."""
    checks = Checks((first,))
    expected = {1: 0.47, 16: 0.93, 64: 0.98}
    for name, rule in RULES.items():
        for challengers, share in expected.items():
            key = f"promotions {rule} {challengers} {n}"
            hits = cells.get(key, false_promotions, seed=first, rule=rule, challengers=challengers, looks=n)
            what = f"false promotions, {name}, {challengers} challengers"
            if rule == "best_belief":
                checks.value(f"{what}, distance from {share:g}", abs(hits / n - share), n, "<=", 0.12 if n < 400 else 0.06)
            else:
                from ramify.stats.intervals import clopper_pearson

                low, high = clopper_pearson(hits, n)
                checks.share(what, hits, n, exact=True)
                checks.value(f"{what}, lower 95 % bound", low, n, "<=", 0.05, (low, high))
    return checks


def _learned(cells: ResultCache, seeds: Sequence[int], quick: bool) -> Checks:
    """Item 4."""
    checks = Checks(seeds)
    names = ["fixed", "full"] if quick else list(LEARNED)
    scale: dict[str, Any] = {"pretrain": 250, "epochs": 2, "updates": 60, "data": 3000, "judge_updates": 300} if quick else {}
    found = cells.grid(learned, {"learned": {"arms": names, **scale}}, seeds)["learned"]
    ends = {arm: columns([one[arm]["end"] for one in found]) for arm in names}
    checks.value("learned: parameters of the writer", found[0]["parameters"], 1, ">=", 200_000)
    checks.mean("learned: true correctness at the start", [one["start"]["correct"] for one in found])
    for arm in names:
        checks.mean(f"learned: true correctness, {arm}", ends[arm]["correct"])
        checks.mean(f"learned: acceptance by its own judge, {arm}", ends[arm]["acceptance"])
        checks.mean(f"learned: accuracy of the last judge on the anchor, {arm}", [one[arm]["judge"][1] for one in found])
        checks.mean(f"learned: judges replaced, {arm}", [one[arm]["replaced"] for one in found])
    checks.worst("learned: acceptance by the fixed judge, lowest seed", ends["fixed"]["acceptance"], ">=", 0.9 if quick else 0.95)
    checks.worst("learned: true correctness under the fixed judge, highest seed", ends["fixed"]["correct"], "<=", 0.60)
    gain = np.subtract(ends["full"]["correct"], ends["fixed"]["correct"])
    checks.worst("learned: true correctness, full - fixed, lowest seed", gain, ">=", 0.10 if quick else 0.15)
    if not quick:
        checks.paired("learned: true correctness, full - fixed", ends["full"]["correct"], ends["fixed"]["correct"])
        for other in ("no-erasure", "labelled from the start"):
            checks.paired(f"learned: true correctness, full - {other}", ends["full"]["correct"], ends[other]["correct"])
    return checks
