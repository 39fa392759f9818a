"""Calling a coroutine from synchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` to its end in an event loop of its own, also when called from inside another one, which waits meanwhile.
    Ctrl-C cancels it."""
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def whole() -> T:
        begun.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(lambda: asyncio.run(whole()))
        try:
            return made.result()
        except BaseException:
            for loop, task in begun:
                if not made.done() and task is not None:
                    with suppress(RuntimeError):  # it has ended meanwhile
                        loop.call_soon_threadsafe(task.cancel)
            raise


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
