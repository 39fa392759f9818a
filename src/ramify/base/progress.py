"""How long work reports its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """Receives the progress of long work: one phase after another, each with its own total. This one shows nothing."""

    def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
        """A phase of ``total`` units begins; ``done`` of them an earlier call did, so they do not count towards the rate.

        ``phase`` says what is being done (``evaluate before``); ``unit`` of what (``episodes``; without one it stays as it was).
        """

    def at(self, done: float, note: str = "", phase: str = "") -> None:
        """``done`` units in all are done. ``note`` says how well (``success 41%``);
        ``phase`` what comes now, where that changes."""


SILENT = Progress()


async def gathered(work: Iterable[Awaitable[T]], progress: Progress) -> list[T]:
    """``asyncio.gather`` of ``work`` that reports how many are done."""
    done = 0

    def count(task: asyncio.Future[T]) -> None:
        nonlocal done
        if not task.cancelled() and task.exception() is None:
            done += 1
            progress.at(done)

    tasks = [asyncio.ensure_future(item) for item in work]  # tasks at once: one that is cancelled before its turn is closed
    for task in tasks:
        task.add_done_callback(count)
    return list(await asyncio.gather(*tasks))
