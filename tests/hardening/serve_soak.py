"""Many clients at once for a while: chats, streams, streams that are left, completions, n, seeds, tools, bad requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
}
PROMPTS = [[{"role": "user", "content": f"{a}+{b}="}] for a in range(4) for b in range(4)]


class Soak:
    """What ``clients`` do to the server at ``port`` for ``seconds``:
    ``done`` by kind, ``errors`` in words, ``memory`` as (s, bytes)."""

    def __init__(self, port: int, pid: int, seconds: float, clients: int, model: str = "builtin") -> None:
        self.address, self.process, self.clients, self.model = f"http://127.0.0.1:{port}/v1", psutil.Process(pid), clients, model
        self.seconds, self.start = seconds, time.monotonic()
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self.memory: list[tuple[float, int]] = []
        self.seeded: dict[tuple[int, int], str] = {}

    async def run(self) -> None:
        """Do it."""
        await asyncio.gather(self._watch(), *(self._client(number) for number in range(self.clients)))

    def slope(self) -> float:
        """Growth of the server's resident memory after a first third, in bytes a second (least squares)."""
        later = np.array([point for point in self.memory if point[0] > self.seconds / 3])
        return float(np.polyfit(later[:, 0], later[:, 1], 1)[0])

    @property
    def _left(self) -> float:
        return self.start + self.seconds - time.monotonic()

    async def _watch(self) -> None:
        while self._left > 0:
            self.memory.append((time.monotonic() - self.start, self.process.memory_info().rss))
            await asyncio.sleep(min(1.0, self.seconds / 30))

    async def _client(self, number: int) -> None:
        rng = random.Random(number)
        # A pool for each: the library would share one, and there would be fewer connections than clients.
        async with httpx.AsyncClient(timeout=60) as pool:
            client = openai.AsyncOpenAI(base_url=self.address, api_key="none-needed", max_retries=0, http_client=pool)
            kinds = [
                self._chat,
                self._stream,
                self._leave,
                self._give_up,
                self._complete,
                self._several,
                self._seed,
                self._tools,
                self._bad,
            ]
            while self._left > 0:
                kind = rng.choice(kinds)
                try:
                    await kind(client, rng)
                    self.done[kind.__name__] += 1
                except Exception as error:  # counted, and none is expected
                    self.errors.append(f"{kind.__name__}: {type(error).__name__}: {error}")

    def _asked(self, rng: random.Random, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": rng.choice(PROMPTS), "max_tokens": rng.randint(1, 32)} | more

    async def _chat(self, client: Any, rng: random.Random) -> None:
        reply = await client.chat.completions.create(**self._asked(rng))
        assert reply.usage.completion_tokens <= 32

    async def _stream(self, client: Any, rng: random.Random) -> None:
        events = [
            e
            async for e in await client.chat.completions.create(
                **self._asked(rng, stream=True, stream_options={"include_usage": True})
            )
        ]
        assert events[-1].usage is not None
        assert events[-2].choices[0].finish_reason in ("stop", "length", "tool_calls")

    async def _leave(self, client: Any, rng: random.Random) -> None:
        """Close a stream after some events."""
        stream = await client.chat.completions.create(**self._asked(rng, stream=True, max_tokens=64))
        left = rng.randint(0, 4)
        async for _ in stream:
            if (left := left - 1) < 0:
                break
        await stream.close()

    async def _give_up(self, client: Any, rng: random.Random) -> None:
        """Leave before the answer."""
        try:
            async with asyncio.timeout(rng.random() / 20):
                await client.chat.completions.create(**self._asked(rng, max_tokens=64))
        except TimeoutError:
            pass

    async def _complete(self, client: Any, rng: random.Random) -> None:
        tokens = [rng.randint(1, 20) for _ in range(rng.randint(1, 12))]
        reply = await client.completions.create(
            model=self.model, prompt=tokens, max_tokens=4, logprobs=1, echo=rng.random() < 0.5
        )
        assert len(reply.choices) == 1

    async def _several(self, client: Any, rng: random.Random) -> None:
        assert len((await client.chat.completions.create(**self._asked(rng, n=2))).choices) == 2

    async def _seed(self, client: Any, rng: random.Random) -> None:
        """The same seed, the same reply, whoever else is answered meanwhile."""
        seed, prompt = rng.randint(0, 3), rng.randrange(len(PROMPTS))
        reply = await client.chat.completions.create(model=self.model, messages=PROMPTS[prompt], max_tokens=16, seed=seed)
        text = reply.choices[0].message.content
        assert self.seeded.setdefault((seed, prompt), text) == text

    async def _tools(self, client: Any, rng: random.Random) -> None:
        await client.chat.completions.create(**self._asked(rng, tools=[TOOL]))

    async def _bad(self, client: Any, rng: random.Random) -> None:
        with pytest.raises(openai.BadRequestError, match="'n'"):
            await client.chat.completions.create(**self._asked(rng, n=-1))
