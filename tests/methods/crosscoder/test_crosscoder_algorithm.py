"""Closed forms of section 8 of the specification, ranking, and searches whose answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.crosscoder.algorithm import (
    best,
    cohens_d,
    confirm,
    confirm_sets,
    corrected,
    feature_sets,
    grid,
    no_reach,
    outcome,
    rank_features,
    search,
    shortlist,
    tool_call,
)
from ramify.methods.crosscoder.dictionary import Dictionary, DictionaryConfig, encode_rows
from ramify.methods.crosscoder.record import Confirmed, Steering, SteeringOutcome
from ramify.methods.crosscoder.steer import StateChange, change_of, random_change
from ramify.stats.evidence import holm
from ramify.stats.intervals import mean_t
from ramify.stats.ranking import auroc
from ramify.stats.tests import sign_test


def axes(width: int = 6, features: int = 10) -> Dictionary:
    """Features 0 and 1 are A's own axes 0 and 1, 2 and 3 are B's,
    4 and 5 are shared axes 4 and 5; activations are coordinates."""
    d = Dictionary(DictionaryConfig(width=width, features=features, k=features, exclusive=0.2, centred=False))
    with torch.no_grad():
        for weight in (d.encoder, d.decoder):
            weight.zero_()
            for feature, model, axis in ((0, 0, 0), (1, 0, 1), (2, 1, 2), (3, 1, 3), (4, 0, 4), (5, 0, 5)):
                weight[feature, model, axis] = 1
    return d


def test_cohens_d_by_hand() -> None:
    tool, plain = np.array([[1.0], [1], [0], [0]]), np.zeros((4, 1))
    assert tool.var(ddof=1) == pytest.approx(1 / 3)
    assert cohens_d(tool, plain)[0] == pytest.approx(0.5 / math.sqrt(1 / 6)) == pytest.approx(1.2247, abs=5e-5)
    assert cohens_d(plain, plain)[0] == 0
    with pytest.raises(ValueError, match="at least 2"):
        cohens_d(tool[:1], plain)


def test_auroc_counts_ties_half() -> None:
    tool, plain = np.zeros(100), np.zeros(100)
    tool[:43], plain[:1] = 1.0, 1.0
    assert (
        auroc(np.concatenate([tool, plain]), np.arange(200) < 100)
        == pytest.approx(0.5 + (0.43 - 0.01) / 2)
        == pytest.approx(0.71)
    )


def test_errors_of_forty_prompts() -> None:
    error = math.sqrt(0.25 / 40)
    assert error == pytest.approx(0.079, abs=5e-4)
    assert norm.ppf(0.975) * math.sqrt(2) * error == pytest.approx(0.22, abs=0.005)
    assert pytest.approx(0.00104, abs=5e-6) == 0.05 / 48
    assert holm([0.05 / 48] + [1.0] * 47)[0] == pytest.approx(0.05)


def test_sweep_of_the_paper() -> None:
    assert sign_test(47, 47) == pytest.approx(1.4e-14, rel=0.02)
    assert sign_test(45, 47) == pytest.approx(1.6e-11, rel=0.02)
    values = np.linspace(-1, 1, 47)
    values = 6.7 + 4.8 * (values - values.mean()) / values.std(ddof=1)
    low, high = mean_t(values)
    t = values.mean() / (values.std(ddof=1) / math.sqrt(47))
    assert t == pytest.approx(9.57, abs=0.005)
    assert (high - low) / 2 == pytest.approx(6.7 / t * 2.0129, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "exact", "fuzzy"),
    [
        ('<tool_call>{"name": "get_weather"}</tool_call>', (True, True), (True, True)),
        ('{"name":"get_weather"} and {"name": "other"}', (False, True), (False, True)),
        ('<tool_call>{"name": "Get_Weather"}', (True, False), (True, True)),
        ('<tool_call>{"name": "weather"}', (True, False), (True, True)),
        ('<tool_call>{"name": "e"}', (True, False), (True, True)),  # a name of one letter matches almost anything
        ('<tool_call>{"name": "zzz"}', (True, False), (True, False)),
        ("<tool_call> get_weather", (False, False), (False, False)),
        ('{"name": "get_weather', (False, False), (False, False)),
        ("", (False, False), (False, False)),
    ],
)
def test_calls(text: str, exact: tuple[bool, bool], fuzzy: tuple[bool, bool]) -> None:
    names = ["get_weather", "search"]
    assert tool_call(text, names) == exact
    assert tool_call(text, names, "toolrl") == fuzzy


def test_ranking() -> None:
    d = axes()
    tool, plain = np.zeros((10, 10), np.float32), np.zeros((10, 10), np.float32)
    tool[:5, 0], tool[:, 1] = 1.0, np.linspace(1, 2, 10)  # A's own
    plain[:5, 4] = 1.0  # of the other corpus
    tool[:3, 5], tool[:, 2] = 1.0, 0.05
    ranked = rank_features(d, tool, plain, "all")
    assert [one.feature for one in ranked] == [1, 0, 5] or ranked[0].feature in (1, 2)
    own = rank_features(d, tool, plain, "a", threshold=0.1)
    assert [one.feature for one in own] == [1, 0]
    assert (own[1].auroc, own[1].fires_tool, own[1].fires_plain) == (0.75, 0.5, 0.0)
    assert own[0].partition == "a"
    assert own[0].relative_norm == 1.0
    assert own[0].mean_tool == pytest.approx(1.5)
    assert [one.feature for one in shortlist(own, on_tool=0.6)] == [1]
    with pytest.raises(UserError, match="unknown partition"):
        rank_features(d, tool, plain, "c")


@given(st.lists(st.floats(0.1, 10), min_size=10, max_size=10), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_ranking_does_not_depend_on_the_units_of_features(units: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tool, plain = (np.maximum(rng.normal(shift, 1, (30, 10)), 0) for shift in (0.5, 0.0))
    before, after = rank_features(axes(), tool, plain, "all"), rank_features(axes(), tool * units, plain * units, "all")
    assert [one.feature for one in before] == [one.feature for one in after]
    assert [one.d for one in before] == pytest.approx([one.d for one in after])
    assert [one.auroc for one in before] == pytest.approx([one.auroc for one in after])


def along_axis_one(states: np.ndarray) -> tuple[np.ndarray, object]:
    """A score that rises where the state's second coordinate is above 5, and counts its calls."""

    class Rises:
        calls = 0

        def __call__(self, change: StateChange | None) -> np.ndarray:
            self.calls += 1
            moved = states[:, 0] + (0 if change is None else change.delta)
            return np.asarray(moved[:, 1] > 5)

    return states, Rises()


