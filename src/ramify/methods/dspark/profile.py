"""Costs of whole cycles of speculation, measured on the running engine, and what they promise by load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import derive_key, generator
from ramify.base.waiting import wait_for
from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafter
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile, machine_name
from ramify.engine.schedules import GreedySchedule, Stale
from ramify.engine.sequence import Sequence
from ramify.engine.speculate import Round, Speculator
from ramify.engine.tiny import weights_hash
from ramify.methods.dspark.record import SHARES, LoadNeed, LoadOutlook
from ramify.model.protocol import Prefix, Sampling

PLAIN = (0, 0)
"""The stage without drafts."""
STRETCH, SETTLED = 8, 2
"""Consecutive steps of one stage, as an engine takes them, and how many of the first are not timed,
since they find the caches as another stage left them."""
QUIET = 0.2
"""Quantile of the times of a stage that counts: what else runs on the machine only ever adds to them."""


RESAMPLED = 100
"""How often the cycles are drawn again, for the interval of a gain."""


def break_even(
    profile: Profile, loads: GenericSequence[int] | None = None, again: GenericSequence[Profile] = ()
) -> list[LoadOutlook]:
    """By load, the best drafting its acceptance promises; ``again``: profiles of cycles drawn again, for the interval."""
    drawn = [{row.requests: row.gain for row in break_even(one, loads)} for one in again]
    schedule = GreedySchedule(profile, profile.block, np.full(profile.block, 0.7) if profile.prior is None else profile.prior)
    rows = []
    for requests in loads or profile.requests:
        gain, depth, verified = schedule.outlook(requests)
        plain = requests / float(profile.cycle(requests, np.array([float(requests)]), 0)[0])
        gains = [by_load[requests] for by_load in drawn]
        low, high = (float(bound) for bound in np.quantile(gains, (0.025, 0.975))) if gains else (gain, gain)
        rows.append(LoadOutlook(requests, plain, gain * plain, gain, depth, verified, (low, high)))
    return rows


def needed(profile: Profile, again: GenericSequence[Profile] = ()) -> list[LoadNeed]:
    """By load, what share of drafts must be accepted for drafting to pay: before there is a drafter, by the costs of one.

    The same share at every position; the draft's length is the best for it. ``again``: profiles of cycles drawn again, for the
    interval.
    """
    rows = []
    for requests in profile.requests:
        shares = [_least(costs, requests) for costs in (profile, *again)]
        low, high = np.quantile([1.0 if share is None else share for share in shares[1:] or shares], (0.025, 0.975))
        cannot = sum(share is None for share in shares[1:] or shares)
        gains = tuple(_gain(profile, requests, share) for share in SHARES)
        plain = requests / float(profile.cycle(requests, np.array([float(requests)]), 0)[0])
        pays = None if 0 < cannot < len(shares[1:]) else not cannot
        rows.append(LoadNeed(requests, plain, shares[0], (float(low), float(high)), gains, pays))
    return rows


def _gain(profile: Profile, requests: int, share: float) -> float:
    """Tokens a second over those without drafts where ``share`` of drafts are accepted, of the best number of drafts."""
    plain = float(profile.cycle(requests, np.array([float(requests)]), 0)[0])
    gains = []
    for depth in range(1, profile.block + 1):
        tokens = sum(share**k for k in range(depth + 1))
        cost = float(profile.cycle(requests, np.array([requests * (depth + 1.0)]), depth)[0])
        gains.append(tokens * plain / cost)
    return max(gains)


def _least(profile: Profile, requests: int) -> float | None:
    """The least share of accepted drafts at which drafting is as fast; None where it is slower if all are."""
    if _gain(profile, requests, 1.0) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if _gain(profile, requests, middle) >= 1 else (middle, high)
    return high


class _Level:
    """Costs that are all alike."""

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        return np.ones(np.shape(tokens))


class _Staged:
    """A schedule set by hand, step by step: ``now`` is (drafts, of them verified) for every row.

    What a real one would admit is computed and thrown away: its time is part of a cycle.
    """

    def __init__(self, block: int) -> None:
        self.now = PLAIN
        self._usual = Stale(_Level(), block, np.full(block, 0.7))

    def depth(self, requests: int) -> int:
        return self.now[0]

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        self._usual.admit(confidence, limits)
        return np.asarray(np.minimum(self.now[1], limits))


class _Timed(Speculator):
    """Goes through the stages in turns, shuffled each time; a cycle lasts from one step to the next.

    Cycles count in which ``load`` rows were there from end to end.
    """

    def __init__(self, drafter: Drafter, first: int, distribution: str, load: int, seed: int) -> None:
        self.staged = _Staged(drafter.config.block)
        super().__init__(drafter, self.staged, first, distribution)
        self.load = load
        self.stages = [PLAIN, (1, 1), *((self.block, k) for k in range(self.block + 1))]
        self.seconds: dict[tuple[int, int], list[tuple[float, float]]] = {stage: [] for stage in self.stages}
        """By stage, (seconds of the cycle, seconds of drafting in it)."""
        self._rng, self._order = generator(seed, "profile", load), list[tuple[tuple[int, int], int]]()
        self._since: float | None = None
        self._drafting = 0.0

    @property
    def fewest(self) -> int:
        """Cycles of the stage that has fewest."""
        return min(len(found) for found in self.seconds.values())

    def begin(self, sequences: GenericSequence[Sequence]) -> Round:
        """See :meth:`Speculator.begin`."""
        now, full = time.perf_counter(), len(sequences) == self.load
        if self._since is not None and full:
            self.seconds[self.staged.now].append((now - self._since, self._drafting))
        if not self._order:
            self._order = [(self.stages[i], step) for i in self._rng.permutation(len(self.stages)) for step in range(STRETCH)]
        (self.staged.now, left), self._drafting = self._order.pop(), 0.0
        self._since = time.perf_counter() if full and left < STRETCH - SETTLED else None
        return super().begin(sequences)

    def propose(self, cache: KVCache, running: GenericSequence[Sequence], slots: GenericSequence[int], round_: Round) -> Round:
        """See :meth:`Speculator.propose`."""
        made = super().propose(cache, running, slots, round_)
        self._drafting = made.since - made.began
        return made


@dataclass
class Cycles:
    """The times of whole cycles, as they were measured."""

    block: int
    target: str
    drafter: str
    seconds: dict[int, dict[tuple[int, int], np.ndarray]] = field(default_factory=dict)
    """By load and stage (drafts, of them verified): (cycles, 2), seconds of the cycle and of drafting in it."""
    reached: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """By position, rounds whose draft there was verified, [block]; and those where it was accepted."""
    accepted: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def profile(self, rng: np.random.Generator | None = None) -> Profile:
        """The costs that count; with ``rng`` those of the cycles drawn again, a stretch at a time, and of acceptance as it may be
        by what was seen of it."""
        plain, draft, verify = [], [], []
        for _, stages in sorted(self.seconds.items()):
            quiet = {stage: np.quantile(_drawn(times, rng), QUIET, axis=0) for stage, times in stages.items()}
            whole = [quiet[self.block, k] for k in range(self.block + 1)]
            plain.append(float(quiet[PLAIN][0]))
            draft.append((float(quiet[1, 1][1]), float(np.median([cycle[1] for cycle in whole]))))
            verify.append(tuple(rising([float(cycle[0] - cycle[1]) for cycle in whole])))
        rate = (self.accepted + 1) / (self.reached + 2)
        if rng is not None:
            rate = rng.beta(self.accepted + 1, self.reached - self.accepted + 1)
        return Profile(
            block=self.block,
            requests=tuple(sorted(self.seconds)),
            plain=tuple(rising(plain)),
            draft=tuple(draft),
            verify=tuple(verify),
            acceptance=tuple(rate.round(4).tolist()),
            machine=machine_name(),
            threads=torch.get_num_threads(),
            target=self.target,
            drafter=self.drafter,
        )

    def again(self, n: int = RESAMPLED, seed: int = 0) -> list[Profile]:
        """``n`` profiles of cycles drawn again."""
        rng = generator(seed, "profile again")
        return [self.profile(rng) for _ in range(n)]


def _drawn(times: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """The same cycles, or as many drawn again in whole stretches: cycles beside each other are slow together. Of one stretch its
    cycles are drawn."""
    if rng is None:
        return times
    whole = len(times) // (STRETCH - SETTLED)
    stretches = np.array_split(times, whole if whole > 1 else len(times))
    return np.concatenate([stretches[i] for i in rng.integers(0, len(stretches), len(stretches))])


def measure(
    model: LocalModel,
    drafter: Drafter,
    prompts: GenericSequence[np.ndarray],
    loads: GenericSequence[int] = (1, 2, 4, 8, 16, 32),
    repeats: int = 24,
    settings: Sampling | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Cycles:
    """Time whole cycles of ``model``'s engine with ``drafter`` on the user's prompts, at each of ``loads`` concurrent requests.

    A load runs all its stages in turns, so that a machine that is slow for a while is slow for all; what counts is the time that
    a fifth of a stage's cycles (at least ``repeats``) do not exceed. Raises UserError without prompts.
    """
    if not prompts or not loads:
        raise UserError("a profile needs at least one prompt and one load")
    block = drafter.config.block
    cycles = Cycles(block, model.identity.weights, weights_hash(drafter), {}, np.zeros(block), np.zeros(block))
    progress.begin(len(set(loads)), 0, "", "loads")
    for done, load in enumerate(sorted(set(loads))):
        progress.at(done, phase=f"{load} at once")
        timed = _Timed(drafter, model.forward.layers, "coupled", load, seed)
        wait_for(_run(model.speculating(timed), timed, prompts, repeats, settings or Sampling(max_tokens=96), seed))
        cycles.seconds[load] = {stage: np.array(times) for stage, times in timed.seconds.items()}
        cycles.reached += timed.stats.reached_at
        cycles.accepted += timed.stats.accepted_at
    return cycles


async def _run(
    model: LocalModel, timed: _Timed, prompts: GenericSequence[np.ndarray], repeats: int, settings: Sampling, seed: int
) -> None:
    """Keep ``load`` requests going until every stage has its cycles."""

    async def client(number: int) -> None:
        turn = 0
        while timed.fewest < repeats:
            prompt = prompts[(number + turn * timed.load) % len(prompts)]
            await model.sample(Prefix(prompt), 1, settings, [derive_key(seed, "profile", timed.load, number, turn)])
            turn += 1

    await asyncio.gather(*(client(number) for number in range(timed.load)))


def rising(values: GenericSequence[float]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators): more tokens do not cost less."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, n), (a, m) = pools.pop(), pools.pop()
            pools.append(((a * m + b * n) / (m + n), m + n))
    return [mean for mean, count in pools for _ in range(count)]
