"""One way to serve an application, and the pages of the runs of a folder:
read anew for every request, so a run under way shows its progress."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ramify.base.errors import RamifyError, UserError
from ramify.render.terminal import emit, say
from ramify.trace.connect import FILE
from ramify.trace.db import Run
from ramify.trace.outcome import settled
from ramify.trace.schema import stored
from ramify.web import pages, place
from ramify.web.acting import Acting, act_routes
from ramify.web.limits import MAX_BODY, Guard, RefusedRequestError, check_bind, make_token
from ramify.web.shelf import Shelf
from ramify.web.way import STATIONS, Nav, key_of, name_of, nav_of

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from ramify.web.connection import Server

MAX_CONNECTIONS = 128
"""More at once are answered with 503."""
DRAIN_SECONDS = 10.0
BACKLOG = 512
NODE = "node"
"""Where the page of a node stands: among those of the record, with what can be done at it."""
MakesPage: TypeAlias = Callable[[Run, Nav, "Request", str | None], str]
"""Of a run, where the page stands, the request, and the scorer."""


@dataclass(frozen=True, slots=True)
class ServedRuns:
    """Which runs are served, and how attempts are judged."""

    root: Path
    """The folder whose runs are served."""
    run: Path | None = None
    """The run that is opened first."""
    alone: bool = False
    """``run`` and no other is served."""
    scorer: str | None = None
    """Who says which attempts succeeded, where several could."""
    beside: Path | None = None
    """A run to compare ``run`` with."""
    act: bool = False
    """The pages also start work, in one queue of the folder."""

    @classmethod
    def of(cls, run: Path | str, scorer: str | None = None, beside: Path | str | None = None, alone: bool = False) -> ServedRuns:
        """A run among those of the folder that holds it."""
        folder = Path(run).absolute()
        return cls(folder.parent, folder, alone, scorer, None if beside is None else Path(beside))

    @property
    def path(self) -> str:
        """The address to open."""
        return "" if self.run is None else f"run/{key_of(Shelf(self.root).name_of(self.run))}/"


def guarded_pages(shown: ServedRuns, host: str = "127.0.0.1", token: str | None = None) -> Guard:
    """The pages as :func:`open_server` takes them, one request a connection. Raises like :func:`make_app`."""
    policy = pages.content_policy(True, shown.act) + "; frame-ancestors 'none'"
    headers = {"content-security-policy": policy, "connection": "close"}
    if shown.act:
        headers["referrer-policy"] = "same-origin"  # without one a browser sends no Origin with a form
    return Guard(make_app(shown), host, token, _page, headers)


def make_app(shown: ServedRuns) -> Starlette:
    """The application: ``/`` home, ``/runs`` the list, ``/jobs`` the queue, ``/words``; below ``/run/KEY`` the pages of a
    run: ``/`` the report, ``/trees``, ``/tree/NAME``, ``/node/ID``, and the stations with what their verbs stored.

    ``data`` and ``data/tree/NAME`` of a run are the data of its pages as JSON, ``changed`` is another text when it has grown.
    It only reads, unless ``shown.act``: see :func:`ramify.web.acting.act_routes`. Its end stops the queue.

    Raises UserError where the folder does not exist, or the run that is opened first, or the one beside it, cannot be read or has
    no such scorer.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    if not shown.root.is_dir():
        raise UserError(f"there is no folder {shown.root}")
    for path in (shown.run, shown.beside):
        if path is not None:
            with Run.open(path) as run:
                settled(run, shown.scorer)
    served, json, run_pages = _Pages(shown), "application/json", "/run/{run}"
    shelf, of_run, acting = served.shelf, served.of_run, served.acting
    routes = [
        Route("/", _answered(lambda request: place.home_html(shelf))),
        Route("/runs", _answered(lambda request: place.runs_html(shelf, request.query_params))),
        Route("/jobs", _answered(lambda request: acting.jobs_html())),
        Route("/jobs/{number:int}", _answered(lambda request: acting.job_html(request.path_params["number"]))),
        Route("/jobs/{number:int}/data", _answered(lambda request: acting.job_data(request.path_params["number"]), json)),
        Route("/words", _answered(lambda request: place.words_html())),
        Route(f"{run_pages}/", of_run("record", served.report(pages.report_html))),
        Route(f"{run_pages}/trees", of_run("record", _trees)),
        Route(f"{run_pages}/changed", served.changed),
        Route(f"{run_pages}/data", of_run("record", served.report(pages.report_data), json)),
        Route(f"{run_pages}/data/tree/{{name:path}}", of_run("record", _tree(pages.tree_data), json)),
        Route(f"{run_pages}/tree/{{name:path}}", of_run("record", _tree(pages.tree_html))),
        Route(f"{run_pages}/node/{{name}}", of_run(NODE, _node)),
        *(Route(f"{run_pages}/{name}{key}", of_run(name, _station(name))) for name in STATIONS for key in ("", "/{key}")),
        *(act_routes(acting, of_run, _page) if shown.act else []),
    ]

    def missing(request: Request, error: Exception) -> Response:
        return _message("Not found", f"There is no page {request.url.path} here.", 404)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(acting.queue.close)

    return Starlette(routes=routes, exception_handlers={404: missing}, lifespan=lifespan)


