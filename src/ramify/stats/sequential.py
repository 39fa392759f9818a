"""Stopping early: whether two rates that are still being counted can yet turn out to differ."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4096)
def final_count(k: int, m: int, n: int) -> np.ndarray:
    """Chances of every final count 0..n after ``k`` of ``m``, shape (n + 1,):
    beta-binomial, the rate uniform before the first sample.

    Raises ValueError where ``k`` of ``m`` is not a count or more were sampled than ``n``.
    """
    if not 0 <= k <= m <= n:
        raise ValueError(f"{k} of {m} samples out of {n} is not a count")
    out = np.zeros(n + 1)
    for more in range(n - m + 1):
        a, b, left = k + 1, m - k + 1, n - m
        log = math.lgamma(left + 1) - math.lgamma(more + 1) - math.lgamma(left - more + 1)
        log += math.lgamma(a + more) + math.lgamma(b + left - more) - math.lgamma(a + b + left)
        out[k + more] = math.exp(log + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    out.setflags(write=False)
    return out


def chance_of(table: np.ndarray, k1: int, m1: int, k2: int, m2: int, pi: float | None = None, slack: float = 0.0) -> float:
    """Predictive chance that two counts, now k1 of m1 and k2 of m2, end where ``table`` (n1 + 1, n2 + 1) is True.

    The two rates are taken as independent and uniform before the first sample. With ``pi`` they are those before and after a
    token of that probability, V and W: V is the mean over all tokens, so the token alone bears at most all of V and at most all
    of 1 - V, and the pair is uniform where pi W <= V + ``slack`` and pi (1 - W) <= 1 - V + ``slack``.
    Counts that contradict this are taken as of free rates.
    """
    n1, n2 = (side - 1 for side in table.shape)
    if pi is not None:
        allowed = (pi * _RATES <= _RATES[:, None] + slack) & (pi * (1 - _RATES) <= 1 - _RATES[:, None] + slack)
        weights = allowed * np.exp(_log_likelihood(k1, m1)[:, None] + _log_likelihood(k2, m2))
        if (whole := weights.sum()) > 1e-9:
            ends = _final_by_rate(k1, m1, n1) @ table @ _final_by_rate(k2, m2, n2).T
            return float((weights * ends).sum() / whole)
    return float(final_count(k1, m1, n1) @ table @ final_count(k2, m2, n2))


_RATES = (np.arange(50) + 0.5) / 50


def _log_likelihood(k: int, m: int) -> np.ndarray:
    """Of every rate, (50,), the likeliest at 0."""
    likelihood = k * np.log(_RATES) + (m - k) * np.log(1 - _RATES)
    return np.asarray(likelihood - likelihood.max())


@lru_cache(maxsize=4096)
def _final_by_rate(k: int, m: int, n: int) -> np.ndarray:
    """Chances of every final count 0..n after ``k`` of ``m`` at every rate, (50, n + 1)."""
    out, left = np.zeros((len(_RATES), n + 1)), n - m
    ways = [math.lgamma(left + 1) - math.lgamma(more + 1) - math.lgamma(left - more + 1) for more in range(left + 1)]
    more = np.arange(left + 1)
    out[:, k : k + left + 1] = np.exp(ways + more * np.log(_RATES)[:, None] + (left - more) * np.log(1 - _RATES)[:, None])
    out.setflags(write=False)
    return out


_HIGH = np.array([0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])
_PAIRS = np.array([(high, low) for high in _HIGH for low in _HIGH if high - low >= 0.14])


class DropBet:
    """A bet that the rate of a first arm lies above that of a second, on pairs of one sample of each.

    Its value is an e-process: where the two rates are equal (whatever they are), the chance that it ever reaches 1 / level is at
    most ``level``, however often one looks and whenever one stops or continues (Turner, Ly and Gruenwald, "Generic E-variables
    for exact sequential k-sample tests that allow for optional stopping", 2024, their theorem 1 with blocks of 1 and 1). It is
    the mixture over alternatives (high, low) of the likelihood ratio against their mean; ``near`` says where the alternative is
    expected, by other samples than those that are added. It decides how soon the bet is won, not how often one is won by chance.
    """

    def __init__(self, near: tuple[float, float] | None = None, trust: float = 0.9, spread: float = 0.1) -> None:
        high, low = _PAIRS.T
        weights = np.full(len(_PAIRS), 1 / len(_PAIRS))
        if near is not None:
            close = np.exp(-((high - near[0]) ** 2 + (low - near[1]) ** 2) / (2 * spread**2)) + 1e-12
            weights = (1 - trust) * weights + trust * close / close.sum()
        mean = (high + low) / 2
        self._high, self._low = np.log([1 - high, high]), np.log([1 - low, low])
        self._mean = np.log([1 - mean, mean])
        self._log = np.log(weights)
        self.n = 0
        """Pairs that were added."""
        self.now = self.best = 0.0
        """The logarithms of its value and of its largest value so far."""

    def add(self, first: bool, second: bool) -> None:
        """One sample of each arm."""
        self._log = self._log + self._high[int(first)] + self._low[int(second)] - self._mean[int(first)] - self._mean[int(second)]
        self.n += 1
        self.now = float(np.logaddexp.reduce(self._log))
        self.best = max(self.best, self.now)
