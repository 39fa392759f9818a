"""The queue of a folder of runs: acts as processes of their own, one at a time, whoever asks for them.

A job is a folder ``.jobs/N`` of files, so it survives its server. Who works on it holds a lock that its process holds, too: a job
that has no end and whose lock is free was killed, and continues when it is started again, as the verbs do.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ramify.base import codec
from ramify.base.attended import REASONS, RESULT, STATE, STOP, VARIABLE
from ramify.base.errors import EXIT_BUDGET, EXIT_DONE, EXIT_INTERRUPTED, RamifyError, UserError
from ramify.base.files import cache_folder, read_record, refusal, write_whole
from ramify.jobs.acts import Act, ActLimits
from ramify.render.result import Section, from_data

JOBS = ".jobs"
JOB, END, LOCK, OUT, LOG = "job.json", "end.json", "lock", "out.txt", "log.txt"
KEY = "jobs-key"
LOOK = 0.1
"""Seconds between two looks at a process, or at whose turn it is."""
PATIENCE = 10.0
"""Seconds that a job has to end in once it was stopped; then it is killed."""
MOST_WAITING = 50
MOST_SHOWN = 64 << 10
"""Bytes of a job's output that are shown."""
LATEST = 1e11
"""Seconds since 1970 that a job may have been asked for at most."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """An act in the queue."""

    number: int
    act: str
    run: str
    title: str
    words: tuple[str, ...]
    attempts: int
    tokens: int
    seconds: int
    asked: float
    """When, as seconds since 1970."""
    seal: str = ""
    """That it was asked for here, under a key that no folder holds: a job that came with somebody else's folder is not
    continued."""

    def sealed(self) -> str:
        """What :attr:`seal` has to be."""
        said = json.dumps({name: value for name, value in asdict(self).items() if name != "seal"}, sort_keys=True)
        return hmac.digest(_key(), said.encode(), "sha256").hex()


@dataclass(frozen=True, slots=True)
class JobState:
    """How far a job is."""

    job: QueuedJob
    state: Literal["waiting", "running", "done", "failed", "stopped"]
    note: str = ""
    """How it goes, in the words of its command; at its end why it ended."""
    done: float = 0
    total: float = 0
    unit: str = ""
    tokens: int = 0
    took: float = 0.0
    """Seconds."""

    @property
    def over(self) -> bool:
        """Whether nothing happens any more."""
        return self.state in ("done", "failed", "stopped")


class Queue:
    """The jobs of ``folder``. Those that were asked for here are done here, by one thread; :meth:`close` stops it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / JOBS
        self._waiting: deque[tuple[QueuedJob, int]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker: threading.Thread | None = None

    # -- what there is ---------------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Of all jobs, the latest first."""
        if not self.folder.is_dir():
            return []
        known = (path for path in self.folder.iterdir() if path.name.isdecimal() and (path / JOB).is_file())
        return sorted((int(path.name) for path in known), reverse=True)

    def job(self, number: int) -> QueuedJob:
        """Raises UserError where there is none."""
        path = self.folder / str(number) / JOB
        if not path.is_file():
            raise UserError(f"there is no job {number}")
        job = codec.from_json(QueuedJob, read_record(path, "the job"), str(path))
        if job.number != number or not 0 <= job.asked < LATEST:
            raise UserError(f"{path} does not hold job {number}")
        return job

    def state(self, number: int) -> JobState:
        """How far it is. Raises UserError where there is none."""
        job, folder = self.job(number), self.folder / str(number)
        path = folder / STATE
        known = JobState(job, "running" if path.is_file() else "waiting")
        try:
            told = read_record(path, "the job's progress") if path.is_file() else {}
            known = codec.from_json(JobState, {**told, "job": job, "state": known.state}, str(path))
        except UserError as error:
            known = replace(known, note=str(error))
        if not (folder / END).is_file() and not _free(folder / LOCK):
            return known
        if (folder / END).is_file():  # asked again: it is written before the lock is let go
            return _ended(known, _read(folder / END), folder)
        return replace(known, state="stopped", note="it was killed, or its server was")

    def result(self, number: int) -> tuple[tuple[Section, ...], list[str]]:
        """The sections and caveats that a job found; none where it found nothing yet. Raises UserError where they are damaged."""
        path = self.folder / str(number) / RESULT
        told = read_record(path, "the job's result") if path.exists() else {}
        caveats = codec.from_json(list[str], told.get("caveats", []), str(path))
        return from_data(told.get("sections", []), str(path)), caveats

    def log(self, number: int) -> str:
        """The last of what its command said."""
        return _last(self.folder / str(number) / LOG)

    # -- what is done ----------------------------------------------------------------------------------------------------------

    def submit(self, act: Act, budget: ActLimits) -> QueuedJob:
        """Put an act at the end. Raises UserError where too many wait, or the folder cannot be written."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                raise UserError(f"{MOST_WAITING} jobs wait already")
        try:
            return self._submit(act, budget)
        except OSError as error:
            raise refusal(f"cannot write {self.folder}", error) from error

    def _submit(self, act: Act, budget: ActLimits) -> QueuedJob:
        self.folder.mkdir(parents=True, exist_ok=True)
        number = max(self.numbers(), default=0) + 1
        while True:  # another process may take the number
            with suppress(FileExistsError):
                (self.folder / str(number)).mkdir()
                break
            number += 1
        folder = self.folder / str(number)
        act.write(folder)
        job = QueuedJob(
            number, act.name, str(act.run), act.title, tuple(act.command(folder)), act.attempts, budget.tokens, budget.seconds,
            time.time(),
        )  # fmt: skip
        job = replace(job, seal=job.sealed())
        handle = _locked(folder / LOCK)
        assert handle is not None
        try:
            write_whole(folder / JOB, json.dumps(asdict(job)))
        except RamifyError:
            os.close(handle)
            raise
        self._append(job, handle)
        return job

    def resume(self, number: int) -> None:
        """Continue a job that was stopped, with its budget anew. Raises UserError where it was not."""
        job, folder = self.job(number), self.folder / str(number)
        if not hmac.compare_digest(job.seal, job.sealed()):
            raise UserError(f"job {number} was made elsewhere: ask for it anew")
        state, handle = self.state(number).state, None
        for _ in range(10 if state in ("stopped", "failed") else 0):  # who worked on it lets go of it just after its end
            if (handle := _locked(folder / LOCK)) is not None:
                break
            time.sleep(LOOK)
        if handle is None:
            raise UserError(f"job {number} is {state}, so there is nothing to continue")
        for name in (END, STATE, STOP, RESULT):
            (folder / name).unlink(missing_ok=True)
        self._append(job, handle)

    def stop(self, number: int) -> None:
        """End a job as Ctrl-C would: what is done is kept. Raises UserError where there is none."""
        self.job(number)
        if not self.state(number).over:
            (self.folder / str(number) / STOP).touch()

    def close(self) -> None:
        """Stop what runs here, and wait for its end."""
        with self._changed:
            self._closed = True
            for job, _ in self._waiting:
                with suppress(OSError, RamifyError):  # its folder was deleted
                    self.stop(job.number)
            self._changed.notify()
        if self._worker is not None:
            self._worker.join()

    def _append(self, job: QueuedJob, handle: int) -> None:
        with self._changed:
            self._waiting.append((job, handle))
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="ramify-queue", daemon=True)
                self._worker.start()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                job, handle = self._waiting[0]
            try:
                end = self._do(job, handle)
            except (OSError, ValueError, RamifyError) as error:
                end = {"code": 1, "why": str(error)}
            with suppress(OSError, RamifyError):  # a full disk: it is shown as killed, which continues
                write_whole(self.folder / str(job.number) / END, json.dumps(end))
            os.close(handle)
            with self._changed:
                self._waiting.popleft()

    def _do(self, job: QueuedJob, handle: int) -> dict[str, Any]:
        """Wait for the turn of this process, start the job's, and wait for its end."""
        folder = self.folder / str(job.number)
        while (turn := _locked(self.folder / LOCK)) is None:
            if self._is_stopped(folder):
                return {"code": EXIT_INTERRUPTED, "why": "stopped before it began"}
            time.sleep(LOOK)
        try:
            if self._is_stopped(folder):
                return {"code": EXIT_INTERRUPTED, "why": "stopped before it began"}
            told = {"folder": str(folder), "parent": os.getpid(), "tokens": job.tokens, "seconds": job.seconds}
            environment = {name: value for name, value in os.environ.items() if name != "RAMIFY_TOKEN"}  # it is the server's
            with (folder / OUT).open("ab") as out, (folder / LOG).open("ab") as log:
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "ramify", *job.words],  # no module of the current folder instead of ours
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    env={**environment, VARIABLE: json.dumps(told), "RAMIFY_FIRST_LINE": "0.05"},
                    pass_fds=(handle, turn),  # so that both are held as long as it runs, also where this process is killed
                    start_new_session=True,  # a Ctrl-C for the server is not one for it
                )
            until = math.inf
            while child.poll() is None:
                time.sleep(LOOK)
                if self._is_stopped(folder):
                    until = min(until, time.monotonic() + PATIENCE)
                if time.monotonic() > until:
                    child.kill()
            ending = str(_read(folder / STATE).get("ending", ""))
            return {"code": child.returncode, "why": REASONS.get(ending, "")}
        finally:
            os.close(turn)

    def _is_stopped(self, folder: Path) -> bool:
        if self._closed:
            (folder / STOP).touch()
        return (folder / STOP).exists()


