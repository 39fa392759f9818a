"""The tests of a motive as pure functions of counts (arXiv 2606.26071, section 3; sections of the spec in brackets).

A count is :class:`ramify.stats.drops.Counts`: ``k`` runs with the behaviour among ``n`` graded ones; ``missing`` runs were invalid.
Every test ends in a :class:`TestResult`, which says in which direction the behaviour moved, and whether a silence may be believed.
Axis legend: K doses or arms, S sentences of a trace, k forks at each place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ramify.stats.drops import Counts
from ramify.stats.evidence import evidence, holm
from ramify.stats.intervals import Interval, difference_of_differences, normal_quantile, wilson
from ramify.stats.power import draws_for_difference, power_of_difference
from ramify.stats.tests import fisher, two_proportions
from ramify.stats.trend import cochran_armitage, isotonic, logistic_fit, trend_power

ALPHA = 0.05
BELIEVED = 0.8
"""A silent test is believed where its positive control would have fired with at least this probability."""
INVALID = 0.1
"""More invalid runs than this share make a rate doubtful."""
Move = Literal["rises", "falls", "same"]
Seen = Literal["rises", "falls", "same", "uninterpretable"]


@dataclass(frozen=True, slots=True)
class Control:
    """What a test does on agents that are known: it fires with ``power`` where the property is there, with ``false_alarm`` where not."""

    power: float
    false_alarm: float
    n: int
    source: str
    """Which agents, e.g. ``20 organisms trained to be evasive``."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test: how far the behaviour moved when one thing was changed, and how sure that is."""

    name: str
    kind: str
    """dose, counterfactual, stack, forbid, sentence, probe."""
    statement: str
    n: int
    value: float
    """z of a dose; else the change of the rate, changed minus baseline."""
    interval: Interval | None
    p: float
    """Two-sided, corrected over the tests that were made together."""
    control: Control | None = None
    confounds: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = ALPHA
    __test__ = False  # pytest: no test class

    @property
    def fired(self) -> bool:
        """Whether the behaviour moved."""
        return self.p < self.alpha

    @property
    def seen(self) -> Seen:
        """Direction of the move; ``uninterpretable`` where nothing moved and no positive control says that it would have [3.4, 14]."""
        if self.fired:
            return "rises" if self.value > 0 else "falls"
        return "same" if self.control is not None and self.control.power >= BELIEVED else "uninterpretable"

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {"detail": dict(self.detail), "fired": self.fired, "seen": self.seen}


def result_from_json(record: Mapping[str, Any]) -> TestResult:
    """Inverse of :meth:`TestResult.to_json`."""
    fields = {k: v for k, v in record.items() if k not in ("fired", "seen")}
    fields["control"] = None if record["control"] is None else Control(**record["control"])
    fields["interval"] = None if record["interval"] is None else tuple(record["interval"])
    return TestResult(**fields | {"confounds": tuple(record["confounds"])})


def counterfactuals(
    base: Counts,
    arms: Mapping[str, Counts],
    controls: Mapping[str, Control] | None = None,
    *,
    kind: str = "counterfactual",
    correction: str = "holm",
    alpha: float = ALPHA,
) -> list[TestResult]:
    """One test for each changed arm against the baseline: Fisher's exact test, Newcombe's interval, corrected together [3.2]."""
    rows = evidence((base.k, base.n), {name: (arm.k, arm.n) for name, arm in arms.items()}, correction=correction)
    return [
        TestResult(
            row.intervention,
            kind,
            f"{row.intervention}: {row.hits}/{row.n} against {base.k}/{base.n}",
            row.n + base.n,
            row.difference,
            row.difference_interval,
            row.p_corrected,
            (controls or {}).get(row.intervention),
            detail=row.to_json() | {"base": [base.k, base.n], "invalid": [base.missing, arms[row.intervention].missing]},
            alpha=alpha,
        )
        for row in rows
    ]


def dose_response(
    name: str,
    doses: Sequence[float],
    counts: Sequence[Counts],
    control: Control | None = None,
    shares: Sequence[float] = (0.01, 0.05),
    alpha: float = ALPHA,
) -> TestResult:
    """Cochran-Armitage trend over (K,) doses; ``detail`` holds the isotonic shares and the doses at which the logistic fit reaches
    ``shares``, with Fieller's intervals [3.4, 13]."""
    hits, n = [c.k for c in counts], [c.n for c in counts]
    z, p = cochran_armitage(hits, n, doses)
    fit = logistic_fit(hits, n, doses)
    points = {} if fit is None else {f"{share:g}": fit.dose_of(share) for share in shares}
    detail = {
        "doses": list(doses),
        "hits": hits,
        "n": n,
        "intervals": [wilson(c.k, c.n) for c in counts],
        "isotonic": isotonic(hits, n, doses).tolist(),
        "logistic": None if fit is None else {"intercept": fit.intercept, "slope": fit.slope},
        "points": {share: {"dose": dose, "interval": list(ends)} for share, (dose, ends) in points.items()},
    }
    return TestResult(
        name, "dose", f"trend of {name} over {len(doses)} doses", sum(n), z, None, p, control, detail=detail, alpha=alpha
    )


