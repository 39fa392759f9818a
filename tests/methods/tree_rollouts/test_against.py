"""``report --against``: two arms on the same tasks differ only where they differ by more than chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.methods.tree_rollouts.record import GrownTree, keep_trees
from ramify.trace.db import Run
from ramify_experiments.tree_rollouts.toy import grow, make_prompts

PROMPTS = make_prompts(60, 0)


def written(path: Path, trees: list[GrownTree]) -> str:
    with Run.create(path, {}) as run:
        keep_trees(run, trees)
    return str(path)


def against(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    assert main(["tree-rollouts", "report", *arguments]) == 0
    printed = capsys.readouterr()
    assert main(["tree-rollouts", "report", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1]), printed.out + printed.err


def test_equal_arms_differ_in_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arms = [written(tmp_path / f"{seed}", grow(PROMPTS, "uucb", seed, budget=32)) for seed in (1, 2)]
    found, text = against(capsys, arms[0], "--against", arms[1])
    versus = found["against"]
    assert versus["differ"] == []
    assert versus["verdict"].startswith("nothing stands out")
    assert "nothing stands out: the arms differ in neither groups with mixed outcomes nor L1 mass by more than chance" in text
    assert (versus["pairs"], versus["unpaired"], versus["equal_cost"]) == (60, 0, True)
    for one in versus["compared"].values():
        assert one["interval"][0] < one["difference"] < one["interval"][1]
        assert one["p_corrected"] >= one["p"] > 0.05
    same = against(capsys, arms[0], "--against", arms[0])[0]["against"]
    assert all(one["difference"] == 0 and one["p"] == 1 for one in same["compared"].values())


@pytest.mark.slow
def test_a_better_arm_is_found_and_unequal_cost_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Twice the budget on the same tasks, so the difference is not a merit of the arm: both are said."""
    rich = written(tmp_path / "rich", grow(PROMPTS, "uucb + allocator", 0, budget=64))
    poor = written(tmp_path / "poor", grow(PROMPTS, "flat", 0, budget=16))
    found, text = against(capsys, rich, "--against", poor)
    assert found["against"]["differ"] == ["mixed", "l1_mass"]
    assert "the share of groups with mixed outcomes is higher and the L1 mass is higher" in text
    assert "only at equal cost" in text
    assert not found["against"]["equal_cost"]
    assert "is lower" in against(capsys, poor, "--against", rich)[1]
    assert against(capsys, rich, "--against", poor, "--level", "0")[0]["against"]["differ"] == []


def test_arms_without_common_tasks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trees = grow(make_prompts(3, 0), "flat", 0, budget=16)
    first, one = written(tmp_path / "first", trees), written(tmp_path / "one", trees[:1])
    assert main(["tree-rollouts", "report", first, "--against", one]) == 2
    assert "these share 1" in capsys.readouterr().err
    for tree in trees:
        tree.unit = "tokens"
    tokens = written(tmp_path / "tokens", trees)
    assert main(["tree-rollouts", "report", first, "--against", tokens]) == 2
    assert "their budgets cannot be equal" in capsys.readouterr().err
