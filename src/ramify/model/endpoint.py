"""Models on OpenAI-compatible servers: vLLM, SGLang, llama.cpp, transformers serve, hosted ones. See docs/howto/endpoints.md.

``chat`` sends messages and returns text; so do ``anthropic`` and ``responses``, for servers that speak Anthropic's Messages or
OpenAI's Responses. ``completions`` sends and returns token ids, for which the server must give ids back and
the model's own tokenizer must lie in a local folder. A server's capabilities are found by a few small requests before the first
use.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from ramify.base import verdicts
from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.model import wire
from ramify.model.address import Endpoint, EndpointLimits
from ramify.model.anthropic import Anthropic
from ramify.model.cautions import caution_of
from ramify.model.chat import ChatTemplate, JinjaTemplate, TagTemplate
from ramify.model.dialect import DIALECTS, Dialect
from ramify.model.http import Clock, ProviderError, Transport
from ramify.model.protocol import Completion, Grammar, Identity, Prefix, Sampling, Tokenizer, TokenScores
from ramify.model.responses import Responses
from ramify.model.sse import TYPE, EventParser, Heard, Withheld, check_event
from ramify.model.streaming import Detokenizer, Piece, Pieces, rest_of, whole
from ramify.model.tokenizer import HfTokenizer
from ramify.model.translation import Translation
from ramify.trace.message import Message

SPOKEN: Mapping[str, Translation] = {"anthropic": Anthropic(), "responses": Responses()}
"""Protocols other than chat completions that a model at an endpoint may speak, by mode."""
_LOOK = Sampling(temperature=1.0, max_tokens=16)
_CHAT = frozenset({"penalties", "grammar"})
"""What every server is said to offer, by name; :meth:`HttpModel.check` tests whether it follows."""
_TRANSLATED = frozenset({"grammar"})
_AGREE = 0.05
"""Log-probs of one token sampled and given differ by less, in nats, where a server means the same by both."""


LABELS = ("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Fields of a request that change no reply, whatever they say."""


def _is_plain(settings: Sampling, extra: Mapping[str, Any]) -> bool:
    """Whether sampling is from the model's own distribution."""
    return settings.plain() and extra.keys() <= set(LABELS)


@dataclass
class _Look:
    """A look at a server that is under way, and how many wait for it."""

    task: asyncio.Task[frozenset[str]]
    waiting: int = 0


