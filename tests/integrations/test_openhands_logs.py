"""OpenHands: outputs of its evaluations, and the events of conversations of its application and its SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_logs import Taken, example, refused
from records import write

from ramify.cli.main import main

FORM = "openhands"


def sdk_events() -> list[dict[str, Any]]:
    """A conversation as the SDK keeps it: two calls of one answer, their results, and the closing reply."""

    def act(key: str, thought: str) -> dict[str, Any]:
        call = {"id": key, "name": "terminal", "arguments": '{"command": "ls"}', "origin": "completion"}
        return {
            "kind": "ActionEvent",
            "source": "agent",
            "thought": [{"type": "text", "text": thought}] if thought else [],
            "reasoning_content": "Hm." if thought else None,
            "action": {"command": "ls", "kind": "TerminalAction"},
            "tool_name": "terminal",
            "tool_call_id": key,
            "tool_call": call,
            "llm_response_id": "r1",
        }

    def see(key: str, text: str) -> dict[str, Any]:
        seen = {"content": [{"type": "text", "text": text}], "is_error": False, "kind": "TerminalObservation"}
        return {
            "kind": "ObservationEvent",
            "source": "environment",
            "tool_name": "terminal",
            "tool_call_id": key,
            "observation": seen,
        }

    def say(source: str, role: str, text: str) -> dict[str, Any]:
        message = {"role": role, "content": [{"type": "text", "text": text}]}
        return {"kind": "MessageEvent", "source": source, "llm_message": message}

    return [
        {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"type": "text", "text": "You fix."}, "tools": []},
        say("user", "user", "Fix it."),
        {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "execution_status", "value": "running"},
        act("c1", "I look."),
        act("c2", ""),
        see("c1", "a.py"),
        see("c2", "b.py"),
        say("agent", "assistant", "Done."),
    ]


TOLD = [
    ("system", "You fix."),
    ("user", "Fix it."),
    ("assistant", "I look."),
    ("tool", "a.py"),
    ("tool", "b.py"),
    ("assistant", "Done."),
]


def test_an_output_of_an_evaluation(tmp_path: Path) -> None:
    record = example(FORM)
    taken = Taken(write(tmp_path / "output.jsonl", record, {**record, "test_result": {"git_patch": ""}}), FORM)
    assert taken.trees == ["repo__repo-1"]
    assert [attempt.outcome for attempt in taken.attempts] == [True, None]
    view = taken.views[0]
    assert [(told.role, told.message.text) for told in view.messages] == [
        ("user", "Fix the bug."),
        ("assistant", "I look."),
        ("tool", "a.py"),
        ("assistant", "Done."),
    ]
    assert view.steps[0].action == 'I look.\nexecute_bash({"command": "ls"})'
    assert (taken.metrics, taken.notes.unread, taken.notes.open_calls) == ({"accumulated_cost": 0.1}, (), 0)


def test_the_old_list_of_pairs(tmp_path: Path) -> None:
    record = example(FORM)
    ask, act, see, end = [{k: v for k, v in event.items() if k != "tool_call_metadata"} for event in record["history"]]
    record["history"] = [[ask, {"observation": "null", "content": "", "extras": {}}], [act, see], [end, {"observation": "null"}]]
    taken = Taken(write(tmp_path / "output.jsonl", record), FORM)
    assert taken.texts[1:3] == [("assistant", "I look."), ("tool", "a.py")]
    assert taken.views[0].steps[0].action == 'I look.\nrun({"command":"ls"})'
    assert taken.ignored == {"null": 2}


@pytest.mark.parametrize(
    ("error", "truncated", "failure"),
    [
        ("AgentStuckInLoopError: Agent got stuck in a loop", False, None),
        ("RuntimeError: Agent reached maximum iteration. Current iteration: 50", True, None),
        ("AgentRuntimeDisconnectedError: the container is gone", False, "AgentRuntimeDisconnectedError: the container is gone"),
    ],
)
def test_whose_fault_the_end_was(tmp_path: Path, error: str, truncated: bool, failure: str | None) -> None:
    record = example(FORM) | {"error": error}
    (attempt,) = Taken(write(tmp_path / "output.jsonl", record), FORM).attempts
    assert (attempt.truncated, attempt.failure, attempt.outcome) == (truncated, failure, True if failure is None else None)


def test_events_of_the_sdk_in_one_file(tmp_path: Path) -> None:
    taken = Taken(write(tmp_path / "events.jsonl", *sdk_events()), FORM)
    assert taken.texts == TOLD
    (first, _) = taken.views[0].steps
    assert first.action == 'I look.\nterminal({"command": "ls"})\nterminal({"command": "ls"})'  # one answer, two calls
    assert (taken.ignored, taken.notes.open_calls) == ({"ConversationStateUpdateEvent": 1}, 0)
    inside = Taken(write(tmp_path / "output.jsonl", {**example(FORM), "history": sdk_events()}), FORM)
    assert inside.texts == TOLD


def test_a_folder_of_events_is_one_conversation(tmp_path: Path) -> None:
    events = tmp_path / "talk" / "events"
    events.mkdir(parents=True)
    for number, event in enumerate(sdk_events()):
        (events / f"event-{number:05d}-ab.json").write_text(json.dumps(event))
    assert main(["import", str(tmp_path / "talk"), "--run", str(tmp_path / "run")]) == 0
    assert Taken(tmp_path / "talk", FORM).texts == TOLD
    assert Taken(events, FORM).texts == TOLD


def test_a_conversation_that_broke(tmp_path: Path) -> None:
    broken = {"kind": "ConversationErrorEvent", "source": "environment", "code": "LLMServiceError", "detail": "503"}
    (attempt,) = Taken(write(tmp_path / "events.jsonl", *sdk_events(), broken), FORM).attempts
    assert attempt.failure == "LLMServiceError: 503"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("history", [{"source": "agent"}], "FILE:1: 'history': item 0 has neither 'action' nor 'observation' nor 'kind'"),
        ("history", [[3]], "FILE:1: 'history': item 0 is not an object"),
        ("history", "x", "FILE:1: 'history' must be a list"),
        ("history", [{"kind": "MessageEvent", "llm_message": 3}], "FILE:1: 'history': item 0: 'llm_message' is not an object"),
        ("instance_id", [1], "FILE:1: 'instance_id' must be"),
    ],
)
def test_broken_outputs(tmp_path: Path, field: str, value: object, words: str) -> None:
    assert words in refused(write(tmp_path / "a.jsonl", {**example(FORM), field: value}), FORM)
