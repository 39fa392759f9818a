"""JSON lines that grow row by row: each is on the disk once it was added, and an interrupted job goes on behind the last whole one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import refusal, write_whole
from ramify.trace.lines import read_lines


class Tail:
    """The end of a file of lines: a line is on the disk once it was added. What a kill left behind the whole ones goes with the first.

    The first line of a file is there whole or not at all, so what holds no whole line is not a file that a kill cut off.
    """

    def __init__(self, path: Path) -> None:
        try:
            there = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise refusal(f"cannot read {path}", error) from error
        self.path, self.empty = path, not there
        self._end = there.rfind(b"\n") + 1 if there else None

    def add(self, line: str) -> None:
        """Append one line. Raises UserError where the path is wrong, RamifyError where the disk refuses."""
        if self.empty:
            write_whole(self.path, line + "\n")
            self.empty = False
            return
        try:
            with self.path.open("ab") as file:
                if self._end is not None:
                    file.truncate(self._end)
                    self._end = None
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise refusal(f"cannot write {self.path}", error) from error


class Growing:
    """Rows by key, in the order in which they were added. ``rows`` holds what an earlier call left.

    A last line that a kill cut off is dropped when the next row is added. Raises UserError where a line has no ``key`` or repeats one; the
    file is left as it is then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self._tail = Tail(path)
        for number, record in () if self._tail.empty else read_lines(path, ended=True):
            key = record.get("key")
            if not isinstance(key, str) or key in self.rows:
                raise UserError(f"{path}:{number}: 'key' must be a text that no row before has")
            self.rows[key] = record

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Append one row. Raises UserError on a key that is there, and where the path is wrong; RamifyError where the disk refuses."""
        if key in self.rows:
            raise UserError(f"{self.path} has the row '{key}' already")
        record = {"key": key, **row}
        self._tail.add(json.dumps(record, ensure_ascii=True, allow_nan=False))
        self.rows[key] = record
