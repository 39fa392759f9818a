"""Greedy choice: by marginal gain, and best first in a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.search.loop import Expansion

Item = TypeVar("Item")


def best(items: Iterable[Item], score: Callable[[Item], float], tie: Callable[[Item], Any]) -> Item | None:
    """The item of highest score, the least ``tie`` key among equals; None of none. Raises ValueError on a score that is NaN."""
    winner: Item | None = None
    top: tuple[float, Any] | None = None
    for item in items:
        value = score(item)
        if value != value:
            raise ValueError(f"the score of {item!r} is not a number")
        if top is None or value > top[0] or (value == top[0] and tie(item) < top[1]):
            winner, top = item, (value, tie(item))
    return winner


def greedy(items: Sequence[Item], gain: Callable[[tuple[Item, ...], Item], float], k: int) -> tuple[Item, ...]:
    """Up to ``k`` distinct items, each of largest marginal gain given those before it, earliest first among equals.

    For a monotone submodular objective F(chosen) >= (1 - (1 - 1/k)^k) * OPT (Nemhauser, Wolsey, Fisher 1978). Repeatable choices
    are passed as copies.
    """
    chosen: tuple[Item, ...] = ()
    left = list(range(len(items)))
    while left and len(chosen) < k:
        held = chosen
        at = best(left, lambda i: gain(held, items[i]), lambda i: i)  # noqa: B023 - `held` is rebound before the next call
        assert at is not None
        chosen += (items[at],)
        left.remove(at)
    return chosen


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
        """See :class:`ramify.search.loop.Searcher`. Raises UserError on a prior that is not a number."""
        return _Known(_numbers(candidates), {})

    def select(self, state: _Known, flying: Sequence[str]) -> str | None:
        """See :class:`ramify.search.loop.Searcher`."""
        left = (name for name in state.priors if name not in state.results and name not in flying)
        return max(left, key=lambda name: state.priors[name], default=None)

    def absorb(self, state: _Known, pick: str, result: Expansion) -> _Known:
        """See :class:`ramify.search.loop.Searcher`."""
        if result.value is not None:
            _numbers({pick: result.value})
        fresh = {name: prior for name, prior in _numbers(result.found).items() if name not in state.priors}
        return replace(state, priors={**state.priors, **fresh}, results={**state.results, pick: result.value})

    def best(self, state: _Known) -> list[str]:
        """See :class:`ramify.search.loop.Searcher`."""
        valued = {name: value for name, value in state.results.items() if value is not None}
        return sorted(valued, key=lambda name: -valued[name])


def _numbers(values: Mapping[str, float]) -> dict[str, float]:
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(f"candidate '{name}' has {value}, which is not a finite number")
    return dict(values)
