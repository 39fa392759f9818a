"""The gateway over real sockets: what passes, what an upstream does wrong, who leaves, and what is kept of it all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from api_server import NAME, metric, served
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import FAULTS, MODEL, REPLIES, RESET, FaultyServer, Raw, chat, good, http
from model_server import serving

from ramify.base.errors import RamifyError
from ramify.methods.orchestrator.middleware import Routed
from ramify.methods.orchestrator.pool import ModelPool, PoolWorker
from ramify.model.address import EndpointLimits
from ramify.model.endpoint import HttpModel
from ramify.model.sse import EventParser
from ramify.trace.db import Run
from ramify.trace.node import Node
from ramify.web.api import Api
from ramify.web.exchange import Exchange
from ramify.web.limits import Guard, Slots
from ramify.web.recording import Recorder
from ramify.web.server import open_server

KEY = "sk-upstream-0123456789abcdef"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
STREAMED = "text/event-stream"


class Upstream(FaultyServer):
    """Answers as ``plan`` says, which a test sets; until then as a sound server."""

    def __init__(self) -> None:
        super().__init__(lambda body: self.plan(body))
        self.plan: Callable[[dict[str, Any]], Raw] = good


@contextlib.contextmanager
def gateway(
    upstream: str, folder: Path | None = None, options: str = "?retries=0", name: str = MODEL, record: Any = None
) -> Iterator[str]:
    """A gateway in front of ``upstream``; yields its URL. The recorder is closed at the end."""
    model = HttpModel(upstream + options, MODEL)
    recorder = Recorder(folder, {}) if folder else record
    api = Api(model, name, Slots(64, 0), recorder)
    try:
        with serving(Guard(api.app(), "127.0.0.1", seconds=60.0, count=api.count)) as url:
            yield url
    finally:
        if folder:
            recorder.close()


CLIENT = httpx2.Client(timeout=60, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


@pytest.fixture(autouse=True, scope="module")
def _closing() -> Iterator[None]:
    yield
    CLIENT.close()


def post(url: str, body: Any = ASK, path: str = "/chat/completions", **headers: str) -> httpx2.Response:
    return CLIENT.post(url + path, json=body, headers=headers)


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.split("\n\n") if line and line != "data: [DONE]"]


def chunk(delta: Any, finish: Any = None, **more: Any) -> bytes:
    made = {"id": "chatcmpl-7", "model": MODEL, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | more
    return f"data: {json.dumps(made)}\n\n".encode()


def stream(*parts: bytes, done: bool = True) -> bytes:
    """A whole streamed answer, as HTTP."""
    return http(b"".join(parts) + (b"data: [DONE]\n\n" if done else b""), kind=STREAMED)


def replies(folder: Path) -> list[Node]:
    with Run.open(folder) as run:
        return [node for node in run.each(Node) if node.index >= 0]


def test_an_answer_passes_unchanged_and_no_header_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_API_KEY", KEY)
    raw = json.dumps(chat(usage={"prompt_tokens": 3, "completion_tokens": 1}, odd={"field": [1, None]}, id="x-1")).encode()
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        upstream.plan = lambda body: http(raw)
        answer = post(
            url, ASK | {"some_new_field": True}, authorization="Bearer client-key-0123456789", cookie="a=secret-cookie-value"
        )
        counted = CLIENT.get(url.removesuffix("/v1") + "/metrics").text
    assert (answer.status_code, answer.content) == (200, raw)
    _, headers, body = upstream.requests[-1]
    assert body == ASK | {"some_new_field": True}
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "cookie" not in headers
    assert 'ramify_requests_total{route="/v1/chat/completions",status="200"} 1.0' in counted
    assert 'ramify_tokens_total{kind="prompt"} 3.0' in counted
    (node,) = replies(tmp_path / "run")
    assert (node.text, node.stop, node.data["request"]) == ("fine", "eos", "x-1")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not any(secret in stored for secret in (KEY.encode(), b"client-key-0123456789", b"secret-cookie-value"))


def test_the_openai_client_talks_through_it(tmp_path: Path) -> None:
    calls = [{"index": 0, "id": "call_a", "function": {"name": "look", "arguments": '{"at":'}}]
    more = [{"index": 0, "function": {"arguments": ' "home"}'}}]
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run", name="public") as url:
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model="public", messages=messages)
        assert whole.choices[0].message.content == "fine"
        upstream.plan = lambda body: stream(
            chunk({"role": "assistant", "content": ""}), chunk({"tool_calls": calls}), chunk({"tool_calls": more}),
            chunk({}, "tool_calls"), chunk({}, usage={"prompt_tokens": 2, "completion_tokens": 9}, choices=[]),
        )  # fmt: skip
        messages += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "look"}]
        pieces = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True))
        assert len(pieces) == 5
        with pytest.raises(openai.NotFoundError, match="no model 'other' here"):
            client.chat.completions.create(model="other", messages=messages)
        assert [model.id for model in client.models.list()] == ["public"]
        client.close()
    assert upstream.requests[-2][2]["model"] == MODEL
    with Run.open(tmp_path / "run") as run:
        (tree,) = run.trees()
        nodes = run.nodes(tree.name)
        assert [node.role for node in nodes] == ["root", "user", "assistant", "user", "assistant"]
        assert nodes[-1].data["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "home"}'}
        assert nodes[-1].data["usage"] == {"prompt_tokens": 2, "completion_tokens": 9}


def test_what_only_an_upstream_can_keep_to_passes_unread() -> None:
    fields = {
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "parallel_tool_calls": False,
        "tools": [{"x": 1}],
    }
    with Upstream() as upstream, gateway(upstream.url) as url:
        assert post(url, ASK | fields).status_code == 200
    assert upstream.requests[-1][2] == ASK | fields


def test_choices_are_siblings_and_completions_pass(tmp_path: Path) -> None:
    two = chat()["choices"] + [{"index": 1, "message": {"role": "assistant", "content": "other"}, "finish_reason": "length"}]
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        upstream.plan = lambda body: http(chat() | {"choices": two})
        assert post(url, ASK | {"n": 2, "seed": 5, "temperature": 0.5}).status_code == 200
        upstream.plan = good
        assert post(url, {"model": MODEL, "prompt": "once"}, "/completions").json()["choices"][0]["text"] == "ab"
        assert post(url, {"model": MODEL, "prompt": [[5, 6], [7]]}, "/completions").status_code == 200
    first, second, third, *rest = replies(tmp_path / "run")
    assert (first.text, second.text, second.stop, first.parent) == ("fine", "other", "length", second.parent)
    assert first.data["key"] == 5
    assert third.text == "ab"
    assert [node.stop for node in rest] == ["length", "failed"]  # two prompts, of which the upstream answered one


def status_of(kind: str, status: int) -> int:
    """What a client sees: its own mistakes as the upstream tells them, anything else as the upstream's."""
    if kind in ("request", "rate") or (kind == "model" and status):
        return status
    return 504 if kind == "timeout" else 502


