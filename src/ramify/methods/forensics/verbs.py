"""The verbs of ``ramify forensics``. CASEDIR is a folder with a case.toml; runs and results are kept in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.kit import Form, Json, Verbs, argument, option
from ramify.methods.forensics.ach import BENIGN
from ramify.methods.forensics.case import FILE, CaseConfig, check_case, check_components, load_case, skeleton, toml
from ramify.methods.forensics.experiment import ALPHA, TestResult, corrected
from ramify.methods.forensics.hypotheses import NOTHING, Hypothesis
from ramify.methods.forensics.judges import find_behaviour, transcript
from ramify.methods.forensics.logs import by_field, invalid, read_log
from ramify.methods.forensics.prefill import NEUTRAL, commitment, reflect
from ramify.methods.forensics.probes import ask, control, says_of
from ramify.methods.forensics.report import (
    ach_text,
    as_text,
    baseline_text,
    design,
    propose,
    sentences_text,
    table_of,
    tests_text,
    words_text,
)
from ramify.methods.forensics.run import Case
from ramify.methods.forensics.study import Played
from ramify.methods.forensics.words import NOTE, audit_notes, scale, self_report, user_turn
from ramify.render.terminal import emit, progress, say, table
from ramify.rollout.components import find_environment, find_model
from ramify.stats.drops import Counts
from ramify.stats.intervals import proportion

app = Verbs("forensics", help="Find out why an agent did something, one change at a time.")
Folder = Annotated[Path, argument(metavar="CASEDIR", help="Folder of the case.")]
N = Annotated[int | None, option("--n", min=1, help="Runs of each cell; default: the case's.")]
Judged = Annotated[bool, option("--judge", help="WHAT is a description for the case's judge, not a pattern.")]
Leaf = Annotated[str, option("--run", metavar="NODE", help="A run by the node it ended at; default: the first that did it.")]


def _working(folder: Path, as_json: bool, work: Callable[[Case], Any]) -> Any:
    """``work`` on the open case, under a progress bar."""
    kept = f"what was played is kept in {folder}: the same command continues"
    with progress(folder.name, unit="runs", as_json=as_json, kept=kept) as bar, Case(folder) as case:
        case.progress = bar
        found = work(case)
    if case.ledger.total("calls"):
        say(f"spent on {case.ledger}")
    return found


@app.verb()
def init(
    folder: Folder,
    env: Annotated[str, option(help="Environment: NAME, NAME:ARGUMENT or FILE.py:ATTRIBUTE.")],
    model: Annotated[str, option(help="The agent: builtin, hf:PATH, chat:MODEL@URL, FILE.py:FUNCTION, ...")] = "builtin",
    behavior: Annotated[
        str, option(help="What counts: grade, outcome, regex:PATTERN, call:TOOL, judge:WHAT, FILE.py:FUNCTION.")
    ] = "grade",
    as_json: Json = False,
) -> None:
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
    say_next = f"wrote {folder / FILE}: say what each field stands for, then `ramify forensics plan {folder}`"
    emit({"case": str(folder / FILE)}, as_json, say_next)


@app.verb()
def plan(
    folder: Folder,
    n: N = None,
    k: Annotated[int, option(min=4, help="Forks at each sentence.")] = 50,
    as_json: Json = False,
) -> None:
    """What the design can find, before it is paid for: runs and power of every test."""
    config = load_case(folder)
    check_components(config)
    rows = design(config, n or 0, k)
    cells = [[r["test"], r["runs"], f"{r['power']:.2f}", r["n_for_80"] or "", r["finds"]] for r in rows]
    text = table(["test", "runs", "power", "runs a cell for 0.80", ""], cells)
    text += (
        f"\n\nFor a rate of {config.expect:g} that becomes {config.instead:g}, all tests of the case at one level of {ALPHA:g}; "
        "the baseline's "
        f"{plural(n or config.n, 'run')} on top of that."
    )
    emit({"tests": rows, "expect": config.expect, "instead": config.instead}, as_json, text)


@app.verb()
def run(folder: Folder, n: N = None, as_json: Json = False) -> None:
    """Play the incident again and again: the rate, invalid runs, and runs that speak of a test, apart."""
    found = _working(folder, as_json, lambda case: case.baseline(n))
    emit(found, as_json, "\n\n".join(["# A case", *baseline_text(found), ""]))


@app.verb()
def read(
    folder: Folder,
    sample: Annotated[int, option(min=1, help="Runs of each side.")] = 3,
    as_json: Json = False,
) -> None:
    """Print transcripts of runs that did it next to runs that did not."""
    found = _working(folder, True, lambda case: _sample(case, sample))
    text = "\n\n".join(f"=== {'did it' if r['behavior'] else 'did not'}, ends at {r['leaf'][:12]}\n{r['text']}" for r in found)
    emit({"runs": found}, as_json, text or "no graded run of the incident yet: `ramify forensics run`")


def _sample(case: Case, most: int) -> list[dict[str, Any]]:
    """Runs of the incident that did it, then runs that did not, at the most so many of either."""
    runs = list(case.played("baseline").values())
    picked = [run for did in (True, False) for run in [run for run in runs if run.behavior is did][:most]]
    return [{"leaf": run.leaf, "behavior": run.behavior, "text": transcript(case.messages_of(run))} for run in picked]


@app.verb()
def vary(
    folder: Folder,
    field: Annotated[str, argument(help="A field of numbers.")],
    values: Annotated[str, option(help="Doses, 0,50,100; default: the field's values.")] = "",
    n: N = None,
    as_json: Json = False,
) -> None:
    """Dose-response: the trend of the rate over one field, and the dose at which it reaches 1 and 5 percent."""
    found = _working(folder, as_json, lambda case: [case.vary(field, _numbers(values), n)])
    _tested(found, as_json)


@app.verb()
def counterfactual(
    folder: Folder,
    variants: Annotated[list[str] | None, argument(help="Variants of the case; all by default.")] = None,
    n: N = None,
    as_json: Json = False,
) -> None:
    """Change one declared field (or a declared stack) and compare with the incident. Shows what the agent is shown otherwise."""
    found = _working(folder, as_json, lambda case: case.counterfactual(variants or (), n))
    _tested(found, as_json)


@app.verb()
def forbid(
    folder: Folder,
    name: Annotated[str, argument(help="A name for the class.")],
    what: Annotated[str, argument(help="Pattern of the sentences that must not be said, or with --judge a description.")],
    judge: Judged = False,
    n: N = None,
    as_json: Json = False,
) -> None:
    """Repeated resampling: runs in which no sentence of a class is said, against the incident."""
    _tested(_working(folder, as_json, lambda case: [case.forbid(name, says_of(case, what, judge), n)]), as_json)


def _tested(found: list[TestResult], as_json: bool) -> None:
    results, verdict = [r.to_json() for r in found], _verdict(found, "moved", "of the case so far")
    diffs = [f"{r.name}:\n{r.detail['change']['diff']}" for r in found if r.detail.get("change")]
    emit({"tests": results, "verdict": verdict}, as_json, "\n\n".join([*tests_text(results), f"{verdict}.", *diffs]))


def _verdict(found: Sequence[TestResult], what: str, where: str) -> str:
    """The tests that moved, or that none did, and over how many they are corrected."""
    moved, looks = [r.name for r in found if r.fired], found[0].detail["looks"]
    over = f"corrected over the {looks} tests {where}" if looks > 1 else f"the only test {where}"
    sentence = f"{what}: {'; '.join(moved)}" if moved else f"{NOTHING}: no rate {what}"
    return f"{sentence} (p < {ALPHA:g}, {over})"


@app.verb()
def resample(
    folder: Folder,
    leaf: Leaf = "",
    turn: Annotated[int, option(min=0, help="Which reply of the run.")] = 0,
    k: Annotated[int, option(min=4, help="Forks at each position.")] = 50,
    as_json: Json = False,
) -> None:
    """Fork one reply at every sentence: how much each moves the rate, ranked on one half of the forks, estimated on the other."""

    found = _working(folder, as_json, lambda case: case.resample(_run(case, leaf), turn, k))
    rows = [
        [s["sentence"][:70], f"{r:.2f}", f"{s['score']:+.2f}", f"{s['sd']:.2f}", f"{s['held_out']:+.2f}", f"{s['p']:.2g}"]
        for s, r in zip(found["sentences"], found["rates"][1:], strict=True)
    ]
    text = table(["sentence", "rate after it", "score", "sd", "held-out", "p, corrected"], rows)
    verdict = sentences_text(found)
    emit(
        found | {"verdict": verdict}, as_json, f"rate before the first sentence: {found['rates'][0]:.2f}\n\n{text}\n\n{verdict}."
    )


@app.verb()
def transplant(
    folder: Folder,
    high: Annotated[str, argument(help="Node at which a run that did it ended.")],
    low: Annotated[str, argument(help="Node at which a run that did not ended.")],
    turn: Annotated[int, option(min=0, help="Which reply of the runs.")] = 0,
    k: Annotated[int, option(min=4, help="Forks at each position.")] = 50,
    as_json: Json = False,
) -> None:
    """Continue from the first sentences of two runs, more and more of them: where do the rates diverge?"""
    sides = {"high": high, "low": low}
    found = _working(folder, as_json, lambda case: {side: case.resample(run, turn, k) for side, run in sides.items()})
    rates = {side: one["rates"] for side, one in found.items()}
    pairs = itertools.zip_longest(*([f"{rate:.2f}" for rate in side] for side in rates.values()), fillvalue="")
    rows = [[kept, *pair] for kept, pair in enumerate(pairs)]
    emit({"rates": rates, "k": k}, as_json, table(["sentences kept", "rate, did it", "rate, did not"], rows))


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
    as_json: Json = False,
) -> None:
    """Ask the agent a question: in the third person, as a follow-up after a run,
    or for a note to a future self in the middle of one."""
    if about not in ("third", "after", "before"):
        raise UserError(f"--about: must be one of third, after, before, not '{about}'")

    def work(case: Case) -> dict[str, Any]:
        says = says_of(case, what, judge)
        run = None if about == "third" else _run(case, leaf)
        return ask(case, name, question, says, run=run, n=n, turn=turn if about == "before" else None)

    found = _working(folder, as_json, work)
    rate = found["rate"]
    text = (
        f"{rate['k']} of {rate['n']} answers [{rate['interval'][0]:.1%}, {rate['interval'][1]:.1%}]; the "
        f"first:\n{found['examples'][0]}"
    )
    emit(found, as_json, text)


What = Annotated[str, argument(help="Pattern of the texts to count, or with --judge a description.")]
ProbeName = Annotated[str, argument(metavar="NAME", help="A name for the probe.")]
Most = Annotated[int, option("--n", min=1, help="Runs of either side, at the most.")]


@app.verb("self-report")
def self_report_(
    folder: Folder,
    name: ProbeName,
    what: What,
    form: Annotated[str, option(help="review, memory, done, or the text of your own question.")] = "review",
    n: Most = 50,
    judge: Judged = False,
    as_json: Json = False,
) -> None:
    """Ask for a self-report after every run: are those of a kind likelier after runs that did it than after the others?"""
    _emit_comparison(
        _working(folder, as_json, lambda case: self_report(case, name, form, says_of(case, what, judge), n)), as_json
    )


@app.verb("user-turn")
def user_turn_(folder: Folder, name: ProbeName, what: What, n: Most = 50, judge: Judged = False, as_json: Json = False) -> None:
    """Let the model write the user's next message after every run, and compare runs that did it with the others."""
    _emit_comparison(_working(folder, as_json, lambda case: user_turn(case, name, says_of(case, what, judge), n)), as_json)


