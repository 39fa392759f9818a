"""What score records say together: how well grades and baselines rank outcomes, which attempt is best, which step is to blame.

Everything here reads score records (plain JSON), so it needs no model. The cell of the aggregation grid that was fixed in advance
is always reported together with one that was chosen on data, and the choice is made on other tasks than it is judged on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.words import plural
from ramify.methods.implicit_advantage import algorithm
from ramify.methods.implicit_advantage.algorithm import A_PRIORI, STEP_AGGS, TOKEN_AGGS, Rule, StepAgg, TokenAgg
from ramify.methods.implicit_advantage.confidence import bottom10, tail
from ramify.stats import ranking
from ramify.stats.intervals import clustered_mean

LEVEL = 0.05
"""Chance that a verdict claims a finding where there is none."""
OWN = "policy log-prob"
"""The baseline that a grade must beat to be worth a second model."""

Record = Mapping[str, Any]
Cell = tuple[TokenAgg, StepAgg]


def counted(record: Record) -> list[Mapping[str, Any]]:
    """The steps of a record that count: those the length limit cut into do not, unless they were kept."""
    return [step for step in record["steps"] if record.get("keep_truncated", False) or not step["truncated"]]


def column(record: Record, name: str) -> np.ndarray:
    """One number of each step of a record that counts, (n,)."""
    return np.array([step[name] for step in counted(record)], np.float64)


def own_cell(records: Sequence[Record], token: TokenAgg | None = None, step: StepAgg | None = None) -> Cell:
    """The given cell; what is not given is what the records were scored with, or, where they differ, the a-priori cell's."""
    own: list[Any] = []
    for requested, name, known, fixed in zip(
        (token, step), ("token_agg", "step_agg"), (TOKEN_AGGS, STEP_AGGS), A_PRIORI, strict=True
    ):
        scored = {str(record.get(name)) for record in records}
        own.append(requested or (scored.pop() if len(scored) == 1 and scored <= set(known) else fixed))
    return own[0], own[1]


def cells(cell: Cell, tuned: Cell | None = None) -> dict[str, Cell]:
    """The cells to report, by what they are called: the given one, the a-priori one where it is another, the tuned one."""
    names = {"/".join(cell): cell}
    if cell != A_PRIORI:
        names[f"{'/'.join(A_PRIORI)} (a priori)"] = A_PRIORI
    return names if tuned is None else names | {f"{'/'.join(tuned)} (tuned)": tuned}


def cell_scores(records: Sequence[Record], token: TokenAgg, step: StepAgg) -> np.ndarray:
    """Scores of the records under one cell of the grid, (N,); NaN where no step counts."""
    return _scores([algorithm.attempt_score(column(record, f"A_{token}"), step) for record in records])


def baselines(records: Sequence[Record]) -> dict[str, np.ndarray]:
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
    found["few steps"] = -np.array([float(len(record["steps"])) for record in records])
    if all("confidence" in step for record in records for step in record["steps"]):
        sure = [column(record, "confidence") for record in records]
        found["self-certainty"] = _scores([algorithm.attempt_score(column(r, "certainty"), "mean") for r in records])
        found["deepconf tail"] = _scores([tail(c) if len(c) else None for c in sure])
        found["deepconf bottom 10 %"] = _scores([bottom10(c) if len(c) else None for c in sure])
        found["mean top-20 log-prob (released code)"] = -_scores([algorithm.attempt_score(c, "mean") for c in sure])
    for name in sorted({name for record in records for name in record.get("baselines") or {}}):
        found[name] = _scores([(record.get("baselines") or {}).get(name) for record in records])
    return found