@pytest.mark.slow
def test_whatever_an_upstream_does_wrong_is_one_error(tmp_path: Path) -> None:
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        kept = 0
        for name, (raw, kind) in FAULTS.items():
            upstream.plan = lambda body, raw=raw: raw
            answer = post(url)
            if kind == "filtered" or name in ("too-large", "endless"):  # 300 kB are no fault here
                assert answer.status_code in (200, 502), name
                kept += 1
                continue
            if kind in ("shape", "empty"):  # it is recorded, so nobody has to understand it
                assert (answer.status_code, answer.content) == (200, raw.partition(b"\r\n\r\n")[2]), name
                kept += 1
                continue
            given = int(name[:3]) if name[:3].isdecimal() else {"quota": 429}.get(name, 0)
            assert answer.status_code == status_of(kind, given), name
            error = answer.json()["error"]
            assert error["code"] == kind, name
            assert error["message"].startswith("Upstream: "), name
            assert "127.0.0.1:" in error["message"], name
            assert len(error["message"]) < 500
            kept += 1
        upstream.plan = good
        assert post(url).status_code == 200
        upstream.plan = lambda body: http({"error": {"message": "slow down"}}, 429, {"retry-after": "7"})
        answer = post(url)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert len(replies(tmp_path / "run")) == kept + 2  # failures are data


