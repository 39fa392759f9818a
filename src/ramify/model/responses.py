"""OpenAI's Responses as chats, and chats as Responses: requests, answers, streams.

Consecutive items of one reply (reasoning, text, calls) are one message of a chat. Tools of free text (``custom``) are functions
of one argument ``input`` there; tools that OpenAI itself runs (``web_search``, ...) and fields that a chat has nothing for are
left out, which is said.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramify.base.errors import UserError
from ramify.model import wire
from ramify.model.translation import (
    Chunks,
    Hearing,
    Origin,
    ShownMessage,
    SpokenRequest,
    Telling,
    Translation,
    counts,
    detail,
    first_choice,
    objects,
    spoken,
    text_in,
    with_text,
)
from ramify.trace.message import as_text

_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls")
_LABELS = ("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Fields that a chat has under the same name."""
_READ = (*_SAME, *_LABELS, "input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning")
_STATED = (
    "store", "previous_response_id", "include", "truncation", "stream_options", "background", "max_tool_calls",
    "top_logprobs",
)  # fmt: skip
"""Fields that the server itself follows, or that change no reply of a chat."""
_KNOWN = frozenset(
    (
        *_READ,
        *_STATED,
        *("conversation", "prompt", "context_management", "moderation", "prompt_cache_options", "access_programs", "image"),
        "background_options",
        "client_metadata",
    )
)
"""Fields of the protocol; others are passed on to who reads the chat."""
_ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id", "prompt_cache_key", "reasoning"),
    *("safety_identifier", "service_tier", "text", "tool_choice", "tools", "top_p", "temperature", "truncation", "user"),
    *("background", "parallel_tool_calls", "store", "top_logprobs"),
)
_DEFAULTS: dict[str, Any] = {
    "metadata": {},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "parallel_tool_calls": True,
    "store": True,
    "truncation": "disabled",
    "reasoning": {"effort": None, "summary": None},
    "background": False,
}
"""What an answer repeats of the request, and what it says where the request says nothing."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_CUT = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
_FREE = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False}
"""The schema of a tool that takes free text."""


class Responses(Translation):
    """``POST /v1/responses``."""

    name, path, id_head = "responses", "/responses", "resp_"
    ends = ("response.completed", "response.incomplete", "response.failed")

    def read(self, request: Mapping[str, Any], native: bool = False) -> SpokenRequest:
        """See :class:`Translation`."""
        ignored = sorted(
            name for name in request if name in _KNOWN and name not in (*_READ, *_STATED) and request[name] not in (None, False)
        )
        chat = {name: value for name, value in request.items() if name in (*_SAME, *_LABELS) or name not in _KNOWN}
        if request.get("background") and not native:
            raise UserError("field 'background': an answer is given while the client waits; leave it out")
        messages: list[dict[str, Any]] = []
        origins: list[Origin | None] = []
        instructions = request.get("instructions")
        if instructions is not None and not isinstance(instructions, str):
            raise UserError("field 'instructions': it must be text")
        if instructions:
            messages.append({"role": "system", "content": instructions})
            origins.append((-1,))
        for places, message in _messages(request.get("input"), native):
            messages.append(message)
            origins.append(places)
        chat["messages"] = messages
        tools, left = _tools(request.get("tools"), native)
        if tools:
            chat["tools"] = tools
        if not native:
            chat |= _settings(request, bool(tools))
            if not tools:
                chat.pop("parallel_tool_calls", None)
        return SpokenRequest(request, chat, tuple(origins), () if native else (*ignored, *left))

    def write(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Translation`."""
        body: dict[str, Any] = {name: chat[name] for name in (*_LABELS, "model", "stream") if chat.get(name) is not None}
        body |= {name: chat[name] for name in ("temperature", "top_p") if chat.get(name) not in (None, 1, 1.0)}
        body["store"] = False
        if limit := chat.get("max_completion_tokens") or chat.get("max_tokens"):
            body["max_output_tokens"] = limit
        if chat.get("stop"):
            raise UserError("field 'stop': OpenAI's Responses take no stop texts")
        if chat.get("reasoning_effort") is not None:
            body["reasoning"] = {"effort": chat["reasoning_effort"]}
        if form := _written_format(chat.get("response_format")):
            body["text"] = {"format": form}
        if chat.get("tools"):
            body["tools"] = self.tools(chat["tools"])
            choice = chat.get("tool_choice")
            if isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
                choice = {"type": "function", "name": choice["function"].get("name")}
            body |= {} if choice is None else {"tool_choice": choice}
            if chat.get("parallel_tool_calls") is not None:
                body["parallel_tool_calls"] = chat["parallel_tool_calls"]
        shown = [ShownMessage(message) for message in objects(chat.get("messages"), "messages")]
        return body | self.rewrite(SpokenRequest({"input": []}, {}), shown)

    def rewrite(self, asked: SpokenRequest, messages: Sequence[ShownMessage]) -> dict[str, Any]:
        """See :class:`Translation`."""
        given = asked.request.get("input")
        given = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        result: dict[str, Any] = {}
        items: list[Any] = []
        for shown in messages:
            places = shown.origin or ()
            same = shown.message == shown.was
            if shown.was is not None and shown.origin is None:
                continue  # it stands in an earlier response, which the request names
            if places == (-1,):
                result["instructions"] = asked.request["instructions"] if same else shown.message.get("content")
            elif places and same:
                items += [given[at] for at in places]
            elif len(places) == 1 and isinstance(shown.message.get("content"), str) and "role" in given[places[0]]:
                item = given[places[0]]
                content = item.get("content")
                text = shown.message["content"]
                new = with_text(content, text, _TEXTS) if isinstance(content, list) else text
                items.append({**item, "role": shown.message["role"], "content": new})
            else:
                items += _items(shown.message)
        return result | {"input": items}

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """See :class:`Translation`."""
        result = []
        for tool in wire.request_tools(tools):
            function = tool.get("function")
            result.append({"type": "function", "strict": False, **function} if isinstance(function, Mapping) else dict(tool))
        return result

    def heard(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Translation`."""
        output = answer.get("output")
        if not isinstance(output, list):
            return {name: answer[name] for name in ("id", "model", "error") if name in answer}
        result = _reply([item for item in output if isinstance(item, dict)], True)
        choice: dict[str, Any] = {"index": 0, "message": result, "finish_reason": _finish(answer, bool(result.get("tool_calls")))}
        return {"id": answer.get("id"), "model": answer.get("model"), "choices": [choice], "usage": _usage(answer.get("usage"))}

    def told(self, answer: Mapping[str, Any], asked: SpokenRequest, id: str) -> dict[str, Any]:
        """See :class:`Translation`."""
        choice = first_choice(answer)
        message = choice.get("message")
        refused = isinstance(message, dict) and bool(message.get("refusal")) and not message.get("content")
        items = _output(*spoken(choice), _free(asked), refused)
        result = _envelope(asked, id, str(answer.get("model") or ""), items, answer.get("usage"), wire.reason_of(choice))
        return result | ({"ramify": choice["ramify"]} if choice.get("ramify") else {})

    def content(self, answer: dict[str, Any], choice: Mapping[str, Any]) -> None:
        """See :class:`Translation`."""
        answer["output"] = _output(*spoken(choice), frozenset(), False)

    def hearing(self) -> Hearing:
        """See :class:`Translation`."""
        return _Hearing()

    def telling(self, asked: SpokenRequest, id: str) -> Telling:
        """See :class:`Translation`."""
        return _Telling(asked, id)

    def refused(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Translation`."""
        return {"error": dict(error)}


# -- requests


def _settings(request: Mapping[str, Any], tools: bool) -> dict[str, Any]:
    """Fields of a chat under other names."""
    result: dict[str, Any] = {}
    if request.get("max_output_tokens") is not None:
        result["max_tokens"] = request["max_output_tokens"]
    text = request.get("text")
    text = text if isinstance(text, Mapping) else {}
    form = text.get("format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        inner = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
        result["response_format"] = {"type": "json_schema", "json_schema": inner}
    elif form is not None and form != {"type": "text"}:
        result["response_format"] = form
    if text.get("verbosity") is not None:
        result["verbosity"] = text["verbosity"]
    reasoning = request.get("reasoning")
    if isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        result["reasoning_effort"] = reasoning["effort"]
    if request.get("stream"):
        result["stream_options"] = {"include_usage": True}
    choice = request.get("tool_choice")
    if tools and choice is not None:
        if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom"):
            choice = {"type": "function", "function": {"name": text_in(choice, "name", "tool_choice")}}
        elif isinstance(choice, Mapping):
            raise UserError(f"field 'tool_choice': the type {as_text(choice.get('type'))[:40]} is not offered by this model")
        result["tool_choice"] = choice
    return result


def _messages(given: Any, native: bool) -> Iterator[tuple[Origin, dict[str, Any]]]:
    if isinstance(given, str):
        yield (0,), {"role": "user", "content": given}
        return
    turn: list[int] = []
    items = objects(given, "input")

    def reply() -> Iterator[tuple[Origin, dict[str, Any]]]:
        if turn:
            message = _reply([items[at] for at in turn], native)
            if message["content"] or message.get("tool_calls") or native:
                yield tuple(turn), message
            turn.clear()

    for at, item in enumerate(items):
        spot, kind = f"input[{at}]", item.get("type", "message" if "role" in item else None)
        if kind in ("reasoning", *_CALLS) or (kind == "message" and item.get("role") == "assistant"):
            if kind in _CALLS:
                for name in ("call_id", "name", "arguments" if kind == "function_call" else "input"):
                    text_in(item, name, spot)
            turn.append(at)
            continue
        if native and kind not in ("message", *_OUTPUTS):
            turn.append(at)  # what a provider made itself stands in the reply
            continue
        yield from reply()
        if kind == "message":
            role = text_in(item, "role", spot)
            if role not in ("user", "system", "developer"):
                raise UserError(f"field '{spot}.role': it must be user, assistant, system or developer")
            content = _content(item.get("content"), f"{spot}.content", native)
            yield (at,), {"role": "system" if role == "developer" else role, "content": content}
        elif kind in _OUTPUTS:
            content = _content(item.get("output"), f"{spot}.output", native)
            yield (at,), {"role": "tool", "tool_call_id": text_in(item, "call_id", spot), "content": content}
        else:
            raise UserError(f"field '{spot}': an item of type '{str(kind)[:40]}' cannot be sent to this model")
    yield from reply()


def _content(content: Any, spot: str, native: bool) -> Any:
    """A content as a chat has it: one text where all of it is text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part, f"{spot}[{at}]", native) for at, part in enumerate(objects(content, spot))]
    return "\n".join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts


