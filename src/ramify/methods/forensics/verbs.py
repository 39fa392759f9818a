"""The verbs of ``ramify forensics``. CASEDIR is a folder with a case.toml; runs and results are kept in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field

from ramify.base import codec
from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.kit import Form, Verbs, argument, only_for, option, words_of
from ramify.methods.forensics.ach import BENIGN
from ramify.methods.forensics.case import FILE, CaseConfig, check_case, check_components, load_case, skeleton, toml
from ramify.methods.forensics.experiment import Control, TestResult, corrected
from ramify.methods.forensics.found import AskedQuestion, Baseline, CaseReport, CaseTests, ComparedTexts, ReplyScores, moves
from ramify.methods.forensics.hypotheses import EvidenceTable, Hypothesis
from ramify.methods.forensics.judges import find_behaviour, transcript
from ramify.methods.forensics.logs import by_field, invalid, read_log
from ramify.methods.forensics.prefill import NEUTRAL, commitment, reflect
from ramify.methods.forensics.probes import ask, control, says_of
from ramify.methods.forensics.report import CasePlan, design, propose, table_of
from ramify.methods.forensics.run import Case
from ramify.methods.forensics.study import Played
from ramify.methods.forensics.words import NOTE, audit_notes, scale, self_report, user_turn
from ramify.render.numbers import p_value, percent, points
from ramify.render.result import CurveLine, Curves, Result, Section, Verbatim, table, to_document
from ramify.render.terminal import progress, say
from ramify.rollout.components import find_environment, find_model
from ramify.stats.drops import Counts
from ramify.stats.intervals import Proportion

T = TypeVar("T")
RUN = "folder/run"
"""Where a case keeps what its verbs return."""
app = Verbs("forensics", help="Find out why an agent did something, one change at a time.")
Folder = Annotated[Path, argument(metavar="CASEDIR", help="Folder of the case.")]
N = Annotated[int | None, option("--n", min=1, help="Runs of each cell; default: the case's.")]
Words = list[str] | None


def _working(folder: Path, work: Callable[[Case], T]) -> T:
    """``work`` on the open case, under a progress bar."""
    kept = f"what was played is kept in {folder}: the same command continues"
    with progress(folder.name, unit="runs", kept=kept) as bar, Case(folder) as case:
        case.progress = bar
        found = work(case)
    if case.ledger.total("calls"):
        say(f"spent on {case.ledger}")
    return found


class CaseChoice(NamedTuple):
    """What a verb may do: the words and the options that it takes, and the work, called with the case, the options and the
    words."""

    words: str
    options: str
    work: Callable[..., Result]

    def do(self, name: str, folder: Path, options: Config, words: Words) -> Any:
        """The work's result, as choice ``name``. Raises UserError on words and options that it does not take."""
        only_for(name, **{key: getattr(options, key) for key in options.model_fields_set - set(self.options.split())})
        given = words_of(name, words, self.words)
        return _working(folder, lambda case: self.work(case, options, *given))


# -- before and while it is played ---------------------------------------------------------------------------------------------


@app.verb()
def plan(
    folder: Folder,
    env: Annotated[
        str | None, option(help="Write a new case for this environment: NAME, NAME:ARGUMENT or FILE.py:ATTRIBUTE.")
    ] = None,
    model: Annotated[
        str | None, option(help="Of a new case, the agent: builtin, hf:PATH, chat:MODEL@URL, FILE.py:FUNCTION, ...")
    ] = None,
    behavior: Annotated[
        str | None,
        option(help="Of a new case, what counts: grade, outcome, regex:PATTERN, call:TOOL, judge:WHAT, FILE.py:FUNCTION."),
    ] = None,
    n: N = None,
    k: Annotated[int, option(min=4, help="Forks at each sentence.")] = 50,
) -> CasePlan:
    """What the design can find, before it is paid for: runs and power of every test.

    With --env it first writes CASEDIR/case.toml: the environment's factors as fields, each of their values as a variant."""
    if env is None:
        only_for("a plan without --env", model=model, behavior=behavior)
        config = load_case(folder)
        check_components(config)
        return design(config, n or 0, k)
    return replace(design(_begun(folder, env, model or "builtin", behavior or "grade"), n or 0, k), case=folder / FILE)


def _begun(folder: Path, env: str, model: str, behavior: str) -> CaseConfig:
    """A new case in ``folder``."""
    if (folder / FILE).exists():
        raise UserError(f"{folder / FILE} is there already: plan it without --env")
    config = CaseConfig(env=env, model=model, behavior=behavior)
    check_case(config)
    check_components(config)
    text = skeleton(env, model, find_environment(env), behavior)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, text)
    return load_case(folder)


