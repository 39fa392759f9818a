"""Significance tests: permutation tests of means, goodness of fit, equal proportions of two arms or many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ramify.base.seeds import generator

EXACT_PAIRS = 14  # up to here all 2^n sign patterns are enumerated (16,384 of them)
_TIE = 1e-12  # statistics nearer than this (relative) are equal: sums in another order differ in their last bits


def paired_permutation(
    a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, seed: int = 0, samples: int = 20_000
) -> float:
    """Two-sided p-value of mean(a - b) = 0 under exchange within pairs, both of shape (n,).

    Exact up to 14 pairs; beyond, a seeded sample of sign patterns that counts the observed one (never 0).
    """
    if len(a) != len(b) or len(a) == 0:
        raise ValueError(f"pairs need equal lengths above 0, not {len(a)} and {len(b)}")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    n = len(difference)
    exact = n <= EXACT_PAIRS
    if exact:
        flips = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    else:
        flips = generator(seed, "paired-permutation").integers(0, 2, size=(samples, n))
    sums = np.abs((1 - 2 * flips) @ difference)
    return _share_as_extreme(sums, abs(float(difference.sum())), exact)


def kernel_permutation(kernel: np.ndarray, second: Sequence[bool] | np.ndarray, seed: int = 0, samples: int = 2_000) -> float:
    """p-value of the hypothesis that two samples have one distribution, by permuting which observation is whose.

    ``kernel`` (n, n) says how alike two observations are, ``second`` (n,) whose each is. The statistic is the maximum mean
    discrepancy (Gretton et al. 2012); with minus a distance as kernel it is the energy distance. A seeded sample of permutations
    counts the observed one, so it is never 0. Raises ValueError where a sample is empty or the shapes differ.
    """
    labels = np.asarray(second, dtype=bool)
    n, m = int((~labels).sum()), int(labels.sum())
    if not n or not m or np.shape(kernel) != (n + m, n + m):
        raise ValueError(f"samples of {n} and {m} need a kernel of shape {(n + m, n + m)}, not {np.shape(kernel)}")
    weights = np.where(labels, 1 / m, -1 / n)
    rows = generator(seed, "kernel-permutation").permuted(np.tile(weights, (samples, 1)), axis=1)
    statistics = np.einsum("si,ij,sj->s", rows, np.asarray(kernel, dtype=np.float64), rows, optimize=True)
    return _share_as_extreme(statistics, float(weights @ kernel @ weights), exact=False)


def _share_as_extreme(statistics: np.ndarray, observed: float, exact: bool) -> float:
    extreme = int((statistics >= observed - _TIE * max(1.0, abs(observed))).sum())
    return extreme / len(statistics) if exact else (extreme + 1) / (len(statistics) + 1)


def chi_square(counts: Sequence[int] | np.ndarray, probabilities: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """(statistic, p-value) of observed counts against a fully specified distribution, both of shape (K,).

    The cells with least expected counts are pooled into one of 5 or more, so the approximation holds. An observation where the
    probability is 0 gives (inf, 0). Raises ValueError where the shapes differ or the probabilities do not sum to 1.
    """
    observed, p = np.asarray(counts, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    if observed.shape != p.shape or observed.ndim != 1 or observed.sum() == 0:
        raise ValueError(f"counts {observed.shape} and probabilities {p.shape} need one shape (K,) and an observation")
    if abs(p.sum() - 1) > 1e-6 or (p < 0).any():
        raise ValueError(f"probabilities sum to {p.sum():g}, not to 1")
    if observed[p == 0].any():
        return float("inf"), 0.0
    expected = p * observed.sum()
    order = np.argsort(expected, kind="stable")
    observed, expected = observed[order], expected[order]
    if expected[0] < 5:  # the least together, until 5 are expected of them: a rare cell alone would fail by one observation
        pooled = min(int(np.searchsorted(np.cumsum(expected), 5.0)) + 1, len(expected))
        observed, expected = (np.append(cells[pooled:], cells[:pooled].sum()) for cells in (observed, expected))
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(expected) < 2:
        return 0.0, 1.0
    from scipy.special import chdtrc

    statistic = float(((observed - expected) ** 2 / expected).sum())
    return statistic, float(chdtrc(len(expected) - 1, statistic))


def fisher(k1: int, n1: int, k2: int, n2: int) -> float:
    """Exact two-sided p-value of equal proportions k1/n1 and k2/n2 (Fisher)."""
    from scipy.stats import fisher_exact

    return float(fisher_exact([[k1, n1 - k1], [k2, n2 - k2]]).pvalue)


def fisher_stratified(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> float:
    """Exact two-sided p-value of equal proportions of two arms within every stratum,
    whatever they are between strata; 1 of no strata.

    ``first`` and ``second`` hold (k, n) of each stratum (a task, a model), in one order. The sum of the first arm's k is compared
    with its distribution given the margins of each stratum;
    outcomes that are at most as likely count (one stratum: :func:`fisher`).
    """
    from scipy.stats import hypergeom

    distribution, observed = np.ones(1), 0
    for (k1, n1), (k2, n2) in zip(first, second, strict=True):
        distribution = np.convolve(distribution, hypergeom.pmf(np.arange(n1 + 1), n1 + n2, k1 + k2, n1))
        observed += k1
    return min(1.0, float(distribution[distribution <= distribution[observed] * (1 + 1e-7)].sum()))


def two_proportions(k1: int, n1: int, k2: int, n2: int) -> float:
    """Two-sided p-value of equal proportions by the pooled z test; 1 where nothing varies.
    For small counts prefer :func:`fisher`."""
    if not n1 or not n2:
        return 1.0
    pooled = (k1 + k2) / (n1 + n2)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / n1 + 1 / n2))
    return math.erfc(abs(k1 / n1 - k2 / n2) / spread / math.sqrt(2)) if spread else 1.0


def homogeneity(hits: Sequence[int], n: Sequence[int]) -> float:
    """p-value of the hypothesis that all (K,) counts share one proportion (Pearson's chi-square), as pooling of variants assumes.

    Arms without outcomes are left out; 1 where fewer than two are left or nothing varies.
    """
    kept = [(k, m) for k, m in zip(hits, n, strict=True) if m]
    total = sum(k for k, _ in kept)
    if len(kept) < 2 or total in (0, sum(m for _, m in kept)):
        return 1.0
    from scipy.stats import chi2_contingency

    return float(chi2_contingency([[k, m - k] for k, m in kept], correction=False).pvalue)


def sign_test(up: int, n: int) -> float:
    """Exact two-sided p-value of ``up`` of ``n`` pairs that differ going up, where either way is as likely; 1 of none.

    On right and wrong answers to the same questions this is McNemar's exact test.
    """
    from scipy.stats import binomtest

    return float(binomtest(up, n).pvalue) if n else 1.0
