"""Stable ids: the same content has the same id on every machine and in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

ID_CHARS = 24  # 96 bits: a collision among 10^9 nodes has probability below 1e-11


def stable_hash(*parts: str | bytes | int | None) -> str:
    """Hash ``parts`` to a 24-digit hexadecimal id. Parts are length-prefixed and typed, so ("ab","c") differs from ("a","bc")."""
    return hashlib.blake2b(b"".join(map(_coded, parts)), digest_size=ID_CHARS // 2).hexdigest()


def hash_of(parts: Iterable[str | bytes | memoryview | int | None]) -> str:
    """:func:`stable_hash` of parts that are made one after the other, so that large ones need not exist together."""
    digest = hashlib.blake2b(digest_size=ID_CHARS // 2)
    for part in parts:
        if isinstance(part, memoryview):
            digest.update(b"b%d:" % len(part))
            digest.update(part)
        else:
            digest.update(_coded(part))
    return digest.hexdigest()


def _coded(part: str | bytes | int | None) -> bytes:
    if isinstance(part, str):
        raw = part.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(raw), raw)
    if part is None:
        return b"n;"
    if isinstance(part, int):
        return b"i%d;" % part
    return b"b%d:%b" % (len(part), part)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text per value.
    Raises ValueError on NaN or infinity, TypeError on foreign types."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def json_hash(value: Any) -> str:
    """The stable hash of a JSON value."""
    return stable_hash(canonical_json(value))
