"""Reading JSON lines written by third parties: one line at a time, every fault one sentence with file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.trace.notes import BadRecordError, skipped

T = TypeVar("T")

#: A longer line is refused: parsing it would need several times its size of memory.
MAX_LINE = 1 << 24
#: So are more lists and objects in one line: empty ones take thirty times their size.
MAX_BRACKETS = 1_000_000
_PIECE = 1 << 16
_WRAPPED = "simulations"
"""The field in which a results file of tau2-bench has its attempts."""
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*(,?)[ \t\r\n]*")


def read_lines(path: Path, ended: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank. Memory is that of one line.
    ``ended`` leaves out a last line without an end.

    Raises UserError naming file and line: a missing file, a line that is not a JSON object,
    is longer than 16 MiB, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                try:
                    if len(line) > MAX_LINE:
                        raise UserError(f"{path}:{number}: the line is longer than {MAX_LINE} bytes")
                    if not line.strip() or (ended and not line.endswith(b"\n")):
                        continue
                    record = _parse(line, f"{path}:{number}")
                except UserError as error:
                    if not skipped(error):
                        raise BadRecordError(str(error)) from error
                    continue
                yield number, record
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


def read_rows(path: Path, of: type[T]) -> Iterator[T]:
    """Each line as a record of type ``of`` (a dataclass, a named tuple); fields that it does not have are ignored.

    Raises UserError as :func:`read_lines`, and where a line is not such a record, naming file, line, field and what is wrong."""
    for number, record in read_lines(path):
        yield codec.from_json(of, record, f"{path}:{number}")


def read_items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of JSON lines, of one JSON list, or of the one JSON object that the file is. Memory is that of one object.

    The number is the line, of a list the item's place in it. Raises UserError naming file and place, as :func:`read_lines` does.
    """
    try:
        if _opens(path) == "[":
            yield from enumerate(_listed(path), 1)
            return
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    document = read_document(path)
    for number, record in [(1, document)] if isinstance(document, dict) else read_lines(path):
        inside = record.get(_WRAPPED, [])
        yield from enumerate(inside, 1) if _is_list(inside) else [(number, record)]


def _opens(path: Path) -> str:
    """The first character that is not space; "" where there is none, or a byte that begins no JSON."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE).removeprefix(b"\xef\xbb\xbf"):
            if piece.strip():
                return piece.strip()[:1].decode("latin-1")
    return ""


def _listed(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of the JSON list that the file is; memory holds one of them."""
    with path.open(encoding="utf-8-sig") as file, _decoding(path):
        text = file.read(_PIECE).lstrip()
        while not text:
            text = file.read(_PIECE).lstrip()
        yield from _items(path, file, text[1:], True)