LIES: dict[str, tuple[bytes, str, str]] = {
    "json": (http(chat()), "content_type", ""),
    "html": (http(b"<html>hello</html>", kind="text/html"), "content_type", ""),
    "refused": (http({"error": {"message": "no"}}, 400), "request", ""),
    "error": (http({"error": {"message": "out of memory"}}), "server", ""),
    "died": (stream(chunk({"content": "so"}), b'data: {"error": {"message": "out of memory"}}\n\n'), "server", "so"),
    "ended-early": (stream(chunk({"content": "so"}), done=False), "cut", "so"),
    "empty": (stream(), "cut", ""),
    "cut": (stream(chunk({"content": "so"}), chunk({"content": " far"}), chunk({}, "stop"))[:-30], "cut", "so far"),
    "event-without-end": (stream(b"data: " + b"x" * (3 << 20)), "too_large", ""),
    "endless": (stream(*[chunk({"content": "x" * 9_000})] * 2_000), "too_large", "x" * 9_000),
}  # fmt: skip


@pytest.mark.slow
def test_whatever_a_stream_does_wrong_is_one_error(tmp_path: Path) -> None:
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        for name, (raw, kind, before) in LIES.items():
            upstream.plan = lambda body, raw=raw: raw
            answer = post(url, ASK | {"stream": True})
            if before:
                assert answer.status_code == 200, name
                streamed = events(answer.text)
                assert "".join(e["choices"][0]["delta"].get("content", "") for e in streamed[:-1])[: len(before)] == before, name
                error = streamed[-1]["error"]
                assert "[DONE]" not in answer.text
            else:
                assert answer.status_code == (400 if name == "refused" else 502), name
                error = answer.json()["error"]
            assert error["code"] == kind, (name, error)
        upstream.plan = lambda body: stream(chunk({"content": "fine"}), chunk({}, "stop"))
        assert post(url, ASK | {"stream": True}).text.endswith("data: [DONE]\n\n")
    kept = replies(tmp_path / "run")
    assert len(kept) == len(LIES) + 1
    assert all(node.stop == "failed" and node.data["failure"] for node in kept[:-1])
    assert [n.text for n in kept if n.text][:2] == ["so", "so"]  # what had come is kept


ODD: dict[str, tuple[bytes, str, str, str]] = {
    "garbage": (stream(chunk({"content": "so"}), b"data: {oops\n\n", chunk({}, "stop")), "so", "eos", "not JSON"),
    "pings": (stream(b"event: ping\ndata: ping\n\n", chunk({"content": "so"}, "stop")), "so", "eos", "not JSON"),
    "deep": (stream(b"data: " + b"[" * 100_000 + b"\n\n"), "", "failed", "nested too deeply"),
    "list": (stream(b"data: [1]\n\n"), "", "failed", "a list instead of"),
    "no-choices": (stream(b"data: {}\n\n", chunk({"content": "so"}, "stop")), "so", "eos", "an empty object"),
    "other events": (stream(b'data: {"type": "usage"}\n\n', chunk({"content": "so"}, "stop")), "so", "eos", "list of choices"),
    "delta-text": (stream(chunk("so")), "", "eos", "a delta that is not an object"),
    "content-number": (stream(chunk({"content": 7}), chunk({"content": "so"}, "stop")), "so", "eos", "content that is not text"),
    "which": (stream(chunk({}, choices=[{"index": 10**9, "delta": {}}])), "", "failed", "without its index"),
    "call": (stream(chunk({"content": "so", "tool_calls": [{"index": -1}]}, "stop")), "so", "eos", ""),
    "done-early": (stream(chunk({"content": "so"})), "so", "eos", ""),
    "odd-finish": (stream(chunk({"content": "so"}, "meteor")), "so", "failed", "finish_reason 'meteor'"),
}  # fmt: skip
"""Streams that are whole and odd -> the text, the ending and what could not be read, as the record has them."""


def test_what_is_only_recorded_passes_however_odd_it_is(tmp_path: Path) -> None:
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        for name, (raw, *_) in ODD.items():
            upstream.plan = lambda body, raw=raw: raw
            answer = post(url, ASK | {"stream": True})
            assert (answer.status_code, answer.content) == (200, raw.partition(b"\r\n\r\n")[2]), name
        upstream.plan = lambda body: http([1, 2])
        assert post(url).json() == [1, 2]
    *kept, last = replies(tmp_path / "run")
    for (name, (_, text, stop, unread)), node in zip(ODD.items(), kept, strict=True):
        assert (node.text, node.stop) == (text, stop), name
        said = node.data.get("unread") or node.data.get("failure", "")
        assert unread in said if unread else not said, (name, node.data)
    assert last.stop == "failed"
    assert "a list instead of a JSON object" in last.data["failure"]


