"""A proxy of a model's server: requests and answers pass unchanged and are validated, counted and recorded.

What is asked in the protocol that the upstream speaks (chat completions, OpenAI's Responses, Anthropic's Messages) goes on as it
is; before an upstream of chats the other two are translated (:mod:`ramify.web.protocols`). Only middleware changes bytes
(:mod:`ramify.web.passing`). An upstream that fails, breaks off or does not end becomes one error in the protocol's format, in
bounded memory and time. What is only recorded is never failed for being of another shape than the protocol's: it passes, and the
record holds what could be read of it and says what could not (``unread``). Middleware has to read it. The client's headers, its
key among them, are not forwarded (but for version and betas of Anthropic's protocol), and the upstream's key comes from the
environment; with ``pass_key`` the client's own key goes on, and nothing keeps it. Requests are not retried: clients have their
own retries."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.seeds import derive_key
from ramify.model import wire
from ramify.model.address import Secret
from ramify.model.asked import asked_settings
from ramify.model.endpoint import HttpModel
from ramify.model.http import JSON, ProviderError, Transport, key_header
from ramify.model.middleware import Middleware, told_by
from ramify.model.protocol import CLIENT, Completion, Prefix, Sampling
from ramify.model.sse import MAX_ANSWER, MAX_CHOICES, TYPE, EventParser, Heard, Withheld, as_event
from ramify.model.translation import Hearing, SpokenRequest, renamed
from ramify.web.answers import refusal
from ramify.web.exchange import Exchange, Recorder
from ramify.web.forms import Served
from ramify.web.limits import RefusedRequestError, Slots, client_of, read_json
from ramify.web.metrics import Metrics
from ramify.web.passing import (
    Held,
    HeldSpoken,
    edited,
    edited_spoken,
    input_of,
    prefixes,
    prompts_of,
    read_choice,
    read_spoken,
    write_choice,
    write_spoken,
)
from ramify.web.protocols import TRANSLATIONS, KeptResponses, translated
from ramify.web.sampling import begun, unless_gone, why_cut

_DONE = "data: [DONE]\n\n"
_AHEAD = 256 << 10
"""Bytes of a stream that wait for a client who reads slowly."""
_LINGER = 0.25
"""Seconds for an upstream to end its answer after it said [DONE]."""


class Gateway:
    """Passes chats and completions on to the server of ``model``,
    through ``layers`` of middleware. See :class:`ramify.web.api.Api`."""

    def __init__(
        self,
        model: HttpModel,
        layers: Sequence[Middleware],
        served: Served,
        slots: Slots,
        metrics: Metrics,
        record: Recorder | None,
        kept: KeptResponses,
        pass_key: bool = False,
    ) -> None:
        self.kept, self.pass_key = kept, pass_key
        self.spoken = "" if model.translation is None else model.translation.name
        """The upstream's protocol as a route, "" of chats."""
        self.path = "/v1" + ("/chat/completions" if model.translation is None else model.translation.path)
        self.model, self.layers, self.served = model, layers, served
        self.name, self.identity = served.name, served.model.identity
        self.slots, self.metrics, self.record = slots, metrics, record
        self.rewrites = any(layer.rewrites for layer in layers)
        limits = model.transport.limits
        most = slots.running + slots.waiting
        self.transport = Transport(
            model.endpoint,
            replace(limits, concurrent=max(limits.concurrent, most), max_bytes=min(limits.max_bytes, MAX_ANSWER)),
            protocol=model.mode,
            key=Secret("") if pass_key else None,
        )

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._answer(request, "chat", "/chat/completions")

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._answer(request, "completions", "/completions")

    async def messages(self, request: Request) -> Response:
        """``POST /v1/messages``."""
        return await self._answer(request, "messages", "/messages")

    async def responses(self, request: Request) -> Response:
        """``POST /v1/responses``."""
        return await self._answer(request, "responses", "/responses")

    async def count_tokens(self, request: Request) -> Response:
        """``POST /v1/messages/count_tokens``: the upstream's own count; one of chats counts where it answers with one token."""
        body = await request.body()
        fields = read_json(body)
        self._check_name(fields)
        transport = self._transport(request)
        if self.spoken == "messages":
            sent = json.dumps({**fields, "model": self.model.model}).encode() if fields["model"] != self.model.model else body
            async with transport.opened("POST", "/messages/count_tokens", sent) as response:
                answer = transport.checked(response, await transport.read(response))
            return JSONResponse(answer)
        asked = TRANSLATIONS["messages"].read({**fields, "max_tokens": 1, "stream": False})
        chat = self._named(asked.fields | {"model": self.model.model})
        async with transport.opened("POST", "/chat/completions", json.dumps(chat).encode()) as response:
            answer = transport.checked(response, await transport.read(response))
        count = wire.usage_of(answer).get("usage", {}).get("prompt_tokens")
        if count is None:
            raise ProviderError("shape", f"{self.model.endpoint.host} counts no tokens")
        return JSONResponse({"input_tokens": count})

    def _named(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A translated request, with its limit under the name that the upstream knows."""
        if self.model.limit_field != "max_tokens" and "max_tokens" in fields:
            fields[self.model.limit_field] = fields.pop("max_tokens")
        return fields

    def _transport(self, request: Request) -> Transport:
        """How a request of this client goes on: with its own key, where keys are passed."""
        anthropic = self.model.mode == "anthropic"
        if not (self.pass_key or anthropic):
            return self.transport
        given = request.headers
        sent = {name: given[name] for name in ("anthropic-version", "anthropic-beta") if anthropic and name in given}
        key = Secret("")
        if self.pass_key:
            bearer, header = given.get("authorization", ""), given.get("x-api-key", "")
            key = Secret(header or bearer.rpartition(" ")[2])
            if bearer and not (anthropic and header):
                key = Secret(bearer.rpartition(" ")[2])
                sent["authorization"] = bearer
            elif header:
                sent |= key_header(key, self.model.mode)
        return self.transport.sending(sent, key if self.pass_key else None)

    def _check_name(self, fields: Mapping[str, Any]) -> None:
        if (named := fields.get("model")) not in (self.name, self.model.model):
            raise RefusedRequestError(
                404, f"There is no model '{str(named)[:80]}' here; use '{self.name}'.", "model", "model_not_found"
            )

    async def _answer(self, request: Request, route: str, path: str) -> Response:
        start = time.monotonic()
        body = await request.body()
        fields = read_json(body)
        if route in TRANSLATIONS and route != self.spoken:

            async def answer(chat: dict[str, Any]) -> Response:
                chat = self._named(chat)
                return await self._passed_on(request, "chat", "/chat/completions", json.dumps(chat).encode(), chat, start)

            return await translated(TRANSLATIONS[route], fields, self.kept, False, answer)
        return await self._passed_on(request, route, path, body, fields, start)

    async def _passed_on(
        self, request: Request, route: str, path: str, body: bytes, fields: Mapping[str, Any], start: float
    ) -> Response:
        CLIENT.set(client_of(fields, request))
        self._check_name(fields)
        call = _Call(self, route, path, body, fields, start, self._transport(request))
        if fields.get("stream"):
            return await begun(request.receive, call.events())
        return Response(await unless_gone(request.receive, call.whole()), media_type="application/json")


class _Flow:
    """Events on their way from upstream to client; ``room`` is there while less than _AHEAD bytes wait."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.news, self.room = asyncio.Event(), asyncio.Event()
        self.room.set()
        self._size = 0

    def put(self, event: bytes) -> None:
        self.events.append(event)
        self._size += len(event)
        self.news.set()
        if self._size > _AHEAD:
            self.room.clear()

    def taken(self) -> str:
        """All that waits; it is JSON, so it is UTF-8."""
        text = b"".join(self.events).decode()
        self.events.clear()
        self._size = 0
        self.room.set()
        return text


class _Call:
    """One request on its way. Use it once."""

    def __init__(
        self,
        gateway: Gateway,
        route: str,
        path: str,
        raw: bytes,
        fields: Mapping[str, Any],
        start: float,
        transport: Transport,
    ) -> None:
        self.gateway, self.route, self.path, self.raw, self.fields, self.start = gateway, route, path, raw, fields, start
        self.transport, self.translation = transport, TRANSLATIONS.get(route)
        n = fields.get("n")
        self.n = n if type(n) is int and n > 0 else 1  # the upstream refuses any other
        prompts = len(prompts_of(fields)) if route == "completions" else 1
        for count, field in ((self.n, "n"), (prompts, "prompt")):
            if count > MAX_CHOICES:
                raise RefusedRequestError(
                    400, f"Field '{field}': at most {MAX_CHOICES} are taken, not {count}.", field, "invalid_value"
                )
        self.samples = self.n * prompts
        self.asked = SpokenRequest(fields, {})
        self.given = self._given() if gateway.layers or gateway.record is not None else []
        self.seen: list[list[Prefix]] = []
        """What each piece of middleware was given of each prompt, and what the model is shown of it."""
        self.public = gateway.name if fields["model"] != gateway.model.model else ""
        """The client's name of the model, where the upstream's differs."""
        self.host = gateway.model.endpoint.host
        self.ends = () if self.translation is None else self.translation.ends
        self.id = self.who = self.unread = ""
        self.lenient = not gateway.layers
        self.ended = False
        """Whether the end is counted and recorded, so that an interruption does not record it twice."""

    def _given(self) -> list[Prefix]:
        """The prompts of the request. Raises UserError where middleware could not read one of another protocol."""
        if self.translation is None:
            return prefixes(self.route, self.fields)
        before, kept = self.fields.get("previous_response_id"), self.gateway.kept
        items = kept.items(before) if before in kept else []
        self.asked, prefix = read_spoken(self.translation, self.fields, items, bool(self.gateway.layers))
        return [prefix]

    async def whole(self) -> bytes:
        """The body of the upstream's answer, with what middleware changed.
        Raises ProviderError, RefusedError, and what middleware raises."""
        transport = self.transport
        with self.gateway.slots.take(CLIENT.get(), self.samples):
            try:
                body = await self._body()
                async with transport.opened("POST", self.path, body) as response:
                    raw = await transport.read(response)
                answer = self._checked(response, raw)
                said = self._said(answer)
                completions = self._draws(said)
                made = await self._made(completions)
            except asyncio.CancelledError as error:
                self._leave({}, why_cut(error))
                raise
            except Exception as error:
                await self._end({}, error)
                raise
            self._first()
            await self._end(made, self._unread(), said.get("usage"))
        text = raw.decode("utf-8", "replace")
        if not answer:
            return transport.key.scrub(text).encode()
        unchanged = not self.public and all(made[at] is completion for at, completion in completions.items())
        if unchanged and transport.key.scrub(text) == text:
            self._keep(answer)
            return raw
        for at, choice in self._choices(said) if completions else ():
            if at in completions and self.translation is None:
                write_choice(self.route, choice, completions[at], made[at])
            elif at in completions and self.translation is not None:
                write_spoken(self.translation, answer, choice, completions[at], made[at])
        self._keep(answer)
        return json.dumps(answer | self._name(answer), ensure_ascii=False).encode("utf-8", "replace")

    async def events(self) -> AsyncGenerator[str, None]:
        """The upstream's events as they come. What goes wrong before the first is raised;
        later it is the last event, in OpenAI's shape.

        Where there is middleware, the last event of each choice waits for it; all wait where it may change a reply's text.
        """
        heard = Heard(self.host, extra=bool(self.given), lenient=self.lenient)
        held: Held | HeldSpoken | None = None
        if self.gateway.layers:
            rewrites, spoken = self.gateway.rewrites, self.translation
            held = Held(rewrites) if spoken is None else HeldSpoken(rewrites, spoken, self.asked)
        begun = False
        with self.gateway.slots.take(CLIENT.get(), self.samples):
            try:
                body = await self._body()
                async with aclosing(self._passed(body, heard, held)) as passed:
                    async for text in passed:
                        if not begun:
                            begun = True
                            self._first()
                        yield text
                self.id, self.who, self.unread = heard.id, heard.who, self.unread or heard.unread
                completions = heard.completions()
                made = await self._made(completions)
                await self._end(made, self._unread(), heard.usage)
                for event in () if held is None else held.released(self.route, completions, made):
                    if not begun:
                        begun = True
                        self._first()
                    self._keep(event.get("response"))
                    yield as_event(event | self._name(event)).decode()
            except (asyncio.CancelledError, GeneratorExit) as error:
                # nothing can be awaited here for long: the recorder takes the exchange at once and stores it by itself
                self._leave(self._partial(heard, why_cut(error)), why_cut(error), heard.usage)
                raise
            except Exception as error:
                if not self.ended:
                    await self._end(self._partial(heard, str(error)), error, heard.usage)
                if not begun or not isinstance(error, RamifyError):
                    raise
                yield self._broken(error)
                return
        if self.translation is None:
            yield _DONE

    def _broken(self, error: RamifyError) -> str:
        """The last event of a stream that breaks off."""
        refused = refusal(error, self.gateway.served)
        body = refused.to_json()
        if self.translation is None:
            return f"data: {json.dumps(body)}\n\n"
        events = self.translation.telling(self.asked, self.id).failed(refused.status, body["error"])
        return b"".join(map(as_event, events)).decode()

    def _keep(self, answer: Any) -> None:
        """Keep a response that a later request may name, so that its conversation is recorded as one."""
        if self.route == "responses" and isinstance(answer, dict) and self.given:
            before = self.fields.get("previous_response_id")
            items = self.gateway.kept.items(before) if before in self.gateway.kept else []
            self.gateway.kept.put([*items, *input_of(self.fields)], answer)

    async def _passed(self, body: bytes, heard: Heard, held: Held | HeldSpoken | None) -> AsyncGenerator[str, None]:
        """Whole events, read before they are passed on; what came in one go passes in one go. Raises ProviderError.

        One task reads from the first byte to the last, since a time limit holds for the task that set it.
        """
        flow = _Flow()
        reading = asyncio.create_task(self._read(body, heard, held, flow))
        reading.add_done_callback(lambda _: flow.news.set())
        try:
            while not (reading.done() and not flow.events):
                await flow.news.wait()
                flow.news.clear()
                if flow.events:
                    yield flow.taken()
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, body: bytes, heard: Heard, held: Held | HeldSpoken | None, flow: _Flow) -> None:
        """Read the upstream's stream to its end. Raises ProviderError where it is not whole then."""
        transport, events = self.transport, EventParser(self.host, self.lenient)
        hearing: Hearing | None = None if self.translation is None else self.translation.hearing()
        async with transport.opened("POST", self.path, body, f"{TYPE}|{JSON}") as response:
            kind = response.headers.get("content-type", "nothing").partition(";")[0].strip().lower()
            if response.status_code >= 400 or kind != TYPE:
                transport.checked(response, await transport.read(response))  # raises the error that comes in the stream's place
                raise ProviderError("content_type", f"{self.host} answers with '{kind}' instead of a stream of events")
            withheld = Withheld(transport.key)

            def passes(event: bytes, data: dict[str, Any]) -> None:
                if data and hearing is None:
                    heard.take(data)
                elif data and hearing is not None:
                    for chunk in hearing.take(data):
                        heard.take(chunk)
                    self._keep(data.get("response") if data.get("type") in self.ends else None)
                else:
                    heard.unread = heard.unread or events.unread or f"{self.host} streams an empty object"
                    event = transport.key.scrub(event.decode("utf-8", "replace")).encode()
                if self.public and (renamed := self._name(data)):
                    event = as_event(data | renamed)
                    data |= renamed
                if held is None or not held.takes(data):
                    flow.put(event)

            pieces = response.aiter_raw()
            async for raw in pieces:
                for event in events.push(raw):
                    for safe in withheld.push(*event):
                        passes(*safe)
                if events.done:
                    break
                await flow.room.wait()
            with suppress(TimeoutError):  # a connection read to its end serves again
                async with asyncio.timeout(_LINGER):
                    async for _ in pieces:
                        pass
        for safe in withheld.rest():
            passes(*safe)
        heard.done = events.done
        if not (heard.whole or (heard.unread and events.done)):
            raise ProviderError("cut", f"the stream of {self.host} ended before its reply did")

    def _name(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The model's name as the client knows it, where the answer says another."""
        return renamed(answer, self.public) if self.public else {}

    # -- middleware

    async def _body(self) -> bytes:
        """The client's body, but for what middleware changed and the upstream's name of the model."""
        changed: dict[str, Any] = {"model": self.gateway.model.model} if self.public else {}
        if self.gateway.layers and self.translation is not None:
            self.seen, edits = await edited_spoken(self.gateway.layers, self.translation, self.asked, self.given[0])
            changed |= edits
        elif self.gateway.layers:
            self.seen, edits = await edited(self.gateway.layers, self.route, self.fields, self.given)
            changed |= edits
        if not changed:
            return self.raw
        body = {name: value for name, value in {**self.fields, **changed}.items() if value is not None or name not in changed}
        return json.dumps(body).encode()

    async def _made(self, completions: Mapping[int, Completion]) -> dict[int, Completion]:
        """What middleware makes of the samples; one that failed is left as it is."""
        seed = self.fields.get("seed")

        async def one(at: int, completion: Completion) -> Completion:
            position = divmod(at, self.n)
            key = derive_key(seed, "serve", *position) if type(seed) is int else secrets.randbits(62)
            return await told_by(self.gateway.layers, self.seen[min(position[0], len(self.seen) - 1)], completion, key)

        if not self.gateway.layers:
            return dict(completions)
        sound = [at for at, completion in completions.items() if completion.stop != "failed"]
        made = await asyncio.gather(*(one(at, completions[at]) for at in sound))
        return {**completions, **dict(zip(sound, made, strict=True))}

    # -- recording

    def _checked(self, response: Any, raw: bytes) -> dict[str, Any]:
        """The JSON object of an answer, an empty one where it is JSON that is none and nobody has to read it. Raises
        ProviderError."""
        try:
            return self.transport.checked(response, raw)
        except ProviderError as error:
            if not self.lenient or error.kind != "shape":
                raise
            self.unread = error.message
            return {}

    def _unread(self) -> Exception | None:
        """What is recorded of a choice that could not be read."""
        return ProviderError("shape", self.unread) if self.unread else None

    def _choices(self, answer: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, choice in enumerate(wire.choices_of(answer, self.host)):
            index = choice.get("index")
            yield index if type(index) is int else at, choice

    def _said(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer as a chat's. Raises ProviderError where it is of another shape and somebody has to read it."""
        if self.translation is None:
            return answer
        try:
            return self.translation.heard(answer)
        except UserError as error:
            if not self.lenient:
                raise ProviderError("shape", f"{self.host} answers with another shape: {error.args[0]}") from None
            self.unread = f"{self.host} answers with another shape: {error.args[0]}"
            return {}

    def _draws(self, answer: Mapping[str, Any]) -> dict[int, Completion]:
        self.who = wire.who_answers(answer)
        self.id = str(answer.get("id") or "")[:200]
        found: dict[int, Completion] = {}
        try:
            choices = dict(self._choices(answer))
            if not choices:
                raise ProviderError("empty", f"{self.host} answers with no choice")
            for at, choice in choices.items():
                found[at] = read_choice("chat" if self.translation else self.route, choice, answer.get("usage"), self.host)
        except ProviderError as error:
            if not self.lenient:
                raise
            self.unread = self.unread or error.message
        return found

    def _partial(self, heard: Heard, why: str) -> dict[int, Completion]:
        self.id, self.who = heard.id, heard.who
        try:
            return heard.completions(why)
        except ProviderError:
            return {}

    async def _end(self, completions: Mapping[int, Completion], failed: Exception | None, usage: Any = None) -> None:
        """Count, and record before the answer's end goes out. Raises RamifyError where it cannot be recorded."""
        self._count(usage)
        if self.gateway.record is not None:
            await self.gateway.record(self._exchange(completions, failed))

    def _leave(self, completions: Mapping[int, Completion], why: str, usage: Any = None) -> None:
        self.gateway.metrics.gone.inc()
        if self.ended:
            return
        self._count(usage)
        if self.gateway.record is not None:
            gone = InfrastructureError("provider", why)
            kept = asyncio.ensure_future(self.gateway.record(self._exchange(completions, gone)))
            kept.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _count(self, usage: Any) -> None:
        self.ended = True
        counts = wire.usage_of({"usage": usage}).get("usage", {})
        self.gateway.metrics.count(counts.get("prompt_tokens", 0), 0, counts.get("completion_tokens", 0))

    def _exchange(self, completions: Mapping[int, Completion], failed: Exception | None) -> Exchange:
        prompts = tuple(self.given)
        missing = failed or InfrastructureError("provider", f"{self.host} gave no such choice")
        n, seed = self.n, self.fields.get("seed")
        if not completions:  # a failed request is one node, however many samples it requested
            prompts, n = prompts[:1], 1
        elif self.who and self.who != self.gateway.model.model:
            names = {"model": {"asked": self.gateway.model.model, "answered": self.who}}
            completions = {
                at: replace(completion, data={**(completion.data or {}), **names}) for at, completion in completions.items()
            }
        outcomes = tuple(tuple(completions.get(p * n + i, missing) for i in range(n)) for p in range(len(prompts)))
        keys = ((seed if type(seed) is int else 0,) * n,) * len(prompts)
        settings = Sampling(**asked_settings(self.fields))
        return Exchange(self.id or "unknown", self.route, self.gateway.identity, prompts, settings, keys, outcomes)

    def _first(self) -> None:
        self.gateway.metrics.first.observe(time.monotonic() - self.start)
