"""The verbs of ``ramify implicit-advantage``. Exit codes: 0 scored, 2 bad input, 3 a pair that does not fit, 4 partly scored."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ramify.base.errors import EXIT_NEEDS, NeedsError, RamifyError, UserError
from ramify.base.ledger import Ledger
from ramify.base.words import plural
from ramify.kit import DryRun, ForkEnv, ForkModel, Form, Json, Trust, Verbs, check_forks, option
from ramify.methods.implicit_advantage import report as reports
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, Rule, StepAgg, TokenAgg
from ramify.methods.implicit_advantage.run import (
    GRADE,
    AdvantageScorer,
    GradedAttempt,
    add_record,
    graders,
    keep_grades,
    kept_grades,
    make_run,
)
from ramify.model.pair import IncompatiblePairError, Pair
from ramify.render.terminal import emit, progress, say, table
from ramify.score.steps import write_rows
from ramify.score.trajectories import MessageLayout, chat_layout, load_trajectories, plain_layout
from ramify.trace.db import Run
from ramify.trace.lines import at_place, field
from ramify.trace.node import Finding, Score
from ramify.trace.sources import conclude, run_folder

if TYPE_CHECKING:
    from ramify.methods.implicit_advantage.confirm import Who
    from ramify.rollout.attempts import Attempt

EXIT_PARTIAL = EXIT_NEEDS
BLAME = "implicit-advantage blame"
LISTED = 40
"""Attempts named one by one on the terminal."""


app = Verbs("implicit-advantage", help="Grade every action with a policy and its reference.")
Scores = Annotated[Path, option("--scores", help="The run that was scored.")]
Calibrate = Annotated[
    Path | None,
    option(help="A run of other tasks that was scored: the aggregation that does best there is shown next to the given one."),
]
Token = Annotated[TokenAgg | None, option(help="From tokens to a step; by default as the records were scored.")]
Step = Annotated[
    StepAgg | None,
    option(help="How the scores of steps are aggregated to one of the attempt; by default as the records were scored."),
]


@app.verb(settings=AdvantageConfig)
def score(
    options: AdvantageConfig,
    trajectories: Annotated[
        Path,
        option(help="Attempts as JSON lines, the folder of a run, or a file that can be imported (an inspect log, ...)."),
    ],
    out: Annotated[
        Path | None,
        option(
            metavar="RUN", help="Run to make of the actions and their grades; those of a run are kept in that run in any case."
        ),
    ] = None,
    scorer: Annotated[
        str | None, option(help="Scorer whose score is an attempt's reward; by default env, or the imported reward.")
    ] = None,
    policy: Annotated[str | None, option(help="hf:PATH, a folder, builtin or completions:MODEL@URL.")] = None,
    reference: Annotated[str | None, option(help="As --policy; none for a LoRA, whose base is the reference.")] = None,
    alpha: Annotated[float, option(help="Move the reference this far towards the policy (0 to 1).")] = 0.0,
    merge: Annotated[Literal["linear", "ties", "dare"], option(help="How it is moved.")] = "linear",
    render: Annotated[Literal["template", "plain"], option(help="How attempts of messages are rendered.")] = "template",
    cache: Annotated[Path | None, option(help="Folder that keeps log-probs by weights and tokens.")] = None,
    confidence: Annotated[bool, option("--confidence", help="Add how sure the policy was, for the baselines.")] = False,
    form: Form = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Grade every step of every attempt, by --policy and --reference, or without them by the log-probs that attempts store."""
    config = options
    folder = run_folder(trajectories)
    if out is None and folder is None:
        raise UserError(f"{trajectories} is no run that could keep the grades: name one to make with --out")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to make {out.name} in")
    pair: Pair | None = None
    layout: MessageLayout | None = None
    of_a_pair = {
        "--reference": reference is not None,
        "--alpha": alpha != 0,
        "--merge": merge != "linear",
        "--render": render != "template",
        "--cache": cache is not None,
        "--confidence": confidence,
        "--keep-special": not config.keep_special,
    }
    if policy is not None:
        pair, layout = _open(policy, reference, alpha, merge, cache, render)
    elif asking := [name for name, given in of_a_pair.items() if given]:
        raise UserError(f"{' and '.join(asking)} {'ask' if len(asking) > 1 else 'asks'} for a pair of models: name --policy")
    attempts, skipped = load_trajectories(trajectories, layout, scorer, form)
    if dry_run:
        tokens = sum(min(len(attempt.tokens), config.max_length) for attempt in attempts)
        estimate = {"attempts": len(attempts), "steps": sum(attempt.n for attempt in attempts), "skipped": skipped}
        estimate |= {"tokens_each_model_reads": tokens if pair else 0}
        shown = [[k, len(v) if isinstance(v, list) else v] for k, v in estimate.items()]
        emit(estimate, as_json, table(["number", "value"], shown))
        return
    made = {"policy": "" if pair is None else pair.policy.name, "reference": "" if pair is None else pair.reference.name}
    begin: Callable[[], Run] | None = None
    if out is not None:
        begin = functools.partial(make_run, out, config, {**made, "confidence": confidence}, attempts)
        if out.exists():
            begin().close()  # another run is there, say, which is known before anything is graded
    grader = AdvantageScorer(pair, config, noise_rows=4)
    total = 0
    with progress("score", 2 * len(attempts), "rows", as_json, kept=f"nothing was written to {out or folder}") as bar:

        def on_rows(rows: int) -> None:
            nonlocal total
            total += rows
            bar.at(total)

        try:
            scored, failed = grader.score_each(attempts, confidence, on_rows)
        except NeedsError as error:  # an adapter that cannot be added, a server without what --confidence needs
            raise IncompatiblePairError(str(error)) from error
    _keep(scored, skipped + failed, pair, folder, begin, as_json)


