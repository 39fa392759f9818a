"""Anthropic's messages in and out: content blocks of text, thinking, tool use, tool results and images.

A record is ``{"system", "messages": [...]}``, one conversation, or ``{"request": {...}, "response": {...}}``, the log of one
call. A reply of the assistant is one message with its calls alongside the text; where the provider ran a tool of its own inside
the reply, its result is a message of role tool and the reply continues after it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import (
    Keep,
    Media,
    ToolExchange,
    data_url,
    list_of,
    object_of,
    split_media,
    text_of,
    tool_call,
)
from ramify.integrations.trainers.rows import (
    Selection,
    attempts,
    count_compacted,
    count_media,
    settings_of,
    write_table,
)
from ramify.trace.aliases import KNOWN, Fields
from ramify.trace.chats import CallReply, Calls, form_of, hang_chat, provenance_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader, Writer
from ramify.trace.lines import field, read_conversations
from ramify.trace.message import FIELDS, Message, as_text, content_of, plain, refuse_unknown
from ramify.trace.notes import unread
from ramify.trace.offered import tools_of

_STOPS = {"max_tokens": "length", "model_context_window_exceeded": "length"}
_BLOCK_FIELDS = frozenset(
    [
        "type", "text", "thinking", "signature", "data", "id", "name", "input", "tool_use_id", "content", "is_error",
        "source", "title", "context", "citations", "cache_control", "server_name", "caller",
    ]
)  # fmt: skip
"""Fields of a block that are known."""
KINDS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document", "search_result")
"""The kinds of blocks that are read, besides those of tools that the provider runs."""


def read_anthropic(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from Anthropic's messages: JSON lines, a JSON list, or one conversation. Returns how many records.

    Task and reward stand under any name of :mod:`ramify.trace.aliases`. Raises UserError naming file, line and message: on a
    field of a wrong type, a result without a call, two open calls of one id. Nothing is left in ``folder`` then.
    """
    calls = Calls(fields)

    def add(run: Run, record: dict[str, Any], where: str, number: int) -> None:
        if "messages" not in record and "request" in record:
            _add_call(calls, run, record, where, number)
            return
        messages = [*_system(record, where), *_messages(record, where, run.put_blob, ToolExchange())]
        hang_chat(run, record, where, number, messages, {"messages", "system"}, fields)

    return import_records(path, folder, "anthropic", add, read_conversations(path, "messages"))


def _add_call(calls: Calls, run: Run, record: dict[str, Any], where: str, number: int) -> None:
    request, response = field(record, "request", dict, where), field(record, "response", dict, where, {})
    given, replies, rest = read_exchange(request, response, where, run.put_blob, ToolExchange())
    calls.hang(run, record, where, number, given, replies, provenance_of(request, response), rest)


def read_exchange(
    request: Mapping[str, Any], response: Mapping[str, Any], where: str, keep: Keep, exchange: ToolExchange
) -> tuple[list[Message], list[CallReply], dict[str, Any]]:
    """A call: what was given, its reply where it has one, and the answer's other fields. Raises UserError naming ``where``."""
    request_at = f"{where}: 'request'"
    given = [*_system(request, request_at), *_messages(request, request_at, keep, exchange)]
    replies = []
    if response.get("content") is None and not response.get("error"):
        refuse_unknown(response, FIELDS - {"content"}, f"{where}: 'response'", "'content' nor 'error'")
    if response.get("content") is not None:
        reply = {"role": "assistant", "content": response["content"]}
        stop = str(response.get("stop_reason") or "")
        said = list(read_turn(reply, f"{where}: 'response'", keep, exchange))
        replies = [CallReply(said, _STOPS.get(stop, "stop" if stop else ""))]
    return given, replies, {k: v for k, v in response.items() if k not in ("content", "role", "type")}


def _system(record: Mapping[str, Any], where: str) -> Iterator[Message]:
    system = record.get("system")
    if isinstance(system, list):
        blocks = [object_of(block, f"{where}: block {at} of 'system'") for at, block in enumerate(system)]
        system = "".join(text_of(block, "text", f"{where}: block {at} of 'system'") for at, block in enumerate(blocks))
    if system is not None and not isinstance(system, str):
        raise UserError(f"{where}: 'system' must be text or a list of blocks")
    if system:
        yield Message("system", system)


