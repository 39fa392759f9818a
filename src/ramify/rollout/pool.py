"""A pool of workers: scheduling, restarts after a death, and workers that are processes on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import ramify
from ramify.base.errors import InfrastructureError, RamifyError
from ramify.base.files import reason
from ramify.rollout.wire import pack, unpack_answer
from ramify.rollout.worker import FRAME, THREADS

TRIES = 3
"""Workers that may die on a message before it counts as failed. The last one runs nothing else, so the cause is certain."""
STARTS = 3
"""Consecutive deaths of a worker during setup before it is given up."""
GRACE = 2.0
"""Seconds a worker process has to end before it is killed."""


class LostWorkerError(RamifyError):
    """The worker died, or cannot be reached any more."""


class Worker(Protocol):
    """A worker, wherever it runs."""

    async def call(self, message: bytes) -> bytes:
        """Its answer to a message; see :class:`ramify.rollout.worker.WorkerPlayer`. Raises LostWorkerError."""
        ...

    async def close(self) -> None:
        """End it, busy or not."""
        ...


Start = Callable[[int], Awaitable[Worker]]
"""Makes the worker of a number. Raises LostWorkerError."""


class _Member:
    """A slot of the pool; its worker is started on first use and restarted after a death."""

    def __init__(self, number: int) -> None:
        self.number, self.load, self.alone = number, 0, False
        self.worker: asyncio.Task[Worker] | None = None


class Pool:
    """``workers`` workers with at most ``width`` messages each. Use it from one event loop, and close it there."""

    def __init__(self, start: Start, workers: int, width: int, setup: bytes) -> None:
        self._start, self._width, self._setup = start, width, setup
        self._weights: bytes | None = None
        self._members = [_Member(i) for i in range(workers)]
        self._changed: asyncio.Condition | None = None
        self._waiting_alone = 0
        self.lost = 0
        """Workers that died so far."""

    async def call(self, make: Callable[[], bytes]) -> bytes:
        """The answer to the message ``make()``, called when a worker is free for it.

        A message whose worker died goes to another one. Raises InfrastructureError("engine") after TRIES deaths; the content of
        the worker's answer is not inspected."""
        losses = 0
        while True:
            member = await self._take(losses == TRIES - 1)
            try:
                message = make()
                running = self._running(member)
                worker = await asyncio.shield(running)
                try:
                    return await worker.call(message)
                except LostWorkerError as error:
                    losses += 1
                    if member.worker is running:
                        member.worker = None
                        self.lost += 1
                    await worker.close()
                    if losses == TRIES:
                        raise InfrastructureError(
                            "engine", f"the worker that played this died {TRIES} times ({error})"
                        ) from error
            finally:
                await self._give(member)

    async def set_weights(self, message: bytes) -> None:
        """Send every worker, now and after a restart, the weights in ``message``. No message may be in progress."""
        self._weights = message
        running = [member.worker for member in self._members if member.worker is not None]
        for answer in await asyncio.gather(*(self._send(task, message) for task in running)):
            if answer is not None:
                unpack_answer(answer)

    async def close(self) -> None:
        """End every worker."""
        tasks = [member.worker for member in self._members if member.worker is not None]
        for member in self._members:
            member.worker = None
        for task in tasks:
            if not task.done():
                task.cancel()
        started = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in started if not isinstance(worker, BaseException)))

    async def _send(self, task: asyncio.Task[Worker], message: bytes) -> bytes | None:
        worker = await task
        try:
            return await worker.call(message)
        except LostWorkerError:
            await worker.close()
            for member in self._members:
                if member.worker is task:
                    member.worker = None
            return None  # the next one gets them when it starts

    def _running(self, member: _Member) -> asyncio.Task[Worker]:
        if member.worker is None or (member.worker.done() and member.worker.exception() is not None):
            member.worker = asyncio.ensure_future(self._started(member.number))
        return member.worker

    async def _started(self, number: int) -> Worker:
        """A worker that is set up. Raises what its setup raised, and RamifyError when it dies every time."""
        for _ in range(STARTS):
            try:
                worker = await self._start(number)
            except LostWorkerError as error:
                reason = error
                continue
            try:
                for message in (self._setup, self._weights):
                    if message is not None:
                        unpack_answer(await worker.call(message))
                return worker
            except LostWorkerError as error:
                await worker.close()
                reason = error
            except BaseException:
                await worker.close()
                raise
        raise RamifyError(f"worker {number} died {STARTS} times while it was set up ({reason})")

    async def _take(self, alone: bool) -> _Member:
        """The least busy slot; with ``alone`` an idle one, which is then reserved."""
        if self._changed is None:
            self._changed = asyncio.Condition()
        async with self._changed:
            self._waiting_alone += alone
            try:
                await self._changed.wait_for(lambda: self._free(alone) is not None)
                member = self._free(alone)
                assert member is not None
                member.load += 1
                member.alone = alone
                return member
            finally:
                if alone:
                    self._waiting_alone -= 1
                    self._changed.notify_all()  # messages that waited for the reserved slot may run now

    def _free(self, alone: bool) -> _Member | None:
        if self._waiting_alone and not alone:
            return None
        room = 1 if alone else self._width
        able = [member for member in self._members if not member.alone and member.load < room]
        return min(able, key=lambda member: member.load, default=None)

    async def _give(self, member: _Member) -> None:
        assert self._changed is not None
        member.load -= 1
        member.alone = False
        async with self._changed:
            self._changed.notify_all()


class ProcessWorker:
    """A worker in a process of its own on this machine, reached over its standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._count = 0
        self._over = ""
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, number: int) -> ProcessWorker:
        """Start the process; it uses one thread for arithmetic and finds the modules this one finds. Raises LostWorkerError."""
        environment = os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ramify.rollout.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                process_group=0,  # Ctrl-C is the collector's to handle, also while a worker still starts
            )
        except OSError as error:
            raise LostWorkerError(f"no process can be started: {reason(error)}") from error
        return cls(process)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    async def call(self, message: bytes) -> bytes:
        """See :class:`Worker`."""
        if self._over:
            raise LostWorkerError(self._over)
        number, self._count = self._count, self._count + 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(FRAME.pack(number, len(message)) + message)
            with suppress(ConnectionError):  # the reader says how it ended
                await self._process.stdin.drain()
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, length = FRAME.unpack(await self._process.stdout.readexactly(FRAME.size))
                answer = await self._process.stdout.readexactly(length)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        code = await self._process.wait()
        self._over = f"process {self.pid} ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(LostWorkerError(self._over))

    async def close(self) -> None:
        """End the process: its input ends, then it is terminated, then killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(self._reading), GRACE)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._reading


def setup_message(factory: str, settings: object, seed: int, weights: str) -> bytes:
    """The first message to a worker. It carries ramify's environment variables and the paths of the user's modules, but no
    secrets."""
    environment = {name: value for name, value in os.environ.items() if name in ("RAMIFY_NO_REAL_CALLS", "RAMIFY_PLUGINS")}
    header = {
        "do": "setup",
        "version": ramify.__version__,
        "factory": factory,
        "settings": settings,
        "seed": seed,
        "weights": weights,
    }
    own = [folder for folder in sys.path if folder and not folder.startswith((sys.prefix, sys.base_prefix))]
    return pack(header | {"environment": environment, "path": own})
