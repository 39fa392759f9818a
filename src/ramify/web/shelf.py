"""The runs of a folder, each read cheaply: its state, success, tokens, agent and environment, and what was left off in it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ramify.base.errors import RamifyError, UserError
from ramify.jobs.context.ask import MAKER as CAUSE
from ramify.jobs.results import Evaluation
from ramify.jobs.summary import counted
from ramify.jobs.why.findings import MAKER as WHY
from ramify.render.escape import visible
from ramify.render.svg import clip
from ramify.stats.intervals import Interval
from ramify.trace.connect import FILE, LOCK
from ramify.trace.db import Run
from ramify.trace.outcome import settled
from ramify.trace.schema import stored
from ramify.web.way import model_of, run_name

DEPTH = 3
"""Folders below the one that is looked through, down to a run."""
MOST_FOLDERS = 20_000
"""Folders that are looked through at most."""
MOST_TEXT = 60
"""Characters of a model's or an environment's name."""
LOCKS = Path("/proc/locks")
"""Where the kernel lists the locks of files; without it no run is said to be running."""
State = Literal["finished", "stopped", "running", "damaged"]
STATES: dict[State, str] = {
    "running": "a process is writing to it now",
    "stopped": "it was begun and is not done; the command continues it",
    "damaged": "it cannot be read",
    "finished": "nothing is left to do",
}


@dataclass(frozen=True, slots=True)
class LeftOff:
    """Work that was begun in a run and did not end."""

    what: str
    command: str
    """Continues it; empty where the same command does, with the settings that it had."""


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
    _known: dict[Path, tuple[object, ListedRun]] = field(default_factory=dict)

    def runs(self) -> list[ListedRun]:
        """Every run, the last changed first."""
        writers = _writers()
        folders = [self.only] if self.only is not None else list(self._folders())
        rows = [row for folder in folders if (row := self._row(folder, writers)) is not None]
        self._known = {row.folder: self._known[row.folder] for row in rows}
        return sorted(rows, key=lambda row: (-row.changed, row.name))

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

    def _row(self, folder: Path, writers: set[int]) -> ListedRun | None:
        """What is known of a run, read again where its file has changed; None where it was deleted meanwhile."""
        try:
            files = [(known.st_mtime_ns, known.st_size) for known in _stats(folder)]
            running = _inode(folder / LOCK) in writers
        except OSError:
            return None
        mark = (files, running)
        known = self._known.get(folder)
        if known is None or known[0] != mark:
            known = self._known[folder] = (mark, read_row(folder, self.name_of(folder), running, files[0][0] / 1e9))
        return known[1]


def _stats(folder: Path) -> Iterator[os.stat_result]:
    yield (folder / FILE).stat()
    with suppress(FileNotFoundError):
        yield (folder / f"{FILE}-wal").stat()


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
        return ListedRun(name, folder, changed, "damaged", trouble=visible(str(error)))


def _read(run: Run, name: str, running: bool, changed: float) -> ListedRun:
    evals = run.memo("eval", Evaluation)
    held_out = evals.get("after") or evals.get("before")
    attempts = None if held_out else counted(run, settled(run))[0]
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


def left_off(run: Run) -> Iterator[LeftOff]:
    """What was begun in a run and is not done: the run itself, then verbs about it."""
    named = shlex.quote(run_name(run))
    kept = run.makers()
    resumed = LeftOff(f"ramify {run.kind}", f"ramify resume {named}")
    if run.kind == "improve":
        if not run.journal("result", "improve"):
            yield resumed
    elif run.kind in ("rollout", "record"):
        c = run.config
        tasks = int(c.get("count", 1)) if c.get("tasks") is None else len(run.trees())
        if len(run.journal("attempt")) < tasks * int(c.get("attempts", 1)):
            yield resumed
    elif run.kind == "rollout --tree":
        if not run.journal("tree"):
            yield resumed
    elif " " in run.kind and run.kind not in (*kept, "serve --record") and not run.kind.startswith("orchestrator "):
        yield LeftOff(f"ramify {run.kind}", "")
    asked = {run.node(found.node).tree for found in run.findings(maker=WHY) if found.node is not None}
    for tree, purpose, _ in run.purposes():
        if purpose.startswith(f"{WHY} ") and not purpose.startswith(CAUSE) and tree not in asked:
            asked.add(tree)
            yield LeftOff("ramify why", f"ramify why {named} {shlex.quote(visible(tree))}")
    if run.journal(CAUSE) and not run.findings(maker=CAUSE):
        yield LeftOff("ramify why --context", f"ramify why {named} --context")
    if "fix" not in kept and any(entry.key.startswith("fix/") for entry in run.journal("fork")):
        yield LeftOff("ramify fix", f"ramify fix {named} --rule 'TEXT'")