def _open(
    policy: str, reference: str | None, alpha: float, merge: Literal["linear", "ties", "dare"], cache: Path | None, render: str
) -> tuple[Pair, MessageLayout | None]:
    """The pair that grades, and how attempts are rendered as tokens; None where they are used as stored."""
    from ramify.engine.pairs import open_pair, pair_template

    try:
        pair = open_pair(policy, reference, alpha=alpha, method=merge, cache=cache)
    except NeedsError as error:
        raise IncompatiblePairError(str(error)) from error
    if render == "plain":
        return pair, plain_layout(pair.policy.tokenizer)
    template = pair_template(policy)
    return pair, None if template is None else chat_layout(template)


def _keep(
    scored: list[GradedAttempt],
    skipped: list[str],
    pair: Pair | None,
    folder: Path | None,
    begin: Callable[[], Run] | None,
    as_json: bool,
) -> None:
    """Keep the grades, in the run that the attempts are of and in the one that is made of them, and say what was left out; exit
    code 4 where something was."""
    names = ("", "") if pair is None else (pair.policy.name, pair.reference.name)
    rows = [one.to_json(*names) for one in scored]
    where = folder
    if rows and folder is not None and (why := keep_grades(folder, scored, rows, pair)):
        say(f"warning: {why}")
        where = None
    if rows and begin is not None:
        with begin() as run, run.transaction():
            where = run.folder
            for number, row in enumerate(rows, 1):
                add_record(run, row, number, graders(pair))
    for warning in [] if pair is None else pair.warnings:
        say(f"warning: {warning}")
    cut = [row["trajectory_id"] for row in rows if any(step["truncated"] for step in row["steps"])]
    noted = {note.partition(" ")[2] for row in rows for note in row["warnings"]}
    noise = None if pair is None else pair.noise
    result = {
        "out": None if where is None else str(where),
        "scored": len(rows),
        "truncated": cut,
        "skipped": skipped,
        "noise_per_token": noise,
    }
    lines = ["no attempt was graded, and nothing was written"]
    if rows:
        lines = [f"{plural(len(rows), 'graded attempt')} in {where}" if where else f"graded: {plural(len(rows), 'attempt')}"]
    lines += [f"noted on some attempts: {note}" for note in sorted(noted)]
    left = [f"cut from the left: {name}" for name in cut] + [f"skipped: {why}" for why in skipped]
    lines += [" ".join(line.split()) for line in left[:LISTED]]
    lines += [f"and {len(left) - LISTED} more (--json lists all)"] if len(left) > LISTED else []
    emit(result, as_json, "\n".join(lines))
    if cut or skipped:
        raise SystemExit(EXIT_PARTIAL)


