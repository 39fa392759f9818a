"""Normalisation within groups, and returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.methods.graph_credit.returns import remaining, terminal_returns
from ramify.score.group import moments, normalise

numbers = st.lists(st.tuples(st.integers(0, 3), st.floats(-100, 100)), min_size=1, max_size=20)


@given(numbers)
@settings(max_examples=60, deadline=None)
def test_normalise_matches_numpy(pairs):
    groups, values = np.array([g for g, _ in pairs]), np.array([v for _, v in pairs])
    got = normalise(values, groups)
    for g in set(groups.tolist()):
        own = values[groups == g]
        if len(own) < 2 or np.ptp(own) == 0:
            assert not got[groups == g].any()
        else:
            np.testing.assert_allclose(got[groups == g], (own - own.mean()) / (own.std(ddof=1) + 1e-6), atol=1e-6)


def test_uniform_group_is_exactly_zero():
    assert normalise(np.full(3, 0.1)).tolist() == [0.0] * 3
    assert normalise(np.full(3, 0.1), std=False).tolist() == [0.0] * 3
    assert normalise(np.array([1e-3])).tolist() == [0.0]
    assert normalise(np.array([])).tolist() == []


def test_weights_count_visits():
    mean, std, total = moments(np.array([1.0, 1.0, 5.0]), weights=np.array([0.5, 0.5, 1.0]))
    plain = moments(np.array([1.0, 5.0]))
    assert (mean[0], std[0], total[0]) == pytest.approx((plain[0][0], plain[1][0], plain[2][0]))
    assert normalise(np.array([1.0, 5.0]), weights=np.array([0.5, 0.5])).tolist() == [0.0, 0.0]


def test_terminal_returns():
    left = remaining(np.array([0, 0, 0, 5, 5]))
    assert left.tolist() == [2, 1, 0, 1, 0]
    assert terminal_returns(np.full(5, 10.0), left, 0.5).tolist() == [1.25, 2.5, 5.0, 2.5, 5.0]
    assert remaining(np.array([], dtype=np.int64)).tolist() == []
