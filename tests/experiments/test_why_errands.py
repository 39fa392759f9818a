"""The errands of the reproduction of why: their known step is the true one,
played they do what their closed form says, rules are counted."""

from __future__ import annotations

import itertools
from math import factorial

import numpy as np
import pytest

import ramify
from ramify.jobs.why.records import LEAST
from ramify.stats.intervals import clopper_pearson
from ramify_experiments.why.errands import KINDS, Errand, ErrandEnvironment, agent, errand, peers_case
from ramify_experiments.why.repro import search, why_of
from ramify_experiments.why.rivals import first_error, last_call, last_rescue, rescues, unlikeliest
from ramify_experiments.why.shares import exact_shares, shared


@pytest.mark.parametrize("kind", KINDS)
def test_an_errand_has_a_failed_attempt_and_its_true_step(kind: str) -> None:
    for seed in range(12):
        one = errand(kind, seed)
        assert one == errand(kind, seed)
        v = one.potentials
        assert len(v) == one.steps + 1
        falls = -np.diff(v)
        if kind == "none":
            assert one.answer is None
            assert falls.max() <= LEAST
        else:
            assert one.answer == int(np.argmax(falls)) + 1
            assert v[-1] == 0.0
        assert not one.succeeds(one.picks)


@pytest.mark.slow
def test_the_closed_form_is_what_happens(tmp_path) -> None:
    """Played attempts succeed as often as the chance at the start says."""
    for kind in KINDS:
        one = errand(kind, 2 if kind == "none" else 1)
        played = ramify.play(agent(one), ErrandEnvironment(one, seed=0), [{"id": "errand"}], attempts=60, out=tmp_path / kind)
        low, high = clopper_pearson(sum(bool(attempt.outcome) for attempt in played), 60, 0.999)
        assert low <= one.potentials[0] <= high, kind


@pytest.mark.slow
def test_the_environments_own_chance_is_not_the_last_steps_fault() -> None:
    one = errand("none", 2)
    assert one.flaky is not None
    assert [why_of(one, False, seed).verdict for seed in range(4)] == ["none"] * 4
    assert last_rescue(one.potentials, 80, np.random.default_rng(0))[0] == one.steps


def test_the_rules_and_the_peer() -> None:
    one = peers_case(0.3, False)
    assert one.potentials == [0.7, 0.7, 0.0, 0.0]
    assert one.answer == 2
    assert peers_case(0.3, True).answer == 2
    assert (last_call(one), first_error(one), unlikeliest(one)) == (3, None, 2)
    assert [rescues(k, 16) for k in (0, 3, 4)] == [False, False, True]
    assert last_rescue(one.potentials, 80, np.random.default_rng(1)) == (2, 240)
    found = [search(one, np.random.default_rng(seed))[0] for seed in range(20)]
    assert found.count(2) >= 18


def test_exact_shares_are_those_of_the_definition() -> None:
    """Against the sum over all coalitions, on errands small enough for it; they sum to the fall."""
    small = [one for kind in KINDS for seed in range(20) if (one := errand(kind, seed)).steps <= 5 and one.flaky is None]
    assert {one.kind for one in small} >= {"single", "two", "noise"}
    for one in small[::3]:
        assert exact_shares(one) == pytest.approx(by_definition(one), abs=1e-9)
    for kind in KINDS:
        one = errand(kind, 2 if kind == "none" else 1)
        v = one.potentials
        assert sum(exact_shares(one)) == pytest.approx(v[-1] - v[0])


def by_definition(one: Errand) -> list[float]:
    def value(held: frozenset[int]) -> float:
        total = 0.0
        for picks in itertools.product(*([one.picks[t]] if t in held else range(len(p)) for t, p in enumerate(one.chances))):
            chance = np.prod([1.0 if t in held else one.chances[t][pick] for t, pick in enumerate(picks)])
            total += chance * one.succeeds(picks)
        return float(total)

    steps, values = range(one.steps), dict[frozenset[int], float]()
    for size in range(one.steps + 1):
        values |= {frozenset(some): value(frozenset(some)) for some in itertools.combinations(steps, size)}
    shares = [0.0] * one.steps
    for some, before in values.items():
        weight = (
            factorial(len(some)) * factorial(one.steps - 1 - len(some)) / factorial(one.steps) if len(some) < one.steps else 0
        )
        for t in set(steps) - some:
            shares[t] += weight * (values[some | {t}] - before)
    return shares


def test_two_causes_get_their_shares_and_no_cause_gets_none() -> None:
    values, intervals, credited, cost = shared(peers_case(0.3, True), 1)
    exact = exact_shares(peers_case(0.3, True))
    assert exact == pytest.approx([-0.7 * (1 - 0.7 / 2)] * 2 + [0.0])
    assert credited == [True, True, False]
    assert all(low <= value <= high for (low, high), value in zip(intervals, exact, strict=True))
    assert cost <= 3 * 48
    assert sum(values) < -0.7
    assert sum(any(shared(errand("none", seed), 1, n=16)[2]) for seed in range(12)) <= 2