def test_search_finds_the_handle_and_controls_do_not() -> None:
    d, rng = axes(), np.random.default_rng(0)
    states = np.abs(rng.normal(size=(60, 2, 6))).astype(np.float32)
    chosen, score = along_axis_one(states[:20])
    cells = grid([0, 1, 2], gains=(1, 4), clamps=(6, 9))
    assert [cell.name for cell in cells[:2]] == ["scale 1 of 0", "scale 4 of 0"]
    found = search(d, chosen, score, cells)  # type: ignore[arg-type]
    assert best(cells, found) == Steering((1,), "clamp", 6)  # of the two that always work the shorter
    assert [one.lift for one in found if one.name.startswith("scale 1 ")] == [0, 0, 0]
    reached = [cell for cell in cells if cell.features != (2,) and (cell.mode, cell.amount) != ("scale", 1)]
    assert score.calls == 1 + len(reached)  # type: ignore[attr-defined] # what adds nothing is not run
    p_holm = corrected(found)[cells.index(Steering((1,), "clamp", 6))].p_holm
    assert p_holm is not None
    assert p_holm < 0.01
    held, score = along_axis_one(states[20:])
    rows = confirm(d, held, score, Steering((1,), "clamp", 6), {"axis 3": np.eye(6)[3]}, randoms=8)  # type: ignore[arg-type]
    by_name = {row.name: row for row in rows}
    assert by_name["clamp 6 of 1"].lift == 1.0 - by_name["reconstruction"].score + by_name["reconstruction"].lift
    assert by_name["clamp 6 of 1"].n == 40
    assert by_name["axis 3"].lift == 0.0
    assert np.mean([row.lift for row in rows if row.name.startswith("random")]) < 0.3
    assert all(row.size == pytest.approx(by_name["clamp 6 of 1"].size) for row in rows if row.name != "reconstruction")


def test_an_outcome_is_paired() -> None:
    clean, after = np.array([0, 0, 0, 1, 1, 0]), np.array([1, 1, 1, 0, 1, 0])
    change = StateChange(np.ones((6, 4), np.float32), np.array([True, True, False, False, False, False]))
    one = outcome("x", clean, after, change, np.full((6, 4), 2.0))
    assert (one.rescued, one.broken, one.n) == (3, 1, 6)
    assert one.lift == pytest.approx(2 / 6)
    assert one.p == pytest.approx(2 * 5 / 16)
    assert (one.coverage, one.size) == (pytest.approx(1 / 3), pytest.approx(0.5))
    assert one.interval == pytest.approx(mean_t(after - clean))


