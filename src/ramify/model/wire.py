"""The wire format of OpenAI-compatible servers: messages and tools out, choices in.

The readers take any JSON value and return its content or raise ProviderError; nothing else.

Whose fault a bad reply is, is decided here, for every server and every way of asking (:func:`reply_of`, :func:`stop_of`).
What the model itself said counts, however poor it is: nothing at all, reasoning alone, a refusal, a call whose arguments are no
JSON. A ProviderError is what leaves unknown what the model would have said: a body of another shape, a reply that was withheld,
an ending that no table knows.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.model.http import ProviderError
from ramify.model.protocol import Completion
from ramify.trace.message import Message, content_of, parse_tool_calls

_ENDED = frozenset(
    (
        *(
            "stop",
            "eos",
            "eos_token",
            "end_turn",
            "stop_sequence",
            "stop_token",
            "complete",
            "completed",
            "end",
            "done",
            "refusal",
        ),
        *("tool_calls", "tool_call", "tool_use", "function_call", "function_calls", "malformed_function_call"),
    )
)
_CUT = frozenset(("length", "max_tokens", "max_length", "max_output_tokens", "model_length"))
_WITHHELD = frozenset(("content_filter", "safety", "recitation", "sensitive", "blocklist", "prohibited_content"))
"""Values of ``finish_reason``, in small letters, by what they mean."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message that hold the reasoning before its text."""
SPOKEN = ("text", "thinking", "reasoning")
"""Types of a content's parts that are the reply's text, or its reasoning."""
RAW = "_raw"
"""The only argument of a call that is sent again although its arguments were no JSON object: the text that they were."""
_ABOVE = 1e-4
"""Log-probs this far above 0 are a server's rounding."""


def request_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a request takes them.

    Tool calls of a reply (``data["tool_calls"]``, or written into its text) go as calls where tool messages answer them, each
    answer with the id of its call, as the protocol demands; elsewhere they go as the text they are in. A tool message that
    answers no call goes as a user's. One that a client sent, and that nobody changed since, goes as it was sent.

    Servers refuse a history with arguments that are no JSON object for ever, so such a call goes with its text as :data:`RAW`.
    """
    sent: list[dict[str, Any]] = []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if message.unchanged:
            named = message.sent.get("tool_call_id")
            waiting = [call for call in waiting if call != named] if message.role == "tool" else []
            sent.append(_with_valid_calls(message.sent))
            continue
        if message.role == "tool" and waiting:
            named = message.data.get("tool_call_id")
            call = named if named in waiting else waiting[0]
            waiting.remove(call)
            sent.append({"role": "tool", "tool_call_id": call, "content": clean(message.text)})
            continue
        sent += _unanswered(waiting)
        waiting = []
        following = messages[at + 1].role if at + 1 < len(messages) else ""
        calls = _calls_of(message) if message.role == "assistant" and following == "tool" else []
        if calls:
            text = message.text[: min([len(message.text), *(call.char_span[0] for call in parse_tool_calls(message.text))])]
            sent.append({"role": "assistant", "content": clean(text) or None, "tool_calls": calls})
            waiting = [call["id"] for call in calls]
        else:
            sent.append({"role": "user" if message.role == "tool" else message.role, "content": clean(message.text)})
    return sent + _unanswered(waiting)


def _unanswered(waiting: Iterable[str]) -> list[dict[str, Any]]:
    """Servers refuse a chat in which a call has no answer; an environment answers several calls of one reply with one message."""
    return [{"role": "tool", "tool_call_id": call, "content": "(answered above)"} for call in waiting]


def _with_valid_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """``message``, with arguments that a server takes in each of its calls."""
    calls = message.get("tool_calls")
    return dict(message) | ({"tool_calls": [_valid(call) for call in calls]} if isinstance(calls, list) else {})


def _valid(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    given = function["arguments"]
    arguments = given if is_object(given) else "{}" if given.strip() in ("", "null") else json.dumps({RAW: given})
    return {**call, "function": {**function, "name": function.get("name") or "unnamed", "arguments": arguments}}


def is_object(text: str) -> bool:
    """Whether ``text`` is a JSON object."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _calls_of(message: Message) -> list[dict[str, Any]]:
    calls = _tool_calls(message.data.get("tool_calls"))
    if calls:
        return [_valid(call) for call in calls]
    written = [call for call in parse_tool_calls(message.text) if not call.error]
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
        for i, call in enumerate(written)
    ]


