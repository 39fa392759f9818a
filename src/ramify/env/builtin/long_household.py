"""A long household: three or four floors, each a small house with a locked door, and the thing on the last one.

Ten to 26 right steps in 28 turns. A wrong key snaps and a chute ends in a cellar on every floor, so a mistake that cannot be
undone may come as late as the last steps; none is announced. Stairs lead up only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.env.builtin.household import Household, make_floor, next_action, possible_actions, shortest
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set

LEAST, MOST = 10, 26
"""Steps of the shortest win."""
_NEEDED = ("exits", "items", "start", "door", "door_room")


class LongHousehold(Household):
    """One episode. The state is that of the present floor, and its number: nothing of the floors below can be reached again."""

    def __init__(self, max_turns: int = 28) -> None:
        super().__init__(max_turns)
        self._floors: list[dict[str, Any]] = []

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``; the environment is deterministic, so ``seed`` changes nothing.
        Raises UserError on a task that lacks something."""
        floors = task.data.get("floors")
        if not isinstance(floors, list) or not floors or "thing" not in task.data:
            raise UserError(f"task '{task.id}' lacks floors or thing, which the long household environment needs")
        for number, floor in enumerate(floors, 1):
            if missing := sorted(set(_NEEDED) - set(floor)):
                raise UserError(f"task '{task.id}': floor {number} lacks {', '.join(missing)}")
        self._floors = [dict(floor) | {"thing": task.data["thing"]} for floor in floors]
        self._enter(0)
        doors = ", ".join(f"{floor['door']}-door" for floor in floors)
        return Observation(f"Goal: take the {task.data['thing']} behind {doors}. {self._look()}")

    def _enter(self, floor: int) -> None:
        self._task = self._floors[floor]
        start, items = self._task["start"], dict(self._task["items"])
        self._state = {"floor": floor, "room": start, "hold": None, "items": items, "lock": "shut"}

    def _go(self, where: str) -> str | None:
        if where == "stairs" and where in self._exits():
            self._enter(self._state["floor"] + 1)
            return ""
        return super()._go(where)

    def _exits(self) -> list[str]:
        last = self._state["floor"] == len(self._floors) - 1
        return [way if last or way != "vault" else "stairs" for way in super()._exits()]

    def _look(self) -> str:
        return f"floor {self._state['floor'] + 1}. {super()._look()}"

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        super().restore(snapshot)
        self._task = self._floors[snapshot["floor"]]


def _floor(task: Task, state: dict[str, Any]) -> tuple[Task, bool]:
    """The present floor as a house, and whether it is the last."""
    floors = task.data["floors"]
    return Task(task.id, dict(floors[state["floor"]]) | {"thing": task.data["thing"]}), state["floor"] == len(floors) - 1


def best(task: Task, state: dict[str, Any]) -> str | None:
    """The next step of a shortest way to win by someone who knows the house; None where nothing wins any more."""
    floor, last = _floor(task, state)
    action = next_action(floor, state)
    return action if last or action != "go vault" else "go stairs"


def actions(task: Task, state: dict[str, Any]) -> list[str]:
    """Every action the text of ``state`` suggests, mistakes included."""
    floor, last = _floor(task, state)
    return [action if last or action != "go vault" else "go stairs" for action in possible_actions(floor, state)]


@register("env", "long-household")
class LongHouseholdEnvironment:
    """The long household environment: houses of three or four floors, 10 to 26 steps to win,
    irrevocable mistakes on each floor."""

    name = "long-household"
    best, actions = staticmethod(best), staticmethod(actions)

    def __init__(self, max_turns: int = 28) -> None:
        self.max_turns = max_turns

    def make(self) -> LongHousehold:
        """A fresh episode."""
        return LongHousehold(self.max_turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` houses of a split that can be won in 10 to 26 steps."""
        return generated_task_set(
            self.name, split, n, seed, _sampled, kind="long-house", digits=10,
            fits=lambda task: LEAST <= shortest(task, self) <= min(MOST, self.max_turns),
        )  # fmt: skip


def _sampled(rng: np.random.Generator) -> dict[str, Any]:
    floors = [make_floor(rng, 3, 4) for _ in range(int(rng.integers(3, 5)))]
    thing = floors[-1]["thing"]
    for number, floor in enumerate(floors, 1):
        lost = floor.pop("thing")
        if number < len(floors):
            del floor["items"][lost]
    return {"floors": floors, "thing": thing}
