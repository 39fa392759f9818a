"""The verbs of ``ramify implicit-advantage``. Exit codes: 0 scored, 2 bad input, 3 a pair that does not fit, 4 partly scored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ramify.base.command import TAKES_SETTINGS, SettingsCommand
from ramify.base.config import load
from ramify.base.errors import EXIT_NEEDS, UserError
from ramify.methods.implicit_advantage import report as reports
from ramify.methods.implicit_advantage.algorithm import A_PRIORI, AdvantageConfig, Rule, StepAgg, TokenAgg
from ramify.methods.implicit_advantage.run import AdvantageScorer
from ramify.model.pair import Pair
from ramify.render.terminal import emit, say, table
from ramify.score.steps import write_rows
from ramify.score.trajectories import Layout, Trajectory, chat_layout, plain_layout, read_trajectories, run_trajectories
from ramify.trace.lines import at_place, field, read_lines

EXIT_PARTIAL = EXIT_NEEDS


class ScoreCommand(SettingsCommand):
    """A verb that takes the options of the grading."""

    def settings(self) -> type[AdvantageConfig]:
        """The options."""
        return AdvantageConfig


app = typer.Typer(add_completion=False, no_args_is_help=True, help="Grade every action with a policy and its reference.")
_TAKES_OPTIONS: dict[str, Any] = {"cls": ScoreCommand, "context_settings": TAKES_SETTINGS}
Scores = Annotated[Path, typer.Option("--scores", help="Score records, as `score` writes them.")]
Calibrate = Annotated[
    Path | None,
    typer.Option(help="Score records of other tasks: the aggregation that does best there is shown beside the given one."),
]
Token = Annotated[TokenAgg, typer.Option(help="From tokens to a step.")]
Step = Annotated[StepAgg, typer.Option(help="From steps to the attempt.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


@app.command(**_TAKES_OPTIONS)
def score(
    ctx: typer.Context,
    trajectories: Annotated[Path, typer.Option(help="Attempts as JSON lines, or the folder of a run.")],
    out: Annotated[Path, typer.Option(help="Score records to write (.jsonl).")],
    policy: Annotated[str | None, typer.Option(help="hf:PATH, a folder, builtin or completions:MODEL@URL.")] = None,
    reference: Annotated[str | None, typer.Option(help="As --policy; none for a LoRA, whose base is the reference.")] = None,
    alpha: Annotated[float, typer.Option(help="Move the reference this far towards the policy (0 to 1).")] = 0.0,
    merge: Annotated[Literal["linear", "ties", "dare"], typer.Option(help="How it is moved.")] = "linear",
    render: Annotated[Literal["template", "plain"], typer.Option(help="How attempts of messages are laid out.")] = "template",
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps log-probs by weights and tokens.")] = None,
    confidence: Annotated[bool, typer.Option("--confidence", help="Add how sure the policy was, for the baselines.")] = False,
    as_json: Json = False,
) -> None:
    """Grade every step of every attempt. Attempts with stored log-probs of both models need no --policy."""
    config = load(AdvantageConfig, flags=ctx.args)
    pair: Pair | None = None
    layout: Layout | None = None
    if policy is not None:
        from ramify.engine.pairs import open_pair, pair_template

        pair = open_pair(policy, reference, alpha=alpha, method=merge, cache=cache)
        template = pair_template(policy) if render == "template" else None
        layout = chat_layout(template) if template is not None else None
        if render == "plain":
            layout = plain_layout(pair.policy.tokenizer)
    elif reference is not None or alpha or confidence:
        raise UserError("a reference without a policy is no pair: name --policy")
    attempts, skipped = _attempts(trajectories, layout)
    scorer = AdvantageScorer(pair, config, noise_rows=4)
    scored, failed = scorer.score_each(attempts, confidence)
    names = ("", "") if pair is None else (pair.policy.name, pair.reference.name)
    rows = [one.to_json(*names) for one in scored]
    write_rows(out, rows)
    for warning in [] if pair is None else pair.warnings:
        say(f"warning: {warning}")
    skipped += failed
    cut = [row["trajectory_id"] for row in rows if any(step["truncated"] for step in row["steps"])]
    noted = {note.partition(" ")[2] for row in rows for note in row["warnings"]}
    result = {
        "out": str(out),
        "scored": len(rows),
        "truncated": cut,
        "skipped": skipped,
        "noise_per_token": pair.noise if pair else 0.0,
    }
    lines = [f"{len(rows)} attempts with their grades are in {out}"]
    lines += [f"noted on some attempts: {note}" for note in sorted(noted)]
    lines += [f"cut from the left: {name}" for name in cut[:20]] + [f"skipped: {why}" for why in skipped[:20]]
    emit(result, as_json, "\n".join(lines))
    if cut or skipped:
        raise typer.Exit(EXIT_PARTIAL)


def _attempts(source: Path, layout: Layout | None) -> tuple[list[Trajectory], list[str]]:
    if not source.is_dir():
        return read_trajectories(source, layout), []
    from ramify.trace.db import Run

    with Run.open(source) as run:
        return run_trajectories(run, layout)


@app.command()
def select(
    scores: Scores,
    group: Annotated[str, typer.Option(help="Field that attempts to choose among share.")] = "task_id",
    best_of: Annotated[int, typer.Option(min=1, help="Choose among the first this many of a group.")] = 8,
    calibrate: Calibrate = None,
    token: Token = A_PRIORI[0],
    step: Step = A_PRIORI[1],
    out: Annotated[Path | None, typer.Option(help="Chosen attempts to write (.jsonl).")] = None,
    as_json: Json = False,
) -> None:
    """Choose the best attempt at each task; where ends are known, say what choosing was worth."""
    records = read_scores(scores)
    rows: dict[str, dict[str, Any]] = {f"{token}/{step}": reports.select(records, (token, step), best_of, group)}
    if calibrate is not None:
        tuned, _ = reports.calibrate(_apart(records, calibrate), "best_of", best_of)
        rows[f"{'/'.join(tuned)} (tuned)"] = reports.select(records, tuned, best_of, group)
    chosen = next(iter(rows.values()))["chosen"]
    if any(row["counted"] for row in rows.values()):
        for name, values in reports.baselines(records).items():
            rows[name] = reports.select(records, (token, step), best_of, group, values)
    if out is not None:
        write_rows(out, chosen)
    columns = ("best_of", "mean", "oracle", "gain", "gain_interval", "counted")
    lines = [[name, *(_text(row[c]) for c in columns)] for name, row in rows.items()]
    text = table(["chosen by", *columns], lines) + "\n\n"
    text += table([group, "chosen", "score"], [[c[group], c["trajectory_id"], c["score"]] for c in chosen[:20]])
    shown = {name: {k: v for k, v in row.items() if k != "chosen"} for name, row in rows.items()}
    emit({"chosen": chosen, "by": shown}, as_json, text)


@app.command()
def blame(
    scores: Scores,
    rule: Annotated[Rule, typer.Option(help="How the step is found.")] = "sharpest-drop",
    top: Annotated[int, typer.Option(min=1, help="Name this many steps, worst first.")] = 1,
    token: Token = A_PRIORI[0],
    every: Annotated[bool, typer.Option("--every", help="Successful attempts, too.")] = False,
    as_json: Json = False,
) -> None:
    """Name the steps of failed attempts that are most to blame."""
    rows = reports.blame_steps(read_scores(scores), rule, top, token, every)
    cells = [[r["trajectory_id"], r["rank"], r["step"], r["of"], r["grade"], (r["action"] or "")[:60]] for r in rows]
    emit({"blamed": rows}, as_json, table(["attempt", "rank", "step", "of", "grade", "action"], cells))


@app.command()
def report(
    scores: Scores,
    labels: Annotated[Literal["outcome"], typer.Option(help="What attempts are told apart by: their outcome.")] = "outcome",
    calibrate: Calibrate = None,
    token: Token = A_PRIORI[0],
    step: Step = A_PRIORI[1],
    as_json: Json = False,
) -> None:
    """How well grades and baselines tell successes from failures: AUROC with intervals over tasks, ties, the luck ceiling."""
    records = read_scores(scores)
    found = reports.report(records, (token, step), [] if calibrate is None else _apart(records, calibrate))
    columns = (
        "n",
        "auroc",
        "interval",
        "auroc_within_tasks",
        "spearman",
        "tie_rate",
        "advantage_minus_this",
        "difference_interval",
    )
    rows = [[row["scorer"], *(_text(row[c]) for c in columns)] for row in found["scorers"]]
    shown = {k: v for k, v in found.items() if k != "scorers"}
    emit(
        found,
        as_json,
        table(["number", "value"], [[k, _text(v)] for k, v in shown.items()]) + "\n\n" + table(["scorer", *columns], rows),
    )


@app.command()
def judge(
    scores: Scores,
    trajectories: Annotated[Path, typer.Option(help="The attempts the records are of.")],
    model: Annotated[
        str, typer.Option(help="chat:MODEL@URL, any other model, or head:PATH for a reward model with a scoring head.")
    ],
    tokenizer: Annotated[str, typer.Option(help="Folder (or model) whose tokenizer the attempts are read with.")],
    style: Annotated[Literal["grade", "steps"], typer.Option(help="Ask for one grade, or for a verdict on each step.")] = "grade",
    name: Annotated[str, typer.Option(help="What the judge is called in the records.")] = "judge",
    as_json: Json = False,
) -> None:
    """Add a judge's or reward model's score to score records, as a baseline for `report` and `select`."""
    from ramify.methods.implicit_advantage.baselines import judged

    records = read_scores(scores)
    values, failed = judged(trajectories, model, tokenizer, style, {record["trajectory_id"] for record in records})
    for record in records:
        record["baselines"] = (record.get("baselines") or {}) | {name: values.get(record["trajectory_id"])}
    write_rows(scores, records)
    text = "\n".join(
        [f"{len(values)} of {len(records)} attempts have a score of '{name}'", *(f"unscored: {why}" for why in failed)]
    )
    emit({"scored": len(values), "unscored": failed}, as_json, text)
    if failed:
        raise typer.Exit(EXIT_PARTIAL)


def read_scores(path: Path) -> list[dict[str, Any]]:
    """Score records of a file. Raises UserError naming file, line and field of what is no score record."""
    records = []
    for number, record in read_lines(path):
        place = f"{path}:{number}"
        with at_place(place):
            field(record, "trajectory_id", str, place)
            field(record, "task_id", str, place)
            field(record, "success", bool, place, None)
            for i, step in enumerate(field(record, "steps", list, place)):
                spot = f"{place}: step {i}"
                if not isinstance(step, dict):
                    raise UserError(f"{spot} is no object")
                field(step, "truncated", bool, spot)
                for name in ("i", "n_tokens", "A_sum", "A_mean", "A_last", "A_min", "A_max", "logp_theta", "logp_ref"):
                    if not math.isfinite(field(step, name, (int, float), spot)):
                        raise UserError(f"{spot}: '{name}' is no finite number")
        records.append(record)
    if not records:
        raise UserError(f"{path} holds no score record")
    return records


def _apart(records: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Calibration records. Raises UserError where they share a task with those the choice is judged on."""
    found = read_scores(path)
    if shared := {r["task_id"] for r in records} & {r["task_id"] for r in found}:
        raise UserError(f"{path} shares {len(shared)} tasks with the scores, such as '{min(shared)}': calibrate on other tasks")
    return found


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return " to ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in value)
    return value
