"""Back ends: where attempts are played. In this process, in processes on this machine,
or wherever a registered back end has workers.

Whichever worker plays, one collector writes: it takes whole attempts from the workers and adds them to the run, so the rule that
one process writes a run holds. Seeds are derived from positions in the tree, so a tree does not depend on which worker sampled
which attempt, or on a worker's death. A pool schedules, and starts workers again that died."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

from ramify.base import registry
from ramify.base.budget import Budget
from ramify.base.errors import BudgetSpentError, InfrastructureError, RamifyError, UserError
from ramify.base.files import reason
from ramify.base.version import VERSION
from ramify.base.waiting import EventLoop
from ramify.env.protocol import Task
from ramify.rollout.attempts import Attempt, Draw, as_turn
from ramify.rollout.run import Episodes
from ramify.rollout.worker import FRAME, THREADS, Record, add_records, pack, read_records, unpack_answer, write_records
from ramify.trace.context import HISTORY
from ramify.trace.node import ROLLOUT, AttemptRecord, Context, Node, Span
from ramify.trace.tree import Tree

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
        "version": VERSION,
        "factory": factory,
        "settings": settings,
        "seed": seed,
        "weights": weights,
    }
    own = [folder for folder in sys.path if folder and not folder.startswith((sys.prefix, sys.base_prefix))]
    return pack(header | {"environment": environment, "path": own})


WORKERS = 2
"""Workers where a back end's name gives no number."""
AHEAD = 4
"""Attempts may run ahead of the next one to be stored by this many times ``concurrency``."""

T = TypeVar("T")


class Backend(Protocol):
    """A family of workers; registered under the kind ``backend``."""

    name: str

    def open(self, workers: int) -> tuple[Start, int, Callable[[], None]]:
        """How a worker is started, how many there will be, and what to call at the end. ``workers`` 0: the back end's own number.

        Raises NeedsError where its tool is not installed, RamifyError where it cannot be reached.
        """
        ...


class Processes:
    """Worker processes on this machine, one thread of arithmetic each."""

    name = "processes"

    def open(self, workers: int) -> tuple[Start, int, Callable[[], None]]:
        """See :class:`Backend`."""
        return ProcessWorker.start, workers or WORKERS, lambda: None


registry.register("backend", "processes")(Processes())


def parse(spec: str) -> tuple[str, int]:
    """``NAME`` or ``NAME:WORKERS`` as name and number (0: not given); ``local`` is this process. Raises UserError."""
    name, colon, number = spec.partition(":")
    known = ["local", *registry.names("backend")]
    if name not in known:
        raise UserError(f"unknown back end '{name}' ({', '.join(known)}; with a number of workers: processes:4)")
    if colon and (name == "local" or not number.isdecimal() or not 1 <= int(number) <= 10_000):
        raise UserError(
            f"back end '{spec}': {'local takes no number' if name == 'local' else f'{number!r} is not a number of workers'}"
        )
    return name, int(number) if colon else 0


@dataclass(frozen=True, slots=True)
class Unit:
    """One attempt to play: from the beginning of ``task``, or from observation ``node`` of its tree."""

    tree: str
    task: Task
    index: int
    node: str | None = None
    turns: int | None = None
    """Pause after this many turns."""
    purpose: str = ROLLOUT

    @property
    def draw(self) -> Draw:
        """Which sample it is."""
        return Draw(self.index, self.purpose)


Sampled = tuple[dict[str, Any], tuple[Record, ...]] | Attempt
"""An attempt that is not stored yet, or one that stored itself."""


