"""The message: role, text, tool calls, reasoning and other data; reading it from and writing it to OpenAI's format.

A tool call is kept in a message's data in OpenAI's form: ``{"id", "type", "function": {"name", "arguments": JSON text}}`` under
``tool_calls``, or stands in the text as models write it (``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``). The
answer to a call is a message of role tool, with ``tool_call_id`` in its data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.trace.notes import strange, unread

_ROLES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant"}
CALL, CALL_END = "<tool_call>", "</tool_call>"
"""What opens and closes a call that a model writes into its text."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    """system, user, assistant or tool."""
    text: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further data, as JSON: ``tool_calls``, ``tool_call_id``, ``name``, ``reasoning``,
    parts that are not text as ``content``."""
    sent: Any = field(default=None, compare=False, repr=False)
    """The JSON object that a client sent, where it is forwarded:
    fields that middleware leaves alone reach the endpoint unchanged."""

    @property
    def unchanged(self) -> bool:
        """Whether it says what a client ``sent``."""
        if not isinstance(self.sent, Mapping):
            return False
        was = read_message(self.sent, "a message that was sent")
        return (was.role, was.text, dict(was.data)) == (self.role, self.text, dict(self.data))

    @property
    def reasoning(self) -> str:
        """The reasoning before the text, where it was separate from it."""
        texts = [self.data.get(name) for name in ("reasoning", "reasoning_content", "thinking")]
        return next((text for text in texts if isinstance(text, str) and text), "")

    @property
    def calls(self) -> list[ToolCall]:
        """Its calls: those alongside the text, else those written into it. An invalid one has an ``error``."""
        alongside = self.data.get("tool_calls")
        return (
            [_read_call(call) for call in alongside] if isinstance(alongside, list) and alongside else parse_tool_calls(self.text)
        )

    @property
    def functions(self) -> list[tuple[Any, Any]]:
        """Name and arguments of each call alongside the text; arguments that are not JSON stay the text they are."""
        alongside = self.data.get("tool_calls")
        return [_function(call) for call in alongside] if isinstance(alongside, list) else []

    def spoken(self) -> str:
        """Its content as text: its text, then each call alongside it as ``name(arguments)``, a line each."""
        alongside = self.data.get("tool_calls")
        if not alongside:
            return self.text
        lines = [self.text] if self.text else []
        for call in alongside:
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                lines.append(f"{function.get('name')}({as_text(function.get('arguments', ''))})")
        return "\n".join(lines)

    def written(self) -> str:
        """Its text with the calls alongside it written into it:
        an action as an environment takes it, a reply as a template lays it out."""
        alongside = self.data.get("tool_calls")
        return joined_reply(self.text, alongside) if isinstance(alongside, list) and CALL not in self.text else self.text

    def to_openai(self) -> dict[str, Any]:
        """In OpenAI's form, with the calls alongside the text, and which call it answers."""
        return {"role": self.role, "content": self.text} | {k: self.data[k] for k in _KEPT if k in self.data}


_KEPT = ("name", "tool_calls", "tool_call_id")


FIELDS = frozenset(
    [
        "role", "content", "tool_calls", "function_call", "name", "tool_call_id", "id", "type", "timestamp", "created",
        "created_at", "model", "finish_reason", "stop_reason", "usage", "index", "status", "weight", "loss", "reasoning",
        "reasoning_content", "reasoning_details", "thinking", "thinking_blocks", "refusal", "audio", "annotations",
        "logprobs", "provider_specific_fields", "parse_error", "source", "is_error", "error", "unanswered", "media", "block",
    ]
)  # fmt: skip
"""Fields of a message that are known; of another that holds text or lists it is said that it was not understood."""
_SAID = ("parts", "text", "value", "refusal")
"""Fields that hold what a message says where ``content`` is empty."""
_TEXTS = ("text", "content", "value", "parts", "refusal", "input_text", "output_text")
"""Fields that hold the text of a part."""
_TEXT_KINDS = (None, "text", "input_text", "output_text", "refusal")
_THOUGHTS = ("thinking", "reasoning", "redacted_thinking")
_MEDIA = ("image", "audio", "video", "file", "document", "media", "blob", "inlinedata", "inline_data")
_CALL_KINDS = ("tool-call", "tool_call", "toolCall", "function_call", "functionCall", "tool_use")
_RESULT_KINDS = ("tool-result", "tool_result", "toolResult", "functionResponse", "function_response", "function_call_output")


