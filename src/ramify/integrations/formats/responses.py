"""Items of OpenAI's Responses interface into a run: messages, reasoning,
calls of functions and of built-in tools, and their outputs.

Consecutive output items of the model (reasoning, text, calls) are one message of the assistant. A built-in tool that reports
its result (file search, code interpreter, MCP) ends it: the result is a message of role tool, and the reply continues after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import Keep, Media, ToolExchange, list_of, object_of, text_of, tool_call
from ramify.trace.aliases import KNOWN, Fields
from ramify.trace.chats import CallReply, Calls, form_of, hang_chat, provenance_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field as field_of
from ramify.trace.lines import read_conversations
from ramify.trace.message import PROVIDERS_OWN, Message, as_text, compacted, read_message, refuse_unknown
from ramify.trace.notes import unread

_OUTSIDE = ("function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call")
_INSIDE = PROVIDERS_OWN
SILENT = ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response")
KINDS = ("message", "reasoning", *_OUTSIDE, *(f"{kind}_output" for kind in _OUTSIDE), *_INSIDE, *SILENT)
"""The types of items that are read. Calls of the second row must be answered by an item of type ``..._output``; those that the
provider makes itself need no answer, and those of the last row say nothing that an attempt did:
they are left out, which is said."""


def read_responses(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from items of the Responses interface: JSON lines or one JSON document. Returns how many records.

    A record is one conversation, ``{"items": [...]}`` (a file may also be the list of one conversation's items), or one call:
    ``{"input", "output"}``, a response object, or ``{"request": {...}, "response": {...}}``. A call's input that repeats an
    earlier reply of the same task continues there, and so does one whose ``previous_response_id`` names a response before it.
    Task and reward stand under any name of :mod:`ramify.trace.aliases`. Raises UserError naming file, line and item: on a field
    of a wrong type, an item of unknown type, a result without a call, two open calls
    of one id. Nothing is left in ``folder`` then.
    """
    importer = _Importer(fields)
    return import_records(
        path,
        folder,
        "responses",
        importer.add,
        read_conversations(path, "items", ("role", "type"), ("output", "input", "items")),
        end=importer.end,
    )


@dataclass
class _Importer:
    fields: Fields
    left_out: dict[str, int] = field(default_factory=dict)
    """How many items of each type were ignored."""
    ends: dict[str, tuple[str, ToolExchange]] = field(default_factory=dict)
    """Id of a response -> the node it ended in, and the calls that wait there."""

    def __post_init__(self) -> None:
        self.calls = Calls(self.fields)

    def add(self, run: Run, record: dict[str, Any], where: str, number: int) -> None:
        if "items" in record:
            items = field_of(record, "items", list, where)
            if not items:
                raise UserError(f"{where}: 'items' is empty")
            messages = [*self._system(record, where), *self._messages(items, f"{where}: item", run.put_blob, ToolExchange())]
            hang_chat(run, record, where, number, messages, {"items", "instructions"}, self.fields)
            return
        logged = "request" in record
        if not logged and "input" not in record and "output" not in record:
            raise UserError(f"{where}: there is neither 'items' nor 'input' and 'output', nor 'request' and 'response'")
        response = field_of(record, "response", dict, where, {}) if logged else record
        request = field_of(record, "request", dict, where) if logged else record
        before = request.get("previous_response_id") or response.get("previous_response_id")
        node, exchange = self._before(before, where)
        given = [
            *self._system(request, where),
            *self._messages(_input(request, where), f"{where}: item", run.put_blob, exchange, "of 'input'"),
        ]
        output = field_of(response, "output", list, where, [])
        if logged and response.get("output") is None and not response.get("error"):
            refuse_unknown(response, {*_SETTINGS, *_ASKED}, f"{where}: the response", "'output' nor 'error'")
        made = [*self._messages(output, f"{where}: item", run.put_blob, exchange, "of 'output'")]
        extra = {k: v for k, v in response.items() if k in _SETTINGS or (logged and k != "output")}
        taken = {"request", "response"} if logged else {"input", "output", "instructions", *_SETTINGS}
        at = None if node is None else run.node(node)
        end = self.calls.hang(
            run,
            record,
            where,
            number,
            given,
            [CallReply(made, _stop(response))] if made else [],
            provenance_of(request, response),
            extra,
            taken,
            at,
        )
        if isinstance(response.get("id"), str):
            self.ends[response["id"]] = end.id, exchange

    def _before(self, name: Any, where: str) -> tuple[str | None, ToolExchange]:
        if name is None:
            return None, ToolExchange()
        if not isinstance(name, str) or name not in self.ends:
            raise UserError(
                f"{where}: 'previous_response_id' is {name!r}, and no response of that id stands before it in the file"
            )
        node, exchange = self.ends[name]
        return node, ToolExchange(dict(exchange.waiting), set(exchange.done))

    def _system(self, record: Mapping[str, Any], where: str) -> Iterator[Message]:
        text = record.get("instructions")
        if isinstance(text, list):
            yield from self._messages(text, f"{where}: item", lambda data: "", ToolExchange(), "of 'instructions'")
        elif text is not None:
            yield Message("system", text_of(record, "instructions", where))

    def _messages(self, items: list[Any], where: str, keep: Keep, exchange: ToolExchange, of: str = "") -> Iterator[Message]:
        turn = ItemTurn(keep, exchange)
        for at, item in enumerate(items):
            spot = f"{where} {at} {of}".rstrip()
            kind = _kind(object_of(item, spot), spot)
            if kind in SILENT:
                self.left_out[kind] = self.left_out.get(kind, 0) + 1
            else:
                yield from turn.add(item, kind, spot)
        yield from turn.flush()

    def end(self, run: Run) -> None:
        for kind, count in self.left_out.items():
            run.log("ignored", kind, {"count": count, "what": "items"})


