"""Rates for ``ramify improve`` on a pretrained model: an adapter and all weights, three tasks, gain and loss.

    python -m ramify_experiments.pretrained --model smollm2 --save

One cell is one run of 1,200 tokens in 4 updates without a bound, with the last checkpoint kept: what a rate does is told, and not
what validation would choose. Finished cells are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.env.protocol import Task
from ramify.jobs.improve import ImproveConfig, improve
from ramify.jobs.results import UpdateReport
from ramify.render.terminal import say
from ramify.render.text import table
from ramify.trace.db import Run
from ramify_experiments.lab import ResultCache, cache
from ramify_experiments.real import SUMS, graded_environment, two_digits

RATES = {"adapter": (2e-4, 5e-4, 1e-3), "all": (1e-5, 3e-5, 1e-4)}
EDITION = "1"
"""Of the cells: raised when a change of the code would make them otherwise."""
RESULTS = Path(__file__).resolve().parents[2] / "repro" / "rates.json"

larger = graded_environment(
    Task(f"larger-{a}-{b}", {"prompt": f"Which is larger, {a} or {b}?", "want": max(a, b)}) for a, b in two_digits(1200) if a != b
)
three = graded_environment(
    Task(f"three-{a}-{b}-{c}", {"prompt": f"Compute {a} + {b} + {c}. Answer with the number only.", "want": a + b + c})
    for a in range(1, 10)
    for b in range(1, 10)
    for c in range(1, 10)
)
TASKS = {"sums": SUMS} | {name: f"python:ramify_experiments.pretrained:{name}" for name in ("larger", "three")}


def cell(model: str, task: str, weights: str, lr: float, seed: int) -> dict[str, Any]:
    """One run: success before and after, and what was lost after every update."""
    config = ImproveConfig(
        model=model,
        env=TASKS[task],
        all_weights=weights == "all",
        seed=seed,
        tokens=1200,
        updates=4,
        eval_episodes=48,
        changes=0,
        max_reply=24,
        temperature=1.0,
        train={"lr": lr},
        keep={"perplexity": 0, "episodes": 1, "checkpoint": "last"},
    )
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = improve(config, Path(folder) / "run")
        assert result.lost is not None
        with Run.open(Path(folder) / "run") as run:
            updates = list(run.memo("update", UpdateReport).values())
    losses = [report.fidelity for report in updates if report.fidelity is not None]
    return {
        "task": task,
        "weights": weights,
        "lr": lr,
        "seed": seed,
        "before": result.before.success,
        "after": result.after.success,
        "gain": result.gain.success,
        "interval": list(result.gain.interval),
        "n": result.gain.n,
        "won": sum(report.independent[0] for report in updates),
        "start": result.lost.before.perplexity,
        "perplexity": [report.perplexity for report in losses],
        "kl": [report.kl for report in losses],
        "seconds": time.process_time() - began,
    }


def main(given: Sequence[str] | None = None) -> None:
    """Run the cells that are missing, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--task", choices=list(TASKS), action="append")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(given)
    cells = {
        f"{task}, {weights} at {lr:g}, seed {seed}": {
            "model": options.model,
            "task": task,
            "weights": weights,
            "lr": lr,
            "seed": seed,
        }
        for seed in range(options.seeds)
        for task in options.task or TASKS
        for weights, rates in RATES.items()
        for lr in rates
    }
    kept, done = ResultCache(cache() / "improve-pretrained", edition=EDITION), {}
    for key, given_cell in cells.items():
        done[key] = row = kept.get(key, cell, **given_cell)
        say(f"{key}: {row['before']:.3f} to {row['after']:.3f}, KL {row['kl'][-1]:.3g}, {row['seconds']:.0f} processor seconds")
    head = ("cell", "before", "after", "gain", "perplexity, times the start's", "KL")
    rows = [(key, r["before"], r["after"], r["gain"], r["perplexity"][-1] / r["start"], r["kl"][-1]) for key, r in done.items()]
    say(table(head, rows))
    if options.save:
        RESULTS.write_text(json.dumps(list(done.values()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
