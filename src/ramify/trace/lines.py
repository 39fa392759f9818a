"""Reading JSON lines written by third parties: one line at a time, every fault one sentence with file and line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.trace.notes import BadRecordError, skipped
from ramify.trace.shapes import normal

T = TypeVar("T")

#: A longer line is refused: parsing it would need several times its size of memory.
MAX_LINE = 1 << 24
#: So are more lists and objects in one line: empty ones take thirty times their size.
MAX_BRACKETS = 1_000_000
_PIECE = 1 << 16
_WRAPPED = "simulations"
"""The field in which a results file of tau2-bench has its attempts."""
_SPACE = re.compile(r"[ \t\r\n]*")
_QUOTE = '"'


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
                    if number == 1 and (fault := _fault_of_document(path)):
                        raise UserError(f"{path} is one JSON document over several lines, and {fault}") from error
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
    """(number, object) of JSON lines, of one JSON list, or of the one JSON object that the file is; of an object of conversations
    by name, of each. Memory is that of one object.

    The number is the line, of a list the item's place in it. Raises UserError naming file and place, as :func:`read_lines` does.
    """
    try:
        if _opens(path) == "[":
            yield from enumerate(_listed(path), 1)
            return
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    if is_large(path) and _first_line(path) <= MAX_LINE:
        raise UserError(f"{path} is one JSON object of more than {MAX_LINE} bytes: write its records one a line")
    document = read_document(path)
    for number, record in [(1, document)] if isinstance(document, dict) else read_lines(path):
        inside = record.get(_WRAPPED) or _by_name(record)
        yield from enumerate(inside, 1) if _is_list(inside) else [(number, record)]


def _by_name(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversations of an object that holds nothing but them by name, each with its name as ``id``; none of any other."""
    if len(document) < 2 or not all(isinstance(value, dict) for value in document.values()):
        return []
    inside = [normal({"id": name, **value}) for name, value in document.items()]
    return inside if all(isinstance(record.get("messages"), list) for record in inside) else []


def _first_line(path: Path) -> int:
    """The length of a file's first line, up to one that is too long."""
    with path.open("rb") as file:
        return len(file.readline(MAX_LINE + 1))


def _opens(path: Path) -> str:
    """The first character that is not space; "" where there is none, or a byte that begins no JSON."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE).removeprefix(b"\xef\xbb\xbf"):
            if piece.strip():
                return piece.strip()[:1].decode("latin-1")
    return ""


def _listed(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of the JSON list that the file is; memory holds one of them."""
    with _scanned(path) as scan:
        scan.next()
        scan.take()
        for _, value in scan.items("item {} of the list", "the list", talks=True):
            yield value
        scan.close("the list")


