"""Made logs whose truth is known, given to the verbs: rewards sampled at random,
rewards that only luck before a fork decides, one decisive step.

An attempt walks through a house: a door, a stair, the one bridge to the other bank, a path, a hut. Only ``_walk``'s ``odds``
decide whether what it did on the bridge matters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.score.steps import write_rows
from ramify_experiments.cases import KnownCase, Repetition

ATTEMPTS, TASKS = 40, 2
EVEN = (0.5, 0.5)


def _walk(task: str, attempt: str, rng: np.random.Generator, odds: tuple[float, float]) -> list[dict[str, Any]]:
    """One attempt's step records; ``odds`` are the chances of success on either bank."""
    door, stair, bank, path = (int(rng.integers(n)) for n in (2, 2, 2, 3))
    moves = [
        ("hall", f"door {door}"),
        (f"room {door}", f"stair {stair}"),
        (f"floor {stair}", "to the bridge"),
        ("bridge", f"bank {bank}"),
        (f"bank {bank}", f"path {path}"),
        (f"hut {path}", "finish"),
    ]
    reward = float(rng.random() < odds[bank])
    return [
        {
            "task_id": task,
            "attempt_id": attempt,
            "step": j,
            "anchor": state,
            "action": action,
            "reward": reward * (state[:3] == "hut"),
        }
        for j, (state, action) in enumerate(moves)
    ]


def _log(rep: Repetition, odds: tuple[float, float] = EVEN) -> Path:
    """A log of two tasks; in the first one ``odds`` hold."""
    rng, rows = generator(rep.seed, "graph-credit", "nulls"), []
    for task, here in (("first", odds), *((f"other {i}", EVEN) for i in range(1, TASKS))):
        for i in range(ATTEMPTS):
            rows += _walk(task, f"{i:03d}", rng, here)
    write_rows(rep.folder / "steps.jsonl", rows)
    return rep.folder / "steps.jsonl"


def _interval(rep: Repetition) -> bool:
    found = rep.verb("graph-credit", "why", str(_log(rep)), "--task", "first", "--attempt", "000", "--step", "3")
    low, high = found["interval"]
    return bool(low > 0 or high < 0)


def _shared(rep: Repetition) -> bool:
    """Twelve continuations of one hall; of each, six leaves that the luck of the continuation decides."""
    rng, rows = generator(rep.seed, "graph-credit", "shared"), []
    for i in range(12):
        door, luck = int(i % 2), float(rng.random() < 0.5)
        for leaf in range(6):
            shared = {"task_id": "t", "attempt_id": f"{i}-{leaf}", "reward": 0.0}
            rows.append(shared | {"step": 0, "anchor": "hall", "action": f"door {door}", "node": f"step {i}"})
            reward = luck if rng.random() < 0.9 else 1 - luck
            rows.append(
                shared | {"step": 1, "anchor": f"room {i}", "action": "finish", "node": f"leaf {i}-{leaf}", "reward": reward}
            )
    write_rows(rep.folder / "steps.jsonl", rows)
    return bool(rep.verb("graph-credit", "report", str(rep.folder / "steps.jsonl"))["decisive"])


def _planted(rep: Repetition) -> bool:
    found = rep.verb("graph-credit", "report", str(_log(rep, (0.9, 0.3))))["decisive"]
    return bool(found) and (found[0]["task"], found[0]["source"]) == ("first", "bridge")


CASES = (
    KnownCase(
        "rewards sampled at random",
        "nothing",
        f"{TASKS} tasks of {ATTEMPTS} attempts whose rewards are coins: no step matters, and a decisive move in the report is "
        "false.",
        lambda rep: bool(rep.verb("graph-credit", "report", str(_log(rep)))["decisive"]),
        wanted=0.05,
        full=600,
        quick=40,
    ),
    KnownCase(
        "difference at one step, rewards sampled at random",
        "nothing",
        "The same logs: the difference that `why` gives for the step on the bridge is 0, and an interval without 0 is false.",
        _interval,
        wanted=0.05,
        full=600,
        quick=40,
    ),
    KnownCase(
        "attempts that share steps",
        "nothing",
        "Twelve continuations with six leaves each, whose rewards follow the continuation's luck and not the door: a decisive "
        "door is false.",
        _shared,
        wanted=0.05,
        full=300,
        quick=40,
    ),
    KnownCase(
        "one decisive step",
        "planted",
        f"On the bridge of one of {TASKS} tasks one bank succeeds 9 times in 10 and the other 3: it must be the first decisive "
        "move.",
        _planted,
        wanted=0.8,
        full=300,
        quick=40,
    ),
)
