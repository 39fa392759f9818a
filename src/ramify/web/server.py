"""One way to serve an application, and the pages of one run:
read anew for every request, so a run under way shows its progress."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.base.errors import RamifyError, UserError
from ramify.render.terminal import say
from ramify.trace.connect import FILE
from ramify.trace.db import Run
from ramify.trace.outcome import settled
from ramify.trace.schema import stored
from ramify.web import pages
from ramify.web.limits import MAX_BODY, Guard, RefusedRequestError, check_bind, make_token

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from ramify.web.connection import Server

MAX_CONNECTIONS = 128
"""More at once are answered with 503."""
DRAIN_SECONDS = 10.0
BACKLOG = 512


def guarded_pages(
    run_path: str | Path,
    host: str = "127.0.0.1",
    token: str | None = None,
    scorer: str | None = None,
    beside: str | Path | None = None,
) -> Guard:
    """The pages of a run as :func:`open_server` takes them, one request a connection. Raises like :func:`make_app`."""
    headers = {"content-security-policy": pages.content_policy(True) + "; frame-ancestors 'none'", "connection": "close"}
    return Guard(make_app(run_path, scorer, beside), host, token, _page, headers)


def make_app(run_path: str | Path, scorer: str | None = None, beside: str | Path | None = None) -> Starlette:
    """The application: ``/`` the report, ``/trees`` the list, ``/tree/NAME`` and ``/node/ID``. Only reads.

    ``/data`` and ``/data/tree/NAME`` are the data of the first two as JSON, ``/changed`` is another text when the run has grown.

    ``scorer`` says which attempts succeeded; ``beside`` is a run to compare with. Raises UserError when there is no readable run
    at ``run_path``, or no such scorer in it.
    """
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.responses import Response as AnyResponse
    from starlette.routing import Route

    for path in (run_path, *([] if beside is None else [beside])):
        with Run.open(path) as run:
            settled(run, scorer)

    def report(make: Callable[..., str]) -> Callable[[Run], str]:
        def made(run: Run) -> str:
            if beside is None:
                return make(run, scorer=scorer)
            with Run.open(beside) as other:
                return make(run, scorer=scorer, beside=other)

        return made

    def answer(make: Callable[..., str], name: str = "", media: str = "text/html") -> Callable[[Request], Response]:
        # Not a coroutine, so it runs in a worker thread: a run is used by one thread at a time, and a long page blocks no
        # other.
        def endpoint(request: Request) -> Response:
            try:
                with Run.open(run_path) as run:
                    text = stored(make)(run, *((request.path_params[name],) if name else ()))
                    return AnyResponse(text, media_type=media)
            except UserError as error:
                return _message("Not found", str(error), 404)
            except RamifyError as error:
                return _message("Cannot be read", str(error), 500)

        return endpoint

    def missing(request: Request, error: Exception) -> Response:
        return _message("Not found", f"There is no page {request.url.path} here.", 404)

    def listed(request: Request) -> Response:
        page = request.query_params.get("page", "1")
        return answer(lambda run: pages.trees_html(run, int(page) if page.isdecimal() and len(page) < 9 else 1))(request)

    def changed(request: Request) -> Response:
        files = [Path(run_path) / (FILE + end) for end in ("", "-wal")]
        marks = [f"{known.st_mtime_ns}.{known.st_size}" for known in (file.stat() for file in files if file.exists())]
        return PlainTextResponse(" ".join(marks))

    routes = [
        Route("/", answer(report(functools.partial(pages.report_html, served=True)))),
        Route("/trees", listed),
        Route("/changed", changed),
        Route("/data", answer(report(pages.report_data), media="application/json")),
        Route("/data/tree/{name:path}", answer(lambda run, name: pages.tree_data(run, name, scorer), "name", "application/json")),
        Route("/tree/{name:path}", answer(lambda run, name: pages.tree_html(run, name, True, scorer), "name")),
        Route("/node/{name}", answer(pages.node_html, "name")),
    ]
    return Starlette(routes=routes, exception_handlers={404: missing})


def _page(refused: RefusedRequestError, path: str = "") -> Response:
    return _message("Token needed" if refused.status == 401 else "Refused", refused.message, refused.status, refused.headers)


def _message(title: str, text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(pages.message_html(title, text), status, headers)


def open_server(
    guard: Guard, port: int = 0, connections: int = MAX_CONNECTIONS, drain: float = DRAIN_SECONDS, sockets: bool = False
) -> tuple[Server, socket.socket]:
    """A server and the socket it is bound to; ``server.run(sockets=[socket])`` serves until ``server.should_exit`` or a signal.

    At most ``connections`` are answered at once; when it ends, open requests have ``drain`` seconds to finish. ``sockets``:
    WebSockets are accepted, where the package websockets is installed.

    Raises UserError on a host that is not loopback without a token, or a port that is taken.
    """
    import uvicorn

    from ramify.web.connection import HEAD_SECONDS, Connection, Server

    host = guard.host
    check_bind(host, guard.token)
    # With the protocol named, asyncio turns Nagle's algorithm off; without, the body of an answer would wait 40 ms after its
    # head.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)  # who comes once the address is printed waits for the server, and is not refused
    except (OSError, OverflowError) as error:
        listener.close()
        raise UserError(f"cannot serve on {host} port {port}: {error}") from error
    log = logging.getLogger("uvicorn.error")
    log.handlers, log.propagate = [_LogLines(logging.ERROR)], False
    config = uvicorn.Config(
        guard,
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="websockets-sansio" if sockets and importlib.util.find_spec("websockets") else "none",
        ws_max_size=MAX_BODY,
        limit_concurrency=connections,
        backlog=BACKLOG,
        timeout_keep_alive=math.ceil(HEAD_SECONDS),
        timeout_graceful_shutdown=drain,
    )
    return Server(config), listener


class _LogLines(logging.Handler):
    """What the server logs leaves through the one exit to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"ramify: {record.getMessage()}")


def address(host: str, listener: socket.socket) -> str:
    """The address that people open, ending in a slash."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"


def serve_run(
    run_path: str | Path,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    scorer: str | None = None,
    beside: str | Path | None = None,
) -> None:
    """Serve the pages of a run until Ctrl-C. Port 0 takes a free one; the address is printed.

    An empty ``token`` has one made up, which is then part of the address.
    Raises like :func:`open_server` and :func:`guarded_pages`.
    """
    made = "" if token != "" else make_token()
    server, listener = open_server(guarded_pages(run_path, host, made or token, scorer, beside), port)
    with listener:
        where = address(host, listener) + (f"?token={made}" if made else "")
        say(f"Serving {run_path} on {where} (Ctrl-C stops)")
        server.run(sockets=[listener])
