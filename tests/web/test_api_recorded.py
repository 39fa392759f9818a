"""What the recorder is told of an answer: once, whoever leaves and whatever fails."""

from __future__ import annotations

import asyncio
import time

import httpx2
import openai
import pytest
from api_server import NAME, client, household, served

from ramify.base.errors import RamifyError
from ramify.web.exchange import Exchange


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_while_it_is_recorded_is_recorded_once(stream: bool) -> None:
    told: list[Exchange] = []

    async def slowly(exchange: Exchange) -> None:
        told.append(exchange)
        await asyncio.sleep(0.8)

    with served(household()[1], record=slowly) as url:
        body = {"model": NAME, "prompt": [5, 6], "max_tokens": 2, "stream": stream}
        with httpx2.Client() as impatient, pytest.raises(httpx2.TimeoutException):
            impatient.post(f"{url}/completions", json=body, timeout=0.3)
        time.sleep(0.5)
    assert len(told) == 1


def test_an_answer_that_cannot_be_recorded_is_told_once_and_is_an_error() -> None:
    told: list[Exchange] = []

    async def full(exchange: Exchange) -> None:
        told.append(exchange)
        raise RamifyError("the disk is full")

    with served(household()[1], record=full) as url, client(url) as ai, pytest.raises(openai.InternalServerError, match="disk"):
        ai.completions.create(model=NAME, prompt=[5, 6], max_tokens=2)
    assert len(told) == 1
