"""Step records as checked integer tables: what the credit rule computes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.score.returns import remaining

TERMINAL = -1
"""Group id of every attempt's end."""


@dataclass(frozen=True, slots=True)
class Table:
    """Checked steps in (attempt, time) order. Fields of shape (N,) unless said otherwise; attempts A, groups G, tasks P."""

    order: np.ndarray
    """Input row of each sorted row."""
    task: np.ndarray
    attempt: np.ndarray
    group: np.ndarray
    left: np.ndarray
    """Steps that follow in the attempt."""
    reward: np.ndarray
    """(A,) the attempt's reward: the sum of its steps' rewards."""
    truncated: np.ndarray
    """(A,) bool."""
    valid: np.ndarray
    shared: np.ndarray | None
    """Which physical step each row is; None when no two attempts share one."""
    attempt_task: np.ndarray
    """(A,) task of each attempt."""

    @property
    def last(self) -> np.ndarray:
        """bool (N,): the attempt ends with this step."""
        return self.left == 0

    def subset(self, keep: np.ndarray) -> Table:
        """Only the attempts whose rows ``keep`` (N,) marks, attempts and groups numbered anew."""
        if keep.all():
            return self
        kept = np.zeros(len(self.reward), dtype=bool)
        kept[self.attempt[keep]] = True
        return Table(
            self.order[keep],
            self.task[keep],
            (np.cumsum(kept) - 1)[self.attempt[keep]],
            np.unique(self.group[keep], return_inverse=True)[1],
            self.left[keep],
            self.reward[kept],
            self.truncated[kept],
            self.valid[keep],
            None if self.shared is None else self.shared[keep],
            self.attempt_task[kept],
        )


def index_steps(
    task_ids: Sequence[Any] | np.ndarray,
    attempt_ids: Sequence[Any] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    keys: Sequence[Any] | np.ndarray,
    rewards: Sequence[float] | np.ndarray,
    *,
    truncated: Sequence[bool] | np.ndarray | None = None,
    valid: Sequence[bool] | np.ndarray | None = None,
    nodes: Sequence[Any] | np.ndarray | None = None,
) -> Table:
    """Check, number and sort step columns (see ``credit``). Raises UserError naming the step that is wrong."""
    given = {"task_ids": task_ids, "attempt_ids": attempt_ids, "steps": steps, "keys": keys, "rewards": rewards}
    given |= {"truncated": truncated, "valid": valid, "nodes": nodes}
    n = len(task_ids)
    if n == 0:
        raise UserError("there are no steps to credit")
    for name, column in given.items():
        if column is not None and len(column) != n:
            raise UserError(f"column '{name}' has {len(column)} entries for {n} steps")
    task, own, key = codes(task_ids), codes(attempt_ids), codes(keys)
    attempt = np.unique(task * (int(own.max()) + 1) + own, return_inverse=True)[1]
    group = np.unique(task * (int(key.max()) + 1) + key, return_inverse=True)[1]
    time, reward = _numbers(steps, "steps"), _numbers(rewards, "rewards")

    def name(row: int) -> str:
        return f"task {task_ids[row]!s}, attempt {attempt_ids[row]!s}, step {steps[row]!s}"

    for bad, what in ((~np.isfinite(reward), "the reward is not a number"), (time != np.rint(time), "the step is not an integer")):
        if bad.any():
            raise UserError(f"{name(int(np.flatnonzero(bad)[0]))}: {what}")
    order = np.lexsort((time, attempt))
    time, sorted_attempt = time[order], attempt[order]
    first = np.append(True, sorted_attempt[1:] != sorted_attempt[:-1])
    gap = np.diff(time, prepend=0.0)
    if (twice := ~first & (gap == 0)).any():
        raise UserError(f"{name(int(order[np.flatnonzero(twice)[0]]))} occurs twice")
    if (late := first & ~np.isin(time, (0, 1))).any():
        raise UserError(f"{name(int(order[np.flatnonzero(late)[0]]))} is the attempt's first: steps are missing (they start at 0 or 1)")
    if (hole := ~first & (gap > 1)).any():
        raise UserError(f"steps are missing before {name(int(order[np.flatnonzero(hole)[0]]))}")
    flags = np.zeros(n, dtype=bool) if truncated is None else np.asarray(truncated, dtype=bool)
    count = int(attempt.max()) + 1
    return Table(
        order=order,
        task=task[order],
        attempt=sorted_attempt,
        group=group[order],
        left=remaining(sorted_attempt),
        reward=np.bincount(sorted_attempt, reward[order], count),
        truncated=np.bincount(attempt, flags, count) > 0,
        valid=np.ones(n, dtype=bool) if valid is None else np.asarray(valid, dtype=bool)[order],
        shared=None if nodes is None else _shared(nodes)[order],
        attempt_task=task[order][first],
    )


def codes(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Integer codes 0.. of any JSON values by first appearance, int64 (N,). Equal values have equal codes, text is never a number.

    Raises UserError naming the row of a value that is not JSON.
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "iub" and values.ndim == 1:
            return np.unique(values, return_inverse=True)[1]
        values = values.tolist()
    seen: dict[str, int] = {}
    out = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        out[row] = seen.setdefault(value if type(value) is str else _canonical(value, row), len(seen))
    return out


def _canonical(value: Any, row: int) -> str:
    """One text per value, apart from every text a string key could be."""
    plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    try:
        return "\0json:" + canonical_json(plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"row {row}: a key of type {type(value).__name__} is not a JSON value ({error})") from None


def _shared(nodes: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Codes of physical steps; a row without a node (None) is a step of its own."""
    known = codes([f"\0row:{row}" if node is None else node for row, node in enumerate(nodes)])
    return np.asarray(known)


def _numbers(values: Iterable[Any], column: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        row, value = next((i, v) for i, v in enumerate(values) if isinstance(v, bool) or not isinstance(v, (int, float)))
        raise UserError(f"row {row}: column '{column}' holds {value!r}, which is not a number") from None


def edge_weights(t: Table) -> np.ndarray:
    """How much of a visit each row is when every physical step counts once among its siblings, (N,); 1 where nothing is shared.

    A row's weight is the product over the forks behind it of 1 / (number of distinct continuations), so the rows of one physical
    step sum to 1 and its value is the plain recursive mean over the tree below, however unequally the branches were expanded.
    """
    if t.shared is None:
        return np.ones(len(t.order))
    child = np.where(t.last, -1 - t.attempt, np.append(t.shared[1:], 0))  # an ending is a continuation of its own
    pairs = np.unique(np.stack([t.shared, child]), axis=1)
    logs = np.log(np.bincount(pairs[0], minlength=int(t.shared.max()) + 1))[t.shared]
    before = np.cumsum(logs) - logs
    end = np.arange(len(logs)) + t.left
    return np.asarray(np.exp(before - (before + logs)[end]))
