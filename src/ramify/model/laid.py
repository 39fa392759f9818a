"""A model that takes token ids, made to take chats as well: what a chat looks like as tokens is decided here and nowhere further out."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.model.chat import ChatTemplate, JinjaTemplate, assistant_node_parts, parse_tool_calls
from ramify.model.protocol import Draw, Identity, Laid, Message, Model, Prefix, Sampling, Tokenizer, TokenScores
from ramify.model.streaming import Pieces, stream
from ramify.model.wire import request_tools

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
    """Raises TooLongError where the beginning of ``texts`` has more than ``room`` tokens already: megabytes are not encoded to be refused."""
    if sum(map(len, texts)) <= 2 * _PIECE:
        return
    tokens = 0
    for piece in (text[at : at + _PIECE] for text in texts for at in range(0, len(text), _PIECE)):
        tokens += max(0, len(tokenizer.encode(piece)) - _SLACK)
        if tokens > room:
            raise TooLongError(f"the prompt has more than {tokens} tokens; '{name}' holds {room}, the reply included")


class Layout:
    """``inner``, to which chats go as ``template`` lays them out; prefixes of token ids pass as they are.

    A reply drawn here that comes back in a later request at its old place is laid out with the tokens that were drawn, not encoded
    again (the last ``remembered`` replies). Draws tell what was ``shown``. Tools are told by a template that knows ``tools``, else in
    the system message.
    """

    def __init__(self, inner: Model, template: ChatTemplate, remembered: int = 4096) -> None:
        self.inner, self.template, self.tokenizer = inner, template, template.tokenizer
        self._limit = remembered
        self._replies: OrderedDict[tuple[bytes, str], Draw] = OrderedDict()
        self._templates: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._last: tuple[Prefix, tuple[tuple[Laid, ...], Prefix, bytes]] | None = None

    @property
    def identity(self) -> Identity:
        """That of the model inside."""
        return self.inner.identity

    @property
    def capabilities(self) -> frozenset[str]:
        """Those of the model inside."""
        return self.inner.capabilities

    def __getattr__(self, name: str) -> Any:
        """What else the model inside offers: ``eos``, ``context``, ``stats``."""
        return getattr(self.inner, name)

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Draw]:
        """See :class:`ramify.model.protocol.Model`."""
        if prefix.tokens is not None:
            return await self.inner.sample(prefix, n, settings, keys)
        shown, inside, place = self._lay(prefix)
        draws = await self.inner.sample(inside, n, self._settings(settings), keys)
        return [self._told(draw, shown, inside, place) for draw in draws]

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """See :class:`ramify.model.streaming.StreamingModel`."""
        if prefix.tokens is not None:
            pieces = stream(self.inner, prefix, settings, key)
        else:
            shown, inside, place = self._lay(prefix)
            pieces = stream(self.inner, inside, self._settings(settings), key)
        async with aclosing(pieces):
            async for piece in pieces:
                if piece.draw is not None and prefix.tokens is None:
                    piece = replace(piece, draw=self._told(piece.draw, shown, inside, place))
                yield piece

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Those of the model inside."""
        return await self.inner.logprobs(tokens, top_k)

    def _settings(self, settings: Sampling) -> Sampling:
        return replace(settings, stop_tokens=(*settings.stop_tokens, *self.template.stop_tokens))

    def _told(self, draw: Draw, shown: tuple[Laid, ...], inside: Prefix, place: bytes) -> Draw:
        """The draw with what was shown, remembered for when it comes back."""
        assert inside.tokens is not None
        said = assistant_node_parts(self.template, draw)["text"]
        self._replies[place, _gist(said)] = draw
        while len(self._replies) > self._limit:
            self._replies.popitem(last=False)
        data = dict(draw.data or {})
        data["usage"] = {"prompt_tokens": len(inside.tokens), **data.get("usage", {})}
        return replace(draw, data=data, shown=shown)

    def _lay(self, prefix: Prefix) -> tuple[tuple[Laid, ...], Prefix, bytes]:
        """Messages as tokens: each by itself, all with the reply's header, and a hash of where the reply begins.

        Raises UserError on no messages, TooLongError, and whatever the template raises.
        """
        if not prefix.messages:
            raise UserError("a chat has at least one message")
        room = getattr(self.inner, "context", None)
        if room is not None:
            texts = [*(message.text for message in prefix.messages), *(json.dumps(tool) for tool in prefix.tools)]
            check_room(self.tokenizer, texts, room, self.identity.name)
        template, messages = self._with_tools(prefix)
        shown: list[Laid] = []
        place, after = hashlib.blake2b(digest_size=16), ""
        for message in messages:
            laid = self._one(template, message, after, place.digest())
            assert laid.tokens is not None
            place.update(laid.tokens.tobytes())
            shown.append(laid)
            after = message.role
        header = np.array(template.open("assistant", after), np.int32)
        tokens = np.concatenate([*(laid.tokens for laid in shown if laid.tokens is not None), header])
        if room is not None and len(tokens) >= room:
            raise TooLongError(f"the chat has {len(tokens)} tokens; '{self.identity.name}' holds {room}, the reply included")
        found = tuple(shown), Prefix(tokens, asked=prefix.asked), place.digest()
        self._last = prefix, found
        return found

    def _one(self, template: ChatTemplate, message: Message, after: str, place: bytes) -> Laid:
        drawn = self._replies.get((place, _gist(message.text))) if message.role == "assistant" else None
        if drawn is not None:
            parts = assistant_node_parts(template, drawn, after=after)
            return Laid(replace(message, text=parts["text"]), parts["tokens"], parts["ends"])
        tokens, ends, text = template.render(message.role, message.text, after)
        return Laid(replace(message, text=text), np.array(tokens, np.int32), np.array(ends, np.int32))

    def _with_tools(self, prefix: Prefix) -> tuple[ChatTemplate, tuple[Message, ...]]:
        """A template and messages that tell of the tools."""
        if not prefix.tools:
            return self.template, prefix.messages
        tools = request_tools(prefix.tools)
        if isinstance(self.template, JinjaTemplate) and "tools" in self.template.source:
            name = json.dumps(tools, sort_keys=True)
            if name not in self._templates:
                self._templates[name] = replace(self.template, variables={**self.template.variables, "tools": tools})
                while len(self._templates) > 16:
                    self._templates.popitem(last=False)
            return self._templates[name], prefix.messages
        told = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        first, rest = prefix.messages[0], prefix.messages[1:]
        if first.role == "system":
            return self.template, (replace(first, text=f"{first.text}\n\n{told}"), *rest)
        return self.template, (Message("system", told), *prefix.messages)


def split_reply(text: str) -> tuple[str, list[dict[str, Any]]]:
    """A reply's text around its tool calls, and the calls as OpenAI writes them (``id`` is the place: ``call_0``).

    A malformed call stays text.
    """
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    at = 0
    for call in parse_tool_calls(text):
        if call.error:
            continue
        said.append(text[at : call.char_span[0]])
        at = call.char_span[1]
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    said.append(text[at:])
    return (said[0].rstrip() + "".join(said[1:]).strip() if calls else text), calls


def joined_reply(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The text of a reply that :func:`split_reply` takes apart into ``content`` and ``calls`` (OpenAI's form)."""
    written = []
    for call in calls:
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except ValueError:
            arguments = function["arguments"]
        body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        written.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join([content, *written] if content else written)


def _gist(text: str) -> str:
    """What two spellings of one reply have in common, whichever way its calls were written."""
    said, calls = split_reply(text)
    made = [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in calls]
    return json.dumps([said.strip(), made], sort_keys=True)