def read_output(items: list[Any], spot: str, keep: Keep, exchange: ToolExchange) -> list[Message]:
    """Items as messages. Raises UserError naming ``spot`` and item."""
    return list(_Importer(KNOWN)._messages(items, f"{spot}: item", keep, exchange))


def read_exchange(
    request: Mapping[str, Any], response: Mapping[str, Any], where: str, keep: Keep, exchange: ToolExchange
) -> tuple[list[Message], list[CallReply], dict[str, Any]]:
    """A call: what was given, its reply where it has one, and the answer's other fields. Raises UserError naming ``where``."""
    importer = _Importer(KNOWN)
    items = importer._messages(_input(request, where), f"{where}: item", keep, exchange, "of 'input'")
    given = [*importer._system(request, where), *items]
    output = list_of(response.get("output") or [], f"{where}: 'output'")
    said = [*importer._messages(output, f"{where}: item", keep, exchange, "of 'output'")]
    rest = {k: v for k, v in response.items() if k in _SETTINGS}
    return given, [CallReply(said, _stop(response))] if said else [], rest


_SETTINGS = (
    "id", "object", "created_at", "completed_at", "model", "status", "usage", "error", "incomplete_details",
    "previous_response_id",
)  # fmt: skip


_ASKED = ("instructions", "input", "tools", "tool_choice", "text", "metadata", "reasoning", "truncation", "service_tier", "user")
"""Fields of a response that repeat the request."""


def _input(request: Mapping[str, Any], where: str) -> list[Any]:
    found = request.get("input")
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return [] if found is None else list_of(found, f"{where}: 'input', if no text,")


def _stop(response: Mapping[str, Any]) -> str:
    status = response.get("status")
    return {"failed": "failed", "cancelled": "cancelled", "incomplete": "length"}.get(str(status), "stop")


def _kind(item: Mapping[str, Any], spot: str) -> str:
    kind = item.get("type", "message" if "role" in item else None)
    if compacted(item) is not None:
        return "compaction"
    if kind == "item_reference":
        raise UserError(f"{spot} refers to the item {item.get('id')!r}, whose content is not in the file: log items whole")
    if kind not in KINDS:
        raise UserError(f"{spot} is of type {kind!r}, which is none of {', '.join(KINDS)}")
    return str(kind)


_ITEM_FIELDS = frozenset(
    [
        "type", "role", "content", "output", "id", "call_id", "name", "arguments", "input", "action", "operation", "summary",
        "encrypted_content", "status", "queries", "code", "results", "outputs", "result", "error", "output_format",
        "server_label", "container_id", "phase", "pending_safety_checks", "acknowledged_safety_checks", "max_output_length",
        "created_by", "namespace", "logs", "background", "quality", "size", "revised_prompt", "approval_request_id",
    ]
)  # fmt: skip
"""Fields of an item that are known."""