def _part(part: Mapping[str, Any], spot: str, native: bool) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": text_in(part, "text", spot)}
    if kind == "refusal":
        return {"type": "text", "text": text_in(part, "refusal", spot)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        about = {"detail": part["detail"]} if part.get("detail") not in (None, "auto") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **about}}
    if kind == "input_file" and (part.get("file_data") or part.get("file_id")):
        return {"type": "file", "file": {k: part[k] for k in ("filename", "file_data", "file_id") if part.get(k) is not None}}
    if native:
        return dict(part) if isinstance(kind, str) else {**part, "type": "unknown"}
    raise UserError(f"field '{spot}': a part of type '{str(kind)[:40]}' cannot be sent to this model")


def _reply(items: Sequence[Mapping[str, Any]], native: bool) -> dict[str, Any]:
    """Items of one reply as a chat's message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            content = item.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            said = [part.get("text", part.get("refusal")) for part in parts if isinstance(part, dict)]
            texts.append("".join(text for text in said if isinstance(text, str)))
        elif kind == "reasoning":
            thoughts.append(_thought(item))
        elif kind in _CALLS:
            arguments = item.get("arguments") if kind == "function_call" else json.dumps({"input": item.get("input")})
            function = {"name": item.get("name"), "arguments": arguments}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
        else:
            others.append(dict(item))
    text = "\n".join(text for text in texts if text)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    if native and any(thoughts):
        message["reasoning_content"] = "\n\n".join(text for text in thoughts if text)
    if others:
        message["provider_specific_fields"] = {"items": others}
    return message


def _thought(item: Mapping[str, Any]) -> str:
    """The text of a reasoning item: its own, else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        if result := "\n\n".join(text for text in texts if isinstance(text, str)):
            return result
    return ""


