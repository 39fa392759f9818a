"""Guards every served application: authentication, size, time and concurrency limits, and the form of refusals."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ramify.base.errors import RamifyError, UserError
from ramify.base.secrets import redact
from ramify.render.terminal import say

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 10 << 20
"""Bytes of one request's body."""
MAX_HELD = 512 << 20
"""Bytes of the bodies of all requests that are being answered."""
MAX_BRACKETS = 200_000
"""Lists and objects in one body: some bytes of text become a hundred in memory."""
MIN_TOKEN = 16
LINGER_SECONDS = 2.0
"""Seconds that a refused client may continue sending, so that it can read the refusal, before its connection is closed."""
_COOKIE = "ramify_token"
_MESSAGES = "/v1/messages"
"""Where Anthropic's protocol is spoken."""
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RefusedRequestError(RamifyError):
    """A request that is not answered: an HTTP status, one sentence, and the field at fault where it is known."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """The body of the refusal as OpenAI's servers write it."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def error_answer(refused: RefusedRequestError, path: str = "") -> Response:
    """The answer to a refused request, in the shape of the protocol that is spoken at ``path``, by default OpenAI's."""
    from starlette.responses import JSONResponse

    body = refused.to_json()
    if path.startswith(_MESSAGES):
        from ramify.model.anthropic import Anthropic

        body = Anthropic().refused(refused.status, body["error"])
    return JSONResponse(body, refused.status, headers=refused.headers)


def error_handlers(answer: Callable[[RefusedRequestError, str], Response] = error_answer) -> dict[Any, Any]:
    """What an application gives Starlette as ``exception_handlers``:
    a :class:`RefusedRequestError`, an unknown path or method, a fault."""
    from starlette.exceptions import HTTPException

    # Coroutines, since Starlette would run a plain function in a thread.
    async def refused(request: Request, error: Any) -> Response:
        return answer(error, request.url.path)

    async def http(request: Request, error: Any) -> Response:
        messages = {404: f"There is nothing at {request.url.path[:100]} here.", 405: f"{request.method} is not answered here."}
        return answer(
            RefusedRequestError(error.status_code, messages.get(error.status_code, error.detail), headers=error.headers),
            request.url.path,
        )

    async def fault(request: Request, error: Exception) -> Response:
        return answer(FAULT, request.url.path)

    return {RefusedRequestError: refused, HTTPException: http, Exception: fault}