def report(records: Sequence[Record], cell: Cell = A_PRIORI, calibration: Sequence[Record] = ()) -> dict[str, Any]:
    """AUROC of the grade and of every baseline against success, with intervals over tasks;
    ties, rank correlation, the luck ceiling.

    Attempts without a known end or a score are left out and counted. ``calibration`` records choose a cell, which is then added
    to the given one. An AUROC of one class alone is None.
    """
    known = [record for record in records if record.get("success") is not None]
    labels = np.array([bool(record["success"]) for record in known])
    tasks = [record["task_id"] for record in known]
    tuned = None
    if calibration:
        tuned, value = calibrate(calibration)
    columns = {f"advantage {name}": cell_scores(known, *one) for name, one in cells(cell, tuned).items()}
    first = next(iter(columns.values()))
    rows = []
    for name, scores in (columns | baselines(known)).items():
        on = ~np.isnan(scores) & ~np.isnan(first)
        rows.append(
            {"scorer": name} | _ranked(scores[on], labels[on], [t for t, o in zip(tasks, on, strict=True) if o], first[on])
        )
    ceiling, repeated = ranking.luck_ceiling([record.get("decisions", i) for i, record in enumerate(known)], labels)
    out: dict[str, Any] = {
        **_verdict_on_ranks(first, baselines(known)[OWN], labels, tasks),
        "attempts": len(records),
        "unlabelled": len(records) - len(known),
        "tasks": len(set(tasks)),
        "positives": int(labels.sum()),
        "luck_ceiling": ceiling,
        "repeated_decisions": repeated,
        "scorers": rows,
    }
    if tuned is not None:
        out |= {"tuned": list(tuned), "tuned_on_calibration": value, "tuned_here": _auroc(known, tuned)}
    return out


def _verdict_on_ranks(grade: np.ndarray, own: np.ndarray, labels: np.ndarray, tasks: list[Any]) -> dict[str, Any]:
    """Whether the grade or the policy's own log-prob ranks ``better``,
    and the grade other than by chance. Two looks share ``LEVEL``."""
    on = ~np.isnan(grade) & ~np.isnan(own)
    grade, own, labels, tasks = grade[on], own[on], labels[on], [t for t, o in zip(tasks, on, strict=True) if o]
    area, other = ranking.auroc(grade, labels), ranking.auroc(own, labels)
    level = 1 - LEVEL / 2
    span, apart = (ranking.auroc_interval(grade, labels, tasks, minus=minus, level=level) for minus in (None, own))
    if area is None or other is None or span is None or apart is None:
        return {
            "verdict": "nothing was ranked: it takes attempts at two tasks and both ends",
            "better": None,
            "beyond_chance": None,
        }
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
    return {"verdict": sentence, "better": better, "beyond_chance": beyond}


def _ranked(scores: np.ndarray, labels: np.ndarray, tasks: list[Any], first: np.ndarray) -> dict[str, Any]:
    own = ranking.auroc(scores, labels)
    alone = len(set(tasks)) == len(tasks)
    paired = ranking.delong(first, scores, labels) if alone else None
    return {
        "n": len(scores),
        "auroc": own,
        "interval": _list(ranking.auroc_interval(scores, labels, tasks)),
        "auroc_within_tasks": ranking.within_auroc(scores, labels, tasks),
        "spearman": ranking.spearman(scores, labels),
        "tie_rate": ranking.tie_rate(scores, labels),
        "advantage_minus_this": None if own is None else (ranking.auroc(first, labels) or 0.0) - own,
        "difference_interval": _list(ranking.auroc_interval(first, labels, tasks, minus=scores)),
        "delong_p": None if paired is None else paired[2],
    }


def calibrate(records: Sequence[Record], objective: str = "auroc", n: int = 8) -> tuple[Cell, float | None]:
    """The cell of the 5 x 6 grid that does best on ``records``: by auroc, or best-of-n success.
    Ties and one class: the a-priori cell."""
    best, top = A_PRIORI, _objective(records, A_PRIORI, objective, n)
    for token in TOKEN_AGGS:
        for step in STEP_AGGS:
            value = _objective(records, (token, step), objective, n)
            if value is not None and top is not None and value > top:
                best, top = (token, step), value
    return best, top


def _objective(records: Sequence[Record], cell: Cell, objective: str, n: int) -> float | None:
    return _auroc(records, cell) if objective == "auroc" else select(records, cell, n)["best_of"]