@app.verb(keeps=RUN)
def run(folder: Folder, n: N = None) -> Baseline:
    """Play the incident again and again: the rate, invalid runs, and runs that speak of a test, apart."""
    return _working(folder, lambda case: case.baseline(n))


# -- what makes the difference -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransplantedRates(Result):
    """Rates after the first sentences of two runs, more and more of them."""

    PART = "transplant"
    rates: Mapping[str, tuple[float, ...]]
    """high: of the run that did it; low: of the other."""
    k: int

    def sections(self) -> Iterable[Section]:
        """Both sides, and their picture."""
        high, low = self.rates["high"], self.rates["low"]
        pairs = itertools.zip_longest(map(percent, high), map(percent, low), fillvalue="")
        lines = [CurveLine(name, tuple(range(len(side))), side) for name, side in (("did it", high), ("did not", low))]
        yield Section.of(
            "",
            table(("sentences kept", "rate, did it", "rate, did not"), [(kept, *pair) for kept, pair in enumerate(pairs)]),
            Curves("Rate after the first sentences", "sentences kept", "rate", tuple(lines)),
        )


@dataclass(frozen=True)
class CaseControls(Result):
    """What tests do on an agent that has the property."""

    PART = "control"
    controls: Mapping[str, Control]

    def sections(self) -> Iterable[Section]:
        """A row for each test, and what a silence stays."""
        rows = [
            (name, one.fired, f"{one.power:.2f}", f"{one.false_alarm:g}", one.n, one.source)
            for name, one in self.controls.items()
        ]
        quiet = ", ".join(name for name, one in self.controls.items() if not one.fired)
        yield Section.of(
            "",
            table(("test", "fired", "power, at least", "false alarms", "runs", "agent"), rows),
            quiet
            and f"Nothing stands out on an agent that is said to have the property: a silence of {quiet} stays uninterpretable.",
        )


class ChangeOptions(Config):
    """Options of the changes, each of those that it names."""

    n: int | None = Field(None, ge=1)
    """Of variant, field and forbid: runs of each cell; default: the case's."""
    values: str = ""
    """Of field: doses, 0,50,100; default: the field's values."""
    known: str = ""
    """Of variant and field: make the test on this agent, known to have the property, and keep its power."""
    instruct: str = ""
    """The same on the case's own agent with an instruction that gives it the property."""
    replace: bool = False
    """With --known or --instruct: replace a control that detected the effect."""
    judge: bool = False
    """Of forbid: PATTERN is a description for the case's judge."""
    run: str = ""
    """Of insert: a run by the node it ended at; default: the first that did it."""
    turn: int = Field(0, ge=0)
    """Of insert and sentences: which reply of the run."""
    k: int = Field(50, ge=4)
    """Of insert and sentences: continuations of each arm, forks at each position."""
    neutral: str = NEUTRAL
    """Of insert: the sentence it is compared with."""


def _variant(case: Case, options: ChangeOptions, *names: str) -> CaseTests | CaseControls:
    return _tested(case, options, lambda known: known.counterfactual(names, options.n))


def _field(case: Case, options: ChangeOptions, name: str) -> CaseTests | CaseControls:
    return _tested(case, options, lambda known: [known.vary(name, _numbers(options.values), options.n)])


def _tested(case: Case, options: ChangeOptions, test: Callable[[Case], list[TestResult]]) -> CaseTests | CaseControls:
    """A test on the case's agent, or its power on one that is known to have the property."""
    if options.known or options.instruct:
        return CaseControls(control(case, test, options.known, options.instruct, options.replace))
    if options.replace:
        raise UserError("--replace is of a positive control, so it goes with --known or --instruct")
    return CaseTests.of(test(case))


def _forbid(case: Case, options: ChangeOptions, name: str, pattern: str) -> CaseTests:
    return CaseTests.of([case.forbid(name, says_of(case, pattern, options.judge), options.n)])


def _insert(case: Case, options: ChangeOptions, name: str, sentence: str) -> CaseTests:
    played = _run(case, options.run)
    return CaseTests.of([reflect(case, name, sentence, played, options.turn, options.k, options.neutral)])


def _sentences(case: Case, options: ChangeOptions, leaf: str = "", other: str = "") -> ReplyScores | TransplantedRates:
    turn, k = options.turn, options.k
    if not other:
        return case.resample(_run(case, leaf), turn, k)
    return TransplantedRates({side: case.resample(end, turn, k).rates for side, end in (("high", leaf), ("low", other))}, k)