FAULT = RefusedRequestError(500, "A fault of the server itself; its terminal says more.")


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``: UTF-8, no NaN or infinity, no lone surrogates, bounded in depth and in lists and objects.

    Raises RefusedError (400, 413).
    """
    from pydantic_core import from_json

    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        raise RefusedRequestError(413, f"The body holds more than {MAX_BRACKETS} lists and objects.")
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise RefusedRequestError(400, f"The body is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise RefusedRequestError(400, 'The body must be a JSON object, as in {"model": ...}.')
    return value


class Slots:
    """Limits of running and waiting samples, in all and per client (by default half of all, at least the running ones).

    Requests beyond them are answered with 429 and Retry-After. Raises UserError on limits that admit nothing.
    """

    def __init__(self, running: int, waiting: int, each: int = 0) -> None:
        if running < 1 or waiting < 0:
            raise UserError(f"at least 1 request must be able to run and 0 to wait, not {running} and {waiting}")
        self.running, self.waiting, self.most = running, waiting, running + waiting
        self.each = min(each or max(running, self.most // 2), self.most)
        self._held: Counter[str] = Counter()
        self._seconds = 1.0  # a moving mean of how long a request stays

    @property
    def taken(self) -> int:
        """Slots held now."""
        return self._held.total()

    @contextmanager
    def take(self, client: str, n: int) -> Iterator[None]:
        """Hold ``n`` slots for ``client`` while the block runs.
        Raises RefusedError: 429 with Retry-After, or 400 where ``n`` never fits."""
        if n > self.each:
            raise RefusedRequestError(400, f"This server takes {self.each} samples at once from a client, not {n}.", "n")
        full = f"All {self.most} slots are taken" if self.taken + n > self.most else ""
        if self._held[client] + n > self.each:
            full = f"You hold {self._held[client]} of the {self.each} slots that one client may"
        if full:
            later = min(60, max(1, math.ceil(self._seconds * self.taken / self.running)))
            headers = {"retry-after": str(later)}
            raise RefusedRequestError(429, f"{full}; retry in {later} s.", code="rate_limit_exceeded", headers=headers)
        self._held[client] += n
        start = time.monotonic()
        try:
            yield
        finally:
            self._held[client] -= n
            self._held += Counter()  # forgets who holds none
            self._seconds += 0.1 * (time.monotonic() - start - self._seconds)


def client_of(body: Mapping[str, Any], request: Request) -> str:
    """The client of a request, for limits and fairness: the ``user`` it names, else the address it comes from."""
    user = body.get("user")
    return f"user {user[:256]}" if user and isinstance(user, str) else f"at {request.client.host if request.client else ''}"


class Guard:
    """The outermost application: refuses requests that are not meant for this server before any work, and bounds the others.

    Refused, of requests and WebSockets alike: another host's name (DNS rebinding), another site's pages asking (Origin), a body
    that is too large, compressed or of two lengths (smuggling), and, where there is a ``token``, requests without it: as
    ``Authorization: Bearer`` or ``x-api-key``, as the cookie, or once as ``?token=``, which sets the cookie. Accepted requests
    are read whole, go on without the token, and
    must be answered within ``seconds``; its answer carries ``headers``.
    A fault of the application is said in the terminal and never ends the server.

    ``host`` is where the server is bound, ``allowed`` are further host names of this server (a proxy's, a service's); ``probe``
    is a path whose GET needs no host name and no token. ``answer`` turns a refusal into a response. ``count`` is called with path
    and status of every answer, refusals included."""

    def __init__(
        self,
        app: Any,
        host: str = "127.0.0.1",
        token: str | None = None,
        answer: Callable[[RefusedRequestError, str], Response] = error_answer,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        allowed: Collection[str] = (),
        probe: str = "",
        count: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        self.app, self.host, self.token, self.answer, self.seconds, self.held = app, host, token, answer, seconds, 0
        self.count = count
        self.cut = 0
        """Requests that the server's end cut off."""
        self.allowed, self.probe = {_without_port(name).lower() for name in allowed}, probe
        self.headers = [(name.encode(), value.encode()) for name, value in (HEADERS | dict(headers or {})).items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or let one WebSocket in (or pass the lifespan on)."""
        if scope["type"] != "http":
            if scope["type"] == "websocket" and (refused := self._refuses(scope)) is not None:
                self.count(scope["path"], refused.status)
                await receive()
                await send({"type": "websocket.close", "code": 1008})  # before it is accepted: answered with 403
                return
            await self.app(scope, receive, send)
            return
        started, held, path = False, [0], scope["path"]

        async def guarded(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self.count(scope["path"], message["status"])
                message["headers"] = [*message["headers"], *self.headers]
            await send(message)

        try:
            probed = bool(self.probe) and (scope["method"], scope["path"]) == ("GET", self.probe)
            self._check(scope["headers"], probed)
            if not probed and not self._bears(scope["headers"]) and (shown := self._ask(scope)) is not None:
                await _last(shown, scope, receive, guarded)
                return
            body = await self._body(receive, held)
            if body is None:
                return
            async with asyncio.timeout(self.seconds) as clock:
                await self.app(self._without_token(scope), _again(body, receive), guarded)
        except RefusedRequestError as refused:
            if not started:
                await _last(self.answer(refused, path), scope, receive, guarded)
        except asyncio.CancelledError:  # the time to drain is over
            self.cut += 1
            if not started:
                await self.answer(RefusedRequestError(503, "The server is stopping."), path)(scope, receive, guarded)
        except Exception as error:
            late = isinstance(error, TimeoutError) and clock.expired()
            if not late:
                say(redact(f"ramify: fault while answering {scope['method']} {scope['path']!r}:\n{traceback.format_exc()}"))
            excuse = RefusedRequestError(504, f"Not answered within {self.seconds:g} s.") if late else FAULT
            if not started:  # otherwise the connection is cut, so that the client does not take the answer for whole
                await _last(self.answer(excuse, path), scope, receive, guarded)
        finally:
            self.held -= held[0]

    def _refuses(self, scope: Any) -> RefusedRequestError | None:
        """Why a WebSocket is not opened: what is asked of a request is asked of it, too."""
        try:
            self._check(scope["headers"], False)
            if not self._bears(scope["headers"]):
                self._ask(scope)
        except RefusedRequestError as refused:
            return refused
        return None

    async def full(self, scope: Any, receive: Any, send: Any) -> None:
        """The answer to a connection beyond the bound."""
        refused = RefusedRequestError(503, "Too many connections; retry later.", headers={"retry-after": "1"})
        self.count(scope["path"], refused.status)
        await _last(self.answer(refused, scope["path"]), scope, receive, send)

    def _check(self, headers: list[tuple[bytes, bytes]], probed: bool) -> None:
        given: dict[bytes, list[str]] = {}
        for name, value in headers:
            given.setdefault(name, []).append(value.decode("latin-1"))
        hosts, sizes = given.get(b"host", []), given.get(b"content-length", [])
        if not probed and (len(hosts) != 1 or not self._is_own_host(_without_port(hosts[0]))):
            raise RefusedRequestError(
                421, "This server answers to its own address only: use the one it printed, or serve with --allow-host NAME."
            )
        for origin in [] if probed else given.get(b"origin", []):
            if origin.partition("://")[2].lower() != hosts[0].lower():  # another port of this machine is another site
                raise RefusedRequestError(403, "This server refuses requests from pages of other sites.")
        if sizes and b"transfer-encoding" in given:
            raise RefusedRequestError(400, "A request has a content-length or is chunked, not both.")
        if any(not size.isdecimal() or len(size) > 20 or int(size) > MAX_BODY for size in sizes):
            raise RefusedRequestError(413, f"A request may hold {MAX_BODY} bytes.")
        if given.get(b"content-encoding", ["identity"]) != ["identity"]:
            raise RefusedRequestError(415, "Send the body as it is, not compressed.")

    def _is_own_host(self, host: str) -> bool:
        """A loopback name, the host bound to, a name allowed, or, bound to every address, an address:
        no name that could be pointed here."""
        if is_loopback(host) or host.lower() == self.host.lower() or host.lower() in self.allowed:
            return True
        return self.host in ("0.0.0.0", "::") and _is_address(host)

    def _bears(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether the token is shown, once: as ``Authorization: Bearer``, or as ``x-api-key``, as Anthropic's clients do."""
        return any(len(given) == 1 and self._is_token(*given[0]) for given in _by_name(headers, (b"authorization", b"x-api-key")))

    def _is_token(self, name: bytes, value: bytes) -> bool:
        if self.token is None:
            return False
        scheme, _, bearer = value.decode("latin-1").partition(" ")
        if name == b"authorization":
            return scheme.lower() == "bearer" and _same(bearer.strip(), self.token)
        return name == b"x-api-key" and _same(value.decode("latin-1").strip(), self.token)

    def _without_token(self, scope: Any) -> Any:
        """The request without the headers that show the token: the application may pass a client's own key on, and never this."""
        if self.token is None:
            return scope
        return {**scope, "headers": [(name, value) for name, value in scope["headers"] if not self._is_token(name, value)]}

    def _ask(self, scope: Any) -> Response | None:
        """The answer to a request that shows the token in its address; None where it shows the cookie, or none is requested.

        Raises RefusedError (401).
        """
        if self.token is None:
            return None
        from starlette.requests import HTTPConnection
        from starlette.responses import RedirectResponse

        request = HTTPConnection(scope)
        if _same(request.cookies.get(_COOKIE, ""), self.token):
            return None
        if scope.get("method") == "GET" and _same(request.query_params.get("token", ""), self.token):
            answer = RedirectResponse("/" + scope["path"].lstrip("/"), 303)  # the token leaves the address bar
            answer.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        raise RefusedRequestError(
            401,
            "This server requires its token, as `Authorization: Bearer TOKEN` or by opening the address that it printed.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    async def _body(self, receive: Any, held: list[int]) -> bytes | None:
        """The whole body, None where the client has gone; ``held[0]`` grows by what is held. Raises RefusedError (413, 503)."""
        pieces = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            held[0] += len(pieces[-1])
            self.held += len(pieces[-1])
            if held[0] > MAX_BODY:
                raise RefusedRequestError(413, f"A request may hold {MAX_BODY} bytes.")
            if self.held > MAX_HELD:
                raise RefusedRequestError(503, "Too many large requests at once; retry later.", headers={"retry-after": "1"})
            if not message.get("more_body"):
                return b"".join(pieces)


async def _last(answer: Response, scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, then read on for a while: a connection closed over unread data would take the answer with it."""

    async def unfinished(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        else:
            message = message | {"more_body": True}
        await send(message)

    await answer(scope, receive, unfinished)
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})


def _by_name(headers: list[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> list[list[tuple[bytes, bytes]]]:
    return [[(name, value) for name, value in headers if name == wanted] for wanted in names]


def _again(body: bytes, receive: Any) -> Any:
    """A ``receive`` that returns ``body`` first and later events (the client's disconnection) next."""
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return messages.pop() if messages else await receive()

    return replay


def _same(given: str, token: str) -> bool:
    """A constant-time comparison."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and loopback addresses; any other name could be pointed elsewhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, token: str | None) -> None:
    """Raises UserError on an invalid token, and on a bind beyond this machine without one."""
    if token is not None and (
        len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or set(token) & set(' ";,')
    ):
        raise UserError(f"a token has at least {MIN_TOKEN} letters and digits")
    if not is_loopback(host) and token is None:
        raise UserError(
            f"host '{host}' is not this machine: without a token (--token) it is served on loopback only, e.g. 127.0.0.1"
        )


def make_token() -> str:
    """A random token for one server."""
    return secrets.token_urlsafe(24)