@pytest.mark.parametrize("streams", [False, True])
def test_what_the_model_said_is_recorded_in_whatever_form(tmp_path: Path, streams: bool) -> None:
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        for name, (raw, *_) in REPLIES.items():
            (choice,) = (whole := json.loads(body := raw.partition(b"\r\n\r\n")[2]))["choices"]
            piece = chunk(choice["message"], model=whole["model"]), chunk({}, choice["finish_reason"], model=whole["model"])
            upstream.plan = lambda body, raw=raw, piece=piece: stream(*piece) if streams else raw
            answer = post(url, ASK | {"stream": streams})
            assert answer.content == (b"".join(piece) + b"data: [DONE]\n\n" if streams else body), name
    for (name, (_, text, calls, thought)), node in zip(REPLIES.items(), replies(tmp_path / "run"), strict=True):
        found = [(call["function"]["name"], call["function"]["arguments"]) for call in node.data.get("tool_calls", ())]
        assert (node.text, node.stop, found, node.data.get("reasoning", "")) == (text, "eos", calls, thought), name


def both(whole: bytes, streamed: bytes) -> Callable[[dict[str, Any]], bytes]:
    """A plan: one answer in one piece, another where a stream is wanted."""
    return lambda body: streamed if body.get("stream") else whole


def endless(head: bytes, piece: bytes) -> Callable[[dict[str, Any]], Iterator[bytes]]:
    """A plan: pieces without end, for as long as they are read."""
    return lambda body: itertools.chain([head], itertools.repeat(piece))


