"""Group-relative normalisation shared by every method that compares attempts with their siblings.

One implementation, because the choices hidden in it (sample or population deviation, epsilon inside or outside the root, what a
uniform group gives) change published numbers. Here: ``(x - mean) / (std + eps)``, epsilon outside, and exactly 0.0 where a group
is uniform or too small for a deviation.
"""

from __future__ import annotations

import numpy as np

_EMPTY = 1e-9  # weights of one shared step sum to 1 only up to rounding


def codes_by_group(groups: np.ndarray | None, n: int) -> tuple[np.ndarray, int]:
    """Group codes 0..G-1 as (codes, G); ``None`` means one group of all ``n`` values."""
    if groups is None:
        return np.zeros(n, dtype=np.int64), 1
    return groups, int(groups.max()) + 1 if n else 0


def moments(
    values: np.ndarray, groups: np.ndarray | None = None, *, weights: np.ndarray | None = None, ddof: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard deviation and weight of each group, three arrays of shape (G,).

    ``values`` (N,); ``groups`` (N,) integer codes 0..G-1 or None for one group; ``weights`` (N,) count how often a value is a
    visit (default once). The variance is ``sum w (x - mean)^2 / (sum w - ddof)``. A uniform group has exactly its value as mean
    and 0 as deviation; a group whose weight does not exceed ``ddof`` has deviation 0.
    """
    codes, count = codes_by_group(groups, len(values))
    w = np.ones(len(values)) if weights is None else weights
    total = np.bincount(codes, w, count)
    safe = np.where(total > 0, total, 1.0)
    mean = np.bincount(codes, w * values, count) / safe
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    mean = np.where(low == high, low, mean)
    spare = total - ddof
    variance = np.bincount(codes, w * (values - mean[codes]) ** 2, count) / np.where(spare > _EMPTY, spare, 1.0)
    return mean, np.where(spare > _EMPTY, np.sqrt(variance), 0.0), total


def normalise(
    values: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    weights: np.ndarray | None = None,
    std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
) -> np.ndarray:
    """Each value relative to its group, shape (N,): ``(x - mean) / (std + eps)``, or ``x - mean`` with ``std=False``.

    Arguments as in :func:`moments`. Exactly 0.0 in a uniform group and in a group whose weight does not exceed ``ddof``.
    """
    values = np.asarray(values, dtype=np.float64)
    codes, _ = codes_by_group(groups, len(values))
    mean, deviation, total = moments(values, groups, weights=weights, ddof=ddof)
    centred = np.where((total - ddof > _EMPTY)[codes], values - mean[codes], 0.0)
    return centred / (deviation[codes] + eps) if std else centred
