"""The verbs of ``ramify cliffs``. SCAN is the run that ``ramify cliffs scan`` made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import BudgetSpentError, NeedsError, RamifyError, UserError, nearest
from ramify.base.files import write_whole
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.engine.named import find_sampled
from ramify.kit import DryRun, Form, Json, Verbs, argument, option
from ramify.methods.cliffs.forks import TAKES, ReplyForks
from ramify.methods.cliffs.record import (
    begin,
    conclude,
    keep,
    left_to_scan,
    read_run,
    read_scan,
    token_texts,
)
from ramify.methods.cliffs.report import ablation_table, picture, sentence, summary
from ramify.methods.cliffs.run import (
    CONTROLS,
    ScanConfig,
    Scanned,
    ablate,
    corrected,
    cost_estimate,
    examine,
    mass_under,
    pairs,
    scan,
)
from ramify.methods.cliffs.stems import is_token_file, read_stems
from ramify.model.protocol import Sampling, eos_of
from ramify.render.potential import potential_svg, potential_text
from ramify.render.terminal import emit, progress, say, table
from ramify.rollout.problems import TokenProblem, read_problems
from ramify.rollout.token_traces import TokenTrace, read_traces
from ramify.score.judge import find_judge
from ramify.trace.connect import holds_run
from ramify.trace.db import Run

ELSEWHERE = 0.1
"""Recorded log-probs this far from those found now, in nats, are another model's or other settings'."""


class Forking(Config):
    """What every verb that forks takes."""

    model: str
    """builtin, hf:FOLDER or completions:NAME@URL?tokenizer=FOLDER"""
    verifier: str
    """exact, number, boxed, regex:PATTERN, cmd:./check.sh, FILE.py:FUNCTION or python:MODULE:FUNCTION of (text, trace), or
    another judge"""
    truncated: Literal["apart", "graded"] = "apart"
    """forks cut off by the limit of tokens: counted apart, or given to the verifier like the others"""
    seconds: float = Field(10.0, gt=0)
    """seconds the verifier may take per reply; a fork beyond that is missing, not wrong"""
    seed: int = 0
    """decides every sample"""


class ScanOptions(ScanConfig, Forking):
    """A scan, and how replies to problems are sampled."""

    BASIC = "model verifier seed n delta0 faithful budget_rollouts temperature max_tokens samples"
    temperature: float = Field(1.0, ge=0)
    """of replies sampled to --problems; forks are sampled as their stem was"""
    top_p: float = Field(1.0, gt=0, le=1)
    """of replies sampled to --problems"""
    top_k: int = Field(0, ge=0)
    """of replies sampled to --problems; 0 keeps all"""
    max_tokens: int = Field(1024, ge=1)
    """longest reply sampled to --problems"""
    samples: int = Field(1, ge=1)
    """replies sampled to each of --problems"""


class AblateOptions(Forking):
    """An ablation."""

    k: tuple[int, ...] = (1, 8, 64)
    """the k of pass@k"""
    n: int = Field(64, ge=1)
    """fresh forks of each arm"""
    controls: tuple[Literal["random", "critical", "tangent"], ...] = CONTROLS
    """positions to cut at for comparison"""
    which: Literal["first", "all"] = "first"
    """the first cliff of each wrong trace, or all of them"""


class PairOptions(Forking):
    """Pairs for training."""

    classes: tuple[Literal["deterministic", "uncertain", "sampled_off", "other"], ...] = ("uncertain", "sampled_off")
    """classes of cliffs to use"""
    candidates: int = Field(10, ge=2)
    """likeliest tokens that are tried at a cliff"""
    n: int = Field(64, ge=1)
    """fresh forks after each"""
    hard: bool = False
    """only candidates at least as good as the position before"""
    compare: str = ""
    """another model with the same tokenizer: does it step off there, too?"""


app = Verbs("cliffs", help="Find the tokens at which a chain of thought falls off, and confirm them.")
ScanPath = Annotated[Path, argument(metavar="SCAN", help="The run that `ramify cliffs scan` made.")]


def _forks(options: Forking, model: str = "") -> tuple[ReplyForks, Any]:
    """What forks, and the chat template of the model. Raises NeedsError on a chat endpoint before any request is sent."""
    judge = find_judge(options.verifier, takes=TAKES, seconds=options.seconds, what="verifier")
    found, tokenizer, template = find_sampled(model or options.model)
    eos = {*eos_of(found), *(() if template is None else template.stop_tokens)}
    return ReplyForks(found, tokenizer, judge, None, options.seed, truncated=options.truncated, eos=sorted(eos)), template


def _same_forks(source: dict[str, Any], options: Forking) -> ReplyForks:
    """What forks, with a warning where model or verifier differ from the scan's, since its cliffs are theirs."""
    forks, _ = _forks(options)
    now = forks.source()
    changed = [name for name in ("weights", "verifier", "truncated") if source.get(name) != now[name]]
    if changed:
        say(
            f"warning: the scan was made with another {' and another '.join(changed)}: with {source.get('model')} and "
            f"{source.get('verifier')}"
        )
    return forks


