"""Credit shared over the steps of an attempt where no single one is the answer:
Shapley values, by walks that hold step after step.

The players are the steps of the attempt. A coalition holds its steps at what was done, by their number in the episode, and lets
the unchanged agent choose elsewhere; its value is the chance of success. The share of a step is the mean change that holding it
makes over all orders in which the steps can be held, so that the shares sum to the change from the start to the end (Shapley
1953; permutation sampling by Castro, Gómez and Tejada 2009).

A walk holds the steps in one random order. It begins with an attempt in which the agent chooses everything. Where that attempt
did at the next step what was done anyway, or had ended before, it is a sample of the larger coalition too, and nothing is played;
else the environment goes back to the state before that step, which is repeated, and the rest is played with all held steps held.
With everything held the outcome is known. So every coalition of a walk has a sample of its own distribution, neighbouring ones
differ in one step alone, and a walk takes at most as many continuations as there are steps.

Axis legend: W walks, T steps; steps count from 0.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ramify.base.seeds import generator
from ramify.stats.intervals import Interval, paired_proportions
from ramify.stats.sequential import final_count

MISS = 0.1
"""The walks end once the predictive chance that another step would get credit is below this, for each step without."""
_EDGE = 1e-12


class Ended(Protocol):
    """One attempt at a coalition."""

    @property
    def success(self) -> bool:
        """Its outcome."""
        ...


A = TypeVar("A", bound=Ended)


class Coalitions(Protocol[A]):
    """Plays attempts at coalitions of steps."""

    @property
    def played(self) -> int:
        """How many it has played."""
        ...

    async def free(self, walk: int) -> A | None:
        """An attempt in which the agent chooses everything; None where a failure kept it from being played."""
        ...

    async def hold(self, attempt: A, step: int, held: frozenset[int], walk: int) -> A | None:
        """An attempt at the coalition ``held``, which ``attempt`` fits but for ``step``:
        ``attempt`` where it did the same there."""
        ...

    async def whole(self) -> bool:
        """The outcome with every step held."""
        ...


@dataclass(frozen=True, slots=True)
class ShareWalk:
    """One walk: its order (T,), and the outcomes (T + 1,) with its first 0 .. T steps held."""

    order: tuple[int, ...]
    outcomes: tuple[bool, ...]

    def around(self, step: int) -> tuple[bool, bool]:
        """The outcomes before and after ``step`` was held."""
        at = self.order.index(step)
        return self.outcomes[at], self.outcomes[at + 1]


def order_of(steps: int, walk: int, name: str) -> tuple[int, ...]:
    """The order of one walk, decided by ``name`` and its number."""
    return tuple(generator(0, "share", name, walk).permutation(steps).tolist())


async def take(game: Coalitions[A], order: Sequence[int], walk: int) -> ShareWalk | None:
    """One walk; None where a failure ended it."""
    attempt = await game.free(walk)
    outcomes: list[bool] = []
    for at, step in enumerate(order):
        if attempt is None:
            return None
        outcomes.append(attempt.success)
        if at + 1 < len(order):
            attempt = await game.hold(attempt, step, frozenset(order[: at + 1]), walk)
    return ShareWalk(tuple(order), (*outcomes, await game.whole()))


@dataclass(frozen=True, slots=True)
class Looks:
    """When to look, and what a step needs to get credit: its share beyond ``least`` at ``level``, corrected over steps and looks.

    Of ``gain`` the attempt succeeded, and shares are rises."""

    n: int
    level: float = 0.05
    least: float = 0.05
    gain: bool = False

    @property
    def sizes(self) -> list[int]:
        """The numbers of walks at which the shares are looked at."""
        return sorted({math.ceil(self.n / 4), math.ceil(self.n / 2), self.n})

    def interval(self, before: Sequence[bool], after: Sequence[bool], steps: int) -> tuple[float, Interval]:
        """The mean change from ``before`` to ``after``, both (W,), with its corrected interval."""
        level = 1 - self.level / (max(steps, 1) * len(self.sizes))
        low, high = paired_proportions(np.asarray(after, float), np.asarray(before, float), level)
        return float(np.mean(after) - np.mean(before)), (low, high)

    def share(self, taken: Sequence[ShareWalk], step: int) -> tuple[float, Interval]:
        """The share of ``step`` by the walks, with its corrected interval."""
        before, after = zip(*(walk.around(step) for walk in taken), strict=True)
        return self.interval(before, after, len(taken[0].order))

    def credited(self, interval: Interval) -> bool:
        """Whether a share with this interval gets credit."""
        low, high = interval
        return low > self.least + _EDGE if self.gain else high < -self.least - _EDGE

    def open(self, before: Sequence[bool], after: Sequence[bool], steps: int) -> bool:
        """Whether a step without credit may yet get it, if its changes for the worse (of a gain:
        the better) go on at their rate."""
        have, sign = len(before), 1 if self.gain else -1
        change = [sign * (int(b) - int(a)) for a, b in zip(before, after, strict=True)]
        against = round(change.count(-1) * self.n / have)
        likely = 0.0
        for hits, chance in enumerate(final_count(change.count(1), have, self.n)[: self.n - against + 1]):
            if chance > 1e-6:
                worse, better = [True] * hits + [False] * (self.n - hits), [False] * (self.n - against) + [True] * against
                first, then = (better, worse) if self.gain else (worse, better)
                likely += chance * self.credited(self.interval(first, then, steps)[1])
        return likely >= MISS


async def walks(
    game: Coalitions[A], steps: int, looks: Looks, name: str, budget: float = math.inf
) -> tuple[list[ShareWalk], bool]:
    """Walk until every step has credit or will not get it, and whether ``budget`` continuations ended it first."""
    taken: list[ShareWalk] = []
    begun, left = 0, budget
    for size in looks.sizes:
        while begun < size and left >= steps:
            many = int(min(size - begun, left // steps))
            numbers = range(begun, begun + many)
            walked = await asyncio.gather(*(take(game, order_of(steps, number, name), number) for number in numbers))
            taken += [walk for walk in walked if walk is not None]
            begun, left = begun + many, budget - game.played
        if begun < size:
            return taken, True
        if not taken or not any(_undecided(taken, step, looks, steps) for step in range(steps)):
            break
    return taken, False


def _undecided(taken: Sequence[ShareWalk], step: int, looks: Looks, steps: int) -> bool:
    before, after = zip(*(walk.around(step) for walk in taken), strict=True)
    return not looks.credited(looks.interval(before, after, steps)[1]) and looks.open(before, after, steps)
