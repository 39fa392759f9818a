"""Sessions of Claude Code: replies of several lines, rewinds, compactions, subagents, and how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from session_logs import PICTURE, ask_why, boundary, claude, line, paths, read, refusals, result, said, stream, text, use, write

from ramify.base.errors import UserError
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader, writers
from ramify.trace.intake import IgnoredPart, take
from ramify.trace.node import Annotation, Provenance
from ramify.trace.notes import noting

FIX = "Fix the test."


def test_lines_of_one_reply_are_one_message(tmp_path: Path) -> None:
    with read(write(tmp_path / "s.jsonl", *claude()), tmp_path / "run") as run:
        _, asked, looks, image, listed, done = run.nodes(FIX)
        assert [said(node) for node in (asked, looks, listed, done)] == [
            ("user", FIX),
            ("assistant", "I look."),
            ("tool", "test.py"),
            ("assistant", "It is fixed."),
        ]
        assert looks.message.reasoning == "I look first."
        assert [(call.name, dict(call.arguments)) for call in looks.message.calls] == [
            ("Bash", {"command": "ls"}),
            ("Read", {"file_path": "a.png"}),
        ]
        assert (image.data["tool_call_id"], listed.data["tool_call_id"]) == ("t2", "t1")
        (media,) = image.data["media"].values()
        assert run.get_blob(media["blob"]) == b"a picture"
        assert PICTURE not in image.text
        assert run.provenance(str(done.provenance)).model == "claude-x"
        assert looks.data["response"]["usage"]["cache_read_input_tokens"] == 5
        (attempt,) = run.attempts()
        assert (attempt.leaf, attempt.outcome, attempt.truncated, attempt.failure) == (done.id, None, False, None)
        assert attempt.provenance == done.provenance
        ignored = run.memo("ignored", IgnoredPart)
        assert {name: part.count for name, part in ignored.items()} == {"bookkeeping": 2, "attachment": 1}


def test_a_rewind_is_a_branch_and_sessions_of_one_prompt_share_a_tree(tmp_path: Path) -> None:
    again = [line("u2", "b1", "Now the docs."), line("c1", "u2", text("Done."), "m3")]
    rewound = [line("u3", "b1", "Rather the style."), line("d1", "u3", text("Styled."), "m4")]
    retried = line("e1", "u1", text("At once."), "m5")
    first = write(tmp_path / "a.jsonl", *claude(), *again, *rewound, retried)
    second = write(tmp_path / "b.jsonl", *claude(last="I gave up."))
    take([first, second], tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        ends = {path[-1][1]: [said for role, said in path if role == "user"] for path in paths(run, FIX)}
        assert ends == {
            "Done.": [FIX, "Now the docs."],
            "Styled.": [FIX, "Rather the style."],
            "At once.": [FIX],
            "I gave up.": [FIX],
        }
        assert len(run.attempts(FIX)) == len({attempt.index for attempt in run.attempts(FIX)}) == 4


def test_a_compaction_is_the_context_of_what_follows(tmp_path: Path) -> None:
    summary = line("k1", "x", "The summary.", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    more = [boundary("x", "b1", "b1"), summary, line("u2", "k1", "Go on."), line("c1", "u2", use("t3", command="make"), "m3")]
    more += [line("r3", "c1", result("t3", "made")), line("c2", "r3", text("All done."), "m4")]
    with read(write(tmp_path / "s.jsonl", *claude(), *more), tmp_path / "run") as run:
        (path,) = paths(run, FIX)
        assert [text for _, text in path][-4:] == ["Go on.", "", "made", "All done."]
        *_, done, _, calls, _, last = run.nodes(FIX)
        kept = [("user", "The summary."), ("assistant", "It is fixed."), ("user", "Go on.")]
        assert [(one.role, one.text) for one in run.shown(calls.id).messages] == kept
        assert [(one.role, one.text) for one in run.shown(last.id).messages] == [*kept, ("assistant", ""), ("tool", "made")]
        assert (done.context, done.text) == (None, "It is fixed.")
        assert calls.context == last.context  # of any number of replies there is one
    other = write(tmp_path / "o.jsonl", *claude(command="pwd"))
    take([other, tmp_path / "s.jsonl"], tmp_path / "both")  # nodes move to other ids
    with Run.open(tmp_path / "both") as run:
        (last,) = (node for node in run.nodes(FIX) if node.text == "All done.")
        assert [(one.role, one.text) for one in run.shown(last.id).messages] == [*kept, ("assistant", ""), ("tool", "made")]
    with Run.open(tmp_path / "run") as run:
        for form in ("sharegpt", "anthropic", "trl-sft"):
            with noting() as notes:
                writers()[form].write(run, tmp_path / f"{form}.jsonl", **({"form": "messages"} if form == "trl-sft" else {}))
            assert notes.unwritten["compacted context"] == 2, form
    ended = write(tmp_path / "e.jsonl", *claude(), *more[:2])  # right after the compaction
    with read(ended, tmp_path / "ended") as run:
        assert run.node(run.attempts()[0].leaf).text == "It is fixed."


def test_what_a_compaction_kept_may_be_said_again(tmp_path: Path) -> None:
    again = line("b9", "k1", text("It is fixed."), "m2")
    summary = line("k1", "x", "The summary.", isCompactSummary=True)
    more = [boundary("x", "b1"), summary, again, line("u2", "b9", "Go on."), line("c1", "u2", text("Done."), "m3")]
    with read(write(tmp_path / "s.jsonl", *claude(), *more), tmp_path / "run") as run:
        assert len(run.attempts()) == 1
        *_, last = run.nodes(FIX)
        kept = [("user", "The summary."), ("assistant", "It is fixed."), ("user", "Go on.")]
        assert [(one.role, one.text) for one in run.shown(last.id).messages] == kept


def test_lines_that_name_no_parents_follow_each_other(tmp_path: Path) -> None:
    lines = [one | {"parentUuid": None} for one in claude() if one["type"] in ("user", "assistant")]
    with read(write(tmp_path / "s.jsonl", *lines), tmp_path / "run") as run:
        assert [role for role, _ in paths(run, FIX)[0]] == ["user", "assistant", "tool", "tool", "assistant"]


def side(uuid: str, parent: str | None, content: Any, reply: str = "") -> dict[str, Any]:
    return line(uuid, parent, content, reply) | {"isSidechain": True}


def test_a_subagent_is_a_tree_that_its_caller_names(tmp_path: Path) -> None:
    calls = [line("u1", None, FIX), line("a1", "u1", use("t1", "Task", prompt="Look around."), "m1")]
    works = [side("s1", None, "Look around."), side("s2", "s1", text("Nothing here."), "n1")]
    ends = [line("r1", "a1", result("t1", "Nothing here.")), line("b1", "r1", text("Done."), "m2")]
    streamed = [one | {"parent_tool_use_id": "t1"} for one in works]
    forms = {
        "inside": [*calls, *works, *ends],
        "stream": stream(*calls, *streamed, *ends),
        "named": [*calls, *(one | {"agentId": "g1"} for one in works), ends[0] | {"toolUseResult": {"agentId": "g1"}}, ends[1]],
    }
    for name, records in forms.items():
        with read(write(tmp_path / f"{name}.jsonl", *records), tmp_path / name) as run:
            assert {info.name for info in run.trees()} == {FIX, "subagent: Look around."}
            assert paths(run, "subagent: Look around.") == [[("user", "Look around."), ("assistant", "Nothing here.")]]
            assert [role for role, _ in paths(run, FIX)[0]] == ["user", "assistant", "tool", "assistant"]
            (note,) = run.each(Annotation)
            assert run.node(note.node).message.calls[0].name == "Task"
            assert run.node(note.value["node"]).text == "Nothing here."
    alone = write(tmp_path / "agent-1.jsonl", *works)
    with read(alone, tmp_path / "alone") as run:
        assert [info.name for info in run.trees()] == ["subagent: Look around."]


def broken(said: str, **more: Any) -> dict[str, Any]:
    made = line("e1", "r1", text(said), "api", isApiErrorMessage=True, error="unknown", **more)
    made["message"]["model"] = "<synthetic>"
    return made


def test_how_it_ended(tmp_path: Path) -> None:
    start = claude()[:9]
    reached = {"type": "attachment", "uuid": "x9", "parentUuid": "r1", "sessionId": "s1"}
    reached["attachment"] = {"type": "max_turns_reached", "maxTurns": 2}
    after = [line("u5", "e1", "Try again."), line("f1", "u5", text("It worked."), "m9")]
    endings: dict[str, tuple[list[Any], bool, str | None]] = {
        "error": ([*start, broken("API Error: 529 overloaded")], False, "unknown: API Error: 529 overloaded"),
        "long": ([*start, broken("Prompt is too long")], True, None),
        "again": ([*start, broken("API Error: 529"), *after], False, None),
        "turns": ([*start, reached], True, None),
    }
    lines = [one for one in start if one["type"] in ("user", "assistant")]
    endings |= {
        "stream": (stream(*lines, result="Done."), False, None),
        "stream-turns": (stream(*lines, subtype="error_max_turns", is_error=True), True, None),
        "stream-error": (
            stream(*lines, is_error=True, result="Internal error", api_error_status=500),
            False,
            "500: Internal error",
        ),
        "nothing": (stream(is_error=True, result="Invalid API key"), False, "Invalid API key"),
    }
    for name, (records, cut, failure) in endings.items():
        with read(write(tmp_path / f"{name}.jsonl", *records), tmp_path / name) as run:
            (attempt,) = run.attempts()
            assert (attempt.truncated, attempt.failure, attempt.success) == (cut, failure, None), name
            assert run.node(attempt.leaf).stop == ("failed" if failure else "truncated" if cut else run.node(attempt.leaf).stop)
            if name == "again":
                assert [text for _, text in paths(run, FIX)[0]][-2:] == ["Try again.", "It worked."]
                assert run.memo("ignored", IgnoredPart)["isApiErrorMessage"].count == 1
            if name == "stream":
                assert run.node(attempt.leaf).data["result"]["total_cost_usd"] == 0.5


def test_what_is_not_known_is_counted(tmp_path: Path) -> None:
    odd = [{"type": "from-tomorrow", "sessionId": "s1", "x": "y"}, line("u9", "nowhere", "Hello?"), line("u1", None, "twice")]
    odd += [line("w1", "b1", [{"type": "hologram", "data": "z"}], "m7", newField="x")]
    with noting() as notes, read(write(tmp_path / "s.jsonl", *claude(), *odd), tmp_path / "run") as run:
        assert run.memo("ignored", IgnoredPart)["repeated uuid"].count == 1
    assert {(one.field, one.of, one.count) for one in notes.unread} == {
        ("from-tomorrow", "line", 1),
        ("hologram", "block", 1),
        ("newField", "line", 1),
        ("parentUuid", "line whose parent is missing", 1),
    }


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (line("u2", "b1", 3), r":12: 'content' of 'message' must be text or a list of blocks"),
        (line("u2", "b1", [3]), r":12: 'content' of 'message', block 0 is not an object"),
        (line("u2", "b1", [{"type": "tool_result"}]), r":12: .*block 0: 'tool_use_id' must be text, and it is missing"),
        (line("c1", "b1", [{"type": "tool_use", "id": "t", "name": "x"}], "m3"), r":12: block 0: 'input' must be an object"),
        (line("u2", "b1", "x") | {"parentUuid": 3}, r":12: 'parentUuid' must be text"),
        (line("u2", "b1", "x") | {"message": None}, r":12: 'message' is not an object"),
        (
            line("u2", "b1", "x") | {"message": {"role": "user", "contents": [{"type": "text", "text": "Hi."}]}},
            r":12: 'message' has neither 'content' nor .* 'contents', which is not known here",
        ),
        ({"sessionId": "s1"}, r":12: 'type' must be text, and it is missing"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    file = write(tmp_path / "s.jsonl", *claude(), bad)
    with pytest.raises(UserError, match=fault):
        take([file], tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with noting(skip_bad=True) as notes, read(file, tmp_path / "skipped") as run:
        assert len(paths(run, FIX)) == 1
    assert len(notes.bad) == 1


def test_lines_of_another_tool_in_the_same_frame_are_not_taken(tmp_path: Path) -> None:
    """Qwen Code writes lines with uuid, parentUuid and sessionId too, whose messages are Gemini's."""
    asked = line("u1", None, "") | {"message": {"role": "user", "parts": [{"text": FIX}]}}
    reply = line("a1", "u1", "") | {"type": "assistant", "message": {"role": "model", "parts": [{"text": "Fixed."}]}}
    file = write(tmp_path / "s.jsonl", asked, reply)
    assert pick_reader(file).name == "qwen-code"
    with pytest.raises(UserError, match=r":1: 'message' has neither 'content' nor anything else that is read, but 'parts'"):
        pick_reader(file, "claude-code").read(file, tmp_path / "run")


