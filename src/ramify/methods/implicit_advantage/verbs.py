"""The verbs of ``ramify implicit-advantage``. Exit codes: 0 scored, 2 bad input, 3 a pair that does not fit, 4 partly scored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ramify.base import codec, paces
from ramify.base.errors import EXIT_DONE, EXIT_NEEDS, NeedsError, UserError
from ramify.base.ledger import Ledger
from ramify.base.words import plural
from ramify.kit import DryRun, ForkEnv, ForkModel, Form, Trust, Verbs, check_forks, option
from ramify.methods.implicit_advantage import report as reports
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, Rule, StepAgg, TokenAgg
from ramify.methods.implicit_advantage.records import ScoreRecord
from ramify.methods.implicit_advantage.run import (
    GRADE,
    AdvantageScorer,
    GradedAttempt,
    add_record,
    graders,
    keep_grades,
    make_run,
    read_scores,
)
from ramify.model.pair import IncompatiblePairError, Pair
from ramify.render.numbers import p_value
from ramify.render.result import Cell, Planned, Result, Section
from ramify.render.terminal import progress
from ramify.rollout.commands import Commands, commands_at
from ramify.score.steps import write_rows
from ramify.score.trajectories import MessageLayout, Trajectory, chat_layout, load_trajectories, plain_layout
from ramify.trace.db import Run
from ramify.trace.node import Finding, Score
from ramify.trace.sources import conclude, run_folder

if TYPE_CHECKING:
    from ramify.methods.implicit_advantage.confirm import Who
    from ramify.rollout.attempts import Attempt

EXIT_PARTIAL = EXIT_NEEDS
BLAME = "implicit-advantage blame"
SCORING = "implicit-advantage score"
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


@app.verb(settings=AdvantageConfig, keeps="trajectories")
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
) -> Grading | Planned:
    """Grade every step of every attempt, by --policy and --reference, or without them by the log-probs that attempts store."""
    config = options
    folder = run_folder(trajectories)
    if out is None and folder is None:
        raise UserError(f"{trajectories} is not a run that could keep the grades: name one to make with --out")
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
        return _planned(options, attempts, skipped, policy)
    made = {"policy": "" if pair is None else pair.policy.name, "reference": "" if pair is None else pair.reference.name}
    begin: Callable[[], Run] | None = None
    if out is not None:
        begin = functools.partial(make_run, out, config, {**made, "confidence": confidence}, attempts)
        if out.exists():
            begin().close()  # another run is there, say, which is known before anything is graded
    grader = AdvantageScorer(pair, config, noise_rows=4)
    total = 0
    kept = f"nothing was written to {out or folder}"
    with (
        progress("score", 2 * len(attempts), "rows", kept=kept) as line,
        paces.measured(SCORING, policy or "", line, "rows") as bar,
    ):

        def on_rows(rows: int) -> None:
            nonlocal total
            total += rows
            bar.at(total)

        try:
            scored, failed = grader.score_each(attempts, confidence, on_rows)
        except NeedsError as error:  # an adapter that cannot be added, a server without what --confidence needs
            raise IncompatiblePairError(str(error)) from error
    return _kept(scored, skipped + failed, pair, folder, begin)


def _planned(options: AdvantageConfig, attempts: Sequence[Trajectory], skipped: Sequence[str], policy: str | None) -> Planned:
    """What grading takes."""
    tokens = sum(min(len(attempt.tokens), options.max_length) for attempt in attempts)
    estimate: dict[str, Cell] = {
        "attempts": len(attempts),
        "steps": sum(attempt.n for attempt in attempts),
        "skipped": len(skipped),
        "tokens_each_model_reads": tokens if policy is not None else 0,
        "rows": 2 * len(attempts),
    }
    estimate |= paces.seconds(SCORING, policy or "", "rows", estimate)
    return Planned(options.to_json(), estimate, caveats=tuple(f"skipped: {why}" for why in skipped))


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


@dataclass(frozen=True)
class Grading(Result):
    """What was graded and kept in ``out``, which attempts were cut from the left (``truncated``) and which ``skipped``;
    ``noted`` is what was seen on some of them."""

    out: str | None
    scored: int
    truncated: tuple[str, ...]
    skipped: tuple[str, ...]
    noise_per_token: float | None
    noted: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """4 where an attempt was cut or skipped."""
        return EXIT_PARTIAL if self.truncated or self.skipped else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """How many there are, and what was left out."""
        text = "no attempt was graded, and nothing was written"
        if self.scored:
            text = (
                f"{plural(self.scored, 'graded attempt')} in {self.out}"
                if self.out
                else f"graded: {plural(self.scored, 'attempt')}"
            )
        left = [f"cut from the left: {name}" for name in self.truncated] + [f"skipped: {why}" for why in self.skipped]
        lines = [text, *(f"noted on some attempts: {note}" for note in self.noted)]
        lines += [" ".join(line.split()) for line in left[:LISTED]]
        lines += [f"and {len(left) - LISTED} more (--json lists all)"] if len(left) > LISTED else []
        yield Section.of("", "\n".join(lines))


def _kept(
    scored: list[GradedAttempt], skipped: list[str], pair: Pair | None, folder: Path | None, begin: Callable[[], Run] | None
) -> Grading:
    """Keep the grades, in the run that the attempts are of and in the one that is made of them, and say what was left out."""
    names = ("", "") if pair is None else (pair.policy.name, pair.reference.name)
    rows = [one.record(*names) for one in scored]
    where = folder
    lost = keep_grades(folder, scored, rows, pair) if rows and folder is not None else ""
    if lost:
        where = None
    if rows and begin is not None:
        with begin() as run, run.transaction():
            where = run.folder
            for number, row in enumerate(rows, 1):
                add_record(run, row, number, graders(pair))
    noted = {note.partition(" ")[2] for row in rows for note in row.warnings}
    return Grading(
        out=None if where is None else str(where),
        scored=len(rows),
        truncated=tuple(row.trajectory_id for row in rows if any(step.truncated for step in row.steps)),
        skipped=tuple(skipped),
        noise_per_token=None if pair is None else pair.noise,
        noted=tuple(sorted(noted)),
        caveats=(*filter(None, [lost]), *(() if pair is None else pair.warnings)),
    )


@app.verb(keeps="scores")
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
) -> reports.Choices:
    """Choose the best attempt at each task; where ends are known, say what choosing was worth."""
    records = read_scores(scores)
    cell = reports.own_cell(records, token, step)
    tuned = None if calibrate is None else reports.calibrate(_apart(records, calibrate), "best_of", best_of)[0]
    rows = {name: reports.select(records, one, best_of, group) for name, one in reports.cells(cell, tuned).items()}
    scores_by = reports.chooser(records, by)
    picked = next(iter(rows.values())) if scores_by is None else reports.select(records, cell, best_of, group, scores_by)
    if picked.counted:
        for name, values in reports.baselines(records).items():
            rows[name] = reports.select(records, cell, best_of, group, values)
    if out is not None:
        write_rows(out, [{group: one.group, "trajectory_id": one.trajectory_id, "score": one.score} for one in picked.chosen])
    return reports.Choices(reports.verdict_on_choice(picked, by), by, group, picked.chosen, rows)


@app.verb(keeps="scores")
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
) -> reports.BlameReport:
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
    failure = ""
    if who is not None and fork is not None:
        found, failure = _forked(who, found, records, fork)
    settings = {
        "rule": rule,
        "token": cell,
        "level": level,
        "policy": records[0].policy,
        "reference": records[0].reference,
    }
    lost = conclude(scores, BLAME, _findings(found, commands_at(scores), settings))
    played = [row.fork for row in found.blamed if row.fork]
    failed = bool(played and failure and all(test.confirmed is None for test in played))
    caveat = f"no step could be put to the test: every continuation failed, the first at {failure}" if failed else ""
    return replace(found, failed=failed, caveats=tuple(filter(None, (lost, caveat))))


def _who(scores: Path, model: str | None, env: str | None, trust: bool) -> Who:
    """Who plays on in the run ``scores``. Raises UserError where it is none that can be played."""
    from ramify.methods.implicit_advantage.confirm import Who

    return Who(run_folder(scores) or scores, model, env, trust)


def _forked(who: Who, found: reports.BlameReport, records: list[ScoreRecord], n: int) -> tuple[reports.BlameReport, str]:
    """The report with what forks say of each blamed step, and in the verdict how many are confirmed; the first failure."""
    from ramify.methods.implicit_advantage.confirm import confirm
    from ramify.rollout.attempts import Success

    ends = {record.trajectory_id: (record.end, record.success) for record in records}
    nodes = {row.node: ends[row.trajectory_id] for row in found.blamed if row.node is not None}
    kept = f"the continuations played so far stay in {who.folder}: the same command continues"
    with progress("blame", 2 * n * len(found.blamed), "continuations", kept=kept) as bar:
        success = Success()

        def on_attempt(attempt: Attempt) -> None:
            success.add(attempt)
            bar.at(success.ended, success.note)

        tests, failure = confirm(who, nodes, n, on_attempt)
    blamed = tuple(replace(row, fork=tests.get(row.node or "")) for row in found.blamed)
    sure = sum(bool(test.confirmed) for test in tests.values())
    said = f"; forks confirm {sure} of {len(tests)} steps, by {n} or more attempts from before and from after each"
    return replace(found, blamed=blamed, verdict=found.verdict + (said if blamed else ""), forked=True), failure


@app.verb(keeps="scores")
def report(
    scores: Scores,
    labels: Annotated[Literal["outcome"], option(help="What attempts are distinguished by: their outcome.")] = "outcome",
    calibrate: Calibrate = None,
    token: Token = None,
    step: Step = None,
) -> reports.RankReport:
    """How well grades and baselines separate successes from failures: AUROC with intervals over tasks, ties, the luck ceiling."""
    records = read_scores(scores)
    return reports.report(
        records, reports.own_cell(records, token, step), [] if calibrate is None else _apart(records, calibrate)
    )


@dataclass(frozen=True)
class JudgedAttempts(Result):
    """How many ``attempts`` a judge's score was added to, as ``name``, what it left unscored, and what that took."""

    scored: int
    unscored: tuple[str, ...]
    spent: Mapping[str, Mapping[str, float]]
    attempts: int
    name: str

    @property
    def exit_code(self) -> int:
        """4 where an attempt has no score."""
        return EXIT_PARTIAL if self.unscored else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """How many, and why not the others."""
        lines = [f"{self.scored} of {self.attempts} attempts have a score of '{self.name}'"]
        lines += [f"unscored: {why}" for why in self.unscored]
        spent = "; ".join(
            f"{name}: {', '.join(f'{amount:g} {unit}' for unit, amount in row.items())}"
            for name, row in sorted(self.spent.items())
        )
        yield Section.of("", "\n".join([*lines, f"spent on {spent}"]))


