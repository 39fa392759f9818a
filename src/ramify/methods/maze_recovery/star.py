"""The path-star maze of maze-recovery's theory, solved exactly:
how many steps a walker with a given policy needs, without sampling.

W branches of K diamonds each hang on a fork; a diamond's two vertices are joined by L parallel edges, and the target is one of
the W leaves, sampled uniformly. A walker's policy has four rows per diamond, each a choice between a desired and another move:
``a`` (at the right vertex facing forward: leave), ``b`` (there facing backward: cross), ``c`` (at the left vertex facing forward:
cross), ``d`` (there facing backward: leave). At the fork every branch is equally likely; a walk costs one a step. Graph and
parametrisation: arXiv 2606.22938, as its public reproduction describes them.

Axis legend: W branches, F = 4 families in the order a b c d, K diamonds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest

FAMILIES = ("a", "b", "c", "d")
#: Sign of ln L in the logit of each family: a and d have one edge against L, b and c have L against one.
SIDES = np.array([-1.0, 1.0, 1.0, -1.0])
NAMED = ("base", "optimal", "golden_sft")

Row = tuple[Any, Any, Any, Any]
"""Desired probabilities (a, b, c, d) of one diamond, all floats or all fractions."""


@dataclass(frozen=True, eq=False)
class TabularPolicy:
    """Gaps D (F, K) shared by the branches, or (W, F, K); D = 0 is the base model, a uniform choice among edges."""

    gaps: np.ndarray
    L: int

    @property
    def probabilities(self) -> np.ndarray:
        """Desired probabilities, shape of ``gaps``: a, d = sigmoid(D - ln L); b, c = sigmoid(D + ln L)."""
        logits = self.gaps + (SIDES * math.log(self.L))[:, None]
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(-logits)))

    def families(self) -> dict[str, np.ndarray]:
        """Desired probabilities by family, each of shape (..., K)."""
        return {name: self.probabilities[..., i, :] for i, name in enumerate(FAMILIES)}


@dataclass(frozen=True)
class Maze:
    """W branches of K diamonds with L parallel edges. Raises UserError where W or L is not in 1 to 10^9, or K not in 0 to
    10^4."""

    W: int
    K: int
    L: int

    def __post_init__(self) -> None:
        for name, least, most in (("W", 1, 10**9), ("K", 0, 10**4), ("L", 1, 10**9)):
            given = getattr(self, name)
            if given < least:
                raise UserError(f"a maze needs {name} of at least {least}, not {given}")
            if given > most:  # beyond, ratios fit no float and exact sums take hours
                raise UserError(f"a maze has {name} of at most {most}, and more was requested")

    def base(self) -> TabularPolicy:
        """The base model: every gap 0."""
        return TabularPolicy(np.zeros((4, self.K)), self.L)

    def named(self, policy: str) -> Row:
        """Probabilities of a policy that is the same at every diamond:
        base, optimal, or golden_sft, the limit of SFT on clean paths."""
        hard, easy = Fraction(1, self.L + 1), Fraction(self.L, self.L + 1)
        rows = {
            "base": (hard, easy, easy, hard),
            "optimal": (Fraction(1),) * 4,
            "golden_sft": (Fraction(1), easy, Fraction(1), hard),
        }
        if policy not in rows:
            raise UserError(f"unknown policy '{policy}' ({nearest(policy, rows)})")
        return rows[policy]

    def exact_steps(self, policy: str | TabularPolicy | Iterable[Row]) -> Fraction | float:
        """Expected steps from source to target as a fraction; infinity where the target may never be reached.

        ``policy``: a name, gaps, or one (a, b, c, d) per diamond. Floats are taken as the fractions they are.
        """
        steps = _mean_steps([[_fractions(row) for row in rows] for rows in self._rows(policy)], self.W)
        return math.inf if steps == math.inf else Fraction(steps)

    def expected_steps(self, policy: str | TabularPolicy | Iterable[Row]) -> float:
        """Expected steps from source to target; infinity where it may never be reached,
        or where it fits no float (:meth:`log_steps`)."""
        if isinstance(policy, TabularPolicy):
            return float(_mean_steps(self._rows(policy), self.W))
        try:
            return float(self.exact_steps(policy))
        except OverflowError:
            return math.inf

    def log_steps(self, policy: str | TabularPolicy | Iterable[Row]) -> float:
        """Natural logarithm of the expected steps, of any size."""
        steps = self.exact_steps(policy)
        return math.inf if isinstance(steps, float) else math.log(steps.numerator) - math.log(steps.denominator)

    def _rows(self, policy: str | TabularPolicy | Iterable[Row]) -> list[list[Row]]:
        """Rows by diamond of every branch that differs: one list where the branches share them."""
        if isinstance(policy, str):
            return [[self.named(policy)] * self.K]
        if not isinstance(policy, TabularPolicy):
            rows = list(policy)
            if len(rows) != self.K or any(len(row) != 4 or not all(0 <= p <= 1 for p in row) for row in rows):
                raise UserError(f"a policy of this maze has {self.K} rows of four probabilities (a, b, c, d)")
            return [rows]
        p = policy.probabilities
        if p.shape not in ((4, self.K), (self.W, 4, self.K)):
            raise UserError(f"gaps of this maze have shape (4, {self.K}) or ({self.W}, 4, {self.K}), not {p.shape}")
        return [[_row(*branch[:, j]) for j in range(self.K)] for branch in (p if p.ndim == 3 else p[None])]

    # --- every state at once: Bellman and transpose solve ------------------------------------------------------------

    @cached_property
    def links(self) -> tuple[np.ndarray, np.ndarray]:
        """State reached by the desired and by the other move, int (2, F, K) each, of the target's branch and of the wrong ones.

        States: 0 the fork, 1 + 4K t + K f + j a row, then the wrong leaf, then the target.
        """
        K = self.K
        leaf, target = 1 + 8 * K, 2 + 8 * K
        desired, other = np.zeros((2, 2, 4, K), dtype=np.int64)
        for t in range(2):
            a, b, c, d = (1 + 4 * K * t + K * f + np.arange(K) for f in range(4))
            on, back = np.append(c[1:], (target, leaf)[t])[:K], np.append(0, b[:-1])[:K]
            desired[t], other[t] = (on, d, a, back), (d, on, back, a)
        return desired, other

    def solve(self, policy: TabularPolicy) -> tuple[np.ndarray, np.ndarray, float]:
        """Expected steps to the target h and expected visits occ of every row, (2, F, K) each, and h of the fork.

        First axis: the target's branch, then all wrong ones together. By a sparse LU of the chain and of its transpose, in
        float64: good to about 1e10 steps; beyond that use :meth:`exact_steps`.
        Raises UserError where the walk may never reach the target.
        """
        from scipy.sparse import csc_matrix, identity
        from scipy.sparse.linalg import splu

        K, W = self.K, self.W
        p = policy.probabilities
        desired, other = self.links
        leaf, target = 1 + 8 * K, 2 + 8 * K
        entry = (1 + 2 * K, 1 + 6 * K) if K else (target, leaf)
        rows = np.arange(1, leaf).reshape(2, 4, K)
        source = np.concatenate([rows.ravel(), rows.ravel(), [0, 0, leaf]])
        goal = np.concatenate([desired.ravel(), other.ravel(), [*entry, 1 + 5 * K + K - 1 if K else 0]])
        chance = np.concatenate(
            [np.broadcast_to(p, (2, 4, K)).ravel(), np.broadcast_to(1 - p, (2, 4, K)).ravel(), [1 / W, 1 - 1 / W, 1.0]]
        )
        inside = goal != target
        moves = csc_matrix((chance[inside], (source[inside], goal[inside])), shape=(target, target))
        try:
            lu = splu((identity(target, format="csc") - moves).tocsc())
        except RuntimeError as error:  # singular: some states lead to each other only
            raise UserError("with this policy a walk may never reach the target, so it has no visits to count") from error
        start = np.zeros(target)
        start[0] = 1.0
        h = np.append(lu.solve(np.ones(target)), 0.0)
        return h, lu.solve(start, trans="T")[1:leaf].reshape(2, 4, K), float(h[0])


# --- the recursion over diamonds: only sums, products and quotients of positive numbers, so floats keep their digits ------------


def _row(a: float, b: float, c: float, d: float) -> Row:
    return float(a), float(b), float(c), float(d)


def _fractions(row: Row) -> Row:
    a, b, c, d = (Fraction(p) for p in row)
    return a, b, c, d


def _mean_steps(branches: list[list[Row]], W: int) -> Any:
    """Expected steps from source to target; ``branches`` holds one branch's rows for all, or those of each."""
    try:
        reached = [_reach(rows) for rows in branches]
        returns = [1 + _return(rows) for rows in branches] if W > 1 else [0]
        wrong = sum(returns) if len(branches) > 1 else (W - 1) * returns[0]
        own = returns if len(branches) > 1 else [0] * len(branches)
        totals = [1 + (wrong - mine + 1 + steps) / share for (share, steps), mine in zip(reached, own, strict=True)]
        return sum(totals) / len(totals)
    except ZeroDivisionError:  # nothing leads on from somewhere the walk can get to
        return math.inf


