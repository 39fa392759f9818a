"""Closed forms and golden cases of the early-decision method: variances, segments, cuts, panels, defences."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.early_decision.algorithm import (
    Cut,
    EqualityCounts,
    LockCounts,
    Transition,
    chunk_spans,
    continuation_point,
    continuation_variance,
    defence,
    detectable,
    judge_cuts,
    oscillation_summary,
    panel_agreement,
    segments,
    settle,
    settling,
    thinking_effect,
    transitions,
    unbiased_variance,
)
from ramify.stats.evidence import benjamini_hochberg, holm
from ramify.stats.tests import fisher


def test_variance_of_eight_samples() -> None:
    k = np.arange(9)
    np.testing.assert_allclose(continuation_variance(k, np.full(9, 8))[:5], [0, 0.4375, 0.75, 0.9375, 1.0])


@pytest.mark.parametrize(("n", "mean"), [(8, 0.875), (32, 0.96875)])
def test_expected_variance_of_fair_coins(n: int, mean: float) -> None:
    chance = stats.binom.pmf(np.arange(n + 1), n, 0.5)
    size = np.full(n + 1, n)
    assert chance @ continuation_variance(np.arange(n + 1), size) == pytest.approx(mean)
    assert chance @ unbiased_variance(np.arange(n + 1), size) == pytest.approx(1.0)
    assert unbiased_variance(np.array([0, n]), np.array([n, n])).tolist() == [0, 0]
    assert unbiased_variance(np.array([n / 2]), np.array([n]))[0] > 1
    assert np.isnan(unbiased_variance(np.array([1]), np.array([1]))).all()


@settings(max_examples=25, deadline=None)
@given(st.floats(0.001, 0.999), st.integers(2, 20))
def test_unbiased_whatever_the_number_of_samples(p: float, n: int) -> None:
    k = np.arange(n + 1)
    assert stats.binom.pmf(k, n, p) @ unbiased_variance(k, np.full(n + 1, n)) == pytest.approx(4 * p * (1 - p), abs=1e-9)


def test_a_point_of_a_curve() -> None:
    point = continuation_point(0.2, "closed", [8, 0, 4, 0], [8, 8, 8, 1], [True, True, False, True], ["a", "a", "b", "c"])
    assert (point.prefixes, point.samples) == (3, 24)
    assert point.variance == pytest.approx(1 / 3)
    assert point.unbiased == pytest.approx(8 / 7 / 3)
    assert point.flip_rate == pytest.approx((0 + 1 + 0.5) / 3)
    assert point.agreement == pytest.approx(2 / 3)  # four of eight is no majority
    assert point.yes == pytest.approx(0.5)
    assert point.unbiased_interval is not None
    with pytest.raises(UserError, match=r"no prefix at 0\.4 has two"):
        continuation_point(0.4, "open", [1], [1], [True], ["a"])


def test_what_settles_and_what_does_not() -> None:
    """Few prompts, and values so skewed that Student's interval leaves out 0 too often."""
    rng, found = generator(0, "settling"), 0
    for seed in range(150):
        prompts = []
        for chance in rng.uniform(0.1, 0.9, 5):
            ends, continued = rng.random(8) < chance, rng.binomial(8, chance, 4).tolist()
            prompts.append(((int(ends.sum()), 8), [(bool(ends[i]), k, 8) for i, k in enumerate(continued)]))
        found += settling(prompts, seed, 199).p <= 0.05
    assert found <= 15
    settled = [((4, 8), [(bool(i % 2), 8 * (i % 2), 8) for i in range(4)]) for _ in range(3)]
    result = settling(settled)
    assert result.p == 0.001
    assert result.value == pytest.approx(8 / 7)  # three or four of seven others were yes, and all or none behind each
    assert settling(settled[:1]).interval is None


