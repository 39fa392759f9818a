"""What a scan says in numbers and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ramify.base.errors import EXIT_BUDGET, EXIT_DONE, EXIT_FAILED
from ramify.base.words import plural
from ramify.methods.cliffs.algorithm import KINDS
from ramify.methods.cliffs.passk import pass_at_k
from ramify.methods.cliffs.run import AblatedCliff, ScanConfig, Scanned
from ramify.render.numbers import interval, number, percent, percent_interval
from ramify.render.potential import Estimate, Potential, Spot
from ramify.render.result import CALL, Result, Section, table
from ramify.rollout.potential import ForksSpent
from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval, bootstrap, wilson


@dataclass(frozen=True)
class ScannedSide:
    """Traces that ended alike; ``with_cliff`` have one that was kept."""

    traces: int
    with_cliff: int
    interval: Interval
    """Of their share (Wilson)."""
    cliffs_per_trace: float | None


@dataclass(frozen=True)
class CliffClass:
    """Cliffs of one class; None are those whose class is unknown."""

    kind: str | None
    found: int
    confirmed: int
    refuted: int
    suspect: int
    drop: float | None
    fresh_drop: float | None


@dataclass(frozen=True)
class SolvedPrompts:
    """Traces whose forks of the bare prompt end right never, or always."""

    none: int
    all: int


@dataclass(frozen=True)
class CliffScan(Result):
    """What a scan found, what was measured and what it took: every number is explained on the method's page."""

    verdict: str
    cliffs: int
    traces: int
    unjudged: int
    wrong: ScannedSide
    right: ScannedSide
    ratio: float | None
    """Cliffs a trace, wrong over right."""
    classes: tuple[CliffClass, ...]
    solve_rate: float | None
    solved: SolvedPrompts
    tokens: int
    tested: int
    positions: int
    forks: int
    share_of_forks: float | None
    """Of the forks of all positions with all forks."""
    missing: int
    truncated: int
    gap: float
    cut: int = 0
    """Traces that their limit of tokens cut before they ended."""
    scanned: int = field(default=0, metadata=CALL)
    """Traces of this call alone."""
    left: int = field(default=0, metadata=CALL)
    """Traces that the budget did not reach."""
    failed: Mapping[str, str] = field(default_factory=dict, metadata=CALL)
    """Traces that could not be scanned, and why."""
    spent: ForksSpent = field(default_factory=ForksSpent, metadata=CALL)
    """By this call."""
    out: str = ""

    def sections(self) -> Iterable[Section]:
        """The verdict, wrong and right traces, the classes, and what it took."""
        sides = [
            (name, one.traces, one.with_cliff, percent_interval(one.interval, 0), one.cliffs_per_trace)
            for name, one in (("wrong", self.wrong), ("right", self.right))
        ]
        classes = [
            (one.kind or "not known", one.found, one.confirmed, one.refuted, one.suspect, one.drop, one.fresh_drop)
            for one in self.classes
            if one.found
        ]
        ran = f", {plural(self.spent.forward_tokens, 'token')} run" if self.spent.forward_tokens else ""
        took = (
            f"{self.tested} of {self.tokens} tokens tested; {plural(self.forks, 'fork')} ({percent(self.share_of_forks or 0, 0)} "
            f"of every position with all forks){ran}. "
            f"{plural(self.truncated, 'fork')} truncated, {self.missing} without a verdict"
            f"{': ' + self.spent.first_failure if self.spent.first_failure else ''}."
        )
        look = f"\nLook at one with `ramify cliffs show {self.out} TRACE`." if self.out else ""
        unjudged = f"\n{plural(self.unjudged, 'trace')} got no verdict: neither wrong nor right." if self.unjudged else ""
        yield Section.of(
            "",
            self.verdict,
            table(["ended", "traces", "with a cliff", "95 % interval", "cliffs a trace"], sides),
            table(["class", "found", "confirmed", "refuted", "suspect", "drop found", "fresh drop"], classes),
            took + look + unjudged,
        )

    @property
    def exit_code(self) -> int:
        """Of a budget that ended it, and of a call that could scan nothing."""
        if self.failed and not self.scanned:
            return EXIT_FAILED
        return EXIT_BUDGET if self.left else EXIT_DONE


