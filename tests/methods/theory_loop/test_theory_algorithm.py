"""Closed forms and invariants of the numbers (section 8), without a sandbox."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind_from_stats

from ramify.base.errors import UserError
from ramify.methods.theory_loop.algorithm import (
    MetricEstimate,
    accepted,
    candidate_loss,
    correlation,
    divergence,
    leaderboard,
    mse_pb,
    normalised_distances,
    sequence_divergence,
    static_divergence,
    switch_rate,
    welch_p,
)
from ramify.methods.theory_loop.confirmation import CONTRASTS, LINEAR, sums
from ramify.methods.theory_loop.domain import Data
from ramify.methods.theory_loop.loop import next_label

VALUE = st.floats(-100, 100).map(lambda x: round(x, 3))


@given(VALUE, VALUE, st.floats(0.01, 9), st.floats(0.01, 9), st.integers(2, 200))
def test_the_gate_is_welchs_test(a: float, b: float, va: float, vb: float, n: int) -> None:
    wanted = ttest_ind_from_stats(a, math.sqrt(va), n, b, math.sqrt(vb), n, equal_var=False).pvalue
    assert welch_p(MetricEstimate(a, va), MetricEstimate(b, vb), n) == pytest.approx(float(wanted), rel=1e-6, abs=1e-12)


def test_the_gate_needs_three_quarters_of_a_standard_deviation() -> None:
    assert (
        welch_p(MetricEstimate(0.7587, 1.0), MetricEstimate(0.0, 1.0), 25)
        < 0.01
        < welch_p(MetricEstimate(0.7585, 1.0), MetricEstimate(0.0, 1.0), 25)
    )


def test_what_has_no_variance_does_not_pass() -> None:
    assert welch_p(MetricEstimate(1.0, None), MetricEstimate(0.0, 1.0), 25) == 1.0
    assert welch_p(MetricEstimate(1.0, 0.0), MetricEstimate(1.0, 0.0), 25) == 1.0
    assert welch_p(MetricEstimate(math.nan, 1.0), MetricEstimate(1.0, 1.0), 25) == 1.0
    assert welch_p(MetricEstimate(1.0, 0.0), MetricEstimate(0.0, 0.0), 25) == 0.0


def test_equal_theories_hardly_ever_pass() -> None:
    """50 simulated subjects, a test that assumes 25: far below its nominal level."""
    rng = np.random.default_rng(0)
    passed = 0
    for _ in range(4000):
        own, rival = rng.normal(size=(2, 50))
        passed += welch_p(MetricEstimate(own.mean(), own.var()), MetricEstimate(rival.mean(), rival.var()), 25) < 0.01
    assert passed <= 6


TABLE = st.lists(st.lists(VALUE, min_size=4, max_size=4), min_size=1, max_size=6)


@given(TABLE, st.integers(0, 2**32), st.floats(0.1, 10), VALUE)
def test_the_leaderboard_is_in_0_to_1_and_ignores_units(rows: list[list[float]], seed: int, scale: float, shift: float) -> None:
    real = np.random.default_rng(seed).integers(-50, 50, len(rows)).astype(float)
    scores = leaderboard(normalised_distances(real.tolist(), rows))
    assert (scores >= 0).all()
    assert (scores <= 1).all()
    assert scores.min() == 0 or (scores == 1).all()
    apart = [np.ptp(np.abs(np.array(row) - y)) > 1e-3 for row, y in zip(rows, real, strict=True)]
    if all(apart):  # ties that rounding breaks are no property of the rule
        moved = leaderboard(normalised_distances((real * scale + shift).tolist(), (np.array(rows) * scale + shift).tolist()))
        np.testing.assert_allclose(scores, moved, atol=1e-6)


def test_missing_values_count_as_the_furthest() -> None:
    found = normalised_distances([1.0, None], [[1.0, None, 3.0], [1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(found, [[0, 1, 1], [1, 1, 1]])
    np.testing.assert_array_equal(normalised_distances([1.0], [[2.0, 0.0]]), [[0, 0]])


def test_a_terrible_theory_moves_the_scores_of_others() -> None:
    """Min-max depends on irrelevant alternatives; so absolute error is reported as well."""
    before = leaderboard(normalised_distances([0.0, 0.0], [[1.0, 2.0], [2.0, 1.5]]))
    after = leaderboard(normalised_distances([0.0, 0.0], [[1.0, 2.0, 99.0], [2.0, 1.5, 99.0]]))
    assert not np.allclose(before, after[:2])
    assert after[2] == 0


@given(st.lists(st.tuples(VALUE, VALUE, st.lists(VALUE, max_size=3)), min_size=1, max_size=5))
def test_the_loss_is_a_mean_of_shares(rows: list[tuple[float, float, list[float]]]) -> None:
    loss = candidate_loss([y for y, _, _ in rows], [v for _, v, _ in rows], [others for _, _, others in rows])
    assert 0 <= loss <= 1


def test_the_loss_of_what_is_broken_and_of_nothing() -> None:
    assert candidate_loss([1.0, 2.0], [None, None], [[], []]) == 1.0
    assert candidate_loss([None], [1.0], [[]]) == math.inf
    assert candidate_loss([], [], []) == math.inf
    assert candidate_loss([1.0], [1.0], [[0.0]]) == 0.0
    assert candidate_loss([0.0], [1.0], [[2.0]]) == 0.5
    assert candidate_loss([1.0], [1.0], [[1.0]]) == 0.0


def test_the_accept_gate() -> None:
    assert accepted(0, math.inf, math.inf)
    assert accepted(3, 0.1, 0.2)
    assert not accepted(3, 0.2, 0.2)
    assert not accepted(3, math.inf, math.inf)
    assert not accepted(3, math.nan, 0.5)


def test_divergences_in_closed_form() -> None:
    assert divergence([0.3, 0.7], [0.3, 0.7]) == pytest.approx(0)
    assert divergence([1, 0], [0, 1]) == pytest.approx(math.log(2))
    assert divergence([0.9, 0.1], [0.5, 0.5]) == pytest.approx(0.1017, abs=5e-5)
    assert divergence([0.5, 0, 0, 0.5], [0.25] * 4) == pytest.approx(0.2158, abs=5e-5)


def test_only_the_sequence_tells_repeating_from_alternating() -> None:
    first = np.repeat([[0], [1]], 40, axis=1)
    other = (np.arange(40)[None, :] + np.array([[0], [1]])) % 2
    assert static_divergence(first, other) == pytest.approx(0)
    assert sequence_divergence(first, other) == pytest.approx(math.log(2) * 39 / 40)
    assert (switch_rate(first), switch_rate(other)) == (0.0, 1.0)
    coin = np.random.default_rng(0).integers(0, 2, (20_000, 40))
    assert sequence_divergence(np.repeat(coin[:, :1], 40, axis=1), coin) == pytest.approx(0.2158 * 39 / 40, abs=0.005)


def test_held_out_error_and_a_flat_correlation() -> None:
    assert mse_pb(np.array([0.0, 1.0]), np.array([0.5, 0.5])) == 0.25
    assert correlation(np.array([0.5, 0.5]), np.array([0.1, 0.9])) is None
    assert correlation(np.array([0.0, 1.0]), np.array([0.1, 0.9])) == pytest.approx(1)


def test_labels_are_never_used_again() -> None:
    assert next_label(["pi_1", "pi_2"], "pi_1", "new_theory") == "pi_3"
    assert next_label(["pi_1", "pi_2", "pi_3"], "pi_3", "new_model") == "pi_3_1"
    assert next_label(["pi_1", "pi_2", "pi_3", "pi_3_1"], "pi_3_1", "new_model") == "pi_3_2"
    assert next_label(["pi_1", "pi_2", "pi_3", "pi_3_1"], "pi_2", "new_theory") == "pi_4"


@pytest.mark.parametrize("name", CONTRASTS)
def test_a_contrast_is_nothing_for_linear_rules_and_something_where_returns_diminish(name: str) -> None:
    design, contrasts, above = CONTRASTS[name](3)
    a, b = design.options
    rng, v = np.random.default_rng(0), np.array(design.validities)

    def measured(worth_of: np.ndarray, other: np.ndarray) -> float:
        """The smallest contrast: a claim holds where all do."""
        p = 1 / (1 + np.exp(-3 * (other - worth_of)))
        return min(float(contrast @ p) for contrast in contrasts.values()) - above

    if name == "concave-match":
        assert [(np.count_nonzero(one), one.sum()) for one in contrasts.values()] == [(8, 0)] * 3
        for w in (v, *LINEAR):  # whatever the weights, one of the three contrasts speaks against linear rules
            assert measured(a @ w, b @ w) < 1e-9
        tallied = np.sign(b - a).sum(axis=1)
        assert measured(0 * tallied, tallied) < -0.2
    else:
        for _ in range(20):
            w = rng.uniform(0, 1, 4)
            assert measured(a @ w, b @ w) == pytest.approx(0, abs=1e-9)
    assert measured(np.sqrt(a) @ v, np.sqrt(b) @ v) > 0.02
    assert len(set(zip(design.a, design.b, strict=True))) == design.pairs  # people's rows are known by their pair
    order = design.orders(2, 0)
    whole = Data(design, order, (order % 2).astype(np.int64), ("ann", "ben"))
    for contrast in contrasts.values():
        np.testing.assert_allclose(sums(contrast, whole), [contrast @ (np.arange(design.pairs) % 2)] * 2, atol=1e-9)
    with pytest.raises(UserError, match="'ben' did not see every pair"):
        sums(contrast, Data(design, np.stack([order[0], np.zeros_like(order[0])]), whole.response, whole.subjects))
