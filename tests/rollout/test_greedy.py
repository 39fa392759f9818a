"""Greedy choice: ties, and the (1 - 1/e) guarantee against brute force on coverage instances."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.rollout.search import best, greedy


def test_best_breaks_ties_by_key_and_refuses_nan() -> None:
    assert best(["bb", "a", "c"], lambda _: 1.0, lambda item: item) == "a"
    assert best([3, 1, 2], float, lambda item: item) == 3
    assert best([], float, lambda item: item) is None
    with pytest.raises(ValueError, match="not a number"):
        best([1.0], lambda _: math.nan, lambda item: item)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_greedy_reaches_its_share_of_the_optimum(seed: int, k: int) -> None:
    # probabilistic coverage, where greedy is not exact: the separable part alone would prove nothing
    rng = np.random.default_rng(seed)
    cover = rng.random((7, 5)) * (rng.random((7, 5)) < 0.5)
    worth = rng.random(5)

    def value(items: tuple[int, ...]) -> float:
        return float(worth @ (1 - np.prod(1 - cover[list(items)], axis=0))) if items else 0.0

    chosen = greedy(range(7), lambda held, item: value((*held, item)) - value(held), k)
    optimum = max(value(items) for items in itertools.combinations(range(7), k))
    assert len(set(chosen)) == k
    assert value(chosen) >= (1 - (1 - 1 / k) ** k) * optimum - 1e-12


def test_greedy_is_not_always_optimal() -> None:
    sets = [{1, 2, 3, 4}, {1, 2, 5}, {3, 4, 6}]
    chosen = greedy(sets, lambda held, item: len(item - set().union(*held)), 2)
    assert len(set().union(*chosen)) == 5 < len(sets[1] | sets[2])


def test_greedy_stops_when_items_run_out() -> None:
    assert greedy([5, 7], lambda held, item: float(item), 9) == (7, 5)
