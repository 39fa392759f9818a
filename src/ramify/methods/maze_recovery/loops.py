"""Loops of attempts: where one comes back to a state it was in, what it then does, and which states only ever led nowhere.

The path of an attempt *without its loops* is what is left when every cycle is cut out: on coming back to a state that is still on
that path, everything since is dropped. How many states it has is the *height* of a step. A step is

- an *advance* when it leads to a state that is not on the path (the height grows), or ends the attempt;
- a *retreat* when it leads back to an earlier state of the path (the height falls);
- a *stall* when it changes nothing: the next state is the same.

A *recovery* is a return to a state after leaving it, where an advance is then made that was not yet tried there in this attempt
(on the way back through several states, only the one where it continues is one). All of it is found from equal state keys alone,
attempt by attempt. Derived for maze-recovery; loop erasure: Lawler 1980.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.trace.graph import MergedGraph, factorize


def erase_loops(keys: Sequence[Hashable]) -> list[int]:
    """Positions of ``keys`` that are left when every cycle is cut out, the last visit to a state kept.

    They visit each state once and begin and end with the same states as ``keys``; without a repetition all are left.
    """
    last = {key: at for at, key in enumerate(keys)}
    kept, at = [], 0
    while at < len(keys):
        kept.append(last[keys[at]])
        at = kept[-1] + 1
    return kept


class Recovery(NamedTuple):
    """One recovery; ``left``, ``turn`` and ``at`` are positions in the attempt (steps), or rows of a graph (:class:`Loops`)."""

    left: int
    """The last step at this state before: the choice that is taken back."""
    turn: int
    """The step at the farthest state of the excursion, when it was first reached: from here on it is the way back."""
    at: int
    """The step that does something else, back at the state."""
    depth: int
    """How many states the excursion went beyond this one, along the attempt's path (where it was left by going back: down that
    path and up)."""
    steps: int
    """Steps from ``turn`` back to the state. ``steps / depth`` is 1 when every state passed on the way in is passed once on the
    way out, less where one action led back over several, more where the way back was not straight."""


class Walk(NamedTuple):
    """One attempt of T steps. ``moves`` int8 (T,): +1 advance, 0 stall, -1 retreat; ``heights`` int64 (T,), 1 at its start."""

    moves: np.ndarray
    heights: np.ndarray
    recoveries: list[Recovery]


def walk(keys: Sequence[Hashable], actions: Sequence[Hashable]) -> Walk:
    """Follow one attempt; ``keys[t]`` is the state that ``actions[t]`` was taken in. The last step ends it, an advance.

    Raises ValueError where the two differ in length.
    """
    if len(keys) != len(actions):
        raise ValueError(f"{len(keys)} states for {len(actions)} actions")
    (states, _), (tried, _) = factorize(keys, plain=True), factorize(actions, plain=True)
    return Walk(*_walks(states, tried, np.zeros(min(1, len(keys)), np.int64)))


def _walks(states: np.ndarray, actions: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Recovery]]:
    """Moves, heights and recoveries of attempts end to end; all arrays (N,), but for ``starts`` (A,), where each attempt begins.

    ``states`` and ``actions`` are codes from 0. Time grows with the steps (and with what :func:`_farthest` looks at).
    """
    n = len(states)
    heights, peaks = np.zeros(n, np.int64), dict[int, tuple[int, int]]()
    for start, end in pairwise([*starts.tolist(), n]):
        heights[start:end] = _follow(states[start:end].tolist(), start, peaks)
    first = np.zeros(n, np.bool_)
    first[starts] = True
    moves = np.ones(n, np.int8)
    moves[:-1] = np.where(first[1:], 1, np.sign(np.diff(heights)))
    attempt = np.cumsum(first) - 1
    # a step at which something new is tried in a state of the attempt, that leads on, and an earlier one that left the state
    place = np.unique(attempt * (states.max(initial=0) + 1) + states, return_inverse=True)[1]
    new = np.zeros(n, np.bool_)
    new[np.unique(place * (actions.max(initial=0) + 1) + actions, return_index=True)[1]] = True
    leaves = np.flatnonzero(moves)
    leaves = leaves[np.argsort(place[leaves], kind="stable")]
    left = np.full(n, -1, np.int64)
    again = place[leaves[1:]] == place[leaves[:-1]]
    left[leaves[1:][again]] = leaves[:-1][again]
    changes = first.copy()
    changes[1:] |= states[1:] != states[:-1]
    arrived = np.maximum.accumulate(np.where(changes, np.arange(n), 0))
    found = []
    for at in np.flatnonzero((left >= 0) & new & (moves > 0)).tolist():
        since, back = int(left[at]), int(arrived[at])
        deep, turn = peaks.get(back) or _farthest(heights, since, back)
        found.append(Recovery(since, turn, at, deep - int(heights[since]), back - turn))
    return moves, heights, found


def _follow(states: Sequence[int], start: int, peaks: dict[int, tuple[int, int]]) -> list[int]:
    """Heights of one attempt whose first step is number ``start``. ``peaks`` takes, for each step back at a state of the path,
    the greatest height since it was left and the first step there.
    Takes time in proportion to the steps, whatever their order."""
    path: list[int] = []
    highest: list[
        tuple[int, int]
    ] = []  # of each state of the path: above it or itself, the time negative so that the first is greatest
    height: dict[int, int] = {}  # the last one of each state, right where the path still holds it there
    heights = []
    for t, state in enumerate(states, start):
        known = height.get(state)
        if known is None or known > len(path) or path[known - 1] != state:
            path.append(state)
            known = height[state] = len(path)
            highest.append((known, -t))
        elif known < len(path):
            high, at = best = max(highest[known:])
            peaks[t] = high, -at
            if best > highest[known - 1]:
                highest[known - 1] = best
            del path[known:], highest[known:]
        heights.append(known)
    return heights


def _farthest(heights: np.ndarray, left: int, arrived: int) -> tuple[int, int]:
    """Of an excursion from a state that was left by going back: ``heights[left]`` plus the most states that lay between, down the
    path to where both ways parted and up again; and the step where they first did."""
    span = heights[left:arrived]
    far = 2 * span[0] + span - 2 * np.minimum.accumulate(span)
    at = int(np.argmax(far))
    return int(far[at]), left + at


@dataclass(frozen=True, eq=False)
class Loops:
    """The loops of every attempt of a graph. Arrays have one entry a visit, (N,), in the graph's order."""

    moves: np.ndarray
    """int8: +1 advance, 0 stall, -1 retreat."""
    kept: np.ndarray
    """bool: what is left when loops are cut out."""
    recoveries: list[Recovery]
    """In rows of the graph, attempt after attempt."""

    @classmethod
    def of(cls, graph: MergedGraph) -> Loops:
        """The loops of all attempts of ``graph``."""
        order, starts = _by_attempt(graph)
        states, actions = graph.visit_group[order], graph.edge_action[graph.visit_edge[order]]
        own, heights, found = _walks(states, actions, starts)
        # what is left when loops are cut out lies below all that follows in its attempt
        above = heights + np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order))) * (heights.max(initial=0) + 1)
        moves, kept = np.empty_like(own), np.ones(len(order), np.bool_)
        moves[order] = own
        kept[order[:-1]] = above[:-1] < np.minimum.accumulate(above[::-1])[::-1][1:]
        rows = order.tolist()
        return cls(moves, kept, [r._replace(left=rows[r.left], turn=rows[r.turn], at=rows[r.at]) for r in found])


