"""HTTP to a model server: retries, rate, timeouts and size limits; every failure is one typed error."""

from __future__ import annotations

import asyncio
import copy
import email.utils
import json
import math
import random
import re
import ssl
import time
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2

from ramify.base.errors import InfrastructureError
from ramify.model.address import Endpoint, EndpointLimits, Secret, read_key
from ramify.model.scripted import refuse_real_calls
from ramify.render.terminal import say

#: What can go wrong at a server, and what each kind means.
KINDS = {
    "connection": "no connection: refused, no such host, TLS",
    "timeout": "no answer in time",
    "cut": "the connection or the body broke off",
    "rate": "429: too many requests, or the quota is used up",
    "server": "5xx: the server failed",
    "unread": "the server could not read what its own model sampled, and would sample the same again",
    "auth": "401 or 403: the key is missing, wrong or not allowed",
    "model": "the server does not have the model, or another model answered",
    "request": "any other 4xx: the server does not accept the request",
    "redirect": "the server sends the caller elsewhere; never followed",
    "content_type": "the answer is not JSON by its header, or is encoded",
    "too_large": "the answer is larger than the limit",
    "json": "the answer is not JSON",
    "shape": "the answer is JSON of another shape than the protocol's",
    "empty": "the answer holds no choice or no content",
    "tokens": "token ids are missing, out of range, or more than requested",
    "logprobs": "log-probs are missing, of another length, not finite or above 0",
    "filtered": "the server withheld the reply",
}
VERSION = "2023-06-01"
"""Of Anthropic's protocol, as its header ``anthropic-version`` says it."""
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
UNREAD = re.compile("model produced output that does not match the expected")
"""llama.cpp's words, with a 500, for a reply that its own parser refuses: bytes that are no UTF-8, an odd tool call."""
_SHOWN = 300
FIRST_WORD, SILENCE = 2.0, 60.0
"""Seconds without an answer after which a person is notified: of a server that never answered yet, and of one that did."""
JSON = r"application/([\w.+-]+\+)?json"


class ProviderError(InfrastructureError):
    """A server's failure, one sentence. ``kind`` is one of :data:`KINDS`; ``status`` the HTTP status, 0 where there was none."""

    def __init__(
        self, kind: str, message: str, *, status: int = 0, final: bool = False, again: bool = False, wait: float | None = None
    ) -> None:
        super().__init__("provider", message)
        self.args = (f"provider ({kind}): {message}",)  # what is recorded says the kind
        self.kind, self.status, self.final = kind, status, final
        self.again = again
        """Whether the same request may succeed a little later."""
        self.wait = wait
        """Seconds to wait that the server requested."""