def _messages(record: Mapping[str, Any], where: str, keep: Keep, exchange: ToolExchange) -> Iterator[Message]:
    messages = field(dict(record), "messages", list, where)
    if not messages:
        raise UserError(f"{where}: 'messages' is empty")
    for at, value in enumerate(messages):
        yield from read_turn(object_of(value, f"{where}: message {at}"), f"{where}: message {at}", keep, exchange)


def read_turn(value: Mapping[str, Any], spot: str, keep: Keep, exchange: ToolExchange) -> Iterator[Message]:
    """The messages that one of Anthropic's is: the results of tools first, or a reply, cut where the provider ran a tool of its
    own. Raises UserError naming ``spot`` and block."""
    role, content = text_of(value, "role", spot), value.get("content")
    if role not in ("user", "assistant", "system"):
        raise UserError(f"{spot} has the role '{role}', which is none of user, assistant, system")
    unread(value, FIELDS, "message")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content or role == "assistant" else []
    blocks = [
        (object_of(block, f"{spot}: block {at}"), f"{spot}: block {at}")
        for at, block in enumerate(list_of(content, f"{spot}: 'content', if no text,"))
    ]
    if role == "assistant":
        yield from _assistant(blocks, keep, exchange)
        return
    for block, where in blocks:
        unread(block, _BLOCK_FIELDS, "block")
        if block.get("type") == "tool_result":
            yield _result(block, where, keep, exchange)
    rest = [(block, where) for block, where in blocks if block.get("type") != "tool_result"]
    if rest or not blocks:
        media = Media(keep)
        text = "".join(_shown(block, where, media) for block, where in rest)
        yield Message(role, text, media.data())


def _assistant(blocks: list[tuple[Mapping[str, Any], str]], keep: Keep, exchange: ToolExchange) -> Iterator[Message]:
    texts: list[str] = []
    thoughts: list[Mapping[str, Any]] = []
    calls: list[dict[str, Any]] = []
    media = Media(keep)
    ended = True
    for block, spot in blocks:
        unread(block, _BLOCK_FIELDS, "block")
        kind = text_of(block, "type", spot)
        ended = kind.endswith("_tool_result")
        if kind in ("thinking", "redacted_thinking"):
            text_of(block, "thinking" if kind == "thinking" else "data", spot)
            thoughts.append(block)
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            calls.append(_call(block, kind, spot, exchange))
        elif ended:
            yield _reply(texts, thoughts, calls, media)
            texts, thoughts, calls, media = [], [], [], Media(keep)
            key = text_of(block, "tool_use_id", spot)
            exchange.result(spot, key, own=True)
            yield Message("tool", _result_text(block.get("content")), {"tool_call_id": key, "block": plain(block)})
        else:
            texts.append(_shown(block, spot, media))
    if not ended or not blocks:
        yield _reply(texts, thoughts, calls, media)


def _reply(texts: list[str], thoughts: list[Mapping[str, Any]], calls: list[dict[str, Any]], media: Media) -> Message:
    data: dict[str, Any] = {}
    if thoughts:
        data = {
            "reasoning": "\n\n".join(str(block.get("thinking", "")) for block in thoughts).strip(),
            "thinking": plain(thoughts),
        }
    return Message("assistant", "".join(texts), data | ({"tool_calls": calls} if calls else {}) | media.data())


def _call(block: Mapping[str, Any], kind: str, spot: str, exchange: ToolExchange) -> dict[str, Any]:
    key, name = text_of(block, "id", spot), text_of(block, "name", spot)
    if not isinstance(block.get("input"), Mapping):
        raise UserError(f"{spot}: 'input' must be an object")
    exchange.call(name, spot, key, waits=kind == "tool_use")
    return tool_call(key, name, block["input"], **({} if kind == "tool_use" else {"block": plain(block)}))


def _result(block: Mapping[str, Any], spot: str, keep: Keep, exchange: ToolExchange) -> Message:
    key, content, media = text_of(block, "tool_use_id", spot), block.get("content"), Media(keep)
    exchange.result(spot, key)
    if content is None:
        refuse_unknown(block, _BLOCK_FIELDS, spot, "'content' nor anything else that is read")
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        parts = list_of(content, f"{spot}: 'content', if no text,")
        for part in parts:
            unread(part if isinstance(part, Mapping) else {}, _BLOCK_FIELDS, "block")
        text = "".join(
            _shown(object_of(part, f"{spot}: part {at}"), f"{spot}: part {at}", media) for at, part in enumerate(parts)
        )
    return Message("tool", text, {"tool_call_id": key, **({"is_error": True} if block.get("is_error") else {}), **media.data()})


