"""The theory in exact numbers: closed forms of expected steps, the policy gradient, and the training regimes without sampling.

The maze, its policy and the solver are in ``ramify.methods.maze_recovery.star``. Theorems are those of arXiv 2606.22938; where
its public reproduction gives a recurrence or a setting, that is said; the closed forms are derived.

Axis legend: F = 4 families in the order a b c d, K diamonds.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.methods.maze_recovery.star import Maze, TabularPolicy

REGIMES = ("rlvr", "sft", "distill", "distill-erased")


def growth(maze: Maze) -> Fraction:
    """What one more diamond multiplies the golden SFT limit by: (L+1)^2 / L."""
    return Fraction((maze.L + 1) ** 2, maze.L)


def search_steps(maze: Maze, policy: str) -> Fraction:
    """Expected cost with a search wrapper, for golden_sft or optimal (Corollary 1; this wrapper is derived).

    Every proposal costs 1; one to an edge state visited on this excursion or to a finished branch is rejected and sampled again.
    """
    back = {"golden_sft": 1 + maze.K * growth(maze), "optimal": Fraction(1 + 2 * maze.K)}
    if policy not in back:
        raise UserError(f"the wrapper's cost is known for golden_sft and optimal, not for '{policy}'")
    return 1 + maze.W + maze.K * (maze.W + 1) + Fraction(maze.W - 1, 2) * back[policy]


def gradient(maze: Maze, policy: TabularPolicy) -> tuple[np.ndarray, float]:
    """dJ/dD (F, K) of J = 1 - E[steps], and E[steps]: sum over copies of occ p (1 - p) (h(other) - h(desired))."""
    h, occ, fork = maze.solve(policy)
    p = policy.probabilities
    desired, other = maze.links
    return np.asarray((occ * (h[other] - h[desired])).sum(axis=0) * p * (1 - p)), 1.0 + fork


def exit_steps(K: int, L: int) -> Fraction:
    """g_K: expected steps of the golden SFT limit from a wrong leaf back to the fork,
    by the recurrence of the public reproduction."""
    g = Fraction(1)
    for i in range(1, K + 1):
        f = Fraction(L + 1, L) * g + Fraction(2 * i - 1, L) + 1
        g = (L + 1) * f + 2 * i * L + 1
    return g


def train_exact(
    maze: Maze,
    regime: str = "rlvr",
    steps: int = 1200,
    lr: float = 0.01,
    start: TabularPolicy | None = None,
    teacher: TabularPolicy | None = None,
    weight_decay: float = 0.0,
) -> tuple[TabularPolicy, list[float]]:
    """Train from ``start`` (default: base) without sampling;
    returns the policy and its expected steps before every step and after the last.

    ``rlvr``: D += lr sign(dJ/dD) (the setting of the paper's Figure 3). ``sft``: expected gradient per token of cross-entropy on
    shortest paths (Theorem 2). ``distill``: the same on ``teacher``'s own traces, dead ends and returns included (Theorem 5).
    ``distill-erased``: on those traces without their loops, which are shortest paths. The last three take ``lr`` per token, so
    that equal steps are equal tokens. Raises UserError on an unknown regime, a shape that does not fit,
    or distillation without a teacher.
    """
    if regime not in REGIMES:
        raise UserError(f"unknown regime '{regime}' ({nearest(regime, REGIMES)})")
    if regime == "distill" and teacher is None:
        raise UserError("distillation needs a teacher: train one with rlvr first")
    policy = start or maze.base()
    if policy.gaps.shape != (4, maze.K):
        raise UserError(f"gaps of this maze have shape (4, {maze.K}), not {policy.gaps.shape}")
    wanted, weight = np.ones((4, maze.K)), np.zeros((4, maze.K))
    weight[[0, 2]] = 1 / (2 * maze.K + 2)
    if regime == "distill" and teacher is not None:
        _, occ, fork = maze.solve(teacher)
        wanted, weight = teacher.probabilities, occ.sum(axis=0) / (1 + fork)
    curve = []
    for _ in range(steps):
        if regime == "rlvr":
            slopes, now = gradient(maze, policy)
            step = lr * np.sign(slopes)
        else:
            now = maze.expected_steps(policy)
            step = lr * weight * (wanted - policy.probabilities)
        curve.append(now)
        policy = TabularPolicy(policy.gaps + step - lr * weight_decay * policy.gaps, maze.L)
    return policy, [*curve, maze.expected_steps(policy)]


def slope(sizes: Iterable[float], logs: Iterable[float]) -> float:
    """Least-squares slope of ``logs`` over ``sizes``: growth per diamond where these are ln(steps) over K."""
    return float(np.polyfit(list(sizes), list(logs), 1)[0])