def test_thinking_against_none() -> None:
    found = thinking_effect([32, 0, 20, 5], [32, 32, 32, 0], [0, 0, 18, 5], [32, 32, 32, 32])
    assert found.prompts == 3
    assert found.unchanged is not None
    assert found.unchanged.value == pytest.approx(2 / 3)
    assert found.to_yes == pytest.approx(1 / 3)
    assert found.to_no == 0
    assert found.change == pytest.approx((1 + 0 + 2 / 32) / 3)
    assert thinking_effect([], [], [], []).change is None


def test_segments_and_transitions() -> None:
    stances = [0, 1, 0, -1, -1, 0, 1]
    assert segments(stances) == [(0, 1), (1, 2), (-1, 3), (1, 1)]
    assert transitions(stances) == [Transition(3, 6, -1), Transition(6, 7, 1)]
    assert transitions([0, 0, 0]) == []
    assert segments([1, 0, 0, -1]) == [(1, 3), (-1, 1)]
    assert transitions([1, 0, 0, -1]) == [Transition(3, 4, -1)]
    assert transitions([1, 0, 0, -1], after=2) == []
    assert transitions([1, None, -1, -1], before=3) == []
    assert segments([]) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-1, 0, 1, None]), max_size=30))
def test_segments_cover_the_trace_and_alternate(stances: list[int | None]) -> None:
    parts = segments(stances)
    assert sum(length for _, length in parts) == len(stances)
    assert all(a != b for (a, _), (b, _) in pairwise(parts))
    assert all(0 < t.pre < t.post <= len(stances) for t in transitions(stances))


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab .!?\n", max_size=300), st.integers(5, 60))
def test_chunks_are_the_text_up_to_space_and_short_ones(text: str, limit: int) -> None:
    spans = chunk_spans(text, limit, least=0)
    assert all(a < b for a, b in spans)
    assert all(spans[i][1] <= spans[i + 1][0] for i in range(len(spans) - 1))
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())


def test_chunks_by_hand() -> None:
    text = "First a sentence of some length. Another one! " + "x" * 250 + ". Short one. Yes."
    chunks = [text[a:b] for a, b in chunk_spans(text)]
    assert chunks[0] == "First a sentence of some length. Another one!"
    assert chunks[1].startswith("xxx")
    assert len(chunks[1]) == 251
    assert len(chunks) == 2  # what is left is too short


def test_panel_settles_by_majority_and_drops_judges_of_another_length() -> None:
    assert settle([[1, 0, -1], [1, -1, 0], [0, -1, 1]], 3, tie=2) == [1, -1, 1]
    assert settle([[1, 0], [1, -1, 0], None], 3) == [1, -1, 0]  # only judge 1 is left
    assert settle([[1], [-1], None], 1, tie=2) == [None]  # a tie, and the judge that decides ties said nothing
    assert settle([[1, 0, 0], [1, 1, 0], [9, 9]], 3, tie=1) == [1, 1, 0]
    assert settle([None, None], 2) == [None, None]


def test_agreement_of_the_panel() -> None:
    lists = [("a", [[1, 0], [1, 0], [1, 0]]), ("b", [[-1, 0], [-1, 0], [-1, 0]]), ("c", [[1], None, [1]])]
    found = panel_agreement(lists)
    assert (found.chunks, found.traces, found.kappa) == (4, 2, 1.0)
    assert panel_agreement([("a", [[1], None])]).kappa is None


def test_fisher_at_a_hundred() -> None:
    for base, other, p in [(0, 5, 0.059), (0, 6, 0.029), (50, 70, 0.0059), (0, 100, 2.2e-59)]:
        assert fisher(base, 100, other, 100) == pytest.approx(p, rel=0.02)


def test_what_a_family_of_cuts_can_see() -> None:
    assert [detectable(base, 100, 1000) for base in (0, 50, 5)] == [15, 79, 27]
    assert [detectable(base, 100, 100) for base in (0, 50, 5)] == [12, 75, 23]
    assert detectable(99, 100, 1000) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12))