@app.verb("scan", settings=ScanOptions)
def scan_(
    options: ScanOptions,
    out: Annotated[Path, option(metavar="SCAN", help="Folder of the run to make; a scan that is in it already continues.")],
    traces: Annotated[
        Path | None,
        option(
            metavar="SOURCE",
            help="Replies as token ids, JSON lines; or the folder of a run, or a file that can be imported (an inspect log, "
            "...): the last reply of each attempt.",
        ),
    ] = None,
    form: Form = None,
    problems: Annotated[
        Path | None, option(metavar="FILE", help="Problems to sample replies to: id, prompt, answer a line.")
    ] = None,
    retokenise: Annotated[
        bool, option("--retokenise", help="Encode traces that hold text only; the tokens may be others.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Measure the potential of replies by forking them, and find and confirm their cliffs.

    The same command again continues an interrupted scan. Exit code 3 when --budget-rollouts ended it.
    """
    if (traces is None) == (problems is None):
        raise UserError("name either --traces or --problems")
    config = ScanConfig(**{name: getattr(options, name) for name in ScanConfig.model_fields})
    if form is not None and traces is None:
        raise UserError("--from is the format of --traces")
    own = traces is not None and is_token_file(traces, form)
    stems = read_traces(traces) if traces is not None and own and not retokenise else []  # before a model is loaded
    forks, template = _forks(options)
    questions: list[TokenProblem] = []
    if problems is not None:
        stops = () if template is None else template.stop_tokens
        forks.sampling = Sampling(options.temperature, options.top_p, options.top_k, options.max_tokens, tuple(stops))
        questions = read_problems(problems, template)
    elif traces is not None and not stems:
        stems = _retold(traces, form, own, forks, template, options, retokenise)
    if dry_run and not holds_run(out):
        _cost_estimate(stems or _sample(forks, questions, options, {}, as_json), forks, config, as_json)
        return
    named = {"model": options.model, "judge": options.verifier, "seconds": options.seconds}
    with begin(out, config, forks.source(), named, dry_run) as run:
        done = {one.trace.id: one for one in read_run(run)[2]}
        stems = left_to_scan(run, done, stems if traces is not None else _sample(forks, questions, options, done, as_json))
        if dry_run:
            _cost_estimate(stems, forks, config, as_json)
        else:
            _scan(run, out, stems, done, forks, config, as_json)


def _cost_estimate(stems: Sequence[TokenTrace], forks: ReplyForks, config: ScanConfig, as_json: bool) -> None:
    planned = wait_for(cost_estimate(stems, forks, config))
    emit({"config": config.to_json(), "bill": planned}, as_json, table(["cost estimate", ""], list(planned.items())))


def _scan(
    run: Run, out: Path, stems: list[TokenTrace], done: dict[str, Scanned], forks: ReplyForks, config: ScanConfig, as_json: bool
) -> None:
    """Scan ``stems``, except those already ``done``, and report what was found.
    Raises BudgetSpentError where the budget ended it."""
    if config.budget_rollouts is not None:
        config = config.model_copy(
            update={"budget_rollouts": max(1, config.budget_rollouts - sum(s.forks for s in done.values()))}
        )

    def on_trace(one: Scanned) -> None:
        keep(run, one, config, forks.tokenizer)
        done[one.trace.id] = one
        bar.at(len(done), f"{sum(len(s.kept) for s in corrected(list(done.values()), config))} cliffs")

    kept, total = lambda: f"{out} holds {plural(len(done), 'trace')}: the same command continues", len(done) + len(stems)
    with progress("scan", total, "traces", as_json, len(done), kept) as bar:
        stems = wait_for(forks.judged(stems))
        result = wait_for(scan(stems, forks, config, on_trace))
        scanned = corrected(list(done.values()), config)
        if scanned:
            conclude(run, scanned, config)
    outcome = {"left": len(result.left), "failed": result.failed, "spent": result.spent, "out": str(out)}
    report = summary(scanned, config) | outcome
    emit(report, as_json, _report(report))
    for name, why in result.failed.items():
        say(f"warning: trace '{name}' was not scanned: {why}")
    if result.failed and not result.scanned:
        raise RamifyError("no trace was scanned")
    _warn(report, config, "seeds" in forks.model.capabilities)
    if result.left:
        raise BudgetSpentError(
            f"--budget-rollouts is spent, {plural(len(result.left), 'trace')} not scanned: raise it to continue"
        )


def _warn(report: dict[str, Any], config: ScanConfig, repeats: bool) -> None:
    """Say what a reader of the report has to know; ``repeats``: whether the model repeats a sample for its seed."""
    if report["truncated"] and config.screen == "prob" and not config.faithful:
        say(
            "warning: some forks were truncated; the screen is exact for the chance to end, and right, not for that of the ones "
            "that end"
        )
    if not repeats:
        say("warning: the model does not repeat a sample for its seed, so the same command may find other counts")
    if report["gap"] > ELSEWHERE:
        say(
            f"warning: log-probs of the traces are up to {report['gap']:.2g} nats from the model's: another model or other "
            "settings sampled them"
        )
    for name, what, check in (
        ("none", "no fork of the bare prompt ends right", "the prompt is rendered with the model's chat template, and that the "
                                                          "verifier accepts a right reply"),
        ("all", "every fork of the bare prompt ends right", "the verifier refuses a wrong reply"),
    ):  # fmt: skip
        if report["solved"][name]:
            say(
                f"warning: V_0 is {'01'[name == 'all']} for {report['solved'][name]} of {report['traces']} traces, {what}: "
                f"check that {check}"
            )


def _retold(
    traces: Path, form: str | None, own: bool, forks: ReplyForks, template: Any, options: ScanOptions, retokenise: bool
) -> list[TokenTrace]:
    """Stems of a run or log, or of texts; says what was left out of it, and where texts were encoded."""
    assert forks.tokenizer is not None
    if own:
        stems = read_traces(traces, forks.tokenizer, template)
    else:
        sampling = Sampling(options.temperature, options.top_p, options.top_k, options.max_tokens)
        stems, left_out = read_stems(traces, form, forks.tokenizer, template, sampling, retokenise)
        for why, count in Counter(left_out.values()).most_common(3):
            say(f"warning: {count} of {len(stems) + len(left_out)} attempts are left out: {why}")
    if retokenise:
        say("warning: texts were encoded anew; where the model had sampled other tokens, what is found at them is not its own")
    return stems


def _sample(
    forks: ReplyForks, questions: Sequence[TokenProblem], options: ScanOptions, known: Container[str], as_json: bool
) -> list[TokenTrace]:
    """Replies to problems but those of ``known`` ids."""
    with progress("scan", as_json=as_json, kept="nothing was written") as bar:
        sampled = wait_for(forks.sample(questions, options.samples, known, bar))
    if not sampled and forks.first_failure:
        raise RamifyError(f"no reply could be sampled: {forks.first_failure}")
    return sampled


def _report(report: dict[str, Any]) -> str:
    sides = []
    for name in ("wrong", "right"):
        side, (low, high) = report[name], report[name]["interval"]
        sides.append([name, side["traces"], side["with_cliff"], f"[{low:.0%}, {high:.0%}]", side["cliffs_per_trace"]])
    text = f"{report['verdict']}\n\n" + table(["ended", "traces", "with a cliff", "95 % interval", "cliffs a trace"], sides)
    classes = [list(row.values()) for row in report["classes"] if row["found"]]
    if classes:
        text += "\n\n" + table(["class", "found", "confirmed", "refuted", "suspect", "drop found", "fresh drop"], classes)
    spent = report["spent"]
    text += (
        f"\n\n{report['tested']} of {report['tokens']} tokens tested; {plural(report['forks'], 'fork')} "
        f"({report['share_of_forks'] or 0:.0%} of every "
        f"position with all forks), {plural(spent['forward_tokens'], 'token')} run. {plural(report['truncated'], 'fork')} "
        f"truncated, {report['missing']} without "
        f"a verdict{': ' + spent['first_failure'] if spent['first_failure'] else ''}.\nLook at one with `ramify cliffs show "
        f"{report['out']} TRACE`."
    )
    return text + (
        f"\n{plural(report['unjudged'], 'trace')} got no verdict: neither wrong nor right." if report["unjudged"] else ""
    )


@app.verb("ablate", settings=AblateOptions)
def ablate_(options: AblateOptions, path: ScanPath, as_json: Json = False) -> None:
    """Resample wrong replies from before and from after their cliffs, with controls: pass@k of fresh forks."""
    _, source, scanned = read_scan(path)
    if not options.k or min(options.k) < 1 or max(options.k) > options.n:
        raise UserError(f"--k takes numbers from 1 to --n ({options.n}), not {','.join(map(str, options.k)) or 'none'}")
    forks = _same_forks(source, options)
    ks, which = options.k, options.which
    with progress("ablate", as_json=as_json, kept="nothing was written") as bar:
        records = wait_for(ablate(scanned, forks, options.n, options.controls, which, progress=bar))
    found = ablation_table(records, ks) | {"which": which, "n": options.n, "spent": forks.spent(), "records": records}
    if not records:
        emit(found, as_json, "No wrong trace of this scan has a cliff.")
        return
    rows = [[row["arm"], row["undefined"], *(row[f"pass@{one}"] for one in ks)] for row in found["arms"]]
    text = table(["arm", "undefined (scores 0)", *(f"pass@{one}" for one in ks)], rows)
    short = {k: n for k, n in found["short"].items() if n}
    left = "".join(f"pass@{k}: {plural(n, 'cliff')} with fewer graded forks, counted with those.\n" for k, n in short.items())
    left += f"Left out: {plural(found['left_out'], 'cliff')} without a graded fork in some arm.\n" if found["left_out"] else ""
    low, high = found["gap_interval"] or (float("nan"), float("nan"))
    gap = "" if found["gap"] is None else f"del - keep at k = 1: {found['gap']:.3f} [{low:.3f}, {high:.3f}], "
    emit(
        found,
        as_json,
        f"{text}\n\n{left}{gap}{plural(found['cliffs'], 'cliff')} ({which} of each wrong trace), "
        f"{plural(found['spent']['forward_tokens'], 'token')} run.",
    )


@app.verb("pairs", settings=PairOptions)
def pairs_(
    options: PairOptions,
    path: ScanPath,
    out: Annotated[Path, option(metavar="FILE", help="JSON lines to write.")],
    as_json: Json = False,
) -> None:
    """Pairs of single tokens for preference training: the cliff token, and each likely token that is no cliff there."""
    config, source, scanned = read_scan(path)
    forks = _same_forks(source, options)
    other = _forks(options, options.compare)[0] if options.compare else None
    if other is not None and other.tokenizer.hash != forks.tokenizer.hash:
        raise NeedsError(f"'{options.compare}' has another tokenizer than '{options.model}': their tokens cannot be compared")
    top, compare = options.candidates, options.compare

    async def work() -> tuple[list[Any], list[dict[str, Any]]]:
        found = await examine(scanned, forks, config.test, top, options.n, options.classes)
        return found, [] if other is None else await mass_under(found, other)

    examined, masses = wait_for(work())
    rows = pairs(examined, options.hard)
    write_whole(out, "".join(json.dumps(row) + "\n" for row in rows))
    found = {"out": str(out), "cliffs": len(examined), "pairs": len(rows), "masses": masses, "spent": forks.spent()}
    left_out = sum(len(one.kept) for one in scanned) - len(examined)
    text = (
        f"{out} holds {plural(len(rows), 'pair')} of {plural(len(examined), 'cliff')} ({left_out} of other classes, or of "
        f"several tokens, left out); {plural(forks.spent()['forward_tokens'], 'token')} run."
    )
    if masses:
        text += "\n\n" + table(
            ["trace", "token", "cliff mass", f"under {compare}", "difference"], [list(m.values()) for m in masses]
        )
    emit(found, as_json, text)


@app.verb()
def show(
    path: ScanPath,
    trace: Annotated[str, argument(metavar="TRACE", help="Id of a trace; without one they are listed.")] = "",
    tokenizer: Annotated[str, option(metavar="MODEL", help="Whose tokenizer reads the tokens: builtin or hf:FOLDER.")] = "",
    svg: Annotated[Path | None, option(help="Write the picture to this file.")] = None,
    width: Annotated[int, option(min=20, help="Letters in a line.")] = 100,
    as_json: Json = False,
) -> None:
    """The potential over the text of a reply, with intervals, cliffs and rebounds; without TRACE a list of the traces."""
    config, _, scanned = read_scan(path)
    if not trace:
        columns = ["trace", "right", "tokens", "cliffs", "found", "forks"]
        rows = [[s.trace.id, s.trace.correct, s.trace.length, len(s.kept), len(s.cliffs), s.forks] for s in scanned]
        listed = [dict(zip(columns, row, strict=True)) for row in rows]
        verdict = sentence(scanned, config)
        emit({"verdict": verdict, "traces": listed}, as_json, f"{table(columns, rows)}\n\n{verdict}")
        return
    known = {one.trace.id: one for one in scanned}
    if trace not in known:
        raise UserError(f"{path} has no trace '{trace}' ({nearest(trace, known)})")
    one = known[trace]
    shown = picture(one, token_texts(path, trace))
    if svg is not None:
        write_whole(svg, potential_svg(shown))
    rows = [
        [
            c.t,
            shown.tokens[c.t - 1],
            (c.facts.kind or "-"),
            c.facts.pi,
            f"{c.prev.k}/{c.prev.n}",
            f"{c.cur.k}/{c.cur.n}",
            c.drop,
            c.fresh_drop,
            c.status + (", suspect" if c.suspect else ""),
        ]
        for c in one.cliffs
    ]
    columns = ["token", "text", "class", "probability", "before", "behind", "drop", "fresh drop", "status"]
    text = f"{shown.title}\n\n{potential_text(shown, width)}\n\n" + (table(columns, rows) if rows else "No token is a candidate.")
    written = {"svg": None if svg is None else str(svg)}
    listed = [dict(zip(columns, row, strict=True)) for row in rows]
    record = {"trace": trace, "verdict": sentence([one], config), "right": one.trace.correct, **written, "cliffs": listed}
    emit(record, as_json, text)
