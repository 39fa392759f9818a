"""From attempts to grades: log-probs of both models, advantages of every step, a score for the attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.config import check
from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.ids import stable_hash
from ramify.base.waiting import wait_for
from ramify.methods.implicit_advantage.algorithm import (
    DOMINATED,
    TOKEN_AGGS,
    AdvantageConfig,
    attempt_score,
    by_step,
    noise_floor,
    step_columns,
    token_advantages,
)
from ramify.methods.implicit_advantage.confidence import TOP_K, confidences
from ramify.methods.implicit_advantage.records import ScoredStep, ScoreRecord
from ramify.model.pair import Fault, Pair
from ramify.model.protocol import TokenScores
from ramify.score.trajectories import Trajectory
from ramify.trace.aliases import IMPORTED
from ramify.trace.db import Record, Run
from ramify.trace.foreign import root
from ramify.trace.node import IMPORT, Annotation, AttemptRecord, Score, TokenValues, make_node
from ramify.trace.path import Path as TreePath
from ramify.trace.sources import run_folder

MAKER = "implicit-advantage"
UNIT, GRADE = "advantage", "grade"
"""Units of scores: of the method's own, and of other judges' that it is compared with."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GradedAttempt:
    """An attempt with its grades."""

    trajectory: Trajectory
    columns: dict[str, np.ndarray]
    """One entry a step, (n,): see ``algorithm.step_columns``; ``truncated`` marks steps that the length limit cut."""
    config: AdvantageConfig
    logprobs: tuple[np.ndarray, np.ndarray]
    """float32 (T,) of the row that was scored (cut from the left where it was too long), policy and reference."""
    step: np.ndarray
    """(T,): which step each token of that row is graded in, -1 for none."""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """In a few words: `asyncio.run` writes out what a finished task returned, and thousands of arrays take their time."""
        return f"Scored({self.trajectory.id!r}, {self.trajectory.n} steps, score {self.score})"

    @property
    def graded(self) -> np.ndarray:
        """Numbers of the steps that count: all, but for those cut into unless ``keep_truncated``."""
        return np.flatnonzero(~self.columns["truncated"] | self.config.keep_truncated)

    @property
    def steps(self) -> np.ndarray:
        """Grades of the steps that count, in order."""
        grades: np.ndarray = self.columns[f"A_{self.config.token}"][self.graded]
        return grades

    @property
    def score(self) -> float | None:
        """The attempt's score; None where no step counts."""
        return attempt_score(self.steps, self.config.step)

    def record(self, policy: str = "", reference: str = "") -> ScoreRecord:
        """The score record of section 3.6; every token aggregator is kept, so that a choice among them needs no model."""
        c, t = self.columns, self.trajectory
        names = ["n_tokens", *(f"A_{kind}" for kind in TOKEN_AGGS), "logp_theta", "logp_ref", "truncated"]
        names += [name for name in ("confidence", "certainty") if name in c]
        actions, nodes = (dict(enumerate(known)) for known in (t.actions, t.nodes))
        steps = (
            ScoredStep(i, action=actions.get(i), node=nodes.get(i), **{name: c[name][i].item() for name in names})
            for i in range(t.n)
        )
        return ScoreRecord(
            trajectory_id=t.id,
            task_id=t.task,
            steps=tuple(steps),
            policy_id=t.policy,
            policy=policy,
            reference=reference,
            beta=self.config.beta,
            order=self.config.order,
            token_agg=self.config.token,
            step_agg=self.config.step,
            keep_truncated=self.config.keep_truncated,
            score=self.score,
            decisions=decisions(t),
            reward=t.reward,
            success=t.success,
            warnings=self.warnings,
        )


def keep_grades(folder: Path, scored: Sequence[GradedAttempt], rows: Sequence[ScoreRecord], pair: Pair | None) -> str:
    """Keep grades in the run that the attempts are of: a score at each attempt's end (its record as evidence), a ``grade``
    annotation at each step, and the advantage of each of its tokens. Returns why they could not be kept, else an empty text."""
    judges = graders(pair)
    try:
        with Run.open(folder, write=True) as run, run.transaction():
            for one, row in zip(scored, rows, strict=True):
                run.add(Score(one.trajectory.id, MAKER, one.score, UNIT, evidence=_evidence(row), judges=judges))
                for step in row.steps:
                    if step.node is not None:
                        run.add(grade_annotation(step, one.config.token))
                run.add(*token_values(run.path(one.trajectory.id), one))
    except RamifyError as error:
        return f"the grades are not kept in the run: {error}"
    return ""


