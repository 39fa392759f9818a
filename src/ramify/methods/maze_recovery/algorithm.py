"""The exact theory: expected steps through the maze, its gradient, and the training regimes, without sampling.

The maze of the paper is a path-star graph of W branches with K diamonds each; a diamond's two vertices are joined by L parallel
edges, and the target is one of the W leaves. A walker's policy has four rows per diamond, each a choice between a desired and another
move: ``a`` (rp, leave forward), ``b`` (rm, cross back), ``c`` (lp, cross forward), ``d`` (lm, leave back). The walk costs one a step.

Axis legend: W branches, F = 4 families in the order a b c d, K diamonds. Sections are those of the paper as its public reproduction
quotes them: arXiv 2606.22938, sections 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ramify.base.errors import UserError, nearest

FAMILIES = ("a", "b", "c", "d")
#: Sign of ln L in the logit of each family: a and d have one edge against L, b and c have L against one.
SIDES = np.array([-1.0, 1.0, 1.0, -1.0])
NAMED = ("base", "optimal", "golden_sft")
Regime = Literal["rlvr", "sft", "distill", "distill-erased"]
REGIMES: tuple[Regime, ...] = ("rlvr", "sft", "distill", "distill-erased")

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
    """W branches of K diamonds with L parallel edges. Raises UserError where W or L is below 1 or K below 0."""

    W: int
    K: int
    L: int

    def __post_init__(self) -> None:
        for name, least in (("W", 1), ("K", 0), ("L", 1)):
            if getattr(self, name) < least:
                raise UserError(f"a maze needs {name} of at least {least}, not {getattr(self, name)}")

    def base(self) -> TabularPolicy:
        """The base model: every gap 0."""
        return TabularPolicy(np.zeros((4, self.K)), self.L)

    def named(self, policy: str) -> Row:
        """Probabilities of a policy that is the same at every diamond: base, optimal, or golden_sft, the limit of SFT on clean paths."""
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
        """Expected steps from source to target; infinity where it may never be reached, or where it fits no float (:meth:`log_steps`)."""
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

    # --- closed forms (section 3.3 of the specification, derived) ---------------------------------------------------------

    def closed_form(self, policy: str) -> Fraction:
        """The same expected steps of a named policy by its closed form or recurrence: an independent way to the number."""
        W, K, L = self.W, self.K, self.L
        if policy == "optimal":
            return Fraction(4 * W * K + 2 * (W - K))
        if policy == "golden_sft":
            return (W - 1) * (2 * K + 1 + exit_steps(K, L)) + 2 * K + 2
        self.named(policy)  # an unknown name is refused there
        m = (W - 1) * (K * (L + 1) + 1)
        edges = sum(2 * (m + i * (L + 1)) + 1 for i in range(K + 1))
        parallel = sum(2 * (m + j * (L + 1) + 1) + L for j in range(K))
        return 1 + edges + Fraction(parallel, L)

    @property
    def growth(self) -> Fraction:
        """What one more diamond multiplies the golden SFT limit by: (L+1)^2 / L."""
        return Fraction((self.L + 1) ** 2, self.L)

    def search_steps(self, policy: str) -> Fraction:
        """Expected cost behind a search wrapper, for golden_sft or optimal (Corollary 1; the wrapper is section 3.3's).

        Every proposal costs 1; one to an edge state visited on this excursion or to a finished branch is rejected and drawn again.
        """
        back = {"golden_sft": 1 + self.K * self.growth, "optimal": Fraction(1 + 2 * self.K)}
        if policy not in back:
            raise UserError(f"the wrapper's cost is known for golden_sft and optimal, not for '{policy}'")
        return 1 + self.W + self.K * (self.W + 1) + Fraction(self.W - 1, 2) * back[policy]

    # --- Bellman and transpose solve (Theorem 3) --------------------------------------------------------------------------

    @cached_property
    def _links(self) -> tuple[np.ndarray, np.ndarray]:
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

        First axis: the target's branch, then all wrong ones together. By a sparse LU of the chain and of its transpose, in float64:
        good to about 1e10 steps; beyond that use :meth:`exact_steps`.
        """
        from scipy.sparse import csc_matrix, identity
        from scipy.sparse.linalg import splu

        K, W = self.K, self.W
        p = policy.probabilities
        desired, other = self._links
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
        lu = splu((identity(target, format="csc") - moves).tocsc())
        start = np.zeros(target)
        start[0] = 1.0
        h = np.append(lu.solve(np.ones(target)), 0.0)
        return h, lu.solve(start, trans="T")[1:leaf].reshape(2, 4, K), float(h[0])

    def gradient(self, policy: TabularPolicy) -> tuple[np.ndarray, float]:
        """dJ/dD (F, K) of J = 1 - E[steps], and E[steps]: sum over copies of occ p (1 - p) (h(other) - h(desired))."""
        h, occ, fork = self.solve(policy)
        p = policy.probabilities
        desired, other = self._links
        return np.asarray((occ * (h[other] - h[desired])).sum(axis=0) * p * (1 - p)), 1.0 + fork


def exit_steps(K: int, L: int) -> Fraction:
    """g_K: expected steps of the golden SFT limit from a wrong leaf back to the fork, by the recurrence of the public reproduction."""
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
    """Train from ``start`` (default: base) without sampling; returns the policy and its expected steps before every step and after the last.

    ``rlvr``: D += lr sign(dJ/dD) (the setting of the paper's Figure 3). ``sft``: expected gradient per token of cross-entropy on
    shortest paths (Theorem 2). ``distill``: the same on ``teacher``'s own traces, dead ends and returns included (Theorem 5).
    ``distill-erased``: on those traces without their loops, which are shortest paths. The last three take ``lr`` per token, so that equal
    steps are equal tokens. Raises UserError on an unknown regime, a shape that does not fit, or distillation without a teacher.
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
            gradient, now = maze.gradient(policy)
            step = lr * np.sign(gradient)
        else:
            now = maze.expected_steps(policy)
            step = lr * weight * (wanted - policy.probabilities)
        curve.append(now)
        policy = TabularPolicy(policy.gaps + step - lr * weight_decay * policy.gaps, maze.L)
    return policy, [*curve, maze.expected_steps(policy)]


def slope(sizes: Iterable[float], logs: Iterable[float]) -> float:
    """Least-squares slope of ``logs`` over ``sizes``: growth per diamond where these are ln(steps) over K."""
    return float(np.polyfit(list(sizes), list(logs), 1)[0])


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
    """Of one diamond: entered from the left, P(out on the right), P(back), steps; entered from the right, P(out left), P(back), steps."""
    a, b, c, d = row
    inner = a + (1 - a) * d
    from_r = (2 - a) / inner
    from_l = 1 + (1 - d) * from_r
    ahead, behind = c * a / inner, b * d / inner
    return ahead, (1 - c) + c * (1 - a) * d / inner, 1 + c * from_r, behind, (1 - b) + b * (1 - d) * a / inner, 1 + b * from_l


def _return(rows: list[Row]) -> Any:
    """Expected steps from a wrong branch's entrance back to the fork."""
    after: Any = 1
    for row in reversed(rows):
        ahead, _, steps, behind, again, back = _diamond(row)
        after = steps + ahead * (after + (back + again * after) / behind)
    return after


def _reach(rows: list[Row]) -> tuple[Any, Any]:
    """From the entrance of the target's branch: probability of its leaf before the fork, and expected steps to either."""
    share: Any = 1
    missed: Any = 0
    steps: Any = 0
    for row in reversed(rows):
        ahead, turned, cross, behind, again, back = _diamond(row)
        leaves = behind + again * share
        steps = cross + ahead * (steps + missed * (back + again * steps) / leaves)
        share, missed = ahead * (share + missed * again * share / leaves), turned + ahead * missed * behind / leaves
    return share, steps
