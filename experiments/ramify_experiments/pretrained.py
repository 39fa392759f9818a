"""Rates for ``ramify improve`` on a pretrained model: an adapter and all weights, three tasks, gain and loss.

    python -m ramify_experiments.pretrained --model smollm2 --save

One cell is one run of 2,000 tokens in 6 updates without a bound. What a rate does is told of every update, and not of the
checkpoint that validation would choose: success of its attempts, and what was lost after it. Finished cells are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.integrations.environments.functions import FunctionEnvironment
from ramify.jobs.improve import ImproveConfig, improve
from ramify.jobs.results import UpdateReport
from ramify.render.terminal import say
from ramify.render.text import table
from ramify.trace.db import Run
from ramify_experiments.lab import ResultCache, cache

RATES = {"adapter": (2e-4, 5e-4, 1e-3), "all": (1e-5, 3e-5, 1e-4)}
WORDS = ("banana", "letter", "window", "coffee", "summer", "engine", "pepper", "hidden", "little", "balloon", "river", "garden")
RESULTS = Path(__file__).resolve().parents[2] / "repro" / "improve-pretrained.json"


def _graded(task: Task, answer: str, _state: Any) -> float:
    """Whether the last number of the answer is the wanted one."""
    numbers = re.findall(r"-?\d+", answer)
    return float(bool(numbers) and numbers[-1] == str(task.data["want"]))


def _environment(tasks: list[Task]) -> FunctionEnvironment:
    return FunctionEnvironment(tools=[], tasks=tasks, state=lambda task: {}, grade=_graded)


def _pairs() -> list[tuple[int, int]]:
    order = generator(0, "pretrained tasks").permutation(90 * 90)[:1200]
    return [(10 + int(pair) // 90, 10 + int(pair) % 90) for pair in order]


def _letters() -> list[Task]:
    return [
        Task(
            f"letters-{word}-{letter}-{n}",
            {
                "prompt": f"{n} {word}s: how often is the letter {letter} in the word '{word}'? Answer with a number.",
                "want": word.count(letter),
            },
        )
        for word in WORDS
        for letter in sorted(set(word))
        for n in range(2, 14)
    ]


sums = _environment([Task(f"sum-{a}-{b}", {"prompt": f"What is {a} + {b}?", "want": a + b}) for a, b in _pairs()])
larger = _environment(
    [Task(f"larger-{a}-{b}", {"prompt": f"Which is larger, {a} or {b}?", "want": max(a, b)}) for a, b in _pairs() if a != b]
)
letters = _environment(_letters())
TASKS = ("sums", "larger", "letters")


def cell(model: str, task: str, weights: str, lr: float, seed: int) -> dict[str, Any]:
    """One run: success before and after, and what was lost after every update."""
    config = ImproveConfig(
        model=model,
        env=f"python:ramify_experiments.pretrained:{task}",
        all_weights=weights == "all",
        seed=seed,
        tokens=2000,
        updates=6,
        eval_episodes=48,
        changes=0,
        max_reply=24,
        train={"lr": lr},
        keep={"perplexity": 0, "episodes": 1},
    )
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
        "after": [report.success for report in updates],
        "won": sum(report.independent[0] for report in updates),
        "ratio": [report.perplexity / result.lost.before.perplexity for report in losses],
        "kl": [report.kl for report in losses],
    }


def main(given: Sequence[str] | None = None) -> None:
    """Run the cells that are missing, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--task", choices=TASKS, action="append")
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
    done = ResultCache(cache() / "improve-pretrained").map(cell, cells, workers=1)
    head = ("cell", "before", "last update", "perplexity, times the start's", "KL")
    say(table(head, [(key, row["before"], row["after"][-1], row["ratio"][-1], row["kl"][-1]) for key, row in done.items()]))
    if options.save:
        RESULTS.write_text(json.dumps(list(done.values()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
