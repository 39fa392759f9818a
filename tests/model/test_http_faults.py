"""Everything a server can do wrong becomes a typed error, over real sockets; what may pass is tried again, as the server asks."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.engine.checkpoints import model_folder
from ramify.model.address import Endpoint, EndpointLimits
from ramify.model.endpoint import HttpModel
from ramify.model.http import KINDS, Clock, ProviderError, Transport, requested_wait
from ramify.model.probe import probe
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import forbid_real_calls
from ramify.trace.message import Message

sys.path.insert(0, str(Path(__file__).parent))
from faulty_server import FAULTS, MODEL, TOKEN_FAULTS, FaultyServer, chat, completion, good, http

HELLO = Prefix(messages=(Message("user", "hello"),))
ONCE = EndpointLimits(connect=60, read=60, total=60, retries=0, max_bytes=200_000)


class Still(Clock):
    """A clock that waits for nobody and notes how long it was asked to."""

    def __init__(self) -> None:
        self.time, self.slept, self.random = 0.0, list[float](), random.Random(0)

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def chance(self) -> float:
        return self.random.random()


def model(server: FaultyServer, mode: str = "chat", **options: Any) -> HttpModel:
    """Past its look at the server: what follows meets the plans."""
    options = {"limits": ONCE, "clock": Still(), **options}
    if mode == "completions":
        options["tokenizer"] = model_folder("builtin")
    made = HttpModel(server.url, MODEL, mode, **options)
    made._offers = frozenset({"tokens", "continue", "logprobs", "prompt_logprobs"} if mode == "completions" else ())
    return made


def sample(made: HttpModel, prefix: Prefix = HELLO, n: int = 1, **settings: Any) -> list[Completion]:
    return asyncio.run(made.sample(prefix, n, Sampling(**{"max_tokens": 8, **settings}), list(range(n))))


def failure(made: HttpModel, prefix: Prefix = HELLO) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        sample(made, prefix)
    return caught.value


def tokens_prefix() -> Prefix:
    import numpy as np

    return Prefix(np.array([1, 2, 3], np.int32))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_chat_server_has_a_kind_and_is_one_sentence(fault: str) -> None:
    with FaultyServer(fault) as server:
        error = failure(model(server))
    assert error.kind == FAULTS[fault][1]
    assert isinstance(error, InfrastructureError)
    assert error.boundary == "provider"
    assert str(error).startswith(f"provider ({error.kind}): ")
    assert "127.0.0.1" in error.message
    assert "\n" not in error.message
    assert "canary" not in str(error)
    assert "pw@" not in str(error)
    assert error.kind in KINDS


@pytest.mark.parametrize("fault", TOKEN_FAULTS)
def test_every_fault_of_a_completions_server_has_a_kind(fault: str) -> None:
    body, kind = TOKEN_FAULTS[fault]
    with FaultyServer(lambda _: http(body)) as server:
        assert failure(model(server, "completions"), tokens_prefix()).kind == kind


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"prompt_logprobs": [None, {"2": {"logprob": -1.0}}]}, "logprobs"),
     ({"prompt_logprobs": [None, {"9": {}}, None]}, "logprobs"),
     ({"prompt_logprobs": [None, {"2": {"logprob": 0.2}}, {"3": {"logprob": -1}}]}, "logprobs"), ({"logprobs": None}, "logprobs"),
     ({"prompt_logprobs": [None, {"2": {"logprob": float("nan")}}, {"3": {"logprob": -1}}]}, "logprobs")],
)  # fmt: skip
def test_wrong_scores_of_given_tokens(change: Any, kind: str) -> None:
    with FaultyServer(lambda _: http(completion(**change))) as server, pytest.raises(ProviderError) as caught:
        asyncio.run(model(server, "completions").logprobs([tokens_prefix().tokens]))  # type: ignore[list-item]
    assert caught.value.kind == kind


def test_the_servers_own_words_are_in_the_error() -> None:
    for fault, words in (("400", "max_tokens is too large"), ("500", "<h1>oops</h1>"), ("422", "bad"), ("401", "who are you")):
        with FaultyServer(fault) as server:
            assert words in failure(model(server)).message


def test_hostile_words_of_a_server_are_one_short_printable_line() -> None:
    body = {"error": {"message": "a\n\x1b[31mred\u202e " + "x" * 5000}}
    with FaultyServer(lambda _: http(body, 400)) as server:
        message = failure(model(server)).message
    assert message.isprintable()
    assert len(message) < 400


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        made = HttpModel(f"http://127.0.0.1:{free.getsockname()[1]}/v1", MODEL, limits=ONCE)
        with pytest.raises(ProviderError, match=r"no connection to 127\.0\.0\.1") as caught:
            _ = made.capabilities
    assert caught.value.kind == "connection"
    with pytest.raises(ProviderError) as caught:
        _ = HttpModel("http://no-such-host.invalid/v1", MODEL, limits=ONCE).capabilities
    assert caught.value.kind == "connection"


def test_a_server_that_hangs() -> None:
    for limits in (EndpointLimits(read=0.1, retries=0), EndpointLimits(total=0.1, retries=0)):
        with FaultyServer("garbage", hang=True) as server:
            error = failure(model(server, limits=limits))
        assert error.kind == "timeout"


def test_a_drip_feed_ends_with_the_total_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.02)
        finally:
            writer.close()
            gone.set()

    async def play() -> ProviderError:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        transport = Transport(Endpoint.parse(url), EndpointLimits(read=5, total=0.2, retries=0))
        with pytest.raises(ProviderError) as caught:
            await transport.get("/models")
        if begun.is_set():  # a machine that stood still may have used the time up before the connection
            await gone.wait()
        server.close()
        return caught.value

    begun, gone = asyncio.Event(), asyncio.Event()
    assert asyncio.run(play()).kind == "timeout"


def test_what_may_pass_is_tried_again_and_then_it_works() -> None:
    plans = ["429", "500", "cut-body", "nothing", "503"]
    clock = Still()
    with FaultyServer(*plans, good) as server:
        made = model(server, limits=EndpointLimits(retries=5, base=1.0, longest=3.0), clock=clock)
        assert sample(made)[0].text == "fine"
        assert len(server.requests) == len(plans) + 1
    same = random.Random(0)
    assert clock.slept == [same.random() * min(3.0, 2.0**k) for k in range(5)]  # full jitter under a growing, capped bound


def test_after_the_last_retry_the_failure_is_final() -> None:
    with FaultyServer("500") as server:
        error = failure(model(server, limits=EndpointLimits(retries=3)))
        assert len(server.requests) == 4
    assert error.final


@pytest.mark.parametrize("fault", ["400", "401", "404", "quota", "redirect"])
def test_what_will_not_pass_is_asked_once(fault: str) -> None:
    with FaultyServer(fault, good) as server:
        assert failure(model(server, limits=EndpointLimits(retries=5))).final
        assert len(server.requests) == 1


def test_retry_after_is_honoured_by_all_requests() -> None:
    clock = Still()
    slow = http({"error": {"message": "slow"}}, 429, {"retry-after": "7"})
    with FaultyServer(lambda _: slow, good) as server:
        made = model(server, limits=EndpointLimits(retries=1, base=0.5), clock=clock)
        sample(made)
        assert 7 <= clock.time < 7.5
    with FaultyServer(lambda _: http(b"", 503, {"retry-after": "3600"})) as server:
        error = failure(model(server, limits=EndpointLimits(retries=5)))
        assert len(server.requests) == 1
    assert "it requests a wait of 3600 s" in error.message


def test_a_wait_asked_for_holds_back_requests_that_come_later() -> None:
    clock = Still()
    with FaultyServer(lambda _: http(b"", 429, {"retry-after": "5"}), good) as server:
        made = model(server, limits=EndpointLimits(retries=0), clock=clock)
        failure(made)
        assert clock.time == 0
        sample(made)
    assert clock.time == 5


def test_ways_to_ask_for_a_wait() -> None:
    assert requested_wait({"retry-after": "2"}) == 2
    assert requested_wait({"retry-after": "1.5"}) == 1.5
    assert requested_wait({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    later = email.utils.formatdate(time.time() + 1000, usegmt=True)
    assert 900 < (requested_wait({"retry-after": later}) or 0) <= 1000
    assert requested_wait({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    for hours in (-9, 26):  # this machine's clock, or the server's, jumped: its two dates still tell how long
        sent = time.time() + 3600 * hours
        headers = {name: email.utils.formatdate(sent + more, usegmt=True) for name, more in (("date", 0), ("retry-after", 3))}
        assert requested_wait(headers) == 3
    assert 900 < (requested_wait({"retry-after": later, "date": "nonsense"}) or 0) <= 1000
    for nonsense in ("", "soon", "-3", "1e999", "nan", "99999-99-99", "\u0663"):
        assert requested_wait({"retry-after": nonsense}) in (None, 3.0)
    assert requested_wait({"retry-after-ms": "inf"}) is None


def test_the_rate_spaces_requests() -> None:
    clock = Still()
    with FaultyServer(good) as server:
        sample(model(server, limits=EndpointLimits(rate=4.0), clock=clock), n=9)
        assert len(server.requests) == 9
    assert clock.time == pytest.approx(2.0)


def test_at_most_so_many_requests_are_open_at_once() -> None:
    open_now, most, full = 0, 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        await reader.readuntil(b"\r\n\r\n")
        open_now += 1
        most = max(most, open_now)
        if open_now == 3:
            full.set()
        await asyncio.wait_for(full.wait(), 60)  # three are open at once, however slowly they come
        await asyncio.sleep(0.01)
        open_now -= 1
        writer.write(http(chat()))
        await writer.drain()
        writer.close()

    async def play() -> list[Completion]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        made = HttpModel(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1?concurrent=3", MODEL)
        made._offers = frozenset()
        completions = await made.sample(HELLO, 20, Sampling(), list(range(20)))
        server.close()
        return completions

    assert len(asyncio.run(play())) == 20
    assert most == 3


def test_one_object_serves_several_event_loops() -> None:
    with FaultyServer(good) as server:
        made = model(server)
        for _ in range(3):
            assert sample(made, n=2)[1].text == "fine"


def test_real_calls_can_be_forbidden() -> None:
    with FaultyServer(good) as server:
        made = HttpModel(server.url, MODEL)
        with forbid_real_calls():
            with pytest.raises(NeedsError, match="would call a real model"):
                _ = made.capabilities
            assert probe(server.url)["kind"] == "refused"
        assert server.requests == []


@pytest.mark.parametrize(
    ("url", "words"),
    [("ftp://h/v1", "must look like"), ("http://", "must look like"), ("h:8000", "must look like"),
     ("http://h:port/v1", "cannot be read"),
     ("http://[::1/v1", "cannot be read"), ("http://h/v1\r\nx: y", "must look like"),
     ("https://u:canary@h/v1", "name or password"),
     ("https://canary@h/v1", "name or password"), ("https://h/v1?api_key=canary", "carries the field 'api_key'"),
     ("https://h/v1#canary", "a fragment"), ("http://h/v1?rate=fast", "rate='fast'"),
     ("http://h/v1?concurrent=0", "concurrent='0'"),
     ("http://h/v1?concurrent=1.5", "concurrent='1.5'"), ("http://h/v1?timeout=nan", "timeout='nan'"), ("", "must look like")],
)  # fmt: skip
def test_urls_that_are_refused_in_one_sentence(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        HttpModel(url, MODEL)
    assert "canary" not in str(caught.value)


def test_options_of_the_url_and_what_is_sent_along() -> None:
    endpoint = Endpoint.parse("HTTPS://Host.example:99?api-version=2&rate=2.5&concurrent=4&timeout=9&retries=0")
    assert endpoint.url == "https://host.example:99/v1"
    assert endpoint.query == {"api-version": "2"}
    limits = endpoint.limits()
    assert (limits.rate, limits.concurrent, limits.read, limits.total, limits.retries) == (2.5, 4, 9, 9, 0)
    with FaultyServer(good) as server:
        made = HttpModel(server.url + "/?api-version=7&rate=100", MODEL, clock=Still())
        made._offers = frozenset()
        sample(made)
        assert server.requests[0][0] == "/v1/chat/completions?api-version=7"


def test_a_probe_says_what_is_there_and_raises_nothing() -> None:
    with FaultyServer(lambda _: http({"data": [{"id": "a"}, {"id": 3}, "x", {"id": "b"}]})) as server:
        found = probe(server.url, timeout=60)
    assert (found["reachable"], found["ok"], found["models"]) == (True, True, ["a", "b"])
    assert found["latency_s"] >= 0
    for fault in FAULTS:
        with FaultyServer(fault) as server:
            found = probe(server.url, timeout=2)
        assert found["ok"] == ("kind" not in found)
    assert probe("nonsense")["kind"] == "refused"
    assert probe("https://me:canary-0123456789@h/v1")["url"] == ""
    found = probe("http://127.0.0.1:9/v1")
    assert (found["reachable"], found["kind"]) == (False, "connection")
