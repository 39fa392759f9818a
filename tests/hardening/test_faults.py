"""A disk that is full, that fails, a process killed in the middle of a write:
at write calls of every small job, one after another.

The default run strikes a few calls of each kind, the slow one more; ``full.py`` strikes every single one (its figures
are in ``repro/hardening.json``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FAST = [("store", "full+kill", 71)]
SLOW = [
    ("store", "full+io+io-ever+kill", 7),
    *[("import", "full+io+kill", 17), ("import", "io-ever", 37)],
    *[(f"export-{form}", "full+kill", 4) for form in ("jsonl", "parquet", "dot", "html")],
    ("checkpoint", "full+io+kill", 5),
    *[("rollout", "kill", 31), ("fork", "full", 61), ("improve", "full+kill", 197)],
]


def build_shim(folder: Path) -> Path:
    """The preloaded library that makes calls fail, compiled; skips where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("NOT CHECKED: no C compiler, so NO WRITE CALL WAS MADE TO FAIL")
    shim = folder / "fault_shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", shim, HERE / "fault_shim.c", "-ldl"], check=True)
    return shim


def environment(shim: Path | None) -> dict[str, str]:
    """Of a harness: one thread, everything it imports, and the preloaded library where there is one."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **settings, **({} if shim is None else {"LD_PRELOAD": str(shim), "RAMIFY_SHIM": str(shim)})}


def preloaded(folder: Path | None) -> dict[str, str]:
    """The environment of a harness that also strikes in the middle of writes,
    where there is a compiler and a ``folder`` for it."""
    there = shutil.which("gcc") or shutil.which("cc")
    return environment(build_shim(folder) if there and folder is not None else None)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def strike(shim: Path, folder: Path, job: str, fault: str, every: int, first: int = 1) -> dict:
    """Figures of one campaign; raises where a fault left what it must not."""
    done = subprocess.run(
        [sys.executable, str(HERE / "faults.py"), str(folder / "faults"), job, fault, str(every), str(first)],
        capture_output=True, text=True, env=environment(shim),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("job", "fault", "every"), FAST)
def test_old_or_new_never_neither(shim: Path, tmp_path: Path, job: str, fault: str, every: int) -> None:
    figures = strike(shim, tmp_path, job, fault, every)
    assert figures["struck"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("job", "fault", "every"), SLOW)
def test_old_or_new_never_neither_everywhere(shim: Path, tmp_path: Path, job: str, fault: str, every: int) -> None:
    figures = strike(shim, tmp_path, job, fault, every, first=3)
    assert figures["struck"] >= 3


def test_the_shim_hits_sqlite_too(shim: Path, tmp_path: Path) -> None:
    code = (
        "import ctypes, os, sqlite3, sys\n"
        "shim = ctypes.CDLL(os.environ['LD_PRELOAD']); shim.fault_arm(ctypes.c_long(4), 1, sys.argv[1].encode())\n"
        "sqlite3.connect(sys.argv[1] + '/x.db').execute('CREATE TABLE t (a)')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(shim)}
    )
    assert "sqlite3.OperationalError: disk I/O error" in done.stderr