def request_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as a request takes them, from OpenAI's form, the bare function inside it, or MCP's (``inputSchema``)."""
    sent = []
    for tool in tools:
        if "function" in tool:
            sent.append(dict(tool))
            continue
        schema = tool.get("parameters", tool.get("inputSchema", {"type": "object", "properties": {}}))
        function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": schema}
        sent.append({"type": "function", "function": function})
    return sent


def only_choice(answer: Mapping[str, Any], host: str) -> dict[str, Any]:
    """The one choice of an answer. Raises ProviderError."""
    choices = choices_of(answer, host)
    if not choices:
        raise ProviderError("empty", f"{host} answers with no choice")
    return choices[0]


def choices_of(answer: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """The choices of an answer, or of a piece of one. Raises ProviderError."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise ProviderError("shape", f"{host} answers without a list of choices")
    if not all(isinstance(choice, dict) for choice in choices):
        raise ProviderError("shape", f"{host} answers with a choice that is not an object")
    return choices


def who_answers(answer: Mapping[str, Any]) -> str:
    """The model that an answer names, at most 200 characters; "" where it names none."""
    who = answer.get("model")
    return clean(who[:200]) if isinstance(who, str) else ""


def same_name(first: str, other: str) -> bool:
    """Whether two answers name one model: the last part of its path, in any letters."""
    first, other = (name.rstrip("/").lower().rpartition("/")[2] for name in (first, other))
    return first == other


def withheld(host: str) -> ProviderError:
    """The failure of a reply that its provider did not let through, or not to its end."""
    return ProviderError("filtered", f"{host} withheld a reply (content_filter)")


def reason_of(choice: Mapping[str, Any]) -> str:
    """Why a choice ended, in small letters; "" where it does not say."""
    reason = choice.get("finish_reason")
    return "" if reason is None else reason.strip().lower() if isinstance(reason, str) else type(reason).__name__


def is_withheld(choice: Mapping[str, Any]) -> bool:
    """Whether the provider did not let a reply through."""
    return reason_of(choice) in _WITHHELD


def stop_of(choice: Mapping[str, Any], host: str) -> str:
    """Why a choice that is there to its end ended, as a :class:`Completion` says it: one that does not say it ended by itself.
    Raises ProviderError."""
    reason = reason_of(choice)
    if reason in _CUT:
        return "length"
    if reason in _WITHHELD:
        raise withheld(host)
    if reason and reason not in _ENDED:
        raise ProviderError(
            "shape", f"{host} gives the finish_reason '{_short(reason)}', so whether the reply is whole is unknown"
        )
    return "stop" if isinstance(choice.get("stop_reason"), str) else "eos"


