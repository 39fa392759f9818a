"""Ranking statistics against counting by hand, scikit-learn-free."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.stats.ranking import auroc, auroc_interval, delong, luck_ceiling, spearman, tie_rate, within_auroc


def by_hand(x: np.ndarray, y: np.ndarray) -> float:
    pairs = x[y][:, None] - x[~y][None]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_auroc_and_ties_are_counted_over_all_pairs(cases: list[tuple[int, bool]]) -> None:
    x, y = np.array([c[0] for c in cases], float), np.array([c[1] for c in cases])
    if y.all() or not y.any():
        assert auroc(x, y) is None
        assert tie_rate(x, y) is None
        return
    assert auroc(x, y) == pytest.approx(by_hand(x, y))
    assert auroc(-x, y) == pytest.approx(1 - by_hand(x, y))
    assert tie_rate(x, y) == pytest.approx(float((x[y][:, None] == x[~y][None]).mean()))


def test_difficulty_is_taken_out_within_tasks() -> None:
    x, y, tasks = [10.0, 11, 0, 1], [True, False, True, False], ["easy", "easy", "hard", "hard"]
    assert auroc(x, y) == 0.25
    assert within_auroc(x, y, tasks) == 0.0
    assert within_auroc(x, y, [1, 2, 3, 4]) is None


def test_the_interval_resamples_tasks_not_attempts() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(60) < 0.5
    x = y + rng.normal(size=60)
    alone = auroc_interval(x, y, range(60))
    eightfold = auroc_interval(np.repeat(x, 8), np.repeat(y, 8), np.repeat(np.arange(60), 8).tolist())
    assert alone == pytest.approx(eightfold)  # copies of an attempt teach nothing
    assert alone is not None
    assert alone[0] < by_hand(x, y) < alone[1]
    assert auroc_interval(x, y, range(60), minus=x) == (0.0, 0.0)
    assert auroc_interval(x, y, [0] * 60) is None
    assert auroc_interval(x, np.ones(60, bool), range(60)) is None


def test_the_interval_of_few_tasks_holds_what_it_promises() -> None:
    rng, missed = np.random.default_rng(3), 0
    for _ in range(400):
        y, x, tasks = (
            rng.random(32) < 0.6,
            rng.normal(size=32) + np.repeat(rng.normal(size=8), 4),
            np.repeat(np.arange(8), 4).tolist(),
        )
        low, high = auroc_interval(x, y, tasks, samples=500) or (0.0, 1.0)
        missed += not low <= 0.5 <= high
    assert missed / 400 < 0.07  # plain percentiles: .095


def test_delong_covers_like_the_bootstrap_and_knows_equality() -> None:
    rng = np.random.default_rng(1)
    y = rng.random(400) < 0.4
    a, b = y + rng.normal(size=400), 0.3 * y + rng.normal(size=400)
    found, resampled = delong(a, b, y), auroc_interval(a, y, range(400), minus=b)
    assert found is not None
    assert resampled is not None
    assert found[0] == pytest.approx(by_hand(a, y) - by_hand(b, y))
    assert found[1] == pytest.approx(resampled, abs=0.02)
    assert found[2] < 1e-4
    assert delong(a, a, y) == (0.0, (0.0, 0.0), 1.0)
    assert delong([1.0, 2.0], [1.0, 2.0], [True, False]) is None


def test_spearman_is_scipys() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 5, 40), rng.integers(0, 5, 40)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(a, np.ones(40)) is None


def test_luck_bounds_every_score_of_decisions() -> None:
    choices = ["a", "a", "a", "b", "b", "c"]
    y = [True, True, False, False, True, False]
    ceiling, repeated = luck_ceiling(choices, y)
    assert repeated == 5
    assert ceiling is not None
    best = max(
        auroc([{"a": a, "b": b, "c": c}[k] for k in choices], y) or 0.0 for a in range(3) for b in range(3) for c in range(3)
    )
    assert ceiling == pytest.approx(best)
    assert luck_ceiling([1, 2], [True, False]) == (1.0, 0)


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="score 1 is NaN"):
        auroc([0.0, float("nan")], [True, False])
