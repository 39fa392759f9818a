"""The verbs of ``ramify forensics``. CASEDIR is a folder with a case.toml; runs and results are kept in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from ramify.base import codec
from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.kit import Form, Verbs, argument, option
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
Judged = Annotated[bool, option("--judge", help="WHAT is a description for the case's judge, not a pattern.")]
Leaf = Annotated[str, option("--run", metavar="NODE", help="A run by the node it ended at; default: the first that did it.")]


def _working(folder: Path, work: Callable[[Case], T]) -> T:
    """``work`` on the open case, under a progress bar."""
    kept = f"what was played is kept in {folder}: the same command continues"
    with progress(folder.name, unit="runs", kept=kept) as bar, Case(folder) as case:
        case.progress = bar
        found = work(case)
    if case.ledger.total("calls"):
        say(f"spent on {case.ledger}")
    return found


@dataclass(frozen=True)
class NewCase(Result):
    """The file of a new case."""

    case: Path

    def sections(self) -> Iterable[Section]:
        """What to do next."""
        yield Section.of(
            "", f"wrote {self.case}: say what each field stands for, then `ramify forensics plan {self.case.parent}`"
        )


@app.verb()
def init(
    folder: Folder,
    env: Annotated[str, option(help="Environment: NAME, NAME:ARGUMENT or FILE.py:ATTRIBUTE.")],
    model: Annotated[str, option(help="The agent: builtin, hf:PATH, chat:MODEL@URL, FILE.py:FUNCTION, ...")] = "builtin",
    behavior: Annotated[
        str, option(help="What counts: grade, outcome, regex:PATTERN, call:TOOL, judge:WHAT, FILE.py:FUNCTION.")
    ] = "grade",
) -> NewCase:
    """Write CASEDIR/case.toml: the environment's factors as fields, each of their values as a variant."""
    if (folder / FILE).exists():
        raise UserError(f"{folder / FILE} is there already")
    config = CaseConfig(env=env, model=model, behavior=behavior)
    check_case(config)
    check_components(config)
    text = skeleton(env, model, find_environment(env), behavior)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, text)
    load_case(folder)
    return NewCase(folder / FILE)


@app.verb()
def plan(
    folder: Folder,
    n: N = None,
    k: Annotated[int, option(min=4, help="Forks at each sentence.")] = 50,
) -> CasePlan:
    """What the design can find, before it is paid for: runs and power of every test."""
    config = load_case(folder)
    check_components(config)
    return design(config, n or 0, k)


@app.verb(keeps=RUN)
def run(folder: Folder, n: N = None) -> Baseline:
    """Play the incident again and again: the rate, invalid runs, and runs that speak of a test, apart."""
    return _working(folder, lambda case: case.baseline(n))


@dataclass(frozen=True)
class SampledRun:
    """A run of the incident, as text."""

    leaf: str
    behavior: bool | None
    text: str


@dataclass(frozen=True)
class RunSamples(Result):
    """Runs that did it next to runs that did not."""

    runs: tuple[SampledRun, ...]

    def sections(self) -> Iterable[Section]:
        """The transcripts."""
        yield Section.of("", "" if self.runs else "no graded run of the incident yet: `ramify forensics run`")
        for run in self.runs:
            did = "did it" if run.behavior else "did not"
            yield Section.of(f"=== {did}, ends at {run.leaf[:12]}", Verbatim(run.text))


@app.verb()
def read(
    folder: Folder,
    sample: Annotated[int, option(min=1, help="Runs of each side.")] = 3,
) -> RunSamples:
    """Print transcripts of runs that did it next to runs that did not."""
    with Case(folder) as case:
        return RunSamples(_sample(case, sample))


def _sample(case: Case, most: int) -> tuple[SampledRun, ...]:
    """Runs of the incident that did it, then runs that did not, at the most so many of either."""
    runs = list(case.played("baseline").values())
    picked = [run for did in (True, False) for run in [run for run in runs if run.behavior is did][:most]]
    return tuple(SampledRun(run.leaf, run.behavior, transcript(case.messages_of(run))) for run in picked)


