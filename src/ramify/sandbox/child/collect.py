"""Files a command leaves, sent to the host: regular files below the work folder only, no link followed, sizes checked first."""

from __future__ import annotations

import fnmatch
import json
import os
import stat
import struct

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def collect(patterns: list[str], work: str, out: int, most_bytes: int, most_files: int) -> None:
    """Write a frame per file that matches one of ``patterns`` (``*`` matches ``/`` too) to ``out``.

    A frame: u32 length, JSON ``{"path": str, "size": bytes}``, then the bytes; or ``{"path": str, "refused": reason}``.
    Needs every process that could change the folder to have ended.
    """
    left = most_bytes
    count = 0
    for path in _walk(work):
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            continue
        count += 1
        if count > most_files:
            return _frame(out, {"path": path, "refused": f"more than {most_files} files"})
        left -= _send(work, path, out, left)
    return None


def _walk(work: str) -> list[str]:
    """Relative paths of all but folders, sorted; what lies deeper than a path can name is not listed."""
    found: list[str] = []
    todo = [""]
    while todo:
        folder = todo.pop()
        try:
            names = _names(work, folder)
        except OSError:
            continue
        for name, is_folder in names:
            path = f"{folder}/{name}" if folder else name
            (todo if is_folder else found).append(path)
    return sorted(found)


def _names(work: str, folder: str) -> list[tuple[str, bool]]:
    handle = _open(work, folder, _FOLDER)
    try:
        with os.scandir(handle) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(handle)


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
    """Send one file; the bytes of it that count."""
    try:
        handle = _open(work, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        _frame(out, {"path": path, "refused": "a link" if error.errno == 40 else f"cannot be opened ({error.strerror})"})
        return 0
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            _frame(out, {"path": path, "refused": "not a regular file"})
            return 0
        if info.st_size > left:
            _frame(out, {"path": path, "refused": f"{info.st_size} bytes exceed what may be returned"})
            return 0
        _frame(out, {"path": path, "size": info.st_size})
        for at in range(0, info.st_size, 1 << 16):
            data = os.pread(handle, 1 << 16, at)
            _write_all(out, data)
        return info.st_size
    finally:
        os.close(handle)


def _frame(out: int, head: dict[str, object]) -> None:
    data = json.dumps(head).encode()
    _write_all(out, struct.pack("<I", len(data)) + data)


def _write_all(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
