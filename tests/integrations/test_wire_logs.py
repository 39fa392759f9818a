"""Archives of requests (HAR), files of OpenAI's Batch, and sessions of the Agents SDK."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from records import write

from ramify.base.errors import UserError
from ramify.integrations.formats.protocols import ANTHROPIC, CHAT, RESPONSES, streamed
from ramify.trace import convert, formats, intake
from ramify.trace.db import Run
from ramify.trace.outcomes import read_outcomes
from ramify.trace.view import View, views

ASKED = {"role": "user", "content": "Is it warm in Oslo?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
LOOKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"}
SAID = {"role": "assistant", "content": "No: 4 degrees."}
TALK = [("user", ASKED["content"]), ("assistant", ""), ("tool", "4 degrees"), ("assistant", "No: 4 degrees.")]
KEY = "sk-ant-0123456789abcdefghij"


def views_of(folder: Path) -> list[View]:
    with Run.open(folder) as run:
        return sorted(views(run, unjudged=True), key=lambda view: (-len(view.messages), view.leaf))


def talk(view: View) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in view.messages]


def refused(path: Path, form: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        convert.read_run(path, path.with_name("bad"), form)
    assert not path.with_name("bad").exists()
    return str(caught.value).replace(str(path), "FILE")


# --- HAR ------------------------------------------------------------------------------------------------------------------


def entry(path: str, body: Any, answer: Any, status: int = 200, encoded: bool = False) -> dict[str, Any]:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    content = {"text": base64.b64encode(text.encode()).decode(), "encoding": "base64"} if encoded else {"text": text}
    return {
        "startedDateTime": "2026-01-01T10:00:00Z",
        "request": {
            "method": "POST",
            "url": f"https://api.example.org/v1{path}?key={KEY}",
            "headers": [{"name": "Authorization", "value": f"Bearer {KEY}"}, {"name": "x-api-key", "value": KEY}],
            "cookies": [{"name": "session", "value": KEY}],
            "postData": {"mimeType": "application/json", "text": json.dumps(body)},
        },
        "response": {"status": status, "headers": [{"name": "Set-Cookie", "value": KEY}], "content": content},
    }


def archive(path: Path, *entries: dict[str, Any]) -> Path:
    pages = [{"id": "page_1", "title": 'a page with "entries": ['}]
    path.write_text(json.dumps({"log": {"version": "1.2", "pages": pages, "entries": list(entries), "comment": "x"}}, indent=1))
    return path


def events(*values: Any) -> str:
    return "".join(f"event: x\r\ndata: {json.dumps(value)}\r\n\r\n" for value in values)


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m1", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_calls_in_three_protocols_whole_and_streamed(tmp_path: Path) -> None:
    chunks = events(
        delta(role="assistant", content="No: "),
        delta(content="4 degrees."),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    )
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "4 degrees"}]}
    blocks = events(
        {"type": "message_start", "message": {"type": "message", "role": "assistant", "model": "m2", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "No: 4 "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "degrees."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    )
    called = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'}
    output = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No: 4 degrees."}]}
    told = {"type": "function_call_output", "call_id": "call_1", "output": "4 degrees"}
    file = archive(
        tmp_path / "all.har",
        entry("/chat/completions", {"model": "m1", "messages": [ASKED]}, {"choices": [{"message": LOOKED}]}),
        entry("/chat/completions", {"model": "m1", "messages": [ASKED, LOOKED, TOLD]}, chunks + "data: [DONE]\n\n"),
        entry(
            "/messages",
            {"model": "m2", "messages": [ASKED]},
            {"type": "message", "content": [use], "stop_reason": "tool_use"},
            encoded=True,
        ),
        entry("/messages", {"model": "m2", "messages": [ASKED, {"role": "assistant", "content": [use]}, result]}, blocks),
        entry("/responses", {"model": "m3", "input": ASKED["content"]}, {"object": "response", "output": [called]}),
        entry(
            "/responses",
            {"model": "m3", "input": [ASKED, called, told]},
            events({"type": "response.completed", "response": {"output": [output]}}),
        ),
        entry("/embeddings", {"model": "m4", "input": "x"}, {}),
        entry("/chat/completions", {"model": "m1", "messages": [ASKED]}, ""),
    )
    assert convert.read_run(file, tmp_path / "run") == "har"
    assert [talk(view) for view in views_of(tmp_path / "run")] == [TALK] * 3
    with Run.open(tmp_path / "run") as run:
        left = {item.key: item.payload["count"] for item in run.journal("ignored")}
    assert left == {"a request that is not the call of a model": 1, "a call whose answer is not in the archive": 1}
    assert KEY.encode() not in (tmp_path / "run" / "run.sqlite").read_bytes()


def test_a_call_that_failed_and_an_archive_without_calls(tmp_path: Path) -> None:
    body = {"model": "m1", "messages": [ASKED]}
    broken = {"error": {"type": "invalid_request_error", "message": f"Incorrect API key provided: {KEY}"}}
    file = archive(
        tmp_path / "failed.har", entry("/chat/completions", body, broken, 401), entry("/chat/completions", body, "", 0)
    )
    convert.read_run(file, tmp_path / "run")
    with Run.open(tmp_path / "run") as run:  # the same was asked again, and was broken off
        assert [attempt.failure for attempt in run.attempts()] == ["the request was broken off"]
    assert KEY.encode() not in (tmp_path / "run" / "run.sqlite").read_bytes()
    other = archive(tmp_path / "other.har", entry("/embeddings", {"input": "x"}, {}))
    assert "none of its entries is the call of a model (1 x a request that is not" in refused(other)
    bad = archive(
        tmp_path / "bad.har", entry("/chat/completions", {"messages": [{"role": "oracle", "content": "x"}]}, {"choices": []})
    )
    assert refused(bad).startswith("FILE:1: message 0 of the request has the role 'oracle'")


def test_streams_that_break_off_or_call_tools() -> None:
    piece = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": '{"city": '}}
    more = {"index": 0, "function": {"arguments": '"Oslo"}'}}
    (choice,) = streamed(CHAT, events(delta(tool_calls=[piece]), delta(tool_calls=[more])), "x")["choices"]
    assert choice["message"]["tool_calls"] == [CALL]
    start = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "a", "name": "w", "input": {}},
    }
    grows = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}}
    assert streamed(ANTHROPIC, events(start, grows), "x")["content"] == [
        {"type": "tool_use", "id": "a", "name": "w", "input": {"a": 1}}
    ]
    item = {"type": "message", "role": "assistant", "content": []}
    assert streamed(RESPONSES, events({"type": "response.output_item.done", "item": item}), "x")["output"] == [item]


# --- Batch ----------------------------------------------------------------------------------------------------------------


def request(name: str, body: dict[str, Any], url: str = "/v1/chat/completions") -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def answer(name: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    return {"id": f"batch_{name}", "custom_id": name, "response": {"status_code": status, "body": body}, "error": None}


def test_batch_answers_find_their_requests(tmp_path: Path) -> None:
    body = {"model": "m1", "messages": [ASKED], "n": 2}
    responses = {"model": "m1", "input": "Is it warm in Oslo?"}
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No."}]}]
    expired = {"code": "batch_expired", "message": "not in time"}
    write(
        tmp_path / "in.jsonl",
        request("a", body),
        request("b", responses, "/v1/responses"),
        request("c", body),
        request("d", body),
    )
    file = write(
        tmp_path / "out.jsonl",
        {"id": "x", "custom_id": "c", "response": None, "error": expired},
        answer("b", {"object": "response", "output": output}),
        answer("a", {"choices": [{"message": SAID, "finish_reason": "stop"}, {"message": SAID, "finish_reason": "length"}]}),
    )
    assert convert.read_run(file, tmp_path / "run") == "openai-batch"
    with Run.open(tmp_path / "run") as run:
        attempts = run.attempts()
        assert len({attempt.tree for attempt in attempts}) == 1
        assert sorted(str(attempt.failure) for attempt in attempts) == ["None", "None", "None", "batch_expired: not in time"]
        assert [(item.key, item.payload["count"]) for item in run.journal("ignored")] == [("without an answer", 1)]
    whole = write(
        tmp_path / "whole.jsonl",
        *map(json.loads, (tmp_path / "in.jsonl").read_text().splitlines()),
        answer("a", {"choices": [{"message": SAID}]}),
    )
    assert convert.read_run(whole, tmp_path / "whole") == "openai-batch"
    taken = intake.take([tmp_path], tmp_path / "all")
    assert taken.unknown == ["in.jsonl"]


def test_batch_requests_alone_and_answers_alone(tmp_path: Path) -> None:
    asked = write(tmp_path / "in.jsonl", request("a", {"messages": [ASKED]}))
    assert refused(asked).startswith("FILE holds 1 requests of a batch and no answer: import the output file")
    lonely = write(tmp_path / "out.jsonl", answer("b", {"choices": [{"message": SAID}]}))
    assert "FILE:1: there is no request 'b' in the file or beside it" in refused(lonely)


def test_a_run_asked_again_as_a_batch(tmp_path: Path) -> None:
    chat = {"task": "oslo", "messages": [ASKED, LOOKED, TOLD, SAID], "reward": 0.0}
    other = {"task": "oslo", "messages": [ASKED, LOOKED, TOLD, {**SAID, "content": "Yes."}], "reward": 1.0}
    convert.read_run(write(tmp_path / "chats.jsonl", chat, other), tmp_path / "run")
    out = formats.writers()["openai-batch"].write
    again = tmp_path / "again"
    again.mkdir()
    with Run.open(tmp_path / "run") as run:
        with pytest.raises(UserError, match="name one with --model"):
            out(run, again / "in.jsonl")
        assert out(run, again / "first.jsonl", model="m2", steps="first", n="2") == 1
        assert out(run, again / "in.jsonl", model="m2") == 2  # what two attempts were shown alike is asked once
    rows = [json.loads(line) for line in (again / "in.jsonl").read_text().splitlines()]
    assert [len(row["body"]["messages"]) for row in rows] == [1, 3]
    assert rows[1]["body"]["messages"][2] == {"role": "tool", "content": "4 degrees", "tool_call_id": "call_1"}
    assert json.loads((again / "first.jsonl").read_text())["body"]["n"] == 2
    (again / "first.jsonl").unlink()
    write(again / "out.jsonl", *(answer(row["custom_id"], {"choices": [{"message": SAID}]}) for row in rows))
    before = len(views_of(tmp_path / "run"))
    intake.take([again / "out.jsonl"], tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        assert [info.name for info in run.trees()] == ["oslo"]
    assert len(views_of(tmp_path / "run")) == before + len(rows)


# --- sessions of the Agents SDK ---------------------------------------------------------------------------------------------

ITEMS = [
    {"content": "Is it warm in Oslo?", "role": "user"},
    {"arguments": '{"city": "Oslo"}', "call_id": "call_1", "name": "weather", "type": "function_call", "id": "fc_1"},
    {"call_id": "call_1", "output": "4 degrees", "type": "function_call_output"},
    {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "No: 4 degrees.", "annotations": []}]},
]


def sessions(path: Path, *more: str, **named: list[Any]) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, message_data TEXT NOT NULL)")
        for name, items in named.items():
            db.execute("INSERT INTO agent_sessions VALUES (?)", (name,))
            rows = [(name, json.dumps(item)) for item in items]
            db.executemany("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", rows)
        for statement in more:
            db.execute(statement)
        db.commit()
    return path


def test_sessions_are_attempts_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    file = sessions(tmp_path / "agents.db", first=ITEMS, second=ITEMS[:-1])
    before = file.read_bytes()
    assert convert.read_run(file, tmp_path / "run") == "agents-session"
    first, second = views_of(tmp_path / "run")
    assert (talk(first), talk(second), first.task) == (TALK, TALK[:3], second.task)
    assert (file.read_bytes(), sorted(path.name for path in tmp_path.iterdir())) == (before, ["agents.db", "run"])
    outcomes = tmp_path / "outcomes.json"
    outcomes.write_text('{"first": true, "second": 0}')
    judged = read_outcomes(outcomes)
    taken = intake.take([file], tmp_path / "judged", outcomes=judged, outcomes_file=outcomes)
    assert (taken.given, taken.unmatched) == (2, [])
    assert [view.success for view in views_of(tmp_path / "judged")] == [True, False]
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "agents.db.gz").write_bytes(gzip.compress(before))
    assert intake.take([tmp_path / "packed"], tmp_path / "all").forms == ["agents-session"]


def test_branches_of_an_advanced_session(tmp_path: Path) -> None:
    structure = "CREATE TABLE message_structure (session_id TEXT, message_id INTEGER, branch_id TEXT, sequence_number INTEGER)"
    main = "INSERT INTO message_structure SELECT session_id, id, 'main', id FROM agent_messages WHERE id < 5"
    other = "INSERT INTO message_structure SELECT session_id, id, 'other', id FROM agent_messages WHERE id IN (1, 5)"
    file = sessions(tmp_path / "agents.db", structure, main, other, first=[*ITEMS, {**ITEMS[-1], "content": "Yes."}])
    convert.read_run(file, tmp_path / "run")
    assert [talk(view) for view in views_of(tmp_path / "run")] == [TALK, [TALK[0], ("assistant", "Yes.")]]


def test_nothing_of_a_database_runs(tmp_path: Path) -> None:
    """Views, tables with generated columns and virtual tables are refused; what is not a session is of no known format."""
    view = ("DROP TABLE agent_messages", "CREATE VIEW agent_messages AS SELECT 1 AS id, 'a' AS session_id, '{}' AS message_data")
    assert "without the plain table 'agent_messages'" in refused(sessions(tmp_path / "view.db", *view, a=ITEMS))
    columns = "id INTEGER, session_id TEXT, message_data TEXT GENERATED ALWAYS AS (upper(session_id))"
    grown = ("DROP TABLE agent_messages", f"CREATE TABLE agent_messages ({columns})")
    assert "without the plain table 'agent_messages'" in refused(sessions(tmp_path / "grown.db", *grown, a=ITEMS))
    text = ("DROP TABLE agent_messages", "CREATE VIRTUAL TABLE agent_messages USING fts5(id, session_id, message_data)")
    with contextlib.suppress(sqlite3.OperationalError):  # SQLite may be built without it
        assert "without the plain table 'agent_messages'" in refused(sessions(tmp_path / "text.db", *text, a=ITEMS))
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as db:
        db.execute("CREATE TABLE other (x)")
    assert "is an SQLite database: traces are JSON" in refused(tmp_path / "other.db")


def test_sessions_that_cannot_be_read(tmp_path: Path) -> None:
    file = sessions(tmp_path / "agents.db", a=[{"__enc__": 1, "v": 1, "kid": "k", "payload": "x"}])
    assert "FILE:1: session 'a' is encrypted" in refused(file)
    open_file = sessions(tmp_path / "open.db", a=ITEMS)
    (tmp_path / "open.db-wal").write_bytes(b"x" * 32)
    assert "its last writes lie in open.db-wal" in refused(open_file)
    odd = sessions(tmp_path / "odd.db", a=[{"type": "dream"}])
    assert refused(odd).startswith("FILE:1: session 'a': item 0 is of type 'dream'")
    garbled = tmp_path / "garbled.db"
    garbled.write_bytes(file.read_bytes().replace(b"(session_id TEXT PRIMARY", b"(session_i\xe9 TEXT PRIMARY"))
    assert "as sessions of the Agents SDK" in refused(garbled)
    cut = tmp_path / "cut.db"
    cut.write_bytes(file.read_bytes()[:5000])
    assert "as sessions of the Agents SDK" in refused(cut, "agents-session")
