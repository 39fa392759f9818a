"""The searchers' battery: the built-in searcher passes; each broken promise is found. And a search with it, end to end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ramify.base import registry
from ramify.base.errors import InfrastructureError, UserError
from ramify.rollout.search import Expansion, Greedy, run_searcher
from ramify.testing import check_searcher


@pytest.mark.parametrize("name", registry.names("searcher"))
def test_built_in_searchers_conform(name: str) -> None:
    assert check_searcher(registry.get("searcher", name)()) == []


class Invents(Greedy):
    def select(self, state: Any, flying: Sequence[str]) -> Any:
        return super().select(state, flying) and "nowhere"


class Again(Greedy):
    """Forgets what is being expanded."""

    def select(self, state: Any, flying: Sequence[str]) -> Any:
        return super().select(state, ())


class Rolls(Greedy):
    counter = itertools.count()

    def select(self, state: Any, flying: Sequence[str]) -> Any:
        left = [name for name in state.priors if name not in state.results and name not in flying]
        return left[next(self.counter) % len(left)] if left else None


class Mutates(Greedy):
    def start(self, candidates: Mapping[str, float]) -> Any:
        return {"priors": dict(candidates), "results": {}}

    def select(self, state: Any, flying: Sequence[str]) -> Any:
        left = [name for name in state["priors"] if name not in state["results"] and name not in flying]
        return max(left, key=state["priors"].get, default=None)

    def absorb(self, state: Any, pick: str, result: Expansion) -> Any:
        if result.value is not None and result.value != result.value:
            raise UserError("no number")
        state["priors"] |= result.found
        state["results"][pick] = result.value
        return state

    def best(self, state: Any) -> list[str]:
        return [name for name, value in state["results"].items() if value is not None]


class Idle(Greedy):
    def select(self, state: Any, flying: Sequence[str]) -> Any:
        return None


class CountsFailures(Greedy):
    def best(self, state: Any) -> list[str]:
        return list(state.results)


class RanksAll(Greedy):
    def best(self, state: Any) -> list[str]:
        return [*state.priors]


class CrashesOnNothing(Greedy):
    def start(self, candidates: Mapping[str, float]) -> Any:
        return super().start({next(iter(candidates)): 1.0, **candidates})


class TakesAnyValue(Greedy):
    def absorb(self, state: Any, pick: str, result: Expansion) -> Any:
        value = 0.0 if result.value is not None and result.value != result.value else result.value
        return super().absorb(state, pick, Expansion(value, result.found))


class NoBest:
    name = "x"

    def start(self, candidates: Mapping[str, float]) -> Any: ...


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (Invents, "picks", "not a candidate"),
        (Again, "picks", "being expanded already"),
        (Again, "waits", "while every candidate"),
        (Rolls, "pure", "otherwise when it is asked again"),
        (Mutates, "pure", "absorb changes the state"),
        (Idle, "picks", "expands nothing"),
        (CountsFailures, "failures", "expansion failed"),
        (RanksAll, "ranks", "not expanded"),
        (CrashesOnNothing, "small", "StopIteration"),
        (TakesAnyValue, "bad_values", "not refused"),
        (NoBest, "protocol", "lacks a name"),
    ],
)
def test_each_broken_promise_is_found(broken: Any, check: str, message: str) -> None:
    found = [p for p in check_searcher(broken(), budget=4 if broken is RanksAll else 40) if p.check == check]
    assert any(message in p.message for p in found), found


@pytest.mark.parametrize("width", [1, 8])
def test_greedy_expands_the_most_promising_within_the_budget(width: int) -> None:
    seen: list[str] = []

    async def expand(pick: str) -> Expansion:
        seen.append(pick)
        if pick == "b":
            raise InfrastructureError("env", "down")
        return Expansion(len(pick), {pick + "x": 0.95} if len(pick) < 3 else {})

    state = asyncio.run(run_searcher(Greedy(), {"a": 0.9, "b": 1.0, "c": 0.1}, expand, 4, width=width, tau=0))
    assert seen == ["b", "a", "ax", "axx"]
    assert Greedy().best(state) == ["axx", "ax", "a"]


def test_a_prior_that_is_no_number_is_refused() -> None:
    with pytest.raises(UserError, match="candidate 'a' has nan"):
        Greedy().start({"a": float("nan")})