@app.verb("audit-notes")
def audit_notes_(
    folder: Folder,
    name: ProbeName,
    what: What,
    require: Annotated[str, option(help="The instruction to the agent; lines that begin with 'Note:' are read.")] = NOTE,
    n: N = None,
    judge: Judged = False,
    as_json: Json = False,
) -> None:
    """Require a note with every action: does that move the rate, and what do the notes say where it did it?"""
    _emit_comparison(
        _working(folder, as_json, lambda case: audit_notes(case, name, says_of(case, what, judge), n, require)), as_json
    )


@app.verb("scale")
def scale_(
    folder: Folder,
    name: ProbeName,
    axis: Annotated[str, argument(help="The axis, in words for the case's judge.")],
    labels: Annotated[Path | None, option(help='Grades by people, JSON lines {"leaf": NODE, "grade": 1 to 5}.')] = None,
    n: Most = 50,
    as_json: Json = False,
) -> None:
    """Let the case's judge grade runs from 1 to 5, calibrated by people's grades: do runs that did it get other grades?"""
    _emit_comparison(_working(folder, as_json, lambda case: scale(case, name, axis, labels, n)), as_json)


@app.verb("commitment")
def commitment_(
    folder: Folder,
    name: ProbeName,
    phrase: Annotated[str, argument(help="Words by which the agent would commit itself to it.")],
    turn: Annotated[int, option(min=0, help="Which reply of the runs.")] = 0,
    at: Annotated[str, option(help="Breaks of the reply: paragraphs or sentences.")] = "paragraphs",
    above: Annotated[float | None, option(help="Log-prob above which a run climbs; default: the median.")] = None,
    neutral: Annotated[str, option(help="The phrase that must not separate the sides.")] = NEUTRAL,
    n: Most = 50,
    as_json: Json = False,
) -> None:
    """Log-prob of a commitment at the breaks of a reply: is it higher in runs that did it than in the others?"""
    _emit_comparison(_working(folder, as_json, lambda case: commitment(case, name, phrase, turn, at, above, neutral, n)), as_json)