def head_of(kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode()


ENDED = (chunk({"content": "fine"}), chunk({}, "stop"))
NEVER = {"prompt_tokens": -5, "completion_tokens": "many", "total_tokens": 10**30, "prompt_tokens_details": [1]}
OTHER_IDS = {"token_ids": [7, 10**12], "logprobs": {"content": [{"token": "other", "logprob": 3.0, "bytes": None}]}}
REASON = {"error": {"message": "out of memory on node 7", "code": 503}}
ENDPOINT_LIES: dict[str, tuple[Callable[[dict[str, Any]], Raw], str, str, str, str]] = {
    "wrong JSON": (both(http(b'{"choices": [{'), stream(b"data: {oops\n\n")), "json", "json", "", "not JSON"),
    "200 with an error": (both(http(REASON), http(REASON)), "server", "server", "", "out of memory on node 7"),
    "half a stream": (both(http(chat())[:-9], stream(chunk({"content": "so"}), done=False)), "cut", "cut", "so", ""),
    "endless stream": (
        endless(head_of(STREAMED), chunk({"content": "x" * 60_000})),
        "content_type",
        "too_large",
        "x" * 60_000,
        "",
    ),
    "endless JSON": (endless(head_of("application/json"), b" " * 60_000), "too_large", "too_large", "", "more than"),
    "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"y" * 6_000 + b"\r\n"), "cut", "cut", "", "broke off"),
    "wrong content type": (
        both(*[http(b"<html>welcome</html>", kind="text/html")] * 2),
        "content_type",
        "content_type",
        "",
        "text/html",
    ),
    "other token ids": (
        both(
            http(chat() | {"choices": [chat()["choices"][0] | OTHER_IDS]}),
            stream(chunk({}, choices=[{"index": 0, "delta": {"content": "fine"}} | OTHER_IDS]), ENDED[1]),
        ),
        "",
        "",
        "fine",
        "",
    ),
    "usage that lies": (both(http(chat(usage=NEVER)), stream(*ENDED, chunk({}, choices=[], usage=NEVER))), "", "", "fine", ""),
    "huge reply": (
        both(http(chat({"role": "assistant", "content": "x" * (17 << 20)})), stream(chunk({"content": "x" * (2 << 20)}))),
        "too_large",
        "too_large",
        "",
        "more than",
    ),
    "empty choices": (both(http({"model": MODEL, "choices": []}), stream(chunk({}, choices=[]))), "empty", "cut", "", ""),
    "reset": (
        lambda body: [head_of(STREAMED if body.get("stream") else "application/json"), RESET],
        "cut",
        "cut",
        "",
        "broke off",
    ),
    "redirect": (
        lambda body: http(b"", 307, {"location": "http://user:pw@elsewhere.example/v1?key=canary-0123456789"}),
        "redirect",
        "redirect",
        "",
        "redirects to http://elsewhere.example/v1;",
    ),
}
"""What an endpoint does -> which error that is, whole and streamed ("":
none), the text before it in a stream, words of the reason a user is told."""


class First:
    """A router that prefers the first worker."""

    roles, workers, identity = False, ("lying", "last"), "first"

    def logits(self, messages: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.array([2.0, 1.0]), np.array([])


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_an_endpoint_that_lies_is_one_error_or_another_workers_answer(streams: bool) -> None:
    """The same lies to a gateway, whose client is told what is wrong, and to a router,
    whose client has the answer of the worker that is left."""
    with Upstream() as upstream, gateway(upstream.url) as direct:
        lying = PoolWorker("lying", HttpModel(upstream.url, MODEL, limits=EndpointLimits(retries=0, max_bytes=16 << 20)))
        pool = ModelPool([lying, PoolWorker("last", lambda _: "left")], retries=0)
        assert pool.models[0].capabilities  # asked while it is sound
        with served(Routed(pool.models[1]).over(pool, First())) as front:
            for name, (plan, whole, streamed, before, reason) in ENDPOINT_LIES.items():
                upstream.plan, kind = plan, streamed if streams else whole
                answer = post(direct, ASK | {"stream": streams})
                odd = kind == "empty" or (streams and kind == "json")  # whole and odd: it passes as it is
                text, error, _ = ("", {"code": kind, "message": reason}, {}) if odd else read_answer(answer)
                assert not odd or answer.content == plan({"stream": streams}).partition(b"\r\n\r\n")[2]  # type: ignore[union-attr]
                assert (error.get("code", ""), reason in error.get("message", "")) == (kind, True), (name, error)
                assert text.startswith(before if streams or not kind else ""), name
                assert "canary" not in str(error), name
                text, error, note = read_answer(post(front, ASK | {"model": NAME, "stream": streams}))
                if not kind:
                    assert (text, error, note["worker"], note["notes"]) == ("fine", {}, "lying", []), name
                    assert 0 <= note["tokens"] < 100, name
                elif streams and before:
                    assert "'lying' failed amid its reply" in error["message"], (name, error)
                else:
                    assert (text, error, note["worker"]) == ("left", {}, "last"), (name, error)
                    assert "'lying' failed" in note["notes"][0], name
                    assert reason in note["notes"][0], (name, note)
        assert metric(direct, 'ramify_tokens_total{kind="prompt"}') == 0


def read_answer(answer: httpx2.Response) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The text of an answer, streamed or whole, its error, and what a router says of it."""
    found = events(answer.text) if answer.headers["content-type"].startswith(STREAMED) else [answer.json()]
    text, note, error = "", {}, {}
    for one in found:
        error = one.get("error") or error
        for choice in one.get("choices", ()):
            text += (choice.get("delta") or choice.get("message") or {}).get("content") or ""
            note = choice.get("ramify", {}).get("orchestrator", note)
    return text, error, note


def test_another_name_passes_and_both_are_kept(tmp_path: Path) -> None:
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        upstream.plan = lambda body: http(chat() | {"model": "gpt-nothing"})
        assert post(url).json()["model"] == "gpt-nothing"
        upstream.plan = lambda body: stream(chunk({"content": "so"}, "stop", model="gpt-nothing"))
        assert post(url, ASK | {"stream": True}).text.endswith("data: [DONE]\n\n")
        upstream.plan = good
        assert post(url).status_code == 200
    *other, same = replies(tmp_path / "run")
    assert [node.data["model"] for node in other] == [{"asked": MODEL, "answered": "gpt-nothing"}] * 2
    assert "model" not in same.data


def test_every_sample_of_every_prompt_takes_a_place(tmp_path: Path) -> None:
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run") as url:
        for body, words in (
            ({"prompt": ["a"] * 129}, "Field 'prompt': at most 128"),
            ({"prompt": "a", "n": 129}, "Field 'n': at most 128"),
            ({"prompt": ["a"] * 13, "n": 5}, "takes 64 samples at once from a client, not 65"),
        ):
            answer = post(url, {"model": MODEL} | body, "/completions")
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]
        assert not any(path.endswith("/completions") for path, _, body in upstream.requests if "prompt" in (body or {}))
        upstream.plan = lambda body: http({"error": {"message": "no"}}, 400)
        assert post(url, {"model": MODEL, "prompt": ["a"] * 12, "n": 5}, "/completions").status_code == 400
    (node,) = replies(tmp_path / "run")  # refused as a whole: one node, not sixty
    assert node.stop == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_while_it_is_recorded_is_recorded_once(streams: bool) -> None:
    recorded: list[Exchange] = []
    began, go = threading.Event(), threading.Event()

    async def slowly(exchange: Exchange) -> None:
        recorded.append(exchange)
        began.set()
        while not go.is_set():
            await asyncio.sleep(0.005)

    with Upstream() as upstream, gateway(upstream.url, record=slowly) as url:
        upstream.plan = lambda body: stream(chunk({"content": "fine"}, "stop")) if streams else good(body)
        with socket.create_connection(("127.0.0.1", httpx2.URL(url).port or 0)) as link:
            body = json.dumps(ASK | {"stream": streams}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
            link.sendall(head.encode() + body)
            assert began.wait(60)
        assert until(lambda: metric(url, "ramify_places_taken") == 0)  # it is seen that the client has left
        go.set()
        assert post(url, ASK | {"stream": streams}).status_code == 200
    assert len(recorded) == 2
    assert [type(exchange.outcomes[0][0]).__name__ for exchange in recorded] == ["Completion", "Completion"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=9), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]))), st.data())
def test_events_are_the_same_in_any_pieces(parts: list[tuple[str, str]], data: st.DataObject) -> None:
    each = [f"data: {json.dumps({'text': text})}{gap}".encode() for text, gap in parts]
    raw, heard = b"".join(each), EventParser("h")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    found = [event for a, b in itertools.pairwise([0, *cuts, len(raw)]) for event in heard.push(raw[a:b])]
    assert found == [(one, {"text": text}) for one, (text, _) in zip(each, parts, strict=True)]


def test_a_large_event_in_tiny_pieces() -> None:
    raw, heard = b'data: {"text": "' + b"x" * 900_000 + b'"}\n\n', EventParser("h")
    (found,) = [event for at in range(0, len(raw), 16) for event in heard.push(raw[at : at + 16])]
    assert (found[0], len(found[1]["text"])) == (raw, 900_000)


def test_silence_is_an_error_in_time() -> None:
    with Upstream() as upstream, gateway(upstream.url, options="?retries=0&timeout=0.3") as url:
        upstream.hang = True
        for streams in (False, True):
            answer = post(url, ASK | {"stream": streams})
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


class Slow:
    """An ASGI upstream that streams a word, waits until it is let go, and notes when its caller leaves."""

    def __init__(self, trickles: bool = False) -> None:
        self.go, self.gone, self.trickles = threading.Event(), threading.Event(), trickles

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        if not body.get("stream"):
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": json.dumps(chat()).encode()})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", STREAMED.encode())]})
        await send({"type": "http.response.body", "body": chunk({"content": "first"}), "more_body": True})
        while not self.go.is_set():
            try:
                async with asyncio.timeout(0.02):
                    if (await receive())["type"] == "http.disconnect":
                        self.gone.set()
                        return
            except TimeoutError:
                if self.trickles:
                    await send({"type": "http.response.body", "body": chunk({"content": "."}), "more_body": True})
        rest = chunk({"content": " second"}) + chunk({}, "stop") + b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": rest})


def test_a_word_passes_before_the_next_is_there(tmp_path: Path) -> None:
    slow = Slow()
    with serving(slow) as upstream, gateway(upstream, tmp_path / "run") as url:
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        with client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True) as pieces:
            assert next(iter(pieces)).choices[0].delta.content == "first"
            slow.go.set()
            assert [piece.choices[0].delta.content for piece in pieces] == [" second", None]
        assert [node.text for node in replies(tmp_path / "run")] == ["first second"]  # there before the stream's end was told
        client.close()


@pytest.mark.slow
def test_a_stream_that_never_ends_is_ended_in_time() -> None:
    slow = Slow(trickles=True)
    for seconds in (0.5, 5, 50):  # more where a busy machine did not even begin in time
        with serving(slow) as upstream, gateway(upstream, options=f"?retries=0&timeout={seconds}") as url:
            answer = post(url, ASK | {"stream": True})
            assert slow.gone.wait(60)
        if answer.status_code == 200 and len(streamed := events(answer.text)) > 2:
            break
        slow.gone.clear()
    assert streamed[1]["choices"][0]["delta"]["content"] == "."
    assert streamed[-1]["error"]["code"] == "timeout"


@pytest.mark.slow
def test_a_client_that_leaves_ends_the_upstreams_work(tmp_path: Path) -> None:
    slow = Slow()
    with serving(slow) as upstream, gateway(upstream, tmp_path / "run") as url:
        with CLIENT.stream("POST", url + "/chat/completions", json=ASK | {"stream": True}) as answer:
            assert b"first" in next(answer.iter_bytes())
        assert slow.gone.wait(60)
        assert until(lambda: metric(url, "ramify_requests_gone_total") == 1)
        assert until(lambda: metric(url, "ramify_places_taken") == 0)
    (node,) = replies(tmp_path / "run")
    assert (node.text, node.stop, node.data["failure"]) == ("first", "failed", "the client left")


def test_the_body_of_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    _, listener = open_server(Guard(None))
    with listener:
        assert listener.proto == socket.IPPROTO_TCP  # without it asyncio leaves Nagle's algorithm on


@pytest.mark.parametrize("streams", [False, True])
def test_what_cannot_be_recorded_is_not_answered(streams: bool) -> None:
    async def broken(exchange: Exchange) -> None:
        raise RamifyError("the disk is full")

    with Upstream() as upstream, gateway(upstream.url, record=broken) as url:
        upstream.plan = lambda body: stream(chunk({"content": "fine"}, "stop")) if streams else good(body)
        answer = post(url, ASK | {"stream": streams})
        if streams:
            assert "[DONE]" not in answer.text
            assert "the disk is full" in events(answer.text)[-1]["error"]["message"]
        else:
            assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the disk is full.")


def escaped(text: str) -> str:
    """``text`` as JSON may spell it, too."""
    return "".join(f"\\u{ord(c):04x}" for c in text)


@pytest.mark.parametrize("public", [MODEL, "another-name"])
def test_an_upstream_that_says_the_key_in_pieces_or_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public: str) -> None:
    monkeypatch.setenv("RAMIFY_API_KEY", KEY)
    halves = [chunk({"role": "assistant", "content": f"it is {KEY[:5]}"}), *(chunk({"content": c}) for c in KEY[5:])]
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"at": "' + escaped(KEY)[:50]}}
    rest = {"index": 0, "function": {"arguments": escaped(KEY)[50:] + '"}'}}
    streamed = stream(*halves, chunk({"tool_calls": [call]}), chunk({"tool_calls": [rest]}), chunk({}, "stop"))
    # in JSON a string may escape any character, so the key is in none of these bytes
    whole = json.dumps(chat(id="x-1")).replace('"fine"', f'"{escaped(KEY)}"').replace('"x-1"', f'"{escaped(KEY)}"').encode()
    assert KEY.encode() not in whole
    with Upstream() as upstream, gateway(upstream.url, tmp_path / "run", name=public) as url:
        upstream.plan = lambda body: streamed if body.get("stream") else http(whole)
        ask = ASK | {"model": public}
        chunks = events(post(url, ask | {"stream": True}).text)
        answer = post(url, ask)
    deltas = [choice["delta"] for event in chunks for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "it is ***"
    arguments = "".join(c["function"].get("arguments", "") for delta in deltas for c in delta.get("tool_calls", ()))
    assert json.loads(arguments) == {"at": "***"}
    assert answer.json()["choices"][0]["message"]["content"] == "***"
    assert KEY not in json.dumps(answer.json())
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert KEY.encode() not in stored
    assert KEY[5:].encode() not in stored
    assert escaped(KEY).encode() not in stored
