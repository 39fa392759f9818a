"""``ramify serve completions:MODEL@URL``: chats and completions through a server of token ids, piece by piece."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from api_server import HOUSEHOLD, client, household, served

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import FaultyServer, completion, http
from model_server import serving

from ramify.cli.serve import find_served
from ramify.trace.db import Run
from ramify.trace.node import Node
from ramify.web.recording import Recorder

ASK: list[Any] = [{"role": "user", "content": "go to the hall"}]


def named(upstream: str, model: str) -> Any:
    """The model as the command line names it."""
    return find_served(f"completions:{model}@{upstream}?tokenizer={HOUSEHOLD}", 16)[0]


def texts(events: Any) -> list[str]:
    return [c.delta.content if hasattr(c, "delta") else c.text for event in events for c in event.choices]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with served(household()[1]) as url:
        yield url


def test_a_reply_comes_in_pieces_and_is_the_upstreams(upstream: str, tmp_path: Path) -> None:
    """In front of `ramify serve`: the same seed gives the same reply whole, in pieces, and from the upstream itself."""
    recorder = Recorder(tmp_path / "run", {}, named(upstream, "tiny").template)
    request: dict[str, Any] = {
        "model": "tiny",
        "messages": ASK,
        "temperature": 1.5,
        "max_tokens": 16,
        "seed": 3,
        "logit_bias": {"4": -100},
    }
    with served(named(upstream, "tiny"), record=recorder) as url, client(url) as ai:
        whole = ai.chat.completions.create(**request, logprobs=True).choices[0]
        pieces = list(ai.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
        cut = list(ai.chat.completions.create(**request | {"stop": [whole.message.content[4:9]]}, stream=True))
        prompt: dict[str, Any] = {"model": "tiny", "prompt": "go to the hall", "max_tokens": 12, "temperature": 1.5, "seed": 5}
        text = ai.completions.create(**prompt).choices[0].text
        parts = list(ai.completions.create(**prompt, stream=True, extra_body={"return_token_ids": True}))
        ids = [token for part in parts for choice in part.choices for token in getattr(choice, "token_ids", ())]
        both = ai.completions.create(**prompt, n=2, extra_body={"return_token_ids": True}).choices
    recorder.close()
    assert "".join(text or "" for text in texts(pieces)) == whole.message.content
    assert pieces[-1].usage.completion_tokens == len(whole.logprobs.content)
    assert "".join(text or "" for text in texts(cut)) == whole.message.content[:4]
    assert "".join(texts(parts)) == text == both[0].text
    assert ids == both[0].token_ids
    with Run.open(tmp_path / "run") as run:
        sampled = [node for node in run.each(Node) if node.index >= 0]
    assert all(node.tokens is not None and node.logprobs is None for node in sampled)  # not at this temperature
    assert [node.tokens.tolist()[: len(ids)] for node in sampled if node.text.startswith(text)][:1] == [ids]


@pytest.mark.slow
def test_a_piece_passes_before_the_next_is_there() -> None:
    go = threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        if not body.get("stream"):
            answer = completion(text="in", token_ids=[5, 6]) | {"model": "tiny"}
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
            return

        def piece(ids: list[int], finish: str | None = None) -> bytes:
            logs = {"token_logprobs": [-0.5] * len(ids)}
            choice = {"index": 0, "text": "?", "token_ids": ids, "logprobs": logs, "finish_reason": finish}
            return f"data: {json.dumps({'model': 'tiny', 'choices': [choice]})}\n\n".encode()

        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": piece([60, 61]), "more_body": True})
        while not go.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": piece([62]) + piece([], "length") + b"data: [DONE]\n\n"})

    with serving(slow) as upstream, served(named(upstream, "tiny")) as url, client(url) as ai:
        found = iter(ai.completions.create(model="tiny", prompt="in", max_tokens=3, stream=True))
        assert next(found).choices[0].text
        go.set()
        assert len(list(found)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_fields_continue_and_are_the_upstreams_to_refuse(streams: bool) -> None:
    passed = {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.2,
        "min_p": 0.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "logit_bias": {"5": 3},
        "structured_outputs": {"choice": ["a"]},
        "user": "ann",
        "metadata": {"a": "b"},
        "some_new_field": [1, None],
    }

    def answer(body: dict[str, Any]) -> bytes:
        if "suffix" in body:
            return http({"error": {"message": "no suffix here."}}, 400)
        if not body.get("stream"):
            return http(completion(token_ids=[60, 61]))
        choice = completion(token_ids=[60, 61])["choices"][0]
        return http(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode(), kind="text/event-stream")

    with FaultyServer(answer) as upstream, served(named(upstream.url, "m")) as url, client(url) as ai:
        for make, given in ((ai.chat.completions.create, {"messages": ASK}), (ai.completions.create, {"prompt": "in"})):
            found: Any = make(model="tiny", stream=streams, max_tokens=5, extra_body=passed, **given)
            list(found) if streams else None
            body = upstream.requests[-1][2]
            assert {name: body[name] for name in passed} == passed
        schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
        ai.chat.completions.create(model="tiny", messages=ASK, max_tokens=5, response_format=schema)
        assert upstream.requests[-1][2]["response_format"] == schema
        with pytest.raises(openai.BadRequestError, match=r"answers 400: no suffix here\.$"):
            list(ai.completions.create(model="tiny", prompt="in", suffix="x", stream=True))
        with pytest.raises(openai.BadRequestError, match="'reasoning_effort' is not offered"):
            ai.chat.completions.create(model="tiny", messages=ASK, reasoning_effort="low")


def test_where_the_upstream_streams_no_token_ids_the_reply_comes_whole() -> None:
    def answer(body: dict[str, Any]) -> bytes:
        if body.get("stream"):
            piece = {"model": "m", "choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}]}
            return http(f"data: {json.dumps(piece)}\n\ndata: [DONE]\n\n".encode(), kind="text/event-stream")
        return http(completion(token_ids=[60, 61]))

    with FaultyServer(answer) as upstream, served(named(upstream.url, "m")) as url, client(url) as ai:
        for _ in range(2):
            seen = len(upstream.requests)
            assert "".join(texts(ai.completions.create(model="tiny", prompt="in", max_tokens=5, stream=True)))
        assert len(upstream.requests) == seen + 1  # the second time it is not asked to stream
