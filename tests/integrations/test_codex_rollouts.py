"""Rollouts of Codex, old ones too, and what `codex exec --json` prints: turns, compactions, turns taken back, how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from session_logs import ask_why, codex, item, paths, read, refusals, rollout, said, speech, write

from ramify.base.errors import UserError
from ramify.trace.db import Run
from ramify.trace.intake import IgnoredPart, take
from ramify.trace.node import Provenance
from ramify.trace.notes import noting

FIX = "Fix the test."
HEAD = [("system", "You are an agent."), ("user", "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>")]


def done(**more: Any) -> dict[str, Any]:
    return rollout("event_msg", type="task_complete", **more)


def test_items_of_a_reply_are_one_message(tmp_path: Path) -> None:
    with read(write(tmp_path / "r.jsonl", *codex()), tmp_path / "run") as run:
        nodes = run.nodes(FIX)[1:]
        assert [said(node) for node in nodes] == [
            *HEAD,
            ("user", FIX),
            ("assistant", "I look."),
            ("tool", "test.py"),
            ("tool", "patched"),
            ("assistant", "It is fixed."),
        ]
        looks, last = nodes[3], nodes[-1]
        assert looks.message.reasoning == "I look first."
        assert [call.name for call in looks.message.calls] == ["shell", "apply_patch"]
        assert looks.data["response"]["usage"]["output_tokens"] == 2
        provenance = run.provenance(str(last.provenance))
        assert (provenance.model, provenance.settings) == ("gpt-x", {"agent": "codex", "effort": "high"})
        (attempt,) = run.attempts()
        assert (attempt.leaf, attempt.truncated, attempt.failure) == (last.id, False, None)
        assert {name: part.count for name, part in run.memo("ignored", IgnoredPart).items()} == {"event_msg": 1}


def test_a_turn_that_was_taken_back_is_a_branch(tmp_path: Path) -> None:
    more = [
        speech("user", "Now the docs."),
        speech("assistant", "Done."),
        rollout("event_msg", type="thread_rolled_back", num_turns=1),
    ]
    again = [speech("user", "Rather the style."), speech("assistant", "Styled.")]
    take(
        [write(tmp_path / "a.jsonl", *codex(), *more, *again), write(tmp_path / "b.jsonl", *codex(last="No."))], tmp_path / "run"
    )
    with Run.open(tmp_path / "run") as run:
        ends = {path[-1][1]: [text for role, text in path if role == "user"][1:] for path in paths(run, FIX)}
        assert ends == {"Done.": [FIX, "Now the docs."], "Styled.": [FIX, "Rather the style."], "No.": [FIX]}
        assert len({attempt.index for attempt in run.attempts()}) == 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_compaction_is_the_context_of_what_follows(tmp_path: Path, whole: bool) -> None:
    summary = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So far: the summary."}]}
    history = [codex()[3]["payload"], codex()[4]["payload"], summary] if whole else None
    compacted = rollout("compacted", message="So far: the summary.", **({"replacement_history": history} if history else {}))
    more = [speech("assistant", "the summary."), compacted, item("function_call", call_id="c3", name="shell", arguments="{}")]
    more += [item("function_call_output", call_id="c3", output="made"), speech("assistant", "All done."), done()]
    with read(write(tmp_path / "r.jsonl", *codex(), *more), tmp_path / "run") as run:
        *_, fixed, calls, _, last = run.nodes(FIX)
        assert said(fixed) == ("assistant", "It is fixed.")  # what wrote the summary is not a step
        kept = [*HEAD, ("user", FIX), ("user", "So far: the summary.")]
        assert [(one.role, one.text) for one in run.shown(calls.id).messages] == kept
        assert [(one.role, one.text) for one in run.shown(last.id).messages] == [*kept, ("assistant", ""), ("tool", "made")]


def test_how_it_ended(tmp_path: Path) -> None:
    error = rollout("event_msg", type="error", message="You are out of credits.", codex_error_info="usage_limit_exceeded")
    full = done(error={"message": "Too long.", "codex_error_info": "context_window_exceeded"})
    again = [error, rollout("event_msg", type="task_started"), speech("user", "Again."), speech("assistant", "Done."), done()]
    aborted = rollout("event_msg", type="turn_aborted", reason="interrupted")
    start = codex()[:-1]
    endings: dict[str, tuple[list[Any], bool, str | None]] = {
        "error": ([*start, error], False, "usage_limit_exceeded: You are out of credits."),
        "window": ([*start, full], True, None),
        "again": ([*start, *again], False, None),
        "aborted": ([*start, aborted], False, None),
        "refused": ([*start[:6], done(error={"message": "bad thing", "codex_error_info": "other"})], False, "bad thing"),
    }
    for name, (records, cut, failure) in endings.items():
        with read(write(tmp_path / f"{name}.jsonl", *records), tmp_path / name) as run:
            (attempt,) = run.attempts()
            assert (attempt.truncated, attempt.failure) == (cut, failure), name


def ran(kind: str, key: str, what: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"item.{kind}", "item": {"id": key, "type": what, **fields}}


def test_what_exec_prints(tmp_path: Path) -> None:
    command = {"command": "bash -lc ls", "aggregated_output": "", "exit_code": None, "status": "in_progress"}
    ended = {**command, "aggregated_output": "test.py\n", "exit_code": 2, "status": "failed"}
    tool = {"server": "docs", "tool": "find", "arguments": {"q": "x"}, "result": {"content": [{"type": "text", "text": "found"}]}}
    lines = [
        {"type": "thread.started", "thread_id": "s1"},
        {"type": "turn.started"},
        ran("completed", "item_0", "reasoning", text="I look first."),
        ran("completed", "item_1", "agent_message", text="I look."),
        ran("started", "item_2", "command_execution", **command),
        ran("completed", "item_2", "command_execution", **ended),
        ran("completed", "item_3", "mcp_tool_call", status="completed", **tool),
        ran("updated", "item_4", "todo_list", items=[]),
        ran("completed", "item_5", "agent_message", text="It is fixed."),
        {"type": "turn.completed", "usage": {"input_tokens": 3, "output_tokens": 2}},
    ]
    with read(write(tmp_path / "x.jsonl", *lines), tmp_path / "run") as run:
        nodes = run.nodes("chat-000001")[1:]
        assert [said(node) for node in nodes] == [
            ("assistant", "I look."),
            ("tool", "test.py\n\n(exit code 2)"),
            ("assistant", ""),
            ("tool", "found"),
            ("assistant", "It is fixed."),
        ]
        assert [call.name for node in nodes for call in node.message.calls] == ["command_execution", "docs.find"]
        assert nodes[-1].data["response"]["usage"]["output_tokens"] == 2
    failed = [*lines[:6], {"type": "turn.failed", "error": {"message": "stream disconnected"}}]
    with read(write(tmp_path / "f.jsonl", *failed, *lines), tmp_path / "two") as run:
        assert [attempt.failure for attempt in run.attempts()] == ["stream disconnected", None]


def test_a_subagents_rollout_without_its_parents_history(tmp_path: Path) -> None:
    meta = rollout("session_meta", id="s2", parent_thread_id="s1", subagent_history_start_ordinal=3) | {"ordinal": 0}
    copied = [speech("user", FIX) | {"ordinal": 1}, speech("assistant", "I look.") | {"ordinal": 2}]
    own = [item("agent_message", author="root", content="Look around.") | {"ordinal": 3}, speech("assistant", "Nothing here.")]
    with read(write(tmp_path / "r.jsonl", meta, *copied, *own), tmp_path / "run") as run:
        (path,) = paths(run, "subagent: root: Look around.")
        assert path == [("user", "root: Look around."), ("assistant", "Nothing here.")]
        assert run.memo("ignored", IgnoredPart)["history of the parent"].count == 2


def test_prompts_that_stand_among_the_events_only(tmp_path: Path) -> None:
    lines = [record for record in codex() if record["payload"].get("role") != "user"]
    with read(write(tmp_path / "r.jsonl", *lines), tmp_path / "run") as run:
        assert [role for role, _ in paths(run, FIX)[0]] == ["system", "user", "assistant", "tool", "tool", "assistant"]


def test_old_rollouts_are_bare_lines(tmp_path: Path) -> None:
    bare = [record["payload"] for record in codex() if record["type"] == "response_item"]
    first = {"id": "s1", "timestamp": "2025-07-01T00:00:00Z", "instructions": "You are an agent.", "git": {}}
    with read(write(tmp_path / "r.jsonl", first, {"record_type": "state"}, *bare), tmp_path / "run") as run:
        (path,) = paths(run, FIX)
        assert [path[0], path[-1]] == [("system", "You are an agent."), ("assistant", "It is fixed.")]


def test_what_is_not_known_is_counted(tmp_path: Path) -> None:
    odd = [
        rollout("from_tomorrow", x="y"),
        item("hologram", x="y"),
        item("ghost_snapshot", x="y"),
        rollout("world_state", full=True),
    ]
    with noting() as notes, read(write(tmp_path / "r.jsonl", *codex(), *odd), tmp_path / "run") as run:
        ignored = {name: part.count for name, part in run.memo("ignored", IgnoredPart).items()}
        assert ignored == {"event_msg": 1, "ghost_snapshot": 1, "bookkeeping": 1}
    assert {(one.field, one.of) for one in notes.unread} == {("from_tomorrow", "line"), ("hologram", "item")}


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (item("message", role="user", content=3), r":16: 'content', if no text, must be a list"),
        (item("function_call", call_id="c9", arguments="{}"), r":16: 'name' must be text, and it is missing"),
        (rollout("response_item"), r":16: 'payload': 'type' must be text, and it is missing"),
        ({"type": "event_msg", "payload": 3}, r":16: 'payload' must be an object"),
        (rollout("event_msg", type="thread_rolled_back", num_turns="x"), r":16: 'payload': 'num_turns' must be an integer"),
        (rollout("compacted", message=3), r":16: 'payload': 'message' must be text"),
        ({"x": 3}, r":16: 'type' is missing"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    file = write(tmp_path / "r.jsonl", *codex(), bad)
    with pytest.raises(UserError, match=fault):
        take([file], tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with noting(skip_bad=True) as notes, read(file, tmp_path / "skipped") as run:
        assert len(paths(run, FIX)) == 1
    assert len(notes.bad) == 1


def test_broken_rollouts_are_read_or_refused(tmp_path: Path) -> None:
    more = [rollout("compacted", message="So far.", replacement_history=[codex()[4]["payload"]]), speech("assistant", "Done.")]
    more += [
        rollout("event_msg", type="thread_rolled_back", num_turns=1),
        ran("completed", "i", "command_execution", command="ls"),
    ]
    assert min(refusals("codex", tmp_path, [*codex(), *more])) > 0


def test_from_rollouts_to_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [codex(last=f"Ended {at}.", command="make test" if at % 2 else "rm test.py") for at in range(4)]
    why = ask_why(tmp_path, logs, capsys)
    assert "rm test.py" in why
    assert "1 step that can be compared with other attempts" in why
    with Run.open(tmp_path / "run") as made:
        assert {one.model for one in made.each(Provenance)} == {"gpt-x"}
