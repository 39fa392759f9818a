"""How long work reports its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize

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


class RunningReplies:
    """Replies of models that are under way, whoever asked: what there is to say of work before its first unit is done."""

    def __init__(self) -> None:
        self.running = 0
        """Replies that were begun and are not ended."""
        self.given = 0
        """Tokens of the prompts of replies that ended."""
        self._sampled = 0
        self._models: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
        """Models that count themselves, each with its count when its last reply ended: what stays of it when it is gone."""

    @contextmanager
    def begun(self, n: int, model: Any) -> Iterator[Callable[[int], None]]:
        """``n`` replies of ``model`` run inside; the function that is given counts their tokens at their end. A model that counts
        what it samples while it does (``stats.sampled_tokens``) is asked instead."""
        counts = hasattr(type(model), "stats")
        if counts and model not in self._models:
            self._models[model] = last = [0]
            finalize(model, self._gone, last).atexit = False
        self.running += n
        try:
            yield lambda tokens: None if counts else self._count(tokens)
        finally:
            self.running -= n
            if counts:
                self._models[model][0] = int(model.stats.sampled_tokens)

    def _count(self, tokens: int) -> None:
        self._sampled += tokens

    def _gone(self, last: list[int]) -> None:
        self._sampled += last[0]

    @property
    def sampled(self) -> int:
        """Tokens sampled so far, also those of replies that run where their model tells."""
        return self._sampled + sum(int(model.stats.sampled_tokens) for model in list(self._models))

    @property
    def tokens(self) -> int:
        """Tokens of prompts and of what was sampled."""
        return self.given + self.sampled


REPLIES = RunningReplies()


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
