"""Sessions of Qwen Code: Gemini's messages in Claude Code's frame, rewinds, a compression, and how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records import write
from session_logs import PICTURE, paths, read, refusals, said

from ramify.base.errors import UserError
from ramify.trace.context import resolve
from ramify.trace.formats import pick_reader
from ramify.trace.intake import IgnoredPart
from ramify.trace.node import Insert
from ramify.trace.notes import noting

FIX = "Fix the test."


def line(key: str, parent: str | None, kind: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    frame = {"uuid": key, "parentUuid": parent, "sessionId": "s1", "type": kind, "cwd": "/repo", "version": "0.21.0"}
    message = {"role": "model" if kind == "assistant" else "user", "parts": list(parts)}
    return {**frame, **({"model": "qwen-x"} if kind == "assistant" else {}), **more, "message": message}


def system(key: str, parent: str, subtype: str, **payload: Any) -> dict[str, Any]:
    return {"uuid": key, "parentUuid": parent, "sessionId": "s1", "type": "system", "subtype": subtype, "systemPayload": payload}


def call(key: str) -> dict[str, Any]:
    return {"functionCall": {"id": key, "name": "shell", "args": {"command": key}}}


def told(key: str, **response: Any) -> dict[str, Any]:
    return {"functionResponse": {"id": key, "name": "shell", "response": response}}


TALK = [
    line("u1", None, "user", {"text": FIX}, {"text": "<context>x</context>"}, systemPayload={"displayText": FIX}),
    line("a1", "u1", "assistant", {"text": "I look first.", "thought": True}),
    line("a1", "u1", "assistant", call("ls"), call("cat"), usageMetadata={"totalTokenCount": 9}),
    line("r1", "a1", "tool_result", told("ls", output="test.py"), toolCallResult={"callId": "ls", "status": "success"}),
    line("r2", "r1", "tool_result", told("cat", error="no file"), toolCallResult={"callId": "cat", "status": "error"}),
    system("t1", "r2", "ui_telemetry", uiEvent={"event.name": "qwen-code.tool_call"}),
    line("a2", "t1", "assistant", {"text": "Fixed."}),
]


def test_pieces_of_one_reply_and_results_of_calls_made_together(tmp_path: Path) -> None:
    with noting() as notes, read(write(tmp_path / "s.jsonl", *TALK), tmp_path / "run") as run:
        _, asked, looks, first, second, last = run.nodes(FIX)
        assert [said(node) for node in (asked, first, second, last)] == [
            ("user", f"{FIX}<context>x</context>"),
            ("tool", "test.py"),
            ("tool", "no file"),
            ("assistant", "Fixed."),
        ]
        assert looks.message.reasoning == "I look first."
        assert [(each.name, dict(each.arguments)) for each in looks.message.calls] == [
            ("shell", {"command": "ls"}),
            ("shell", {"command": "cat"}),
        ]
        assert (first.data.get("is_error"), second.data["is_error"], second.data["tool_call_id"]) == (None, True, "cat")
        assert looks.data["response"]["usage"] == {"totalTokenCount": 9}
        by = run.provenance(str(last.provenance))
        assert (by.model, by.settings) == ("qwen-x", {"agent": "qwen-code"})
        assert run.memo("ignored", IgnoredPart)["system"].count == 1
    assert (notes.unread, notes.open_calls) == ((), 0)


def test_what_a_rewind_took_back_is_an_attempt(tmp_path: Path) -> None:
    more = [
        system("w", "u1", "rewind", truncatedCount=2),
        line("u2", "w", "user", {"text": "Otherwise."}, subtype="mid_turn_user_message"),
        line("a3", "u2", "assistant", {"text": "Done."}),
    ]
    with read(write(tmp_path / "s.jsonl", *TALK, *more), tmp_path / "run") as run:
        assert sorted(path[-1][1] for path in paths(run, FIX)) == ["Done.", "Fixed."]
        assert len(run.attempts()) == 2


def test_after_a_compression_the_context_is_the_new_history(tmp_path: Path) -> None:
    history = [
        {"role": "user", "parts": [{"text": "The test was fixed."}]},
        {"role": "model", "parts": [{"text": "Got it."}]},
    ]
    picture = {"inlineData": {"mimeType": "image/png", "data": PICTURE}}
    more = [
        system("c", "a2", "chat_compression", info={}, compressedHistory=history),
        line("u2", "c", "user", {"text": "Go on."}, picture),
        line("a3", "u2", "assistant", {"text": "Done."}),
    ]
    with read(write(tmp_path / "s.jsonl", *TALK, *more), tmp_path / "run") as run:
        *_, before, asked, last = run.nodes(FIX)
        assert (before.text, before.context) == ("Fixed.", None)
        assert asked.text.startswith("Go on.[image: image/png, ")
        shown = resolve(run.context(str(last.context)), run.node, last)
        assert [(part.role, part.text) if isinstance(part, Insert) else part[0].text for part in shown] == [
            *(("user", "The test was fixed."), ("assistant", "Got it."), asked.text),
        ]


def api_error(key: str, parent: str, why: str) -> dict[str, Any]:
    event = {"event.name": "qwen-code.api_error", "error_type": "APIError", "error_message": why}
    return system(key, parent, "ui_telemetry", uiEvent=event)


AGAIN = line("u2", "a2", "user", {"text": "More?"})


@pytest.mark.parametrize(
    ("more", "failure", "cut"),
    [
        ([AGAIN, api_error("e", "u2", "503 Overloaded")], "APIError: 503 Overloaded", False),
        ([AGAIN, api_error("e", "u2", "the context window is full")], None, True),
        ([AGAIN, api_error("e", "u2", "503"), line("a3", "e", "assistant", {"text": "Yes."})], None, False),
        ([AGAIN, system("e", "u2", "turn_result", state="error", error={"message": "no key"})], "no key", False),
        ([api_error("e", "a2", "503 while a title was made")], None, False),
        ([system("e", "a2", "turn_result", state="completed")], None, False),
    ],
)
def test_whose_fault_an_end_was(tmp_path: Path, more: list[dict[str, Any]], failure: str | None, cut: bool) -> None:
    with read(write(tmp_path / "s.jsonl", *TALK, *more), tmp_path / "run") as run:
        (attempt,) = run.attempts()
        assert (attempt.failure, attempt.truncated) == (failure, cut)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (line("b", "a2", "assistant", {"hologram": "x"}), "'parts' of 'message': item 0 holds none of text"),
        (line("b", "a2", "assistant", {"functionCall": {"name": "shell"}}), "'functionCall': 'id' must be text"),
        (line("b", "a2", "wizard", {"text": "x"}), "a line of type 'wizard'"),
        ({**line("b", "a2", "user"), "message": {"role": "user", "contents": ["x"]}}, "has neither 'parts'"),
        ({**line("b", "a2", "user"), "message": {"role": "user", "parts": "x"}}, "'parts' of 'message' must be a list"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    file = write(tmp_path / "s.jsonl", *TALK, bad)
    with pytest.raises(UserError, match=rf"s\.jsonl:8: ?.*{fault}"):
        pick_reader(file).read(file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_session_that_begins_with_a_line_of_the_system_is_known(tmp_path: Path) -> None:
    assert pick_reader(write(tmp_path / "s.jsonl", system("t", "x", "slash_command", phase="result"), *TALK)).name == "qwen-code"


def test_broken_sessions_are_read_or_refused(tmp_path: Path) -> None:
    assert min(refusals("qwen-code", tmp_path, TALK)) > 0
