"""Stable ids: the same content has the same id on every machine and in every process."""

from __future__ import annotations

import hashlib
import json
from typing import Any

ID_CHARS = 24  # 96 bits: a collision among 10^9 nodes has probability below 1e-11


def stable_hash(*parts: str | bytes | int | None) -> str:
    """Hash ``parts`` to a 24-digit hexadecimal id. Parts are length-prefixed and typed, so ("ab","c") differs from ("a","bc")."""
    pieces = []
    for part in parts:
        if isinstance(part, str):
            raw = part.encode("utf-8", "surrogatepass")
            pieces.append(b"s%d:%b" % (len(raw), raw))
        elif part is None:
            pieces.append(b"n;")
        elif isinstance(part, int):
            pieces.append(b"i%d;" % part)
        else:
            pieces.append(b"b%d:%b" % (len(part), part))
    return hashlib.blake2b(b"".join(pieces), digest_size=ID_CHARS // 2).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text per value.
    Raises ValueError on NaN or infinity, TypeError on foreign types."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def json_hash(value: Any) -> str:
    """The stable hash of a JSON value."""
    return stable_hash(canonical_json(value))
