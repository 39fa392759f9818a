"""Requests passed on to an OpenAI-compatible server as they are, and its answers passed back: read on the side, counted, recorded.

Bytes go through unchanged, but an answer is checked before it counts: what an upstream does wrong becomes one error in OpenAI's shape, in bounded
memory and time. The client's own headers, its key among them, go nowhere; the upstream's key comes from the environment. Nothing is tried twice:
clients have retries of their own.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ramify.base.errors import BoundaryError, RamifyError, UserError
from ramify.base.ids import canonical_json
from ramify.model import wire
from ramify.model.endpoint import HttpModel
from ramify.model.http import ProviderError, Transport
from ramify.model.protocol import CLIENT, Draw, Message, Prefix, Sampling
from ramify.model.sse import MAX_ANSWER, MAX_CHOICES, TYPE, Events, Heard
from ramify.trace.messages import message, plain
from ramify.web.answers import refusal
from ramify.web.draws import begun, unless_gone
from ramify.web.exchange import Exchange, Recorder
from ramify.web.limits import Places, RefusedError, client_of, read_json
from ramify.web.metrics import Metrics

_DONE = "data: [DONE]\n\n"
_AHEAD = 256 << 10
"""Bytes of a stream that wait for a client who reads slowly."""
_LINGER = 0.25
"""Seconds for an upstream to end its answer after it said [DONE]."""


class Gateway:
    """Passes chats and completions on to the server of ``model``, known to clients as ``name``. See :class:`ramify.web.api.Api`."""

    def __init__(self, model: HttpModel, name: str, places: Places, metrics: Metrics, record: Recorder | None = None) -> None:
        self.model, self.name, self.places, self.metrics, self.record = model, name, places, metrics, record
        limits = model.transport.limits
        most = places.running + places.waiting
        self.transport = Transport(
            model.endpoint,
            replace(limits, concurrent=max(limits.concurrent, most), max_bytes=min(limits.max_bytes, MAX_ANSWER)),
        )

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._answer(request, "chat", "/chat/completions")

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._answer(request, "completions", "/completions")

    async def _answer(self, request: Request, route: str, path: str) -> Response:
        start = time.monotonic()
        body = await request.body()
        asked = read_json(body)
        CLIENT.set(client_of(asked, request))
        call = _Call(self, route, path, self._named(asked, body), asked, start)
        if asked.get("stream"):
            return await begun(request.receive, call.events())
        return Response(await unless_gone(request.receive, call.whole()), media_type="application/json")

    def _named(self, asked: Mapping[str, Any], body: bytes) -> bytes:
        """The body to pass on, where the model that is asked for is this one. Raises RefusedError."""
        named = asked.get("model")
        if named == self.model.model:
            return body
        if named == self.name:
            return json.dumps({**asked, "model": self.model.model}).encode()
        raise RefusedError(404, f"There is no model '{str(named)[:80]}' here; ask for '{self.name}'.", "model", "model_not_found")


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

    def __init__(self, gateway: Gateway, route: str, path: str, body: bytes, asked: Mapping[str, Any], start: float) -> None:
        self.gateway, self.route, self.path, self.body, self.asked, self.start = gateway, route, path, body, asked, start
        n, prompts = asked.get("n"), asked.get("prompt") if route == "completions" else None
        self.n = n if type(n) is int and n > 0 else 1  # the upstream refuses any other
        several = isinstance(prompts, list) and bool(prompts) and all(isinstance(one, (str, list)) for one in prompts)
        self.prompts: list[Any] = prompts if several else [prompts]  # type: ignore[assignment]
        for count, field in ((self.n, "n"), (len(self.prompts), "prompt")):
            if count > MAX_CHOICES:
                raise RefusedError(400, f"Field '{field}': at most {MAX_CHOICES} are taken, not {count}.", field, "invalid_value")
        self.host = gateway.model.endpoint.host
        self.id = self.who = ""
        self.told = False
        """Whether the end is counted and the recorder told: what is cut off while it writes is not told again."""

    async def whole(self) -> bytes:
        """The body of the upstream's answer. Raises ProviderError, RefusedError."""
        transport = self.gateway.transport
        with self.gateway.places.take(CLIENT.get(), self.n * len(self.prompts)):
            try:
                async with transport.opened("POST", self.path, self.body) as response:
                    raw = await transport.read(response)
                answer = transport.checked(response, raw)
                draws = self._draws(answer)
            except ProviderError as error:
                await self._end({}, error)
                raise
            except asyncio.CancelledError:
                self._leave({})
                raise
            self._first()
            await self._end(draws, None, answer.get("usage"))
        return transport.scrub(raw.decode("utf-8", "replace")).encode()

    async def events(self) -> AsyncGenerator[str, None]:
        """The upstream's events as they come. What goes wrong before the first is raised; later it is the last event, in OpenAI's shape."""
        transport, heard = self.gateway.transport, Heard("", self.host)
        begun = False
        with self.gateway.places.take(CLIENT.get(), self.n * len(self.prompts)):
            try:
                async with aclosing(self._passed(heard)) as passed:
                    async for text in passed:
                        if not begun:
                            begun = True
                            self._first()
                        yield transport.scrub(text)
                self.id, self.who = heard.id, heard.who
                await self._end(heard.draws(), None, heard.usage)
            except RamifyError as error:
                if isinstance(error, ProviderError):
                    await self._end(self._partial(heard, str(error)), error, heard.usage)
                if not begun:
                    raise
                yield f"data: {json.dumps(refusal(error).to_json())}\n\n"
                return
            except (asyncio.CancelledError, GeneratorExit):
                # nothing can be awaited here for long: the recorder takes the exchange at once and stores it by itself
                self._leave(self._partial(heard, "the client left"), heard.usage)
                raise
        yield _DONE

    async def _passed(self, heard: Heard) -> AsyncGenerator[str, None]:
        """Whole events, read before they are passed on; what came in one go passes in one go. Raises ProviderError.

        One task reads from the first byte to the last, since a time limit holds for the task that set it.
        """
        flow = _Flow()
        reading = asyncio.create_task(self._read(heard, flow))
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

    async def _read(self, heard: Heard, flow: _Flow) -> None:
        """Read the upstream's stream to its end. Raises ProviderError where it is not whole then."""
        transport, events = self.gateway.transport, Events(self.host)
        async with transport.opened("POST", self.path, self.body, TYPE) as response:
            if response.status_code >= 400:
                transport.checked(response, await transport.read(response))
            pieces = response.aiter_raw()
            async for raw in pieces:
                for event, told in events.push(raw):
                    heard.take(told)
                    flow.put(event)
                if events.done:
                    break
                await flow.room.wait()
            with suppress(TimeoutError):  # a connection read to its end serves again
                async with asyncio.timeout(_LINGER):
                    async for _ in pieces:
                        pass
        if not heard.whole:
            raise ProviderError("cut", f"the stream of {self.host} ended before its reply did")

    # -- what is kept of it

    def _draws(self, answer: Mapping[str, Any]) -> dict[int, Draw]:
        self.who = wire.who_answers(answer)
        self.id = str(answer.get("id") or "")[:200]
        found: dict[int, Draw] = {}
        for at, choice in enumerate(wire.choices_of(answer, self.host)):
            said = choice if self.route == "chat" else {**choice, "message": {"content": choice.get("text")}}
            try:
                draw = wire.chat_draw({"choices": [said], "usage": answer.get("usage")}, "", self.host)
            except ProviderError as error:
                if error.kind != "filtered":
                    raise
                draw = Draw("", "failed", data={"failure": str(error)})
            index = choice.get("index")
            found[index if type(index) is int else at] = draw
        if not found:
            raise ProviderError("empty", f"{self.host} answers with no choice")
        return found

    def _partial(self, heard: Heard, why: str) -> dict[int, Draw]:
        self.id, self.who = heard.id, heard.who
        try:
            return heard.draws(why)
        except ProviderError:
            return {}

    async def _end(self, draws: Mapping[int, Draw], failed: Exception | None, usage: Any = None) -> None:
        """Count, and record before the answer's end goes out. Raises RamifyError where it cannot be recorded."""
        self._count(usage)
        if self.gateway.record is not None:
            await self.gateway.record(self._exchange(draws, failed))

    def _leave(self, draws: Mapping[int, Draw], usage: Any = None) -> None:
        self.gateway.metrics.gone.inc()
        if self.told:
            return
        self._count(usage)
        if self.gateway.record is not None:
            gone = BoundaryError("provider", "the client left")
            kept = asyncio.ensure_future(self.gateway.record(self._exchange(draws, gone)))
            kept.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _count(self, usage: Any) -> None:
        self.told = True
        counts = wire.usage_of({"usage": usage}).get("usage", {})
        self.gateway.metrics.count(counts.get("prompt_tokens", 0), 0, counts.get("completion_tokens", 0))

    def _exchange(self, draws: Mapping[int, Draw], failed: Exception | None) -> Exchange:
        prompts = tuple(self._prompts())
        missing = failed or BoundaryError("provider", f"{self.host} gave no such choice")
        n, seed = self.n, self.asked.get("seed")
        if not draws:  # a request that came to nothing is one node, however much it asked for
            prompts, n = prompts[:1], 1
        elif self.who and self.who != self.gateway.model.model:
            names = {"model": {"asked": self.gateway.model.model, "answered": self.who}}
            draws = {at: replace(draw, data={**(draw.data or {}), **names}) for at, draw in draws.items()}
        outcomes = tuple(tuple(draws.get(p * n + i, missing) for i in range(n)) for p in range(len(prompts)))
        keys = ((seed if type(seed) is int else 0,) * n,) * len(prompts)
        return Exchange(
            self.id or "unknown", self.route, self.gateway.model.identity, prompts, _settings(self.asked), keys, outcomes
        )

    def _prompts(self) -> Iterator[Prefix]:
        """What was asked, also where it is not what the protocol says: the upstream is who refuses that."""
        if self.route == "chat":
            given = self.asked.get("messages")
            tools = [tool for tool in self.asked.get("tools") or () if isinstance(tool, dict)]
            yield Prefix(messages=tuple(map(_message, given if isinstance(given, list) else [given])), tools=tuple(tools))
            return
        for one in self.prompts:
            ids = isinstance(one, list) and one and all(type(token) is int and 0 <= token < 1 << 31 for token in one)
            text = one if isinstance(one, str) else canonical_json(plain(one))
            yield Prefix(np.array(one, np.int32)) if ids else Prefix(messages=(Message("user", text),))

    def _first(self) -> None:
        self.gateway.metrics.first.observe(time.monotonic() - self.start)


def _message(value: Any) -> Message:
    try:
        role, text, data = message(value, "a message")
    except UserError:
        role, text, data = "user", canonical_json(plain(value)), {}
    return Message(role, text, data)


def _settings(asked: Mapping[str, Any]) -> Sampling:
    """The sampling settings among a request's fields, those that are none left at their defaults."""
    found: dict[str, Any] = {}
    for name, kind in (("temperature", float), ("top_p", float), ("top_k", int), ("max_tokens", int)):
        value = asked.get("max_completion_tokens", asked.get(name)) if name == "max_tokens" else asked.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 1 << 53:
            found[name] = kind(value)
    stops = asked.get("stop")
    stops = [stops] if isinstance(stops, str) else stops if isinstance(stops, list) else []
    return Sampling(**found, stop_texts=tuple(stop for stop in stops if isinstance(stop, str)))
