"""The errands of the reproduction of why: their known step is the true one, played they do what their closed form says, rules are counted."""

from __future__ import annotations

import numpy as np
import pytest

import ramify
from ramify.jobs.why import LEAST
from ramify.stats.intervals import clopper_pearson
from ramify_experiments.lab import ResultCache
from ramify_experiments.why.errands import KINDS, ErrandEnvironment, agent, errand, peers_case
from ramify_experiments.why.repro import reproduce, search, why_of
from ramify_experiments.why.rivals import first_error, last_call, last_rescue, rescues, unlikeliest


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


def test_the_closed_form_is_what_happens(tmp_path) -> None:
    """Played attempts succeed as often as the chance at the start says."""
    for kind in KINDS:
        one = errand(kind, 2 if kind == "none" else 1)
        played = ramify.play(agent(one), ErrandEnvironment(one, seed=0), [{"id": "errand"}], attempts=60, out=tmp_path / kind)
        low, high = clopper_pearson(sum(bool(attempt.outcome) for attempt in played), 60, 0.999)
        assert low <= one.potentials[0] <= high, kind


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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_size_passes() -> None:
    assert [check.name for check in reproduce("quick", ResultCache()) if check.status == "miss"] == []
