"""The exact-potential process: a martingale in bounds, whose outcome follows its last potential."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify_experiments.cliffs.martingale import choices, potential_after, simulate


def test_potentials_are_a_martingale_that_stays_in_bounds() -> None:
    rng = generator(0, "test")
    v = rng.uniform(0, 1, 3000)
    q, spread = choices(rng.choice(3, 3000), rng)
    after = potential_after(v, q, spread, rng)
    assert q.sum(axis=1) == pytest.approx(1.0)
    assert (q * after).sum(axis=1) == pytest.approx(v)
    assert ((after >= 0) & (after <= 1)).all()
    # a drop cannot exceed 1 - pi of its token
    assert (np.where(q > 0, v[:, None] - after, 0) <= 1 - q + 1e-9).all()


def test_the_outcome_follows_the_last_potential() -> None:
    made = simulate(600, 150, 1)
    assert made["v"].shape == (600, 151)
    assert all(made[name].shape == (600, 150) for name in ("pi", "entropy", "greedy"))
    likely = made["v"][:, -1] > 0.9
    assert made["right"][likely].mean() > 0.9
    assert abs(made["right"].mean() - made["v"][:, 0].mean()) < 0.06
    assert (made["entropy"][made["pi"] > 0.99] < 0.12).all()
