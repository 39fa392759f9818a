"""What a credit rule pays for one more turn that changes nothing: counted over all outcomes, so without an error of sampling.

An agent that is to "go" first "waits" with a chance, and then goes; how the attempt ends is a coin that does not know of it. The
policy gradient should not move the choice to wait: a rule whose baseline depends on how many turns the attempt itself took does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import numpy as np

from ramify.base import registry
from ramify.score.credit.protocol import CreditGroup, CreditRule, assigned, find_rule
from ramify.score.steps import OPTIONAL
from ramify.trace.node import make_node
from ramify_experiments.lab import Checks, ResultCache

CASES = {"apart": 1, "loop": 2}
"""Most waits of an attempt. ``apart``: waiting leads to a state of its own; ``loop``: back to the state it was chosen in."""
SUCCESS, WAIT, ATTEMPTS = 0.3, 0.4, 4
"""Chance of success, chance of waiting, attempts at the task."""


def turn_bonus(spec: str, case: str, settings: Mapping[str, Any] | None = None) -> float:
    """Expected credit of waiting minus that of going, of an attempt's choices: the policy gradient of the logit of waiting over
    that of a credit of 1 on it. 0 where the rule does not care for turns."""
    rule, most = find_rule(spec, settings), CASES[case]
    kinds = [(waits, won) for waits in range(most + 1) for won in (False, True)]
    chance = {
        (waits, won): WAIT**waits * (1 - WAIT if waits < most else 1) * (SUCCESS if won else 1 - SUCCESS) for waits, won in kinds
    }
    gradient = 0.0
    for attempts in combinations_with_replacement(kinds, ATTEMPTS):
        ways = factorial(ATTEMPTS) / prod(factorial(n) for n in Counter(attempts).values())
        gradient += ways * prod(chance[kind] for kind in attempts) * _gradient(rule, attempts, case)
    choices = sum(WAIT**turn for turn in range(most))
    return gradient / (ATTEMPTS * choices * WAIT * (1 - WAIT))


def count_turns(checks: Checks, cells: ResultCache) -> None:
    """The bonus of every rule here, at its own settings; and of g2po without the two causes of it."""
    rules: dict[str, tuple[str, Mapping[str, Any]]] = {name: (name, {}) for name in registry.names("credit")}
    causes: dict[str, dict[str, Any]] = {"gamma 1": {"gamma": 1.0}, "norm mean": {"norm": "mean"}}
    rules |= {f"g2po, {cause}": ("g2po", settings) for cause, settings in causes.items()}
    rules["g2po, gamma 1, norm mean"] = "g2po", {"gamma": 1.0, "norm": "mean"}
    rules["step-returns, gamma 1"] = "step-returns", {"gamma": 1.0}
    rules["grpo, weight step"] = "grpo", {"weight": "step"}
    for name, (spec, settings) in rules.items():
        for case in CASES:
            arguments = {"spec": spec, "case": case, "settings": settings}
            checks.value(f"credit of one more turn, {case}, {name}", cells.get(f"turn {case} {name}", turn_bonus, **arguments), 1)


def _gradient(rule: CreditRule, attempts: tuple[tuple[int, bool], ...], case: str) -> float:
    """Policy gradient of the logit of waiting in one group of attempts."""
    group = uneven_group(attempts, case)
    credit = assigned(rule, group)
    total = 0.0
    for i, (waits, _) in enumerate(attempts):
        for turn in range(min(waits + 1, CASES[case])):
            total += float(credit.get(f"{i}.{turn}", np.zeros(1))[0]) * ((turn < waits) - WAIT)
    return total


def uneven_group(attempts: tuple[tuple[int, bool], ...], case: str) -> CreditGroup:
    """Attempts at one task, each by how often it waited and whether it succeeded, of one node a step."""
    columns: dict[str, list[Any]] = {name: [] for name in ("task_id", "attempt_id", "step", "reward", *OPTIONAL)}
    nodes = {}
    for i, (waits, won) in enumerate(attempts):
        states = ["start"] * (waits + 1) if case == "loop" else ["start", "waited"][: waits + 1]
        for step, state in enumerate([*states, "door"]):
            last, name = step == len(states), f"{i}.{step}"
            action = "open" if last else "wait" if step < waits else "go"
            nodes[name] = make_node("t", None, 0, "assistant", action)
            row = {"task_id": "t", "attempt_id": str(i), "step": step, "reward": float(won and last), "anchor": {"key": state}}
            row |= {"action": action, "done": last, "truncated": False, "valid": True, "node": name}
            for column, cells in columns.items():
                cells.append(row[column])
    success = np.array([won for _, won in attempts])
    return CreditGroup(columns, success.astype(float), success, nodes)
