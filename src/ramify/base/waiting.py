"""Waiting for a coroutine from synchronous code: the one place where ramify runs an event loop for it, so that its functions
work where one runs already (a notebook, a handler of a web server, an asynchronous test) as they do elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
LOOK = 0.1
"""Seconds between two looks at whether the task that waits was cancelled."""


def wait_for(work: Awaitable[T]) -> T:
    """The result of ``work``, from an event loop of its own: here, or in a fresh thread where this one runs a loop, which waits.

    Raises what ``work`` raises. What interrupts the wait (Ctrl-C, the interrupt of a notebook's cell) cancels ``work`` and
    is raised once it has ended; a second interrupt is raised at once. Context variables are those of the caller."""
    try:
        with EventLoop() as loop:
            return loop.run(work)
    finally:
        _drop(work)


class EventLoop:
    """An event loop for several calls, each as :func:`wait_for`. A context manager."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # with a factory it leaves the thread's own loop alone

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def run(self, work: Awaitable[T]) -> T:
        """The result of ``work`` on this loop; see :func:`wait_for`."""
        results: list[T] = []

        async def kept() -> None:  # returns nothing: taking away asyncio's handler of Ctrl-C writes out the task and its result
            results.append(await work)

        waiting = kept()
        try:
            if not _running():
                self._runner.run(waiting, context=copy_context())
            else:
                loop = self._runner.get_loop()
                task = loop.create_task(waiting, context=copy_context())
                _elsewhere(lambda: loop.run_until_complete(task), lambda: loop.call_soon_threadsafe(task.cancel))
        finally:
            _drop(waiting)
            _drop(work)
        return results[0]

    def close(self) -> None:
        """Cancel what still runs on it and close it."""
        if not _running():
            self._runner.close()
        else:
            _elsewhere(self._runner.close, lambda: None)


def _drop(work: Awaitable[object]) -> None:
    """Close a coroutine that an interrupt left unstarted: Python would warn, over the sentence of Ctrl-C, that it was never
    awaited."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


def _running() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _elsewhere(work: Callable[[], object], stop: Callable[[], object]) -> None:
    """Do ``work`` in a thread of its own. What interrupts the wait for it is raised after ``stop`` and the end of the work."""
    done: Future[None] = Future()

    def do() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    outer = asyncio.current_task()
    before = outer.cancelling() if outer else 0
    try:
        threading.Thread(target=do, name="ramify", daemon=True).start()
        while not wait([done], LOOK).done:
            # Ctrl-C under asyncio.run, and in a cell that awaits, cancels this task instead of raising here
            if outer and outer.cancelling() > before:
                raise asyncio.CancelledError
    except BaseException:
        stop()
        wait([done])
        raise
    done.result()
