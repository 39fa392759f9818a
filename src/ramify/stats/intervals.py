"""Confidence intervals: proportions, means, differences, and the bootstrap. All are two-sided, as (low, high)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ramify.base.seeds import generator

Interval = tuple[float, float]


def normal_quantile(level: float) -> float:
    """The z that bounds a central probability of ``level``: 1.96 for 0.95. Raises ValueError outside (0, 1)."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    return NormalDist().inv_cdf(0.5 + level / 2)


def wilson(successes: float, n: float, level: float = 0.95) -> Interval:
    """Score interval of a proportion (Wilson 1927). (0, 1) where n is 0: nothing was seen, so nothing is excluded.

    Counts may be fractions: those of as many independent trials as a design with dependent ones is worth.
    """
    _counts(successes, n)
    if n == 0:
        return 0.0, 1.0
    z2, p = normal_quantile(level) ** 2, successes / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return (0.0 if successes == 0 else max(0.0, centre - half)), (1.0 if successes == n else min(1.0, centre + half))


@dataclass(frozen=True, slots=True)
class Proportion:
    """``k`` of ``n`` for a report, with its interval."""

    value: float
    interval: Interval
    k: int
    n: int

    @classmethod
    def of(cls, k: int, n: int, level: float = 0.95) -> Proportion | None:
        """With Wilson's interval; None of nothing."""
        return None if n == 0 else cls(k / n, wilson(k, n, level), k, n)

    def __str__(self) -> str:
        return f"{self.k} of {self.n}"


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a proportion (Clopper and Pearson 1934): it covers at least ``level`` for every true value."""
    _counts(successes, n)
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high


def difference_of_proportions(k1: float, n1: float, k2: float, n2: float, level: float = 0.95) -> Interval:
    """Interval of k1/n1 - k2/n2 for independent samples: hybrid of two Wilson intervals (Newcombe 1998, method 10).

    Counts may be fractions, as in :func:`wilson`."""
    if n1 == 0 or n2 == 0:
        return -1.0, 1.0
    (low1, high1), (low2, high2) = wilson(k1, n1, level), wilson(k2, n2, level)
    p1, p2 = k1 / n1, k2 / n2
    return p1 - p2 - math.hypot(p1 - low1, high2 - p2), p1 - p2 + math.hypot(high1 - p1, p2 - low2)


def difference_of_differences(
    both: tuple[int, int], first: tuple[int, int], second: tuple[int, int], none: tuple[int, int], level: float = 0.95
) -> tuple[float, Interval, float]:
    """Interaction ``both - first - second + none`` of four independent proportions (hits, n): value, interval, two-sided p.

    The interval joins the four Wilson intervals (Zou and Donner 2008); p is that of the unpooled z test, or, where all
    four proportions are 0 or 1 and their variance would be 0, follows from the width of the interval.
    An empty cell gives (0, (-2, 2), 1).
    """
    cells = (both, first, second, none)
    if not all(n for _, n in cells):
        return 0.0, (-2.0, 2.0), 1.0
    rates = [k / n for k, n in cells]
    signs = (1, -1, -1, 1)
    value = sum(sign * rate for sign, rate in zip(signs, rates, strict=True))
    ends = [wilson(k, n, level) for k, n in cells]
    down = math.sqrt(sum((r - e[0] if s > 0 else e[1] - r) ** 2 for s, r, e in zip(signs, rates, ends, strict=True)))
    up = math.sqrt(sum((e[1] - r if s > 0 else r - e[0]) ** 2 for s, r, e in zip(signs, rates, ends, strict=True)))
    variance = sum(r * (1 - r) / n for r, (_, n) in zip(rates, cells, strict=True))
    spread = math.sqrt(variance) or (down if value > 0 else up) / normal_quantile(level)
    p = math.erfc(abs(value) / spread / math.sqrt(2))
    return value, (value - down, value + up), p


def mean_t(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Student interval of the mean of independent values, shape (n,). Raises ValueError below two values: they show no spread."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2:
        raise ValueError(f"an interval of a mean needs at least 2 values, not {x.size}")
    from scipy.special import stdtrit

    half = float(stdtrit(len(x) - 1, 0.5 + level / 2)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


def paired_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Student interval of the mean of a - b over pairs (the same seeds, tasks or episodes), both of shape (n,)."""
    if len(a) != len(b):
        raise ValueError(f"pairs need equal lengths, not {len(a)} and {len(b)}")
    return mean_t(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64), level)


def paired_proportions(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Interval of the mean of a - b over pairs of successes and failures (1 and 0), both of shape (n,); within -1 and 1.

    Two Wilson intervals joined with the pairs' correlation (Newcombe 1998, interval estimation for the difference between
    proportions based on paired data, method 10). Unlike :func:`paired_t` it holds for a handful of pairs,
    and where all of them agree.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"pairs need equal lengths, not {x.size} and {y.size}")
    n = len(x)
    if n == 0:
        return -1.0, 1.0
    k1, k2, both = int(x.sum()), int(y.sum()), int((x * y).sum())
    (low1, high1), (low2, high2) = wilson(k1, n, level), wilson(k2, n, level)
    p1, p2 = k1 / n, k2 / n
    product = both * (n - k1 - k2 + both) - (k1 - both) * (k2 - both)
    scale = math.sqrt(k1 * (n - k1) * k2 * (n - k2))
    phi = 0.0 if scale == 0 else (max(product - n / 2, 0) if product > 0 else product) / scale

    def reach(a_side: float, other: float) -> float:
        return math.sqrt(max(0.0, a_side * a_side - 2 * phi * a_side * other + other * other))

    return p1 - p2 - reach(p1 - low1, high2 - p2), p1 - p2 + reach(high1 - p1, p2 - low2)