@app.verb("reflect")
def reflect_(
    folder: Folder,
    name: ProbeName,
    sentence: Annotated[str, argument(help="The reflection, put before the reply's last sentence.")],
    leaf: Leaf = "",
    turn: Annotated[int, option(min=0, help="Which reply of the run.")] = 0,
    k: Annotated[int, option(min=4, help="Continuations of each arm.")] = 50,
    neutral: Annotated[str, option(help="The sentence it is compared with.")] = NEUTRAL,
    as_json: Json = False,
) -> None:
    """Insert a reflection before the agent acts: the rate after it,
    compared with that after a neutral sentence. An upper bound."""
    _tested(_working(folder, as_json, lambda case: [reflect(case, name, sentence, _run(case, leaf), turn, k, neutral)]), as_json)


def _emit_comparison(found: dict[str, Any], as_json: bool) -> None:
    emit(found, as_json, "\n\n".join(words_text([found])))


@app.verb("control")
def control_(
    folder: Folder,
    test: Annotated[str, argument(help="A variant of the case, or a field with doses.")],
    model: Annotated[str, option(help="An agent known to have the property.")] = "",
    instruct: Annotated[str, option(help="Or: an instruction that gives the case's own agent the property.")] = "",
    n: N = None,
    replace: Annotated[bool, option("--replace", help="Replace a control that detected the effect.")] = False,
    as_json: Json = False,
) -> None:
    """Positive control: make a test on an agent that has the property, and keep its power. Without one a silence says nothing."""

    def made(case: Case) -> list[TestResult]:
        if test in case.config.variants:
            return case.counterfactual([test], n)
        if test in case.config.fields:
            return [case.vary(test, (), n)]
        raise UserError(
            f"the case has no variant and no field '{test}' ({nearest(test, [*case.config.variants, *case.config.fields])})"
        )

    found = _working(folder, as_json, lambda case: control(case, made, model, instruct, replace))
    rows = [
        [name, "yes" if one.fired else "no", f"{one.power:.2f}", f"{one.false_alarm:g}", one.n, one.source]
        for name, one in found.items()
    ]
    record = {name: {"fired": one.fired, "power": one.power, "n": one.n, "source": one.source} for name, one in found.items()}
    text = table(["test", "fired", "power, at least", "false alarms", "runs", "agent"], rows)
    if quiet := [name for name, one in found.items() if not one.fired]:
        text += (
            f"\n\nNothing stands out on an agent that is said to have the property: a silence of {', '.join(quiet)} stays "
            "uninterpretable."
        )
    emit(record, as_json, text)


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
    as_json: Json = False,
) -> None:
    """Read a log: the rate of the behaviour, overall and by recorded field. For a first look: nothing was changed on purpose."""
    runs = read_log(log, find_behaviour(behavior), form, scorer, spent := Ledger())
    counts = Counts.of(run.did for run in runs)
    found = corrected(one for name in by or [] for one in by_field(runs, name))
    verdict = _verdict(found, "differs", "of the log") if found else None
    rate = proportion(counts.k, counts.n)
    text = f"rate {'of nothing' if rate is None else f'{counts.k}/{counts.n} = {counts.rate:.1%}'}, {counts.missing} invalid"
    why = invalid(runs)
    text += "".join(f"\n  {count} x {reason}" for reason, count in list(why.items())[:5])
    if found:
        rows = [[r.name, f"{100 * r.value:+.1f}", f"{r.p:.2g}"] for r in found]
        text += "\n\n" + table(["observed, not changed", "points", "p, corrected"], rows)
        text += f"\n\n{verdict}."
    emit(
        {
            "rate": rate,
            "invalid": counts.missing,
            "why": why,
            "by": [r.to_json() for r in found],
            "verdict": verdict,
            "spent": spent.to_json()["spent"],
        },
        as_json,
        text,
    )


