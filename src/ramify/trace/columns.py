"""Nodes of a run as columns: flat arrays over all tokens plus row offsets, one array per field.
Axis: N nodes, T tokens of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.trace.schema import from_text

#: Per token: flat arrays; node i has ``[rows[i]:rows[i + 1]]``.
_FLAT = {"tokens": np.dtype("<i4"), "sampled": np.dtype(bool), "logprobs": np.dtype("<f4"), "ends": np.dtype("<i4")}
#: Per node: the SQL and the type of each entry; texts are object arrays of str.
_SCALAR: dict[str, tuple[str, Any]] = {
    "id": ("n.id", object),
    "tree": ("t.name", object),
    "group": ("t.grp", object),
    "parent": ("coalesce(n.parent, 0)", np.int64),
    "offset": ("n.offset", np.int64),
    "length": ("n.length", np.int64),
    "role": ("n.role", object),
    "opens": ("n.opens", np.bool_),
    "index": ("n.sample", np.int64),
    "purpose": ("n.purpose", object),
    "stop": ("n.stop", object),
    "reward": ("n.reward", np.float64),
    "state_key": ("n.state_key", object),
    "text": ("n.text", object),
}
_CHUNK = 256  # small enough for the cache and for malloc's heap: larger chunks cost page faults


def read_columns(rows: Callable[[str], Iterator[tuple[Any, ...]]], names: list[str], where: str) -> dict[str, np.ndarray]:
    """Read ``names`` of the nodes that match ``where``, in order of writing; ``rows`` runs one query.

    Flat columns (tokens int32, sampled bool, logprobs float32, ends int32; 0 where a node with tokens carries none) have shape
    (T,) and come with ``rows``, int64 (N+1,); a text-only node has no entry in them. The others have shape (N,): id, tree, group,
    role, purpose, stop, state_key, text (str, or None), offset, length, index (int64), opens (bool), reward (float64, NaN where
    there is none), parent (int64: row of the parent in this answer, -1 where it has none here). Raises UserError on an unknown
    name.
    """
    for name in names:
        if name not in _FLAT and name not in _SCALAR:
            raise UserError(f"nodes have no column '{name}': {nearest(name, [*_FLAT, *_SCALAR])}")
    flat = [name for name in names if name in _FLAT]
    scalar = [name for name in names if name in _SCALAR]
    size = "coalesce(length(n.tokens), 0) / 4"
    sql = ", ".join(["n.seq", size, *(f"n.{name}" for name in flat), *(_SCALAR[name][0] for name in scalar)])
    source = rows(f"SELECT {sql} FROM nodes n JOIN trees t ON t.seq = n.tree {where} ORDER BY n.seq")
    seqs: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    tokens = {name: bytearray() for name in flat}  # grows in place: no second copy of what may be gigabytes
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in scalar}
    while chunk := list(islice(source, _CHUNK)):
        columns = list(zip(*chunk, strict=True))
        seqs.append(np.array(columns[0], np.int64))
        lengths.append(np.array(columns[1], np.int64))
        for name, values in zip(flat, columns[2:], strict=False):
            tokens[name] += _bits(values, lengths[-1]) if name == "sampled" else _joined(values, columns[1])
        for name, values in zip(scalar, columns[2 + len(flat) :], strict=True):
            pieces[name].append(_scalars(values, _SCALAR[name][1]))
    out: dict[str, np.ndarray] = {}
    for name in names:
        if name in _FLAT:
            out[name] = np.frombuffer(tokens[name], _FLAT[name])
        else:
            out[name] = np.concatenate(pieces[name]) if pieces[name] else np.zeros(0, _SCALAR[name][1])
    if "parent" in out:
        out["parent"] = _positions(np.concatenate(seqs) if seqs else np.zeros(0, np.int64), out["parent"])
    if flat:
        out["rows"] = (
            np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]) if lengths else np.zeros(1, np.int64)
        )
    return out


def _scalars(values: tuple[Any, ...], dtype: Any) -> np.ndarray:
    if dtype is object:
        out = np.empty(len(values), object)
        out[:] = [from_text(value) if isinstance(value, bytes) else value for value in values]
        return out
    return np.array(values, dtype)


def _joined(values: tuple[bytes | None, ...], lengths: tuple[int, ...]) -> bytes:
    whole = b"".join([bytes(4 * n) if value is None else value for value, n in zip(values, lengths, strict=True)])
    if len(whole) != 4 * sum(lengths):
        raise ValueError("a node's arrays differ in length")
    return whole


def _bits(values: tuple[bytes | None, ...], lengths: np.ndarray) -> memoryview:
    """Unpack all rows at once: each row starts at a byte, so the padding bits at the end of every row are dropped."""
    width = (lengths + 7) // 8
    packed = b"".join(bytes(int(n)) if value is None else value for value, n in zip(values, width, strict=True))
    if len(packed) != width.sum():
        raise ValueError("a node's arrays differ in length")
    bits: np.ndarray = np.unpackbits(np.frombuffer(packed, np.uint8)).view(np.bool_)
    runs = np.stack([lengths, 8 * width - lengths], axis=1).ravel()
    return memoryview(bits[np.repeat(np.tile([True, False], len(lengths)), runs)])


def _positions(seqs: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Row of each parent among the sorted ``seqs``; -1 where it is not among them."""
    if not len(seqs):
        return parents
    at = np.minimum(np.searchsorted(seqs, parents), len(seqs) - 1)
    return np.where(seqs[at] == parents, at, -1)
