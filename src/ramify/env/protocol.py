"""The protocol of worlds an agent acts in, and panels of tasks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash

Snapshot = Any
"""A JSON value, or bytes."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: an id unique in its panel and the data its world needs (JSON)."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the world answers. ``terminated``: the world ended; ``truncated``: a limit did. ``outcome`` is the verifier's boolean."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    outcome: bool | None = None
    """Success or failure once decided, apart from a shaped reward; None while undecided or never decided."""
    valid: bool = True
    """False when the world refused the action."""
    role: str = "user"
    """Role of the message that shows it to the agent: user or tool."""


@runtime_checkable
class Env(Protocol):
    """A world. One object is one episode; it is made anew (by its factory) for every rollout."""

    max_turns: int
    """A limit on agent turns after which the rollout truncates."""
    system: str
    """Instructions shown once, as the system message; may be empty."""

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``. The same (task, seed) gives the same episode for the same actions."""
        ...

    def step(self, action: str) -> Observation:
        """Apply the agent's reply."""
        ...

    def snapshot(self) -> Snapshot | None:
        """The whole state as JSON or bytes, or None where the world cannot tell."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot`` of the task given to ``reset`` before; shares no mutable state with other episodes."""
        ...

    def key(self) -> str | None:
        """A key of the present state, equal for states from which the same future follows; None where the world cannot tell."""
        ...


class World(Protocol):
    """A family of episodes: makes environments and panels of tasks."""

    name: str

    def make(self) -> Env:
        """A fresh environment."""
        ...

    def panel(self, split: str, n: int, seed: int = 0) -> Panel:
        """``n`` generated tasks of a split (train, eval, tune); splits never share a task."""
        ...


@dataclass(frozen=True)
class Panel:
    """Tasks sorted by id with a content hash that no directory order, locale or worker count can change."""

    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Panel:
        """Sort and check. Raises UserError on no task or on an id that occurs twice."""
        ordered = tuple(sorted(tasks, key=lambda t: t.id))
        if not ordered:
            raise UserError("the task panel is empty")
        for left, right in itertools.pairwise(ordered):
            if left.id == right.id:
                raise UserError(f"task id '{left.id}' occurs twice in the panel")
        return cls(ordered)

    @property
    def hash(self) -> str:
        """Content hash of the panel."""
        return stable_hash("panel", *(canonical_json({"id": t.id, "data": dict(t.data)}) for t in self.tasks))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


def read_panel(path: Path) -> Panel:
    """Read tasks from JSON lines: one object a line, ``id`` (text) and anything else as the task's data.

    Raises UserError naming file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read tasks from {path}: {error}") from error
    tasks = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON ({error.msg})") from error
        if not isinstance(record, dict) or not isinstance(record.get("id"), str):
            raise UserError(f"{path}:{number}: a task is an object with a text 'id'")
        task_id = record.pop("id")
        tasks.append(Task(task_id, record))
    if not tasks:
        raise UserError(f"{path} holds no task")
    return Panel.of(tasks)