@app.verb(keeps=RUN)
def vary(
    folder: Folder,
    field: Annotated[str, argument(help="A field of numbers.")],
    values: Annotated[str, option(help="Doses, 0,50,100; default: the field's values.")] = "",
    n: N = None,
) -> CaseTests:
    """Dose-response: the trend of the rate over one field, and the dose at which it reaches 1 and 5 percent."""
    return CaseTests.of(_working(folder, lambda case: [case.vary(field, _numbers(values), n)]))


@app.verb(keeps=RUN)
def counterfactual(
    folder: Folder,
    variants: Annotated[list[str] | None, argument(help="Variants of the case; all by default.")] = None,
    n: N = None,
) -> CaseTests:
    """Change one declared field (or a declared stack) and compare with the incident. Shows what the agent is shown otherwise."""
    return CaseTests.of(_working(folder, lambda case: case.counterfactual(variants or (), n)))


@app.verb(keeps=RUN)
def forbid(
    folder: Folder,
    name: Annotated[str, argument(help="A name for the class.")],
    what: Annotated[str, argument(help="Pattern of the sentences that must not be said, or with --judge a description.")],
    judge: Judged = False,
    n: N = None,
) -> CaseTests:
    """Repeated resampling: runs in which no sentence of a class is said, against the incident."""
    return CaseTests.of(_working(folder, lambda case: [case.forbid(name, says_of(case, what, judge), n)]))


@app.verb()
def resample(
    folder: Folder,
    leaf: Leaf = "",
    turn: Annotated[int, option(min=0, help="Which reply of the run.")] = 0,
    k: Annotated[int, option(min=4, help="Forks at each position.")] = 50,
) -> ReplyScores:
    """Fork one reply at every sentence: how much each moves the rate, ranked on one half of the forks, estimated on the other."""

    return _working(folder, lambda case: case.resample(_run(case, leaf), turn, k))


@dataclass(frozen=True)
class TransplantedRates(Result):
    """Rates after the first sentences of two runs, more and more of them."""

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


@app.verb()
def transplant(
    folder: Folder,
    high: Annotated[str, argument(help="Node at which a run that did it ended.")],
    low: Annotated[str, argument(help="Node at which a run that did not ended.")],
    turn: Annotated[int, option(min=0, help="Which reply of the runs.")] = 0,
    k: Annotated[int, option(min=4, help="Forks at each position.")] = 50,
) -> TransplantedRates:
    """Continue from the first sentences of two runs, more and more of them: where do the rates diverge?"""
    sides = {"high": high, "low": low}
    found = _working(folder, lambda case: {side: case.resample(run, turn, k) for side, run in sides.items()})
    return TransplantedRates({side: one.rates for side, one in found.items()}, k)


@app.verb("ask")
def ask_(
    folder: Folder,
    name: Annotated[str, argument(help="A name for the probe.")],
    question: Annotated[str, argument(help="The question.")],
    what: Annotated[str, argument(help="Pattern of the answers to count, or with --judge a description.")],
    about: Annotated[str, option(help="third (another agent), after (the end of a run) or before (its reply --turn).")] = "third",
    leaf: Leaf = "",
    turn: Annotated[int, option(min=0, help="Reply before which the run is interrupted.")] = 0,
    n: Annotated[int, option("--n", min=1, help="Answers to sample.")] = 50,
    judge: Judged = False,
) -> AskedQuestion:
    """Ask the agent a question: in the third person, as a follow-up after a run,
    or for a note to a future self in the middle of one."""
    if about not in ("third", "after", "before"):
        raise UserError(f"--about: must be one of third, after, before, not '{about}'")

    def work(case: Case) -> AskedQuestion:
        says = says_of(case, what, judge)
        run = None if about == "third" else _run(case, leaf)
        return ask(case, name, question, says, run=run, n=n, turn=turn if about == "before" else None)

    return _working(folder, work)


What = Annotated[str, argument(help="Pattern of the texts to count, or with --judge a description.")]
ProbeName = Annotated[str, argument(metavar="NAME", help="A name for the probe.")]
Most = Annotated[int, option("--n", min=1, help="Runs of either side, at the most.")]


