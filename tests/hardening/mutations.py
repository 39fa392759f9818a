"""Broken copies of a file: bytes flipped, cut, doubled and spliced; JSON with every odd value at every place."""

from __future__ import annotations

import json
import random
from typing import Any

DEEP = 3000
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    -(2**70),
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    "a\x00b",
    "\u2028",
    "\x1b]0;x\x07",
    "9" * 30,
    "../../etc/passwd",
    "y" * 70_000,
    [],
    {},
    [[]],
    [None],
    [1, "a"],
    {"a": {}},
    ["x"] * 3000,
)
#: Texts put in where a value stood: what Python's own writer of JSON cannot make.
RAW = (
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "9" * 5000, "1e999999", "-", "01", "'x'", "\\ud800", "NaN",
    '"\\ud800\\udc"', "tru",
)  # fmt: skip
MARK = "@@here@@"


def mutant(seed: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One broken copy of ``seed``; ``others`` lend pieces."""
    data = seed
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        structured = rng.random() < 0.6 and data[:1] in (b"{", b"[")
        data = _json(data, rng) if structured else rng.choice(_BYTES)(data, others, rng)
    return data


def _json(data: bytes, rng: random.Random) -> bytes:
    """Another value at a random place of a random line (of the document, where it is one)."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        try:
            lines, at, value = [data], 0, json.loads(data)
        except (ValueError, RecursionError):
            return data
    places: list[tuple[Any, Any]] = []
    _walk(value, places)
    if not places:
        return data
    holder, key = rng.choice(places)
    raw = None
    how = rng.random()
    if how < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif how < 0.25 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "id", "kind", "\ud800", str(key) + "x"))] = holder.pop(key)
    elif how < 0.35 and isinstance(holder, list):
        holder += [holder[key]] * rng.choice((1, 2, 2000))
    elif how < 0.45:
        holder[key], raw = MARK, rng.choice(RAW)
    elif how < 0.6:
        other, place = rng.choice(places)
        holder[key] = other[place]
        if rng.random() < 0.3:
            holder[key] = [holder[key]]
    else:
        holder[key] = rng.choice(ODD)
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # a value that now holds itself
        return data
    lines[at] = (text if raw is None else text.replace(f'"{MARK}"', raw, 1)).encode()
    return b"\n".join(lines)


def _walk(value: Any, places: list[tuple[Any, Any]]) -> None:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        places.append((value, key))
        _walk(value[key], places)


def _flip(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _cut(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 16, 512)) :]


def _double(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((1, 50, 4000))]
    return data[:start] + piece * rng.choice((2, 3, 10)) + data[start:]


def _splice(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _insert(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    piece = rng.choice(
        (
            b"\x00",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"\xed\xa0\x80",
            b"\r\n",
            b"\n\n\n",
            b"\x0c",
            b"\xe2\x80\xa8",
            b"[" * DEEP,
            b"\x00" * 5000,
        )
    )
    at = rng.choice((0, rng.randrange(len(data) + 1)))
    return data[:at] + piece + data[at:]


def _lines(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    if rng.random() < 0.5:
        rng.shuffle(lines)
    else:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"\n".join(lines)


_BYTES = (_flip, _flip, _cut, _drop, _double, _splice, _insert, _lines)
