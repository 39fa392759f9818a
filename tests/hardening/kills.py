"""Kills small jobs of every kind until each was struck often enough, and compares what they end as:
started by test_kills.py and full.py.

Usage: kills.py FOLDER KILLS SEED [JOB ...]. A job is killed at a random instant of its work or, where the library of faults is
preloaded (faults.py), every second time in the middle of a random write call; checked after each kill, taken up again, and at
last left to end; then it must hold what an undisturbed one holds. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fault_jobs as jobs
from faults import JOBS, SHIM, run

EACH, TRIES = 4, 12
"""Kills of a job in one turn, and folders for it: what is nearly done may end before it is struck."""
MOST = 20
"""Problems after which it is given up."""
KINDS = [name for name in JOBS if name != "checkpoint"]


@dataclass
class Made:
    """A job with what it starts from, how long it takes, how many calls write, and what it ends as."""

    job: jobs.Job
    before: Path
    seconds: float
    calls: int
    wanted: Any


def make(name: str, root: Path) -> Made:
    """Prepare a job and do it undisturbed."""
    job, before, folder = JOBS[name](), root / name / "before", root / name / "undisturbed"
    before.mkdir(parents=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        job.prepare(before)
        if job.warm:  # the children then need import nothing
            shutil.copytree(before, folder)
            assert job.act(folder) == 0, name
            shutil.rmtree(folder)
    seconds, calls = float("inf"), 0
    for _ in range(1 + job.warm):  # the quicker is the measure: a machine may pause
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        began = time.monotonic()
        code, _, said, calls = run(job, folder, 0, "count" if SHIM else None)
        seconds = min(seconds, time.monotonic() - began)
        assert code == 0, (name, said)
    wanted = job.digest(folder)
    job.start()
    job.check(folder, [])
    return Made(job, before, seconds, calls, wanted)


def one_run(made: Made, folder: Path, rng: random.Random, kills: int) -> tuple[int, int]:
    """Kill a job up to ``kills`` times, then let it end; returns how often at an instant, and how often in a write call.

    What ended before it was struck is compared, and the job begun anew.
    """
    struck = [0, 0]
    for _ in range(TRIES):
        if sum(struck) < kills:
            strike_once(made, folder, rng, kills, struck)
    return struck[0], struck[1]


def strike_once(made: Made, folder: Path, rng: random.Random, kills: int, struck: list[int]) -> None:
    """One folder: kill the job in it until it ends or was killed often enough, then compare."""
    job, promised, ended, where = made.job, [], False, made.job.name
    shutil.copytree(made.before, folder)
    job.start()
    try:
        while sum(struck) < kills and not ended:
            in_call = bool(SHIM) and made.calls > 0 and rng.random() < 0.5
            number, wait = rng.randint(1, made.calls) if in_call else 0, None if in_call else rng.random() * made.seconds
            where = f"{job.name}, killed {f'at call {number} of {made.calls}' if in_call else f'after {wait:.4f} s'}"
            code, said, errors, _ = run(job, folder, number, "kill" if in_call else None, wait)
            assert code in (0, -signal.SIGKILL), errors
            struck[in_call] += code != 0
            promised += said
            job.check(folder, promised)
            ended = code == 0 or job.finished()
        if not (ended and job.repeats):
            code, _, errors, _ = run(job, folder)
            assert code == 0, f"called again: exit {code}: {errors}"
            job.check(folder, promised)
        assert job.digest(folder) == made.wanted, "what it ends as is another than the undisturbed one"
    except Exception as error:
        raise AssertionError(f"{where} ({struck} kills so far): {type(error).__name__}: {error}") from error
    shutil.rmtree(folder)


def main(root: Path, kills: int, seed: int, names: list[str]) -> None:
    total, runs, by_kind = [0, 0], 0, dict.fromkeys(names, 0)
    made = {name: make(name, root) for name in names}
    each, problems = min(EACH, -(-kills // len(names))), list[str]()
    while sum(total) < kills and len(problems) < MOST:
        name = names[runs % len(names)]
        try:
            struck = one_run(
                made[name], root / name / f"run-{runs}", random.Random(f"{seed} {runs}"), min(each, kills - sum(total))
            )
        except AssertionError as error:
            problems.append(str(error))
            struck = 0, 0
        by_kind[name] += sum(struck)
        total = [a + b for a, b in zip(total, struck, strict=True)]
        runs += 1
    counts = {
        "kills": sum(total),
        "at instants": total[0],
        "in write calls": total[1],
        "runs": runs,
        "by kind": by_kind,
        "seed": seed,
    }
    if problems:
        raise SystemExit("\n".join(problems))
    print(json.dumps({**counts, "lost": 0, "unreadable": 0, "different": 0}))


if __name__ == "__main__":
    os.setpgrp()
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or KINDS)
