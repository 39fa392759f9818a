"""Rules pinned at the gateway, where Claude Code and Codex compact their own conversations: requests in the shapes of Claude Code
2.1.197 (Messages) and Codex 0.171 (Responses), from the prompt to the continuation after the summary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_protocols_passed import gateway, post

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import MODEL, http

from ramify.methods.governance.lost_rules import audit
from ramify.methods.governance.written_rules import Rule

RULE = "Never run git push --force in this repository."
SUMMARY = "The user wants the branch published. Done: the files were listed, and one was read. Next: publish the branch."
COMMANDS = ("ls -la", "git push --force origin main")

# -- Claude Code


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def used(at: int) -> list[dict[str, Any]]:
    """A reply with a call, and its result."""
    call = {"type": "tool_use", "id": f"toolu_{at}", "name": "Bash", "input": {"command": COMMANDS[at], "description": "x"}}
    result = {"tool_use_id": f"toolu_{at}", "type": "tool_result", "content": "ok", "is_error": False}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


REMINDER = block(
    "<system-reminder>\n# claudeMd\nContents of /repo/CLAUDE.md (project instructions, checked into the codebase):\n\n- Answer "
    "in French.\n# currentDate\nToday's date is 2026-11-30.\n</system-reminder>\n\n" + "More of the harness. " * 60
)
PROMPT = {"role": "user", "content": [REMINDER, block(f"Sort the notes. {RULE}")]}
COMPACT = block("CRITICAL: Respond with TEXT ONLY.\n\nYour task is to create a detailed summary of the conversation so far.")
CONTINUED = {
    "role": "user",
    "content": [
        REMINDER,
        block(f"This session is being continued from a previous conversation. Summary:\n{SUMMARY}\n\nResume directly."),
    ],
}
SAID = {"role": "assistant", "content": [block("They are sorted.")]}
GO = {"role": "user", "content": [block("Publish the branch")]}
CHATS = (
    [PROMPT],
    [PROMPT, *used(0)],
    [PROMPT, *used(0)[:1], {"role": "user", "content": [*used(0)[1]["content"], COMPACT]}],
    [CONTINUED, SAID, GO],
    [CONTINUED, SAID, GO, *used(1)],
)


def claude(messages: list[dict[str, Any]]) -> dict[str, Any]:
    system = [block(text) for text in ("x-anthropic-billing-header: cc_version=2.1.197;", "You are an interactive agent.")]
    user = json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s1"})
    tools = [{"name": "Bash", "description": "Runs.", "input_schema": {"type": "object", "properties": {}}}]
    return {
        "model": MODEL,
        "max_tokens": 32000,
        "system": system,
        "messages": messages,
        "tools": tools,
        "metadata": {"user_id": user},
    }


def answer_claude(body: dict[str, Any]) -> bytes:
    at = CHATS.index(body["messages"])
    texts = {1: "They are sorted.", 2: f"<analysis>x</analysis>\n<summary>\n{SUMMARY}\n</summary>", 4: "Published."}
    content = [block(texts[at])] if at in texts else used(at // 3)[0]["content"]
    message = {"id": f"msg_{at}", "type": "message", "role": "assistant", "model": MODEL, "content": content}
    return http(message | {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}})


# -- Codex


def words(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": [{"type": "input_text", "text": text}]}


def called(at: int) -> list[dict[str, Any]]:
    given = {"name": "exec_command", "arguments": json.dumps({"cmd": COMMANDS[at]}), "call_id": f"call_{at}"}
    call = {"type": "function_call", "status": "completed", "id": f"fc_{at}", **given}
    return [call, {"type": "function_call_output", "id": f"fco_{at}", "call_id": f"call_{at}", "output": "ok"}]


FILE = words("user", "# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\n# Rules\n\n- Answer in French.\n\n</INSTRUCTIONS>")
OPENING = [words("developer", "You are a coding agent running in the Codex CLI."), words("developer", "<skills/>"), FILE]
FIRST = words("user", f"Sort the notes. {RULE}")
SORTED = {"type": "message", "status": "completed", "id": "m", "role": "assistant",
          "content": [{"type": "output_text", "text": "They are sorted.", "annotations": []}]}  # fmt: skip
ASKED = words("user", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM.")
LEFT = words("user", f"Another language model started to solve this problem and produced a summary. Here it is:\n{SUMMARY}")
ITEMS = (
    [*OPENING, FIRST],
    [*OPENING, FIRST, *called(0)],
    [*OPENING, FIRST, *called(0), SORTED, ASKED],
    [*OPENING, LEFT, words("user", "Publish the branch")],
    [*OPENING, LEFT, words("user", "Publish the branch"), *called(1)],
)
"""As Codex, but for the person's own messages, which Codex keeps: the rule is lost here."""


