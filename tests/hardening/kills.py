"""Kills small runs at random instants until each is done, and compares what they end as: started by test_kills.py and full.py.

Usage: kills.py FOLDER KILLS SEED [JOB ...]. Every run is killed again and again at random instants of its work, checked after each
kill, taken up again, and at last left to end; then it must hold what an undisturbed one holds. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import fault_jobs as jobs

KINDS: dict[str, Any] = {
    "store": jobs.Store, "import": jobs.Import, "rollout": jobs.Rollout, "fork": jobs.Fork, "improve": jobs.Improve
}  # fmt: skip
KILLS_EACH = 10


def attempt(job: jobs.Job, folder: Path, wait: float | None) -> tuple[bool, list[str]]:
    """Do the job in a child process, killed after ``wait`` seconds; whether it was, and what it promised as committed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.close(reading)
            jobs.promise_on(writing)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
                code = job.act(folder)
        finally:
            os._exit(code)
    os.close(writing)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        promised = pipe.read().splitlines()
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, f"{job.name} ended with {os.WEXITSTATUS(status)}"
    return killed, promised


def one_run(job: jobs.Job, folder: Path, before: Path, seconds: float, rng: random.Random, wanted: Any, kills: int) -> int:
    """Kill one run up to ``kills`` times, then let it end; returns how often it was killed."""
    shutil.copytree(before, folder)
    promised: list[str] = []
    struck = 0
    for _ in range(kills):
        killed, said = attempt(job, folder, rng.random() * seconds)
        struck += killed
        promised += said
        job.check(folder, promised)
    attempt(job, folder, None)
    job.check(folder, promised)
    assert job.digest(folder) == wanted, f"{job.name}: the resumed run is another than the undisturbed one"
    shutil.rmtree(folder)
    return struck


def main(root: Path, kills: int, seed: int, names: list[str]) -> None:
    rng = random.Random(seed)
    total, runs, counted = 0, 0, dict.fromkeys(names, 0)
    made = {}
    for name in names:
        job, before, folder = KINDS[name](), root / name / "before", root / name / "undisturbed"
        before.mkdir(parents=True)
        job.prepare(before)
        seconds = float("inf")
        for _ in range(4):  # the first imports and compiles; the quickest is the measure: a machine may pause in any of them
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(before, folder)
            began = time.monotonic()
            with contextlib.redirect_stdout(io.StringIO()):
                assert job.act(folder) == 0
            seconds = min(seconds, time.monotonic() - began)
        made[name] = job, before, seconds, job.digest(folder)
    while total < kills:
        name = names[runs % len(names)]
        job, before, seconds, wanted = made[name]
        struck = one_run(job, root / name / f"run-{runs}", before, seconds, rng, wanted, min(KILLS_EACH, kills - total))
        counted[name] += struck
        total += struck
        runs += 1
    print(
        json.dumps({"kills": total, "runs": runs, "by kind": counted, "seed": seed, "lost": 0, "unreadable": 0, "different": 0})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(KINDS))
