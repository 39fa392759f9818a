"""Calls as they go over the wire: which protocol one speaks, and its streamed answer put together.

Chat completions, OpenAI's Responses interface and Anthropic's messages; the readers of each format read what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ramify.base.errors import RamifyError, UserError
from ramify.integrations.formats import anthropic, responses
from ramify.integrations.formats.exchanges import Keep
from ramify.integrations.formats.spoken import AnyOrder, parsed
from ramify.model.sse import EventParser, StreamedCalls
from ramify.trace import chats
from ramify.trace.chats import CallReply
from ramify.trace.message import Message, plain

CHAT, RESPONSES, ANTHROPIC = "/chat/completions", "/responses", "/messages"
"""Protocols by the end of the path that their calls go to."""


class WireCall(NamedTuple):
    """A call: what was given, the replies, and the answer's other fields."""

    given: list[Message]
    replies: list[CallReply]
    rest: dict[str, Any]


def protocol_of(url: str, body: Any) -> str | None:
    """The protocol of a request to ``url`` with this body; None of any other request."""
    if not isinstance(body, Mapping):
        return None
    try:
        path = urlsplit(url).path.rstrip("/")
    except ValueError:
        return None
    held = {CHAT: "messages", RESPONSES: "input", ANTHROPIC: "messages"}
    return next((end for end, name in held.items() if path.endswith(end) and name in body), None)


def read_wire(protocol: str, request: Mapping[str, Any], response: Mapping[str, Any], place: str, keep: Keep) -> WireCall:
    """What a call of a protocol says. Raises UserError naming ``place``."""
    asked, answered = dict(request), dict(response)
    if protocol == CHAT:
        return WireCall(*chats.read_exchange(asked, answered, place))
    read = anthropic.read_exchange if protocol == ANTHROPIC else responses.read_exchange
    return WireCall(*read(asked, answered, place, keep, AnyOrder()))


def streamed(protocol: str, text: str, place: str) -> dict[str, Any]:
    """The answer that a stream of events spells, as the same call answers it whole; one that broke off as far as it came.

    Raises UserError naming ``place`` where the events are none."""
    parser = EventParser(place, lenient=True)
    try:
        events = [value for _, value in parser.push(text.encode("utf-8", "replace") + b"\n\n")]
        if protocol == CHAT:
            return _chat(events)
        return _anthropic(events) if protocol == ANTHROPIC else _responses(events)
    except (RamifyError, ValueError) as error:
        raise UserError(f"{place}: the streamed answer cannot be read: {error}") from None


def _objects(values: Any) -> Iterator[Mapping[str, Any]]:
    for value in values if isinstance(values, list) else ():
        if isinstance(value, Mapping):
            yield value


def _chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    calls: dict[int, StreamedCalls] = {}
    for event in events:
        answer |= {k: v for k, v in event.items() if k not in ("choices", "object") and v is not None}
        for choice in _objects(event.get("choices")):
            at = choice.get("index", 0)
            at = at if type(at) is int else 0
            delta = choice.get("delta")
            whole = choices.setdefault(at, {"index": at, "message": {"role": "assistant", "content": ""}})
            if choice.get("finish_reason"):
                whole["finish_reason"] = choice["finish_reason"]
            for name, piece in delta.items() if isinstance(delta, Mapping) else ():
                if name == "tool_calls" and isinstance(piece, list):
                    calls.setdefault(at, StreamedCalls()).take(piece)
                elif isinstance(piece, str) and name != "role":
                    said = whole["message"].get(name)
                    whole["message"][name] = (said if isinstance(said, str) else "") + piece
    for at, streamed_calls in calls.items():
        choices[at]["message"]["tool_calls"] = [{"type": "function", **call} for call in streamed_calls.made]
    return {**answer, "choices": [choices[at] for at in sorted(choices)]} if choices else answer


def _responses(events: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    items: list[Any] = []
    for event in events:
        if isinstance(whole := event.get("response"), Mapping):
            answer |= whole
        if event.get("type") == "response.output_item.done" and isinstance(event.get("item"), Mapping):
            items.append(event["item"])
        if event.get("type") == "error":
            answer["error"] = {k: event[k] for k in ("code", "message") if k in event}
    return answer if answer.get("output") else {**answer, "output": items}


_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "input"}


def _anthropic(events: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        kind, at = event.get("type"), event.get("index")
        at = at if type(at) is int else len(blocks) - 1
        delta = event.get("delta")
        if kind == "message_start" and isinstance(event.get("message"), Mapping):
            answer |= event["message"]
        elif kind == "content_block_start" and isinstance(event.get("content_block"), Mapping):
            block = dict(event["content_block"])
            blocks[at] = {**block, "input": ""} if isinstance(block.get("input"), Mapping) and not block["input"] else block
        elif kind == "content_block_delta" and isinstance(delta, Mapping) and at in blocks:
            name = _DELTAS.get(str(delta.get("type")))
            piece = delta.get("partial_json" if name == "input" else str(name))
            if name is not None and isinstance(piece, str):
                said = blocks[at].get(name)
                blocks[at][name] = (said if isinstance(said, str) else "") + piece
        elif kind == "message_delta" and isinstance(delta, Mapping):
            answer |= {k: v for k, v in delta.items() if v is not None}
        elif kind == "error":
            answer["error"] = event.get("error") or True
    for block in blocks.values():
        if isinstance(block.get("input"), str):
            wanted = parsed(block["input"])
            block["input"] = wanted if isinstance(wanted, Mapping) else {"arguments": wanted} if wanted else {}
    return {**answer, "content": [plain(blocks[at]) for at in sorted(blocks)]} if blocks else {**answer, "content": None}
