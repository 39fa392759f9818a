"""Section 7(a1): why a gate works. Families of requests with slots, tools by anti-unification, no language model.

A family has 8 slots, each of which varies or is constant. A tool is the pattern of the requests that it was made of: a slot that
did not differ among them is hard-coded. One whose hard-coded slots disagree with a request is wrong and looks right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.earned_code_memory.algorithm import HOLE, anti_unify, failing, guard, guarded

FAMILIES, SLOTS, VALUES, VARIES = 24, 8, 10, 0.45
TRAIN, TEST = 90, 150
STEP = {"none": (0.07, 1700), "plan": (0.035, 1100)}
"""Chance that a step fails, and its tokens."""
RUN_STEPS, RUN = 2, (0.035, 1700)
"""A tool's run takes this many steps, each of which fails and costs so."""
TRUST = 0.8
"""Chance that a wrong tool's result is believed."""
REFLECT, CODIFY = 3000, 8000
"""Tokens of a reflection and of a tool."""
OFFERED, RELATED, SEEN = 0.5, 0.5, 0.8
"""Of new families: chance that a near-miss tool is offered, that its family shares a constant,
that a check sees a wrong result."""
ARMS = {
    "none": (False, None), "text": (True, None), "code-only": (False, 1), "eager": (True, 1), "gated": (True, 3),
    **{f"gated, K = {k}": (True, k) for k in (1, 2, 4, 6)},
}  # fmt: skip
"""Whether there is text, and the gate."""


def families(rng: np.random.Generator, count: int = FAMILIES) -> list[dict[str, Any]]:
    """Families with their varying slots (8,), constants (8,) and number of steps."""
    return [
        {"varies": rng.random(SLOTS) < VARIES, "fixed": rng.integers(0, VALUES, SLOTS), "steps": int(rng.integers(4, 10))}
        for _ in range(count)
    ]


def request(family: dict[str, Any], rng: np.random.Generator) -> tuple[int, ...]:
    """A request: the values of the 8 slots."""
    return tuple(np.where(family["varies"], rng.integers(0, VALUES, SLOTS), family["fixed"]).tolist())


def words(row: Sequence[int]) -> str:
    """A request as text, so that the guard is the one that a memory has."""
    return " ".join(f"s{i}v{value}" for i, value in enumerate(row))


def attempt(rng: np.random.Generator, steps: int, how: tuple[float, int]) -> tuple[bool, int]:
    """Whether a task of so many steps succeeds, and its tokens."""
    return bool((rng.random(steps) >= how[0]).all()), steps * how[1]


def simulate(seed: int, arm: str, disjoint: bool = False, safe: bool = False) -> dict[str, Any]:
    """One seed of an arm: accuracy, tokens a task, construction tokens, tools, tools that were never called."""
    text, k = ARMS[arm]
    rng, known = generator(seed, "a1", "world"), families(generator(seed, "a1", "families"))
    weights = 1 / np.arange(1, FAMILIES + 1)
    weights /= weights.sum()
    seen: dict[int, list[tuple[int, ...]]] = {}
    tools: dict[int, dict[str, Any]] = {}
    for _ in range(TRAIN):
        family = int(rng.choice(FAMILIES, p=weights))
        row = request(known[family], rng)
        rows = seen.setdefault(family, [])
        if row not in rows:  # a repeat is no evidence
            rows.append(row)
            if k is not None and family not in tools and len(rows) >= k:
                tools[family] = {"pattern": anti_unify(*rows), "guard": guard(map(words, rows)), "calls": 0, "failures": 0}
    new = [_relative(known[i], generator(seed, "a1", "new", i)) for i in range(FAMILIES)]
    completion = generator(seed, "a1", "test")
    won, spent = 0, 0
    for task in range(TEST):
        family = int(completion.choice(FAMILIES, p=weights))
        own = new[family] if disjoint else known[family]
        row, luck = request(own, completion), generator(seed, "a1", "task", task)
        tool = tools.get(family)
        if disjoint and luck.random() >= OFFERED:
            tool = None
        ok, cost = _served(own, row, luck, text and (family in seen) and not disjoint, tool, disjoint, safe)
        won, spent = won + ok, spent + cost
    building = REFLECT * TRAIN * (text or k is not None) + CODIFY * len(tools)
    unused = sum(tool["calls"] == 0 for tool in tools.values())
    return {"accuracy": won / TEST, "tokens": spent / TEST, "construction": building, "tools": len(tools), "unused": unused}


def _relative(family: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A new family near to one: each slot is that of its relative or its own."""
    (other,) = families(rng, 1)
    kept = rng.random(SLOTS) < RELATED
    return other | {
        "varies": np.where(kept, family["varies"], other["varies"]),
        "fixed": np.where(kept, family["fixed"], other["fixed"]),
    }


def _served(
    family: dict[str, Any],
    row: tuple[int, ...],
    luck: np.random.Generator,
    plan: bool,
    tool: dict[str, Any] | None,
    near_miss: bool,
    safe: bool,
) -> tuple[bool, int]:
    by_hand = STEP["plan" if plan else "none"]
    if safe and tool is not None and (not guarded(tool["guard"], words(row)) or failing(tool["failures"], tool["calls"], 0.2)):
        tool = None
    if tool is None:
        return attempt(luck, family["steps"], by_hand)
    tool["calls"] += 1
    right = not near_miss and all(value in (HOLE, given) for value, given in zip(tool["pattern"], row, strict=True))
    ran, cost = attempt(luck, RUN_STEPS, RUN)
    if right:
        return ran, cost
    believed = luck.random() < TRUST
    if safe and luck.random() < SEEN:
        tool["failures"] += 1
        believed = False
    if believed:
        return False, cost
    ok, more = attempt(luck, family["steps"], by_hand)
    return ok, cost + more
