"""Is it fast? A target with and without drafters on one's own prompts, in interleaved pairs:
who wins, and from which load on none does.

All entrants sample the same number of tokens after the same prompts, in turns; a ratio is that of one turn, and what is reported
is the median of the turns with its bootstrap interval, so that a machine that is slow for a while is slow for all. Replies are
sampled to their full length (no token ends one).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile, machine_name
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.peers import Peer, peer
from ramify.methods.dspark.profile import measure
from ramify.methods.dspark.record import PLAIN, BenchMachine, Pairing, SpeedComparison
from ramify.model.protocol import Prefix, Sampling
from ramify.stats.intervals import bootstrap

LOADS = (1, 2, 4, 8, 16, 32)
SCHEDULES = ("off", "fixed:2", "fixed:7", "threshold:0.5", "greedy", "stale2")
PROFILED = ("greedy", "stale2")
"""Schedules that go by a profile."""
SETTLE = 4
"""Turns under load that are not counted: greedy and stale2 compare both ways of a load mostly in their first seconds there. Of
others it is one."""
LEAST, ENOUGH = 3, 6
"""Turns of which a verdict is given, and from which the interval holds the median in 95 %."""
CACHE = 256 << 20
"""Bytes of finished prefixes an engine keeps. Above the rows' own memory,
which is given up and made anew between turns otherwise."""


@dataclass(frozen=True, slots=True)
class BenchTurn:
    """One turn of one entrant."""

    seconds: float
    tokens: int
    passes: int
    """Target passes of the rows that sampled: tokens / passes is tau."""
    user_speed: float
    """Tokens a second of the median reply, from its request to its end."""


Entrant = Callable[[Sequence[np.ndarray], int, int], BenchTurn]
"""Samples a reply to each prompt with so many in flight; the last number is the turn."""


class Engine:
    """The local engine, with or without a drafter."""

    def __init__(self, module: nn.Module, settings: Sampling, most: int, **options: Any) -> None:
        self.settings = settings
        self.model = LocalModel(module, eos=(), max_sequences=most, cache_bytes=CACHE, **options)

    def __call__(self, prompts: Sequence[np.ndarray], load: int, turn: int) -> BenchTurn:
        """As many tokens as replies to all ``prompts`` have, with always ``load`` requests open: a finished one is replaced by
        the next, and the replies under way when enough was sampled are dropped.
        Replies of different lengths would else leave the last ones alone.
        """
        waiting, speeds, stats = itertools.cycle(enumerate(prompts)), list[float](), self.model.stats
        before, passes = stats.sampled_tokens, self._passes()
        goal = before + len(prompts) * self.settings.max_tokens

        async def client(number: int) -> None:
            while stats.sampled_tokens < goal:
                i, prompt = next(waiting)
                begun = time.perf_counter()
                key = derive_key(turn, "bench", i, number, len(speeds))
                await self.model.sample(Prefix(prompt), 1, self.settings, [key])
                speeds.append(self.settings.max_tokens / (time.perf_counter() - begun))

        async def all_of_them() -> tuple[float, int]:
            begun = time.perf_counter()
            clients = [asyncio.ensure_future(client(number)) for number in range(load)]
            await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
            found = time.perf_counter() - begun, stats.sampled_tokens - before
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            return found

        seconds, tokens = wait_for(all_of_them())
        return BenchTurn(seconds, tokens, (self._passes() - passes) or tokens, float(np.median(speeds)))

    def _passes(self) -> int:
        """Row passes of a speculating engine so far; 0 of a plain one, which makes one a token."""
        stats = self.model.speculation
        return 0 if stats is None else stats.rounds + stats.plain


def of_peer(run: Peer, new: int) -> Entrant:
    """A transformers peer as an entrant; one request at a time."""

    def entrant(prompts: Sequence[np.ndarray], load: int, turn: int) -> BenchTurn:
        torch.manual_seed(turn)
        seconds, passes = run(prompts, new)
        return BenchTurn(seconds, new * len(prompts), passes, new * len(prompts) / seconds)

    return entrant


@dataclass
class Interrupt:
    """Whether Ctrl-C ended the turns, which are counted as far as they came."""

    came: str = ""
    """After how many turns, and where."""


def turns(
    entrants: Mapping[str, Entrant],
    prompts: Sequence[np.ndarray],
    count: int,
    load: int,
    rounds: int,
    settle: int = 1,
    progress: Progress = SILENT,
    interrupt: Interrupt | None = None,
) -> dict[str, list[BenchTurn]]:
    """``rounds`` turns of each entrant, ``count`` prompts a turn,
    after ``settle`` turns that are not counted. The order turns, too.

    With ``interrupt`` Ctrl-C ends them there, and the turns that every entrant has are returned, perhaps none."""
    names = list(entrants)
    runs: dict[str, list[BenchTurn]] = {name: [] for name in names}
    progress.begin(settle + rounds, 0, f"{load} at once", "turns")
    try:
        for turn in range(-settle, rounds):
            progress.at(turn + settle)
            at = (turn + settle) * count
            some = [prompts[i % len(prompts)] for i in range(at, at + count)]
            shift = turn % len(names)
            order = (names[shift:] + names[:shift])[:: -1 if turn % 2 else 1]
            for name in order:
                run = entrants[name](some, load, turn + settle)
                if turn >= 0:
                    runs[name].append(run)
    except KeyboardInterrupt:
        if interrupt is None:
            raise
        whole = min(map(len, runs.values()))
        runs = {name: turns_of[:whole] for name, turns_of in runs.items()}
        interrupt.came = f"{plural(whole, 'turn')} of {rounds} with {plural(load, 'request')} at once"
    return runs


def pairings(place: str, runs: Mapping[str, Sequence[BenchTurn]], base: str = PLAIN) -> list[Pairing]:
    """Each entrant's turns compared with those of ``base``; nothing of no turns."""
    found: list[Pairing] = []
    if not runs[base]:
        return found
    for name, own in runs.items():
        ratios = [(o.tokens / o.seconds) / (b.tokens / b.seconds) for b, o in zip(runs[base], own, strict=True)]
        low, high = bootstrap(ratios, lambda samples: np.median(samples, axis=1))
        found.append(
            Pairing(
                place,
                name,
                sum(r.tokens for r in own) / sum(r.passes for r in own),
                float(np.median([r.tokens / r.seconds for r in own])),
                float(np.median([r.user_speed for r in own])),
                float(np.median(ratios)),
                (low, high),
                len(own),
                "open" if len(own) < LEAST else "faster" if low > 1 else "slower" if high < 1 else "even",
            )
        )
    return found


