"""Files of other tools into one run: several, those of a folder, compressed or in UTF-16, and a second time into the same run."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import reason, refusal
from ramify.base.ids import json_hash
from ramify.trace.aliases import IMPORTED, Fields, Judged
from ramify.trace.connect import holds_run, take_lock
from ramify.trace.db import Run
from ramify.trace.foreign import end_attempt
from ramify.trace.formats import NoRecordError, UnknownFormatError, formats, pick_reader
from ramify.trace.node import (
    Annotation,
    AttemptRecord,
    Context,
    Finding,
    Insert,
    Node,
    Provenance,
    Score,
    TokenValues,
    content_id,
)
from ramify.trace.notes import BadRecordError, noting, skipped, skipping
from ramify.trace.outcomes import KIND, beside, has_reports, is_report, matching, reported

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".traj", ".eval", ".gz", ".har", ".db", ".sqlite")
"""Endings of the files that are read of a folder."""
_FREE, _RATIO, _PIECE = 16 << 20, 200, 1 << 20
"""A compressed file may unpack to so many bytes, and to so many times its size more."""
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_TOLD = "trajectory.json"
_AUTO = re.compile(r"chat-\d{6}")


@dataclass(frozen=True, slots=True)
class IgnoredPart:
    """How often something of a record did not describe an attempt, as the journal keeps it by name."""

    count: int
    what: str
    """What it is a part of, in the plural."""


REWARD, REPORT = "the reward beside the file", "the report of SWE-bench beside the file"


@dataclass
class Taken:
    """What was read into a run."""

    forms: list[str] = field(default_factory=list)
    """The format of each file that was read."""
    records: int = 0
    told: list[str] = field(default_factory=list)
    """Files that tell again what a trial's trajectory tells."""
    again: list[str] = field(default_factory=list)
    """Files that the run holds already."""
    unknown: list[str] = field(default_factory=list)
    """Files of a folder that are of no format known here."""
    ignored: dict[str, IgnoredPart] = field(default_factory=dict)
    """Fields that do not describe an attempt -> their number."""
    given: int = 0
    """Attempts that got an outcome of a file that the user named."""
    beside: Counter[str] = field(default_factory=Counter)
    """What lies beside a file -> attempts that got their outcome from it."""
    unmatched: list[str] = field(default_factory=list)
    """Names in that file that are of no attempt."""


@contextmanager
def readable(path: Path) -> Iterator[Path]:
    """The file itself, or a temporary one with its text: of a gzip file, of UTF-16 or UTF-32 with its mark, of standard input
    (``-``). Errors raised inside name ``path``. Raises UserError where it cannot be unpacked or decoded."""
    said = "standard input" if str(path) == "-" else str(path)
    with tempfile.TemporaryDirectory() as scratch:
        file = path
        try:
            if str(path) == "-":
                file = Path(scratch) / "stdin"
                with file.open("wb") as out:
                    shutil.copyfileobj(sys.stdin.buffer, out)
            if file.is_file():
                file = _decoded(_unpacked(file, Path(scratch), said), Path(scratch), said)
        except OSError as error:
            raise UserError(f"cannot read {said}: {reason(error)}") from error
        try:
            yield file
        except UserError as error:
            error.args = (str(error).replace(str(file), said),)
            raise