def _diamond(row: Row) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Of one diamond: entered from the left, P(out on the right), P(back), steps;
    entered from the right, P(out left), P(back), steps."""
    a, b, c, d = row
    inner = a + (1 - a) * d
    from_r = (2 - a) / inner
    from_l = 1 + (1 - d) * from_r
    ahead, backward = c * a / inner, b * d / inner
    return ahead, (1 - c) + c * (1 - a) * d / inner, 1 + c * from_r, backward, (1 - b) + b * (1 - d) * a / inner, 1 + b * from_l


def _return(rows: list[Row]) -> Any:
    """Expected steps from a wrong branch's entrance back to the fork."""
    after: Any = 1
    for row in reversed(rows):
        ahead, _, steps, backward, again, back = _diamond(row)
        after = steps + ahead * (after + (back + again * after) / backward)
    return after


def _reach(rows: list[Row]) -> tuple[Any, Any]:
    """From the entrance of the target's branch: probability of its leaf before the fork, and expected steps to either."""
    share: Any = 1
    missed: Any = 0
    steps: Any = 0
    for row in reversed(rows):
        ahead, turned, cross, backward, again, back = _diamond(row)
        leaves = backward + again * share
        steps = cross + ahead * (steps + missed * (back + again * steps) / leaves)
        share, missed = ahead * (share + missed * again * share / leaves), turned + ahead * missed * backward / leaves
    return share, steps
