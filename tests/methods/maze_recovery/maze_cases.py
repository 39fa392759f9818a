"""Traces through mazes of W branches of K diamonds, their states the places."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

W, K = 3, 3


def way(branch: int) -> list[str]:
    """The states of the shortest path to a leaf, the leaf included."""
    return ["source", "fork", *(f"b{branch} {side}{k}" for k in range(K) for side in "lr"), f"b{branch} leaf"]


def trace(states: list[str], task: str, attempt: Any = None, success: bool = True, **fields: Any) -> dict[str, Any]:
    """The walk through ``states``; the last one ends it."""
    steps = [{"state": a, "action": f"go {b}"} for a, b in pairwise(states)]
    return {"task_id": task, "steps": steps, "success": success} | ({} if attempt is None else {"attempt_id": attempt}) | fields


def neighbours(state: str) -> list[str]:
    if state == "source":
        return ["fork"]
    if state == "fork":
        return ["source", *(f"b{w} l0" for w in range(W))]
    path = way(int(state[1]))
    at = path.index(state)
    return [path[at - 1], *path[at + 1 : at + 2]]


def base_walks(n: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        states, goal = ["source"], f"b{i % W} leaf"
        while states[-1] != goal:
            ways = neighbours(states[-1])
            states.append(ways[rng.integers(len(ways))])
        made.append(trace(states, goal))
    return made


GOLDEN = [trace(way(w), f"b{w} leaf", i) for i in range(5) for w in range(W)]
DETOUR = [*way(1)[:-1], "b1 leaf", *way(1)[1:-1][::-1], *way(0)[2:]]
"""Into branch 1 to its leaf, all the way back to the fork, then straight to leaf 0."""