class ItemTurn:
    """Gathers consecutive output items into one message; any input ends it."""

    def __init__(self, keep: Keep, exchange: ToolExchange) -> None:
        self.keep, self.exchange = keep, exchange
        self._begin()

    def _begin(self) -> None:
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.media = Media(self.keep)
        self.any = False

    def flush(self) -> Iterator[Message]:
        """The message gathered, where there is anything of it."""
        if self.any:
            thought = "\n\n".join(text for text in self.thoughts if text)
            data = {**({"reasoning": thought} if thought else {}), **({"tool_calls": self.calls} if self.calls else {})}
            yield Message("assistant", "\n\n".join(text for text in self.texts if text), data | self.media.data())
        self._begin()

    def add(self, item: Mapping[str, Any], kind: str, spot: str) -> Iterator[Message]:
        """One more item; yields the messages that it ends or is."""
        if kind != "compaction":
            unread(item, _ITEM_FIELDS, "item")
            said = {"message": "content", "reasoning": "summary"}.get(kind, "output")
            if item.get(said) is None and (kind == "message" or kind.endswith("_output")):
                refuse_unknown(item, _ITEM_FIELDS, spot, f"'{said}' nor anything else that is read")
            if kind == "reasoning" and all(item.get(name) is None for name in ("summary", "content", "encrypted_content")):
                refuse_unknown(item, _ITEM_FIELDS, spot, "'summary' nor 'content' nor 'encrypted_content'")
        if kind == "compaction":
            yield from self.flush()
            yield read_message(item, spot)
        elif kind == "message":
            yield from self._message(item, spot)
        elif kind.endswith("_output"):
            yield from self.flush()
            key = text_of(item, "call_id" if "call_id" in item else "id", spot)
            self.exchange.result(spot, key)
            media = Media(self.keep)
            text = _content(item.get("output"), f"{spot}: 'output'", media)
            yield Message("tool", text, {"tool_call_id": key, **media.data()})
        else:
            self.any = True
            if kind == "reasoning":
                self.thoughts.append(_thought(item, spot))
            elif kind in _OUTSIDE:
                self._call(item, kind, spot)
            else:
                yield from self._built_in(item, kind, spot)

    def _message(self, item: Mapping[str, Any], spot: str) -> Iterator[Message]:
        role = text_of(item, "role", spot)
        if role == "assistant":
            self.any = True
            self.texts.append(_content(item.get("content"), f"{spot}: 'content'", self.media))
            return
        yield from self.flush()
        media = Media(self.keep)
        fields = {"role": role, "content": _content(item.get("content"), f"{spot}: 'content'", media)}
        message = read_message(fields, spot)
        yield Message(message.role, message.text, media.data())

    def _call(self, item: Mapping[str, Any], kind: str, spot: str) -> None:
        key = text_of(item, "call_id" if "call_id" in item else "id", spot)
        name = text_of(item, "name", spot) if kind in ("function_call", "custom_tool_call") else kind.removesuffix("_call")
        if kind == "function_call":
            arguments: Any = text_of(item, "arguments", spot)
        elif kind == "custom_tool_call":
            arguments = {"input": text_of(item, "input", spot)}
        else:
            arguments = item.get("action", item.get("operation", {}))
        self.exchange.call(name, spot, key)
        self.calls.append(tool_call(key, name, arguments, **({} if kind == "function_call" else {"item": kind})))

    def _built_in(self, item: Mapping[str, Any], kind: str, spot: str) -> Iterator[Message]:
        """A call that the provider made itself, and its result where the item has one."""
        key = text_of(item, "id", spot)
        name = text_of(item, "name", spot) if kind == "mcp_call" else kind.removesuffix("_call")
        wanted = {k: item[k] for k in ("queries", "code") if item.get(k) is not None}
        arguments = item.get("action") or item.get("arguments") or wanted
        self.exchange.call(name, spot, key, waits=False)
        self.calls.append(tool_call(key, name, arguments, item=kind))
        media, found = Media(self.keep), item.get(_RESULTS.get(kind, ""))
        if kind == "mcp_call" and found is None:
            found = item.get("error")
        if kind == "image_generation_call" and isinstance(found, str):
            text = media.encoded("image", f"image/{item.get('output_format') or 'png'}", found, spot)
        else:
            text = "" if found is None else _result(found, f"{spot}: '{_RESULTS.get(kind)}'", media)
        if found is not None:
            yield from self.flush()
            self.exchange.result(spot, key, own=True)
            yield Message("tool", text, {"tool_call_id": key, **media.data()})


