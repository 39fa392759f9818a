"""Makes every write call of a small job fail, one after another, and checks what is left: started by test_faults.py and full.py.

Usage: LD_PRELOAD=fault_shim.so RAMIFY_SHIM=fault_shim.so python faults.py FOLDER JOB FAULT EVERY [FIRST]. Every EVERY-th call is
struck, by each fault of FAULT (several are joined by +). The job runs in forked children, so that a fault costs milliseconds and
not a start of Python. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fault_jobs as jobs
from kill_table import VERBS

FAULTS = {"count": 0, "full": 1, "io": 2, "io-ever": 3, "kill": 4}
JOBS: dict[str, Callable[[], jobs.Job]] = {"store": jobs.Store, "checkpoint": jobs.Checkpoint}
JOBS |= {verb.name: partial(replace, verb) for verb in VERBS}
SHIM = os.environ.get("RAMIFY_SHIM", "")
END_S = 30
"""Seconds within which the processes that a killed job started must have ended."""


def arm(number: int, fault: str, folder: Path) -> None:
    """From now on this process's writes under ``folder`` are counted, and the chosen one fails."""
    ctypes.CDLL(SHIM).fault_arm(ctypes.c_long(number), FAULTS[fault], str(folder).encode())


def calls() -> int:
    """How many calls there were since :func:`arm`."""
    shim = ctypes.CDLL(SHIM)
    shim.fault_calls.restype = ctypes.c_long
    return int(shim.fault_calls())


def run(
    job: jobs.Job, folder: Path, number: int = 0, fault: str | None = None, wait: float | None = None
) -> tuple[int, list[str], str, int]:
    """Exit code (negative: killed), promises, standard error and number of calls of the job in a child process.

    ``wait``: seconds after which it is killed. What it started itself must end with it.
    """
    reading, writing = os.pipe()
    said, counted = folder.parent / "said", folder.parent / "counted"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setpgrp()
            os.close(reading)
            jobs.promise_on(writing)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            sys.stdout, sys.stderr = Path(os.devnull).open("w"), said.open("w")  # noqa: SIM115
            os.dup2(sys.stderr.fileno(), 2)  # of what it starts
            if fault is not None:
                arm(number, fault, folder)
            code = job.act(folder)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            counted.write_text(str(calls() if fault is not None else 0))
            os._exit(code)
    os.close(writing)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reading) as pipe:
        promised = pipe.read().splitlines()
    _all_end(child)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return code, promised, said.read_text(), 0 if code < 0 else int(counted.read_text())


def _all_end(group: int) -> None:
    """Wait for the processes of a job that is gone. Raises AssertionError where one lives on."""
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    raise AssertionError(f"a process that the job started lived on for {END_S} s")


def strike(job: jobs.Job, root: Path, before: Path, number: int, fault: str, wanted: Any) -> None:
    """One fault: what it leaves is whole, and the job done again ends as if nothing had been."""
    folder = root / "work"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(before, folder)
    job.start()
    code, promised, said, made = run(job, folder, number, fault)
    where = f"{job.name}: {fault} at call {number}: exit {code}: {said}"
    assert not any(words in said for words in ("Traceback", "Exception ignored")), where
    if fault == "kill":
        assert code == -signal.SIGKILL or (code == 0 and made < number), where  # 0: fewer calls than when they were counted
    else:
        readonly = (
            code == 2 and "attempt to write a readonly database" in said
        )  # what SQLite says of a disk that fails as it opens its log
        assert code in (0, 1) or readonly, where  # 0: the call was one that the job can do without
        sentences = [line for line in said.splitlines() if line.startswith("ramify: ")]
        assert (len(sentences), said.count("\n")) == ((1, 1) if code else (0, 0)), where
    try:
        job.check(folder, promised)
        if code != 0:  # what is done is not done again: after a fork that ended, the same command samples anew
            code, _, said, _ = run(job, folder)
        assert code == 0, f"again: exit {code}: {said}"
        assert job.digest(folder) == wanted, "the result is another"
    except Exception as error:
        raise AssertionError(f"{where}\n{type(error).__name__}: {error}") from error


def main(root: Path, name: str, fault: str, every: int, first: int = 1) -> None:
    job = JOBS[name]()
    before = root / "before"
    before.mkdir(parents=True)
    job.prepare(before)
    undisturbed = root / "warm"
    shutil.copytree(before, undisturbed)
    with contextlib.redirect_stdout(io.StringIO()):
        assert job.act(undisturbed) == 0  # in this process: the children then need import nothing
    shutil.rmtree(undisturbed)
    undisturbed = root / "work"
    shutil.copytree(before, undisturbed)
    code, _, said, total = run(job, undisturbed, 0, "count")
    assert code == 0, said
    assert total > 0
    wanted = job.digest(undisturbed)
    job.start()
    job.check(undisturbed, [])
    struck = range(first, total + 1, every)
    for one in fault.split("+"):
        for number in struck:
            strike(job, root, before, number, one, wanted)
    print(json.dumps({"job": name, "fault": fault, "calls": total, "struck": len(struck)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
