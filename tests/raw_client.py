"""A server in a thread, and a client that sends bytes as they are."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import PATIENCE, until

from ramify.web.limits import Guard
from ramify.web.server import open_server


@contextmanager
def serving(guard: Guard, **settings: Any) -> Iterator[int]:
    """The port of a running server; it has ended when the block is left."""
    server, listener = open_server(guard, **settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive()


def read_all(link: socket.socket) -> bytes:
    """What comes until the other side closes; what came where it resets or says nothing for long."""
    answer = bytearray()
    try:
        while piece := link.recv(1 << 20):
            answer += piece
    except OSError:
        pass
    return bytes(answer)


def ask(port: int, raw: bytes, leave: bool = False) -> bytes:
    """The whole answer to raw bytes, b"" where the connection is closed without one; ``leave``:
    say that nothing more will come."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
        try:
            link.sendall(raw)
            if leave:
                link.shutdown(socket.SHUT_WR)
        except OSError:  # it was closed meanwhile; what it said can still be read
            pass
        return read_all(link)


def head(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> bytes:
    """The head of a request, with the right Host unless ``headers`` say otherwise."""
    lines = {"host": f"127.0.0.1:{port}"} | (headers or {})
    fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1")


def post(port: int, path: str, body: bytes | dict[str, Any], **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one POST on a connection of its own; header names with ``_`` for ``-``."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return parsed(ask(port, head(port, "POST", path, given) + body))


def get(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The same of a GET."""
    given = {"connection": "close"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return parsed(ask(port, head(port, "GET", path, given)))


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status (0 where there is no answer), headers in small letters, body (chunks as they came)."""
    top, _, body = answer.partition(b"\r\n\r\n")
    lines = top.decode("latin-1").split("\r\n")
    if not lines[0].startswith("HTTP/1.1 "):
        return 0, {}, answer
    fields = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split(" ")[1]), fields, body
