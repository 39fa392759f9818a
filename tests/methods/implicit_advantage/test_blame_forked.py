"""`blame --fork`: steps are confirmed by playing on from before and from behind them,
where they cost success and nowhere else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.cli.main import main
from ramify.methods.implicit_advantage.confirm import weighed
from ramify.methods.implicit_advantage.run import AdvantageScorer, keep_grades
from ramify.score.trajectories import load_trajectories
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.node import Annotation, Finding

PARTS = (
    "--model",
    "factory:tests.halls:agent",
    "--env",
    "factory:tests.halls:Halls",
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three attempts at each of four halls."""
    folder = tmp_path_factory.mktemp("played") / "run"
    words = ["rollout", *PARTS, "--count", 4, "--attempts", 3, "--out", folder, "--json"]
    assert main([*map(str, words)]) == 0
    return folder


def blamed(played: Path, folder: Path, step: int) -> Path:
    """A copy of the run in which a pair of models graded this step of every failed attempt low, by the log-probs of both."""
    shutil.copytree(played, folder)
    graded = []
    for one in load_trajectories(folder)[0]:
        reference = np.full(len(one.tokens), -1.0, np.float32)
        policy = reference - np.where((one.step == step) & (one.success is False), 2.0, 0.0).astype(np.float32)
        graded.append(replace(one, policy_logprobs=policy, reference_logprobs=reference))
    scored = AdvantageScorer(None).score_many(graded)
    assert keep_grades(folder, scored, [one.record() for one in scored], None) == ""
    return folder


def asked(run: Path, capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["implicit-advantage", "blame", "--scores", str(run), "--level", "1", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def nodes(run: Path) -> int:
    with Run.open(run) as opened:
        return sum(1 for tree in opened.trees() for _ in opened.nodes(tree.name))


def test_the_step_that_loses_is_confirmed_and_kept(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = blamed(played, tmp_path / "run", 1)
    assert all(row["fork"] is None for row in asked(run, capsys)["blamed"])
    found = asked(run, capsys, "--fork", 24)
    assert len(found["blamed"]) >= 2
    for row in found["blamed"]:
        assert (row["step"], row["fork"]["confirmed"]) == (1, True)
        assert row["fork"]["after"]["successes"] == 0
        assert row["fork"]["before"]["interval"][0] > row["fork"]["after"]["interval"][1]
    assert f"forks confirm {len(found['blamed'])} of {len(found['blamed'])} steps" in found["verdict"]
    with Run.open(run) as opened:
        kept = [one for one in opened.each(Finding) if one.name == "step to blame"]
        assert all(one.why.endswith(": confirmed") and one.evidence["fork"]["confirmed"] for one in kept)
        assert {mark.node for mark in opened.each(Annotation) if mark.name.startswith("potential:blame")}
    held = nodes(run)
    assert asked(run, capsys, "--fork", 24) == found
    assert nodes(run) == held  # what is stored was loaded
    assert asked(run, capsys, "--fork", 30)["blamed"][0]["fork"]["before"]["n"] == 30
    assert nodes(run) > held
    assert main(["implicit-advantage", "blame", "--scores", str(run), "--level", "1", "--fork", "24"]) == 0
    told = capsys.readouterr().out
    assert "forks say" in told
    assert "not confirmed" not in told


@pytest.mark.parametrize("step", [0, 2])
def test_no_step_that_changes_nothing_is_confirmed(
    step: int, played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(blamed(played, tmp_path / "run", step), capsys, "--fork", 16)
    assert {(row["step"], row["fork"]["confirmed"]) for row in found["blamed"]} == {(step, False)}
    assert "forks confirm 0 of" in found["verdict"]


@pytest.mark.slow
def test_p_values_keep_their_level_over_many_steps() -> None:
    """300 reports on eight steps each, whose attempts succeed alike from before and from behind."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(300):
        k = rng.binomial(32, rng.random((8, 1)), (8, 2))
        counts = {str(i): (Counts(int(b), 32), Counts(int(a), 32)) for i, (b, a) in enumerate(k)}
        false += any(row.confirmed for row in weighed(counts).values())
    assert false <= 15


def test_what_got_no_outcome_is_not_measured() -> None:
    (row,) = weighed({"a": (Counts(0, 0, 4), Counts(1, 4))}).values()
    assert (row.confirmed, row.difference, row.before.success, row.before.failed) == (None, None, None, 4)


def test_what_cannot_be_played_is_said_in_one_sentence(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: object) -> str:
        capsys.readouterr()
        assert main(["implicit-advantage", "blame", *map(str, words)]) == 2
        return capsys.readouterr().err

    run = blamed(played, tmp_path / "run", 1)
    row = {"task_id": "t", "prompt_ids": [1], "completion_ids": [2, 3], "env_mask": [1, 0], "reward": 0.0}
    row |= {"old_log_probs": [-9.0, 0.0], "ref_log_prob": [-5.0, 0.0]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    rows, made = str(tmp_path / "rows.jsonl"), str(tmp_path / "made")
    assert main(["implicit-advantage", "score", "--trajectories", rows, "--out", made]) == 0
    assert "rows.jsonl is not a run" in refused("--scores", rows, "--fork", 4)
    assert "there is nothing to continue with" in refused("--scores", tmp_path / "made", "--fork", 4)
    assert "what the agent was shown before" in refused(
        "--scores", tmp_path / "made", "--level", 1, "--fork", 4, *PARTS, "--trust"
    )
    assert "--fork N" in refused("--scores", run, *PARTS)