def test_holm_lies_between_bonferroni_and_none(p: list[float]) -> None:
    corrected = holm(p)
    assert all(a <= b + 1e-12 <= min(1, len(p) * a) + 1e-9 for a, b in zip(p, corrected, strict=True))
    assert all(b <= h + 1e-12 for b, h in zip(benjamini_hochberg(p), corrected, strict=True))


def cut(pre: int, post: int, trace: str = "t", pool: str = "", stance: int = 1, n: int = 100) -> Cut:
    return Cut(trace, pool, stance, pre, n, post, n)


def test_cuts_are_tested_locked_and_compared_for_equality() -> None:
    same, small, large, unsure = judge_cuts([cut(0, 0), cut(0, 6, "u"), cut(2, 90), cut(50, 55)])
    assert same.locked
    assert same.performative
    assert same.equality == "equivalent"
    assert small.performative  # p = .029, corrected .087
    assert small.p_corrected == pytest.approx(3 * small.p)
    assert large.significant
    assert large.with_stance
    assert large.equality == "different"
    assert not unsure.locked
    assert unsure.performative
    assert unsure.equality == "undecided"  # the paper's word would be performative
    assert not judge_cuts([cut(2, 90)], locked="both")[0].locked
    assert judge_cuts([cut(2, 90, stance=-1)])[0].with_stance is False
    assert judge_cuts([cut(0, 0, n=0)]) == []


def test_the_family_decides_what_is_corrected_with_what() -> None:
    cuts = [cut(0, 6, "a", "x"), cut(0, 0, "a", "x"), cut(0, 0, "b", "y")]
    p = [judge_cuts(cuts, family=family)[0].p_corrected for family in ("model", "pool", "trace")]  # type: ignore[arg-type]
    raw = fisher(0, 100, 6, 100)
    assert p == pytest.approx([3 * raw, 2 * raw, 2 * raw])


def test_summary_of_cuts() -> None:
    judged = judge_cuts([cut(0, 0, "a"), cut(0, 100, "a"), cut(50, 50, "b")])
    found = oscillation_summary(judged, {name: name for name in "abcd"}, loops=1)
    assert found.with_any is not None
    assert found.performative is not None
    assert found.locked is not None
    assert found.with_stance is not None
    assert (found.with_any.value, found.with_stance.value) == (0.5, 1)
    assert found.per_trace == 0.75
    assert found.performative.value == pytest.approx(2 / 3)
    assert found.locked.value == pytest.approx(2 / 3)
    assert found.table == LockCounts(1, 1, 0, 1)
    assert found.equality == EqualityCounts(1, 1, 1)
    nothing = oscillation_summary([], {name: name for name in "abc"})
    assert nothing.performative is None
    assert nothing.with_any is not None
    assert nothing.with_any.k == 0


def of_each(hit: int, n: int, alarm: int, m: int, k: int = 1) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Counts by prompt, ``k`` equal traces of each."""
    return [(k * (i < hit), k) for i in range(n)], [(k * (i < alarm), k) for i in range(m)]


def test_a_moved_threshold_is_no_better_discrimination() -> None:
    base, star = of_each(131, 1000, 60, 1000), of_each(590, 1000, 455, 1000)  # Qwen3-8B, base and STAR-1, as if of 1,000 each
    slides = defence(base, star)
    assert slides.verdict == "slides"
    assert abs(slides.moved_c) > abs(slides.moved_d)
    better = defence(of_each(600, 1000, 300, 1000), of_each(800, 1000, 100, 1000))
    assert better.verdict == "improves"
    assert better.moved_d > 1
    assert defence(of_each(800, 1000, 100, 1000), of_each(600, 1000, 300, 1000)).verdict == "worsens"
    one, eight = (defence(of_each(25, 50, 25, 50, k), of_each(27, 50, 23, 50, k)) for k in (1, 8))
    assert one.both_fall == eight.both_fall < 0.95  # more traces of a prompt are no more prompts
    with pytest.raises(UserError, match="no prompt of a pool"):
        defence(([(0, 0)], [(1, 1)]), ([(1, 1)], [(1, 1)]))