def read_members(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(name, number, value) of each member of the JSON object that the file is; of a list of objects each of them, numbered
    from 1. Any other value, also an empty list, has number 0. Memory is that of one value.

    Raises UserError naming file and member: where the file is anything else, or one value is longer than 16 MiB."""
    with _scanned(path) as scan:
        for name in scan.members():
            if scan.next() == "[" and scan.after() == "{":
                scan.take()
                for number, value in scan.items(f"item {{}} of '{name}'", f"'{name}'"):
                    yield name, number, value
            else:
                yield name, 0, scan.value(f"{path}: '{name}'")
        scan.close("the object")


def read_within(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of the list that stands under ``keys``, one inside the other, of the one JSON object that a file is.
    Memory is that of one object, or of the largest value beside the list.

    Raises UserError naming file and item, also where there is no such list."""
    try:
        with _scanned(path) as scan:
            yield from scan.within(keys, f"{path}: it is not one JSON object with a list under '{'.'.join(keys)}'")
            scan.close("the document")
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


@contextmanager
def _scanned(path: Path) -> Iterator[_Scan]:
    """A file whose values are read one by one. Raises UserError naming the file."""
    with path.open(encoding="utf-8-sig") as file:
        scan = _Scan(file, path)
        try:
            yield scan
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{scan.number}: item {scan.number} of the list, or one near it: not UTF-8") from error
        except RecursionError as error:
            raise UserError(f"{path}:{scan.number}: item {scan.number} of the list: nested too deeply") from error


class _Scan:
    """Reads the values of a JSON file one after another; memory holds one of them and a piece of the file."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self.file, self.path = file, path
        self.text, self.at, self.number = "", 0, 1

    def next(self) -> str:
        """The next character that is not space, which stays there; "" at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None
            self.at = space.end()
            if self.at < len(self.text) or not self._more(_PIECE):
                return self.text[self.at : self.at + 1]

    def take(self) -> None:
        """Pass over the next character."""
        self.at += 1

    def after(self) -> str:
        """The character after the next one that is not space either."""
        self.at += 1
        mark = self.next()
        self.text, self.at = "[" + self.text[self.at :], 0
        return mark

    def value(self, spot: str, opens: str = "") -> Any:
        """The value that starts here, with the character ``opens`` where one is given."""
        if opens and self.next() != opens:
            raise UserError(f"{spot} is not {'text' if opens == _QUOTE else 'an object'}")
        self.next()
        decode, size, fault = json.JSONDecoder().raw_decode, _PIECE, ""
        while True:
            if len(self.text) - self.at > MAX_BRACKETS and (
                self.text.count("[", self.at) + self.text.count("{", self.at) > MAX_BRACKETS
            ):
                raise UserError(f"{spot}: more than {MAX_BRACKETS:,} lists and objects in one line or document")
            try:
                value, end = decode(self.text, self.at)
                if end < len(self.text) or isinstance(value, (dict, list, str)) or not self._more(size):
                    self.at = end
                    return value
                continue  # a number that may go on
            except ValueError as error:  # broken, or cut where the piece ends: reading more decides
                fault = f"not JSON ({error.args[0].split(': line')[0]})"
            if len(self.text) - self.at > MAX_LINE:
                raise UserError(f"{spot}: it is longer than {MAX_LINE} characters")
            if not self._more(min(size, MAX_LINE + 1 - len(self.text) + self.at)):
                raise UserError(f"{spot}: {fault}")
            size *= 2

    def members(self) -> Iterator[str]:
        """The name of each member of the object that starts here; its value stands next, and must be read before going on."""
        if self.next() != "{":
            raise UserError(f"{self.path} is not one JSON object")
        self.take()
        first = True
        while (mark := self.next()) != "}":
            if not first and mark != ",":
                raise UserError(f"{self.path} is not JSON: a comma is missing after a member of the object")
            if not first:
                self.take()
            name, first = self.value(f"{self.path}: a name in the object", _QUOTE), False
            if self.next() != ":":
                raise UserError(f"{self.path}: '{name}' is followed by no value")
            self.take()
            yield name
        self.take()

    def within(self, keys: Sequence[str], fault: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, object) of the list under ``keys``. Raises UserError with ``fault`` where there is none."""
        there = False
        if self.next() != "{":
            raise UserError(fault)
        for name in self.members():
            if name != keys[0] or there:
                self.value(f"{self.path}: '{name}'")
                continue
            there = True
            if len(keys) > 1:
                yield from self.within(keys[1:], fault)
            elif self.next() != "[":
                raise UserError(fault)
            else:
                self.take()
                yield from self.items("item {} of the list", "the list")
        if not there:
            raise UserError(fault)

    def items(self, called: str, inside: str, talks: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, object) of the list whose bracket was taken, up to its end; with ``talks``, an item that is a list of messages
        is the conversation of these."""
        self.number = 1
        while True:
            spot = f"{self.path}:{self.number}: {called.format(self.number)}"
            mark = self.next()
            comma = mark == ","
            if comma:
                self.take()
                mark = self.next()
            if not mark:
                raise UserError(f"{spot}: it ends inside {inside}")
            if mark == "]" and not comma:
                self.take()
                return
            if comma != (self.number > 1):
                raise UserError(f"{spot} is not an object")
            if talks and mark == "[" and self.after() == "{":
                messages = self.value(spot)
                if not all(isinstance(message, dict) and "role" in message for message in messages):
                    raise UserError(f"{spot} is a list, and not one of messages: each has a 'role'")
                yield self.number, {"messages": messages}
            else:
                yield self.number, self.value(spot, "{")
            self.number += 1

    def close(self, what: str) -> None:
        """Raises UserError where more than space follows."""
        if self.next():
            raise UserError(f"{self.path}: text follows {what}")

    def _more(self, size: int) -> bool:
        piece = self.file.read(size)
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)


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
        number, value = 1, _head(path)
    if isinstance(value, dict) and _is_list(inside := value.get(_WRAPPED) or _by_name(value)):
        value = inside[0]
    return number, value if isinstance(value, dict) else None


def is_large(path: Path) -> bool:
    """Whether a file is one JSON object of more than 16 MiB, over as many lines as it has."""
    try:
        if not path.is_file() or path.stat().st_size <= MAX_LINE or _opens(path) != "{":
            return False
        _start(path)
    except (OSError, ValueError, RecursionError):
        return True
    return False


def _head(path: Path) -> dict[str, Any] | None:
    """A large object with the first item of each of its lists; None where the file is none."""
    head: dict[str, Any] = {}
    try:
        for name, number, value in read_members(path) if is_large(path) else ():
            if number <= 1:
                head[name] = [value] if number else value
            if name == _WRAPPED:
                break
    except (OSError, UserError):
        return None
    return head or None


def read_documents(path: Path, slim: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """:func:`read_items`, also of one object of more than 16 MiB: it is read item by item, each as ``slim(list, item)`` leaves
    it."""
    if not is_large(path):
        yield from read_items(path)
        return
    record: dict[str, Any] = {}
    for name, number, value in read_members(path):
        if number:
            record.setdefault(name, []).append(slim(name, value))
        else:
            record[name] = value
    yield 1, record


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


def _fault_of_document(path: Path) -> str:
    """What is wrong with a file that begins as one JSON document over several lines; "" where its lines stand for themselves."""
    if is_large(path):
        return ""
    with path.open("rb") as file:
        first, second = file.readline(), file.readline()
        whole = first + second + file.read()
    try:
        if second and _goes_on(first) and not _is_json(second):
            _loads(whole, str(path))
    except json.JSONDecodeError as error:
        text = error.doc
        if error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()):
            return f"it ends in the middle, in line {text.rstrip().count(chr(10)) + 1}: the file is cut off"
        return f"line {error.lineno} is not JSON ({error.msg})"
    except (UserError, ValueError, RecursionError):  # as of a number with too many digits: the line itself says it
        pass
    return ""


def _is_json(line: bytes) -> bool:
    try:
        _loads(line, "")
    except (UserError, ValueError, RecursionError):
        return False
    return True


def _goes_on(line: bytes) -> bool:
    """Whether a line is the beginning of an object that ends on another."""
    try:
        _loads(line, "")
    except json.JSONDecodeError as error:
        return error.doc.lstrip().startswith("{") and error.pos >= len(error.doc.rstrip())
    return False


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
        if os.fstat(file.fileno()).st_size > MAX_LINE:  # what is cut off is not parsed
            raise ValueError("longer than is read at once")
        return number, _loads(line + file.read(), str(path)), True


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
