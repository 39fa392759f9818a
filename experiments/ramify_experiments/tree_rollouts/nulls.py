"""Two arms of trees whose difference is known, grown by the sampler and the allocator on the toy and given to
``report --against``."""

from __future__ import annotations

from pathlib import Path

from ramify.methods.tree_rollouts.record import keep_trees
from ramify.trace.db import Run
from ramify_experiments.cases import KnownCase, Repetition
from ramify_experiments.tree_rollouts.toy import grow, make_prompts

TASKS, MANY, TURNS = 40, 180, 32
"""Tasks of equal arms, and tasks that the gain of .11 in L1 mass takes to be found; turns a task."""


def _differ(rep: Repetition, tasks: int, *arms: tuple[str, int]) -> dict[str, float]:
    """What the verb says differs between two arms (name, seed) at equal turns on the same tasks, by number: the difference."""
    prompts = make_prompts(tasks, rep.seed)
    runs: list[Path] = []
    for side, (name, seed) in enumerate(arms):
        runs.append(rep.folder / f"arm-{side}")
        with Run.create(runs[-1], {}) as run:
            keep_trees(run, grow(prompts, name, seed, budget=TURNS))
    found = rep.verb("tree-rollouts", "report", str(runs[0]), "--against", str(runs[1]))["against"]
    return {name: found["compared"][name]["difference"] for name in found["differ"]}


CASES = (
    KnownCase(
        "equal arms",
        "nothing",
        f"Trees of one selector and allocator, grown twice on the same {TASKS} tasks of {TURNS} turns: any difference reported "
        "is false.",
        lambda rep: bool(_differ(rep, TASKS, ("uucb + allocator", rep.seed), ("uucb + allocator", rep.seed + 1))),
        wanted=0.05,
        quick=12,
    ),
    KnownCase(
        "equal arms, flat",
        "nothing",
        f"Independent attempts, sampled twice on the same {TASKS} tasks: any difference reported is false.",
        lambda rep: bool(_differ(rep, TASKS, ("flat", rep.seed), ("flat", rep.seed + 1))),
        wanted=0.05,
        quick=12,
    ),
    KnownCase(
        "trees against flat attempts",
        "planted",
        f"Selector and allocator against independent attempts on {MANY} tasks at the same {TURNS} turns: their L1 mass must be "
        "found to be higher.",
        lambda rep: _differ(rep, MANY, ("uucb + allocator", rep.seed), ("flat", rep.seed)).get("l1_mass", 0.0) > 0,
        wanted=0.8,
        full=100,
        quick=8,
    ),
)
