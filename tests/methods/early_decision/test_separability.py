"""Distances of two classes: closed forms, invariances, and what they are when there is nothing to tell apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.early_decision.separability import fisher, floor, logit_measures, mahalanobis, valley
from ramify.stats.ranking import auroc


def classes(gap: float, n: int, width: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes of n, each with exactly the same spread in every dimension, means ``gap`` total deviations apart."""
    rng = generator(seed, "classes")
    x = rng.normal(size=(2, n, width))
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    x *= math.sqrt(1 - gap**2 / 4)  # so that the deviation of both together is 1
    x[0] += gap
    return x.reshape(2 * n, width), np.repeat([True, False], n)


def test_closed_form_of_j() -> None:
    x, y = classes(1.0, 60)
    assert fisher(x, y) == pytest.approx(2 / 3)
    x, y = classes(0.5, 40, width=7)
    assert fisher(x, y) == pytest.approx(7 * 0.25 / (2 * 7 * (1 - 0.0625)))


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 100), st.floats(-50, 50), st.integers(0, 5))
def test_j_ignores_scale_and_origin_of_each_dimension(scale: float, shift: float, seed: int) -> None:
    rng = generator(seed, "affine")
    x, y = rng.normal(size=(30, 3, 4)), rng.random(30) < 0.5
    y[:2] = True, False
    np.testing.assert_allclose(fisher(x * [1, scale, 1, 1 / scale] + [0, shift, 1, 2], y), fisher(x, y), rtol=1e-6)


def test_without_a_signal_j_is_its_floor() -> None:
    assert floor(100, 100) == pytest.approx(0.01)
    rng = generator(1, "null")
    values = [float(fisher(rng.normal(size=(200, 20)), np.arange(200) < 100)) for _ in range(60)]
    assert np.mean(values) == pytest.approx(0.01, rel=0.1)


def test_equal_variance_logits() -> None:
    x, y = classes(0.8, 3000)
    z = x[:, 0] / x[y, 0].std()  # deviation 1 within each class
    z[y] += 1 - (z[y].mean() - z[~y].mean())
    found = logit_measures(z, y)
    assert found.fisher == pytest.approx(0.5, rel=1e-3)
    assert found.cohen_d == pytest.approx(1, rel=1e-3)
    assert found.bhattacharyya == pytest.approx(0.25, rel=1e-3)
    assert logit_measures(z, y, textbook=True).bhattacharyya == pytest.approx(0.125, rel=1e-3)
    assert auroc(z, y) == pytest.approx(0.760, abs=0.012)  # Phi(1 / sqrt(2))
    assert logit_measures(np.ones(4), np.array([1, 0, 1, 0])) == (0, 0, 0)


def test_mahalanobis_equals_the_direct_solution() -> None:
    rng = generator(2, "mahalanobis")
    x, y = rng.normal(size=(50, 6)) * [1, 2, 3, 1, 1, 1], np.arange(50) % 3 == 0
    x[y] += 1.0
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    d = z[y].mean(axis=0) - z[~y].mean(axis=0)
    centred = z - np.where(y[:, None], z[y].mean(axis=0), z[~y].mean(axis=0))
    direct = math.sqrt(d @ np.linalg.solve(centred.T @ centred / 50 + np.eye(6), d))
    assert mahalanobis(x, y) == pytest.approx(direct)


def test_a_valley_is_found_and_its_depth_is_that_of_the_signal() -> None:
    rng = generator(3, "valley")
    y = rng.random(400) < 0.5
    strength = np.array([1.0, 0.4, 0, 0, 0, 0, 0, 0, 0, 0.4, 1.0])
    x = rng.normal(size=(400, 11, 12)) + strength[:, None] * y[:, None, None]
    found = valley(x, y)
    np.testing.assert_allclose(found.j, fisher(x, y))
    np.testing.assert_allclose(found.floor, floor(int(y.sum()), int((~y).sum())), rtol=0.15)
    assert found.depth == pytest.approx(1.0, abs=0.1)
    assert found.depth_interval is not None
    assert found.depth_interval[0] < found.depth < found.depth_interval[1]
    assert found.low is not None
    assert found.high is not None
    for low, j, below, high in zip(found.low, found.j, found.floor, found.high, strict=True):
        assert low < j - below < high
    assert found.n == (int(y.sum()), int((~y).sum()))


def test_random_halves_hold_the_truth() -> None:
    """On a flat trace J is held 19 times in 20, and a valley is claimed at most once in 20: the lesser end errs towards none."""
    held = claimed = 0
    for seed in range(40):
        rng = generator(seed, "flat")
        y = rng.random(120) < 0.5
        found = valley(rng.normal(size=(120, 4, 8)) + 1.2 * y[:, None, None], y, seed=seed, samples=60)
        assert found.low is not None
        assert found.high is not None
        held += found.low[1] <= 1.2**2 / 2 <= found.high[1]
        claimed += found.depth_interval is not None and found.depth_interval[0] > 0
    assert held >= 35
    assert claimed <= 3


def test_states_of_a_prompt_are_no_valley() -> None:
    """Both ends carry the prompt, whose outcomes are sampled at random: J is far above the floor of as many prompts."""
    claimed, g = 0, np.repeat(np.arange(40), 8)
    for seed in range(8):
        rng = generator(seed, "prompts")
        y = (rng.random(40) < 0.5)[g] ^ (rng.random(320) < 0.1)
        x = rng.normal(size=(320, 6, 16))
        x[:, [0, -1]] += 2 * rng.normal(size=(40, 16))[g][:, None]
        found = valley(x, y, g, seed=seed, samples=40)
        assert found.floor[0] > 3 * found.floor[2]
        assert found.low is not None
        assert found.low[0] < 0
        claimed += found.depth_interval is not None and found.depth_interval[0] > 0
    assert claimed <= 1


def test_nothing_at_the_ends_gives_no_depth() -> None:
    x = generator(4, "none").normal(size=(60, 5, 4))
    y = np.arange(60) % 2 == 0
    x[:, 0] = 0.0
    found = valley(x, y, groups=np.arange(60) // 2)
    assert found.depth is None
    assert found.j[0] == 0


def test_one_class_is_refused() -> None:
    with pytest.raises(UserError, match="all outcomes are the same"):
        fisher(np.zeros((3, 2)), np.array([True] * 3))
    with pytest.raises(UserError, match="as many labels"):
        fisher(np.zeros((3, 2)), np.array([True, False]))