def read_within(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of the list that stands under ``keys``, one inside the other, of the one JSON object that a file is.
    Memory is that of one object, or of the largest value beside the list.

    Raises UserError naming file and item, also where there is no such list."""
    try:
        with path.open(encoding="utf-8-sig") as file, _decoding(path):
            document = _Document(path, file, keys)
            document.enter()
            number = 0
            items = _items(path, file, document.text[document.at :], False)
            while True:
                try:
                    number, record = number + 1, next(items)
                except StopIteration as end:
                    document.text, document.at = str(end.value), 0
                    break
                yield number, record
            document.leave()
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


@dataclass
class _Document:
    """The one JSON object of a file around a list, read piece by piece."""

    path: Path
    file: TextIO
    keys: Sequence[str]
    text: str = ""
    at: int = 0

    def fault(self) -> UserError:
        return UserError(f"{self.path}: it is not one JSON object with a list under '{'.'.join(self.keys)}'")

    def enter(self) -> None:
        """Pass over what stands before the list, its opening bracket included."""
        depth = 0
        self._take("{")
        while depth < len(self.keys):
            if self._mark() != '"':
                raise self.fault()
            key = self._value()
            self._take(":")
            if key == self.keys[depth]:
                depth += 1
                self._take("[" if depth == len(self.keys) else "{")
            else:
                self._value()
                self._take(",")

    def leave(self) -> None:
        """Pass over what follows the list's closing bracket: further members, and the end of each object."""
        for _ in self.keys:
            while self._mark() == ",":
                self._take(",")
                self._value()
                self._take(":")
                self._value()
            self._take("}")
        if self._mark():
            raise UserError(f"{self.path}: text follows the document")

    def _more(self) -> bool:
        piece = self.file.read(max(_PIECE, len(self.text) - self.at))
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def _mark(self) -> str:
        """The next character that is not space; "" at the end."""
        while True:
            spaces = _SPACE.match(self.text, self.at)
            assert spaces is not None
            self.at = spaces.end()
            if self.at < len(self.text) or not self._more():
                return self.text[self.at : self.at + 1]

    def _take(self, mark: str) -> None:
        if self._mark() != mark:
            raise self.fault()
        self.at += 1

    def _value(self) -> Any:
        decode = json.JSONDecoder().raw_decode
        while self._mark():
            with suppress(ValueError):
                value, end = decode(self.text, self.at)
                if end < len(self.text):  # a number may continue in the next piece
                    self.at = end
                    return value
            if len(self.text) - self.at > MAX_LINE or not self._more():
                break
        raise self.fault()


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply") from error


def _items(path: Path, file: TextIO, text: str, alone: bool) -> Generator[dict[str, Any], None, str]:
    """The objects of a list whose opening bracket was read; ``alone``: nothing may follow it. Returns what was read beyond it."""
    decode = json.JSONDecoder().raw_decode
    number, at, size = 1, 0, _PIECE
    try:
        while True:
            spot, fault = f"{path}:{number}: item {number} of the list", "it ends inside the list"
            between = _BETWEEN.match(text, at)
            assert between is not None
            start = between.end()
            if start < len(text):
                if text[start] == "]" and not between[1]:
                    if alone and (text[start + 1 :].strip() or file.read(1).strip()):
                        raise UserError(f"{path}: text follows the list")
                    return text[start + 1 :]
                if bool(between[1]) != (number > 1) or text[start] != "{":
                    raise UserError(f"{spot} is not an object")
                if len(text) - start > MAX_BRACKETS and text.count("[", start) + text.count("{", start) > MAX_BRACKETS:
                    raise UserError(f"{spot}: more than {MAX_BRACKETS:,} lists and objects in one line or document")
                try:
                    record, at = decode(text, start)
                    yield record
                    number, size = number + 1, _PIECE
                    continue
                except ValueError as error:  # broken, or cut where the piece ends: reading more decides
                    fault = f"not JSON ({error.args[0].split(': line')[0]})"
            if len(text) - at > MAX_LINE:
                raise UserError(f"{spot}: it is longer than {MAX_LINE} characters")
            more = file.read(min(size, MAX_LINE + 1 - len(text) + at))
            if not more:
                raise UserError(f"{spot}: {fault}")
            text, at, size = text[at:] + more, 0, 2 * size
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: item {number} of the list, or one near it: not UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{path}:{number}: item {number} of the list: nested too deeply") from error


def read_conversations(
    path: Path, name: str, annotations: Collection[str] = ("role",), wholes: Collection[str] = ("messages",)
) -> Iterator[tuple[int, dict[str, Any]]]:
    """:func:`read_items`; where the first is only a part of a conversation (a message: it has a field of ``marks`` and none of
    ``wholes``), the file is one: ``{name: [parts]}``.

    Raises UserError also where that one is larger than 16 MiB.
    """
    first = first_record(path)[1] or {}
    if not first.keys() & set(annotations) or first.keys() & set(wholes):
        yield from read_items(path)
        return
    if path.stat().st_size > MAX_LINE:
        raise UserError(f"{path} is one conversation of more than {MAX_LINE} bytes: write a file a conversation, or one a line")
    yield 1, {name: [record for _, record in read_items(path)]}


def first_record(path: Path) -> tuple[int, dict[str, Any] | None]:
    """The first JSON object of a file and its line: of its first line, or, of a JSON document, itself or the first of its list.

    (1, None) where there is none: a folder, a file that cannot be read, an object above 16 MiB, or anything but JSON.
    """
    try:
        if _opens(path) == "[":
            with suppress(UserError):
                return 1, next(_listed(path), None)
            return 1, None
        number, value, _ = _start(path)
    except (OSError, ValueError, RecursionError):
        return 1, None
    if isinstance(value, dict) and _is_list(value.get(_WRAPPED)):
        value = value[_WRAPPED][0]
    return number, value if isinstance(value, dict) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def read_document(path: Path) -> Any:
    """The content of a file that is one JSON document over several lines, or one list;
    None of JSON lines and of anything else."""
    try:
        _, value, whole = _start(path)
    except (OSError, ValueError, RecursionError):
        return None
    return value if whole or isinstance(value, list) else None


def read_json(path: Path, kind: type) -> Any:
    """The JSON document in a file. Raises UserError where it cannot be read, is not JSON, or not of ``kind``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise UserError(f"{path} must hold {_NAMES[kind]}")
    return value


def _start(path: Path) -> tuple[int, Any, bool]:
    """The line of the first that is not blank, its JSON value, or else that of the whole file, and whether it took the whole."""
    with path.open("rb") as file:
        number, line = 1, file.readline(MAX_LINE + 1)
        while line and not line.strip():
            number, line = number + 1, file.readline(MAX_LINE + 1)
        try:
            return number, _loads(line, f"{path}:{number}"), False
        except ValueError:
            if line.lstrip(b"\xef\xbb\xbf \t")[:1] not in (b"{", b"["):
                raise
        return number, _loads(line + file.read(MAX_LINE + 1 - len(line)), str(path)), True


def _loads(raw: bytes, place: str) -> Any:
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS:
        raise UserError(f"{place}: more than {MAX_BRACKETS:,} lists and objects in one line or document")
    return json.loads(raw.decode("utf-8-sig"))


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


@contextmanager
def at_place(place: str) -> Iterator[None]:
    """Turns every fault of a record into one sentence that starts with ``place``."""
    try:
        yield
    except UserError as error:
        raise error if str(error).startswith(place) else UserError(f"{place}: {error}") from error
    except KeyError as error:
        raise UserError(f"{place}: the field {error} is missing") from error
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{place}: {error}") from error


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
        record = _loads(line, place)
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise UserError(f"{place}: nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{place}: not JSON ({error.args[0].split(': line')[0]})") from error
    if not isinstance(record, dict):
        raise UserError(f"{place}: a line must hold one JSON object")
    return record


def parquet_columns(path: Path) -> set[str]:
    """Names of the columns of a Parquet file; none for anything else."""
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return set()
    import pyarrow
    import pyarrow.parquet

    try:
        return set(pyarrow.parquet.read_schema(path).names)
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError):
        return set()
