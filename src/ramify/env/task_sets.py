"""Task sets of generated tasks: a task's own hash decides its split, so splits never share one, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.seeds import generator
from ramify.env.protocol import Task, TaskSet

SPLITS = ("train", "eval", "tune", "demo")


def known_split(split: str) -> None:
    """Raises UserError for a split that there is none of."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; known: {', '.join(SPLITS)}")


def generated_task_set(
    environment: str,
    split: str,
    n: int,
    seed: int,
    sample: Callable[[Any], Mapping[str, Any]],
    *,
    kind: str,
    hashed: Callable[[Mapping[str, Any]], str] | None = None,
    digits: int = 12,
    fits: Callable[[Task], bool] | None = None,
) -> TaskSet:
    """``n`` different tasks of a split, named KIND-HASH. ``sample`` makes a task's data with a generator keyed by environment,
    seed and try.

    ``hashed`` is the hash of the data (default: of KIND and the data), of which ``digits`` name the task; ``fits`` refuses some.
    Raises UserError on an unknown split, and where so many different tasks are not found.
    """
    known_split(split)
    tasks: dict[str, Task] = {}
    for attempt in range(100 * n + 1000):
        if len(tasks) == n:
            break
        data = sample(generator(seed, environment, attempt))
        digest = hashed(data) if hashed else stable_hash(kind, canonical_json(dict(data)))
        if SPLITS[int(digest[:8], 16) % len(SPLITS)] == split:
            task = Task(f"{kind}-{digest[:digits]}", data)
            if fits is None or fits(task):
                tasks[task.id] = task
    if len(tasks) < n:
        raise UserError(f"the settings of the environment '{environment}' give only {len(tasks)} {split} tasks, not {n}")
    return TaskSet.of(tasks.values())
