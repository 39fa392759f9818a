"""The environment battery accepts sound environments and catches each environment broken on purpose."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.env.builtin.chain import ChainEnvironment
from ramify.env.builtin.household import HouseholdEnvironment, possible_actions
from ramify.env.protocol import Observation, Task, TaskSet, Volatile
from ramify.testing import check_env


class Counter:
    """Count up to a goal by ``up`` and ``down``; a log of what was said is part of the state, the key is the count alone."""

    system = ""
    max_turns = 8

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"goal": 0, "count": 0, "log": []}

    def reset(self, task: Task, seed: int) -> Observation:
        self.state = {"goal": task.data["goal"], "count": 0, "log": []}
        return Observation(self.look())

    def look(self) -> str:
        return f"at {self.state['count']} up down"

    def step(self, action: str) -> Observation:
        self.state["count"] += {"up": 1, "down": -1}.get(action, 0)
        self.state["log"].append(action)
        won = self.state["count"] == self.state["goal"]
        return Observation(self.look(), float(won), terminated=won, outcome=won or None, valid=action in ("up", "down"))

    def snapshot(self) -> Any:
        return {**self.state, "log": list(self.state["log"])}

    def restore(self, snapshot: Any) -> None:
        self.state = {**snapshot, "log": list(snapshot["log"])}

    def key(self) -> str | None:
        return str(self.state["count"])


class CounterEnvironment:
    name = "counter"
    env: type = Counter

    def make(self) -> Any:
        return self.env()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        splits = ("train", "eval", "tune")
        if split not in splits:
            raise UserError(f"unknown split '{split}'")
        goals = [splits.index(split) + 3 * (i + seed) + 2 for i in range(n)]
        return TaskSet.of(Task(f"count-{goal}", {"goal": goal}) for goal in goals)

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        return ["up", "down", "up"]


def found(env: type, environment: type[CounterEnvironment] = CounterEnvironment) -> set[str]:
    part = environment()
    part.env = env
    return {problem.check for problem in check_env(part)}


@pytest.mark.parametrize(
    ("environment", "actions"),
    [(ChainEnvironment(), None), (HouseholdEnvironment(), possible_actions), (CounterEnvironment(), None)],
)
def test_sound_environments_pass(environment: Any, actions: Any) -> None:
    assert check_env(environment, actions) == []


def test_a_environment_without_snapshots_or_keys_passes() -> None:
    class Mute(Counter):
        def snapshot(self) -> Any:
            return None

        def key(self) -> str | None:
            return None

    assert found(Mute) == set()


def test_reset_that_varies() -> None:
    ticket = itertools.count()

    class Broken(Counter):
        def reset(self, task: Task, seed: int) -> Observation:
            super().reset(task, seed)
            return Observation(f"ticket {next(ticket)}")

    assert "reset" in found(Broken)


def test_reset_that_keeps_old_state() -> None:
    class Broken(Counter):
        def reset(self, task: Task, seed: int) -> Observation:
            self.state = {**self.state, "goal": task.data["goal"]}
            return Observation(self.look())

    assert "reset" in found(Broken)


def test_restore_that_forgets_a_field() -> None:
    class Broken(Counter):
        def restore(self, snapshot: Any) -> None:
            self.state = {**self.state, "log": list(snapshot["log"])}

    assert "restore" in found(Broken)


def test_snapshot_that_is_the_state_itself() -> None:
    class Broken(Counter):
        def snapshot(self) -> Any:
            return self.state

    assert "sharing" in found(Broken)


def test_restore_that_keeps_the_callers_list() -> None:
    class Broken(Counter):
        def restore(self, snapshot: Any) -> None:
            self.state = dict(snapshot)

    assert "sharing" in found(Broken)


def test_state_on_the_class() -> None:
    class Broken(Counter):
        shared: dict = {}  # noqa: RUF012

        def reset(self, task: Task, seed: int) -> Observation:
            seen = super().reset(task, seed)
            Broken.shared.clear()
            Broken.shared.update(self.state)
            self.state = Broken.shared
            return seen

    assert "sharing" in found(Broken)


def test_terminated_and_truncated_at_once() -> None:
    class Broken(Counter):
        def step(self, action: str) -> Observation:
            super().step(action)
            return Observation("over", terminated=True, truncated=True)

    assert "observations" in found(Broken)


def test_reward_that_is_no_number() -> None:
    class Broken(Counter):
        def step(self, action: str) -> Observation:
            return Observation(super().step(action).text, reward=float("nan"))

    assert "observations" in found(Broken)


def test_snapshot_that_is_not_json() -> None:
    class Broken(Counter):
        def snapshot(self) -> Any:
            return {"state": {1, 2}}

    assert "snapshots" in found(Broken)


def test_snapshot_that_json_changes() -> None:
    class Broken(Counter):
        def snapshot(self) -> Any:
            return {**super().snapshot(), "squares": {n: n * n for n in range(3)}}

        def restore(self, snapshot: Any) -> None:
            super().restore(snapshot)
            self.square = snapshot["squares"][2]

    assert "restore" in found(Broken)


def test_key_that_merges_different_futures() -> None:
    class Broken(Counter):
        def key(self) -> str | None:
            return str(self.state["count"] % 2)

    assert "keys" in found(Broken)


def test_raising_on_a_bad_action() -> None:
    class Broken(Counter):
        def step(self, action: str) -> Observation:
            return super().step(["up", "down"][["up", "down"].index(action)])

    assert "bad_actions" in found(Broken)


def test_splits_that_overlap() -> None:
    class Broken(CounterEnvironment):
        def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
            super().task_set(split, n, seed)
            return super().task_set("train", n, seed)

    assert found(Counter, Broken) == {"splits"}


def test_splits_that_share_tasks_under_other_ids() -> None:
    class Broken(CounterEnvironment):
        def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
            super().task_set(split, n, seed)
            return TaskSet.of(Task(f"{split}-{i}", {"goal": i + 2}) for i in range(n))

    assert found(Counter, Broken) == {"splits"}


def test_task_set_that_varies_or_falls_short() -> None:
    completions = itertools.count()

    class Varies(CounterEnvironment):
        def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
            return super().task_set(split, n, seed + next(completions))

    class Short(CounterEnvironment):
        def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
            return super().task_set(split, max(1, n - 1), seed)

    assert "task_set" in found(Counter, Varies)
    assert "task_set" in found(Counter, Short)


class InMemory(Counter):
    """A sound environment whose state is an object of its own, kept in memory only."""

    def snapshot(self) -> Any:
        return Volatile(copy.deepcopy(self.state))

    def restore(self, snapshot: Any) -> None:
        self.state = copy.deepcopy(snapshot.state)


def test_a_environment_with_volatile_snapshots_passes() -> None:
    assert found(InMemory) == set()


def test_volatile_snapshot_that_is_the_state_itself() -> None:
    class Broken(InMemory):
        def snapshot(self) -> Any:
            return Volatile(self.state)

    assert "sharing" in found(Broken)


def test_restore_that_takes_the_volatile_state_over() -> None:
    class Broken(InMemory):
        def restore(self, snapshot: Any) -> None:
            self.state = snapshot.state

    assert "sharing" in found(Broken)


def test_restore_of_a_volatile_snapshot_that_forgets() -> None:
    class Broken(InMemory):
        def restore(self, snapshot: Any) -> None:
            self.state = {**self.state, "log": list(snapshot.state["log"])}

    assert "restore" in found(Broken)


def test_a_random_environment_without_snapshots() -> None:
    class Broken(Counter):
        def step(self, action: str) -> Observation:
            seen = super().step(action)
            return Observation(f"{seen.text} {random.random()}", terminated=seen.terminated)

        def snapshot(self) -> Any:
            return None

        def key(self) -> str | None:
            return None

    assert "reset" in found(Broken)


def test_state_shared_behind_a_environment_without_snapshots() -> None:
    class Broken(Counter):
        total = [0]  # noqa: RUF012

        def reset(self, task: Task, seed: int) -> Observation:
            self.total[0] = 0
            return super().reset(task, seed)

        def step(self, action: str) -> Observation:
            self.total[0] += 1
            return Observation(f"{super().step(action).text} {self.total[0]}")

        def snapshot(self) -> Any:
            return None

        def key(self) -> str | None:
            return None

    assert "sharing" in found(Broken)


def test_a_environment_that_cannot_be_closed() -> None:
    class Broken(Counter):
        def close(self) -> None:
            raise RuntimeError("stuck")

    assert "reset" in found(Broken)


def test_environments_are_closed() -> None:
    closed = []

    class Closing(Counter):
        opened = 0

        def reset(self, task: Task, seed: int) -> Observation:
            Closing.opened += 0 if hasattr(self, "begun") else 1
            self.begun = True
            return super().reset(task, seed)

        def close(self) -> None:
            closed.append(self)

    assert found(Closing) == set()
    assert Closing.opened == len(closed) > 10


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}] * 2,
        [{"name": "a", "parameters": {"type": "object"}}],
        [{"type": "function", "function": {"name": "a", "parameters": {"a": "integer"}}}],
        [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {1, 2}}}}],
    ],
)
def test_tools_that_no_endpoint_accepts(tools: list) -> None:
    class Broken(CounterEnvironment):
        pass

    Broken.tools = tools
    assert found(Counter, Broken) == {"tools"}


def test_a_list_of_tasks_may_be_shorter_than_asked_for() -> None:
    class Listed(CounterEnvironment):
        def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
            every = super().task_set(split, 2)
            if split == "tune":
                raise UserError("no task of the split 'tune'")
            return TaskSet.of(list(every)[:n])

    assert found(Counter, Listed) == set()


def test_a_environment_that_crashes_is_a_finding() -> None:
    class Broken(CounterEnvironment):
        def make(self) -> Any:
            raise OSError("no such environment")

    problems = check_env(Broken())
    assert all("OSError: no such environment" in problem.message for problem in problems)
    assert "reset" in {problem.check for problem in problems}
