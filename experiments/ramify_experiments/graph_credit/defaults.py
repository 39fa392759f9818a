"""Which settings of g2po are better: episode statistics over attempts or steps, tasks with one reward credited or not, ends
valued by reward or success. The gradient against the exact one, and training, on the key-door grid of ``grid``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.graph_credit.algorithm import CreditConfig, credit
from ramify.stats.intervals import paired_t
from ramify_experiments.graph_credit.grid import (
    ATTEMPTS,
    HORIZON,
    REWARD,
    GridWorld,
    paid,
    policy_gradient,
    softmax,
    train,
    walk,
)
from ramify_experiments.lab import Checks, ResultCache, tuned

FRESH = range(100, 120)
"""Seeds of the second look."""
PARTIAL = 3.0
"""What an attempt gets that ends with the key and without the goal, where there are partial rewards."""


def arms(partial: float) -> dict[str, dict[str, Any]]:
    """Settings by name, the default first; where rewards are 0 or full, ends by reward and by success are one."""
    ends = ("reward", "success") if partial else ("reward",)
    return {
        f"{weight}, {'zero' if zero else 'credited'}{f', {end}' if partial else ''}": {
            "weight": weight,
            "zero_if_constant": zero,
            "end": end,
        }
        for weight, zero, end in product(("attempt", "step"), (True, False), ends)
    } | {"grpo": {"rule": "grpo"}}


def compare_defaults(checks: Checks, cells: ResultCache, rates: Sequence[float], batches: int) -> None:
    """The gradient of each arm, and mean success over 20 updates at its best learning rate; differences from the default. What
    trained better than it is trained once more with other seeds."""
    for partial, rewards in ((0.0, "rewards 0 and 10"), (PARTIAL, "rewards 0, 3 and 10")):
        settings = arms(partial)
        default = next(iter(settings))
        quality = cells.grid(gradient_quality, {f"gradient {rewards}": {"partial": partial, "batches": batches}}, checks.seeds)
        environment = {"side": 9, "tasks": 8, "updates": 20, "slip": 0.2, "partial": partial}
        trained = tuned(
            cells,
            train,
            {f"{rewards}, {arm}": {"config": config, **environment} for arm, config in settings.items()},
            rates,
            checks.seeds,
            lambda curve: float(np.mean(curve)),
        )
        again: dict[str, dict[str, Any]] = {}
        for arm in settings:
            numbers = np.array([run[arm] for run in quality[f"gradient {rewards}"]])
            for column, what in enumerate(
                ("cosine of the mean gradient to the exact one", "variance / square of the mean", "cosine of one batch")
            ):
                checks.mean(f"{rewards}: {what}, {arm}", numbers[:, column])
            rate, curves = trained[f"{rewards}, {arm}"]
            success = _success(curves)
            checks.mean(f"{rewards}: mean success over 20 updates, {arm}, best lr {rate:g}", success)
            again[arm] = {"config": settings[arm], **environment, "lr": rate}
            if arm == default:
                base, base_cosine = success, numbers[:, 2]
                continue
            checks.paired(f"{rewards}: cosine of one batch, {arm} - default", numbers[:, 2], base_cosine)
            checks.paired(f"{rewards}: mean success, {arm} - default", success, base)
            if paired_t(success, base)[0] <= 0:
                del again[arm]
        if len(again) > 1:
            fresh = {arm: _success(curves) for arm, curves in cells.grid(train, again, FRESH).items()}
            for arm in [*again][1:]:
                name = f"{rewards}: mean success, {arm} - default, once more with {len(FRESH)} other seeds"
                checks.value(
                    name,
                    float(np.mean(np.subtract(fresh[arm], fresh[default]))),
                    len(FRESH),
                    interval=paired_t(fresh[arm], fresh[default]),
                )


def _success(curves: Sequence[Sequence[float]]) -> list[float]:
    return [float(np.mean(curve)) for curve in curves]


def exact_gradient(grid: GridWorld, policy: np.ndarray, slip: float, partial: float) -> np.ndarray:
    """Gradient of the expected reward by the logits of ``policy`` (P, S, 4), summed over all steps of an attempt, (P, S, 4)."""
    cells, states = len(grid.moves), grid.states
    out = np.zeros_like(policy)
    chance = (1 - slip) * np.eye(4) + slip / 4
    cell, held = np.tile(np.arange(cells), 2), np.repeat([0, 1], cells)
    for task in range(len(policy)):
        target = grid.moves[cell]  # (S, 4): the cell after each move
        now_held = held[:, None] | (target == grid.key[task])
        done = (now_held == 1) & (target == grid.goal[task])
        after = now_held * cells + target
        value = np.repeat(partial * held[:, None], 4, axis=1)  # what is paid after a move, first at the horizon
        advantage = np.zeros((HORIZON, states, 4))
        for time in range(HORIZON - 1, -1, -1):
            q = np.where(done, REWARD, value) @ chance.T
            v = (policy[task] * q).sum(axis=1)
            advantage[time] = q - v[:, None]
            value = v[after]
        at: np.ndarray = np.zeros(states)
        at[grid.start[task]] = 1.0
        for time in range(HORIZON):
            out[task] += at[:, None] * policy[task] * advantage[time]
            moved = (at[:, None] * policy[task]) @ chance
            at = np.bincount(after[~done], moved[~done], states)
    return out


def gradient_quality(seed: int, partial: float, batches: int, updates: int = 8, slip: float = 0.1) -> dict[str, list[float]]:
    """Of each arm's gradient under one half-trained policy: cosine of its mean to the exact gradient, its variance relative to
    the square of its mean, and the mean cosine of one batch. All arms see the same attempts."""
    rng = generator(seed, "defaults", int(partial))
    grid = GridWorld.sample(rng, 16, 7)
    logits = np.zeros((16, grid.states, 4))
    for _ in range(updates):
        policy = softmax(logits)
        r = paid(walk(grid, policy, rng, slip, ATTEMPTS), grid, partial)
        logits += 0.3 / ATTEMPTS * policy_gradient(policy, r, _credit(r, {}))
    policy, settings = softmax(logits), arms(partial)
    exact = exact_gradient(grid, policy, slip, partial).ravel()
    exact /= np.linalg.norm(exact)
    total, squares, cosines = (
        {arm: np.zeros(exact.size) for arm in settings},
        dict.fromkeys(settings, 0.0),
        dict.fromkeys(settings, 0.0),
    )
    for _ in range(batches):
        r = paid(walk(grid, policy, rng, slip, ATTEMPTS), grid, partial)
        for arm, config in settings.items():
            gradient = policy_gradient(policy, r, _credit(r, config)).ravel()
            total[arm] += gradient / batches
            squares[arm] += float(gradient @ gradient) / batches
            cosines[arm] += float(gradient @ exact / np.linalg.norm(gradient)) / batches
    out = {}
    for arm, mean in total.items():
        variance = (squares[arm] - float(mean @ mean)) * batches / (batches - 1)
        square = float(mean @ mean) - variance / batches  # of the expectation, without what is left of the noise
        out[arm] = [float(mean @ exact) / square**0.5, variance / square, cosines[arm]]
    return out


def _credit(r: dict[str, np.ndarray], config: dict[str, Any]) -> np.ndarray:
    settings = CreditConfig(success_reward=REWARD, **config)
    return credit(r["task"], r["attempt"], r["step"], r["state"], r["reward"], config=settings)["A"]
