"""Acceptance, calibration and simulated schedules against closed forms and planted truths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.engine.schedules import FixedSchedule, Off, schedule_of
from ramify.methods.dspark.algorithm import (
    GRID,
    StepCosts,
    calibration,
    logits_of,
    sequential_temperatures,
    simulate,
    survival,
)
from ramify.methods.dspark.rounds import KeptRounds, Rounds, accepted_length, conditional_acceptance, joined


def expected_length(alpha: float, block: int) -> float:
    """tau of a constant conditional acceptance ``alpha``: (1 - alpha^(gamma+1)) / (1 - alpha)."""
    return float(sum(alpha**k for k in range(block + 1)))


def make(n: int, confidence: np.ndarray | None = None, seed: int = 0, alpha: float = 0.8, block: int = 7) -> Rounds:
    """Rounds whose drafts survive with the given conditional probabilities, or with ``alpha``."""
    rng = np.random.Generator(np.random.Philox(seed))
    p = np.full((n, block), alpha) if confidence is None else confidence
    survives = np.cumprod(rng.random(p.shape) < p, axis=1)
    return Rounds(survives.sum(axis=1), np.full(n, block), np.zeros(n, bool), p, np.arange(n) // 10)


def varied(n: int, seed: int, block: int = 7) -> np.ndarray:
    """Conditional probabilities that differ from round to round."""
    return np.random.Generator(np.random.Philox(seed)).beta(4, 1.2, (n, block))


def test_length_of_a_constant_acceptance() -> None:
    assert expected_length(0.8, 7) == pytest.approx(4.16114, abs=1e-5)
    assert (expected_length(1.0, 7), expected_length(0.0, 7)) == (8.0, 1.0)
    rounds = make(40_000)
    assert accepted_length(rounds) == pytest.approx(expected_length(0.8, 7), abs=0.05)
    assert conditional_acceptance(rounds) == pytest.approx(np.full(7, 0.8), abs=0.02)


def test_end_of_sequence_cuts_what_counts() -> None:
    # the third round's second draft is the stop token: two positions were proposed, and there is no bonus
    rounds = Rounds(
        np.array([0, 3, 2]), np.array([3, 3, 2]), np.array([False, False, True]), np.full((3, 3), 0.5), np.array([0, 0, 1])
    )
    assert rounds.emitted.tolist() == [1, 4, 2]
    assert accepted_length(rounds) == pytest.approx(7 / 3)
    assert conditional_acceptance(rounds) == pytest.approx([2 / 3, 1.0, 1.0])
    assert [one.n for one in calibration(np.zeros((3, 3)), rounds)] == [3, 3, 2]
    assert codec.from_json(KeptRounds, codec.to_json(rounds.kept()), "").rounds().kept() == rounds.kept()


def test_rounds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="proposes at most a block"):
        Rounds(np.array([1]), np.array([3]), np.array([False]), np.zeros((1, 2)), np.array([0]))
    with pytest.raises(UserError, match="one length"):
        Rounds(np.array([1]), np.array([3, 3]), np.array([False]), np.zeros((1, 3)), np.array([0]))
    with pytest.raises(UserError, match="no rounds"):
        joined([])


def test_joined_rounds_keep_their_prompts_apart() -> None:
    both = joined([make(20), make(30, seed=1)])
    assert len(both) == 50
    assert len(set(both.prompt.tolist())) == 5


def test_injected_miscalibration_is_undone() -> None:
    c = varied(4000, 1)
    rounds, z = make(4000, c), 2 * logits_of(c)
    found = sequential_temperatures(z[:2000], rounds.pick(np.arange(2000)))
    assert ((found > 1.4) & (found < 2.9)).all()
    test = rounds.pick(np.arange(2000, 4000))
    before, after = (np.mean([one.error for one in calibration(z[2000:], test, t)]) for t in (1.0, found))
    assert after < before / 2


def test_what_is_calibrated_stays_so() -> None:
    c = varied(4000, 2)
    found = sequential_temperatures(logits_of(c), make(4000, c, seed=3))
    assert (np.abs(np.log(found)) < 0.25).all()


def test_earlier_temperatures_do_not_depend_on_later_positions() -> None:
    c = varied(600, 3)
    rounds, z = make(600, c), 1.7 * logits_of(c)
    whole = sequential_temperatures(z, rounds)
    short = Rounds(np.minimum(rounds.accepted, 4), np.full(600, 4), rounds.ended, c[:, :4], rounds.prompt)
    assert whole[:4].tolist() == sequential_temperatures(z[:, :4], short).tolist()
    errors = [one.error for one in calibration(z, rounds, whole)]
    assert errors[:4] == [one.error for one in calibration(z[:, :4], short, whole[:4])]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_labels_all_alike_give_numbers(alpha: float) -> None:
    found = sequential_temperatures(logits_of(varied(200, 4)), make(200, None, alpha=alpha))
    assert np.isfinite(found).all()
    assert set(found) <= set(GRID)
    extreme = sequential_temperatures(logits_of(np.full((200, 7), alpha)), make(200, None, alpha=alpha))
    assert np.isfinite(extreme).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=3, max_size=3), st.integers(0, 2), st.floats(0.01, 5))
def test_survival_rises_with_each_logit_and_falls_along_the_block(z: list[float], at: int, more: float) -> None:
    low, high = np.array([z]), np.array([z])
    high[0, at] += more
    temperatures = np.array([0.5, 1.0, 4.0])
    a, b = survival(low, temperatures), survival(high, temperatures)
    assert (b >= a).all()
    assert (np.diff(a) <= 0).all()


def test_simulation_of_a_fixed_length_has_its_closed_form() -> None:
    rounds = make(20_000, seed=9)
    found = simulate(rounds, FixedSchedule(3), StepCosts(), 16, 400)
    tau = expected_length(0.8, 3)
    assert found.tokens == pytest.approx(tau, rel=0.02)
    assert found.budget == 3
    assert found.throughput == pytest.approx(tau * (64 + 16) / (64 + 64), rel=0.02)
    assert simulate(rounds, Off(), StepCosts(), 4, 10).throughput == pytest.approx(1)
    with pytest.raises(UserError, match="full length"):
        simulate(rounds.pick(np.arange(0)), FixedSchedule(1), StepCosts(), 1, 1)


def test_only_a_budget_of_past_steps_crosses_a_staircase() -> None:
    c = varied(3000, 6)
    rounds, stairs = make(3000, c, seed=7), StepCosts(stair=16)
    greedy, stale = (simulate(rounds, schedule_of(name, 7, stairs), stairs, 16, 60) for name in ("greedy", "stale2"))
    assert greedy.throughput == pytest.approx(1)
    assert greedy.budget == 0
    assert stale.throughput > 1.5


def test_the_budget_falls_with_the_load() -> None:
    rounds = make(3000, varied(3000, 6), seed=7)
    budgets = [simulate(rounds, schedule_of("stale2", 7, StepCosts()), StepCosts(), r, 60).budget for r in (1, 16, 256)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] > 1.5 * budgets[-1]