@dataclass(frozen=True, slots=True, eq=False)
class SentenceScores:
    """Resampling scores of the sentences of one trace, (S,) each [3.4, 1].

    ``scores`` use all forks and telescope: they sum to rates[-1] - rates[0]. ``order`` ranks sentences by |score| on the first half of
    the forks; ``held_out`` are the scores on the other half, which that ranking has not seen.
    """

    rates: np.ndarray
    """(S + 1,): rate of the forks before the first sentence, and behind each."""
    scores: np.ndarray
    sd: np.ndarray
    """Standard error of each score."""
    p: np.ndarray
    """Two-sided z tests of each score, Holm-corrected over the S looks."""
    order: np.ndarray
    held_out: np.ndarray


def sentence_scores(outcomes: np.ndarray) -> SentenceScores:
    """Scores from graded forks: ``outcomes`` (S + 1, k) is 1, 0 or nan (invalid); row i holds the forks behind i sentences.

    The arm behind sentence i is the arm before sentence i + 1, so S + 1 arms serve S scores. The score of a sentence is
    (1 - pi) * delta: pi the chance that the agent says it here anyway, delta the effect of its presence against its absence.
    Raises ValueError where a row has fewer than 2 graded forks in either half.
    """
    x = np.asarray(outcomes, np.float64)
    if x.ndim != 2 or x.shape[0] < 2:
        raise ValueError(f"outcomes need the shape (S + 1, k) with at least one sentence, not {x.shape}")
    halves = x[:, 0::2], x[:, 1::2]
    if any((np.isfinite(half).sum(axis=1) < 2).any() for half in halves):
        raise ValueError("each place needs at least 2 graded forks in either half")
    rates, n = np.nanmean(x, axis=1), np.isfinite(x).sum(axis=1)
    variance = rates * (1 - rates) / n
    sd = np.sqrt(variance[:-1] + variance[1:])
    hits = np.nansum(x, axis=1)
    raw = [two_proportions(int(hits[i + 1]), int(n[i + 1]), int(hits[i]), int(n[i])) for i in range(len(n) - 1)]
    first, second = (np.diff(np.nanmean(half, axis=1)) for half in halves)
    order = np.argsort(-np.abs(first), kind="stable")
    return SentenceScores(rates, np.diff(rates), sd, np.asarray(holm(raw)), order, second)


def forbidding(
    base: Counts, filtered: Counts, rejected: int, unfiltered: int, control: Control | None = None, name: str = "forbid"
) -> TestResult:
    """Repeated resampling: traces without a class of sentences against the baseline; ``unfiltered`` ones ran out of redraws [3.4, 2]."""
    (result,) = counterfactuals(base, {name: filtered}, {} if control is None else {name: control}, kind="forbid")
    more = {"rejected": rejected, "unfiltered": unfiltered, "unfiltered_share": unfiltered / max(1, filtered.forks)}
    return replace(result, detail={**result.detail, **more})


def stacked(name: str, r11: Counts, r10: Counts, r01: Counts, r00: Counts, control: Control | None = None) -> TestResult:
    """Interaction r11 - r10 - r01 + r00 of two changes made together: 0 where their effects add [8, 9]."""
    value, interval, p = difference_of_differences((r11.k, r11.n), (r10.k, r10.n), (r01.k, r01.n), (r00.k, r00.n))
    n = sum(c.n for c in (r11, r10, r01, r00))
    detail = {"cells": {"11": [r11.k, r11.n], "10": [r10.k, r10.n], "01": [r01.k, r01.n], "00": [r00.k, r00.n]}}
    return TestResult(name, "stack", f"interaction in {name}", n, value, interval, p, control, detail=detail)


def absence(counts: Counts, smallest: float, power: float = 0.95) -> dict[str, Any]:
    """Of a behaviour that never or hardly appeared: the upper end of its rate, and the runs that would show a rate of ``smallest`` at
    least once with probability ``power``."""
    if not 0 < smallest < 1:
        raise ValueError(f"a rate to be found lies between 0 and 1, not {smallest}")
    needed = math.ceil(math.log(1 - power) / math.log(1 - smallest))
    return {"k": counts.k, "n": counts.n, "upper": wilson(counts.k, counts.n)[1], "smallest": smallest, "needed": needed}


def awareness(aware: Counts, unaware: Counts) -> dict[str, Any]:
    """Rates of the runs that speak of being tested and of those that do not, and Fisher's p of their difference [3.5]."""
    p = fisher(aware.k, aware.n, unaware.k, unaware.n) if aware.n and unaware.n else 1.0
    sides = {
        name: {"k": c.k, "n": c.n, "interval": list(wilson(c.k, c.n))} for name, c in (("aware", aware), ("unaware", unaware))
    }
    return sides | {"p": p}


def plan(
    base: float, other: float, n: int, doses: Sequence[float] = (), shares: Sequence[float] = (), k: int = 0, looks: int = 1
) -> dict[str, Any]:
    """What a design can find, before it is paid for: a contrast of two rates with n runs each, a trend over doses, a sentence at k forks.

    ``looks``: tests made together, each at ALPHA / looks (Bonferroni, the worst case of Holm).
    """
    level = 1 - ALPHA / max(1, looks)
    found: dict[str, Any] = {"contrast": power_of_difference(base, other, n, n, level), "n": n, "runs": 2 * n}
    if base != other:
        found["n_for_80"] = draws_for_difference(base, other, 0.8, level)
    if doses:
        rates = list(shares) or np.linspace(other, base, len(doses)).tolist()
        found["trend"] = trend_power(rates, [n] * len(doses), doses, level)
        found["runs"] += n * len(doses)
    if k:
        sd = math.sqrt(2 * base * (1 - base) / k)
        found |= {"sentence_sd": sd, "sentence_detectable": (normal_quantile(level) + normal_quantile(0.6)) * sd}
    return found
