"""The pages of one run, served to this machine only. Reads the run anew for every request, so a run under way shows its progress."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base.errors import RamifyError, UserError
from ramify.render.terminal import say
from ramify.trace.db import Run
from ramify.trace.schema import stored
from ramify.web import pages

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 10 << 20
MAX_CONNECTIONS = 128
"""More at once are told to come again (503)."""
MIN_TOKEN = 16
_COOKIE = "ramify_token"
_HEADERS = {
    "content-security-policy": pages.CONTENT_POLICY + "; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "connection": "close",
}


def make_app(run_path: str | Path, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application: ``/`` the report, ``/trees`` the list, ``/tree/NAME`` and ``/node/ID``. Only reads.

    ``host`` is where it will be bound; ``token``, if given, must be shown by every request.

    Raises UserError when there is no readable run at ``run_path``.
    """
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    Run.open(run_path).close()

    def answer(make: Callable[..., str], name: str = "") -> Callable[[Request], Response]:
        # Not a coroutine, so it runs in a worker thread: a run belongs to the thread that opened it, and a long page blocks no other.
        def endpoint(request: Request) -> Response:
            try:
                with Run.open(run_path) as run:
                    return HTMLResponse(stored(make)(run, *((request.path_params[name],) if name else ())))
            except UserError as error:
                return _message("Not found", str(error), 404)
            except RamifyError as error:
                return _message("Cannot be read", str(error), 500)

        return endpoint

    def missing(request: Request, error: Exception) -> Response:
        return _message("Not found", f"There is no page {request.url.path} here.", 404)

    routes = [
        Route("/", answer(lambda run: pages.report_html(run, served=True))),
        Route("/trees", answer(pages.trees_html)),
        Route("/tree/{name:path}", answer(lambda run, name: pages.tree_html(run, name, served=True), "name")),
        Route("/node/{name}", answer(pages.node_html, "name")),
    ]
    app = Starlette(routes=routes, exception_handlers={404: missing})
    app.add_middleware(_Guard, host=host, token=token)
    return app


class _Guard:
    """Refuses what is not meant for this server before any page is made, and puts the security headers on every answer.

    Refused: another host's name (DNS rebinding), another site's pages asking (Origin), a large body, and, where there is a token,
    whoever does not show it: as ``Authorization: Bearer``, as the cookie, or once as ``?token=``, which sets the cookie.
    """

    def __init__(self, app: Any, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in _HEADERS.items())]
            await send(message)

        answer = self._refuse(scope["headers"]) or self._ask(scope)
        await (answer or self.app)(scope, receive, guarded)

    def _refuse(self, headers: list[tuple[bytes, bytes]]) -> Response | None:
        given = [(name, value.decode("latin-1")) for name, value in headers]
        hosts = [value for name, value in given if name == b"host"]
        if len(hosts) != 1 or not self._is_ours(_without_port(hosts[0])):
            return _message("Refused", "This server answers to its own address only: use the one it printed.", 421)
        for origin in (value for name, value in given if name == b"origin"):
            if origin.partition("://")[2].lower() != hosts[0].lower():  # another port of this machine is another site
                return _message("Refused", "This server does not answer the pages of other sites.", 403)
        sizes = [value for name, value in given if name == b"content-length"]
        if any(not size.isdecimal() or int(size) > MAX_BODY for size in sizes):
            return _message("Refused", f"A request may hold {MAX_BODY} bytes.", 413)
        return None

    def _is_ours(self, host: str) -> bool:
        """A loopback name, the host bound to, or, bound to every address, an address as such: no name that could be pointed here."""
        if is_loopback(host) or host.lower() == self.host.lower():
            return True
        return self.host in ("0.0.0.0", "::") and _is_address(host)

    def _ask(self, scope: Any) -> Response | None:
        """The answer to a request that must first show the token, or has just shown it in its address; None where it may pass."""
        if self.token is None:
            return None
        from starlette.requests import Request
        from starlette.responses import RedirectResponse

        request = Request(scope)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self.token):
            return None
        if _same(request.cookies.get(_COOKIE, ""), self.token):
            return None
        if _same(request.query_params.get("token", ""), self.token):
            answer = RedirectResponse("/" + scope["path"].lstrip("/"), 303)  # the token leaves the address bar
            answer.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return _message("Token needed", "Open the address that was printed when the server started: it holds the token.", 401)


def _same(given: str, token: str) -> bool:
    """Compared in a time that does not tell how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _message(title: str, text: str, status: int) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(pages.message_html(title, text), status)


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


def open_server(
    run_path: str | Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> tuple[uvicorn.Server, socket.socket]:
    """A server and the socket it is bound to; ``server.run(sockets=[socket])`` serves until ``server.should_exit``.

    Raises UserError on a host that is not loopback without a token, a port that is taken, or no run at ``run_path``.
    """
    import uvicorn

    from ramify.web.connection import OneRequest

    if token is not None and (
        len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or set(token) & set(' ";,')
    ):
        raise UserError(f"a token has at least {MIN_TOKEN} letters and digits")
    if not is_loopback(host) and token is None:
        raise UserError(f"host '{host}' is not this machine: without a token pages are served on loopback only, e.g. 127.0.0.1")
    app = make_app(run_path, host, token)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UserError(f"cannot serve on {host} port {port}: {error}") from error
    log = logging.getLogger("uvicorn.error")
    log.handlers, log.propagate = [_Said(logging.WARNING)], False
    config = uvicorn.Config(
        app,
        http=OneRequest,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
    )
    return uvicorn.Server(config), listener


class _Said(logging.Handler):
    """What the server logs leaves through the one exit to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"ramify: {record.getMessage()}")


def serve_run(run_path: str | Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
    """Serve the pages of a run until Ctrl-C. Port 0 takes a free one; the address is printed.

    An empty ``token`` has one made up, which is then part of the address. Raises like :func:`open_server`.
    """
    made = "" if token != "" else secrets.token_urlsafe(24)
    token = made or token
    server, listener = open_server(run_path, host, port, token)
    with listener:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/" + (f"?token={made}" if made else "")
        say(f"Serving {run_path} on {address} (Ctrl-C stops)")
        server.run(sockets=[listener])
