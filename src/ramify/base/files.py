"""Atomic file writes: a temporary file in the target's folder, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import stable_hash

#: What a user can mend by naming another path; any other refusal is the disk's.
_WRONG_PATH = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.EROFS, errno.ELOOP, errno.EINVAL),
}


def refusal(what: str, error: OSError) -> RamifyError:
    """``what`` (such as "cannot write x.json") with the system's reason:
    a UserError where the path is wrong, else a RamifyError."""
    return (UserError if error.errno in _WRONG_PATH else RamifyError)(f"{what}: {reason(error)}")


def reason(error: Exception) -> str:
    """The system's own words where it refused a file, which the sentence around them names; else what the error says."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def folder_aside(parent: Path) -> Iterator[Path]:
    """An empty temporary folder in ``parent``, to be filled and renamed;
    what is left of it at the end is removed. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_aside(parent, 'folder').name}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_ASIDE = re.compile(r"\.part-(?P<place>[0-9a-f]{8})-(?P<process>\d+)-")
_IDLE_S = 86400
_looked_in: set[Path] = set()


def _aside(parent: Path, name: str) -> Path:
    """A path in ``parent`` that no other process uses, for what becomes ``name``; leftovers of killed processes are removed.

    Leftovers are looked for once per process and folder. A process is gone if it ran on this machine (host
    and process namespace) and runs no more, or if it touched the file more than a day ago.
    """
    folder = parent.absolute()
    if folder not in _looked_in:
        _looked_in.add(folder)
        with suppress(OSError):
            for entry in os.scandir(folder):
                left = _ASIDE.match(entry.name)
                if left is not None and _gone(left, entry):
                    shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
    return parent / f".part-{_machine()}-{os.getpid()}-{name}"


def _gone(left: re.Match[str], entry: os.DirEntry[str]) -> bool:
    if left["place"] == _machine():
        try:
            os.kill(int(left["process"]), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > _IDLE_S


def _machine() -> str:
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # a system without namespaces
        space = 0
    return stable_hash(socket.gethostname(), str(space))[:8]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path for the block to write; at the end it replaces ``path``, on any error it is removed.

    A reader sees the old file or the whole new one, also after a kill or on a full disk. A device or pipe is written through.
    Raises UserError where the path is wrong, RamifyError where the disk refuses.
    """
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        if target.is_symlink():
            raise UserError(f"cannot write {path}: it is a link that leads to itself")
        if target.is_dir():
            raise UserError(f"cannot write {path}: it is a folder")
        if target.exists() and not target.is_file():
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder) / "whole"
                with (Path(folder) / "whole").open("rb") as whole, target.open("wb") as device:
                    shutil.copyfileobj(whole, device)
            return
        if not target.parent.is_dir():
            raise UserError(f"cannot write {path}: there is no folder {path.parent}")
        temporary = _aside(target.parent, stable_hash(target.name))  # a name of 255 bytes has no room for more
        try:
            yield temporary
            _flush(temporary)
            os.replace(temporary, target)
            _flush(target.parent)
        finally:
            with suppress(OSError):  # what the disk said first is what matters
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(f"cannot write {path}", error) from error


def cache_folder() -> Path:
    """Where ramify keeps what it can make again: ``$RAMIFY_CACHE``, else ``$XDG_CACHE_HOME/ramify``, else ``~/.cache/ramify``."""
    chosen = os.environ.get("RAMIFY_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ramify"


SMALL = 16 << 20
"""Bytes of a file that a person writes: an edit, settings."""


def read_small(path: Path, what: str, most: int = SMALL) -> bytes:
    """The bytes of a file of at most ``most``; ``what`` (such as "the edit") names it in the sentence that refuses it.

    Raises UserError where it is larger, as a device without an end is, and where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {what} {path}: {reason(error)}") from None
    if len(data) > most:
        raise UserError(f"cannot read {what} {path}: it is larger than {most >> 20} MiB")
    return data


def read_regular(path: Path, what: str, most: int = SMALL) -> bytes:
    """As :func:`read_small`, of a plain file alone: a device or a pipe,
    which may never end or never begin, is refused unopened."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {what} {path}: {reason(error)}") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"cannot read {what} {path}: it is not a plain file")
    return read_small(path, what, most)


def read_record(path: Path, what: str) -> dict[str, Any]:
    """The JSON object that a plain file holds; ``what`` as in :func:`read_small`.
    Raises UserError where it cannot be read or is none."""
    try:
        record = json.loads(read_regular(path, what))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"cannot read {what} {path}: {why}") from None
    if not isinstance(record, dict):
        raise UserError(f"{path} does not hold a JSON object")
    return record


def write_whole(path: Path, data: bytes | bytearray | str) -> None:
    """Write ``path`` whole or not at all. Raises like :func:`whole_file`."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