def codex(items: list[dict[str, Any]]) -> dict[str, Any]:
    tools = [{"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {}}, "strict": False}]
    return {"model": MODEL, "input": items, "tools": tools, "store": False, "prompt_cache_key": "s1", "tool_choice": "auto"}


def unpinned(items: list[Any]) -> list[Any]:
    return [one for one in items if "[pinned " not in json.dumps(one)]


def answer_codex(body: dict[str, Any]) -> bytes:
    at = ITEMS.index(unpinned(body["input"]))
    texts = {1: "They are sorted.", 2: SUMMARY, 4: "Published."}
    said = {**SORTED, "content": [{"type": "output_text", "text": texts.get(at, ""), "annotations": []}]}
    made = said if at in texts else called(at // 3)[0]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    about = {"id": f"resp_{at}", "object": "response", "created_at": 1, "status": "completed", "model": MODEL, "error": None}
    return http(about | {"output": [made], "usage": usage, "parallel_tool_calls": False, "tool_choice": "auto", "tools": []})


@pytest.mark.parametrize("speaks", ["anthropic", "responses"])
@pytest.mark.parametrize("pinned", [True, False])
def test_rules_survive_the_clients_own_compaction(tmp_path: Path, speaks: str, pinned: bool) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text(RULE)
    made, answer, path = (claude, answer_claude, "/messages") if speaks == "anthropic" else (codex, answer_codex, "/responses")
    bodies = [made(one) for one in (CHATS if speaks == "anthropic" else ITEMS)]
    layers = (f"pins:{rules}",) if pinned else ()
    with gateway(answer, speaks, tmp_path / "run", layers) as (url, upstream):
        answers = [post(url, path, body) for body in bodies]
        sent = [request[2] for request in upstream.requests]
    assert [one.status_code for one in answers] == [200] * 5
    assert len(sent) == 5
    for body, seen in zip(bodies, sent, strict=True):
        kept = dict(seen)
        if speaks == "anthropic":
            kept["system"] = unpinned(seen["system"])
            blocks = [one["text"] for one in seen["system"] if one not in kept["system"]]
        else:
            kept["input"] = unpinned(seen["input"])
            blocks = [one["content"] for one in seen["input"] if one not in kept["input"]]
            assert [one["role"] for one in seen["input"][:3]] == ["developer", "developer", "system" if pinned else "user"]
        assert kept == body, "everything else is what the client sent"
        assert len(blocks) == pinned
        assert all(RULE in text for text in blocks)
    found = audit(tmp_path / "run", [Rule(RULE, {"kind": "command", "deny": ["git push --force"]})])
    assert (found.sessions, found.replies, len(found.compactions)) == (1, 4, 1)
    assert found.other_calls == {"compaction": 1}
    (rule,) = found.rules
    assert bool(rule.lost) is not pinned
    assert [(one.broken, one.of) for one in rule.phases] == ([(0, 1), (1, 1), (0, 0)] if pinned else [(0, 1), (0, 0), (1, 1)])
