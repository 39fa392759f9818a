"""Panels of generated tasks: a task's own hash decides its split, so splits never share one, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.seeds import generator
from ramify.env.protocol import Panel, Task

SPLITS = ("train", "eval", "tune", "demo")


def known_split(split: str) -> None:
    """Raises UserError for a split that there is none of."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; known: {', '.join(SPLITS)}")


def generated_panel(
    world: str,
    split: str,
    n: int,
    seed: int,
    draw: Callable[[Any], Mapping[str, Any]],
    *,
    kind: str,
    hashed: Callable[[Mapping[str, Any]], str] | None = None,
    digits: int = 12,
    fits: Callable[[Task], bool] | None = None,
) -> Panel:
    """``n`` different tasks of a split, named KIND-HASH. ``draw`` makes a task's data with a generator keyed by world, seed and try.

    ``hashed`` is the hash of the data (default: of KIND and the data), of which ``digits`` name the task; ``fits`` refuses some.
    Raises UserError on an unknown split, and where so many different tasks are not found.
    """
    known_split(split)
    tasks: dict[str, Task] = {}
    for attempt in range(100 * n + 1000):
        if len(tasks) == n:
            break
        data = draw(generator(seed, world, attempt))
        digest = hashed(data) if hashed else stable_hash(kind, canonical_json(dict(data)))
        if SPLITS[int(digest[:8], 16) % len(SPLITS)] == split:
            task = Task(f"{kind}-{digest[:digits]}", data)
            if fits is None or fits(task):
                tasks[task.id] = task
    if len(tasks) < n:
        raise UserError(f"the settings of the world '{world}' give only {len(tasks)} {split} tasks, not {n}")
    return Panel.of(tasks.values())
