"""Experiments on a behaviour: one thing changed, outcomes counted,
and what may be concluded from a test that fired or stayed silent.

A count is :class:`ramify.stats.drops.Counts`: ``k`` runs with the behaviour among ``n`` graded ones; ``missing`` runs were
invalid. Axis legend: K doses or arms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from ramify.base import codec
from ramify.methods.forensics.trend import cochran_armitage, isotonic, logistic_fit, trend_power
from ramify.stats.drops import Counts
from ramify.stats.evidence import evidence, holm
from ramify.stats.intervals import Interval, difference_of_differences, wilson
from ramify.stats.power import contrast_power, nearest_rates, power_of_difference

ALPHA = 0.05
BELIEVED = 0.8
"""A silent test is believed where its positive control would have fired with at least this probability."""
Move = Literal["rises", "falls", "same"]
Seen = Literal["rises", "falls", "same", "uninterpretable"]


@dataclass(frozen=True, slots=True)
class Control:
    """What a test does on agents that are known: it fires with ``power`` where the property is there,
    with ``false_alarm`` where not.

    ``power`` is what is sure of it: from the rates found on those agents at that end of their interval which speaks against the
    test, and 0 of a control that did not fire.
    """

    power: float
    false_alarm: float
    n: int
    source: str
    """Which agents, e.g. ``20 organisms trained to be evasive``."""
    move: Move | None = None
    """Which way the behaviour moved on them, where that is known."""
    counts: Mapping[str, Any] | None = None
    """The detail of the test made on them; its rates give the power at other sizes."""
    fired: bool = True
    """Whether the test moved on them."""

    @classmethod
    def of(cls, found: TestResult, source: str) -> Self:
        """The control that a test made on agents with the property comes to."""
        names = next((names for names in _COUNTS if all(name in found.detail for name in names)), ())
        counts = {name: found.detail[name] for name in names} or None
        move: Move = "rises" if found.value > 0 else "falls"
        return cls(0.0, found.alpha, found.n, source, move, counts, found.fired).at(found)

    def at(self, result: TestResult) -> Self:
        """With the power that is sure for a test of the size of ``result``, among as many tests as belong to its case (each at
        alpha / looks, the worst case of Holm): it finds the rates of these agents, taken at the lower end of the interval of
        their effect. 0 where the control did not fire, or that interval holds no effect. As it is where no counts are known."""
        if self.counts is None:
            return self
        mine, level = result.detail, 1 - result.alpha / max(1, result.detail.get("looks", 1))
        same_kind = all(name in mine for name in self.counts)
        return replace(self, power=_sure_power(self.counts, mine, level) if self.fired and same_kind else 0.0)


_COUNTS = (("base", "hits", "n"), ("doses", "hits", "n"), ("cells",))
"""The counts in the detail of a test: of an arm and a baseline, of doses, of a stack."""
_INTERACTION = {"11": 1, "10": -1, "01": -1, "00": 1}


def _sure_power(known: Mapping[str, Any], mine: Mapping[str, Any], level: float) -> float:
    """Power of a test of the size of ``mine`` to find the rates that the counts ``known`` estimate,
    at the lower end of their effect."""
    if "doses" in known:
        doses, hits, n = (np.asarray(known[name], np.float64)[np.argsort(known["doses"])] for name in ("doses", "hits", "n"))
        rates = nearest_rates(hits, n, n * (doses - (n * doses).sum() / n.sum()))
        return 0.0 if rates is None else trend_power(np.interp(mine["doses"], doses, rates), mine["n"], mine["doses"], level)
    if "cells" in known:
        weights = list(_INTERACTION.values())
        (hits, n), (_, sizes) = (np.array([detail["cells"][cell] for cell in _INTERACTION]).T for detail in (known, mine))
        rates = nearest_rates(hits, n, weights) if n.all() else None
        return 0.0 if rates is None else contrast_power(rates, sizes, weights, level)
    hits, n = np.array([[known["hits"], known["n"]], known["base"]]).T
    rates = nearest_rates(hits, n, (1, -1)) if n.all() else None
    return 0.0 if rates is None else power_of_difference(rates[0], rates[1], mine["n"], mine["base"][1], level)


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
    p_raw: float | None = None
    """``p`` before it was corrected; None where it was not."""
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
    fields = {"p_raw": record["detail"].get("p")} | {k: v for k, v in record.items() if k not in ("fired", "seen")}
    fields["control"] = None if record["control"] is None else Control(**record["control"])
    fields["interval"] = None if record["interval"] is None else tuple(record["interval"])
    return TestResult(**fields | {"confounds": tuple(record["confounds"])})


def corrected(results: Iterable[TestResult]) -> list[TestResult]:
    """All tests of one case with ``p`` Holm-corrected over them:
    one that nothing moves fires anywhere in it with probability alpha."""
    tests = list(results)
    raw = [test.p if test.p_raw is None else test.p_raw for test in tests]
    return [
        replace(test, p=p, p_raw=before, detail={**test.detail, "looks": len(tests)})
        for test, before, p in zip(tests, raw, holm(raw), strict=True)
    ]


def counterfactuals(
    base: Counts,
    arms: Mapping[str, Counts],
    controls: Mapping[str, Control] | None = None,
    *,
    kind: str = "counterfactual",
) -> list[TestResult]:
    """One test for each changed arm against the baseline: Fisher's exact test, Newcombe's interval, corrected together."""
    rows = evidence((base.k, base.n), {name: (arm.k, arm.n) for name, arm in arms.items()})
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
            detail=codec.to_json(row)
            | {"base": [base.k, base.n], "invalid": [base.missing, arms[row.intervention].missing], "looks": len(arms)},
            p_raw=row.p,
        )
        for row in rows
    ]


def dose_response(
    name: str,
    doses: Sequence[float],
    counts: Sequence[Counts],
    control: Control | None = None,
    shares: Sequence[float] = (0.01, 0.05),
) -> TestResult:
    """Cochran-Armitage trend over (K,) doses; ``detail`` holds the isotonic shares and the doses at which the logistic fit
    reaches ``shares``, with Fieller's intervals: None where the slope is not certain, so that no dose is."""
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
    return TestResult(name, "dose", f"trend of {name} over {len(doses)} doses", sum(n), z, None, p, control, detail=detail)


def stacked(name: str, r11: Counts, r10: Counts, r01: Counts, r00: Counts, control: Control | None = None) -> TestResult:
    """Interaction r11 - r10 - r01 + r00 of two changes made together: 0 where their effects add."""
    value, interval, p = difference_of_differences((r11.k, r11.n), (r10.k, r10.n), (r01.k, r01.n), (r00.k, r00.n))
    n = sum(c.n for c in (r11, r10, r01, r00))
    detail = {"cells": {"11": [r11.k, r11.n], "10": [r10.k, r10.n], "01": [r01.k, r01.n], "00": [r00.k, r00.n]}}
    return TestResult(name, "stack", f"interaction in {name}", n, value, interval, p, control, detail=detail)


def absence(counts: Counts, smallest: float, power: float = 0.95) -> dict[str, Any]:
    """Of a behaviour that never or hardly appeared: the upper end of its rate, and the runs that would show a rate of
    ``smallest`` at least once with probability ``power``."""
    if not 0 < smallest < 1:
        raise ValueError(f"a rate to be found lies between 0 and 1, not {smallest}")
    needed = math.ceil(math.log(1 - power) / math.log(1 - smallest))
    return {"k": counts.k, "n": counts.n, "upper": wilson(counts.k, counts.n)[1], "smallest": smallest, "needed": needed}
