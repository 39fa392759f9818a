"""What the recorder is told of an answer: once, whoever leaves and whatever fails."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.parse

import openai
import pytest
from api_server import NAME, client, household, metric, served
from waiting import until

from ramify.base.errors import RamifyError
from ramify.model.protocol import Completion
from ramify.web.exchange import Exchange


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_while_it_is_recorded_is_recorded_once(stream: bool) -> None:
    recorded: list[Exchange] = []
    go = threading.Event()

    async def slowly(exchange: Exchange) -> None:
        recorded.append(exchange)
        while not go.is_set():
            await asyncio.sleep(0.005)

    with served(household()[1], record=slowly) as url:
        body = json.dumps({"model": NAME, "prompt": [5, 6], "max_tokens": 2, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(url).port or 0)) as link:
            link.sendall(head.encode() + body)
            assert until(lambda: recorded)
        assert until(lambda: metric(url, "ramify_places_taken") == 0)  # it is seen that the client has left
        go.set()
    assert [type(exchange.outcomes[0][0]) for exchange in recorded] == [Completion]


def test_an_answer_that_cannot_be_recorded_is_told_once_and_is_an_error() -> None:
    recorded: list[Exchange] = []

    async def full(exchange: Exchange) -> None:
        recorded.append(exchange)
        raise RamifyError("the disk is full")

    with served(household()[1], record=full) as url, client(url) as ai, pytest.raises(openai.InternalServerError, match="disk"):
        ai.completions.create(model=NAME, prompt=[5, 6], max_tokens=2)
    assert len(recorded) == 1
