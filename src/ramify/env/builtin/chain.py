"""Chain arithmetic: a start value and steps modulo m, to be worked out in writing and ended with ``answer N``.

A reasoning task with an exact checker, of the answer and of every written step: one reply, then the episode is over. Each step
builds on the one before, so one slip decides the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import json_hash
from ramify.base.registry import register
from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set

OPERATORS = ("+", "-", "*")
_STEP = re.compile(r"(?<![0-9])([0-9]{1,9})\s*([-+*])\s*([0-9]{1,9})\s*=\s*([0-9]{1,9})(?![0-9])")
_ANSWER = re.compile(r"\banswer\s+([0-9]{1,9})(?![0-9])")


@dataclass(frozen=True, slots=True)
class Checked:
    """What a reply got right."""

    answer: int | None
    """The last answer written; None where there is none."""
    right: bool
    """Whether that answer is the task's."""
    steps: tuple[bool, ...]
    """For each written step: it is the task's step at that place,
    worked on from the result written before, and its result is right."""

    @property
    def first_error(self) -> int | None:
        """Index of the first wrong step, or None."""
        return self.steps.index(False) if False in self.steps else None


def apply(value: int, operator: str, operand: int, mod: int) -> int:
    """One step of a chain."""
    result = {"+": value + operand, "-": value - operand, "*": value * operand}[operator]
    return result % mod


def prompt(task: Task) -> str:
    """The task in words: ``start 7 ; + 5 ; * 3 ; - 4 ; mod 23``."""
    steps = [f"{operator} {operand}" for operator, operand in task.data["steps"]]
    return " ; ".join([f"start {task.data['start']}", *steps, f"mod {task.data['mod']}"])


def true_answer(task: Task) -> int:
    """The value at the end of the chain."""
    value: int = task.data["start"]
    for operator, operand in task.data["steps"]:
        value = apply(value, operator, operand, task.data["mod"])
    return value


def check(task: Task, reply: str) -> Checked:
    """Check a reply's answer and its written steps; anything else in the reply is ignored."""
    value, steps = task.data["start"], []
    for i, (left, operator, right, result) in enumerate(_STEP.findall(reply)):
        expected = i < len(task.data["steps"]) and [operator, int(right)] == list(task.data["steps"][i])
        steps.append(expected and int(left) == value and int(result) == apply(value, operator, int(right), task.data["mod"]))
        value = int(result)
    answers = _ANSWER.findall(reply)
    answer = int(answers[-1]) if answers else None
    return Checked(answer, answer == true_answer(task), tuple(steps))


def solve(task: Task, mistakes: float = 0.0, seed: int = 0) -> str:
    """A worked reply. With probability ``mistakes`` a step's result is wrong (any other value),
    and the rest continues from it."""
    rng = generator(seed, "chain-demonstration", task.id)
    value, mod, lines = task.data["start"], task.data["mod"], []
    for operator, operand in task.data["steps"]:
        result = apply(value, operator, operand, mod)
        if rng.random() < mistakes:
            result = (result + int(rng.integers(1, mod))) % mod
        lines.append(f"{value} {operator} {operand} = {result}")
        value = result
    return " ; ".join([*lines, f"answer {value}"])


class Chain:
    """One episode: the task, one reply, the outcome."""

    system = ""
    max_turns = 1

    def __init__(self, name_error: bool = False) -> None:
        self._name_error = name_error
        self._task: Task | None = None
        self._done = False

    def reset(self, task: Task, seed: int) -> Observation:
        """Show ``task``; nothing is random. Raises UserError where the task's data is not a chain."""
        _validate(task)
        self._task, self._done = task, False
        return Observation(prompt(task))

    def step(self, action: str) -> Observation:
        """Check the reply and end. A reply without an answer is a wrong one, marked invalid."""
        if self._task is None or self._done:
            raise InfrastructureError("env", "step without a running episode")
        self._done = True
        checked = check(self._task, action)
        text = "right" if checked.right else "wrong" if checked.answer is not None else "no answer"
        if self._name_error and checked.first_error is not None:
            text += f" ; step {checked.first_error + 1} is wrong"
        return Observation(text, float(checked.right), terminated=True, outcome=checked.right, valid=checked.answer is not None)

    def snapshot(self) -> dict[str, Any]:
        """The task and whether it was answered, as JSON."""
        task = self._task
        return {"id": task.id if task else None, "data": _plain(task) if task else None, "done": self._done}

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._task = None if snapshot["id"] is None else Task(snapshot["id"], snapshot["data"])
        self._done = snapshot["done"]

    def key(self) -> str:
        """The chain and whether it was answered."""
        return json_hash([_plain(self._task) if self._task else None, self._done])


@register("env", "chain")
class ChainEnvironment:
    """Chains of ``steps`` (fewest, most) steps modulo ``mod``: the more steps, the harder.

    Operands go from 1 to ``operand``, below ``mod``. ``name_error=True`` makes the closing observation name the first wrong step.
    Raises UserError on settings no chain fits.
    """

    name = "chain"

    def __init__(self, steps: tuple[int, int] = (3, 6), mod: int = 23, name_error: bool = False, operand: int = 9) -> None:
        if not 1 <= steps[0] <= steps[1]:
            raise UserError(f"chain steps must satisfy 1 <= fewest <= most, not {steps[0]} to {steps[1]}")
        if mod < 2:
            raise UserError(f"the chain's mod must be at least 2, not {mod}")
        if operand < 1:
            raise UserError(f"the chain's largest operand must be at least 1, not {operand}")
        self.steps, self.mod, self.operand, self._name_error = steps, mod, operand, name_error

    def make(self) -> Chain:
        """A fresh episode."""
        return Chain(self._name_error)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` different chains of a split (train, eval, tune, demo). Raises UserError where the settings allow fewer."""
        return generated_task_set(self.name, split, n, seed, self._random, kind="chain", hashed=json_hash)

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """Replies worth trying on ``task``: a right one and two with mistakes (for the conformance battery)."""
        return [solve(task), solve(task, mistakes=0.5), f"answer {(true_answer(task) + 1) % task.data['mod']}"]

    def _random(self, rng: np.random.Generator) -> dict[str, Any]:
        count = int(rng.integers(self.steps[0], self.steps[1] + 1))
        most = min(self.operand, self.mod - 1)
        steps = [[OPERATORS[int(rng.integers(3))], int(rng.integers(1, most + 1))] for _ in range(count)]
        return {"start": int(rng.integers(self.mod)), "steps": steps, "mod": self.mod}


def _plain(task: Task) -> dict[str, Any]:
    return {"start": task.data["start"], "steps": [list(step) for step in task.data["steps"]], "mod": task.data["mod"]}


def _validate(task: Task) -> None:
    data = task.data
    missing = sorted({"start", "steps", "mod"} - set(data))
    if missing:
        raise UserError(f"task '{task.id}' lacks {', '.join(missing)}, which the chain environment needs")
    if not _natural(data["start"]) or not _natural(data["mod"]) or data["mod"] < 2:
        raise UserError(f"task '{task.id}': start must be a whole number from 0 and mod one from 2")
    steps = data["steps"]
    if not isinstance(steps, Sequence) or not steps or not all(_is_step(step) for step in steps):
        raise UserError(f"task '{task.id}': steps must be a list of pairs like [\"+\", 5] with one of {' '.join(OPERATORS)}")


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _is_step(step: Any) -> bool:
    return isinstance(step, Sequence) and len(step) == 2 and step[0] in OPERATORS and _natural(step[1])
