"""Small sessions in the shapes that Claude Code, Codex and Harbor write, made up here."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from records import write

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.formats import readers
from ramify.trace.intake import take
from ramify.trace.node import Node

PICTURE = base64.b64encode(b"a picture").decode()
ODD: tuple[Any, ...] = (None, 3, -1.5, True, "x", [], {}, [3], [None], {"x": 1}, [{"type": "x"}], [{"type": "tool_result"}])


def read(file: Path, folder: Path) -> Run:
    take([file], folder)
    return Run.open(folder)


def ask_why(folder: Path, logs: list[list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> str:
    """What ``why`` says of logs, those of odd number right, by way of the three commands."""
    (folder / "logs").mkdir()
    for number, records in enumerate(logs):
        write(folder / "logs" / f"s{number}.jsonl", *records)
    ends = write(folder / "ends.jsonl", *({"path": f"s{at}.jsonl", "success": at % 2 == 1} for at in range(len(logs))))
    run = str(folder / "run")
    assert main(["import", str(folder / "logs"), "--run", run, "--outcomes", str(ends)]) == 0
    assert f"{len(logs)} attempts with a reward" in capsys.readouterr().out
    assert main(["why", run]) in (0, 1)
    why = capsys.readouterr().out
    assert main(["show", run]) == 0
    return why


def said(node: Node) -> tuple[str, str]:
    return node.role, node.text


def paths(run: Run, tree: str) -> list[list[tuple[str, str]]]:
    """What was said on the way to each leaf."""
    found = run.tree(tree)
    return [[(one.role, one.text) for one in found.path(leaf.id).messages()] for leaf in found.leaves()]


def mutants(records: list[dict[str, Any]]) -> list[list[Any]]:
    """Broken forms of a log: a field that is odd, one line only, a line that is missing, twice, or elsewhere."""
    made: list[list[Any]] = []
    for at, record in enumerate(records):
        made.append(records[:at] + records[at + 1 :])
        made.append([*records[: at + 1], *records[at:]])
        made.append([record, *records[:at], *records[at + 1 :]])
        for name, inside in record.items():
            for number, value in enumerate(ODD):
                if (at + number) % 3 == 0:
                    made.append([*records[:at], record | {name: value}, *records[at + 1 :]])
            for key in inside if isinstance(inside, dict) else ():
                value = ODD[(at + len(key)) % len(ODD)]
                made.append([*records[:at], record | {name: inside | {key: value}}, *records[at + 1 :]])
    return made


def refusals(form: str, folder: Path, records: list[dict[str, Any]]) -> tuple[int, int]:
    """How many of a third of the broken forms are read, and how many refused: in a sentence with the file, leaving nothing."""
    file, refused = folder / "log.jsonl", list[str]()
    broken = mutants(records)[::3]
    for number, some in enumerate(broken):
        run = folder / f"run-{number}"
        try:
            readers()[form].read(write(file, *some), run)
        except UserError as error:
            refused.append(f"{error}{run if run.exists() else ''}")
    assert [one for one in refused if str(file) not in one or "run-" in one] == []
    return len(broken) - len(refused), len(refused)


# --- Claude Code ------------------------------------------------------------------------------------------------------


def line(uuid: str, parent: str | None, content: Any, reply: str = "", **more: Any) -> dict[str, Any]:
    """One line of a session: of a reply where it has a ``reply``, its message id."""
    kind = "assistant" if reply else "user"
    message: dict[str, Any] = {"role": kind, "content": content}
    if reply:
        usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 2}
        message |= {"id": reply, "type": "message", "model": "claude-x", "stop_reason": "end_turn", "usage": usage}
    side = {"isSidechain": False, "sessionId": "s1", "version": "2.1.0", "cwd": "/repo", "gitBranch": "main"}
    return side | {"type": kind, "uuid": uuid, "parentUuid": parent, "message": message} | more


def text(said: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": said}]


def use(key: str, name: str = "Bash", **arguments: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": key, "name": name, "input": arguments}]


def result(key: str, content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": key, "content": content, **more}]


def boundary(uuid: str, before: str, *kept: str) -> dict[str, Any]:
    meta = {"trigger": "auto", "preTokens": 900, "preservedMessages": {"allUuids": list(kept)}}
    about = {"subtype": "compact_boundary", "content": "Conversation compacted", "compactMetadata": meta}
    return {"type": "system", "uuid": uuid, "parentUuid": None, "logicalParentUuid": before, "sessionId": "s1", **about}


def claude(prompt: str = "Fix the test.", last: str = "It is fixed.", command: str = "ls") -> list[dict[str, Any]]:
    """A session: one reply of four lines with two calls, whose results came in the other order, and a second reply."""
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}]
    return [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s1", "content": prompt},
        line("u1", None, prompt),
        {"type": "attachment", "uuid": "x1", "parentUuid": "u1", "sessionId": "s1", "attachment": {"type": "skill_listing"}},
        line("a1", "x1", [{"type": "thinking", "thinking": "I look first.", "signature": "c2ln"}], "m1"),
        line("a2", "a1", text("I look."), "m1"),
        line("a3", "a2", use("t1", command=command), "m1"),
        line("a4", "a3", use("t2", "Read", file_path="a.png"), "m1"),
        line("r2", "a4", result("t2", image), toolUseResult={"type": "image"}),
        line("r1", "a3", result("t1", "test.py", is_error=False), toolUseResult={"stdout": "test.py"}),
        line("b1", "r1", text(last), "m2"),
        {"type": "last-prompt", "lastPrompt": prompt, "leafUuid": "b1", "sessionId": "s1"},
    ]


def stream(*lines: dict[str, Any], **ending: Any) -> list[dict[str, Any]]:
    """What ``claude -p --output-format stream-json`` prints of lines of a session."""
    kept = [{"type": one["type"], "message": one["message"], "uuid": one["uuid"], "session_id": "s1"} for one in lines]
    for one, old in zip(kept, lines, strict=True):
        one["parent_tool_use_id"] = old.get("parent_tool_use_id")
    about = {"num_turns": 2, "total_cost_usd": 0.5, "usage": {"output_tokens": 4}}
    first = {"type": "system", "subtype": "init", "session_id": "s1", "model": "claude-x", "tools": ["Bash"]}
    return [first, *kept, {"type": "result", "subtype": "success", "is_error": False, "session_id": "s1", **about, **ending}]


# --- Codex ------------------------------------------------------------------------------------------------------------


def rollout(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00.000Z", "type": kind, "payload": payload}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return rollout("response_item", type=kind, **fields)


def speech(role: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return item("message", role=role, content=[part])


def codex(prompt: str = "Fix the test.", last: str = "It is fixed.", command: str = "ls") -> list[dict[str, Any]]:
    """A rollout: one reply with two calls, and a second one."""
    return [
        rollout("session_meta", id="s1", cwd="/repo", source="cli", base_instructions={"text": "You are an agent."}),
        rollout("event_msg", type="task_started", turn_id="t1"),
        rollout("turn_context", cwd="/repo", model="gpt-x", effort="high"),
        speech("user", "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>"),
        speech("user", prompt),
        rollout("event_msg", type="user_message", message=prompt),
        item("reasoning", summary=[{"type": "summary_text", "text": "I look first."}], encrypted_content="gAAA"),
        speech("assistant", "I look."),
        item("function_call", call_id="c1", name="shell", arguments=json.dumps({"command": [command]})),
        item("custom_tool_call", call_id="c2", name="apply_patch", input="*** Begin Patch"),
        rollout("token_usage_record", usage={"input_tokens": 10, "cached_input_tokens": 5, "output_tokens": 2}),
        item("function_call_output", call_id="c1", output="test.py"),
        item("custom_tool_call_output", call_id="c2", output="patched"),
        speech("assistant", last),
        rollout("event_msg", type="task_complete", turn_id="t1", last_agent_message=last),
    ]


# --- ATIF -------------------------------------------------------------------------------------------------------------


def trajectory(last: str = "No: 4 degrees.", **more: Any) -> dict[str, Any]:
    """A trajectory: a system prompt, a question, a reply with a call and its result, and an answer."""
    call = {"tool_call_id": "c1", "function_name": "weather", "arguments": {"city": "Oslo"}}
    steps: list[dict[str, Any]] = [
        {"source": "system", "message": "Use the tools."},
        {"source": "user", "message": "Is it warm in Oslo?", "timestamp": "2026-01-01T00:00:00Z"},
        {
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "I need a thermometer.",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c1", "content": "4 degrees"}]},
            "metrics": {"prompt_tokens": 20, "completion_tokens": 8, "cost_usd": 0.01},
        },
        {"source": "agent", "message": last, "model_name": "model-y"},
    ]
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    agent = {"name": "some-agent", "version": "1.0", "model_name": "model-x"}
    return {"schema_version": "ATIF-v1.7", "session_id": "s1", "agent": agent, "steps": steps, **more}
