"""The one search loop: choose, expand, absorb. What to choose and what a result means are functions passed in, or those of a
registered searcher."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.registry import register

State = TypeVar("State")
Pick = TypeVar("Pick")
Result = TypeVar("Result")


async def search(
    state: State,
    select: Callable[[State], Pick | None],
    expand: Callable[[Pick], Awaitable[Result]],
    absorb: Callable[[State, Pick, Result], State],
    *,
    width: int = 1,
    tau: int | None = None,
) -> State:
    """Search until ``select`` returns None and nothing is in flight; returns the last state.

    At most ``width`` expansions are in flight, and a choice is made on statistics that miss at most ``tau`` results (default
    ``width``); ``tau=0`` is the sequential algorithm at any width. Results are absorbed in the order in which they were chosen,
    so the outcome does not depend on the order in which they arrive. An error of one expansion cancels the others and is raised.
    """
    window = min(width, (width if tau is None else tau) + 1)
    if window < 1:
        raise ValueError(f"width {width} and tau {tau} allow no expansion")
    flying: deque[tuple[Pick, asyncio.Future[Result]]] = deque()
    try:
        while True:
            while len(flying) < window and (pick := select(state)) is not None:
                flying.append((pick, asyncio.ensure_future(expand(pick))))
            if not flying:
                return state
            pick, future = flying[0]
            result = await future
            flying.popleft()
            state = absorb(state, pick, result)
    finally:
        for _, future in flying:
            future.cancel()
        await asyncio.gather(*(future for _, future in flying), return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Expansion:
    """What came of expanding one candidate."""

    value: float | None
    """How good it is; None where expanding it failed: not known, which is not bad."""
    found: Mapping[str, float] = field(default_factory=dict)
    """Candidates it leads to, each with its prior: how promising it looks before it is expanded."""


@runtime_checkable
class Searcher(Protocol):
    """Chooses what to expand. Its rules are pure: they change nothing they are given,
    and the same arguments give the same answer."""

    name: str

    def start(self, candidates: Mapping[str, float]) -> Any:
        """The state of a search among ``candidates``: id -> prior."""
        ...

    def select(self, state: Any, flying: Sequence[str]) -> str | None:
        """The candidate to expand next, none of ``flying`` (being expanded already); None where there is nothing to choose now.

        It is asked again after every result; a search ends when it chooses nothing and nothing is flying. Places worth several
        looks are given as several candidates.
        """
        ...

    def absorb(self, state: Any, pick: str, result: Expansion) -> Any:
        """The state once ``pick`` was expanded. Raises UserError on a value that is not a number."""
        ...

    def best(self, state: Any) -> list[str]:
        """The expanded candidates of known value, best first."""
        ...


async def run_searcher(
    searcher: Searcher,
    candidates: Mapping[str, float],
    expand: Callable[[str], Awaitable[Expansion]],
    budget: int,
    *,
    width: int = 1,
    tau: int | None = None,
) -> Any:
    """Search with a registered searcher for at most ``budget`` expansions; returns its last state.
    ``width``, ``tau`` as in :func:`search`.

    A InfrastructureError of one expansion is a result without a value; the others continue.
    """
    flying: list[str] = []
    begun = 0

    def select(state: Any) -> str | None:
        nonlocal begun
        pick = None if begun >= budget else searcher.select(state, tuple(flying))
        if pick is not None:
            begun += 1
            flying.append(pick)
        return pick

    async def tried(pick: str) -> Expansion:
        try:
            return await expand(pick)
        except InfrastructureError:
            return Expansion(None)

    def absorb(state: Any, pick: str, result: Expansion) -> Any:
        flying.remove(pick)
        return searcher.absorb(state, pick, result)

    return await search(searcher.start(candidates), select, tried, absorb, width=width, tau=tau)


@dataclass(frozen=True)
class _Known:
    """Priors of every candidate in the order in which it was found, and what expanding some of them gave."""

    priors: Mapping[str, float]
    results: Mapping[str, float | None]


@register("searcher", "greedy")
class Greedy:
    """Best first: expands the candidate of highest prior, the earliest found among equals, each once, until none is left."""

    name = "greedy"

    def start(self, candidates: Mapping[str, float]) -> _Known:
        """See :class:`Searcher`. Raises UserError on a prior that is not a number."""
        return _Known(_numbers(candidates), {})

    def select(self, state: _Known, flying: Sequence[str]) -> str | None:
        """See :class:`Searcher`."""
        left = (name for name in state.priors if name not in state.results and name not in flying)
        return max(left, key=lambda name: state.priors[name], default=None)

    def absorb(self, state: _Known, pick: str, result: Expansion) -> _Known:
        """See :class:`Searcher`."""
        if result.value is not None:
            _numbers({pick: result.value})
        fresh = {name: prior for name, prior in _numbers(result.found).items() if name not in state.priors}
        return replace(state, priors={**state.priors, **fresh}, results={**state.results, pick: result.value})

    def best(self, state: _Known) -> list[str]:
        """See :class:`Searcher`."""
        valued = {name: value for name, value in state.results.items() if value is not None}
        return sorted(valued, key=lambda name: -valued[name])


def _numbers(values: Mapping[str, float]) -> dict[str, float]:
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(f"candidate '{name}' has {value}, which is not a finite number")
    return dict(values)