def _by_attempt(graph: MergedGraph) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a graph attempt after attempt, in time order, and where in them each attempt begins."""
    order = np.lexsort((graph.visit_step, graph.visit_attempt))
    return order, np.flatnonzero(np.diff(graph.visit_attempt[order], prepend=-1))


def attempt_rows(graph: MergedGraph) -> Iterator[np.ndarray]:
    """The rows of each attempt in time order, attempts in the graph's order."""
    order, starts = _by_attempt(graph)
    yield from np.split(order, starts[1:]) if len(order) else ()


@dataclass(frozen=True, eq=False)
class Ways:
    """Which states led to success. Arrays have one entry a group, bool (G,);
    all false in tasks that nobody solved, where none is known."""

    on: np.ndarray
    """A success's path without its loops goes through the state."""
    off: np.ndarray
    """Everything recorded from here failed or came back: the state is in a subtree that leads nowhere."""
    dead: np.ndarray
    """Off the way, and nothing recorded here leads further: dead ends."""

    @classmethod
    def of(cls, graph: MergedGraph, loops: Loops, success: np.ndarray, cut: np.ndarray | None = None) -> Ways:
        """``success``, bool (A,): which attempts reached their goal; ``cut``, bool (A,): which a limit ended, so that nothing is
        known of what would have followed. Raises UserError where a length differs."""
        cut = np.zeros(len(graph.attempts), np.bool_) if cut is None else cut
        for name, flags in (("success", success), ("cut", cut)):
            if len(flags) != len(graph.attempts):
                raise UserError(f"'{name}' has {plural(len(flags), 'entry')} for {plural(len(graph.attempts), 'attempt')}")
        groups = len(graph.keys)
        won = success[graph.visit_attempt]
        on = np.bincount(graph.visit_group[won & loops.kept], minlength=groups) > 0
        solved = np.bincount(graph.visit_task[won], minlength=len(graph.tasks)) > 0
        off = ~on & ~graph.group_terminal & solved[graph.group_task]
        last = graph.visit_next < 0
        # an end by a limit says nothing of the state, and the goal reached there is no dead end
        further = (loops.moves > 0) & np.where(last, (won | cut[graph.visit_attempt]), True)
        leads = np.bincount(graph.visit_group[further], minlength=groups) > 0
        return cls(on, off, off & ~leads)


