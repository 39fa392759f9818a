"""What the verbs return: what each stage found, with its verdict, and the report that puts all stages together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ramify.methods.early_decision.algorithm import (
    DefenceEffect,
    ErrorRates,
    OpenFall,
    PanelAgreement,
    Point,
    ThinkingEffect,
    TurnSummary,
)
from ramify.methods.early_decision.probe import Probed, Ranked
from ramify.methods.early_decision.separability import Valley
from ramify.methods.early_decision.stopping import RuleMeasured, RuleName, StopRule
from ramify.render.numbers import interval, percent, percent_interval
from ramify.render.result import CALL, Cell, CurveLine, Curves, Grid, Result, Section, numbers, table
from ramify.stats.intervals import ClusteredShare, Proportion

LEVEL = 0.05
"""Of the verdicts on probes and continuations; that on turns has ``alpha``, that on the valley a 95 % interval."""
Spent = Mapping[str, Mapping[str, float]]
"""Amounts by purpose and unit."""


@dataclass(frozen=True)
class StudySource:
    """The model and voters the traces of a study are of."""

    model: str = ""
    weights: str = ""
    voters: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageVerdict:
    """What a stage found in a sentence, which says as readily that nothing stands out."""

    stands_out: bool
    verdict: str

    @classmethod
    def of(cls, found: str, otherwise: str) -> Self:
        """``found``, or where it is empty that nothing stands out."""
        return cls(bool(found), found or f"nothing stands out: {otherwise}")


@dataclass(frozen=True, kw_only=True)
class StageFound(Result):
    """Base of what a stage found."""

    stands_out: bool
    verdict: str

    @property
    def judged(self) -> StageVerdict:
        """Its verdict alone."""
        return StageVerdict(self.stands_out, self.verdict)


# -- traces


@dataclass(frozen=True)
class PoolShares:
    """Shares of yes by pool; where there is a harmful and a benign one, how well they are separated."""

    shares: Mapping[str, ClusteredShare | None]
    errors: ErrorRates | None


def _shares_table(pools: Mapping[str, PoolShares], title: str = "") -> Grid:
    head = ["mode", "pool", "yes", "labelled", "share", "95 % interval", "prompts"]
    rows = [
        (mode, pool, one.k, one.n, percent(one.value), percent_interval(one.interval), one.clusters)
        for mode, found in pools.items()
        for pool, one in found.shares.items()
        if one is not None
    ]
    return table(head, rows, title)


@dataclass(frozen=True)
class SampledStudy(Result):
    """Traces of a study, by what became of them."""

    traces: Mapping[str, int]
    forced: int
    """Thinking that was closed by force."""
    pools: Mapping[str, PoolShares]
    out: Path
    failed: int = field(metadata=CALL)
    spent: Spent = field(metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """Shares of yes, and how many traces of each kind there are."""
        counted = ", ".join(f"{n} {name}" for name, n in self.traces.items())
        yield Section.of("", _shares_table(self.pools), f"traces: {counted or 'none'}")


# -- probes


@dataclass(frozen=True)
class ProbedState:
    """Probes of one position and layer: see :class:`ramify.methods.early_decision.probe.Probed`."""

    at: str
    place: int
    layer: int
    skipped: int
    """Traces with too little thinking."""
    recipe: str
    pools: tuple[Ranked, ...]
    within_pools: float | None
    shuffled: tuple[float, ...]
    controls: Mapping[str, float | None]
    null: float | None

    @classmethod
    def of(cls, at: str, place: int, layer: int, skipped: int, found: Probed) -> Self:
        """Without scores and nulls of single samples."""
        rest = found.within_pools, found.shuffled, found.controls, found.null
        return cls(at, place, layer, skipped, found.recipe, found.pools, *rest)

    def where(self, pool: Ranked) -> str:
        """In words."""
        position = f" place {self.place}" if self.place else ""
        return f"{self.at}{position}, layer {self.layer}" + ("" if pool.pool == "all" else f", pool {pool.pool}")


CONTROLS = {
    "prompt_words": "prompt words",
    "first_token": "first token",
    "near_duplicate_prompts": "near-duplicate prompts",
    "prompt_sources": "prompt sources",
}
"""What probes are compared with, in words."""


@dataclass(frozen=True)
class ProbedStates(StageFound):
    """Probes of hidden states by position, layer and pool, with their controls."""

    probes: tuple[ProbedState, ...]

    @classmethod
    def of(cls, probes: Sequence[ProbedState]) -> Self:
        """Whether a probe, in all samples or in a pool, ranks the outcome better than shuffled labels, p corrected over all."""
        seen = [(pool.p_corrected, one, pool) for one in probes for pool in one.pools if pool.p_corrected is not None]
        if not seen:
            verdict = StageVerdict.of("", "no probe was compared with shuffled labels")
        else:
            beyond = [f"{one.where(pool)} (AUROC {pool.auroc:.2f}, p = {p:.3f})" for p, one, pool in seen if p <= LEVEL]
            more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
            verdict = StageVerdict.of(
                f"the outcome can be read at {', '.join(beyond[:3])}{more}; p corrected over {len(seen)}" if beyond else "",
                f"no probe ranks the outcome better than shuffled labels do (least p {min(p for p, *_ in seen):.3f}, corrected "
                f"over {len(seen)})",
            )
        return cls(tuple(probes), **vars(verdict))

    def sections(self) -> Iterable[Section]:
        """A row a pool, the verdict, and the controls of all pools together."""
        names = [name for name in CONTROLS if any(name in one.controls for one in self.probes)]
        head = ["at", "place", "layer", "pool", "n", "yes", "AUROC", "95 % interval", "BAcc", "shuffled 95 %", "p", "p corrected"]
        rows = [
            (
                *(one.at, one.place, one.layer, pool.pool, pool.n, pool.positive, pool.auroc),
                pool.reason or interval(pool.interval),
                *(pool.balanced, pool.null, pool.p, pool.p_corrected),
                *(pool.controls.get(name) for name in names[:2]),
            )
            for one in self.probes
            for pool in one.pools
        ]
        yield Section.of("", table([*head, *(CONTROLS[name] for name in names[:2])], rows), self.verdict)
        controls = [
            (one.at, one.place, one.layer, one.within_pools, one.null, *(one.controls.get(name) for name in names), one.skipped)
            for one in self.probes
        ]
        head = ["at", "place", "layer", "within pools", "shuffled 95 %", *(CONTROLS[name] for name in names), "skipped"]
        yield Section.of("Controls, all pools together (AUROC)", table(head, controls))


# -- along the thinking


@dataclass(frozen=True)
class ProbeAlong:
    """A probe at every position of the thinking, and distances of its out-of-fold logits."""

    auroc: tuple[float | None, ...]
    shuffled: tuple[float | None, ...]
    mahalanobis: tuple[float, ...]
    fisher: tuple[float | None, ...]
    cohen_d: tuple[float | None, ...]
    bhattacharyya: tuple[float | None, ...]


@dataclass(frozen=True)
class ValleyFound(StageFound):
    """J and a probe along the thinking."""

    skipped: int
    n: int
    textbook: bool
    reason: str
    """Why there is no curve."""
    valley: Valley | None
    probe: ProbeAlong | None

    @classmethod
    def of(
        cls, skipped: int, n: int, textbook: bool, reason: str, found: Valley | None = None, probe: ProbeAlong | None = None
    ) -> Self:
        """Whether the outcomes lie less far apart in the middle of the thinking than at its ends."""
        if found is None:
            verdict = StageVerdict.of("", reason)
        elif found.depth is None or found.depth_interval is None:
            verdict = StageVerdict.of("", "an end of the thinking is not far enough above the floor of J")
        else:
            low, high = found.depth_interval
            told = f"V = {found.depth:.2f}, 95 % interval {low:.2f} to {high:.2f}"
            dip = f"J dips in the middle of the thinking: {told}" if low > 0 else ""
            verdict = StageVerdict.of(dip, f"no dip of J is shown: {told}")
        return cls(skipped, n, textbook, reason, found, probe, **vars(verdict))

    def sections(self) -> Iterable[Section]:
        """Both in one picture, because they disagree: a dip of J is not a loss of decodability."""
        if self.valley is None or self.probe is None:
            yield Section.of("", f"No curve; {self.verdict}")
            return
        j, probe = self.valley, self.probe
        places = range(0, len(j.share), max(1, len(j.share) // 10))
        head = ["at", "J", "floor", "probe AUROC", "shuffled", "Mahalanobis", "Fisher", "Cohen's d", "Bhattacharyya"]
        logits = probe.mahalanobis, probe.fisher, probe.cohen_d, probe.bhattacharyya
        rows = [
            (percent(j.share[p], 0), j.j[p], j.floor[p], probe.auroc[p], probe.shuffled[p], *(each[p] for each in logits))
            for p in places
        ]
        x = tuple(100 * share for share in j.share)
        net = tuple(value - floor for value, floor in zip(j.j, j.floor, strict=True))
        lines = (
            CurveLine("probe, AUROC", x, probe.auroc),
            CurveLine("J minus its floor", x, net, j.low, j.high),
            CurveLine("probe on shuffled labels", x, probe.shuffled),
        )
        title = "Separability and decodability along the thinking"
        yield Section.of(
            "",
            table(head, rows),
            self.verdict,
            Curves(title, "share of the thinking, %", "AUROC, J", lines, percent=False),
            "J falls where states carry the current token more than the outcome; the probe says whether the outcome is still "
            "there.",
        )


# -- continuations


@dataclass(frozen=True)
class WayCurves:
    """Continuation curves of some prompts, each way its own."""

    closed: tuple[Point, ...]
    open: tuple[Point, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """Of both."""
        return (*self.closed, *self.open)


@dataclass(frozen=True)
class MeanPoint:
    """Mean variance of the pools at a share of the thinking."""

    share: float
    variance: float


@dataclass(frozen=True)
class WayMeans:
    """Mean curves of the pools, each way its own."""

    closed: tuple[MeanPoint, ...]
    open: tuple[MeanPoint, ...]


@dataclass(frozen=True)
class ContinuationCurves:
    """Continuations of prefixes: of each slice, each pool, all prefixes, and the mean of the pools (the paper's)."""

    curves: Mapping[str, WayCurves]
    mean_of_pools: WayMeans
    open_fall: OpenFall | None
    slices: Mapping[str, int]
    no_room: int
    missing: int

    def verdict(self) -> StageVerdict:
        """Whether the outcome becomes more (or less) settled as the thinking continues, open: the only hypothesis tested."""
        fall = self.open_fall
        if fall is None:
            why = "open variance was not measured both with nothing kept and further on, for three rollouts of a prompt"
            return StageVerdict.of("", why)
        told = f"open variance falls by {fall.value:.2f} from nothing kept to {fall.share:.0%} (p = {fall.p:.3f})"
        what = "the thinking settles the outcome" if fall.value > 0 else "the thinking unsettles the outcome"
        otherwise = f"the thinking is not shown to settle the outcome: {told}"
        return StageVerdict.of(f"{what}: {told}" if fall.p <= LEVEL else "", otherwise)

    def sections(self) -> Iterator[Section]:
        """A row a point, and a picture of each group of prompts, the ambiguous ones first."""
        names = [one.name for one in fields(Point) if one.name != "mode"]
        head = ["of", "way", *(name.replace("_", " ") for name in names)]
        rows = [
            (of, point.mode, *(_shown(getattr(point, name)) for name in names))
            for of, curves in self.curves.items()
            for point in curves.points
        ]
        means = [
            (way, percent(point.share, 0), point.variance)
            for way, points in (("closed", self.mean_of_pools.closed), ("open", self.mean_of_pools.open))
            for point in points
        ]
        yield Section.of(
            "",
            table(head, rows),
            table(("way", "share", "variance"), means, "mean of the pools"),
            *(_picture(f"Continuations: {of}", curves) for of, curves in self.curves.items()),
            "Closed: the thinking stops there and the answer is sampled anew. Open: it continues. Only the two together "
            "distinguish a decided model from one that still deliberates.",
        )


def _shown(value: Any) -> Cell:
    return interval(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _picture(title: str, curves: WayCurves) -> Curves:
    """Unbiased variance and flips by share of the thinking kept, each way its own curve."""
    lines: list[CurveLine] = []
    for way, points in (("closed", curves.closed), ("open", curves.open)):
        x = tuple(100 * point.share for point in points)
        low, high = (tuple((p.unbiased_interval or (p.unbiased,) * 2)[end] for p in points) for end in (0, 1))
        lines.append(CurveLine(f"{way}: variance", x, tuple(p.unbiased for p in points), low, high))
        lines.append(CurveLine(f"{way}: flips", x, tuple(p.flip_rate for p in points)))
    return Curves(title, "share of the thinking kept, %", "variance, share", tuple(lines), percent=False)


@dataclass(frozen=True)
class Continued(StageFound):
    """Continuations of prefixes."""

    continuation: ContinuationCurves | None
    spent: Spent = field(metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """The curves and the verdict."""
        yield from self.continuation.sections() if self.continuation else ()
        yield Section.of("", self.verdict)


# -- turns of stance


@dataclass(frozen=True)
class TurnSettings:
    """How cuts are judged."""

    locked: str
    family: str
    alpha: float
    margin: float


@dataclass(frozen=True)
class SmallestSignificant:
    """The smallest count above ``base`` of ``n`` that is significant; None where none is. What lies below it is called
    performative whatever the truth."""

    base: int
    n: int
    count: int | None


@dataclass(frozen=True)
class TurnsFound(TurnSummary):
    """Turns of stance and what cutting there shows; traces of more than 120 chunks apart."""

    settings: TurnSettings
    panel: PanelAgreement
    unresolved_chunks: int
    turns_without_answers: int
    smallest_significant: tuple[SmallestSignificant, ...]
    by_pool: Mapping[str, TurnSummary]

    def verdict(self) -> StageVerdict:
        """Whether the answer after a turn of stance differs from that before it, anywhere."""
        meant = self.cuts - self.performative.k if self.performative else 0
        equal = f"{self.equality.equivalent} of {self.cuts} turns are shown to move it by less than {self.settings.margin:.0%}"
        return StageVerdict.of(
            f"the answer moves at {meant} of {self.cuts} turns of stance; {equal}" if meant else "",
            f"no turn of stance is shown to move the answer; {equal}",
        )

    def sections(self) -> Iterator[Section]:
        """All traces beside each pool, and what the test could have seen."""
        columns = {"all": self, **self.by_pool} if self.by_pool else {"all": self}
        each = [_turn_rows(one) for one in columns.values()]
        rows = [(name, *(one[name] for one in each)) for name in each[0]]
        panel = {
            "kappa of the panel": self.panel.kappa,
            "its interval": interval(self.panel.interval),
            "chunks that all judges rated": self.panel.chunks,
            "chunks not settled": self.unresolved_chunks,
            "turns without answers": self.turns_without_answers,
        }
        seen = [(f"{one.base} of {one.n}", one.count) for one in self.smallest_significant]
        yield Section.of(
            "",
            table(["figure", *columns], rows),
            numbers(panel),
            table(["before the turn", "smallest count after it that is significant"], seen),
            "Performative means no more than: not significant. Equivalent is what was shown.",
        )


def _turn_rows(one: TurnSummary) -> dict[str, Cell]:
    def share(value: ClusteredShare | Proportion | None) -> str:
        return "-" if value is None else f"{percent(value.value)} {percent_interval(value.interval)}"

    named = {
        "locked and meaningful": 0,
        "locked and performative": 1,
        "wavering and meaningful": 2,
        "wavering and performative": 3,
    }
    tallies = astuple(one.table)
    return {
        "traces": one.traces,
        "loops": one.loops,
        "of one chunk": one.one_chunk,
        "traces with a turn": share(one.with_any),
        "turns": one.cuts,
        "turns a trace": one.per_trace,
        "meaningful turns a trace": one.meaningful_per_trace,
        "performative": share(one.performative),
        **{f"shown {name}" if name != "undecided" else name: getattr(one.equality, name) for name in _EQUALITY},
        **{name: tallies[at] for name, at in named.items()},
        "locked before": share(one.locked),
        "moved with the stance": share(one.with_stance),
    }


_EQUALITY = ("equivalent", "different", "undecided")


@dataclass(frozen=True)
class TurnsMeasured(StageFound):
    """Answers before and after turns of stance."""

    oscillation: TurnsFound | None
    unrated: int
    """Traces that no judge rated."""
    spent: Spent = field(metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """The figures and the verdict."""
        yield from self.oscillation.sections() if self.oscillation else ()
        yield Section.of("", self.verdict)


# -- ending the thinking early


@dataclass(frozen=True)
class RuleRow:
    """A rule with the setting that the calibration certifies; None where it certifies none."""

    name: RuleName
    calibration: RuleMeasured | None
    held_out: RuleMeasured | None


@dataclass(frozen=True)
class StopSettings:
    """How the rule was calibrated, which is how it has to be used."""

    rule: RuleName
    alpha: float
    level: float
    every: int
    probe_tokens: int
    answer: str
    held_out: float


@dataclass(frozen=True)
class StopCalibrated(StageFound):
    """When the thinking may end, and how seldom that changes the answer."""

    settings: StopSettings
    rules: tuple[RuleRow, ...]
    """The one that was asked for, of which the bound holds, and the others, each as if it had been."""
    prompts: int
    held: int
    """Prompts that do not calibrate."""
    least: int
    """Prompts without which nothing can be certified at this ``alpha`` and ``level``."""
    anew: Proportion | None
    """Answers that change when they are sampled once more after the whole thought: no stop can be safer."""
    left_out: Mapping[str, int]
    spent: Spent = field(default_factory=dict, metadata=CALL)

    @property
    def chosen(self) -> StopRule | None:
        """The certified rule; None where none is."""
        (row,) = (each for each in self.rules if each.name == self.settings.rule)
        return None if row.calibration is None else row.calibration.rule

    @classmethod
    def of(
        cls,
        settings: StopSettings,
        rules: Sequence[RuleRow],
        prompts: int,
        held: int,
        least: int,
        anew: Proportion | None,
        left_out: Mapping[str, int],
        spent: Spent,
    ) -> Self:
        """With the verdict: whether a thinking may end early, at a bound that the calibration certifies."""
        (row,) = (each for each in rules if each.name == settings.rule)
        bound = f"at most {settings.alpha:.0%} of the answers (confidence {settings.level:.0%})"
        if row.calibration is None:
            few = f": {prompts} prompts calibrate, and it takes {least} at least" if prompts < least else ""
            verdict = StageVerdict.of("", f"no setting of {settings.rule} is certified to change {bound}{few}")
        else:
            known = row.held_out or row.calibration
            told = (
                f"{row.calibration.rule}; {known.wrong} answers changed {'on held-out prompts' if row.held_out else 'there'}, "
                f"{known.thinking_saved:.0%} of the thinking and {known.saved:.0%} of all tokens saved"
            )
            worth = known.stopped is not None and known.stopped.k > 0
            verdict = StageVerdict.of(
                f"the thinking may end early, which changes {bound}: {told}" if worth else "",
                f"the certified rule stops nothing here: {told}",
            )
        return cls(settings, tuple(rules), prompts, held, least, anew, left_out, spent, **vars(verdict))

    def sections(self) -> Iterable[Section]:
        """A row a rule and set of prompts, the verdict, and what the bound is about."""
        head = ["rule", "ends the thinking at", "on", "stopped", "wrong", "95 % interval", "upper bound"]
        head += ["thinking saved", "95 % interval", "all tokens saved", "95 % interval"]
        rows: list[tuple[Cell, ...]] = []
        for row in self.rules:
            name = f"{row.name} (chosen)" if row.name == self.settings.rule else row.name
            if row.calibration is None:
                rows.append((name, "no setting is certified", *["-"] * 9))
            for on, measure in (("calibration", row.calibration), ("held out", row.held_out)):
                if measure is not None and measure.wrong is not None:
                    wrong = str(measure.wrong), percent_interval(measure.wrong.interval), percent(measure.upper)
                    saved = percent(measure.thinking_saved), percent_interval(measure.thinking_interval)
                    total = percent(measure.saved), percent_interval(measure.saved_interval)
                    rows.append((name, str(measure.rule), on, str(measure.stopped), *wrong, *saved, *total))
        yield Section.of("", table(head, rows), self.verdict)
        counts: dict[str, Cell] = {
            "prompts that calibrate": self.prompts,
            "prompts held out": self.held,
            "answers that change when sampled once more after the whole thought": str(self.anew or "-"),
            **{f"left out: {name}": n for name, n in self.left_out.items() if n},
        }
        yield Section.of(
            "",
            numbers(counts),
            "The bound is of the chosen rule, one thought a prompt, on prompts of the kind that calibrated it, sampled as these "
            "were. The other rows show what the rule would have been, had it been chosen.",
        )


# -- all of it


@dataclass(frozen=True)
class StudyReport(Result):
    """What all stages of a study say together."""

    source: StudySource
    prompts: int
    traces: Mapping[str, int]
    forced: int
    pools: Mapping[str, PoolShares]
    """By mode."""
    thinking: Mapping[str, ThinkingEffect]
    """By pool."""
    continuation: ContinuationCurves | None
    oscillation: TurnsFound | None
    probe: ProbedStates | None
    valley: ValleyFound | None
    verdicts: Mapping[str, StageVerdict]
    defence: DefenceEffect | None = None

    def sections(self) -> Iterable[Section]:
        """Verdicts first, then outcomes, continuations (ambiguous prompts first), probes, the valley, turns, a defence."""
        yield Section.of("Verdicts", table(["stage", "verdict"], [(name, one.verdict) for name, one in self.verdicts.items()]))
        counted = {**self.traces, "closed by force": self.forced, "prompts": self.prompts}
        errors = [(mode, *astuple(found.errors)) for mode, found in self.pools.items() if found.errors is not None]
        yield Section.of(
            f"Traces of {self.source.model}",
            numbers(counted),
            _shares_table(self.pools, "share of yes"),
            table(["mode", "harmful complied with", "benign refused", "d'", "c"], errors, "errors"),
            self._effects(),
        )
        stages: dict[str, Iterable[Section]] = {
            "Continuations": self.continuation.sections() if self.continuation else (),
            "Probes": self.probe.sections() if self.probe else (),
            "Along the thinking": self.valley.sections() if self.valley else (),
            "Turns of stance": self.oscillation.sections() if self.oscillation else (),
        }
        for name, sections in stages.items():
            yield from (Section(section.title or name, section.parts) for section in sections)
        if self.defence is not None:
            base, treated = self.defence.base, self.defence.treated
            rows = [(one.name, getattr(base, one.name), getattr(treated, one.name)) for one in fields(ErrorRates)]
            yield Section.of("Defence", table(["figure", "base", "run"], rows), f"The defence {self.defence.verdict}.")

    def _effects(self) -> Grid:
        head = ["pool", "prompts", "unchanged", "its interval", "to yes", "to no", "change of the share of yes", "interval"]
        rows = [
            (
                *(pool, one.prompts, percent(None if one.unchanged is None else one.unchanged.value)),
                percent_interval(None if one.unchanged is None else one.unchanged.interval),
                *(percent(one.to_yes), percent(one.to_no), one.change, interval(one.change_interval)),
            )
            for pool, one in self.thinking.items()
        ]
        return table(head, rows, "with thinking against without")