_RESULTS = {
    "file_search_call": "results",
    "code_interpreter_call": "outputs",
    "image_generation_call": "result",
    "mcp_call": "output",
}


def _thought(item: Mapping[str, Any], spot: str) -> str:
    """The text of a reasoning item: its own text, else its summary; "" where all of it is encrypted."""
    for name in ("content", "summary"):
        parts = list_of(item.get(name) or [], f"{spot}: '{name}'")
        for part in parts:
            unread(object_of(part, f"{spot}: '{name}'"), _PART_FIELDS, "part")
        texts = [text_of(object_of(part, f"{spot}: '{name}'"), "text", f"{spot}: '{name}'") for part in parts]
        if texts:
            return "\n\n".join(texts)
    return ""


def _content(content: Any, spot: str, media: Media) -> str:
    """The text of a message's content, or of a tool's output: text, a list of parts, or one part."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [content] if isinstance(content, Mapping) else list_of(content, f"{spot}, if no text,")
    return "".join(part if isinstance(part, str) else _part(object_of(part, spot), spot, media) for part in parts)


_PART_FIELDS = (
    *(
        "type", "text", "refusal", "annotations", "logprobs", "image_url", "detail", "file_url", "file_data", "file_id",
        "filename",
    ),
    *("input_audio", "stdout", "stderr", "outcome"),
)  # fmt: skip


def _part(part: Mapping[str, Any], spot: str, media: Media) -> str:
    unread(part, _PART_FIELDS, "part")
    kind = text_of(part, "type", spot)
    if kind in ("input_text", "output_text", "text", "summary_text", "refusal"):
        return text_of(part, "refusal" if kind == "refusal" else "text", spot)
    if kind in ("input_image", "computer_screenshot", "input_file"):
        what = "file" if kind == "input_file" else "image"
        for name in ("image_url", "file_url", "file_data"):
            if isinstance(part.get(name), str):
                url = part[name]
                return (
                    media.named(what, "url", url)
                    if name != "file_data" or url.startswith("data:")
                    else media.encoded(what, "?", url, spot)
                )
        return media.named(what, "file", text_of(part, "file_id", spot))
    if kind == "input_audio":
        audio = object_of(part.get("input_audio"), spot)
        return media.encoded("audio", f"audio/{audio.get('format')}", text_of(audio, "data", spot), spot)
    return as_text(part)  # a shell's exit, an annotation of a result: kept unchanged


def _result(found: Any, spot: str, media: Media) -> str:
    """What a built-in tool gave: text, logs, or JSON."""
    if isinstance(found, list) and found and all(isinstance(one, Mapping) for one in found):
        if all(one.get("type") == "logs" for one in found):
            return "".join(text_of(one, "logs", spot) for one in found)
        if all(one.get("type") in ("logs", "image") for one in found):
            pieces = [
                text_of(one, "logs", spot) if one["type"] == "logs" else media.named("image", "url", text_of(one, "url", spot))
                for one in found
            ]
            return "".join(pieces)
    return as_text(found)


EXAMPLE = [
    {
        "task_id": "weather",
        "items": [
            {"role": "user", "content": "Is it warm in Oslo?"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look it up."}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "4 degrees"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No: 4 degrees."}]},
        ],
        "reward": 1.0,
    }
]

register("reader", "responses")(
    Reader(
        "responses",
        "Items of OpenAI's Responses interface (message, reasoning, function_call, built-in tools), a conversation or a call a "
        "record.",
        lambda path, first: form_of(first) == "responses",
        read_responses,
        ("task", "reward", "answer"),
        "\n".join(map(json.dumps, EXAMPLE)),
        general=True,
    )
)
