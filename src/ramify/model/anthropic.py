"""Anthropic's Messages as chats, and chats as Anthropic's Messages: requests, answers, streams, errors.

Blocks of text of one message are joined by a line break, since templates and most servers of chats take one text. Tools that
Anthropic itself runs (``web_search``, ...) and fields that a chat has nothing for are left out of a chat, which is said.
"""

from __future__ import annotations

import json
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

_TOKENS = 8192
"""``max_tokens`` of a request that sets no limit, which this protocol demands."""
_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
"""Fields that a chat has under the same name."""
_READ = (
    *_SAME, "system", "messages", "tools", "tool_choice", "stop_sequences", "metadata", "output_config", "output_format",
    "user",
)  # fmt: skip
_ENDS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_KNOWN = frozenset(
    (
        *_READ,
        *(
            "thinking",
            "service_tier",
            "container",
            "mcp_servers",
            "context_management",
            "inference_geo",
            "cache_control",
            "speed",
        ),
        *("diagnostics", "betas", "user_profile_id", "workspace_id", "prefill", "fallbacks"),
    )
)
"""Fields of the protocol; others are passed on to who reads the chat."""


class Anthropic(Translation):
    """``POST /v1/messages``."""

    name, path, id_head, ends = "messages", "/messages", "msg_", ("message_stop",)

    def read(self, request: Mapping[str, Any], native: bool = False) -> SpokenRequest:
        """See :class:`Translation`."""
        ignored = sorted(name for name in request if name in _KNOWN and name not in _READ and request[name] is not None)
        chat = {name: value for name, value in request.items() if name in _SAME or name not in _KNOWN}
        messages: list[dict[str, Any]] = []
        origins: list[Origin | None] = []
        for origin, message in _messages(request, native):
            messages.append(message)
            origins.append(origin)
        chat["messages"] = messages
        if not native:
            chat |= _settings(request)
        tools, left = _tools(request.get("tools"), native)
        if tools:
            chat["tools"] = tools
        chat |= _choice(request.get("tool_choice")) if tools and not native else {}
        return SpokenRequest(request, chat, tuple(origins), () if native else (*ignored, *left))

    def write(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Translation`."""
        limit = chat.get("max_completion_tokens") or chat.get("max_tokens") or _TOKENS
        body: dict[str, Any] = {"model": chat.get("model"), "max_tokens": limit}
        body |= {name: chat[name] for name in ("temperature", "top_p") if chat.get(name) not in (None, 1, 1.0)}
        if (chat.get("top_k") or 0) > 0:
            body["top_k"] = chat["top_k"]
        stop = chat.get("stop")
        if stop:
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if chat.get("stream"):
            body["stream"] = True
        if isinstance(chat.get("user"), str):
            body["metadata"] = {"user_id": chat["user"]}
        form = chat.get("response_format")
        if isinstance(form, Mapping) and form.get("type") == "json_schema":
            body["output_config"] = {"format": {"type": "json_schema", "schema": form.get("json_schema", {}).get("schema")}}
        elif isinstance(form, Mapping) and form.get("type") not in (None, "text"):
            raise UserError(
                f"field 'response_format': Anthropic's Messages have nothing for the type {as_text(form.get('type'))}"
            )
        if chat.get("tools"):
            body["tools"] = self.tools(chat["tools"])
            body |= _written_choice(chat)
        empty = SpokenRequest({"messages": []}, {})
        return body | self.rewrite(empty, [ShownMessage(message) for message in objects(chat.get("messages"), "messages")])

    def rewrite(self, asked: SpokenRequest, messages: Sequence[ShownMessage]) -> dict[str, Any]:
        """See :class:`Translation`."""
        system: list[Any] = []
        written: list[dict[str, Any]] = []
        last: Any = None
        given: Any = asked.request["messages"]
        for shown in messages:
            at, blocks = shown.origin or (None, ())
            if at is not None and at >= 0:
                content, role = given[at].get("content"), given[at].get("role")
                whole = {name: value for name, value in given[at].items() if name != "content"}
            else:
                content, role = asked.request.get("system") if at == -1 else None, "system" if at == -1 else None
                whole = {}
            content = [content[i] for i in blocks] if blocks else content
            if role is None or shown.message != shown.was:
                content = _changed(shown, content, role)
                role = role or _role(shown.message)
            if role == "system" and (at == -1 or not written):
                system.append(content)
            elif at is not None and at == last:
                written[-1]["content"] = [*_listed(written[-1]["content"]), *_listed(content)]
            elif role == "system" and at is None:  # the protocol takes none in mid-conversation that the client did not send
                written.append({"role": "user", "content": content})
            elif at is None and written and written[-1]["role"] == role and last is None:
                written[-1]["content"] = [*_listed(written[-1]["content"]), *_listed(content)]
            else:
                written.append({**whole, "role": role, "content": content})
            last = at
        result: dict[str, Any] = {"messages": written}
        if system:
            result["system"] = system[0] if len(system) == 1 else [block for part in system for block in _listed(part)]
        return result

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """See :class:`Translation`."""
        result = []
        for tool in wire.request_tools(tools):
            function = tool.get("function")
            if not isinstance(function, Mapping):
                result.append(dict(tool))  # one of the protocol's own, which was passed through
                continue
            written = {
                "name": function.get("name"),
                "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
            }
            result.append(
                written | {name: function[name] for name in ("description", "strict") if function.get(name) is not None}
            )
        return result

    def heard(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Translation`."""
        if answer.get("type") == "error" or not isinstance(answer.get("content"), list):
            return {name: answer[name] for name in ("id", "model", "error") if name in answer}
        message, _ = _assistant([block for block in answer["content"] if isinstance(block, dict)], "content", True)
        choice: dict[str, Any] = {"index": 0, "message": message}
        choice |= _finish(answer.get("stop_reason"), answer.get("stop_sequence"))
        return {"id": answer.get("id"), "model": answer.get("model"), "choices": [choice], "usage": _usage(answer.get("usage"))}

    def told(self, answer: Mapping[str, Any], asked: SpokenRequest, id: str) -> dict[str, Any]:
        """See :class:`Translation`."""
        choice = first_choice(answer)
        result: dict[str, Any] = {"id": id, "type": "message", "role": "assistant", "model": answer.get("model")}
        result |= {"content": _said(*spoken(choice))}
        result |= _stop(wire.reason_of(choice), choice.get("stop_reason")) | {"usage": _counted(answer.get("usage"))}
        return result | ({"ramify": choice["ramify"]} if choice.get("ramify") else {})

    def content(self, answer: dict[str, Any], choice: Mapping[str, Any]) -> None:
        """See :class:`Translation`."""
        answer["content"] = _said(*spoken(choice))

    def hearing(self) -> Hearing:
        """See :class:`Translation`."""
        return _Hearing()

    def telling(self, asked: SpokenRequest, id: str) -> Telling:
        """See :class:`Translation`."""
        return _Telling(asked, id)

    def refused(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Translation`."""
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error.get("message"))}}


