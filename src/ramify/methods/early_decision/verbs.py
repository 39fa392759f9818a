"""The verbs of ``ramify early-decision``. RUN is a folder that ``ramify early-decision run`` made;
every stage continues where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import RamifyError, UserError, nearest
from ramify.base.files import write_whole
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.engine.named import find_model, find_sampled
from ramify.kit import DryRun, Json, Trust, Verbs, argument, option
from ramify.methods import early_decision
from ramify.methods.early_decision.guards import ChunkGuard, Reminder, SelfCheck
from ramify.methods.early_decision.judges import find_jury, find_stance_judge
from ramify.methods.early_decision.record import Study, StudyConfig
from ramify.methods.early_decision.report import (
    ReportConfig,
    build,
    compare,
    conclude,
    continuation_verdict,
    html,
    oscillation_verdict,
    probe_verdict,
    valley_verdict,
)
from ramify.methods.early_decision.run import (
    ContinueConfig,
    OscillateConfig,
    adopt,
    continuations,
    oscillations,
    rollout,
)
from ramify.methods.early_decision.thinking import Marks, Thinking, split_text
from ramify.model.protocol import Sampling
from ramify.render.terminal import emit, progress, say
from ramify.render.text import table
from ramify.rollout.components import check_trust
from ramify.rollout.sampler import Sampler
from ramify.rollout.token_traces import read_problems
from ramify.score.judge import Jury
from ramify.trace.connect import holds_run
from ramify.trace.lines import at_place, field, read_lines

app = Verbs("early-decision", help="When in a thinking trace was the outcome decided, and does the rest matter?")
RunPath = Annotated[Path, argument(metavar="RUN", help="A folder that `ramify early-decision run` made.")]


def _sampler(config: StudyConfig) -> tuple[Sampler, Thinking, Any]:
    """What samples, how it thinks, and the model's chat template.
    Raises NeedsError on a chat endpoint before any request is sent."""
    model, tokenizer, template = find_sampled(config.model)
    sampling = Sampling(config.temperature, config.top_p, config.top_k, config.think_tokens)
    stops = () if template is None else tuple(template.stop_tokens)
    answering = Sampling(config.temperature, config.top_p, config.top_k, config.answer_tokens, stops)
    marks = Marks.of(tokenizer, config.open, config.close, config.primer)
    guard: ChunkGuard | None = None
    if config.guard != "none":
        guard = Reminder(tokenizer, marks, config.reminder) if config.guard == "reminder" else SelfCheck(tokenizer)
    thinking = Thinking(model, tokenizer, marks, sampling, answering, force=config.force)
    return Sampler(model, config.seed, policy=guard), thinking, template


def _opened(path: Path, ties: bool = False, trust: bool = False) -> tuple[Study, Sampler, Thinking, Jury]:
    """The study, open for writing, and what its settings name.
    Those of a foreign run are a third party's words (see ``--trust``)."""
    with Study.open(path) as study:
        config, source = study.config, study.source
        check_trust(study.run, trust)
    sampler, thinking, _ = _sampler(config)
    if source.get("weights") != sampler.identity.weights:
        raise UserError(f"the traces of {path} are of other weights than '{config.model}' has now")
    jury = _jury(config, ties)
    return Study.open(path, write=True), sampler, thinking, jury


def _jury(config: StudyConfig, ties: bool = False) -> Jury:
    if not config.label:
        raise UserError("--label names who judges the answer: regex:PATTERN, FILE.py:FUNCTION or judge:MODEL")
    return find_jury(config.label, find_model, ties or config.ties == "yes")


