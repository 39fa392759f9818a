"""Coroutines called from code that is none, with and without an event loop under way."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ramify.base.waiting import EventLoop, wait_for

SAID: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="")


class Written:
    """Notes that somebody wrote it out."""

    count = 0

    def __repr__(self) -> str:
        Written.count += 1
        return "much"


async def made() -> Written:
    await asyncio.sleep(0)
    return Written()


def here(call: Callable[[], Any]) -> Any:
    return call()


def in_a_loop(call: Callable[[], Any]) -> Any:
    found: list[Any] = []

    async def main() -> None:
        found.append(call())

    asyncio.run(main())
    return found[0]


@pytest.fixture(params=[here, in_a_loop], ids=["no loop", "a loop runs"])
def where(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    found: Callable[[Callable[[], Any]], Any] = request.param
    return found


def test_what_a_coroutine_returns_is_not_written_out(where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Written, "count", 0)
    with EventLoop() as loop:
        assert isinstance(where(lambda: wait_for(made())), Written)
        assert isinstance(where(lambda: loop.run(made())), Written)
    assert Written.count == 0


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_a_coroutine_raises_is_raised(where, kind: type[BaseException]) -> None:
    async def failing() -> None:
        raise kind("it")

    def call() -> str:
        try:
            wait_for(failing())
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    assert where(call) in (f"{kind.__name__}: it", f"{kind.__name__}: ")


def test_one_loop_serves_several_calls_wherever_they_are(where) -> None:
    """Connections of a loop stay usable from call to call; closing it ends what runs on it."""
    ended: list[str] = []

    async def left() -> asyncio.AbstractEventLoop:
        async def long() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("long")

        tasks.append(asyncio.create_task(long()))
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    async def same() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    tasks: list[asyncio.Task[None]] = []
    loop = EventLoop()
    assert where(lambda: loop.run(left())) is loop.run(same()) is where(lambda: loop.run(same()))
    where(loop.close)
    assert ended == ["long"]


def test_calls_may_be_nested(where) -> None:
    async def outer() -> list[Written]:
        return [wait_for(made()), wait_for(inner())]

    async def inner() -> Written:
        return wait_for(made())

    assert len(where(lambda: wait_for(outer()))) == 2


def test_context_variables_are_the_callers(where) -> None:
    async def read() -> str:
        found = SAID.get()
        SAID.set("inside")
        return found

    def call() -> tuple[str, str, str]:
        SAID.set("outside")
        with EventLoop() as loop:
            first = loop.run(read())
            SAID.set("later")
            return first, loop.run(read()), SAID.get()

    assert contextvars.copy_context().run(where, call) == ("outside", "later", "later")


def test_the_loop_that_waits_is_left_as_it_was() -> None:
    async def main() -> bool:
        before = asyncio.get_running_loop()
        wait_for(made())
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is before

    assert asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "ramify"]


class StoppedError(Exception):
    """What a handler of a signal raises."""


def interrupted(ended: list[str], name: signal.Signals) -> Any:
    async def work() -> None:
        try:
            os.kill(os.getpid(), name)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")

    return work()


@pytest.fixture
def handler():
    before = signal.getsignal(signal.SIGUSR1)

    def stop(*_: object) -> None:
        raise StoppedError

    signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_an_exception_of_a_signals_handler_ends_the_work_first(handler: None) -> None:
    """As the interrupt of a notebook's cell does, whose handler raises KeyboardInterrupt in the main thread."""
    ended: list[str] = []

    async def main() -> list[str]:
        with pytest.raises(StoppedError):
            wait_for(interrupted(ended, signal.SIGUSR1))
        return list(ended)

    assert asyncio.run(main()) == ["work"]


def test_ctrl_c_under_asyncio_run_ends_the_work_first() -> None:
    """There the handler cancels the task that waits, and raises nothing in it."""
    ended: list[str] = []

    async def main() -> None:
        try:
            wait_for(interrupted(ended, signal.SIGINT))
        finally:
            assert ended == ["work"]

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_ctrl_c_without_a_loop_ends_the_work_first() -> None:
    ended: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        wait_for(interrupted(ended, signal.SIGINT))
    assert ended == ["work"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("where", ["new_event_loop", "Runner.run", "its first step"])
def test_an_interrupt_before_the_work_has_begun_leaves_no_warning(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python warns of a coroutine that nobody awaited, and a warning here is raised by whoever collects the garbage."""

    def interrupted(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    if where == "its first step":
        run = asyncio.Runner.run

        def cancelled(runner: asyncio.Runner, work: Any, **given: Any) -> Any:
            runner.get_loop().call_soon(signal.raise_signal, signal.SIGINT)
            return run(runner, work, **given)

        monkeypatch.setattr(asyncio.Runner, "run", cancelled)
    else:
        name, _, inner = where.partition(".")
        monkeypatch.setattr(getattr(asyncio, name) if inner else asyncio, inner or name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        wait_for(made())
    gc.collect()