def _tools(tools: Any, native: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Tools in a chat's form, and the names of those that OpenAI runs itself, or whose calls have a form of their own."""
    result: list[dict[str, Any]] = []
    left: list[str] = []
    for at, tool in enumerate(objects(tools if tools is not None else [], "tools")):
        kind = tool.get("type")
        if kind == "function":
            names = ("name", "description", "parameters", "strict")
            result.append({"type": "function", "function": {k: tool[k] for k in names if tool.get(k) is not None}})
        elif native:
            result.append(dict(tool))
        elif kind == "custom":
            function = {"name": text_in(tool, "name", f"tools[{at}]"), "parameters": _FREE}
            function |= {"description": as_text(tool["description"])} if tool.get("description") else {}
            result.append({"type": "function", "function": function})
        else:
            left.append(f"tools[{at}] ({str(kind)[:40]})")
    return result, left


def _free(asked: SpokenRequest) -> frozenset[str]:
    """The names of the tools that take free text."""
    tools = asked.request.get("tools")
    given = tools if isinstance(tools, list) else []
    return frozenset(str(tool.get("name")) for tool in given if isinstance(tool, dict) and tool.get("type") == "custom")


def _items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A chat's message as items."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return [
            {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": _written(content, "input_text")}
        ]
    items: list[dict[str, Any]] = []
    if content or not message.get("tool_calls"):
        kind = "output_text" if role == "assistant" else "input_text"
        items.append({"role": role, "content": _written(content, kind)})
    for call in wire.calls_in(message):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def _written(content: Any, kind: str) -> Any:
    if not isinstance(content, list):
        return content or ""
    result: list[Any] = []
    for part in content:
        inside = part.get(str(part.get("type"))) if isinstance(part, dict) else None
        if isinstance(part, str) or part.get("type") == "text":
            result.append({"type": kind, "text": part if isinstance(part, str) else part.get("text")})
        elif part.get("type") == "image_url" and isinstance(inside, dict):
            result.append({"type": "input_image", "image_url": inside.get("url"), "detail": inside.get("detail", "auto")})
        elif part.get("type") == "file" and isinstance(inside, dict):
            result.append({"type": "input_file", **inside})
        else:
            result.append(part)
    return result


def _written_format(form: Any) -> dict[str, Any]:
    if not isinstance(form, Mapping) or form.get("type") in (None, "text"):
        return {}
    inner = form.get("json_schema")
    return {"type": form["type"], **(inner if isinstance(inner, Mapping) else {})}


# -- answers


def _message_item(id: str, text: str, refused: bool, status: str = "completed") -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": [_text_part(text, refused)]}


def _text_part(text: str, refused: bool = False) -> dict[str, Any]:
    if refused:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning_item(id: str, thought: str) -> dict[str, Any]:
    return {"id": id, "type": "reasoning", "summary": [{"type": "summary_text", "text": thought}] if thought else []}


def _call_item(id: str, call: Mapping[str, Any], free: frozenset[str], status: str = "completed") -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    head = {"id": id, "call_id": call["id"], "name": name, "status": status}
    if name in free:
        return {**head, "type": "custom_tool_call", "input": _free_text(arguments)}
    return {**head, "type": "function_call", "arguments": arguments}


def _free_text(arguments: str) -> str:
    """What a call says to a tool of free text; the arguments themselves where the model did not keep to the schema."""
    said = json.loads(arguments).get("input") if wire.is_object(arguments) else None
    return said if isinstance(said, str) else arguments


def _output(
    text: str, thought: str, calls: Sequence[Mapping[str, Any]], free: frozenset[str], refused: bool
) -> list[dict[str, Any]]:
    items = [_reasoning_item(_item_id("rs"), thought)] if thought else []
    if text or not (calls or thought):
        items.append(_message_item(_item_id("msg"), text, refused))
    return items + [_call_item(_item_id("fc"), call, free) for call in calls]


def _item_id(head: str) -> str:
    return f"{head}_{uuid.uuid4().hex}"


def _envelope(
    asked: SpokenRequest, id: str, model: str, output: Sequence[Mapping[str, Any]], usage: Any, finish: str | None
) -> dict[str, Any]:
    """A response object; ``finish`` is None while it is under way."""
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish or "")
    status = "in_progress" if finish is None else "incomplete" if cut else "completed"
    result: dict[str, Any] = {"id": id, "object": "response", "created_at": int(time.time()), "status": status, "error": None}
    result |= {"incomplete_details": {"reason": cut} if cut else None, "model": model, "output": list(output)}
    for name in _ECHOED:
        given = asked.request.get(name)
        result[name] = _DEFAULTS.get(name) if given is None else given
    return result | {"usage": None if finish is None else _counted(usage)}


