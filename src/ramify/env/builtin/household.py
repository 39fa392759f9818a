"""A household text environment: find the right key, open the door, take the thing in the vault.

States repeat (attempts keep passing through the same rooms with the same things in hand) and two mistakes cannot be taken back:
a wrong key snaps in the lock, and a chute ends in a cellar without exits. Neither is announced as the end of the episode, so an
agent wanders on until the turn limit, as agents do.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import canonical_json
from ramify.base.registry import register
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set

ROOMS = ("hall", "kitchen", "bedroom", "bathroom", "study", "garden", "garage", "attic", "pantry", "porch", "library", "nursery")
COLOURS = ("red", "blue", "green", "white", "black", "gold")
THINGS = ("lamp", "book", "cup", "clock", "doll", "coin", "map", "ring", "hat", "bell")


class Household:
    """One episode. The state is small and JSON: room, what is held, where things lie, whether the lock is open or jammed."""

    system = ""

    def __init__(self, max_turns: int = 12) -> None:
        self.max_turns = max_turns
        self._task: dict[str, Any] = {}
        self._state: dict[str, Any] = {}

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``; the environment is deterministic, so ``seed`` changes nothing."""
        missing = sorted({"exits", "items", "start", "door", "door_room", "thing"} - set(task.data))
        if missing:
            raise UserError(f"task '{task.id}' lacks {', '.join(missing)}, which the household environment needs")
        self._task = dict(task.data)
        self._state = {"room": task.data["start"], "hold": None, "items": dict(task.data["items"]), "lock": "shut"}
        return Observation(f"Goal: take the {task.data['thing']} behind the {task.data['door']}-door. {self._look()}")

    def step(self, action: str) -> Observation:
        """Apply ``go ROOM``, ``take THING``, ``open COLOUR-door``, or anything else (which does nothing)."""
        if not self._task:
            raise InfrastructureError("env", "step before reset")
        verb, _, what = action.strip().partition(" ")
        moves = {"go": self._go, "take": self._take, "open": self._open}
        note = moves[verb](what) if verb in moves else None
        if self._state["hold"] == self._task["thing"]:
            return Observation(f"You have the {self._task['thing']}.", reward=1.0, terminated=True, outcome=True)
        text = self._look() if note is not None else "Nothing happens."
        return Observation(f"{note} {text}" if note else text, valid=note is not None)

    def _go(self, where: str) -> str | None:
        if where not in self._exits():
            return None
        self._state["room"] = "cellar" if where == "chute" else where
        return ""

    def _take(self, what: str) -> str | None:
        """Hands hold one thing: taking another leaves the first where one stands."""
        items = self._state["items"]
        if items.get(what) != self._state["room"]:
            return None
        if self._state["hold"]:
            items[self._state["hold"]] = self._state["room"]
        self._state["hold"] = what
        del items[what]
        return ""

    def _open(self, what: str) -> str | None:
        colour = self._task["door"]
        hold = self._state["hold"]
        if self._state["room"] != self._task["door_room"] or what != f"{colour}-door" or self._state["lock"] != "shut":
            return None
        if hold is None or not hold.endswith("-key"):
            return None
        if hold == f"{colour}-key":
            self._state["lock"] = "open"
            return ""
        self._state["lock"], self._state["hold"] = "jammed", None
        return "The key snaps."

    def _exits(self) -> list[str]:
        room = self._state["room"]
        if room == "vault":
            return [self._task["door_room"]]
        exits = list(self._task["exits"].get(room, []))
        if room == self._task["door_room"] and self._state["lock"] == "open":
            exits.append("vault")
        return exits

    def _look(self) -> str:
        room = self._state["room"]
        exits = self._exits()
        if room == self._task["door_room"] and self._state["lock"] != "open":
            exits.append(f"{self._task['door']}-door")
        here = sorted(item for item, at in self._state["items"].items() if at == room)
        parts = [room, "exits " + " ".join(exits) if exits else "no exits"]
        if here:
            parts.append("here " + " ".join(here))
        if self._state["hold"]:
            parts.append("hold " + self._state["hold"])
        return ". ".join(parts) + "."

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON, without the task, which ``reset`` has given."""
        return {**self._state, "items": dict(self._state["items"])}

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._state = {**snapshot, "items": dict(snapshot["items"])}

    def key(self) -> str:
        """The state itself, canonically: equal keys have equal futures."""
        return canonical_json(self._state)


def make_task(task_id: str, rng: np.random.Generator) -> Task:
    """A random house: a tree of four to six rooms with one extra way, two keys, a locked vault, a chute."""
    return Task(task_id, make_floor(rng, 4, 6))


def make_floor(rng: np.random.Generator, least: int, most: int) -> dict[str, Any]:
    """A tree of ``least`` to ``most`` rooms with one extra way, two keys, a locked vault with a thing in it, a chute."""
    rooms = [str(r) for r in rng.permutation(ROOMS)[: rng.integers(least, most + 1)]]
    exits: dict[str, list[str]] = {room: [] for room in rooms}
    for i in range(1, len(rooms)):
        _connect(exits, rooms[i], rooms[int(rng.integers(0, i))])
    _connect(exits, *(str(r) for r in rng.permutation(rooms)[:2]))
    right, wrong = (str(c) for c in rng.permutation(COLOURS)[:2])
    thing = str(rng.choice(THINGS))
    items = {f"{right}-key": str(rng.choice(rooms)), f"{wrong}-key": str(rng.choice(rooms)), thing: "vault"}
    chute = str(rng.choice(rooms))
    exits[chute].append("chute")
    door_room = str(rng.choice(rooms))
    return {"exits": exits, "items": items, "start": rooms[0], "door": right, "door_room": door_room, "thing": thing}


def _connect(exits: dict[str, list[str]], a: str, b: str) -> None:
    if b not in exits[a]:
        exits[a].append(b)
        exits[b].append(a)


def route(exits: dict[str, list[str]], start: str, goal: str) -> list[str]:
    """Shortest list of rooms from ``start`` (left out) to ``goal``; empty when there already."""
    frontier, seen = [[start]], {start}
    for way in frontier:
        if way[-1] == goal:
            return way[1:]
        for room in exits.get(way[-1], []):
            if room not in seen and room != "chute":
                seen.add(room)
                frontier.append([*way, room])
    raise UserError(f"no way from {start} to {goal}")


def next_action(task: Task, state: dict[str, Any]) -> str | None:
    """The next step of a shortest way to win from ``state`` by someone who knows the house; None where nothing wins any more."""
    data, room, key = task.data, state["room"], f"{task.data['door']}-key"
    if room == "cellar" or state["lock"] == "jammed":
        return None
    if state["lock"] == "open":
        if room == "vault":
            return f"take {data['thing']}"
        return _towards(data["exits"], room, data["door_room"]) or "go vault"
    if state["hold"] == key:
        return _towards(data["exits"], room, data["door_room"]) or f"open {data['door']}-door"
    return _towards(data["exits"], room, state["items"][key]) or f"take {key}"


def _towards(exits: dict[str, list[str]], start: str, goal: str) -> str | None:
    way = route(exits, start, goal)
    return f"go {way[0]}" if way else None


def possible_actions(task: Task, state: dict[str, Any]) -> list[str]:
    """Every action the text of ``state`` suggests, mistakes included."""
    room, data = state["room"], task.data
    if room == "vault":
        exits = [data["door_room"]]
    else:
        exits = list(data["exits"].get(room, []))
    actions = [f"go {where}" for where in exits]
    actions += [f"take {item}" for item, at in sorted(state["items"].items()) if at == room]
    if room == data["door_room"]:
        actions.append("go vault" if state["lock"] == "open" else f"open {data['door']}-door")
    return actions


class Demonstrated(Protocol):
    """An environment of houses, with someone who knows them."""

    max_turns: int

    def make(self) -> Household:
        """A fresh episode."""
        ...

    def best(self, task: Task, state: dict[str, Any]) -> str | None:
        """The next step of a shortest way to win; None where nothing wins any more."""
        ...

    def actions(self, task: Task, state: dict[str, Any]) -> list[str]:
        """Every action the text of ``state`` suggests, mistakes included."""
        ...


def demonstrate(
    task: Task,
    noise: float,
    rng: np.random.Generator,
    max_turns: int | None = None,
    environment: Demonstrated | None = None,
) -> list[tuple[str, str]]:
    """One noisy demonstration as (observation, action) pairs: each step is the next best one, or with probability ``noise``
    any action the text suggests, the irrevocable mistakes included. Ends at success, at the turn limit, or where nothing wins any
    more: nobody shows how to continue from there."""
    houses = environment or HouseholdEnvironment()
    env = houses.make()
    observation, pairs = env.reset(task, 0), []
    for _ in range(max_turns or houses.max_turns):
        state = env.snapshot()
        options = houses.actions(task, state)
        best = houses.best(task, state)
        if best is None:
            break
        action = best if rng.random() >= noise else str(rng.choice(options))
        pairs.append((observation.text, action))
        observation = env.step(action)
        if observation.terminated:
            break
    return pairs


def shortest(task: Task, environment: Demonstrated | None = None) -> int:
    """Turns of the shortest win."""
    return len(demonstrate(task, 0.0, np.random.default_rng(0), 99, environment))


@register("env", "household")
class HouseholdEnvironment:
    """The household environment; tasks are houses, made from a seed, and splits never share one."""

    name = "household"

    def __init__(self, max_turns: int = 12) -> None:
        self.max_turns = max_turns

    actions, best = staticmethod(possible_actions), staticmethod(next_action)

    def make(self) -> Household:
        """A fresh episode."""
        return Household(self.max_turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` houses of a split that can be won within the turn limit."""
        return generated_task_set(
            self.name, split, n, seed, lambda rng: make_task("", rng).data,
            kind="house", digits=10, fits=lambda task: shortest(task) <= self.max_turns,
        )  # fmt: skip
