"""Mazes: find the exit, seeing nothing but the place one stands in and the ways out of it. Dead ends must be walked back.

Two shapes. ``grid``: a random maze on a square grid with compass ways, a spanning tree in which a tenth of the other walls is
opened. ``star``: the graph of maze-recovery's theory (a source, a fork, W branches of K diamonds with L parallel edges, one leaf
the exit), with places named and ways numbered at random, so that neither tells a task apart from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.registry import register
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set

COMPASS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
OPENED = 0.1
"""Share of the walls that the spanning tree of a grid leaves and that are opened nevertheless."""

Exits = dict[str, dict[str, str]]
"""Place -> way -> the place it leads to."""


class MazeEpisode:
    """One episode. The state is the place."""

    system = ""

    def __init__(self, max_turns: int) -> None:
        self.max_turns = max_turns
        self._task: Task | None = None
        self._place = ""

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``; the environment is deterministic, so ``seed`` changes nothing.
        Raises UserError where the data is not a maze."""
        _validate(task)
        self._task, self._place = task, task.data["start"]
        return Observation(f"Goal: find the exit. {self._look(task)}")

    def step(self, action: str) -> Observation:
        """Apply ``go WAY``; anything else does nothing."""
        if self._task is None or self._place == self._task.data["exit"]:
            raise InfrastructureError("env", "step without a running episode")
        verb, _, way = action.strip().partition(" ")
        ways = self._task.data["exits"][self._place]
        if verb != "go" or way not in ways:
            return Observation("Nothing happens.", valid=False)
        self._place = ways[way]
        if self._place == self._task.data["exit"]:
            return Observation("You are out.", reward=1.0, terminated=True, outcome=True)
        return Observation(self._look(self._task))

    def _look(self, task: Task) -> str:
        return f"{self._place}. ways {' '.join(task.data['exits'][self._place])}."

    def snapshot(self) -> dict[str, Any]:
        """The place."""
        return {"place": self._place}

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._place = snapshot["place"]

    def key(self) -> str:
        """The place: all that the future depends on."""
        return self._place


def grid(side: int, rng: np.random.Generator) -> dict[str, Any]:
    """A random maze on a grid: a spanning tree by depth-first search and a few more openings;
    start and exit are two random places."""
    names = {(x, y): f"{chr(97 + x)}{y + 1}" for y in range(side) for x in range(side)}
    ways: dict[str, set[str]] = {name: set() for name in names.values()}
    stack, seen = [(int(rng.integers(side)), int(rng.integers(side)))], set()
    seen.add(stack[0])
    while stack:
        x, y = stack[-1]
        fresh = [
            (way, (x + i, y + j)) for way, (i, j) in COMPASS.items() if (x + i, y + j) in names and (x + i, y + j) not in seen
        ]
        if not fresh:
            stack.pop()
            continue
        way, there = fresh[int(rng.integers(len(fresh)))]
        ways[names[x, y]].add(way)
        ways[names[there]].add(_OPPOSITE[way])
        seen.add(there)
        stack.append(there)
    for (x, y), name in names.items():
        for way in ("east", "south"):
            there = (x + COMPASS[way][0], y + COMPASS[way][1])
            if there in names and way not in ways[name] and rng.random() < OPENED:
                ways[name].add(way)
                ways[names[there]].add(_OPPOSITE[way])
    exits = {
        name: {way: names[x + i, y + j] for way, (i, j) in COMPASS.items() if way in ways[name]} for (x, y), name in names.items()
    }
    start, goal = (str(name) for name in rng.permutation(sorted(exits))[:2])
    return {"exits": exits, "start": start, "exit": goal}


