"""Experiments on a behaviour: one thing changed, outcomes counted,
and what may be concluded from a test that fired or stayed silent.

A count is :class:`ramify.stats.drops.Counts`: ``k`` runs with the behaviour among ``n`` graded ones; ``missing`` runs were
invalid. Axis legend: K doses or arms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field

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


Count = tuple[int, int]
"""Runs with the behaviour, and all graded ones."""


@dataclass(frozen=True, kw_only=True)
class ArmCounts:
    """Of an arm that was changed, and of the baseline."""

    base: Count
    hits: int
    n: int

    def power(self, other: ArmCounts, level: float) -> float:
        """Probability that a test of the size of ``other`` finds the rates that these counts estimate, at the lower end of their
        effect."""
        hits, n = np.array([[self.hits, self.n], self.base]).T
        rates = nearest_rates(hits, n, (1, -1)) if n.all() else None
        return 0.0 if rates is None else power_of_difference(rates[0], rates[1], other.n, other.base[1], level)


@dataclass(frozen=True, kw_only=True)
class DoseCounts:
    """Of every dose, (K,) each."""

    doses: tuple[int | float, ...]
    hits: tuple[int, ...]
    n: tuple[int, ...]

    def power(self, other: DoseCounts, level: float) -> float:
        """See :meth:`ArmCounts.power`."""
        order = np.argsort(self.doses)
        doses, hits, n = (np.asarray(values, np.float64)[order] for values in (self.doses, self.hits, self.n))
        rates = nearest_rates(hits, n, n * (doses - (n * doses).sum() / n.sum()))
        return 0.0 if rates is None else trend_power(np.interp(other.doses, doses, rates), other.n, other.doses, level)


_INTERACTION = {"11": 1, "10": -1, "01": -1, "00": 1}


@dataclass(frozen=True, kw_only=True)
class StackCounts:
    """Of a stack: 11 with both changes, 10 and 01 with one, 00 with none."""

    cells: Mapping[str, Count]

    def power(self, other: StackCounts, level: float) -> float:
        """See :meth:`ArmCounts.power`."""
        weights = list(_INTERACTION.values())
        (hits, n), (_, sizes) = (np.array([one.cells[cell] for cell in _INTERACTION]).T for one in (self, other))
        rates = nearest_rates(hits, n, weights) if n.all() else None
        return 0.0 if rates is None else contrast_power(rates, sizes, weights, level)


Known = Annotated[ArmCounts | DoseCounts | StackCounts, Field(union_mode="left_to_right")]


@dataclass(frozen=True)
class FieldChange:
    """A field of the task before and after an intervention."""

    before: Any
    after: Any


@dataclass(frozen=True)
class Intervention:
    """What was changed, and the diff of all text that the agent is shown."""

    fields: Mapping[str, FieldChange]
    diff: str


@dataclass(frozen=True, kw_only=True)
class TestDetail:
    """What a test is of, beside its numbers."""

    looks: int = 1
    """Tests that ``p`` is corrected over."""
    role: str = ""
    """What the changed field stands for."""
    lowered: bool = False
    """Whether it was set below its baseline, against the way in which roles predict."""
    change: Intervention | None = None
    __test__ = False


@dataclass(frozen=True)
class Reflection:
    """What was put into the agent's mouth, and where."""

    leaf: str
    turn: int
    said: str
    neutral: str
    unedited: Count
    """Without either sentence."""


@dataclass(frozen=True, kw_only=True)
class ArmDetail(TestDetail, ArmCounts):
    """Of an arm against the baseline."""

    share: float
    share_interval: Interval
    detectable: float
    """The smallest difference that these counts would have found 4 times in 5."""
    invalid: Count
    """Invalid runs of the baseline and of the arm."""
    rejected: int | None = None
    """Of a class of sentences that is forbidden: how many were resampled."""
    unfiltered: int | None = None
    """Runs that ran out of resamples, which are left out."""
    unfiltered_share: float | None = None
    reflection: Reflection | None = None


@dataclass(frozen=True)
class DosePoint:
    """The dose at which a fit reaches a share, and Fieller's interval of it."""

    dose: float
    interval: Interval


@dataclass(frozen=True)
class DoseFit:
    """logit(share) = intercept + slope * dose."""

    intercept: float
    slope: float


@dataclass(frozen=True, kw_only=True)
class DoseDetail(TestDetail, DoseCounts):
    """Of a dose-response."""

    intervals: tuple[Interval, ...]
    """Of each dose's share."""
    isotonic: tuple[float, ...]
    """Shares that never fall with the dose."""
    logistic: DoseFit | None
    points: Mapping[str, DosePoint | None]
    """Share -> the dose at which the fit reaches it; None where the slope is not certain, so that no dose is."""


@dataclass(frozen=True, kw_only=True)
class StackDetail(TestDetail, StackCounts):
    """Of two changes made together."""