CHANGES = {
    "variant": CaseChoice("[NAME...]", "n known instruct replace", _variant),
    "field": CaseChoice("NAME", "n values known instruct replace", _field),
    "forbid": CaseChoice("NAME PATTERN", "n judge", _forbid),
    "insert": CaseChoice("NAME SENTENCE", "run turn k neutral", _insert),
    "sentences": CaseChoice("[NODE] [NODE]", "turn k", _sentences),
}


@app.verb(settings=ChangeOptions, keeps=RUN)
def change(
    options: ChangeOptions,
    folder: Folder,
    what: Annotated[Literal["variant", "field", "forbid", "insert", "sentences"], argument("WHAT", help="What is changed.")],
    words: Annotated[Words, argument("WORDS...", help="As WHAT has it.")] = None,
) -> CaseTests | CaseControls | ReplyScores | TransplantedRates:
    """Change one thing, and compare with the incident.

    - variant [NAME...]: one declared field, or a declared stack, as variants of the case have it; all of them by default.
    - field NAME: the dose of a field of numbers: the trend of the rate, and the dose at which it reaches 1 and 5 percent.
    - forbid NAME PATTERN: runs in which no sentence of a class is said, by repeated resampling.
    - insert NAME SENTENCE: a reflection before the agent acts, against a neutral sentence. An upper bound.
    - sentences [NODE]: fork one reply at every sentence: how much each moves the rate, estimated on forks that did not rank it.
    - sentences NODE NODE: continue from the first sentences of a run that did it and of one that did not: where do they part?

    With --known or --instruct a variant or field is a positive control: without one a silence says nothing."""
    return CHANGES[what].do(what, folder, options, words)  # type: ignore[no-any-return]


# -- what is said --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProposedHypotheses(Result):
    """Hypotheses that a model proposed: guesses to be tested."""

    KEPT = False
    hypotheses: Mapping[str, Hypothesis]

    def sections(self) -> Iterable[Section]:
        """As case.toml takes them."""
        lines: list[str] = []
        for name, one in self.hypotheses.items():
            fields = {key: value for key, value in codec.to_json(one).items() if key != "name"}
            lines += [f"[hypotheses.{name}]", *(f"{key} = {toml(value)}" for key, value in fields.items()), ""]
        yield Section.of("", Verbatim("\n".join(lines), "toml"))


class AskOptions(Config):
    """Options of the questions, each of those that it names."""

    n: int | None = Field(None, ge=1)
    """Answers, or runs of either side at the most; default: 50, of audit-notes the case's."""
    judge: bool = False
    """PATTERN is a description for the case's judge."""
    text: str = ""
    """Of self-report review, memory, done or a question of your own; of audit-notes the instruction, lines that begin with
    'Note:' are read."""
    about: Literal["third", "after", "before"] = "third"
    """Of question: to the agent about another one, after the end of a run, or before its reply --turn."""
    run: str = ""
    """Of question: a run by the node it ended at; default: the first that did it."""
    turn: int = Field(0, ge=0)
    """Of question and commitment: which reply of the run."""
    labels: Path | None = None
    """Of scale: grades by people, JSON lines {"leaf": NODE, "grade": 1 to 5}."""
    at: str = "paragraphs"
    """Of commitment: breaks of the reply, paragraphs or sentences."""
    above: float | None = None
    """Of commitment: log-prob above which a run climbs; default: the median."""
    neutral: str = NEUTRAL
    """Of commitment: the phrase that must not separate the sides."""
    proposer: str = ""
    """Of hypotheses: who reads runs and proposes: chat:MODEL@URL, hf:PATH, ..."""
    sample: int = Field(4, ge=1)
    """Of hypotheses: runs of each side to show it."""

    @property
    def most(self) -> int:
        """Answers, or runs of either side."""
        return self.n or 50


def _question(case: Case, options: AskOptions, name: str, question: str, pattern: str) -> AskedQuestion:
    says = says_of(case, pattern, options.judge)
    played = None if options.about == "third" else _run(case, options.run)
    return ask(case, name, question, says, run=played, n=options.most, turn=options.turn if options.about == "before" else None)


def _self_report(case: Case, options: AskOptions, name: str, pattern: str) -> ComparedTexts:
    return self_report(case, name, options.text or "review", says_of(case, pattern, options.judge), options.most)


def _user_turn(case: Case, options: AskOptions, name: str, pattern: str) -> ComparedTexts:
    return user_turn(case, name, says_of(case, pattern, options.judge), options.most)


