"""Grades in closed form, the scorer on real models, and what bad input says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.implicit_advantage import AdvantageConfig, AdvantageScorer, blame
from ramify.methods.implicit_advantage.algorithm import (
    STEP_AGGS,
    TOKEN_AGGS,
    attempt_score,
    best_of,
    by_step,
    chance_of_choice,
    noise_floor,
    step_columns,
)
from ramify.model.pair import Pair
from ramify.score.trajectories import Trajectory, trajectory

SHAPE = TinyConfig(vocab=50, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=48, context=128)


@pytest.fixture(scope="module")
def models() -> tuple[LocalModel, LocalModel]:
    return LocalModel(TinyLM(SHAPE, seed=1), name="policy"), LocalModel(TinyLM(SHAPE, seed=2), name="reference")


def attempt(seed: int = 0, name: str = "a", lengths: tuple[int, ...] = (6, 3, 4, 5, 2)) -> Trajectory:
    rng = np.random.default_rng(seed)
    return trajectory(name, "t", [(rng.integers(0, 50, n), i % 2 == 1) for i, n in enumerate(lengths)], reward=1.0)


# -- the numbers of section 8


def test_the_bandit_in_closed_form() -> None:
    ref, r, beta = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0, 0]), 0.5
    value = beta * np.log((ref * np.exp(r / beta)).sum())
    advantage = r - value
    policy = ref * np.exp(advantage / beta)
    assert value == pytest.approx(0.716890, abs=1e-6)
    assert advantage == pytest.approx([0.283110, -0.716890, -0.716890], abs=1e-6)
    assert policy == pytest.approx([0.880797, 0.071522, 0.047681], abs=1e-6)
    found = step_columns(np.log(policy), np.log(ref), np.arange(3), 3, AdvantageConfig(beta=beta))
    assert found["A_sum"] == pytest.approx(advantage, abs=1e-12)
    assert (ref * np.exp(advantage / beta)).sum() == pytest.approx(1)
    assert (policy * advantage).sum() == pytest.approx(0.163907, abs=1e-6)  # beta KL, not 0
    assert (ref * advantage).sum() <= 0


# -- aggregators


def test_each_aggregator_and_an_empty_step() -> None:
    values, step = np.array([9.0, 1, -3, 2, 9, 4]), np.array([-1, 0, 0, 0, -1, 2])
    wanted = {"sum": [0, 0, 4], "mean": [0, 0, 4], "last": [2, 0, 4], "min": [-3, 0, 4], "max": [2, 0, 4]}
    for kind in TOKEN_AGGS:
        assert by_step(values, step, 3, kind) == pytest.approx(wanted[kind]), kind
    grades = np.array([3.0, -1.0, 2.0])
    wanted_scores = {"mean": 4 / 3, "sum": 4.0, "last": 2.0, "min": -1.0, "max": 3.0, "bottom10": -1.0}
    assert {kind: attempt_score(grades, kind) for kind in STEP_AGGS} == pytest.approx(wanted_scores)
    assert attempt_score(np.arange(11.0), "bottom10") == 0.5  # ceil(1.1) = 2 lowest
    assert attempt_score(np.zeros(0)) is None


def test_aggregating_before_subtracting_matters_for_extremes_only() -> None:
    policy, reference, step = np.array([-1.0, -5.0]), np.array([-4.0, -2.0]), np.zeros(2, int)
    ratio = step_columns(policy, reference, step, 1)
    code = step_columns(policy, reference, step, 1, AdvantageConfig(order="aggregate"))
    for kind in ("sum", "mean", "last"):
        assert ratio[f"A_{kind}"] == pytest.approx(code[f"A_{kind}"])
    assert (ratio["A_max"][0], code["A_max"][0]) == (3.0, 1.0)
    assert (ratio["A_min"][0], code["A_min"][0]) == (-3.0, -1.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.integers(-1, 3)), min_size=1, max_size=20), st.floats(0.01, 5))
def test_swapping_negates_and_beta_keeps_every_ranking(rows: list[tuple[float, float, int]], beta: float) -> None:
    p, r, step = (np.array(column) for column in zip(*rows, strict=True))
    one, other = step_columns(p, r, step, 4), step_columns(r, p, step, 4)
    scaled = step_columns(p, r, step, 4, AdvantageConfig(beta=beta))
    for kind in ("sum", "mean", "last"):
        assert one[f"A_{kind}"] == pytest.approx(-other[f"A_{kind}"], abs=1e-12)
        assert scaled[f"A_{kind}"] == pytest.approx(beta * one[f"A_{kind}"], abs=1e-12)
    assert one["A_min"] == pytest.approx(-other["A_max"], abs=1e-12)
    assert (step_columns(p, p, step, 4)["A_sum"] == 0).all()
    assert one["A_sum"] == pytest.approx(one["logp_theta"] - one["logp_ref"], abs=1e-9)


# -- blame


@pytest.mark.parametrize(
    ("grades", "wanted"),
    [
        ([1.0, -3.0, 2.5, -1.0], {"min-cumulative": 1, "sharpest-drop": 1, "sharpest-change": 1}),
        ([-1.0, -1.0, 3.0, -2.0], {"min-cumulative": 1, "sharpest-drop": 3, "sharpest-change": 3}),
        ([2.0, 1.0, 4.0], {"min-cumulative": 0, "sharpest-drop": 0, "sharpest-change": 1}),
        ([1.0, 2.0, 3.0], {"min-cumulative": 0, "sharpest-drop": 0, "sharpest-change": 0}),
        ([-1.0], {"min-cumulative": 0, "sharpest-drop": 0, "sharpest-change": 0}),
        ([-1.0, 1.0, -1.0], {"min-cumulative": 0, "sharpest-drop": 0, "sharpest-change": 2}),
    ],
)
def test_the_three_rules(grades: list[float], wanted: dict[str, int]) -> None:
    for rule, step in wanted.items():
        assert blame(np.array(grades), rule)[0] == step, rule  # type: ignore[arg-type]


def test_blame_ranks_and_has_nobody_to_blame_in_nothing() -> None:
    assert blame(np.array([0.5, -2.0, -1.0]), "sharpest-drop", 2) == [1, 2]
    assert blame(np.zeros(0)) == []


def test_the_best_of_a_group_is_its_highest_and_ties_share_it() -> None:
    scores, groups = np.array([1.0, 5, 5, np.nan, 2, np.nan, np.nan]), np.array([0, 0, 0, 1, 1, 2, 2])
    assert best_of(scores, groups).tolist() == [0, 0.5, 0.5, 0, 1, 0.5, 0.5]


def test_a_choice_by_chance_is_hypergeometric() -> None:
    one_of = np.ones(3, int)
    # one of two, three times, always right: 1/8, twice for both sides
    assert chance_of_choice(np.ones(3), one_of, one_of, 2 * one_of) == pytest.approx(0.25)
    # all tie: nothing was chosen
    assert chance_of_choice(np.full(3, 0.5), 2 * one_of, one_of, 2 * one_of) == 1
    # two of four tie and both won: 1/6 of the pairs, beside a task where one of two was right: 1/12
    won, chosen, successes, attempts = np.ones(2), np.array([2, 1]), np.array([2, 1]), np.array([4, 2])
    assert chance_of_choice(won, chosen, successes, attempts) == pytest.approx(2 / 12)


def test_choosing_by_what_tells_nothing_apart_is_told_at_most_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(400):
        wins = rng.random((12, 4)) < rng.random((12, 1))
        scores = rng.integers(0, 2, (12, 4))  # many ties
        top = scores == scores.max(axis=1, keepdims=True)
        won = (top * wins).sum(axis=1) / top.sum(axis=1)
        told += chance_of_choice(won, top.sum(axis=1), wins.sum(axis=1), np.full(12, 4)) <= 0.05
    assert told <= 0.05 * 400 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_noise_grows_with_the_root_of_the_tokens() -> None:
    assert noise_floor(np.array([1, 4]), 0.01) == pytest.approx([0.03, 0.06])


# -- the scorer on real models


def test_the_score_is_the_log_ratio_of_whole_actions(models: tuple[LocalModel, LocalModel]) -> None:
    import torch

    a = attempt()
    found = AdvantageScorer(Pair(*models)).score(a)
    by_hand = []
    for model in models:
        with torch.no_grad():
            logits = model.module(torch.from_numpy(a.tokens.astype(np.int64))[None])[0]
        lp = torch.log_softmax(logits.double(), -1).numpy()
        tokens = lp[np.arange(len(a.tokens) - 1), a.tokens[1:]]  # token t from position t - 1
        by_hand.append([tokens[np.flatnonzero(a.step == j) - 1].sum() for j in range(a.n)])
    assert found.columns["A_sum"] == pytest.approx(np.subtract(*by_hand), abs=1e-4)
    assert found.score == pytest.approx(np.mean(np.subtract(*by_hand)), abs=1e-4)
    assert [step.n_tokens for step in found.record().steps] == [3, 5]


def test_batches_and_padding_change_nothing_but_rounding(models: tuple[LocalModel, LocalModel]) -> None:
    attempts = [attempt(i, f"a{i}", (4 + i, 3, 2 * i + 1, 5)) for i in range(6)]
    scorer = AdvantageScorer(Pair(*models))
    for one, many in zip([scorer.score(a) for a in attempts], scorer.score_many(attempts), strict=True):
        assert one.columns["A_sum"] == pytest.approx(many.columns["A_sum"], abs=1e-3)


def test_a_model_against_itself_is_zero_and_says_so(models: tuple[LocalModel, LocalModel]) -> None:
    pair = Pair(models[0], LocalModel(TinyLM(SHAPE, seed=1), name="again"))
    assert np.abs(AdvantageScorer(pair).score(attempt()).columns["A_sum"]).max() < 1e-4
    assert "own weights" in pair.warnings[0]


def test_the_first_token_of_a_row_has_no_grade(models: tuple[LocalModel, LocalModel]) -> None:
    a = trajectory("a", "t", [([3, 4, 5], True)])
    assert AdvantageScorer(Pair(*models)).score(a).columns["n_tokens"].tolist() == [2]


def test_a_long_attempt_is_cut_from_the_left(models: tuple[LocalModel, LocalModel]) -> None:
    a = attempt(lengths=(4, 6, 4, 6, 4, 6))
    whole = AdvantageScorer(Pair(*models), max_length=22).score(a)
    assert whole.columns["truncated"].tolist() == [True, False, False]
    assert whole.graded.tolist() == [1, 2]
    assert whole.score == pytest.approx(whole.columns["A_sum"][1:].mean())
    assert "cut into" in whole.warnings[0]
    for length in range(4, 30):  # a step is whole or it is marked, also where the cut falls on its first token
        short = AdvantageScorer(Pair(*models), max_length=length).score(a)
        assert ((short.columns["n_tokens"] == 6) == ~short.columns["truncated"]).all(), length
    kept = AdvantageScorer(Pair(*models), max_length=22, keep_truncated=True).score(a)
    assert kept.score == pytest.approx(kept.columns["A_sum"].mean())


def test_stored_log_probs_need_no_model(models: tuple[LocalModel, LocalModel]) -> None:
    a = attempt()
    with_models = AdvantageScorer(Pair(*models)).score(a)
    stored = Trajectory(a.id, a.task, a.tokens, a.step, a.n, 1.0, True, *with_models.logprobs)
    assert AdvantageScorer(None).score(stored).score == with_models.score
    with pytest.raises(UserError, match="stores no log-probs"):
        AdvantageScorer(None).score(a)


def test_a_named_pair_scores_even_where_log_probs_are_stored(models: tuple[LocalModel, LocalModel]) -> None:
    a = attempt()
    zeros = np.zeros(len(a.tokens), np.float32)
    stored = Trajectory(a.id, a.task, a.tokens, a.step, a.n, 1.0, True, zeros, zeros)
    assert AdvantageScorer(Pair(*models)).score(stored).score == AdvantageScorer(Pair(*models)).score(a).score != 0
    alike = AdvantageScorer(None).score(stored)
    assert alike.score == 0
    assert "ratio 0: the reference acts as the policy" in alike.warnings[0]


def test_a_cut_leaves_stored_log_probs_whole() -> None:
    a = attempt()  # actions at 6 to 8 and 13 to 17 of 20
    one, two = np.full(20, -1, np.float32), np.full(20, -3, np.float32)
    stored = Trajectory(a.id, a.task, a.tokens, a.step, a.n, 1.0, True, one, two)
    found = AdvantageScorer(None, max_length=7).score(stored)
    assert found.columns["A_sum"].tolist() == [0, 10]
    assert found.columns["truncated"].tolist() == [True, False]


def test_one_attempt_that_fails_touches_no_other(models: tuple[LocalModel, LocalModel]) -> None:
    odd = trajectory("odd", "t", [([1, 2], False), ([77], True)])
    long = trajectory("long", "t", [([1], False), ([3] * 130, True)])
    seen: list[int] = []
    done, failed = AdvantageScorer(Pair(*models)).score_each([odd, attempt(), long, attempt(1, "b")], progress=seen.append)
    assert [one.trajectory.id for one in done] == ["a", "b"]
    assert done[0].steps == pytest.approx(AdvantageScorer(Pair(*models)).score(attempt()).steps, abs=1e-4)
    assert "attempt 'odd': token 77 is out of range" in failed[0]
    assert "attempt 'long': engine: 131 tokens do not fit" in failed[1]
    assert sum(seen) == 8
    bad = np.array([0, 0, -1, np.nan], np.float32)
    rows = [Trajectory(n, "t", np.arange(4, dtype=np.int32), np.array([-1, -1, 0, 0]), 1, 1.0, True, v, -v)
            for n, v in (("x", bad), ("y", np.arange(4, dtype=np.float32)))]  # fmt: skip
    done, failed = AdvantageScorer(None).score_each(rows)
    assert [one.score for one in done] == [10.0]
    assert failed[0].startswith("attempt 'x': token 3 (id 3, step 0) has the log-prob nan under the policy")


def test_confidence_looks_at_the_tokens_that_are_graded(models: tuple[LocalModel, LocalModel]) -> None:
    small = TinyConfig(vocab=15, width=32, layers=1, heads=2, kv_heads=1, head_size=16, ffn=48, context=64)
    pair = Pair(LocalModel(TinyLM(small, seed=1)), LocalModel(TinyLM(small, seed=2)))  # fewer tokens than 20 alternatives
    first = trajectory("a", "t", [([1, 2, 3], True)])  # its first token has no grade
    shown = trajectory("b", "t", [([1], False), ([2, 3], True)])
    (one, two), _ = AdvantageScorer(pair).score_each([first, shown], sure=True)
    assert one.columns["confidence"] == pytest.approx(two.columns["confidence"], abs=1e-5)
    assert one.columns["certainty"] == pytest.approx(two.columns["certainty"], abs=1e-5)


def test_a_log_prob_that_is_no_number_names_its_token() -> None:
    a = attempt()
    bad = np.zeros(len(a.tokens), np.float32)
    bad[7] = -np.inf
    stored = Trajectory(a.id, a.task, a.tokens, a.step, a.n, 1.0, True, np.zeros(len(bad), np.float32), bad)
    with pytest.raises(
        UserError, match=rf"attempt 'a': token 7 \(id {a.tokens[7]}, step 0\) has the log-prob -inf under the ref"
    ):
        AdvantageScorer(None).score(stored)


def test_an_attempt_without_marked_actions_is_refused() -> None:
    with pytest.raises(UserError, match="marks no step as an action"):
        trajectory("a", "t", [([1, 2], False)])


def test_rounding_is_measured(models: tuple[LocalModel, LocalModel]) -> None:
    pair = Pair(*models)
    AdvantageScorer(pair, noise_rows=2).score_many([attempt(i, lengths=(3 + 7 * i, 2, 5)) for i in range(3)])
    assert pair.noise is not None
    assert 0 <= pair.noise < 1e-3
    pair.noise = 10.0
    assert "noise floor" in AdvantageScorer(pair).score(attempt()).warnings[-1]
