"""Sessions of OpenAI's Agents SDK (``SQLiteSession``): an SQLite file whose rows are items of the Responses interface.

The file is third-party: it is opened read-only and immutable, and an authorizer allows nothing but reading columns of its own
tables. So no view, trigger, virtual table, extension or function of it runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.responses import read_output
from ramify.integrations.formats.spans import task_name
from ramify.integrations.formats.spoken import AnyOrder, parsed
from ramify.trace.aliases import KNOWN, Fields
from ramify.trace.chats import hang_chat
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import MAX_LINE

MAGIC = b"SQLite format 3\x00"
_SESSIONS, _MESSAGES, _STRUCTURE = "agent_sessions", "agent_messages", "message_structure"
_BROKEN = (sqlite3.Error, UnicodeError)
"""What a damaged file raises; names and messages of its schema may be no UTF-8."""
_COLUMNS = {
    "sqlite_master": {"type", "name", "sql"},
    _SESSIONS: {"session_id"},
    _MESSAGES: {"id", "session_id", "message_data"},
    _STRUCTURE: {"session_id", "message_id", "branch_id", "sequence_number"},
}


def read_sessions(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from the sessions of a file. Returns how many.

    A session is an attempt, each branch of an ``AdvancedSQLiteSession`` too; those that begin with the same words of a user are
    attempts at one task. Raises UserError naming file, session and item, also where the file is not such a database, a table is a
    view, or its last writes lie beside it (``-wal``). Nothing is left in ``folder`` then."""

    def add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
        named = f"{place}: session {record['id']!r}"
        items = [parsed(text) for text in record["items"]]
        if not items:
            raise UserError(f"{named} has no item")
        if any(isinstance(item, dict) and "__enc__" in item for item in items):
            raise UserError(f"{named} is encrypted (EncryptedSession): read its items in Python, and import them as JSON lines")
        messages = read_output(items, named, run.put_blob, AnyOrder())
        about = {"task_id": task_name(messages)[0], **{name: value for name, value in record.items() if name != "items"}}
        hang_chat(run, about, place, number, messages, set(), fields)

    with closing(_open(path)) as db:
        try:
            return import_records(path, folder, "agents-session", add, _records(db, path))
        except _BROKEN as error:
            raise _fault(path, error) from None


def _fault(path: Path, error: Exception) -> UserError:
    return UserError(f"cannot read {path} as sessions of the Agents SDK: {' '.join(str(error).split())}")


def _open(path: Path) -> sqlite3.Connection:
    """The file, read-only. Raises UserError where it is not a database, or not whole."""
    if not _is_database(path):
        raise UserError(f"{path} is not an SQLite database")
    wal = path.with_name(f"{path.name}-wal")
    if wal.is_file() and wal.stat().st_size:
        raise UserError(f"{path} is in use, or was not closed: its last writes lie in {wal.name}; end the agent first")
    try:
        db = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.set_authorizer(_allowed)
    except sqlite3.Error as error:
        raise _fault(path, error) from None
    return db


def _allowed(action: int, table: str | None, column: str | None, database: str | None, inside: str | None) -> int:
    """Only columns that are read here, and none through a view or trigger."""
    if action == sqlite3.SQLITE_SELECT and inside is None:
        return sqlite3.SQLITE_OK
    known = action == sqlite3.SQLITE_READ and inside is None and table in _COLUMNS and (not column or column in _COLUMNS[table])
    return sqlite3.SQLITE_OK if known else sqlite3.SQLITE_DENY


def _tables(db: sqlite3.Connection) -> dict[str, bool]:
    """Name -> whether it is a plain table."""
    rows = db.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return {
        str(name): kind == "table"
        and str(sql).lstrip().upper().startswith("CREATE TABLE")
        and "GENERATED" not in str(sql).upper()
        for kind, name, sql in rows
        if kind in ("table", "view")
    }


def _records(db: sqlite3.Connection, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The sessions, each branch apart; memory holds one."""
    tables = _tables(db)
    for name in (_SESSIONS, _MESSAGES):
        if not tables.get(name):
            raise UserError(f"{path} is an SQLite database without the plain table '{name}', so no session of the Agents SDK")
    number = 0
    for (session,) in db.execute(f"SELECT session_id FROM {_SESSIONS} ORDER BY session_id").fetchall():
        branches = [None]
        if tables.get(_STRUCTURE):
            sql = f"SELECT branch_id FROM {_STRUCTURE} WHERE session_id = ? GROUP BY branch_id ORDER BY branch_id"
            branches = [branch for (branch,) in db.execute(sql, (session,))] or branches
        for branch in branches:
            number += 1
            about = {"id": str(session), **({} if branch is None else {"name": str(branch)})}
            yield number, {**about, "items": _items(db, session, branch, f"{path}:{number}: session {session!r}")}


def _items(db: sqlite3.Connection, session: Any, branch: Any, spot: str) -> list[str]:
    sql, args = f"SELECT message_data FROM {_MESSAGES} WHERE session_id = ? ORDER BY id", [session]
    if branch is not None:
        sql = (
            f"SELECT m.message_data FROM {_MESSAGES} m JOIN {_STRUCTURE} s ON s.message_id = m.id "
            "WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number"
        )
        args = [session, branch]
    items, size = list[str](), 0
    for (text,) in db.execute(sql, args):
        if not isinstance(text, str):
            raise UserError(f"{spot}: item {len(items)} is not text")
        items.append(text)
        size += len(text)
        if size > MAX_LINE:
            raise UserError(f"{spot} is longer than {MAX_LINE} characters")
    return items


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _matches(path: Path, first: Any) -> bool:
    if first is not None or not path.is_file() or not _is_database(path):
        return False
    try:
        with closing(_open(path)) as db:
            return {_SESSIONS, _MESSAGES} <= _tables(db).keys()
    except (UserError, *_BROKEN):
        with path.open("rb") as file:  # one that cannot be opened now is refused by the reader, in its words
            return b"CREATE TABLE agent_messages" in file.read(1 << 16)


register("reader", "agents-session")(
    Reader(
        "agents-session",
        "Sessions of OpenAI's Agents SDK (SQLiteSession, a file of SQLite): a session is an attempt.",
        _matches,
        read_sessions,
        ("task", "reward"),
    )
)
