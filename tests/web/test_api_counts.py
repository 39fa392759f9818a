"""What the server counts of those who leave or are turned away, what one client may hold,
and what is closed when time runs out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import openai
import pytest
from api_server import NAME, Endless, client, household, metric, served
from waiting import PATIENCE, until

from ramify.web import limits
from ramify.web.metrics import Metrics
from ramify.web.sampling import Events, GoneError, begun

ENDLESS: dict[str, Any] = {"model": NAME, "prompt": "go", "max_tokens": 480, "logit_bias": {"4": -100}, "stream": True}
TOKEN = "t" * 20


def test_what_was_sampled_for_a_client_who_left_is_counted() -> None:
    local, model = household()
    with served(model, lambda: local.gauges) as url, client(url) as ai:
        events = ai.completions.create(**ENDLESS, logprobs=0)
        logprobs = (event.choices[0].logprobs for event in events)
        seen = sum(len(logs.tokens or ()) for logs, _ in zip(logprobs, range(6), strict=False) if logs)
        events.close()
        assert until(lambda: metric(url, "ramify_places_taken") == 0)
        assert metric(url, "ramify_requests_gone_total") == 1
        counted, sampled = metric(url, 'ramify_tokens_total{kind="completion"}'), metric(url, "ramify_sampled_tokens")
        assert 6 <= seen <= counted <= sampled < 480
        prompt = metric(url, 'ramify_tokens_total{kind="prompt"}')
        used = ai.completions.create(model=NAME, prompt="go", max_tokens=0, echo=True).usage
        assert used is not None
        assert metric(url, 'ramify_tokens_total{kind="prompt"}') == prompt + used.prompt_tokens == 2 * used.prompt_tokens
        assert metric(url, 'ramify_tokens_total{kind="completion"}') == counted


@pytest.mark.slow
def test_who_is_turned_away_is_counted_by_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", PATIENCE)  # for who is slow to send 10 MiB
    bearer = {"authorization": f"Bearer {TOKEN}"}
    long = {"model": NAME, "messages": [{"role": "user", "content": "go"}], "n": 64, "logit_bias": {"4": -100}}
    refused: list[tuple[int, dict[str, str], Any]] = [
        (401, {}, {}),
        (421, {"host": "evil.example"}, {}),
        (403, {"origin": "http://evil.example"}, {}),
        (415, bearer | {"content-encoding": "gzip"}, {}),
        (413, bearer, {"model": "x" * (10 << 20)}),
        (400, bearer, {}),
    ]
    for seconds, wanted in ((PATIENCE, refused), (0.3, [(504, bearer, long)])):
        with served(household()[1], token=TOKEN, seconds=seconds) as url:
            for status, headers, body in wanted:
                with pytest.raises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers))
                caught.value.close()
                assert caught.value.code == status
                assert until(partial(counted, url, status))


def counted(url: str, status: int) -> bool:
    """Whether one answer of this status is told of; not where a busy machine has no time to tell."""
    with contextlib.suppress(urllib.error.HTTPError):
        return metric(url, f'ramify_requests_total{{route="/v1/chat/completions",status="{status}"}}', TOKEN) == 1
    return False


def test_one_client_cannot_keep_the_others_out() -> None:
    request: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with served(Endless(tokens=False), running=1, waiting=4, each=2) as url, client(url) as ai:
        held = [ai.chat.completions.create(**request, user="ana") for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="You hold 2 of the 2 slots that one client may") as caught:
            ai.chat.completions.create(**request, user="ana")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        held.append(ai.chat.completions.create(**request, user="ben"))
        assert metric(url, "ramify_places_taken") == 3
        for events in held:
            events.close()
        assert until(lambda: metric(url, "ramify_places_taken") == 0)
        ai.chat.completions.create(**request, user="ana").close()


def test_counts_by_position_are_labelled() -> None:
    text = Metrics(lambda: {"reached_at": [3, 2], "accepted_at": [], "tau": float("nan"), "rows": 1}).text().decode()
    numbers = [
        line for line in text.splitlines() if line.startswith(("ramify_reached", "ramify_accepted", "ramify_tau", "ramify_rows"))
    ]
    assert numbers == [
        'ramify_reached_at_total{position="1"} 3.0',
        'ramify_reached_at_total{position="2"} 2.0',
        "ramify_rows 1.0",
    ]


class SlowEvents:
    """Events that say whether they were closed."""

    def __init__(self) -> None:
        self.began, self.closed, self.go = False, False, asyncio.Event()

    async def events(self) -> AsyncGenerator[str, None]:
        self.began = True
        try:
            await self.go.wait()
            yield "first"
            yield "second"
        finally:
            self.closed = True


async def waits() -> Any:
    await asyncio.Event().wait()


async def leaves() -> Any:
    return {"type": "http.disconnect"}


def test_the_events_are_closed_when_time_runs_out_as_the_first_is_there() -> None:
    async def run() -> SlowEvents:
        source = SlowEvents()
        task = asyncio.create_task(begun(waits, events := source.events()))
        while not source.began:
            await asyncio.sleep(0)
        source.go.set()  # the first event, and in the same moment the end of the time
        while events.ag_running:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.closed
        assert events.ag_frame is None
        return source

    asyncio.run(run())


@pytest.mark.parametrize("ready", [False, True])
def test_the_events_are_closed_when_the_client_has_left(ready: bool) -> None:
    async def run() -> None:
        source = SlowEvents()
        if not ready:
            with pytest.raises(GoneError):
                await begun(leaves, source.events())
            return
        source.go.set()
        answer: Events = await begun(waits, events := source.events())
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        call: Callable[..., Awaitable[None]] = answer
        await call({"type": "http"}, leaves, send)
        assert sent[0] == "http.response.start"
        assert source.closed
        assert events.ag_frame is None

    asyncio.run(run())
