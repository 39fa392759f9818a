"""The guard, the queue and the clocks of a served application, over real sockets, with an application of five routes."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import ask, get, head, parsed, post, read_all, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from waiting import PATIENCE, until

from ramify.base.errors import UserError
from ramify.web import connection, limits
from ramify.web.limits import Guard, RefusedRequestError, Slots, error_handlers, read_json

GONE: list[str] = []
BEGUN: list[str] = []


async def echo(request: Request) -> Response:
    return JSONResponse({"body": len(await request.body())})


async def parse(request: Request) -> Response:
    return JSONResponse(read_json(await request.body()))


async def fault(request: Request) -> Response:
    raise ZeroDivisionError("seventeen")


async def slow(request: Request) -> Response:
    BEGUN.append(str(request.query_params.get("name")))
    await asyncio.sleep(3600)
    return Response()


async def much(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        try:
            for _ in range(int(request.query_params["n"])):
                yield b"x" * 65536
                await asyncio.sleep(float(request.query_params.get("wait", 0)))
            yield b"end"
        finally:
            GONE.append(str(request.query_params.get("name")))

    return StreamingResponse(pieces())


def make_guard(**more: object) -> Guard:
    routes = [Route(f"/{f.__name__}", f, methods=["GET", "POST"]) for f in (echo, parse, fault, slow, much)]
    return Guard(Starlette(routes=routes, exception_handlers=error_handlers()), **more)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(make_guard()) as found:
        yield found


def sentence(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Status and message of an answer in OpenAI's shape."""
    record = json.loads(answer[2])["error"]
    assert set(record) == {"message", "type", "param", "code"}
    return answer[0], record["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "EOF"),
        (b"{", "EOF"),
        (b'{"a": 1,}', "trailing comma"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": -Infinity}', "not JSON"),
        (b'{"a": "\\ud800"}', "hex escape"),
        (b'{"a": "\xff"}', "invalid unicode"),
        (b'{"a": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"a":' * 1000, "recursion"),
        (b'{"a": [' + b"[]," * 300_000, "lists and objects"),
    ],
)
def test_what_is_no_json_is_one_sentence(body: bytes, words: str) -> None:
    with pytest.raises(RefusedRequestError, match=words) as refused:
        read_json(body)
    assert refused.value.status in (400, 413)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=9)))
def test_json_is_read_as_python_reads_it(value: dict[str, object]) -> None:
    assert read_json(json.dumps(value).encode()) == value


def test_places_are_counted() -> None:
    slots = Slots(2, 3)
    with slots.take("a", 1), slots.take("b", 2), slots.take("c", 2):
        with pytest.raises(RefusedRequestError, match="All 5 slots are taken") as refused, slots.take("d", 1):
            pass
        assert (refused.value.status, slots.taken) == (429, 5)
        assert 1 <= int(refused.value.headers["retry-after"]) <= 60
    with Slots(2, 3, 9).take("a", 5):
        pass
    with pytest.raises(RefusedRequestError, match="not 3") as never, slots.take("a", 3):
        pass
    assert (never.value.status, slots.taken) == (400, 0)
    with pytest.raises(UserError, match="at least 1"):
        Slots(0, 1)


@pytest.mark.parametrize(
    ("running", "waiting", "each", "expected"), [(64, 256, 0, 160), (64, 0, 0, 64), (2, 8, 3, 3), (2, 8, 99, 10)]
)
def test_one_client_cannot_fill_what_others_wait_for(running: int, waiting: int, each: int, expected: int) -> None:
    slots = Slots(running, waiting, each)
    with slots.take("greedy", expected - 1), slots.take("greedy", 1):
        if expected < slots.most:
            with (
                pytest.raises(RefusedRequestError, match=f"You hold {expected} of the {expected} slots") as refused,
                slots.take("greedy", 1),
            ):
                pass
            assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
            with slots.take("other", 1):
                assert slots.taken == expected + 1
    with slots.take("greedy", expected):  # and all is given back
        assert slots.taken == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=20))
def test_places_never_overflow_and_all_come_back(asked: list[tuple[str, int]]) -> None:
    slots, held = Slots(3, 4, 7), []
    for client, n in asked:
        place = slots.take(client, n)
        try:
            place.__enter__()
        except RefusedRequestError:
            assert slots.taken + n > 7
            if held:
                held.pop(0).__exit__(None, None, None)
        else:
            held.append(place)
        assert 0 <= slots.taken <= 7
    for place in held:
        place.__exit__(None, None, None)
    assert slots.taken == 0