# -- requests


def _settings(request: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a chat under other names."""
    result: dict[str, Any] = {}
    stops = request.get("stop_sequences")
    if stops:
        result["stop"] = stops
    about = request.get("metadata")
    user = about.get("user_id") if isinstance(about, Mapping) else None
    if isinstance(user, str) and user:
        result["user"] = user
    wanted = request.get("output_config")
    form = wanted.get("format") if isinstance(wanted, Mapping) else request.get("output_format")
    if isinstance(form, Mapping):
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), Mapping):
            raise UserError("field 'output_config.format': it must be of type json_schema, with a schema")
        result["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": form["schema"]}}
    if request.get("stream"):
        result["stream_options"] = {"include_usage": True}
    if request.get("max_tokens") is None:
        raise UserError("field 'max_tokens': it is missing")
    return result


def _messages(request: Mapping[str, Any], native: bool) -> Iterator[tuple[Origin, dict[str, Any]]]:
    system = request.get("system")
    if isinstance(system, list):
        blocks = objects(system, "system")
        system = "\n".join(text_in(block, "text", f"system[{at}]") for at, block in enumerate(blocks))
    if system is not None and not isinstance(system, str):
        raise UserError("field 'system': it must be text or a list of blocks")
    if system:
        yield (-1, ()), {"role": "system", "content": system}
    for at, value in enumerate(objects(request.get("messages"), "messages")):
        spot, role, content = f"messages[{at}]", value.get("role"), value.get("content")
        if role not in ("user", "assistant", "system"):
            raise UserError(f"field '{spot}.role': it must be user or assistant")
        if isinstance(content, str):
            yield (at, ()), {"role": role, "content": content}
            continue
        blocks = objects(content, f"{spot}.content")
        if role == "assistant":
            message, _ = _assistant(blocks, f"{spot}.content", native)
            yield (at, tuple(range(len(blocks)))), message
            continue
        rest: list[int] = []
        for i, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                yield (at, (i,)), _result(block, f"{spot}.content[{i}]", native)
            else:
                rest.append(i)
        if rest or not blocks:
            parts = [_part(blocks[i], f"{spot}.content[{i}]", native) for i in rest]
            yield (at, tuple(rest)), {"role": role, "content": _joined(parts)}


def _joined(parts: list[dict[str, Any]]) -> Any:
    """Parts as the content of a chat's message: one text where all are text."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(block: Mapping[str, Any], spot: str, native: bool) -> dict[str, Any]:
    """A block of neither a call, a result nor a thought, as a part of a chat's message."""
    kind, source = block.get("type"), block.get("source")
    source = source if isinstance(source, Mapping) else {}
    if kind == "text":
        return {"type": "text", "text": text_in(block, "text", spot)}
    if kind == "image" and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "image" and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": text_in(source, "data", f"{spot}.source")}
    if kind == "document" and source.get("type") == "base64":
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "file", "file": {"filename": str(block.get("title") or "document"), "file_data": data}}
    if kind == "search_result":
        parts = [_part(part, f"{spot}.content", native) for part in objects(block.get("content"), f"{spot}.content")]
        return {"type": "text", "text": "\n".join(str(part.get("text", "")) for part in parts)}
    if native:
        return dict(block) if isinstance(kind, str) else {**block, "type": "unknown"}
    raise UserError(f"field '{spot}': a block of type '{str(kind)[:40]}' cannot be sent to this model")


