"""Power of a comparison of proportions: how many samples a study needs, and what a given number of samples can find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ramify.stats.intervals import normal_quantile, wilson


def power_of_difference(p1: float, p2: float, n1: int, n2: int, level: float = 0.95) -> float:
    """Probability that a two-sided z-test at ``level`` finds p1 different from p2 with n1 and n2 samples (normal
    approximation)."""
    if n1 <= 0 or n2 <= 0:
        return 0.0
    pooled = (n1 * p1 + n2 * p2) / (n1 + n2)
    null = math.sqrt(pooled * (1 - pooled) * (1 / n1 + 1 / n2))
    spread = math.sqrt(p1 * (1 - p1) / n1 + p2 * (1 - p2) / n2)
    gap = abs(p1 - p2) - normal_quantile(level) * null
    if spread == 0:
        return float(gap > 0)
    return NormalDist().cdf(gap / spread)


def sample_size(p1: float, p2: float, power: float = 0.8, level: float = 0.95) -> int:
    """Samples per arm that find p1 different from p2 with probability ``power`` (Fleiss, without continuity correction).

    Raises ValueError when the proportions are equal: no number of samples finds nothing.
    """
    if p1 == p2:
        raise ValueError("equal proportions cannot be told apart")
    pooled = (p1 + p2) / 2
    null = normal_quantile(level) * math.sqrt(2 * pooled * (1 - pooled))
    alternative = NormalDist().inv_cdf(power) * math.sqrt(p1 * (1 - p1) + p2 * (1 - p2))
    return math.ceil(((null + alternative) / (p1 - p2)) ** 2)


def detectable_difference(base: float, n1: int, n2: int, power: float = 0.8, level: float = 0.95) -> float:
    """The smallest move away from ``base`` that n1 and n2 samples find with probability ``power``,
    in whichever direction has more room.

    1.0 where no move within [0, 1] reaches that power.
    """
    room = 1 - base if base <= 0.5 else base
    sign = 1 if base <= 0.5 else -1
    if power_of_difference(base + sign * room, base, n1, n2, level) < power:
        return 1.0
    low, high = 0.0, room
    for _ in range(40):
        middle = (low + high) / 2
        reached = power_of_difference(base + sign * middle, base, n1, n2, level) >= power
        low, high = (low, middle) if reached else (middle, high)
    return high


def contrast_power(
    rates: Sequence[float] | np.ndarray,
    n: Sequence[float] | np.ndarray,
    weights: Sequence[float] | np.ndarray,
    level: float = 0.95,
) -> float:
    """Probability that a two-sided z-test at ``level`` finds the contrast sum(weights * rates) of K independent proportions, all
    (K,), from ``n`` (K,) runs each (unpooled variance, normal approximation)."""
    p, m, c = (np.asarray(x, np.float64) for x in (rates, n, weights))
    if (m <= 0).any():
        return 0.0
    value, spread = abs(float((c * p).sum())), math.sqrt(float((c**2 * p * (1 - p) / m).sum()))
    return float(value > 0) if spread == 0 else NormalDist().cdf(value / spread - normal_quantile(level))


def nearest_rates(
    hits: Sequence[int] | np.ndarray, n: Sequence[int] | np.ndarray, weights: Sequence[float] | np.ndarray, level: float = 0.95
) -> np.ndarray | None:
    """The rates (K,) at the end nearer to 0 of the interval of the contrast sum(weights * hits / n) of K independent proportions,
    all (K,): what the counts still allow against an effect. None where the interval holds 0.

    The interval joins the Wilson intervals of the rates (Newcombe 1998, method 10; Zou and Donner 2008);
    each rate moves within its own.
    """
    p, c = np.asarray(hits) / np.asarray(n), np.asarray(weights, np.float64)
    value = float((c * p).sum())
    c = c if value > 0 else -c
    ends = np.array([wilson(int(k), int(m), level) for k, m in zip(hits, n, strict=True)])
    room = np.where(c > 0, p - ends[:, 0], ends[:, 1] - p)
    reach = math.sqrt(float((c**2 * room**2).sum()))
    return p - c * room**2 / reach if abs(value) > reach else None
