"""Protocols of trace readers and run writers, as used by ``ramify import`` and ``ramify export``."""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ramify.base import registry
from ramify.base.errors import UserError, nearest
from ramify.base.words import plural
from ramify.trace import chats, dot, foreign, jsonl, parquet
from ramify.trace.aliases import Fields
from ramify.trace.lines import first_record, parquet_columns, read_items
from ramify.trace.notes import noting, skipping
from ramify.trace.shapes import normal


class UnknownFormatError(UserError):
    """A file that can be read, and is of no format known here."""


class NoRecordError(UnknownFormatError):
    """A file that holds no record at all."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one format of another tool. Registered as ``register("reader", reader.name)(reader)``."""

    name: str
    help: str
    """One line: what it reads, and how that becomes nodes."""
    matches: Callable[[Path, Mapping[str, Any] | None], bool]
    """Given the file (or folder) and its first JSON record, None where it has none: whether this is the format. Must be cheap and
    never raise. The first record is the first line's object; of a file that is one JSON document, that object, or the first of
    its list."""
    read: Callable[..., int]
    """``read(path, folder)``: make a run in the folder from the file; returns how many records were read. Raises UserError naming
    file and line or field; leaves nothing in the folder then.
    Takes ``fields=`` (:class:`ramify.trace.aliases.Fields`) where it has any."""
    fields: tuple[str, ...] = ()
    """Which fields a user may name: "task", "reward", "answer"; none where the format defines them."""
    example: str = ""
    """A small file of the format, as text: what ``ramify check reader NAME`` reads, and breaks."""
    general: bool = False
    """Whether another reader that fits knows the file better."""

    def make(self, path: Path, folder: Path, fields: Fields | None = None) -> int:
        """``read``, with the fields that the user named. Raises UserError where the format takes no field names."""
        for what in {} if fields is None else fields.named:
            if what not in self.fields:
                raise UserError(
                    f"{path} is read as '{self.name}', a format that itself says where the {what} stands, "
                    f"so --{what}-field does not apply"
                )
        return self.read(path, folder, fields=fields) if fields is not None and fields.named else self.read(path, folder)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes a run for one tool. Registered as ``register("writer", writer.name)(writer)``."""

    name: str
    help: str
    write: Callable[..., int]
    """``write(run, out, **settings)``: writes the file (or folder) ``out`` whole or not at all; returns how many rows. Raises
    UserError; NeedsError where its tool is not installed. A setting that is not given is not passed;
    one that is comes as text."""
    suffixes: tuple[str, ...] = ()
    """File endings that choose this writer where none is named."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings it takes beyond the run and the file (name -> one line of help); each is an option of ``ramify export``."""


def readers() -> dict[str, Reader]:
    """Every known reader by name."""
    return {name: registry.get("reader", name) for name in registry.names("reader")}


def writers() -> dict[str, Writer]:
    """Every known writer by name."""
    return {name: registry.get("writer", name) for name in registry.names("writer")}


def pick_reader(path: Path, name: str | None = None) -> Reader:
    """The reader of that name, or the only one whose format the file has.

    Raises UserError: an unknown name, a file that cannot be read, holds no record, or is of no known format or of several.
    """
    if path.is_fifo():
        raise UserError(f"{path} is a pipe, and traces are read more than once: write them to a file first")
    known = readers()
    if name is not None:
        if name not in known:
            raise UserError(f"unknown format '{name}' ({nearest(name, known)})")
        return known[name]
    number, first = _first(path)
    fitting = _fitting(path, first)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UserError(f"{path} fits several formats: name one with --from ({', '.join(reader.name for reader in fitting)})")
    if first is None:
        if foreign := what_it_is(path):
            raise UnknownFormatError(f"{path} is {foreign}: traces are JSON, one object a line or a list, or Parquet rows of TRL")
        if next(read_items(path), None) is None:  # says what is wrong with the first line, where something is
            raise NoRecordError(f"{path} holds no record")
    shown = ", ".join(map(repr, list(first or {})[:8])) or "no key"
    near = nearest_readers(first or {}, known)
    like = (
        f"the nearest {'format is' if len(near) == 1 else 'formats are'} {' and '.join(map(str, near))}"
        if near
        else "no format is near"
    )
    lacks = f", and it lacks {near[0].missing()}" if near and near[0].lacks else ""
    raise UnknownFormatError(
        f"{path}:{number}: an object with the keys {shown}, which is of no format known here{_shape(path, first or {})}: "
        f"{like}{lacks}; name one with --from (`ramify import --help` lists them)"
    )