def _auroc(records: Sequence[Record], cell: Cell) -> float | None:
    known = [record for record in records if record.get("success") is not None]
    scores = cell_scores(known, *cell)
    on = ~np.isnan(scores)
    return ranking.auroc(scores[on], np.array([bool(record["success"]) for record in known])[on])


def select(
    records: Sequence[Record], cell: Cell = A_PRIORI, n: int = 8, group: str = "task_id", scores: np.ndarray | None = None
) -> dict[str, Any]:
    """The best of the first ``n`` attempts at each task, by the grade or by ``scores`` (N,), and what choosing was worth.

    ``best_of`` mean success of the chosen ones, ``mean`` Mean@n, ``oracle`` Pass@n; ``gain`` = best_of - mean with an interval
    over tasks (None of one task); ``gain_p`` the p-value of it, had one attempt at each task been sampled. Tasks with an attempt
    whose end is unknown are chosen in, but not counted.
    """
    for i, record in enumerate(records, 1):
        if group not in record:
            raise UserError(f"score record {i} has no field '{group}' to group by")
        if isinstance(record[group], (list, dict)):
            raise UserError(f"score record {i}: '{group}' is a list or object, and attempts are grouped by text or a number")
    groups: dict[Any, list[int]] = {}
    for i, record in enumerate(records):
        rows = groups.setdefault(record[group], [])
        if len(rows) < n:
            rows.append(i)
    scores = cell_scores(records, *cell) if scores is None else scores
    kept = np.array([i for rows in groups.values() for i in rows], np.int64)
    codes = np.array([code for code, rows in enumerate(groups.values()) for _ in rows], np.int64)
    chosen = kept[algorithm.best_of(scores[kept], codes)] if len(kept) else kept
    ends = [[records[i].get("success") for i in rows] for rows in groups.values()]
    known = [all(end is not None for end in row) for row in ends]
    won = np.array([float(bool(records[i].get("success"))) for i in chosen])[known]
    mean = np.array([np.mean([float(bool(end)) for end in row]) for row in ends])[known]
    oracle = np.array([float(any(row)) for row in ends])[known]
    out: dict[str, Any] = {
        "tasks": len(groups),
        "best_of_n": n,
        "counted": len(won),
        "attempts": len(kept),
        "chosen": [
            {group: key, "trajectory_id": records[i]["trajectory_id"], "score": _none(scores[i])}
            for key, i in zip(groups, chosen.tolist(), strict=True)
        ],
    }
    shares = {"best_of": won, "mean": mean, "oracle": oracle, "gain": won - mean}
    out |= {name: float(values.mean()) if len(values) else None for name, values in shares.items()}
    out["gain_interval"] = _list(clustered_mean(won - mean, range(len(won)))[1]) if len(won) else None
    out["gain_p"] = algorithm.chance_of_choice(float(won.sum()), mean) if len(won) else None
    return out


def blame(
    records: Sequence[Record],
    rule: Rule = "sharpest-drop",
    top: int = 1,
    token: TokenAgg = "sum",
    every: bool = False,
    level: float = LEVEL,
    against: Sequence[Record] = (),
) -> dict[str, Any]:
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
    looked = [record for record in records if every or record.get("success") is False]
    grades = [np.array([step[f"A_{token}"] for step in _graded(record)], np.float64) for record in looked]
    grades = [row for row in grades if len(row)]
    ordinary = [record for record in (*records, *against) if record.get("success")]
    held = [np.array([step[f"A_{token}"] for step in _graded(record)], np.float64) for record in ordinary]
    held = [row for row in held if len(row)]
    floor = 0.0 if level >= 1 else algorithm.floor_of(grades, held, level)
    blamed = [] if floor is None else [row for record in looked for row in _blamed(record, rule, top, token, floor)]
    fewest = math.ceil(len(grades) / (level * (1 + len(held))) - 1e-9)
    found = {
        "grade": floor,
        "level": level,
        "attempts": len(grades),
        "steps": sum(len(row) for row in grades),
        "ordinary": len(held),
        "fewest": fewest if 0 < fewest <= len(grades) else None,
    }
    return {"verdict": _verdict_on_steps(found, blamed), "floor": found, "blamed": blamed}


