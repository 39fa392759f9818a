"""Which moves stand out of chance: what attempts did in one state,
and whether their rewards differ by more than a shuffle of them would.

Credit is a number for every step, also where the rewards were sampled at random. Here each move out of a state is set against the
other moves out of it. A unit is an attempt's first visit to the state (what it did on later visits depends on how the first
went), and steps that attempts of a rollout tree share are one unit with the mean reward of the attempts below. If the move does
not matter, any of the rewards could as well have followed any of the moves: the p-value is the share of such assignments with at
least the observed difference of means, exact where rewards take two values. Moves of all states are corrected together.

Axis legend: U units of one state, M moves that can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any, NamedTuple, Self

import numpy as np

from ramify.base.seeds import generator
from ramify.base.words import plural
from ramify.render.numbers import p_value
from ramify.stats.intervals import Interval, difference_of_proportions
from ramify.trace.graph import MergedGraph

LEVEL = 0.05
"""Chance of calling any move decisive where none matters."""
EXACT = 10_000  # up to here all ways to choose the takers are counted; beyond, as many are sampled
_SAME = 1e-9  # differences nearer than this (relative) are equal: sums in another order differ in their last bits

Support = np.ndarray
"""The p-values that a test can give, ascending."""


@dataclass(frozen=True, slots=True)
class Move:
    """What attempts did in one state, against what else they did there."""

    edges: tuple[int, ...] = field(metadata={"json": False})
    """Edges of the graph that are this move, the most taken first."""
    row: int = field(metadata={"json": False})
    """A visit that took it."""
    takers: int
    others: int
    difference: float
    """Mean reward of those who took it minus that of the others."""
    interval: Interval | None
    """95 %, of this difference alone; None where too little is known for one."""
    p: float
    p_corrected: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MoveTest:
    """The numbers of a step's move, and whether it stands out of chance; all None where it cannot be compared."""

    decisive: bool | None = None
    """None where no first visit to its state did anything else."""
    takers: int | None = None
    others: int | None = None
    difference: float | None = None
    interval: Interval | None = None
    p: float | None = None
    p_corrected: float | None = None

    @classmethod
    def of(cls, move: Move, level: float, **more: Any) -> Self:
        """Of a move that was compared; ``more`` are further fields of a subclass."""
        return cls(
            decisive=move.p_corrected <= level,
            takers=move.takers,
            others=move.others,
            difference=move.difference,
            interval=move.interval,
            p=move.p,
            p_corrected=move.p_corrected,
            **more,
        )

    def sentence(self) -> str:
        """Whether the step's credit is more than chance."""
        if self.decisive is None or self.others is None:
            return (
                "no attempt did anything else when it was first in this state, so the step cannot be compared: its credit may be "
                "chance"
            )
        return (
            f"the step {'stands' if self.decisive else 'does not stand'} out of chance: rewards {self.difference:+.3g} against "
            f"{plural(self.others, 'other')} in its state, corrected p {p_value(self.p_corrected)}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every move that has another to be compared with, and the one it is by edge."""

    moves: tuple[Move, ...]
    of_edge: dict[int, Move]

    def decisive(self, level: float) -> list[Move]:
        """The moves that stand out, the surest first."""
        passing = [move for move in self.moves if move.p_corrected <= level]
        return sorted(passing, key=lambda move: (move.p, -abs(move.difference), move.row))

    def verdict(self, level: float) -> str:
        """What it comes to, in one sentence."""
        correction = f"at level {level:g}, corrected over all of them"
        if not self.moves:
            return "nothing stands out: no two attempts did different things in one state, so no move can be compared"
        if standing_out := self.decisive(level):
            return f"{len(standing_out)} of {len(self.moves)} moves that can be compared stand out of chance, {correction}"
        return (
            f"nothing stands out: none of {len(self.moves)} moves that can be compared differs from the others in its state by "
            f"more than chance, {correction}"
        )

    def of_step(self, edge: int, level: float) -> MoveTest:
        """Of one step: the numbers of its move and whether it is ``decisive``."""
        move = self.of_edge.get(edge)
        return MoveTest() if move is None else MoveTest.of(move, level)


class _Draft(NamedTuple):
    """A move whose p-value is not corrected yet."""

    support: Support
    move: Move
    mirror: bool
    """It is the other of two moves, which one test decides both."""


def compare(
    graph: MergedGraph, reward: np.ndarray, weight: np.ndarray, votes: np.ndarray, nodes: Sequence[Any] | None = None
) -> Comparison:
    """Compare the moves out of every state of ``graph``. All arrays have one entry per visit.

    ``reward``: of the visit's attempt; ``weight``: how much of a visit it is; ``votes``: whether it counts at all; ``nodes``:
    equal where visits are physically one step, None elsewhere.
    """
    rows = np.flatnonzero(votes & (weight > 0))
    if not len(rows):
        return Comparison((), {})
    rows = rows[np.lexsort((graph.visit_step[rows], graph.visit_attempt[rows]))]
    place = graph.visit_group[rows] * len(graph.attempts) + graph.visit_attempt[rows]
    rows = rows[np.unique(place, return_index=True)[1]]  # first visits, by state
    bounds = np.flatnonzero(np.diff(graph.visit_group[rows], prepend=-1, append=-1))
    drafts: list[_Draft] = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if len(np.unique(graph.visit_edge[rows[start:stop]])) > 1:
            drafts += _state(graph, rows[start:stop], reward, weight, nodes)
    once = [i for i, draft in enumerate(drafts) if not draft.mirror]
    p = corrected([drafts[i].move.p for i in once], [drafts[i].support for i in once])
    by_test = dict(zip(once, p, strict=True))
    moves = tuple(replace(draft.move, p_corrected=by_test.get(i, by_test.get(i - 1, 1.0))) for i, draft in enumerate(drafts))
    return Comparison(moves, {edge: move for move in moves for edge in move.edges})


def _state(
    graph: MergedGraph, rows: np.ndarray, reward: np.ndarray, weight: np.ndarray, nodes: Sequence[Any] | None
) -> list[_Draft]:
    """The moves out of one state with the p-values their tests can give; ``rows`` are its first visits."""
    label = _labels(graph, rows)
    unit, first = _units(rows, nodes)
    w = np.bincount(unit, weight[rows])
    x = np.bincount(unit, weight[rows] * reward[rows]) / w
    same = np.bincount(unit) == 1
    x[same] = reward[rows[first[same]]]  # as given: a product and a quotient may move a last bit
    taken = label[first]
    names = np.unique(taken)
    if len(names) < 2:
        return []
    out: list[_Draft] = []
    for name in names.tolist():
        takes = taken == name
        support, p = _test(x, takes)
        edges = Counter(graph.visit_edge[rows[label == name]].tolist())
        move = Move(
            edges=tuple(sorted(edges, key=lambda edge: (-edges[edge], edge))),
            row=int(rows[first[takes][0]]),
            takers=int(takes.sum()),
            others=int((~takes).sum()),
            difference=float(x[takes].mean() - x[~takes].mean()),
            interval=_interval(x, takes),
            p=p,
        )
        out.append(_Draft(support, move, len(names) == 2 and len(out) == 1))
    return out


def _labels(graph: MergedGraph, rows: np.ndarray) -> np.ndarray:
    """Which move each visit to a state made, int (U,).

    The action, or what it led to where actions seldom repeat (free text). The reward at an end must not distinguish moves: it is
    what they are compared by.
    """
    edge, target = graph.visit_edge[rows], graph.visit_target[rows].copy()
    action = graph.edge_action[edge]
    names, code, count = np.unique(action, return_inverse=True, return_counts=True)
    ends = graph.group_terminal[target]
    target[ends] = np.where(count[code[ends]] > 1, -2 - action[ends], -1)
    repeats = 2 * len(names) <= len(rows) or len(names) <= len(np.unique(target))
    return np.asarray(action if repeats else target)


def _units(rows: np.ndarray, nodes: Sequence[Any] | None) -> tuple[np.ndarray, np.ndarray]:
    """The unit of each row, 0.., and where each unit's first row is."""
    numbers: dict[Any, int] = {}
    unit = np.array(
        [numbers.setdefault(row if nodes is None or nodes[row] is None else (nodes[row],), len(numbers)) for row in rows.tolist()]
    )
    return unit, np.unique(unit, return_index=True)[1]


def _test(x: np.ndarray, takes: np.ndarray) -> tuple[Support, float]:
    """The p-values possible and the one that came, of equal means of ``x`` (U,) among those who took a move and those who did
    not."""
    values, n, few = np.unique(x), len(x), int(takes.sum())
    if len(values) == 1:
        return np.ones(1), 1.0
    if len(values) == 2:
        high = x == values[1]
        support, by_statistic = _two_values(n, few, int(high.sum()))
        return support, by_statistic[abs(int(high[takes].sum()) * n - few * int(high.sum()))]
    chosen, sampled = _choices(n, few)
    off = np.sort(np.abs(x[chosen].sum(axis=1) - few * float(x.mean())))
    slack = _SAME * few * float(np.abs(x).max())

    def p_value(statistic: np.ndarray | float) -> Any:
        return (len(off) - np.searchsorted(off, statistic - slack) + sampled) / (len(off) + sampled)

    return np.unique(p_value(off)), float(p_value(abs(float(x[takes].sum()) - few * float(x.mean()))))


@lru_cache(maxsize=16)
def _choices(n: int, few: int) -> tuple[np.ndarray, bool]:
    """Ways to choose the takers, int (ways, few), and whether they are a sample of all ways;
    then the observed one is counted with them."""
    if comb(n, few) <= EXACT:
        return np.array(list(combinations(range(n), few))), False
    rng = generator(0, "graph-credit", "decisive", n, few)
    return np.array([rng.permutation(n)[:few] for _ in range(EXACT - 1)]), True


@lru_cache(maxsize=4096)
def _two_values(n: int, few: int, high: int) -> tuple[Support, dict[int, float]]:
    """The p-values possible, and the p-value by |t n - few high|,
    where t of ``few`` takers and ``high`` of all ``n`` have the higher value."""
    from scipy.special import gammaln

    t = np.arange(max(0, high - (n - few)), min(few, high) + 1)

    def choose(a: int, b: np.ndarray) -> np.ndarray:
        return np.asarray(gammaln(a + 1) - gammaln(b + 1) - gammaln(a - b + 1))

    chance = np.exp(choose(high, t) + choose(n - high, few - t) - choose(n, np.array(few)))
    off = np.abs(t * n - few * high)
    statistics = np.unique(off)[::-1]
    p = np.minimum(1.0, np.cumsum([chance[off == statistic].sum() for statistic in statistics]))
    return p, dict(zip(statistics.tolist(), p.tolist(), strict=True))


def corrected(p: Sequence[float], supports: Sequence[Support]) -> list[float]:
    """Corrected p-values, step down, in the order given: the chance that any test of those left would give so small a p.

    Holm's procedure, but a test counts with the chance that it gives a p-value that small, not with the p-value itself: one that
    is too small to give any costs the others nothing (Westfall and Wolfinger 1997; Tarone 1990).
    """
    out = [1.0] * len(p)
    kinds = {id(support): support for support in supports}
    left = Counter(id(support) for support in supports)
    worst = 0.0
    for i in sorted(range(len(p)), key=lambda i: p[i]):
        worst = max(worst, sum(count * _chance(kinds[kind], p[i]) for kind, count in left.items()))
        if worst >= 1:
            break
        out[i] = worst
        left[id(supports[i])] -= 1
    return out


def _chance(support: Support, p: float) -> float:
    """The chance of a p-value of at most ``p``: the largest that the test can give up to there."""
    at = int(np.searchsorted(support, p * (1 + _SAME), side="right"))
    return float(support[at - 1]) if at else 0.0


def _interval(x: np.ndarray, takes: np.ndarray) -> Interval | None:
    """95 % interval of the difference of means: Newcombe's where ``x`` has two values, else Welch's."""
    values = np.unique(x)
    a, b = x[takes], x[~takes]
    if len(values) == 2:
        low, high = difference_of_proportions(int((a == values[1]).sum()), len(a), int((b == values[1]).sum()), len(b))
        return float(low * (values[1] - values[0])), float(high * (values[1] - values[0]))
    if len(values) == 1 or min(len(a), len(b)) < 2:
        return None
    from scipy.special import stdtrit

    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0:
        return None
    degrees = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = float(stdtrit(degrees, 0.975)) * (va + vb) ** 0.5
    middle = float(a.mean() - b.mean())
    return middle - half, middle + half
