"""Diagnostics: does this credit say anything, and what? And what is known of one step."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ramify.methods.graph_credit.decisive import Comparison, Move, MoveTest
from ramify.render.numbers import interval
from ramify.render.result import Cell, Grid, Result, Section, numbers, table
from ramify.score.group import moments
from ramify.trace.graph import MergedGraph, short
from ramify.trace.keys import canonical

LOUD = 0.9  # share of steps in states visited once above which the graph terms say nothing
DROPPED = "the attempt was truncated and dropped: no credit"
_ONE_TASK = " (where records are attempts at one task, `ramify import --task-field` names the field with the task)"
_SHOWN = {
    "decisive": ("decisive moves", ("difference", "takers", "others", "p_corrected")),
    "top_gains": ("top gains, chance included", ("delta", "p_corrected")),
    "top_losses": ("top losses, chance included", ("delta", "p_corrected")),
}
"""The report's lists of moves: title, and the numbers of its table."""


@dataclass(frozen=True, kw_only=True)
class CreditedMove(MoveTest):
    """A move from one state to another, and its test."""

    task: Any
    source: Any
    """Key of the state it was made in."""
    action: Any
    target: Any
    """Key of the state it led to."""
    node: str | None = None
    """A node that made it, where it is of a run."""
    delta: float | None = None
    """Mean progress; None where not asked for."""
    count: int | None = None
    """How often it was made."""


@dataclass(frozen=True)
class CreditReport(Result):
    """How much states repeat, where the credit comes from, and which of it is not chance: every number is explained on the
    method's page."""

    steps: int
    attempts: int
    tasks: int
    states: int
    dropped_steps: int
    mean_group_size: float
    singleton_share: float
    group_sizes: Mapping[int, int]
    constant_reward_share: float
    hidden_state_spread: float
    mean_abs_a_ep: float
    mean_abs_a_nc: float
    mean_abs_a_ec: float
    mean_abs_a: float
    level: float
    compared: int
    verdict: str
    decisive: tuple[CreditedMove, ...]
    top_gains: tuple[CreditedMove, ...]
    top_losses: tuple[CreditedMove, ...]
    run: str = ""

    def sections(self) -> Iterable[Section]:
        """The numbers, the verdict, and the moves."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        shown = {name: value for name, value in values.items() if isinstance(value, int | float)}
        lists = [_moves(values[name], names, title) for name, (title, names) in _SHOWN.items()]
        node = next((move.node for move in (*self.top_losses, *self.top_gains) if move.node), None)
        asked = f"`ramify graph-credit why {shlex.quote(self.run)} {(node or '')[:12]}`"
        ask = f"The numbers behind a step, and what else was done in its state: {asked}." if self.run and node else ""
        yield Section.of("", numbers(shown), self.verdict, *lists, ask)


def _moves(moves: Sequence[CreditedMove], names: Sequence[str], title: str) -> Grid:
    """A table of moves with some of their numbers, and their nodes where they have any."""
    nodes = any(move.node for move in moves)
    rows: list[list[Cell]] = [
        [
            short(move.task),
            *_apart(move.source, move.target, short(move.action)),
            *(getattr(move, name) for name in names),
            *([(move.node or "-")[:12]] if nodes else []),
        ]
        for move in moves
    ]
    return table(["task", "from", "action", "to", *names, *(["node"] if nodes else [])], rows, title)


def _apart(source: Any, target: Any, action: str, width: int = 40) -> list[str]:
    """Two states with the action between; long ones from shortly before the first character in which they differ."""
    keys = [state["key"] if isinstance(state, dict) and state.keys() == {"key"} else state for state in (source, target)]
    old, new = (key if isinstance(key, str) else canonical(key) for key in keys)
    alike = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    cut = max(0, alike - width // 3) if max(len(old), len(new)) > width else 0
    before, after = (short("…" * (cut > 0) + text[cut:], width) for text in (old, new))
    return [before, action, after]


@dataclass(frozen=True, kw_only=True)
class StepNumbers(MoveTest):
    """Credit of one step, the mean over the attempts that share it: what its ``why`` annotation holds."""

    V: float | None = None
    V_next: float | None = None
    delta: float | None = None
    A_ep: float | None = None
    A_nc: float | None = None
    A_ec: float | None = None
    A: float | None = None
    reward: float | None = None
    group_size: int | None = None
    group: int | None = None
    next_group: int | None = None
    task: Any = None
    attempts: tuple[Any, ...] = ()
    """Those that go through the step, of a run."""


@dataclass(frozen=True)
class StateVisit:
    """One visit to a state."""

    attempt: Any
    step: int
    action: Any
    V_next: float


@dataclass(frozen=True, kw_only=True)
class StepCredit(StepNumbers, Result):
    """The numbers that explain one step's credit; None where they are not known, as of the credit that a run stores."""

    node: str | None = None
    attempt: Any = None
    step: int | None = None
    key: Any = None
    """The state it was made in."""
    action: Any = None
    rule: str | None = None
    terms: tuple[str, ...] = ()
    w: float | None = None
    reward_mean: float | None = None
    reward_std: float | None = None
    next_mean: float | None = None
    next_std: float | None = None
    delta_mean: float | None = None
    delta_std: float | None = None
    note: str = ""
    visits: tuple[StateVisit, ...] = ()

    def sections(self) -> Iterable[Section]:
        """The numbers, the visits to the state, and whether the step stands out of chance."""
        first = ("node", "task", "attempt", "step", "key", "action")
        rest = (attribute.name for attribute in fields(self) if attribute.name not in (*first, "caveats", "visits", "note"))
        values = {name: getattr(self, name) for name in (*first, *rest)}
        rows = [(name, _cell(name, value)) for name, value in values.items() if value not in (None, "", ())]
        moves = [(short(visit.attempt), visit.step, short(visit.action), visit.V_next) for visit in self.visits]
        visits = table(["attempt", "step", "action", "V_next"], moves, "all visits to this state")
        chance = "" if self.note == DROPPED else self.sentence()
        yield Section.of("", table(["number", "value"], rows), visits, self.note, chance)