Detail = Annotated[ArmDetail | DoseDetail | StackDetail | TestDetail, Field(union_mode="left_to_right")]


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
    counts: Known | None = None
    """Those of the test made on them; their rates give the power at other sizes."""
    fired: bool = True
    """Whether the test moved on them."""

    @classmethod
    def of(cls, found: TestResult, source: str) -> Self:
        """The control that a test made on agents with the property comes to."""
        move: Move = "rises" if found.value > 0 else "falls"
        return cls(0.0, found.alpha, found.n, source, move, _counts(found.detail), found.fired).at(found)

    def at(self, result: TestResult) -> Self:
        """With the power that is sure for a test of the size of ``result``, among as many tests as belong to its case (each at
        alpha / looks, the worst case of Holm): it finds the rates of these agents, taken at the lower end of the interval of
        their effect. 0 where the control did not fire, or that interval holds no effect. As it is where no counts are known."""
        if self.counts is None:
            return self
        level = 1 - result.alpha / max(1, result.detail.looks)
        return replace(self, power=_sure_power(self.counts, result.detail, level) if self.fired else 0.0)


def _counts(detail: Detail) -> Known | None:
    """The counts of a test alone."""
    if isinstance(detail, ArmDetail):
        return ArmCounts(base=detail.base, hits=detail.hits, n=detail.n)
    if isinstance(detail, DoseDetail):
        return DoseCounts(doses=detail.doses, hits=detail.hits, n=detail.n)
    return StackCounts(cells=detail.cells) if isinstance(detail, StackDetail) else None


def _sure_power(known: Known, mine: Detail, level: float) -> float:
    """Power of a test with the counts ``mine``; 0 where they are of another kind."""
    match known, mine:
        case (ArmCounts(), ArmCounts()) | (DoseCounts(), DoseCounts()) | (StackCounts(), StackCounts()):
            return known.power(mine, level)  # type: ignore[arg-type]  # of one kind, both
    return 0.0


@dataclass(frozen=True)
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
    detail: Detail = field(default_factory=TestDetail)
    alpha: float = ALPHA
    p_raw: float | None = None
    """``p`` before it was corrected; None where it was not."""
    fired: bool = field(init=False)
    """Whether the behaviour moved."""
    seen: Seen = field(init=False)
    """Direction of the move; ``uninterpretable`` where nothing moved and no positive control says that it would have."""
    __test__ = False  # pytest: no test class

    def __post_init__(self) -> None:
        believed = self.control is not None and self.control.power >= BELIEVED
        moved: Seen = "rises" if self.value > 0 else "falls"
        still: Seen = "same" if believed else "uninterpretable"
        object.__setattr__(self, "fired", self.p < self.alpha)
        object.__setattr__(self, "seen", moved if self.fired else still)


def corrected(results: Iterable[TestResult]) -> list[TestResult]:
    """All tests of one case with ``p`` Holm-corrected over them:
    one that nothing moves fires anywhere in it with probability alpha."""
    tests = list(results)
    raw = [test.p if test.p_raw is None else test.p_raw for test in tests]
    return [
        replace(test, p=p, p_raw=before, detail=replace(test.detail, looks=len(tests)))
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
            detail=ArmDetail(
                base=(base.k, base.n),
                hits=row.hits,
                n=row.n,
                share=row.share,
                share_interval=row.share_interval,
                detectable=row.detectable,
                invalid=(base.missing, arms[row.intervention].missing),
                looks=len(arms),
            ),
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
    hits, n = tuple(c.k for c in counts), tuple(c.n for c in counts)
    z, p = cochran_armitage(hits, n, doses)
    fit = logistic_fit(hits, n, doses)
    points = {} if fit is None else {f"{share:g}": fit.dose_of(share) for share in shares}
    detail = DoseDetail(
        doses=tuple(doses),
        hits=hits,
        n=n,
        intervals=tuple(wilson(c.k, c.n) for c in counts),
        isotonic=tuple(isotonic(hits, n, doses).tolist()),
        logistic=None if fit is None else DoseFit(fit.intercept, fit.slope),
        points={share: DosePoint(dose, ends) if math.isfinite(ends[0]) else None for share, (dose, ends) in points.items()},
    )
    return TestResult(name, "dose", f"trend of {name} over {len(doses)} doses", sum(n), z, None, p, control, detail=detail)


def stacked(name: str, r11: Counts, r10: Counts, r01: Counts, r00: Counts, control: Control | None = None) -> TestResult:
    """Interaction r11 - r10 - r01 + r00 of two changes made together: 0 where their effects add."""
    value, interval, p = difference_of_differences((r11.k, r11.n), (r10.k, r10.n), (r01.k, r01.n), (r00.k, r00.n))
    n = sum(c.n for c in (r11, r10, r01, r00))
    detail = StackDetail(cells=dict(zip(_INTERACTION, ((c.k, c.n) for c in (r11, r10, r01, r00)), strict=True)))
    return TestResult(name, "stack", f"interaction in {name}", n, value, interval, p, control, detail=detail)


@dataclass(frozen=True)
class Absence:
    """Of a behaviour that never or hardly appeared."""

    k: int
    n: int
    upper: float
    """The upper end of its rate."""
    smallest: float
    needed: int
    """Runs that would show a rate of ``smallest`` at least once."""


def absence(counts: Counts, smallest: float, power: float = 0.95) -> Absence:
    """What ``counts`` say, with the runs that show a rate of ``smallest`` with probability ``power``.
    Raises ValueError on a rate outside (0, 1)."""
    if not 0 < smallest < 1:
        raise ValueError(f"a rate to be found lies between 0 and 1, not {smallest}")
    needed = math.ceil(math.log(1 - power) / math.log(1 - smallest))
    return Absence(counts.k, counts.n, wilson(counts.k, counts.n)[1], smallest, needed)
