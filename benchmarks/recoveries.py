"""Does training on recoveries beat the recipe of `ramify improve` at equal generated tokens? Household environment, built-in
agent.

    python benchmarks/recoveries.py [--seeds 5] [--size cpu] [--workers 2] [--cache FOLDER] [--out repro/recoveries.json]

Every arm generates the same number of tokens (size cpu: 40,000 in 16 updates; quick: 25,000 in 10) from the same start, on the
same tasks in the same order, and is evaluated on the same held-out episodes (400; 200). ``infotree+g2po`` is the recipe (learning
rate 0.002, tuned for it at this size), ``imitate`` supervised training on the successes (0.0005, tuned for it); the others train,
at the learning rate of ``imitate``, on sets that maze-recovery's builder makes of the attempts of each update.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.jobs.improve import ImproveConfig, Job
from ramify.methods.maze_recovery.attempts import Traces, from_run
from ramify.methods.maze_recovery.build import SetSummary, build_sft
from ramify.render.terminal import progress
from ramify.trace.db import Run
from ramify_experiments.lab import Checks, ResultCache, columns

SIZES = {
    "cpu": {"updates": 16, "tokens": 40_000, "eval_episodes": 400},
    "quick": {"updates": 10, "tokens": 25_000, "eval_episodes": 200},
}
SETS: dict[str, dict[str, Any]] = {
    "loops cut": {"mode": "success_loop_erased"},
    "mistakes masked": {"mode": "success_raw", "mask_mistakes": True},
    "recovery mix": {"mode": "recovery_mix", "rho": 0.5},
    "recovery mix, mistakes masked": {"mode": "recovery_mix", "rho": 0.5, "mask_mistakes": True},
}
TREES = "infotree+g2po"
ARMS = ("start", TREES, "imitate", *SETS)


class Recoveries(Job):
    """The main job's supervised arm, on sets of the builder."""

    options: dict[str, Any]
    shown: list[SetSummary]

    def _rows(self, run: Run, group: str, *rest: Any) -> Any:
        try:
            made = build_sft(Traces(from_run(run, group)), **self.options)
        except UserError:  # an update without a success, or without one that shows a recovery, teaches nothing
            return [], {"cross_entropy": 1.0}, []
        self.shown.append(made.summary)
        return [example.conversation.to_row() for example in made.examples], {"cross_entropy": 1.0}, []


def cell(arm: str, seed: int, size: str) -> dict[str, float]:
    """Success after the tokens that every arm gets, and what the sets held."""
    rival = TREES if arm in ("start", TREES) else "imitate"
    lr = {TREES: 2e-3, "imitate": 5e-4}[rival]
    config = check(ImproveConfig, {"arm": rival, "seed": seed, "train": {"lr": lr}, **SIZES[size]})
    kind = Recoveries if arm in SETS else Job
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with kind(config, path) as job, Run.create(path, config.to_json()) as run:
            shown: list[SetSummary] = []
            if isinstance(job, Recoveries):
                job.options, job.shown = SETS[arm], shown
            if arm != "start":
                job.learn(run, rival)
            success = job.evaluate(run, "after").success
            shares = [s.share_with_recovery for s in shown]
            tokens = [s.tokens for s in shown]
    return {"success": success, "with recovery": float(np.mean(shares or [0])), "trained": float(np.sum(tokens or [0]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--size", choices=sorted(SIZES), default="cpu")
    parser.add_argument("--cache", type=Path, help="keep finished cells here, to continue after an interruption")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    args = parser.parse_args()
    seeds = range(args.seeds)
    arms = {arm: {"arm": arm, "size": args.size} for arm in args.arms}
    with progress("recoveries", unit="cells") as bar:
        done = ResultCache(args.cache, progress=bar).grid(cell, arms, seeds, workers=args.workers)
    of, checks = {arm: columns(runs) for arm, runs in done.items()}, Checks(seeds)
    for arm in args.arms:
        checks.mean(f"{arm}: success", of[arm]["success"])
    for arm in (arm for arm in args.arms if arm in SETS):
        for what in ("with recovery", "trained"):
            checks.mean(f"{arm}: {what}", of[arm][what])
        for rival in (r for r in (TREES, "imitate") if r in args.arms):
            checks.paired(f"{arm} - {rival}", of[arm]["success"], of[rival]["success"])
    for found in checks:
        print(
            f"{found.name:45s} {found.value:9.4g}  [{found.interval[0]:.4g}, {found.interval[1]:.4g}]" if found.interval else ""
        )
    if args.out:
        args.out.write_text(json.dumps({"checks": codec.to_json(checks)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
