"""The conformance battery every searcher must pass: what the search loop relies on, each point one check."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.problem import Problem
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.rollout.search import Expansion, Searcher, run_searcher
from ramify.testing.probe import run_checks


def check_searcher(searcher: Searcher, budget: int = 40, seed: int = 0) -> list[Problem]:
    """Run every check on small made-up searches of at most ``budget`` expansions; no problem means the searcher conforms.

    Runs its own event loop.
    """
    return run_checks(CHECKS, _Probe(searcher, budget, seed))


@dataclass
class _Trace:
    """What one search did."""

    picks: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    values: dict[str, float | None] = field(default_factory=dict)
    state: Any = None


@dataclass(frozen=True)
class _Probe:
    searcher: Searcher
    budget: int
    seed: int

    def number(self, *position: str) -> float:
        return (derive_key(self.seed, "searcher", *position) % 1000) / 1000

    def candidates(self, count: int) -> dict[str, float]:
        return {f"c{i}": self.number("prior", f"c{i}") for i in range(count)}

    def expansion(self, pick: str, grows: bool, fails: bool) -> Expansion:
        if fails and self.number("fails", pick) < 0.3:
            raise InfrastructureError("env", "this one fails")
        children = {f"{pick}.{i}": self.number("prior", f"{pick}.{i}") for i in range(2)} if grows and pick.count(".") < 3 else {}
        return Expansion(self.number("value", pick), children)

    def run(self, count: int = 6, width: int = 1, grows: bool = True, fails: bool = False) -> _Trace:
        """A search among ``count`` candidates, watched: what is picked must be known, and not be flying."""
        trace = _Trace(known=set(self.candidates(count)))
        flying: set[str] = set()

        async def expand(pick: str) -> Expansion:
            if pick not in trace.known:
                trace.faults.append(f"it chose {pick!r}, which is not a candidate")
                return Expansion(None)
            if pick in flying:
                trace.faults.append("it chose a candidate that is being expanded already")
            flying.add(pick)
            trace.picks.append(pick)
            trace.values[pick] = None
            await asyncio.sleep(0)
            flying.discard(pick)
            result = self.expansion(pick, grows, fails)
            trace.known |= set(result.found)
            trace.values[pick] = result.value
            return result

        work = run_searcher(self.searcher, self.candidates(count), expand, self.budget, width=width)
        trace.state = wait_for(asyncio.wait_for(work, 60))
        return trace


def _protocol(probe: _Probe) -> Iterator[str]:
    if not isinstance(probe.searcher, Searcher):
        yield "it lacks a name, or one of start, select, absorb and best"
    elif not isinstance(probe.searcher.name, str) or not probe.searcher.name:
        yield "its name is not a text, or empty"


def _picks(probe: _Probe) -> Iterator[str]:
    for width, grows in itertools.product((1, 2, 8), (True, False)):
        trace = probe.run(width=width, grows=grows)
        yield from trace.faults
        if not trace.picks:
            yield "it expands nothing though there are candidates and a budget"


def _pure(probe: _Probe) -> Iterator[str]:
    """Walk a search by hand: no rule changes what it is given, and the same arguments give the same answer."""
    searcher = probe.searcher
    given = probe.candidates(6)
    kept = dict(given)
    state = searcher.start(given)
    for _ in range(min(10, probe.budget)):
        pick = searcher.select(state, ())
        if pick is None:
            break
        if searcher.select(state, ()) != pick:
            yield "select answers otherwise when it is asked again"
        result = probe.expansion(pick, True, False)
        prior = dict(result.found)
        before = copy.deepcopy(state)
        after = searcher.absorb(state, pick, result)
        if searcher.select(state, ()) != searcher.select(before, ()) or searcher.best(state) != searcher.best(before):
            yield "absorb changes the state it is given"
        if dict(result.found) != prior or given != kept:
            yield "it changes the candidates it is given"
        state = after
        again = searcher.absorb(before, pick, result)
        if searcher.select(again, ()) != searcher.select(state, ()) or searcher.best(again) != searcher.best(state):
            yield "absorb gives another state the second time"


def _repeats(probe: _Probe) -> Iterator[str]:
    for width in (1, 4):
        if probe.run(width=width).picks != probe.run(width=width).picks:
            yield "the same search twice expands other candidates"


def _waits(probe: _Probe) -> Iterator[str]:
    """With every candidate in flight there is nothing to choose."""
    candidates = probe.candidates(3)
    if probe.searcher.select(probe.searcher.start(candidates), tuple(candidates)) is not None:
        yield "it chooses something while every candidate is being expanded"


def _failures(probe: _Probe) -> Iterator[str]:
    for width in (1, 4):
        trace = probe.run(width=width, fails=True)
        yield from trace.faults
        failed = {name for name, value in trace.values.items() if value is None}
        if failed & set(probe.searcher.best(trace.state)):
            yield "best names a candidate whose expansion failed"


def _ranks(probe: _Probe) -> Iterator[str]:
    trace = probe.run(grows=False)
    best = probe.searcher.best(trace.state)
    if len(set(best)) != len(best) or not set(best) <= set(trace.values):
        yield "best names a candidate twice, or one that was not expanded"
    elif trace.picks and not best:
        yield "best names none of the candidates that were expanded"


def _small(probe: _Probe) -> Iterator[str]:
    none = probe.run(count=0)
    if none.picks or probe.searcher.best(none.state):
        yield "a search without candidates finds some"
    if probe.run(count=1, grows=False).picks[:1] != ["c0"]:
        yield "a single candidate is not expanded"


def _bad_values(probe: _Probe) -> Iterator[str]:
    state = probe.searcher.start({"a": 0.5})
    try:
        probe.searcher.absorb(state, "a", Expansion(float("nan")))
    except UserError:
        return
    yield "a value that is not a number is not refused with a UserError"


CHECKS: tuple[Callable[[_Probe], Iterator[str]], ...] = (
    _protocol, _picks, _pure, _repeats, _waits, _failures, _ranks, _small, _bad_values,
)  # fmt: skip
