"""A row of lamps; each switch toggles its own lamp and the next one. Goal: all on."""

from __future__ import annotations

import re
from typing import Any

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import json_hash
from ramify.base.registry import register
from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet

SPLITS = ("train", "eval", "tune")
LAMPS = 6
_PRESS = re.compile(r"press ([0-9])")


def pressed(lamps: list[bool], switch: int) -> list[bool]:
    """The lamps after one switch: its own lamp and the next one change."""
    return [on != (i in (switch, (switch + 1) % len(lamps))) for i, on in enumerate(lamps)]


def shown(lamps: list[bool]) -> str:
    """The lamps as the agent sees them: ``lamps 0:on 1:off ...``."""
    return "lamps " + " ".join(f"{i}:{'on' if on else 'off'}" for i, on in enumerate(lamps))


class Lights:
    """One episode."""

    system = "Turn all lamps on. Answer with `press N`; switch N changes lamp N and the next one."
    max_turns = 8

    def __init__(self) -> None:
        self._lamps: list[bool] = []

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``; nothing is random. Raises UserError where the task has no row of lamps."""
        lamps = task.data.get("lamps")
        if not isinstance(lamps, list) or len(lamps) != LAMPS or not all(isinstance(on, bool) for on in lamps):
            raise UserError(f"task '{task.id}': 'lamps' must be a list of {LAMPS} times true or false")
        self._lamps = list(lamps)
        return Observation(shown(self._lamps))

    def step(self, action: str) -> Observation:
        """Press one switch."""
        if not self._lamps:
            raise InfrastructureError("env", "step without a running episode")
        press = _PRESS.fullmatch(action.strip())
        if press is None or int(press[1]) >= LAMPS:
            return Observation("Nothing happens. " + shown(self._lamps), valid=False)
        self._lamps = pressed(self._lamps, int(press[1]))
        won = all(self._lamps)
        return Observation(shown(self._lamps), float(won), terminated=won, outcome=True if won else None)

    def snapshot(self) -> list[bool]:
        """The lamps."""
        return list(self._lamps)

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._lamps = list(snapshot)

    def key(self) -> str:
        """The lamps, hashed."""
        return json_hash(self._lamps)


@register("env", "lights")
class LightsEnvironment:
    """A row of lamps to turn on; each switch changes two of them."""

    name = "lights"

    def make(self) -> Lights:
        """A fresh episode."""
        return Lights()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` rows that can be solved; a row's pattern and id name its split, so splits share no task."""
        if split not in SPLITS:
            raise UserError(f"unknown split '{split}'; known: {', '.join(SPLITS)}")
        tasks = []
        for i in range(n):
            lamps = [True] * LAMPS
            for switch in generator(seed, "lights", split, i).permutation(LAMPS)[: 2 + i % 3].tolist():
                lamps = pressed(lamps, switch)
            tasks.append(Task(f"{split}-{seed}-{i}", {"lamps": lamps, "row": f"{split}-{seed}-{i}"}))
        return TaskSet.of(tasks)

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """Replies worth trying, for `ramify check`."""
        return [f"press {i}" for i in range(LAMPS)]
