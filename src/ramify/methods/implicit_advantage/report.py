"""What score records say together: how well grades and baselines rank outcomes, which attempt is best, which step is to blame.

Everything here reads score records, so it needs no model. The cell of the aggregation grid that was fixed in advance
is always reported together with one that was chosen on data, and the choice is made on other tasks than it is judged on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError, nearest
from ramify.base.words import plural
from ramify.methods.implicit_advantage import algorithm
from ramify.methods.implicit_advantage.algorithm import A_PRIORI, STEP_AGGS, TOKEN_AGGS, Rule, StepAgg, TokenAgg
from ramify.methods.implicit_advantage.confidence import bottom10, tail
from ramify.methods.implicit_advantage.records import ForkTest, ScoreRecord
from ramify.render.numbers import cell as shown
from ramify.render.numbers import interval, number, p_value, percent, percent_interval
from ramify.render.result import Cell as TableCell
from ramify.render.result import Result, Section, numbers, table
from ramify.stats import ranking
from ramify.stats.intervals import Interval, clustered_mean

LEVEL = 0.05
"""Chance that a verdict claims a finding where there is none."""
OWN = "policy log-prob"
"""The baseline that a grade must beat to be worth a second model."""
LISTED = 20
"""Chosen attempts that are shown one by one."""

Cell = tuple[TokenAgg, StepAgg]


def column(record: ScoreRecord, name: str) -> np.ndarray:
    """One number of each step of a record that counts, (n,)."""
    return np.array([getattr(step, name) for step in record.counted], np.float64)


def own_cell(records: Sequence[ScoreRecord], token: TokenAgg | None = None, step: StepAgg | None = None) -> Cell:
    """The given cell; what is not given is what the records were scored with, or, where they differ, the a-priori cell's."""
    own: list[Any] = []
    for requested, name, known, fixed in zip(
        (token, step), ("token_agg", "step_agg"), (TOKEN_AGGS, STEP_AGGS), A_PRIORI, strict=True
    ):
        scored = {str(getattr(record, name)) for record in records}
        own.append(requested or (scored.pop() if len(scored) == 1 and scored <= set(known) else fixed))
    return own[0], own[1]


def cells(cell: Cell, tuned: Cell | None = None) -> dict[str, Cell]:
    """The cells to report, by what they are called: the given one, the a-priori one where it is another, the tuned one."""
    names = {"/".join(cell): cell}
    if cell != A_PRIORI:
        names[f"{'/'.join(A_PRIORI)} (a priori)"] = A_PRIORI
    return names if tuned is None else names | {f"{'/'.join(tuned)} (tuned)": tuned}


def cell_scores(records: Sequence[ScoreRecord], token: TokenAgg, step: StepAgg) -> np.ndarray:
    """Scores of the records under one cell of the grid, (N,); NaN where no step counts."""
    return _scores([algorithm.attempt_score(column(record, f"A_{token}"), step) for record in records])


def baselines(records: Sequence[ScoreRecord]) -> dict[str, np.ndarray]:
    """Scores of every baseline the records allow, by name, each (N,), oriented so that higher should mean better.

    The log-probs take the a-priori cell and its per-token variant;
    ``baselines`` of a record (judges, reward models) come as they are.
    """
    found: dict[str, np.ndarray] = {}
    for name, source in (("policy log-prob", "logp_theta"), ("reference log-prob", "logp_ref")):
        sums = [column(record, source) for record in records]
        counts = [np.maximum(column(record, "n_tokens"), 1) for record in records]
        found[name] = _scores([algorithm.attempt_score(s, "mean") for s in sums])
        means = [algorithm.attempt_score(s / n, "mean") for s, n in zip(sums, counts, strict=True)]
        found[f"{name} a token"] = _scores(means)
    found["shortness"] = -np.array([column(record, "n_tokens").sum() for record in records])
    found["few steps"] = -np.array([float(len(record.steps)) for record in records])
    if all(step.confidence is not None for record in records for step in record.steps):
        sure = [column(record, "confidence") for record in records]
        found["self-certainty"] = _scores([algorithm.attempt_score(column(r, "certainty"), "mean") for r in records])
        found["deepconf tail"] = _scores([tail(c) if len(c) else None for c in sure])
        found["deepconf bottom 10 %"] = _scores([bottom10(c) if len(c) else None for c in sure])
        found["mean top-20 log-prob (released code)"] = -_scores([algorithm.attempt_score(c, "mean") for c in sure])
    for name in sorted({name for record in records for name in record.baselines}):
        found[name] = _scores([record.baselines.get(name) for record in records])
    return found