@app.verb("run", settings=StudyConfig)
def run_(
    options: StudyConfig,
    prompts: Annotated[Path, option(metavar="FILE", help="JSON lines: id, prompt or prompt_ids, pool, source, slice.")],
    out: Annotated[Path, option(metavar="RUN", help="Folder to make, or to continue with.")],
    traces: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Traces sampled elsewhere, JSON lines: prompt_id, thinking, response; or a response with its thinking tags.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Sample traces with and without thinking and label their answers. The same command continues an interrupted run."""
    jury = _jury(options)
    sampler, thinking, template = _sampler(options)
    problems = read_problems(prompts, template, ("prompt", "pool", "source", "slice"))
    given = [] if traces is None else _given(traces, {problem.id for problem in problems}, options)
    total = len(problems) * len(options.modes) * options.k
    source = {"model": sampler.identity.name, "weights": sampler.identity.weights, "voters": jury.names}
    if dry_run:  # a cost estimate decides nothing
        done = 0
        if holds_run(out):
            with Study.begin(out, options, problems, source) as known:
                done = len(known.traces)
        _show({"traces": total, "missing": total - done, "out": str(out)}, as_json)
        return
    with Study.begin(out, options, problems, source) as study:
        if given:
            wait_for(adopt(study, given, thinking.tokenizer, sampler, jury))  # type: ignore[arg-type]
        else:
            _work("run", "traces", total, out, as_json, lambda advance: rollout(study, sampler, thinking, jury, advance))
        record, there = build(study), len(study.traces)
    status = {"traces": record["traces"], "forced": record["forced"], "failed": sampler.failed, "pools": record["pools"]}
    rows = [
        [mode, pool, value["k"], value["n"], value["value"]]
        for mode, pools in record["pools"].items()
        for pool, value in pools.items()
        if isinstance(value, dict)
    ]
    counted = ", ".join(f"{n} {name}" for name, n in record["traces"].items())
    emit(
        status | _spent(sampler) | {"out": str(out)},
        as_json,
        table(["mode", "pool", "yes", "labelled", "share"], rows) + f"\n\ntraces: {counted}",
    )
    _warn(sampler, jury)
    if not there:
        raise RamifyError(f"no trace could be sampled: {sampler.first_failure or 'all voters failed'}")


def _given(path: Path, known: set[str], options: StudyConfig) -> list[dict[str, Any]]:
    """Traces sampled elsewhere; a raw reply is split at its thinking tags. Raises UserError naming file, line and field."""
    rows = []
    for number, record in read_lines(path):
        with at_place(f"{path}:{number}"):
            prompt, response = field(record, "prompt_id", str, "the trace"), field(record, "response", str, "the trace", "")
            both = split_text(response, options.open, options.close)  # None where the response is the answer alone
            thinking = field(record, "thinking", str, "the trace", *(() if both is None else ("",)))
            if both is not None:
                if thinking and both[0].strip():
                    raise UserError(
                        "the trace: 'response' holds thinking too; leave 'thinking' out, or take it out of 'response'"
                    )
                thinking, response = thinking or both[0], both[1]
            row = {"prompt": prompt, "thinking": thinking, "response": response}
            if row["prompt"] not in known:
                raise UserError(f"'prompt_id' names no prompt '{row['prompt']}' ({nearest(row['prompt'], known)})")
            rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no trace")
    return rows


@app.verb("probe", settings=lambda: early_decision.ProbeConfig)
def probe_(options: early_decision.ProbeConfig, run: RunPath, trust: Trust = False, as_json: Json = False) -> None:
    """Probe hidden states before and at the first thinking token for the outcome, compared with every control."""
    study, sampler, thinking, _ = _opened(run, trust=trust)
    with study, progress("probe", as_json=as_json, kept="nothing was written"):
        found = early_decision.probe_stage(study, sampler.model, thinking, options)
    verdict = probe_verdict(found["probes"])
    rows = [
        [
            one["at"],
            one["place"],
            one["layer"],
            pool["pool"],
            pool["n"],
            pool["auroc"],
            str(pool["interval"] or pool["reason"]),
            pool["balanced"],
            pool["null"],
            pool["p_corrected"],
            *(pool["controls"].get(name) for name in ("prompt words", "first token")),
        ]
        for one in found["probes"]
        for pool in one["pools"]
    ]
    columns = [
        "at",
        "place",
        "layer",
        "pool",
        "n",
        "AUROC",
        "95 % interval",
        "BAcc",
        "shuffled 95 %",
        "p corrected",
        "prompt words",
        "first token",
    ]
    emit(found | verdict, as_json, table(columns, rows) + f"\n\n{verdict['verdict']}")


@app.verb("valley", settings=lambda: early_decision.ValleyConfig)
def valley_(options: early_decision.ValleyConfig, run: RunPath, trust: Trust = False, as_json: Json = False) -> None:
    """Separability of the outcomes along the thinking, together with a probe at the same positions."""
    study, sampler, thinking, _ = _opened(run, trust=trust)
    with study, progress("valley", as_json=as_json, kept="nothing was written"):
        record = early_decision.valley_stage(study, sampler.model, thinking, options)
    verdict = valley_verdict(record)
    if record["reason"]:
        emit(record | verdict, as_json, f"no curve; {verdict['verdict']}")
        return
    found, probes = record["valley"], record["probe"]
    at = range(0, options.points, max(1, options.points // 10))
    rows = [[f"{found['share'][p]:.0%}", found["j"][p], found["floor"][p], probes["auroc"][p], probes["shuffled"][p]] for p in at]
    shown = table(["at", "J", "floor", "probe AUROC", "shuffled"], rows)
    emit(record | verdict, as_json, f"{shown}\n\n{verdict['verdict']}")


@app.verb("continue", settings=ContinueConfig)
def continue_(
    options: ContinueConfig, run: RunPath, dry_run: DryRun = False, trust: Trust = False, as_json: Json = False
) -> None:
    """Cut the thinking and continue: close at once (the paper's), or think on to the end; the two are never mixed."""
    if dry_run:
        with Study.open(run) as study:
            _show(options.cost_estimate(study), as_json)
        return
    study, sampler, thinking, jury = _opened(run, trust=trust)
    with study:
        total = options.cost_estimate(study)["prefixes"]
        _work(
            "continue",
            "prefixes",
            total,
            run,
            as_json,
            lambda advance: continuations(study, sampler, thinking, jury, options, advance),
        )
        found = conclude(study, options.to_json())["continuation"]
    columns = ["share", "prefixes", "variance", "unbiased", "flip_rate", "agreement", "yes"]
    rows = [
        [part, way, *(point[name] for name in columns)]
        for part, curves in (found or {"curves": {}})["curves"].items()
        for way, points in curves.items()
        for point in points
    ]
    verdict = continuation_verdict(found or {"open_fall": None})
    emit(
        {"continuation": found} | verdict | _spent(sampler),
        as_json,
        table(["of", "way", *columns], rows) + f"\n\n{verdict['verdict']}",
    )
    _warn(sampler, jury)


@app.verb("oscillate", settings=OscillateConfig)
def oscillate_(
    options: OscillateConfig,
    run: RunPath,
    ties: Annotated[
        bool, option("--ties-refuse", help="Half of the votes at a cut make a yes, as in the paper's cut analysis.")
    ] = False,
    dry_run: DryRun = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Rate stances along the thinking, cut where they turn, and test whether the answer differs before and after the turn."""
    if dry_run:
        with Study.open(run) as study:
            _show(options.cost_estimate(study), as_json)
        return
    if not options.judges:
        raise UserError("--judges names who rates stances: judge:MODEL or FILE.py:FUNCTION, three in the paper")
    judges = [find_stance_judge(spec, find_model) for spec in options.judges]
    study, sampler, thinking, jury = _opened(run, ties, trust)
    with study:
        total = options.cost_estimate(study)["traces"]
        rated, _ = _work(
            "oscillate",
            "traces",
            total,
            run,
            as_json,
            lambda advance: oscillations(study, sampler, thinking, jury, judges, options, advance),
        )
        found = conclude(study, options.to_json())["oscillation"]
        unrated = sum(bool(row["thinking"]) and row["key"] not in rated for row in study.prefixes(options.traces))
    shown = table(["figure", "value"], [[name, str(value)] for name, value in (found or {}).items()])
    verdict = oscillation_verdict(found)
    emit({"oscillation": found, "unrated": unrated} | verdict | _spent(sampler), as_json, f"{shown}\n\n{verdict['verdict']}")
    if unrated:
        say(f"warning: {plural(unrated, 'trace')} left out, rated by no judge; the same command tries them again")
    _warn(sampler, jury)


@app.verb("report", settings=ReportConfig)
def report_(
    options: ReportConfig,
    run: RunPath,
    against: Annotated[Path | None, option(metavar="BASE", help="The same prompts without a defence, to compare with.")] = None,
    as_json: Json = False,
) -> None:
    """Put all stages together: RUN/report.json, and RUN/report.html for a browser."""
    with Study.open(run) as study:
        record = build(study, options)
    sentences = "".join(f"{name}: {one['verdict']}\n" for name, one in record["verdicts"].items())
    text = f"{sentences}{run / 'report.html'} and {run / 'report.json'} are written"
    if against is not None:
        with Study.open(against) as base, Study.open(run) as study:
            record["defence"] = compare(base, study)
        before, after = record["defence"]["base"], record["defence"]["treated"]
        rows = [[name, before[name], after[name]] for name in before]
        text = table(["figure", "base", "run"], rows) + f"\n\nthe defence {record['defence']['verdict']}; {text}"
    write_whole(run / "report.json", json.dumps(record, indent=1) + "\n")
    write_whole(run / "report.html", html(record))
    emit(record, as_json, text)


def _work(title: str, unit: str, total: int, run: Path, as_json: bool, work: Callable[[Callable[[int], None]], Any]) -> Any:
    with progress(title, total, unit, as_json, kept=f"what was sampled is kept in {run}: the same command continues") as bar:
        return wait_for(work(bar.at))


def _show(record: dict[str, Any], as_json: bool) -> None:
    emit(record, as_json, table(["cost estimate", ""], list(record.items())))


def _spent(sampler: Sampler) -> dict[str, Any]:
    return {"spent": sampler.ledger.to_json()["spent"]}


def _warn(sampler: Sampler, jury: Jury) -> None:
    if sampler.failed:
        say(f"warning: {plural(sampler.failed, 'sample')} failed ({sampler.first_failure}); the same command tries them again")
    if sampler.ledger.spent.get("judge", {}).get("calls"):
        say(f"spent on {sampler.ledger}")
    for name, why in jury.failed.items():
        say(f"warning: the judge {name} failed: {why}; answers without a vote are tried again by the same command")
