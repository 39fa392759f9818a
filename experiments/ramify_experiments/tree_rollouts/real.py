"""tree-rollouts on a pretrained model: walks of several turns, trees against flat attempts at equal tokens."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.methods.tree_rollouts.record import GrownTree, keep_trees, read_trees
from ramify.trace.db import Run
from ramify_experiments.cases import call_verb
from ramify_experiments.lab import Checks, ResultCache
from ramify_experiments.walk import PLAYED

TASKS, TOKENS = 24, 40
"""Tasks, and sampled tokens of each: two to three attempts from the root."""
ARMS: dict[str, tuple[Sequence[str], int]] = {
    "flat": (("--tree.rule", "flat", "--no-allocate"), 0),
    "flat again": (("--tree.rule", "flat", "--no-allocate"), 1),
    "flat + allocator": (("--tree.rule", "flat"), 0),
    "trees + allocator": ((), 0),
}
"""Options of ``rollout --tree``, and what is added to the seed. ``flat again`` is the null: another sample of the same arm."""

_SMALL = (
    "at three attempts a task in 24 tasks nothing stands out, and the allocator spends a fifth less than it may: "
    "docs/methods/tree-rollouts.md, on a real model"
)
KNOWN = {
    "groups with mixed outcomes, trees + allocator - flat": _SMALL,
    "L1 mass, trees + allocator - flat": _SMALL,
}


def arm(model: str, name: str, tasks: int, tokens: float, seed: int) -> list[Any]:
    """The trees of one arm."""
    options, other = ARMS[name]
    spent = ("--concurrency", 16, "--tree.unit", "tokens", "--tree-budget", tokens, "--count", tasks, "--seed", seed + other)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        call_verb("rollout", "--tree", "--model", model, *PLAYED, *spent, *options, "--out", run)
        gc.collect()  # the model of this cell, with its cache, before that of the next
        return [tree.to_json() for tree in read_trees(run)]


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Groups with mixed outcomes and L1 mass of every arm, and of each against flat attempts as the verb reports it."""
    checks = Checks([first], KNOWN)
    plan = {name: {"model": model, "name": name, "tasks": TASKS, "tokens": TOKENS, "seed": first} for name in ARMS}
    made = cells.map(arm, plan, workers=1)  # each process holds the model, its cache and the rows: some 3 GB
    with tempfile.TemporaryDirectory() as folder:
        for name, trees in made.items():
            with Run.create(Path(folder) / name, {}) as run:
                keep_trees(run, [GrownTree.from_json(tree) for tree in trees])
        told = {
            name: call_verb("tree-rollouts", "report", Path(folder) / name, "--against", Path(folder) / "flat")
            for name in ARMS
            if name != "flat"
        }
    wanted = {("trees + allocator", "mixed"): (">=", 0.06), ("trees + allocator", "l1_mass"): (">=", 0.05)}
    for name, report in told.items():
        against = report["against"]
        for number, text in {"mixed": "groups with mixed outcomes", "l1_mass": "L1 mass"}.items():
            found = against["compared"][number]
            checks.value(f"{text}, {name}", report[number], report["tasks"])
            label = f"{text}, {name} - flat"
            op, threshold = wanted.get((name, number), ("report", None))
            checks.value(label, found["difference"], against["pairs"], op, threshold, tuple(found["interval"]))
            checks.value(f"{label}: corrected p", found["p_corrected"], against["pairs"])
        checks.value(f"tokens, {name} / flat", against["costs"][0] / against["costs"][1], against["pairs"])
        checks.value(f"attempts a task, {name}", report["leaves"] / report["tasks"], report["tasks"])
    checks.value("null: what differs between two samples of flat attempts", len(told["flat again"]["against"]["differ"]), TASKS,
                 "<=", 0)  # fmt: skip
    return checks