def _result(block: Mapping[str, Any], spot: str, native: bool) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"{spot}.content[{i}]", native) for i, part in enumerate(objects(content, f"{spot}.content"))]
        content = _joined(parts)
    result = {"role": "tool", "tool_call_id": text_in(block, "tool_use_id", spot), "content": content or ""}
    return result | ({"is_error": True} if native and block.get("is_error") else {})


def _assistant(blocks: Sequence[Mapping[str, Any]], spot: str, native: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A reply as a chat's message; and what of it a chat has nothing for."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            texts.append(text_in(block, "text", f"{spot}[{at}]"))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            called = {"name": text_in(block, "name", f"{spot}[{at}]"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": text_in(block, "id", f"{spot}[{at}]"), "type": "function", "function": called})
        elif kind != "redacted_thinking":
            if not native:
                raise UserError(f"field '{spot}[{at}]': a block of type '{str(kind)[:40]}' cannot be sent to this model")
            others.append(dict(block))
    text = "".join(texts)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    if thoughts and native:
        message["reasoning_content"] = "\n\n".join(thoughts)
    if others:
        message["provider_specific_fields"] = {"blocks": others}
    return message, others


def _tools(tools: Any, native: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Tools in OpenAI's form, and the names of those that Anthropic runs itself, or whose schema only its models know."""
    result: list[dict[str, Any]] = []
    left: list[str] = []
    for at, tool in enumerate(objects(tools if tools is not None else [], "tools")):
        if isinstance(tool.get("input_schema"), Mapping):
            function = {"name": text_in(tool, "name", f"tools[{at}]"), "parameters": tool["input_schema"]}
            function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
            result.append({"type": "function", "function": function})
        elif native:
            result.append(dict(tool))
        elif isinstance(tool.get("type"), str) and tool["type"] != "custom":
            left.append(f"tools[{at}] ({tool['type'][:40]})")
        else:
            raise UserError(f"field 'tools[{at}].input_schema': it must be an object")
    return result, left


def _choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in (*_CHOICES, "tool"):
        raise UserError("field 'tool_choice.type': it must be auto, any, tool or none")
    result: dict[str, Any] = {"tool_choice": _CHOICES.get(str(kind))}
    if kind == "tool":
        result["tool_choice"] = {"type": "function", "function": {"name": text_in(choice, "name", "tool_choice")}}
    return result | ({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {})


def _written_choice(chat: Mapping[str, Any]) -> dict[str, Any]:
    choice, several = chat.get("tool_choice"), chat.get("parallel_tool_calls")
    if choice is None and several is not False:
        return {}
    if isinstance(choice, Mapping):
        function = choice.get("function")
        written: dict[str, Any] = {"type": "tool", "name": function.get("name") if isinstance(function, Mapping) else None}
    else:
        written = {"type": {kind: name for name, kind in _CHOICES.items()}.get(str(choice or "auto"), "auto")}
    return {
        "tool_choice": written | ({"disable_parallel_tool_use": True} if several is False and written["type"] != "none" else {})
    }


def _listed(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []


def _role(message: Mapping[str, Any]) -> str:
    role = str(message.get("role"))
    return {"tool": "user", "developer": "system"}.get(role, role)


def _changed(shown: ShownMessage, content: Any, role: Any) -> Any:
    """The content of a message that a chat's ``shown`` became: where only its text changed, with all else that was sent."""
    said, was = shown.message.get("content"), shown.was or {}
    same = {k: v for k, v in shown.message.items() if k != "content"} == {k: v for k, v in was.items() if k != "content"}
    if role is None or not same:
        return _blocks(shown.message)
    if isinstance(said, list):
        said = "\n".join(str(part.get("text")) for part in said if isinstance(part, dict) and part.get("type") == "text")
    if shown.message.get("role") == "tool":
        return [{**content[0], "content": said}]
    return with_text(content, str(said or ""), ("text",)) if isinstance(content, list) else said


def _blocks(message: Mapping[str, Any]) -> Any:
    """A chat's message as the content of one of this protocol."""
    content = message.get("content")
    blocks = [_block(part) for part in content] if isinstance(content, list) else _listed(content)
    if message.get("role") == "tool":
        inside = content if isinstance(content, str) else blocks
        error = {"is_error": True} if message.get("is_error") else {}
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": inside, **error}]
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _input(call["function"]["arguments"])}
        for call in wire.calls_in(message)
    ]
    return blocks + calls if calls or isinstance(content, list) else content


def _block(part: Any) -> Any:
    """A part of a chat's message as a block."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    inside = part.get(str(kind)) if isinstance(part, Mapping) else None
    url = inside.get("url") if isinstance(inside, Mapping) else None
    if kind == "image_url" and isinstance(url, str):
        head, _, data = url.partition(";base64,")
        if head.startswith("data:"):
            return {"type": "image", "source": {"type": "base64", "media_type": head[5:], "data": data}}
        return {"type": "image", "source": {"type": "url", "url": url}}
    held = inside.get("file_data") if isinstance(inside, Mapping) else None
    if kind == "file" and isinstance(held, str):
        head, _, data = held.partition(";base64,")
        return {"type": "document", "source": {"type": "base64", "media_type": head[5:], "data": data}}
    return part


def _input(arguments: str) -> Any:
    if not arguments.strip():
        return {}
    return json.loads(arguments) if wire.is_object(arguments) else {wire.RAW: arguments}


# -- answers


def _said(text: str, thought: str, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": thought, "signature": ""}] if thought else []
    if text or not (calls or thought):
        blocks.append({"type": "text", "text": text, "citations": None})
    for call in calls:
        function = call["function"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": _input(function["arguments"])})
    return blocks


def _stop(finish: str, stopped: Any) -> dict[str, Any]:
    """Why a reply ended; ``stopped`` is the stop text that ended it, where it is known."""
    if finish in ("stop", "") and isinstance(stopped, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
    return {"stop_reason": _ENDS.get(finish, "end_turn"), "stop_sequence": None}


def _finish(reason: Any, sequence: Any) -> dict[str, Any]:
    """``finish_reason`` of a chat; one that no table knows stays, so that who reads the chat says so."""
    result: dict[str, Any] = {"finish_reason": _FINISHES.get(reason, reason) if isinstance(reason, str) else None}
    return result | ({"stop_reason": sequence} if reason == "stop_sequence" and isinstance(sequence, str) else {})


def _counted(usage: Any) -> dict[str, Any]:
    prompt, sampled = counts(usage, "prompt_tokens", "completion_tokens")
    cached = detail(usage, "prompt_tokens_details", "cached_tokens")
    result = {"input_tokens": max(0, prompt - cached), "cache_creation_input_tokens": 0}
    return result | {"cache_read_input_tokens": cached, "output_tokens": sampled}


def _usage(usage: Any) -> dict[str, Any]:
    """Usage as a chat has it: the prompt's count includes what was cached."""
    given, sampled = counts(usage, "input_tokens", "output_tokens")
    written, cached = counts(usage, "cache_creation_input_tokens", "cache_read_input_tokens")
    result: dict[str, Any] = {"prompt_tokens": given + written + cached, "completion_tokens": sampled}
    return result | {"total_tokens": given + written + cached + sampled, "prompt_tokens_details": {"cached_tokens": cached}}


# -- streams


class _Telling(Telling):
    _index = -1

    def begin(self) -> Iterator[dict[str, Any]]:
        message: dict[str, Any] = {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": []}
        message |= {"stop_reason": None, "stop_sequence": None, "usage": _counted(self.usage)}
        yield {"type": "message_start", "message": message}

    def opened(self, kind: str, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == "call":
            block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def delta(self, kind: str, piece: str) -> Iterator[dict[str, Any]]:
        written = {"thinking": ("thinking_delta", "thinking"), "call": ("input_json_delta", "partial_json")}
        type_, name = written.get(kind, ("text_delta", "text"))
        yield {"type": "content_block_delta", "index": self._index, "delta": {"type": type_, name: piece}}

    def shut(self, kind: str) -> Iterator[dict[str, Any]]:
        yield {"type": "content_block_stop", "index": self._index}

    def close(self) -> Iterator[dict[str, Any]]:
        if self._index < 0:
            yield from self.opened("text", {})
            yield from self.shut("text")
        event: dict[str, Any] = {
            "type": "message_delta",
            "delta": _stop(self.finish, self.stopped),
            "usage": _counted(self.usage),
        }
        yield event | ({"ramify": self.notes} if self.notes else {})
        yield {"type": "message_stop"}

    def failed(self, status: int, error: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield Anthropic().refused(status, error)


class _Hearing(Hearing):
    def __init__(self) -> None:
        self._chunks = Chunks()
        self._calls: dict[Any, int] = {}
        self._ended: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        kind, chunks = event.get("type"), self._chunks
        if kind == "error":
            return [{"error": event.get("error") or {"message": "an error without a word"}}]
        if kind == "message_start" and isinstance(event.get("message"), Mapping):
            message = event["message"]
            chunks.id, chunks.model = str(message.get("id") or ""), str(message.get("model") or "")
            self._count(message.get("usage"))
            return [chunks.of({"role": "assistant", "content": ""})]
        if kind == "content_block_start" and isinstance(event.get("content_block"), Mapping):
            return self._started(event["content_block"], str(event.get("index")))
        if kind == "content_block_delta" and isinstance(event.get("delta"), Mapping):
            return self._delta(event["delta"], str(event.get("index")))
        if kind == "message_delta":
            delta = event.get("delta")
            self._ended = dict(delta) if isinstance(delta, Mapping) else {}
            self._count(event.get("usage"))
        if kind == "message_stop":
            ended = _finish(self._ended.get("stop_reason"), self._ended.get("stop_sequence"))
            chunks.usage = _usage(self._usage)
            return chunks.end(ended.pop("finish_reason") or "stop", **ended)
        return []

    def _count(self, usage: Any) -> None:
        self._usage |= {name: count for name, count in usage.items() if count is not None} if isinstance(usage, Mapping) else {}

    def _started(self, block: Mapping[str, Any], index: Any) -> list[dict[str, Any]]:
        if block.get("type") == "tool_use":
            self._calls[index] = len(self._calls)
            function = {"name": block.get("name"), "arguments": json.dumps(block["input"]) if block.get("input") else ""}
            call = {"index": self._calls[index], "id": block.get("id"), "type": "function", "function": function}
            return [self._chunks.of({"tool_calls": [call]})]
        if block.get("type") == "text" and block.get("text"):
            return [self._chunks.of({"content": block["text"]})]
        if block.get("type") in ("text", "thinking", "redacted_thinking"):
            return []
        return [self._chunks.of({"provider_specific_fields": {"blocks": [dict(block)]}})]

    def _delta(self, delta: Mapping[str, Any], index: Any) -> list[dict[str, Any]]:
        if isinstance(delta.get("text"), str):
            return [self._chunks.of({"content": delta["text"]})]
        if isinstance(delta.get("thinking"), str):
            return [self._chunks.of({"reasoning_content": delta["thinking"]})]
        if isinstance(delta.get("partial_json"), str) and index in self._calls:
            call = {"index": self._calls[index], "function": {"arguments": delta["partial_json"]}}
            return [self._chunks.of({"tool_calls": [call]})]
        return []
