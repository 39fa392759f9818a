"""Shared by the environments of third-party tools: reading ``NAME?key=value``, importing modules,
and tasks that lie in splits."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.env.protocol import Task, TaskSet
from ramify.env.task_sets import SPLITS, known_split

_TRIES = 1000
"""Consecutive drafts without a new task after which a generator counts as too small."""


def options(argument: str) -> tuple[str, dict[str, Any]]:
    """``NAME?a=1&b=x`` as the name and its options; values that are JSON are read as such, others are text.

    Raises UserError on a part that is not ``key=value``.
    """
    name, _, query = argument.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UserError(f"'{argument}' cannot be read: options are written NAME?key=value&key=value") from None
    return name, {key: value_of(text) for key, text in pairs}


def value_of(text: str) -> Any:
    """The JSON value that ``text`` spells, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def import_package(name: str, extra: str, what: str) -> ModuleType:
    """A third-party package. Raises NeedsError that says which extra holds it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NeedsError(f"{what} needs the package '{name}': pip install 'ramify[{extra}]' ({error})") from error


def import_module(name: str) -> ModuleType:
    """A user's own module, also from the current folder. Raises UserError where it cannot be imported."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a third-party module may raise anything while it is imported
        raise UserError(f"module '{name}' cannot be imported: {type(error).__name__}: {error}") from error


def seeded(name: str, split: str, n: int, seed: int) -> TaskSet:
    """``n`` tasks that are nothing but a seed: ``{"seed": number}``. No split has a seed of another."""
    known_split(split)
    first = seed % 2**24 * 2**24
    numbers = (len(SPLITS) * (first + i) + SPLITS.index(split) for i in range(n))
    return TaskSet.of(Task(f"{name}-{number}", {"seed": number}) for number in numbers)


def generated(name: str, draft: Callable[[int], Mapping[str, Any]], split: str, n: int, seed: int) -> TaskSet:
    """``n`` different tasks of a split out of the data that ``draft(number)`` makes.

    The hash of the data without its ``seed`` decides the split, so no task is in two, whatever the seed it came from. Raises
    UserError where the generator has too few.
    """
    known_split(split)
    found: dict[str, Task] = {}
    last, i = 0, 0
    while len(found) < n and i - last < _TRIES:
        data = dict(draft(seed % 2**24 * 2**24 + i))
        digest = json_hash({key: value for key, value in data.items() if key != "seed"})
        if SPLITS[int(digest[:8], 16) % len(SPLITS)] == split and digest not in found:
            found[digest], last = Task(f"{name}-{digest[:12]}", data), i
        i += 1
    if len(found) < n:
        raise UserError(f"{name} gives only {len(found)} different {split} tasks, not {n}")
    return TaskSet.of(found.values())


class TaskList:
    """Tasks given by a user. A task's ``split`` field says where it belongs, else the hash of its id: half of them train.

    So a task stays in its split when others are added.
    """

    def __init__(self, tasks: Iterable[Task], name: str) -> None:
        self._task_set, self._name = TaskSet.of(tasks), name

    def __iter__(self) -> Iterator[Task]:
        return iter(self._task_set)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """At most ``n`` tasks of a split, chosen by ``seed``. Raises UserError where it has none."""
        known_split(split)
        mine = [task for task in self._task_set if self._split(task) == split]
        if not mine:
            raise UserError(f'{self._name} has no task of the split \'{split}\'; give some the field "split": "{split}"')
        mine.sort(key=lambda task: stable_hash("panel", seed, task.id))
        return TaskSet.of(mine[:n])

    @staticmethod
    def _split(task: Task) -> str:
        split = task.data.get("split")
        if split in SPLITS:
            return str(split)
        return ("train", "train", "eval", "tune")[int(stable_hash("split", task.id)[:8], 16) % 4]