def read_message(value: Any, spot: str) -> Message:
    """A message in OpenAI's form or near it. Raises UserError naming ``spot``, also where it says something and not where.

    Of a list of parts the texts are joined; where it holds anything but text, the list is kept as ``content`` with the rest.
    Calls and results of tools among the parts are read as such, and so are thoughts. A provider's own compaction that stands
    among messages as an item without a role is the only part of a user's message.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{spot} is not an object")
    if "role" not in value and compacted(value) is not None:
        value = {"role": "user", "content": [dict(value)]}
    role = value.get("role")
    if role is None and value.get("type") in (*_ROLES, "system", "user", "assistant", "tool"):  # LangChain's
        role = value["type"]
    if not isinstance(role, str):
        raise UserError(f"{spot}: 'role' must be text" + (", and it is missing" if role is None else ""))
    role = _ROLES.get(role, role)
    if role not in ("system", "user", "assistant", "tool"):
        raise UserError(f"{spot} has the role '{role}', which is none of system, user, assistant, tool")
    used = _where_said(value)
    content = value.get(used)
    calls = value.get("tool_calls")
    if calls is None and value.get("function_call") is not None:
        calls = [value["function_call"]]
    content, part_calls, about = _sorted_parts(content, spot)
    text, parts = content_of(content, spot)
    left = ("role", "content", "tool_calls", "function_call", *(() if used == "refusal" else (used,)))
    data = {**about, **{k: v for k, v in value.items() if k not in left and v is not None}}
    ids = data.get("tool_call_ids")
    if role == "tool" and isinstance(ids, list) and len(ids) == 1 and "tool_call_id" not in data:  # SWE-agent's
        data["tool_call_id"] = str(data.pop("tool_call_ids")[0])
    if parts is not None:
        data["content"] = parts
    if calls is not None or part_calls:
        data["tool_calls"] = calls_of([*_listed(calls or [], spot), *part_calls], spot)
    if not value.get("content") and value.get("content") != "" and not text and not parts and not data.get("tool_calls"):
        refuse_unknown(value, FIELDS, spot, "'content' nor 'tool_calls'")
    unread(data, FIELDS, "message")
    return Message(data.pop("role", role), text, plain(data))


def read_messages(value: Any, spot: str) -> list[Message]:
    """:func:`read_message`; where a message holds nothing but results of several tools, a message for each of them."""
    used = _where_said(value) if isinstance(value, Mapping) else ""
    parts = value.get(used) if used else None
    if not isinstance(parts, list) or len(parts) < 2 or not all(_kind(part) in _RESULT_KINDS for part in parts):
        return [read_message(value, spot)]
    return [read_message({**value, used: [part]}, f"{spot}: result {at}") for at, part in enumerate(parts)]


def _where_said(value: Mapping[str, Any]) -> str:
    """The field of a message that holds what it says."""
    content = value.get("content")
    empty = content is None or content in ("", [])
    return next((name for name in _SAID if value.get(name)), "content") if empty else "content"


def refuse_unknown(value: Mapping[str, Any], known: Collection[str], spot: str, wanted: str) -> None:
    """Raises UserError where ``value`` holds text or lists, but only in fields that are not ``known``: it is not empty."""
    odd = strange(value, known)
    if odd:
        raise UserError(f"{spot} has neither {wanted}, but {', '.join(map(repr, odd[:5]))}, which is not known here")


def _sorted_parts(content: Any, spot: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """A content without its calls, results and thoughts; the calls; and what else they say of the message."""
    parts = content if isinstance(content, list) else [content]
    calls: list[Any] = []
    results: list[Mapping[str, Any]] = []
    thoughts: list[str] = []
    rest: list[Any] = []
    for at, part in enumerate(parts):
        kind = _kind(part)
        if kind in _CALL_KINDS:
            calls.append(part.get("functionCall") or part.get("function_call") or part)
        elif kind in _RESULT_KINDS:
            results.append(part.get("functionResponse") or part.get("function_response") or part)
        elif kind in _THOUGHTS:
            thoughts += [
                text for name in (kind, *_TEXTS) if (text := _text_of(part.get(name), f"{spot}: part {at} of 'content'"))
            ][:1]
            rest.append(part)
        else:
            rest.append(part)
    about: dict[str, Any] = {"reasoning": "\n\n".join(thoughts)} if thoughts else {}
    if not results:
        return rest if calls else content, calls, about
    if len(results) > 1 or calls or rest:
        raise UserError(f"{spot} holds a result of a tool beside other parts: write a message of role tool for each result")
    (result,) = results
    name = next((name for name in ("result", "output", "response", *_TEXTS) if result.get(name) is not None), None)
    if name is None:
        refuse_unknown(result, _CALL_FIELDS, f"{spot}: the result of a tool", "'result' nor 'content'")
    said = None if name is None else result[name]
    key = next((result[name] for name in _CALL_IDS if isinstance(result.get(name), str)), None)
    named = next((result[name] for name in _CALL_NAMES if isinstance(result.get(name), str)), None)
    about |= {"role": "tool", **({"tool_call_id": key} if key else {}), **({"name": named} if named else {})}
    if isinstance(said, Mapping) and not {"text", "value"} & said.keys():
        said = as_text(said)
    return said, [], about


def _kind(part: Any) -> str | None:
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if part.get("thought") is True:  # Gemini's
        return "thinking"
    named = ("functionCall", "function_call", "functionResponse", "function_response") if kind is None else ()
    return kind if isinstance(kind, str) else next((name for name in named if isinstance(part.get(name), Mapping)), None)


def content_of(content: Any, spot: str) -> tuple[str, list[Any] | None]:
    """The text of a content (text, null, one part or a list of parts), and the parts where one of them is not text.

    Raises UserError on a part of text without text, and on one of no kind that says nothing known."""
    if content is None or isinstance(content, str):
        return content or "", None
    parts = content if isinstance(content, list) else [content]
    read = [_part(part, f"{spot}: part {at} of 'content'", spot) for at, part in enumerate(parts)]
    return "".join(text for text, _ in read), None if all(only for _, only in read) else parts


def _part(part: Any, spot: str, whole: str) -> tuple[str, bool]:
    """The text of one part, and whether that is all of it."""
    if isinstance(part, str):
        return part, True
    if not isinstance(part, Mapping):
        raise UserError(f"{whole} has a 'content' that is neither text nor a list of parts")
    native, kind = compacted(part), _kind(part)
    if native is not None:
        return native, False
    if kind in _THOUGHTS:
        return "", False
    name = next((name for name in _TEXTS if part.get(name) is not None), None)
    text_only = kind in _TEXT_KINDS
    if name is None:
        media = [key for key in part if any(word in str(key).lower() for word in _MEDIA)]
        if text_only and not (kind is None and media):
            what = f"of type '{kind}'" if kind else "of no type"
            raise UserError(f"{spot} is {what} and holds no text: its fields are {', '.join(map(repr, part)) or 'none'}")
        if not any(word in str(kind).lower() for word in _MEDIA) and not media:
            unread({str(kind): dict(part)}, (), "part")
        return "", False
    text = _text_of(part[name], whole)
    if text_only:
        unread(part, ("type", name, "id", "annotations", "cache_control", "logprobs"), "part")
    return text, text_only


def _text_of(value: Any, spot: str) -> str:
    """Text, or that of what holds it."""
    return content_of(value, spot)[0]


_COMPACTED = ("compaction", "compaction_summary", "openai_compact", "anthropic_compact")


def compacted(part: Mapping[str, Any]) -> str | None:
    """The text of a provider's own (native) compaction, "" where it is encrypted; None where ``part`` is not a compaction.

    Known are the items of OpenAI's Responses interface and of what speaks it, Anthropic's blocks, and both as inspect keeps them.
    """
    data = part.get("data") if part.get("type") == "data" else None
    about = data.get("compaction_metadata") if isinstance(data, Mapping) else part
    if not isinstance(about, Mapping) or about.get("type") not in _COMPACTED:
        return None
    text = about.get("content")
    return text if isinstance(text, str) else ""


def opaque(data: Mapping[str, Any]) -> bool:
    """Whether the data of a message hold a provider's own compaction that cannot be read, so survival is unknown."""
    parts = data.get("content")
    return isinstance(parts, list) and any(isinstance(part, Mapping) and compacted(part) == "" for part in parts)


