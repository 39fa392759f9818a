"""Content-addressed files, written atomically: a blob's name is the hash of its bytes.

A blob is written to a temporary file, flushed to the disk and renamed; the folder is flushed too, so a record that points at a
blob is never more durable than the blob.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ramify.base.errors import RamifyError, UserError
from ramify.base.files import refusal, write_whole
from ramify.base.ids import hash_of


class Blobs:
    """Blobs under ``folder``, as ``ab/cdef...``. Writing the same bytes twice is one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes | bytearray) -> str:
        """Store ``data`` and return its hash. Raises RamifyError when the disk refuses; nothing is left behind then."""
        name = hash_of([memoryview(data)])
        target = self._path(name)
        if target.exists():
            return name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.is_symlink():
                raise UserError(f"{target.parent} is a link")
            write_whole(target, data)
        except OSError as error:
            raise refusal(f"cannot store a blob of {len(data)} bytes under {self.folder}", error) from error
        except RamifyError as error:
            raise type(error)(f"cannot store a blob of {len(data)} bytes under {self.folder}: {error}") from error
        return name

    def get(self, name: str) -> bytes:
        """The bytes of a blob. Raises UserError when it is missing, RamifyError when its content does not match its name."""
        path = self._path(name)
        try:
            if path.parent.is_symlink() or not stat.S_ISREG(path.lstat().st_mode):
                raise UserError(f"{path} is not a plain file")
            data = path.read_bytes()
        except (OSError, ValueError) as error:
            raise UserError(f"there is no blob '{name}' under {self.folder}") from error
        if hash_of([memoryview(data)]) != name:
            raise RamifyError(f"blob '{name}' under {self.folder} is damaged: its content does not match its name")
        return data

    def drop(self, name: str) -> None:
        """Remove a blob that nothing refers to; a missing one is not an error."""
        self._path(name).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Names of all blobs, sorted."""
        for folder in sorted(self.folder.glob("??")):
            yield from (folder.name + file.name for file in sorted(folder.iterdir()) if not file.name.startswith("."))

    def _path(self, name: str) -> Path:
        if not name or not set(name) <= set("0123456789abcdef"):
            raise UserError(f"'{name}' is not a blob hash")
        return self.folder / name[:2] / name[2:]
