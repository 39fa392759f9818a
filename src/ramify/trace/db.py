"""The record store: a run is a folder with one SQLite file and content-addressed blobs alongside it.

``run.sqlite`` is in WAL mode: one process writes (it holds ``run.lock``), any number may read meanwhile. Records are inserted
into an open transaction as they come and are durable at the next commit, which happens by itself every ``BATCH`` records.

What is promised. A committed record survives a kill of the process at any instant, and every commit is whole or not at all. The
trade-off: ``synchronous=NORMAL`` does not wait for the disk at each commit, so a power cut or a crash of the operating system may
lose the last commits (never half of one, never the file); waiting would cost a disk flush for each. The lock is an advisory
``flock``: it does not hold on network file systems that ignore it.

Nothing is cached but provenances (a handful) and where the last node stands, so memory does not grow with the run. A Run is
used by one thread at a time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path as FilePath
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np

from ramify.base import codec, notebook
from ramify.base.errors import RamifyError, UserError, nearest
from ramify.base.files import whole_file
from ramify.base.ids import stable_hash
from ramify.base.version import VERSION
from ramify.trace import schema
from ramify.trace.blobs import Blobs
from ramify.trace.columns import read_columns
from ramify.trace.connect import BLOBS, FILE, UNSTORABLE, check, connect, holds_run, refuse_links, refused, remove, take_lock
from ramify.trace.context import Shown, shown
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
from ramify.trace.path import Path
from ramify.trace.tree import Tree, check_offset

OWNER = "owner"
"""Key in the table ``meta``: who made the run, as a hash; empty where it was imported. No export holds it."""
JUDGE = "judge of a slot"
"""What the journal calls an entry of :meth:`Run.replace_judge`."""
_LISTED = "(SELECT value FROM json_each(?))"
BATCH = 1000
Record = Node | AttemptRecord | TokenValues | Annotation | Score | Finding | KeptResult | Context | Provenance


_Place = tuple[int, int, int, str]
"""Where a node is: its number, its tree's, its length, its tree's name."""
T = TypeVar("T")
_R = TypeVar(
    "_R", Node, AttemptRecord, TokenValues, Annotation, Score, Finding, KeptResult, Context, Provenance, TreeInfo, JournalEntry
)
#: How each kind is read: its query, the column of its order of writing, and how a row becomes a record.
_EACH: dict[type, tuple[str, str, Any]] = {
    Node: (schema.SELECT_NODE, "n.seq", schema.row_node),
    AttemptRecord: (schema.SELECT_ATTEMPT, "s.seq", schema.row_attempt),
    TokenValues: (schema.SELECT_TOKEN_VALUES, "s.seq", schema.row_token_values),
    Annotation: (schema.SELECT_ANNOTATION, "s.seq", schema.row_annotation),
    Score: (schema.SELECT_SCORE, "s.node, s.scorer, s.unit, j.judges", schema.row_score),
    Finding: (schema.SELECT_FINDING, "s.seq", schema.row_finding),
    KeptResult: ("SELECT maker, result, sections FROM results s ", "s.seq", schema.row_result),
    Context: ("SELECT body, hash FROM contexts s ", "s.seq", schema.row_context),
    Provenance: ("SELECT body, hash FROM provenances s ", "s.seq", schema.row_provenance),
    TreeInfo: (
        "SELECT name, task, grp, data FROM trees s ",
        "s.seq",
        lambda row: TreeInfo(schema.name(row[0]), schema.from_object(row[1]), schema.name(row[2]), schema.from_object(row[3])),
    ),
    JournalEntry: (
        "SELECT kind, key, payload FROM journal s ",
        "s.seq",
        lambda row: JournalEntry(schema.name(row[0]), schema.name(row[1]), schema.from_json(row[2])),
    ),
}

KINDS: tuple[type, ...] = tuple(_EACH)
"""Every kind of record that a run holds."""


@cache
def this_user() -> str:
    """A hash of this machine's id and this user's number."""
    machine = b""
    with suppress(OSError):
        machine = FilePath("/etc/machine-id").read_bytes().strip()
    return stable_hash("owner", machine or os.uname().nodename.encode(), os.getuid())


def _make(file: FilePath, meta: Iterable[tuple[str, str | bytes]]) -> None:
    """Write the database of a new run. A file of that name is a run from its first instant:
    the caller moves it there when it is whole."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(schema.TABLES)
        db.executemany("INSERT INTO meta VALUES (?,?)", meta)
        db.execute("COMMIT")