@app.verb()
def select(
    scores: Scores,
    group: Annotated[str, option(help="Field that attempts to choose among share.")] = "task_id",
    best_of: Annotated[int, option(min=1, help="Choose among the first this many of a group.")] = 8,
    calibrate: Calibrate = None,
    token: Token = None,
    step: Step = None,
    by: Annotated[
        str, option(help="Choose by another scorer of `report` than the grade: policy-log-prob, or a judge's name.")
    ] = "advantage",
    out: Annotated[Path | None, option(help="Chosen attempts to write (.jsonl).")] = None,
    as_json: Json = False,
) -> None:
    """Choose the best attempt at each task; where ends are known, say what choosing was worth."""
    records = read_scores(scores)
    cell = reports.own_cell(records, token, step)
    tuned = None if calibrate is None else reports.calibrate(_apart(records, calibrate), "best_of", best_of)[0]
    rows = {name: reports.select(records, one, best_of, group) for name, one in reports.cells(cell, tuned).items()}
    scores_by = reports.chooser(records, by)
    picked = next(iter(rows.values())) if scores_by is None else reports.select(records, cell, best_of, group, scores_by)
    chosen, verdict = picked["chosen"], reports.verdict_on_choice(picked, by)
    if picked["counted"]:
        for name, values in reports.baselines(records).items():
            rows[name] = reports.select(records, cell, best_of, group, values)
    if out is not None:
        write_rows(out, chosen)
    columns = ("best_of", "mean", "oracle", "gain", "gain_interval", "gain_p", "counted")
    lines = [[name, *(_text(row[c]) for c in columns)] for name, row in rows.items()]
    text = f"{verdict}\n\n{table(['chosen by', *columns], lines)}\n\n"
    text += table([group, "chosen", "score"], [[c[group], c["trajectory_id"], c["score"]] for c in chosen[:20]])
    shown = {name: {k: v for k, v in row.items() if k != "chosen"} for name, row in rows.items()}
    emit({"verdict": verdict, "chosen_by": by, "chosen": chosen, "by": shown}, as_json, text)


