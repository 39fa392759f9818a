"""A walk along the numbers 0 to 9 to a goal, one word a turn: an environment of several turns in which states come back, easy
enough for a model of 100 million weights to win some of its attempts.
"""

from __future__ import annotations

import re
from typing import Any

from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet

TOP, TURNS = 9, 8
"""The largest number, and the most turns of an attempt."""
WALK = "python:ramify_experiments.walk:WalkEnvironment"
"""The environment, as a verb takes it."""
PLAYED = ("--env", WALK, "--max-reply", 4, "--temperature", 0.7)
"""How it is played: at the full temperature a small model talks of something else."""
_WORD = re.compile(r"\b(up|down)\b", re.IGNORECASE)


class WalkEpisode:
    """One attempt. The state is the number, the goal and how many turns are left."""

    system, max_turns = "", TURNS

    def __init__(self) -> None:
        self._goal = self._at = self._turns = 0

    def reset(self, task: Task, seed: int) -> Observation:
        """Start at the task's number; nothing is left to chance."""
        self._goal, self._at, self._turns = task.data["goal"], task.data["start"], 0
        return Observation(self._shown())

    def step(self, action: str) -> Observation:
        """The first ``up`` or ``down`` of the reply moves by one; a reply with neither, or a step over an end, moves nothing."""
        words = _WORD.findall(action)
        self._turns += 1
        if words:
            self._at = min(TOP, max(0, self._at + (1 if words[0].lower() == "up" else -1)))
        if self._at == self._goal:
            return Observation("The goal.", reward=1.0, terminated=True, outcome=True)
        if self._turns == TURNS:
            return Observation("Too late.", terminated=True, outcome=False)
        return Observation(self._shown(), valid=bool(words))

    def _shown(self) -> str:
        return f"The number is {self._at}. The goal is {self._goal}. Answer with one word: up or down."

    def snapshot(self) -> dict[str, int]:
        """The state."""
        return {"goal": self._goal, "at": self._at, "turns": self._turns}

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._goal, self._at, self._turns = snapshot["goal"], snapshot["at"], snapshot["turns"]

    def key(self) -> str:
        """Number and goal: what the agent is told."""
        return f"{self._at} to {self._goal}"


class WalkEnvironment:
    """Walks from a number to another, up to five steps away: 70 tasks, the same ones in every split."""

    name = "walk"

    def make(self) -> WalkEpisode:
        """See :class:`ramify.env.protocol.Environment`."""
        return WalkEpisode()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` of them, in an order that looks random."""
        pairs = [(start, goal) for start in range(TOP + 1) for goal in range(TOP + 1) if 0 < abs(start - goal) <= 5]
        chosen = (pairs[at] for at in generator(0, "walk").permutation(len(pairs))[:n].tolist())
        return TaskSet.of(Task(f"walk-{start}-{goal}", {"start": start, "goal": goal}) for start, goal in chosen)
