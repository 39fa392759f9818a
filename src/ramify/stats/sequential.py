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
