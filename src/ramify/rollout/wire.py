"""Messages between workers and the collector: JSON and bytes, never pickles.

A message is one line of JSON (the header) and a body; a body of records is one JSON object a line, as in ``ramify export``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ramify.base import errors
from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.ids import stable_hash
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
