"""What a case finds, as its verbs return it and its run keeps it. No word of it claims more than the rows carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from ramify.base.words import plural
from ramify.methods.forensics.algorithm import INVALID, Awareness
from ramify.methods.forensics.experiment import ALPHA, Absence, DoseDetail, DosePoint, TestResult
from ramify.methods.forensics.hypotheses import NOTHING, EvidenceTable
from ramify.render.numbers import interval, number, p_value, percent, percent_interval, points, points_interval
from ramify.render.result import CurveLine, Curves, Folded, Part, Result, Section, Verbatim, table
from ramify.stats.intervals import Proportion
from ramify.trace.graph import short


def share_text(rate: Proportion | None) -> str:
    """A rate with its counts and interval."""
    return "of nothing" if rate is None else f"{rate.k}/{rate.n} = {percent(rate.value)} {percent_interval(rate.interval)}"


@dataclass(frozen=True)
class Baseline(Result):
    """The rate in the incident; its caveats are what makes it doubtful."""

    rate: Proportion | None
    invalid: int
    invalid_share: float
    failures: Mapping[str, int]
    """The most frequent reasons of invalid runs."""
    awareness: Awareness
    homogeneity: float
    """p of equal rates over the tasks."""
    absence: Absence | None

    def __post_init__(self) -> None:
        doubts = []
        if self.invalid_share > INVALID:
            doubts.append(f"More than {INVALID:.0%} of the runs are invalid: mend the grader or the harness first.")
        if self.homogeneity < ALPHA:
            doubts.append(f"The tasks differ in their rates (p = {p_value(self.homogeneity)}): the pooled rate is a mixture.")
        object.__setattr__(self, "caveats", tuple(doubts))

    @property
    def sentence(self) -> str:
        """The rate, and how many runs are invalid."""
        return f"rate {share_text(self.rate)}; {plural(self.invalid, 'invalid run')} ({percent(self.invalid_share, 0)})"

    def sections(self) -> Iterable[Section]:
        """The rate, runs that speak of a test apart, what an absence says."""
        aware, other, absent = self.awareness.aware, self.awareness.unaware, self.absence
        yield Section.of(
            "Baseline",
            f"{self.sentence[:1].upper()}{self.sentence[1:]}.",
            f"{aware.k}/{aware.n} among runs that speak of a test, {other.k}/{other.n} among the others "
            f"(p = {p_value(self.awareness.p)})."
            if aware.n
            else None,
            None
            if absent is None
            else f"The behaviour did not appear: its rate is at most {percent(absent.upper)}; {plural(absent.needed, 'run')} "
            f"would show a rate of {percent(absent.smallest)} once.",
        )


@dataclass(frozen=True)
class CaseTests(Result):
    """Tests of a case, corrected over all that it holds."""

    tests: tuple[TestResult, ...]
    verdict: str

    @property
    def PART(self) -> str:  # type: ignore[override]  # noqa: N802
        """What was changed."""
        return self.tests[0].kind

    @classmethod
    def of(cls, tests: Sequence[TestResult]) -> CaseTests:
        """With what they come to."""
        return cls(tuple(tests), moves(tests, "moved", "of the case so far"))

    def sections(self) -> Iterable[Section]:
        """A table, each dose-response, the verdict, what was shown otherwise."""
        yield Section.of("", *tests_parts(self.tests), f"{self.verdict}.", *diffs(self.tests))


def diffs(tests: Sequence[TestResult]) -> Iterable[Part]:
    """Of every test whose text changed, how."""
    for test in tests:
        if test.detail.change is not None:
            yield Verbatim(f"{test.name}:\n{test.detail.change.diff}", "diff")


def moves(tests: Sequence[TestResult], what: str, where: str) -> str:
    """The tests that moved, or that none did, and over how many they are corrected."""
    moved, looks = [test.name for test in tests if test.fired], tests[0].detail.looks
    over = f"corrected over the {looks} tests {where}" if looks > 1 else f"the only test {where}"
    sentence = f"{what}: {'; '.join(moved)}" if moved else f"{NOTHING}: no rate {what}"
    return f"{sentence} (p < {ALPHA:g}, {over})"


def tests_parts(tests: Sequence[TestResult]) -> Iterable[Part]:
    """A table of tests, and of every dose-response its counts, what its fit reaches, and its picture."""
    rows = []
    for test in tests:
        value = f"z = {test.value:+.2f}" if test.kind == "dose" else f"{points(test.value)} points"
        power = "none" if test.control is None else f"{test.control.power:.2f} ({test.control.source})"
        ends = "" if test.interval is None else points_interval(test.interval)
        rows.append((test.name, test.n, value, ends, p_value(test.p), test.seen, power))
    yield table(("test", "runs", "change", "95 % interval", "p", "the behaviour", "power of its control"), rows)
    for test in tests:
        if isinstance(detail := test.detail, DoseDetail):
            counts = [f"{at:g}: {k}/{n}" for at, k, n in zip(detail.doses, detail.hits, detail.n, strict=True)]
            reached = [f"{percent(float(share), 0)} at {_dose(point)}" for share, point in detail.points.items()]
            yield f"{test.name}: {', '.join(counts)}. The fit reaches {'; '.join(reached)}."
            yield _picture(test.name, detail)


def _dose(point: DosePoint | None) -> str:
    return "no dose for certain" if point is None else f"{number(point.dose)} {interval(point.interval)}"


def _picture(name: str, detail: DoseDetail) -> Curves:
    order = sorted(range(len(detail.doses)), key=lambda i: detail.doses[i])
    doses = tuple(float(detail.doses[i]) for i in order)
    low, high = (tuple(detail.intervals[i][side] for i in order) for side in (0, 1))
    seen = CurveLine("rate", doses, tuple(detail.hits[i] / detail.n[i] for i in order), low, high)
    rising = CurveLine("never falling", doses, tuple(detail.isotonic[i] for i in order))
    return Curves(f"Rate over {name}", name, "rate", (seen, rising))


@dataclass(frozen=True)
class SentenceMove:
    """One sentence of a reply: how far it moves the rate."""

    sentence: str
    score: float
    """Rate of the forks after it minus rate of those before it."""
    sd: float
    p: float
    """Corrected over the sentences of the reply."""
    held_out: float
    """The same on the half of the forks that did not rank the sentences."""


@dataclass(frozen=True)
class ReplyScores(Result):
    """A reply that was forked at every sentence."""

    PART = "sentences"
    leaf: str
    turn: int
    k: int
    rates: tuple[float, ...]
    """Before the first sentence, and after each."""
    sentences: tuple[SentenceMove, ...]
    order: tuple[int, ...]
    """The sentences, those that move the rate most first."""
    node: str
    offsets: tuple[int, ...]
    verdict: str = field(init=False)
    """How many sentences move the rate."""

    def __post_init__(self) -> None:
        moving, n = sum(row.p < ALPHA for row in self.sentences), len(self.sentences)
        sentence = f"{moving} of {n} sentences move the rate" if moving else f"{NOTHING}: no sentence moves the rate"
        over = f"corrected over the {plural(n, 'sentence')} of this reply"
        object.__setattr__(self, "verdict", f"{sentence} (p < {ALPHA:g}, {over})")

    def sections(self) -> Iterable[Section]:
        """Every sentence in its order, and the verdict."""
        rows = [
            (short(row.sentence, 70), percent(rate), points(row.score), points(row.sd), points(row.held_out), p_value(row.p))
            for row, rate in zip(self.sentences, self.rates[1:], strict=True)
        ]
        head = ("sentence", "rate after it", "score, points", "sd", "held-out", "p, corrected")
        rates = tuple(float(rate) for rate in self.rates)
        picture = Curves(
            "Rate after each sentence", "sentences kept", "rate", (CurveLine("rate", tuple(range(len(rates))), rates),)
        )
        before = f"rate before the first sentence: {percent(self.rates[0])}"
        yield Section.of("", before, table(head, rows), picture, f"{self.verdict}.")

    def highest(self) -> Section:
        """The sentences that move the rate most, for a report."""
        rows = [self.sentences[i] for i in self.order[:5]]
        cells = [(short(row.sentence, 60), points(row.held_out), points(row.score), points(row.sd)) for row in rows]
        title = f"Sentences of reply {self.turn} of the run that ends at {self.leaf[:12]}, {plural(self.k, 'fork')} at each place"
        return Section.of(title, table(("sentence", "held-out score", "score", "sd"), cells), f"{self.verdict}.")


@dataclass(frozen=True)
class AskedQuestion(Result):
    """Answers of the agent to a question, which are no cause."""

    PART = "question"
    name: str
    question: str
    rate: Proportion | None
    """Answers of the kind."""
    examples: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """The share, and the first answer."""
        rest = [Folded(f"answer {i}", text) for i, text in enumerate(self.examples[1:], 2)]
        yield Section.of(
            "", f"{self.name}: {share_text(self.rate)} answers of the kind; the first:", Verbatim(self.examples[0]), *rest
        )


@dataclass(frozen=True)
class NotesMove:
    """Whether requiring notes moves the rate itself."""

    p: float
    change: float
    moved: bool


@dataclass(frozen=True)
class GradeAgreement:
    """How far a judge's grades are those of people."""

    n: int
    equal: float
    within_one: float
    kappa: float
    """Cohen's with quadratic weights; 0: as chance would have it, 1: always."""
    spearman: float | None
    p: float
    """Of the kappa, by shuffling."""


