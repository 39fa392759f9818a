"""Attempts as step records, the table that credit rules read: from JSON lines, Parquet and the trees of a run.

One record per step: task_id, attempt_id, step, anchor (what tells its state apart), action, reward, done, truncated, valid, node
(id of the physical step, equal where attempts of a rollout tree share it).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import reason, whole_file, write_whole
from ramify.trace.aliases import ALIASES, name_in
from ramify.trace.keys import Canonicaliser
from ramify.trace.lines import read_lines
from ramify.trace.outcomes import how_to_judge
from ramify.trace.view import View, views

if TYPE_CHECKING:
    from ramify.trace.db import Run

#: Fields a step may lack, with what then stands in.
OPTIONAL = {"anchor": None, "action": "", "done": False, "truncated": False, "valid": True, "node": None}
#: Fields every step has, besides the anchor.
REQUIRED = ("task_id", "attempt_id", "step", "reward")
Columns = dict[str, Any]


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Step records of a ``.parquet`` file or, by any other name, of JSON lines. Raises UserError naming file, line and field."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise UserError(f"cannot read steps from {path}: {reason(error)}") from error
    else:
        rows = [row for _, row in read_lines(path)]
    if not rows:
        raise UserError(f"{path} holds no step")
    return rows


def to_columns(steps: Iterable[Mapping[str, Any]], task_key: str | None = None) -> Columns:
    """Records to columns, optional fields filled in; task, attempt and reward under any name of :mod:`ramify.trace.aliases`.

    ``task_key`` names the field of the task. Raises UserError naming the record and the field it lacks.
    """
    columns: Columns = {name: [] for name in (*REQUIRED, *OPTIONAL)}
    for number, row in enumerate(steps, 1):
        names = {"task_id": task_key or name_in(row, "task"), "attempt_id": name_in(row, "attempt"), "step": "step"}
        names["reward"] = name_in(row, "reward")
        for what, name in names.items():
            if name is None or name not in row:
                raise UserError(f"step record {number} has no field '{name or what}' ({nearest(name or what, map(str, row))})")
            columns[what].append(row[name])
        step, reward = row["step"], columns["reward"][-1]
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise UserError(f"step record {number}: field 'step' is {step!r}, not an integer")
        if isinstance(reward, bool) or not isinstance(reward, (int, float, np.number)) or not _finite(reward):
            raise UserError(f"step record {number}: field '{names['reward']}' is {reward!r}, not a finite number")
        for name, default in OPTIONAL.items():
            columns[name].append(row.get(name, default))
    return columns


def _finite(number: Any) -> bool:
    try:
        return math.isfinite(float(number))
    except OverflowError:  # an integer of hundreds of digits
        return False


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records as ``.parquet`` or JSON lines, whole or not at all.

    Raises UserError where the rows do not fit the format or the path is wrong, RamifyError where the disk refuses.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            try:
                table = pyarrow.Table.from_pylist([dict(row) for row in rows])
            except pyarrow.ArrowException as error:
                raise UserError(f"the steps do not fit one Parquet table ({error}); write JSON lines instead") from error
            with whole_file(path) as temporary:
                pyarrow.parquet.write_table(table, temporary)
        else:
            write_whole(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))
    except UnicodeEncodeError as error:
        raise UserError(f"cannot write {path}: a text holds half a character ({error.object[error.start]!a})") from error


class UnscoredError(UserError):
    """Nobody said how any attempt ended."""


def run_attempts(
    run: Run, group: str | None = None, scorer: str | None = None, unscored: bool = False
) -> Iterator[tuple[View, list[dict[str, Any]]]]:
    """Every scored attempt (:func:`ramify.trace.view.views`) with the records of its steps, without task and attempt; ``text`` is
    the observation's.

    An attempt without a reward, by a score or along the path, is left out, never counted as failed; with ``unscored`` only one
    whose score has no value. Its reward is the score's value. The anchor of a state is the environment's ``state_key``, or the
    observation's text where it gave none. Raises UnscoredError when there is no attempt."""
    any_read = False
    for attempt in step_records(views(run, group, scorer), unscored):
        any_read = True
        yield attempt
    if not any_read:
        where = "" if group is None else f" in group '{group}'"
        names = ", ".join(f"'{name}'" for name in (*ALIASES["reward"][:2], ALIASES["success"][0]))
        others = ", ".join(sorted({name for name, _, given in run.scorers() if given} - {scorer}))
        raise UnscoredError(
            f"{run.folder} holds no scored attempt{where}, so nothing can be said of its steps: {how_to_judge(run)}, or "
            f"import the log into another folder with the outcome in one of {names}, or in the field that --reward-field names"
            + (f", or choose a --scorer: {others}" if others else "")
        )