@app.verb("propose")
def propose_(
    folder: Folder,
    proposer: Annotated[str, option(help="Model that reads runs and proposes: chat:MODEL@URL, hf:PATH, ...")],
    sample: Annotated[int, option(min=1, help="Runs of each side to show it.")] = 4,
    as_json: Json = False,
) -> None:
    """Let a model propose hypotheses from transcripts; append the text it prints to case.toml.
    Without one the standard battery stands."""

    def work(case: Case) -> list[Hypothesis]:
        shown = _sample(case, sample)
        if not shown:
            raise UserError(f"there is no graded run of the incident yet: `ramify forensics run {folder}`")
        return wait_for(propose(*find_model(proposer), case.config, [(run["behavior"], run["text"]) for run in shown]))

    found: list[Hypothesis] = _working(folder, as_json, work)
    record = {h.name: {key: value for key, value in asdict(h).items() if key != "name"} for h in found}
    tables = ["\n".join([f"[hypotheses.{name}]", *(f"{key} = {toml(h[key])}" for key in h), ""]) for name, h in record.items()]
    emit({"hypotheses": record}, as_json, "\n".join(tables))


@app.verb()
def ach(folder: Folder, as_json: Json = False) -> None:
    """The table of competing hypotheses: inconsistencies counted, shared confounds once,
    silence without a control for nothing."""
    found = _working(folder, True, lambda case: table_of(case.config, case.results()).report(case.config.benign, BENIGN))
    emit(found, as_json, "\n\n".join(ach_text(found)))


@app.verb("report")
def report_(
    folder: Folder, out: Annotated[Path | None, option(help="Markdown file to write.")] = None, as_json: Json = False
) -> None:
    """Everything known of the case: rates, tests, sentences, questions, the table, what is missing, what would overturn it."""

    found = _working(folder, True, lambda case: case.report())
    text = as_text(found)
    if out is not None:
        write_whole(out, text)
    emit(found, as_json, text)


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
