"""The reproduction of theory-loop: its parts are decided by their seeds, its quick size passes, its cases run."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.methods.theory_loop.confirmation import level_shift, steep_flat, t_test, worth
from ramify_experiments.cases import verdict
from ramify_experiments.lab import ResultCache
from ramify_experiments.theory_loop.nulls import CASES
from ramify_experiments.theory_loop.repro import dial, gate_rates, reproduce


def test_the_dial_is_three_rules_at_once() -> None:
    assert dial() == {"tallying": 1.0, "validity-wadd": 1.0, "ttb": 1.0}


def test_a_seed_decides_the_gate() -> None:
    assert gate_rates(1, 200) == gate_rates(1, 200)
    assert gate_rates(1, 200)["1.25"] > 0.9 > gate_rates(1, 200)["0.5"]


def test_steep_against_flat_is_even_for_every_linear_rule() -> None:
    design = steep_flat()
    a, b = design.options
    for seed in range(20):
        w, beta = np.random.default_rng(seed).uniform(0, 1, 4), 3.0
        assert (1 / (1 + np.exp(-beta * ((b - a) @ w)))).mean() == pytest.approx(0.5)
    for x, y in zip(design.a, design.b, strict=True):
        assert sum(x) == sum(y)  # equal steps: only where they stand differs
        assert (
            worth(np.array(x), 0.5, 1.0).sum() > worth(np.array(y), 0.5, 1.0).sum()
        )  # diminishing returns choose A, the low one


def test_a_shift_leaves_linear_rules_where_they_were() -> None:
    low, high, side = level_shift(0)
    for one, up in zip((*low.a, *low.b), (*high.a, *high.b), strict=True):
        assert len({y - x for x, y in zip(one, up, strict=True)}) == 1
    assert set(side.tolist()) <= {0, 1}
    assert low.pairs == high.pairs == 12


def test_the_t_testest() -> None:
    from scipy.stats import ttest_1samp

    values = np.random.default_rng(0).normal(0.2, 1, 40)
    assert t_test(values)[1] == pytest.approx(float(ttest_1samp(values, 0, alternative="greater").pvalue))
    assert t_test(np.zeros(5)) == (0.0, 1.0)
    assert t_test(np.ones(5))[1] == 0.0


def test_sizes_and_cases() -> None:
    with pytest.raises(UserError, match="no size 'gpu'"):
        reproduce("gpu", ResultCache())
    assert {case.truth for case in CASES} == {"nothing", "planted"}
    assert verdict(CASES[0], [True] * 6).status == "miss"  # the count can fail
