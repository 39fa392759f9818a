"""The verbs on the toy: how often independent attempts agree, and the grid of the selector's coefficients."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.methods.tree_rollouts.algorithm import p_mix
from ramify_experiments.tree_rollouts.__main__ import main
from ramify_experiments.tree_rollouts.sweep import expected_l1, p_mix_bound


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.floats(0, 1))
def test_the_bound_holds(n: int, p: float) -> None:
    assert 0 <= p_mix(n, p) <= p_mix_bound(n, p) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize(("p", "mass"), [(0.01, 0.0517), (0.05, 0.2349), (0.1, 0.4190), (0.5, 0.9278)])
def test_expected_l1_mass(p: float, mass: float) -> None:
    assert expected_l1(8, p) == pytest.approx(mass, abs=5e-5)


def test_collapse_prints_the_closed_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collapse", "--p", "0.01", "--n", "8", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["mixed"] == pytest.approx(0.077255, abs=5e-7)
    assert printed["mixed"] + printed["collapsed"] == 1
    assert main(["collapse", "--p", "2", "--n", "8"]) == 2
    assert "--p must lie in [0, 1]" in capsys.readouterr().err
    assert main(["collapse", "--p", "0.5", "--n", "10000000000"]) == 2  # it sums over n terms
    assert main(["sweep", "--prompts", "0"]) == 2


@pytest.mark.slow
def test_the_sweep_names_no_best_cell_by_chance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--prompts", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(printed["cells"]) == 125
    assert printed["default"]["p_corrected"] == 1
    assert printed["verdict"].startswith("nothing stands out: no cell is better than the defaults by more than chance")
