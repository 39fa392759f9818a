"""The exact process: the closed forms of section 8, Proposition 1, the luck identity, and what holds of every optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.seeds import generator
from ramify_experiments.implicit_advantage.mdp import Layered, ascend, evaluate, luck, optimum, walk


def bandit(reward: tuple[float, ...] = (1.0, 0.0, 0.0)) -> Layered:
    """One state, three actions, reference (.5, .3, .2)."""
    reached = np.zeros((1, 1, 3, 1), np.int64)
    return Layered(reached, np.ones((1, 1, 3, 1)), np.array([[reward]]), np.zeros(1), np.array([[[0.5, 0.3, 0.2]]]))


def two_step() -> Layered:
    """Section 8: s0 -L-> s1 or s2, s0 -R-> s3; rewards of s1 (1, 0), s2 (0, 0), s3 (.4, .4); uniform references."""
    reached = np.zeros((2, 3, 2, 2), np.int64)
    reached[0, 0] = [[0, 1], [2, 2]]
    reward = np.zeros((2, 3, 2))
    reward[1] = [[1.0, 0.0], [0.0, 0.0], [0.4, 0.4]]
    return Layered(reached, np.full((2, 3, 2, 2), 0.5), reward, np.zeros(3), np.full((2, 3, 2), 0.5))


def test_the_bandit() -> None:
    s = optimum(bandit(), 0.5)
    assert s.value[0, 0] == pytest.approx(0.716890, abs=1e-6)
    np.testing.assert_allclose(s.advantage[0, 0], [0.283110, -0.716890, -0.716890], atol=1e-6)
    np.testing.assert_allclose(s.policy[0, 0], [0.880797, 0.071522, 0.047681], atol=1e-6)
    own = float((s.policy * s.advantage).sum())
    assert own == pytest.approx(0.163907, abs=1e-6)
    assert own == pytest.approx(0.5 * float((s.policy * np.log(s.policy / bandit().reference)).sum()), abs=1e-12)


def test_the_two_step_stochastic_case() -> None:
    mdp = two_step()
    s = optimum(mdp, 1.0)
    np.testing.assert_allclose(s.value[1], [0.620115, 0.0, 0.4], atol=1e-6)
    np.testing.assert_allclose(s.q[0, 0], [0.310057, 0.4], atol=1e-6)
    assert s.value[0, 0] == pytest.approx(0.356039, abs=1e-6)
    np.testing.assert_allclose(s.advantage[0, 0], [-0.045982, 0.043961], atol=1e-6)
    np.testing.assert_allclose(s.advantage[1, 0], [0.379885, -0.620115], atol=1e-6)
    # the path L, s1, a: the action that reaches the only reward of 1 is graded below 0, and the sum is the return without luck
    total = s.advantage[0, 0, 0] + s.advantage[1, 0, 0]
    assert total == pytest.approx(0.333903, abs=1e-6)
    assert total == pytest.approx(1 - s.value[0, 0] - (s.value[1, 0] - s.q[0, 0, 0]), abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), beta=st.floats(0.05, 3.0))
def test_what_holds_of_every_optimum(seed: int, beta: float) -> None:
    mdp = Layered.sample(generator(seed, "property"), layers=3, states=5, actions=3)
    s = optimum(mdp, beta)
    # Proposition 1, and that this policy has the value it claims
    np.testing.assert_allclose(s.advantage, beta * np.log(s.policy / mdp.reference), atol=1e-10)
    np.testing.assert_allclose(evaluate(mdp, s.policy, beta)[0], s.value, atol=1e-10)
    # no policy does better: neither the reference nor any mixture with it
    for weight in (0.1, 0.5, 1.0):
        other = weight * mdp.reference + (1 - weight) * s.policy
        assert (evaluate(mdp, other, beta)[0] <= s.value + 1e-10).all()
    np.testing.assert_allclose((mdp.reference * np.exp(s.advantage / beta)).sum(axis=2), 1.0, atol=1e-10)
    assert ((mdp.reference * s.advantage).sum(axis=2) <= 1e-12).all()
    gain = (s.policy * s.advantage).sum(axis=2)
    np.testing.assert_allclose(gain, beta * (s.policy * np.log(s.policy / mdp.reference)).sum(axis=2), atol=1e-10)
    assert (gain >= -1e-12).all()


def test_rewards_shared_by_a_states_actions_and_scale() -> None:
    mdp = Layered.sample(generator(3, "scale"), layers=3, states=5, actions=3)
    s = optimum(mdp, 0.3)
    shared = mdp.reward.copy()
    shared[1, 2] += 0.7
    moved = optimum(Layered(mdp.successors, mdp.chances, shared, mdp.final, mdp.reference), 0.3)
    np.testing.assert_allclose(moved.advantage[1, 2], s.advantage[1, 2], atol=1e-12)
    assert np.abs(moved.advantage[0] - s.advantage[0]).max() > 1e-3  # earlier states see it
    scaled = optimum(Layered(mdp.successors, mdp.chances, 4 * mdp.reward, 4 * mdp.final, mdp.reference), 1.2)
    np.testing.assert_allclose(scaled.advantage, 4 * s.advantage, atol=1e-12)
    np.testing.assert_allclose(scaled.policy, s.policy, atol=1e-12)


def test_the_luck_identity_and_that_luck_is_fair() -> None:
    mdp = Layered.sample(generator(5, "luck"), layers=4, states=8)
    s = optimum(mdp, 0.2)
    start = generator(5, "starts").integers(0, 8, 4000)
    w = walk(mdp, s.policy, start, generator(5, "walks"))
    chance = luck(mdp, s.value, w)
    np.testing.assert_allclose(w.along(s.advantage).sum(axis=1), w.final - s.value[0, start] - chance.sum(axis=1), atol=1e-10)
    assert abs(chance.mean()) < 4 * chance.std() / np.sqrt(chance.size)


def test_walks_follow_the_policy_and_the_transitions() -> None:
    mdp = Layered.sample(generator(9, "walk"), layers=2, states=3, actions=2)
    w = walk(mdp, mdp.reference, np.zeros(20_000, np.int64), generator(9, "walks"))
    share = np.bincount(w.action[:, 0], minlength=2) / 20_000
    np.testing.assert_allclose(share, mdp.reference[0, 0], atol=0.02)
    value, _ = evaluate(mdp, mdp.reference)
    assert w.final.mean() == pytest.approx(value[0, 0], abs=0.02)
    own = np.broadcast_to(mdp.reference, (20_000, 2, 3, 2))
    again = walk(mdp, own, np.zeros(20_000, np.int64), generator(9, "walks"))
    np.testing.assert_array_equal(again.state, w.state)


def test_rounds_with_kl_reach_the_optimum_and_without_leave_it() -> None:
    mdp = Layered.sample(generator(11, "rounds"), layers=3, states=6)
    ratio = np.log(optimum(mdp, 0.15).policy / mdp.reference)
    path = ascend(mdp, 120, 0.15)
    assert not path[0].any()
    np.testing.assert_allclose(path[-1], ratio, atol=1e-6)
    away = ascend(mdp, 120, 0.0)
    assert np.abs(away[-1] - ratio).max() > 5
    for policy in (path[-1], away[-1]):
        np.testing.assert_allclose((mdp.reference * np.exp(policy)).sum(axis=2), 1.0, atol=1e-9)
