"""Records of other tools brought into the shapes that readers know: columns of JSON text, and a conversation's other names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ramify.base.errors import UserError

_TALKS = (
    "messages", "traj", "trajectory", "history", "conversation", "dialogue", "dialog", "chat", "chat_history", "contents",
    "transcript",
)  # fmt: skip
"""Names under which a conversation stands; the first is the one that readers know."""
_JSON = (
    *_TALKS, "conversations", "items", "request", "response", "tools", "functions", "info", "rewards", "metrics", "nodes",
    "traces",
)  # fmt: skip
"""Fields that are never text: where they are, it is JSON."""
_STRICT = ("messages", "conversations", "items", "request", "response", "tools")
"""Of these, text that is not JSON is refused; of the others it stays what it is."""
_EITHER = ("prompt", "completion", "chosen", "rejected", "input", "output")
"""Fields that are text or messages."""
_MARKS = ("role", "from", "type")


def normal(record: dict[str, Any], place: str = "") -> dict[str, Any]:
    """The record with its JSON text read, and its conversation under ``messages``.

    Raises UserError naming ``place`` and field where text that stands for a list is not JSON; without a ``place`` it stays."""
    renamed = record
    for name in (*_JSON, *_EITHER):
        value = record.get(name)
        if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
            read = _read(value, f"{place}: '{name}'" if place else "", name in _JSON, name in _STRICT)
            if read is not value:
                renamed = {**renamed, name: read}
    if "messages" not in renamed:
        talk = next((name for name in _TALKS[1:] if _is_talk(name, renamed.get(name))), None)
        if talk is not None:
            renamed = {("messages" if key == talk else key): value for key, value in renamed.items()}
    return renamed


def _read(text: str, spot: str, json_only: bool, strict: bool) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        repr_of = text.lstrip().startswith(("[{'", "{'")) and ("'role'" in text or "'from'" in text or strict)
        if spot and repr_of:
            raise UserError(f"{spot} is text as Python prints it, not JSON: write the column with json.dumps") from None
        if spot and strict:
            raise UserError(f"{spot} is text that begins as JSON and is none") from None
        return text
    if json_only:
        return value
    return value if isinstance(value, list) and value and all(_is_message(message) for message in value) else text


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and any(name in value for name in _MARKS)


def _is_talk(name: str, value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in value) and (bool(value) or name == "traj")
