"""The state-merged graph: visits of several attempts grouped by the key of their state, and the moves between groups.

It is a derived view: the tree keeps equal states apart, this merges them, never across tasks. Axis legend: N visits (rows of the
input, in the input's order), A attempts, G groups (states first, then one pseudo-node for each task and way to end), E edges.
Everything is a flat array; memory is linear in N.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.extras import told
from ramify.base.files import whole_file
from ramify.base.words import plural
from ramify.trace.keys import canonical


@dataclass(frozen=True, eq=False)
class MergedGraph:
    """Build it with :meth:`of`."""

    tasks: list[Any]
    """Task ids, in order of appearance."""
    attempts: list[Any]
    """Attempt ids (A,); attempts of two tasks may share an id and are two entries."""
    actions: list[Any]
    """Actions, in order of appearance."""
    keys: list[Any]
    """(G,): the key of each state; the label of the way to end for a pseudo-node."""
    visit_task: np.ndarray
    """int64 (N,)."""
    visit_attempt: np.ndarray
    """int64 (N,)."""
    visit_step: np.ndarray
    """int64 (N,), as given."""
    visit_group: np.ndarray
    """int64 (N,): the state the visit was in."""
    visit_next: np.ndarray
    """int64 (N,): row of the attempt's next step, -1 after its last."""
    visit_target: np.ndarray
    """int64 (N,): group of the next step, or the pseudo-node the attempt ended in."""
    visit_edge: np.ndarray
    """int64 (N,): the edge the visit took."""
    group_task: np.ndarray
    """int64 (G,)."""
    group_visits: np.ndarray
    """int64 (G,): how many visits; for a pseudo-node, how many attempts ended there."""
    group_terminal: np.ndarray
    """bool (G,): pseudo-nodes."""
    edge_source: np.ndarray
    """int64 (E,)."""
    edge_action: np.ndarray
    """int64 (E,): index into ``actions``."""
    edge_target: np.ndarray
    """int64 (E,)."""
    edge_count: np.ndarray
    """int64 (E,): how many visits took it."""

    @classmethod
    def of(
        cls,
        tasks: Sequence[Any],
        attempts: Sequence[Any],
        steps: Sequence[int],
        keys: Sequence[Any],
        actions: Sequence[Any],
        ends: Sequence[Any] | None = None,
    ) -> MergedGraph:
        """Merge equal states. All arguments have N entries, one a visit, in any order.

        Steps of an attempt are consecutive integers; keys, actions and ids may be any JSON value, None included. ``ends`` labels
        the way an attempt ended and is read at its last step; without it every attempt ends in its task's "end". Raises UserError
        when lengths differ, or when an attempt has a step twice or misses one.
        """
        n = len(tasks)
        columns: dict[str, Sequence[Any] | None] = {
            "attempts": attempts,
            "steps": steps,
            "keys": keys,
            "actions": actions,
            "ends": ends,
        }
        for name, column in columns.items():
            if column is not None and len(column) != n:
                raise UserError(f"{name} has {plural(len(column), 'entry')} for {plural(n, 'visit')}")
        task, task_names = factorize(tasks)
        attempt, attempt_rows = _within(task, factorize(attempts)[0])
        attempt_names = [attempts[row] for row in attempt_rows]
        action, action_names = factorize(actions)
        step = _integers(steps)
        order = np.lexsort((step, attempt))
        follows = _check_steps(attempt[order], step[order], [task_names[task[row]] for row in attempt_rows], attempt_names)

        state, state_rows = _within(task, factorize(keys)[0])
        following = np.full(n, -1, np.int64)
        following[order[:-1][follows]] = order[1:][follows]
        last = np.flatnonzero(following < 0)
        labels = ["end"] * len(last) if ends is None else [ends[i] for i in last.tolist()]
        terminal, terminal_rows = _within(task[last], factorize(labels)[0])
        target = np.where(following < 0, 0, state[following] if n else state)
        target[last] = terminal + len(state_rows)
        groups = len(state_rows) + len(terminal_rows)
        # two steps, each a product of at most N * N: three factors could leave 64 bits
        moves, move = np.unique(state * max(1, len(action_names)) + action, return_inverse=True)
        edges, edge, count = np.unique(move * max(1, groups) + target, return_inverse=True, return_counts=True)
        edge_move, edge_target = np.divmod(edges, max(1, groups))
        edge_source, edge_action = np.divmod(moves[edge_move], max(1, len(action_names)))
        visits = np.concatenate(
            [np.bincount(state, minlength=len(state_rows)), np.bincount(terminal, minlength=len(terminal_rows))]
        )
        return cls(
            tasks=task_names,
            attempts=attempt_names,
            actions=action_names,
            keys=[keys[row] for row in state_rows] + [labels[row] for row in terminal_rows],
            visit_task=task,
            visit_attempt=attempt,
            visit_step=step,
            visit_group=state,
            visit_next=following,
            visit_target=target,
            visit_edge=np.asarray(edge, np.int64),
            group_task=np.concatenate([task[state_rows], task[last][terminal_rows]]),
            group_visits=visits.astype(np.int64),
            group_terminal=np.arange(groups) >= len(state_rows),
            edge_source=edge_source,
            edge_action=edge_action,
            edge_target=edge_target,
            edge_count=np.asarray(count, np.int64),
        )

    @property
    def starts_apart(self) -> bool:
        """Whether states recur although no attempt returns to a start state."""
        first = self.visit_step == self.visit_step.min(initial=0)
        later = self.visit_group[~first]
        recurs = len(later) > len(np.unique(later))
        return bool(recurs and not np.isin(later, self.visit_group[first]).any())

    def to_json(self, task: Any = None, extra: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Any]:
        """Node-link form, of one task or all (None); ``extra`` adds a field with one JSON value a group (its value, its
        colour)."""
        groups, edges = self._of_task(task)
        fields = {name: list(values) for name, values in (extra or {}).items()}
        nodes = [
            {
                "id": g,
                "task": self.tasks[self.group_task[g]],
                "key": self.keys[g],
                "visits": int(self.group_visits[g]),
                "terminal": bool(self.group_terminal[g]),
                **{name: values[g] for name, values in fields.items()},
            }
            for g in groups
        ]
        links = [
            {
                "source": int(self.edge_source[e]),
                "target": int(self.edge_target[e]),
                "key": e,
                "action": self.actions[self.edge_action[e]],
                "count": int(self.edge_count[e]),
            }
            for e in edges
        ]
        return {"directed": True, "multigraph": True, "graph": {}, "nodes": nodes, "edges": links}

    def to_dot(self, task: Any = None, extra: Mapping[str, Sequence[Any]] | None = None) -> str:
        """Graphviz text of one task or all (None); labels carry key, visits, extras, and actions with counts."""
        form = self.to_json(task, extra)
        lines = ["digraph states {", "  node [shape=box];"]
        for node in form["nodes"]:
            notes = [f"{name} {node[name]}" for name in (extra or {})]
            label = "\n".join([short(node["key"]), plural(node["visits"], "visit"), *notes])
            lines.append(f"  {node['id']} [label={dot_quote(label)}{', shape=doublecircle' if node['terminal'] else ''}];")
        for edge in form["edges"]:
            label = f"{short(edge['action'])} x{edge['count']}"
            lines.append(f"  {edge['source']} -> {edge['target']} [label={dot_quote(label)}];")
        return "\n".join([*lines, "}"]) + "\n"

    def write_graphml(self, path: Path, task: Any = None, extra: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Write GraphML, whole or not at all. Raises NeedsError without networkx, else like
        :func:`ramify.base.files.whole_file`."""
        with told():
            import networkx
        form = self.to_json(task, extra)
        graph = networkx.MultiDiGraph()
        for node in form["nodes"]:
            graph.add_node(node["id"], **{name: _attribute(value) for name, value in node.items() if name != "id"})
        for edge in form["edges"]:
            graph.add_edge(
                edge["source"], edge["target"], key=edge["key"], action=_attribute(edge["action"]), count=edge["count"]
            )
        with whole_file(path) as temporary:
            networkx.write_graphml(graph, temporary)

    def _of_task(self, task: Any) -> tuple[list[int], list[int]]:
        if task is None:
            return list(range(len(self.keys))), list(range(len(self.edge_count)))
        if task not in self.tasks:
            raise UserError(f"the graph has no task {task!r}")
        index = self.tasks.index(task)
        return np.flatnonzero(self.group_task == index).tolist(), np.flatnonzero(
            self.group_task[self.edge_source] == index
        ).tolist()


def factorize(values: Iterable[Any], plain: bool = False) -> tuple[np.ndarray, list[Any]]:
    """Integer codes (int64) in order of first appearance, and the distinct values. ``plain``: all values are hashable already.

    Values that are not text are compared by their canonical JSON: 1, True and "1" are three values, equal lists are one.
    """
    given = list(values)
    kinds = set(map(type, given))
    # values of one plain type are compared directly
    keys: list[Hashable] = given if plain or kinds <= {str} or kinds == {int} else list(map(_hashable, given))
    number = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    codes = np.fromiter(map(number.__getitem__, keys), np.int64, len(keys))
    first = np.zeros(len(number), np.int64)
    first[codes[::-1]] = np.arange(len(keys))[::-1]  # of several rows of a code the last assignment stays
    return codes, [given[row] for row in first.tolist()]


def _within(task: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Codes of the pairs (task, code) in order of first appearance, (N,), and the row where each first appears."""
    _, first, pair = np.unique(task * (code.max(initial=0) + 1) + code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[pair].astype(np.int64), first[order].tolist()


def dot_quote(text: str) -> str:
    """A Graphviz string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def short(value: Any, width: int = 40) -> str:
    """One line of at most ``width`` characters for a label."""
    text = " ".join((value if isinstance(value, str) else canonical(value)).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _hashable(value: Any) -> Hashable:
    if isinstance(value, str):
        return value
    if type(value) is int or isinstance(value, np.integer):  # a short cut for ids, which are often integers
        return (int(value),)
    return (canonical(value),)


def _attribute(value: Any) -> Any:
    return value if isinstance(value, (str, bool, int, float)) else canonical(value)


def _integers(steps: Sequence[int]) -> np.ndarray:
    array = np.asarray(steps)
    if len(array) and array.dtype.kind not in "iu":
        raise UserError(f"steps must be integers, not {array.dtype}")
    return array.astype(np.int64)


def _check_steps(attempt: np.ndarray, step: np.ndarray, task_names: list[Any], attempt_names: list[Any]) -> np.ndarray:
    """bool (N-1,): whether sorted row i+1 continues where row i is. Raises UserError on a step that is there twice or missing."""
    follows = attempt[1:] == attempt[:-1]
    first = np.concatenate([np.ones(min(1, len(attempt)), bool), ~follows])
    late = np.flatnonzero(first & (step != step.min(initial=2**62)))
    gaps = np.flatnonzero(follows & (np.diff(step) != 1))
    if len(gaps):
        row = int(gaps[0]) + 1
        fault = f"has step {step[row]} twice" if step[row] == step[row - 1] else f"misses step {step[row - 1] + 1}"
    elif len(late):
        row = int(late[0])
        fault = f"misses step {step.min()}, where the others start"
    else:
        return np.asarray(follows)
    index = int(attempt[row])
    raise UserError(f"attempt {attempt_names[index]!r} of task {task_names[index]!r} {fault}")