def reply_of(choice: Mapping[str, Any], usage: Any, host: str) -> Completion:
    """The reply that a whole choice of a chat holds: text, and ``data``: tool_calls (OpenAI's form), reasoning, usage,
    content (its parts where some are not text). Raises ProviderError."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ProviderError("shape", f"{host} answers with a choice without a message")
    stop = stop_of(choice, host)
    text, thought, parts = said(message, host)
    text = clean(text)
    reason = choice.get("stop_reason")
    if stop == "stop" and isinstance(reason, str) and not text.endswith(clean(reason)):
        text += clean(reason)  # vLLM names the stop text that it cut off
    data: dict[str, Any] = {}
    if calls := calls_in(message):
        data["tool_calls"] = calls
    if thought:
        data["reasoning"] = clean(thought)
    if parts:
        data["content"] = parts
    data |= usage_of({"usage": usage})
    return Completion(text, stop, data=data, cached=cached_in(data))


def said(message: Mapping[str, Any], host: str) -> tuple[str, str, list[Any] | None]:
    """The text of a message, or of a piece of one, its reasoning, and its parts where some are not text. A refusal is text.
    Raises ProviderError."""
    content = message.get("content", message.get("text"))
    thought = next((spoken for name in THOUGHTS if isinstance(spoken := message.get(name), str) and spoken), "")
    told = content
    if isinstance(content, list):
        thoughts = [part for part in content if _is_thought(part)]
        thought = thought or "".join(map(_thought, thoughts))
        content = [part for part in content if not _is_thought(part)] if thoughts else content
    try:
        text, parts = content_of(content, "content")
    except UserError:
        raise ProviderError("shape", f"{host} answers with content that is not text") from None
    refusal = message.get("refusal")
    return text or (refusal if isinstance(refusal, str) else ""), thought, told if content is not told else parts


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in SPOKEN[1:]


def _thought(part: Any) -> str:
    """The words of a part that holds reasoning: text, or parts of text."""
    if isinstance(part, list):
        return "".join(map(_thought, part))
    if not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    return next((_thought(part[name]) for name in ("text", *THOUGHTS) if part.get(name)), "")


_SAID = frozenset(
    (
        "index", "message", "delta", "text", "finish_reason", "stop_reason", "role", "content", *THOUGHTS, "tool_calls",
    )
)  # fmt: skip


def extra_of(choice: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a choice and its message (or delta) that a sample lacks; calls that are not functions' are ``other_calls``."""
    if choice.keys() <= _SAID and message.keys() <= _SAID and "tool_calls" not in message:
        return {}  # nearly every piece of a stream
    extra = {
        name: value
        for part in (choice, message)
        for name, value in part.items()
        if name not in _SAID and value not in (None, [], {}, "")
    }
    calls = message.get("tool_calls")
    others = [call for call in calls if not calls_function(call)] if isinstance(calls, list) else []
    return extra | ({"other_calls": others} if others else {})


def calls_function(call: Any) -> bool:
    """Whether a tool call, or a piece of one, is of a function, as far as it says."""
    return isinstance(call, dict) and call.get("type") in (None, "", "function") and "custom" not in call


