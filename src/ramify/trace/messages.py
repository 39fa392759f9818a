"""Messages as other tools write them: roles, text apart from other parts, tool calls; and how they hang in a tree.

A tool call is kept in a node's data in OpenAI's form: ``{"id", "type", "function": {"name", "arguments": JSON text}}`` under
``tool_calls``; its answer is a node of role tool with ``tool_call_id``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.trace.db import Run
from ramify.trace.node import Node, make_node

_ROLES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant"}


def message(value: Any, spot: str) -> tuple[str, str, dict[str, Any]]:
    """(role, text, everything else) of a message in OpenAI's form or near it. Raises UserError naming ``spot``.

    Of a list of parts the texts are joined; where it holds anything but text, the list is kept as ``content`` with the rest. A provider's
    own compaction that stands among messages as an item without a role is the only part of a user's message.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{spot} is no object")
    if "role" not in value and compacted(value) is not None:
        value = {"role": "user", "content": [dict(value)]}
    role = value.get("role")
    if not isinstance(role, str):
        raise UserError(f"{spot}: 'role' must be text" + (", and it is missing" if role is None else ""))
    role = _ROLES.get(role, role)
    if role not in ("system", "user", "assistant", "tool"):
        raise UserError(f"{spot} has the role '{role}', which is none of system, user, assistant, tool")
    text, parts = content_of(value.get("content"), spot)
    data = {k: v for k, v in value.items() if k not in ("role", "content", "tool_calls") and v is not None}
    if parts is not None:
        data["content"] = parts
    if value.get("tool_calls") is not None:
        data["tool_calls"] = calls_of(value["tool_calls"], spot)
    return role, text, plain(data)


def content_of(content: Any, spot: str) -> tuple[str, list[Any] | None]:
    """The text of a content (text, null, or a list of parts), and the parts where one of them is not text."""
    if content is None or isinstance(content, str):
        return content or "", None
    if isinstance(content, list) and all(isinstance(part, (str, dict)) for part in content):
        texts = [part if isinstance(part, str) else compacted(part) or part.get("text") or "" for part in content]
        if all(isinstance(text, str) for text in texts):
            told = all(
                isinstance(part, str) or part.get("type", "text") in ("text", "input_text", "output_text") for part in content
            )
            return "".join(texts), None if told else content
    raise UserError(f"{spot} has a 'content' that is neither text nor a list of parts")


_COMPACTED = ("compaction", "compaction_summary", "openai_compact", "anthropic_compact")


def compacted(part: Mapping[str, Any]) -> str | None:
    """What a provider's own (native) compaction says: its text, "" where it is encrypted; None where ``part`` is no compaction.

    Known are the items of OpenAI's Responses interface and of what speaks it, Anthropic's blocks, and both as inspect keeps them.
    """
    data = part.get("data") if part.get("type") == "data" else None
    about = data.get("compaction_metadata") if isinstance(data, Mapping) else part
    if not isinstance(about, Mapping) or about.get("type") not in _COMPACTED:
        return None
    text = about.get("content")
    return text if isinstance(text, str) else ""


def opaque(data: Mapping[str, Any]) -> bool:
    """Whether the data of a message hold a provider's own compaction that cannot be read: nobody can say what survived there."""
    parts = data.get("content")
    return isinstance(parts, list) and any(isinstance(part, Mapping) and compacted(part) == "" for part in parts)


def calls_of(calls: Any, spot: str) -> list[Any]:
    """Tool calls in OpenAI's form; those that some tools write flat, or as JSON text, are brought into it."""
    if not isinstance(calls, list):
        raise UserError(f"{spot}: 'tool_calls' must be a list")
    return [_call(call, f"{spot}: tool call {at}") for at, call in enumerate(calls)]


def _call(call: Any, spot: str) -> dict[str, Any]:
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError):
            raise UserError(f"{spot} is text that is no JSON") from None
    if not isinstance(call, Mapping):
        raise UserError(f"{spot} is no object")
    if isinstance(call.get("name"), str) and "function" not in call:
        rest = {k: v for k, v in call.items() if k not in ("name", "arguments") and v is not None}
        return {"type": "function", **rest, "function": {"name": call["name"], "arguments": as_text(call.get("arguments", {}))}}
    return dict(call)


def spoken(text: str, data: Mapping[str, Any]) -> str:
    """What a message says: its text, then each call it makes as ``name(arguments)``, a line each."""
    lines = [text] if text else []
    for call in data.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            lines.append(f"{function.get('name')}({as_text(function.get('arguments', ''))})")
    return "\n".join(lines)


def as_text(value: Any) -> str:
    """Text as it is; anything else as canonical JSON."""
    return value if isinstance(value, str) else canonical_json(plain(value))


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers that are none become text ("nan"), keys become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def number(value: Any) -> float | None:
    """A finite number, or None: what a score is worth to a verdict."""
    if isinstance(value, (bool, int, float)):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return None


class Thread:
    """One attempt as it is hung in its tree, message by message.

    Given messages that are equal are one node for all attempts; drawn ones are each a node. ``draw`` tells the attempt's draws from
    those of others below the same prefix.
    """

    def __init__(self, run: Run, tree: str, draw: int, at: Node | None = None) -> None:
        self.run, self.tree, self.draw = run, tree, draw
        self.node = root(run, tree) if at is None else at

    def hang(self, role: str, text: str, data: Mapping[str, Any], drawn: bool, last: bool = False, **fields: Any) -> Node:
        """Add a message below the last one. The attempt's last is its own even where it was given: what is known of the end is on it.

        So is one with parts that are no text, since the text alone does not tell it from another.
        """
        own = drawn or last or "content" in data
        index = self.draw if own else -1
        self.node = make_node(self.tree, self.node.id, len(self.node), role, text, index=index, data=dict(data), **fields)
        self.run.add(self.node)
        return self.node


def root(run: Run, tree: str) -> Node:
    """The empty first node of a tree, added where it is not there yet."""
    node = make_node(tree, None, 0, "root", "")
    run.add(node)
    return node
