"""Which step lost my agent's run? An agent and an environment of my own, some attempts, and one question."""

from __future__ import annotations

import random
from typing import Any

import ramify
from ramify import Observation, Task

ROOMS = {
    "You are in the hall. Doors: cellar, kitchen.": ["go kitchen", "go kitchen", "go cellar"],
    "You are in the kitchen. On the table: a key, a cup.": ["take key", "take key", "take cup"],
    "A red door and the garage.": ["open red-door", "open red-door", "open red-door", "go garage"],
}


class House:
    """Fetch the lamp behind the red door. From the cellar one comes back; from the garage one does not."""

    max_turns, system = 8, "Fetch the lamp."

    def reset(self, task: Task, seed: int) -> Observation:
        self.done: list[str] = []
        return Observation(next(iter(ROOMS)))

    def step(self, action: str) -> Observation:
        self.done.append(action)
        if action.startswith("go cellar"):
            return Observation(next(iter(ROOMS)))
        if action.startswith("go kitchen"):
            return Observation(list(ROOMS)[1])
        if action.startswith("take"):
            return Observation(list(ROOMS)[2])
        won = action == "open red-door" and "take key" in self.done
        return Observation("The lamp!" if won else "It is dark.", float(won), terminated=True, outcome=won)

    def snapshot(self) -> Any:
        return list(self.done)

    def restore(self, snapshot: Any) -> None:
        self.done = list(snapshot)

    def key(self) -> str | None:
        return None


def agent(messages: list[dict[str, Any]], key: int) -> str:
    return random.Random(key).choice(ROOMS[messages[-1]["content"]])


ramify.play(agent, House, [{"id": "lamp"}], attempts=8, out="runs/lamp")
why = ramify.why("runs/lamp", model=agent, env=House)
print(why.headline)
for step in why.steps:
    print(f"  {step.action}: {step.after}{' <-' if step.stands_out else ''}")
print(f"{why.samples} continuations, and {why.free} attempts that were there")