@app.verb("self-report", keeps=RUN)
def self_report_(
    folder: Folder,
    name: ProbeName,
    what: What,
    form: Annotated[str, option(help="review, memory, done, or the text of your own question.")] = "review",
    n: Most = 50,
    judge: Judged = False,
) -> ComparedTexts:
    """Ask for a self-report after every run: are those of a kind likelier after runs that did it than after the others?"""
    return _working(folder, lambda case: self_report(case, name, form, says_of(case, what, judge), n))


@app.verb("user-turn", keeps=RUN)
def user_turn_(folder: Folder, name: ProbeName, what: What, n: Most = 50, judge: Judged = False) -> ComparedTexts:
    """Let the model write the user's next message after every run, and compare runs that did it with the others."""
    return _working(folder, lambda case: user_turn(case, name, says_of(case, what, judge), n))


@app.verb("audit-notes", keeps=RUN)
def audit_notes_(
    folder: Folder,
    name: ProbeName,
    what: What,
    require: Annotated[str, option(help="The instruction to the agent; lines that begin with 'Note:' are read.")] = NOTE,
    n: N = None,
    judge: Judged = False,
) -> ComparedTexts:
    """Require a note with every action: does that move the rate, and what do the notes say where it did it?"""
    return _working(folder, lambda case: audit_notes(case, name, says_of(case, what, judge), n, require))


@app.verb("scale", keeps=RUN)
def scale_(
    folder: Folder,
    name: ProbeName,
    axis: Annotated[str, argument(help="The axis, in words for the case's judge.")],
    labels: Annotated[Path | None, option(help='Grades by people, JSON lines {"leaf": NODE, "grade": 1 to 5}.')] = None,
    n: Most = 50,
) -> ComparedTexts:
    """Let the case's judge grade runs from 1 to 5, calibrated by people's grades: do runs that did it get other grades?"""
    return _working(folder, lambda case: scale(case, name, axis, labels, n))


@app.verb("commitment", keeps=RUN)
def commitment_(
    folder: Folder,
    name: ProbeName,
    phrase: Annotated[str, argument(help="Words by which the agent would commit itself to it.")],
    turn: Annotated[int, option(min=0, help="Which reply of the runs.")] = 0,
    at: Annotated[str, option(help="Breaks of the reply: paragraphs or sentences.")] = "paragraphs",
    above: Annotated[float | None, option(help="Log-prob above which a run climbs; default: the median.")] = None,
    neutral: Annotated[str, option(help="The phrase that must not separate the sides.")] = NEUTRAL,
    n: Most = 50,
) -> ComparedTexts:
    """Log-prob of a commitment at the breaks of a reply: is it higher in runs that did it than in the others?"""
    return _working(folder, lambda case: commitment(case, name, phrase, turn, at, above, neutral, n))


@app.verb("reflect")
def reflect_(
    folder: Folder,
    name: ProbeName,
    sentence: Annotated[str, argument(help="The reflection, put before the reply's last sentence.")],
    leaf: Leaf = "",
    turn: Annotated[int, option(min=0, help="Which reply of the run.")] = 0,
    k: Annotated[int, option(min=4, help="Continuations of each arm.")] = 50,
    neutral: Annotated[str, option(help="The sentence it is compared with.")] = NEUTRAL,
) -> CaseTests:
    """Insert a reflection before the agent acts: the rate after it,
    compared with that after a neutral sentence. An upper bound."""
    return CaseTests.of(_working(folder, lambda case: [reflect(case, name, sentence, _run(case, leaf), turn, k, neutral)]))


@dataclass(frozen=True)
class CaseControls(Result):
    """What tests do on an agent that has the property."""

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


@app.verb("control", keeps=RUN)
def control_(
    folder: Folder,
    test: Annotated[str, argument(help="A variant of the case, or a field with doses.")],
    model: Annotated[str, option(help="An agent known to have the property.")] = "",
    instruct: Annotated[str, option(help="Or: an instruction that gives the case's own agent the property.")] = "",
    n: N = None,
    replace: Annotated[bool, option("--replace", help="Replace a control that detected the effect.")] = False,
) -> CaseControls:
    """Positive control: make a test on an agent that has the property, and keep its power. Without one a silence says nothing."""

    def made(case: Case) -> list[TestResult]:
        if test in case.config.variants:
            return case.counterfactual([test], n)
        if test in case.config.fields:
            return [case.vary(test, (), n)]
        raise UserError(
            f"the case has no variant and no field '{test}' ({nearest(test, [*case.config.variants, *case.config.fields])})"
        )

    return CaseControls(_working(folder, lambda case: control(case, made, model, instruct, replace)))


