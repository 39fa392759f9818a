"""The samples of one request: begun together, told of as they grow, ended together when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response

from ramify.model.streaming import Piece, Pieces

_AHEAD = 16
"""Pieces that wait for a client who reads slowly; the samples' own streams put together what comes meanwhile."""
T = TypeVar("T")


LEFT, CUT = "the client left", "the server cut it off: it ended, or the time was over"
"""Why a request is cancelled."""


class GoneError(Exception):
    """The client has left; nobody reads an answer."""


def why_cut(error: BaseException) -> str:
    """Why a request came to no end: LEFT or CUT, as the cancellation says;
    one that says nothing is taken for the client's leaving."""
    return next((str(reason) for reason in error.args if reason in (LEFT, CUT)), LEFT)


async def merged(streams: Sequence[Pieces]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Pieces of several samples as they come, each with its stream's number.
    The first failure is raised; closing cancels every sample."""
    queue: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue(_AHEAD)

    async def pump(at: int, pieces: Pieces) -> None:
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    await queue.put((at, piece))
        except Exception as error:  # handed to the reader below, who raises it
            await queue.put((at, error))

    tasks = [asyncio.create_task(pump(at, pieces)) for at, pieces in enumerate(streams)]
    waiting = len(tasks)
    try:
        while waiting:
            at, news = await queue.get()
            if isinstance(news, Exception):
                raise news
            waiting -= news.completion is not None
            yield at, news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless_gone(receive: Any, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns; it is cancelled, and GoneError raised, when ``receive`` tells that the client has left."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    left = False
    working, leaving = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        left = True
        raise GoneError
    finally:
        working.cancel(LEFT if left else CUT)
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def begun(receive: Any, events: AsyncGenerator[str, None]) -> Events:
    """An answer of ``events``, once the first of them is there:
    what is wrong from the start is raised here, and has its status."""

    async def begin() -> str:
        return await anext(events)

    try:
        return Events(await unless_gone(receive, begin()), events)
    except BaseException:  # the time is over, perhaps as the first event came: nobody reads on
        await events.aclose()
        raise


class Events(Response):
    """Server-sent events as they come, ``first`` before ``events``, which are closed at the end,
    and at once when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, first: str, events: AsyncGenerator[str, None]) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.first, self.events = first, events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer."""

        async def write() -> None:
            await send({"type": "http.response.body", "body": self.first.encode(), "more_body": True})
            async for event in self.events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        async with aclosing(self.events):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await unless_gone(receive, write())
            except (GoneError, OSError):  # OSError: what a server raises where the client is gone already
                return