class HttpModel:
    """The model called ``model`` at ``url``; implements :class:`ramify.model.protocol.Model`.

    ``mode`` is chat, completions, or one of :data:`SPOKEN`; completions needs ``tokenizer``, a folder with the model's
    tokenizer.json or an object, and lays chats out by ``template`` (the folder's own by default). ``url`` may carry options,
    ``?tokenizer=PATH&rate=5&concurrent=8&timeout=60&retries=4&answers=any``. The first sample, or look at ``capabilities``, asks
    the server. Raises UserError on a bad URL; see :class:`ProviderError` for what a server can do wrong.
    """

    def __init__(
        self,
        url: str,
        model: str,
        mode: str = "chat",
        *,
        tokenizer: Tokenizer | Path | str | None = None,
        template: ChatTemplate | None = None,
        limits: EndpointLimits | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        if mode not in DIALECTS:
            raise UserError(f"an endpoint's mode is one of {', '.join(DIALECTS)}, not '{mode}'")
        if not model:
            raise UserError("an endpoint needs the name of a model, as in chat:MODEL@http://127.0.0.1:8000/v1")
        self.model, self.mode = model, mode
        self.translation, self.chats = SPOKEN.get(mode), mode != "completions"
        self.endpoint = Endpoint.parse(url)
        self.transport = Transport(self.endpoint, limits, transport=transport, clock=clock, protocol=mode)
        source = self.endpoint.options.get("tokenizer") if tokenizer is None else tokenizer
        folder = Path(source).expanduser() if isinstance(source, Path | str) else None
        self.tokenizer: Any = HfTokenizer.load(folder) if folder else source
        self._own_template, self._folder = template, folder
        if mode == "completions" and self.tokenizer is None:
            raise UserError(
                f"completions:{model}@{self.endpoint.url} needs the model's tokenizer: add ?tokenizer=FOLDER, or use "
                f"chat:{model}@..."
            )
        self._lock = threading.Lock()
        self._looks: dict[asyncio.AbstractEventLoop, _Look] = {}
        self._dialect = Dialect() if self.translation is None else DIALECTS[mode][0]
        self._offers: frozenset[str] | None = None
        self._top_k: bool | None = None
        self._grammars: dict[str, bool] = {}
        self._streams = True
        self._lacks = ""
        self.answered = ""
        """The name that the server answers under, which may be another than ``model`` (a deployment, an alias, a router);
        "" before the first answer. Another one later fails, unless the URL says ``answers=any``."""

    @classmethod
    def named(cls, mode: str, argument: str, **options: Any) -> HttpModel:
        """The model that ``MODEL@URL`` names. Raises UserError, in which the URL is not repeated."""
        match = re.fullmatch(r"(.+?)@(https?://.+)", argument, re.DOTALL)
        if match is None:
            raise UserError(f"a model at an endpoint is named {mode}:MODEL@URL, such as {mode}:qwen3@http://127.0.0.1:8000/v1")
        return cls(match[2], match[1], mode, **options)

    @cached_property
    def identity(self) -> Identity:
        """The model's name, a hash of endpoint and name (the weights are unknown), and that of the tokenizer in use."""
        tokenizer = self.tokenizer.hash if self.mode == "completions" else ""
        return Identity(self.model, stable_hash("endpoint", self.endpoint.url, self.mode, self.model), tokenizer)

    @cached_property
    def caution(self) -> str:
        """What was found here of how its server draws (:mod:`ramify.model.cautions`); "" for nothing."""
        return caution_of(self.endpoint.url, self.model)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """How chats are rendered as tokens in completions mode; None in chat mode, where the server does it."""
        if self.chats or self._own_template is not None:
            return None if self.chats else self._own_template
        try:
            return TagTemplate(self.tokenizer)
        except NeedsError:
            if self._folder is None or not self._folder.is_dir():
                raise
            return JinjaTemplate.from_folder(self.tokenizer, self._folder)

    @property
    def capabilities(self) -> frozenset[str]:
        """The server's capabilities, tested once. Raises ProviderError where it does not answer.

        ``seeds`` is claimed where the same seed gave the same reply and another seed another one. ``logprobs`` are the model's
        own; a sample has them under the sampling distribution too where both are the same:
        at temperature 1 with nothing cut or banned.
        """
        with self._lock:
            if self._offers is None:
                self._offers = wait_for(self._discover())
        return self._offers

    @property
    def unasked(self) -> frozenset[str] | None:
        """What :func:`ramify.model.protocol.known_capabilities` gives before the server was asked;
        None where only requests tell."""
        if self._offers is not None or not self.chats:
            return self._offers
        return _CHAT if self.translation is None else _TRANSLATED

    async def ready(self) -> None:
        """Find out what the server takes, where that is not known, while the event loop goes on (:attr:`capabilities` holds it
        up). Callers at the same time share one look, which ends with the last that waits for it. Raises ProviderError."""
        if self._offers is not None:
            return
        loop = asyncio.get_running_loop()
        look = self._looks.get(loop)
        if look is None:
            look = self._looks[loop] = _Look(loop.create_task(self._discover()))
        look.waiting += 1
        try:
            self._offers = await asyncio.shield(look.task)
        finally:
            look.waiting -= 1
            if not look.waiting:
                look.task.cancel()
                del self._looks[loop]

    @property
    def forwards(self) -> frozenset[str]:
        """Fields of :attr:`Prefix.asked` that are forwarded to the server, which follows or refuses them."""
        return frozenset({"tool_choice", "response_format", "parallel_tool_calls"} if self.chats else ())

    @property
    def passes(self) -> bool:
        """Whether every field of :attr:`Prefix.asked` is forwarded to the server:
        where ramify renders chats, it reads the rest itself."""
        return not self.chats

    @property
    def limit_field(self) -> str:
        """The name of the field that bounds a reply's length."""
        return self._dialect.limit

    def check(self, settings: Sampling) -> None:
        """Refuse settings this endpoint cannot follow, before anything runs.
        Raises NeedsError, or UserError on senseless numbers."""
        if not (np.isfinite(settings.temperature) and settings.temperature >= 0 and 0 < settings.top_p <= 1):
            raise UserError(f"temperature {settings.temperature} or top_p {settings.top_p} is out of range")
        if settings.max_tokens < 1 or settings.top_k < 0:
            raise UserError(f"max_tokens {settings.max_tokens} or top_k {settings.top_k} is out of range")
        if "" in settings.stop_texts:
            raise UserError("a stop text is empty, so every reply would stop at once")
        offers = self.capabilities
        if self.chats:
            for name in ("stop_tokens", "ban", "ban_first", "logit_bias", "until"):
                if getattr(settings, name):
                    raise NeedsError(
                        f"'{name}' needs a model that takes token ids, which the chat endpoint '{self.model}' does not"
                    )
            self._check_translated(settings)
        elif "tokens" not in offers:
            raise NeedsError(
                f"'{self.model}' at {self.endpoint.host} {self._lacks}; use it as chat:{self.model}@{self.endpoint.url}"
            )
        if name := self._dialect.lacks(settings):
            raise NeedsError(f"'{name}' is not a field that '{self.model}' at {self.endpoint.host} knows")
        if settings.ban_first and (settings.grammar or settings.penalised):
            raise NeedsError(f"'ban_first' with a grammar or penalties needs the local engine, not '{self.model}'")
        if settings.grammar and not self._follows_grammar(settings.grammar.kind):
            raise NeedsError(
                f"'{self.model}' at {self.endpoint.host} does not hold replies to a grammar ({settings.grammar.kind})"
            )
        if settings.top_k and self.translation is None and not self._follows_top_k():
            raise NeedsError(f"'top_k' is not followed by '{self.model}' at {self.endpoint.host}")

    def _check_translated(self, settings: Sampling) -> None:
        """Raises NeedsError on settings that the protocol has no field for, where it is not chat completions."""
        if self.translation is None:
            return
        lacks = [name for name in ("frequency_penalty", "presence_penalty") if getattr(settings, name)]
        lacks += ["top_k"] if settings.top_k and self.mode == "responses" else []
        lacks += ["stop_texts"] if settings.stop_texts and self.mode == "responses" else []
        lacks += [f"a grammar ({settings.grammar.kind})"] if settings.grammar and settings.grammar.kind != "json" else []
        if lacks:
            raise NeedsError(f"{self.translation.path}, by which '{self.model}' is asked, has no field for '{lacks[0]}'")

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`: one request a sample, all at once;
        the first failure is raised when all are done."""
        if n < 1 or len(keys) != n:
            raise UserError(f"{n} samples need as many keys, at least one; {len(keys)} were given")
        await self.ready()
        self.check(settings)
        sample: Callable[[int], Awaitable[Completion]]
        if self.chats:
            self._check_chat(prefix)

            def sample(key: int) -> Awaitable[Completion]:
                return self._chat(prefix, settings, key)

        else:
            if prefix.tokens is None:
                raise NeedsError(f"the completions endpoint '{self.model}' takes token ids only")
            if not len(prefix.tokens):
                raise UserError(f"the completions endpoint '{self.model}' cannot continue from nothing: the prefix is empty")
            given = [int(token) for token in prefix.tokens]

            def sample(key: int) -> Awaitable[Completion]:
                return self._complete(given, settings, key, prefix.asked)

        done = await asyncio.gather(*(sample(key) for key in keys), return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException):
                raise result
        replies = [result for result in done if isinstance(result, Completion)]
        for reply in replies:
            verdicts.served(self.endpoint.host, (reply.data or {}).get("usage", {}), self.caution)
        return replies

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """See :class:`ramify.model.streaming.StreamingModel`. Pieces are passed on as they arrive; a failure is not retried.

        In one piece where the server does not stream, or streams no token ids in completions mode; so are samples that depend on
        their tokens while they are generated (``until``, ``ban_first``)."""
        await self.ready()
        self.check(settings)
        pieces = None
        if self.chats:
            self._check_chat(prefix)
            pieces = self._stream_chat(prefix, settings, key)
        elif self._streams and prefix.tokens is not None and len(prefix.tokens) and not (settings.until or settings.ban_first):
            pieces = self._stream_tokens(prefix, settings, key)
        begun = False
        if pieces is not None:
            try:
                async with aclosing(pieces):
                    async for piece in pieces:
                        begun = True
                        yield piece
            except ProviderError as error:
                if begun or error.kind not in ("request", "content_type", "tokens"):
                    raise
                self._streams = self._streams and error.kind == "request"  # which may be about this request alone
        if not begun:
            yield whole((await self.sample(prefix, 1, settings, [key]))[0])

    async def _stream_chat(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """Nothing where the server's stream holds no choice. Raises ProviderError."""
        heard, so_far, who = Heard(self.endpoint.host), "", dict[str, Any]()
        hearing = None if self.translation is None else self.translation.hearing()
        async with aclosing(self._events(self._chat_path, self._chat_body(prefix, settings, key), heard)) as events:
            async for came in events:
                for event in (came,) if hearing is None else hearing.take(came):
                    who |= self._heard_from(event)
                    for at, text in heard.take(event):
                        text = "" if at else wire.clean(text)
                        so_far += text
                        if text:
                            yield Piece(text)
        if not heard.choices:
            return
        if not heard.whole:
            raise self._cut()
        completion = heard.completions()[min(heard.choices)]
        if completion.stop == "failed":
            raise wire.withheld(self.endpoint.host)
        yield Piece(completion.text[len(so_far) :], completion=with_data(completion, who))

    async def _stream_tokens(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """The reply to token ids as its tokens come; read no further than where they stop. Raises ProviderError."""
        assert prefix.tokens is not None
        given, host = [int(token) for token in prefix.tokens], self.endpoint.host
        body = self._dialect.tokens(self.model, settings, key) | {"prompt": given} | dict(prefix.asked)
        spelled, values, so_far, done = Detokenizer(self.tokenizer), list[float](), "", 0
        stop, usage, who, longest = "", None, dict[str, Any](), max(map(len, settings.stop_texts), default=0)
        plain, over = _is_plain(settings, prefix.asked), False
        sent, new_text, new_ends = 0, "", list[int]()

        def ends(fresh: str, token: int) -> bool:
            return token in settings.stop_tokens or any(text in fresh for text in settings.stop_texts)

        async with aclosing(self._events("/completions", body)) as events:
            async for event in events:
                check_event(event, host)
                usage, who = event.get("usage") or usage, who | self._heard_from(event)
                for choice in wire.choices_of(event, host):
                    ids = wire.choice_ids(choice, self._pieces, self._limit, host)
                    if ids is None and choice.get("text"):
                        raise ProviderError("tokens", f"{host} streams no ids of the tokens it sampled")
                    logprobs = wire.choice_logprobs(choice, len(ids or ()), host)
                    values += [] if logprobs is None else logprobs.tolist()
                    if wire.reason_of(choice):
                        stop = wire.stop_of(choice, host)
                    text, offsets = "", list[int]()
                    for token in ids or ():
                        new, spelled_ends = spelled.push([token])
                        fresh = (so_far[-longest:] + text)[-longest:] + new if longest else ""
                        text += new
                        offsets += spelled_ends.tolist()
                        if ends(fresh, token):
                            stop, over = "stop", True
                            break
                    so_far += text
                    self._check_secret(so_far)
                    new_text, new_ends = new_text + text, new_ends + offsets
                    if new_ends and not self.transport.key.begun(so_far):
                        end = done + len(new_ends)
                        tokens = np.array(spelled.tokens[done:end], np.int32)
                        model = np.array(values[done:end], np.float32) if len(values) >= end else None
                        yield Piece(new_text, tokens, model if plain else None, model, np.array(new_ends, np.int32))
                        done, sent, new_text, new_ends = end, len(so_far), "", []
                if over:  # the server may sample on
                    break
        if not stop:
            raise self._cut()
        sampled = spelled.tokens
        scores = np.array(values[: len(sampled)], np.float32) if len(values) >= len(sampled) else None
        self._check_sampled(sampled, scores, settings)
        completion = self._sample(sampled, scores, stop, settings, wire.usage_of({"usage": usage}) | who, plain)
        yield rest_of(completion, done, sent)

    def _cut(self) -> ProviderError:
        return ProviderError("cut", f"the stream of {self.endpoint.host} ended before its reply did")

    def _heard_from(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """``{"model": {"asked", "answered"}}`` where a model of another name answered. Raises ProviderError where another one did
        than before."""
        who = wire.who_answers(answer)
        self.answered = self.answered or who
        if who and not wire.same_name(who, self.answered) and "answers" not in self.endpoint.options:
            raise ProviderError(
                "model",
                f"{self.endpoint.host} answers as '{who}' where it answered as '{self.answered}' before, and a run holds one "
                "model's replies: name that model itself, or take any with ?answers=any behind the URL",
                final=True,
            )
        return {"model": {"asked": self.model, "answered": who}} if who not in ("", self.model) else {}

    async def _events(
        self, path: str, body: Mapping[str, Any], heard: Heard | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream; ``heard`` is told that the server said it is done."""
        request = {**body, "stream": True} | ({} if self.translation else {"stream_options": {"include_usage": True}})
        events, content = EventParser(self.endpoint.host), json.dumps(request, allow_nan=False).encode()
        async with self.transport.opened("POST", path, content, TYPE) as response:
            if response.status_code >= 400:
                self.transport.checked(response, await self.transport.read(response))
            withheld = Withheld(self.transport.key)
            async for raw in response.aiter_raw():
                for came in events.push(raw):
                    for _, event in withheld.push(*came):
                        yield event
                if events.done:
                    break
            if heard is not None:
                heard.done = events.done
            for _, event in withheld.rest():
                yield event

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """See :class:`ramify.model.protocol.Model`. Raises NeedsError where the server scores no given tokens, or names no
        ``top_k``."""
        what = "log-probs of given tokens"
        if "prompt_logprobs" in self.capabilities:
            if not top_k:
                return list(await asyncio.gather(*(self._score([int(token) for token in row]) for row in tokens)))
            what = f"the {top_k} likeliest tokens at each position"
            if self._dialect.scores == "prompt_logprobs":
                try:
                    return list(await asyncio.gather(*(self._score([int(token) for token in row], "", top_k) for row in tokens)))
                except ProviderError as error:
                    if error.kind not in ("request", "alternatives"):  # servers bound how many they name
                        raise
        raise NeedsError(f"'{self.model}' at {self.endpoint.host} does not give {what}")

    async def next_tokens(self, given: Sequence[int], top: int) -> dict[int, float]:
        """The ``top`` likeliest next tokens after ``given`` ids with their probabilities, likeliest first, as the server names
        them beside a token that it samples. Raises NeedsError where it names none."""
        settings = Sampling(max_tokens=1)
        body = self._dialect.tokens(self.model, settings, 0) | {"prompt": list(given), "logprobs": top}
        host, answer = self.endpoint.host, await self.transport.post("/completions", body)
        self._heard_from(answer)
        named = wire.next_alternatives(wire.only_choice(answer, host), self._pieces, self._limit, host)
        if len(named) < 2:
            raise NeedsError(f"'{self.model}' at {host} does not name the likeliest other tokens (top_logprobs)")
        return named

    # -- requests

    def _check_chat(self, prefix: Prefix) -> None:
        if prefix.tokens is not None or not prefix.messages:
            raise NeedsError(f"the chat endpoint '{self.model}' takes messages, at least one, and no token ids")
        if prefix.messages[-1].role == "assistant":
            raise NeedsError(f"the chat endpoint '{self.model}' cannot continue inside a reply")

    def _chat_body(self, prefix: Prefix, settings: Sampling, key: int, dialect: Dialect | None = None) -> dict[str, Any]:
        body = (dialect or self._dialect).chat(self.model, settings, key) | {"messages": wire.request_messages(prefix.messages)}
        body |= ({"tools": wire.request_tools(prefix.tools)} if prefix.tools else {}) | dict(prefix.asked)
        body = {name: value for name, value in body.items() if value is not None}
        return body if self.translation is None else self.translation.write(body)

    @property
    def _chat_path(self) -> str:
        return "/chat/completions" if self.translation is None else self.translation.path

    async def _chat(self, prefix: Prefix, settings: Sampling, key: int, dialect: Dialect | None = None) -> Completion:
        body = self._chat_body(prefix, settings, key, dialect)
        host, answer = self.endpoint.host, await self.transport.post(self._chat_path, body)
        if self.translation is not None:
            try:
                answer = self.translation.heard(answer)
            except UserError as error:
                raise ProviderError("shape", f"{host} answers with another shape: {error.args[0]}") from None
        choice = wire.only_choice(answer, host)
        who = self._heard_from(answer)
        return with_data(wire.reply_of(choice, answer.get("usage"), host), who)

    async def _complete(self, given: list[int], settings: Sampling, key: int, extra: Mapping[str, Any]) -> Completion:
        """One sample. A first token with its own bans is sampled alone and the rest after it,
        which leaves the distribution as it is."""
        if not settings.ban_first:
            return await self._completed(given, settings, key, self._dialect, extra)
        alone = replace(settings, max_tokens=1, ban=(*settings.ban, *settings.ban_first), ban_first=())
        first = await self._completed(given, alone, key, self._dialect, extra)
        assert first.tokens is not None
        if first.stop != "length" or settings.max_tokens == 1:
            return first
        # ``until`` is about the whole reply, so it is called when both are joined
        rest_settings = replace(settings, max_tokens=settings.max_tokens - 1, ban_first=(), until=None)
        rest = await self._completed(
            [*given, *first.tokens.tolist()], rest_settings, derive_key(key, "rest"), self._dialect, extra
        )
        assert rest.tokens is not None
        model = [d.model_logprobs for d in (first, rest) if d.model_logprobs is not None]
        logprobs = np.concatenate(model) if len(model) == 2 else None
        return self._sample(
            [*first.tokens.tolist(), *rest.tokens.tolist()],
            logprobs,
            rest.stop,
            settings,
            rest.data or {},
            _is_plain(settings, extra),
        )

    async def _completed(
        self, given: list[int], settings: Sampling, key: int, dialect: Dialect, extra: Mapping[str, Any] | None = None
    ) -> Completion:
        body = dialect.tokens(self.model, settings, key) | {"prompt": given} | dict(extra or {})
        host = self.endpoint.host
        answer = await self.transport.post("/completions", body)
        choice = wire.only_choice(answer, host)
        who = self._heard_from(answer)
        stop = wire.stop_of(choice, host)
        tokens = wire.choice_ids(choice, self._pieces, self._limit, host)
        if tokens is None:
            raise ProviderError("tokens", f"{host} gives no ids of the tokens it sampled")
        logprobs = wire.choice_logprobs(choice, len(tokens), host)
        self._check_sampled(tokens, logprobs, settings)
        if not wire.reason_of(choice) and len(tokens) >= settings.max_tokens:
            stop = "length"
        return self._sample(tokens, logprobs, stop, settings, wire.usage_of(answer) | who, _is_plain(settings, extra or {}))

    def _check_secret(self, text: str) -> None:
        """Raises ProviderError where sampled tokens spell the key: tokens are never edited, so the sample fails."""
        if self.transport.key.scrub(text) != text:
            raise ProviderError("tokens", f"{self.endpoint.host} returned the API key it was sent", final=True)

    def _check_sampled(self, tokens: Sequence[int], logprobs: np.ndarray | None, settings: Sampling) -> None:
        """Raises ProviderError where a sample is not what was requested."""
        host = self.endpoint.host
        if not tokens or len(tokens) > settings.max_tokens:
            raise ProviderError("tokens", f"{host} gives {len(tokens)} tokens where 1 to {settings.max_tokens} were requested")
        if set(tokens) & set(settings.ban):
            raise ProviderError("tokens", f"{host} sampled a token that the request bans (logit_bias)", final=True)
        if logprobs is None and "logprobs" in (self._offers or ()):
            raise ProviderError("logprobs", f"{host} gives no log-probs, which it gave before")

    def _sample(
        self, tokens: list[int], logprobs: np.ndarray | None, stop: str, settings: Sampling, data: Mapping[str, Any], plain: bool
    ) -> Completion:
        """A sample cut after the first token that stops it:
        servers stop late, or not at all, and what they sampled before stays valid.

        ``plain`` says whether ``logprobs`` are those of the sampling distribution, too.
        """
        text, ends = self.tokenizer.decode(tokens), self.tokenizer.ends(tokens)
        self._check_secret(text)
        array = np.array(tokens, np.int32)
        for count, token in enumerate(tokens, 1):
            kept = text[: int(ends[count - 1])]
            fresh = kept[max(0, (int(ends[count - 2]) if count > 1 else 0) - max(map(len, settings.stop_texts), default=0)) :]
            texts = any(stop_text in fresh for stop_text in settings.stop_texts)
            if token in settings.stop_tokens or texts or (settings.until is not None and settings.until(array[:count])):
                stop = "stop"
                text, ends, array = kept, ends[:count], array[:count]
                logprobs = None if logprobs is None else logprobs[:count]
                break
        scores = logprobs if plain else None
        return Completion(text, stop, array, scores, logprobs, None, ends, data or None, cached=wire.cached_in(data))

    async def _score(self, row: list[int], scores: str = "", top_k: int = 0) -> TokenScores:
        if not row:
            return TokenScores(np.zeros(0, np.float32))
        body: dict[str, Any] = {"model": self.model, "prompt": row, "temperature": 1.0, "max_tokens": 1}
        scores = scores or self._dialect.scores
        body |= {"prompt_logprobs": top_k} if scores == "prompt_logprobs" else {"echo": True, "logprobs": 1, "max_tokens": 0}
        host = self.endpoint.host
        answer = await self.transport.post("/completions", body)
        choice = wire.only_choice(answer, host)
        self._heard_from(answer)
        logprobs = wire.prompt_logprobs(choice, row, host)
        if logprobs is None:
            raise ProviderError("logprobs", f"{host} gives no log-probs of given tokens")
        if not top_k:
            return TokenScores(logprobs)
        return TokenScores(logprobs, None, *wire.prompt_alternatives(choice, len(row), top_k, self._limit, host))

    # -- what the server can do

    @cached_property
    def _limit(self) -> int:
        """One more than the largest token id."""
        if isinstance(self.tokenizer, HfTokenizer):
            return max(self.tokenizer.raw.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        return 1 << 31

    @cached_property
    def _pieces(self) -> dict[str, int] | None:
        """Token ids by their text, where no two tokens have the same text;
        else None, since sampled text is never encoded again."""
        if not isinstance(self.tokenizer, HfTokenizer):
            return None
        texts = {self.tokenizer.decode([token]): token for token in range(self._limit)}
        return texts if len(texts) == self._limit and not any("\ufffd" in text for text in texts) else None

    async def _discover(self) -> frozenset[str]:
        """Try ever plainer dialects until the server accepts one; then examine its answer."""
        if self.translation is not None:  # the protocol says what it takes
            return _TRANSLATED
        refused: ProviderError | None = None
        for dialect in DIALECTS[self.mode]:
            try:
                first = await self._look(1, dialect)
                break
            except ProviderError as error:
                if error.kind not in ("request", "tokens"):
                    raise
                refused = error
        else:
            if self.mode == "chat" and refused is not None:
                raise refused
            self._lacks = f"takes and returns no token ids ({refused.message if refused else ''})"
            return frozenset()
        self._dialect = dialect
        offers = set(_CHAT)
        offers |= {"tokens", "continue"} if first.tokens is not None else set()
        if dialect.seed and await self._repeats(dialect):
            offers.add("seeds")
        if first.model_logprobs is not None:
            offers.add("logprobs")
            offers |= await self._scoring(first)
        return frozenset(offers)

    async def _repeats(self, dialect: Dialect) -> bool:
        """Whether the same seed repeats a reply and another seed changes it:
        a server may ignore seeds and always give one reply."""
        wild = replace(_LOOK, temperature=2.0)
        try:
            first, again, *others = [await self._seen(seed, dialect, wild) for seed in (1, 1, 2, 3)]
        except ProviderError as error:
            if error.again:
                raise
            return False  # some hosted models take temperature 1 only
        return _same(first, again) and not all(_same(first, other) for other in others)

    async def _seen(self, seed: int, dialect: Dialect, settings: Sampling) -> Completion:
        """A look whose reply may be one that the server cannot read: that it cannot is what the seed gave."""
        try:
            return await self._look(seed, dialect, settings)
        except ProviderError as error:
            if error.kind != "unread":
                raise
            return Completion(error.message, "failed")

    async def _look(self, seed: int, dialect: Dialect, settings: Sampling = _LOOK) -> Completion:
        if self.chats:
            prefix = Prefix(messages=(Message("user", "Name a colour, a town and a number."),))
            return await self._chat(prefix, settings, seed, dialect)
        return await self._completed(self._sample_ids, settings, seed, dialect)

    @cached_property
    def _sample_ids(self) -> list[int]:
        return list(self.tokenizer.encode("The colour, the town and the number:")) or [0]

    async def _scoring(self, sampled: Completion) -> set[str]:
        """Whether the server scores given tokens, with the same values as when it sampled them."""
        assert sampled.tokens is not None
        assert sampled.model_logprobs is not None
        for scores in ("prompt_logprobs", "echo"):
            try:
                scored = (await self._score([*self._sample_ids, *sampled.tokens.tolist()], scores)).logprobs[
                    -len(sampled.tokens) :
                ]
            except ProviderError as error:
                if error.again:
                    raise
                continue
            if np.abs(scored - sampled.model_logprobs).max() < _AGREE:
                self._dialect = replace(self._dialect, scores=scores)
                return {"prompt_logprobs"}
        return set()

    def _follows_top_k(self) -> bool:
        """Whether top_k is followed: with top_k 1 two seeds sample the same at a high temperature."""
        with self._lock:
            if self._top_k is None:
                self._top_k = wait_for(self._try_top_k())
        return self._top_k

    def _follows_grammar(self, kind: str) -> bool:
        """Whether a grammar of this kind is enforced: it forces a reply that no model would give otherwise."""
        with self._lock:
            if kind not in self._grammars:
                self._grammars[kind] = wait_for(self._try_grammar(kind))
        return self._grammars[kind]

    async def _try_grammar(self, kind: str) -> bool:
        text = {"json": '{"enum": ["quux-7 quux-7"]}', "lark": 'start: "quux-7 quux-7"'}.get(kind, "quux-7 quux-7")
        try:
            completion = await self._look(1, self._dialect, replace(_LOOK, max_tokens=32, grammar=Grammar(kind, text)))
            return completion.text.replace('"', "").strip() == "quux-7 quux-7"
        except ProviderError as error:
            if error.kind != "request":
                raise
            return False

    async def _try_top_k(self) -> bool:
        settings = replace(_LOOK, temperature=2.0, top_k=1)
        try:
            first, second = [await self._look(seed, self._dialect, settings) for seed in (1, 2)]
            return _same(first, second)
        except ProviderError as error:
            if error.kind != "request":
                raise
            return False


def with_data(completion: Completion, more: Mapping[str, Any]) -> Completion:
    """``completion`` with ``more`` in its data."""
    return replace(completion, data={**(completion.data or {}), **more}) if more else completion


def _same(left: Completion, right: Completion) -> bool:
    if left.tokens is not None and right.tokens is not None:
        return bool(np.array_equal(left.tokens, right.tokens))
    thought = [(completion.data or {}).get("reasoning") for completion in (left, right)]
    return left.text == right.text and thought[0] == thought[1]


@register("model", "chat")
def chat(argument: str = "") -> HttpModel:
    """``chat:MODEL@URL``: messages in, text out."""
    return HttpModel.named("chat", argument)


@register("model", "completions")
def completions(argument: str = "") -> HttpModel:
    """``completions:MODEL@URL?tokenizer=FOLDER``: token ids in and out."""
    return HttpModel.named("completions", argument)


@register("model", "anthropic")
def anthropic(argument: str = "") -> HttpModel:
    """``anthropic:MODEL@URL``: as chat, at a server of Anthropic's Messages."""
    return HttpModel.named("anthropic", argument)


@register("model", "responses")
def responses(argument: str = "") -> HttpModel:
    """``responses:MODEL@URL``: as chat, at a server of OpenAI's Responses."""
    return HttpModel.named("responses", argument)
