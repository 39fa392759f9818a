"""Sessions of Qwen Code: lines in the frame of Claude Code's, with messages in Gemini's form (``~/.qwen/.../chats/*.jsonl``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.attempts import named, objects, words
from ramify.integrations.formats.claude_code import Group, Sessions, is_qwen_code
from ramify.integrations.formats.exchanges import object_of, text_of
from ramify.integrations.formats.gemini_cli import response_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.message import FIELDS, read_messages, refuse_unknown
from ramify.trace.node import Insert
from ramify.trace.notes import unread

MAKER = "qwen-code"
_LINE = frozenset(
    (
        *("uuid", "parentUuid", "sessionId", "timestamp", "type", "subtype", "provenance", "goalContext", "backgroundTurn"),
        *("daemonPromptId", "deliveredTurn", "cwd", "version", "gitBranch", "promptId", "message", "usageMetadata", "model"),
        *("contextWindowSize", "toolCallResult", "systemPayload", "agentId", "agentName", "agentColor", "isSidechain"),
        *("agentRunId", "agentRound", "externalInputKind", "forkedFrom"),
    )
)
_FRAME = ("uuid", "parentUuid", "sessionId", "agentId", "isSidechain")
_SAID = {"user": "user", "tool_result": "user", "assistant": "assistant"}
_HARNESS = ("notification", "background_task_completed", "cron", "goal_runtime")
"""Subtypes of what the harness says to the model in the person's place."""
_PART = ("text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData")


