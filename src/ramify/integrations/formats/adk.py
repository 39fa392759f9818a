"""Sessions of Google's Agent Development Kit (ADK): ``*.session.json``, as ``adk web`` and its session services write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.registry import register
from ramify.integrations.formats.attempts import Attempts, WholeAttempt, objects, words
from ramify.integrations.formats.exchanges import list_of, object_of
from ramify.integrations.formats.sessions import task_name
from ramify.trace.aliases import KNOWN, NOTHING
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field, read_items
from ramify.trace.message import Message, plain, read_messages
from ramify.trace.notes import unread

_EVENT = frozenset(
    (
        *("content", "author", "actions", "id", "timestamp", "partial", "branch", "turn_complete", "turnComplete", "interrupted"),
        *("invocation_id", "invocationId", "long_running_tool_ids", "longRunningToolIds", "usage_metadata", "usageMetadata"),
        *("error_code", "errorCode", "error_message", "errorMessage", "model_version", "modelVersion", "finish_reason"),
        *("finishReason", "grounding_metadata", "groundingMetadata", "custom_metadata", "customMetadata", "avg_logprobs"),
    )
)


def read_adk(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a session of ADK, or several, one a line. Returns how many.

    The first prompt names the task. Events without content (changes of state) and partial ones (a stream's pieces) are counted
    and left out; an error on the last event ended the attempt. Raises UserError naming file, event and field.
    """
    attempts = Attempts()

    def add(run: Run, record: dict[str, Any], place: str, _: int) -> None:
        events = [*objects(field(record, "events", list, place), f"{place}: 'events'")]
        messages = [message for spot, event in events for message in _messages(event, spot, attempts)]
        last = events[-1][1] if events else {}
        error = {name: _of(last, f"error_{name}") for name in ("code", "message")}
        about = {"session_id" if name == "id" else name: plain(value) for name, value in record.items() if name != "events"}
        prompt = next((message.text for message in messages if message.role == "user" and message.text), "")
        attempt = WholeAttempt(
            task=task_name(prompt) or str(record["id"]),
            messages=messages,
            judged=KNOWN.judged({"error": error}, place) if any(error.values()) else NOTHING,
            about={"record": about},
            model=next((words(name) for _, event in reversed(events) if (name := _of(event, "model_version"))), ""),
        )
        attempts.hang(run, attempt, place)

    return import_records(path, folder, "adk", add, read_items(path), end=attempts.end)


def _of(event: Mapping[str, Any], name: str) -> Any:
    """A field of an event, in Python's spelling or in JSON's."""
    head, *rest = name.split("_")
    return event.get(name, event.get(head + "".join(map(str.capitalize, rest))))


def _messages(event: Mapping[str, Any], spot: str, attempts: Attempts) -> Iterator[Message]:
    unread(event, _EVENT, "event")
    content = object_of(event.get("content") or {}, f"{spot}: 'content'")
    parts = list_of(content.get("parts") or [], f"{spot}: 'parts' of 'content'")
    if event.get("partial") or not parts:
        attempts.leave_out("partial" if event.get("partial") else "no content", "events")
        return
    unread(content, ("role", "parts"), "content")
    author = words(event.get("author"))
    role = content.get("role") or ("user" if author == "user" else "model")
    usage = {"usage": plain(used)} if (used := _of(event, "usage_metadata")) else {}
    for message in read_messages({"role": role, "parts": parts, **({"name": author} if author != role else {})}, spot):
        yield Message(message.role, message.text, {**message.data, **usage})


def _is_adk(path: Path, first: Mapping[str, Any] | None) -> bool:
    events = None if first is None else first.get("events")
    if first is None or not isinstance(events, list) or not ("app_name" in first or "appName" in first):
        return False
    return all(isinstance(event, Mapping) and "author" in event for event in events)


EXAMPLE: dict[str, Any] = {
    "id": "s1",
    "app_name": "weather",
    "user_id": "u1",
    "state": {},
    "events": [
        {"author": "user", "content": {"role": "user", "parts": [{"text": "Is it warm in Oslo?"}]}},
        {"author": "guide", "actions": {"state_delta": {"city": "Oslo"}}},
        {
            "author": "guide",
            "content": {
                "role": "model",
                "parts": [{"function_call": {"id": "c1", "name": "look_up", "args": {"city": "Oslo"}}}],
            },
        },
        {
            "author": "guide",
            "content": {
                "role": "user",
                "parts": [{"function_response": {"id": "c1", "name": "look_up", "response": {"result": "4 degrees"}}}],
            },
        },
        {"author": "guide", "content": {"role": "model", "parts": [{"text": "No: 4 degrees."}]}},
    ],
}

register("reader", "adk")(
    Reader(
        "adk",
        "Sessions of Google's Agent Development Kit (*.session.json): events with Gemini's contents, agents by name.",
        _is_adk,
        read_adk,
        (),
        json.dumps(EXAMPLE) + "\n",
    )
)
