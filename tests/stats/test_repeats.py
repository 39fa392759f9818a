"""pass^k, flip rates, two versions compared and how many attempts that takes, against closed forms and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ramify.stats.drops import Counts
from ramify.stats.repeats import all_of, attempts_needed, compare_versions, flip_rate, flips, pass_hat


def test_both_estimates_are_means_over_subsets() -> None:
    ends = [True, True, False, True, False, True]
    counts = Counts.of(ends)
    for k in range(1, 7):
        subsets = list(itertools.combinations(ends, k))
        assert pass_hat(counts, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))
    pairs = list(itertools.combinations(ends, 2))
    assert flip_rate(counts) == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))
    assert math.isnan(pass_hat(counts, 7))
    assert math.isnan(flip_rate(Counts(1, 1)))


def test_tasks_that_are_all_alike_are_not_certain() -> None:
    found = all_of([Counts(4, 4)] * 5, 4)
    assert found is not None
    assert found.value == 1.0
    assert 0.4 < found.interval[0] < 0.7  # five tasks, whatever the number of attempts
    assert all_of([Counts(1, 2)], 3) is None


def test_one_task_has_an_interval_of_its_own_attempts() -> None:
    steady, coin = flips([Counts(20, 20)]), flips([Counts(10, 20)])
    assert steady is not None
    assert coin is not None
    assert steady.value == 0.0
    assert 0.2 < steady.interval[1] < 0.4  # 2 p (1 - p) at the lower end of p
    assert coin.interval[1] >= 0.5


@pytest.mark.parametrize("k", [1, 3])
def test_intervals_hold_what_they_say(k: int) -> None:
    rng, held = np.random.default_rng(k), 0
    truth = math.gamma(2 + k) * math.gamma(3) / (math.gamma(2) * math.gamma(3 + k))  # E p^k of Beta(2, 1)
    for _ in range(400):
        rates = rng.beta(2, 1, size=12)
        found = all_of([Counts(int(rng.binomial(6, p)), 6) for p in rates], k)
        assert found is not None
        held += found.interval[0] <= truth <= found.interval[1]
    assert held >= 360


def test_versions_that_are_the_same_differ_at_most_at_the_level_and_a_plan_keeps_its_power() -> None:
    rng = np.random.default_rng(0)
    rates = np.array([0.1, 0.3, 0.5, 0.6, 0.7])
    first = [Counts(round(20 * p), 20) for p in rates]
    n = attempts_needed(first, 0.2)

    def sample(of: np.ndarray) -> dict[str, Counts]:
        return {str(i): Counts(int(rng.binomial(n, p)), n) for i, p in enumerate(of)}

    false, tasks, found = 0, 0, 0
    for _ in range(300):
        null = compare_versions(sample(rates), sample(rates))
        false, tasks = false + (null.p <= 0.05), tasks + bool(null.differing)
        found += compare_versions(sample(rates), sample(rates + 0.2)).p <= 0.05
    assert false <= 25
    assert tasks <= 25
    assert found >= 220  # 4 in 5 is meant


def test_a_difference_has_its_sign_and_names_its_task() -> None:
    first = {"easy": Counts(10, 10), "hard": Counts(1, 20), "gone": Counts(3, 3)}
    second = {"easy": Counts(9, 10), "hard": Counts(18, 20), "new": Counts(0, 4), "never": Counts(0, 0, 4)}
    found = compare_versions(first, second)
    assert found.differing == ("hard",)
    assert found.difference == pytest.approx((-0.1 + 0.85) / 2)
    assert found.only == (1, 1)
    assert found.interval is not None
    assert found.interval[0] < found.difference < found.interval[1]
    with pytest.raises(ValueError, match="no task"):
        compare_versions({"a": Counts(1, 2)}, {"b": Counts(1, 2)})
    with pytest.raises(ValueError, match="difference"):
        attempts_needed([Counts(1, 2)], 0.0)
