"""The pages under attack: malformed and slow requests, foreign hosts and origins, wrong tokens,
large bodies, binds beyond this machine."""

from __future__ import annotations

import contextlib
import hmac
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import raw_client
from raw_client import ask, read_all
from waiting import until

from ramify.base.errors import UserError
from ramify.trace.db import Run
from ramify.trace.foreign import IMPORTED
from ramify.trace.node import Score, make_node
from ramify.web import connection
from ramify.web.limits import MAX_BODY
from ramify.web.server import ServedRuns, guarded_pages, open_server

TOKEN = "t0ken-of-sixteen-or-more"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "run"
    with Run.create(path, {}) as run:
        run.add_tree("t", {})
        root = make_node("t", None, 0, "root", "")
        node = make_node("t", root.id, 0, "user", "hello")
        run.add(root, node, Score(node.id, IMPORTED, 1.0))
    return path


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1", token: str | None = None) -> Iterator[int]:
    """The port of a server of the pages of ``folder``."""
    with raw_client.serving(guarded_pages(ServedRuns.of(folder), host, token)) as found:
        yield found


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with serving(folder) as found:
        yield found


def get(port: int, path: str = "/run/run/trees", **headers: str) -> tuple[int, bytes]:
    """Status and whole answer of a GET; header names with ``_`` for ``-``."""
    given = {"host": "127.0.0.1"} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    answer = ask(port, f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
    return int(answer.split(b" ", 2)[1]), answer


GOOD = b"GET /run/run/trees HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n"
PARTS = (
    b"\x00",
    b"\r\n\r\n",
    b"\n",
    b"\xff" * 40,
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Host: evil\r\n",
    b"Host\r\n",
    b": x\r\n",
    b"X: " + b"y" * 70_000 + b"\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/9.9",
    b"GET /%00%ff%zz HTTP/1.1\r\n",
    b"GET /run/run/node/%ed%a0%80 HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET http://evil/ HTTP/1.1\r\n",
    b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n",
    b"Cookie: " + b"a=b;" * 900 + b"\r\n",
    b"Origin: null\r\n",
    b"GET /run/run/tree/../../etc/passwd HTTP/1.1\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n",
)


def malformed(rng: random.Random) -> bytes:
    data = bytearray(GOOD)
    for _ in range(rng.randint(1, 4)):
        at = rng.choice((0, GOOD.index(b"Host"), rng.randrange(len(data) + 1)))
        how = rng.random()
        if how < 0.6:
            data[at:at] = rng.choice(PARTS)
        elif how < 0.8:
            del data[at : at + rng.randint(1, 30)]
        elif data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_malformed_requests(folder: Path, count: int, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)  # half a request is waited for
    with serving(folder) as port:
        with ThreadPoolExecutor(10) as pool:  # most of the time half a request is waited for
            list(pool.map(partial(attack, port, count // 10), range(10)))
        monkeypatch.setattr(connection, "HEAD_SECONDS", raw_client.PATIENCE)
        assert get(port)[0] == 200  # no worker is stuck, nothing has died
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    assert "\x00" not in said.err + said.out


def attack(port: int, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        answer = ask(port, malformed(rng), leave=rng.random() < 0.5)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer[:80]
        assert b"Traceback" not in answer
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]


@pytest.mark.slow
def test_who_is_slow_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with serving(folder) as port:
        links = [socket.create_connection(("127.0.0.1", port), timeout=raw_client.PATIENCE) for _ in range(20)]
        for number, link in enumerate(links):
            with contextlib.suppress(ConnectionError):  # a busy machine may come too late with it
                link.sendall(GOOD[: number * 2])
        assert until(lambda: ask(port, GOOD).startswith(b"HTTP/1.1 200"))  # that may come too late as well
        assert [read_all(link) for link in links] == [b""] * 20
        for link in links:
            link.close()


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1.evil.example", "null", "", "file://", "http://127.0.0.1:1"]
)
def test_other_origins_are_refused(port: int, origin: str) -> None:
    assert get(port, origin=origin)[0] == 403


def test_its_own_origin_is_answered(port: int) -> None:
    assert get(port, host=f"127.0.0.1:{port}", origin=f"http://127.0.0.1:{port}")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("size", [str(MAX_BODY + 1), "9" * 30, "1e3"])
def test_large_bodies_are_refused(port: int, size: str) -> None:
    assert get(port, content_length=size)[0] in (400, 413)
    assert get(port)[0] == 200


@pytest.mark.parametrize("token", ["short", "with space in the middle", "semi;colon-and-more-text", "ümlaut-and-sixteen-more"])
def test_a_token_that_is_none(folder: Path, token: str) -> None:
    with pytest.raises(UserError, match="letters and digits"):
        open_server(guarded_pages(ServedRuns.of(folder), token=token))


class Incomparable(str):
    """A token that fails the request which compares it by ``==`` or ``in``:
    what is left is its bytes, for ``hmac.compare_digest``."""

    def _refuse(self, other: object) -> bool:
        raise AssertionError("the token is compared in a time that tells how much of it is right")

    __eq__ = __ne__ = __lt__ = __contains__ = startswith = _refuse  # type: ignore[assignment]
    __hash__ = str.__hash__


def test_tokens_are_compared_in_constant_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(bytes(b)) or real(a, b))
    with serving(folder, token=Incomparable(TOKEN)) as port:
        assert get(port, authorization="Bearer wrong")[0] == 401
        assert get(port, cookie="ramify_token=wrong")[0] == 401
        assert get(port, "/?token=wrong")[0] == 401
        assert set(compared) == {TOKEN.encode()}
        assert get(port, authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_bind_beyond_this_machine_needs_a_token(folder: Path) -> None:
    with pytest.raises(UserError, match="without a token"):
        open_server(guarded_pages(ServedRuns.of(folder), "0.0.0.0"))
    with serving(folder, "0.0.0.0", TOKEN) as port:
        assert get(port)[0] == 401
        assert b"hello" not in get(port, "/run/run/tree/t")[1]
        for wrong in (TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "\xff"):
            assert get(port, authorization=f"Bearer {wrong}")[0] == 401
            assert get(port, cookie=f"ramify_token={wrong}")[0] == 401
            assert get(port, f"/?token={wrong.encode('latin-1').hex()}")[0] == 401
        assert get(port, authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(port, host="192.168.1.7:80", authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(port, host="evil.example", authorization=f"Bearer {TOKEN}")[0] == 421
        assert get(port, host="evil.example", cookie=f"ramify_token={TOKEN}")[0] == 421
        status, answer = get(port, f"//evil.example/?token={TOKEN}")
        head = answer.decode("latin-1").lower().split("\r\n")
        assert status == 303
        assert "location: /evil.example/" in head
        cookie = next(line for line in head if line.startswith("set-cookie"))
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert get(port, cookie=f"ramify_token={TOKEN}")[0] == 200


def test_a_damaged_run_is_a_page(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {})
    with serving(tmp_path / "run") as port:
        with Run.open(tmp_path / "run", write=True) as run:
            run._write("UPDATE trees SET task = '['")
        status, answer = get(port)
        assert status == 500
        assert b"is damaged" in answer
