"""Calls that OpenAI's client can make, and an upstream on loopback that takes them all,
keeps what arrives and answers as such servers do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import MODEL, FaultyServer, http

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SYSTEM: Any = {"role": "system", "content": "Be brief."}
USER: Any = {"role": "user", "content": "What is on the desk?"}
MESSAGES: list[Any] = [SYSTEM, USER]
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "desk", "strict": True, "schema": {"type": "object"}}}
TOOL: Any = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
STRICT: Any = {"type": "function", "function": {"name": "take", "strict": True, "parameters": {"type": "object"}}}
CUSTOM: Any = {"type": "custom", "custom": {"name": "shell", "description": "Any text.", "format": {"type": "text"}}}
NAMED: Any = {"type": "function", "function": {"name": "look"}}
MADE: Any = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"desk"}'}}
AFTER_CALL: list[Any] = [
    SYSTEM,
    USER,
    {"role": "assistant", "content": None, "tool_calls": [MADE], "reasoning_content": "I look."},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a pen"}]},
]
IMAGE: Any = {
    "role": "user",
    "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}],
}
AUDIO: Any = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]}
FILE: Any = {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}, {"type": "text", "text": "Sum it up."}]}
CACHED: Any = {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}
MULTI: Any = [{"role": "developer", "content": "Be brief."}, {**USER, "name": "ann"}]

#: name -> (route, what the client is given beside the model)
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("chat", {"messages": MESSAGES}),
    "stream": ("chat", {"messages": MESSAGES, "stream": True}),
    "stream with usage": ("chat", {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}),
    "sampling": ("chat", {"messages": MESSAGES, "temperature": 0.3, "top_p": 0.9, "max_tokens": 9, "stop": ["\n"], "seed": 7}),
    "max_completion_tokens": ("chat", {"messages": MESSAGES, "max_completion_tokens": 50}),
    "stop text": ("chat", {"messages": MESSAGES, "stop": "."}),
    "n": ("chat", {"messages": MESSAGES, "n": 3}),
    "n, streamed": ("chat", {"messages": MESSAGES, "n": 2, "stream": True}),
    "penalties": ("chat", {"messages": MESSAGES, "presence_penalty": 0.5, "frequency_penalty": -0.5}),
    "logit_bias": ("chat", {"messages": MESSAGES, "logit_bias": {"50256": -100, "11": 5}}),
    "logprobs": ("chat", {"messages": MESSAGES, "logprobs": True}),
    "top_logprobs": ("chat", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3}),
    "logprobs, streamed": ("chat", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "stream": True}),
    "reasoning_effort": ("chat", {"messages": MESSAGES, "reasoning_effort": "low"}),
    "reasoning, streamed": ("chat", {"messages": MESSAGES, "reasoning_effort": "high", "stream": True}),
    "verbosity": ("chat", {"messages": MESSAGES, "verbosity": "low"}),
    "json_object": ("chat", {"messages": MESSAGES, "response_format": {"type": "json_object"}}),
    "json_schema": ("chat", {"messages": MESSAGES, "response_format": SCHEMA}),
    "tools": ("chat", {"messages": MESSAGES, "tools": [TOOL]}),
    "strict tool, required": ("chat", {"messages": MESSAGES, "tools": [TOOL, STRICT], "tool_choice": "required"}),
    "named tool": ("chat", {"messages": MESSAGES, "tools": [TOOL], "tool_choice": NAMED}),
    "tools, streamed": ("chat", {"messages": MESSAGES, "tools": [TOOL], "stream": True, "parallel_tool_calls": False}),
    "parallel_tool_calls": ("chat", {"messages": MESSAGES, "tools": [TOOL], "parallel_tool_calls": True}),
    "custom tool": ("chat", {"messages": MESSAGES, "tools": [CUSTOM]}),
    "functions": ("chat", {"messages": MESSAGES, "functions": [TOOL["function"]], "function_call": "auto"}),
    "answered call": ("chat", {"messages": AFTER_CALL, "tools": [TOOL]}),
    "image": ("chat", {"messages": [SYSTEM, IMAGE]}),
    "image, streamed": ("chat", {"messages": [SYSTEM, IMAGE], "stream": True}),
    "file": ("chat", {"messages": [SYSTEM, FILE]}),
    "audio in": ("chat", {"messages": [SYSTEM, AUDIO]}),
    "audio out": ("chat", {"messages": MESSAGES, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}),
    "parts with cache_control": ("chat", {"messages": [CACHED, USER]}),
    "developer, name": ("chat", {"messages": MULTI}),
    "user, metadata, store": ("chat", {"messages": MESSAGES, "user": "ann", "metadata": {"ticket": "7"}, "store": True}),
    "service_tier, cache key": (
        "chat",
        {"messages": MESSAGES, "service_tier": "flex", "prompt_cache_key": "k", "safety_identifier": "s"},
    ),
    "prediction": ("chat", {"messages": MESSAGES, "prediction": {"type": "content", "content": "A pen."}}),
    "web search": ("chat", {"messages": MESSAGES, "web_search_options": {"search_context_size": "low"}}),
    "vLLM's fields": (
        "chat",
        {
            "messages": MESSAGES,
            "extra_body": {
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "min_tokens": 2,
                "ignore_eos": True,
                "chat_template_kwargs": {"enable_thinking": False},
                "stop_token_ids": [2],
            },
        },
    ),
    "guided": (
        "chat",
        {"messages": MESSAGES, "extra_body": {"structured_outputs": {"choice": ["a", "b"]}, "guided_regex": "a|b"}},
    ),
    "prefilled reply": (
        "chat",
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": "A "}],
            "extra_body": {"continue_final_message": True, "add_generation_prompt": False},
        },
    ),
    "unknown fields": (
        "chat",
        {"messages": [SYSTEM, {**USER, "odd": {"x": [1, None]}}], "extra_body": {"some_new_field": {"a": [1, None, 0.1]}}},
    ),
    "refused by the model": ("chat", {"messages": MESSAGES, "extra_body": {"say": "refusal"}}),
    "withheld": ("chat", {"messages": MESSAGES, "extra_body": {"say": "filter"}}),
    "content parts out": ("chat", {"messages": MESSAGES, "extra_body": {"say": "parts"}}),
    "citations": ("chat", {"messages": MESSAGES, "extra_body": {"say": "annotations"}}),
    "completion": ("completions", {"prompt": "Once upon"}),
    "completion, streamed": ("completions", {"prompt": "Once upon", "stream": True, "stream_options": {"include_usage": True}}),
    "prompts": ("completions", {"prompt": ["Once", "Twice"], "n": 2, "max_tokens": 4}),
    "token prompt": ("completions", {"prompt": [5, 6, 7]}),
    "token prompts, streamed": ("completions", {"prompt": [[5, 6], [7]], "stream": True}),
    "echo, logprobs": ("completions", {"prompt": "Once upon", "echo": True, "logprobs": 2, "max_tokens": 3}),
    "suffix, best_of": (
        "completions",
        {"prompt": "Once", "suffix": " end", "best_of": 2, "presence_penalty": 0.2, "logit_bias": {"5": 1}},
    ),
}

_TOP = [{"token": "A", "logprob": -0.25, "bytes": [65]}, {"token": "B", "logprob": -1.5, "bytes": [66]}]


class Upstream(FaultyServer):
    """A server of :data:`MODEL`. ``told`` is what arrived since it was last emptied: (path, body)."""

    def __init__(self) -> None:
        super().__init__(answer)

    def since(self, seen: int) -> list[tuple[str, Any]]:
        return [(path, body) for path, _, body in self.requests[seen:]]


def answer(body: dict[str, Any]) -> bytes:
    chat = "messages" in body
    prompts = body.get("prompt") if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int) else [None]
    choices = [_choice(body, at, chat) for at in range((body.get("n") or 1) * (1 if chat else len(prompts or ())))]
    head = {
        "id": "chatcmpl-1",
        "created": 1_700_000_000,
        "model": body["model"],
        "system_fingerprint": "fp_1",
        "service_tier": "default",
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 3},
             "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip
    if not body.get("stream"):
        kind = "chat.completion" if chat else "text_completion"
        return http(head | {"object": kind, "choices": choices, "usage": usage, "odd": {"x": 1}})
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    events = [head | {"choices": [piece]} | ({"usage": None} if with_usage else {}) for piece in _interleaved(choices, chat)]
    if with_usage:
        events.append(head | {"choices": [], "usage": usage})
    raw = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"
    return http(raw, kind="text/event-stream")


def _choice(body: dict[str, Any], at: int, chat: bool) -> dict[str, Any]:
    text = ("A pen.", "A desk lamp.", "Nothing.", "Dust.")[at]
    if not chat:
        logs = {
            "tokens": ["A", " pen"],
            "token_logprobs": [-0.25, -1.0],
            "top_logprobs": [{"A": -0.25}, None],
            "text_offset": [0, 1],
        }
        given = body["prompt"] if body.get("echo") else ""
        return {
            "index": at,
            "text": given + text,
            "finish_reason": "length",
            "logprobs": logs if body.get("logprobs") is not None else None,
        }
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    finish = "stop"
    if body.get("reasoning_effort"):
        message["reasoning_content"] = "The desk was named. I look."
    tools, say = body.get("tools") or [], body.get("say")
    if tools and tools[0]["type"] == "custom":
        message |= {"content": None, "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}]}
        finish = "tool_calls"
    elif tools and body["messages"][-1]["role"] != "tool":
        message |= {"content": None, "tool_calls": [MADE]}
        finish = "tool_calls"
    elif body.get("functions"):
        message |= {"content": None, "function_call": MADE["function"]}
        finish = "function_call"
    elif body.get("audio"):
        message |= {"content": None, "audio": {"id": "audio_1", "data": "UklGRg==", "transcript": "A pen.", "expires_at": 1}}
    elif say == "refusal":
        message |= {"content": None, "refusal": "I cannot say."}
    elif say == "filter":
        message, finish = {"role": "assistant", "content": ""}, "content_filter"
    elif say == "parts":
        message["content"] = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": text}]
    elif say == "annotations":
        message["annotations"] = [
            {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 1, "title": "t", "url": "u"}}
        ]
    logs = {
        "content": [{"token": "A", "logprob": -0.25, "bytes": [65], "top_logprobs": _TOP[: body.get("top_logprobs") or 0]}],
        "refusal": None,
    }
    return {
        "index": at,
        "message": message,
        "logprobs": logs if body.get("logprobs") else None,
        "finish_reason": finish,
        "stop_reason": None,
    }


def _interleaved(choices: list[dict[str, Any]], chat: bool) -> list[dict[str, Any]]:
    """The pieces of all choices, in turn."""
    each = [_pieces(choice, chat) for choice in choices]
    return [pieces[at] for at in range(max(map(len, each))) for pieces in each if at < len(pieces)]


def _pieces(choice: dict[str, Any], chat: bool) -> list[dict[str, Any]]:
    blank = {"index": choice["index"], "logprobs": None, "finish_reason": None}
    if not chat:
        texts = choice["text"].split(" ")
        return [
            blank | {"text": texts[0]},
            *({**blank, "text": f" {text}"} for text in texts[1:]),
            blank | {"text": "", "finish_reason": "length"},
        ]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"reasoning_content": piece} for piece in (message.get("reasoning_content") or "").split(".")]
    for at, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        deltas.append({"tool_calls": [{"index": at, **call, "function": function | {"arguments": ""}}]})
        half = len(function["arguments"]) // 2
        deltas += [
            {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}
            for piece in (function["arguments"][:half], function["arguments"][half:])
        ]
    deltas += [{"content": word, "logprobs": None} for word in (message["content"] or "").split(" ") if word]
    return [*({**blank, "delta": delta, "logprobs": choice["logprobs"]} for delta in deltas),
            blank | {"delta": {}, "finish_reason": choice["finish_reason"], "stop_reason": None}]  # fmt: skip


def call(client: openai.OpenAI, name: str, model: str = MODEL) -> Any:
    """What the client gives back for the call of this name, as JSON; the error as one, where it raises."""
    route, given = CALLS[name]
    make: Callable[..., Any] = client.chat.completions.create if route == "chat" else client.completions.create
    try:
        found = make(model=model, **given)
        if given.get("stream"):
            return [piece.model_dump(exclude_unset=True) for piece in found]
        return found.model_dump(exclude_unset=True)
    except openai.APIError as error:
        return {"failed": str(error)}