class Players:
    """A back end in use: an event loop and, unless the back end is ``local``, a pool of workers. A context manager.

    ``setup`` is the first message to each worker (see ``pool.setup_message``). ``concurrency`` bounds the attempts under way,
    over all workers.
    """

    def __init__(self, spec: str, setup: bytes, concurrency: int = 64) -> None:
        name, workers = parse(spec)
        self.spec, self.concurrency = spec, concurrency
        self.pool: Pool | None = None
        self._finish: Callable[[], None] = lambda: None
        self._loop = EventLoop()
        if name != "local":
            backend: Backend = registry.get("backend", name)
            start, workers, self._finish = backend.open(workers)
            workers = min(workers, concurrency)
            self.pool = Pool(start, workers, -(-concurrency // workers), setup)

    def __enter__(self) -> Players:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self.pool is not None:
                self._loop.run(self.pool.close())
        finally:
            self._loop.close()
            self._finish()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` on the loop the workers are reached from."""
        return self._loop.run(work)

    def set_weights(self, weights: str, body: bytes) -> None:
        """Give the workers weights (safetensors) of this identity; ``local`` has them already."""
        if self.pool is not None:
            self.run(self.pool.set_weights(pack({"do": "weights", "weights": weights}, body)))

    def player(self, episodes: Episodes, budget: Budget | None = None) -> Player:
        """What plays attempts of ``episodes`` here. Once ``budget`` is spent no attempt starts (BudgetSpentError); those under
        way end."""
        return Player(self, episodes, budget or Budget())


class Player:
    """Plays attempts of one agent for one run, here or on workers. Offers the sampler's ``attempt`` and ``branch``."""

    def __init__(self, players: Players, episodes: Episodes, budget: Budget) -> None:
        self.episodes, self._budget, self._pool = episodes, budget, players.pool
        self._gate = asyncio.Semaphore(players.concurrency)
        self._window = AHEAD * players.concurrency

    async def attempt(self, tree: str, task: Task, index: int, turns: int | None = None, purpose: str = ROLLOUT) -> Attempt:
        """As :meth:`Episodes.attempt`."""
        return self.store(await self.sample(Unit(tree, task, index, None, turns, purpose)))

    async def branch(self, tree: str, task: Task, node_id: str, index: int, turns: int | None = None) -> Attempt:
        """As :meth:`Episodes.branch`."""
        return self.store(await self.sample(Unit(tree, task, index, node_id, turns)))

    async def tried(self, unit: Unit) -> Attempt:
        """Play one attempt and store it; an infrastructure failure is an attempt without turns."""
        try:
            return self.store(await self.sample(unit))
        except InfrastructureError as error:
            return self._failed(unit, error)

    async def sample(self, unit: Unit) -> Sampled:
        """Play one attempt. Raises BudgetSpentError before it, else as :meth:`Episodes.attempt`."""
        if self._pool is None:
            async with self._gate:
                self._budget.require()
                play = self.episodes
                if unit.node is None:
                    attempt = await play.attempt(unit.tree, unit.task, unit.index, unit.turns, unit.purpose)
                else:
                    rest: dict[str, Any] = {"turns": unit.turns, "purpose": unit.purpose}
                    attempt = await play.branch(unit.tree, unit.task, unit.node, unit.index, **rest)
                self._charge(attempt.sampled_tokens, len(attempt.turns))
                return attempt
        async with self._gate:
            answer = await self._pool.call(lambda: self._message(unit))
        header, body = unpack_answer(answer)
        records = tuple(read_records(body))
        header["unit"] = unit
        self._charge(header["drawn"], len(header["turns"]))
        return header, records

    def store(self, sampled: Sampled) -> Attempt:
        """Add a played attempt to the run, whole or not at all; one played here is there already."""
        if isinstance(sampled, Attempt):
            return sampled
        header, records = sampled
        unit: Unit = header["unit"]
        with self.episodes.run.transaction() as run:
            add_records(run, records)
            if header["paused"]:
                offset = 0 if unit.node is None else len(self.episodes.load(unit.tree).node(unit.node))
                by = self.episodes.provenance.hash
                run.take_back(AttemptRecord("", unit.tree, unit.node, offset, unit.purpose, unit.index, provenance=by))
        if unit.tree not in self.episodes.trees and not self.episodes.run.has_tree(unit.tree):
            self.episodes.trees[unit.tree] = Tree(unit.tree)
        known = self.episodes.load(unit.tree)
        for record in records:
            if isinstance(record, Node):
                known.add(record)
        turns = [as_turn(known.node(node), known.node(answer)) for node, answer in header["turns"]]
        names = ("index", "start", "reward", "outcome", "truncated", "failure", "leaf", "replayed", "paused")
        fields = {name: header[name] for name in names}
        return Attempt(unit.tree, unit.task, turns=tuple(turns), **fields)

    async def in_order(self, units: Iterable[Unit]) -> AsyncIterator[tuple[Unit, Attempt]]:
        """Play all units and store them in their order, whoever finished first.
        An infrastructure failure is an attempt without turns.

        Raises BudgetSpentError at the end, when the budget kept some from starting.
        """
        waiting: deque[tuple[Unit, asyncio.Task[Sampled]]] = deque()
        rest, spent = iter(units), None
        try:
            while True:
                while spent is None and len(waiting) < self._window and (unit := next(rest, None)) is not None:
                    waiting.append((unit, asyncio.ensure_future(self.sample(unit))))
                if not waiting:
                    break
                unit, task = waiting.popleft()
                try:
                    yield unit, self.store(await task)
                except InfrastructureError as error:
                    yield unit, self._failed(unit, error)
                except BudgetSpentError as error:
                    spent = error
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
        if spent is not None:
            raise spent

    def _failed(self, unit: Unit, error: InfrastructureError) -> Attempt:
        start = None if unit.node is None else self.episodes.load(unit.tree).node(unit.node)
        return self.episodes.failed(unit.tree, unit.task, start, unit.draw, str(error))

    def _charge(self, tokens: int, turns: int) -> None:
        self._budget.charge(calls=turns, tokens=tokens, turns=turns)

    def _message(self, unit: Unit) -> bytes:
        """The message for a worker: the attempt, and the stored nodes of its path."""
        self._budget.require()
        header = {
            "do": "play",
            "group": self.episodes.group,
            "tree": unit.tree,
            "task": unit.task.id,
            "data": dict(unit.task.data),
        }
        known: list[Record] = []
        if unit.tree in self.episodes.trees or self.episodes.run.has_tree(unit.tree):
            known += stored(self.episodes.load(unit.tree), unit, self.episodes.run.context)
        snapshots = {node.snapshot for node in known if isinstance(node, Node) and node.snapshot is not None}
        known += [self.episodes.run.get_blob(name[5:]) for name in sorted(snapshots) if name.startswith("blob:")]
        own = {"index": unit.index, "node": unit.node, "turns": unit.turns, "purpose": unit.purpose}
        return pack(header | own, write_records(known))


def stored(tree: Tree, unit: Unit, context_of: Callable[[str], Context]) -> list[Node | Context]:
    """What a tree holds of a unit: the path to where it starts, what an earlier, interrupted call sampled from there, and the
    contexts these name with the messages they show."""
    if not len(tree):
        return []
    if unit.node is None:
        start = tree.root
        while start.role in ("root", "system") and (below := tree.children(start.id)):
            start = below[0]
    else:
        start = tree.node(unit.node)
    wanted = [node for node, _ in tree.path(start.id).segments]
    below = [child for child in tree.children(start.id) if (child.index, child.purpose) == (unit.index, unit.purpose)]
    while below:
        wanted += below
        below = [child for node in below for child in tree.children(node.id)]
    named = {name for node in wanted if node.context for name in (node.context, node.data.get(HISTORY)) if name}
    contexts = {name: context_of(name) for name in sorted(named)}
    shown = [part.node for context in contexts.values() for part in context.parts if isinstance(part, Span)]
    nodes = {node.id: node for last in shown for node, _ in tree.path(last).segments} | {node.id: node for node in wanted}
    return [*contexts.values(), *nodes.values()]