def compare(
    target: Path,
    drafters: Mapping[str, Qwen3Drafter],
    prompts: Mapping[str, Sequence[np.ndarray]],
    *,
    settings: Sampling | None = None,
    peers: Mapping[str, Path | Qwen3Drafter | None] | None = None,
    costs: Profile | None = None,
    loads: Sequence[int] = LOADS,
    schedules: Sequence[str] = SCHEDULES,
    rounds: int = 15,
    distribution: str = "rejection",
    progress: Progress = SILENT,
) -> SpeedComparison:
    """Sample the same replies with every entrant, in turns.

    ``drafters`` by name, the first of which also runs under load; ``prompts`` by domain, int32 (T,) each; ``settings`` how to
    sample (temperature 1, 64 tokens); ``peers``: kinds of :func:`ramify.methods.dspark.peers.peer` and what each needs. ``costs``
    is the first drafter's profile; without one, and with a schedule that needs it, it is measured first. Raises UserError without
    drafters or prompts.
    """
    if not drafters or not prompts or not all(prompts.values()):
        raise UserError("a comparison needs at least one drafter, and prompts in every domain")
    settings = settings or Sampling(max_tokens=64)
    module = open_module(target)
    first = next(iter(drafters.values()))
    mixed = [prompt for some in zip(*prompts.values(), strict=False) for prompt in some]
    if costs is None and set(schedules) & set(PROFILED):
        costs = measure(LocalModel(module, eos=(), max_sequences=max(loads)), first, mixed, loads, progress=progress).profile()
    cut = Interrupt()
    alone = one_by_one(target, module, drafters, prompts, settings, peers or {}, rounds, distribution, progress, cut)
    together = []
    if not cut.came:
        together = under_load(module, first, mixed, settings, costs, loads, schedules, rounds, distribution, progress, cut)
    if not alone:  # not one turn
        raise KeyboardInterrupt
    machine = BenchMachine(machine_name(), torch.get_num_threads())
    return SpeedComparison(tuple(alone), tuple(together), machine, cut.came, caveats=tuple(_caveats(alone + together, cut)))