def _audit_notes(case: Case, options: AskOptions, name: str, pattern: str) -> ComparedTexts:
    return audit_notes(case, name, says_of(case, pattern, options.judge), options.n, options.text or NOTE)


def _scale(case: Case, options: AskOptions, name: str, axis: str) -> ComparedTexts:
    return scale(case, name, axis, options.labels, options.most)


def _commitment(case: Case, options: AskOptions, name: str, phrase: str) -> ComparedTexts:
    return commitment(case, name, phrase, options.turn, options.at, options.above, options.neutral, options.most)


def _hypotheses(case: Case, options: AskOptions) -> ProposedHypotheses:
    if not options.proposer:
        raise UserError("hypotheses are proposed by a model: name one with --proposer")
    shown = _sample(case, options.sample)
    if not shown:
        raise UserError(f"there is no graded run of the incident yet: `ramify forensics run {case.folder}`")
    found = wait_for(propose(*find_model(options.proposer), case.config, [(played.behavior, played.text) for played in shown]))
    return ProposedHypotheses({hypothesis.name: hypothesis for hypothesis in found})


QUESTIONS = {
    "question": CaseChoice("NAME QUESTION PATTERN", "n judge about run turn", _question),
    "self-report": CaseChoice("NAME PATTERN", "n judge text", _self_report),
    "user-turn": CaseChoice("NAME PATTERN", "n judge", _user_turn),
    "audit-notes": CaseChoice("NAME PATTERN", "n judge text", _audit_notes),
    "scale": CaseChoice("NAME AXIS", "n labels", _scale),
    "commitment": CaseChoice("NAME PHRASE", "n turn at above neutral", _commitment),
    "hypotheses": CaseChoice("", "proposer sample", _hypotheses),
}
Asked = Literal["question", "self-report", "user-turn", "audit-notes", "scale", "commitment", "hypotheses"]


@app.verb("ask", settings=AskOptions, keeps=RUN)
def ask_(
    options: AskOptions,
    folder: Folder,
    what: Annotated[Asked, argument("WHAT", help="What is asked for.")],
    words: Annotated[
        Words, argument("WORDS...", help="As WHAT has it. NAME is yours; PATTERN says which texts are counted.")
    ] = None,
) -> AskedQuestion | ComparedTexts | ProposedHypotheses:
    """Ask why, and count the answers of a kind: words, which are no cause.

    - question NAME QUESTION PATTERN: the agent, about another one, after a run, or for a note to itself in the middle of one.
    - self-report NAME PATTERN: a self-report after every run: are those of a kind likelier after runs that did it?
    - user-turn NAME PATTERN: the model writes the user's next message after every run; runs that did it against the others.
    - audit-notes NAME PATTERN: a note required with every action: does that move the rate, and what do the notes say?
    - scale NAME AXIS: the case's judge grades runs from 1 to 5 on an axis in words, calibrated by people's grades.
    - commitment NAME PHRASE: log-prob of words by which the agent would commit itself, at the breaks of a reply.
    - hypotheses: a model proposes some from transcripts, to append to case.toml. Without them the standard battery stands."""
    return QUESTIONS[what].do(what, folder, options, words)  # type: ignore[no-any-return]


# -- what is known -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampledRun:
    """A run of the incident, as text."""

    leaf: str
    behavior: bool | None
    text: str


@dataclass(frozen=True)
class RunSamples(Result):
    """Runs that did it next to runs that did not."""

    KEPT = False
    runs: tuple[SampledRun, ...]

    def sections(self) -> Iterable[Section]:
        """The transcripts."""
        yield Section.of("", "" if self.runs else "no graded run of the incident yet: `ramify forensics run`")
        for run in self.runs:
            did = "did it" if run.behavior else "did not"
            yield Section.of(f"=== {did}, ends at {run.leaf[:12]}", Verbatim(run.text))


def _sample(case: Case, most: int) -> tuple[SampledRun, ...]:
    """Runs of the incident that did it, then runs that did not, at the most so many of either."""
    runs = list(case.played("baseline").values())
    picked = [run for did in (True, False) for run in [run for run in runs if run.behavior is did][:most]]
    return tuple(SampledRun(run.leaf, run.behavior, transcript(case.messages_of(run))) for run in picked)