@app.verb(keeps="scores")
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
) -> JudgedAttempts:
    """Add a judge's or reward model's score to a run that was scored, as a baseline for `report` and `select`."""
    from ramify.methods.implicit_advantage.baselines import find_baseline, grades

    records = read_scores(scores)
    wanted = {one.trajectory_id: one.decisions for one in records}
    with progress("judge", kept=f"{scores} is as it was"):
        baseline = find_baseline(model, style)
        values, failed = grades(trajectories, baseline, tokenizer, wanted, scorer, spent := Ledger())
    ends = {one.trajectory_id: one.end for one in records}
    with Run.open(run_folder(scores) or scores, write=True) as run:
        run.add(*(Score(ends[one], name, value, GRADE, judges={name: baseline.identity}) for one, value in values.items()))
    return JudgedAttempts(len(values), tuple(failed), spent.to_json()["spent"], len(records), name)


def _findings(found: reports.BlameReport, able: Commands, settings: dict[str, Any]) -> list[Finding]:
    """What blame found in a run, whose commands these are, as the run keeps it: the verdict, and the steps most to blame."""
    made = [Finding("blame", BLAME, found.verdict, evidence=codec.to_json(found.floor), identity=settings)]
    for row in found.blamed:
        if row.node is not None:
            why = f"training made this step less likely than any of the successful attempts' (attempt {row.trajectory_id[:12]})"
            if row.fork is not None:
                sides = [f"{side.successes}/{side.n}" for side in (row.fork.before, row.fork.after)]
                p = p_value(row.fork.p_corrected)
                why += f"; success was {sides[0]} from before it and {sides[1]} from after it, p {p}: {row.fork.word}"
            do = able.go_on(row.node, "what else could have been done there")
            evidence = codec.to_json(row)
            made.append(Finding("step to blame", BLAME, why, row.node, 0, do, row.grade, "nats", evidence, settings))
    return made


def _apart(records: list[ScoreRecord], path: Path) -> list[ScoreRecord]:
    """Calibration records. Raises UserError where they share a task with those the choice is judged on."""
    found = read_scores(path)
    if shared := {one.task_id for one in records} & {one.task_id for one in found}:
        raise UserError(
            f"{path} shares {plural(len(shared), 'task')} with the scores, such as '{min(shared)}': calibrate on other tasks"
        )
    return found
