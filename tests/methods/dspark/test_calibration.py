"""Calibration errors by hand, and the floor that labels sampled from the predictions themselves leave."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.methods.dspark.calibration import calibration_error, calibration_floor
from ramify.stats.ranking import auroc


def test_calibration_error_and_ranking_by_hand() -> None:
    p, y = np.array([0.1, 0.1, 0.9, 0.9]), np.array([0, 0, 1, 0])
    assert calibration_error(p, y) == pytest.approx((0.2 + 0.8) / 4)
    assert auroc(p, y) == pytest.approx((2 + 0.5) / 3)
    assert auroc(p, np.ones(4)) is None
    assert np.isnan(calibration_error(p[:0], y[:0]))
    assert calibration_error(np.array([1.0]), np.array([1])) == 0


def test_a_perfect_predictor_is_at_the_floor() -> None:
    p = np.random.Generator(np.random.Philox(0)).beta(4, 1.2, (1500, 7))[:, 0]
    y = np.random.Generator(np.random.Philox(5)).random(1500) < p
    assert calibration_error(p, y) == pytest.approx(calibration_floor(p), abs=0.015)
    assert calibration_floor(p, seed=1) == pytest.approx(calibration_floor(p, seed=2), abs=0.003)
