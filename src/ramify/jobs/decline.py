"""Find the step of a path at which the chance of success fell, with few forks: a rule of
:func:`ramify.rollout.potential.potential`.

The chance of success along a path changes only where something was decided. So the rule halves the path where it fell most, a few
forks a position, until two neighbouring positions are left, and forks these until the fall between them stands out of chance or
cannot any more. Positions that other forks passed through anyway are counted with those:
they are samples of the same continuation.

A step stands out where the lower end of the interval of the fall (Newcombe's; Clopper and Pearson's where the attempt ended
there) lies above ``least``, at a level that is divided by the number of steps and by the number of looks at one of them: the
chance of calling any step of a path on which none fell by more than ``least`` is at most ``level``.

Axis legend: T steps of the path; position t lies after step t, position 0 before the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval, clopper_pearson
from ramify.stats.sequential import chance_of

MISS = 0.1
"""A step is given up once the predictive chance that all its forks would make it stand out is below this."""
_EDGE = 1e-12  # a fall of exactly ``least`` must not stand out by a rounding error


@dataclass(frozen=True, slots=True)
class StepFall:
    """How far the chance of success fell at one step, or between two positions;
    ``interval`` is corrected over steps and looks."""

    t: int
    """The step: from position t - 1 to position t."""
    value: float
    interval: Interval
    stands_out: bool


@dataclass(frozen=True, slots=True)
class Decline:
    """Forks positions until the step of the largest fall is found, or none stands out.

    ``first`` forks a position to begin with, twice as many up to ``n`` where it matters, at most ``samples`` in all.
    ``passing(counts)`` are the counts of continuations through each position that were not started there, given the counts of
    those that were. ``known`` are positions whose chance is known (the end of a path that has ended).
    ``gain``: look for the largest rise instead.
    """

    n: int = 48
    first: int = 4
    level: float = 0.05
    least: float = 0.05
    samples: float = math.inf
    passing: Callable[[Mapping[int, Counts]], Mapping[int, Counts]] = lambda counts: {}
    known: frozenset[int] = frozenset()
    gain: bool = False

    def z(self, steps: int) -> float:
        """The quantile of one look at one of ``steps`` steps."""
        return _quantile(self.level, max(steps, 1), min(self.first, self.n), self.n, self.least)

    def looks(self, positions: Sequence[int]) -> Generator[Mapping[int, int], dict[int, Counts], tuple[int, ...]]:
        """See :class:`ramify.rollout.potential.ForkRule`; finds the steps that stand out, the largest fall first."""
        z, first = self.z(positions[-1] - positions[0]), min(self.first, self.n)
        measured: dict[int, Counts] = {}
        size = {positions[0]: first, positions[-1]: first, positions[len(positions) // 2]: first}
        stood: dict[int, float] = {}
        while wanted := self._wanted(measured, size):
            measured = dict((yield wanted))
            while True:
                counts = self.merged(measured)
                for t in [t for t in size if t - 1 in size and self._counted(counts, t - 1, t)]:
                    fall = fall_between(counts[t - 1], counts[t], z, self._exact(t - 1), self._exact(t))
                    if fall[1][0] > self.least + _EDGE:
                        stood[t] = fall[0]
                    else:
                        stood.pop(t, None)
                if not self._next(counts, size, stood, z) or self._left(measured) <= 0:
                    return tuple(sorted(stood, key=lambda t: -stood[t]))
                if self._wanted(measured, size):
                    break  # what passed through was not enough
        return tuple(sorted(stood, key=lambda t: -stood[t]))

    def merged(self, measured: Mapping[int, Counts]) -> dict[int, Counts]:
        """The counts of each position with what passed through it; turned round for a ``gain``."""
        passing = self.passing(measured)
        none = Counts(0, 0)
        both = {t: measured.get(t, none) + passing.get(t, none) for t in {*measured, *passing}}
        return {t: Counts(c.n - c.k, c.n, c.missing, c.truncated) for t, c in both.items()} if self.gain else both

    def _exact(self, t: int) -> bool:
        return t in self.known

    def _counted(self, counts: Mapping[int, Counts], *positions: int) -> bool:
        return all(t in counts and counts[t].n for t in positions)

    def _left(self, measured: Mapping[int, Counts]) -> float:
        return self.samples - sum(c.forks for t, c in measured.items() if t not in self.known)

    def _wanted(self, measured: Mapping[int, Counts], size: Mapping[int, int]) -> dict[int, int]:
        """Forks to have of each position, as far as the budget goes. A failed fork is one of them."""
        counts = self.merged(measured)
        left = self._left(measured)
        wanted: dict[int, int] = {}
        for t, many in size.items():
            mine = measured.get(t, Counts(0, 0)).forks
            if t in self.known:
                if not mine:
                    wanted[t] = 1
                continue
            more = min(many - counts.get(t, Counts(0, 0)).forks, left)
            if more > 0:
                wanted[t], left = mine + int(more), left - int(more)
        return wanted

    def _next(self, counts: Mapping[int, Counts], size: dict[int, int], stood: Mapping[int, float], z: float) -> bool:
        """Halve the stretch with the largest fall, or fork its two positions further; False where nothing is left to do."""
        at = sorted(t for t in size if self._counted(counts, t))
        best = max(stood.values(), default=0.0)
        todo: list[tuple[float, int, int]] = []
        for a, b in itertools.pairwise(at):
            fall = _shrunk(counts[a], self._exact(a)) - _shrunk(counts[b], self._exact(b))
            # nothing came back from a middle that was forked and is not counted
            full = (a + b) // 2 in size if b - a > 1 else all(self._exact(t) or size[t] >= self.n for t in (a, b))
            if fall > best and not full and b not in stood and self._open(counts[a], counts[b], a, b, z):
                todo.append((fall, a, b))
        if not todo:
            return False
        _, a, b = max(todo)
        if b - a > 1:
            middle = (a + b) // 2
            size[middle] = min(self.first, self.n)
            return True
        less = min(size[t] for t in (a, b) if not self._exact(t))
        for t in (a, b):
            if not self._exact(t):
                size[t] = max(size[t], min(2 * less, self.n))
        return True

    def _open(self, before: Counts, after: Counts, a: int, b: int, z: float) -> bool:
        """Whether the fall between two positions may yet stand out."""
        ends = [1 if self._exact(t) else max(self.n, c.n) for t, c in ((a, before), (b, after))]
        table = _table(z, self.least, ends[0], ends[1], self._exact(a), self._exact(b))
        first, second = (_as_known(c) if self._exact(t) else c for t, c in ((a, before), (b, after)))
        return chance_of(table, first.k, first.n, second.k, second.n) >= MISS


def falls(rule: Decline, measured: Mapping[int, Counts], steps: int) -> list[StepFall]:
    """The fall at every step of which both sides were counted; of a ``gain`` the rise."""
    counts, z = rule.merged(measured), rule.z(steps)
    rows = []
    for t in range(1, steps + 1):
        if rule._counted(counts, t - 1, t):
            value, interval = fall_between(counts[t - 1], counts[t], z, t - 1 in rule.known, t in rule.known)
            rows.append(StepFall(t, value, interval, interval[0] > rule.least + _EDGE))
    return rows


def fall_between(
    before: Counts, after: Counts, z: float, known: bool = False, known_after: bool = False
) -> tuple[float, Interval]:
    """Rate before minus rate after, and Newcombe's interval of it at the quantile ``z``; a side that is ``known`` has no error.

    Raises ZeroDivisionError where one side has no outcome.
    """
    p1, p2 = before.k / before.n, after.k / after.n
    (l1, u1), (l2, u2) = (_ends(p, c.n, z, exact) for p, c, exact in ((p1, before, known), (p2, after, known_after)))
    d = p1 - p2
    if known_after and not known:  # one rate against a number: exact
        low, high = clopper_pearson(before.k, before.n, _level(z))
        return d, (low - p2, high - p2)
    return d, (float(d - np.hypot(p1 - l1, u2 - p2)), float(d + np.hypot(u1 - p1, p2 - l2)))


def _ends(p: float, n: int, z: float, exact: bool) -> Interval:
    if exact:
        return p, p
    centre, half = (p + z * z / (2 * n)) / (1 + z * z / n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def _level(z: float) -> float:
    return 1 - 2 * NormalDist().cdf(-z)


@lru_cache(maxsize=256)
def _quantile(level: float, steps: int, first: int, n: int, least: float) -> float:
    """Of one look at one step, where only those looks count at which a step could stand out at all."""
    sizes = [min(first * 2**i, n) for i in range(1 + math.ceil(math.log2(n / first)))]
    for looks in range(1, len(sizes) + 1):
        z = NormalDist().inv_cdf(1 - level / (steps * looks))
        if sum(fall_between(Counts(m, m), Counts(0, m), z)[1][0] > least + _EDGE for m in sizes) <= looks:
            return z
    return NormalDist().inv_cdf(1 - level / (steps * len(sizes)))


@lru_cache(maxsize=256)
def _table(z: float, least: float, n1: int, n2: int, known: bool, known_after: bool) -> np.ndarray:
    """Whether (k1, k2) stands out, bool (n1 + 1, n2 + 1)."""
    if known_after and not known:
        ends = np.array([clopper_pearson(k, n1, _level(z))[0] for k in range(n1 + 1)])
        return np.asarray(ends[:, None] - np.arange(n2 + 1) / n2 > least + _EDGE)
    low = np.array([_ends(k / n1, n1, z, known)[0] for k in range(n1 + 1)])
    high = np.array([_ends(k / n2, n2, z, known_after)[1] for k in range(n2 + 1)])
    p1, p2 = np.arange(n1 + 1)[:, None] / n1, np.arange(n2 + 1) / n2
    out = (p1 - p2) - np.hypot(p1 - low[:, None], high - p2) > least + _EDGE
    return np.asarray(out)


def _as_known(counts: Counts) -> Counts:
    """A known chance of 0 or 1 as one count."""
    return Counts(round(counts.k / counts.n), 1)


def _shrunk(counts: Counts, exact: bool) -> float:
    return counts.k / counts.n if exact else (counts.k + 0.5) / (counts.n + 1)