def shortest_ways(graph: MergedGraph, success: np.ndarray) -> dict[int, list[int]]:
    """For each task that somebody solved, rows of the fewest recorded steps from one of its starts to a success, attempts put
    together.

    Among equally short ones the first recorded steps are taken. It is as true as equal keys are equal states.
    """
    goals: dict[int, dict[int, int]] = {}
    steps: dict[int, dict[tuple[int, int], int]] = {}
    starts: dict[int, dict[int, None]] = {}
    for rows in attempt_rows(graph):
        task = int(graph.visit_task[rows[0]])
        groups = graph.visit_group[rows].tolist()
        starts.setdefault(task, {}).setdefault(groups[0])
        step = steps.setdefault(task, {})
        for move, row in zip(pairwise(groups), rows.tolist(), strict=False):
            step.setdefault(move, row)
        if success[graph.visit_attempt[rows[0]]]:
            goals.setdefault(task, {}).setdefault(groups[-1], int(rows[-1]))
    return {task: _breadth_first(starts[task], steps[task], goal) for task, goal in goals.items()}


def _breadth_first(starts: Mapping[int, None], step: Mapping[tuple[int, int], int], goal: Mapping[int, int]) -> list[int]:
    after: dict[int, list[int]] = {}
    for here, there in step:
        after.setdefault(here, []).append(there)
    came: dict[int, int | None] = dict.fromkeys(starts)
    queue = list(starts)
    for here in queue:
        if here in goal:
            way = [goal[here]]
            while (before := came[here]) is not None:
                way.append(step[before, here])
                here = before
            return way[::-1]
        for there in after.get(here, ()):
            if there not in came:
                came[there] = here
                queue.append(there)
    return []


def ambiguous(graph: MergedGraph, cut: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows (M,) of the visits whose action was taken in their state more than once;
    of each (bool), whether it did not lead where most led.

    None does in a deterministic environment whose keys identify states; else the key hides something, or the environment is
    random. Ends that a limit set (``cut``, bool (A,)) are left out.
    """
    known = np.ones(len(graph.visit_group), np.bool_)
    if cut is not None:
        known = (graph.visit_next >= 0) | ~cut[graph.visit_attempt]
    rows = np.flatnonzero(known)
    edges, edge, count = np.unique(graph.visit_edge[rows], return_inverse=True, return_counts=True)
    move = graph.edge_source[edges] * max(1, len(graph.actions)) + graph.edge_action[edges]
    moves, index = np.unique(move, return_inverse=True)
    by_count = np.argsort(count, kind="stable")  # so that the last written is where most led
    usual = np.zeros(len(moves), np.int64)
    usual[index[by_count]] = by_count
    again = np.bincount(index, count)[index[edge]] > 1
    return rows[again], (edge != usual[index[edge]])[again]
