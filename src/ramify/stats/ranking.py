"""How well a score ranks outcomes: AUROC with intervals over tasks, paired comparisons, ties, and what luck leaves to be had.

Several attempts at one task are not independent observations, so intervals resample tasks, never attempts. An AUROC of one class
alone is None, not 0.5: nothing was ranked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.stats.intervals import Interval, normal_quantile

_CHUNK = 1 << 22  # numbers of a resampling held at once


def auroc(scores: Sequence[float] | np.ndarray, labels: Sequence[bool] | np.ndarray) -> float | None:
    """Probability that a positive outscores a negative, ties counting half. None where a class is empty.

    Both of shape (n,). Raises ValueError on a NaN score: an attempt without a score has no rank.
    """
    x, y = _checked(scores, labels)
    if y.all() or not y.any():
        return None
    areas = _weighted(x, y, np.ones((1, len(x))))
    return float(areas[0])


def within_auroc(scores: Sequence[float] | np.ndarray, labels: Sequence[bool] | np.ndarray, tasks: Sequence[Any]) -> float | None:
    """AUROC over pairs of attempts at one task: what is left when the tasks' difficulty is taken out.
    None where no task is mixed."""
    x, y = _checked(scores, labels)
    codes = _codes(tasks)
    won = pairs = 0.0
    for task in range(codes.max(initial=-1) + 1):
        rows = codes == task
        count = float(y[rows].sum() * (~y[rows]).sum())
        if count:
            won += count * float(_weighted(x[rows], y[rows], np.ones((1, int(rows.sum()))))[0])
            pairs += count
    return won / pairs if pairs else None


def auroc_interval(
    scores: Sequence[float] | np.ndarray,
    labels: Sequence[bool] | np.ndarray,
    tasks: Sequence[Any],
    *,
    minus: Sequence[float] | np.ndarray | None = None,
    samples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Percentile interval of an AUROC, or of its difference to that of ``minus`` on the same attempts, resampling tasks.

    All of shape (n,). Resamples with one class are left out; None where the attempts have one class or one task. The percentiles
    are those that Student's t asks for with so many tasks (Hesterberg 2015, expanded percentiles).
    """
    x, y = _checked(scores, labels)
    codes = _codes(tasks)
    count = int(codes.max(initial=-1)) + 1
    if y.all() or not y.any() or count < 2:
        return None
    rng = generator(seed, "auroc-interval")
    batches: list[np.ndarray] = []
    for start in range(0, samples, step := max(1, _CHUNK // len(x))):
        picks = rng.multinomial(count, np.full(count, 1 / count), size=min(step, samples - start))
        weights = picks[:, codes].astype(np.float64)
        values = _weighted(x, y, weights)
        if minus is not None:
            values = values - _weighted(np.asarray(minus, np.float64), y, weights)
        batches.append(values)
    every = np.concatenate(batches)
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(stdtrit(count - 1, (1 - level) / 2) * math.sqrt(count / (count - 1))))
    low, high = np.nanquantile(every, [tail, 1 - tail])
    return float(low), float(high)


def delong(
    a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, labels: Sequence[bool] | np.ndarray, level: float = 0.95
) -> tuple[float, Interval, float] | None:
    """AUROC(a) - AUROC(b) on the same independent cases, its interval and two-sided p-value (DeLong et al. 1988).

    All of shape (n,). None where a class has fewer than two cases. Cases that share a task are not independent: resample tasks
    then (:func:`auroc_interval` with ``minus``).
    """
    (x, y), (z, _) = _checked(a, labels), _checked(b, labels)
    m, n = int(y.sum()), int((~y).sum())
    if m < 2 or n < 2:
        return None
    placements = [(_placements(s[y], s[~y]), _placements(-s[~y], -s[y])) for s in (x, z)]
    areas = [float(positive.mean()) for positive, _ in placements]
    positives = np.cov(np.stack([p for p, _ in placements]))
    negatives = np.cov(np.stack([q for _, q in placements]))
    s = positives / m + negatives / n
    variance = float(s[0, 0] + s[1, 1] - 2 * s[0, 1])
    difference = areas[0] - areas[1]
    deviation = math.sqrt(max(variance, 0.0))
    half = normal_quantile(level) * deviation
    p = math.erfc(abs(difference) / deviation / math.sqrt(2)) if deviation > 0 else float(difference == 0)
    return difference, (difference - half, difference + half), p


def spearman(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float | None:
    """Rank correlation with average ranks for ties, both of shape (n,). None where one of them is constant or empty."""
    if not len(a):
        return None
    ranks = [_ranks(np.asarray(v, np.float64)) for v in (a, b)]
    centred = [r - r.mean() for r in ranks]
    size = math.sqrt(float((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / size if size else None


def tie_rate(scores: Sequence[float] | np.ndarray, labels: Sequence[bool] | np.ndarray) -> float | None:
    """Share of positive-negative pairs with equal scores; None where a class is empty."""
    x, y = _checked(scores, labels)
    if y.all() or not y.any():
        return None
    values, codes = np.unique(x, return_inverse=True)
    positive, negative = (np.bincount(codes[side], minlength=len(values)) for side in (y, ~y))
    return float((positive * negative).sum() / (positive.sum() * negative.sum()))


def luck_ceiling(choices: Sequence[Hashable], labels: Sequence[bool] | np.ndarray) -> tuple[float | None, int]:
    """The highest AUROC that any score of decisions can have on these attempts, and how many attempts repeat another's decisions.

    ``choices`` (n,): what was decided (task and actions). Attempts with equal decisions get equal scores whatever the grader, so
    where their outcomes differ (luck) the best order is that of their success rates, and the rest is lost to ties. It is a bound
    from above: with no repeated decision nothing is known of luck, and the ceiling is 1.
    """
    y = np.asarray(labels, bool)
    codes = _codes(choices)
    count = np.bincount(codes)
    rate = np.bincount(codes, y) / np.maximum(count, 1)
    return auroc(rate[codes], y), int((count[codes] > 1).sum())


def _checked(scores: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(scores, np.float64), np.asarray(labels, bool)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"scores {x.shape} and labels {y.shape} need one shape (n,)")
    if np.isnan(x).any():
        raise ValueError(f"score {int(np.flatnonzero(np.isnan(x))[0])} is NaN")
    return x, y


def _weighted(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """AUROC under each row of ``weights`` (samples, n): (samples,), NaN where a class has no weight."""
    values, codes = np.unique(x, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    start = np.searchsorted(codes[order], np.arange(len(values)))
    w = weights[:, order]
    positive, negative = (np.add.reduceat(w * side[order], start, axis=1) for side in (y, ~y))
    below = np.cumsum(negative, axis=1) - negative / 2
    won = (positive * below).sum(axis=1)
    total = positive.sum(axis=1) * negative.sum(axis=1)
    areas: np.ndarray = np.where(total > 0, won / np.where(total > 0, total, 1.0), np.nan)
    return areas


def _placements(x: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Share of ``others`` below each of ``x``, ties half."""
    others = np.sort(others)
    low, high = np.searchsorted(others, x), np.searchsorted(others, x, side="right")
    share: np.ndarray = (low + high) / (2 * len(others))
    return share


def _ranks(x: np.ndarray) -> np.ndarray:
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[codes]
    return ranks


def _codes(keys: Sequence[Any]) -> np.ndarray:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
