"""Experiments on a behaviour: one thing changed, outcomes counted, and what may be concluded from a test that fired or stayed silent.

A count is :class:`ramify.stats.drops.Counts`: ``k`` runs with the behaviour among ``n`` graded ones; ``missing`` runs were invalid.
Axis legend: K doses or arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from ramify.stats.drops import Counts
from ramify.stats.evidence import evidence
from ramify.stats.intervals import Interval, difference_of_differences, wilson
from ramify.stats.power import power_of_difference
from ramify.stats.trend import cochran_armitage, isotonic, logistic_fit, trend_power

ALPHA = 0.05
BELIEVED = 0.8
"""A silent test is believed where its positive control would have fired with at least this probability."""
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
    move: Move | None = None
    """Which way the behaviour moved on them, where that is known."""
    counts: Mapping[str, Any] | None = None
    """The detail of the test made on them; its rates give the power at other sizes."""

    @classmethod
    def of(cls, found: TestResult, source: str) -> Self:
        """The control that a test made on agents with the property comes to."""
        names = ("base", "hits", "n") if "base" in found.detail else ("doses", "hits", "n")
        counts = {name: found.detail[name] for name in names} if "hits" in found.detail else None
        move: Move = "rises" if found.value > 0 else "falls"
        return cls(float(found.fired), found.alpha, found.n, source, move, counts).at(found)

    def at(self, result: TestResult) -> Self:
        """With the power to find the rates of these agents with the runs of ``result``, among as many tests as were made together
        with it (each at alpha / looks, the worst case of Holm). As it is where no counts are known."""
        if self.counts is None:
            return self
        hits, n, mine = self.counts["hits"], self.counts["n"], result.detail
        level = 1 - result.alpha / max(1, mine.get("looks", 1))
        if ("doses" in self.counts) != ("doses" in mine):
            return replace(self, power=0.0)  # a test of another kind by the same name
        if "doses" in self.counts:
            order = np.argsort(self.counts["doses"])
            doses, shares = (np.asarray(x, np.float64)[order] for x in (self.counts["doses"], np.divide(hits, n)))
            return replace(self, power=trend_power(np.interp(mine["doses"], doses, shares), mine["n"], mine["doses"], level))
        base, base_n = self.counts["base"]
        sizes = (mine["n"], mine["base"][1])
        power = power_of_difference(hits / n, base / base_n, *sizes, level) if n and base_n else 0.0
        return replace(self, power=power)


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
        """Direction of the move; ``uninterpretable`` where nothing moved and no positive control says that it would have."""
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
    """One test for each changed arm against the baseline: Fisher's exact test, Newcombe's interval, corrected together."""
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
            detail=row.to_json()
            | {"base": [base.k, base.n], "invalid": [base.missing, arms[row.intervention].missing], "looks": len(arms)},
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
    ``shares``, with Fieller's intervals: None where the slope is not certain, so that no dose is."""
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
        "points": {
            share: {"dose": dose, "interval": list(ends)} if math.isfinite(ends[0]) else None
            for share, (dose, ends) in points.items()
        },
    }
    return TestResult(
        name, "dose", f"trend of {name} over {len(doses)} doses", sum(n), z, None, p, control, detail=detail, alpha=alpha
    )


def stacked(name: str, r11: Counts, r10: Counts, r01: Counts, r00: Counts, control: Control | None = None) -> TestResult:
    """Interaction r11 - r10 - r01 + r00 of two changes made together: 0 where their effects add."""
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