@dataclass(frozen=True)
class ComparedTexts(AskedQuestion):
    """What is written for runs that did it and for the others; ``rate`` is of those that did."""

    kind: str
    others: Proportion | None
    p_raw: float
    p: float
    """Corrected over the comparisons that the case holds."""
    looks: int = 1
    how: str = ""
    """Of a user's turn: continuation or forecast."""
    moved: NotesMove | None = None
    silent: int | None = None
    """Runs without a note."""
    mean: float | None = None
    mean_others: float | None = None
    n: tuple[int, int] | None = None
    agreement: GradeAgreement | None = None
    above: float | None = None
    auroc: float | None = None
    auroc_neutral: float | None = None
    p_neutral: float | None = None

    def __post_init__(self) -> None:
        doubts = []
        if self.p_neutral is not None and self.p_neutral < ALPHA:
            doubts.append(f"{self.name}: the neutral phrase separates the sides as well, so it is not the commitment.")
        if self.moved is not None and self.moved.moved:
            doubts.append(
                f"{self.name}: asking for notes itself moves the rate ({points(self.moved.change, 0)} points): they are notes on "
                "another behaviour."
            )
        object.__setattr__(self, "caveats", tuple(doubts))

    @property
    def PART(self) -> str:  # type: ignore[override]  # noqa: N802
        """What is written."""
        return self.kind

    def sections(self) -> Iterable[Section]:
        """The comparison."""
        yield Section.of("", *compared_parts([self]), *(Folded(f"text {i}", text) for i, text in enumerate(self.examples, 1)))

    def sides(self) -> tuple[str, str]:
        """What was found of runs that did it, and of the others."""
        if self.mean is None or self.mean_others is None or self.n is None:
            return share_text(self.rate), share_text(self.others)
        return f"mean {self.mean:.2f} of {self.n[0]}", f"mean {self.mean_others:.2f} of {self.n[1]}"

    def notes(self) -> Iterable[str]:
        """What must be said of the numbers."""
        if self.kind == "scale" and self.agreement is None:
            yield f"{self.name}: not calibrated, no grades by people are given."
        if (a := self.agreement) is not None:
            yield (
                f"{self.name}: with people kappa {a.kappa:.2f} on {plural(a.n, 'run')} (p = {p_value(a.p)}), equal "
                f"{percent(a.equal, 0)}, within one {percent(a.within_one, 0)}."
            )
        if self.auroc is not None and self.auroc_neutral is not None and self.above is not None:
            yield (
                f"{self.name}: AUROC {self.auroc:.2f}, of the neutral phrase {self.auroc_neutral:.2f} (p = "
                f"{p_value(self.p_neutral)}); counted are runs above {self.above:.1f}."
            )
        if self.how == "forecast":
            yield f"{self.name}: the model gave a forecast, since it cannot continue as the user."