def report(records: Sequence[ScoreRecord], cell: Cell = A_PRIORI, calibration: Sequence[ScoreRecord] = ()) -> RankReport:
    """AUROC of the grade and of every baseline against success, with intervals over tasks;
    ties, rank correlation, the luck ceiling.

    Attempts without a known end or a score are left out and counted. ``calibration`` records choose a cell, which is then added
    to the given one. An AUROC of one class alone is None.
    """
    known = [record for record in records if record.success is not None]
    labels = np.array([bool(record.success) for record in known])
    tasks = [record.task_id for record in known]
    tuned, value = calibrate(calibration) if calibration else (None, None)
    columns = {f"advantage {name}": cell_scores(known, *one) for name, one in cells(cell, tuned).items()}
    first = next(iter(columns.values()))
    rows = []
    for name, scores in (columns | baselines(known)).items():
        on = ~np.isnan(scores) & ~np.isnan(first)
        rows.append(_ranked(name, scores[on], labels[on], [t for t, o in zip(tasks, on, strict=True) if o], first[on]))
    ceiling, repeated = ranking.luck_ceiling([record.decisions or i for i, record in enumerate(known)], labels)
    verdict, better, beyond = _verdict_on_ranks(first, baselines(known)[OWN], labels, tasks)
    return RankReport(
        verdict=verdict,
        better=better,
        beyond_chance=beyond,
        attempts=len(records),
        unlabelled=len(records) - len(known),
        tasks=len(set(tasks)),
        positives=int(labels.sum()),
        luck_ceiling=ceiling,
        repeated_decisions=repeated,
        scorers=tuple(rows),
        tuned=tuned,
        tuned_on_calibration=value,
        tuned_here=None if tuned is None else _auroc(known, tuned),
    )


@dataclass(frozen=True)
class RankedScorer:
    """How well one scorer ranks outcomes, beside the grade."""

    scorer: str
    n: int
    auroc: float | None
    interval: Interval | None
    auroc_within_tasks: float | None
    spearman: float | None
    tie_rate: float | None
    advantage_minus_this: float | None
    difference_interval: Interval | None
    delong_p: float | None

    def row(self) -> tuple[TableCell, ...]:
        """Its row in a table under :data:`RANKED`."""
        spans = {"interval": interval(self.interval), "difference_interval": interval(self.difference_interval)}
        return tuple(spans.get(name, getattr(self, name)) for name in RANKED)


RANKED = tuple(one.name for one in fields(RankedScorer) if one.name != "delong_p")


@dataclass(frozen=True)
class RankReport(Result):
    """How well grade and baselines rank outcomes (:func:`report`)."""

    verdict: str
    better: str | None
    beyond_chance: bool | None
    attempts: int
    unlabelled: int
    tasks: int
    positives: int
    luck_ceiling: float | None
    repeated_decisions: int
    scorers: tuple[RankedScorer, ...]
    tuned: Cell | None = None
    tuned_on_calibration: float | None = None
    tuned_here: float | None = None

    def sections(self) -> Iterable[Section]:
        """The verdict, the numbers, and a row for each scorer."""
        left_out = {"verdict", "scorers", "caveats"} | (set() if self.tuned else {"tuned", "tuned_on_calibration", "tuned_here"})
        told = {name: value for name, value in vars(self).items() if name not in left_out}
        told |= {"tuned": "/".join(self.tuned)} if self.tuned else {}
        yield Section.of("", self.verdict, numbers(told), table(RANKED, (one.row() for one in self.scorers)))


