"""Sessions of OpenCode: steps and results, a compaction, files, subagents, the folder, and how they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import write
from session_logs import PICTURE, read, refusals, said

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.trace.context import resolve
from ramify.trace.formats import pick_reader
from ramify.trace.intake import IgnoredPart
from ramify.trace.node import Insert
from ramify.trace.notes import noting

FIX = "Fix the test."
START = {"type": "step-start"}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def tool(key: str, status: str = "completed", name: str = "bash", **state: Any) -> dict[str, Any]:
    return {"type": "tool", "callID": key, "tool": name, "state": {"status": status, "input": {"command": key}, **state}}


def done(reason: str, spent: int) -> dict[str, Any]:
    return {"type": "step-finish", "reason": reason, "cost": 0.5, "tokens": {"input": spent, "output": 1}}


def user(key: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"info": {"id": key, "role": "user", "agent": "build"}, "parts": list(parts)}


def reply(key: str, *parts: dict[str, Any], parent: str = "m1", **more: Any) -> dict[str, Any]:
    by = {"role": "assistant", "modelID": "model-x", "providerID": "local", "agent": "build", "parentID": parent}
    return {"info": {"id": key, **by, **more}, "parts": list(parts)}


def session(*messages: dict[str, Any], key: str = "ses_1", **more: Any) -> dict[str, Any]:
    return {"info": {"id": key, "title": "Fixing", "directory": "/repo", **more}, "messages": list(messages)}


def error(name: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "data": {"message": message} if message else {}}


LOOKS = [
    START,
    {"type": "reasoning", "text": "I look first."},
    tool("ls", output="test.py"),
    tool("cat", "error", error="no such file"),
    done("tool-calls", 7),
    {"type": "patch", "hash": "h", "files": ["a"]},
]
TALK = [
    user("m1", text(FIX), text("<file>x</file>", synthetic=True), text("not shown", ignored=True)),
    reply("m2", *LOOKS, START, text("Fixed."), done("stop", 9), cost=1.0, tokens={"input": 16, "output": 2}),
]


def test_a_message_of_two_steps_is_two_replies_with_their_results(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({**session(*TALK), "todos": []}, indent=2))
    with noting() as notes, read(tmp_path / "s.json", tmp_path / "run") as run:
        _, asked, looks, first, second, last = run.nodes(FIX)
        assert [said(node) for node in (asked, first, second, last)] == [
            ("user", f"{FIX}\n\n<file>x</file>"),
            ("tool", "test.py"),
            ("tool", "no such file"),
            ("assistant", "Fixed."),
        ]
        assert looks.message.reasoning == "I look first."
        assert [(call.name, dict(call.arguments)) for call in looks.message.calls] == [
            ("bash", {"command": "ls"}),
            ("bash", {"command": "cat"}),
        ]
        assert (first.data["tool_call_id"], second.data["is_error"]) == ("ls", True)
        assert [node.data["usage"]["tokens"]["input"] for node in (looks, last)] == [7, 9]
        assert (looks.stop, last.stop) == ("stop", "stop")
        by = run.provenance(str(last.provenance))
        assert (by.model, by.settings) == ("model-x", {"agent": "opencode", "provider": "local", "mode": "build"})
        assert last.data["record"] == {"session_id": "ses_1", "title": "Fixing", "directory": "/repo"}
        ignored = run.memo("ignored", IgnoredPart)
        assert {name: part.count for name, part in ignored.items()} == {"step-start": 2, "patch": 1, "text": 1}
    assert (notes.unread, notes.open_calls) == ((), 0)


def test_without_marks_what_is_said_after_a_call_is_another_reply(tmp_path: Path) -> None:
    whole = reply("m2", text("I look."), tool("ls", output="test.py"), text("Fixed."), tokens={"input": 16}, structured={"a": 1})
    with read(write(tmp_path / "s.jsonl", session(TALK[0], whole)), tmp_path / "run") as run:
        nodes = run.nodes(FIX)[2:]
        assert [node.text for node in nodes] == ["I look.", "test.py", "Fixed."]
        assert [node.data.get("usage") for node in nodes] == [None, None, {"tokens": {"input": 16}}]  # of the message: once
        assert nodes[-1].data["structured"] == {"a": 1}


def test_after_a_compaction_the_context_is_what_was_kept(tmp_path: Path) -> None:
    talk = [
        *TALK,
        user("m3", text("And the docs?")),
        reply("m4", text("Not yet."), parent="m3"),
        user("m5", {"type": "compaction", "auto": True, "tail_start_id": "m3"}),
        reply("m6", text("The test was fixed."), parent="m5", summary=True, finish="stop"),
        user("m7", text("Go on.")),
        reply("m8", text("Done."), parent="m7"),
    ]
    with read(write(tmp_path / "s.jsonl", session(*talk)), tmp_path / "run") as run:
        *_, before, asked, last = run.nodes(FIX)
        assert (before.text, before.context, asked.text, last.text) == ("Not yet.", None, "Go on.", "Done.")
        shown = resolve(run.context(str(last.context)), run.node, last)
        assert [part.text if isinstance(part, Insert) else part[0].text for part in shown] == [
            *("And the docs?", "Not yet.", "What did we do so far?", "The test was fixed.", "Go on."),
        ]


def test_pictures_and_commands(tmp_path: Path) -> None:
    picture = {"type": "file", "mime": "image/png", "url": f"data:image/png;base64,{PICTURE}"}
    note = {"type": "file", "mime": "text/plain", "url": "file:///a.txt"}
    command = {"type": "subtask", "prompt": "Review it.", "description": "d", "agent": "general"}
    seen = tool("shot", output="Seen.", attachments=[picture])
    talk = [user("m1", command, picture, note), reply("m2", seen, tool("late", "running"))]
    with noting() as notes, read(write(tmp_path / "s.jsonl", session(*talk)), tmp_path / "run") as run:
        _, asked, _, result = run.nodes("Review it.")
        assert asked.text.startswith("The following tool was executed by the user\n\n[image: image/png, ")
        assert result.text.startswith("Seen.\n\n[image: image/png, ")
        assert asked.data["subtask"]["agent"] == "general"
        assert result.data["unanswered"] == [{"id": "late", "name": "bash"}]
    assert notes.open_calls == 1


def test_a_folder_of_files_with_a_subagent(tmp_path: Path) -> None:
    calls = reply("m2", tool("t", name="task", output="It is.", metadata={"sessionId": "ses_2"}), text("Right."))
    inner = [user("m1b", text("Is it right?")), reply("m2b", text("It is."))]
    for record in (session(user("m1", text(FIX)), calls), session(*inner, key="ses_2", parentID="ses_1")):
        key = record["info"]["id"]
        files = {f"session/p/{key}": record["info"]}
        for message in record["messages"]:
            files[f"message/{key}/{message['info']['id']}"] = message["info"]
            for at, part in enumerate(message["parts"]):
                files[f"part/{message['info']['id']}/prt_{at}"] = part
        for name, content in files.items():
            (tmp_path / "storage" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "storage" / f"{name}.json").write_text(json.dumps(content))
    with read(tmp_path / "storage", tmp_path / "run") as run:
        assert [node.text for node in run.nodes(FIX)[2:]] == ["", "It is.", "Right."]
        (last,) = [node for node in run.nodes("subagent: Is it right?") if node.role == "assistant"]
        (link,) = run.annotations(node=run.nodes(FIX)[2].id)
        assert link.value == {"type": "subagent", "node": last.id}
    (tmp_path / "storage" / "part" / "prt_9.json").write_text("{}")
    with pytest.raises(UserError, match=r"part holds parts that are in no message's folder"):
        read(tmp_path / "storage", tmp_path / "again")


@pytest.mark.parametrize(
    ("fault", "failure", "cut"),
    [
        (error("APIError", "Overloaded"), "APIError: Overloaded", False),
        (error("ProviderAuthError", "no key"), "ProviderAuthError: no key", False),
        (error("UnknownError", "context lost"), "UnknownError: context lost", False),
        (error("ContextOverflowError", "too long"), None, True),
        (error("MessageOutputLengthError"), None, True),
        (error("MessageAbortedError", "The operation was aborted."), None, False),
        (error("StructuredOutputError", "no JSON"), None, False),
    ],
)
@pytest.mark.parametrize("parts", [(), (text("I tr"),)])
def test_whose_fault_an_end_was(
    tmp_path: Path, parts: tuple[dict[str, Any], ...], fault: dict[str, Any], failure: str | None, cut: bool
) -> None:
    file = write(tmp_path / "s.jsonl", session(*TALK, user("m3", text("More?")), reply("m4", *parts, error=fault)))
    with read(file, tmp_path / "run") as run:
        (attempt,) = run.attempts()
        assert (attempt.failure, attempt.truncated) == (failure, cut)
        left_out = run.memo("ignored", IgnoredPart)
        assert (fault["name"] in left_out) == (not parts and failure is None and not cut)
        assert run.node(attempt.leaf).data["record"]["session_id"] == "ses_1"


def test_a_failed_reply_is_counted_where_the_talk_went_on(tmp_path: Path) -> None:
    failed = reply("m2a", text("I tr"), error=error("APIError", "Overloaded"))
    stopped = reply("m2b", text("I begin."), error=error("MessageAbortedError", "aborted"))
    with read(write(tmp_path / "s.jsonl", session(TALK[0], failed, stopped, TALK[1])), tmp_path / "run") as run:
        texts = [node.text for node in run.nodes(FIX)]
        assert ("I tr" in texts, "I begin." in texts) == (False, True)
        assert run.memo("ignored", IgnoredPart)["APIError"].what == "replies that failed"
        assert run.attempts()[0].failure is None


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (reply("m2", tool("ls", "success", output="x")), "item 1: 'parts': item 0: a call whose state is 'success'"),
        (reply("m2", tool("ls")), "'state': 'output' must be text, and it is missing"),
        (reply("m2", {"text": "x"}), "'type' must be text"),
        ({"info": {"id": "m", "role": "wizard"}, "parts": []}, "has the role 'wizard'"),
        ({"info": {"id": "m", "role": "user"}, "parts": {}}, "'parts' must be a list"),
        (reply("m2", error=3), "'error' is not an object"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    file = write(tmp_path / "s.jsonl", session(TALK[0], bad))
    with pytest.raises(UserError, match=rf"s\.jsonl:1: .*{fault}"):
        pick_reader(file).read(file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_part_of_an_unknown_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "s.jsonl", session(TALK[0], reply("m2", text("Fixed."), {"type": "hologram", "beam": "x"})))
    assert main(["import", str(file), "--run", str(tmp_path / "run")]) == 0
    assert "hologram" in capsys.readouterr().out


def test_broken_sessions_are_read_or_refused(tmp_path: Path) -> None:
    assert min(refusals("opencode", tmp_path, [session(*TALK), session(TALK[0], key="ses_2")])) > 0