def _shown(block: Mapping[str, Any], spot: str, media: Media) -> str:
    """What a block that is not a call, result or thought says: its text, or a placeholder."""
    kind = text_of(block, "type", spot)
    if kind == "text":
        return text_of(block, "text", spot)
    if kind == "search_result":
        return _result_text(block.get("content"))
    if kind in ("tool_use", "thinking", "redacted_thinking", "tool_result"):
        raise UserError(f"{spot} is of type '{kind}', which does not belong in what is said here")
    if kind not in ("image", "document"):
        raise UserError(f"{spot} is of type '{kind}', which is none of {', '.join(KINDS)}")
    source = object_of(block.get("source"), f"{spot}: 'source'")
    how = text_of(source, "type", f"{spot}: 'source'")
    if how == "base64":
        return media.encoded(kind, text_of(source, "media_type", spot, "?"), text_of(source, "data", spot), spot)
    if how == "text":
        return text_of(source, "data", spot)
    if how in ("url", "file"):
        return media.named(kind, how, text_of(source, "url" if how == "url" else "file_id", f"{spot}: 'source'"))
    raise UserError(f"{spot}: 'source' is of type '{how}', which is none of base64, url, file, text")


def _result_text(content: Any) -> str:
    """What a result of the provider's own tool says: its texts, else its JSON without what only the provider can read."""
    if (
        isinstance(content, list)
        and content
        and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content)
    ):
        return "".join(str(part.get("text", "")) for part in content)
    return as_text("" if content is None else _readable(content))


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _readable(v) for k, v in value.items() if not str(k).startswith("encrypted_")}
    return [_readable(item) for item in value] if isinstance(value, list) else value


# --- out --------------------------------------------------------------------------------------------------------------


def write_anthropic(run: Run, out: Path, **settings: Any) -> int:
    """Write attempts as ``{"task", "system", "messages", "reward"}``, one a line;
    returns how many. ``settings``: :class:`Selection`. Each call gets an id of its own; the schemas of tools stand in ``tools``.

    Raises UserError where no attempt fits the settings, or the file does not end in .jsonl.
    """
    chosen = check(Selection, settings, "anthropic")
    if out.suffix.lower() != ".jsonl":
        raise UserError(f"cannot write {out}: Anthropic's messages go into a file that ends in .jsonl")
    return write_table(out, _records(run, chosen), {}, chosen.max_rows)


def _records(run: Run, chosen: Selection) -> Iterator[dict[str, Any]]:
    for ended in attempts(run, chosen):
        count_compacted(ended)
        messages: list[dict[str, Any]] = []
        ids = _Ids()
        system = "\n\n".join(message.text for message in ended.opening)
        for message in ended.path.messages()[len(ended.opening) :]:
            block = message.data.get("block") if message.role == "tool" else None
            message = message if block is not None else ids.renamed(message)
            role = "assistant" if message.role == "assistant" or block is not None else "user"
            blocks = list(_blocks(message, block, run))
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += blocks
            elif blocks:
                messages.append({"role": role, "content": blocks})
        for written in messages:
            if [block["type"] for block in written["content"]] == ["text"]:
                written["content"] = written["content"][0]["text"]
        tools = [_tool(tool["function"]) for tool in tools_of(run, ended)]
        about = {"task": ended.task, **({"system": system} if system else {}), **({"tools": tools} if tools else {})}
        about["messages"] = messages
        yield about | ({} if ended.reward is None else {"reward": ended.reward})