@app.verb()
def blame(
    scores: Scores,
    rule: Annotated[Rule, option(help="How the step is found.")] = "sharpest-drop",
    top: Annotated[int, option(min=1, help="Name this many steps, worst first.")] = 1,
    token: Token = None,
    every: Annotated[bool, option("--every", help="Successful attempts, too.")] = False,
    level: Annotated[
        float,
        option(help="Share of attempts that may be blamed wrongly (0 to 1); 1 names the lowest steps, whatever the noise."),
    ] = reports.LEVEL,
    against: Annotated[
        Path | None, option(help="A run scored by the same models whose successful attempts show the noise, too.")
    ] = None,
    fork: Annotated[
        int | None,
        option(
            metavar="N",
            min=1,
            help="Sample N continuations from before each named step and N from after it: did success fall there?",
        ),
    ] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Name the steps of failed attempts that are most to blame, where they stand out from the steps of successful ones.

    With --fork each of them is put to the test in the run; the same command again loads what was played.
    """
    if not 0 < level <= 1:
        raise UserError(f"--level is a share above 0 and at most 1, not {level:g}")
    check_forks(fork, model, env, trust)
    who = None if fork is None else _who(scores, model, env, trust)
    records = read_scores(scores)
    held = [] if against is None else read_scores(against)
    cell = reports.own_cell(records, token)[0]
    found = reports.blame(records, rule, top, cell, every, level, held)
    failure = "" if who is None or fork is None else _forked(who, found, records, fork, as_json)
    settings = {
        "rule": rule,
        "token": cell,
        "level": level,
        "policy": records[0].get("policy"),
        "reference": records[0].get("reference"),
    }
    if why := conclude(scores, BLAME, _findings(found, scores, settings)):
        say(f"warning: {why}")
    columns = ["attempt", "rank", "step", "of", "grade", "action"]
    cells = [[r["trajectory_id"], r["rank"], r["step"], r["of"], r["grade"], (r["action"] or "")[:60]] for r in found["blamed"]]
    if who is not None:
        columns += ["before", "95 % interval", "after", "95 % interval of it", "p, corrected", "forks say"]
        cells = [[*row, *_fork_cells(r["fork"])] for row, r in zip(cells, found["blamed"], strict=True)]
    emit(found, as_json, f"{found['verdict']}\n\n{table(columns, cells) if cells else ''}".strip())
    played = [row["fork"] for row in found["blamed"] if row.get("fork")]
    if played and failure and all(row["confirmed"] is None for row in played):
        raise RamifyError(f"no step could be put to the test: every continuation failed, the first at {failure}")


def _who(scores: Path, model: str | None, env: str | None, trust: bool) -> Who:
    """Who plays on in the run ``scores``. Raises UserError where it is none that can be played."""
    from ramify.methods.implicit_advantage.confirm import Who

    return Who(run_folder(scores) or scores, model, env, trust)


def _forked(who: Who, found: dict[str, Any], records: list[dict[str, Any]], n: int, as_json: bool) -> str:
    """Add to each blamed step the result of its forks (``fork``),
    and to the verdict how many are confirmed. Returns the first failure."""
    from ramify.methods.implicit_advantage.confirm import confirm
    from ramify.rollout.attempts import Success

    kept = f"the continuations played so far stay in {who.folder}: the same command continues"
    with progress("blame", 2 * n * len(found["blamed"]), "continuations", as_json, kept=kept) as bar:
        success = Success()

        def on_attempt(attempt: Attempt) -> None:
            success.add(attempt)
            bar.at(success.ended, success.note)

        tests, failure = confirm(who, found["blamed"], records, n, on_attempt)
    for row in found["blamed"]:
        row["fork"] = tests.get(row["node"])
    sure = sum(bool(test["confirmed"]) for test in tests.values())
    if found["blamed"]:
        found["verdict"] += (
            f"; forks confirm {sure} of {len(tests)} steps, by {n} or more attempts from before and from after each"
        )
    return failure


def _fork_cells(test: dict[str, Any] | None) -> list[str]:
    """What forks say of a step, as cells of a table."""
    if test is None:
        return ["-", "-", "-", "-", "-", "not measured"]
    sides = [f"{x:.1%}" if isinstance(x, float) else "-" for x in (test["before"]["success"], test["after"]["success"])]
    spans = ["[{:.1%}, {:.1%}]".format(*test[name]["interval"]) for name in ("before", "after")]
    return [sides[0], spans[0], sides[1], spans[1], f"{test['p_corrected']:.2g}", _word(test)]


def _word(test: dict[str, Any]) -> str:
    return {True: "confirmed", False: "not confirmed", None: "not measured"}[test["confirmed"]]


@app.verb()
def report(
    scores: Scores,
    labels: Annotated[Literal["outcome"], option(help="What attempts are distinguished by: their outcome.")] = "outcome",
    calibrate: Calibrate = None,
    token: Token = None,
    step: Step = None,
    as_json: Json = False,
) -> None:
    """How well grades and baselines separate successes from failures: AUROC with intervals over tasks, ties, the luck ceiling."""
    records = read_scores(scores)
    found = reports.report(
        records, reports.own_cell(records, token, step), [] if calibrate is None else _apart(records, calibrate)
    )
    columns = [name for name in found["scorers"][0] if name not in ("scorer", "delong_p")]
    rows = [[row["scorer"], *(_text(row[c]) for c in columns)] for row in found["scorers"]]
    shown = {k: v for k, v in found.items() if k not in ("verdict", "scorers")}
    text = f"{found['verdict']}\n\n" + table(["number", "value"], [[k, _text(v)] for k, v in shown.items()])
    emit(found, as_json, f"{text}\n\n{table(['scorer', *columns], rows)}")


@app.verb()
def judge(
    scores: Scores,
    trajectories: Annotated[Path, option(help="The attempts the records are of.")],
    model: Annotated[
        str,
        option(
            help="chat:MODEL@URL or any other model (MODEL#FILE: with the prompt in FILE), head:PATH for a reward model with a "
            "scoring head, or another judge."
        ),
    ],
    tokenizer: Annotated[str, option(help="Folder (or model) whose tokenizer the attempts are read with.")],
    style: Annotated[
        Literal["grade", "steps"], option(help="Ask for one grade per attempt, or for a score of each step.")
    ] = "grade",
    name: Annotated[str, option(help="What the judge is called in the run.")] = "judge",
    scorer: Annotated[str | None, option(help="As in `score`.")] = None,
    as_json: Json = False,
) -> None:
    """Add a judge's or reward model's score to a run that was scored, as a baseline for `report` and `select`."""
    from ramify.methods.implicit_advantage.baselines import find_baseline, grades

    records = read_scores(scores)
    wanted = {r["trajectory_id"]: r.get("decisions", "") for r in records}
    with progress("judge", as_json=as_json, kept=f"{scores} is as it was"):
        baseline = find_baseline(model, style)
        values, failed = grades(trajectories, baseline, tokenizer, wanted, scorer, spent := Ledger())
    ends = {record["trajectory_id"]: record["end"] for record in records}
    with Run.open(run_folder(scores) or scores, write=True) as run:
        run.add(*(Score(ends[one], name, value, GRADE, judges={name: baseline.identity}) for one, value in values.items()))
    text = "\n".join(
        [f"{len(values)} of {len(records)} attempts have a score of '{name}'", *(f"unscored: {why}" for why in failed)]
    )
    emit({"scored": len(values), "unscored": failed, "spent": spent.to_json()["spent"]}, as_json, f"{text}\nspent on {spent}")
    if failed:
        raise SystemExit(EXIT_PARTIAL)


def _findings(found: dict[str, Any], run: Path, settings: dict[str, Any]) -> list[Finding]:
    """What blame found in the run ``run``, as the run keeps it: the verdict, and the steps most to blame."""
    made = [Finding("blame", BLAME, found["verdict"], evidence=found["floor"], identity=settings)]
    for row in found["blamed"]:
        if row["node"] is not None:
            why = (
                f"training made this step less likely than any of the successful attempts' (attempt {row['trajectory_id'][:12]})"
            )
            if test := row.get("fork"):
                sides = [f"{test[name]['successes']}/{test[name]['n']}" for name in ("before", "after")]
                why += (
                    f"; success was {sides[0]} from before it and {sides[1]} from after it, p {test['p_corrected']:.2g}: "
                    f"{_word(test)}"
                )
            fork = f"ramify fork {run} {row['node'][:12]}"
            do = f"{fork} (with --model and --env where the run names none) samples what else could have been done there"
            made.append(Finding("step to blame", BLAME, why, row["node"], 0, do, row["grade"], "nats", row, settings))
    return made


def read_scores(path: Path) -> list[dict[str, Any]]:
    """Score records of a run. Raises UserError naming run, record and field of what is no score record."""
    records = []
    for number, record in enumerate(kept_grades(run_folder(path) or path), 1):
        where = f"{path}: record {number}"
        with at_place(where):
            field(record, "trajectory_id", str, where)
            field(record, "task_id", str, where)
            field(record, "success", bool, where, None)
            field(record, "keep_truncated", bool, where, False)
            field(record, "decisions", str, where, "")
            for name in field(record, "baselines", dict, where, {}):
                _number(record["baselines"], name, f"{where}: 'baselines'", None)
            for i, step in enumerate(field(record, "steps", list, where)):
                spot = f"{where}: step {i}"
                if not isinstance(step, dict):
                    raise UserError(f"{spot} is no object")
                field(step, "truncated", bool, spot)
                field(step, "action", str, spot, None)
                for name in ("i", "n_tokens", "A_sum", "A_mean", "A_last", "A_min", "A_max", "logp_theta", "logp_ref"):
                    _number(step, name, spot)
                if "confidence" in step or "certainty" in step:
                    _number(step, "confidence", spot)
                    _number(step, "certainty", spot)
        records.append(record)
    return records


def _number(record: dict[str, Any], name: str, spot: str, default: Any = ...) -> None:
    value = field(record, name, (float, int), spot, default)
    if value is not None and not math.isfinite(value):
        raise UserError(f"{spot}: '{name}' is no finite number")


def _apart(records: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Calibration records. Raises UserError where they share a task with those the choice is judged on."""
    found = read_scores(path)
    if shared := {r["task_id"] for r in records} & {r["task_id"] for r in found}:
        raise UserError(
            f"{path} shares {plural(len(shared), 'task')} with the scores, such as '{min(shared)}': calibrate on other tasks"
        )
    return found


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return " to ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in value)
    return value
