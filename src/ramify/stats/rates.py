"""Does something that is tried again and again succeed often enough? A test that stops as soon as that is settled, and how many
runs it takes.

Wald's sequential test of one rate (1945): the likelihood of the rate that is ``usual`` against that of the rate that is still
refused, ``at_least``, run for run. It is cut off after ``most`` runs. Both boundaries are counts, so every chance is a finite sum
over the ways to stop and exact; the boundary of a pass is the lowest whose chance at ``at_least`` is at most 1 - ``confidence``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval, clopper_pearson

MOST_RUNS = 2000
"""A plan that takes more runs is refused."""
NEGLIGIBLE = 1e-9
"""Chance of a test without an end that is still going on, below which it is not followed."""
Settled = Literal["passed", "failed"]


@dataclass(frozen=True)
class RateTest:
    """Tells whether a rate of success is ``at_least`` so high, with ``confidence``.

    Something whose true rate is ``at_least`` or less passes with a chance of at most 1 - ``confidence``, however soon the test
    stops; something whose rate is ``usual`` passes with a chance of ``power`` or more. ``usual`` is by default three quarters of
    the way from ``at_least`` to 1. Raises UserError where the four are no such numbers or :data:`MOST_RUNS` are not enough.
    """

    at_least: float
    confidence: float = 0.95
    usual: float = 0.0
    power: float = 0.8
    most: int = field(init=False, default=0)
    """Runs after which it has ended at the latest."""

    def __post_init__(self) -> None:
        numbers = (self.at_least, self.confidence, self.usual, self.power)
        if not all(isinstance(number, (int, float)) for number in numbers):
            raise UserError(f"at_least, confidence, usual and power are numbers, not {', '.join(map(repr, numbers)):.120}")
        if not 0 < self.at_least < 1 or not 0.5 < self.confidence < 1 or not 0 < self.power < 1:
            raise UserError(
                "at_least and power lie between 0 and 1, confidence between 0.5 and 1, not "
                f"{self.at_least:g}, {self.power:g} and {self.confidence:g}: no number of runs shows that something never fails"
            )
        if not self.usual:
            object.__setattr__(self, "usual", 1 - (1 - self.at_least) / 4)
        if not self.at_least < self.usual < 1:
            raise UserError(f"usual lies between at_least ({self.at_least:g}) and 1, not at {self.usual:g}")
        object.__setattr__(self, "most", self._plan[1])

    @property
    def _plan(self) -> tuple[_Stops, int]:
        return _planned(self.at_least, self.confidence, self.usual, self.power)

    @property
    def _stops(self) -> _Stops:
        return self._plan[0]

    def settled(self, counts: Counts) -> Settled | None:
        """What ``counts`` so far settle, None while another run can change it. Runs without an outcome count as neither."""
        n = min(counts.n, self.most)
        if n and counts.k >= self._stops.passing[n]:
            return "passed"
        return "failed" if n and counts.k <= self._stops.failing[n] else None

    def ahead(self, counts: Counts) -> int:
        """Runs after which it may first be settled: however they end, fewer settle nothing. 0 once it is."""
        return next(
            m
            for m in range(self.most + 1)
            if self.settled(counts + Counts(m, m)) is not None or self.settled(counts + Counts(0, m)) is not None
        )

    def chance(self, rate: float) -> float:
        """Exact chance that something whose true rate is ``rate`` passes."""
        return float(self._stops.weights(rate)[self._stops.passes].sum())

    def runs(self, rate: float) -> float:
        """Exact mean number of runs at a true ``rate``."""
        return float(self._stops.weights(rate) @ self._stops.n)

    def interval(self, counts: Counts, level: float = 0.95) -> Interval:
        """Exact interval of the true rate after this test has stopped at ``counts``, by the order of k / n (Jennison and Turnbull
        1983); of counts at which it does not stop that of as many runs without a test (Clopper and Pearson)."""
        stops, tail = self._stops, (1 - level) / 2
        if not ((stops.n == counts.n) & (stops.k == counts.k)).any():
            return clopper_pearson(counts.k, counts.n, level)
        share, here = stops.k / stops.n, counts.k / counts.n
        above, below = share >= here - 1e-12, share <= here + 1e-12
        low = 0.0 if counts.k == 0 else _from(lambda p: float(stops.weights(p)[above].sum()) > tail)
        high = 1.0 if counts.k == counts.n else _from(lambda p: float(stops.weights(p)[below].sum()) <= tail)
        return low, high


def runs_needed(at_least: float, usual: float, confidence: float = 0.95, power: float = 0.8) -> int:
    """Runs of a test that does not stop early (exact, binomial) which show, with ``confidence``, that a rate is ``at_least`` so
    high, with a chance of ``power`` where it is ``usual``. Raises UserError beyond :data:`MOST_RUNS`."""
    from scipy.stats import binom

    for n in range(1, MOST_RUNS + 1):
        wanted = int(binom.isf(1 - confidence, n, at_least)) + 1  # the least count that at_least reaches that rarely
        if wanted <= n and binom.sf(wanted - 1, n, usual) >= power:
            return n
    raise UserError(_too_many(at_least, usual))


def _too_many(at_least: float, usual: float) -> str:
    return f"to tell a rate of {usual:g} from {at_least:g} takes more than {MOST_RUNS} runs: state a usual rate further away"


@dataclass(frozen=True, eq=False)
class _Stops:
    """Every way to stop: after ``n`` runs with ``k`` successes, (S,) each; ``log`` is the logarithm of its chance at the rate
    ``at``; ``passing`` and ``failing`` (most + 1,) are the counts at which the test stops after so many runs."""

    n: np.ndarray
    k: np.ndarray
    passes: np.ndarray
    log: np.ndarray
    at: float
    passing: np.ndarray
    failing: np.ndarray

    def weights(self, rate: float) -> np.ndarray:
        """Chances of the stops at a true ``rate``, (S,)."""
        p = min(max(rate, 1e-12), 1 - 1e-12)
        more = self.k * math.log(p / self.at) + (self.n - self.k) * math.log((1 - p) / (1 - self.at))
        return np.asarray(np.exp(self.log + more))


def _walked(at_least: float, usual: float, upper: float, lower: float, most: int, ends: bool) -> _Stops:
    """Stops of the test that the logarithm of the likelihood ratio ends at ``upper`` and at ``lower``; with ``ends`` it is cut
    off after ``most`` runs, and what can no longer pass by then is over."""
    up, down, at = math.log(usual / at_least), math.log((1 - usual) / (1 - at_least)), (at_least + usual) / 2
    n = np.arange(most + 1)
    passing = np.ceil((upper - n * down) / (up - down) - 1e-9).astype(int)
    failing = np.floor((lower - n * down) / (up - down) + 1e-9).astype(int)
    if ends:
        failing = np.maximum(failing, passing[most] - (most - n) - 1)
    alive, least, rows = np.ones(1), 0, list[tuple[int, int, float]]()  # alive: chances of the counts from ``least`` up
    for m in range(1, most + 1):
        alive = np.append(alive * (1 - at), 0.0) + np.append(0.0, alive * at)
        while len(alive) and least + len(alive) > passing[m]:
            rows.append((m, least + len(alive) - 1, float(alive[-1])))
            alive = alive[:-1]
        while len(alive) and least <= failing[m]:
            rows.append((m, least, float(alive[0])))
            alive, least = alive[1:], least + 1
        if alive.sum() < NEGLIGIBLE:
            break
    stop_n, stop_k, chances = (np.array(column) for column in zip(*rows, strict=True))
    return _Stops(stop_n, stop_k, stop_k >= passing[stop_n], np.log(chances), at, passing, failing)


@lru_cache(maxsize=64)
def _planned(at_least: float, confidence: float, usual: float, power: float) -> tuple[_Stops, int]:
    """The test with the lowest boundary of a pass that keeps the error, cut off as soon as it has the power. Half of the chance
    to miss is left to its other boundary, the rest to the cut-off."""
    lower = math.log((1 - power) / 2)
    low, upper = 0.0, -math.log(1 - confidence)  # there the error is at most 1 - confidence (Ville)
    stops = _walked(at_least, usual, upper, lower, MOST_RUNS, False)
    for _ in range(10):
        tried = _walked(at_least, usual, (low + upper) / 2, lower, MOST_RUNS, False)
        if tried.weights(at_least)[tried.passes].sum() <= 1 - confidence:
            upper, stops = (low + upper) / 2, tried
        else:
            low = (low + upper) / 2
    reached = np.bincount(stops.n, np.where(stops.passes, stops.weights(usual), 0.0)).cumsum()
    if reached[-1] < power:
        raise UserError(_too_many(at_least, usual))
    most = int(np.argmax(reached >= power))
    return _walked(at_least, usual, upper, lower, most, True), most


def _from(holds: Callable[[float], bool]) -> float:
    """The rate from which on something holds."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
