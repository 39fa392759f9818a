"""Models that are slow, whatever they are asked: what the verbs of test_slow_models are given by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPLY, STEP = 60.0, 0.4
"""Seconds of a reply of a server or a function, and of one forward pass."""


def sleeps(messages: list[dict[str, Any]]) -> str:
    """A function that holds up everything else in its process."""
    time.sleep(REPLY)
    return "Done."


def slow_down() -> None:
    """From now on every forward pass of a local model of this process sleeps, too."""
    from ramify.engine.local import LocalModel

    begin = LocalModel.__init__

    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*args: Any, **options: Any) -> Any:
            end = time.monotonic() + STEP
            while time.monotonic() < end:  # as a forward pass does, it returns to the interpreter again and again
                time.sleep(0.01)
            return call(*args, **options)

        return slowly

    def slow(self: LocalModel, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        forward: Any = self.forward
        forward.hidden, forward.full = slowed(forward.hidden), slowed(forward.full)

    LocalModel.__init__ = slow  # type: ignore[method-assign]


class _Waits(BaseHTTPRequestHandler):
    """Lists one model and never answers it in time."""

    def do_GET(self) -> None:
        self._send(b'{"object": "list", "data": [{"id": "slow", "object": "model"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.stopped.wait(REPLY)  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def slow_server() -> Iterator[str]:
    """The address of a server on this machine that takes a minute for a reply."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Waits)
    server.stopped = threading.Event()  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.stopped.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()
