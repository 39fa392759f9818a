"""Merged attempts as one sorted integer table, and how much of a visit a step is where attempts share it: what credit rules
compute on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.methods.graph_credit.returns import remaining
from ramify.trace.graph import MergedGraph, factorize

TERMINAL = -1
"""Group id of every attempt's end."""


class Visits(NamedTuple):
    """The part of a merged graph that credit is computed from; a ``MergedGraph`` has it too."""

    tasks: Sequence[Any]
    attempts: Sequence[Any]
    visit_task: np.ndarray
    visit_attempt: np.ndarray
    visit_step: np.ndarray
    visit_group: np.ndarray


def merge(
    tasks: Sequence[Any] | np.ndarray,
    attempts: Sequence[Any] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    keys: Sequence[Any] | np.ndarray,
) -> Visits | MergedGraph:
    """Merge equal states of a task. Integer arrays take a short cut that makes no Python object per step.

    Raises UserError like ``MergedGraph.of``.
    """
    columns = (tasks, attempts, steps, keys)
    if all(isinstance(c, np.ndarray) and c.dtype.kind in "iu" and c.shape == (len(tasks),) for c in columns) and len(tasks):
        (names, task), (_, attempt_code), (_, key) = (np.unique(c, return_inverse=True) for c in (tasks, attempts, keys))
        attempt = np.unique(task * (int(attempt_code.max()) + 1) + attempt_code, return_inverse=True)[1]
        group = np.unique(task * (int(key.max()) + 1) + key, return_inverse=True)[1]
        step = np.asarray(steps)
        order = np.lexsort((step, attempt))
        same = np.diff(attempt[order]) == 0
        gaps, first = np.diff(step[order]), step[order][np.append(True, ~same)]
        if (gaps[same] == 1).all() and (first == first[0]).all():
            rows = np.unique(attempt, return_index=True)[1]
            return Visits(names.tolist(), np.asarray(attempts)[rows].tolist(), task, attempt, step, group)
    lists = [c.tolist() if isinstance(c, np.ndarray) else c for c in (tasks, attempts, keys)]
    return MergedGraph.of(lists[0], lists[1], np.asarray(steps), lists[2], [""] * len(tasks))  # type: ignore[arg-type]


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
        return np.asarray(self.left == 0)

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
    graph: MergedGraph | Visits,
    rewards: Sequence[float] | np.ndarray,
    *,
    truncated: Sequence[bool] | np.ndarray | None = None,
    valid: Sequence[bool] | np.ndarray | None = None,
    nodes: Sequence[Any] | np.ndarray | None = None,
) -> Table:
    """Check and sort the columns alongside a merged graph.

    ``rewards`` are paid step by step; ``truncated`` is true on the last row of an attempt a limit ended; ``valid`` is false where
    the environment refused the action; ``nodes`` are equal where rows of several attempts are one physical step of a rollout
    tree, None elsewhere. Raises UserError naming the step that is wrong."""
    n = len(graph.visit_group)
    if n == 0:
        raise UserError("there are no steps to credit")
    for name, column in (("rewards", rewards), ("truncated", truncated), ("valid", valid), ("nodes", nodes)):
        if column is not None and len(column) != n:
            raise UserError(f"{name} has {plural(len(column), 'entry')} for {plural(n, 'step')}")
    reward = _numbers(rewards)
    if len(bad := np.flatnonzero(~np.isfinite(reward))):
        raise UserError(f"{step_name(graph, int(bad[0]))}: the reward is {reward[bad[0]]}, not a finite number")
    order = np.lexsort((graph.visit_step, graph.visit_attempt))
    attempt, count = graph.visit_attempt[order], len(graph.attempts)
    flags = np.zeros(n) if truncated is None else np.asarray(truncated, dtype=np.float64)
    _, first = np.unique(attempt, return_index=True)
    return Table(
        order=order,
        task=graph.visit_task[order],
        attempt=attempt,
        group=graph.visit_group[order],
        left=remaining(attempt),
        reward=np.bincount(attempt, reward[order], count),
        truncated=np.bincount(attempt, flags[order], count) > 0,
        valid=np.ones(n, dtype=bool) if valid is None else np.asarray(valid, dtype=bool)[order],
        shared=None if nodes is None else _physical(nodes)[order],
        attempt_task=graph.visit_task[order][first],
    )


def step_name(graph: MergedGraph | Visits, row: int) -> str:
    """How a step is called in messages."""
    task, attempt = graph.tasks[graph.visit_task[row]], graph.attempts[graph.visit_attempt[row]]
    return f"task {task!r}, attempt {attempt!r}, step {graph.visit_step[row]}"


def _physical(nodes: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Codes of physical steps; a row without a node (None) is a step of its own."""
    if isinstance(nodes, np.ndarray) and nodes.dtype.kind in "iu":
        return np.unique(nodes, return_inverse=True)[1]
    values = nodes.tolist() if isinstance(nodes, np.ndarray) else nodes
    return factorize([("row", row) if node is None else node for row, node in enumerate(values)], plain=True)[0]


def _numbers(rewards: Sequence[float] | np.ndarray) -> np.ndarray:
    try:
        return np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError):
        row, value = next((i, v) for i, v in enumerate(rewards) if not isinstance(v, (int, float)))
        raise UserError(f"row {row}: the reward {value!r} is not a number") from None


def edge_weights(t: Table) -> np.ndarray:
    """How much of a visit each row is when every physical step counts once among its siblings, (N,); 1 where nothing is shared.

    A row's weight is the product over the forks above it of 1 / (number of distinct continuations), so the rows of one physical
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
