"""Trend test, its power, logistic and isotonic fits, interactions, homogeneity: published and closed-form numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.methods.forensics.trend import cochran_armitage, isotonic, logistic_fit, trend_power
from ramify.stats.intervals import difference_of_differences
from ramify.stats.tests import fisher, homogeneity, two_proportions

DOSES = [0, 50, 100, 151, 200, 258]
DISTRIBUTION = np.maximum(0.005, 1 / (1 + np.exp(-(0.02 * np.array(DOSES) - 7))))


def test_a_trend_of_two_doses_is_the_pooled_z_test() -> None:
    z, p = cochran_armitage([46, 19], [98, 69], [0, 1])
    assert z < 0
    assert p == pytest.approx(two_proportions(46, 98, 19, 69), rel=1e-12)


def test_no_variation_is_no_trend() -> None:
    assert cochran_armitage([0, 0], [10, 10], [0, 1]) == (0.0, 1.0)
    assert cochran_armitage([3, 4], [10, 10], [5, 5]) == (0.0, 1.0)
    assert cochran_armitage([0, 0, 1], [30, 30, 30], [1.8457034298187809] * 3) == (0.0, 1.0)
    assert two_proportions(0, 10, 0, 10) == 1.0
    assert two_proportions(0, 0, 1, 2) == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 300)), min_size=2, max_size=6), st.floats(0.1, 9), st.floats(-99, 99)
)
@settings(max_examples=25, deadline=None)
def test_a_trend_does_not_depend_on_unit_or_origin_of_the_dose(cells: list[tuple[int, int]], scale: float, shift: float) -> None:
    hits, doses = [k for k, _ in cells], np.array([d for _, d in cells], float)
    z, p = cochran_armitage(hits, [30] * len(cells), doses)
    other, q = cochran_armitage(hits, [30] * len(cells), doses * scale + shift)
    assert other == pytest.approx(z, abs=1e-6)
    assert q == pytest.approx(p, abs=1e-6)


def test_power_of_a_trend_agrees_with_simulation() -> None:
    rng = np.random.default_rng(0)
    found = [cochran_armitage(rng.binomial(60, DISTRIBUTION), [60] * 6, DOSES)[1] < 0.05 for _ in range(400)]
    assert trend_power(DISTRIBUTION, [60] * 6, DOSES) == pytest.approx(np.mean(found), abs=0.05)
    assert trend_power([0.13] * 6, [150] * 6, DOSES) == pytest.approx(0.05, abs=1e-9)
    assert trend_power(DISTRIBUTION, [150] * 6, DOSES, 0.9973) > 0.99
    with pytest.raises(ValueError, match="between 0 and 1"):
        trend_power([1.2, 0], [10, 10], [0, 1])


def test_a_logistic_fit_finds_the_distribution_and_its_dose() -> None:
    doses = np.linspace(0, 258, 6)
    share = 1 / (1 + np.exp(-(0.02 * doses - 4)))
    fit = logistic_fit(share * 1e6, [1e6] * 6, doses)
    assert fit is not None
    assert (fit.intercept, fit.slope) == (pytest.approx(-4, abs=1e-3), pytest.approx(0.02, rel=1e-3))
    dose, (low, high) = fit.dose_of(0.05)
    assert dose == pytest.approx((math.log(0.05 / 0.95) + 4) / 0.02, rel=1e-2)
    assert low < dose < high
    assert fit.share(dose) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fit.dose_of(1)


def test_a_fit_stays_finite_where_one_dose_holds_every_hit_and_says_nothing_where_nothing_rises() -> None:
    fit = logistic_fit([0, 0, 0, 0, 0, 23], [150] * 6, DOSES)
    assert fit is not None
    assert np.isfinite([fit.intercept, fit.slope]).all()
    flat = logistic_fit([7] * 6, [150] * 6, DOSES)
    assert flat is not None
    assert flat.dose_of(0.01)[1] == (-math.inf, math.inf)
    assert logistic_fit([1, 2], [5, 5], [3, 3]) is None


def test_the_interval_of_a_dose_covers() -> None:
    rng, doses, inside = np.random.default_rng(1), np.linspace(0, 300, 7), 0
    share = 1 / (1 + np.exp(-(0.02 * doses - 4)))
    true = (math.log(0.05 / 0.95) + 4) / 0.02
    for _ in range(150):
        fit = logistic_fit(rng.binomial(100, share), [100] * 7, doses)
        assert fit is not None
        low, high = fit.dose_of(0.05)[1]
        inside += low <= true <= high
    assert inside / 150 > 0.88


def test_isotonic_pools_what_falls_and_keeps_the_order_given() -> None:
    assert isotonic([0, 4, 2, 9], [10] * 4, [0, 1, 2, 3]).tolist() == pytest.approx([0, 0.3, 0.3, 0.9])
    assert isotonic([9, 0, 2, 4], [10] * 4, [3, 0, 2, 1]).tolist() == pytest.approx([0.9, 0, 0.3, 0.3])


@pytest.mark.parametrize(
    ("hits", "n", "doses"), [([1], [1, 2], [1]), ([], [], []), ([3], [2], [1]), ([0], [0], [1]), ([0], [1], [math.nan])]
)
def test_counts_that_are_none_are_refused(hits: list[int], n: list[int], doses: list[float]) -> None:
    with pytest.raises(ValueError, match=r"shape|each dose"):
        cochran_armitage(hits, n, doses)


def test_an_interaction_and_its_interval() -> None:
    value, (low, high), p = difference_of_differences((3, 100), (65, 100), (19, 100), (35, 100))
    assert value == pytest.approx(0.03 - 0.65 - 0.19 + 0.35)
    assert low < value < high < 0
    assert p < 1e-6
    assert difference_of_differences((0, 0), (1, 2), (1, 2), (1, 2)) == (0.0, (-2.0, 2.0), 1.0)
    assert difference_of_differences((0, 9), (0, 9), (0, 9), (0, 9))[2] == 1.0
    value, (low, high), p = difference_of_differences((2, 2), (0, 2), (0, 2), (0, 2))
    assert (value, low < 0 < high) == (1.0, True)
    assert p > 0.05, "four certain shares of two runs show little"
    assert difference_of_differences((90, 90), (0, 90), (0, 90), (0, 90))[2] < 1e-6


def test_homogeneity() -> None:
    assert homogeneity([5, 5], [10, 10]) == 1.0
    assert homogeneity([0, 0, 0], [9, 9, 9]) == 1.0
    assert homogeneity([5, 0], [10, 0]) == 1.0
    assert homogeneity([46, 8], [98, 108]) < 1e-8
    assert homogeneity([46, 8], [98, 108]) == pytest.approx(two_proportions(46, 98, 8, 108), rel=1e-9)
    assert fisher(46, 98, 8, 108) == pytest.approx(5e-11, rel=0.02)