def test_lines_that_are_their_own_parents(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", line("u1", None, FIX), line("a", "b", "x"), line("b", "a", "y"))
    with pytest.raises(UserError, match=r"s.jsonl:2: 'parentUuid' leads back to this line"):
        take([file], tmp_path / "run")


def test_broken_sessions_are_read_or_refused(tmp_path: Path) -> None:
    more = [boundary("x", "b1", "b1"), line("k1", "x", "Summary.", isCompactSummary=True), line("c1", "k1", text("Done."), "m3")]
    assert min(refusals("claude-code", tmp_path, [*claude()[1:], *more, side("s9", None, "Look.")])) > 0


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    lines = stream(
        *(one for one in claude() if one["type"] in ("user", "assistant")), permission_denials=[{"api_key": "canary-canary"}]
    )
    read(write(tmp_path / "s.jsonl", *lines), tmp_path / "run").close()
    assert b"canary" not in b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_from_sessions_to_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [claude(last=f"Ended {at}.", command="make test" if at % 2 else "rm test.py") for at in range(4)]
    why = ask_why(tmp_path, logs, capsys)
    assert "rm test.py" in why
    assert "1 step that can be compared with other attempts" in why
    with Run.open(tmp_path / "run") as made:
        assert {one.model for one in made.each(Provenance)} == {"claude-x"}
