"""Attempts as step records, the table that credit rules read: from JSON lines, Parquet and the trees of a run.

One record per step: task_id, attempt_id, step, anchor (what tells its state apart), action, reward, done, truncated, valid, node
(id of the physical step, equal where attempts of a rollout tree share it).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import reason, whole_file, write_whole
from ramify.trace.keys import Canonicaliser
from ramify.trace.lines import read_lines
from ramify.trace.path import text_between

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.node import Node, Verdict
    from ramify.trace.path import Path as TreePath

#: Fields a step may lack, with what then stands in.
OPTIONAL = {"anchor": None, "action": "", "done": False, "truncated": False, "valid": True, "node": None}
#: Fields every step has, beside the anchor.
REQUIRED = ("task_id", "attempt_id", "step", "reward")
Columns = dict[str, Any]


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Step records of a ``.parquet`` file or, by any other name, of JSON lines. Raises UserError naming file, line and field."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"cannot read steps from {path}: {reason(error)}") from error
    else:
        rows = [row for _, row in read_lines(path)]
    if not rows:
        raise UserError(f"{path} holds no step")
    return rows


def to_columns(steps: Iterable[Mapping[str, Any]], task_key: str = "task_id") -> Columns:
    """Records to columns, optional fields filled in. Raises UserError naming the record and the field it lacks."""
    rows = list(steps)
    for number, row in enumerate(rows, 1):
        for name in (task_key, *REQUIRED[1:]):
            if name not in row:
                raise UserError(f"step record {number} has no field '{name}' ({nearest(name, map(str, row))})")
        step, reward = row["step"], row["reward"]
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise UserError(f"step record {number}: field 'step' is {step!r}, not an integer")
        if isinstance(reward, bool) or not isinstance(reward, (int, float, np.number)) or not _finite(reward):
            raise UserError(f"step record {number}: field 'reward' is {reward!r}, not a finite number")
    columns: Columns = {name: [row[name] for row in rows] for name in REQUIRED[1:]}
    columns["task_id"] = [row[task_key] for row in rows]
    for name, default in OPTIONAL.items():
        columns[name] = [row.get(name, default) for row in rows]
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


class RunPath(NamedTuple):
    """An attempt in a run's trees: the path to ``leaf``."""

    task: str
    leaf: str
    path: TreePath
    verdict: Verdict | None


def run_paths(run: Run, group: str | None = None, scorer: str = "env") -> Iterator[RunPath]:
    """Every attempt in a run's trees, in an order that does not depend on when they ended.

    An attempt is a path to a node with a verdict of ``scorer`` (to a leaf, in trees without one).
    """
    for info in sorted(run.trees(group), key=lambda info: info.name):
        tree = run.tree(info.name)
        verdicts = {v.node: v for v in run.verdicts(tree=info.name, scorer=scorer)}
        task = str(info.task.get("id", info.name))
        if group is None and info.group:
            task = f"{info.group}/{task}"
        for leaf in sorted(verdicts or (node.id for node in tree.leaves())):
            yield RunPath(task, leaf, tree.path(leaf), verdicts.get(leaf))


def run_attempts(run: Run, group: str | None = None, scorer: str = "env") -> Iterator[tuple[RunPath, list[dict[str, Any]]]]:
    """Every scored attempt (:func:`run_paths`) with the records of its steps, without task and attempt; ``text`` is the observation's.

    An attempt whose verdict has no value is unscored and left out, never counted as failed. Its reward is the verdict's. The anchor of
    a state is the environment's ``state_key``, or the observation's text where it gave none. Raises UserError when there is no attempt.
    """
    found = False
    for attempt in run_paths(run, group, scorer):
        if steps := _steps(attempt.path, attempt.verdict):
            found = True
            yield attempt, steps
    if not found:
        where = "" if group is None else f" in group '{group}'"
        raise UserError(f"{run.folder} holds no scored attempt{where}")


def run_columns(run: Run, group: str | None = None, keys: Canonicaliser | None = None, scorer: str = "env") -> Columns:
    """Step columns of every scored attempt in a run's trees (:func:`run_attempts`), ``node`` telling which steps attempts share.

    ``keys`` makes the anchors from the observations' texts. Raises UserError when there is no attempt.
    """
    columns: Columns = {name: [] for name in (*REQUIRED, *OPTIONAL)}
    for attempt, rows in run_attempts(run, group, scorer):
        if keys is not None:
            for row, key in zip(rows, keys([row["text"] for row in rows]), strict=True):
                row["anchor"] = key
        about = {"task_id": attempt.task, "attempt_id": attempt.leaf}
        for name, column in columns.items():
            column += [row.get(name, about.get(name)) for row in rows]
    return columns


def _steps(path: TreePath, verdict: Verdict | None) -> list[dict[str, Any]]:
    """The steps on a path: one per agent message, all pieces of a message that was forked inside taken together; none of an unscored one."""
    if verdict is not None and verdict.value is None:
        return []
    rows: list[dict[str, Any]] = []
    seen: Node | None = None
    end: Node | None = None
    pieces: list[str] = []  # of the reply that is being said, empty between replies
    for node, kept in path.segments:
        end = node
        if kept == 0 and node.opens and len(node) > 0:
            continue  # a message that was rewound whole
        if node.role == "assistant":
            if not pieces or node.opens:
                state = None if seen is None else seen.state_key
                text = "" if seen is None else seen.text
                anchor = {"key": state} if state is not None else text
                rows.append({"step": len(rows), "anchor": anchor, "text": text, "reward": 0.0, "valid": True})
                pieces = []
            pieces.append(node.text if kept == len(node) else text_between(node, 0, kept))
            rows[-1] |= {"node": node.id, "action": "".join(pieces), "done": False, "truncated": False}
            continue
        if rows and pieces:
            rows[-1] |= {"reward": node.reward or 0.0, "valid": bool(node.data.get("valid", True))}
        seen, pieces = node, []
    if not rows or end is None:
        return []
    if verdict is not None and verdict.value is not None:
        rows[-1]["reward"] = verdict.value - sum(row["reward"] for row in rows[:-1])
    evidence = verdict.evidence if verdict is not None and isinstance(verdict.evidence, Mapping) else {}
    rows[-1]["truncated"] = bool(evidence.get("truncated", end.stop == "truncated"))
    rows[-1]["done"] = not rows[-1]["truncated"]
    return rows


def canonicalise(columns: Columns, keys: Canonicaliser) -> Columns:
    """``columns`` with each attempt's anchors, in time order, replaced by the state keys that ``keys`` makes of them."""
    attempts: dict[str, list[int]] = {}
    for row, place in enumerate(zip(columns["task_id"], columns["attempt_id"], strict=True)):
        attempts.setdefault(repr(place), []).append(row)
    anchors = list(columns["anchor"])
    for rows in attempts.values():
        rows.sort(key=lambda row: columns["step"][row])
        for row, key in zip(rows, keys([anchors[row] for row in rows]), strict=True):
            anchors[row] = key
    return columns | {"anchor": anchors}