def _finish(answer: Mapping[str, Any], called: bool) -> str | None:
    """``finish_reason`` of a chat."""
    details = answer.get("incomplete_details")
    if answer.get("status") == "incomplete":
        reason = details.get("reason") if isinstance(details, Mapping) else None
        return _CUT.get(str(reason), "length")
    return "tool_calls" if called else "stop"


def _counted(usage: Any) -> dict[str, Any]:
    prompt, sampled = counts(usage, "prompt_tokens", "completion_tokens")
    cached = detail(usage, "prompt_tokens_details", "cached_tokens")
    thought = detail(usage, "completion_tokens_details", "reasoning_tokens")
    result: dict[str, Any] = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0}}
    return result | {
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + sampled,
    }


def _usage(usage: Any) -> dict[str, Any]:
    given, sampled = counts(usage, "input_tokens", "output_tokens")
    result: dict[str, Any] = {"prompt_tokens": given, "completion_tokens": sampled, "total_tokens": given + sampled}
    result["prompt_tokens_details"] = {"cached_tokens": detail(usage, "input_tokens_details", "cached_tokens")}
    thought = detail(usage, "output_tokens_details", "reasoning_tokens")
    return result | {"completion_tokens_details": {"reasoning_tokens": thought}}


# -- streams


class _Telling(Telling):
    def __init__(self, asked: SpokenRequest, id: str) -> None:
        super().__init__(asked, id)
        self.output: list[dict[str, Any]] = []
        self._free = _free(asked)
        self._number = -1
        self._text = ""
        self._item: dict[str, Any] = {}
        self._call: Mapping[str, Any] = {}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _of_item(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, item_id=self._item["id"], output_index=len(self.output), **fields)

    def _envelope(self, finish: str | None) -> dict[str, Any]:
        return _envelope(self.asked, self.id, self.model, self.output, self.usage, finish)

    def begin(self) -> Iterator[dict[str, Any]]:
        yield self._event("response.created", response=self._envelope(None))
        yield self._event("response.in_progress", response=self._envelope(None))

    def opened(self, kind: str, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._text, self._call = "", call
        at = len(self.output)
        if kind == "call":
            empty = {**call, "function": {**call["function"], "arguments": ""}}
            self._item = _call_item(_item_id("fc"), empty, self._free, "in_progress")
        elif kind == "thinking":
            self._item = _reasoning_item(_item_id("rs"), "")
        else:
            self._item = {**_message_item(_item_id("msg"), "", False, "in_progress"), "content": []}
        yield self._event("response.output_item.added", output_index=at, item=self._item)
        if kind == "thinking":
            part = {"type": "summary_text", "text": ""}
            yield self._of_item("response.reasoning_summary_part.added", summary_index=0, part=part)
        elif kind == "text":
            yield self._of_item("response.content_part.added", content_index=0, part=_text_part(""))

    def delta(self, kind: str, piece: str) -> Iterator[dict[str, Any]]:
        self._text += piece
        if kind == "thinking":
            yield self._of_item("response.reasoning_summary_text.delta", summary_index=0, delta=piece)
        elif kind == "text":
            yield self._of_item("response.output_text.delta", content_index=0, delta=piece, logprobs=[])
        elif self._item["type"] == "function_call":
            yield self._of_item("response.function_call_arguments.delta", delta=piece)

    def shut(self, kind: str) -> Iterator[dict[str, Any]]:
        text, id = self._text, self._item["id"]
        if kind == "thinking":
            part = {"type": "summary_text", "text": text}
            yield self._of_item("response.reasoning_summary_text.done", summary_index=0, text=text)
            yield self._of_item("response.reasoning_summary_part.done", summary_index=0, part=part)
            item = _reasoning_item(id, text)
        elif kind == "text":
            yield self._of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
            yield self._of_item("response.content_part.done", content_index=0, part=_text_part(text))
            item = _message_item(id, text, False)
        else:
            item = _call_item(id, self._call, self._free)
            if item["type"] == "function_call":
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield self._of_item("response.function_call_arguments.done", **done)
            else:
                yield self._of_item("response.custom_tool_call_input.delta", delta=item["input"])
                yield self._of_item("response.custom_tool_call_input.done", input=item["input"])
        yield self._event("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)

    def close(self) -> Iterator[dict[str, Any]]:
        if not self.output:
            yield from self.opened("text", {})
            yield from self.shut("text")
        result = self._envelope(self.finish or "stop") | ({"ramify": self.notes} if self.notes else {})
        yield self._event(f"response.{result['status']}", response=result)

    def failed(self, status: int, error: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        code = "rate_limit_exceeded" if status == 429 else "invalid_prompt" if status < 500 else "server_error"
        why = {"code": code, "message": str(error.get("message"))}
        yield self._event("response.failed", response=self._envelope(None) | {"status": "failed", "error": why})
        yield self._event("error", param=None, error=why, **why)  # which openai's client raises; response.failed it does not


class _Hearing(Hearing):
    def __init__(self) -> None:
        self._chunks = Chunks()
        self._calls: dict[Any, int] = {}
        self._free: set[Any] = set()

    def take(self, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        kind, chunks = str(event.get("type")), self._chunks
        response = event.get("response")
        if isinstance(response, Mapping):
            chunks.id, chunks.model = str(response.get("id") or ""), str(response.get("model") or "")
        if kind == "error":
            return [{"error": {"message": event.get("message") or "an error without a word"}}]
        if kind == "response.failed" and isinstance(response, Mapping):
            return [{"error": response.get("error") or {"message": "an error without a word"}}]
        if kind == "response.created":
            return [chunks.of({"role": "assistant", "content": ""})]
        if kind in ("response.completed", "response.incomplete") and isinstance(response, Mapping):
            chunks.usage = _usage(response.get("usage"))
            return chunks.end(str(_finish(response, bool(self._calls))))
        return self._piece(kind, event)

    def _piece(self, kind: str, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        item, delta, at = event.get("item"), event.get("delta"), str(event.get("output_index"))
        if kind == "response.output_item.added" and isinstance(item, Mapping) and item.get("type") in _CALLS:
            self._calls[at] = len(self._calls)
            if item["type"] == "custom_tool_call":
                self._free.add(at)
            return [self._call(at, id=item.get("call_id"), name=item.get("name"), arguments="")]
        if kind == "response.output_item.done" and isinstance(item, Mapping):
            if at in self._free:
                return [self._call(at, arguments=json.dumps({"input": item.get("input")}))]
            if item.get("type") not in ("message", "reasoning", *_CALLS):
                return [self._chunks.of({"provider_specific_fields": {"items": [dict(item)]}})]
        if kind == "response.function_call_arguments.delta" and isinstance(delta, str) and at in self._calls:
            return [self._call(at, arguments=delta)]
        if kind in ("response.output_text.delta", "response.refusal.delta") and isinstance(delta, str):
            return [self._chunks.of({"content": delta})]
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta") and isinstance(delta, str):
            return [self._chunks.of({"reasoning_content": delta})]
        return []

    def _call(self, at: Any, id: Any = None, **function: Any) -> dict[str, Any]:
        call = {"index": self._calls[at], "type": "function", "function": function} | ({} if id is None else {"id": id})
        return self._chunks.of({"tool_calls": [call]})
