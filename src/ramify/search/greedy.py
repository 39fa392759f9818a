"""Greedy choice by marginal gain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

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
