"""JSON lines that grow row by row: each is on the disk once it was added, and an interrupted job goes on behind the last whole one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import refusal
from ramify.trace.lines import read_lines


class Growing:
    """Rows by key, in the order in which they were added. ``rows`` holds what an earlier call left.

    A last line that a kill cut off is dropped when the next row is added. Raises UserError where a line has no ``key`` or repeats one; the
    file is left as it is then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self._end: int | None = None
        if path.exists():
            for number, record in read_lines(path, ended=True):
                key = record.get("key")
                if not isinstance(key, str) or key in self.rows:
                    raise UserError(f"{path}:{number}: 'key' must be a text that no row before has")
                self.rows[key] = record
            self._end = path.read_bytes().rfind(b"\n") + 1

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Append one row. Raises UserError on a key that is there, and where the path is wrong; RamifyError where the disk refuses."""
        if key in self.rows:
            raise UserError(f"{self.path} has the row '{key}' already")
        record = {"key": key, **row}
        try:
            with self.path.open("ab") as file:
                if self._end is not None:
                    file.truncate(self._end)  # what a kill left behind the whole lines
                    self._end = None
                file.write(json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise refusal(f"cannot write {self.path}", error) from error
        self.rows[key] = record