def _verdict_on_ranks(
    grade: np.ndarray, own: np.ndarray, labels: np.ndarray, tasks: list[Any]
) -> tuple[str, str | None, bool | None]:
    """Whether the grade or the policy's own log-prob ranks ``better``,
    and the grade other than by chance. Two looks share ``LEVEL``."""
    on = ~np.isnan(grade) & ~np.isnan(own)
    grade, own, labels, tasks = grade[on], own[on], labels[on], [t for t, o in zip(tasks, on, strict=True) if o]
    area, other = ranking.auroc(grade, labels), ranking.auroc(own, labels)
    level = 1 - LEVEL / 2
    span, apart = (ranking.auroc_interval(grade, labels, tasks, minus=minus, level=level) for minus in (None, own))
    if area is None or other is None or span is None or apart is None:
        return "nothing was ranked: it takes attempts at two tasks and both ends", None, None
    gap, beyond, better = area - other, not span[0] <= 0.5 <= span[1], None
    by = f"by {abs(gap):.3f} of AUROC ({{:.3f}} to {{:.3f}})"
    ranks = f"AUROC {area:.3f} ({span[0]:.3f} to {span[1]:.3f})"
    between = f"it and the policy's own log-prob do not differ significantly ({gap:+.3f}, {apart[0]:+.3f} to {apart[1]:+.3f})"
    if apart[1] < 0:
        better = OWN
        sentence = f"the policy's own log-prob ranks better than the grade, {by.format(-apart[1], -apart[0])}: "
        sentence += f"choose with select --by {_written(OWN)}"
    elif apart[0] > 0:
        better, sentence = "advantage", f"the grade ranks better than the policy's own log-prob, {by.format(*apart)}"
    elif beyond:
        sentence = f"the grade ranks {'better' if area > 0.5 else 'worse'} than chance, {ranks}; {between}"
    else:
        sentence = f"nothing stands out: the grade ranks as chance may, {ranks}, and {between}"
    return sentence, better, beyond


def _ranked(name: str, scores: np.ndarray, labels: np.ndarray, tasks: list[Any], first: np.ndarray) -> RankedScorer:
    own = ranking.auroc(scores, labels)
    alone = len(set(tasks)) == len(tasks)
    paired = ranking.delong(first, scores, labels) if alone else None
    return RankedScorer(
        scorer=name,
        n=len(scores),
        auroc=own,
        interval=ranking.auroc_interval(scores, labels, tasks),
        auroc_within_tasks=ranking.within_auroc(scores, labels, tasks),
        spearman=ranking.spearman(scores, labels),
        tie_rate=ranking.tie_rate(scores, labels),
        advantage_minus_this=None if own is None else (ranking.auroc(first, labels) or 0.0) - own,
        difference_interval=ranking.auroc_interval(first, labels, tasks, minus=scores),
        delong_p=None if paired is None else paired[2],
    )


def calibrate(records: Sequence[ScoreRecord], objective: str = "auroc", n: int = 8) -> tuple[Cell, float | None]:
    """The cell of the 5 x 6 grid that does best on ``records``: by auroc, or best-of-n success.
    Ties and one class: the a-priori cell."""
    best, top = A_PRIORI, _objective(records, A_PRIORI, objective, n)
    for token in TOKEN_AGGS:
        for step in STEP_AGGS:
            value = _objective(records, (token, step), objective, n)
            if value is not None and top is not None and value > top:
                best, top = (token, step), value
    return best, top


def _objective(records: Sequence[ScoreRecord], cell: Cell, objective: str, n: int) -> float | None:
    return _auroc(records, cell) if objective == "auroc" else select(records, cell, n).best_of


def _auroc(records: Sequence[ScoreRecord], cell: Cell) -> float | None:
    known = [record for record in records if record.success is not None]
    scores = cell_scores(known, *cell)
    on = ~np.isnan(scores)
    return ranking.auroc(scores[on], np.array([bool(record.success) for record in known])[on])