def star(W: int, K: int, L: int, rng: np.random.Generator) -> dict[str, Any]:
    """The path-star maze, places and ways named at random. A wrong leaf has one way, back."""
    count = 2 + W * (2 * K + 1)
    names = [f"room-{i + 1}" for i in rng.permutation(count)]
    links: dict[str, list[str]] = {name: [] for name in names}

    def join(a: str, b: str, edges: int = 1) -> None:
        links[a] += [b] * edges
        links[b] += [a] * edges

    source, fork, *rest = names
    links[source].append(fork)  # nobody goes back to the source
    branches = np.array(rest).reshape(W, 2 * K + 1)
    for branch in branches.tolist():
        before = fork
        for left, right in zip(branch[:-1:2], branch[1::2], strict=True):
            join(before, left)
            join(left, right, L)
            before = right
        join(before, branch[-1])
    exits: Exits = {}
    for name, ends in links.items():
        exits[name] = {str(i + 1): ends[int(at)] for i, at in enumerate(rng.permutation(len(ends)))}
    return {"exits": exits, "start": source, "exit": str(branches[int(rng.integers(W)), -1])}


_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


def route(data: Mapping[str, Any]) -> list[str]:
    """The ways of a shortest walk from start to exit. Raises UserError where there is none."""
    came: dict[str, tuple[str, str]] = {}
    queue = [data["start"]]
    for here in queue:
        for way, there in data["exits"][here].items():
            if there not in came and there != data["start"]:
                came[there] = (here, way)
                queue.append(there)
    if data["exit"] not in came:
        raise UserError(f"no way leads from {data['start']} to {data['exit']}")
    ways, here = [], data["exit"]
    while here != data["start"]:
        here, way = came[here]
        ways.append(way)
    return ways[::-1]


@register("env", "maze")
class MazeEnvironment:
    """Mazes of one shape: ``grid``, ``grid-SIDE``, ``star`` or ``star-W-K-L``. Raises UserError on another."""

    def __init__(self, shape: str = "grid", max_turns: int = 0) -> None:
        self.name = f"maze:{shape}"
        kind, *rest = shape.split("-")
        fewest = {"grid": [2], "star": [1, 1, 1]}
        if kind not in fewest or not all(size.isdecimal() and len(size) < 4 for size in rest):
            raise UserError(f"unknown maze '{shape}': there are grid, grid-SIDE, star and star-W-K-L")
        sizes = [int(size) for size in rest] or {"grid": [5], "star": [3, 3, 3]}[kind]
        if len(sizes) != len(fewest[kind]) or any(size < least for size, least in zip(sizes, fewest[kind], strict=True)):
            raise UserError(f"maze '{shape}': a grid has a SIDE from 2, a star W, K and L from 1")
        if kind == "grid" and sizes[0] > 26:
            raise UserError(f"maze '{shape}': a grid has at most 26 columns, one for each letter")
        self.kind, self.sizes = kind, sizes
        places = sizes[0] ** 2 if kind == "grid" else sizes[0] * (2 * sizes[1] + 1)
        self.max_turns = max_turns or 4 * places

    def make(self) -> MazeEpisode:
        """A fresh episode."""
        return MazeEpisode(self.max_turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` different mazes of a split (train, eval, tune, demo). Raises UserError where the shape has fewer."""

        def sample(rng: np.random.Generator) -> dict[str, Any]:
            return grid(self.sizes[0], rng) if self.kind == "grid" else star(self.sizes[0], self.sizes[1], self.sizes[2], rng)

        return generated_task_set(self.name, split, n, seed, sample, kind="maze")

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """Every way out of the place (for the conformance battery)."""
        return [f"go {way}" for way in task.data["exits"][snapshot["place"]]]


def _validate(task: Task) -> None:
    """Raises UserError naming what is missing or leads nowhere."""
    missing = sorted({"exits", "start", "exit"} - set(task.data))
    if missing:
        raise UserError(f"task '{task.id}' lacks {', '.join(missing)}, which the maze environment needs")
    exits = task.data["exits"]
    if not isinstance(exits, Mapping) or not all(isinstance(ways, Mapping) for ways in exits.values()):
        raise UserError(f"task '{task.id}': exits must map each place to its ways, each with the place it leads to")
    for place, ways in exits.items():
        for way, there in ways.items():
            if there not in exits:
                raise UserError(f"task '{task.id}': way '{way}' of {place} leads to {there}, which has no entry in exits")
    for name in ("start", "exit"):
        if task.data[name] not in exits:
            raise UserError(f"task '{task.id}': its {name} {task.data[name]!r} has no entry in exits")
    if task.data["start"] == task.data["exit"]:
        raise UserError(f"task '{task.id}' starts at its exit")