_CALL_NAMES = ("name", "tool_name", "toolName", "function_name", "tool")
_CALL_ARGUMENTS = ("arguments", "args", "input", "parameters", "kwargs", "params")
_CALL_IDS = ("id", "tool_call_id", "toolCallId", "call_id", "tool_use_id")
_CALL_FIELDS = frozenset(
    (*_CALL_NAMES, *_CALL_ARGUMENTS, *_CALL_IDS, "type", "function", "index", "parse_error", "status", "item", "block")
)


def calls_of(calls: Any, spot: str) -> list[Any]:
    """Tool calls in OpenAI's form; those that some tools write flat, or as JSON text, are brought into it.

    Raises UserError where they are none, and on a call that names no function under a name known here."""
    return [_call(call, f"{spot}: tool call {at}") for at, call in enumerate(_listed(calls, spot))]


def _listed(calls: Any, spot: str) -> list[Any]:
    if isinstance(calls, str):
        try:
            calls = json.loads(calls)
        except (ValueError, RecursionError):
            raise UserError(f"{spot}: 'tool_calls' is text that is not JSON") from None
    if isinstance(calls, Mapping):
        calls = [calls]
    if not isinstance(calls, list):
        raise UserError(f"{spot}: 'tool_calls' must be a list")
    return calls