def graders(pair: Pair | None) -> dict[str, str]:
    """What grades depend on, as hashes: the weights of both models, or that log-probs were stored."""
    if pair is None:
        return {"log-probs": stable_hash("stored")}
    return {side: getattr(pair, side).model().identity.weights for side in ("policy", "reference")}


def make_run(folder: Path, config: AdvantageConfig, scored: Mapping[str, Any], attempts: Sequence[Trajectory]) -> Run:
    """The run in ``folder`` that grades of attempts of a file are kept in: a new one, or the one that the same call made.

    ``scored`` are further settings: the models, what grades hold. Raises UserError where another run or anything else is there.
    """
    rows = [(one.tokens, one.step, one.policy_logprobs, one.reference_logprobs) for one in attempts]
    results = [(one.id, repr(one.reward), repr(one.success)) for one in attempts]
    hashed = [part for row in rows for part in (b"" if column is None else column.tobytes() for column in row)]
    what = stable_hash("attempts", *(text for texts in results for text in texts), *hashed)
    return Run.begin(folder, f"{MAKER} score", {**config.to_json(), **scored}, parts={"attempts": what})


def add_record(run: Run, record: ScoreRecord, number: int, judges: Mapping[str, str]) -> None:
    """A score record in a run: the task's tree, the actions as nodes with their grades,
    the attempt's score and end at its last one.

    What the agent was shown is not in it. ``number`` distinguishes attempts with equal actions; ``judges`` as in :class:`Score`.
    """
    task = record.task_id
    run.add_tree(task, {"id": task})
    node, steps = root(run, task), []
    for step in record.steps:
        node = make_node(task, node.id, len(node), "assistant", step.action or "", index=number)
        steps.append(replace(step, node=node.id))
        run.add(node, grade_annotation(steps[-1], record.token_agg))
    end = make_node(task, node.id, len(node), "user", "", index=number)
    evidence = _evidence(replace(record, steps=tuple(steps)))
    found: list[Record] = [Score(end.id, MAKER, record.score, UNIT, evidence=evidence, judges=judges)]
    for name, value in record.baselines.items():
        known = record.judges.get(name)
        found.append(Score(end.id, name, value, GRADE, judges={} if known is None else {name: known}))
    if record.success is not None:
        paid = float(record.success) if record.reward is None else float(record.reward)
        found.append(Score(end.id, IMPORTED, paid))
        found.append(AttemptRecord(end.id, task, None, 0, IMPORT, number, record.success, paid))
    run.add(end, *found)


def _evidence(record: ScoreRecord) -> Any:
    """A record as the evidence of its score; other judges' grades are scores of their own."""
    return codec.to_json(replace(record, baselines={}, judges={}, end=""))


def grade_annotation(step: ScoredStep, token: str) -> Annotation:
    """The grades of a step, as an annotation of its node; ``A`` is that of the aggregation ``token``."""
    known = {name: value for name, value in vars(step).items() if value is not None}
    numbers = {name: value for name, value in known.items() if name not in ("i", "action", "node")}
    return Annotation(known["node"], 0, "grade", MAKER, {"A": step.grade(token), **numbers})


def token_values(path: TreePath, scored: GradedAttempt) -> list[TokenValues]:
    """A of every sampled token of the nodes on the path; one number, the grade of the step, for a node of text alone."""
    nodes = {name: i for i, name in enumerate(scored.trajectory.nodes)}
    if any(node.tokens is None and len(node) for node, _ in path.segments):
        grades = scored.columns[f"A_{scored.config.token}"]
        return [
            TokenValues(node.id, "advantage", MAKER, np.array([grades[nodes[node.id]]], np.float32))
            for node, _ in path.segments
            if node.id in nodes and nodes[node.id] < len(grades)
        ]
    kept = len(scored.step)
    step = np.concatenate([np.full(len(scored.trajectory.tokens) - kept, -1), scored.step])
    values = np.zeros(len(step))
    values[len(step) - kept :] = token_advantages(*scored.logprobs, scored.config.beta)
    values = np.where(step >= 0, values, 0.0)
    found, start = [], 0
    for node, length in path.segments:
        if (step[start : start + length] >= 0).any():
            own = np.zeros(len(node), np.float32)
            own[:length] = values[start : start + length]
            found.append(TokenValues(node.id, "advantage", MAKER, own))
        start += length
    return found