def test_connections_are_kept(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
        for size in (0, 3, 70_000):
            link.sendall(head(port, "POST", "/echo", {"content-length": str(size)}) + b"x" * size)
            answer = b""
            while not answer.endswith(b"}"):
                answer += link.recv(1 << 16)
            assert json.loads(parsed(answer)[2]) == {"body": size}
            assert "connection" not in parsed(answer)[1]


def test_answers_carry_the_security_headers(port: int) -> None:
    for answer in (get(port, "/echo"), get(port, "/nowhere"), get(port, "/echo", host="evil.example"), get(port, "/fault")):
        assert answer[1]["x-frame-options"] == "deny"
        assert answer[1]["cache-control"] == "no-store"
        assert "server" not in answer[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"host": "evil.example"}, 421, "its own address"),
        ({"origin": "http://evil.example"}, 403, "other sites"),
        ({"content_encoding": "gzip"}, 415, "not compressed"),
        ({"content_length": "10485761"}, 413, "10485760 bytes"),
        ({"content_length": "99999999999999999999"}, 413, "10485760 bytes"),
    ],
)
def test_what_is_refused_before_it_is_read(port: int, headers: dict[str, str], status: int, words: str) -> None:
    found, said = sentence(post(port, "/echo", {}, **headers))
    assert found == status
    assert words in said


def test_names_that_lead_here() -> None:
    token, bearer = "t" * 20, {"authorization": f"Bearer {'t' * 20}"}
    with serving(make_guard(token=token, allowed=["Chat.Example"], probe="/echo")) as port:
        for host, headers, status in (
            ("chat.example:443", {"cookie": f"ramify_token={token}"}, 200),
            ("chat.example", bearer, 200),
            ("chat.example", bearer | {"origin": "http://other.example"}, 403),
            ("evil.example", {"cookie": f"ramify_token={token}"}, 421),
            ("evil.example", bearer, 421),
            ("chat.example", {}, 401),
        ):
            answer = post(port, "/parse", {}, host=host, **headers)
            assert answer[0] == status, (host, headers)
            assert status != 421 or "--allow-host" in sentence(answer)[1]


def test_a_probe_needs_no_name_and_no_token() -> None:
    with serving(make_guard(token="t" * 20, probe="/echo")) as port:
        assert get(port, "/echo", host="service.internal")[0] == 200
        assert parsed(ask(port, b"GET /echo HTTP/1.0\r\n\r\n"))[0] == 200
        for method, path in (("POST", "/echo"), ("HEAD", "/echo"), ("GET", "/echo/"), ("GET", "//echo"), ("GET", "/fault")):
            assert parsed(ask(port, head(port, method, path, {"connection": "close"})))[0] == 401, (method, path)


def test_two_lengths_are_refused(port: int) -> None:
    raw = head(port, "POST", "/echo", {"content-length": "4", "transfer-encoding": "chunked"})
    assert sentence(parsed(ask(port, raw + b"0\r\n\r\nGET /much?n=1 HTTP/1.1\r\n\r\n")))[1].endswith("not both.")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/echo", "/nowhere"])
def test_a_chunked_body_is_bounded(port: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.5)
    chunk = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
    raw = head(port, "POST", path, {"transfer-encoding": "chunked", "connection": "close"})
    assert sentence(parsed(ask(port, raw + chunk * 60)))[0] == 413
    assert sentence(parsed(ask(port, raw + chunk * 45, leave=True)))[0] == 413
    whole = parsed(ask(port, raw + chunk * 40 + b"0\r\n\r\n"))
    assert whole[0] == (200 if path == "/echo" else 404)


@pytest.mark.slow
def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HELD", 100_000)
    guard = make_guard()
    with serving(guard) as port:
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(head(port, "POST", "/echo", {"content-length": "90000"}) + b"x" * 80_000)
            assert until(lambda: guard.held == 80_000)
            assert sentence(post(port, "/echo", b"x" * 30_000))[0] == 503
            assert until(lambda: guard.held == 80_000)
            assert post(port, "/echo", b"x" * 10_000)[0] == 200
        assert until(lambda: guard.held == 0)
        assert post(port, "/echo", b"x" * 90_000)[0] == 200


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/%2e%2e/%2e%2e/etc/passwd", 404), ("//evil.example/", 404)])
def test_unknown_paths_are_one_sentence(port: int, path: str, status: int) -> None:
    assert sentence(get(port, path)) == (status, f"There is nothing at {path.replace('%2e', '.')} here.")


def test_unknown_methods_are_one_sentence(port: int) -> None:
    answer = parsed(ask(port, head(port, "PUT", "/echo", {"connection": "close"})))
    assert sentence(answer) == (405, "PUT is not answered here.")
    assert "get" in answer[1]["allow"]


