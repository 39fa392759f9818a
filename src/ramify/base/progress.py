"""How long work tells how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """What long work reports to: one phase after another, each with a whole of its own. This one shows nothing."""

    def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
        """A phase of ``total`` units begins; ``done`` of them an earlier call did, so they do not count towards the rate.

        ``phase`` says what is being done (``evaluate before``); ``unit`` of what (``episodes``; without one it stays as it was).
        """

    def at(self, done: float, note: str = "", phase: str = "") -> None:
        """``done`` units in all are done. ``note`` says how well (``success 41%``); ``phase`` what comes now, where that changes."""


SILENT = Progress()


async def gathered(work: Iterable[Awaitable[T]], progress: Progress) -> list[T]:
    """``asyncio.gather`` of ``work`` that reports how many are done."""
    done = 0

    async def one(item: Awaitable[T]) -> T:
        nonlocal done
        result = await item
        done += 1
        progress.at(done)
        return result

    return list(await asyncio.gather(*map(one, work)))
