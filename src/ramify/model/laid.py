"""Wraps a model that takes token ids so that it takes chats as well: this is where a chat is rendered as tokens."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.model.chat import ChatTemplate, JinjaTemplate, assistant_node_parts
from ramify.model.protocol import Completion, Identity, Model, Prefix, Sampling, Tokenizer, TokenScores, context_of
from ramify.model.rendered import Filled, Known, RenderedPiece, Reused, rendered
from ramify.model.streaming import Pieces, stream
from ramify.model.wire import request_tools
from ramify.trace.message import Message, split_reply
from ramify.trace.view import TokenMessage

_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


_PIECE, _SLACK = 10_000, 64
"""Characters counted at a time, and tokens that a cut may add."""


class TooLongError(UserError):
    """A prompt that leaves no room for a reply."""


def check_room(tokenizer: Tokenizer, texts: Sequence[str], room: int, name: str) -> None:
    """Raises TooLongError where the beginning of ``texts`` has more than ``room`` tokens already: so megabytes need not be
    encoded to be refused."""
    if sum(map(len, texts)) <= 2 * _PIECE:
        return
    tokens = 0
    for piece in (text[at : at + _PIECE] for text in texts for at in range(0, len(text), _PIECE)):
        tokens += max(0, len(tokenizer.encode(piece)) - _SLACK)
        if tokens > room:
            raise TooLongError(f"the prompt has more than {tokens} tokens; '{name}' holds {room}, the reply included")


class Layout:
    """``inner`` with chats rendered by ``template``; prefixes of token ids pass unchanged.

    A reply sampled here that returns in a later request at the same position keeps its sampled tokens; it is not encoded again
    (the last ``remembered`` replies). Samples report what was ``shown``. Tools are rendered by a template that knows ``tools``,
    else in the system message."""

    def __init__(self, inner: Model, template: ChatTemplate, remembered: int = 4096) -> None:
        self.inner, self.tokenizer = inner, template.tokenizer
        self.template = template.lenient if isinstance(template, JinjaTemplate) else template
        self._limit = remembered
        self._replies: OrderedDict[tuple[bytes, str], Completion] = OrderedDict()
        self._shown = ToolTemplates(self.template)

    @property
    def identity(self) -> Identity:
        """That of the inner model."""
        return self.inner.identity

    @property
    def capabilities(self) -> frozenset[str]:
        """Those of the inner model."""
        return self.inner.capabilities

    def __getattr__(self, name: str) -> Any:
        """Further attributes of the inner model: ``eos``, ``context``, ``stats``."""
        return getattr(self.inner, name)

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`."""
        if prefix.tokens is not None:
            return await self.inner.sample(prefix, n, settings, keys)
        prompt = self._prompt(prefix)
        completions = await self.inner.sample(prompt.inside, n, self._settings(settings), keys)
        return [self._remembered(completion, prompt) for completion in completions]

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """See :class:`ramify.model.streaming.StreamingModel`."""
        if prefix.tokens is not None:
            pieces = stream(self.inner, prefix, settings, key)
        else:
            prompt = self._prompt(prefix)
            pieces = stream(self.inner, prompt.inside, self._settings(settings), key)
        async with aclosing(pieces):
            async for piece in pieces:
                if piece.completion is not None and prefix.tokens is None:
                    piece = replace(piece, completion=self._remembered(piece.completion, prompt))
                yield piece

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Those of the inner model."""
        return await self.inner.logprobs(tokens, top_k)

    def count(self, prefix: Prefix) -> int:
        """Tokens of a chat as it is rendered, with the header of the reply. Raises what a sample raises."""
        tokens = self.rendered(prefix).tokens
        return 0 if tokens is None else len(tokens)

    def rendered(self, prefix: Prefix) -> Prefix:
        """A chat as token ids, with the header of the reply. Raises what a sample raises."""
        return self._prompt(prefix).inside

    def reply(self, prefix: Prefix, completion: Completion) -> Completion:
        """A sample that was made after :meth:`rendered`, as :meth:`sample` returns its own: with the rendered prompt,
        remembered."""
        return self._remembered(completion, self._prompt(prefix))

    def _settings(self, settings: Sampling) -> Sampling:
        return replace(settings, stop_tokens=(*settings.stop_tokens, *self.template.stop_tokens))

    def _remembered(self, completion: Completion, prompt: _Prompt) -> Completion:
        """The sample with its rendered prompt, remembered for a later request that contains it."""
        assert prompt.inside.tokens is not None
        completion = replace(completion, head=prompt.head)
        text = assistant_node_parts(self.template, completion, head=prompt.head)["text"]
        self._replies[prompt.position, gist(text)] = completion
        while len(self._replies) > self._limit:
            self._replies.popitem(last=False)
        data = dict(completion.data or {})
        data["usage"] = {"prompt_tokens": len(prompt.inside.tokens), **data.get("usage", {})}
        return replace(completion, data=data, shown=prompt.shown)

    def _prompt(self, prefix: Prefix) -> _Prompt:
        """Messages as tokens, one by one, the reply's header, and a hash of the position where the reply begins.

        Raises UserError on no messages, TooLongError, and whatever the template raises.
        """
        if not prefix.messages:
            raise UserError("a chat has at least one message")
        room = context_of(self.inner)
        if room is not None:
            texts = [*(message.text for message in prefix.messages), *(json.dumps(tool) for tool in prefix.tools)]
            check_room(self.tokenizer, texts, room, self.identity.name)
        template, messages = self._with_tools(prefix)
        prompt = self._rendered(template, messages) if isinstance(template, JinjaTemplate) else self._added(template, messages)
        length = 0 if prompt.inside.tokens is None else len(prompt.inside.tokens)
        if room is not None and length >= room:
            raise TooLongError(f"the chat has {length} tokens; '{self.identity.name}' holds {room}, the reply included")
        return replace(prompt, asked=prefix.asked)

    def _added(self, template: ChatTemplate, messages: Sequence[Message]) -> _Prompt:
        """By a template that adds each message to what it rendered before."""
        shown: list[TokenMessage] = []
        position, after = hashlib.blake2b(digest_size=16), ""
        for message in messages:
            encoded = self._encoded_message(template, message, after, position.digest())
            assert encoded.tokens is not None
            position.update(encoded.tokens.tobytes())
            shown.append(encoded)
            after = message.role
        return _Prompt(tuple(shown), tuple(template.open("assistant", after)), position.digest())

    def _rendered(self, template: JinjaTemplate, messages: Sequence[Message]) -> _Prompt:
        """By a template that renders the whole conversation, the past as it pleases."""
        position, known = hashlib.blake2b(digest_size=16), list[Known]()
        for message in messages:
            text, pieces = message.text, tuple[RenderedPiece, ...]()
            sampled = self._replies.get((position.digest(), gist(text))) if message.role == "assistant" else None
            if sampled is not None:
                parts = assistant_node_parts(self.template, sampled, head=sampled.head)
                text, pieces = parts["text"], (RenderedPiece(parts["tokens"], parts["text"], parts["sampled"], parts["ends"]),)
            known.append(Known(message.role, text, pieces))
            content = gist(text) if message.role == "assistant" else text
            position.update(json.dumps([message.role, content]).encode())
        layout = rendered(template, known)
        texts: list[tuple[int, str, str, list[int]]] = []
        for piece in layout.pieces or [Reused(i, 0, 0, len(written.pieces[0].tokens)) for i, written in enumerate(known)]:
            if isinstance(piece, Filled):
                if piece.role or not texts:
                    texts.append((piece.message, piece.role or "system", piece.text, list(piece.tokens)))
                else:
                    texts[-1][3].extend(piece.tokens)
                continue
            source = known[piece.message].pieces[piece.piece]
            tokens = source.tokens[piece.start : piece.end].tolist()
            if texts and texts[-1][0] == piece.message:
                begun = texts.pop()
                sampled_text = self.tokenizer.decode(
                    [token for token, sampled in zip(tokens, _sampled(source, piece), strict=True) if sampled]
                )
                texts.append((*begun[:2], begun[2] + sampled_text, [*begun[3], *tokens]))
            else:
                texts.append((piece.message, known[piece.message].role, known[piece.message].text, tokens))
        shown = []
        for at, role, text, ids in texts:
            whole = at >= 0 and text.strip() == known[at].text.strip()
            message = replace(messages[at], text=known[at].text) if whole else Message(role, text)
            shown.append(TokenMessage(message, np.array(ids, np.int32)))
        return _Prompt(tuple(shown), layout.header, position.digest())

    def _encoded_message(self, template: ChatTemplate, message: Message, after: str, position: bytes) -> TokenMessage:
        sampled = self._replies.get((position, gist(message.text))) if message.role == "assistant" else None
        if sampled is not None:
            parts = assistant_node_parts(template, sampled, after=after)
            return TokenMessage(replace(message, text=parts["text"]), parts["tokens"], parts["ends"])
        tokens, ends, text = template.render(message.role, message.text, after)
        return TokenMessage(replace(message, text=text), np.array(tokens, np.int32), np.array(ends, np.int32))

    def _with_tools(self, prefix: Prefix) -> tuple[ChatTemplate, tuple[Message, ...]]:
        """A template and messages that describe the tools."""
        return self._shown.tools(prefix.messages, request_tools(prefix.tools) if prefix.tools else [])


class ToolTemplates:
    """How ``template`` describes tools: itself where it knows ``tools``, else the system message does."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._templates: OrderedDict[str, ChatTemplate] = OrderedDict()

    def tools(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[ChatTemplate, tuple[Message, ...]]:
        """A template and messages that describe ``tools``, which are in OpenAI's form."""
        if not tools:
            return self.template, tuple(messages)
        if isinstance(self.template, JinjaTemplate) and "tools" in self.template.source:
            name = json.dumps(tools, sort_keys=True)
            if name not in self._templates:
                self._templates[name] = replace(self.template, variables={**self.template.variables, "tools": tools})
                while len(self._templates) > 16:
                    self._templates.popitem(last=False)
            return self._templates[name], tuple(messages)
        description = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        first, rest = messages[0], messages[1:]
        if first.role == "system":
            return self.template, (replace(first, text=f"{first.text}\n\n{description}"), *rest)
        return self.template, (Message("system", description), *messages)


@dataclass(frozen=True, eq=False)
class _Prompt:
    """A rendered prompt: the messages, the tokens that open the reply, and a hash of the position where it begins."""

    shown: tuple[TokenMessage, ...]
    head: tuple[int, ...]
    position: bytes
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, forwarded."""

    @cached_property
    def inside(self) -> Prefix:
        """The prompt for the inner model."""
        tokens = [message.tokens for message in self.shown if message.tokens is not None]
        return Prefix(np.concatenate([*tokens, np.array(self.head, np.int32)]), asked=self.asked)


def _sampled(source: RenderedPiece, piece: Reused) -> list[bool]:
    return [] if source.sampled is None else source.sampled[piece.start : piece.end].tolist()


def said(message: Message) -> tuple[str, str]:
    """What a message says, however its calls are written."""
    return message.role, gist(message.written()) if message.role == "assistant" else message.text


def gist(text: str) -> str:
    """A reply in one canonical form, however its calls were written."""
    content, calls = split_reply(text)
    named_calls = [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in calls]
    return json.dumps([content.strip(), named_calls], sort_keys=True)