class Clock:
    """Time and chance; tests bring their own."""

    def now(self) -> float:
        """Seconds, from any start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        """A number in [0, 1), sampled anew."""
        return random.random()


@dataclass
class _Session:
    """What belongs to one event loop."""

    client: httpx2.AsyncClient
    gate: asyncio.Semaphore


@dataclass
class _Pace:
    """When the next request may go."""

    next: float = -math.inf
    held: float = -math.inf


class Transport:
    """Sends requests to one endpoint from any event loop. Connections close with the loop (``asyncio.run`` does that), and those
    of a transport that is gone with the first request of another.

    The endpoint's key goes as a header of ``protocol`` (anthropic has its own, any other takes a bearer); ``key`` is another than
    the environment's."""

    def __init__(
        self,
        endpoint: Endpoint,
        limits: EndpointLimits | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        protocol: str = "",
        key: Secret | None = None,
    ) -> None:
        self.endpoint, self.limits, self.clock = endpoint, limits or endpoint.limits(), clock or Clock()
        self.protocol = protocol
        self.key = read_key(endpoint, protocol) if key is None else key
        self._sent: Mapping[str, str] = {}
        self._owner: Transport | None = None
        """Whose connections these are, where not its own."""
        self._transport = transport
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Session] = weakref.WeakKeyDictionary()
        self._pace = _Pace()
        self._heard_at = -math.inf
        """When the server last answered anything."""
        self._told_at = -math.inf
        self._trouble = ""

    def sending(self, headers: Mapping[str, str], key: Secret | None = None) -> Transport:
        """The same transport, connections and pace included, with further ``headers`` on each request, and ``key`` as what no
        answer may say."""
        other = copy.copy(self)
        other._owner = self._owner or self
        other._sent, other.key = headers, self.key if key is None else key
        return other

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a JSON object, return the JSON object that comes back. Raises ProviderError."""
        return await self._persist("POST", path, json.dumps(body, allow_nan=False).encode())

    async def get(self, path: str) -> dict[str, Any]:
        """As :meth:`post`, without a body."""
        return await self._persist("GET", path, None)

    async def _persist(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        with self._watched():
            return await self._tried(method, path, content)

    async def _tried(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        attempt = 0
        while True:
            try:
                return await self._once(method, path, content)
            except ProviderError as error:
                self._trouble = error.message
                wait = self.clock.chance() * min(self.limits.longest, self.limits.base * 2**attempt)
                if error.wait is not None:
                    wait += error.wait
                    self._pace.held = max(self._pace.held, self.clock.now() + min(error.wait, self.limits.longest))
                if not error.again or attempt >= self.limits.retries or (error.wait or 0) > self.limits.longest:
                    error.final = error.final or error.again
                    raise
            await self.clock.sleep(wait)
            attempt += 1

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Say one line where the server keeps silent meanwhile, in a terminal as in a log."""
        since, clock = time.monotonic(), time.strftime("%H:%M:%S")

        def tell() -> None:
            if self._heard_at < since and self._told_at <= self._heard_at:
                self._told_at = time.monotonic()
                trouble = f" ({self._trouble})" if self._trouble else ""
                say(f"waiting for {self.endpoint.url} since {clock}: no answer yet{trouble}")

        waiting = asyncio.get_running_loop().call_later(FIRST_WORD if self._heard_at == -math.inf else SILENCE, tell)
        try:
            yield
        finally:
            waiting.cancel()

    async def _once(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        async with self.opened(method, path, content) as response:
            raw = await self.read(response)
        return self.checked(response, raw)

    @asynccontextmanager
    async def opened(
        self, method: str, path: str, content: bytes | None, kinds: str = JSON
    ) -> AsyncGenerator[httpx2.Response, None]:
        """One try of a request: the answer with its header checked and its body unread,
        of a type that the pattern ``kinds`` matches.

        Whatever goes wrong until the block ends, in the block too, is a ProviderError.
        """
        refuse_real_calls(f"a request to {self.endpoint.host}")
        session, host = await self._session(), self.endpoint.host
        async with session.gate:
            await self._turn()
            try:
                async with (
                    asyncio.timeout(self.limits.total),
                    self._answered(
                        session.client.stream(
                            method,
                            self.endpoint.url + path,
                            params=dict(self.endpoint.query) or None,
                            content=content,
                            headers=self._sent or None,
                        )
                    ) as response,
                ):
                    self._check_head(response, kinds)
                    yield response
            except httpx2.ConnectError as error:
                why = self._line(str(error)) or "connection refused"
                raise ProviderError("connection", f"no connection to {host}: {why}", again=True) from None
            except (TimeoutError, httpx2.TimeoutException) as error:
                what = type(error).__name__.replace("Timeout", "").lower() or "connect"
                what = f"in {self.limits.total:g} s" if isinstance(error, TimeoutError) else f"in time (while it had to {what})"
                raise ProviderError("timeout", f"{host} did not answer {what}", again=True) from None
            except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
                why = self._line(str(error)) or type(error).__name__
                raise ProviderError("cut", f"the exchange with {host} broke off: {why}", again=True) from None

    @asynccontextmanager
    async def _answered(self, sent: AbstractAsyncContextManager[httpx2.Response]) -> AsyncGenerator[httpx2.Response, None]:
        """A request that is answered, at least in its head."""
        async with AsyncExitStack() as stack:
            with self._watched():
                response = await stack.enter_async_context(sent)
            self._heard_at, self._trouble = time.monotonic(), ""
            yield response

    async def _turn(self) -> None:
        """Wait for a slot of the rate limit, and until every wait that a server requested is over."""
        if self.limits.rate:
            at = max(self._pace.next, self.clock.now())
            self._pace.next = at + 1 / self.limits.rate
            if (early := at - self.clock.now()) > 0:
                await self.clock.sleep(early)
        while (early := self._pace.held - self.clock.now()) > 0:
            await self.clock.sleep(early)

    def _check_head(self, response: httpx2.Response, kinds: str) -> None:
        host = self.endpoint.host
        if 300 <= response.status_code < 400:
            target = re.sub(r"[?#].*", "", self._line(response.headers.get("location", "nowhere")))
            target = re.sub(r"//[^/@]*@", "//", target)
            message = f"{host} redirects to {target}; name that endpoint itself if you trust it"
            raise ProviderError("redirect", message, status=response.status_code, final=True)
        coding = response.headers.get("content-encoding", "identity")
        if coding.lower() not in ("identity", ""):
            raise ProviderError(
                "content_type", f"{host} answers with the encoding '{self._line(coding)}', which was not requested"
            )
        kind = response.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if response.status_code < 400 and not re.fullmatch(kinds, kind):
            wanted = "JSON" if kinds == JSON else "a stream of events"
            raise ProviderError("content_type", f"{host} answers with '{self._line(kind)}' instead of {wanted}")

    async def read(self, response: httpx2.Response) -> bytes:
        """The whole body. Raises ProviderError where it is larger than the limit."""
        pieces, size = [], 0
        async for piece in response.aiter_bytes():  # no encoding is let through, so these are the bytes sent
            size += len(piece)
            if size > self.limits.max_bytes:
                if response.status_code >= 400:
                    break
                limit = self.limits.max_bytes
                raise ProviderError("too_large", f"{self.endpoint.host} answers with more than {limit:,} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def checked(self, response: httpx2.Response, raw: bytes) -> dict[str, Any]:
        """The JSON object of an answer. Raises ProviderError: the error that it reports, or what is wrong with it."""
        host, status = self.endpoint.host, response.status_code
        text = raw.decode("utf-8", "replace")
        try:
            value = self.key.scrubbed(json.loads(text))
        except (ValueError, RecursionError) as error:
            if status < 400:
                why = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(":")[0]
                raise ProviderError("json", f"{host} answers with something that is not JSON ({self._line(why)})") from None
            value = text = self.key.scrub(text)
        failed = isinstance(value, dict) and value.get("error") is not None and "choices" not in value
        if status >= 400 or failed:
            body = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            raise self._reported(status, value, body, response)
        if not isinstance(value, dict):
            raise ProviderError("shape", f"{host} answers with a {type(value).__name__} instead of a JSON object")
        return value

    def _reported(self, status: int, value: Any, text: str, response: httpx2.Response) -> ProviderError:
        """The error that a status of 400 and above, or an ``error`` field in an answer (some gateways), stands for."""
        host = self.endpoint.host
        detail = value.get("error", value) if isinstance(value, dict) else value
        if status < 400:
            code = detail.get("code") if isinstance(detail, dict) else None
            status = code if type(code) is int and 400 <= code < 600 else 500
        for name in ("message", "detail", "error"):
            if isinstance(detail, dict) and detail.get(name):
                detail = detail[name]
        page = re.search(r"(?is)^\s*<(?:!doctype\s+)?html.*?<title[^<>]*>([^<]*)<", text)
        reason = self._line(page[1] if page else detail if isinstance(detail, str) else text)
        kind, final, again = "request", True, status in _AGAIN and not UNREAD.search(reason)
        if status == 429:
            kind = "rate"
            again = "insufficient_quota" not in text
        elif status == 408:
            kind = "timeout"
        elif status >= 500:
            kind = "unread" if UNREAD.search(reason) else "server"
        elif status in (401, 403):
            kind = "auth"
        elif status == 404 and "model" in reason.lower():
            kind = "model"
        elif status in (404, 405):
            host += response.url.path  # there may be no such address there
        message = f"{host} answers {status}: {reason}" if reason else f"{host} answers {status}"
        wait = requested_wait(response.headers) if again else None
        if wait is not None and wait > self.limits.longest:
            message += f" (it requests a wait of {wait:.0f} s)"
        return ProviderError(kind, message, status=status, final=final and not again, again=again, wait=wait)

    def _line(self, text: str) -> str:
        """One short printable line without the key, of a text from outside."""
        text = "".join(c if c.isprintable() else " " for c in self.key.scrub(text))
        text = " ".join(text.split())
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."

    async def _session(self) -> _Session:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            for other in [other for other in self._sessions if other.is_closed()]:
                del self._sessions[other]
            limits = self.limits
            headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "ramify"}
            key = (self._owner or self).key  # not that of whom the first request is for
            if key:
                headers |= key_header(key, self.protocol)
            if self.protocol == "anthropic":
                headers["anthropic-version"] = VERSION
            client = httpx2.AsyncClient(
                headers=headers | {"content-type": "application/json"},
                timeout=httpx2.Timeout(limits.read, connect=limits.connect, pool=None),
                limits=httpx2.Limits(max_connections=limits.concurrent, max_keepalive_connections=limits.concurrent),
                follow_redirects=False,
                trust_env=not self.endpoint.loopback,
                transport=self._transport,
                verify=_nobody() if self.endpoint.url.startswith("http:") and self.endpoint.loopback else _authorities(),
            )
            # asyncio.run closes every generator that is still open, so the connections close before their loop does.
            closing = _close_at_end(client)
            session = self._sessions[loop] = _Session(client, asyncio.Semaphore(limits.concurrent))
            _OPEN[client] = closing, loop, weakref.ref(self._owner or self)
            await anext(closing)
            for held, (left, where, owner) in list(_OPEN.items()):
                if where.is_closed() or (where is loop and owner() is None):
                    _OPEN.pop(held, None)
                    if where is loop:
                        await left.aclose()
        return session


_OPEN: dict[
    httpx2.AsyncClient, tuple[AsyncGenerator[None, None], asyncio.AbstractEventLoop, weakref.ReferenceType[Transport]]
] = {}
"""What closes each client, where, and for whom. Were it freed with its transport, a task would close it,
which ``asyncio.run`` cancels at its end."""


def key_header(key: Secret, protocol: str = "") -> dict[str, str]:
    """The header that carries a key."""
    return {"x-api-key": key.reveal()} if protocol == "anthropic" else {"authorization": f"Bearer {key.reveal()}"}


@cache
def _authorities() -> ssl.SSLContext:
    """The trusted certificate authorities; reading them takes 20 ms, so once."""
    return httpx2.create_ssl_context()


@cache
def _nobody() -> ssl.SSLContext:
    """Trusts no one: for plain HTTP inside this machine."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def _close_at_end(client: httpx2.AsyncClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _OPEN.pop(client, None)
        await client.aclose()


def requested_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``retry-after-ms`` or ``retry-after`` (seconds or a date) requests; None where it requests none or nonsense.

    A date is compared with the server's own ``date``, where it sends one: this machine's clock may be hours away from it.
    """
    try:
        if "retry-after-ms" in headers:
            wait = float(headers["retry-after-ms"]) / 1000
        else:
            text = headers.get("retry-after", "")
            seconds = re.fullmatch(r"\s*\d+(\.\d+)?\s*", text)
            wait = float(text) if seconds else _timestamp(text) - _now(headers.get("date", ""))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, wait) if math.isfinite(wait) else None


def _timestamp(date: str) -> float:
    """Seconds since 1970 of a header's date. Raises ValueError or TypeError where it is none."""
    return email.utils.parsedate_to_datetime(date).timestamp()


def _now(date: str) -> float:
    """The server's time, else this machine's."""
    try:
        return _timestamp(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return time.time()