def step_records(attempts: Iterable[View], unscored: bool = False) -> Iterator[tuple[View, list[dict[str, Any]]]]:
    """Attempts with the records of their steps; which are left out, :func:`run_attempts` says."""
    for attempt in attempts:
        left_out = attempt.reward is None and (attempt.score is not None or attempt.broken_off is not None or not unscored)
        if not left_out and attempt.steps:
            yield attempt, _records(attempt)


def run_columns(run: Run, group: str | None = None, keys: Canonicaliser | None = None, scorer: str | None = None) -> Columns:
    """Step columns of every scored attempt in a run's trees (:func:`run_attempts`), ``node`` telling which steps attempts share.

    ``keys`` makes the anchors from the observations' texts. Raises UserError when there is no attempt.
    """
    return columns_of(run_attempts(run, group, scorer), group is None, keys)


@dataclass(frozen=True, eq=False)
class ScoredSteps:
    """Steps of attempts as columns, and beside them what each attempt got and whether it succeeded, in the columns' order."""

    columns: Columns
    reward: np.ndarray
    """float64 (A,)."""
    success: np.ndarray
    """bool (A,)."""


def columns_of(
    attempts: Iterable[tuple[View, list[dict[str, Any]]]], cohorts: bool, keys: Canonicaliser | None = None
) -> Columns:
    """The columns of :func:`scored_steps`."""
    return scored_steps(attempts, cohorts, keys).columns


def scored_steps(
    attempts: Iterable[tuple[View, list[dict[str, Any]]]], cohorts: bool, keys: Canonicaliser | None = None
) -> ScoredSteps:
    """Steps of attempts as :func:`run_attempts` gives them. ``cohorts``: a task is another in each group of trees."""
    columns: Columns = {name: [] for name in (*REQUIRED, *OPTIONAL)}
    reward, success = list[float](), list[bool]()
    for attempt, rows in attempts:
        reward.append(attempt.reward or 0.0)
        success.append(bool(attempt.success))
        if keys is not None:
            for row, key in zip(rows, keys([row["text"] for row in rows]), strict=True):
                row["anchor"] = key
        about = {"task_id": attempt.cohort if cohorts else attempt.task, "attempt_id": attempt.leaf}
        for name, column in columns.items():
            column += [row.get(name, about.get(name)) for row in rows]
    return ScoredSteps(columns, np.array(reward, dtype=np.float64), np.array(success, dtype=bool))


def _records(attempt: View) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in attempt.steps:
        state, text = step.state_key, step.observation
        rows.append(
            {
                "step": len(rows), "anchor": text if state is None else {"key": state}, "text": text, "reward": step.reward,
                "valid": step.valid, "node": step.node, "action": step.action, "done": False, "truncated": False,
            }
        )  # fmt: skip
    if attempt.score is not None and attempt.score.value is not None:
        rows[-1]["reward"] = attempt.score.value - sum(row["reward"] for row in rows[:-1])
    rows[-1] |= {"truncated": attempt.cut, "done": not attempt.cut}
    return rows


def canonicalise(columns: Columns, keys: Canonicaliser) -> Columns:
    """``columns`` with each attempt's anchors, in time order, replaced by the state keys that ``keys`` makes of them."""
    attempts: dict[str, list[int]] = {}
    for row, attempt in enumerate(zip(columns["task_id"], columns["attempt_id"], strict=True)):
        attempts.setdefault(repr(attempt), []).append(row)
    anchors = list(columns["anchor"])
    for rows in attempts.values():
        rows.sort(key=lambda row: columns["step"][row])
        for row, key in zip(rows, keys([anchors[row] for row in rows]), strict=True):
            anchors[row] = key
    return columns | {"anchor": anchors}
