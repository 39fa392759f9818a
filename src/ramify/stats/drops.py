"""Drops between two rates: counts of trials, and a one-sided test with a minimum effect."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Self

import numpy as np

from ramify.base.errors import UserError
from ramify.stats.intervals import Interval, wilson

_EDGE = 1e-12  # rates are fractions: a drop of exactly delta0 must not pass by a rounding error


@dataclass(frozen=True, slots=True)
class SuccessShare:
    """Counts with their rate (None where nothing was scored) and its 95 % interval (Wilson)."""

    successes: int
    n: int
    success: float | None
    interval: Interval
    failed: int


@dataclass(frozen=True)
class SuccessDifference:
    """A difference of success rates with its 95 % interval."""

    success: float
    interval: Interval

    def __str__(self) -> str:
        """``-37.5 points [-54.8, -17.8]``."""
        low, high = self.interval
        return f"{100 * self.success:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


@dataclass(frozen=True, slots=True)
class Counts:
    """``k`` right among ``n`` graded forks of one position;
    ``missing`` were not graded, ``truncated`` hit the limit of tokens."""

    k: int
    n: int
    missing: int = 0
    truncated: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.n or self.missing < 0 or self.truncated < 0:
            raise ValueError(f"{self.k} right of {self.n} ({self.missing} missing, {self.truncated} truncated) is not a count")

    @classmethod
    def of(cls, scores: Iterable[bool | None]) -> Self:
        """Counts of grades: True is right, False is wrong, None is missing."""
        given = list(scores)
        graded = [score for score in given if score is not None]
        return cls(sum(graded), len(graded), len(given) - len(graded))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.k + other.k, self.n + other.n, self.missing + other.missing, self.truncated + other.truncated)

    @property
    def rate(self) -> float:
        """k / n; nan where nothing was graded."""
        return self.k / self.n if self.n else float("nan")

    @property
    def forks(self) -> int:
        """All forks asked for."""
        return self.n + self.missing + self.truncated

    @property
    def share(self) -> SuccessShare:
        """As results tell it."""
        return SuccessShare(self.k, self.n, self.rate if self.n else None, wilson(self.k, self.n), self.missing)


@dataclass(frozen=True)
class ZTest:
    """One-sided two-proportion z-test with a minimum effect: it fires iff d > delta0 + z_alpha SE, strictly."""

    delta0: float = 0.1
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.delta0 < 1 or not 0 < self.alpha < 1:
            raise UserError(f"a test of a drop needs delta0 in [0, 1) and alpha in (0, 1), not {self.delta0} and {self.alpha}")

    @property
    def z(self) -> float:
        """z_alpha: 1.645 for 0.05."""
        return NormalDist().inv_cdf(1 - self.alpha)

    def table(self, n: int, n_cur: int | None = None) -> np.ndarray:
        """Whether (k_prev, k_cur) is a drop, bool (n + 1, n_cur + 1); ``n_cur`` is ``n`` unless it is given."""
        return _table(self.delta0, self.z, n, n if n_cur is None else n_cur)

    def is_cliff(self, k_prev: int, k_cur: int, n: int) -> bool:
        """The test at one pair of counts out of ``n``. Raises ValueError on counts outside [0, n]."""
        return self.fires(Counts(k_prev, n), Counts(k_cur, n))

    def fires(self, prev: Counts, cur: Counts) -> bool:
        """The test on counts that may be out of different n. Never where one of them is empty."""
        return bool(self.table(prev.n, cur.n)[prev.k, cur.k])

    def p_value(self, prev: Counts, cur: Counts) -> float:
        """Chance of so large a drop if the true one were ``delta0``:
        below ``alpha`` exactly where the test fires; 1 without counts."""
        if not prev.n or not cur.n:
            return 1.0
        over, se = prev.rate - cur.rate - self.delta0, standard_error(prev, cur)
        return NormalDist().cdf(-over / se) if se else 0.0 if over > _EDGE else 1.0


@lru_cache(maxsize=64)
def _table(delta0: float, z: float, n_prev: int, n_cur: int) -> np.ndarray:
    prev, cur = np.arange(n_prev + 1) / max(n_prev, 1), np.arange(n_cur + 1) / max(n_cur, 1)
    variance = (prev * (1 - prev) / max(n_prev, 1))[:, None] + cur * (1 - cur) / max(n_cur, 1)
    out: np.ndarray = (prev[:, None] - cur) - delta0 - z * np.sqrt(variance) > _EDGE
    out &= n_prev > 0 and n_cur > 0
    out.setflags(write=False)
    return out


def standard_error(prev: Counts, cur: Counts) -> float:
    """Unpooled standard error of the drop between two rates."""
    return math.sqrt(sum(c.rate * (1 - c.rate) / c.n for c in (prev, cur)))