def summary(scanned: Sequence[Scanned], config: ScanConfig) -> CliffScan:
    """Cliffs of wrong and right traces, cliffs by class before and after confirmation, what was measured and what it took."""
    wrong, right = (_side([s for s in scanned if s.trace.correct is want]) for want in (False, True))
    counts = [c for s in scanned for c in (s.trace.potentials or ()) if c is not None]
    whole = sum(config.n * (s.trace.length + 1) for s in scanned)
    forks = sum(s.forks for s in scanned)
    v_0 = [s.trace.potentials[0].rate for s in scanned if s.trace.potentials and s.trace.potentials[0]]
    rates = wrong.cliffs_per_trace, right.cliffs_per_trace
    return CliffScan(
        verdict=sentence(scanned, config),
        cliffs=sum(len(s.kept) for s in scanned),
        traces=len(scanned),
        unjudged=sum(s.trace.correct is None for s in scanned),
        wrong=wrong,
        right=right,
        ratio=rates[0] / rates[1] if rates[0] is not None and rates[1] else None,
        classes=tuple(_class(scanned, kind) for kind in (*KINDS, None)),
        solve_rate=_mean(v_0),
        solved=SolvedPrompts(v_0.count(0.0), v_0.count(1.0)),
        tokens=sum(s.trace.length for s in scanned),
        tested=sum(s.tested for s in scanned),
        positions=len(counts),
        forks=forks,
        share_of_forks=forks / whole if whole else None,
        missing=sum(c.missing for c in counts),
        truncated=sum(c.truncated for c in counts),
        gap=max((s.gap for s in scanned), default=0.0),
        cut=sum(s.trace.stop == "length" for s in scanned),
    )


def sentence(scanned: Sequence[Scanned], config: ScanConfig) -> str:
    """What a scan comes to, in one sentence."""
    cliffs, having = sum(len(s.kept) for s in scanned), sum(bool(s.kept) for s in scanned)
    if not cliffs:
        return f"nothing stands out: no token was shown to lose more than {config.delta0:g}"
    checked = "confirmed on fresh forks" if config.fresh else "found, none of them checked on fresh forks"
    return f"{plural(cliffs, 'cliff')} in {having} of {len(scanned)} traces, {checked}"


def _side(scanned: Sequence[Scanned]) -> ScannedSide:
    n, having = len(scanned), sum(bool(s.kept) for s in scanned)
    return ScannedSide(n, having, wilson(having, n), sum(len(s.kept) for s in scanned) / n if n else None)