def _shape(path: Path, first: Mapping[str, Any]) -> str:
    """How many objects a file holds, and what the first fields of one are that hold more than a word, as a clause in brackets."""
    most = 1000
    with suppress(UserError), noting(skip_bad=True):
        objects = sum(1 for _ in islice(read_items(path), most + 1))
        many = [f"one of {f'more than {most:,}' if objects > most else objects}"] if objects > 1 else []
        inside = [f"{key!r} is {what}" for key, value in first.items() if (what := _inside(value))]
        said = ", ".join([*many, *inside[:3]])
        return f" ({said})" if said else ""
    return ""


def _inside(value: Any) -> str:
    """What a field holds that is a list or an object; "" for anything else."""
    if isinstance(value, Mapping):
        return f"an object of {', '.join(map(repr, list(value)[:4]))}" if value else "an empty object"
    if not isinstance(value, list):
        return ""
    keys = list(value[0])[:4] if value and isinstance(value[0], Mapping) else []
    return f"a list of {plural(len(value), 'object')} with {', '.join(map(repr, keys))}" if keys else f"a list of {len(value)}"


def _first(path: Path) -> tuple[int, dict[str, Any] | None]:
    """The first record, and where bad records are skipped the first that can be read, in the shape that readers know."""
    number, first = first_record(path)
    if first is None and skipping() and path.is_file() and not what_it_is(path):
        with suppress(UserError):
            number, first = next(read_items(path), (number, None))
    return number, None if first is None else normal(first)


_BYTES = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file with columns",
    b"\x89PNG": "an image",
}


def what_it_is(path: Path) -> str:
    """What a file is that holds no JSON: a table, an archive, text; "" where it is JSON, empty, or cannot be read."""
    if not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            start = file.read(1 << 12)
    except OSError:
        return ""
    for mark, name in _BYTES.items():
        if start.startswith(mark):
            return f"{name} ({', '.join(sorted(parquet_columns(path)))})" if mark == b"PAR1" else name
    if b"\0" in start:
        half = start[1::2].count(0) + start[::2].count(0) >= len(start) // 3
        return "UTF-16 without its mark, or bytes that are no text" if half else "bytes that are no text"
    lines = start.decode("utf-8", "replace").removeprefix("\ufeff").strip().splitlines()
    if not lines or (lines[0].lstrip()[:1] in ("{", "[", '"') and lines[0].lstrip()[:2] != '""' and not _is_table(lines)):
        return ""
    if _is_table(lines):
        return f"a table with the columns {', '.join(map(repr, next(csv.reader(lines[:1]))[:8]))} (CSV, not JSON)"
    return f"text that is not JSON at character 1: {lines[0][:40]!r}"


def _is_table(lines: list[str]) -> bool:
    rows = list(csv.reader(lines[:2]))
    named = all(re.fullmatch(r"[\w .-]{1,40}", cell) for cell in rows[0])
    return len(rows) == 2 and len(rows[0]) > 1 and named and not lines[1].startswith(("{", "["))


@dataclass(frozen=True, slots=True)
class NearFormat:
    """A format whose example a record is like."""

    name: str
    keys: tuple[str, ...]
    lacks: tuple[str, ...]
    """Keys of the example that the record does not have."""

    def __str__(self) -> str:
        """Its name, with the first keys of its example."""
        return f"{self.name} ({_some(self.keys)})"

    def missing(self) -> str:
        """The first keys of its example that are missing."""
        return f"{_some(self.lacks)} of {self.name}"


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join([*map(repr, names[:most]), *(["..."] if len(names) > most else [])])


_COMMON = frozenset(
    (
        *("id", "uuid", "name", "type", "kind", "title", "description", "model", "version", "timestamp", "time", "date"),
        *("created", "created_at", "updated_at", "usage", "cost", "duration", "metadata", "status", "error", "url", "user"),
        *("user_id", "index", "source", "role", "text", "content"),
    )
)
"""Keys that nearly every record has: they say nothing of its format."""


