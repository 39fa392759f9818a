"""The honest comparison behind ``ramify improve``: five ways to spend the same generated tokens, each at its own best learning rate.

Learning rates are chosen on tuning seeds from a stated grid; the comparison runs on other seeds, all arms from the same starting
agent, on the same tasks in the same order, evaluated on the same held-out episodes. Differences are paired by seed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ramify.base.config import check
from ramify.jobs.improve import ARMS, ImproveConfig, Job
from ramify.stats.checks import Check
from ramify.stats.intervals import mean_t, paired_t
from ramify.trace.db import Run
from ramify_experiments.lab import Cells, sized, tuned

GRID = (5e-4, 1e-3, 2e-3)
TUNE_SEEDS = (100, 101)
SEEDS = (0, 1, 2, 3, 4)
JOB_SEEDS = (0, 1, 2)
RIVAL = "imitate"
"""The other arm that is also run at the default budget: the comparison's best mean."""
SIZES: dict[str, dict[str, int]] = {
    "job": {},
    "cpu": {"updates": 16, "tokens": 40_000, "eval_episodes": 400},
    "tune": {"updates": 12, "tokens": 30_000, "eval_episodes": 300},
    "quick": {"updates": 10, "tokens": 25_000, "eval_episodes": 200},
}


def cell(arm: str, seed: int, lr: float, size: str) -> dict[str, float]:
    """One arm on one seed: success after the tokens that every arm gets (arm ``start``: before any)."""
    settings = {"arm": "ours" if arm == "start" else arm, "seed": seed, "train": {"lr": lr}, **SIZES[size]}
    config = check(ImproveConfig, settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Job(config, path) as job, Run.create(path, config.to_json()) as run:
            spent = 0 if arm == "start" else job.learn(run, arm)
            success = job.evaluate(run, "after")["success"]
            mixed = [entry.payload["mixed"] for entry in run.journal("update")]
    return {"success": success, "tokens": float(spent), "mixed": sum(mixed) / max(1, len(mixed))}


@sized("improve")
def reproduce(size: str, cells: Cells, first: int = 0) -> list[Check]:
    """Run the comparison. ``quick`` checks the headline gain of the default arm only, on one seed."""
    if size == "quick":
        jobs = {arm: {"arm": arm, "seed": first, "lr": ARMS["ours"].lr, "size": size} for arm in ("start", "ours")}
        done = cells.map(cell, jobs, workers=2)
        return [Check("ours: gain", done["ours"]["success"] - done["start"]["success"], None, 1, (first,), ">=", 0.05)]
    tuning = {arm: {"arm": arm, "size": "tune"} for arm in ARMS}
    found = tuned(cells, cell, tuning, GRID, TUNE_SEEDS, lambda one: float(one["success"]))
    best = {arm: lr for arm, (lr, _) in found.items()}
    arms, seeds = {"start": 0.0, **best}, tuple(first + seed for seed in SEEDS)
    done = cells.grid(cell, {arm: {"arm": arm, "lr": lr, "size": size} for arm, lr in arms.items()}, seeds)
    success = {arm: [one["success"] for one in runs] for arm, runs in done.items()}
    n = len(seeds)
    gain = [b - a for a, b in zip(success["start"], success["ours"], strict=True)]
    checks = [
        Check.mean("success before", success["start"], seeds),
        Check.mean("ours: gain", gain, seeds, ">=", 0.10),
    ]
    for arm, lr in best.items():
        mixed = [one["mixed"] for one in done[arm]]
        checks.append(Check.mean(f"{arm}: success after (lr {lr:g})", success[arm], seeds))
        checks.append(Check.mean(f"{arm}: mixed groups", mixed, seeds))
    for arm in (arm for arm in best if arm != "ours"):
        low, high = paired_t(success["ours"], success[arm])
        # wanted is an interval above 0, so its lower end is what is checked
        checks.append(Check(f"ours - {arm}: lower 95 % bound", low, (low, high), n, seeds, ">", 0.0, KNOWN.get(arm, "")))
    return checks + default_job(cells, success["start"][: len(JOB_SEEDS)], first)


TIE = "a tie: five seeds at 40,000 tokens do not tell the arms apart (docs/improve.md)"
LOSS = "imitation wins by a little at 40,000 tokens, and does not at the default job's budget (docs/improve.md)"
KNOWN: dict[str, str] = {**{arm: TIE for arm in ARMS if arm != "ours"}, "imitate": LOSS}
"""Arms that ours does not beat, with the reason."""


def default_job(cells: Cells, start: list[float], first: int = 0) -> list[Check]:
    """The main job at its default budget, and the comparison's best rival at the same."""
    seeds = tuple(first + seed for seed in JOB_SEEDS)
    done = cells.grid(cell, {f"job {arm}": {"arm": arm, "lr": ARMS[arm].lr, "size": "job"} for arm in ("ours", RIVAL)}, seeds)
    after = {arm: [one["success"] for one in done[f"job {arm}"]] for arm in ("ours", RIVAL)}
    gain = [b - a for a, b in zip(start, after["ours"], strict=True)]
    low, high = mean_t(gain)
    n = len(seeds)
    return [
        # 24 points on one processor, 18 to 20 on others: the threshold leaves room for what kernels change
        Check.mean("default job: gain of ours", gain, seeds, ">=", 0.20),
        Check("default job: gain of ours, lower 95 % bound", low, (low, high), n, seeds, ">", 0.10),
        *(Check.mean(f"default job: {arm}, success after", values, seeds) for arm, values in after.items()),
    ]
