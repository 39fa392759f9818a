"""Trajectories of SWE-agent and of mini-swe-agent: replies, whose fault a bad end was, and outcomes that lie beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign_logs import Taken, example, refused
from records import write

from ramify.cli.main import main
from ramify.trace import lines
from ramify.trace.db import Run

SWE, MINI = "swe-agent", "mini-swe-agent"


def test_a_trajectory_of_swe_agent(tmp_path: Path) -> None:
    record = example(SWE)
    taken = Taken(write(tmp_path / "repo__repo-1.traj", record), SWE)
    assert taken.trees == ["repo__repo-1"]
    assert taken.texts == [
        ("system", "Fix the bug."),
        ("assistant", "I look.\nls"),
        ("user", "a.py"),
        ("assistant", "Done.\nsubmit"),
    ]
    (view,) = taken.views
    states = [told.message.data["step"] for told in view.messages if told.role == "assistant"]
    assert states == [{"state": {"open_file": "n/a"}}] * 2
    assert taken.attempts[0].outcome is None
    assert view.end.data["info"]["submission"] == "diff"
    assert taken.notes.unread == ()


def test_a_new_trajectory_has_calls_and_names_its_instance(tmp_path: Path) -> None:
    record = example(SWE)
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    shown = {"role": "assistant", "content": "So.", "is_demo": True, "agent": "main"}
    record["history"][1:1] = [shown]
    record["history"][2] |= {"content": "I look.", "tool_calls": [call]}
    record["history"][3] |= {"role": "tool", "tool_call_ids": ["c1"]}
    record["trajectory"][1]["observation"] = "diff --git"
    agent = {"model": {"name": "local", "temperature": 0.5, "api_key": "sk-secret"}}
    record["replay_config"] = json.dumps({"agent": agent, "problem_statement": {"id": "repo__repo-2"}})
    taken = Taken(write(tmp_path / "a.traj", record), SWE)
    assert taken.trees == ["repo__repo-2"]
    assert taken.texts[1] == ("user", "So.")  # shown to the model, not its own
    assert taken.texts[-1] == ("user", "diff --git")  # what the last command printed
    assert [step.action for step in taken.views[0].steps] == ['I look.\nbash({"command": "ls"})', "Done.\nsubmit"]
    with Run.open(taken.folder) as run:
        provenance = run.provenance(str(taken.attempts[0].provenance))
    assert (provenance.model, provenance.settings) == ("local", {"temperature": 0.5})


def test_a_trajectory_without_history_and_several_tries(tmp_path: Path) -> None:
    record = example(SWE)
    del record["history"]
    record["trajectory"][0]["query"] = [{"role": "system", "content": "Fix the bug.", "agent": "main"}]
    again = {"attempts": [record, record], "info": {"best_attempt_idx": 1}}
    taken = Taken(write(tmp_path / "a.traj", again), SWE)
    first, second = taken.views
    assert [message.role for message in first.messages] == ["system", "assistant", "user", "assistant", "user"]
    assert taken.trees == ["a"]
    assert [view.end.data["chosen"] for view in (first, second)] == [False, True]


@pytest.mark.parametrize(
    ("status", "truncated", "failure"),
    [
        ("submitted", False, None),
        ("submitted (exit_cost)", True, None),
        ("exit_total_execution_time", True, None),
        ("exit_format", False, None),
        ("exit_environment_error", False, "exit_status: exit_environment_error"),
    ],
)
def test_whose_fault_the_end_was(tmp_path: Path, status: str, truncated: bool, failure: str | None) -> None:
    record = example(SWE)
    record["info"]["exit_status"] = status
    (attempt,) = Taken(write(tmp_path / "a.traj", record), SWE).attempts
    assert (attempt.truncated, attempt.failure) == (truncated, failure)


@pytest.mark.parametrize("report", ["results.json", "report.json", "results/results.json", "logs/repo__repo-1/report.json"])
def test_the_report_beside_the_files_is_their_outcome(tmp_path: Path, report: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all" / report
    file.parent.mkdir(parents=True)
    found = {"repo__repo-1": {"resolved": True}} if "logs" in report else {"resolved": ["repo__repo-1"], "no_generation": []}
    file.write_text(json.dumps(found))
    (tmp_path / "all" / "trajs").mkdir()
    for name in ("repo__repo-1", "repo__repo-2"):
        write(tmp_path / "all" / "trajs" / f"{name}.traj", {**example(SWE), "environment": name})
    assert main(["import", str(tmp_path / "all"), "--run", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "left out" not in told
    assert "1 attempt judged by the report of SWE-bench beside the file" in told
    with Run.open(tmp_path / "run") as run:
        assert {attempt.tree: attempt.outcome for attempt in run.attempts()} == {"repo__repo-1": True, "repo__repo-2": None}
    assert main(["why", str(tmp_path / "run")]) == 0


def test_a_large_trajectory_is_read_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 3000)
    record = example(SWE)
    for step in record["trajectory"]:
        step["query"] = [{"role": "user", "content": "x" * 2000}]
    (tmp_path / "a.traj").write_text(json.dumps(record, indent=1))
    assert len(Taken(tmp_path / "a.traj", SWE).texts) == 4


def test_a_trajectory_of_mini_swe_agent(tmp_path: Path) -> None:
    taken = Taken(write(tmp_path / "a.traj.json", example(MINI)), MINI)
    assert taken.trees == ["repo__repo-1"]
    assert taken.texts[-2:] == [("tool", "a.py"), ("user", "diff")]
    assert taken.views[0].steps[0].action == 'I look.\nbash({"command": "ls"})'
    assert taken.metrics == {"instance_cost": 0.1, "api_calls": 1.0}
    assert taken.views[0].messages[3].message.data["extra"] == {"returncode": 0}
    assert (taken.notes.unread, taken.notes.open_calls) == ((), 0)


def test_mini_swe_agent_without_an_instance_and_over_the_limit(tmp_path: Path) -> None:
    record = example(MINI) | {"trajectory_format": "mini-swe-agent-1"}
    del record["instance_id"]
    other = {**record, "info": {**record["info"], "exit_status": "TimeExceeded"}}
    failed = {**record, "info": {**record["info"], "exit_status": "RateLimitError"}}
    taken = Taken(write(tmp_path / "a.jsonl", record, other, failed), MINI)
    assert len(taken.trees) == 1  # the same first message: attempts at one task
    assert [attempt.truncated for attempt in taken.attempts] == [False, True, False]
    assert [attempt.failure for attempt in taken.attempts] == [None, None, "exit_status: RateLimitError"]


def test_mini_swe_agent_with_items_of_the_responses_interface(tmp_path: Path) -> None:
    record = example(MINI)
    call = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    record["messages"][2] = {"object": "response", "output": [said, call], "extra": {"cost": 1.0}}
    record["messages"][3] = {"type": "function_call_output", "call_id": "c1", "output": "a.py", "extra": {"returncode": 0}}
    taken = Taken(write(tmp_path / "a.traj.json", record), MINI)
    assert taken.texts[2:4] == [("assistant", "I look."), ("tool", "a.py")]
    assert taken.views[0].steps[0].action == 'I look.\nbash({"command": "ls"})'


@pytest.mark.parametrize(
    ("form", "field", "value", "words"),
    [
        (SWE, "trajectory", [{"action": 3, "observation": ""}], "FILE:1: 'trajectory': item 0: 'action' must be text"),
        (SWE, "history", [3], "FILE:1: 'history': item 0 is not an object"),
        (SWE, "info", [], "FILE:1: 'info' must be an object"),
        (MINI, "messages", [{"role": "cook", "content": ""}], "FILE:1: 'messages': item 0 has the role 'cook'"),
        (MINI, "instance_id", [1], "FILE:1: 'instance_id' must be text"),
    ],
)
def test_broken_trajectories(tmp_path: Path, form: str, field: str, value: object, words: str) -> None:
    assert words in refused(write(tmp_path / "a.jsonl", {**example(form), field: value}), form)
