"""``POST /v1/completions``: text or token ids in, their continuation out, with log-probs of sampled and given tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError
from ramify.model.laid import check_room
from ramify.model.protocol import Prefix
from ramify.web.fields import TextRequest
from ramify.web.formats import grammar_of
from ramify.web.forms import Form, Served, Top, finite, top_of
from ramify.web.limits import RefusedRequestError
from ramify.web.replies import Reply, ReplyPart, Token

DEFAULT_TOKENS = 16
"""OpenAI's default."""
_LONG = 50_000
"""Characters of a prompt from which on it is encoded in a thread."""


@dataclass(frozen=True)
class Given:
    """A prompt's own text and scores, where they were requested. T tokens; the first has no score."""

    text: str
    tokens: list[Token]
    tops: list[Top]


class TextForm(Form):
    """A completion request and its answer."""

    route, id_head = "completions", "cmpl-"
    whole_object = chunk_object = "text_completion"
    request: TextRequest
    given: list[Given]

    @classmethod
    async def of(cls, served: Served, request: TextRequest, rest: Mapping[str, Any]) -> TextForm:
        """``rest`` continues to the endpoint that samples. Raises RefusedError and NeedsError on what cannot be done."""
        if served.tokenizer is None:
            raise NeedsError(f"'{served.name}' takes messages only; use /v1/chat/completions")
        if request.max_tokens == 0 and not request.echo:
            raise RefusedRequestError(400, "'max_tokens' 0 needs 'echo'.", "max_tokens", "invalid_value")
        top = request.logprobs or 0
        if request.logprobs is not None and request.max_tokens != 0:
            served.need("logprobs", "log-probs of its replies")
        if top or request.prompt_logprobs is not None or (request.echo and request.logprobs is not None):
            served.need("prompt_logprobs", "log-probs of tokens it is given")
        prompts = [np.array(await _ids(served, prompt), np.int32) for prompt in request.prompt]
        for prompt in prompts:
            served.fits(len(prompt) - (request.max_tokens == 0))
        limit = served.limit(request.max_tokens or None, DEFAULT_TOKENS)
        settings = replace(request.sampling(limit, served.model), grammar=grammar_of(request))
        served.follows(settings)
        form = cls(served, request, [Prefix(prompt, asked=rest) for prompt in prompts], settings, top)
        form.samples = request.max_tokens != 0
        return form

    async def prepare(self) -> None:
        """See :class:`Form`: texts of the prompts, and scores where they were requested."""
        tokenizer, request = self.served.tokenizer, self.request
        prompts = [prompt.tokens for prompt in self.prompts if prompt.tokens is not None]
        assert tokenizer is not None
        k = max(request.prompt_logprobs or 0, self.top)
        echoed = request.echo and request.logprobs is not None
        scores = await self.served.model.logprobs(prompts, k) if request.prompt_logprobs is not None or echoed else []
        given = []
        for at, prompt in enumerate(prompts):
            ids = prompt.tolist()
            text, tokens, tops = tokenizer.decode(ids), list[Token](), list[Top]()
            if scores:
                ends = [0, *tokenizer.ends(ids).tolist()]
                values = [None, *finite(scores[at].logprobs).tolist()[1:]]
                tokens = [Token(ids[t], text[ends[t] : ends[t + 1]], values[t]) for t in range(len(ids))]
                top_tokens, top_logprobs = scores[at].top_tokens, scores[at].top_logprobs
                if top_tokens is not None and top_logprobs is not None:
                    tops = [[], *top_of(top_tokens[1:], top_logprobs[1:])]
            given.append(Given(text, tokens, tops))
        self.given = given

    @property
    def tells_tokens(self) -> bool:
        """See :class:`Form`."""
        return self.request.logprobs is not None or bool(self.request.return_token_ids)

    def opening(self, choice: int) -> dict[str, Any] | None:
        """See :class:`Form`: the prompt, where it is echoed."""
        given = self.given[choice // self.n]
        if not self.request.echo:
            return None
        return _event(choice, given.text) | self._logprobs(given.tokens, given.tops, 0)

    def delta(self, choice: int, reply: Reply, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        """See :class:`Form`."""
        at = len(reply.text) - len(part.text) + (len(self.given[choice // self.n].text) if self.request.echo else 0)
        return _event(choice, part.text) | self._logprobs(part.tokens, tops, at) | self.ids(part)

    def closing(self, choice: int, reply: Reply, called: bool) -> dict[str, Any]:
        """See :class:`Form`."""
        return _event(choice, "", reply.finish) | self._ended(choice, reply)

    def whole(self, choice: int, reply: Reply, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        """See :class:`Form`."""
        given, text, tokens = self.given[choice // self.n], part.text, part.tokens
        if self.request.echo:
            text, tokens = given.text + text, [*given.tokens, *tokens]
            tops = [*given.tops, *tops]
        finish = "length" if self.request.max_tokens == 0 else reply.finish
        return _event(choice, text, finish) | self._logprobs(tokens, tops, 0) | self.ids(part) | self._ended(choice, reply)

    def _ended(self, choice: int, reply: Reply) -> dict[str, Any]:
        found = self.extras(reply)
        given = self.given[choice // self.n]
        if self.request.prompt_logprobs is not None:
            tops = given.tops or [[]] * len(given.tokens)
            scored = [
                self._alternatives([(token.id, token.logprob or 0.0), *top[: self.request.prompt_logprobs]])
                for token, top in zip(given.tokens, tops, strict=True)
            ]
            found["prompt_logprobs"] = [None, *scored[1:]]
        return found

    def _alternatives(self, top: Top) -> dict[str, Any]:
        return {str(token): {"logprob": value, "decoded_token": self.served.spelled(token)} for token, value in top}

    def _logprobs(self, tokens: Sequence[Token], tops: Sequence[Top], offset: int) -> dict[str, Any]:
        if self.request.logprobs is None:
            return {"logprobs": None}
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "logprobs": {
                "tokens": [self.named(token) for token in tokens],
                "token_logprobs": [token.logprob for token in tokens],
                "top_logprobs": [{self.spelled(other): value for other, value in top} or None for top in tops] or None,
                "text_offset": offsets,
            }
        }


def _event(choice: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": choice, "text": text, "logprobs": None, "finish_reason": finish}


async def _ids(served: Served, prompt: str | list[int]) -> list[int]:
    """Token ids of a prompt. Raises RefusedError on an empty one."""
    if isinstance(prompt, list):
        return prompt
    assert served.tokenizer is not None
    if served.context is not None:
        check_room(served.tokenizer, [prompt], served.context, served.name)
    long = len(prompt) > _LONG
    ids = await asyncio.to_thread(served.tokenizer.encode, prompt) if long else served.tokenizer.encode(prompt)
    if not ids:
        raise RefusedRequestError(400, "A prompt is empty; give at least one token.", "prompt", "invalid_value")
    return ids
