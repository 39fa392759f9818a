"""The numbers of section 8 of the spec, and what holds always."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.cliffs.algorithm import (
    H_STAR,
    Candidate,
    Cliff,
    TokenFacts,
    cliff_mass,
    confirm,
    correct,
    critical_cut,
    detect,
    screen,
    tangent_cut,
)
from ramify.stats.drops import Counts, ZTest

TEST = ZTest()


def curve(*rates: float | None, n: int = 64) -> list[Counts | None]:
    return [None if rate is None else Counts(round(rate * n), n) for rate in rates]


def test_the_table() -> None:
    table = TEST.table(64)
    assert table.sum() == 1283
    assert not table[:12].any()
    assert np.flatnonzero(table[12]).tolist() == [0]
    largest = {16: 3, 20: 6, 24: 9, 32: 16, 40: 24, 48: 32, 56: 41, 60: 46, 62: 49, 63: 51, 64: 52}
    assert {k: int(np.flatnonzero(table[k]).max()) for k in largest} == largest
    edge = [int(np.flatnonzero(row).max()) for row in table if row.any()]
    assert edge == sorted(edge)
    assert all(row[: row.sum()].all() for row in table)  # every smaller count is one, too


@pytest.mark.parametrize(
    ("p", "rate", "within"),
    [(0.1, 0.0002, 1e-4), (0.2, 0.0012, 1e-4), (0.3, 0.0023, 1e-4), (0.5, 0.0030, 1e-4), (0.8, 0.0012, 1e-4), (0.95, 0.0, 1e-5)]
)  # fmt: skip
def test_false_positives_are_exact(p: float, rate: float, within: float) -> None:
    assert chance(p, p) == pytest.approx(rate, abs=within)


@pytest.mark.parametrize(("drop", "power", "within"), [(0.2, 0.31, 0.01), (0.3, 0.76, 0.01), (0.5, 0.9999, 1e-4)])
def test_power(drop: float, power: float, within: float) -> None:
    assert chance(0.6, 0.6 - drop) == pytest.approx(power, abs=within)


def test_level_at_the_edge() -> None:
    assert all(0.047 <= chance(p, p - 0.1) <= 0.0523 for p in np.arange(2, 10) / 10)


def chance(p_prev: float, p_cur: float, n: int = 64) -> float:
    def pmf(p: float) -> np.ndarray:
        return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])

    return float(pmf(p_prev) @ TEST.table(n) @ pmf(p_cur))


def test_edges_of_the_test() -> None:
    assert TEST.is_cliff(64, 0, 64)
    assert not any(TEST.is_cliff(k, k, 64) for k in range(65))
    assert not TEST.is_cliff(10, 9, 10)  # d = 0.1 exactly, with an SE
    assert not ZTest(0.5, 0.05).is_cliff(2, 1, 2)
    assert not ZTest(0.1, 0.4999999).fires(Counts(10, 10), Counts(9, 10))
    for bad in ((65, 0), (0, 65), (-1, 0)):
        with pytest.raises(ValueError, match="not a count"):
            TEST.is_cliff(*bad, 64)
    with pytest.raises(UserError, match="delta0"):
        ZTest(1.5)
    assert not TEST.fires(Counts(0, 0), Counts(0, 64))


@given(st.integers(1, 80), st.integers(1, 80), st.data())
@settings(max_examples=60)
def test_p_value_and_test_agree(n: int, m: int, data: st.DataObject) -> None:
    prev, cur = Counts(data.draw(st.integers(0, n)), n), Counts(data.draw(st.integers(0, m)), m)
    p = TEST.p_value(prev, cur)
    assert TEST.fires(prev, cur) == (p < TEST.alpha) or abs(p - TEST.alpha) < 1e-9


def test_classes() -> None:
    assert pytest.approx(0.0560, abs=5e-5) == H_STAR
    kinds = [TokenFacts(0.5, 0.5, entropy, greedy).kind for greedy in (True, False) for entropy in (H_STAR, 0.06)]
    assert kinds == ["deterministic", "uncertain", "other", "sampled_off"]
    assert TokenFacts().kind is None


def test_detection_is_by_position_and_honest_about_gaps() -> None:
    found = detect("a", curve(0.9, 0.6, 0.6, 0.0), TEST, token_ids=[7, 8, 9])
    assert [(c.t, c.token_id, c.interval, c.status) for c in found] == [(1, 7, False, "found"), (3, 9, False, "found")]
    gap = detect("a", curve(0.9, None, None, 0.3), TEST)
    assert [(c.start, c.t, c.interval) for c in gap] == [(0, 3, True)]
    carried = detect("a", curve(0.9, None, None, 0.3), TEST, pairs=[(0, 3)])
    assert [(c.start, c.t, c.interval) for c in carried] == [(0, 3, False)]
    assert [c.t for c in detect("a", curve(0.1, 0.9, 0.1), TEST, rises=True)] == [1]
    assert detect("a", [Counts(0, 0, missing=64), *curve(0.0)], TEST) == []


def test_confirmation_and_the_bound() -> None:
    found = detect("a", curve(0.6, 0.3, 0.6, 0.3), TEST, facts=[TokenFacts(0.995, 0.995, 0.03, True)] * 3)
    fresh = [(Counts(77, 128), Counts(76, 128)), (Counts(80, 128), Counts(30, 128))]
    first, second = correct(confirm(found, fresh, TEST), 0.05)
    assert (first.status, second.status) == ("refuted", "confirmed")
    assert not first.suspect
    assert second.suspect  # 0.39 cannot be lost at a token of probability 0.995
    assert second.fresh_drop == pytest.approx(50 / 128)
    assert stored(second) == second
    assert correct([], 0.05) == []
    assert correct(found, 0.05) == found  # not checked: nothing is decided
    (unknown,) = correct(confirm(found[:1], [(Counts(0, 0, missing=128), Counts(3, 128))], TEST), 0.05)
    assert (unknown.status, unknown.fresh_drop) == ("found", None)
    assert stored(unknown).status == "found"
    with pytest.raises(UserError, match="a cliff cannot be at token 1 since position 1"):
        codec.from_json(Cliff, codec.to_json(second) | {"t": 1, "start": 1})
    with pytest.raises(UserError, match="'status'"):
        codec.from_json(Cliff, codec.to_json(second) | {"status": "sure"})


def stored(cliff: Cliff) -> Cliff:
    return codec.from_json(Cliff, json.loads(json.dumps(codec.to_json(cliff), allow_nan=False)))


def test_many_candidates_are_corrected() -> None:
    found = detect("a", curve(*[0.6, 0.3] * 20), TEST)
    edge = (Counts(77, 128), Counts(43, 128))  # p just below 0.05 alone
    assert TEST.fires(*edge)
    rest = [(Counts(64, 128), Counts(64, 128))] * (len(found) - 1)
    assert correct(confirm(found[:1], [edge], TEST), 0.05)[0].status == "confirmed"
    assert correct(confirm(found, [edge, *rest], TEST), 0.05)[0].status == "refuted"


def test_the_screen() -> None:
    positions, tests = screen([0.99, 0.995, 0.5, 0.999, 0.3, 1.0, 0.95, 0.2], 0.1, 0.02)
    assert tests == [(0, 3), (3, 5), (7, 8)]
    assert positions == [0, 3, 5, 7, 8]
    assert screen([1.0, 0.9], 0.1, 0.02) == ([0], [])
    assert screen([0.5, 0.5], 0.1, 0.02) == ([0, 1, 2], [(0, 1), (1, 2)])


@given(st.lists(st.floats(0, 1), max_size=30))
@settings(max_examples=50)
def test_the_screen_drops_no_token_that_can_fall(pi: list[float]) -> None:
    positions, tests = screen(pi, 0.1, 0.02)
    assert [t for _, t in tests] == [t for t, p in enumerate(pi, 1) if p < 0.9]
    assert positions == sorted(set(positions))
    assert all(sum(1 - p for p in pi[start : t - 1]) < 0.02 for start, t in tests)


def test_mass_and_its_difference() -> None:
    candidates = [
        Candidate(1, 0.5, Counts(60, 64), False),
        Candidate(2, 0.2, Counts(0, 64), True),
        Candidate(3, 0.1, Counts(30, 64), False),
    ]
    assert cliff_mass(candidates, 3) == pytest.approx(0.3)
    assert cliff_mass(candidates, 2) == pytest.approx(0.2)
    assert cliff_mass(candidates, 3, {1: 0.9, 2: 0.05}) == pytest.approx(0.05)


def test_controls() -> None:
    assert critical_cut(curve(0.5, 0.0, 0.4, 0.0, 0.02)) == 3
    assert critical_cut(curve(0.5, 0.1)) is None
    assert tangent_cut(curve(*[0.8] * 40, *[0.1] * 61)) == 35
    assert tangent_cut(curve(*[0.8] * 10)) is None
    assert tangent_cut([]) is None


def test_a_drop_from_all_to_none_is_suspect_only_where_the_token_forbids_it() -> None:
    def fall(pi: float, n: int) -> bool:
        return Cliff("a", 1, 5, 0, False, Counts(n, n), Counts(0, n), TokenFacts(pi)).suspect

    assert not fall(1e-4, 8)
    assert not fall(1e-4, 128)
    assert fall(0.5, 64)


def test_what_a_token_can_lose_depends_on_the_potential() -> None:
    """V - W is at most (1 - pi)(1 - V) / pi: a coin's flip that fails four times in ten cannot come after nine of ten right
    ones."""

    def fall(v: float, w: float, n: int = 400) -> bool:
        return Cliff("a", 1, 5, 0, False, Counts(round(v * n), n), Counts(round(w * n), n), TokenFacts(0.5)).suspect

    assert fall(0.9, 0.6)  # less than 1 - pi, and more than (1 - V) (1 - pi) / pi = 0.1
    assert not fall(0.9, 0.8)
    assert not fall(0.5, 0.05)


def test_truncated_forks_make_no_drop_suspect() -> None:
    """A token of probability 0.92 behind which 90 % are truncated:
    V, of the graded forks, falls by 0.34, and nothing is wrong."""
    (cliff,) = detect(
        "a", [Counts(1170, 1720, truncated=8280), Counts(400, 1000, truncated=9000)], TEST, facts=[TokenFacts(0.92)]
    )
    assert cliff.drop > 1 - 0.92 + 0.1
    assert not cliff.suspect
    assert stored(cliff) == cliff
    assert replace(cliff, prev=Counts(1170, 1720), cur=Counts(400, 1000)).suspect
