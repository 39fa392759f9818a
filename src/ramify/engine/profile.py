"""What whole cycles of speculation cost on one machine: measured on the running engine, saved beside the drafter.

A cycle is everything from one tile to the next: absorbing and drafting, the target's pass, verification, taking tokens in and going
back over rejected ones. A table that leaves a part out promises gains that are not there.

Axis legend: R requests of a step, K block, n tokens of a cycle beyond one a request.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ramify.base.errors import UserError
from ramify.base.files import read_record, write_whole
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator, place_key
from ramify.engine.cache import Arena
from ramify.engine.drafters import Drafter
from ramify.engine.rows import Row
from ramify.engine.schedules import Greedy, Stale
from ramify.engine.speculate import Speculator
from ramify.engine.tiny import weights_hash
from ramify.model.protocol import Prefix, Sampling

if TYPE_CHECKING:
    from ramify.engine.local import LocalModel

FILE = "profile.json"
PLAIN = (0, 0)
"""The stage without drafts."""
STRETCH, SETTLED = 8, 2
"""Steps of a stage in one go, as an engine takes them, and those of them that do not count: they find the caches as another left them."""
QUIET = 0.2
"""Quantile of the times of a stage that counts: what else runs on the machine only ever adds to them."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Seconds of cycles at some loads; between them and beyond them straight lines. Implements :class:`ramify.engine.schedules.Costs`.

    Raises UserError where the numbers do not belong together.
    """

    block: int
    requests: tuple[int, ...]
    """Loads, ascending."""
    plain: tuple[float, ...]
    """Seconds of a step without drafts, by load."""
    draft: tuple[tuple[float, float], ...]
    """Seconds of drafting 1 token and a whole block, by load."""
    verify: tuple[tuple[float, ...], ...]
    """Seconds of everything but drafting with k drafts a request verified, k = 0..block, by load."""
    acceptance: tuple[float, ...] = ()
    """Conditional acceptance by position while it was measured, [block]."""
    machine: str = ""
    threads: int = 1
    target: str = ""
    """Hash of the target's weights."""
    drafter: str = ""
    """Hash of the drafter's weights."""
    _warned: set[int] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.requests)
        fits = n == len(self.plain) == len(self.draft) == len(self.verify) and list(self.requests) == sorted(set(self.requests))
        if (
            not n
            or not fits
            or any(len(row) != self.block + 1 for row in self.verify)
            or any(len(row) != 2 for row in self.draft)
        ):
            raise UserError(f"a profile needs ascending loads and, for each, costs of drafting and of 0 to {self.block} drafts")
        if len(self.acceptance) not in (0, self.block):
            raise UserError(f"the profile has {len(self.acceptance)} acceptance rates for a block of {self.block}")

    @property
    def prior(self) -> np.ndarray | None:
        """Acceptance by position to start a schedule from, [block]."""
        return np.array(self.acceptance) if self.acceptance else None

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        """Seconds, of the shape of ``tokens``. Beyond the largest load the last slope goes on, with one warning."""
        low, share = self._between(requests)
        if not depth:
            return np.full(np.shape(tokens), _line(self.plain[low : low + 2], share))
        first, whole = (_line([pair[i] for pair in self.draft[low : low + 2]], share) for i in (0, 1))
        drafting = first if self.block == 1 else first + (whole - first) * (depth - 1) / (self.block - 1)
        per_request = np.asarray(tokens, np.float64) / requests - 1
        rest = [np.interp(per_request, np.arange(self.block + 1), row) for row in self.verify[low : low + 2]]
        return np.asarray(drafting + _line(rest, share))

    def _between(self, requests: int) -> tuple[int, float]:
        """The load below and how far the asked one is on the way to the next."""
        loads = self.requests
        if len(loads) == 1 or requests <= loads[0]:
            return 0, 0.0
        if requests > loads[-1] and requests not in self._warned:
            self._warned.add(requests)
            warnings.warn(
                f"the profile ends at {loads[-1]} requests; costs of {requests} are its last slope: profile up to there",
                stacklevel=3,
            )
        low = min(int(np.searchsorted(loads, requests, side="left")) - 1, len(loads) - 2)
        return low, (requests - loads[low]) / (loads[low + 1] - loads[low])

    def save(self, folder: Path | str) -> Path:
        """Write ``profile.json`` into the drafter's folder."""
        record = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        path = Path(folder) / FILE
        write_whole(path, json.dumps(record, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path | str) -> Profile:
        """Read a drafter's profile. Raises UserError where it is missing or not one."""
        path = Path(folder) / FILE
        record = read_record(path, "the profile")
        names = [f for f in cls.__dataclass_fields__ if not f.startswith("_")]
        if set(record) - set(names):
            raise UserError(f"{path} is not a profile (fields: {', '.join(names)})")
        try:
            for name in ("requests", "plain", "draft", "verify", "acceptance"):
                record[name] = _tuples(record.get(name, ()))
            return cls(**record)
        except (TypeError, ValueError) as error:
            raise UserError(f"{path} is not a profile: {error}") from error

    def check(self, target: str, drafter: str) -> None:
        """Refuse costs of another pair (UserError); warn about those of another machine or thread count."""
        for name, own, given in (("target", self.target, target), ("drafter", self.drafter, drafter)):
            if own and own != given:
                raise UserError(f"the profile was made with another {name}; make it anew with 'ramify dspark profile'")
        here = (machine_name(), torch.get_num_threads())
        if self.machine and (self.machine, self.threads) != here:
            warnings.warn(
                f"the profile was made on {self.machine} with {self.threads} threads, not on {here[0]} with {here[1]}",
                stacklevel=2,
            )


def break_even(profile: Profile, loads: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """By load, the best drafting its acceptance promises: requests, plain and drafting tokens/s, gain, depth and drafts a request.

    A gain of at most 1 says that drafting does not pay there.
    """
    schedule = Greedy(profile, profile.block, np.full(profile.block, 0.7) if profile.prior is None else profile.prior)
    rows = []
    for requests in loads or profile.requests:
        gain, depth, verified = schedule.outlook(requests)
        plain = requests / float(profile.cycle(requests, np.array([float(requests)]), 0)[0])
        rows.append(
            {"requests": requests, "plain": plain, "drafting": gain * plain, "gain": gain, "depth": depth, "verified": verified}
        )
    return rows


class _Level:
    """Costs that are all alike."""

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        return np.ones(np.shape(tokens))


class _Staged:
    """A schedule that does as it is told, step by step: ``now`` is (drafts, of them verified) for every row.

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

    def __init__(self, drafter: Drafter, first: int, law: str, load: int, seed: int) -> None:
        self.staged = _Staged(drafter.config.block)
        super().__init__(drafter, self.staged, first, law)
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

    def depth(self, rows: Sequence[Row]) -> int:
        """See :meth:`Speculator.depth`."""
        now, full = time.perf_counter(), len(rows) == self.load
        if self._since is not None and full:
            self.seconds[self.staged.now].append((now - self._since, self._drafting))
        if not self._order:
            self._order = [(self.stages[i], step) for i in self._rng.permutation(len(self.stages)) for step in range(STRETCH)]
        (self.staged.now, left), self._drafting = self._order.pop(), 0.0
        self._since = time.perf_counter() if full and left < STRETCH - SETTLED else None
        return super().depth(rows)

    def propose(self, arena: Arena, rows: Sequence[Row], slots: Sequence[int], depth: int) -> list[list[int]]:
        """See :meth:`Speculator.propose`."""
        begun = time.perf_counter()
        drafts = super().propose(arena, rows, slots, depth)
        self._drafting = time.perf_counter() - begun
        return drafts


def measure(
    model: LocalModel,
    drafter: Drafter,
    prompts: Sequence[np.ndarray],
    loads: Sequence[int] = (1, 2, 4, 8, 16, 32),
    repeats: int = 24,
    settings: Sampling | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Profile:
    """Time whole cycles of ``model``'s engine with ``drafter`` on the user's prompts, at each of ``loads`` concurrent requests.

    A load runs all its stages in turns, so that a machine that is slow for a while is slow for all; what counts is the time that a fifth
    of a stage's cycles (at least ``repeats``) do not exceed. Raises UserError without prompts.
    """
    if not prompts or not loads:
        raise UserError("a profile needs at least one prompt and one load")
    plain, draft, verify = [], [], []
    reached, accepted = np.zeros(drafter.config.block), np.zeros(drafter.config.block)
    progress.begin(len(set(loads)), 0, "", "loads")
    for done, load in enumerate(sorted(set(loads))):
        progress.at(done, phase=f"{load} at once")
        timed = _Timed(drafter, model.forward.layers, "coupled", load, seed)
        asyncio.run(_run(model.speculating(timed), timed, prompts, repeats, settings or Sampling(max_tokens=96), seed))
        quiet = {stage: np.quantile(np.array(found), QUIET, axis=0) for stage, found in timed.seconds.items()}
        whole = [quiet[timed.block, k] for k in range(timed.block + 1)]
        plain.append(float(quiet[PLAIN][0]))
        draft.append((float(quiet[1, 1][1]), float(np.median([cycle[1] for cycle in whole]))))
        verify.append(tuple(rising([float(cycle[0] - cycle[1]) for cycle in whole])))
        reached += timed.stats.reached_at
        accepted += timed.stats.accepted_at
    return Profile(
        block=drafter.config.block,
        requests=tuple(sorted(set(loads))),
        plain=tuple(rising(plain)),
        draft=tuple(draft),
        verify=tuple(verify),
        acceptance=tuple(((accepted + 1) / (reached + 2)).round(4).tolist()),
        machine=machine_name(),
        threads=torch.get_num_threads(),
        target=model.identity.weights,
        drafter=weights_hash(drafter),
    )


async def _run(
    model: LocalModel, timed: _Timed, prompts: Sequence[np.ndarray], repeats: int, settings: Sampling, seed: int
) -> None:
    """Keep ``load`` requests going until every stage has its cycles."""

    async def client(number: int) -> None:
        turn = 0
        while timed.fewest < repeats:
            prompt = prompts[(number + turn * timed.load) % len(prompts)]
            await model.sample(Prefix(prompt), 1, settings, [place_key(seed, "profile", timed.load, number, turn)])
            turn += 1

    await asyncio.gather(*(client(number) for number in range(timed.load)))


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators): more tokens do not cost less."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, n), (a, m) = pools.pop(), pools.pop()
            pools.append(((a * m + b * n) / (m + n), m + n))
    return [mean for mean, count in pools for _ in range(count)]


def machine_name() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _line(ends: Sequence[Any], share: float) -> Any:
    """The value ``share`` of the way from the first end to the second (the last slope beyond it)."""
    return ends[0] if len(ends) == 1 or not share else ends[0] + share * (ends[1] - ends[0])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