def test_a_fault_is_one_sentence_and_said_in_the_terminal(port: int, capfd: pytest.CaptureFixture) -> None:
    status, said = sentence(get(port, "/fault"))
    assert status == 500
    assert "seventeen" not in said
    assert "fault while answering GET '/fault'" in (err := capfd.readouterr().err)
    assert "ZeroDivisionError: seventeen" in err
    assert get(port, "/echo")[0] == 200


@pytest.mark.slow
def test_a_request_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.5)
    with serving(make_guard(seconds=0.2)) as port:
        assert sentence(get(port, "/slow")) == (504, "Not answered within 0.2 s.")
        while (cut := get(port, "/much?n=10000&wait=0.05"))[0] == 504:
            pass  # the machine was busy, and the time was over before the answer had begun
        assert cut[0] == 200
        assert not cut[2].endswith(b"0\r\n\r\n")  # no last chunk: a client knows that it is not whole
        assert until(lambda: get(port, "/echo")[0] == 200)


def test_a_body_must_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_SECONDS", 0.3)
    with serving(make_guard()) as port, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
        link.sendall(head(port, "POST", "/echo", {"content-length": "900000"}))
        sent = 0
        try:
            while sent < 10_000:  # one byte now and then winds no clock up
                link.sendall(b"x")
                sent += 1
                time.sleep(0.02)
        except OSError:
            pass
        assert read_all(link) == b""
        assert sent < 10_000
        assert get(port, "/echo")[0] == 200


def test_a_head_must_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with serving(make_guard()) as port:
        fresh, partial = (socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(2))
        partial.sendall(b"GET /echo HTTP/1.1\r\n")
        # answered, kept for a while, then closed (a busy machine may not have sent it in time)
        assert until(lambda: ask(port, head(port, "GET", "/echo")).startswith(b"HTTP/1.1 200"))
        assert read_all(fresh) == b""
        assert read_all(partial) == b""
        assert until(lambda: get(port, "/echo")[0] == 200)
        for link in (fresh, partial):
            link.close()


@pytest.mark.slow
def test_a_reader_must_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_SECONDS", 1.0)
    with serving(make_guard()) as port, socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(PATIENCE)
        link.connect(("127.0.0.1", port))
        link.sendall(head(port, "GET", "/much?n=400&name=unread"))
        assert until(lambda: "unread" in GONE)  # the application was told
        assert not read_all(link).endswith(b"end\r\n0\r\n\r\n")
        monkeypatch.setattr(connection, "WRITE_SECONDS", PATIENCE)
        assert get(port, "/much?n=400")[2].endswith(b"end\r\n0\r\n\r\n")  # who reads gets it all


def test_who_leaves_is_noticed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
        link.sendall(head(port, "GET", "/much?n=10000&wait=.01&name=left"))
        assert link.recv(1)
    assert until(lambda: "left" in GONE)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SPARE", 4)
    with serving(make_guard(), connections=4) as port:
        links = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(4)]
        assert sentence(get(port, "/echo")) == (503, "Too many connections; retry later.")
        more = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(8)]
        assert read_all(more[-1]) == b""  # far too many are closed at once
        for link in links + more:
            link.close()
        assert until(lambda: get(port, "/echo")[0] == 200)


def test_bad_http_in_the_middle(port: int, capfd: pytest.CaptureFixture) -> None:
    chunked = head(port, "POST", "/echo", {"transfer-encoding": "chunked"})
    assert parsed(ask(port, chunked + b"zz\r\n"))[0] == 400
    streaming = head(port, "GET", "/much?n=3&wait=.1")
    assert ask(port, streaming + b"\x00\x01 no HTTP\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert ask(port, head(port, "GET", "/echo") * 3 + b"\x00\r\n\r\n").count(b'{"body":0}') == 3
    assert get(port, "/echo")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_open_answers_are_finished_when_it_ends() -> None:
    with serving(make_guard()) as port:
        link = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        idle = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        link.sendall(head(port, "GET", "/much?n=8&wait=.05"))
        assert link.recv(1)
    with link, idle:  # the server has ended by now
        assert read_all(link).endswith(b"end\r\n0\r\n\r\n")
        assert read_all(idle) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


@pytest.mark.slow
def test_the_time_to_drain_ends(capfd: pytest.CaptureFixture) -> None:
    with serving(make_guard(), drain=0.2) as port:
        link, silent = (socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(2))
        link.sendall(head(port, "GET", "/much?n=2000&wait=.05"))
        silent.sendall(head(port, "GET", "/slow?name=silent"))
        assert link.recv(1)
        assert until(lambda: "silent" in BEGUN)
    with link, silent:
        assert not read_all(link).endswith(b"0\r\n\r\n")
        assert sentence(parsed(read_all(silent))) == (503, "The server is stopping.")
    assert "Traceback" not in capfd.readouterr().err
