"""The reproduction's checks on rounds whose truth is known, and its quick size end to end."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.dspark.rounds import Rounds
from ramify_experiments.dspark.domains import DOMAINS
from ramify_experiments.dspark.repro import (
    acceptance_checks,
    calibration_cell,
    calibration_checks,
    reproduce,
    seed_checks,
    simulation_cell,
    simulation_checks,
)
from ramify_experiments.lab import ResultCache


def made(alpha: np.ndarray, n: int, seed: int, sure: float = 12.0) -> Rounds:
    """Rounds whose conditional acceptance at each position varies around ``alpha`` [G]; the confidences are true."""
    rng = np.random.Generator(np.random.Philox(seed))
    p = rng.beta(sure * alpha, sure * (1 - alpha), (n, len(alpha)))
    accepted = np.cumprod(rng.random(p.shape) < p, axis=1).sum(axis=1)
    return Rounds(accepted, np.full(n, len(alpha)), np.zeros(n, bool), p, np.arange(n) // 24)


FLAT, FALLING = np.full(7, 0.9), np.array([0.9, 0.8, 0.7, 0.65, 0.6, 0.55, 0.5])


def by_domain(alpha: np.ndarray, seed: int, n: int = 600) -> dict[str, Rounds]:
    return {domain: made(alpha, n, seed + i) for i, domain in enumerate(DOMAINS)}


def test_flat_acceptance_against_falling_passes_and_equal_ones_miss() -> None:
    good = acceptance_checks({"DSpark": by_domain(FLAT, 0), "DFlash": by_domain(FALLING, 9)}, quick=False)
    same = acceptance_checks({"DSpark": by_domain(FLAT, 0), "DFlash": by_domain(FLAT, 9)}, quick=False)
    assert {check.status for check in good} == {"pass", "reported"}
    missed = [check.name for check in same if check.status == "miss"]
    assert missed == [
        "DSpark over DFlash: tokens a pass, macro",
        *(f"DSpark - DFlash: acceptance at positions 5 to 7, {domain}" for domain in ("code", "chat")),
    ]
    ratio = next(check for check in good if check.name.startswith("DSpark over"))
    assert ratio.interval is not None
    assert ratio.interval[0] < ratio.value < ratio.interval[1]


@pytest.mark.slow
def test_the_mean_over_seeds_is_judged_as_each_seed_is() -> None:
    def measured(late: float, seed: int) -> dict[str, dict[str, Rounds]]:
        falling = np.array([*FALLING[:4], *[late] * 3])
        return {"DSpark": by_domain(FLAT, seed, 2400), "DFlash": by_domain(falling, seed + 9, 2400)}

    checks = {check.name: check for check in seed_checks({0: measured(0.7, 0), 1: measured(0.5, 40)})}
    name = "DSpark - DFlash: acceptance at positions 5 to 7, code"
    each, mean = [checks[f"{name}, seed {seed}"].value for seed in (0, 1)], checks[f"{name}, mean over seeds"]
    assert each == pytest.approx([0.2, 0.4], abs=0.06)
    assert mean.value == pytest.approx(np.mean(each))
    assert (mean.status, mean.seeds, mean.threshold) == ("pass", (0, 1), 0.1)
    assert mean.interval is not None
    assert mean.interval[0] < 0 < each[0] < each[1] < mean.interval[1]  # two seeds show little
    same = seed_checks({seed: {"DSpark": by_domain(FLAT, seed), "DFlash": by_domain(FLAT, seed + 9)} for seed in (0, 1)})
    assert sum(check.status == "miss" for check in same) == 3


def test_doubled_logits_are_mended_and_the_check_sees_it() -> None:
    rounds = codec.to_json(made(FLAT, 1500, 1).kept())
    plain, heated = calibration_cell(rounds, 1.0), calibration_cell(rounds, 2.0)
    checks = calibration_checks(plain, heated, quick=False)
    assert next(c for c in checks if c.threshold is not None).status == "pass"
    assert np.mean(plain["before"]) < 2 * np.mean(plain["floor"])
    untouched = dict(heated, after=heated["before"])
    assert next(c for c in calibration_checks(plain, untouched, quick=False) if c.threshold is not None).status == "miss"


@pytest.mark.slow
def test_schedules_on_true_confidences_pass() -> None:
    rounds = codec.to_json(made(np.linspace(0.93, 0.6, 7), 2000, 3, sure=1.5).kept())
    loads = (1, 16, 64)
    runs = [{load: simulation_cell(rounds, stair, load, 80, 0) for load in loads} for stair in (1, 16)]
    checks = simulation_checks(runs[0], runs[1], 80, quick=True)
    assert [check.name for check in checks if check.status == "miss"] == []


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(UserError, match="quick and cpu"):
        reproduce("gpu", ResultCache())