class _Pages:
    """The pages of single runs, each opened for its request."""

    def __init__(self, shown: ServedRuns) -> None:
        self.shown, self.shelf = shown, Shelf(shown.root, shown.run if shown.alone else None)
        self.acting = Acting(self.shelf, shown.act)

    def of_run(self, here: str, make: MakesPage, media: str = "text/html") -> Callable[[Request], Response]:
        """A page of the run that the address names: ``make`` gets it, where it stands, the request and the scorer."""

        def made(request: Request) -> str:
            name = name_of(request.path_params["run"])
            folder = self.shelf.find(name)
            with Run.open(folder) as run:
                node = run.find(request.path_params["name"]) if here == NODE else ""
                nav = stored(nav_of)(run, name, "record" if node else here)
                nav = replace(nav, acts=self.acting.links(run, nav, node))
                return stored(make)(run, nav, request, self.shown.scorer if folder == self.shown.run else None)

        return _answered(made, media)

    def report(self, make: Callable[..., str]) -> MakesPage:
        """A page that shows the run beside another, where one was named."""

        def made(run: Run, nav: Nav, request: Request, scorer: str | None) -> str:
            if self.shown.beside is None or run.folder != self.shown.run:
                return make(run, nav, scorer)
            with Run.open(self.shown.beside) as other:
                return make(run, nav, scorer, other)

        return made

    def changed(self, request: Request) -> Response:
        """Another text when the run has grown."""
        from starlette.responses import PlainTextResponse

        try:
            folder = self.shelf.find(name_of(request.path_params["run"]))
        except UserError as error:
            return _message("Not found", str(error), 404)
        files = [folder / (FILE + end) for end in ("", "-wal")]
        marks = [f"{known.st_mtime_ns}.{known.st_size}" for known in (file.stat() for file in files if file.exists())]
        return PlainTextResponse(" ".join(marks))


def _answered(make: Callable[[Request], str], media: str = "text/html") -> Callable[[Request], Response]:
    # Not a coroutine, so it runs in a worker thread: a run is used by one thread at a time, and a long page blocks no other.
    def endpoint(request: Request) -> Response:
        from starlette.responses import Response as AnyResponse

        try:
            return AnyResponse(make(request), media_type=media)
        except UserError as error:
            return _message("Not found", str(error), 404)
        except RamifyError as error:
            return _message("Cannot be read", str(error), 500)

    return endpoint


def _trees(run: Run, nav: Nav, request: Request, scorer: str | None) -> str:
    number = request.query_params.get("page", "1")
    return pages.trees_html(run, nav, int(number) if number.isdecimal() and len(number) < 9 else 1)


def _tree(make: Callable[..., str]) -> MakesPage:
    return lambda run, nav, request, scorer: make(run, request.path_params["name"], nav, scorer)


def _node(run: Run, nav: Nav, request: Request, scorer: str | None) -> str:
    return pages.node_html(run, request.path_params["name"], nav)


def _station(name: str) -> MakesPage:
    return lambda run, nav, request, scorer: place.station_html(run, name, nav, request.path_params.get("key", ""))


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
        another = "; --port N takes another port, --port 0 a free one" if getattr(error, "errno", 0) == errno.EADDRINUSE else ""
        raise UserError(f"cannot serve on {host} port {port}: {error}{another}") from error
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


def serve_pages(
    shown: ServedRuns, host: str = "127.0.0.1", port: int = 0, token: str | None = None, as_json: bool = False
) -> None:
    """Serve the pages until Ctrl-C. Port 0 takes a free one; the address is printed, as JSON with ``as_json``.

    An empty ``token`` has one made up, which is then part of the address.
    Raises like :func:`open_server` and :func:`guarded_pages`.
    """
    made = "" if token != "" else make_token()
    server, listener = open_server(guarded_pages(shown, host, made or token), port)
    with listener:
        where = address(host, listener) + shown.path + (f"?token={made}" if made else "")
        if as_json:
            emit({"url": where, "token": made or None}, True, "")
        else:
            say(f"Serving {shown.run or shown.root} on {where} (Ctrl-C stops)")
        server.run(sockets=[listener])
