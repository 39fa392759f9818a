from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ramify.base.seeds import generator
from ramify.stats.intervals import (
    Proportion,
    bootstrap,
    clopper_pearson,
    clustered_mean,
    clustered_share,
    difference_of_proportions,
    mean_t,
    paired_proportions,
    paired_t,
    wilson,
)

COUNTS = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("k", "n", "score", "exact"),
    [  # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, methods 3 and 5
        (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
        (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
        (0, 20, (0.0000, 0.1611), (0.0000, 0.1684)),
        (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
    ],
)
def test_proportions_match_the_printed_table(k: int, n: int, score: tuple, exact: tuple) -> None:
    assert wilson(k, n) == pytest.approx(score, abs=5e-5)
    assert clopper_pearson(k, n) == pytest.approx(exact, abs=5e-5)


@pytest.mark.parametrize(
    ("counts", "interval"),
    [  # Newcombe 1998, "Interval estimation for the difference between independent proportions", table II, method 10
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((10, 10, 0, 10), (0.6075, 1.0000)),
        ((0, 10, 0, 10), (-0.2775, 0.2775)),
    ],
)
def test_differences_match_the_printed_table(counts: tuple, interval: tuple) -> None:
    assert difference_of_proportions(*counts) == pytest.approx(interval, abs=5e-5)


@given(COUNTS, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_proportion_intervals_hold_the_estimate_and_mirror(count: tuple[int, int], level: float) -> None:
    k, n = count
    for interval in (wilson, clopper_pearson):
        low, high = interval(k, n, level)
        assert 0 <= low <= k / n <= high <= 1
        assert interval(n - k, n, level) == pytest.approx((1 - high, 1 - low), abs=1e-9)


@given(st.integers(1, 40), st.floats(0.001, 0.999))
@settings(max_examples=40, deadline=None)
def test_clopper_pearson_covers_at_least_its_level(n: int, p: float) -> None:
    weights = stats.binom.pmf(np.arange(n + 1), n, p)
    covers = [low <= p <= high for low, high in (clopper_pearson(k, n) for k in range(n + 1))]
    assert weights[covers].sum() >= 0.95 - 1e-9


@pytest.mark.parametrize("n", [10, 40, 100])
def test_wilson_covers_its_level_on_average(n: int) -> None:
    grid = np.linspace(0.005, 0.995, 199)
    bounds = np.array([wilson(k, n) for k in range(n + 1)])
    inside = (bounds[:, :1] <= grid) & (grid <= bounds[:, 1:])
    coverage = (stats.binom.pmf(np.arange(n + 1)[:, None], n, grid) * inside).sum(axis=0)
    assert 0.945 < coverage.mean() < 0.965


@given(COUNTS, COUNTS)
@settings(max_examples=60, deadline=None)
def test_difference_is_antisymmetric(first: tuple[int, int], second: tuple[int, int]) -> None:
    low, high = difference_of_proportions(*first, *second)
    assert -1 - 1e-12 <= low <= first[0] / first[1] - second[0] / second[1] <= high <= 1 + 1e-12
    assert difference_of_proportions(*second, *first) == pytest.approx((-high, -low), abs=1e-12)


def test_student_interval_by_hand() -> None:
    # mean 3, s = sqrt(2.5), t(4, .975) = 2.776445
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert mean_t([1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), abs=1e-5)
    assert paired_t([2, 4, 6, 8, 10], [1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), abs=1e-5)
    assert mean_t([0.1, 0.2], 0.9) == pytest.approx(stats.t.interval(0.9, 1, 0.15, 0.05), abs=1e-9)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_paired_proportions_stay_in_range_and_mirror(pairs: list[tuple[bool, bool]]) -> None:
    a, b = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    low, high = paired_proportions(a, b)
    assert -1 <= low <= np.mean(a) - np.mean(b) <= high <= 1
    assert low < high
    assert paired_proportions(b, a) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("n", "p", "moved"), [(4, 0.5, 0.2), (12, 0.1, 0.3), (40, 0.2, 0.1)])
def test_paired_proportions_cover(n: int, p: float, moved: float) -> None:
    """``moved`` of the failures become successes: the truth lies in the interval about as often as it says."""
    rng = generator(0, "paired proportions", n)
    covered = 0
    for _ in range(400):
        before = rng.random(n) < p
        after = before | (rng.random(n) < moved)
        low, high = paired_proportions(after, before)
        covered += low <= (1 - p) * moved <= high
    assert covered >= 0.92 * 400


def test_bootstrap_is_seeded_and_near_the_normal_answer() -> None:
    values = np.random.default_rng(0).normal(size=400)
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3) != bootstrap(values, seed=4)
    assert bootstrap(values) == pytest.approx(mean_t(values), abs=0.02)
    assert bootstrap([7.0]) == (7.0, 7.0)
    assert bootstrap(values, statistic=lambda x: np.median(x, axis=1))[0] < np.median(values)


def test_no_observation_excludes_nothing_and_bad_counts_are_refused() -> None:
    assert wilson(0, 0) == clopper_pearson(0, 0) == (0.0, 1.0)
    assert difference_of_proportions(0, 0, 1, 2) == (-1.0, 1.0)
    for bad in (lambda: wilson(3, 2), lambda: clopper_pearson(-1, 2), lambda: mean_t([1.0]), lambda: bootstrap([]),
                lambda: paired_t([1, 2], [1]), lambda: wilson(1, 2, 1.5)):  # fmt: skip
        with pytest.raises(ValueError, match=r"not|needs"):
            bad()


def test_a_proportion_as_a_record() -> None:
    assert Proportion.of(0, 0) is None
    assert Proportion.of(81, 263) == Proportion(81 / 263, wilson(81, 263), 81, 263)


@pytest.mark.parametrize("clusters", [5, 10, 30, 60])
def test_a_clustered_mean_covers_as_often_as_it_says(clusters: int) -> None:
    rng = np.random.default_rng(clusters)
    covered, tries = 0, 400
    for _ in range(tries):
        sizes = rng.integers(4, 13, clusters)
        codes = np.repeat(np.arange(clusters), sizes)
        values = rng.normal(size=clusters)[codes] + rng.normal(size=len(codes))
        low, high = clustered_mean(values, codes, samples=400)[1] or (1.0, 0.0)
        covered += low <= 0 <= high
    assert 0.92 < covered / tries < 0.98  # three standard errors below; percentiles alone: .84 at 5, .90 at 10


def test_a_clustered_mean_has_the_uncertainty_of_its_clusters() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=40)
    values, clusters = np.repeat(means, 25), [f"p{i}" for i in range(40) for _ in range(25)]
    mean, interval = clustered_mean(values, clusters)
    assert mean == pytest.approx(means.mean())
    assert interval is not None
    half = 2.0227 * means.std(ddof=1) / math.sqrt(40)  # Student's with 39 degrees of freedom
    assert interval == pytest.approx((mean - half, mean + half), abs=1e-4)
    assert clustered_mean([1.0, 3.0], ["a", "a"]) == (2.0, None)
    uneven, _ = clustered_mean([0.0, 0.0, 0.0, 1.0], ["a", "a", "a", "b"])
    assert uneven == 0.25
    with pytest.raises(ValueError, match="as many clusters"):
        clustered_mean([1.0], [])


def test_a_share_over_clusters_covers_where_trials_of_a_cluster_are_alike():
    """And is about Wilson's where each trial is a cluster; trials taken as independent cover .7 and less of what follows."""
    alone = clustered_share([True] * 30 + [False] * 70, range(100))
    assert alone.interval == pytest.approx(wilson(30, 100), abs=0.003)
    assert clustered_share([False] * 40, [n % 10 for n in range(40)]).interval == wilson(0, 10)
    assert clustered_share([True, False], ["a", "a"]).interval is None
    assert clustered_share([], []) is None
    with pytest.raises(ValueError, match="as many clusters as hits"):
        clustered_share([True], [1, 2])
    for clusters in (5, 10, 30):
        covered = naive = 0
        for at in range(400):
            rng = generator(at, "clusters", clusters)
            k = rng.binomial(8, rng.beta(0.5, 0.5, clusters))
            hits = np.arange(8) < k[:, None]
            low, high = clustered_share(hits.ravel(), np.repeat(np.arange(clusters), 8)).interval
            covered += low <= 0.5 <= high
            low, high = wilson(int(k.sum()), 8 * clusters)
            naive += low <= 0.5 <= high
        assert naive < 0.75 * 400
        assert covered > 0.92 * 400
