"""Reading JSON lines that strangers wrote: one line at a time, every fault one sentence with file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError

#: A longer line is refused: parsing it would need several times its size of memory.
MAX_LINE = 1 << 24


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank. Memory is that of one line.

    Raises UserError naming file and line: a missing file, a line that is no JSON object, is longer than 16 MiB, or is no UTF-8.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise UserError(f"{path}:{number}: the line is longer than {MAX_LINE} bytes")
                if line.strip():
                    yield number, _parse(line, f"{path}:{number}")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def first_record(path: Path) -> tuple[int, dict[str, Any] | None]:
    """The first JSON object of a file and its line: of its first line, or, of a JSON document, itself or the first of its list.

    (1, None) where there is none: a folder, a file that cannot be read, a document above 16 MiB, or anything but JSON.
    """
    try:
        with path.open("rb") as file:
            number, line = 1, file.readline(MAX_LINE + 1)
            while line and not line.strip():
                number, line = number + 1, file.readline(MAX_LINE + 1)
            try:
                found = json.loads(line.decode("utf-8-sig"))
            except ValueError:
                rest = file.read(MAX_LINE + 1 - len(line)) if line.lstrip(b"\xef\xbb\xbf \t")[:1] in (b"{", b"[") else b""
                found = json.loads((line + rest).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return 1, None
    if isinstance(found, list) and found:
        found = found[0]
    return number, found if isinstance(found, dict) else None


def field(record: dict[str, Any], name: str, kinds: type | tuple[type, ...], place: str, default: Any = ...) -> Any:
    """A field of one of ``kinds``, or ``default`` where it is absent or null. Raises UserError naming ``place`` and field."""
    value = record.get(name)
    if value is None and default is not ...:
        return default
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and bool not in (kinds if isinstance(kinds, tuple) else (kinds,))
    ):
        wanted = " or ".join(_NAMES[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise UserError(f"{place}: '{name}' must be {wanted}" + (", and it is missing" if name not in record else ""))
    return value


_NAMES: dict[type, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise UserError(f"{place}: nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{place}: not JSON ({error.args[0].split(': line')[0]})") from error
    if not isinstance(record, dict):
        raise UserError(f"{place}: a line must hold one JSON object")
    return record
