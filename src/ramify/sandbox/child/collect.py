"""Files a command leaves are sent to the host: regular files below the work folder only,
no link followed, sizes checked first."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import stat
import struct

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LONGEST = 1000
_TOO_LARGE = "it exceeds what may be returned"


def collect(patterns: list[str], work: str, out: int, most_bytes: int) -> None:
    """Write a frame per file below ``work`` that matches one of ``patterns`` (``*`` matches ``/`` too) to descriptor ``out``.

    A frame: u32 length, JSON ``{"path": str, "size": bytes}``, then the bytes; or ``{"path": str, "refused": reason}``. Frames
    and bytes together are at most ``most_bytes``. A path of more than 1000 characters is passed over.
    """
    left = most_bytes
    for path in _walk(work):
        if left > 0 and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            left -= _send(work, path, out, left)


def _walk(work: str) -> list[str]:
    """Relative paths of all but folders, sorted."""
    files: list[str] = []
    todo = [""]
    while todo:
        folder = todo.pop()
        try:
            handle = _open(work, folder, _FOLDER)
        except OSError:
            continue
        try:
            with os.scandir(handle) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if len(path) <= _LONGEST:
                        (todo if entry.is_dir(follow_symlinks=False) else files).append(path)
        finally:
            os.close(handle)
    return sorted(files)


def _open(work: str, path: str, flags: int) -> int:
    """Open ``path`` below ``work`` step by step: a link anywhere on the way is an error."""
    handle = os.open(work, _FOLDER)
    parts = path.split("/") if path else []
    for number, part in enumerate(parts):
        try:
            below = os.open(part, _FOLDER if number + 1 < len(parts) else flags | os.O_NOFOLLOW, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
    return handle


def _send(work: str, path: str, out: int, left: int) -> int:
    """Send one file; the bytes written."""
    try:
        handle = _open(work, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        why = "a link" if error.errno == errno.ELOOP else f"cannot be opened ({error.strerror})"
        return _frame(out, {"path": path, "refused": why}, left)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            return _frame(out, {"path": path, "refused": "not a regular file"}, left)
        if info.st_size + 7 * len(path) + 100 > left:
            return _frame(out, {"path": path, "refused": _TOO_LARGE}, left)
        written = _frame(out, {"path": path, "size": info.st_size}, left)
        for at in range(0, info.st_size, 1 << 16):
            size = min(1 << 16, info.st_size - at)
            _write_all(out, os.pread(handle, size, at).ljust(size, b"\0"))
        return written + info.st_size
    finally:
        os.close(handle)


def _frame(out: int, head: dict[str, object], left: int) -> int:
    data = json.dumps(head).encode()
    if len(data) + 4 <= left:
        _write_all(out, struct.pack("<I", len(data)) + data)
    return len(data) + 4


def _write_all(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
