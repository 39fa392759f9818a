"""Stopping early: whether two rates that are still being counted can yet turn out to differ."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4096)
def final_count(k: int, m: int, n: int) -> np.ndarray:
    """Chances of every final count 0..n after ``k`` of ``m``, shape (n + 1,): beta-binomial, the rate uniform before the first draw.

    Raises ValueError where ``k`` of ``m`` is no count or more were drawn than ``n``.
    """
    if not 0 <= k <= m <= n:
        raise ValueError(f"{k} of {m} draws out of {n} is not a count")
    out = np.zeros(n + 1)
    for more in range(n - m + 1):
        a, b, left = k + 1, m - k + 1, n - m
        log = math.lgamma(left + 1) - math.lgamma(more + 1) - math.lgamma(left - more + 1)
        log += math.lgamma(a + more) + math.lgamma(b + left - more) - math.lgamma(a + b + left)
        out[k + more] = math.exp(log + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    out.setflags(write=False)
    return out


def chance_of(table: np.ndarray, k1: int, m1: int, k2: int, m2: int) -> float:
    """Predictive chance that two counts, now k1 of m1 and k2 of m2, end where ``table`` (n1 + 1, n2 + 1) is True.

    The two rates are taken as independent and uniform before the first draw.
    """
    return float(final_count(k1, m1, table.shape[0] - 1) @ table @ final_count(k2, m2, table.shape[1] - 1))