def _class(scanned: Sequence[Scanned], kind: str | None) -> CliffClass:
    cliffs = [c for s in scanned for c in s.cliffs if c.facts.kind == kind]
    return CliffClass(
        kind,
        found=len(cliffs),
        confirmed=sum(c.status == "confirmed" for c in cliffs),
        refuted=sum(c.status == "refuted" for c in cliffs),
        suspect=sum(c.suspect for c in cliffs),
        drop=_mean([c.drop for c in cliffs]),
        fresh_drop=_mean([c.fresh_drop for c in cliffs if c.fresh_drop is not None]),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = [v for v in values if v == v]
    return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class AblatedArm:
    """pass@k of one arm, and its interval, by k."""

    arm: str
    cliffs: int
    undefined: int
    """Cliffs for which the arm has no position to cut at: they score 0."""
    passes: Mapping[int, float | None]
    intervals: Mapping[int, Interval | None]


@dataclass(frozen=True)
class Ablation(Result):
    """pass@k of every arm, and the gap del - keep at k = 1."""

    arms: tuple[AblatedArm, ...]
    gap: float | None
    gap_interval: Interval | None
    cliffs: int
    left_out: int
    """Cliffs without a graded fork in some arm."""
    short: Mapping[int, int]
    """For each k, cliffs with fewer graded forks in some arm, counted with those."""
    records: tuple[AblatedCliff, ...]
    which: str = "first"
    n: int = 0
    spent: ForksSpent = field(default_factory=ForksSpent, metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """The arms, what was counted otherwise, and the gap."""
        if not self.records:
            yield Section.of("", "No wrong trace of this scan has a cliff.")
            return
        rows = [(one.arm, one.undefined, *one.passes.values()) for one in self.arms]
        left = [
            f"pass@{k}: {plural(n, 'cliff')} with fewer graded forks, counted with those." for k, n in self.short.items() if n
        ]
        left += [f"Left out: {plural(self.left_out, 'cliff')} without a graded fork in some arm."] if self.left_out else []
        gap = "" if self.gap is None else f"del - keep at k = 1: {number(self.gap)} {interval(self.gap_interval)}, "
        ran = f", {plural(self.spent.forward_tokens, 'token')} run" if self.spent.forward_tokens else ""
        of = f"{gap}{plural(self.cliffs, 'cliff')} ({self.which} of each wrong trace){ran}."
        head = ["arm", "undefined (scores 0)", *(f"pass@{k}" for k in self.short)]
        yield Section.of("", table(head, rows), "\n".join([*left, of]))


def ablation_table(records: Sequence[AblatedCliff], ks: Sequence[int], seed: int = 0) -> Ablation:
    """pass@k of every arm over the records of :func:`ramify.methods.cliffs.run.ablate`, and the gap del - keep at k = 1.

    An arm that is undefined for a cliff scores 0 there. An arm with fewer than k graded forks counts
    with all of them, a lower bound; a cliff of which some arm has none is left out of
    every arm, so that all arms are of the same cliffs. Intervals are 95 % bootstrap over traces, since cliffs of
    one trace are not independent.
    """
    arms = [arm for arm in ("del", "keep", "random", "critical", "tangent") if records and arm in records[0].counts]
    whole = [one for one in records if min(_graded(one, arms)) > 0]
    rows = []
    for arm in arms:
        own = [one for one in whole if arm in one.counts]
        found = {k: _over_traces([(one.trace_id, _pass(one.counts[arm], k)) for one in own], seed) for k in ks}
        rows.append(
            AblatedArm(
                arm,
                len(own),
                sum(one.counts[arm] is None for one in own),
                {k: mean for k, (mean, _) in found.items()},
                {k: ends for k, (_, ends) in found.items()},
            )
        )
    gaps = [(one.trace_id, _pass(one.counts["del"], 1) - _pass(one.counts["keep"], 1)) for one in whole]
    gap, ends = _over_traces(gaps, seed)
    short = {k: sum(min(_graded(one, arms)) < k for one in whole) for k in ks}
    return Ablation(tuple(rows), gap, ends, len(whole), len(records) - len(whole), short, tuple(records))


def _graded(record: AblatedCliff, arms: Sequence[str]) -> list[int]:
    return [counts.n for arm in arms if (counts := record.counts.get(arm)) is not None]


def _pass(counts: Counts | None, k: int) -> float:
    return pass_at_k(counts.n, counts.k, min(k, counts.n)) if counts else 0.0


def _over_traces(values: Sequence[tuple[str, float]], seed: int) -> tuple[float | None, Interval | None]:
    """Mean of (trace, value), and its interval: traces are sampled anew, each with all its values."""
    groups: dict[str, list[float]] = {}
    for name, value in values:
        groups.setdefault(name, []).append(value)
    if not groups:
        return None, None
    total, n = np.array([(sum(group), len(group)) for group in groups.values()]).T

    def mean(samples: np.ndarray) -> np.ndarray:
        return np.asarray(total[samples.astype(int)].sum(axis=1) / n[samples.astype(int)].sum(axis=1))

    return float(total.sum() / n.sum()), bootstrap(np.arange(len(n)), mean, seed)


def spots(scanned: Scanned) -> list[Spot]:
    """Cliffs and rebounds as things to point at in a picture."""
    out = [Spot(rise.t, "rebound", f"{rise.prev.rate:.2f} to {rise.cur.rate:.2f}") for rise in scanned.rebounds]
    for cliff in scanned.cliffs:
        note = f"{(cliff.facts.kind or 'cliff').replace('_', '-')}, {cliff.prev.rate:.2f} to {cliff.cur.rate:.2f}, {cliff.status}"
        if cliff.fresh_drop is not None:
            note += f" (fresh drop {cliff.fresh_drop:.2f})"
        out.append(Spot(cliff.t, "doubtful" if cliff.status == "refuted" else "cliff", note))
    return out


def picture(scanned: Scanned, tokens: Sequence[str]) -> Potential:
    """What :mod:`ramify.render.potential` shows of a trace, given the text of each token."""
    estimates = [
        Estimate(t, c.rate, *wilson(c.k, c.n)) for t, c in enumerate(scanned.trace.potentials or ()) if c is not None and c.n
    ]
    outcome = {True: "right", False: "wrong", None: "not judged"}[scanned.trace.correct]
    found = "" if scanned.kept else "; nothing stands out"
    return Potential(tokens, estimates, spots(scanned), f"{scanned.trace.id}: ended {outcome}{found}")