def read_scores(path: Path) -> list[ScoreRecord]:
    """The records of the attempts that were graded in a run, with other judges' grades of them as ``baselines``.

    Raises UserError where none was, or naming run, record and field of what is not a score record.
    """
    folder = run_folder(path) or path
    with Run.open(folder) as run:
        scores = run.scores()
    kept = [one for one in scores if one.scorer == MAKER and isinstance(one.evidence, dict) and "trajectory_id" in one.evidence]
    if not kept:
        raise UserError(
            f"no attempt of {folder} is graded: `ramify implicit-advantage score --trajectories {folder}` grades them"
        )
    given: dict[str, list[Score]] = {one.node: [] for one in kept}
    for one in scores:
        if one.unit == GRADE and one.node in given:
            given[one.node].append(one)
    found = []
    for number, own in enumerate({one.node: one for one in kept}.values(), 1):
        record, others = codec.from_json(ScoreRecord, own.evidence, f"{path}: record {number}"), given[own.node]
        baselines = {**record.baselines, **{one.scorer: one.value for one in others}}
        judges = {**record.judges, **{name: known for one in others for name, known in one.judges.items()}}
        found.append(replace(record, end=own.node, baselines=baselines, judges=judges))
    return found


def decisions(attempt: Trajectory) -> str:
    """Hash of task and actions: attempts with equal ones differ by luck alone."""
    return stable_hash("decisions", attempt.task, attempt.tokens[attempt.step >= 0].tobytes())


