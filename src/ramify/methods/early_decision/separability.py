"""How far two classes of states lie apart, position by position along a trace, and how deep the dip in the middle is.

A dip of J is not a loss of decodability: J compares the distance of the means with the spread in *all* dimensions, most of which
carry the current token. Always show it together with a probe (:mod:`ramify.methods.early_decision.probe`). Source: Ri et al.
2026, arXiv 2606.25013, sections on separability; floors and intervals are this project's.

Axis legend: N samples, P positions, D width, R random labellings or halves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.early_decision.probe import shuffled_groups

_FLAT = 1e-6
"""A dimension whose deviation is not above this is left as it is."""


def standardised(x: np.ndarray) -> np.ndarray:
    """``x`` (N, ...) minus its mean, over its deviation, float64, each dimension by all N samples."""
    wide = np.asarray(x, np.float64)
    deviation = wide.std(axis=0)
    return np.asarray((wide - wide.mean(axis=0)) / np.where(deviation > _FLAT, deviation, 1.0))


def fisher(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whole-space Fisher ratio J of standardised states: ``x`` (N, ..., D) with labels ``y`` bool (N,) gives (...,).

    J = |m1 - m0|^2 / (E|x1 - m1|^2 + E|x0 - m0|^2), sums over dimensions. Raises UserError where a class is missing.
    """
    labels = _labels(x, y)
    return np.asarray(_ratio(standardised(x), labels[None])[0])


def floor(positive: int, negative: int) -> float:
    """What J is expected to be without any signal: half of 1/n1 + 1/n0, as J of two samples of one distribution is never 0."""
    return 0.5 * (1 / positive + 1 / negative)


def _ratio(z: np.ndarray, labels: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """J of ``z`` (N, ..., D) under labellings ``labels`` bool (R, N), over the samples ``kept`` bool (R, N) by each: (R, ...)."""
    shape = z.shape[1:-1]
    flat = z.reshape(len(z), -1)
    squares = (z**2).sum(axis=-1).reshape(len(z), -1)
    kept = np.ones_like(labels) if kept is None else kept
    within, means = 0.0, []
    for side in (labels & kept, ~labels & kept):
        share = side / np.maximum(side.sum(axis=1, keepdims=True), 1)
        mean = (share @ flat).reshape(len(labels), *shape, z.shape[-1])
        within = within + (share @ squares).reshape(len(labels), *shape) - (mean**2).sum(axis=-1)
        means.append(mean)
    gap = ((means[0] - means[1]) ** 2).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(gap > 0, gap / within, 0.0))


@dataclass(frozen=True, slots=True)
class Valley:
    """J along a trace, at P positions each."""

    share: tuple[float, ...]
    """Where on the trace, 0 to 1."""
    j: tuple[float, ...]
    floor: tuple[float, ...]
    """Mean of J under shuffled labels."""
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    """Interval of J - floor; None where no half has two traces of either outcome."""
    depth: float | None
    """V = 1 - mean(J from 20 to 80 %) / min(J at the start, J at the end), the floor taken off; None where an end is not above
    it. The lesser of two noisy ends errs low, so V errs towards no valley."""
    depth_interval: tuple[float, float] | None
    """None where an end is not above its floor in more halves than the interval leaves out on one side."""
    n: tuple[int, int]
    """Positive and negative traces."""