def _unpacked(file: Path, scratch: Path, said: str) -> Path:
    with file.open("rb") as source:
        if source.read(2) != b"\x1f\x8b":
            return file
    made = scratch / f"unpacked-{file.name.removesuffix('.gz')}"
    allowed, size = _FREE + _RATIO * file.stat().st_size, 0
    try:
        with gzip.open(file) as packed, made.open("wb") as out:
            while piece := packed.read(_PIECE):
                size += len(piece)
                if size > allowed:
                    raise UserError(f"{said}: it unpacks to over {_RATIO} times its size, which no log does")
                out.write(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{said} is a damaged gzip file: {error}") from error
    return made


def _decoded(file: Path, scratch: Path, said: str) -> Path:
    with file.open("rb") as source:
        start = source.read(4)
    encoding = next((name for mark, name in _BOMS if start.startswith(mark)), None)
    if encoding is None:
        return file
    made = scratch / f"decoded-{file.name}"
    try:
        with file.open(encoding=encoding, newline="") as text, made.open("w", encoding="utf-8", newline="") as out:
            shutil.copyfileobj(text, out, _PIECE)
    except UnicodeError as error:
        raise UserError(f"{said} begins as {encoding.upper()} and is none: {error}") from error
    return made


def found_in(path: Path, form: str | None = None, left_out: Sequence[Path] = ()) -> list[Path]:
    """The files to read of ``path``: itself, or, of a folder that no reader takes as one, those below it that may hold traces.

    Raises UserError where there is none."""
    if not path.is_dir():
        return [path]
    with noting():
        try:
            pick_reader(path, form)
            if form is None or form in formats(path):
                return [path]
        except UserError:
            pass
    skip = {one.resolve() for one in left_out}
    files = sorted(file for file in path.rglob("*") if _is_trace(file, path) and file.resolve() not in skip)
    if not files:
        raise UserError(f"cannot read {path}: it is a folder without a file that ends in {', '.join(SUFFIXES)}")
    return files


def _is_trace(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not hidden and file.suffix.lower() in SUFFIXES and file.name != "run.sqlite" and file.is_file()


def _is_told(file: Path, root: Path) -> bool:
    """Whether a file of a folder is an agent's own log of an attempt that a Harbor trial's ``agent/trajectory.json`` tells."""
    for folder in file.parents:
        if folder.name == "agent" and (folder / _TOLD).is_file() and file != root:
            return not (file.parent == folder and file.name.startswith("trajectory"))
        if folder == root:
            break
    return False


def take(
    paths: Sequence[Path],
    folder: Path,
    form: str | None = None,
    fields: Fields | None = None,
    outcomes: Mapping[str, Judged] | None = None,
    outcomes_file: Path | None = None,
) -> Taken:
    """Read files and folders into the run in ``folder``: a new one, or an imported one, to which they are added. All or nothing.

    A file that the run holds already adds nothing. ``outcomes``: task or file -> how its attempt ended. Raises UserError naming
    file and line or field."""
    taken, old = Taken(), holds_run(folder)
    if not old and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already: choose another folder")
    if old:
        with Run.open(folder) as run:
            if run.kind != "import":
                raise UserError(
                    f"{folder} exists already, and is a run of `ramify {run.kind}`: only an imported run takes further files"
                )
    if not old and not paths:
        raise UserError(f"{folder} is not a run, and no file to make one of is given")
    left_out = [outcomes_file] if outcomes_file is not None else []
    files: list[tuple[Path, Path]] = []
    for path in paths:
        for file in found_in(path, form, left_out):
            if form is None and _is_told(file, path):
                taken.told.append(_named(file, path))
            else:
                files.append((file, path))
    try:
        place = folder.resolve()
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise UserError(f"cannot make {folder}: {error}") from error
    scratch, lock = place.with_name(f".part-{place.name}"[:200]), None
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        lock = take_lock(scratch)  # another import may be making the same run
        for old_part in scratch.iterdir():  # left by an import that was killed
            if old_part.is_dir():
                shutil.rmtree(old_part)
        target = folder if old else scratch / "run"
        if old or len(files) > 1:
            _read_several(files, target, scratch, form, fields, taken)
        else:
            _read_one(*files[0], target, form, fields, taken)
        if outcomes is not None:
            with Run.open(target, write=True) as run, run.transaction():
                taken.given, taken.unmatched = matching(run, outcomes, str(outcomes_file))
        if not old:
            os.replace(target, folder)
    except OSError as error:
        raise refusal(f"cannot make {folder}", error) from error
    finally:
        if lock is not None:
            shutil.rmtree(scratch, ignore_errors=True)
            os.close(lock)
    return taken


def _read_one(file: Path, root: Path, target: Path, form: str | None, fields: Fields | None, taken: Taken) -> None:
    with readable(file) as real:
        _make(real, target, form, fields, taken)
        key = _digest(real)
    if taken.forms[-1] == "run":  # it came back exactly as it was written
        return
    with Run.open(target, write=True) as run, run.transaction():
        taken.ignored = run.memo("ignored", IgnoredPart)
        _remember(run, key, file, root, taken, run.ends())


def _read_several(
    files: Sequence[tuple[Path, Path]], target: Path, scratch: Path, form: str | None, fields: Fields | None, taken: Taken
) -> None:
    run = Run.open(target, write=True) if holds_run(target) else None
    try:
        with run.transaction() if run is not None else nullcontext():
            for number, (file, root) in enumerate(files):
                with readable(file) as real:
                    key = _digest(real)
                    if run is not None and run.journal(KIND, key):
                        taken.again.append(_named(file, root))
                        continue
                    try:
                        _make(real, scratch / str(number), form, fields, taken)
                    except UnknownFormatError as error:
                        if file == root:
                            if not isinstance(error, NoRecordError) or not skipped(error):
                                raise
                            continue
                        if not is_report(file):
                            taken.unknown.append(_named(file, root))
                        continue
                    except UserError as error:
                        if not skipped(error):
                            raise error if file == root else BadRecordError(str(error)) from error
                        continue
                with Run.open(scratch / str(number)) as source:
                    if run is not None and taken.forms[-1] == "run" and _held(source, run):
                        taken.again.append(_named(file, root))
                        continue
                    if run is None:
                        run = Run.create(target, source.config, kind="import")
                    moved = _merge(source, run, _named(file, root))
                    _remember(run, key, file, root, taken, [moved[end] for end in source.ends()])
                    for name, more in source.memo("ignored", IgnoredPart).items():
                        known = taken.ignored.get(name, IgnoredPart(0, more.what))
                        taken.ignored[name] = IgnoredPart(known.count + more.count, known.what)
                shutil.rmtree(scratch / str(number))
        if run is None:
            raise UserError(
                f"none of {len(files)} files is of a format known here: {', '.join(taken.unknown[:5]) or 'all are bad'}"
            )
    finally:
        if run is not None:
            run.close()


def _make(file: Path, folder: Path, form: str | None, fields: Fields | None, taken: Taken) -> None:
    with noting(skipping()):  # what is wrong with the first lines is counted as they are read
        reader = pick_reader(file, form)
    try:
        taken.records += reader.make(file, folder, fields)
    except UserError as error:
        with noting(skip_bad=True):
            fitting = formats(file) if form is not None else []
        if fitting and form not in fitting:
            raise UserError(f"{error}; by its content it is {' or '.join(fitting)}: leave out --from") from error
        raise
    taken.forms.append(reader.name)


def _named(file: Path, root: Path) -> str:
    if str(file) == "-":
        return "standard input"
    return str(file.relative_to(root)) if file != root else file.name


def _digest(path: Path) -> str:
    """The hash of a file's bytes, of a folder that of its files."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            found.update(f"{file.relative_to(path)}:{file.stat().st_size}:".encode())
            with file.open("rb") as source:
                while piece := source.read(_PIECE):
                    found.update(piece)
    return found.hexdigest()


def _remember(run: Run, key: str, file: Path, root: Path, taken: Taken, ends: Sequence[str]) -> None:
    """Note the file in the run, with its attempt where it holds one. Attempts get the outcomes that lie beside the file."""
    one = {"end": ends[0]} if len(ends) == 1 else {}
    run.log(KIND, key, {"file": _named(file, root), "form": taken.forms[-1], **one})
    judged = beside(file, root) if one else None
    if judged is None and not has_reports(file, root):
        return
    trees = [run.node(end).tree for end in ends]
    names = {tree: str(run.tree_info(tree).task.get("id", tree)) for tree, count in Counter(trees).items() if count == 1}
    told = reported(file, root, set(names.values())) if judged is None else {}
    for end, tree in zip(ends, trees, strict=True):
        outcome = judged or told.get(names.get(tree, ""))
        if outcome is not None and all(score.value is None for score in run.scores(node=end, scorer=IMPORTED)):
            end_attempt(run, run.node(end), outcome, next(iter(run.attempts(leaf=end)), None))
            taken.beside[REWARD if judged is not None else REPORT] += 1


def _held(source: Run, run: Run) -> bool:
    """Whether the run holds every node of an exported one."""
    there = set(run.columns(["id"])["id"])
    return all(node.id in there for node in source.each(Node))


def _merge(source: Run, run: Run, name: str) -> dict[str, str]:
    """Add everything of ``source`` to ``run``; returns the new id of each node. Samples stay samples of their own: those of a
    tree that is there already get further indices. ``name`` calls the tree of a file that holds one attempt and names no task."""
    trees, shift = dict[str, str](), dict[str, int]()
    infos = source.trees()
    for info in infos:
        own = _AUTO.fullmatch(info.name) and not info.task
        new = _free(run, name if len(infos) == 1 else info.name) if own else info.name
        if not own and run.has_tree(new) and run.tree_info(new) != info:
            new = f"{new}#{json_hash(dict(info.task))[:12]}"
        shift[info.name] = int(run.columns(["index"], tree=new)["index"].max(initial=-1)) + 1 if run.has_tree(new) else 0
        run.add_tree(new, info.task, info.group, info.data)
        trees[info.name] = new
    for provenance in source.each(Provenance):
        run.add(provenance)
    for blob in source.blobs.names():
        run.put_blob(source.get_blob(blob))
    moved: dict[str, str] = {}
    for node in source.each(Node):
        index = node.index + shift[node.tree] if node.index >= 0 else node.index
        context = None if node.context is None else _context(source.context(node.context), moved)
        if context is not None:
            run.add(context)
        made = replace(
            node,
            tree=trees[node.tree],
            parent=None if node.parent is None else moved[node.parent],
            index=index,
            context=None if context is None else context.hash,
        )
        made = replace(made, id=content_id(made))
        moved[node.id] = made.id
        run.add(made)
    for attempt in source.each(AttemptRecord):
        start = None if attempt.start is None else moved[attempt.start]
        index = attempt.index + shift[attempt.tree] if attempt.index >= 0 else attempt.index
        run.add(replace(attempt, leaf=moved[attempt.leaf], tree=trees[attempt.tree], start=start, index=index))
    for records in (source.each(TokenValues), source.each(Annotation), source.each(Score), source.each(Finding)):
        run.add(*(_moved(record, moved) for record in records))
    for entry in source.journal():
        run.log(entry.kind, entry.key, entry.payload)
    return moved


def _free(run: Run, name: str) -> str:
    """A name that no tree of the run has: that of a file without its endings, or the next number of a chat."""
    if not _AUTO.fullmatch(name):
        name = re.sub(rf"({'|'.join(map(re.escape, SUFFIXES))})+$", "", name)
    base, number = name, 1
    while run.has_tree(name):
        number += 1
        name = f"chat-{number:06d}" if _AUTO.fullmatch(base) else f"{base}-{number}"
    return name


def _context(context: Context, moved: Mapping[str, str]) -> Context:
    return Context(tuple(part if isinstance(part, Insert) else replace(part, node=moved[part.node]) for part in context.parts))


def _moved(record: Any, moved: Mapping[str, str]) -> Any:
    found = replace(record, node=moved.get(record.node, record.node))
    value = getattr(found, "value", None)
    if isinstance(value, Mapping) and value.get("node") in moved:
        found = replace(found, value={**value, "node": moved[value["node"]]})
    return found
