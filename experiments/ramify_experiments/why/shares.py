"""Credit shared over the steps of an errand: the exact Shapley values,
and the walks of `ramify why --share` on its closed form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from ramify.base.seeds import generator
from ramify.jobs.share import Looks, walks
from ramify.stats.intervals import Interval
from ramify_experiments.why.errands import LUCK, Errand


def exact_shares(one: Errand) -> list[float]:
    """The Shapley value of every step, (T,): the chance of success is summed over the number of steps held and the number of good
    ones.

    Of an errand that the environment's chance alone decides all are 0."""
    steps = one.steps
    if one.flaky is not None:
        return [0.0] * steps
    if one.luck is not None:
        return _shares(one, [t for t in one.good if t != steps - 1], steps - 1)
    return _shares(one, list(one.good), None)


def _shares(one: Errand, deciding: Sequence[int], last: int | None) -> list[float]:
    """``deciding`` steps count towards the number of good ones,
    the luck of step ``last`` decides the rest; all others have no share."""
    players = [*deciding, *([] if last is None else [last])]
    shares = [0.0] * one.steps
    for t in players:
        others = [u for u in deciding if u != t]
        held = np.zeros((len(others) + 1, len(others) + 1))  # by steps held and good steps, the chances summed over coalitions
        held[0, 0] = 1.0
        for u in others:
            p, did = _good(one, u), int(one.picks[u] in one.good[u])
            new = (1 - p) * held
            new[:, 1:] += p * held[:, :-1]
            new[1:, did:] += held[:-1, : held.shape[1] - did]
            held = new
        for (size, good), chance in np.ndenumerate(held):
            for luck in (False, True) if last not in (None, t) else (False,):
                weight = chance / (comb(len(players) - 1, size + luck) * len(players))
                shares[t] += weight * _change(one, t, good, last, luck)
    return shares


def _good(one: Errand, t: int) -> float:
    return sum(one.chances[t][option] for option in one.good[t])


def _change(one: Errand, t: int, good: int, last: int | None, luck: bool) -> float:
    """The change of success when step ``t`` is held: ``good`` others are good, and the last step's luck is held, too, or not."""

    def won(enough: bool, held: bool) -> float:
        if last is None:
            return float(enough)
        below = (one.luck or (0, 0))[0 if enough else 1]
        return float(one.picks[last] < below) if held else below / LUCK

    if t == last:
        return won(good >= one.need, True) - won(good >= one.need, False)
    p, did = _good(one, t), int(one.picks[t] in one.good[t])
    then = won(good + did >= one.need, luck)
    return then - p * won(good + 1 >= one.need, luck) - (1 - p) * won(good >= one.need, luck)


@dataclass(frozen=True, slots=True)
class _Picks:
    picks: tuple[int, ...]
    success: bool


class ErrandCoalitions:
    """Coalitions of the steps of an errand, sampled from its closed form (:class:`ramify.jobs.share.Coalitions`)."""

    def __init__(self, one: Errand, rng: np.random.Generator) -> None:
        self.one, self.rng = one, rng
        self.played = 0

    async def free(self, walk: int) -> _Picks:
        """See :class:`ramify.jobs.share.Coalitions`."""
        return self._play((), frozenset())

    async def hold(self, attempt: _Picks, step: int, held: frozenset[int], walk: int) -> _Picks:
        """See :class:`ramify.jobs.share.Coalitions`."""
        if attempt.picks[step] == self.one.picks[step]:
            return attempt
        return self._play(attempt.picks[:step], held)

    async def whole(self) -> bool:
        """See :class:`ramify.jobs.share.Coalitions`."""
        return self._success(self.one.picks)

    def _play(self, before: tuple[int, ...], held: frozenset[int]) -> _Picks:
        self.played += 1
        picks = list(before)
        for t in range(len(before), self.one.steps):
            picks.append(
                self.one.picks[t] if t in held else int(self.rng.choice(len(self.one.chances[t]), p=self.one.chances[t]))
            )
        return _Picks(tuple(picks), self._success(tuple(picks)))

    def _success(self, picks: tuple[int, ...]) -> bool:
        return self.one.succeeds(picks) if self.one.flaky is None else bool(self.rng.random() < self.one.flaky)


def shared(one: Errand, seed: int, n: int = 48) -> tuple[list[float], list[Interval], list[bool], int]:
    """What the walks say of an errand: the shares (T,), their intervals, which steps get credit, and the continuations."""
    game, looks = ErrandCoalitions(one, generator(seed, "share", repr(one))), Looks(n)
    taken, _ = asyncio.run(walks(game, one.steps, looks, f"{seed} {one!r}"))
    rows = [looks.share(taken, t) for t in range(one.steps)]
    return [value for value, _ in rows], [ends for _, ends in rows], [looks.credited(ends) for _, ends in rows], game.played