def _call(call: Any, spot: str) -> dict[str, Any]:
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError):
            raise UserError(f"{spot} is text that is not JSON") from None
    if not isinstance(call, Mapping):
        raise UserError(f"{spot} is not an object")
    function = call.get("function")
    if isinstance(function, str):  # its name, or all of it as JSON text
        with suppress(ValueError, RecursionError):
            function = json.loads(function)
        function = function if isinstance(function, Mapping) else {"name": call["function"]}
    whole = isinstance(function, Mapping)
    about = {**{k: v for k, v in call.items() if k != "function"}, **function} if isinstance(function, Mapping) else call
    name = next((key for key in _CALL_NAMES if isinstance(about.get(key), str)), None)
    if name is None:  # a model's own call without a name stays what it is
        refuse_unknown(about, _CALL_FIELDS, spot, "'function' nor 'name'")
        return dict(call)
    arguments = next((key for key in _CALL_ARGUMENTS if about.get(key) is not None), None)
    unread(about, _CALL_FIELDS, "tool call")
    if (
        whole
        and call.get("function") is function
        and name == "name"
        and arguments in (None, "arguments")
        and isinstance(about.get("arguments", ""), str)
    ):
        return dict(call)
    key = next((key for key in _CALL_IDS if isinstance(call.get(key), str)), None)
    taken = {"function", "type", name, arguments, key}
    rest = {k: v for k, v in call.items() if k not in taken and v is not None}
    entry = {"name": about[name], "arguments": as_text({} if arguments is None else about[arguments])}
    kind = call.get("type") if call.get("type") not in (*_CALL_KINDS, None) else "function"
    return {**({} if key is None else {"id": call[key]}), "type": kind, **rest, "function": entry}


