"""How a proportion moves with a dose: trend test and its power, logistic fit with the dose of a given share, monotone fit.

Axis legend: K doses. Counts are ``hits`` of ``n`` at each of ``doses``, all of shape (K,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ramify.stats.intervals import Interval, normal_quantile

Numbers = Sequence[float] | np.ndarray


def cochran_armitage(hits: Numbers, n: Numbers, doses: Numbers) -> tuple[float, float]:
    """(z, two-sided p) of a linear trend of proportions (Cochran 1954, Armitage 1955). z > 0: the share grows with the dose.

    (0, 1) where nothing varies: one dose, no hit, or all hits. Raises ValueError on counts that are none.
    """
    k, m, d = _counts(hits, n, doses)
    share, centre = k.sum() / m.sum(), (m * d).sum() / m.sum()
    variance = share * (1 - share) * (m * (d - centre) ** 2).sum()
    # Doses all alike: their mean may differ from them in the last bit.
    if variance <= 0 or not np.ptp(d):
        return 0.0, 1.0
    z = float((k * (d - centre)).sum() / math.sqrt(variance))
    return z, math.erfc(abs(z) / math.sqrt(2))


def trend_power(shares: Numbers, n: Numbers, doses: Numbers, level: float = 0.95) -> float:
    """Probability that a two-sided :func:`cochran_armitage` at ``level`` finds the trend of true ``shares`` (K,), normal
    approximation.

    Raises ValueError on shares outside [0, 1].
    """
    p = np.asarray(shares, np.float64)
    if ((p < 0) | (p > 1)).any():
        raise ValueError("a share lies between 0 and 1")
    _, m, d = _counts(np.zeros(len(p)), n, doses)
    pooled, centre = (m * p).sum() / m.sum(), (m * d).sum() / m.sum()
    mean = float((m * p * (d - centre)).sum())
    if not np.ptp(d):
        return 0.0
    null = math.sqrt(pooled * (1 - pooled) * (m * (d - centre) ** 2).sum())
    spread = math.sqrt((m * p * (1 - p) * (d - centre) ** 2).sum())
    bound = normal_quantile(level) * null
    if spread == 0:
        return float(abs(mean) > bound)
    normal = NormalDist()
    return normal.cdf((mean - bound) / spread) + normal.cdf((-mean - bound) / spread)


@dataclass(frozen=True, slots=True)
class Logistic:
    """logit(share) = intercept + slope * dose, with the covariance (2, 2) of the two."""

    intercept: float
    slope: float
    covariance: tuple[tuple[float, float], tuple[float, float]]

    def share(self, dose: float) -> float:
        """The fitted share at ``dose``."""
        return 1 / (1 + math.exp(-min(700.0, max(-700.0, self.intercept + self.slope * dose))))

    def dose_of(self, share: float, level: float = 0.95) -> tuple[float, Interval]:
        """The dose at which the fit reaches ``share``, and Fieller's interval (1954) of it.

        The interval is (-inf, inf) where the slope does not differ from 0 at ``level``.
        Raises ValueError on a share outside (0, 1).
        """
        if not 0 < share < 1:
            raise ValueError(f"a share lies between 0 and 1, not {share}")
        above = math.log(share / (1 - share)) - self.intercept
        point = above / self.slope if self.slope else math.inf
        (va, cab), (_, vb) = self.covariance
        z2 = normal_quantile(level) ** 2
        a, b, c = self.slope**2 - z2 * vb, -2 * (above * self.slope + z2 * cab), above**2 - z2 * va
        if a <= 0:
            return point, (-math.inf, math.inf)
        half = math.sqrt(max(0.0, b * b - 4 * a * c))
        return point, ((-b - half) / (2 * a), (-b + half) / (2 * a))


def logistic_fit(hits: Numbers, n: Numbers, doses: Numbers) -> Logistic | None:
    """Logistic regression of grouped counts, with Jeffreys' penalty (Firth 1993),
    so that it is finite also where one dose holds every hit.

    None where the doses are all alike. Raises ValueError on counts that are none.
    """
    k, m, d = _counts(hits, n, doses)
    if not np.ptp(d):
        return None
    scale = float(d.std())
    X = np.stack([np.ones(len(d)), (d - d.mean()) / scale], axis=1)
    beta = np.array([math.log((k.sum() + 0.5) / (m.sum() - k.sum() + 0.5)), 0.0])

    def penalised(b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        eta = X @ b
        p = 1 / (1 + np.exp(-np.clip(eta, -700, 700)))
        w = m * p * (1 - p)
        information = X.T @ (w[:, None] * X)
        factorage = w * np.einsum("ki,ij,kj->k", X, np.linalg.inv(information), X)
        value = float((k * eta - m * np.logaddexp(0, eta)).sum() + 0.5 * np.linalg.slogdet(information)[1])
        return value, X.T @ (k - m * p + factorage * (0.5 - p)), information

    value, score, information = penalised(beta)
    for _ in range(200):
        step = np.linalg.solve(information, score)
        step *= min(1.0, 2.0 / float(np.abs(step).max() or 1.0))
        while True:
            try:
                tried = penalised(beta + step)
            except np.linalg.LinAlgError:
                tried = (-math.inf, score, information)
            if tried[0] >= value - 1e-12 or float(np.abs(step).max()) < 1e-10:
                break
            step = step / 2
        beta = beta + step
        value, score, information = tried
        if float(np.abs(step).max()) < 1e-9:
            break
    back = np.array([[1.0, -d.mean() / scale], [0.0, 1 / scale]])
    intercept, slope = back @ beta
    (aa, ab), (_, bb) = back @ np.linalg.inv(information) @ back.T
    return Logistic(float(intercept), float(slope), ((float(aa), float(ab)), (float(ab), float(bb))))


def isotonic(hits: Numbers, n: Numbers, doses: Numbers) -> np.ndarray:
    """Shares (K,) at each dose that never fall with it and fit the counts best (pool adjacent violators), in the order given."""
    k, m, d = _counts(hits, n, doses)
    from scipy.optimize import isotonic_regression

    order = np.argsort(d, kind="stable")
    out = np.empty(len(d))
    out[order] = isotonic_regression((k / m)[order], weights=m[order]).x
    return out


def _counts(hits: Numbers, n: Numbers, doses: Numbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    k, m, d = (np.asarray(values, np.float64) for values in (hits, n, doses))
    if k.ndim != 1 or not k.shape == m.shape == d.shape or not len(k):
        raise ValueError(f"hits {k.shape}, n {m.shape} and doses {d.shape} need one shape (K,) with K of at least 1")
    if (k < 0).any() or (k > m).any() or (m <= 0).any() or not np.isfinite(d).all():
        raise ValueError("each dose needs a finite number, and hits between 0 and its n of at least 1")
    return k, m, d
