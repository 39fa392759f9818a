"""The tests of a motive as pure functions of counts (arXiv 2606.26071, section 3; sections of the spec in brackets).

Counterfactuals [3.2], dose-response [3.4, 13], stacks [8, 9] and silence without a positive control [3.4, 14] are those of
:mod:`ramify.methods.forensics.experiment`; here are sentences, forbidding, awareness and the plan. Axis legend: S sentences of a
trace, k forks at each place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ramify.methods.forensics.experiment import ALPHA, ArmDetail, TestResult, counterfactuals
from ramify.methods.forensics.trend import trend_power
from ramify.stats.drops import Counts
from ramify.stats.evidence import holm
from ramify.stats.intervals import Interval, normal_quantile, wilson
from ramify.stats.power import power_of_difference, sample_size
from ramify.stats.tests import fisher, two_proportions

INVALID = 0.1
"""More invalid runs than this share make a rate doubtful."""


@dataclass(frozen=True, slots=True, eq=False)
class SentenceScores:
    """Resampling scores of the sentences of one trace, (S,) each [3.4, 1].

    ``scores`` use all forks and telescope: they sum to rates[-1] - rates[0]. ``order`` ranks sentences by |score| on the first
    half of the forks; ``held_out`` are the scores on the other half, which that ranking has not seen.
    """

    rates: np.ndarray
    """(S + 1,): rate of the forks before the first sentence, and after each."""
    scores: np.ndarray
    sd: np.ndarray
    """Standard error of each score."""
    p: np.ndarray
    """Two-sided z tests of each score, Holm-corrected over the S looks."""
    order: np.ndarray
    held_out: np.ndarray


def sentence_scores(outcomes: np.ndarray) -> SentenceScores:
    """Scores from graded forks: ``outcomes`` (S + 1, k) is 1, 0 or nan (invalid); row i holds the forks after i sentences.

    The arm after sentence i is the arm before sentence i + 1, so S + 1 arms serve S scores. The score of a sentence is
    (1 - pi) * delta: pi the chance that the agent says it here anyway, delta the effect of its presence against its absence.
    Raises ValueError where a row has fewer than 2 graded forks in either half.
    """
    x = np.asarray(outcomes, np.float64)
    if x.ndim != 2 or x.shape[0] < 2:
        raise ValueError(f"outcomes need the shape (S + 1, k) with at least one sentence, not {x.shape}")
    halves = x[:, 0::2], x[:, 1::2]
    if any((np.isfinite(half).sum(axis=1) < 2).any() for half in halves):
        raise ValueError("each position needs at least 2 graded forks in either half")
    rates, n = np.nanmean(x, axis=1), np.isfinite(x).sum(axis=1)
    variance = rates * (1 - rates) / n
    sd = np.sqrt(variance[:-1] + variance[1:])
    hits = np.nansum(x, axis=1)
    raw = [two_proportions(int(hits[i + 1]), int(n[i + 1]), int(hits[i]), int(n[i])) for i in range(len(n) - 1)]
    first, second = (np.diff(np.nanmean(half, axis=1)) for half in halves)
    order = np.argsort(-np.abs(first), kind="stable")
    return SentenceScores(rates, np.diff(rates), sd, np.asarray(holm(raw)), order, second)


def forbidding(base: Counts, filtered: Counts, rejected: int, unfiltered: int, name: str = "forbid") -> TestResult:
    """Repeated resampling: traces without a class of sentences against the baseline;
    ``unfiltered`` ones ran out of resamples [3.4, 2]."""
    (result,) = counterfactuals(base, {name: filtered}, kind="forbid")
    assert isinstance(result.detail, ArmDetail)
    left_out = unfiltered / max(1, filtered.forks)
    detail = replace(result.detail, rejected=rejected, unfiltered=unfiltered, unfiltered_share=left_out)
    return replace(result, detail=detail)


@dataclass(frozen=True)
class AwareSide:
    """Runs with the behaviour among those of one side."""

    k: int
    n: int
    interval: Interval

    @classmethod
    def of(cls, counts: Counts) -> AwareSide:
        """Of counts."""
        return cls(counts.k, counts.n, wilson(counts.k, counts.n))


@dataclass(frozen=True)
class Awareness:
    """Runs that speak of being tested, those that do not, and Fisher's p of their difference [3.5]."""

    aware: AwareSide
    unaware: AwareSide
    p: float


def awareness(aware: Counts, unaware: Counts) -> Awareness:
    """Of counts of both sides; p is 1 where one is empty."""
    p = fisher(aware.k, aware.n, unaware.k, unaware.n) if aware.n and unaware.n else 1.0
    return Awareness(AwareSide.of(aware), AwareSide.of(unaware), p)


@dataclass(frozen=True)
class DesignPower:
    """What a design can find; None of what was not asked for."""

    contrast: float
    """Power to tell two rates apart with ``n`` runs each."""
    n: int
    runs: int
    n_for_80: int | None = None
    """Runs of a cell for a power of 0.8; None where the rates are equal."""
    trend: float | None = None
    sentence_sd: float | None = None
    sentence_detectable: float | None = None


def plan(
    base: float, other: float, n: int, doses: Sequence[float] = (), shares: Sequence[float] = (), k: int = 0, looks: int = 1
) -> DesignPower:
    """What a design can find, before it is paid for: a contrast of two rates with n runs each,
    a trend over doses, a sentence at k forks.

    ``looks``: tests made together, each at ALPHA / looks (Bonferroni, the worst case of Holm).
    """
    level = 1 - ALPHA / max(1, looks)
    rates = list(shares) or np.linspace(other, base, len(doses)).tolist()
    sd = math.sqrt(2 * base * (1 - base) / k) if k else None
    return DesignPower(
        contrast=power_of_difference(base, other, n, n, level),
        n=n,
        runs=2 * n + n * len(doses),
        n_for_80=None if base == other else sample_size(base, other, 0.8, level),
        trend=trend_power(rates, [n] * len(doses), doses, level) if doses else None,
        sentence_sd=sd,
        sentence_detectable=None if sd is None else (normal_quantile(level) + normal_quantile(0.6)) * sd,
    )