@dataclass(frozen=True)
class RuleNumbers(Result):
    """What another rule says of a step, as it says it."""

    node: str
    maker: str
    numbers: Mapping[str, Any]
    meanings: Mapping[str, str]

    def sections(self) -> Iterable[Section]:
        """The numbers with their meaning."""
        rows = [
            ("node", self.node, ""),
            *((name, _cell(name, number), self.meanings.get(name, "")) for name, number in self.numbers.items()),
        ]
        yield Section.of("", table(["number", "value", "what it is"], rows, f"credit by {self.maker}"))


def _cell(name: str, value: Any) -> Cell:
    if value is None or isinstance(value, bool | int | float):
        return value
    if name == "interval":
        return interval(value)
    return ", ".join(map(short, value)) if isinstance(value, tuple) else short(value)


def diagnose(
    graph: MergedGraph,
    credit: dict[str, np.ndarray],
    comparison: Comparison,
    level: float,
    top: int = 5,
    *,
    nodes: Sequence[str | None] = (),
    texts: bool = False,
) -> CreditReport:
    """How much states repeat, how much of the credit comes from where, which moves gained or lost most,
    and which of it is not chance.

    ``found`` as returned by ``credit_graph`` on ``graph``; ``nodes``: the node of each visit, where it is of a run; ``texts``:
    states are texts of observations.
    """
    kept = credit["weight"] > 0
    weight, size = credit["weight"][kept], credit["group_size"][kept]
    tasks = _Tasks.of(graph, credit)
    steps = float(weight.sum())
    sizes, counts = np.unique(size, return_counts=True)
    _, spread, _ = moments(credit["reward"][kept], graph.visit_edge[kept], ddof=0)
    busy = np.bincount(graph.visit_edge[kept]) > 1
    delta, _, votes = moments(np.nan_to_num(credit["delta"]), graph.visit_edge, weights=credit["weight"], ddof=0)
    order = np.argsort(np.where(votes > 0, delta, 0.0), kind="stable")

    def mean(name: str) -> float:
        return float(np.abs(credit[name][kept]).mean()) if steps else 0.0

    def tops(edges: np.ndarray, sign: int) -> tuple[CreditedMove, ...]:
        chosen = [int(e) for e in edges[:top] if delta[e] * sign > 0]
        rows = [int(np.flatnonzero(graph.visit_edge == e)[0]) for e in chosen]  # the first visit that took it
        more = [{"delta": float(delta[e]), "count": int(graph.edge_count[e])} for e in chosen]
        return tuple(
            _moved(graph, e, nodes[row] if nodes else None, comparison.of_edge.get(e), level, **numbers)
            for e, row, numbers in zip(chosen, rows, more, strict=True)
        )

    return CreditReport(
        steps=round(steps),
        attempts=tasks.attempts,
        tasks=int(tasks.present.sum()),
        states=len(np.unique(credit["group_id"][kept])),
        dropped_steps=int((~kept).sum()),
        mean_group_size=float((weight * size).sum() / steps) if steps else 0.0,
        singleton_share=_single(credit),
        group_sizes={int(s): int(c) for s, c in zip(sizes, counts, strict=True)},
        constant_reward_share=float(tasks.constant.sum() / max(tasks.present.sum(), 1)),
        hidden_state_spread=float(spread[busy].mean()) if busy.any() else 0.0,
        mean_abs_a_ep=mean("A_ep"),
        mean_abs_a_nc=mean("A_nc"),
        mean_abs_a_ec=mean("A_ec"),
        mean_abs_a=mean("A"),
        level=level,
        compared=len(comparison.moves),
        verdict=comparison.verdict(level),
        decisive=tuple(
            _moved(graph, move.edges[0], nodes[move.row] if nodes else None, move, level) for move in comparison.decisive(level)
        ),
        top_gains=tops(order[::-1], 1),
        top_losses=tops(order, -1),
        caveats=tuple(doubts(graph, credit, texts)),
    )


