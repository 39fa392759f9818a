"""Closed forms and properties of the formulas (section 8, items 1 to 7, and part of 11)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.methods.tree_rollouts.algorithm import (
    UUCB,
    edge_advantage,
    grpo,
    is_mixed,
    l1_mass,
    learn,
    learned_tie_break,
    p_mix,
    proxy,
    shrunk,
    tie_break,
    tree_grpo,
    uucb,
)


@pytest.mark.parametrize(
    ("n", "p", "distribution"), [(8, 0.01, 0.077255), (16, 0.01, 0.148542), (64, 0.001, 0.062025), (8, 0.9, 0.569533)]
)
def test_collapse_law(n: int, p: float, distribution: float) -> None:
    assert p_mix(n, p) == pytest.approx(distribution, abs=5e-7)


def test_grpo_identity() -> None:
    rewards = [1.0, 1.0] + [-1.0] * 6
    a = grpo(rewards)
    assert a[0] == pytest.approx(1.732051, abs=5e-7)
    assert a[-1] == pytest.approx(-0.577350, abs=5e-7)
    assert np.abs(a).mean() == pytest.approx(0.866025, abs=5e-7)
    assert np.abs(a).mean() == pytest.approx(l1_mass(2, 8))
    assert (a**2).mean() == pytest.approx(1)
    sample = grpo(rewards, ddof=1)
    assert np.abs(sample).mean() == pytest.approx(0.810093, abs=5e-7)
    assert (sample**2).mean() == pytest.approx(0.875)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.floats(-1e3, 1e3))
def test_uniform_groups_are_exactly_zero(n: int, reward: float) -> None:
    assert grpo([reward] * n).tolist() == [0.0] * n
    assert l1_mass(0, n) == l1_mass(n, n) == 0.0
    assert not is_mixed(0, n)
    assert not is_mixed(n, n)


def test_tree_grpo_adds_both_scales_and_edges_weigh_by_leaves() -> None:
    both = tree_grpo([1, -1, 1, 1], [0, 0, 1, 1])
    assert both == pytest.approx(grpo([1, -1, 1, 1]) + np.array([1, -1, 0, 0]))
    assert edge_advantage([1.0, 2.0, 3.0, 2.0]) == pytest.approx(2.0 * 2)


@pytest.mark.parametrize(("n", "m", "chance"), [(8, 8, 8 / 17), (8, 1, 0.1), (0, 1, 0.5)])
def test_beta_predictive(n: int, m: int, chance: float) -> None:
    assert tie_break(n, m) == pytest.approx(chance, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 50), st.integers(1, 50))
def test_beta_predictive_closed_form(n: int, m: int) -> None:
    assert tie_break(n, m) == pytest.approx(m / (n + m + 1))


def test_untrained_learned_form_is_the_closed_form_and_then_learns() -> None:
    weights, features = np.zeros(6), np.array([1, 0.5, 0.2, 0.3, 0, 0.5])
    for n in (0, 3, 20):
        assert learned_tie_break(weights, features, tie_break(n, 2)) == pytest.approx(tie_break(n, 2))
    for _ in range(200):
        weights = learn(weights, features, 0.1, True, 0.3)
    assert learned_tie_break(weights, features, 0.1) > 0.9


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6))
def test_the_proxy_is_monotone_and_submodular(seed: int) -> None:
    rng = np.random.default_rng(seed)
    v, w, a = rng.integers(1, 5), rng.integers(1, 4), rng.integers(2, 5)
    flips, weights, policy = rng.random((v, w)), rng.random(w), rng.dirichlet(np.ones(a), v)
    rule = UUCB(alpha=float(rng.random()), c=float(rng.random()), lam=float(rng.random()))
    small = rng.integers(0, 3, v).astype(float)
    large = small + rng.integers(0, 3, v)
    one_more = np.eye(v)[rng.integers(v)]

    def gain(counts: np.ndarray) -> float:
        return sum(proxy(counts + one_more, flips, weights, policy, 7, rule)) - sum(
            proxy(counts, flips, weights, policy, 7, rule)
        )

    assert gain(small) >= gain(large) - 1e-12
    assert gain(large) >= -1e-12


def test_marginal_gains_are_the_score_terms() -> None:
    # value at counts 0 is alpha Q; diversity at count 1 is lambda times the Gini impurity, the first-order part of the entropy
    pi = np.array([[0.7, 0.2, 0.1]])
    none, one, two = (proxy(np.array([float(n)]), np.array([[0.3]]), np.ones(1), pi, 5, UUCB(alpha=2, lam=3)) for n in (0, 1, 2))
    assert one[0] - none[0] == pytest.approx(2 * 0.3)
    assert two[2] - one[2] == pytest.approx(3 * 0.46)
    entropy = -float((pi * np.log(pi)).sum())
    assert entropy == pytest.approx(0.801819, abs=5e-7)
    assert entropy >= 1 - float((pi**2).sum())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10_000), st.integers(1, 1000))
def test_exploration_gain_lies_within_its_bounds(n: int, total: int) -> None:
    scale = math.sqrt(math.log1p(total))
    gain = 2 * 0.1 * scale * (math.sqrt(n + 1) - math.sqrt(n))
    assert 0.1 * scale / math.sqrt(n + 1) <= gain * (1 + 1e-9)
    assert gain <= 0.1 * scale / math.sqrt(n) * (1 + 1e-9)


def test_shrinkage() -> None:
    rule = UUCB()
    mu = shrunk([3, 2, 1], [1, 0, 1], [-1, 0, 1], rule)
    root = (0.5 + 1) / 4
    middle = (2 * root + 0) / 4
    assert mu == pytest.approx([root, middle, (2 * middle + 1) / 3])
    assert shrunk([0, 0], [0, 0], [-1, 0], UUCB(k0=0, kappa=0)) == [0.5, 0.5]


def test_without_shrinkage_one_lucky_leaf_is_certainty() -> None:
    # trap T1
    assert shrunk([10, 1], [0, 1], [-1, 0], UUCB(kappa=1e-9))[1] == pytest.approx(1)
    assert shrunk([10, 1], [0, 1], [-1, 0], UUCB())[1] < 0.4


def test_infinite_shrinkage_gives_every_node_the_root_rate() -> None:
    mu = shrunk([4, 2, 1, 2], [1, 1, 0, 0], [-1, 0, 1, 0], UUCB(kappa=1e15))
    assert mu == pytest.approx([mu[0]] * 4)


def test_score_terms_are_clipped_then_weighted_and_follow_the_minority() -> None:
    rule = UUCB(alpha=2, c=0.5, lam=3, actions=4)
    mu, n, entropy = np.array([0.2, 0.9]), np.array([1.0, 100.0]), np.array([9.0, math.log(2)])
    few = uucb(mu, n, entropy, 1, 10, rule)
    assert few[0].tolist() == pytest.approx([0.4, 0.5, 3.0])  # the bonus and the entropy reach their ceiling of 1
    assert few[1].tolist() == pytest.approx([1.8, 0.5 * math.sqrt(math.log(11) / 100), 1.5])
    many = uucb(mu, n, entropy, 9, 10, rule)
    assert many[:, 0].tolist() == pytest.approx([1.6, 0.2])