def nearest_readers(first: Mapping[str, Any], known: Mapping[str, Reader]) -> list[NearFormat]:
    """The formats whose example has keys most like those of a record, common ones not alone; none where nothing is near."""
    ranked = []
    telling = [key for key in map(str, first) if key not in _COMMON]
    for reader in known.values():
        keys = tuple(json.loads(reader.example.splitlines()[0])) if reader.example.startswith("{") else ()
        near = sum(bool(difflib.get_close_matches(key, telling, 1, 0.75)) for key in keys)
        if near:
            near += sum(key in first and key in _COMMON for key in keys)
            lacks = tuple(key for key in keys if key not in first)
            ranked.append((-near / len(keys), NearFormat(reader.name, keys, lacks)))
    return [near for _, near in sorted(ranked, key=lambda one: (one[0], str(one[1])))[:2]]


def formats(path: Path) -> list[str]:
    """Names of the formats that a file seems to have; raises nothing."""
    try:
        first = _first(path)[1]
        return [reader.name for reader in _fitting(path, first)]
    except UserError:
        return []


def _fitting(path: Path, first: Mapping[str, Any] | None) -> list[Reader]:
    """The readers whose format a file has; a general one only where no other has it."""
    fitting = [reader for reader in readers().values() if _fits(reader, path, first)]
    return [reader for reader in fitting if not reader.general] or fitting


def _fits(reader: Reader, path: Path, first: Mapping[str, Any] | None) -> bool:
    try:
        return reader.matches(path, first)
    except Exception as error:  # a failing third-party reader must not silently block the others
        raise UserError(
            f"the reader '{reader.name}' failed on {path} ({type(error).__name__}: {error}): name a format with --from"
        ) from error


def _is_chat(path: Path, first: Mapping[str, Any] | None) -> bool:
    return (
        first is not None
        and chats.form_of(first) is None
        and (
            not isinstance(first.get("messages", ""), str)
            or {"request", "response"} <= first.keys()
            or {"role", "content"} <= first.keys()
        )
    )


def _is_step(path: Path, first: Mapping[str, Any] | None) -> bool:
    others = {"messages", "conversations", "items", "prompt", "completion", "chosen", "rejected", "request", "role"}
    several = first is not None and isinstance(first.get("steps"), list)  # the steps of a whole attempt
    does = {"step", "action", "obs", "anchor"}
    does |= {*first} if first is not None and len(first) == 1 else set()
    named = first is not None and bool({"task_id", "attempt_id"} & first.keys() and does & first.keys())
    return first is not None and named and not several and not others & first.keys()


for _reader in (
    Reader(
        "run",
        "JSON lines of `ramify export`: the whole run, lossless.",
        lambda path, first: first is not None and first.get("kind") == "run",
        jsonl.read_exported,
    ),
    Reader(
        "chats",
        "Messages in the form of OpenAI's, one conversation a line: text-only nodes.",
        _is_chat,
        chats.read_chats,
        ("task", "reward", "answer"),
        '{"task": "sum", "messages": [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": "3"}], "reward": '
        "1.0}\n",
        general=True,
    ),
    Reader(
        "steps",
        "Step records, one a line: an observation and an action each.",
        _is_step,
        foreign.read_steps,
        ("task", "reward"),
        '{"task_id": "a", "attempt_id": 1, "step": 0, "obs": "hall", "action": "go", "reward": 1.0, "done": true}\n',
    ),
):
    registry.register("reader", _reader.name)(_reader)

for _writer in (
    Writer("jsonl", "everything, for `ramify import`", jsonl.write_lines, (".jsonl",)),
    Writer(
        "parquet",
        "one kind of record, as a table",
        parquet.write_parquet,
        (".parquet",),
        {
            "records": "the kind of record: nodes (default), attempts, token_values, annotations, scores, findings, results, "
            "trees, provenances, contexts, journal"
        },
    ),
    Writer(
        "dot", "one tree, as Graphviz text", dot.write_dot, (".dot", ".gv"), {"tree": "the tree; needed where there are several"}
    ),
):
    registry.register("writer", _writer.name)(_writer)