def test_a_change_stands_out_only_above_chance_and_random_directions() -> None:
    from ramify.methods.crosscoder.report import verdict

    def made(name: str, score: float, lift: float = 0.0, p: float = 1.0) -> SteeringOutcome:
        return SteeringOutcome(name, score, lift, None, 0, 0, p, 10, 1.0, 1.0)

    chosen = made("clamp 6 of 1", 0.8, 0.5, 0.01)
    randoms = [made(f"random {i}", 0.4) for i in range(19)]
    assert verdict([chosen, *randoms]).startswith("clamp 6 of 1 raises the score")
    for rows in (
        [chosen, *randoms[:18]],  # too few to say
        [chosen, made("random 0", 0.8), *randoms[1:]],
        [replace(chosen, p=0.2), *randoms],
        [replace(chosen, lift=-0.5), *randoms],
        [chosen],
    ):
        assert verdict(rows).startswith("Nothing stands out")


def test_sets_of_features() -> None:
    assert feature_sets([4, 2, 7], (1, 3), ["9+0"]) == {
        "1 feature": [(4,), (2,), (7,)],
        "3 features": [(4, 2, 7)],
        "9+0": [(9, 0)],
    }
    assert grid([(4, 2)], gains=(0,), clamps=(5,)) == [Steering((4, 2), "scale", 0), Steering((4, 2), "clamp", 5)]
    for sizes, sets, sentence in (
        ((4,), (), "no set of 4 features: 3 are tried"),
        ((), ("3-4",), "'3-4' is not a set"),
        ((), ("3+3",), "'3.3' is not a set"),
    ):
        with pytest.raises(UserError, match=sentence):
            feature_sets([4, 2, 7], sizes, sets)


def test_random_sets_have_the_norms_and_the_length_of_the_set() -> None:
    d, rng = axes(), np.random.default_rng(0)
    codes = np.abs(rng.normal(size=(5, 10))).astype(np.float32)
    codes[3] = 0
    cell = Steering((0, 1), "scale", 4)
    change = change_of(cell, d, codes)
    first, again, other = (random_change(cell, d, codes, 0, completion) for completion in (0, 0, 1))
    assert np.array_equal(first.delta, again.delta)
    assert not np.allclose(first.delta, other.delta)
    assert np.linalg.norm(first.delta, axis=1) == pytest.approx(np.linalg.norm(change.delta, axis=1), rel=1e-5)
    assert not first.delta[3].any()  # nothing fires there, so nothing is added there
    assert np.linalg.matrix_rank(first.delta) == 2  # two directions, mixed by each prompt's own activations
    shared = [random_change(Steering(features, "clamp", 1e6), d, codes * 0, 0, 0) for features in ((0,), (0, 1), (1,))]
    assert (
        np.linalg.matrix_rank(np.stack([one.delta[0] for one in shared]), tol=1) == 2
    )  # a feature's direction is one in every set


def test_only_the_set_that_does_it_stands_out() -> None:
    """Two axes together lift a score that neither does alone;
    every set has its own control, and all are corrected for each other."""
    d, rng = axes(40), np.random.default_rng(0)
    states = np.abs(rng.normal(size=(90, 2, 40))).astype(np.float32)

    def scores(some: np.ndarray) -> Any:
        return lambda change: np.asarray((some[:, 0] + (0 if change is None else change.delta))[:, :2].min(axis=1) > 4)

    groups = {name: grid(some, clamps=(6, 8)) for name, some in feature_sets([0, 1], (1, 2), ["4+5"]).items()}
    parts = (states[:30], states[30:])
    found = {
        one.name: one
        for one in confirm_sets(d, parts, (scores(parts[0]), scores(parts[1])), groups, {"axis 3": np.eye(40)[3]}, randoms=19)
    }
    assert [name for name, one in found.items() if one.stands_out] == ["2 features"]
    both = found["2 features"]
    assert (both.cell.features, both.p_random) == ((0, 1), 0.05)
    assert [row.name for row in both.confirmed] == [
        both.cell.name,
        *(f"random {i}" for i in range(19)),
        "axis 3",
        "reconstruction",
    ]
    assert found["4+5"].p_holm == 1.0
    record = codec.to_json(both)
    assert (record["cell"]["features"], record["stands_out"], len(record["confirmed"])) == ([0, 1], True, 22)
    assert codec.from_json(Confirmed, record, "") == both
    few = confirm_sets(d, parts, (scores(parts[0]), scores(parts[1])), groups, {}, randoms=18)
    assert not any(one.stands_out for one in few)


def test_what_cannot_reach_is_said() -> None:
    d = axes()
    assert no_reach(d, [Steering((0, 4), "scale", 2)], 0) == ""
    assert "features 0, 1 belong to the other model alone" in no_reach(d, grid([0, 1, 4], gains=(2,)), 1)
    states = np.ones((4, 2, 6), np.float32)
    (found,) = search(d, states, lambda change: np.zeros(4), [Steering((2,), "scale", 64)])
    assert (found.lift, found.size, found.coverage) == (0, 0, 1)
    assert encode_rows(d, states)[0, 2] == 1
