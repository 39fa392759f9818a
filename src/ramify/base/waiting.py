"""Calling a coroutine from code that is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def wait_for(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` to its end in an event loop of its own, also when called from inside another one, which waits meanwhile."""

    async def whole() -> T:
        return await work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(whole())).result()
