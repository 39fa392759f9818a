"""Tabular policies on a key-door grid: attempts, rollout trees and training on credit.

Axis legend: P tasks, L attempts per task, E = P L walkers, N steps in all, H horizon, S states; 4 moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.graph_credit.algorithm import CreditConfig, credit
from ramify.score.credit.step_returns import returns_to_go, same_step
from ramify.score.group import normalise

REWARD = 10.0
TASKS, ATTEMPTS, HORIZON = 16, 8, 60
STEP_RETURNS = "step-returns"
"""The rule that compares no states: what an attempt still gets, against the others at the same step."""


@dataclass(frozen=True)
class GridWorld:
    """P key-door tasks on one empty grid: pick up the key, then reach the goal.
    A state is a cell, plus ``cells`` with the key."""

    start: np.ndarray
    key: np.ndarray
    goal: np.ndarray
    moves: np.ndarray
    """(cells, 4) cell after each move; a move into the border stays."""

    @classmethod
    def sample(cls, rng: np.random.Generator, tasks: int, side: int) -> GridWorld:
        """Start, key and goal of every task are three different random cells."""
        places = np.argsort(rng.random((tasks, side * side)), axis=1)[:, :3]
        row, column = np.divmod(np.arange(side * side), side)
        steps = [(-1, 0), (1, 0), (0, -1), (0, 1)]
        moves = [np.clip(row + r, 0, side - 1) * side + np.clip(column + c, 0, side - 1) for r, c in steps]
        return cls(places[:, 0], places[:, 1], places[:, 2], np.stack(moves, axis=1))

    @property
    def states(self) -> int:
        """S: every cell without and with the key."""
        return 2 * len(self.moves)


@dataclass(frozen=True)
class PaddedWalks:
    """Padded attempts: ``state``, ``action``, ``node`` have shape (P, L, H), ``length`` and ``success`` (P, L).

    ``node`` is equal where two attempts of a rollout tree share a physical step.
    """

    state: np.ndarray
    action: np.ndarray
    node: np.ndarray
    length: np.ndarray
    success: np.ndarray

    def rows(self) -> dict[str, np.ndarray]:
        """Step columns (N,): task, attempt, step, state, action, node, reward."""
        inside = np.arange(self.state.shape[2]) < self.length[..., None]
        task, attempt, step = np.nonzero(inside)
        ends = self.success[task, attempt] & (step + 1 == self.length[task, attempt])
        columns = {"task": task, "attempt": attempt, "step": step, "reward": np.where(ends, REWARD, 0.0)}
        return columns | {"state": self.state[inside], "action": self.action[inside], "node": self.node[inside]}


def walk(
    grid: GridWorld,
    policy: np.ndarray,
    rng: np.random.Generator,
    slip: float,
    attempts: int,
    state: np.ndarray | None = None,
    begin: np.ndarray | None = None,
) -> PaddedWalks:
    """``attempts`` walks of every task under ``policy`` (P, S, 4),
    from the start or from ``state`` (P,) at time ``begin`` (P,)."""
    tasks, cells = len(grid.start), len(grid.moves)
    task, every = np.repeat(np.arange(tasks), attempts), np.arange(tasks * attempts)
    held, cell = np.divmod((grid.start if state is None else state)[task], cells)
    since = np.zeros(len(task), dtype=np.int64) if begin is None else begin[task]
    cumulative = policy.cumsum(axis=2)
    states, actions = np.zeros((2, len(task), HORIZON), dtype=np.int64)
    length, success = np.full(len(task), HORIZON), np.zeros(len(task), dtype=bool)
    for time in range(HORIZON - int(since.min())):
        now = np.minimum(since + time, HORIZON - 1)
        live = ~success & (since + time < HORIZON)
        here = held * cells + cell
        action = np.minimum((rng.random((len(task), 1)) > cumulative[task, here]).sum(axis=1), 3)
        states[every[live], now[live]], actions[every[live], now[live]] = here[live], action[live]
        moved = np.where(rng.random(len(task)) < slip, rng.integers(0, 4, len(task)), action)
        cell = np.where(live, grid.moves[cell, moved], cell)
        held |= live & (cell == grid.key[task])
        done = live & (held == 1) & (cell == grid.goal[task])
        length[done] = now[done] + 1
        success |= done
    shape = (tasks, attempts, HORIZON)
    node = np.arange(tasks * attempts * HORIZON).reshape(shape)
    return PaddedWalks(states.reshape(shape), actions.reshape(shape), node, length.reshape(shape[:2]), success.reshape(shape[:2]))


def grow(
    grid: GridWorld, policy: np.ndarray, rng: np.random.Generator, slip: float, roots: int, branches: int, pick: str
) -> PaddedWalks:
    """A rollout tree per task: ``roots`` walks, then ``branches`` that rewind to a step of an earlier one and continue from
    there.

    ``pick``: spread (any step of any attempt), focus (one step takes all branches),
    mixed (a step of a success where there is one).
    """
    first = walk(grid, policy, rng, slip, roots)
    shape = (len(grid.start), roots + branches, HORIZON)
    state, action, ids = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    tree = PaddedWalks(state, action, ids, np.zeros(shape[:2], dtype=np.int64), np.zeros(shape[:2], dtype=bool))
    fresh = np.arange(np.prod(shape)).reshape(shape)
    for name in ("state", "action", "length", "success"):
        getattr(tree, name)[:, :roots] = getattr(first, name)
    tree.node[:] = fresh
    task, fork = np.arange(shape[0]), None
    for new in range(roots, roots + branches):
        weight = np.ones((shape[0], new))
        if pick == "mixed":
            weight = np.where(tree.success[:, :new].any(axis=1, keepdims=True), tree.success[:, :new], weight)
        share = weight.cumsum(axis=1) / weight.sum(axis=1, keepdims=True)
        parent = np.minimum((rng.random((shape[0], 1)) > share).sum(axis=1), new - 1)
        at = (rng.random(shape[0]) * tree.length[task, parent]).astype(np.int64)
        if pick == "focus":
            parent, at = fork = fork or (parent, at // 2)
        rest = walk(grid, policy, rng, slip, 1, tree.state[task, parent, at], at)
        shared = np.arange(HORIZON) < at[:, None]
        tree.state[:, new] = np.where(shared, tree.state[task, parent], rest.state[:, 0])
        tree.action[:, new] = np.where(shared, tree.action[task, parent], rest.action[:, 0])
        tree.node[:, new] = np.where(shared, tree.node[task, parent], fresh[:, new])
        tree.length[:, new], tree.success[:, new] = rest.length[:, 0], rest.success[:, 0]
    return tree


def paid(walks: PaddedWalks, grid: GridWorld, partial: float) -> dict[str, np.ndarray]:
    """Rows of ``walks``, in which an attempt that ends with the key and without the goal gets ``partial``."""
    rows = walks.rows()
    ends = np.append(rows["step"][1:] == 0, True) & (rows["state"] >= len(grid.moves)) & (rows["reward"] == 0)
    return rows | {"reward": np.where(ends, partial, rows["reward"])}


def policy_gradient(policy: np.ndarray, rows: Mapping[str, np.ndarray], advantage: np.ndarray) -> np.ndarray:
    """Policy gradient by the logits of ``policy``, both (P, S, 4): the sum over the steps of ``rows``."""
    place = (rows["task"] * policy.shape[1] + rows["state"]) * 4
    chosen = np.bincount(place + rows["action"], advantage, policy.size).reshape(policy.shape)
    return np.asarray(chosen - policy * chosen.sum(axis=2, keepdims=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def train(
    seed: int,
    config: dict[str, Any],
    lr: float = 0.3,
    side: int = 7,
    tasks: int = TASKS,
    updates: int = 20,
    slip: float = 0.1,
    unique: float = 0.0,
    pick: str = "",
    branches: int = 0,
    partial: float = 0.0,
) -> list[float]:
    """Success before each update and after the last, by policy gradient on ``credit``.

    Gradient: sum over steps, divided by the attempts per task. ``unique``: share of visits whose state key is made unlike all
    others. ``pick``: sample trees of 4 roots and ``branches`` instead of 8 flat attempts, each physical step trained once.
    ``partial``: as of :func:`paid`. The rule ``step-returns``, which compares no states, takes ``gamma`` alone.
    """
    rng = generator(seed, "key-door", side, tasks)
    grid = GridWorld.sample(rng, tasks, side)
    logits = np.zeros((tasks, grid.states, 4))
    rule = None if config.get("rule") == STEP_RETURNS else CreditConfig(success_reward=REWARD, **config)
    curve = []
    for update in range(updates + 1):
        policy = softmax(logits)
        flat = walk(grid, policy, rng, slip, ATTEMPTS)
        curve.append(float(flat.success.mean()))
        if update == updates:
            break
        r = paid(grow(grid, policy, rng, slip, 4, branches, pick) if pick else flat, grid, partial)
        key = np.where(rng.random(len(r["state"])) < unique, grid.states + np.arange(len(r["state"])), r["state"])
        if rule is None:
            returns = returns_to_go(r["reward"], np.cumsum(r["step"] == 0), config.get("gamma", 0.95))
            advantage = normalise(returns, same_step(r["task"], r["step"]))
        else:
            columns = r["task"], r["attempt"], r["step"], key, r["reward"]
            advantage = credit(*columns, config=rule, nodes=r["node"] if pick else None)["A"]
        if pick:
            same = np.unique(r["node"], return_inverse=True)[1]
            advantage = advantage / np.bincount(same)[same]
        logits += lr / (4 + branches if pick else ATTEMPTS) * policy_gradient(policy, r, advantage)
    return curve
