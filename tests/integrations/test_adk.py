"""Sessions of Google's ADK: calls and results, agents by name, what says nothing, and how they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import write
from session_logs import paths, read, refusals, said

from ramify.base.errors import UserError
from ramify.trace.aliases import NOTHING
from ramify.trace.formats import pick_reader
from ramify.trace.intake import IgnoredPart, take
from ramify.trace.notes import noting

ASKED = "Is it warm in Oslo and Rome?"


def event(author: str, role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"author": author, "invocation_id": "i1", "id": "e", "content": {"role": role, "parts": list(parts)}, **more}


def call(city: str) -> dict[str, Any]:
    return {"function_call": {"id": city, "name": "look_up", "args": {"city": city}}}


def told(city: str) -> dict[str, Any]:
    return {"function_response": {"id": city, "name": "look_up", "response": {"degrees": 4}}}


def session(*events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s1", "app_name": "weather", "user_id": "u1", "state": {"lang": "en"}, "events": list(events), **more}


EVENTS = [
    event("user", "user", {"text": ASKED}),
    {"author": "guide", "id": "e", "actions": {"state_delta": {"seen": True}}},
    event("guide", "model", {"text": "I lo"}, partial=True),
    event("guide", "model", {"text": "I look."}, call("Oslo"), call("Rome"), model_version="gemini-x"),
    event("guide", "user", told("Oslo"), told("Rome")),
    event("sage", "model", {"text": "No."}, usage_metadata={"total_token_count": 9}),
]


def test_calls_made_together_have_their_own_results(tmp_path: Path) -> None:
    (tmp_path / "a.session.json").write_text(json.dumps(session(*EVENTS), indent=1))
    with noting() as notes, read(tmp_path / "a.session.json", tmp_path / "run") as run:
        _, *nodes = run.nodes(ASKED)
        assert [said(node) for node in nodes] == [
            ("user", ASKED),
            ("assistant", "I look."),
            ("tool", '{"degrees":4}'),
            ("tool", '{"degrees":4}'),
            ("assistant", "No."),
        ]
        assert [(one.name, dict(one.arguments)) for one in nodes[1].message.calls] == [
            ("look_up", {"city": "Oslo"}),
            ("look_up", {"city": "Rome"}),
        ]
        assert [node.data["tool_call_id"] for node in nodes[2:4]] == ["Oslo", "Rome"]
        assert (nodes[1].data["name"], nodes[4].data["name"], nodes[4].data["usage"]) == (
            "guide",
            "sage",
            {"total_token_count": 9},
        )
        assert run.provenance(str(nodes[1].provenance)).model == "gemini-x"
        assert nodes[4].data["record"]["state"] == {"lang": "en"}
        ignored = run.memo("ignored", IgnoredPart)
        assert {name: part.count for name, part in ignored.items()} == {"no content": 1, "partial": 1}
    assert (notes.unread, notes.open_calls) == ((), 0)


def test_json_in_the_spelling_of_its_services_and_several_sessions(tmp_path: Path) -> None:
    camel = session(
        event("user", "user", {"text": ASKED}),
        event("guide", "model", {"functionCall": {"id": "Oslo", "name": "look_up", "args": {}}}),
        event("guide", "user", {"functionResponse": {"id": "Oslo", "name": "look_up", "response": {"degrees": 4}}}),
        event("guide", "model", {"text": "Yes."}, modelVersion="gemini-y"),
    )
    camel["appName"] = camel.pop("app_name")
    file = write(tmp_path / "s.jsonl", camel, session(*EVENTS, id="s2"))
    taken = take([file], tmp_path / "run", outcomes={"s1": NOTHING._replace(success=True)})
    assert (taken.forms, taken.records, taken.given) == (["adk"], 2, 1)
    with read(file, tmp_path / "again") as run:
        assert sorted(path[-1][1] for path in paths(run, ASKED)) == ["No.", "Yes."]


@pytest.mark.parametrize(
    ("error", "failure", "cut"),
    [
        ({"error_code": "503", "error_message": "The model is overloaded."}, "503: The model is overloaded.", False),
        ({"errorCode": "MAX_TOKENS"}, None, True),
        ({}, None, False),
    ],
)
def test_how_it_ended(tmp_path: Path, error: dict[str, str], failure: str | None, cut: bool) -> None:
    last = {"author": "guide", "id": "e9", **error}
    with read(write(tmp_path / "s.jsonl", session(*EVENTS, last)), tmp_path / "run") as run:
        (attempt,) = run.attempts()
        assert (attempt.failure, attempt.truncated) == (failure, cut)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (event("guide", "model", {"hologram": "x"}), "part 0 of 'content' is of no type and holds no text"),
        (event("guide", "wizard", {"text": "x"}), "has the role 'wizard'"),
        (event("guide", "user", told("Oslo"), {"text": "x"}), "holds a result of a tool beside other parts"),
        ({"author": "guide", "content": 3}, "item 6: 'content' is not an object"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    file = write(tmp_path / "s.jsonl", session(*EVENTS, bad))
    with pytest.raises(UserError, match=rf"s\.jsonl:1: .*{fault}"):
        pick_reader(file).read(file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_broken_sessions_are_read_or_refused(tmp_path: Path) -> None:
    assert min(refusals("adk", tmp_path, [session(*EVENTS), session(*EVENTS[:2])])) > 0
