"""A run as JSON lines and back, exactly.

The JSON lines form is one object a line: first ``run`` (schema and config), then trees, provenances, contexts, blobs, nodes in
order of writing, attempts, per-token values, annotations, scores, findings, results and the journal. Fields of a node that have
their default are left out. Floats that are no numbers are written as "nan", "inf" and "-inf".
Writing and reading take the memory of one line, not of the run."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import refusal, whole_file
from ramify.base.ids import canonical_json
from ramify.trace.connect import take_lock
from ramify.trace.db import Run
from ramify.trace.lines import at_place, field, read_lines
from ramify.trace.node import (
    Annotation,
    AttemptRecord,
    Context,
    Finding,
    JournalEntry,
    KeptResult,
    Node,
    Provenance,
    Score,
    TokenValues,
    TreeInfo,
    context_from_json,
    make_node,
)
from ramify.trace.schema import SCHEMA

_DEFAULTS: dict[str, Any] = {
    f.name: {} if f.default is dataclasses.MISSING else f.default
    for f in dataclasses.fields(Node)
    if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
}
_FLOAT32, _INF = float(np.finfo(np.float32).max), float("inf")
_SPECIAL = {"nan", "inf", "-inf"}
#: Fields of a node in JSON and their types.
NODE_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("id", "tree", "parent", "role", "text", "context", "provenance", "purpose", "snapshot"), str),
    **dict.fromkeys(("state_key", "stop"), str),
    **dict.fromkeys(("offset", "index"), int),
    **dict.fromkeys(("tokens", "sampled", "logprobs", "ends"), list),
    "opens": bool,
    "reward": (float, int),
    "data": dict,
}


def write_lines(run: Run, path: Path) -> int:
    """Write ``run`` as JSON lines, whole or not at all. Returns how many. Raises UserError when the file cannot be written."""
    count = 0
    with whole_file(path) as part, part.open("wb") as file:
        for record in _records(run):
            file.write(_encode(record) + b"\n")
            count += 1
    return count


def read_exported(path: Path, folder: Path) -> int:
    """Make a new run in ``folder`` from JSON lines, whole or not at all. Returns how many records.

    Raises UserError naming file and line on anything that does not fit, also on a node whose id is not that of its content.
    """
    lines = read_lines(path)
    number, head = next(lines, (1, {}))
    if head.get("kind") != "run":
        raise UserError(f"{path}:{number}: an exported run starts with a line of kind 'run'")
    version = field(head, "schema", int, f"{path}:{number}")
    if version != SCHEMA:
        raise UserError(
            f"{path}:{number}: it has schema {version}, and this ramify reads schema {SCHEMA}: import it with the version that "
            "wrote it"
        )
    count = 1
    config = field(head, "config", dict, f"{path}:{number}")
    verb = field(head, "verb", str, f"{path}:{number}", "")
    with new_run(folder, config, verb, field(head, "parts", dict, f"{path}:{number}", {})) as run:
        for number, record in lines:
            count += 1
            place = f"{path}:{number}"
            kind = field(record, "kind", str, place)
            if kind not in _READERS:
                raise UserError(f"{place}: unknown kind '{kind}': {nearest(kind, _READERS)}")
            with at_place(place):
                for name, type_ in _FIELDS[kind].items():
                    field(record, name, type_, place)
                _READERS[kind](run, {name: value for name, value in record.items() if name != "kind"})
    return count


@contextmanager
def new_run(
    folder: Path, config: dict[str, Any], kind: str = "import", parts: dict[str, Any] | None = None, trusted: bool = False
) -> Iterator[Run]:
    """A run that appears in ``folder`` only when the block succeeds; arguments as in :meth:`Run.create`.

    Raises UserError when something is there already.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already: choose another folder")
        part = folder.resolve().with_name(f".part-{folder.resolve().name}"[:200])
        if part.exists():  # left by an import that was killed, unless one still runs and holds the lock
            os.close(take_lock(part))
            shutil.rmtree(part)
    except OSError as error:
        raise refusal(f"cannot make {folder}", error) from error
    try:
        with Run.create(part, config, trusted=trusted, kind=kind, parts=parts) as run:
            yield run
        os.replace(part, folder)
    except OSError as error:
        raise refusal(f"cannot make {folder}", error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _records(run: Run) -> Iterator[dict[str, Any]]:
    yield {"kind": "run", **run.meta}
    for tree in run.each(TreeInfo):
        yield {"kind": "tree", **dataclasses.asdict(tree)}
    for provenance in run.each(Provenance):
        yield {"kind": "provenance", **provenance.to_json()}
    for context in run.each(Context):
        yield {"kind": "context", "parts": context.to_json()}
    for name in run.blobs.names():
        yield {"kind": "blob", "hash": name, "base64": base64.b64encode(run.get_blob(name)).decode()}
    for node in run.each(Node):
        yield {"kind": "node", **node_json(node)}
    for attempt in run.each(AttemptRecord):
        yield {"kind": "attempt", **dataclasses.asdict(attempt)}
    for token_values in run.each(TokenValues):
        yield {
            "kind": "values",
            "node": token_values.node,
            "name": token_values.name,
            "maker": token_values.maker,
            "values": _floats(token_values.values),
        }
    for annotation in run.each(Annotation):
        yield {"kind": "annotation", **dataclasses.asdict(annotation)}
    for score in run.each(Score):
        yield {"kind": "score", **dataclasses.asdict(score)}
    for finding in run.each(Finding):
        yield {"kind": "finding", **dataclasses.asdict(finding)}
    for kept in run.each(KeptResult):
        yield {"kind": "result", **dataclasses.asdict(kept)}
    for entry in run.each(JournalEntry):
        yield {"kind": "journal", "entry": entry.kind, "key": entry.key, "payload": entry.payload}


def node_json(node: Node) -> dict[str, Any]:
    """A node as JSON, fields that have their default left out; ``sampled`` as 0 and 1."""
    record: dict[str, Any] = {}
    for name in NODE_FIELDS:
        value = getattr(node, name)
        if name == "data":
            value = dict(value)
        if isinstance(value, np.ndarray):
            value = _floats(value) if name == "logprobs" else value.astype(np.int32).tolist()
        if name not in _DEFAULTS or value != _DEFAULTS[name]:
            record[name] = value
    return record


def _read_node(run: Run, record: dict[str, Any]) -> None:
    for name in record:
        if name not in NODE_FIELDS:
            raise UserError(f"a node has no field '{name}': {nearest(name, NODE_FIELDS)}")
    for name, kinds in NODE_FIELDS.items():
        field(record, name, kinds, "node", *([] if name in ("id", "tree", "offset", "role", "text") else [None]))
    for name in ("tokens", "ends", "sampled"):
        if any(type(value) is not int for value in record.get(name) or ()):
            raise UserError(f"'{name}' holds something that is not an integer")
    if record.get("logprobs") is not None:
        record["logprobs"] = _unfloats(record["logprobs"])
    record["parent"] = record.get("parent")
    given = record.pop("id")
    node = make_node(**record)
    if node.id != given:
        raise UserError(f"node {given} has the id of another content, which would be {node.id}")
    run.add(node)


def _read_attempt(run: Run, record: dict[str, Any]) -> None:
    for name in ("start", "failure", "provenance"):
        field(record, name, str, "attempt", None)
    field(record, "outcome", bool, "attempt", None)
    field(record, "reward", (float, int), "attempt", None)
    run.add(AttemptRecord(**record))


def _read_blob(run: Run, record: dict[str, Any]) -> None:
    if run.put_blob(base64.b64decode(record["base64"], validate=True)) != record["hash"]:
        raise UserError(f"blob {record['hash']} has the hash of another content")


#: Fields that a record of each kind must have, and their types; those of a node are checked where it is made.
_FIELDS: dict[str, dict[str, type]] = {
    "tree": {"name": str, "task": dict, "group": str, "data": dict},
    "provenance": {"model": str, "weights": str, "settings": dict, "seed": int},
    "context": {"parts": list},
    "blob": {"hash": str, "base64": str},
    "node": {},
    "attempt": {"leaf": str, "tree": str, "offset": int, "purpose": str, "index": int, "truncated": bool},
    "values": {"node": str, "name": str, "maker": str, "values": list},
    "annotation": {"node": str, "offset": int, "name": str, "maker": str},
    "score": {"node": str, "scorer": str, "unit": str, "cost": dict, "judges": dict},
    "result": {"maker": str, "result": dict, "sections": list},
    "finding": {"name": str, "maker": str, "why": str, "offset": int, "action": str, "unit": str, "identity": dict},
    "journal": {"entry": str, "key": str},
}
_READERS: dict[str, Callable[[Run, dict[str, Any]], Any]] = {
    "tree": lambda run, r: run.add_tree(r["name"], r["task"], r["group"], r["data"]),
    "provenance": lambda run, r: run.add(Provenance(**r)),
    "context": lambda run, r: run.add(context_from_json(r["parts"])),
    "blob": _read_blob,
    "node": _read_node,
    "attempt": _read_attempt,
    "values": lambda run, r: run.add(TokenValues(r["node"], r["name"], r["maker"], _unfloats(r["values"]))),
    "annotation": lambda run, r: run.add(Annotation(**r)),
    "score": lambda run, r: run.add(Score(**r)),
    "result": lambda run, r: run.add(KeptResult(**r)),
    "finding": lambda run, r: run.add(Finding(**r)),
    "journal": lambda run, r: run.log(r["entry"], r["key"], r["payload"]),
}


def _floats(values: np.ndarray) -> list[float | str]:
    return values.tolist() if np.isfinite(values).all() else [v if np.isfinite(v) else str(v) for v in values.tolist()]


def _unfloats(values: Any) -> np.ndarray:
    for value in values:
        if type(value) not in (float, int) and not (isinstance(value, str) and value in _SPECIAL):
            raise UserError(f"{value!r} is not a number")
        if isinstance(value, int | float) and abs(value) > _FLOAT32 and value not in (_INF, -_INF):
            raise UserError(f"{value!r} is beyond what is stored for a token")
    return np.array([float(value) for value in values], np.float32)


def _encode(record: dict[str, Any]) -> bytes:
    text = canonical_json(record)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8: escape the line
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