@dataclass(frozen=True)
class LoggedRates(Result):
    """The rate of a behaviour in a log, and by what was recorded."""

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


@app.verb("log")
def log_(
    log: Annotated[
        Path,
        argument(
            metavar="LOG",
            help='Folder of a run, a file of any known format (an inspect log, ...), or JSON lines: {"messages": [...], '
            '"fields": {...}}.',
        ),
    ],
    behavior: Annotated[str, option(help="What counts: regex:PATTERN, call:TOOL, outcome, grade, FILE.py:FUNCTION.")],
    by: Annotated[list[str] | None, option(help="A recorded field; may be repeated.")] = None,
    form: Form = None,
    scorer: Annotated[str | None, option(help="Scorer whose score is the outcome, where there are several.")] = None,
) -> LoggedRates:
    """Read a log: the rate of the behaviour, overall and by recorded field. For a first look: nothing was changed on purpose."""
    runs = read_log(log, find_behaviour(behavior), form, scorer, spent := Ledger())
    counts = Counts.of(run.did for run in runs)
    found = corrected(one for name in by or [] for one in by_field(runs, name))
    return LoggedRates(
        rate=Proportion.of(counts.k, counts.n),
        invalid=counts.missing,
        why=invalid(runs),
        by=tuple(found),
        verdict=moves(found, "differs", "of the log") if found else None,
        spent=spent.spent,
    )


@dataclass(frozen=True)
class ProposedHypotheses(Result):
    """Hypotheses that a model proposed: guesses to be tested."""

    hypotheses: Mapping[str, Hypothesis]

    def sections(self) -> Iterable[Section]:
        """As case.toml takes them."""
        lines: list[str] = []
        for name, one in self.hypotheses.items():
            fields = {key: value for key, value in codec.to_json(one).items() if key != "name"}
            lines += [f"[hypotheses.{name}]", *(f"{key} = {toml(value)}" for key, value in fields.items()), ""]
        yield Section.of("", Verbatim("\n".join(lines), "toml"))


@app.verb("propose")
def propose_(
    folder: Folder,
    proposer: Annotated[str, option(help="Model that reads runs and proposes: chat:MODEL@URL, hf:PATH, ...")],
    sample: Annotated[int, option(min=1, help="Runs of each side to show it.")] = 4,
) -> ProposedHypotheses:
    """Let a model propose hypotheses from transcripts; append the text it prints to case.toml.
    Without one the standard battery stands."""

    def work(case: Case) -> list[Hypothesis]:
        shown = _sample(case, sample)
        if not shown:
            raise UserError(f"there is no graded run of the incident yet: `ramify forensics run {folder}`")
        return wait_for(propose(*find_model(proposer), case.config, [(run.behavior, run.text) for run in shown]))

    return ProposedHypotheses({one.name: one for one in _working(folder, work)})


@app.verb(keeps=RUN)
def ach(folder: Folder) -> EvidenceTable:
    """The table of competing hypotheses: inconsistencies counted, shared confounds once,
    silence without a control for nothing."""
    with Case(folder) as case:
        return table_of(case.config, case.results()).report(case.config.benign, BENIGN)


@app.verb("report", keeps=RUN)
def report_(folder: Folder, out: Annotated[Path | None, option(help="Markdown file to write.")] = None) -> CaseReport:
    """Everything known of the case: rates, tests, sentences, questions, the table, what is missing, what would overturn it."""
    with Case(folder) as case:
        found = case.report()
    if out is not None:
        write_whole(out, to_document(f"Case {folder.resolve().name}", found))
    return found


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
            raise UserError(f"no run of the case ends at node {name}; `ramify forensics read` names some")
        return found
    found = next((run for run in case.played("baseline").values() if run.behavior), None)
    if found is None:
        raise UserError("no run of the incident did it yet: name one with --run, or play more")
    return found
