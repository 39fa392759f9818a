"""The records of a run as Parquet, one file a kind.

Arrays become lists, JSON fields become JSON text. Text that UTF-8 cannot express has its lone surrogates replaced (the JSON lines
form keeps them). Written in row groups, so memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import whole_file
from ramify.base.ids import canonical_json
from ramify.trace.db import Run
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
)

_GROUP = 4096
_KINDS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "nodes": (
        Node,
        dict.fromkeys(
            ("id", "tree", "parent", "role", "text", "context", "provenance", "purpose", "snapshot", "state_key", "stop", "data"),
            "str",
        )
        | {"offset": "int", "index": "int", "opens": "bool", "reward": "float"}
        | {"tokens": "ints", "sampled": "bools", "logprobs": "floats", "ends": "ints"},
    ),
    "attempts": (
        AttemptRecord,
        dict.fromkeys(("leaf", "tree", "start", "purpose", "failure", "provenance"), "str")
        | {"offset": "int", "index": "int", "outcome": "bool", "reward": "float", "truncated": "bool"},
    ),
    "token_values": (TokenValues, {"node": "str", "name": "str", "maker": "str", "values": "floats"}),
    "annotations": (Annotation, {"node": "str", "offset": "int", "name": "str", "maker": "str", "value": "json"}),
    "scores": (
        Score,
        dict.fromkeys(("node", "scorer", "unit", "cost", "judges"), "str")
        | {"value": "float", "confidence": "float", "evidence": "json"},
    ),
    "findings": (
        Finding,
        dict.fromkeys(("node", "name", "maker", "why", "action", "unit", "identity"), "str")
        | {"offset": "int", "value": "float", "evidence": "json"},
    ),
    "results": (KeptResult, {"maker": "str", "result": "json", "sections": "json"}),
    "trees": (TreeInfo, dict.fromkeys(("name", "task", "group", "data"), "str")),
    "provenances": (
        Provenance,
        {"hash": "str", "model": "str", "weights": "str", "settings": "str", "seed": "int", "edit": "str"},
    ),
    "contexts": (Context, {"hash": "str", "parts": "json"}),
    "journal": (JournalEntry, {"kind": "str", "key": "str", "payload": "json"}),
}


def write_parquet(run: Run, path: Path, records: str = "nodes") -> int:
    """Write the records of one kind (nodes, attempts, token_values, annotations, scores, findings, results, trees,
    provenances, contexts, journal), whole or not at all.

    Returns how many rows. Raises UserError on an unknown kind or when the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if records not in _KINDS:
        raise UserError(f"a run has no '{records}' to export: {nearest(records, _KINDS)}")
    types = {
        "str": pa.string(),
        "json": pa.string(),
        "int": pa.int64(),
        "bool": pa.bool_(),
        "float": pa.float64(),
        "ints": pa.list_(pa.int32()),
        "bools": pa.list_(pa.bool_()),
        "floats": pa.list_(pa.float32()),
    }
    record, fields = _KINDS[records]
    schema = pa.schema([(name, types[type_]) for name, type_ in fields.items()])
    count = 0
    with whole_file(path) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
        for rows in _groups(run.each(record)):
            columns = [pa.array([_cell(row, name, type_) for row in rows], types[type_]) for name, type_ in fields.items()]
            writer.write_table(pa.table(columns, schema=schema))
            count += len(rows)
    return count


def _groups(records: Iterator[Any]) -> Iterator[list[Any]]:
    while rows := list(islice(records, _GROUP)):
        yield rows


def _cell(record: Any, name: str, type_: str) -> Any:
    value = record.to_json() if name == "parts" else getattr(record, name)
    if type_ == "json" or (type_ == "str" and value is not None and not isinstance(value, str)):
        value = canonical_json(dict(value) if isinstance(value, Mapping) else value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if not isinstance(value, np.ndarray) else np.ascontiguousarray(value)
