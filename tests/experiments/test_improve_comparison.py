"""The comparison of ``ramify improve``: its cells on real runs, how they are tuned and judged,
and whose processor may continue a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ramify.jobs.improve import ImproveConfig
from ramify.score.credit.protocol import assigned
from ramify.testing import check_credit, example_group
from ramify_experiments import improve
from ramify_experiments.improve import (
    AFTERWARDS,
    MAIN,
    SETTINGS,
    SPENT,
    TODAY,
    TUNED,
    TUNING,
    WEIGHTED,
    ArmGrid,
    compared,
    comparisons,
    hours,
    so_far,
    tuning,
)
from ramify_experiments.lab import ResultCache

EFFECT = {"start": 0.1, "auto": 0.4, WEIGHTED: 0.4, "imitate": 0.3, "grpo": 0.2}
ARMS = ("start", *MAIN["household"])


def made_up(arm: str, seed: int, budget: str, env: str, train: Mapping[str, Any], episodes: int = 0) -> dict[str, Any]:
    """A result that is known: the arm's effect, better with the fourth setting, and a little that the seed decides."""
    success = EFFECT.get(arm, 0.25) + 0.01 * (seed % 3) + 0.05 * (train == TUNED[3])
    told = dict.fromkeys(("entropy", *SPENT), 1.0)
    return {"success": success, "pass@4": success, "processor": "here", **told}


def in_turn(function: Any, missing: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, arguments in missing.items():
        yield key, improve.cell(**arguments)


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultCache:
    monkeypatch.setattr(improve, "cell", made_up)
    return ResultCache(tmp_path / "cells", runner=in_turn, edition="test")


def test_every_arm_is_one_that_improve_takes() -> None:
    for settings in SETTINGS.values():
        ImproveConfig.model_validate(settings)
    assert {*TUNING, *MAIN["household"], *MAIN["long-household"]} <= SETTINGS.keys()


@pytest.mark.slow
def test_a_cell_holds_what_its_arm_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(improve.BUDGETS, "tiny", {"updates": 2, "tokens": 600, "tasks_per_update": 4})
    found = improve.cell("auto", 3, "tiny", episodes=4, train={"lr": 1e-3, "epochs": 2})
    assert found["updates"] == len(found["curve"]) == 2
    assert 400 < found["tokens"] == found["curve"][-1][0] < 900
    assert found["attempts"] > 0
    assert found["processor"]
    assert found["prefill"] > found["tokens"]
    assert 0 < found["entropy"] < 3
    assert improve.cell("start", 3, "tiny", episodes=4)["tokens"] == 0


def test_arms_are_tuned_frozen_compared_and_corrected(cells: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    grid = [ArmGrid("household", "40k", ARMS, (0, 1, 2, 3))]
    found = {check.name: check for check in compared(cells, grid, "here")}
    assert "hours on two idle cores in all; 0 of" in capsys.readouterr().err
    assert found[f"household, 40k, {WEIGHTED}: success"].value == pytest.approx(0.45 + 0.01 * 3 / 4), (
        "tuned to the fourth setting"
    )
    assert found["household, 40k, start: success"].value == pytest.approx(0.1 + 0.01 * 3 / 4)
    bound = found[f"household, 40k, {WEIGHTED} - imitate: lower 95 % bound"]
    assert (bound.threshold, bound.status) == (-0.01, "pass")
    assert found[f"household, 40k, {WEIGHTED} - grpo: p, corrected"].value == pytest.approx(4 * 2 / 2**4)
    again = compared(cells, grid, "here")
    assert {check.name: check.value for check in again} == {name: check.value for name, check in found.items()}


def test_a_seed_that_another_processor_began_is_left_to_it(cells: ResultCache) -> None:
    grid = [ArmGrid("household", "40k", ARMS, (0, 1))]
    compared(cells, grid, "here")
    for path in sorted(cells.folder.glob("household*grpo*seed-1*")):  # type: ignore[union-attr]
        path.unlink()
    found = {check.name: check.n for check in compared(cells, grid, "elsewhere")}
    assert found[f"household, 40k, {WEIGHTED}: success"] == 1, "the complete seed counts, the other waits"


def test_tuning_is_on_tasks_of_its_own_and_the_whole_takes_a_day_at_most() -> None:
    every = {key: one for env in improve.ENVS for key, one in tuning(env).items()}
    seeds = {one["seed"] for one in every.values()}
    grid = {key: one for c in comparisons(range(10)) for seed in c.seeds for key, one in c.cells(seed, {}).items()}
    assert not seeds & {one["seed"] for one in grid.values()}
    starts = [key for key in grid if " start, seed" in key]
    assert len(starts) == 10 * 3, "one serves both budgets"
    controls = [arm for arm in SETTINGS if arm not in (*MAIN["household"], *AFTERWARDS, *TODAY)]
    arms = sum(map(len, MAIN.values())) + len(AFTERWARDS) + len(TODAY)
    assert len(grid) == len(starts) + 10 * 2 * arms + 5 * (1 + len(controls))
    assert hours(every | grid) < 24


@pytest.mark.parametrize("rule", [improve.RandomCredit, improve.ShuffledCredit])
def test_controls_conform_and_keep_the_amount_of_credit(rule: Any) -> None:
    assert check_credit(rule()) == []
    group = example_group(["mixed"])
    credited = sum(float(values.max()) > 0 for values in assigned(rule(), group).values())
    assert 0 < credited < len(group.nodes)


def test_what_is_there_is_judged_and_nothing_is_played(cells: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = [ArmGrid("household", "40k", ARMS, (0, 1, 2))]
    compared(cells, grid[:1], "here")
    for path in sorted(cells.folder.glob("household*grpo*seed-1*")):  # type: ignore[union-attr]
        path.unlink()
    monkeypatch.setattr(cells, "runner", None)
    found = {check.name: check for check in so_far(cells, grid)}
    assert found["household, 40k, 6 arms: cells"].value == 3 * 6 - 1
    assert found[f"household, 40k, {WEIGHTED}: success"].n == 2
    assert found["household, 40k, infotree+g2po - grpo: success"].value == pytest.approx(0.05)
    assert found["tuning, household, grpo: cells"].value == len(tuning("household", ("grpo",))) == 18
    assert found["tuning, household, grpo: the best, a rate of 0.001 and epochs 4"].value == pytest.approx(0.2 + 0.01 + 0.05)


def test_controls_are_paired_with_the_arms_they_vary_and_tell_of_themselves_alone(cells: ResultCache) -> None:
    grid = [one for one in comparisons(range(3)) if one.env == "household" and one.budget == "40k"]
    found = {check.name: check for check in compared(cells, grid, "here")}
    assert [name for name in found if name.startswith(f"household, 40k, imitate, runner-up, {WEIGHTED}")] == []
    gap = found[f"household, 40k, imitate, runner-up, imitate, runner-up - {WEIGHTED}: success"]
    assert (gap.n, gap.value) == (3, pytest.approx(0.25 - (0.4 + 0.05))), "tuned to the fourth setting, its runner-up to another"
    assert found["household, 40k, controls, start, sharper - start: success"].n == 3
    bound = found["household, 40k, fresh seeds, auto - imitate, runner-up: lower 95 % bound"]
    assert (bound.threshold, bound.n) == (-0.01, 3), "what was claimed of auto is claimed of today's, too"
    assert {seed for one in grid for seed in one.seeds} == {0, 1, 2, 10, 11, 12}
