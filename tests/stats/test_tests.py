from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.stats.evidence import benjamini_hochberg, evidence, holm
from ramify.stats.power import detectable_difference, power_of_difference, sample_size
from ramify.stats.tests import chi_square, fisher, fisher_stratified, paired_permutation, sign_test

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_paired_permutation_by_hand() -> None:
    # differences 1..5: only the all-plus and the all-minus pattern reach |15|, so p = 2/32
    assert paired_permutation([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]) == 2 / 32
    assert paired_permutation([1, 0], [0, 1]) == 1.0
    assert paired_permutation([0.1 + 0.2], [0.3]) == 1.0


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=7))
@settings(max_examples=30, deadline=None)
def test_paired_permutation_is_exact_for_few_pairs(differences: list[int]) -> None:
    d = np.array(differences)
    sums = [abs(int(np.dot(s, d))) for s in product((1, -1), repeat=len(d))]
    assert paired_permutation(d, np.zeros(len(d))) == sum(s >= abs(int(d.sum())) for s in sums) / len(sums)


def test_sampled_permutations_are_seeded_and_calibrated() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=40), rng.normal(size=40)
    assert paired_permutation(a, b, seed=1) == paired_permutation(a, b, seed=1) != paired_permutation(a, b, seed=2)
    assert paired_permutation(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=0.02)


def test_chi_square() -> None:
    # 16, 18, 16, 14, 12, 12 against a fair die: statistic 2.0, 5 degrees of freedom, p .8491450
    assert chi_square([16, 18, 16, 14, 12, 12], np.full(6, 1 / 6)) == pytest.approx((2.0, 0.8491450), abs=1e-6)
    assert chi_square([5, 1], [1.0, 0.0]) == (math.inf, 0.0)
    assert chi_square([2, 1], [0.5, 0.5]) == (0.0, 1.0)  # everything pooled: no evidence
    pooled = chi_square([50, 44, 3, 3], [0.47, 0.47, 0.03, 0.03])
    assert pooled[1] == pytest.approx(stats.chi2.sf(pooled[0], 2))  # 3 cells: the last two became one
    rare = chi_square([499, 1, 500], [0.4999, 0.0001, 0.5])
    assert rare == pytest.approx((0.0, 1.0), abs=1e-6)  # one of a rare cell is no evidence
    with pytest.raises(ValueError, match=r"sum to 0\.5"):
        chi_square([1, 1], [0.25, 0.25])
    with pytest.raises(ValueError, match="one shape"):
        chi_square([1, 1], [1.0])


def test_fisher_within_strata() -> None:
    assert fisher_stratified([(3, 4)], [(1, 4)]) == pytest.approx(fisher(3, 4, 1, 4))
    assert fisher_stratified([], []) == fisher_stratified([(0, 3), (2, 2)], [(0, 5), (4, 4)]) == 1.0
    # two strata, one success in each of 2 + 2: the sum of the first arm is 0, 1, 2 with chances 1/4, 1/2, 1/4
    assert fisher_stratified([(1, 2), (1, 2)], [(0, 2), (0, 2)]) == pytest.approx(0.5)
    # opposite rates in two tasks are no difference of arms, though arms of different sizes differ when pooled
    assert fisher_stratified([(9, 9), (0, 3)], [(3, 3), (0, 9)]) == 1.0
    assert fisher(9, 12, 3, 12) < 0.05


def test_fisher_tea() -> None:
    assert fisher(3, 4, 1, 4) == pytest.approx(0.4857142857)  # the lady tasting tea, 34/70


@given(P_VALUES)
@settings(max_examples=40, deadline=None)
def test_corrections(p: list[float]) -> None:
    assert benjamini_hochberg(p) == pytest.approx(list(stats.false_discovery_control(p)), abs=1e-12)
    for corrected in (holm(p), benjamini_hochberg(p)):
        assert all(1 >= c >= raw for c, raw in zip(corrected, p, strict=True))
    assert holm(p)[int(np.argmin(p))] == pytest.approx(min(1.0, min(p) * len(p)))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_power_and_its_inverse() -> None:
    assert sample_size(0.1, 0.2) == 199  # Fleiss, table without continuity correction
    assert power_of_difference(0.1, 0.2, 199, 199) == pytest.approx(0.8, abs=0.003)
    assert power_of_difference(0.3, 0.3, 100, 100) == pytest.approx(0.025, abs=1e-6)  # one tail of the two
    move = detectable_difference(0.1, 199, 199)
    assert move == pytest.approx(0.1, abs=0.001)
    assert power_of_difference(0.1 + move, 0.1, 199, 199) == pytest.approx(0.8, abs=1e-6)
    assert detectable_difference(0.5, 2, 2) == 1.0
    assert detectable_difference(0.9, 199, 199) == pytest.approx(move, abs=1e-6)
    with pytest.raises(ValueError, match="equal"):
        sample_size(0.2, 0.2)


def test_evidence_table() -> None:
    rows = evidence((12, 40), {"hint": (30, 40), "same": (13, 40), "none": (0, 0)})
    hint, same, none = rows
    assert (hint.share, hint.difference) == pytest.approx((0.75, 0.45))
    assert hint.difference_interval[0] > 0
    assert hint.p_corrected == pytest.approx(min(1.0, 3 * hint.p))
    assert hint.p_corrected < 0.01 < same.p
    assert (none.p, none.p_corrected, none.share_interval, none.detectable) == (1.0, 1.0, (0.0, 1.0), 1.0)
    assert codec.to_json(hint)["intervention"] == "hint"
    assert [row.p for row in rows] == [
        row.p_corrected for row in evidence((12, 40), {"hint": (30, 40), "same": (13, 40), "none": (0, 0)}, correction="none")
    ]
    with pytest.raises(UserError, match="did you mean 'holm'"):
        evidence((1, 2), {}, correction="hol")


def test_sign_test() -> None:
    assert sign_test(47, 47) == pytest.approx(2 * 0.5**47)
    assert sign_test(45, 47) == sign_test(2, 47) == pytest.approx(2 * (1 + 47 + 47 * 46 / 2) * 0.5**47)
    assert sign_test(0, 0) == sign_test(3, 6) == 1.0
