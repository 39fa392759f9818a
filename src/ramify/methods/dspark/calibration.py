"""How far probabilities are from the frequencies they foretell:
the expected calibration error (Naeini et al. 2015) and its floor."""

from __future__ import annotations

import numpy as np

BINS = 20
"""Equal-width bins."""


def calibration_error(p: np.ndarray, y: np.ndarray, bins: int = BINS) -> float:
    """ECE of probabilities ``p`` for labels ``y``, both [N], over equal-width bins; nan of nothing."""
    if not len(p):
        return float("nan")
    gap = np.bincount(_bin(p, bins), weights=p - y, minlength=bins)
    return float(np.abs(gap).sum() / len(p))


def calibration_floor(p: np.ndarray, samples: int = 200, seed: int = 0, bins: int = BINS) -> float:
    """ECE that a perfectly calibrated predictor of these ``p`` [N] would show: the mean over labels sampled from ``p`` itself."""
    rng = np.random.Generator(np.random.Philox(seed))
    return float(np.mean([calibration_error(p, rng.random(len(p)) < p, bins) for _ in range(samples)]))


def standard_error(p: np.ndarray, y: np.ndarray, bins: int = BINS) -> float:
    """Of the calibration error: bins are independent, the labels of one vary by its own rate."""
    which = _bin(p, bins)
    n = np.bincount(which, minlength=bins)
    rate = np.bincount(which, weights=y, minlength=bins) / np.maximum(n, 1)
    return float(np.sqrt((n * rate * (1 - rate)).sum()) / len(p))


def _bin(p: np.ndarray, bins: int) -> np.ndarray:
    return np.asarray(np.minimum((p * bins).astype(int), bins - 1))