def _graded(record: Record) -> list[Mapping[str, Any]]:
    return [step for step in counted(record) if step["n_tokens"]]


def _blamed(record: Record, rule: Rule, top: int, token: TokenAgg, floor: float) -> list[dict[str, Any]]:
    """The steps of one attempt at or below ``floor``, in the order of the rule."""
    steps = _graded(record)
    order = algorithm.blame(np.array([step[f"A_{token}"] for step in steps], np.float64), rule, len(steps))
    worst = [steps[at] for at in order if steps[at][f"A_{token}"] < 0 and steps[at][f"A_{token}"] <= floor]
    rows = []
    for rank, step in enumerate(worst[:top], 1):
        row = {"trajectory_id": record["trajectory_id"], "rank": rank, "step": step["i"], "of": len(record["steps"])}
        rows.append(row | {"grade": step[f"A_{token}"], "action": step.get("action"), "node": step.get("node")})
    return rows


def _verdict_on_steps(found: Mapping[str, Any], blamed: Sequence[Mapping[str, Any]]) -> str:
    level, attempts, ordinary = found["level"], found["attempts"], found["ordinary"]
    if not attempts:
        return "no attempt is known to have failed, so no step was looked at"
    named = len({row["trajectory_id"] for row in blamed})
    if level >= 1:
        return f"no noise floor was set (level 1): the lowest steps below 0 in {named} of {attempts} attempts, whatever the noise"
    looked = f"the {plural(found['steps'], 'step')} of {plural(attempts, 'attempt')}"
    if named:
        return (
            f"steps stand out in {named} of {attempts} attempts: noise floor {found['grade']:.4g}, held against {ordinary} "
            "successful "
            f"attempts (level {level:g} over {looked})"
        )
    if found["fewest"] is None:
        return (
            f"nothing can stand out: {ordinary} successful attempts show no noise floor at level {level:g}, "
            f"which takes {math.ceil(1 / level - 1e-9) - 1} or more"
        )
    return (
        f"nothing stands out in {looked}, held against {plural(ordinary, 'successful attempt')} at level {level:g} "
        f"(a step lower than all of theirs would be seen in {found['fewest']} or more attempts)"
    )


def _comparable(records: Sequence[Record], against: Sequence[Record]) -> None:
    """Raises UserError where the grades of ``against`` are not on the scale of ``records``, or one attempt is in both."""
    for name in ("policy", "reference", "beta", "order"):
        own, theirs = ({str(record.get(name)) for record in side} for side in (records, against))
        if other := sorted(theirs - own):
            raise UserError(f"attempts to hold against were graded with '{name}' {other[0]}, these with {', '.join(sorted(own))}")
    if both := {record["trajectory_id"] for record in records} & {record["trajectory_id"] for record in against}:
        raise UserError(f"attempt '{min(both)}' is in both files of scores ({len(both)} are): it cannot be held against itself")


def chooser(records: Sequence[Record], by: str) -> np.ndarray | None:
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


def verdict_on_choice(row: Mapping[str, Any], by: str) -> str:
    """What choosing ``by`` a scorer gained over the mean attempt, from its row of :func:`select`."""
    if not row["counted"]:
        return f"chosen by {by}; what that gained is unknown: the ends of no task are all known"
    gain = f"{row['gain']:+.3f} over the mean of {row['best_of_n']} at {row['counted']} tasks (p {row['gain_p']:.2g})"
    if row["gain_p"] <= LEVEL:
        return f"choosing by {by} {'gained' if row['gain'] > 0 else 'lost'} success: {gain}"
    return f"nothing stands out: choosing by {by} changed success by no more than sampling may, {gain}"


def _written(name: str) -> str:
    return name.replace(" ", "-")


def _scores(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _list(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)
