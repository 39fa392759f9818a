"""Power of a comparison of two proportions: how many draws a study needs, and what a given number of draws can find."""

from __future__ import annotations

import math
from statistics import NormalDist

from ramify.stats.intervals import normal_quantile


def power_of_difference(p1: float, p2: float, n1: int, n2: int, level: float = 0.95) -> float:
    """Probability that a two-sided z-test at ``level`` finds p1 different from p2 with n1 and n2 draws (normal approximation)."""
    if n1 <= 0 or n2 <= 0:
        return 0.0
    pooled = (n1 * p1 + n2 * p2) / (n1 + n2)
    null = math.sqrt(pooled * (1 - pooled) * (1 / n1 + 1 / n2))
    spread = math.sqrt(p1 * (1 - p1) / n1 + p2 * (1 - p2) / n2)
    gap = abs(p1 - p2) - normal_quantile(level) * null
    if spread == 0:
        return float(gap > 0)
    return NormalDist().cdf(gap / spread)


def draws_for_difference(p1: float, p2: float, power: float = 0.8, level: float = 0.95) -> int:
    """Draws per arm that find p1 different from p2 with probability ``power`` (Fleiss, without continuity correction).

    Raises ValueError when the proportions are equal: no number of draws finds nothing.
    """
    if p1 == p2:
        raise ValueError("equal proportions cannot be told apart")
    pooled = (p1 + p2) / 2
    null = normal_quantile(level) * math.sqrt(2 * pooled * (1 - pooled))
    alternative = NormalDist().inv_cdf(power) * math.sqrt(p1 * (1 - p1) + p2 * (1 - p2))
    return math.ceil(((null + alternative) / (p1 - p2)) ** 2)


def detectable_difference(base: float, n1: int, n2: int, power: float = 0.8, level: float = 0.95) -> float:
    """The smallest move away from ``base`` that n1 and n2 draws find with probability ``power``, in whichever direction has more room.

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
