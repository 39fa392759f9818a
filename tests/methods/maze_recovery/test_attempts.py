"""Attempts out of runs: what was shown and said, what tells states apart, who says what succeeded; shared steps count once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.methods.maze_recovery import audit_traces, build_sft
from ramify.methods.maze_recovery.attempts import Source, Traces, from_run, load
from ramify.score.steps import run_columns
from ramify.trace.convert import read_run
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Score, make_node


def add(run: Run, parent: Any, role: str, text: str, index: int = -1, **fields: Any) -> Any:
    node = make_node(
        "t", None if parent is None else parent.id, 0 if parent is None else len(parent), role, text, index=index, **fields
    )
    run.add(node)
    return node


@pytest.fixture
def branched(tmp_path: Path) -> Path:
    """Two attempts that share their way into a dead end and back, and fail or succeed after it; a third goes straight."""
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "task"})
        system = add(run, None, "system", "Find the lamp.")
        hall = add(run, system, "user", "hall", state_key="H")
        into = add(run, hall, "assistant", "up", 0)
        attic = add(run, into, "user", "attic", state_key="A")
        back = add(run, attic, "assistant", "down", 0)
        again = add(run, back, "user", "hall, again", state_key="H")
        for index, (action, value) in enumerate((("east", 1.0), ("west", 0.0))):
            end = add(run, add(run, again, "assistant", action, index), "user", "end", index, stop="terminated")
            run.add(Score(end.id, "env", value), AttemptRecord(end.id, "t", index=index, outcome=value > 0, reward=value))
        straight = add(run, add(run, hall, "assistant", "east", 1), "user", "end", 7, stop="terminated")
        run.add(Score(straight.id, "env", 0.2))
        run.add(AttemptRecord(straight.id, "t", index=7, outcome=False, reward=0.2))  # a reward without success
        run.add(Score(straight.id, "style", 1.0))
    return tmp_path / "run"


def test_attempts_of_a_tree(branched: Path):
    with Run.open(branched) as run:
        traces = sorted(from_run(run), key=lambda trace: [step.action for step in trace.steps])
    assert [[step.action for step in trace.steps] for trace in traces] == [
        ["east"],
        ["up", "down", "east"],
        ["up", "down", "west"],
    ]
    assert [trace.success for trace in traces] == [False, True, False]
    assert [step.state for step in traces[1].steps] == ["H", "A", "H"]
    assert [turn.text for turn in traces[1].given] == ["Find the lamp."]
    assert [turn.text for step in traces[1].steps for turn in step.shown] == ["hall", "attic", "hall, again"]
    assert traces[1].steps[1].node == traces[2].steps[1].node
    with Run.open(branched) as run:
        assert {step.state for trace in from_run(run, texts=True) for step in trace.steps} == {"hall", "attic", "hall, again"}


def test_a_shared_step_is_one_example(branched: Path):
    found = audit_traces(load(branched), min_examples=1)
    assert found.families == found.families_covered == 1
    assert audit_traces(load(branched), min_examples=2).lacking == (("A", 2, 1),)
    assert found.recoveries == 2  # each attempt does something else after it
    [example] = build_sft(load(branched), mode="success_loop_erased").examples
    assert [turn.text for turn in example.conversation.turns] == ["Find the lamp.", "hall", "east"]


def test_whose_verdict_counts(branched: Path):
    assert load(branched, Source(scorer="style")).success.tolist() == [True]
    with pytest.raises(UserError, match=r"no score of scorer 'styl'.*did you mean 'style'"):
        load(branched, Source(scorer="styl"))
    with pytest.raises(UserError, match="holds no scored attempt in group 'g'"):
        load(branched, Source(group="g"))


def test_step_records_and_chats_are_read_as_runs(tmp_path: Path):
    steps = [
        {"task_id": "t", "attempt_id": 0, "step": i, "anchor": s, "action": a, "reward": float(a == "take"), "done": a == "take"}
        for i, (s, a) in enumerate([("hall", "up"), ("attic", "down"), ("hall", "east"), ("cellar", "take")])
    ]
    file = tmp_path / "steps.jsonl"
    file.write_text("".join(json.dumps(step) + "\n" for step in steps))
    read_run(file, tmp_path / "imported")
    assert audit_traces(load(file)).recoveries == audit_traces(load(tmp_path / "imported")).recoveries == 1
    call = {"id": "c1", "type": "function", "function": {"name": "go", "arguments": '{"way": "up"}'}}
    chat = [
        {"role": "user", "content": "Find the lamp."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "attic"},
        {"role": "assistant", "content": "It is in the attic."},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    [trace] = load(tmp_path / "chats.jsonl").traces
    assert trace.success is None
    assert trace.steps[0].action == 'go({"way": "up"})'  # a call is what was done
    assert [step.state for step in trace.steps] == ["Find the lamp.", "attic"]


def test_keys_are_made_attempt_by_attempt(branched: Path):
    with_before = load(branched, Source(history=1))
    assert audit_traces(with_before).states > audit_traces(load(branched)).states
    assert Source().keys() is None
    with pytest.raises(UserError, match="no trace with a step"):
        Traces([])
    (branched.parent / "other.jsonl").write_text('{"foo": 1}\n')
    with pytest.raises(UserError, match=r"other\.jsonl:1: an object with the keys 'foo'"):
        load(branched.parent / "other.jsonl")
    (branched.parent / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"empty\.jsonl holds no record"):
        load(branched.parent / "empty.jsonl")


def test_a_reply_gone_on_inside_is_one_step(tmp_path: Path):
    """Rewound to the end of its header, where no word was said yet; and rewound whole."""
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "task"})
        hall = add(run, None, "user", "hall", tokens=[1, 2], ends=[2, 4])
        reply = add(run, hall, "assistant", "up", 0, tokens=[9, 3, 4], sampled=[0, 1, 1], ends=[0, 1, 2])
        for index, offset in enumerate((1, 0)):
            new = make_node(
                "t", reply.id, offset, "assistant", "east", index=index, opens=offset == 0, tokens=[5], sampled=[1], ends=[4]
            )
            run.add(new)
            end = add(run, new, "user", "", index, stop="terminated", reward=1.0)
            run.add(Score(end.id, "env", 1.0))
        quiet = add(run, add(run, hall, "assistant", "", 2, tokens=[9], sampled=[0], ends=[0]), "user", "end", 3, reward=0.5)
        run.add(Score(quiet.id, "env", 0.5))
        columns = run_columns(run)
        traces = from_run(run)
    assert sorted(zip(columns["action"], columns["step"], columns["reward"], strict=True)) == [
        ("", 0, 0.5),
        ("east", 0, 1.0),
        ("east", 0, 1.0),
    ]
    assert sorted(step.action for trace in traces for step in trace.steps) == ["", "east", "east"]
