"""The verbs on a real pair of checkpoints: files out, tables, exit codes, and every bad input in one sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.engine.checkpoints import model_folder
from ramify.engine.tiny import TinyLM
from ramify.methods.implicit_advantage import report as reports
from ramify.methods.implicit_advantage.records import ScoredStep, ScoreRecord
from ramify.methods.implicit_advantage.run import read_scores
from ramify.model.tokenizer import HfTokenizer
from ramify.trace.db import Run

METHOD = "implicit-advantage"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The built-in agent, and itself with some noise as its reference."""
    base = tmp_path_factory.mktemp("pair")
    module, tokenizer = TinyLM.load(model_folder("builtin")), HfTokenizer.load(model_folder("builtin"))
    module.save(base / "policy", tokenizer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
    module.save(base / "reference", tokenizer)
    return str(base / "policy"), str(base / "reference")


def attempts(path: Path, tasks: range = range(6), **more: Any) -> Path:
    rng = np.random.default_rng(tasks.start)
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            for trial in range(4):
                steps: list[dict[str, Any]] = [
                    {"role": "user", "token_ids": rng.integers(20, 90, 6).tolist(), "is_action": False}
                ]
                for _ in range(3):
                    steps.append({"role": "assistant", "token_ids": rng.integers(20, 90, 4).tolist(), "is_action": True})
                    steps.append({"role": "user", "token_ids": rng.integers(20, 90, 3).tolist(), "is_action": False})
                outcome = {"reward": float(rng.random() < 0.5)}
                file.write(
                    json.dumps({"task_id": f"task-{task}", "trial": trial, "steps": steps, "outcome": outcome} | more) + "\n"
                )
    return path


@pytest.fixture(scope="module")
def scores(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("scores")
    found = []
    for name, tasks in (("scores", range(6)), ("val", range(6, 12))):
        source = attempts(folder / f"{name}-t.jsonl", tasks)
        out = folder / name
        args = ["score", "--trajectories", str(source), "--policy", pair[0], "--reference", pair[1], "--out", str(out)]
        assert main([METHOD, *args, "--confidence"]) == 0
        found.append(out)
    return found[0], found[1]


def test_score_writes_the_record_of_the_spec(scores: tuple[Path, Path]) -> None:
    rows = read_scores(scores[0])
    assert len(rows) == 24
    row = rows[0]
    assert (row.beta, row.order, row.token_agg, row.step_agg) == (1.0, "ratio", "sum", "mean")
    assert (row.steps[0].i, row.steps[0].n_tokens, row.steps[0].truncated) == (0, 4, False)
    assert row.steps[0].confidence is not None
    assert row.steps[0].A_sum == pytest.approx(row.steps[0].logp_theta - row.steps[0].logp_ref, abs=1e-4)
    assert row.score == pytest.approx(np.mean([step.A_sum for step in row.steps]))
    assert (row.policy, row.reference, row.trajectory_id) == ("policy", "reference", "task-0/0")


def test_report_compares_with_every_baseline(scores: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([METHOD, "report", "--scores", str(scores[0]), "--calibrate", str(scores[1]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [row["scorer"] for row in found["scorers"]]
    assert names[0] == "advantage sum/mean"
    assert {"policy log-prob", "reference log-prob", "self-certainty", "deepconf tail", "deepconf bottom 10 %", "shortness"} <= {
        *names
    }
    assert "mean top-20 log-prob (released code)" in names
    assert found["luck_ceiling"] == 1.0
    assert found["repeated_decisions"] == 0
    assert found["tuned_on_calibration"] >= 0.5 or found["tuned"] == ["sum", "mean"]
    first = found["scorers"][0]
    assert first["interval"][0] <= first["auroc"] <= first["interval"][1]
    assert main([METHOD, "report", "--scores", str(scores[0])]) == 0
    assert "policy log-prob" in capsys.readouterr().out


def test_select_takes_the_highest_and_says_what_it_was_worth(
    scores: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([METHOD, "select", "--scores", str(scores[0]), "--best-of", "4", "--calibrate", str(scores[1]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = read_scores(scores[0])
    for pick in found["chosen"]:
        own = [row.score for row in rows if row.task_id == pick["group"]]
        assert pick["score"] == max(own)
    by = found["by"]["sum/mean"]
    assert by["best_of"] - by["mean"] == pytest.approx(by["gain"])
    assert by["mean"] <= by["oracle"]
    assert any("tuned" in name for name in found["by"])


def test_a_scorer_that_tells_nothing_apart_gains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {f"task-{i}/{trial}": (not trial, [0.1, 0.2]) for i in range(8) for trial in range(4)}  # the first attempt wins
    path = graded(capsys, tmp_path / "scores.jsonl", rows)
    assert main([METHOD, "select", "--scores", str(path), "--best-of", "4", "--by", "few-steps", "--json"]) == 0
    worth = json.loads(capsys.readouterr().out)
    few = worth["by"]["few steps"]
    assert (few["best_of"], few["mean"], few["gain"], few["gain_p"]) == (0.25, 0.25, 0.0, 1.0)
    assert {pick["tied"] for pick in worth["chosen"]} == {4}
    assert "nothing stands out" in worth["verdict"]


def test_blame_without_a_floor_names_the_lowest_steps_of_failed_attempts(
    scores: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([METHOD, "blame", "--scores", str(scores[0]), "--top", "2", "--level", "1", "--json"]) == 0
    blamed = json.loads(capsys.readouterr().out)["blamed"]
    rows = {row.trajectory_id: [step.A_sum for step in row.steps] for row in read_scores(scores[0]) if not row.success}
    assert {b["trajectory_id"] for b in blamed} == {name for name, grades in rows.items() if min(grades) < 0}
    for b in blamed:
        assert b["grade"] == sorted(rows[b["trajectory_id"]])[b["rank"] - 1] < 0


def graded(
    capsys: pytest.CaptureFixture[str],
    path: Path,
    rows: dict[str, tuple[bool, list[float]]],
    logp: tuple[float, float] = (-5, -5),
) -> Path:
    """Score records of attempts (TASK or TASK/TRIAL) whose steps have these grades, made of a trainer's rows; ``logp`` is the
    reference's of each step of an attempt that failed, and of one that succeeded."""
    with (path.parent / "rows.jsonl").open("w", encoding="utf-8") as file:
        for name, (won, grades) in rows.items():
            task, _, trial = name.partition("/")
            row: dict[str, Any] = {"task_id": task, "trial": int(trial or 0), "prompt_ids": [1], "reward": float(won)}
            row |= {"completion_ids": [2, 3] * len(grades), "env_mask": [1, 0] * len(grades)}
            row["old_log_probs"] = [value for grade in grades for value in (logp[won] + grade, 0.0)]
            row["ref_log_prob"] = [logp[won], 0.0] * len(grades)
            file.write(json.dumps(row) + "\n")
    assert main([METHOD, "score", "--trajectories", str(path.parent / "rows.jsonl"), "--out", str(path)]) == 0
    capsys.readouterr()
    return path


def changed(run: Path, folder: Path, change: dict[str, Any]) -> Path:
    """A copy of a run that was scored, with another entry in every record."""
    shutil.copytree(run, folder)
    with Run.open(folder, write=True) as opened:
        scores = opened.scores(scorer=METHOD)
        opened.add(*(replace(one, evidence=one.evidence | change) for one in scores))
    return folder


def ordinary(n: int, name: str = "won") -> dict[str, tuple[bool, list[float]]]:
    rng = np.random.default_rng(n)
    return {f"{name}-{i}": (True, rng.normal(0, 0.3, 3).tolist()) for i in range(n)}


def blamed(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[dict[str, list[int]], dict[str, Any]]:
    assert main([METHOD, "blame", "--scores", str(path), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named: dict[str, list[int]] = {}
    for row in found["blamed"]:
        named.setdefault(row["trajectory_id"].partition("/")[0], []).append(row["step"])
    return named, found


def test_blame_names_only_what_lies_below_the_noise_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"bad-0": (False, [0.1, -6.0, 0.05]), "bad-1": (False, [0.05, 0.2, -7.0])}
    luck = {"luck-0": (False, [0.05, -0.0005, 0.1]), "luck-1": (False, [0.3, 0.2, 0.1])}
    path = graded(capsys, tmp_path / "s", ordinary(60) | wrong | luck)
    for rule in ("sharpest-drop", "sharpest-change", "min-cumulative"):
        named, found = blamed(capsys, path, "--rule", rule, "--top", "2")
        assert named == {"bad-0": [1], "bad-1": [2]}, rule  # neither -0.0005 nor, as a second, +0.05
    assert found["floor"] == {
        "grade": pytest.approx(-6.0),
        "level": 0.05,
        "attempts": 4,
        "steps": 12,
        "ordinary": 60,
        "fewest": 2,
    }
    assert found["verdict"].startswith("steps stand out in 2 of 4 attempts: noise floor -6, held against 60 successful attempts")
    assert main([METHOD, "blame", "--scores", str(path)]) == 0
    assert capsys.readouterr().out.startswith(found["verdict"])


@pytest.mark.slow
def test_a_model_against_itself_has_no_step_to_blame(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = attempts(tmp_path / "t.jsonl", range(15)), tmp_path / "s"
    assert (
        main([METHOD, "score", "--trajectories", str(source), "--policy", pair[0], "--reference", pair[0], "--out", str(out)])
        == 0
    )
    capsys.readouterr()
    for level in ("0.05", "1"):
        assert blamed(capsys, out, "--top", "2", "--level", level)[0] == {}
    assert main([METHOD, "blame", "--scores", str(out)]) == 0
    assert capsys.readouterr().out.startswith("nothing stands out")


def test_successes_of_other_tasks_show_the_noise_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "more").mkdir()
    lost = graded(capsys, tmp_path / "s", {"bad": (False, [0.1, -6.0]), "won-0": (True, [0.1, 0.1])})
    named, found = blamed(capsys, lost)
    assert named == {}
    assert found["verdict"].startswith("nothing can stand out: 1 successful attempts show no noise floor at level 0.05")
    assert "takes 19 or more" in found["verdict"]
    more = graded(capsys, tmp_path / "more" / "s", ordinary(18, "more"))
    assert blamed(capsys, lost, "--against", str(more))[0] == {"bad": [1]}
    assert main([METHOD, "blame", "--scores", str(lost), "--against", str(lost)]) == 2
    assert "'bad/0' is in both files" in capsys.readouterr().err
    other = changed(more, tmp_path / "other", {"beta": 0.5})
    assert main([METHOD, "blame", "--scores", str(lost), "--against", str(other)]) == 2
    assert "graded with 'beta' 0.5, these with 1.0" in capsys.readouterr().err
    assert main([METHOD, "blame", "--scores", str(lost), "--level", "5"]) == 2
    assert "--level is a share" in capsys.readouterr().err


@pytest.mark.slow
def test_the_report_begins_with_the_better_scorer_and_select_chooses_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)  # the log-prob tells how an attempt ends, the grade does not
    rows = {f"task-{i // 2}/{i % 2}": (bool(i % 2), rng.normal(0, 0.3, 2).tolist()) for i in range(60)}
    path = graded(capsys, tmp_path / "s", rows, (-8, -4))
    assert main([METHOD, "report", "--scores", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("the policy's own log-prob ranks better than the grade, by 0.")
    assert first.endswith("choose with select --by policy-log-prob")
    assert main([METHOD, "report", "--scores", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["better"] == "policy log-prob"
    found = {}
    for by in ("advantage", "policy-log-prob", "policy log-prob"):
        assert main([METHOD, "select", "--scores", str(path), "--by", by, "--json"]) == 0
        found[by] = json.loads(capsys.readouterr().out)
    won = {row.trajectory_id for row in read_scores(path) if row.success}
    assert {pick["trajectory_id"] for pick in found["policy-log-prob"]["chosen"]} == won
    assert found["policy-log-prob"]["verdict"].startswith(
        "choosing by policy-log-prob gained success: +0.500 over the mean of 8 at 30 tasks"
    )
    assert found["policy log-prob"]["chosen"] == found["policy-log-prob"]["chosen"] != found["advantage"]["chosen"]
    assert found["advantage"]["verdict"].startswith("nothing stands out: choosing by advantage")
    assert main([METHOD, "select", "--scores", str(path), "--by", "policy-logprob"]) == 2
    assert "no scorer 'policy-logprob' to choose by; did you mean 'policy-log-prob'?" in capsys.readouterr().err


@pytest.mark.slow
def test_a_partly_scored_file_is_exit_code_4(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = attempts(tmp_path / "t.jsonl", range(1)), tmp_path / "s"
    args = ["score", "--trajectories", str(source), "--policy", pair[0], "--reference", pair[1], "--out", str(out)]
    assert main([METHOD, *args, "--max-length", "20"]) == 4
    assert "cut from the left: task-0/0" in capsys.readouterr().out
    record = json.loads(source.read_text().splitlines()[0])
    record |= {"trial": 9, "steps": [*record["steps"], {"role": "assistant", "token_ids": [30] * 5000, "is_action": True}]}
    source.write_text(source.read_text() + json.dumps(record) + "\n")
    assert main([METHOD, *args]) == 2
    assert "began with other settings: max_length was 20, is 16384; attempts was" in capsys.readouterr().err
    args[-1] = str(tmp_path / "other")
    for _ in range(2):  # the same command again ends alike
        assert main([METHOD, *args]) == 4
        assert "skipped: attempt 'task-0/9'" in capsys.readouterr().out
        assert len(read_scores(tmp_path / "other")) == 4


def test_a_trainers_log_probs_need_no_model(tmp_path: Path) -> None:
    record = {"task_id": "t", "prompt_ids": [1], "completion_ids": [2, 3], "env_mask": [1, 1], "reward": 1}
    source, out = tmp_path / "t.jsonl", tmp_path / "s"
    record["policy_id"] = "step-40"
    source.write_text(json.dumps(record | {"old_log_probs": [-1.0, -1.0], "ref_log_prob": [-2.0, -4.0]}) + "\n")
    assert main([METHOD, "score", "--trajectories", str(source), "--out", str(out)]) == 0
    assert read_scores(out)[0].score == 4.0
    assert read_scores(out)[0].policy_id == "step-40"  # who acted, which need not be the policy that grades


def test_a_pair_that_does_not_fit_is_exit_code_3(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer

    other = tmp_path / "other"
    record = json.loads(HfTokenizer.load(pair[0]).to_json())
    merges = record["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    TinyLM.load(pair[0]).save(other, HfTokenizer(Tokenizer.from_str(json.dumps(record))))
    args = ["--trajectories", str(attempts(tmp_path / "t.jsonl")), "--out", str(tmp_path / "s")]
    assert main([METHOD, "score", *args, "--policy", pair[0], "--reference", str(other)]) == 3
    assert "merge 0 is" in capsys.readouterr().err
    assert main([METHOD, "score", *args, "--policy", "chat:m@http://127.0.0.1:1/v1", "--reference", pair[1]]) == 3


def test_a_reference_equal_to_the_policy_warns(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--trajectories", str(attempts(tmp_path / "t.jsonl", range(1))), "--out", str(tmp_path / "s")]
    assert main([METHOD, "score", *args, "--policy", pair[0], "--reference", pair[0]]) == 0
    assert "own weights" in capsys.readouterr().err
    assert {row.score for row in read_scores(tmp_path / "s")} == {0.0}


STEP: dict[str, Any] = {"i": 0, "n_tokens": 1, "truncated": False, "logp_theta": -1.0, "logp_ref": -2.0}
STEP |= dict.fromkeys(("A_sum", "A_mean", "A_last", "A_min", "A_max"), 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 3}, "'steps' must be a valid tuple"),
        ({"trajectory_id": None}, "'trajectory_id' must be text"),
        ({"success": "no"}, "'success' must be a valid boolean"),
        ({"steps": [{"truncated": False}]}, "'steps.0.i' is missing"),
        ({"decisions": []}, "'decisions' must be text"),
        ({"baselines": {"j": "high"}}, "'baselines.j' must be a valid number"),
        ({"baselines": [1]}, "'baselines' "),
        ({"steps": [STEP | {"confidence": 1.0}]}, "'confidence' and 'certainty' stand together"),
        ({"steps": [STEP | {"confidence": "x", "certainty": 1.0}]}, "'steps.0.confidence' must be a valid number"),
        ({"steps": [STEP | {"action": 7}]}, "'steps.0.action' must be text"),
        ({"keep_truncated": 1}, "'keep_truncated' must be a valid boolean"),
    ],
)
def test_what_is_no_score_record_is_named(
    scores: tuple[Path, Path], tmp_path: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = changed(scores[0], tmp_path / "run", change)
    assert main([METHOD, "report", "--scores", str(run)]) == 2
    err = capsys.readouterr().err
    assert f"{run}: record 1" in err
    assert said in err


def test_one_task_shows_no_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = graded(capsys, tmp_path / "s", {"task/0": (True, [1.0]), "task/1": (False, [0.5])})
    for verb, said in (
        ("select", "nothing stands out: choosing by advantage"),
        ("report", "nothing was ranked: it takes attempts at two"),
    ):
        assert main([METHOD, verb, "--scores", str(path)]) == 0
        assert said in capsys.readouterr().out.splitlines()[0]


def test_calibration_on_the_same_tasks_is_refused(scores: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([METHOD, "select", "--scores", str(scores[0]), "--calibrate", str(scores[0])]) == 2
    assert "shares 6 tasks" in capsys.readouterr().err


def test_one_class_has_no_auroc(scores: tuple[Path, Path]) -> None:
    rows = [replace(row, success=True) for row in read_scores(scores[0])]
    found = reports.report(rows)
    assert {row.auroc for row in found.scorers} == {None}
    assert found.luck_ceiling is None


def test_the_calibrated_cell_is_the_best_on_the_calibration_set_only(scores: tuple[Path, Path]) -> None:
    rows = read_scores(scores[1])
    cell, value = reports.calibrate(rows)
    every = [reports._auroc(rows, (t, s)) for t in reports.TOKEN_AGGS for s in reports.STEP_AGGS]
    assert value == max(v for v in every if v is not None)
    with pytest.raises(UserError, match="no field 'batch'"):
        reports.select(rows, cell, 8, "batch")


def test_a_judge_reads_the_attempts_that_were_graded(
    pair: tuple[str, str], scores: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = attempts(tmp_path / "t.jsonl", range(6))
    lines = other.read_text().splitlines()
    record = json.loads(lines[0])
    record["steps"][1]["token_ids"][0] += 1
    other.write_text("\n".join([json.dumps(record), *lines[1:]]))
    args = ["--trajectories", str(other), "--model", "builtin", "--tokenizer", pair[0]]
    assert main([METHOD, "judge", "--scores", str(scores[0]), *args]) == 2
    assert "'task-0/0' is another attempt than the one that was graded" in capsys.readouterr().err


def test_records_are_not_grouped_by_a_list(scores: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([METHOD, "select", "--scores", str(scores[0]), "--group", "steps"]) == 2
    assert "'steps' is a list or object" in capsys.readouterr().err


def test_the_cell_fixed_in_advance_is_always_shown(scores: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("report", "select"):
        assert main([METHOD, verb, "--scores", str(scores[0]), "--token", "min", "--step", "last", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        names = [row["scorer"] for row in found["scorers"]] if verb == "report" else list(found["by"])
        assert [name.removeprefix("advantage ") for name in names[:2]] == ["min/last", "sum/mean (a priori)"]
    rows = [replace(row, token_agg="max", step_agg="last") for row in read_scores(scores[0])]
    assert reports.own_cell(rows) == ("max", "last")  # what the records were scored with
    assert reports.own_cell(rows, "min") == ("min", "last")
    assert reports.own_cell([*rows, replace(rows[0], token_agg="sum")]) == ("sum", "last")


def test_blame_names_only_graded_steps_of_attempts_that_failed() -> None:
    grades = ((2, -5.0), (0, -9.0), (3, -8.0))
    steps = tuple(ScoredStep(**STEP | {"i": i, "n_tokens": n, "A_sum": a}) for i, (n, a) in enumerate(grades))
    record = ScoreRecord("a", "t", steps, success=False)
    assert [row.step for row in reports.blame([record], "sharpest-change", 3, level=1.0).blamed] == [2, 0]
    nobody = reports.blame([replace(record, success=None), replace(record, success=True)], level=1.0)
    assert nobody.blamed == ()
    assert nobody.verdict.startswith("no attempt is known to have failed")
    assert len(reports.blame([replace(record, success=None)], every=True, level=1.0).blamed) == 1


@pytest.mark.filterwarnings("error")
def test_records_without_an_end_have_nothing_to_report(scores: tuple[Path, Path]) -> None:
    found = reports.report([replace(row, success=None) for row in read_scores(scores[0])])
    assert (found.unlabelled, found.tasks) == (24, 0)
    assert {row.auroc for row in found.scorers} == {None}


def test_what_needs_a_pair_and_what_cannot_be_written_is_said_first(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["score", "--trajectories", str(attempts(tmp_path / "t.jsonl", range(1)))]
    for more in (["--keep-special", "false"], ["--cache", str(tmp_path)], ["--render", "plain"], ["--merge", "ties"]):
        assert main([METHOD, *args, "--out", str(tmp_path / "s"), *more]) == 2
        assert "asks for a pair of models" in capsys.readouterr().err
    assert main([METHOD, *args, "--out", str(tmp_path / "no" / "s"), "--policy", pair[0], "--reference", pair[1]]) == 2
    assert "no folder" in capsys.readouterr().err
    args += ["--out", str(tmp_path / "s"), "--policy", pair[0], "--reference", pair[1]]
    assert main([METHOD, *args, "--dry-run", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)["cost_estimate"]
    assert estimate.pop("seconds").startswith(f"not known: no such call with {pair[0]}")
    assert estimate == {"attempts": 4, "steps": 12, "skipped": 0, "tokens_each_model_reads": 108, "rows": 8}
    assert not (tmp_path / "s").exists()


def test_no_run_is_made_where_every_attempt_failed(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "t.jsonl", tmp_path / "s"
    step = {"role": "assistant", "token_ids": [1, 99999], "is_action": True}
    source.write_text(json.dumps({"task_id": "two\nlines", "steps": [step], "policy_id": "p"}) + "\n")
    args = [METHOD, "score", "--trajectories", str(source), "--policy", pair[0], "--reference", pair[1], "--out", str(out)]
    assert main(args) == 4
    said = capsys.readouterr().out
    assert "skipped: attempt 'two lines/0': token 99999 is out of range" in said
    assert "nothing was written" in said
    assert not out.exists()


def test_a_kind_of_adapter_that_cannot_be_added_is_an_unfit_pair(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3", "base_model_name_or_path": pair[0]}))
    args = ["--trajectories", str(attempts(tmp_path / "t.jsonl", range(1))), "--out", str(tmp_path / "s")]
    assert main([METHOD, "score", *args, "--policy", str(adapter)]) == 3
    assert "of type IA3" in capsys.readouterr().err
