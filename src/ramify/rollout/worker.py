"""A worker: plays attempts for a collector and answers with their records. It writes no run.

``python -m ramify.rollout.worker`` serves one over its standard input and output; a Ray actor holds one, too.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, BinaryIO, cast

import ramify
from ramify.base.errors import UserError
from ramify.base.plugins import find_attribute
from ramify.env.protocol import Environment, Task
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.rollout.wire import Sink, pack, pack_error, read_records, unpack, write_records
from ramify.trace.db import Run

FRAME = struct.Struct(">QQ")
"""Number of the message and its length, before each message on a pipe."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Parts = Callable[[Mapping[str, Any]], tuple[Agent, Environment]]


class WorkerPlayer:
    """Plays attempts of the agent and environment it was set up with.
    Each message is answered alone; many may be that run at once."""

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._environment: Environment | None = None
        self._seed = 0
        self._gate: AbstractAsyncContextManager[Any] = nullcontext()

    async def answer(self, message: bytes) -> bytes:
        """Do what ``message`` asks: ``setup``, ``weights`` or ``play``. A failure is an answer, too."""
        try:
            header, body = unpack(message)
            if header["do"] == "play":
                return await self._play(header, body)
            if header["do"] == "weights":
                self._take_weights(header["weights"], body)
            else:
                self._setup(header)
            return pack({})
        except Exception as error:  # between processes: any error is returned to the caller
            return pack_error(error)

    def _setup(self, header: Mapping[str, Any]) -> None:
        """Make the parts with ``factory`` (``module:attribute``).
        Raises UserError where code or agent are others than the collector's."""
        if header["version"] != ramify.__version__:
            raise UserError(f"a worker has ramify {ramify.__version__}, the collector {header['version']}: install the same")
        os.environ.update(header["environment"])
        sys.path += [folder for folder in header["path"] if folder not in sys.path and os.path.isdir(folder)]
        for name in THREADS:  # read when torch is loaded, below
            os.environ[name] = "1"
        importlib.import_module("ramify.engine")  # its switches must be set before anything loads torch
        make = cast(Parts, find_attribute(header["factory"]))
        self._agent, self._environment = make(header["settings"])
        self._seed = header["seed"]
        limit = getattr(self._environment, "at_once", None)  # episodes keep to it, too, but every attempt has its own
        self._gate = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._check(header["weights"])

    def _take_weights(self, weights: str, body: bytes) -> None:
        """Weights that changed in training, as safetensors."""
        from ramify.engine.checkpoints import set_weights

        assert self._agent is not None
        set_weights(self._agent.model, body)
        self._check(weights)

    def _check(self, weights: str) -> None:
        assert self._agent is not None
        identity = self._agent.model.identity
        if identity.weights != weights:
            raise UserError(
                f"a worker's '{identity.name}' has other weights ({identity.weights}) than the collector's ({weights})"
            )

    async def _play(self, header: Mapping[str, Any], body: bytes) -> bytes:
        assert self._agent is not None
        assert self._environment is not None
        sink = Sink(read_records(body))
        # every attempt has its own Episodes, so its records are complete and do not depend on earlier ones
        episodes = Episodes(self._agent, self._environment, cast(Run, sink), self._seed, header["group"])
        task = Task(header["task"], header["data"])
        async with self._gate:
            how = {"turns": header["turns"], "purpose": header["purpose"]}
            if header["node"] is None:
                attempt = await episodes.attempt(header["tree"], task, header["index"], **how)
            else:
                attempt = await episodes.branch(header["tree"], task, header["node"], header["index"], **how)
        return pack(attempt_json(attempt), write_records(sink.added))


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """An attempt without its nodes, which are named by their ids."""
    return {
        "index": attempt.index,
        "start": attempt.start,
        "turns": [[turn.node.id, turn.answer.id] for turn in attempt.turns],
        "reward": attempt.reward,
        "outcome": attempt.outcome,
        "truncated": attempt.truncated,
        "failure": attempt.failure,
        "leaf": attempt.leaf,
        "replayed": attempt.replayed,
        "paused": attempt.paused,
        "drawn": attempt.sampled_tokens,
    }


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Answer messages from ``source`` on ``target`` until it ends;
    the end of it is the end of this process, however busy it is."""
    player = WorkerPlayer()
    loop = asyncio.new_event_loop()
    under_way: set[asyncio.Task[None]] = set()

    async def answer(number: int, message: bytes) -> None:
        reply = await player.answer(message)
        try:
            target.write(FRAME.pack(number, len(reply)) + reply)
            target.flush()
        except OSError:  # the collector is gone
            os._exit(0)

    def begin(number: int, message: bytes) -> None:
        task = loop.create_task(answer(number, message))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    def read() -> None:
        while len(head := source.read(FRAME.size)) == FRAME.size:
            number, length = FRAME.unpack(head)
            loop.call_soon_threadsafe(begin, number, source.read(length))
        os._exit(0)  # the collector is gone: nobody wants what is under way

    threading.Thread(target=read, daemon=True).start()
    loop.run_forever()


def main() -> None:
    """Serve over standard input and output. What parts print goes to standard error, so it cannot end up among the answers."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(source, target)


if __name__ == "__main__":
    main()
