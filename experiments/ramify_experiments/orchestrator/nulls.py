"""Tables whose truth is known: workers that are all equal, one that is best everywhere, specialists,
and specialists that no group names."""

from __future__ import annotations

import json

import numpy as np

from ramify.base.seeds import generator
from ramify_experiments.cases import KnownCase, Repetition

METHOD = "orchestrator"
TASKS, REPEATS = 48, 6


def _worth(rep: Repetition, skill: np.ndarray, groups: np.ndarray | None = None) -> bool:
    """Whether ``headroom`` says that routing is worth it, of rewards with chances ``skill`` (tasks, workers)."""
    rng, rows = generator(rep.seed, "rewards"), []
    for task, chances in enumerate(skill):
        for worker, chance in enumerate(chances):
            for reward in rng.random(REPEATS) < chance:
                row = {"task": f"t{task}", "worker": f"w{worker}", "reward": float(reward), "usd": 0.001}
                rows.append(row | ({} if groups is None else {"group": f"g{groups[task]}"}))
    path = rep.folder / "table.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return bool(rep.verb(METHOD, "show", "headroom", str(path))["worth"])


def _specialists(rep: Repetition) -> bool:
    groups = np.arange(TASKS) % 4
    return _worth(rep, np.where(groups[:, None] == np.arange(4), 0.8, 0.4), groups)


def _unnamed(rep: Repetition) -> bool:
    best = generator(rep.seed, "best").integers(0, 4, TASKS)
    return _worth(rep, np.where(best[:, None] == np.arange(4), 0.85, 0.35))


CASES = (
    KnownCase(
        "workers that are all equal",
        "nothing",
        f"Four workers, each right 7 times in 10 on each of {TASKS} tasks, {REPEATS} repeats: that routing is worth it is a "
        "false finding.",
        lambda rep: _worth(rep, np.full((TASKS, 4), 0.7)),
        wanted=0.05,
    ),
    KnownCase(
        "eight equal workers",
        "nothing",
        "The best of eight equal samples looks like an oracle: that routing is worth it is a false finding.",
        lambda rep: _worth(rep, np.full((TASKS, 8), 0.5)),
        wanted=0.05,
    ),
    KnownCase(
        "easy and hard tasks",
        "nothing",
        "Tasks differ in difficulty, and on each all workers are equal: that routing is worth it is a false finding.",
        lambda rep: _worth(rep, np.repeat(generator(rep.seed, "difficulty").uniform(0.05, 0.95, (TASKS, 1)), 4, axis=1)),
        wanted=0.05,
    ),
    KnownCase(
        "one worker is the best everywhere",
        "nothing",
        "One worker is right 8 times in 10 on every task, the others 5 or 6 times: there is nothing to route, and that there is "
        "is false.",
        lambda rep: _worth(rep, np.tile([0.8, 0.6, 0.6, 0.5], (TASKS, 1))),
        wanted=0.05,
    ),
    KnownCase(
        "specialists",
        "planted",
        "Each of four groups of tasks has a worker that is right on 80 % of it and on 40 % of the rest: routing is worth it.",
        _specialists,
        wanted=0.8,
    ),
    KnownCase(
        "specialists that no group names",
        "planted",
        "Each task has a worker that is right on it 85 times in 100, the others 35 times, and nothing names which: routing is "
        "worth it.",
        _unnamed,
        wanted=0.8,
    ),
)