def unanswered(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The calls that have an id and that no later message answers: ``{"id", "name"}`` each; those that a provider made itself may
    come without a result."""
    waiting: dict[str, str] = {}
    for message in messages:
        waiting.pop(str(message.data.get("tool_call_id")), None)
        calls = message.data.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping) and call.get("id") and "block" not in call and call.get("item") not in PROVIDERS_OWN:
                waiting[str(call["id"])] = str(_function(call)[0])
    return [{"id": key, "name": name} for key, name in waiting.items()]


PROVIDERS_OWN = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")
"""Items of calls that a provider makes itself: they need no result."""


# --- tool calls -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a message. Its span is half-open, and of a call that is written into the text only."""

    name: str
    arguments: Mapping[str, Any]
    char_span: tuple[int, int] = (0, 0)
    error: str = ""
    """Why the call is invalid, one clause; "" where it is valid."""


def parse_tool_calls(text: str) -> list[ToolCall]:
    """Tool calls of the form ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen), in order.

    A malformed call comes back with ``error``; nothing is raised.
    """
    calls, start = [], text.find(CALL)
    while start >= 0:
        name, arguments, end, error = _parse_call(text, start + len(CALL))
        calls.append(ToolCall(name, arguments, (start, end), error))
        start = text.find(CALL, end)
    return calls


def _no_object(name: str, arguments: Any) -> str:
    """What is wrong with arguments that are not an object."""
    what = "text that is not JSON, not an object" if isinstance(arguments, str) else "not an object"
    return f"the arguments of '{name}' are {what}"


def _parse_call(text: str, start: int) -> tuple[str, dict[str, Any], int, str]:
    body = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        call, stop = json.JSONDecoder().raw_decode(text, body)
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        shut = text.find(CALL_END, start)
        end = len(text) if shut < 0 else shut + len(CALL_END)
        return "", {}, end, f"the call is not JSON ({str(error).split(':')[0]})"
    stop += len(text[stop:]) - len(text[stop:].lstrip())
    shut = text.find(CALL_END, stop)
    end = len(text) if shut < 0 else shut + len(CALL_END)
    name = call.get("name") if isinstance(call, dict) else None
    arguments = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return "", {}, end, "the call has no name"
    if not isinstance(arguments, dict):
        return name, {}, end, _no_object(name, arguments)
    if shut < 0:
        return name, arguments, end, "the call is not closed"
    if shut != stop:
        return name, arguments, end, "text follows the call's JSON"
    return name, arguments, end, ""


def _read_call(call: Any) -> ToolCall:
    """A call in OpenAI's form, or one that gives name and arguments flat."""
    name, arguments = _function(call)
    name = name if isinstance(name, str) else ""
    if not name:
        return ToolCall("", {}, error="the call has no name")
    if not isinstance(arguments, Mapping):
        return ToolCall(name, {}, error=_no_object(name, arguments))
    return ToolCall(name, arguments)


def _function(call: Any) -> tuple[Any, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    with suppress(ValueError, RecursionError):
        arguments = json.loads(arguments.strip() or "{}") if isinstance(arguments, str) else arguments
    return function.get("name", ""), {} if arguments is None else arguments


def write_call(name: Any, arguments: Any, lines: bool = False) -> str:
    """A call as models write it into their text; with ``lines`` its JSON stands on a line of its own,
    as Hermes and Qwen have it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{CALL}\n{body}\n{CALL_END}" if lines else f"{CALL}{body}{CALL_END}"


def named_calls(text: str) -> str:
    """``text`` with each call that is written into it as ``name(arguments)``,
    as :meth:`Message.spoken` has those alongside it."""
    for call in reversed(parse_tool_calls(text)):
        if not call.error:
            start, end = call.char_span
            text = f"{text[:start]}{call.name}({as_text(dict(call.arguments))}){text[end:]}"
    return text


def joined_reply(text: str, calls: Sequence[Any]) -> str:
    """The text of a reply that :func:`split_reply` takes apart into ``text`` and ``calls`` (OpenAI's form)."""
    written = [write_call(*_function(call), lines=True) for call in calls]
    return "\n".join([text, *written] if text else written)


def split_reply(text: str) -> tuple[str, list[dict[str, Any]]]:
    """A reply's text around its tool calls, and the calls as OpenAI writes them (``id`` is the place: ``call_0``).

    A malformed call stays text.
    """
    spoken: list[str] = []
    calls: list[dict[str, Any]] = []
    at = 0
    for call in parse_tool_calls(text):
        if call.error:
            continue
        spoken.append(text[at : call.char_span[0]])
        at = call.char_span[1]
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    spoken.append(text[at:])
    return (spoken[0].rstrip() + "".join(spoken[1:]).strip() if calls else text), calls


_SPOKEN = re.compile(r"^([\w.-]+)\((\{.*\})\)$", re.DOTALL)


def unspoken(text: str) -> str:
    """What :meth:`Message.spoken` says of a reply with calls, as a reply in which they are written; any other text as it is."""
    lines, calls = text.split("\n"), list[dict[str, Any]]()
    while lines and (match := _SPOKEN.match(lines[-1])) is not None:
        try:
            json.loads(match[2])
        except ValueError:
            break
        calls.insert(0, {"type": "function", "function": {"name": match[1], "arguments": match[2]}})
        lines.pop()
    return joined_reply("\n".join(lines), calls) if calls else text


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """Text as it is; anything else as canonical JSON."""
    return value if isinstance(value, str) else canonical_json(plain(value))


def plain(value: Any) -> Any:
    """``value`` as valid JSON: non-finite numbers become text ("nan"), keys become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def number(value: Any) -> float | None:
    """A finite number, or None: the value of a score."""
    if isinstance(value, (bool, int, float)):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return None
