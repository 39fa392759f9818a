"""The runs of a folder, each read cheaply: its state, success, tokens, agent and environment, and what was left off in it."""

from __future__ import annotations

import json
import math
import os
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ramify.base.errors import RamifyError, UserError
from ramify.jobs.results import Evaluation
from ramify.jobs.summary import counted
from ramify.render.escape import visible
from ramify.render.svg import clip
from ramify.stats.intervals import Interval
from ramify.trace.connect import FILE, LOCK
from ramify.trace.db import Run
from ramify.trace.outcome import settled
from ramify.trace.schema import stored
from ramify.web.way import LeftOff, left_off, model_of

DEPTH = 3
"""Folders below the one that is looked through, down to a run."""
MOST_FOLDERS = 20_000
"""Folders that are looked through at most."""
MOST_TEXT = 60
"""Characters of a model's or an environment's name."""
LOCKS = Path("/proc/locks")
"""Where the kernel lists the locks of files; without it no run is said to be running."""
READING = 1.0
"""Seconds that a page waits for runs that were not read yet."""
State = Literal["finished", "stopped", "running", "damaged", "unread"]
Mark: TypeAlias = tuple[int, int, int, bool]
"""Of a run: when its file was written (ns), its bytes, those that wait beside it, whether a process writes."""
STATES: dict[State, str] = {
    "running": "a process is writing to it now",
    "stopped": "it was begun and is not done; the command continues it",
    "damaged": "it cannot be read",
    "finished": "nothing is left to do",
    "unread": "it is being read: load the page again",
}


@dataclass(frozen=True, slots=True)
class ListedRun:
    """What the list says of a run; None is what nobody said."""

    name: str
    """Its folder below the one that was looked through."""
    folder: Path
    changed: float
    """When its file was last written, in seconds since 1970."""
    state: State = "finished"
    kind: str = ""
    """The verb that made it."""
    model: str = ""
    env: str = ""
    attempts: int = 0
    """That have an outcome; of an improve run the held-out episodes of its last evaluation."""
    success: float | None = None
    interval: Interval | None = None
    """95 % (Wilson), None where the attempts are no independent samples."""
    tokens: int | None = None
    trees: int = 0
    answers: tuple[str, ...] = ()
    """Verbs whose results it holds."""
    left: tuple[LeftOff, ...] = ()
    trouble: str = ""
    """Why it cannot be read."""


@dataclass(slots=True)
class Shelf:
    """The runs in the folder ``root``, or ``only`` one of them. What is read of a run is kept until its file changes."""

    root: Path
    only: Path | None = None
    cut: bool = False
    """There were more folders than are looked through."""
    _known: dict[Path, tuple[Mark, ListedRun]] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def runs(self, seconds: float = READING) -> list[ListedRun]:
        """Every run, the last changed first. What is not read within ``seconds`` is ``unread``, and is read meanwhile."""
        end, writers = time.monotonic() + seconds, _writers()
        folders = [self.only] if self.only is not None else list(self._folders())
        marked = [(mark, folder) for folder in folders if (mark := _mark(folder, writers)) is not None]
        marked.sort(key=lambda each: each[0][0], reverse=True)
        for folder in self._known.keys() - set(folders):
            self._known.pop(folder, None)
        rows = [self._row(folder, mark, time.monotonic() < end) for mark, folder in marked]
        if any(row.state == "unread" for row in rows) and not self._reading.locked():
            threading.Thread(target=self._read_rest, name="ramify-shelf", daemon=True).start()
        return rows

    def _read_rest(self) -> None:
        with self._reading:
            self.runs(math.inf)

    def name_of(self, folder: Path) -> str:
        """A run's name: its folder below the root. Raises UserError where it does not lie there."""
        try:
            return folder.absolute().relative_to(self.root.absolute()).as_posix()
        except ValueError:
            raise UserError(f"{folder} does not lie in {self.root}") from None

    def find(self, name: str) -> Path:
        """The folder of the run called so. Raises UserError where there is none: of no other file is anything said."""
        parts = name.split("/")
        inside = len(parts) <= DEPTH and all(part and not part.startswith(".") and "\0" not in part for part in parts)
        folder = self.root.joinpath(*parts) if inside else self.root
        linked = inside and any(self.root.joinpath(*parts[:at]).is_symlink() for at in range(1, len(parts)))
        if not inside or linked or not (folder / FILE).is_file() or (self.only is not None and folder != self.only):
            raise UserError(f"there is no run '{name}' in {self.root}: it may have been moved or deleted")
        return folder

    def _folders(self) -> Iterator[Path]:
        """Folders with a run, without what lies inside one; links are followed to a run alone, not to what lies below."""
        waiting, seen = [(self.root, 0)], 0
        self.cut = False
        while waiting:
            folder, depth = waiting.pop()
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not entry.is_dir():
                        continue
                    seen += 1
                    if seen > MOST_FOLDERS:
                        self.cut = True
                        return
                    path = folder / entry.name
                    if (path / FILE).is_file():
                        yield path
                    elif depth + 1 < DEPTH and not entry.is_symlink():
                        waiting.append((path, depth + 1))

    def _row(self, folder: Path, mark: Mark, read: bool) -> ListedRun:
        """What is known of a run, read again where its file has changed."""
        known = self._known.get(folder)
        if known is not None and known[0] == mark:
            return known[1]
        name, changed = self.name_of(folder), mark[0] / 1e9
        if not read:
            return ListedRun(name, folder, changed, "unread")
        row = read_row(folder, name, mark[-1], changed)
        self._known[folder] = (mark, row)
        return row


