"""Sessions of Gemini CLI: a document or lines, calls and results, rewinds, and how they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import write
from session_logs import paths, read, refusals, said

from ramify.base.errors import UserError
from ramify.trace.aliases import NOTHING
from ramify.trace.intake import IgnoredPart, take
from ramify.trace.notes import noting

FIX = "Fix the test."
HEAD = {"sessionId": "s1", "projectHash": "p1", "startTime": "2026-01-01T00:00:00Z", "lastUpdated": "2026-01-01T00:00:00Z"}


def user(key: str, text: str) -> dict[str, Any]:
    return {"id": key, "timestamp": "2026-01-01T00:00:01Z", "type": "user", "content": [{"text": text}]}


def reply(key: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": key, "timestamp": "2026-01-01T00:00:02Z", "type": "gemini", "content": text, "model": "gemini-x", **more}


def called(key: str, told: Any, status: str = "success") -> dict[str, Any]:
    answer = [{"functionResponse": {"id": key, "name": "shell", "response": told}}]
    call = {"id": key, "name": "shell", "args": {"command": "ls"}, "status": status, "resultDisplay": "shown"}
    return {**call, **({"result": answer} if told is not None else {})}


LOOKS = reply(
    "m2",
    "",
    thoughts=[{"subject": "Look", "description": "I look first."}],
    tokens={"input": 5},
    toolCalls=[called("c1", {"output": "test.py"}), called("c2", {"error": "there is no shell"}, "error")],
)
TALK = [user("m1", FIX), LOOKS, reply("m3", "Fixed.")]


def lines(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [HEAD, *messages, {"$set": {"lastUpdated": "2026-01-01T00:00:09Z"}}]


def test_a_document_and_lines_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**HEAD, "messages": TALK}, indent=1))
    begun = {name: value for name, value in LOOKS.items() if name != "toolCalls"}  # written again when its calls are done
    write(tmp_path / "b.jsonl", *lines(TALK[0], begun, *TALK[1:]))
    for name in ("a.json", "b.jsonl"):
        with noting() as notes, read(tmp_path / name, tmp_path / f"run-{name}") as run:
            _, asked, looks, first, second, done = run.nodes(FIX)
            assert [said(node) for node in (asked, first, second, done)] == [
                ("user", FIX),
                ("tool", "test.py"),
                ("tool", "there is no shell"),
                ("assistant", "Fixed."),
            ]
            assert looks.message.reasoning == "Look: I look first."
            assert [(call.name, dict(call.arguments)) for call in looks.message.calls] == [("shell", {"command": "ls"})] * 2
            assert (first.data["tool_call_id"], second.data["tool_call_id"]) == ("c1", "c2")
            assert ("is_error" in first.data, second.data["status"]) == (False, "error")
            assert run.provenance(str(done.provenance)).model == "gemini-x"
            (attempt,) = run.attempts()
            assert (attempt.leaf, attempt.outcome, attempt.failure) == (done.id, None, None)
        assert not notes.unread


def test_what_a_rewind_took_back_is_an_attempt(tmp_path: Path) -> None:
    more = [user("m4", "Now the docs."), reply("m5", "Done."), {"$rewindTo": "m4"}, user("m6", "Rather the style.")]
    file = write(tmp_path / "s.jsonl", *lines(*TALK, *more, reply("m7", "Styled.")))
    with read(file, tmp_path / "run") as run:
        ends = {path[-1][1]: [text for role, text in path if role == "user"] for path in paths(run, FIX)}
        assert ends == {"Done.": [FIX, "Now the docs."], "Styled.": [FIX, "Rather the style."]}
        assert len(run.nodes(FIX)) == 10
        assert len(run.attempts()) == 2
    alone = write(tmp_path / "alone.jsonl", *lines(*TALK, {"$rewindTo": "m3"}))
    with read(alone, tmp_path / "alone") as run:
        assert [path[-1][1] for path in paths(run, FIX)] == ["Fixed."]
    again = write(tmp_path / "again.jsonl", *lines(user("m0", "Gone."), {"$set": {"messages": TALK}}))
    with read(again, tmp_path / "again") as run:
        assert [path[0] for path in paths(run, FIX)] == [("user", FIX)]


def test_how_it_ended(tmp_path: Path) -> None:
    error = {"id": "e1", "type": "error", "content": "[API Error: the quota is used up]"}
    shown = {"id": "i1", "type": "info", "content": "Request cancelled."}
    file = write(tmp_path / "s.jsonl", *lines(*TALK[:2], shown, error))
    with read(file, tmp_path / "run") as run:
        (attempt,) = run.attempts()
        assert attempt.failure == "[API Error: the quota is used up]"
        assert {name: part.count for name, part in run.memo("ignored", IgnoredPart).items()} == {"info": 1, "error": 1}
    open_call = reply("m2", "I look.", toolCalls=[called("c1", None, "cancelled")])
    file = write(tmp_path / "t.jsonl", *lines(TALK[0], open_call, error, reply("m3", "Fixed.")))
    with noting() as notes, read(file, tmp_path / "open") as run:
        (attempt,) = run.attempts()
        assert (attempt.failure, run.node(attempt.leaf).data["unanswered"]) == (None, [{"id": "c1", "name": "shell"}])
    assert notes.open_calls == 1
    assert take([file], tmp_path / "judged", outcomes={"s1": NOTHING._replace(success=True)}).given == 1


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ({"id": "x", "type": "hologram", "content": "z"}, r":5 is of type 'hologram', which is none of user, gemini"),
        ({"type": "user", "content": "z"}, r":5: 'id' must be text, and it is missing"),
        ({"id": "x", "content": "z"}, r":5: 'type' must be text, and it is missing"),
        (reply("x", "") | {"toolCalls": [{"id": "c9"}]}, r":5: 'name' must be text, and it is missing"),
        ({"$rewindTo": 3}, r":5: '\$rewindTo' must be text"),
        (user("x", "") | {"content": 3}, r":5 has a 'content' that is neither text nor a list of parts"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    file = write(tmp_path / "s.jsonl", HEAD, *TALK, bad)
    with pytest.raises(UserError, match=fault):
        take([file], tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with noting(skip_bad=True) as notes, read(file, tmp_path / "skipped") as run:
        assert [path[-1][1] for path in paths(run, FIX)] == ["Fixed."]
    assert len(notes.bad) == 1


def test_broken_sessions_are_read_or_refused(tmp_path: Path) -> None:
    assert min(refusals("gemini-cli", tmp_path, lines(*TALK, {"$rewindTo": "m3"}, reply("m4", "Done.")))) > 0