def merge(into: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a piece of a streamed object: texts and lists are appended, objects merged, anything else replaced."""
    for name, value in piece.items():
        there = into.get(name)
        if isinstance(there, dict) and isinstance(value, dict):
            merge(there, value)
        elif isinstance(there, str) and isinstance(value, str) and name not in ("id", "type", "name"):
            into[name] = there + value
        elif isinstance(there, list) and isinstance(value, list):
            there.extend(value)
        elif value is not None:
            into[name] = copy.deepcopy(value) if isinstance(value, (dict, list)) else value


def usage_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """``{"usage": {"prompt_tokens", "completion_tokens", "cached_tokens"}}`` as far as the server sends it, else nothing."""
    usage = answer.get("usage")
    counts = dict(usage) if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    counts["cached_tokens"] = details.get("cached_tokens") if isinstance(details, dict) else None
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    kept = {k: counts[k] for k in names if type(counts.get(k)) is int and 0 <= counts[k] < 1 << 53}
    return {"usage": kept} if kept else {}


def cached_in(data: Mapping[str, Any]) -> int | None:
    """Tokens of the prompt that a server says it had computed before; None where it does not say."""
    cached: int | None = data.get("usage", {}).get("cached_tokens")
    return cached


def calls_in(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of functions of a message in OpenAI's form, what is not of that form left out. The arguments stay the model's own
    words; a call without a name is kept, so that the model hears of it."""
    calls, old = message.get("tool_calls"), message.get("function_call")
    return _tool_calls(calls) if calls or not isinstance(old, dict) else _tool_calls([{"function": old}])


def _tool_calls(value: Any) -> list[dict[str, Any]]:
    """Rebuilt, so that nothing else a server says is stored."""
    calls = []
    for at, call in enumerate(value if isinstance(value, list) else ()):
        if not calls_function(call):
            continue
        name, arguments = function_of(call)
        if not name and not arguments:
            continue
        id = call.get("id")
        function = {"name": clean(name), "arguments": clean(arguments)}
        calls.append({"id": clean(id) if isinstance(id, str) and id else f"call_{at}", "type": "function", "function": function})
    return calls


def function_of(call: Mapping[str, Any]) -> tuple[str, str]:
    """The name that a call, or a piece of one, says, and its arguments as text; "" for what it does not say.

    Servers write the function as an object, flat beside the id, or as JSON text, and the arguments as text or as an object.
    """
    function = call.get("function", call)
    if isinstance(function, str):
        try:
            function = json.loads(function)
        except (ValueError, RecursionError):
            function = {"name": function, "arguments": call.get("arguments")}
    if not isinstance(function, Mapping):
        return "", ""
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(arguments, str):
        try:
            arguments = "" if arguments is None else json.dumps(arguments)
        except (ValueError, TypeError, RecursionError):
            arguments = ""
    return name if isinstance(name, str) else "", arguments


def choice_ids(choice: Mapping[str, Any], pieces: Mapping[str, int] | None, limit: int, host: str) -> list[int] | None:
    """Ids of the sampled tokens: ``token_ids``, ids or ``token_id:N`` in the log-probs, or texts that ``pieces`` maps one to one.

    None where the server gives none of these. Raises ProviderError on ids that are not ids below ``limit``.
    """
    ids = choice.get("token_ids")
    logs = choice.get("logprobs")
    if ids is None and isinstance(logs, dict):
        content, names = logs.get("content"), logs.get("tokens")
        if isinstance(content, list) and content and all(isinstance(entry, dict) and "id" in entry for entry in content):
            ids = [entry["id"] for entry in content]
        elif isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            if all(_token_id(name, None) is not None for name in names):
                ids = [_token_id(name, None) for name in names]
            elif pieces is not None:
                ids = [pieces.get(name, -1) for name in names]
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ProviderError("tokens", f"{host} gives token ids that are no list of whole numbers")
    strays = [token for token in ids if not 0 <= token < limit]
    if strays:
        raise ProviderError("tokens", f"{host} gives a token id that is outside the tokenizer's 0 to {limit - 1}")
    return ids


def choice_logprobs(choice: Mapping[str, Any], length: int, host: str) -> np.ndarray | None:
    """float32 (T,): log-probs of the sampled tokens; None where the server gives none. Raises ProviderError on wrong ones."""
    logs = choice.get("logprobs")
    if not isinstance(logs, dict):
        return None
    content = logs.get("content")
    values = (
        [entry.get("logprob") if isinstance(entry, dict) else None for entry in content] if isinstance(content, list) else None
    )
    values = logs.get("token_logprobs") if values is None else values
    return None if values is None else checked_logprobs(values, length, host)


def prompt_logprobs(choice: Mapping[str, Any], tokens: Sequence[int], host: str) -> np.ndarray | None:
    """float32 (T,): log-probs of given tokens, 0 for the first, from ``prompt_logprobs`` or an echo.
    None where there are none."""
    entries = choice.get("prompt_logprobs")
    if isinstance(entries, list):
        if len(entries) != len(tokens):
            raise ProviderError("logprobs", f"{host} scores {len(entries)} of {len(tokens)} given tokens")
        values: Any = []
        for token, entry in zip(tokens[1:], entries[1:], strict=True):
            item = entry.get(str(int(token))) if isinstance(entry, dict) else None
            values.append(item.get("logprob") if isinstance(item, dict) else item)
    else:
        logs = choice.get("logprobs")
        values = logs.get("token_logprobs") if isinstance(logs, dict) else None
        if not isinstance(values, list) or len(values) < len(tokens) or (values and values[0] is not None):
            return None
        values = values[1 : len(tokens)]
    return np.concatenate([np.zeros(1, np.float32), checked_logprobs(values, len(tokens) - 1, host)])


def prompt_alternatives(
    choice: Mapping[str, Any], length: int, top_k: int, limit: int, host: str
) -> tuple[np.ndarray, np.ndarray]:
    """int32 and float32 (T, k): the likeliest tokens at each given token's position and their log-probs, likeliest first; 0 for
    the first. Raises ProviderError where fewer are named at some position (of kind ``alternatives``) or an entry is malformed."""
    tokens, logprobs = np.zeros((length, top_k), np.int32), np.zeros((length, top_k), np.float32)
    entries = choice.get("prompt_logprobs")
    for at, entry in enumerate(entries[1:length] if isinstance(entries, list) else (), 1):
        named = entry if isinstance(entry, dict) else {}
        if len(named) < top_k:
            raise ProviderError("alternatives", f"{host} names {len(named)} of {top_k} likeliest tokens", final=True)
        if not all(name.isdecimal() and len(name) < 12 and int(name) < limit for name in named):
            raise ProviderError("tokens", f"{host} gives a token id that is outside the tokenizer's 0 to {limit - 1}")
        values = [item.get("logprob") if isinstance(item, dict) else item for item in named.values()]
        scores = checked_logprobs(values, len(values), host)
        ids = np.array([int(name) for name in named])
        best = np.lexsort((ids, -scores))[:top_k]
        tokens[at], logprobs[at] = ids[best], scores[best]
    return tokens, logprobs


def next_alternatives(choice: Mapping[str, Any], pieces: Mapping[str, int] | None, limit: int, host: str) -> dict[int, float]:
    """Likeliest tokens named beside the first sampled one, with their probabilities, likeliest first: entries with ids
    (llama.cpp), ``token_id:N`` (vLLM), or texts that ``pieces`` maps one to one; empty where there are none of these.
    Raises ProviderError on entries that are malformed."""
    logs = choice.get("logprobs")
    logs = logs if isinstance(logs, dict) else {}
    content, tops = logs.get("content"), logs.get("top_logprobs")
    first = content[0] if isinstance(content, list) and content and isinstance(content[0], dict) else {}
    listed = first.get("top_logprobs")
    named: dict[Any, Any] = {}
    if isinstance(listed, list):
        named = {entry.get("id"): entry.get("logprob") for entry in listed if isinstance(entry, dict)}
    elif isinstance(tops, list) and tops and isinstance(tops[0], dict):
        named = {_token_id(name, pieces): value for name, value in tops[0].items()}
    named.pop(None, None)
    if not all(type(token) is int and 0 <= token < limit for token in named):
        raise ProviderError("tokens", f"{host} gives a token id that is outside the tokenizer's 0 to {limit - 1}")
    scores = checked_logprobs(list(named.values()), len(named), host)
    pairs = sorted(zip(named, scores.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return {token: math.exp(value) for token, value in pairs}


def _token_id(name: str, pieces: Mapping[str, int] | None) -> int | None:
    """The id that a server's name of a token stands for."""
    if name.startswith("token_id:") and name[9:].isdecimal() and len(name) < 30:
        return int(name[9:])
    return None if pieces is None else pieces.get(name)


def checked_logprobs(values: Any, length: int, host: str) -> np.ndarray:
    """float32 (T,) of a JSON list of numbers. Raises ProviderError on another length,
    a value that is none, not finite or above 0."""
    if not isinstance(values, list) or len(values) != length:
        count = len(values) if isinstance(values, list) else "no list of"
        raise ProviderError("logprobs", f"{host} gives {count} log-probs for {length} tokens")
    if not all(type(value) in (int, float) for value in values):
        raise ProviderError("logprobs", f"{host} gives a log-prob that is not a number")
    if not all(math.isfinite(v) if isinstance(v, float) else abs(v) < 1 << 53 for v in values):
        raise ProviderError("logprobs", f"{host} gives a log-prob that is not finite")
    array = np.array(values, np.float64)
    if (array > _ABOVE).any():
        raise ProviderError("logprobs", f"{host} gives a log-prob above 0")
    return np.minimum(array, 0).clip(-1e30).astype(np.float32)


def clean(text: str) -> str:
    """``text`` with lone surrogates, which JSON can spell and UTF-8 cannot, replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else type(value).__name__
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= 60 else text[:60] + "..."
