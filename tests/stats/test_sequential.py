from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ramify.methods.cliffs.passk import pass_at_k
from ramify.stats.drops import ZTest
from ramify.stats.sequential import chance_of, final_count


def test_pass_at_k() -> None:
    assert pass_at_k(64, 1, 64) == 1
    assert pass_at_k(64, 0, 8) == 0
    assert Fraction(pass_at_k(4, 2, 2)).limit_denominator(100) == Fraction(5, 6)
    assert pass_at_k(64, 12, 64) == 1
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    for n, c, k in ((4, 2, 5), (4, 5, 1), (4, 2, 0), (4, -1, 1)):
        with pytest.raises(ValueError, match=r"pass@|not a count"):
            pass_at_k(n, c, k)


def test_final_count_is_beta_binomial() -> None:
    assert final_count(3, 8, 8)[3] == pytest.approx(1)
    assert final_count(0, 0, 4) == pytest.approx([0.2] * 5)  # a uniform rate makes every count as likely
    chances = final_count(5, 16, 64)
    assert chances.sum() == pytest.approx(1)
    assert chances @ np.arange(65) == pytest.approx(5 + 48 * 6 / 18)
    for k, m, n in ((2, 1, 4), (1, 5, 4), (-1, 3, 4)):
        with pytest.raises(ValueError, match="not a count"):
            final_count(k, m, n)


def test_chance_of_by_simulation() -> None:
    table = np.add.outer(-np.arange(33), np.arange(33)) < -8  # k1 - k2 > 8
    rng = np.random.default_rng(0)
    p1, p2 = rng.beta(13, 5, 200_000), rng.beta(9, 9, 200_000)
    seen = np.mean(12 + rng.binomial(16, p1) - 8 - rng.binomial(16, p2) > 8)
    assert chance_of(table, 12, 16, 8, 16) == pytest.approx(seen, abs=0.005)


def test_a_bound_on_what_a_token_can_lose() -> None:
    table = ZTest().table(64)
    free = chance_of(table, 14, 16, 10, 16)
    assert chance_of(table, 14, 16, 10, 16, pi=0.001) == pytest.approx(free, abs=0.01)  # so rare a token may lose everything
    assert chance_of(table, 14, 16, 10, 16, pi=0.85) < 0.25 * free
    assert chance_of(table, 15, 16, 12, 16, pi=0.85) < 0.01
    assert chance_of(table, 64, 64, 0, 64, pi=0.99) == 1.0  # counts that no token can explain are not explained away
