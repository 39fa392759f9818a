"""Section 8 of the specification, the paper's own numbers: counts, rounding, intervals."""

from __future__ import annotations

import pytest

from ramify.methods.governance.algorithm import MAIN
from ramify.methods.governance.standing_rules import task_names
from ramify.stats.intervals import difference_of_proportions, difference_over_clusters, wilson
from ramify.stats.tests import fisher

MODELS = 7
TABLE = {
    "compaction": ((59, 0, 30, 59, 19, 41, 4), (16, 0, 8, 16, 5, 11, 1), 57),
    "floor": ((37, 44, 48, 48, 33, 56, 63), (10, 12, 13, 13, 9, 15, 17), 89),
    "attack_volume": ((48, 7, 26, 44, 0, 37, 19), (13, 2, 7, 12, 0, 10, 5), 49),
    "attack_inject": ((59, 22, 33, 41, 0, 37, 0), (16, 6, 9, 11, 0, 10, 0), 52),
}


def test_1_the_grid() -> None:
    tasks, conditions, reps = len(task_names()), len(MAIN), 3
    assert MODELS * conditions * tasks * reps == 1323
    assert tasks * reps == 27
    assert MODELS * tasks * reps == 189
    assert 5 * 3 * tasks * 3 == 405 == 90 + 315
    assert 7 * 3 * tasks * 3 == 567 == 207 + 360


@pytest.mark.parametrize("name", TABLE)
def test_2_percentages_of_27_are_these_counts(name: str) -> None:
    percent, counts, total = TABLE[name]
    assert tuple(round(p * 27 / 100) for p in percent) == counts
    assert [round(100 * k / 27) for k in counts] == list(percent)
    assert sum(counts) == total


def test_2_pooled() -> None:
    assert round(57 / 189, 3) == 0.302
    assert round(89 / 189, 3) == 0.471


def test_3_soft_against_hard() -> None:
    soft, hard = sum((62, 67, 43, 33, 43)) / 5, sum((14, 10, 0, 0)) / 4
    assert (soft, hard, round(soft / hard, 2)) == (49.6, 6.0, 8.27)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(0, 27, 0, 12.5), (0, 54, 0, 6.6), (0, 270, 0, 1.40), (0, 189, 0, 2.0), (57, 189, 24.1, 37.0)]
)
def test_4_wilson(k: int, n: int, low: float, high: float) -> None:
    assert [100 * end for end in wilson(k, n)] == pytest.approx([low, high], abs=0.06)


@pytest.mark.parametrize(
    ("counts", "low", "high"), [((57, 189, 0, 189), 23.7, 37.0), ((20, 20, 0, 20), 77.2, 100), ((0, 40, 0, 20), -16.1, 8.8)]
)
def test_4_newcombe(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    assert [100 * end for end in difference_of_proportions(*counts)] == pytest.approx([low, high], abs=0.06)


def test_4_fisher() -> None:
    assert fisher(57, 189, 0, 189) == pytest.approx(9e-20, rel=0.1)


def test_5_the_mixture_is_the_pooled_rate() -> None:
    assert round(100 * (315 * 0.38 + 90 * 0) / 405, 1) == 29.6


def test_a_bootstrap_over_tasks_is_wider_than_one_over_trials() -> None:
    tasks = [(9, 9), (9, 9), (0, 9), (0, 9), (9, 9), (0, 9)]
    low, high = difference_over_clusters(tasks, [(0, 9)] * 6)
    newcombe = difference_of_proportions(27, 54, 0, 54)
    assert high - low > newcombe[1] - newcombe[0]
    assert low <= 0.5 <= high
    assert difference_over_clusters([(1, 2)] * 3, [(0, 2)] * 3) == (0.5, 0.5)
    with pytest.raises(ValueError, match="2 or more clusters"):
        difference_over_clusters([(1, 2)], [(0, 2)])
