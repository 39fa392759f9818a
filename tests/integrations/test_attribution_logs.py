"""Logs with people's labels of what went wrong: Who&When and AgentRx."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign_logs import Taken, example, refused
from records import write

from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.node import Finding

WHO, RX = "who-and-when", "agentrx"


def test_a_log_of_who_and_when(tmp_path: Path) -> None:
    taken = Taken(write(tmp_path / "1.json", example(WHO)), WHO)
    assert (taken.trees, taken.tasks[0]["ground_truth"]) == (["q-1"], "8")
    assert taken.texts == [
        ("assistant", "How many rows?"),
        ("assistant", "print(7)"),
        ("user", "7"),
        ("assistant", "7 rows."),
    ]
    speakers = [told.message.data["name"] for told in taken.views[0].messages]
    assert speakers == ["Manager", "Excel_Expert", "Computer_terminal", "Checker_Expert"]
    assert taken.attempts[0].outcome is False
    ((text, label),) = taken.notes_at
    assert (text, label.name, label.maker) == ("print(7)", "mistake", WHO)
    assert label.value["mistake_agent"] == "Excel_Expert"
    assert taken.notes.unread == ()


def test_the_hand_made_part_and_a_conversation_alone(tmp_path: Path) -> None:
    talk = [
        {"role": "human", "content": "How high is it?"},
        {"role": "Orchestrator (thought)", "content": "I ask."},
        {"role": "Orchestrator (-> WebSurfer)", "content": "Look it up."},
        {"role": "WebSurfer", "content": "3 m."},
    ]
    record = {"history": talk, "question": "How high?", "question_ID": "q", "is_corrected": False}
    record |= {"mistake_agent": "WebSurfer", "mistake_step": "3", "mistake_reason": "It made it up."}
    taken = Taken(write(tmp_path / "1.json", record), WHO)
    assert [role for role, _ in taken.texts] == ["user", "assistant", "assistant", "assistant"]
    assert (taken.attempts[0].outcome, taken.notes_at[0][0]) == (False, "3 m.")
    (tmp_path / "alone.json").write_text(json.dumps(talk))
    alone = Taken(tmp_path / "alone.json", WHO)
    assert (alone.trees, alone.attempts[0].outcome, alone.notes_at) == (["alone"], None, [])


def test_labels_of_agentrx_with_their_conversation(tmp_path: Path) -> None:
    taken = Taken(write(tmp_path / "a.json", example(RX)), RX)
    assert taken.attempts[0].outcome is False
    assert [(text, note.name, note.maker) for text, note in taken.notes_at] == [
        ("It is 3 m.", "failure 1", RX),
        ("It is 3 m.", "root cause", RX),
    ]


def test_labels_of_agentrx_find_the_conversations_beside_them(tmp_path: Path) -> None:
    record = example(RX)
    talk = record.pop("trajectory")
    (tmp_path / "truth").mkdir()
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "abcd-1234.json").write_text(json.dumps(talk))
    results = [{"task_id": 7, "reward": 0.0, "info": {}, "traj": [{"role": "user", "content": "hi"}] * 3, "trial": 0}]
    (tmp_path / "talks" / "results.json").write_text(json.dumps(results))
    names: list[str | int] = ["abcd-1234", 7, "not-there-1"]
    (tmp_path / "truth" / "all.json").write_text(json.dumps([{**record, "trajectory_id": name} for name in names]))
    taken = Taken(tmp_path / "truth" / "all.json", RX)
    assert taken.trees == ["abcd-1234", "7"]
    assert taken.ignored == {"trajectory_id": 1}
    (tmp_path / "alone" / "here").mkdir(parents=True)
    alone = write(tmp_path / "alone" / "here" / "a.json", record)
    assert "no file in its folder or beside it a conversation" in refused(alone, RX)


def test_no_verb_takes_a_label_for_its_own(tmp_path: Path) -> None:
    """What `why` finds and the label stand side by side: it is measured against it."""
    run = tmp_path / "run"
    assert main(["import", str(write(tmp_path / "1.json", example(WHO))), "--run", str(run)]) == 0
    assert main(["why", str(run)]) in (0, 1)
    assert main(["show", str(run)]) == 0
    with Run.open(run) as opened:
        assert {note.maker for note in opened.annotations()} == {WHO}
        assert {finding.maker for finding in opened.each(Finding)} == {"why"}


@pytest.mark.parametrize(
    ("form", "field", "value", "words"),
    [
        (WHO, "history", [{"content": "x"}], "FILE:1: 'history': item 0: 'role' must be text, and it is missing"),
        (WHO, "mistake_step", 9, "FILE:1: 'mistake_step' is not the number of one of its 4 messages"),
        (WHO, "is_correct", "no", "FILE:1: 'is_correct' must be true or false"),
        (RX, "failures", [3], "FILE:1: 'failures': item 0 is not an object"),
        (RX, "trajectory_id", [], "FILE:1: 'trajectory_id' must be"),
    ],
)
def test_broken_labels(tmp_path: Path, form: str, field: str, value: object, words: str) -> None:
    assert words in refused(write(tmp_path / "a.jsonl", {**example(form), field: value}), form)