def select(
    records: Sequence[ScoreRecord], cell: Cell = A_PRIORI, n: int = 8, group: str = "task_id", scores: np.ndarray | None = None
) -> ChoiceWorth:
    """The best of the first ``n`` attempts at each task, by the grade or by ``scores`` (N,), and what choosing was worth.
    Of several that tie the first is chosen, and counted is their average: a scorer that tells nothing apart gains nothing.

    ``best_of`` mean success of the chosen ones, ``mean`` Mean@n, ``oracle`` Pass@n; ``gain`` = best_of - mean with an interval
    over tasks (None of one task); ``gain_p`` the p-value of it, had one attempt at each task been sampled. Tasks with an attempt
    whose end is unknown are chosen in, but not counted.
    """
    for i, record in enumerate(records, 1):
        if not hasattr(record, group):
            raise UserError(f"score record {i} has no field '{group}' to group by")
        if isinstance(getattr(record, group), (tuple, Mapping, list)):
            raise UserError(f"score record {i}: '{group}' is a list or object, and attempts are grouped by text or a number")
    groups: dict[Any, list[int]] = {}
    for i, record in enumerate(records):
        rows = groups.setdefault(getattr(record, group), [])
        if len(rows) < n:
            rows.append(i)
    scores = cell_scores(records, *cell) if scores is None else scores
    kept = np.array([i for rows in groups.values() for i in rows], np.int64)
    codes = np.array([code for code, rows in enumerate(groups.values()) for _ in rows], np.int64)
    parts = algorithm.best_of(scores[kept], codes)
    tied = np.bincount(codes, parts > 0)
    first = np.flatnonzero(parts > 0)[np.unique(codes[parts > 0], return_index=True)[1]] if len(kept) else np.zeros(0, int)
    chosen = kept[first]
    ends = [[records[i].success for i in rows] for rows in groups.values()]
    known = np.array([all(end is not None for end in row) for row in ends], bool)
    success = np.array([float(bool(records[i].success)) for i in kept])
    won = np.bincount(codes, parts * success)[known]
    successes, attempts = np.bincount(codes, success)[known], np.bincount(codes)[known]
    mean, oracle = successes / np.maximum(1, attempts), (successes > 0).astype(float)
    picks = (
        Chosen(key, records[i].trajectory_id, None if np.isnan(scores[i]) else float(scores[i]), int(k))
        for key, i, k in zip(groups, chosen.tolist(), tied.tolist(), strict=True)
    )
    return ChoiceWorth(
        tasks=len(groups),
        best_of_n=n,
        counted=len(won),
        attempts=len(kept),
        chosen=tuple(picks),
        best_of=_mean(won),
        mean=_mean(mean),
        oracle=_mean(oracle),
        gain=_mean(won - mean),
        gain_interval=clustered_mean(won - mean, range(len(won)))[1] if len(won) else None,
        gain_p=algorithm.chance_of_choice(won, tied[known].astype(int), successes.astype(int), attempts) if len(won) else None,
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


@dataclass(frozen=True)
class Chosen:
    """The attempt chosen among those that share ``group``, the value of the field that attempts were grouped by."""

    group: Any
    trajectory_id: str
    score: float | None
    tied: int
    """How many attempts of the group have this score; the first of them is the one chosen."""


@dataclass(frozen=True)
class ChoiceWorth:
    """What choosing by one scorer was worth (:func:`select`)."""

    tasks: int
    best_of_n: int
    counted: int
    attempts: int
    best_of: float | None
    mean: float | None
    oracle: float | None
    gain: float | None
    gain_interval: Interval | None
    gain_p: float | None
    chosen: tuple[Chosen, ...] = field(metadata={"json": False}, repr=False)


@dataclass(frozen=True)
class Choices(Result):
    """The attempts chosen by one scorer, what that was worth, and what others would have been."""

    verdict: str
    chosen_by: str
    grouped_by: str
    chosen: tuple[Chosen, ...]
    by: Mapping[str, ChoiceWorth]

    def sections(self) -> Iterable[Section]:
        """The verdict, a row for each scorer, and the chosen attempts."""
        head = ("chosen by", "best_of", "mean", "oracle", "gain", "gain_interval", "gain_p", "counted")
        rows = [
            (name, one.best_of, one.mean, one.oracle, one.gain, interval(one.gain_interval), p_value(one.gain_p), one.counted)
            for name, one in self.by.items()
        ]
        chosen = [(shown(one.group), one.trajectory_id, one.score) for one in self.chosen[:LISTED]]
        more = len(self.chosen) - LISTED
        yield Section.of(
            "",
            self.verdict,
            table(head, rows),
            table((self.grouped_by, "chosen", "score"), chosen),
            f"and {more} more (--json lists all)" if more > 0 else "",
        )


def blame(
    records: Sequence[ScoreRecord],
    rule: Rule = "sharpest-drop",
    top: int = 1,
    token: TokenAgg = "sum",
    every: bool = False,
    level: float = LEVEL,
    against: Sequence[ScoreRecord] = (),
) -> BlameReport:
    """For each attempt known to have failed (``every``: each) the steps most to blame, worst first, of those that stand out.

    A step stands out where its grade is at or below the noise floor that successful attempts show, those of ``against`` included:
    see :func:`ramify.methods.implicit_advantage.algorithm.floor_of`. ``level`` 1 sets no floor: the lowest steps below 0,
    whatever the noise. A step without a graded token cannot be named. Returned: ``verdict``, a sentence; ``floor`` with its
    ``grade`` (None where nothing stands out), ``level``, how many ``attempts`` and ``steps`` were looked at, how many
    ``ordinary`` attempts they were held against, and ``fewest``, in how many failed attempts a step lower than all of theirs
    would be seen (None: in no number of them); and ``blamed``. Raises UserError where ``against`` was graded by other models or
    settings, or holds an attempt of ``records``.
    """
    _comparable(records, against)
    looked = [record for record in records if every or record.success is False]
    grades = [np.array([step.grade(token) for step in record.graded], np.float64) for record in looked]
    grades = [row for row in grades if len(row)]
    ordinary = [record for record in (*records, *against) if record.success]
    held = [np.array([step.grade(token) for step in record.graded], np.float64) for record in ordinary]
    held = [row for row in held if len(row)]
    floor = 0.0 if level >= 1 else algorithm.floor_of(grades, held, level)
    blamed = [] if floor is None else [row for record in looked for row in _blamed(record, rule, top, token, floor)]
    fewest = math.ceil(len(grades) / (level * (1 + len(held))) - 1e-9)
    found = NoiseFloor(
        grade=floor,
        level=level,
        attempts=len(grades),
        steps=sum(len(row) for row in grades),
        ordinary=len(held),
        fewest=fewest if 0 < fewest <= len(grades) else None,
    )
    return BlameReport(_verdict_on_steps(found, blamed), found, tuple(blamed))


def _blamed(record: ScoreRecord, rule: Rule, top: int, token: TokenAgg, floor: float) -> Iterable[Blamed]:
    """The steps of one attempt at or below ``floor``, in the order of the rule."""
    steps = record.graded
    grades = [step.grade(token) for step in steps]
    order = algorithm.blame(np.array(grades, np.float64), rule, len(steps))
    worst = [at for at in order if grades[at] < 0 and grades[at] <= floor]
    for rank, at in enumerate(worst[:top], 1):
        step = steps[at]
        yield Blamed(record.trajectory_id, rank, step.i, len(record.steps), grades[at], step.action, step.node)


@dataclass(frozen=True)
class Blamed:
    """A step that stands out: its ``rank`` in its attempt, worst first, and what forks say of it where they were played."""

    trajectory_id: str
    rank: int
    step: int
    of: int
    grade: float
    action: str | None
    node: str | None
    fork: ForkTest | None = None


@dataclass(frozen=True)
class NoiseFloor:
    """At or below which ``grade`` a step stands out, and what it was held against; ``fewest``: in how many attempts a step lower
    than all of theirs would be seen."""

    grade: float | None
    level: float
    attempts: int
    steps: int
    ordinary: int
    fewest: int | None


@dataclass(frozen=True)
class BlameReport(Result):
    """The steps most to blame (:func:`blame`)."""

    verdict: str
    floor: NoiseFloor
    blamed: tuple[Blamed, ...]
    forked: bool = field(default=False, metadata={"json": False})
    """Whether steps were put to the test."""
    failed: bool = field(default=False, metadata={"json": False})
    """Whether every attempt at that failed."""

    @property
    def exit_code(self) -> int:
        """1 where no step could be put to the test."""
        return EXIT_FAILED if self.failed else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """The verdict and the steps."""
        head = ["attempt", "rank", "step", "of", "grade", "action"]
        rows: list[list[TableCell]] = [
            [one.trajectory_id, one.rank, one.step, one.of, one.grade, (one.action or "")[:60]] for one in self.blamed
        ]
        if self.forked:
            head += ["before", "95 % interval", "after", "95 % interval of it", "p, corrected", "forks say"]
            rows = [[*row, *_forked(one.fork)] for row, one in zip(rows, self.blamed, strict=True)]
        yield Section.of("", self.verdict, table(head, rows))


def _forked(test: ForkTest | None) -> list[TableCell]:
    """What forks say of a step, as cells of a table."""
    if test is None:
        return [None, None, None, None, None, "not measured"]
    sides = [cell for side in (test.before, test.after) for cell in (percent(side.success), percent_interval(side.interval))]
    return [*sides, p_value(test.p_corrected), test.word]


def _verdict_on_steps(found: NoiseFloor, blamed: Sequence[Blamed]) -> str:
    level, attempts, ordinary = found.level, found.attempts, found.ordinary
    if not attempts:
        return "no attempt is known to have failed, so no step was looked at"
    named = len({row.trajectory_id for row in blamed})
    if level >= 1:
        return f"no noise floor was set (level 1): the lowest steps below 0 in {named} of {attempts} attempts, whatever the noise"
    looked = f"the {plural(found.steps, 'step')} of {plural(attempts, 'attempt')}"
    if named:
        return (
            f"steps stand out in {named} of {attempts} attempts: noise floor {number(found.grade)}, held against {ordinary} "
            f"successful attempts (level {level:g} over {looked})"
        )
    if found.fewest is None:
        return (
            f"nothing can stand out: {ordinary} successful attempts show no noise floor at level {level:g}, "
            f"which takes {math.ceil(1 / level - 1e-9) - 1} or more"
        )
    return (
        f"nothing stands out in {looked}, held against {plural(ordinary, 'successful attempt')} at level {level:g} "
        f"(a step lower than all of theirs would be seen in {found.fewest} or more attempts)"
    )


def _comparable(records: Sequence[ScoreRecord], against: Sequence[ScoreRecord]) -> None:
    """Raises UserError where the grades of ``against`` are not on the scale of ``records``, or one attempt is in both."""
    for name in ("policy", "reference", "beta", "order"):
        own, theirs = ({str(getattr(record, name)) for record in side} for side in (records, against))
        if other := sorted(theirs - own):
            raise UserError(f"attempts to hold against were graded with '{name}' {other[0]}, these with {', '.join(sorted(own))}")
    if both := {record.trajectory_id for record in records} & {record.trajectory_id for record in against}:
        raise UserError(f"attempt '{min(both)}' is in both files of scores ({len(both)} are): it cannot be held against itself")


def chooser(records: Sequence[ScoreRecord], by: str) -> np.ndarray | None:
    """Scores to choose by, (N,): those of the baseline ``by``, blanks or hyphens between its words;
    None for the advantage itself.

    Raises UserError on a name that there is no scorer of.
    """
    if by == "advantage":
        return None
    known = baselines(records)
    written = {_written(name): name for name in known}
    if _written(by) not in written:
        raise UserError(f"these records hold no scorer '{by}' to choose by; {nearest(_written(by), ['advantage', *written])}")
    return known[written[_written(by)]]


def verdict_on_choice(row: ChoiceWorth, by: str) -> str:
    """What choosing ``by`` a scorer gained over the mean attempt, from its row of :func:`select`."""
    if row.gain is None or row.gain_p is None:
        return f"chosen by {by}; what that gained is unknown: the ends of no task are all known"
    gain = f"{row.gain:+.3f} over the mean of {row.best_of_n} at {row.counted} tasks (p {p_value(row.gain_p)})"
    if row.gain_p <= LEVEL:
        return f"choosing by {by} {'gained' if row.gain > 0 else 'lost'} success: {gain}"
    return f"nothing stands out: choosing by {by} changed success by no more than sampling may, {gain}"


def _written(name: str) -> str:
    return name.replace(" ", "-")


def _scores(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float64)
