"""Messages as tools of observability keep them, in any of their forms, as messages of a run.

Known are OpenAI's messages and choices, Anthropic's blocks, items of the Responses interface, LangChain's serialised messages and
generations, the ``parts`` of OpenTelemetry's conventions, OpenInference's nested attributes, and plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ramify.base.errors import UserError
from ramify.integrations.formats.anthropic import read_turn
from ramify.integrations.formats.exchanges import Keep, ToolExchange
from ramify.integrations.formats.responses import KINDS, read_output
from ramify.trace.chats import part_of
from ramify.trace.message import Message, as_text, read_message
from ramify.trace.notes import unread

_LANGCHAIN = {
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "tool",
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
}
_NOISE = frozenset(
    (
        *("response_metadata", "usage_metadata", "additional_kwargs", "example", "invalid_tool_calls", "tool_call_chunks"),
        *("artifact", "kwargs", "lc", "type", "chunk_position"),
    )
)
"""Fields of a LangChain message that say nothing of what was said, or say it a second time."""
_TALKS = ("messages", "input_messages", "output_messages", "prompts", "contents", "items")
_SINGLE = ("input", "prompt", "question", "query", "output", "completion", "answer", "text", "content", "value")
_DOUBLED = ("tool_use", "tool_call", "function_call", "input_json_delta")
"""Parts of a content that repeat a call which stands in ``tool_calls``."""


_RESULTS = ("tool_result", "tool-result", "toolResult", "function_call_output")


class AnyOrder(ToolExchange):
    """Calls and results of a conversation that may be cut: a result may come without its call, an id be used again."""

    def call(self, name: str, spot: str, key: str, waits: bool = True) -> None:
        """Any call."""

    def result(self, spot: str, key: str, own: bool = False) -> None:
        """Any result."""


def parsed(value: Any) -> Any:
    """Text that is a JSON list or object, read; anything else as it is."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def messages_in(value: Any, role: str, spot: str, keep: Keep) -> list[Message]:
    """The messages of ``value``; text, and an object of no known form, is said by ``role``. Raises UserError naming ``spot``."""
    raws = _raws(parsed(value), role)
    if any(_item(raw) for raw in raws):
        return read_output([_as_item(raw) for raw in raws], spot, keep, AnyOrder())
    read: list[Message] = []
    for at, raw in enumerate(raws):
        where = f"{spot}: message {at}"
        message = _plain_message(raw, role, where)
        if part_of(message) is not None and message.get("role") in ("user", "assistant", "system"):
            read += read_turn(message, where, keep, AnyOrder())
        else:
            read += [read_message(piece, where) for piece in _results_apart(message)]
    return read


def replies_in(value: Any, spot: str, keep: Keep) -> list[tuple[list[Message], str]]:
    """What a call answered: the messages of each choice, and why it ended ("" where nothing says it)."""
    value = parsed(value)
    if isinstance(value, Mapping):
        if isinstance(choices := value.get("choices"), list):
            return [_choice(choice, f"{spot}: choice {at}", keep) for at, choice in enumerate(choices)]
        if isinstance(listed := value.get("generations"), list):
            first = listed[0] if listed and isinstance(listed[0], list) else listed
            return [_choice(choice, f"{spot}: generation {at}", keep) for at, choice in enumerate(first)]
    messages = messages_in(value, "assistant", spot, keep)
    return [(messages, _finish(value))] if messages else []


def _choice(choice: Any, spot: str, keep: Keep) -> tuple[list[Message], str]:
    if not isinstance(choice, Mapping):
        raise UserError(f"{spot} is not an object")
    said = choice.get("message")
    if said is None:
        said = choice.get("text", choice.get("delta"))
    return messages_in(said if said is not None else "", "assistant", spot, keep), _finish(choice)


def _finish(value: Any) -> str:
    """Why a reply ended, as its message, its generation or the first of a list says it."""
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, Mapping):
        return ""
    about = value.get("generation_info")
    places = (value, about if isinstance(about, Mapping) else {}, value.get("response_metadata"), value.get("incomplete_details"))
    for place in places:
        for name in ("finish_reason", "stop_reason", "finishReason", "reason"):
            if isinstance(place, Mapping) and isinstance(word := place.get(name), str):
                return word
    return ""