class AdvantageScorer:
    """Scores attempts with a pair of models; with ``pair=None`` by the log-probs of both that attempts carry.

    ``options`` are fields of ``AdvantageConfig``: ``AdvantageScorer(pair, token="sum", step="mean").score(attempt)``.
    ``noise_rows`` attempts are scored twice to measure rounding;
    steps whose grade lies below three deviations of it then carry a warning.
    """

    def __init__(self, pair: Pair | None, config: AdvantageConfig | None = None, *, noise_rows: int = 0, **options: Any) -> None:
        self.pair = pair
        self.config = config or check(AdvantageConfig, options)
        self.noise_rows = noise_rows

    def score(self, attempt: Trajectory) -> GradedAttempt:
        """Grade one attempt. Not inside a running event loop: there, ``await each([attempt])``."""
        return self.score_many([attempt])[0]

    def score_many(self, attempts: Sequence[Trajectory]) -> list[GradedAttempt]:
        """Grade attempts in batches; each result is that of the attempt alone but for rounding.

        Raises UserError naming the attempt and token where a log-prob is not a finite number, and what models raise.
        """
        done = []
        for attempt, found in zip(attempts, wait_for(self.each(attempts)), strict=True):
            if isinstance(found, UserError):
                raise UserError(f"attempt '{attempt.id}': {found}") from found
            if isinstance(found, InfrastructureError):
                raise found
            done.append(found)
        return done

    def score_each(
        self, attempts: Sequence[Trajectory], sure: bool = False, progress: Callable[[int], object] = lambda rows: None
    ) -> tuple[list[GradedAttempt], list[str]]:
        """Grade attempts and, one sentence each, those that cannot be (too long for a model,
        a server's fault): the others continue.

        See :meth:`each`.
        """
        found = wait_for(self.each(attempts, sure, progress))
        failed = [
            f"attempt '{a.id}': {one}" for a, one in zip(attempts, found, strict=True) if not isinstance(one, GradedAttempt)
        ]
        return [one for one in found if isinstance(one, GradedAttempt)], failed

    async def each(
        self, attempts: Sequence[Trajectory], sure: bool = False, progress: Callable[[int], object] = lambda rows: None
    ) -> list[GradedAttempt | Fault]:
        """Grade attempts; one that cannot be graded gives its error instead of a score, and the others are not affected.

        ``sure`` adds how sure the policy was of each step (``confidence``, ``certainty``), for the baselines; no further pass.
        ``progress`` is called after each row of either model, two per attempt.
        """
        rows = [attempt.tokens[-self.config.max_length :] for attempt in attempts]
        scored = await self._token_scores(attempts, rows, sure, progress)
        found: list[Any] = list(scored)
        steps: dict[int, np.ndarray] = {}
        for i, one in enumerate(scored):
            try:
                if isinstance(one, tuple):
                    steps[i] = self._graded(attempts[i], *one)
            except UserError as error:
                found[i] = error
        good = [one for i in steps if isinstance(one := scored[i], tuple)]
        counts = [attempts[i].n for i in steps]
        ends = np.cumsum([0, *counts])  # one table over the steps of all attempts, cut apart below
        flat = np.concatenate(
            [np.zeros(0, np.int64), *(np.where(s >= 0, s + e, -1) for s, e in zip(steps.values(), ends, strict=False))]
        )
        first, second = (np.concatenate([np.zeros(0), *(one[side].logprobs for one in good)]) for side in (0, 1))
        table = step_columns(first, second, flat, int(ends[-1]), self.config)
        if sure and self.pair is not None:
            tokens = [confidences(one[0], self.pair.policy.name) for one in good]
            for name in ("confidence", "certainty"):
                values = np.concatenate([np.zeros(0), *(own[name] for own in tokens)])
                table[name] = by_step(values, flat, int(ends[-1]), "mean")
        table["truncated"] = np.zeros(int(ends[-1]), np.bool_)
        for i, end in zip(steps, ends, strict=False):
            if len(rows[i]) < len(attempts[i].tokens):
                lost = attempts[i].step[: self._first(attempts[i], len(rows[i]))]
                table["truncated"][end + lost[lost >= 0]] = True
        notes = self._notes(table, np.repeat(np.arange(len(good)), counts), len(good))
        for k, (i, (policy, reference)) in enumerate(zip(steps, good, strict=True)):
            columns = {name: column[ends[k] : ends[k + 1]] for name, column in table.items()}
            found[i] = GradedAttempt(attempts[i], columns, self.config, (policy.logprobs, reference.logprobs), steps[i], notes[k])
        return found

    async def _token_scores(
        self, attempts: Sequence[Trajectory], rows: Sequence[np.ndarray], sure: bool, progress: Callable[[int], object]
    ) -> Sequence[tuple[TokenScores, TokenScores] | Fault]:
        """What the pair says of each row; without a pair what the attempts carry. Raises UserError where they carry nothing."""
        if self.pair is not None:
            return await self.pair.each(rows, self.noise_rows, TOP_K if sure else 0, progress)
        stored = []
        for attempt, row in zip(attempts, rows, strict=True):
            if attempt.policy_logprobs is None or attempt.reference_logprobs is None:
                raise UserError(f"attempt '{attempt.id}' stores no log-probs of both models, and no pair was given")
            policy, reference = (side[-len(row) :] for side in (attempt.policy_logprobs, attempt.reference_logprobs))
            stored.append((TokenScores(policy), TokenScores(reference)))
        return stored

    def _first(self, attempt: Trajectory, kept: int) -> int:
        """Index in the attempt of the first token with a log-prob: a row's own first has none, unless a cut left stored ones."""
        cut = len(attempt.tokens) - kept
        return cut if self.pair is None and cut else cut + 1

    def _graded(self, attempt: Trajectory, policy: TokenScores, reference: TokenScores) -> np.ndarray:
        """Which step each token of the scored row counts to, (T,).
        Raises UserError where a log-prob of one is not a finite number."""
        kept = len(policy.logprobs)
        cut = len(attempt.tokens) - kept
        step = attempt.step[cut:].copy()
        if not self.config.keep_special and self.pair is not None:
            step[np.isin(attempt.tokens[cut:], list(self.pair.special))] = -1
        step[: self._first(attempt, kept) - cut] = -1
        for name, side in (("policy", policy), ("reference", reference)):
            finite(side.logprobs, step, attempt.tokens[cut:], name, cut)
        return step

    def _notes(self, table: dict[str, np.ndarray], owner: np.ndarray, n: int) -> list[tuple[str, ...]]:
        """Warnings about the steps of each of the ``n`` attempts; ``owner`` is the attempt of each row of the table."""
        tokens = table["n_tokens"]
        alike = bool(tokens.any()) and not (table["A_min"].any() or table["A_max"].any())
        odd = {
            f"steps were cut into by max_length = {self.config.max_length}": table["truncated"],
            "steps have ratio 0: the reference acts as the policy does": np.full(len(tokens), alike),
            "steps have no token and grade 0": tokens == 0,
            "steps are one token's doing (over half of |A|)": (tokens > 2) & (table["top_share"] > DOMINATED),
        }
        if self.pair is not None and self.pair.noise:
            floor = noise_floor(tokens, self.pair.noise, self.config.beta)
            odd["steps lie below the noise floor of rounding"] = (np.abs(table["A_sum"]) < floor) & (tokens > 0)
        counts = {what: np.bincount(owner[where], minlength=n).tolist() for what, where in odd.items()}
        return [tuple(f"{found[k]} {what}" for what, found in counts.items() if found[k]) for k in range(n)]


def finite(values: np.ndarray, step: np.ndarray, tokens: np.ndarray, name: str, cut: int = 0) -> None:
    """Raise UserError naming the first graded token (``step`` >= 0) whose log-prob is not finite. All arrays are (T,)."""
    bad = np.flatnonzero((step >= 0) & ~np.isfinite(values))
    if len(bad):
        at = int(bad[0])
        raise UserError(
            f"token {cut + at} (id {int(tokens[at])}, step {int(step[at])}) has the log-prob {float(values[at])} under the "
            f"{name}, "
            "so its ratio is not a number"
        )
