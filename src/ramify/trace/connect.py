"""Opening the files of a run: the lock of its one writer, the SQLite connection,
and the check that a file is a run we can read."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from ramify.base.errors import RamifyError, UserError
from ramify.base.files import refusal
from ramify.trace import schema

FILE, LOCK, BLOBS = "run.sqlite", "run.lock", "blobs"
#: SQLite's errors about a value rather than the disk.
UNSTORABLE = (
    *(sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError),
    *(OverflowError, UnicodeEncodeError),
)


def refuse_links(folder: Path) -> None:
    """Raise UserError where a file of a run is a link: its maker could choose other files to be read or overwritten."""
    for name in (FILE, *(FILE + end for end in ("-wal", "-shm", "-journal")), LOCK, BLOBS):
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a link; the files of a run lie in its folder (the folder itself may be a link)")


def take_lock(folder: Path) -> int:
    """A handle on the lock of the one writer. Raises UserError when another process holds it, OSError when it cannot be made."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(
            f"{folder} is being written by another process: wait until it ends, or open the run for reading"
        ) from error
    return handle


def connect(file: Path, write: bool) -> sqlite3.Connection:
    """Connect to an existing file, or for writing also to a new one. Raises sqlite3.Error."""
    uri = file.absolute().as_uri()
    if write:
        db = _connect(uri)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA cache_size = -8192")
        db.execute("PRAGMA wal_autocheckpoint = 8192")  # pages: a checkpoint waits for the disk, so one every 32 MiB, not every 4
        return db
    if os.access(file.parent, os.W_OK) and os.access(file, os.W_OK):
        # not mode=ro, which would leave its index files behind; query_only refuses every change
        db = _connect(f"{uri}?mode=rw")
        db.execute("PRAGMA query_only = ON")
        return db
    wal = file.with_name(file.name + "-wal")
    pending = wal.exists() and wal.stat().st_size
    # a reader of a WAL file needs its index alongside it; on read-only media it can do without where nothing is pending
    return _connect(f"{uri}?{'mode=ro' if pending else 'immutable=1'}")


def _connect(uri: str) -> sqlite3.Connection:
    # from any thread, one at a time: that of an event loop uses it while the one that opened it waits (`base.waiting`)
    return sqlite3.connect(uri, timeout=30, isolation_level=None, check_same_thread=False, cached_statements=64, uri=True)


def holds_run(folder: Path) -> bool:
    """Whether ``folder`` holds a run; the remains of an interrupted creation do not count."""
    if not (folder / FILE).is_file():
        return False
    try:
        db = connect(folder / FILE, write=False)
        with closing(db):
            return bool(db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    except sqlite3.Error:
        return True  # something is there that must not be written over


def refused(what: str, error: Exception) -> RamifyError:
    """``what`` with the reason: a RamifyError where the disk refuses (full, failing, busy),
    a UserError where the file or path is wrong."""
    if isinstance(error, OSError):
        return refusal(what, error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of the number names the call
    disk = code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM)
    return (RamifyError if disk else UserError)(f"{what}: {' '.join(str(error).split())}")


def remove(file: Path) -> None:
    """Remove an unfinished database, ignoring errors of the disk."""
    for name in (file.name, file.name + "-wal", file.name + "-shm"):
        with suppress(OSError):
            file.with_name(name).unlink(missing_ok=True)


def check(db: sqlite3.Connection, file: Path) -> None:
    """Raises UserError when an open file is not a run, is cut short, or is of a schema this version does not read."""
    if db.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
        raise UserError(f"{file} is not a run of ramify" + ("" if file.stat().st_size else ": the file is empty"))
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != schema.SCHEMA:
        raise UserError(
            f"{file} has schema {version}, and this ramify reads schema {schema.SCHEMA}: open it with the version that wrote it"
        )
    pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    wal = file.with_name(file.name + "-wal")
    if file.stat().st_size < pages * size and not (wal.exists() and wal.stat().st_size):
        raise UserError(f"{file} is truncated: {file.stat().st_size} bytes of {pages * size}")