def _blocks(message: Message, own: Any, run: Run) -> Iterator[dict[str, Any]]:
    if own is not None:
        yield own
        return
    parts = message.data.get("content")
    if isinstance(parts, list) and "media" not in message.data:
        pieces = [block for part in parts for block in _part(part)]
    else:
        pieces = [_block(piece, run) for piece in split_media(message)]
    if message.role == "tool" and "tool_call_id" in message.data:  # else the call stands in the text, and so does its result
        content = message.text if [block["type"] for block in pieces] in ([], ["text"]) else pieces
        error = {"is_error": True} if message.data.get("is_error") else {}
        yield {"type": "tool_result", "tool_use_id": message.data["tool_call_id"], "content": content, **error}
        return
    thoughts = message.data.get("thinking")
    if isinstance(thoughts, list):
        yield from thoughts
    elif message.reasoning:
        yield {"type": "thinking", "thinking": message.reasoning}
    yield from pieces
    calls = message.data.get("tool_calls")
    if message.role == "assistant" and not (pieces or thoughts or message.reasoning or message.functions):
        yield {"type": "text", "text": ""}
    for call, (name, arguments) in zip(calls if isinstance(calls, list) else (), message.functions, strict=False):
        stored = call.get("block") if isinstance(call, Mapping) else None
        wanted = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
        yield stored or {"type": "tool_use", "id": call.get("id", ""), "name": name, "input": wanted}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_schema" if name == "parameters" else name: value for name, value in function.items()}


class _Ids:
    """Gives each call of an attempt an id of its own, as this form needs it, and its result the same."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.waiting: dict[str, list[str]] = {}

    def renamed(self, message: Message) -> Message:
        """The message with its ids; a result without a call becomes text."""
        data = dict(message.data)
        calls = data.get("tool_calls")
        if message.role == "assistant" and isinstance(calls, list):
            data["tool_calls"] = [self._call(call) for call in calls]
        elif message.role == "tool":
            given = str(data.pop("tool_call_id", None) or "")
            open_ = self.waiting.get(given) or ([] if given else next((ids for ids in self.waiting.values() if ids), []))
            if open_:
                data["tool_call_id"] = open_.pop(0)
        return Message(message.role, message.text, data)

    def _call(self, call: Any) -> Any:
        if not isinstance(call, Mapping):
            return call
        given = str(call.get("id") or "")
        key, number = given, len(self.used)
        while not key or (key in self.used and "block" not in call):
            key, number = f"call_{number}", number + 1
        self.used.add(key)
        self.waiting.setdefault(given, []).append(key)
        return {**call, "id": key}


def _part(part: Any) -> Iterator[dict[str, Any]]:
    """A part of a message in OpenAI's form as a block; what has no place is counted."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    image = part.get("image_url", part.get("image")) if isinstance(part, Mapping) else None
    url = image.get("url") if isinstance(image, Mapping) else image
    if kind in ("thinking", "reasoning", "redacted_thinking"):
        return
    if isinstance(url, str):
        inline = data_url(url)
        source = {"type": "url", "url": url} if inline is None else {"type": "base64", "media_type": inline[0], "data": inline[1]}
        yield {"type": "image", "source": source}
        return
    text = content_of([part], "a part")[0]
    if text:
        yield {"type": "text", "text": text}
    else:
        count_media(Message("user", "", {"content": [part]}))


def _block(piece: str | Mapping[str, Any], run: Run) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    if "blob" in piece:
        data = base64.b64encode(run.get_blob(piece["blob"])).decode()
        return {"type": piece["type"], "source": {"type": "base64", "media_type": piece["media_type"], "data": data}}
    name, where = ("url", "url") if "url" in piece else ("file_id", "file")
    return {"type": piece["type"], "source": {"type": where, name: piece[where]}}


EXAMPLE = [
    {
        "task_id": "weather",
        "system": "Use the tools.",
        "messages": [
            {"role": "user", "content": "Is it warm in Oslo?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look it up.", "signature": "c2lnbmVk"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "4 degrees"}]},
            {"role": "assistant", "content": "No: 4 degrees."},
        ],
        "reward": 1.0,
    }
]

register("reader", "anthropic")(
    Reader(
        "anthropic",
        "Anthropic's messages with blocks (tool_use, tool_result, thinking, images), a conversation or a logged call a record.",
        lambda path, first: form_of(first) == "anthropic",
        read_anthropic,
        ("task", "reward", "answer"),
        "\n".join(map(json.dumps, EXAMPLE)),
        general=True,
    )
)
register("writer", "anthropic")(
    Writer(
        "anthropic",
        "attempts as Anthropic's messages, a conversation a line (.jsonl)",
        write_anthropic,
        (),
        settings_of(Selection),
    )
)
