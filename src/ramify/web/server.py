"""The pages of one run, served to this machine only. Reads the run anew for every request, so a run under way shows its progress."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base.errors import UserError
from ramify.render.terminal import say
from ramify.trace.db import Run
from ramify.web import pages

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_HEADERS = {
    "content-security-policy": pages.CONTENT_POLICY + "; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(run_path: str | Path) -> Starlette:
    """The application: ``/`` the report, ``/trees`` the list, ``/tree/NAME`` and ``/node/ID``. Only reads.

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
                    return HTMLResponse(make(run, *((request.path_params[name],) if name else ())))
            except UserError as error:
                return HTMLResponse(pages.message_html("Not found", str(error)), 404)

        return endpoint

    def missing(request: Request, error: Exception) -> Response:
        return HTMLResponse(pages.message_html("Not found", f"There is no page {request.url.path} here."), 404)

    routes = [
        Route("/", answer(lambda run: pages.report_html(run, served=True))),
        Route("/trees", answer(pages.trees_html)),
        Route("/tree/{name:path}", answer(lambda run, name: pages.tree_html(run, name, served=True), "name")),
        Route("/node/{name}", answer(pages.node_html, "name")),
    ]
    app = Starlette(routes=routes, exception_handlers={404: missing})
    app.add_middleware(_Guard)
    return app


class _Guard:
    """Refuses requests made under another host's name (DNS rebinding) and puts the security headers on every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        from starlette.responses import HTMLResponse

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in _HEADERS.items())]
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and is_loopback(_without_port(hosts[0])):
            await self.app(scope, receive, guarded)
        else:
            text = "This server answers requests for this machine only: use the address it printed."
            await HTMLResponse(pages.message_html("Refused", text), 421)(scope, receive, guarded)


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


def open_server(run_path: str | Path, host: str = "127.0.0.1", port: int = 0) -> tuple[uvicorn.Server, socket.socket]:
    """A server and the socket it is bound to; ``server.run(sockets=[socket])`` serves until ``server.should_exit``.

    Raises UserError on a host that is not loopback, a port that is taken, or no run at ``run_path``.
    """
    import uvicorn

    if not is_loopback(host):
        raise UserError(f"host '{host}' is not this machine: pages are served on loopback only, e.g. 127.0.0.1")
    app = make_app(run_path)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UserError(f"cannot serve on {host} port {port}: {error}") from error
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, lifespan="off", ws="none"
    )
    return uvicorn.Server(config), listener


def serve_run(run_path: str | Path, host: str = "127.0.0.1", port: int = 0) -> None:
    """Serve the pages of a run until Ctrl-C. Port 0 takes a free one; the address is printed. Raises like :func:`open_server`."""
    server, listener = open_server(run_path, host, port)
    with listener:
        name = f"[{host}]" if ":" in host else host
        say(f"Serving {run_path} on http://{name}:{listener.getsockname()[1]}/ (Ctrl-C stops)")
        server.run(sockets=[listener])