def _raws(value: Any, role: str) -> list[Any]:
    """The messages of a value, each as its tool has it."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        if value and all(isinstance(piece, list) for piece in value):  # LangChain's batches of prompts
            unread({"batch": value[1:]}, (), "call")
            return _raws(value[0], role)
        if value and all(isinstance(piece, Mapping) and "type" in piece and not _is_message(piece) for piece in value):
            return [{"role": role, "content": value}]  # parts of a single message
        return value
    if not isinstance(value, Mapping):
        return [{"role": role, "content": as_text(value)}]
    if _is_message(value):
        return [value]
    if isinstance(value.get("output"), list) and any(_item(item) or _is_message(item) for item in value["output"]):
        return [*value["output"]]
    head = next(
        (
            [{"role": "system", "content": value[name]}]
            for name in ("system", "instructions", "system_instruction")
            if value.get(name)
        ),
        [],
    )
    for name in _TALKS:
        if isinstance(talk := parsed(value.get(name)), list):
            return [*head, *_raws(talk, role)]
    for name in _SINGLE:
        if isinstance(said := parsed(value.get(name)), (str, list)) and said:
            return [*head, *_raws(said, role)]
        if isinstance(said, Mapping) and (_is_message(said) or any(talk in said for talk in _TALKS)):
            return [*head, *_raws(said, role)]
    return [{"role": role, "content": as_text(dict(value))}] if value else []


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return (
        "role" in value
        or value.get("type") == "constructor"
        or isinstance(value.get("message"), Mapping)
        or (value.get("type") in _LANGCHAIN and ("content" in value or "data" in value))
        or _item(value)
    )


def _item(value: Any) -> bool:
    """Whether it is an item of the Responses interface that is not a message."""
    return isinstance(value, Mapping) and "role" not in value and value.get("type") in KINDS and value.get("type") != "message"


def _as_item(value: Any) -> Any:
    """A message among items as an item."""
    if isinstance(value, Mapping) and "role" in value and "type" not in value:
        return {**value, "type": "message"}
    return value


def _plain_message(raw: Any, role: str, spot: str) -> dict[str, Any]:
    """A message in a form near to OpenAI's."""
    if isinstance(raw, str):
        return {"role": role, "content": raw}
    if not isinstance(raw, Mapping):
        raise UserError(f"{spot} is neither an object nor text")
    fields: Mapping[str, Any] = raw
    if isinstance(inside := raw.get("message"), Mapping) and "role" not in raw:  # OpenInference's
        fields = inside
    if raw.get("type") == "constructor" and isinstance(raw.get("kwargs"), Mapping):
        names = raw.get("id")
        name = names[-1] if isinstance(names, list) and names else ""
        return _langchain(raw["kwargs"], str(name).removesuffix("Chunk"))
    if isinstance(raw.get("data"), Mapping) and raw.get("type") in _LANGCHAIN:
        return _langchain(raw["data"], raw["type"])
    if "role" not in fields and isinstance(kind := fields.get("type"), str):
        return _langchain(fields, kind.removesuffix("Chunk"))
    message = {name: value for name, value in fields.items() if value is not None}
    message.setdefault("role", role)
    if isinstance(parts := message.pop("contents", None), list):  # OpenInference's
        message["content"] = [_inner(part, "message_content") for part in parts]
    if isinstance(message.get("parts"), list) and "content" not in message:
        message["content"] = message.pop("parts")
    if isinstance(message.get("content"), str) and message["content"].lstrip()[:9] in ('[{"type":', '[{"text":'):
        message["content"] = parsed(message["content"])
    if isinstance(content := message.get("content"), list):
        message["content"] = [_part(part) for part in content]
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_inner(call, "tool_call") for call in calls]
    return message


def _langchain(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    role = _LANGCHAIN.get(name)
    message = {key: value for key, value in fields.items() if key not in _NOISE and value is not None}
    message["role"] = role or fields.get("role") or _LANGCHAIN.get(str(fields.get("type")).removesuffix("Chunk"), "user")
    more = fields.get("additional_kwargs")
    for key in ("tool_calls", "function_call", "reasoning_content") if isinstance(more, Mapping) else ():
        if not message.get(key) and more is not None and more.get(key):
            message[key] = more[key]
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
    elif isinstance(content := message.get("content"), list):
        message["content"] = [part for part in content if not (isinstance(part, Mapping) and part.get("type") in _DOUBLED)]
    return message


def _inner(value: Any, name: str) -> Any:
    """What stands under ``name`` in an element of a list of OpenInference's."""
    inside = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(inside, Mapping):
        return value
    image = inside.get("image")
    if isinstance(image, Mapping) and isinstance(image.get("image"), Mapping):
        return {"type": "image_url", "image_url": {"url": image["image"].get("url")}}
    return dict(inside)


def _part(part: Any) -> Any:
    """A part of OpenTelemetry's conventions under the names that readers know."""
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "tool_call_response":
        said = part.get("response", part.get("result", part.get("content")))
        return {
            "type": "tool_result",
            "tool_call_id": part.get("id"),
            "content": said if isinstance(said, str) else as_text(said),
        }
    if part.get("type") == "text" and "text" not in part and isinstance(part.get("content"), str):
        return {"type": "text", "text": part["content"]}
    if part.get("type") == "reasoning" and isinstance(part.get("content"), str):
        return {"type": "reasoning", "text": part["content"]}
    return part


def _results_apart(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """A message with several results of tools, or a result beside other parts, as a message each."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    results = [part for part in parts if isinstance(part, Mapping) and part.get("type") in _RESULTS]
    if not results:
        return [message]
    rest = [part for part in parts if not any(part is result for result in results)]
    apart: list[Mapping[str, Any]] = [{"role": "tool", "content": [result]} for result in results]
    return [*apart, {**message, "content": rest}] if rest else apart