def bootstrap(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = lambda samples: samples.mean(axis=1),
    seed: int = 0,
    samples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap (Efron 1979) of a statistic of independent values, shape (n,).

    ``statistic`` maps resamples of shape (samples, n) to (samples,). The same seed gives the same interval. Percentiles are too
    narrow for small n: prefer :func:`mean_t` for a mean of fewer than about 20 values.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise ValueError("a bootstrap needs at least 1 value")
    picks = generator(seed, "bootstrap").integers(0, len(x), size=(samples, len(x)))
    low, high = np.quantile(statistic(x[picks]), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


FEW_CLUSTERS = 50
"""Below so many clusters percentiles of a bootstrap are too narrow: at 10 they cover .90 where .95 is meant."""


def clustered_mean(
    values: Sequence[float] | np.ndarray, clusters: Sequence[Any], seed: int = 0, samples: int = 1000, level: float = 0.95
) -> tuple[float, Interval | None]:
    """Mean of ``values`` (n,) and its interval where whole ``clusters`` (n,) were sampled;
    the interval is None with fewer than two of them.

    Values of one cluster (samples of one prompt, cuts of one trace) are not independent. From 50 clusters on the interval is the
    percentile bootstrap over them; below, Student's with one degree of freedom less than clusters, of the linearised ratio of sum
    to count (Cochran 1977, section 6.3). Raises ValueError without values.
    """
    x = np.asarray(values, dtype=np.float64)
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    if x.shape != codes.shape or not len(x):
        raise ValueError(f"a clustered mean needs as many clusters as values, at least 1, not {len(codes)} and {x.size}")
    sums, sizes = np.bincount(codes, x), np.bincount(codes)
    value = float(x.mean())
    if len(sums) < 2:
        return value, None
    if len(sums) < FEW_CLUSTERS:
        low, high = mean_t((sums - value * sizes) * len(sums) / len(x), level)
        return value, (value + low, value + high)

    def mean(picks: np.ndarray) -> np.ndarray:
        at = picks.astype(int)
        return np.asarray(sums[at].sum(axis=1) / sizes[at].sum(axis=1))

    return value, bootstrap(np.arange(len(sums)), mean, seed, samples, level)


@dataclass(frozen=True)
class ClusteredShare:
    """``k`` of ``n`` trials in so many ``clusters``; ``interval`` is None with one cluster, which shows no spread."""

    value: float
    interval: Interval | None
    k: int
    n: int
    clusters: int


def clustered_share(
    hits: Sequence[bool] | np.ndarray, clusters: Sequence[Any] | np.ndarray, level: float = 0.95
) -> ClusteredShare | None:
    """Share of ``hits`` (n,) where ``clusters`` (n,) were sampled (tasks, prompts), not trials.

    Wilson's interval of the number of independent trials that the spread between clusters is worth, with Student's degrees of
    freedom (Korn and Graubard 1998); where all hits are alike, of as many trials as there are clusters. ``interval`` is None with
    one cluster, which shows no spread; the result is None of nothing. Raises ValueError where the lengths differ.
    """
    x = np.asarray(hits, dtype=np.float64)
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], np.int64)
    if x.shape != codes.shape:
        raise ValueError(f"a share over clusters needs as many clusters as hits, not {len(codes)} and {x.size}")
    if not len(x):
        return None
    n, count, p = len(x), len(numbers), float(x.mean())
    if count < 2:
        return ClusteredShare(p, None, int(x.sum()), n, count)
    worth = float(count)
    if 0 < p < 1:
        from scipy.special import stdtrit

        gaps = np.bincount(codes, x) - p * np.bincount(codes)
        variance = count / (count - 1) * float(gaps @ gaps) / n**2
        tail = 0.5 + level / 2
        worth = min(n, p * (1 - p) / variance if variance else n) * float(stdtrit(n - 1, tail) / stdtrit(count - 1, tail)) ** 2
    return ClusteredShare(p, wilson(p * worth, worth, level), int(x.sum()), n, count)


def difference_over_clusters(
    first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]], seed: int = 0, samples: int = 2000, level: float = 0.95
) -> Interval:
    """Interval of the difference of two pooled proportions where clusters (tasks, models) were sampled, not trials.

    ``first`` and ``second`` hold (k, n) of each cluster, in one order; a cluster is sampled with both. Percentile bootstrap from
    50 clusters on, Student's below, as :func:`clustered_mean`. Raises ValueError below two clusters: they show no spread.
    """
    counts = np.asarray([first, second], dtype=np.float64)  # (arm, cluster, k and n)
    if counts.ndim != 3 or counts.shape[1] < 2 or counts.shape[2] != 2:
        raise ValueError(f"two arms need (k, n) of the same 2 or more clusters, not shape {counts.shape}")
    clusters = counts.shape[1]
    if clusters < FEW_CLUSTERS:
        k, n = counts[:, :, 0], counts[:, :, 1]
        totals = np.maximum(n.sum(axis=1, keepdims=True), 1)
        rates = k.sum(axis=1, keepdims=True) / totals
        parts = (k - rates * n) * clusters / totals
        value = float(rates[0, 0] - rates[1, 0])
        low, high = mean_t(parts[0] - parts[1], level)
        return value + low, value + high

    def difference(picked: np.ndarray) -> np.ndarray:
        sums = counts[:, picked.astype(np.int64)].sum(axis=2)  # (arm, samples, k and n)
        rates = sums[:, :, 0] / np.maximum(sums[:, :, 1], 1)
        gap: np.ndarray = rates[0] - rates[1]
        return gap

    return bootstrap(np.arange(clusters), difference, seed, samples, level)


def _counts(successes: float, n: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} is not a count")