@dataclass(frozen=True)
class _Tasks:
    """Which tasks have attempts, and which say nothing; arrays with an entry per task."""

    attempts: int
    present: np.ndarray
    constant: np.ndarray
    """All attempts have one reward."""
    lone: np.ndarray
    """There is one attempt."""

    @classmethod
    def of(cls, graph: MergedGraph, credit: Mapping[str, np.ndarray]) -> _Tasks:
        kept = credit["weight"] > 0
        attempts = np.unique(graph.visit_attempt[kept], return_index=True)[1]
        task = graph.visit_task[kept][attempts]
        reward, n = moments(credit["reward"][kept][attempts], task, ddof=0), np.bincount(task)
        present = n > 0
        return cls(len(attempts), present, present & (reward[1] == 0), present & (n == 1))


def _single(credit: Mapping[str, np.ndarray]) -> float:
    """Share of steps in a state visited once."""
    weight = credit["weight"]
    total = float(weight.sum())
    return float(weight[(weight > 0) & (credit["group_size"] == 1)].sum() / total) if total else 0.0


def doubts(graph: MergedGraph, credit: Mapping[str, np.ndarray], texts: bool) -> Iterable[str]:
    """Why the credit says less than it seems to, a sentence each. As :func:`diagnose`."""
    tasks, single = _Tasks.of(graph, credit), _single(credit)
    if single > LOUD:
        yield (
            f"no state repetition ({100 * single:.0f} % of steps are in a state visited once): only the episode term is "
            "informative; --state-pattern REGEX takes the state out of a text, --scrub takes numbers and times out of it"
        )
    elif texts and graph.starts_apart:
        yield (
            "no attempt is ever back in a state that one began in, as where the first observation also holds the task: "
            "--state-pattern REGEX takes the state out of a text"
        )
    if tasks.lone.any():
        yield f"{tasks.lone.sum()} of {tasks.present.sum()} tasks have one attempt: their episode term is 0{_ONE_TASK}"
    elif len(tasks.present) and tasks.constant.sum() == tasks.present.sum():
        yield "in every task all attempts have one reward: there is nothing to credit"


def _moved(graph: MergedGraph, edge: int, node: str | None, move: Move | None, level: float, **more: Any) -> CreditedMove:
    source, target = int(graph.edge_source[edge]), int(graph.edge_target[edge])
    more |= {
        "task": graph.tasks[graph.group_task[source]],
        "source": graph.keys[source],
        "action": graph.actions[graph.edge_action[edge]],
        "target": graph.keys[target],
        "node": node,
    }
    return CreditedMove(**more) if move is None else CreditedMove.of(move, level, **more)