def valley(
    x: np.ndarray,
    y: np.ndarray,
    groups: Sequence[Any] | None = None,
    *,
    seed: int = 0,
    samples: int = 200,
    level: float = 0.95,
) -> Valley:
    """J at each of P positions spread evenly over the traces: ``x`` (N, P, D), ``y`` bool (N,).

    The floor is that of ``draws`` shuffled labellings, which move the labels of a group together: traces of one prompt are alike,
    so their J without any signal is far above that of as many traces of as many prompts. Intervals are those of random halves of
    the ``groups`` (traces, where none are given), sampled without replacement: a half differs from the whole as the whole differs
    from the truth, and unlike a resample it repeats no trace, which would raise J. Raises UserError where a class is missing.
    """
    labels, positions = _labels(x, y), range(x.shape[1])
    rng = generator(seed, "valley")
    if groups is None:
        shuffled = rng.permuted(np.broadcast_to(labels, (samples, len(labels))), axis=1)
    else:
        shuffled = np.stack([shuffled_groups(labels, groups, rng) for _ in range(samples)])
    _, codes = np.unique(np.arange(len(labels)) if groups is None else np.asarray(groups), return_inverse=True)
    order = rng.permuted(np.broadcast_to(np.arange(codes.max() + 1), (samples, codes.max() + 1)), axis=1)
    kept = (order < (codes.max() + 1) / 2)[:, codes]
    kept = kept[((kept & labels).sum(axis=1) > 1) & ((kept & ~labels).sum(axis=1) > 1)]
    j, null = np.zeros(len(positions)), np.zeros(len(positions))
    halves = np.zeros((len(kept), len(positions)))
    for p in positions:  # one at a time: the states of a hundred positions of a large model are many
        z = standardised(x[:, p])
        j[p], null[p] = _ratio(z, labels[None])[0], _ratio(z, shuffled).mean()
        halves[:, p] = _ratio(z, np.broadcast_to(labels, kept.shape), kept)
    tails = [(1 - level) / 2, (1 + level) / 2]
    where = np.linspace(0, 1, len(positions))
    middle = (where >= 0.2 - 1e-9) & (where <= 0.8 + 1e-9)
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    interval: tuple[float, float] | None = None
    if len(kept):
        sizes = 0.5 * (1 / (kept & labels).sum(axis=1) + 1 / (kept & ~labels).sum(axis=1))
        net = halves - null * (sizes / floor(int(labels.sum()), int((~labels).sum())))[:, None]
        low, high = map(tuple, np.quantile(net, tails, axis=0).tolist())
        depths = [value for one in net if (value := _depth(one, middle)) is not None]
        if len(depths) >= tails[1] * len(net):
            ends = np.quantile(depths, tails)
            interval = float(ends[0]), float(ends[1])
    counts = int(labels.sum()), int((~labels).sum())
    share, along, null_mean = (tuple(values.tolist()) for values in (where, j, null))
    return Valley(share, along, null_mean, low, high, _depth(j - null, middle), interval, counts)


def _depth(net: np.ndarray, middle: np.ndarray) -> float | None:
    least = min(net[0], net[-1])
    return float(1 - net[middle].mean() / least) if least > 0 else None


class LogitDistances(NamedTuple):
    """How far two classes of logits lie apart."""

    fisher: float
    cohen_d: float
    bhattacharyya: float


def logit_measures(logits: np.ndarray, y: np.ndarray, textbook: bool = False) -> LogitDistances:
    """Distances of two classes of out-of-fold logits (N,): Fisher ratio, Cohen's d, Bhattacharyya.

    The Bhattacharyya mean term is the paper's, (m1 - m0)^2 / 4 s^2 with s^2 the mean variance; ``textbook`` halves it. Raises
    UserError where a class is missing.
    """
    labels = _labels(logits, y)
    one, zero = (np.asarray(logits, np.float64)[side] for side in (labels, ~labels))
    gap, pooled = float(one.mean() - zero.mean()), float((one.var() + zero.var()) / 2)
    if pooled == 0:
        return LogitDistances(*[math.inf if gap else 0.0] * 3)
    spread = 0.5 * math.log(pooled / math.sqrt(one.var() * zero.var())) if one.var() * zero.var() > 0 else math.inf
    bhattacharyya = gap**2 / pooled / (8 if textbook else 4) + spread
    return LogitDistances(gap**2 / (2 * pooled), gap / math.sqrt(pooled), bhattacharyya)


def mahalanobis(x: np.ndarray, y: np.ndarray, ridge: float = 1.0) -> float:
    """sqrt(d' (S + ridge I)^-1 d) of the class means' difference d, S pooled within classes, of standardised ``x`` (N, D).

    Solved in N x N (Woodbury), as D is larger. Raises UserError where a class is missing.
    """
    labels = _labels(x, y)
    z = standardised(x)
    means = [z[labels].mean(axis=0), z[~labels].mean(axis=0)]
    centred = (z - np.where(labels[:, None], *means)) / math.sqrt(len(z))
    d = means[0] - means[1]
    inner = np.linalg.solve(ridge * np.eye(len(z)) + centred @ centred.T, centred @ d)
    return math.sqrt(max(0.0, float(d @ d - (centred @ d) @ inner) / ridge))


def _labels(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    labels = np.asarray(y, bool)
    if labels.shape != (len(x),):
        raise UserError(f"{len(x)} states need as many labels, not {labels.shape}")
    if labels.all() or not labels.any():
        raise UserError("all outcomes are the same, so there is nothing to separate")
    return labels
