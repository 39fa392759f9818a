"""`ramify test`: pass^k and flip rates of runs, and two versions compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import Verb

from ramify.cli.main import main

AIRLINE = {0: 14, 1: 12, 2: 10, 3: 4, 4: 10}
"""Tasks by how many of four attempts succeeded: gpt-4o with tool calls in tau-bench's airline, from the trajectories that
sierra-research/tau-bench publishes; its README says pass^1 to pass^4 .420, .273, .220, .200."""


def imported(folder: Path, name: str, attempts: Sequence[tuple[str, float | None]]) -> str:
    lines = [
        {
            "task_id": task,
            "messages": [{"role": "user", "content": f"Do {task}."}, {"role": "assistant", "content": f"{name} {i}"}],
            **({} if reward is None else {"reward": reward}),
        }
        for i, (task, reward) in enumerate(attempts)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = str(folder / name)
    assert main(["import", str(folder / f"{name}.jsonl"), "--run", run]) == 0
    return run


def test_published_pass_hat_k(tmp_path: Path, verb: Verb) -> None:
    tasks = [k for k, count in AIRLINE.items() for _ in range(count)]
    run = imported(tmp_path, "airline", [(str(t), float(i < k)) for t, k in enumerate(tasks) for i in range(4)])
    found = verb.json("test", run)
    assert [round(found["all_of"][str(k)]["value"], 3) for k in (1, 2, 3, 4)] == [0.42, 0.273, 0.22, 0.2]
    assert found["success"]["tasks"] == 50
    low, high = found["success"]["interval"]
    assert low < 0.33  # 200 attempts would say .354: attempts at one task are not independent
    assert high > 0.5
    assert "pass^4" in verb.says("show", run)  # the run keeps it


def test_two_versions_and_the_plan(tmp_path: Path, verb: Verb) -> None:
    first = imported(tmp_path, "first", [(t, float(i < k)) for t, k in (("a", 9), ("b", 1), ("c", 5)) for i in range(10)])
    second = imported(tmp_path, "second", [(t, float(i < k)) for t, k in (("a", 9), ("b", 10), ("d", 5)) for i in range(10)])
    found = verb.json("test", second, "--against", first)
    assert found["differing"] == ["b"]
    assert found["difference"] == pytest.approx(0.45)
    assert [said for said in found["caveats"] if "alone" in said] == [
        f"1 task of {first} alone is not compared",
        f"1 task of {second} alone is not compared",
    ]
    again = str(shutil.copytree(first, tmp_path / "again"))
    out = " ".join(verb.says("test", again, "--against", first).split())
    assert "do not tell the two versions apart" in out
    assert "A difference of 10 points takes" in out


def test_what_cannot_be_counted_is_one_sentence(tmp_path: Path, verb: Verb) -> None:
    unjudged = imported(tmp_path, "unjudged", [("a", None)])
    judged = imported(tmp_path, "judged", [("b", 1.0), ("b", None), ("z", 0.0)])
    for words, said in (
        ([unjudged], "no attempt of"),
        ([judged, "--against", unjudged], "no attempt of"),
        ([judged, "--against", imported(tmp_path, "other", [("y", 1.0)])], "share no task"),
        ([judged, "--difference", "2"], "--difference lies between 0 and 1"),
        ([judged, "--scorer", "nobody"], "no score of scorer 'nobody'"),
        ([judged, "--against", judged], "is the run itself"),
    ):
        err = verb.refused("test", *words)
        assert said in err
        assert "several scorers" not in err  # nobody judged them
    found = verb.json("test", judged)
    assert "no task has a second attempt" in found["caveats"][0]


def test_both_answers_are_kept_and_what_has_no_outcome_is_said(tmp_path: Path, verb: Verb) -> None:
    before = imported(tmp_path, "before", [("a", 0.0), ("a", 0.0), ("b", 0.0), ("b", 0.0), ("b", None)])
    after = imported(tmp_path, "after", [("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", 1.0)])
    found = verb.json("test", after)
    assert found["all_of"]["1"] == found["success"]
    found = verb.json("test", after, "--against", before)
    assert found["interval"][0] < 0.7  # tasks that are all alike are not certain
    assert found["caveats"] == [f"1 attempt of {before} without an outcome counts as neither"]
    out = verb.says("show", after)
    assert "pass^2" in out
    assert f"{after} against {before}" in " ".join(out.split())


def test_one_of_many_tasks_fails_beyond_chance_over_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 30 tasks with a success of .8 one loses both of two attempts nearly always: that is no failed test of a CI system."""
    run = imported(tmp_path, "many", [(str(t), float(t != 3)) for t in range(30) for _ in range(2)])
    capsys.readouterr()
    main(["test", run, "--at-least", "0.8", "--junit", str(tmp_path / "out.xml")])
    assert 'failures="0"' in (tmp_path / "out.xml").read_text()
