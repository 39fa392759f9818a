"""The server as ``ramify serve`` puts it together, on a free port of loopback and a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from waiting import PATIENCE, until

import ramify
from ramify.engine.local import LocalModel
from ramify.model.chat import TagTemplate
from ramify.model.laid import Layout
from ramify.model.protocol import Model, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.model.streaming import Piece, Pieces
from ramify.web.api import Api
from ramify.web.exchange import Recorder
from ramify.web.limits import Guard, Slots
from ramify.web.metrics import Gauges
from ramify.web.server import address, open_server

HOUSEHOLD = Path(ramify.__file__).parent / "assets" / "household"
NAME = "tiny"


def household(**options: Any) -> tuple[LocalModel, Layout]:
    local = LocalModel.load(HOUSEHOLD, **options)
    assert local.tokenizer is not None
    return local, Layout(local, TagTemplate(local.tokenizer))


class Endless(ScriptedModel):
    """Says one word and no more."""

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        yield Piece("well ")
        await asyncio.Event().wait()


@contextmanager
def served(
    model: Model,
    gauges: Callable[[], Gauges] = dict,
    running: int = 64,
    waiting: int = 64,
    each: int = 0,
    seconds: float = 60,
    token: str | None = None,
    record: Recorder | None = None,
) -> Iterator[str]:
    """Yields ``http://127.0.0.1:PORT/v1``."""
    api = Api(model, NAME, Slots(running, waiting, each), record, gauges)
    server, listener = open_server(Guard(api.app(), token=token, seconds=seconds, count=api.count), drain=2)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert until(lambda: server.started)
        yield address("127.0.0.1", listener) + "v1"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive()


def client(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE, **options)


def metric(url: str, name: str, token: str = "") -> float:
    """A number of ``/metrics``, 0 where it is not there."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url.removesuffix("/v1") + "/metrics", headers=headers)) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)
