"""Counts that can be done by hand, tests of independence on tables whose truth is known, and belief as confidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.verify_or_ship.algorithm import ControlConfig, Kernel, Likelihood, Plan, Tables, worth
from ramify.methods.verify_or_ship.calibration import (
    CalibrateConfig,
    CandidateAttempt,
    CodeCandidate,
    Counters,
    calibrate,
    doubts,
    folds,
    independence,
    pessimistic,
    prr,
)
from ramify.methods.verify_or_ship.replay import AWARE, NULL, play, replay


def attempt(instance: object, *steps: tuple[int | None, dict[str, Any]], texts: str = "") -> CandidateAttempt:
    """An attempt of (truth, checks); ``texts``: one letter a candidate."""
    made = [
        CodeCandidate(None if right is None else bool(right), checks, texts[i] if texts else f"{instance} {i}")
        for i, (right, checks) in enumerate(steps)
    ]
    return CandidateAttempt(str(instance), tuple(made))


def test_counts_are_laplace_smoothed() -> None:
    """Of 4 right ones 3 pass, of 6 wrong ones 2; a rewrite of 6 wrong ones repairs 1, of 4 right ones breaks 1."""
    rows = [(1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    found = calibrate([attempt(i, (y, {"t": z}), (then, {"t": z})) for i, (y, z, then) in enumerate(rows)])
    assert found.prior == pytest.approx(5 / 12)
    own = found.critics["t"]
    assert (own.right[1], own.wrong[1]) == pytest.approx((4 / 6, 3 / 8))
    assert (own.n_right, own.n_wrong) == (4, 6)
    assert (found.kernel.fix, found.kernel.broken) == pytest.approx((2 / 8, 2 / 6))
    assert found.kernel.n == 10
    assert found.rewritten is None  # too few of them


def test_without_rewrites_one_is_a_fresh_sample() -> None:
    found = calibrate([attempt(i, (i % 2, {"t": i % 2})) for i in range(10)])
    assert (found.kernel.fix, found.kernel.broken) == pytest.approx((0.5, 0.5))
    assert "no rewrites" in {kind for kind, _, _ in doubts(found, [attempt(0, (1, {"t": 1}))])}


def test_the_same_text_is_counted_apart() -> None:
    """Ten wrong candidates: four come back as they were, three are repaired, three are not."""
    same = [attempt(i, (0, {"t": 0}), (0, {"t": 0}), texts="aa") for i in range(4)]
    changed = [attempt(10 + i, (0, {"t": 0}), (int(i < 3), {"t": 1})) for i in range(6)]
    right = [attempt(20 + i, (1, {"t": 1}), (1, {"t": 1})) for i in range(2)]
    kernel = calibrate([*same, *changed, *right]).kernel
    assert kernel.same_wrong == pytest.approx(5 / 12)
    assert kernel.fix == pytest.approx(4 / 8)
    assert kernel.same_right == pytest.approx(1 / 4)


def test_what_follows_a_rejected_candidate_has_tables_of_its_own() -> None:
    """First wrong candidates pass the test half the time, those after a rejected one never."""
    first = [attempt(f"a{i}", (i % 2, {"t": int(i % 2 or i % 4 == 0)})) for i in range(80)]
    after = [attempt(f"b{i}", (0, {"t": 0}), (i % 2, {"t": i % 2})) for i in range(40)]
    found = calibrate([*first, *after])
    assert found.gate == "t"
    assert found.rejected is not None
    assert found.rejected["t"].wrong[1] == pytest.approx(1 / 22)
    assert found.critics["t"].wrong[1] == pytest.approx(21 / 82)
    assert calibrate([*first, *after], CalibrateConfig(gate="none")).rejected is None


def test_critics_that_could_not_run_say_nothing() -> None:
    rows = [attempt(i, (i % 2, {"t": None if i < 10 else i % 2, "s": 1})) for i in range(30)]
    found = calibrate(rows)
    assert found.critics["t"].n_right + found.critics["t"].n_wrong == 20
    assert found.critics["s"].n_right + found.critics["s"].n_wrong == 30


def test_numbers_become_levels_of_ascending_odds() -> None:
    rng = generator(0, "levels")
    rows = []
    for i in range(400):
        right = bool(rng.random() < 0.5)
        rows.append(attempt(i, (int(right), {"score": float(rng.normal(1.0 if right else -1.0))})))
    own = calibrate(rows).critics["score"]
    odds = [r / w for r, w in zip(own.right, own.wrong, strict=True)]
    assert len(own.right) == 4
    assert odds == sorted(odds)
    assert own.gap > 0.5
    with pytest.raises(UserError, match="one and the same number"):
        calibrate([attempt(i, (i % 2, {"score": 0.3})) for i in range(10)])


def test_bounds_are_on_the_careful_side() -> None:
    known = Tables(
        prior=0.4,
        critics={"t": Likelihood.of(0.9, 0.35, n_right=40, n_wrong=60)},
        kernel=Kernel(fix=0.3, broken=0.1, n=50),
        instances=100,
    )
    careful = pessimistic(known, 0.9)
    assert careful.prior < known.prior
    assert careful.critics["t"].right[1] < 0.9
    assert careful.critics["t"].wrong[1] > 0.35
    assert careful.kernel.fix < 0.3
    assert careful.kernel.broken > 0.1
    assert Plan(careful, ControlConfig()).value < Plan(known, ControlConfig()).value
    nothing = Tables(prior=0.4, critics={"t": Likelihood.of(0.6, 0.55, n_right=5, n_wrong=5)})
    assert pessimistic(nothing, 0.9).critics["t"].gap == 0


def test_counters_of_verified_transitions() -> None:
    found = Counters()
    for before, after in [(False, True), (False, False), (False, False), (True, True)]:
        found.add(before, after)
    assert (found.n, found.kernel().fix, found.kernel().broken) == (4, 2 / 5, 1 / 3)


def coins(seed: int, n: int, copied: bool) -> list[CandidateAttempt]:
    rng = generator(seed, "independence")
    rows = []
    for i in range(n):
        right = bool(rng.random() < 0.5)
        a, b = (int(rng.random() < (0.8 if right else 0.4)) for _ in range(2))
        rows.append(attempt(i, (int(right), {"a": a, "b": a if copied else b, "always": 1})))
    return rows


def test_independent_critics_are_and_copies_are_not() -> None:
    apart = coins(0, 300, False)
    found = independence(apart, calibrate(apart))
    assert found.df == 2  # one for each stratum: 2^2 - 1 - 2
    assert found.p > 0.05
    assert found.p_g2 == pytest.approx(found.p, abs=0.1)  # cells are large: both hold
    assert [stratum.degenerate for stratum in found.strata] == [["always"], ["always"]]
    copied = coins(0, 300, True)
    found = independence(copied, calibrate(copied))
    assert found.p == 0.001
    assert [pair.v for pair in found.pairs] == pytest.approx([1.0, 1.0])
    assert max(pair.p_corrected for pair in found.pairs) == pytest.approx(0.002)


def test_prr_orders() -> None:
    right = [True] * 5 + [False] * 5
    assert prr([0.9] * 5 + [0.1] * 5, right) == pytest.approx(1.0)
    assert prr([0.5] * 10, right) == pytest.approx(0.0)
    worst = prr([0.1] * 5 + [0.9] * 5, right)
    assert worst is not None
    assert worst < 0
    assert prr([0.1, 0.2], [True, True]) is None
    with pytest.raises(ValueError, match="NaN"):
        prr([float("nan"), 0.1], [True, False])


def simulated(known: Tables, seed: int, n: int) -> list[CandidateAttempt]:
    rng, rows = generator(seed, "simulated"), []
    for i in range(n):
        right, steps = bool(rng.random() < known.prior), []
        for step in range(3):
            if step:
                right = bool(rng.random() < (1 - known.kernel.broken if right else known.kernel.fix))
            steps.append(
                (
                    int(right),
                    {name: int(rng.random() < (own.right if right else own.wrong)[1]) for name, own in known.critics.items()},
                )
            )
        rows.append(attempt(i, *steps))
    return rows


KNOWN = Tables(
    prior=0.4,
    critics={"tests": Likelihood.of(0.9, 0.35), "review": Likelihood.of(0.75, 0.35)},
    kernel=Kernel(fix=0.25, broken=0.08),
)
CONFIG = ControlConfig(c_ver=50, costs=("tests=2", "review=5"))


@pytest.mark.slow
def test_a_replay_under_the_model_is_worth_what_was_planned() -> None:
    found = replay(simulated(KNOWN, 0, 6000), CONFIG, KNOWN)
    for name, value in found.planned.items():
        error = found.utilities[name].std() / 6000**0.5
        assert abs(found.utilities[name].mean() - value) < 4 * error + 1e-9, name
    assert found.planned[AWARE] == pytest.approx(Plan(KNOWN, CONFIG).value)
    rows = {row.policy: row for row in found.table()}
    assert rows[NULL].utility == 0
    assert rows[NULL].gain_over_best_fixed.value <= 0
    assert rows[found.best_fixed].gain_over_best_fixed.interval == (0, 0)  # no variance: no width


def test_intervals_resample_instances_and_not_candidates() -> None:
    """Attempts that are repeated at the same instances tell nothing new: the same mean and the same interval."""
    once = simulated(KNOWN, 5, 80)
    found, twice = replay(once, CONFIG, KNOWN), replay([*once, *once], CONFIG, KNOWN)
    low, high = found.gain(AWARE, NULL).interval
    assert low < high
    assert twice.gain(AWARE, NULL).interval == pytest.approx((low, high))
    assert found.gain(NULL, NULL).interval == (0, 0)


def test_replays_never_use_tables_of_the_same_instances() -> None:
    rows = simulated(KNOWN, 1, 60)
    with pytest.raises(UserError, match="calibrated on 60 of these instances"):
        replay(rows, CONFIG, calibrate(rows))
    for others, held in folds(rows, 5):
        assert not {one.instance for one in others} & {one.instance for one in held}
    assert sorted(one.instance for _, held in folds(rows, 5) for one in held) == sorted(one.instance for one in rows)
    with pytest.raises(UserError, match="too few for 5 folds"):
        list(folds(rows[:3], 5))
    with pytest.raises(UserError, match="choose a smaller --horizon"):
        replay(rows, ControlConfig(horizon=4))


def test_what_was_said_of_a_text_is_known_of_the_same_text() -> None:
    """The gate asks once: the rewrite brought the same text back, and the second candidate is not asked about again."""
    from ramify.methods.verify_or_ship.algorithm import fixed_rules

    one = attempt(
        "x", (0, {"tests": 0, "review": 0}), (0, {"tests": 0, "review": 0}), (1, {"tests": 1, "review": 1}), texts="aab"
    )
    found = play(fixed_rules(KNOWN, CONFIG)["gate(tests)"], one, KNOWN, CONFIG)
    assert found.actions == ("tests", "rewrite", "rewrite", "tests", "verify")
    assert found.utility == 100 - 50 - 2 * 2 - 2 * 5


def test_regret_of_tables_from_few_records_is_small() -> None:
    made = calibrate(simulated(KNOWN, 3, 500)).plain()
    best = Plan(KNOWN, CONFIG).value
    assert worth(Plan(made, CONFIG).decide, made, CONFIG, truth=KNOWN) >= 0.98 * best
    assert np.isfinite(best)