def _ended(known: JobState, end: Mapping[str, Any], folder: Path) -> JobState:
    code, why = end.get("code"), str(end.get("why", ""))
    if code in (EXIT_DONE, EXIT_BUDGET):
        return replace(known, state="done")
    if code == EXIT_INTERRUPTED or (isinstance(code, int) and code < 0):
        return replace(known, state="stopped", note=why or ("it was killed" if code != EXIT_INTERRUPTED else "stopped"))
    last = [line for line in _last(folder / LOG).splitlines() if line.startswith("ramify: ")]
    return replace(known, state="failed", note=why or (last[-1].removeprefix("ramify: ") if last else "it failed"))


def _key() -> bytes:
    """This user's key, made once."""
    path = cache_folder() / KEY
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        unlinked = path.with_name(f"{KEY}.{os.getpid()}")
        with os.fdopen(os.open(unlinked, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(os.urandom(32))
        with suppress(FileExistsError):  # another process was first
            os.link(unlinked, path)
        unlinked.unlink()
    return path.read_bytes()


def _last(path: Path) -> str:
    """The last :data:`MOST_SHOWN` bytes of a file, as text."""
    if not path.is_file():  # a pipe would never end
        return ""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_SHOWN))
        return file.read().decode("utf-8", "replace")
    return ""


def _read(path: Path) -> dict[str, Any]:
    """A file that may not be there yet."""
    try:
        return read_record(path, "the job's file") if path.is_file() else {}
    except UserError:
        return {}


def _locked(path: Path) -> int | None:
    """A handle on the lock; None where it is held already, by this process or another."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _free(path: Path) -> bool:
    """Whether nobody holds the lock. It writes nothing: the folder may be read-only."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