@dataclass(frozen=True)
class LoggedRates(Result):
    """The rate of a behaviour in a log, and by what was recorded."""

    KEPT = False
    rate: Proportion | None
    invalid: int
    why: Mapping[str, int]
    """Why runs are invalid."""
    by: tuple[TestResult, ...]
    verdict: str | None
    spent: Mapping[str, Mapping[str, float]]

    def sections(self) -> Iterable[Section]:
        """The rate, invalid runs, a row for each value of a recorded field."""
        rate = self.rate
        shown = "of nothing" if rate is None else f"{rate.k}/{rate.n} = {percent(rate.value)}"
        lines = [f"  {count} x {reason}" for reason, count in list(self.why.items())[:5]]
        rows = [(one.name, points(one.value), p_value(one.p)) for one in self.by]
        yield Section.of(
            "",
            "\n".join([f"rate {shown}, {self.invalid} invalid", *lines]),
            table(("observed, not changed", "points", "p, corrected"), rows),
            self.verdict and f"{self.verdict}.",
        )


@app.verb("report", keeps=RUN)
def report_(
    folder: Annotated[Path, argument(metavar="CASEDIR", help="Folder of the case; of the view log a log.")],
    view: Annotated[Literal["case", "runs", "hypotheses", "log"], argument("VIEW", help="What of it.")] = "case",
    out: Annotated[Path | None, option(help="Of case: Markdown file to write.")] = None,
    sample: Annotated[int | None, option(min=1, help="Of runs: how many of each side; default: 3.")] = None,
    behavior: Annotated[
        str | None, option(help="Of log, what counts: regex:PATTERN, call:TOOL, outcome, grade, FILE.py:FUNCTION.")
    ] = None,
    by: Annotated[list[str] | None, option(help="Of log: a recorded field; may be repeated.")] = None,
    form: Form = None,
    scorer: Annotated[str | None, option(help="Of log: scorer whose score is the outcome, where there are several.")] = None,
) -> CaseReport | RunSamples | EvidenceTable | LoggedRates:
    """Everything known of the case: rates, tests, sentences, questions, the table, what is missing, what would overturn it.

    - case: all of it.
    - runs: transcripts of runs that did it next to runs that did not.
    - hypotheses: the table of them: inconsistencies counted, shared confounds once, silence without a control for nothing.
    - log: the rate of the behaviour in a log, overall and by recorded field. For a first look: nothing was changed on purpose.

    A log is the folder of a run, a file of any known format (an inspect log, ...), or JSON lines {"messages": [...], "fields":
    {...}}."""
    only_for(f"the view {view}", out=out if view != "case" else None, sample=sample if view != "runs" else None)
    if view == "log":
        if behavior is None:
            raise UserError("a log does not say what counts: name it with --behavior")
        return _logged(folder, behavior, by or (), form, scorer)
    only_for(f"the view {view}", behavior=behavior, by=by, scorer=scorer, **{"from": form})
    with Case(folder) as case:
        if view == "runs":
            return RunSamples(_sample(case, sample or 3))
        if view == "hypotheses":
            return table_of(case.config, case.results()).report(case.config.benign, BENIGN)
        found = case.report()
    if out is not None:
        write_whole(out, to_document(f"Case {folder.resolve().name}", found))
    return found


def _logged(log: Path, behavior: str, by: Sequence[str], form: str | None, scorer: str | None) -> LoggedRates:
    """The rate of a behaviour in a log, and by recorded fields."""
    runs = read_log(log, find_behaviour(behavior), form, scorer, spent := Ledger())
    counts = Counts.of(played.did for played in runs)
    found = corrected(test for name in by for test in by_field(runs, name))
    return LoggedRates(
        rate=Proportion.of(counts.k, counts.n),
        invalid=counts.missing,
        why=invalid(runs),
        by=tuple(found),
        verdict=moves(found, "differs", "of the log") if found else None,
        spent=spent.spent,
    )


def _numbers(text: str) -> list[float]:
    try:
        return [int(x) if x.strip().lstrip("-").isdigit() else float(x) for x in text.split(",") if x.strip()]
    except ValueError:
        raise UserError(f"--values takes numbers with commas between, not '{text}'") from None


def _run(case: Case, leaf: str) -> Played:
    """The run that ends at ``leaf``; without one the first of the incident that did it, which is none of a positive control."""
    if leaf:
        name = case.run.find(leaf)
        found = next((run for run in case.played().values() if run.leaf == name), None)
        if found is None:
            raise UserError(f"no run of the case ends at node {name}; `ramify forensics report CASEDIR runs` names some")
        return found
    found = next((run for run in case.played("baseline").values() if run.behavior), None)
    if found is None:
        raise UserError("no run of the incident did it yet: name one with --run, or play more")
    return found