def is_written(folder: Path) -> bool:
    """Whether a process is writing to the run in ``folder`` now."""
    return _inode(folder / LOCK) in _writers()


def _mark(folder: Path, writers: set[int]) -> Mark | None:
    """What differs when a run has changed; None where it was deleted meanwhile."""
    try:
        files = [(folder / FILE).stat()]
        with suppress(FileNotFoundError):
            files += [known for known in [(folder / f"{FILE}-wal").stat()] if known.st_size]  # a reader makes an empty one
        running = _inode(folder / LOCK) in writers
    except OSError:
        return None
    return max(known.st_mtime_ns for known in files), files[0].st_size, sum(known.st_size for known in files[1:]), running


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return -1


def _writers() -> set[int]:
    """Inodes of the files that some process holds a lock of one writer on. To ask for the lock would refuse it to a writer that
    begins at that instant."""
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return set()
    held = (line.split() for line in lines if " FLOCK " in line and " WRITE " in line and "->" not in line)
    return {int(words[5].rpartition(":")[2]) for words in held if len(words) > 5}


def read_row(folder: Path, name: str, running: bool, changed: float) -> ListedRun:
    """What the list says of the run in ``folder``, damaged or not."""
    try:
        with Run.open(folder) as run:
            return stored(_read)(run, name, running, changed)
    except RamifyError as error:
        return ListedRun(name, folder, changed, "damaged", trouble=visible(str(error).replace(f"{folder}/", "")))


def _read(run: Run, name: str, running: bool, changed: float) -> ListedRun:
    evals = run.memo("eval", Evaluation)
    held_out = evals.get("after") or evals.get("before")
    attempts = None if held_out else counted(run, settled(run), forks=False)[0]
    success, interval, n = None, None, 0
    if held_out is not None:
        success, interval, n = held_out.success, held_out.interval, held_out.n
    elif attempts is not None:
        success, interval, n = attempts.successes / attempts.n, attempts.interval, attempts.n
    makers = [maker for maker in run.makers() if maker != run.kind]
    left = tuple(left_off(run))
    return ListedRun(
        name,
        run.folder,
        changed,
        "running" if running else "stopped" if left else "finished",
        run.kind,
        clip(model_of(run), MOST_TEXT),
        clip(_env(run), MOST_TEXT),
        n,
        success,
        interval,
        run.token_count(),
        len(run.trees()),
        tuple(map(visible, makers)),
        () if running else left,
    )


def _env(run: Run) -> str:
    """The environment, of a recorded command its words, of a log its format."""
    named, imported = run.config.get("env"), run.config.get("imported")
    if not isinstance(named, str):
        return f"log: {visible(str(imported.get('form', '')))}" if isinstance(imported, dict) else ""
    name, _, settings = named.partition(":")
    if name == "command":
        with suppress(ValueError, TypeError, AttributeError):
            return visible(shlex.join(json.loads(settings)["command"]))
    return visible(named)