def read_qwen_code(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from sessions of Qwen Code. Returns how many lines they have.

    As :func:`ramify.integrations.formats.claude_code.read_claude_code`: a rewind is a branch, a compression the context of what
    follows. An error of the provider, or of the whole turn, where a reply was waited for ended the attempt. Raises UserError
    naming file, line and part.
    """
    session = _Qwen(path, MAKER)
    return import_records(path, folder, MAKER, session.add, end=session.end)


class _Qwen(Sessions):
    """Each line as one of Claude Code's."""

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Take one line. Raises UserError naming ``place``."""
        kind = text_of(record, "type", place)
        if kind == "system":
            super().add(run, record, place, number)
            return
        if kind not in _SAID:
            raise UserError(f"{place}: a line of type '{kind}', which is none of user, assistant, tool_result, system")
        unread(record, _LINE, "line")
        message = object_of(record.get("message"), f"{place}: 'message'")
        if message.get("parts") is None:
            refuse_unknown(message, FIELDS, f"{place}: 'message'", "'parts' nor anything else that is read")
        spots = objects(message.get("parts") or [], f"{place}: 'parts' of 'message'")
        failed = named(record, "toolCallResult", "status") not in (None, "success")
        content = [_block(part, spot, failed) for spot, part in spots]
        uuid = text_of(record, "uuid", place)
        line = {name: record[name] for name in _FRAME if name in record}
        if uuid in self.places:  # a further piece of that message
            line |= {"uuid": f"{uuid} at {number}", "parentUuid": uuid}
        about = {"id": uuid, "model": record.get("model"), "usage": record.get("usageMetadata")}
        said = {"role": _SAID[kind], "content": content, **(about if kind == "assistant" else {})}
        meta = {"isMeta": True} if record.get("subtype") in _HARNESS else {}
        if record.get("subtype") == "realtime_message":
            meta = {"isVisibleInTranscriptOnly": True}
        super().add(run, {**line, **meta, "type": _SAID[kind], "message": said}, place, number)

    def _told(self, record: Mapping[str, Any], kind: str, session: str, side: str, parent: str | None, place: str) -> int | None:
        """The group of a compression, and of an error where the last message waits for a reply."""
        payload = record.get("systemPayload")
        if record.get("subtype") == "chat_compression" and named(payload, "compressedHistory"):
            spots = objects(named(payload, "compressedHistory"), f"{place}: 'compressedHistory'")
            history = [message for spot, content in spots for message in read_messages(content, spot)]
            inserts = tuple(Insert(message.spoken(), role=message.role) for message in history)
            return self._open(Group("user", place, session, side, parent, kind="boundary", history=inserts))
        error = _error(record.get("subtype"), payload)
        before = self._at(parent)
        if error and before is not None and (self.groups[before].role == "user" or self.groups[before].kind == "error"):
            return self._open(Group("assistant", place, session, side, parent, kind="error", about={"error": error}))
        return super()._told(record, kind, session, side, parent, place)


def _error(subtype: Any, payload: Any) -> dict[str, str]:
    """Type and message of an error that a line tells; nothing where it tells none."""
    if subtype == "turn_result" and named(payload, "state") == "error":
        return {"type": words(named(payload, "error", "code")), "message": words(named(payload, "error", "message"))}
    event = named(payload, "uiEvent")
    if subtype == "ui_telemetry" and words(named(event, "event.name")).endswith(".api_error"):
        return {"type": words(named(event, "error_type")), "message": words(named(event, "error_message"))}
    return {}


def _block(part: Mapping[str, Any], spot: str, failed: bool) -> dict[str, Any]:
    """A part as one of Anthropic's blocks."""
    unread(part, _PART, "part")
    if part.get("functionCall") is not None:
        call = object_of(part["functionCall"], f"{spot}: 'functionCall'")
        about = {name: text_of(call, name, f"{spot}: 'functionCall'") for name in ("id", "name")}
        return {"type": "tool_use", **about, "input": call.get("args") or {}}
    if part.get("functionResponse") is not None:
        answer = object_of(part["functionResponse"], f"{spot}: 'functionResponse'")
        key = text_of(answer, "id", f"{spot}: 'functionResponse'")
        inside = [_block(some, at, False) for at, some in objects(answer.get("parts") or [], f"{spot}: 'functionResponse'")]
        block = {"type": "tool_result", "tool_use_id": key, "content": [dict(response_of(part)), *inside]}
        return {**block, "is_error": True} if failed else block
    if part.get("inlineData") is not None:
        data = object_of(part["inlineData"], f"{spot}: 'inlineData'")
        media = text_of(data, "mimeType", f"{spot}: 'inlineData'")
        source = {"type": "base64", "media_type": media, "data": text_of(data, "data", f"{spot}: 'inlineData'")}
        return {"type": "image" if media.startswith("image/") else "document", "source": source}
    if "text" in part:
        text = text_of(part, "text", spot)
        return {"type": "thinking", "thinking": text} if part.get("thought") is True else {"type": "text", "text": text}
    raise UserError(f"{spot} holds none of {', '.join(_PART)}: its fields are {', '.join(map(repr, part)) or 'none'}")


def _is_qwen_code(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None or first.get("type") not in (*_SAID, "system"):
        return False
    return all(isinstance(first.get(name), str) for name in ("uuid", "sessionId")) and is_qwen_code(first)


_FIRST = {"sessionId": "s1", "cwd": "/repo", "version": "0.21.0"}
EXAMPLE: list[dict[str, Any]] = [
    {
        **_FIRST,
        "uuid": "u1",
        "parentUuid": None,
        "type": "user",
        "message": {"role": "user", "parts": [{"text": "Fix the test."}]},
    },
    {
        **_FIRST,
        "uuid": "a1",
        "parentUuid": "u1",
        "type": "assistant",
        "model": "qwen-x",
        "message": {
            "role": "model",
            "parts": [
                {"text": "I look first.", "thought": True},
                {"functionCall": {"id": "c1", "name": "run_shell_command", "args": {"command": "ls"}}},
            ],
        },
    },
    {
        **_FIRST,
        "uuid": "r1",
        "parentUuid": "a1",
        "type": "tool_result",
        "message": {
            "role": "user",
            "parts": [{"functionResponse": {"id": "c1", "name": "run_shell_command", "response": {"output": "test.py"}}}],
        },
        "toolCallResult": {"callId": "c1", "status": "success"},
    },
    {
        **_FIRST,
        "uuid": "a2",
        "parentUuid": "r1",
        "type": "assistant",
        "model": "qwen-x",
        "message": {"role": "model", "parts": [{"text": "Fixed."}]},
    },
]

register("reader", MAKER)(
    Reader(
        MAKER,
        "Sessions of Qwen Code (~/.qwen): rewinds are branches, a compression is a context.",
        _is_qwen_code,
        read_qwen_code,
        (),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
