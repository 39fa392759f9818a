"""An endpoint that is gone, or refuses: the search ends early, says the endpoint's reason,
and continues what it has once it answers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from halls import Halls, agent

import ramify
from ramify.base.errors import EXIT_FAILED, RamifyError
from ramify.jobs.why.passages import DEAD
from ramify.rollout.attempts import Attempt


class Server(ThreadingHTTPServer):
    """Says `left` and `right` by turns to whoever asks the same;
    when it is not ``up`` it refuses with ``status``, or with 0 hangs up."""

    daemon_threads = True
    request_queue_size = 128  # forks ask at once, and a short queue cuts some of them off
    up, status = True, 0
    asked: Counter[str]
    lock: threading.Lock

    def said(self, asked: str) -> str:
        with self.lock:
            self.asked[asked] += 1
            return "left" if self.asked[asked] % 2 else "right"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.server.up and not self.server.status:
            self.close_connection = True
            return
        message = {"role": "assistant", "content": self.server.said(json.dumps(body["messages"]))}
        said: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": "halls"}
        said |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        if refused := not self.server.up:
            said = {"error": {"message": "no more of this", "type": "refused"}}
        data = json.dumps(said).encode()
        self.send_response(self.server.status if refused else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(status: int) -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.status, server.asked, server.lock = status, Counter(), threading.Lock()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 404, 429, 0])
def test_a_search_whose_endpoint_fails_ends_early_and_continues(tmp_path: Path, status: int) -> None:
    ramify.play(agent(), Halls(), [{"id": "train-0"}], attempts=6, out=tmp_path / "run")
    played: list[Attempt] = []
    first = 12  # 4 from each of three positions

    def on_attempt(attempt: Attempt) -> None:
        played.append(attempt)
        server.up = len(played) < first

    with serving(status) as server:
        model = f"chat:halls@http://127.0.0.1:{server.server_port}/v1?retries=0"
        given: dict[str, Any] = {"model": model, "env": Halls(), "first": 4}
        with pytest.raises(
            RamifyError, match=f"in a row failed, the first at provider .*{'no more of this' if status else ''}"
        ) as caught:
            ramify.why(tmp_path / "run", on_attempt=on_attempt, **given)
        assert caught.value.exit_code == EXIT_FAILED
        kept = sum(one.outcome is not None for one in played)
        assert kept >= first
        assert DEAD <= len(played) - kept <= 48  # the rounds that were begun, not all three positions to their end
        again: list[Attempt] = []
        server.up = True
        why = ramify.why(tmp_path / "run", on_attempt=again.append, **given)
        assert (why.failed, why.samples) == (0, kept + len(again))


@pytest.mark.parametrize("status", [401, 404, 429, 0])
def test_nothing_is_played_where_the_endpoint_fails_at_once(tmp_path: Path, status: int) -> None:
    ramify.play(agent(), Halls(), [{"id": "train-0"}], attempts=6, out=tmp_path / "run")
    played: list[Attempt] = []
    with serving(status) as server:
        server.up = False
        model = f"chat:halls@http://127.0.0.1:{server.server_port}/v1?retries=0"
        with pytest.raises(RamifyError, match="no more of this" if status else "127.0.0.1"):
            ramify.why(tmp_path / "run", model=model, env=Halls(), on_attempt=played.append)
    assert not played
