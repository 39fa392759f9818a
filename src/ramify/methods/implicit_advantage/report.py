"""What score records say together: how well grades and baselines rank outcomes, which attempt is best, which step is to blame.

Everything here reads score records (plain JSON), so it needs no model. The cell of the aggregation grid that was fixed in advance is
always reported beside one that was chosen on data, and the choice is made on other tasks than it is judged on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.methods.implicit_advantage import algorithm
from ramify.methods.implicit_advantage.algorithm import A_PRIORI, STEP_AGGS, TOKEN_AGGS, Rule, StepAgg, TokenAgg
from ramify.score.confidence import bottom10, tail
from ramify.stats import ranking
from ramify.stats.intervals import bootstrap

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
    for asked, name, known, fixed in zip(
        (token, step), ("token_agg", "step_agg"), (TOKEN_AGGS, STEP_AGGS), A_PRIORI, strict=True
    ):
        scored = {str(record.get(name)) for record in records}
        own.append(asked or (scored.pop() if len(scored) == 1 and scored <= set(known) else fixed))
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

    The log-probs take the a-priori cell and its per-token variant; ``baselines`` of a record (judges, reward models) come as they are.
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
    """AUROC of the grade and of every baseline against success, with intervals over tasks; ties, rank correlation, the luck ceiling.

    Attempts without a known end or a score are left out and counted. ``calibration`` records choose a cell, which is then added beside
    the given one. An AUROC of one class alone is None.
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
    """The cell of the 5 x 6 grid that does best on ``records``: by auroc, or best-of-n success. Ties and one class: the a-priori cell."""
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

    ``best_of`` mean success of the chosen ones, ``mean`` Mean@n, ``oracle`` Pass@n; ``gain`` = best_of - mean with a bootstrap interval
    over tasks. Tasks with an attempt whose end is unknown are chosen in, but not counted.
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
        "counted": len(won),
        "attempts": len(kept),
        "chosen": [
            {group: key, "trajectory_id": records[i]["trajectory_id"], "score": _none(scores[i])}
            for key, i in zip(groups, chosen.tolist(), strict=True)
        ],
    }
    shares = {"best_of": won, "mean": mean, "oracle": oracle, "gain": won - mean}
    out |= {name: float(values.mean()) if len(values) else None for name, values in shares.items()}
    out["gain_interval"] = _list(bootstrap(won - mean)) if len(won) else None
    return out


def blame_steps(
    records: Sequence[Record], rule: Rule = "sharpest-drop", top: int = 1, token: TokenAgg = "sum", every: bool = False
) -> list[dict[str, Any]]:
    """For each attempt known to have failed (``every``: each) the steps most to blame, worst first, with grade, action and node.

    A step without a graded token cannot be named: nothing is known of it.
    """
    rows = []
    for record in records:
        if record.get("success") is not False and not every:
            continue
        steps = [step for step in counted(record) if step["n_tokens"]]
        grades = np.array([step[f"A_{token}"] for step in steps], np.float64)
        for rank, at in enumerate(algorithm.blame(grades, rule, top), 1):
            step = steps[at]
            row = {"trajectory_id": record["trajectory_id"], "rank": rank, "step": step["i"], "of": len(record["steps"])}
            rows.append(row | {"grade": step[f"A_{token}"], "action": step.get("action"), "node": step.get("node")})
    return rows


def _scores(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _list(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)
