"""A worker: plays attempts for a collector and answers with their records. It writes no run.
What they say to each other is JSON and bytes, never pickles.

``python -m ramify.rollout.worker`` serves one over its standard input and output; a Ray actor holds one, too.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import importlib
import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, BinaryIO, cast

import numpy as np

from ramify.base import errors
from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.ids import stable_hash
from ramify.base.plugins import find_attribute
from ramify.base.version import VERSION
from ramify.env.protocol import Environment, Task
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.trace.db import Run
from ramify.trace.jsonl import node_json
from ramify.trace.node import AttemptRecord, Context, Node, Provenance, Score, TreeInfo, context_from_json, make_node
from ramify.trace.tree import Tree

Record = Node | AttemptRecord | Context | Provenance | Score | TreeInfo | bytes
"""What playing an episode writes; bytes are a blob."""


_KINDS: dict[type[TreeInfo | Score | AttemptRecord], str] = {TreeInfo: "tree", Score: "score", AttemptRecord: "attempt"}


def pack(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A message as bytes: the header as a line of JSON, then the body."""
    return json.dumps(header).encode() + b"\n" + body


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body of a message."""
    head, _, body = message.partition(b"\n")
    return json.loads(head), body


def pack_error(error: Exception) -> bytes:
    """The answer to a failed message; a foreign exception is sent as its type and text."""
    known = isinstance(error, RamifyError) and hasattr(errors, type(error).__name__)
    message = error.message if isinstance(error, InfrastructureError) else str(error)
    return pack(
        {
            "error": type(error).__name__ if known else "RamifyError",
            "message": message if known else f"a worker failed with {type(error).__name__}: {error}",
            "boundary": error.boundary if isinstance(error, InfrastructureError) else None,
        }
    )


def unpack_answer(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body of an answer. Raises the error it carries, of the kind it was in the worker."""
    header, body = unpack(message)
    if "error" in header:
        if header["boundary"] is not None:
            raise InfrastructureError(header["boundary"], header["message"])
        raise getattr(errors, header["error"])(header["message"])
    return header, body


def write_records(records: Iterable[Record]) -> bytes:
    """Records as lines."""
    return b"".join(json.dumps(_line(record)).encode() + b"\n" for record in records)


def read_records(lines: bytes) -> Iterator[Record]:
    """Inverse of :func:`write_records`. Raises UserError on a node or blob whose id is not that of its content."""
    for line in lines.splitlines():
        yield _record(json.loads(line))


def _line(record: Record) -> dict[str, Any]:
    if isinstance(record, bytes):
        return {"kind": "blob", "hash": stable_hash(record), "base64": base64.b64encode(record).decode()}
    if isinstance(record, Node):
        return {"kind": "node", **node_json(record)}
    if isinstance(record, Provenance):
        return {"kind": "provenance", **record.to_json()}
    if isinstance(record, Context):
        return {"kind": "context", "parts": record.to_json()}
    return {"kind": _KINDS[type(record)], **dataclasses.asdict(record)}


def _record(fields: dict[str, Any]) -> Record:
    kind = fields.pop("kind")
    if kind == "blob":
        data = base64.b64decode(fields["base64"])
        return data if stable_hash(data) == fields["hash"] else _damaged("blob", fields["hash"])
    if kind == "node":
        given = fields.pop("id")
        if "logprobs" in fields:
            fields["logprobs"] = np.array([float(value) for value in fields["logprobs"]], np.float32)
        node = make_node(**{"parent": None, **fields})
        return node if node.id == given else _damaged("node", given)
    if kind == "context":
        return context_from_json(fields["parts"])
    if kind == "provenance":
        return Provenance(**fields)
    return next(one for one, name in _KINDS.items() if name == kind)(**fields)


def _damaged(kind: str, name: str) -> Any:
    raise UserError(f"{kind} {name} arrived from a worker with another content than its id says")


def add_records(run: Run, records: Iterable[Record]) -> None:
    """Write records into a run, in their order."""
    for record in records:
        if isinstance(record, bytes):
            run.put_blob(record)
        elif isinstance(record, TreeInfo):
            run.add_tree(record.name, record.task, record.group, record.data)
        else:
            run.add(record)


class Sink:
    """An in-memory stand-in for the Run that an episode writes to: ``known`` can be read, additions are kept."""

    def __init__(self, known: Iterable[Record] = ()) -> None:
        self.added: list[Record] = []
        self._nodes: dict[str, dict[str, Node]] = {}
        self._blobs: dict[str, bytes] = {}
        self._contexts: dict[str, Context] = {}
        for record in known:
            self._keep(record)

    def add_tree(self, name: str, task: Mapping[str, Any], group: str = "", data: Mapping[str, Any] | None = None) -> None:
        """As :meth:`Run.add_tree`."""
        self.added.append(TreeInfo(name, task, group, data or {}))

    def add(self, *records: Node | AttemptRecord | Context | Provenance | Score) -> None:
        """As :meth:`Run.add`."""
        for record in records:
            self._keep(record)
            self.added.append(record)

    def take_back(self, attempt: AttemptRecord) -> None:
        """Nothing: the run itself does when the attempt is stored."""

    def tree(self, name: str) -> Tree:
        """As :meth:`Run.tree`; a tree without nodes is empty."""
        return Tree(name, self._nodes.get(name, {}).values())

    def context(self, name: str) -> Context:
        """As :meth:`Run.context`."""
        if name not in self._contexts:
            raise UserError(f"there is no context '{name}'")
        return self._contexts[name]

    def put_blob(self, data: bytes) -> str:
        """As :meth:`Run.put_blob`."""
        self.added.append(data)
        return self._keep(data)

    def get_blob(self, name: str) -> bytes:
        """As :meth:`Run.get_blob`."""
        if name not in self._blobs:
            raise UserError(f"there is no blob '{name}'")
        return self._blobs[name]

    def _keep(self, record: Record) -> str:
        if isinstance(record, Node):
            self._nodes.setdefault(record.tree, {})[record.id] = record
        elif isinstance(record, bytes):
            name = stable_hash(record)
            self._blobs[name] = record
            return name
        elif isinstance(record, Context):
            self._contexts[record.hash] = record
        return ""


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
        if header["version"] != VERSION:
            raise UserError(f"a worker has ramify {VERSION}, the collector {header['version']}: install the same")
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
