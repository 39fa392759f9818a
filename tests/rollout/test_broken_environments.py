"""Environments that raise where a stranger's may: the attempt failed, its siblings continue, and nothing else breaks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ramify.env.protocol import Observation, Task, TaskSet
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run

TASK = Task("t", {})


class Fragile:
    """Ends after three steps; raises in the method ``Environment.breaks`` names."""

    system = ""
    max_turns = 5

    def __init__(self, breaks: str) -> None:
        self.breaks, self.count = breaks, 0

    def _may(self, what: str) -> None:
        if self.breaks == what:
            raise KeyError("no such thing")

    def reset(self, task: Task, seed: int) -> Observation:
        self._may("reset")
        return Observation("at 0")

    def step(self, action: str) -> Observation:
        self._may("step")
        self.count += 1
        return Observation(f"at {self.count}", terminated=self.count == 3, outcome=self.count == 3 or None)

    def snapshot(self) -> Any:
        self._may("snapshot")
        return {"count": self.count}

    def restore(self, snapshot: Any) -> None:
        self._may("restore")
        self.count = snapshot["count"]

    def key(self) -> None:
        self._may("key")

    def close(self) -> None:
        self._may("close")


class FragileEnvironment:
    name = "fragile"
    breaks = ""

    def make(self) -> Fragile:
        if self.breaks == "make":
            raise OSError("no display")
        return Fragile(self.breaks)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([TASK])


def test_whatever_a_environment_raises_is_a_failed_attempt(tmp_path: Path) -> None:
    environment = FragileEnvironment()
    with Run.create(tmp_path / "run", {}) as run:
        made = Episodes(Agent(ScriptedModel(("on",) * 9, tokens=False)), environment, run)
        whole = asyncio.run(made.attempt("t", TASK, 0))
        assert whole.outcome is True
        middle = whole.turns[0].answer.id
        for at, what in enumerate(("make", "reset", "step", "snapshot", "key", "restore"), 1):
            environment.breaks = what
            failed = asyncio.run(made.branch("t", TASK, middle, at))
            assert failed.outcome is None
            assert failed.failure is not None
            assert failed.failure.startswith("env: "), failed.failure
            assert ("no display" if what == "make" else "no such thing") in failed.failure
        environment.breaks = "close"
        assert asyncio.run(made.branch("t", TASK, middle, 9)).outcome is True, "what was played stands"


def test_continuing_with_a_stored_attempt_does_not_break_on_a_snapshot_that_cannot_be_restored(tmp_path: Path) -> None:
    environment = FragileEnvironment()
    model = ScriptedModel(("on",) * 9, tokens=False)
    with Run.create(tmp_path / "run", {}) as run:
        asyncio.run(Episodes(Agent(model), environment, run).attempt("t", TASK, 0))
        environment.breaks = "restore"
        again = asyncio.run(Episodes(Agent(model), environment, run).attempt("t", TASK, 0))
        assert again.failure == "env: restore failed: KeyError: 'no such thing'"
