"""Calling a coroutine from synchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` to its end in an event loop of its own, also when called from inside another one, which waits meanwhile."""

    async def whole() -> T:
        return await work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(whole())).result()


def complete(work: Coroutine[Any, Any, T], loop: asyncio.Runner | None = None) -> T:
    """``asyncio.run(work)``, or ``loop.run(work)``, for what returns much.

     Their handler of Ctrl-C holds the task, and taking it away makes ``signal`` write out the task,
     with its whole result, several times
    . Here the task's result is None.
    """
    found: list[T] = []

    async def kept() -> None:
        found.append(await work)

    (loop.run if loop is not None else asyncio.run)(kept())
    return found[0]