def _caveats(found: Sequence[Pairing], cut: Interrupt) -> Iterator[str]:
    """What an interrupt left out, and what few turns leave open."""
    if cut.came:
        yield f"interrupted after {cut.came}: what is shown are the turns that were timed"
    least = min(pairing.turns for pairing in found)
    span = "no wider than from the slowest to the fastest"
    if least < LEAST:
        yield f"{plural(least, 'turn')} give no verdict: the interval is {span}; {LEAST} give one"
    elif least < ENOUGH:
        held = 1 - 0.5 ** (least - 1)
        yield f"the interval of {least} turns is {span}, which holds the median in {held:.0%} and not 95 %"


def one_by_one(
    target: Path,
    module: nn.Module,
    drafters: Mapping[str, Qwen3Drafter],
    prompts: Mapping[str, Sequence[np.ndarray]],
    settings: Sampling,
    peers: Mapping[str, Path | Qwen3Drafter | None],
    rounds: int = 15,
    distribution: str = "rejection",
    progress: Progress = SILENT,
    interrupt: Interrupt | None = None,
) -> list[Pairing]:
    """Every drafter with all its drafts verified, and every peer, one request at a time, by domain."""
    block = next(iter(drafters.values())).config.block
    entrants: dict[str, Entrant] = {PLAIN: Engine(module, settings, 1)}
    for name, drafter in drafters.items():
        whole = f"fixed:{drafter.config.block}"
        entrants[name] = Engine(module, settings, 1, drafter=drafter, schedule=whole, verify=distribution)
    for kind, given in peers.items():
        entrants[kind] = of_peer(peer(target, kind, settings, given, block), settings.max_tokens)
    found: list[Pairing] = []
    for domain, some in prompts.items():
        found += pairings(domain, turns(entrants, some, 2, 1, rounds, progress=progress, interrupt=interrupt))
        if interrupt is not None and interrupt.came:
            break
        progress.at(1 + rounds, _note(domain, found))
    return found


def under_load(
    module: nn.Module,
    drafter: Qwen3Drafter,
    prompts: Sequence[np.ndarray],
    settings: Sampling,
    costs: Profile | None,
    loads: Sequence[int] = LOADS,
    schedules: Sequence[str] = SCHEDULES,
    rounds: int = 15,
    distribution: str = "rejection",
    progress: Progress = SILENT,
    interrupt: Interrupt | None = None,
) -> list[Pairing]:
    """One drafter under each schedule, by requests at once; schedules longer than its block are cut to it."""
    most, block = max(loads), drafter.config.block
    entrants: dict[str, Entrant] = {PLAIN: Engine(module, settings, most)}
    for name in schedules:
        schedule = f"fixed:{min(block, int(name[6:]))}" if name.startswith("fixed:") else name
        entrants[schedule] = Engine(
            module, settings, most, drafter=drafter, schedule=schedule, profile=costs, verify=distribution
        )
    found: list[Pairing] = []
    settle = settled(schedules)
    for load in loads:
        found += pairings(str(load), turns(entrants, prompts, max(4, 2 * load), load, rounds, settle, progress, interrupt))
        if interrupt is not None and interrupt.came:
            break
        progress.at(settle + rounds, _note(str(load), found))
    return found


def settled(schedules: Sequence[str]) -> int:
    """Turns under load that are not counted."""
    return SETTLE if set(schedules) & set(PROFILED) else 1


def _note(place: str, found: Sequence[Pairing]) -> str:
    return ", ".join(f"{p.name} {p}" for p in found if p.place == place)


def open_module(target: Path) -> nn.Module:
    """The network of a checkpoint folder, to be shared by all entrants. Raises UserError where it cannot be read."""
    return LocalModel.load(target).module