class Run:
    """An open run. Use :meth:`create` or :meth:`open`, as a context manager or with :meth:`close`, which commits."""

    def __init__(self, path: FilePath, db: sqlite3.Connection, lock: int | None, new: bool = False) -> None:
        self.folder = path
        self.blobs = Blobs(path / BLOBS)
        self._db = db
        self._lock = lock
        self._pending = 0
        self._grouped = False
        self._new = new
        self._broken = ""
        self._provenances: dict[str, int] = {}
        self._last: tuple[str, _Place] | None = None
        self.meta: dict[str, Any] = {"schema": next(int(row[0]) for row in self._rows("PRAGMA user_version"))}
        self.meta |= {key: schema.from_json(value) for key, value in self._rows("SELECT key, value FROM meta")}
        self.foreign: bool = self.meta.pop(OWNER, None) != this_user()
        """Whether its settings are untrusted: it was imported,
        made by another user or on another machine, or its origin is unknown."""
        self.kind: str = schema.name(self.meta.get("verb", ""))
        """The verb that made it, as typed (``rollout``, ``governance bench``); empty where unknown."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings it was made with; empty where it stores none."""
        config: dict[str, Any] = self.meta.get("config", {})
        return config if isinstance(config, dict) else {}

    @property
    def parts(self) -> dict[str, Any]:
        """Hashes of what its settings named when it began (weights, tasks); empty where it stores none."""
        parts = self.meta.get("parts")
        return parts if isinstance(parts, dict) else {}

    @classmethod
    def begin(
        cls,
        path: FilePath | str,
        kind: str,
        decides: Mapping[str, Any],
        free: Mapping[str, Any] | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> Run:
        """The run in the folder ``path``, open for writing: a new one, or the one that the same call began, which continues.

        ``kind`` is the verb (see :attr:`kind`). ``decides`` are the settings that decide what the run holds, ``free`` those that
        do not; ``parts`` is what the settings name, as hashes: weights, tasks. A run continues only where ``kind``, ``decides``
        and ``parts`` are those it began with; of ``free`` it keeps the newest. What it does not know it takes over. Every record
        that was committed is there; what an interrupted verb has done it finds in the journal.

        Raises UserError naming what differs, and as :meth:`create` and :meth:`open`.
        """
        settings, parts, free = {**decides, **(free or {})}, dict(parts or {}), dict(free or {})
        if not holds_run(FilePath(path)):
            return cls.create(path, settings, kind=kind, parts=parts)
        run = cls.open(path, write=True)
        try:
            run._continue(kind, settings, frozenset(free), parts)
        except BaseException:
            run.close()
            raise
        return run

    def _continue(self, kind: str, settings: dict[str, Any], free: frozenset[str], parts: dict[str, Any]) -> None:
        if self.kind != kind:
            raise UserError(f"{self.folder} was not made by `ramify {kind}`: choose another folder")
        changed = [
            difference
            for then, now in ((self.config, settings), (self.parts, parts))
            for name, value in now.items()
            if name not in free and name in then
            for difference in _differences(name, then[name], schema.from_json(schema.to_json(value, name)))
        ]
        if changed:
            raise UserError(f"{self.folder} cannot continue, it began with other settings: {'; '.join(changed)}")
        now = {"config": {**self.config, **settings}, "parts": {**self.parts, **parts}, "verb": kind}
        for key, value in now.items():
            if value and self.meta.get(key) != value:
                self._write("INSERT OR REPLACE INTO meta VALUES (?,?)", (key, schema.to_json(value, f"the {key} of the run")))
                self.meta[key] = value
        self.commit()

    @classmethod
    def create(
        cls,
        path: FilePath | str,
        config: Mapping[str, Any],
        trusted: bool = True,
        kind: str = "",
        parts: Mapping[str, Any] | None = None,
    ) -> Run:
        """Make a new run in the folder ``path`` and open it for writing; ``config`` is the first thing stored.

        ``trusted`` is False where ``config`` was read from a file: see ``foreign``.
        ``kind`` and ``parts`` are those of :meth:`begin`.

        Raises UserError when the folder holds a run already, when another process writes there, or when it cannot be made.
        """
        folder = FilePath(path)
        meta = {"ramify": VERSION, "config": dict(config), OWNER: this_user() if trusted else ""}
        meta |= {key: value for key, value in (("verb", kind), ("parts", dict(parts or {}))) if value}
        rows = [(key, schema.to_json(value, f"the {key} of the run")) for key, value in meta.items()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            refuse_links(folder)
            lock = take_lock(folder)
        except (OSError, ValueError) as error:
            raise refused(f"cannot make a run in {folder}", error) from error
        db = None
        try:
            if holds_run(folder):
                raise UserError(f"{folder} holds a run already: resume it, or choose another folder")
            remove(folder / FILE)  # an empty one, and what lies alongside it
            with whole_file(folder / FILE) as part:
                _make(part, rows)
            db = connect(folder / FILE, write=True)
            db.execute("PRAGMA journal_mode = WAL")
            return cls(folder, db, lock, new=True)
        except BaseException as error:  # an interrupt, too: a notebook's kernel goes on, and would hold the lock
            if db is not None:
                db.close()
                remove(folder / FILE)
            os.close(lock)
            if isinstance(error, sqlite3.Error):
                raise refused(f"cannot make a run in {folder}", error) from error
            raise

    @classmethod
    def open(cls, path: FilePath | str, write: bool = False) -> Run:
        """Open the run in the folder ``path``.

        Raises UserError when there is none, when its file is damaged or of another schema, or, for writing, when another
        process writes to it.
        """
        folder = FilePath(path)
        refuse_links(folder)
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} is not a run: it holds no {FILE}")
        if not os.access(folder / FILE, os.R_OK):
            raise UserError(f"cannot open the run {folder}: no permission to read {FILE}")
        try:
            lock = take_lock(folder) if write else None
        except OSError as error:
            raise refused(f"cannot open the run {folder} for writing", error) from error
        db = None
        try:
            db = connect(folder / FILE, write)
            check(db, folder / FILE)
            if write:
                db.execute("PRAGMA journal_mode = WAL")  # a kill may have come between the making of the file and this
            return cls(folder, db, lock)
        except BaseException as error:
            if db is not None:
                db.close()
            if lock is not None:
                os.close(lock)
            damage = (RamifyError, sqlite3.Error, UnicodeError)  # SQLite puts damaged text into its messages
            if isinstance(error, damage) and not isinstance(error, UserError):
                raise refused(f"{folder / FILE} is not a run, or it is damaged", error) from error
            raise

    def close(self) -> None:
        """Commit and close; closing twice is fine."""
        try:
            if self._lock is not None and not self._broken:
                self.commit()
        finally:
            self._db.close()
            if self._lock is not None:
                os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # a run left without a node by a mistake is removed: the corrected command would be refused as one with other settings
        useless = self._new and isinstance(error, UserError) and not len(self)
        self.close()
        if useless:
            remove(self.folder / FILE)

    # Writing

    def add_tree(self, name: str, task: Mapping[str, Any], group: str = "", data: Mapping[str, Any] | None = None) -> None:
        """Add a tree, to which nodes may be added. Adding the same tree again changes nothing.

        Raises UserError when a tree of that name has another task.
        """
        row = (
            name,
            group,
            schema.to_json(task, f"the task of tree '{name}'"),
            schema.to_json(data or {}, f"the data of tree '{name}'"),
        )
        known = self._row("SELECT name, grp, task, data FROM trees WHERE name = ?", name)
        if known is None:
            self._write("INSERT INTO trees VALUES (NULL,?,?,?,?)", row)
            self._count(1)
        elif known != row:
            raise UserError(f"tree '{name}' is in {self.folder} already, with another task, group or data")

    def add(self, *records: Record) -> None:
        """Add records. What is there already stays as it is; per-token values, an annotation, score or finding of the same maker
        at the same position, and an attempt of the same start, purpose, index and provenance, and a kept result of
        the same maker are replaced.

        A node's tree, parent, context and provenance, and the node any other record points at, must have been added before.
        Raises UserError when one is missing, when lengths or offsets do not fit, or when a value cannot be stored; records before
        the bad one stay added (see :meth:`transaction`). Raises RamifyError when the disk refuses.
        """
        for record in records:
            if isinstance(record, Node):
                self._add_node(record)
            elif isinstance(record, AttemptRecord):
                self._add_attempt(record)
            elif isinstance(record, TokenValues):
                self._write(
                    schema.INSERT_TOKEN_VALUES, schema.token_values_row(record, *self._target(record.node, "values", record.name))
                )
            elif isinstance(record, Annotation):
                self._write(
                    schema.INSERT_ANNOTATION, schema.annotation_row(record, *self._target(record.node, "annotation", record.name))
                )
            elif isinstance(record, Score):
                seq, _ = self._target(record.node, "score", record.scorer)
                self._write(schema.INSERT_SCORE, schema.score_row(record, seq, self._judge_set(record.judges)))
            elif isinstance(record, Finding):
                target = (None, 0) if record.node is None else self._target(record.node, "finding", record.name)
                self._write(schema.INSERT_FINDING, schema.finding_row(record, *target))
            elif isinstance(record, KeptResult):
                self._write(schema.INSERT_RESULT, schema.result_row(record))
            else:
                table = "contexts" if isinstance(record, Context) else "provenances"
                body = schema.to_json(record.to_json(), f"a record of {table}")
                self._write(f"INSERT INTO {table} VALUES (NULL,?,?) ON CONFLICT (hash) DO NOTHING", (record.hash, body))
        self._count(len(records))

    def conclude(self, maker: str, findings: Iterable[Finding]) -> None:
        """Replace the findings of ``maker``, all or none. Raises as :meth:`add`."""
        with self.transaction():
            self._write("DELETE FROM findings WHERE maker = ?", (maker,))
            self.add(*findings)

    def log(self, kind: str, key: str, payload: Any = None) -> bool:
        """Record in the journal that ``key`` of ``kind`` is done. The first payload, JSON or a record, stays; False when it was
        recorded already."""
        payload = codec.to_json(payload) if is_dataclass(payload) else payload
        body = schema.to_json(payload, f"the payload of journal entry {kind} '{key}'")
        cursor = self._write("INSERT INTO journal VALUES (NULL,?,?,?) ON CONFLICT (kind, key) DO NOTHING", (kind, key, body))
        self._count(1)
        return cursor.rowcount > 0

    def once(
        self,
        kind: str,
        key: str,
        of: type[T],
        make: Callable[[], tuple[T, Iterable[Record]]],
        also: Callable[[T], object] = lambda value: None,
    ) -> T:
        """The journal as memo: what it holds as ``key`` of ``kind``, read as ``of``; else what ``make`` returns, which is
        committed whole together with its records and with what ``also`` does, for what no record says (a judge that is replaced).

        Raises as :meth:`add`, and UserError where what is held is not an ``of``."""
        held = self._held(kind, key, of)
        return self._make(kind, key, *make(), also) if held is None else held[0]

    async def once_awaited(
        self,
        kind: str,
        key: str,
        of: type[T],
        make: Callable[[], Awaitable[tuple[T, Iterable[Record]]]],
        also: Callable[[T], object] = lambda value: None,
    ) -> T:
        """:meth:`once` of what must be awaited."""
        held = self._held(kind, key, of)
        return self._make(kind, key, *await make(), also) if held is None else held[0]

    def memo(self, kind: str, of: type[T]) -> dict[str, T]:
        """What the journal holds of one ``kind``: by key in order, read as ``of``. Raises UserError where an entry is none."""
        many: Any = dict.__class_getitem__((str, of))  # read at once, which takes two thirds of the time
        entries = self.journal(kind)
        with suppress(UserError):
            payloads: dict[str, T] = codec.from_json(many, {entry.key: entry.payload for entry in entries})
            return payloads
        return {entry.key: self._read(kind, entry.key, of, entry.payload) for entry in entries}  # one by one says which is none

    def _held(self, kind: str, key: str, of: type[T]) -> tuple[T] | None:
        known = self.journal(kind, key)
        return (self._read(kind, key, of, known[0].payload),) if known else None

    def _read(self, kind: str, key: str, of: type[T], payload: Any) -> T:
        return codec.from_json(of, payload, f"{self.folder}, {kind} '{key}'")

    def _make(self, kind: str, key: str, value: T, records: Iterable[Record], also: Callable[[T], object]) -> T:
        with self.transaction():
            self.add(*records)
            self.log(kind, key, codec.to_json(value))
            also(value)
        return value

    def commit(self) -> None:
        """Make everything added so far durable, whole or not at all.
        Inside :meth:`transaction` it waits for the end of the group."""
        if self._grouped:
            return
        if self._db.in_transaction:
            self._write("COMMIT", begin=False)
        self._pending = 0

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Everything added inside is committed together at the end, or rolled back on an exception.
        A nested group joins the outer.

        Do not await inside: what other tasks add meanwhile would join the group.
        """
        if self._grouped:
            yield self
            return
        pending = self._pending
        self._write("SAVEPOINT grouped")
        self._grouped = True
        try:
            yield self
        except BaseException:
            self._grouped = False
            if not self._broken:
                self._write("ROLLBACK TO grouped")
                self._write("RELEASE grouped")
                self._pending = pending
                self._provenances.clear()
                self._last = None
            raise
        self._grouped = False
        self._write("RELEASE grouped")
        self.commit()

    def put_blob(self, data: bytes | bytearray) -> str:
        """Store bytes at once and return their hash; a node refers to them as ``blob:HASH``."""
        self._require_lock()
        return self.blobs.put(data)

    def drop_blob(self, name: str) -> None:
        """Remove a blob that a newer one supersedes (a checkpoint). What refers to it cannot be read any more."""
        self._require_lock()
        self.blobs.drop(name)

    def get_blob(self, name: str) -> bytes:
        """The bytes of a blob. Raises UserError when there is none."""
        return self.blobs.get(name)

    def erase_judge(self, judge: str) -> int:
        """Erase every score that depended on ``judge`` in any slot, and nothing else. Returns how many there were."""
        sql = "DELETE FROM scores WHERE judge_set IN (SELECT judge_set FROM score_judges WHERE judge = ?)"
        erased = self._write(sql, (judge,)).rowcount
        self.commit()
        return erased

    def replace_judge(self, slot: str, judge: str, about: Mapping[str, Any] | None = None) -> int:
        """Make ``judge`` (its hash) the one whose scores count in ``slot``. Returns how many scores counted and no longer do.

        One entry of the journal, whatever the run holds: whether a score counts is computed when it is read. Those that depended
        on another judge of the slot stay stored, and count again where their judge comes back; scores that do not depend on the
        slot are untouched. The judge that is there already changes nothing; "" is not a judge:
        then nothing that depends on the slot counts.
        """
        now = self.incumbents()
        if now.get(slot) == judge:
            return 0
        before = self._erased()
        with self.transaction():
            number = sum(1 for replaced_slot, _ in self._replaced() if replaced_slot == slot) + 1
            self.log(JUDGE, f"{slot} {number}", {**(about or {}), "slot": slot, "judge": judge})
        erased = self._erased() - before
        sql = f"SELECT count(*) FROM scores WHERE judge_set IN {_LISTED}"
        return next(int(row[0]) for row in self._rows(sql, schema.to_json(sorted(erased), "sets of judges")))

    def take_back(self, attempt: AttemptRecord) -> None:
        """Remove the record that ``attempt`` would replace: the attempt goes on. Where there is none nothing happens."""
        sql = (
            "DELETE FROM attempts WHERE tree = (SELECT seq FROM trees WHERE name = ?) AND offset = ? AND purpose = ? "
            "AND sample = ? AND ifnull(start, 0) = ifnull((SELECT seq FROM nodes WHERE id = ?), 0) "
            "AND ifnull(provenance, 0) = ifnull((SELECT seq FROM provenances WHERE hash = ?), 0)"
        )
        place = (attempt.tree, attempt.offset, schema.to_text(attempt.purpose), attempt.index, attempt.start, attempt.provenance)
        self._write(sql, place)

    # Reading

    def trees(self, group: str | None = None) -> list[TreeInfo]:
        """The trees, in order of arrival, of one group or all."""
        return self._matching(TreeInfo, None, {"s.grp": group})

    def tree_info(self, name: str) -> TreeInfo:
        """Task, group and data of one tree. Raises UserError when there is none of that name."""
        (info,) = self._matching(TreeInfo, None, {"s.seq": self._tree_seq(name)})
        return info

    def has_tree(self, name: str) -> bool:
        """Whether there is a tree of that name."""
        return self._row("SELECT 1 FROM trees WHERE name = ?", name) is not None

    def tree(self, name: str) -> Tree:
        """One tree with all its nodes, in memory. Raises UserError when there is none of that name."""
        return Tree(name, self.nodes(name))

    def nodes(self, tree: str) -> list[Node]:
        """The nodes of one tree, parents before children. Raises UserError when there is none of that name."""
        return [
            schema.row_node(row)
            for row in self._rows(f"{schema.SELECT_NODE} WHERE n.tree = ? ORDER BY n.seq", self._tree_seq(tree))
        ]

    def node(self, name: str) -> Node:
        """The node of that id, or the only one whose id starts so. Raises UserError when there is none or more than one."""
        row = self._row(f"{schema.SELECT_NODE} WHERE n.id = ?", self.find(name))
        assert row is not None
        return schema.row_node(row)

    def find(self, name: str) -> str:
        """The full id of a node from the start of it. Raises UserError when no node or more than one starts so."""
        sql = "SELECT id FROM nodes WHERE id >= ? AND id < ? ORDER BY id LIMIT 9"
        ids = [row[0] for row in self._rows(sql, name, name + "g")]  # ids are hexadecimal: "g" sorts after all of them
        if len(ids) == 1:
            return str(ids[0])
        if ids:
            listed = ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
            raise UserError(f"node '{name}' is ambiguous in {self.folder}: {listed}")
        around = [
            *self._rows("SELECT id FROM nodes WHERE id > ? ORDER BY id LIMIT 1", name),
            *self._rows("SELECT id FROM nodes WHERE id < ? ORDER BY id DESC LIMIT 1", name),
        ]
        raise UserError(f"{self.folder} has no node '{name}': {nearest(name, (row[0] for row in around))}")

    def path(self, name: str) -> Path:
        """The path from the root to a node (id, or the start of one). Raises UserError like :meth:`node`."""
        sql = (
            "WITH RECURSIVE up (seq, parent) AS (SELECT seq, parent FROM nodes WHERE id = ? UNION "
            "SELECT n.seq, n.parent FROM up JOIN nodes n ON n.seq = up.parent) "
            f"{schema.SELECT_NODE} WHERE n.seq IN (SELECT seq FROM up) ORDER BY n.seq"  # parents are written before children
        )
        return Path.of([schema.row_node(row) for row in self._rows(sql, self.find(name))])

    def shown(self, name: str) -> Shown:
        """What the model saw when it sampled a node: its explicit context, or the path up to it.
        Raises UserError like :meth:`node`."""
        node = self.node(name)
        return shown(node, self.node, self.path, self.context)

    def context(self, name: str) -> Context:
        """The context of that hash. Raises UserError when there is none."""
        return schema.row_context(self._required("SELECT body, hash FROM contexts WHERE hash = ?", name, f"no context '{name}'"))

    def provenance(self, name: str) -> Provenance:
        """The provenance of that hash. Raises UserError when there is none."""
        return schema.row_provenance(
            self._required("SELECT body, hash FROM provenances WHERE hash = ?", name, f"no provenance '{name}'")
        )

    def attempts(self, tree: str | None = None, purpose: str | None = None, leaf: str | None = None) -> list[AttemptRecord]:
        """Attempts that match all that is given, in order of first writing: of one tree, one purpose, or that end at one node."""
        wanted = {"s.tree": None if tree is None else self._tree_seq(tree), "s.purpose": purpose}
        if leaf is not None:
            row = self._row("SELECT seq FROM nodes WHERE id = ?", leaf)
            wanted["s.leaf"] = -1 if row is None else int(row[0])
        return self._matching(AttemptRecord, None, wanted)

    def purposes(self) -> list[tuple[str, str, int]]:
        """(tree, purpose, attempts) of every purpose that attempts of a tree were made for."""
        sql = "SELECT t.name, s.purpose, count(*) FROM attempts s JOIN trees t ON t.seq = s.tree GROUP BY s.tree, s.purpose"
        return [(schema.name(tree), schema.name(purpose), int(n)) for tree, purpose, n in self._rows(sql)]

    def token_count(self) -> int | None:
        """Tokens of the agent's messages: those that are stored, of text alone as many as its server says; None where nobody
        says. Tokens that a chat template closes a message with are counted."""
        sql = (
            "SELECT sum(coalesce(length(tokens) / 4, json_extract(data, '$.usage.completion_tokens'))) FROM nodes "
            "WHERE role = 'assistant'"
        )
        count = next(self._rows(sql))[0]
        return None if count is None else int(count)

    def has_tokens(self, tree: str) -> bool:
        """Whether a reply in ``tree`` was recorded with its tokens, not as text alone."""
        sql = "SELECT 1 FROM nodes WHERE tree = ? AND sampled IS NOT NULL LIMIT 1"
        return next(self._rows(sql, self._tree_seq(tree)), None) is not None

    def token_values(
        self, tree: str | None = None, name: str | None = None, maker: str | None = None, node: str | None = None
    ) -> list[TokenValues]:
        """Token values that match all given conditions, in order of first writing."""
        return self._matching(TokenValues, tree, {"s.name": name, "s.maker": maker, "n.id": node})

    def annotations(
        self, tree: str | None = None, name: str | None = None, maker: str | None = None, node: str | None = None
    ) -> list[Annotation]:
        """Annotations that match all given conditions, in order of first writing."""
        return self._matching(Annotation, tree, {"s.name": name, "s.maker": maker, "n.id": node})

    def scores(
        self, tree: str | None = None, scorer: str | None = None, node: str | None = None, counting: bool | None = True
    ) -> list[Score]:
        """Scores that match all that is given, in order of their nodes and scorers.

        ``counting``: those that count; False: those that a replaced judge gave (:meth:`replace_judge`); None: all.
        """
        matching = self._matching(Score, tree, {"s.scorer": scorer, "n.id": node})
        if counting is None or not (now := self.incumbents()):
            return matching if counting is not False else []
        return [score for score in matching if counts(score.judges, now) is counting]

    def incumbents(self) -> dict[str, str]:
        """The judge whose scores count, by slot; slots in which no judge was ever replaced, where all count, are left out."""
        return dict(self._replaced())

    def tallies(self) -> list[tuple[str, dict[str, str], int, int, float]]:
        """(scorer, judges, scores, of them with a value, sum of the values) of every scorer and set of judges."""
        sql = (
            "SELECT s.scorer, j.judges, count(*), count(s.value), total(s.value) FROM scores s "
            "JOIN judge_sets j ON j.seq = s.judge_set GROUP BY s.judge_set, s.scorer ORDER BY s.scorer, s.judge_set"
        )
        return [(str(a), schema.from_judges(b), int(n), int(k), float(total)) for a, b, n, k, total in self._rows(sql)]

    def findings(self, tree: str | None = None, maker: str | None = None, node: str | None = None) -> list[Finding]:
        """Findings that match all given conditions, in order of writing; with ``tree`` none that is about the whole run."""
        return self._matching(Finding, tree, {"s.maker": maker, "n.id": node})

    def makers(self) -> dict[str, int]:
        """Who stored something that a verb found, each with how many: its findings, else its kept result."""
        sql = "SELECT maker, count(*) FROM findings GROUP BY maker UNION ALL SELECT maker, 0 FROM results"
        counts: dict[str, int] = {}
        for maker, n in self._rows(sql):
            counts[schema.name(maker)] = counts.get(maker, 0) or int(n) or 1
        return counts

    def results(self, maker: str | None = None) -> list[KeptResult]:
        """What verbs returned and the run keeps, in order of writing: of one ``maker`` or all."""
        return self._matching(KeptResult, None, {"s.maker": maker})

    def scorers(self) -> list[tuple[str, str, bool]]:
        """(scorer, unit, whether a value was given) of every kind of score there is."""
        where, args = self._counting()
        sql = f"SELECT scorer, unit, max(value IS NOT NULL) FROM scores s {where} GROUP BY scorer, unit ORDER BY scorer, unit"
        return [(str(scorer), str(unit), bool(given)) for scorer, unit, given in self._rows(sql, *args)]

    def unscored(self) -> list[Score]:
        """Scores without a value, in order of their nodes."""
        select, order, make = _EACH[Score]
        where, args = self._counting()
        where = f"{where} AND" if where else "WHERE"
        return [make(row) for row in self._rows(f"{select} {where} s.value IS NULL ORDER BY {order}", *args)]

    def failed(self, below: str | None = None) -> list[Node]:
        """Nodes at which a failure ended an attempt that was imported or recorded (``stop`` is "failed"), of all or of those that
        hang on node ``below``."""
        row = None if below is None else self._row("SELECT seq FROM nodes WHERE id = ?", below)
        return self._matching(Node, None, {"n.stop": "failed", "n.parent": None if row is None else int(row[0])})

    def ends(self) -> list[str]:
        """Ids of the nodes that nothing hangs below, roots left out."""
        sql = "SELECT id FROM nodes n WHERE n.parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes c WHERE c.parent = n.seq)"
        return [str(row[0]) for row in self._rows(sql)]

    def journal(self, kind: str | None = None, key: str | None = None) -> list[JournalEntry]:
        """Journal entries, in order: of one kind, of one key, or all."""
        where, args = schema.where({"s.kind": kind, "s.key": key})
        rows = list(self._rows(f"SELECT kind, key, payload FROM journal s {where} ORDER BY s.seq", *args))
        with suppress(RamifyError):  # one document decodes several times faster than as many
            payloads = schema.from_json(f"[{','.join(str(row[2]) for row in rows)}]")
            if len(payloads) == len(rows):
                return [JournalEntry(kind, key, payload) for (kind, key, _), payload in zip(rows, payloads, strict=True)]
        return self._matching(JournalEntry, None, {"s.kind": kind, "s.key": key})

    def each(self, kind: type[_R]) -> Iterator[_R]:
        """All records of one kind in order of writing (scores: of their nodes), one at a time: memory stays flat."""
        select, order, make = _EACH[kind]
        for row in self._rows(f"{select} ORDER BY {order}"):
            yield make(row)

    def faults(self) -> list[str]:
        """Faults found by SQLite's own check of the file, and rows that refer to missing rows."""
        damage = [str(row[0]) for row in self._rows("PRAGMA integrity_check")]
        rows = [
            f"row {row[1]} of {row[0]} refers to a row of {row[2]} that does not exist"
            for row in self._rows("PRAGMA foreign_key_check")
        ]
        return [line for line in damage if line != "ok"] + rows

    def unreadable(self, kind: type[Record] | type[TreeInfo] | type[JournalEntry]) -> Iterator[str]:
        """One sentence for each record of ``kind`` that cannot be read, or whose content is not what its hash says."""
        select, order, make = _EACH[kind]
        for row in self._rows(f"{select} ORDER BY {order}"):
            try:
                make(row)
            except RamifyError as error:
                yield str(error)

    def missing_blobs(self) -> list[tuple[str, str]]:
        """(node, blob) of each snapshot whose blob is not in the run."""
        rows = self._rows("SELECT id, substr(snapshot, 6) FROM nodes WHERE snapshot LIKE 'blob:%' ORDER BY seq")
        known = set(self.blobs.names())
        return [(str(node), str(blob)) for node, blob in rows if blob not in known]

    def columns(self, names: list[str], tree: str | None = None, group: str | None = None) -> dict[str, np.ndarray]:
        """Nodes as columns, in order of writing: see :func:`ramify.trace.columns.read_columns`."""
        if tree is not None:
            self._tree_seq(tree)
        where, args = schema.where({"t.name": tree, "t.grp": group})
        return schema.stored(read_columns)(lambda sql: self._rows(sql, *args), names, where)

    def __len__(self) -> int:
        """How many nodes there are."""
        return next(int(row[0]) for row in self._rows("SELECT count(*) FROM nodes"))

    def _repr_html_(self) -> str:
        return notebook.html(self)

    def __repr__(self) -> str:
        return f"<run {str(self.folder)!r}>"

    # Inside

    def _add_node(self, node: Node) -> None:
        if node.parent is None:
            tree, parent = self._tree_seq(node.tree), None
        else:
            row = self._place(node.parent)
            if row is None:
                raise UserError(f"node {node.id} hangs on node {node.parent}, which is not in {self.folder}")
            parent, tree, length, name = row
            if name != node.tree:
                raise UserError(f"node {node.id} of tree '{node.tree}' hangs on node {node.parent} of tree '{name}'")
            check_offset(node, length)
        context = None if node.context is None else self._known("contexts", node.context, node.id)
        provenance = None if node.provenance is None else self._known_provenance(node.provenance, node.id)
        try:
            cursor = self._write(schema.INSERT_NODE, schema.node_row(node, tree, parent, context, provenance))
        except UserError as error:
            if node.parent is None and isinstance(error.__cause__, sqlite3.IntegrityError):
                raise UserError(f"tree '{node.tree}' has a root already; node {node.id} names no parent") from error
            raise
        if cursor.rowcount > 0 and cursor.lastrowid is not None:
            self._last = (node.id, (cursor.lastrowid, tree, len(node), node.tree))

    def _place(self, node: str) -> _Place | None:
        """Where a node is. What is written next mostly points at what was written last: a child, a score, an attempt's end."""
        if self._last is not None and self._last[0] == node:
            return self._last[1]
        sql = "SELECT n.seq, n.tree, n.length, t.name FROM nodes n JOIN trees t ON t.seq = n.tree WHERE n.id = ?"
        row = self._row(sql, node)
        if row is None:
            return None
        place = (int(row[0]), int(row[1]), int(row[2]), schema.name(row[3]))
        self._last = (node, place)
        return place

    def _add_attempt(self, attempt: AttemptRecord) -> None:
        leaf, tree, *_ = self._place_of_attempt(attempt, attempt.leaf)
        start, _, length, _ = (None, tree, 0, "") if attempt.start is None else self._place_of_attempt(attempt, attempt.start)
        provenance = None if attempt.provenance is None else self._known_provenance(attempt.provenance, attempt.leaf)
        self._write(schema.INSERT_ATTEMPT, schema.attempt_row(attempt, tree, leaf, start, length, provenance))

    def _place_of_attempt(self, attempt: AttemptRecord, node: str) -> _Place:
        place = self._place(node)
        if place is None:
            raise UserError(f"an attempt points at node {node}, which is not in {self.folder}")
        if place[3] != attempt.tree:
            raise UserError(f"an attempt of tree '{attempt.tree}' points at node {node} of tree '{place[3]}'")
        return place

    def _known(self, table: str, name: str, node: str) -> int:
        row = self._row(f"SELECT seq FROM {table} WHERE hash = ?", name)
        if row is None:
            raise UserError(f"node {node} names '{name}' of {table}, which is not in {self.folder}: add that record first")
        return int(row[0])

    def _known_provenance(self, name: str, node: str) -> int:
        if name not in self._provenances:
            self._provenances[name] = self._known("provenances", name, node)
        return self._provenances[name]

    def _target(self, node: str, kind: str, name: str) -> tuple[int, int]:
        row = self._place(node)
        if row is None:
            raise UserError(f"{kind} '{name}' points at node {node}, which is not in {self.folder}")
        return row[0], row[2]

    def _judge_set(self, judges: Mapping[str, str]) -> int:
        body = schema.to_json(judges, "the judges of a score")
        row = self._row("SELECT seq FROM judge_sets WHERE judges = ?", body)
        if row is not None:
            return int(row[0])
        seq = self._write("INSERT INTO judge_sets VALUES (NULL,?)", (body,)).lastrowid
        assert seq is not None
        for slot, judge in sorted(judges.items()):
            self._write("INSERT INTO score_judges VALUES (?,?,?)", (seq, slot, judge))
        return seq

    def _erased(self) -> set[int]:
        """The sets of judges whose scores do not count."""
        now = self.incumbents()
        rows = self._rows("SELECT seq, judges FROM judge_sets") if now else iter(())
        return {int(seq) for seq, judges in rows if not counts(schema.from_judges(judges), now)}

    def _counting(self) -> tuple[str, list[Any]]:
        """A condition on scores ``s`` that leaves out those that do not count, and its arguments."""
        left = sorted(self._erased())
        return (f"WHERE s.judge_set NOT IN {_LISTED}", [schema.to_json(left, "sets of judges")]) if left else ("", [])

    def _replaced(self) -> list[tuple[str, str]]:
        """(slot, judge) of every replacement, in order. Raises RamifyError where an entry is damaged."""
        replaced = []
        for entry in self.journal(JUDGE):
            payload = entry.payload if isinstance(entry.payload, dict) else {}
            if not isinstance(payload.get("slot"), str) or not isinstance(payload.get("judge"), str):
                raise RamifyError(f"cannot read {self.folder / FILE}: the journal's entry '{entry.key}' names no slot and judge")
            replaced.append((payload["slot"], payload["judge"]))
        return replaced

    def _tree_seq(self, name: str) -> int:
        row = self._row("SELECT seq FROM trees WHERE name = ?", name)
        if row is None:
            names = (row[0] for row in self._rows("SELECT name FROM trees ORDER BY seq LIMIT 1000"))
            raise UserError(f"{self.folder} has no tree '{name}': {nearest(name, names)}")
        return int(row[0])

    def _matching(self, kind: type[_R], tree: str | None, wanted: Mapping[str, str | int | None]) -> list[_R]:
        select, order, make = _EACH[kind]
        where, args = schema.where({"n.tree": None if tree is None else self._tree_seq(tree), **wanted})
        return [make(row) for row in self._rows(f"{select} {where} ORDER BY {order}", *args)]

    def _count(self, records: int) -> None:
        self._pending += records
        if self._pending >= BATCH:
            self.commit()

    def _require_lock(self) -> None:
        if self._lock is None:
            raise UserError(f"{self.folder} is not open for writing")
        if self._broken:
            raise RamifyError(self._broken)

    def _write(self, sql: str, args: tuple[Any, ...] = (), begin: bool = True) -> sqlite3.Cursor:
        self._require_lock()
        try:
            if begin and not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            return self._db.execute(sql, args)
        except UNSTORABLE as error:
            raise UserError(f"a record for {self.folder} cannot be stored: {error}") from error
        except sqlite3.Error as error:
            self._fail(error)

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        """The disk refused a write. Committed records stay, others are lost,
        so the run accepts no more until it is opened again."""
        self._broken = f"cannot write to {self.folder}: {error}; committed records are kept, open the run again to continue"
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # the next open rolls back whatever this cannot
                self._db.execute("ROLLBACK")
        raise RamifyError(self._broken) from error

    def _rows(self, sql: str, *args: Any) -> Iterator[tuple[Any, ...]]:
        try:
            yield from map(tuple, self._db.execute(sql, args))  # a bare cursor would be closed by it, also after the database
        except (sqlite3.Error, UnicodeError) as error:
            raise self._unreadable(error) from error

    def _row(self, sql: str, *args: Any) -> tuple[Any, ...] | None:
        return next(self._rows(sql, *args), None)

    def _unreadable(self, error: Exception) -> RamifyError:
        if isinstance(error, UnicodeEncodeError):
            return UserError(f"a name looked up in {self.folder} is not valid text: {error.reason}")
        return RamifyError(f"cannot read {self.folder / FILE}: {' '.join(str(error).split())}")

    def _required(self, sql: str, name: str, missing: str) -> tuple[Any, ...]:
        row = self._row(sql, name)
        if row is None:
            raise UserError(f"{self.folder} has {missing}")
        return row


def counts(judges: Mapping[str, str], incumbents: Mapping[str, str]) -> bool:
    """Whether a score that depended on ``judges`` (slot -> judge) counts: in no slot of its has another judge taken over."""
    return all(incumbents.get(slot, judge) == judge for slot, judge in judges.items())


def _differences(name: str, then: Any, now: Any) -> Iterator[str]:
    """The changes of a setting; of a table of settings one for each changed entry."""
    if isinstance(then, dict) and isinstance(now, dict) and then.keys() == now.keys():
        for key in now:
            yield from _differences(f"{name}.{key}", then[key], now[key])
    elif then != now:
        yield f"{name} was {_brief(then)}, is {_brief(now)}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
