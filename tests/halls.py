"""Three doors in a row, of which only the second decides, and an agent that goes left at each seven times in ten: factories for
runs in tests."""

from __future__ import annotations

from typing import Any

from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.model.scripted import ScriptedModel


class Stateless:
    """What an episode of one reply has that keeps nothing."""

    max_turns, system = 1, ""

    def snapshot(self) -> Any:
        return 0

    def restore(self, snapshot: Any) -> None:
        pass

    def key(self) -> str | None:
        return None


class Hall:
    """Behind the right-hand side of the second door the way is lost."""

    max_turns, system = 10, ""

    def __init__(self) -> None:
        self.said: list[str] = []

    def reset(self, task: Task, seed: int) -> Observation:
        self.said = []
        return Observation(f"hall {task.id}")

    def step(self, action: str) -> Observation:
        self.said.append(action)
        done = len(self.said) == 3
        won = self.said[1:2] == ["left"]
        return Observation(f"door {len(self.said)}", float(done and won), done, outcome=won if done else None)

    def snapshot(self) -> Any:
        return list(self.said)

    def restore(self, snapshot: Any) -> None:
        self.said = list(snapshot)

    def key(self) -> str | None:
        return None


class Halls:
    name = "halls"

    def make(self) -> Hall:
        return Hall()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([Task(f"{split}-{i}") for i in range(n)])


def agent() -> ScriptedModel:
    return ScriptedModel(lambda messages, key: "left" if generator(key, "hall").random() < 0.7 else "right")


def talker() -> ScriptedModel:
    """The same agent without tokens, for what was recorded as text."""
    return ScriptedModel(lambda messages, key: "left" if generator(key, "hall").random() < 0.7 else "right", tokens=False)
