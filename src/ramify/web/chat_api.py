"""``POST /v1/chat/completions``: messages and tools in, messages and tool calls out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.model.chat import own_template
from ramify.model.protocol import Completion, Prefix
from ramify.trace.message import CALL_END, Message, joined_reply
from ramify.web.fields import ChatMessage, ChatRequest
from ramify.web.formats import grammar_of
from ramify.web.forms import Form, Served, Top
from ramify.web.limits import RefusedRequestError
from ramify.web.replies import Reply, ReplyPart, Token


class ChatForm(Form):
    """A chat request and its answer."""

    route, id_head = "chat", "chatcmpl-"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"
    request: ChatRequest

    @classmethod
    def of(cls, served: Served, request: ChatRequest, rest: Mapping[str, Any]) -> ChatForm:
        """``rest`` continues to the endpoint that samples. Raises RefusedError and NeedsError on what cannot be done."""
        if request.top_logprobs and not request.logprobs:
            raise RefusedRequestError(400, "'top_logprobs' needs 'logprobs'.", "top_logprobs", "invalid_value")
        if request.logprobs:
            served.need("logprobs", "log-probs of its replies")
        if request.top_logprobs:
            served.need("prompt_logprobs", "runners-up to its tokens")
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or () if request.tool_choice != "none"]
        passed = _passed_on(served, request)
        prefix = Prefix(None, tuple(_message(message) for message in request.messages), tuple(tools), {**passed, **rest})
        settings = request.sampling(served.limit(request.max_completion_tokens or request.max_tokens), served.model)
        most = 1 if request.parallel_tool_calls is False else None
        if tools and most and "tokens" in served.offers:  # sampled no further, so what is kept of the reply is what is sent
            settings = replace(settings, stop_texts=(*settings.stop_texts, CALL_END))
        if "response_format" not in served.forwards:  # else the endpoint enforces it
            settings = replace(settings, grammar=grammar_of(request, "grammar" in served.offers and not served.passes))
        served.follows(settings)
        form = cls(served, request, [prefix], settings, request.top_logprobs or 0)
        form.looks, form.most_calls = bool(tools), most
        return form

    def prompt_tokens(self, choice: int, completion: Completion) -> np.ndarray | None:
        """See :class:`Form`: the messages as laid out, and the reply's header."""
        template = own_template(self.served.model)
        parts = [message.tokens for message in completion.shown if message.tokens is not None]
        if template is None or not parts or len(parts) < len(completion.shown):
            return None
        header = template.open("assistant", completion.shown[-1].message.role) if completion.head is None else completion.head
        return np.concatenate([*parts, np.array(header, np.int32)])

    @property
    def tells_tokens(self) -> bool:
        """See :class:`Form`."""
        return bool(self.request.logprobs or self.request.return_token_ids)

    def opening(self, choice: int) -> dict[str, Any]:
        """See :class:`Form`."""
        return _event(choice, {"role": "assistant", "content": ""})

    def delta(self, choice: int, reply: Reply, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        """See :class:`Form`."""
        delta: dict[str, Any] = {"content": part.text} if part.text or not part.calls else {}
        if part.calls:
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(part.calls)]
        return _event(choice, delta) | self._logprobs(part, tops) | self.ids(part)

    def closing(self, choice: int, reply: Reply, called: bool) -> dict[str, Any]:
        """See :class:`Form`."""
        return _event(choice, {}, "tool_calls" if called else reply.finish) | self.extras(reply)

    def whole(self, choice: int, reply: Reply, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        """See :class:`Form`."""
        message: dict[str, Any] = {"role": "assistant", "content": part.text if part.text or not part.calls else None}
        message["refusal"] = None
        if part.calls:
            message["tool_calls"] = part.calls
        if reply.completion is not None and (thought := (reply.completion.data or {}).get("reasoning")):
            message["reasoning_content"] = thought
        finish = "tool_calls" if part.calls else reply.finish
        return (
            {"index": choice, "message": message, "finish_reason": finish}
            | self._logprobs(part, tops)
            | self.ids(part)
            | self.extras(reply)
        )

    def _logprobs(self, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        if not self.request.logprobs:
            return {"logprobs": None}
        given: Sequence[Top] = tops or [[]] * len(part.tokens)
        content = [self._entry(token, top) for token, top in zip(part.tokens, given, strict=True)]
        return {"logprobs": {"content": content, "refusal": None}}

    def _entry(self, token: Token, top: Top) -> dict[str, Any]:
        others = [_spelled(self.spelled(other), value) for other, value in top]
        return _spelled(self.named(token), token.logprob) | {"top_logprobs": others}


def _spelled(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _event(choice: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}


def _passed_on(served: Served, request: ChatRequest) -> dict[str, Any]:
    """The constraints that are forwarded to an upstream endpoint."""
    fields: dict[str, Any] = {}
    if "tool_choice" in served.forwards and request.tool_choice not in (None, "auto", "none"):
        fields["tool_choice"] = request.tool_choice
    if "response_format" in served.forwards and (request.response_format or {}).get("type", "text") != "text":
        fields["response_format"] = request.response_format
    if request.tools and request.parallel_tool_calls is False and "parallel_tool_calls" in served.forwards:
        fields["parallel_tool_calls"] = False
    return fields


def _message(message: ChatMessage) -> Message:
    """A message as models take it: calls of an earlier reply are in its text, and in its data as OpenAI writes them."""
    text = message.content or ""
    if message.tool_calls:
        calls = [call.model_dump() for call in message.tool_calls]
        return Message(message.role, joined_reply(text, calls), {"tool_calls": calls})
    data = {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    return Message("system" if message.role == "developer" else message.role, text, data)