Question = Annotated[ComparedTexts | AskedQuestion, Field(union_mode="left_to_right")]


def compared_parts(found: Sequence[ComparedTexts]) -> Iterable[Part]:
    """Comparisons of the two sides, and whether any differs."""
    rows = [(one.name, one.kind, *one.sides(), p_value(one.p)) for one in found]
    apart = [one.name for one in found if one.p < ALPHA]
    sentence = f"{NOTHING}: texts for the runs that did it do not differ from those for the others"
    if apart:
        sentence = f"differs: {'; '.join(apart)}"
    yield table(("name", "what", "of runs that did it", "of the others", "p, corrected"), rows)
    yield f"{sentence} (p < {ALPHA:g}, corrected over the {plural(found[0].looks, 'comparison')} of the case)."
    for one in found:
        yield from one.notes()


@dataclass(frozen=True)
class CaseReport(Result):
    """Everything known of a case. It names no motive that the rows do not carry."""

    question: str
    baseline: Baseline | None
    tests: tuple[TestResult, ...]
    traces: tuple[ReplyScores, ...]
    probes: tuple[AskedQuestion, ...]
    ach: EvidenceTable

    def __post_init__(self) -> None:
        parts = [*([] if self.baseline is None else [self.baseline]), *self.probes]
        object.__setattr__(self, "caveats", tuple(caveat for part in parts for caveat in part.caveats))

    def sections(self) -> Iterable[Section]:
        """What it comes to, then every piece."""
        yield Section.of(self.question or "A case", self.ach.sentence)
        if self.baseline is None:
            yield Section.of("Baseline", "No baseline was run: `ramify forensics run CASEDIR`.")
        else:
            yield from self.baseline.sections()
        if self.tests:
            yield Section.of("Tests", *tests_parts(self.tests))
        yield from (trace.highest() for trace in self.traces)
        if self.probes:
            compared = [probe for probe in self.probes if isinstance(probe, ComparedTexts)]
            asked = [probe for probe in self.probes if not isinstance(probe, ComparedTexts)]
            rows = [(probe.name, short(probe.question, 60), share_text(probe.rate)) for probe in asked]
            yield Section.of(
                "Questions: what it says, which is no cause",
                table(("name", "question", "answers of the kind"), rows),
                *(compared_parts(compared) if compared else ()),
            )
        yield from self.ach.sections()
