"""Faults of the environment: a writer killed at any instant, a disk that refuses. Committed records stay, every run opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cut_off import cut_off

from ramify.trace.db import Run

HARNESS = Path(__file__).with_name("kill_harness.py")


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_at_random_instants(tmp_path: Path, kills: int) -> None:
    done = subprocess.run([sys.executable, str(HARNESS), str(tmp_path / "run"), str(kills), "5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed, promised = map(int, done.stdout.split())
    assert killed == kills <= promised


@pytest.mark.parametrize("size", [0, 100, 4096, 40_000])
def test_a_run_is_there_whole_or_not_at_all(tmp_path: Path, size: int) -> None:
    """So that whoever finds its file may continue with it."""
    assert cut_off(size, lambda: Run.create(tmp_path / "run", {"seed": 1}))
    assert not (tmp_path / "run" / "run.sqlite").exists()
    Run.create(tmp_path / "run", {"seed": 1}).close()
    assert not list((tmp_path / "run").glob(".part-*"))


FULL = """
import resource, sys
import numpy as np
from ramify.base.errors import RamifyError
from ramify.trace.db import Run
from ramify.trace.node import make_node

run = Run.open(sys.argv[1], write=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
run.add_tree("t", {})
node = make_node("t", None, 0, "root", "")
run.add(node)
try:
    try:
        for i in range(100_000):
            run.add(make_node("t", node.id, 0, "user", "x" * 1000, index=i))
            if i % 50 == 49:
                run.commit()
                print(i + 2, flush=True)
    except RamifyError as error:
        print("error:", error, flush=True)
    try:
        run.add(make_node("t", node.id, 0, "user", "late"))
    except RamifyError as error:
        print("again:", error, flush=True)
    try:
        run.put_blob(bytes(10**7))
    except RamifyError as error:
        print("blob:", error, flush=True)
finally:
    run.close()
"""


@pytest.mark.parametrize("limit", [300_000, 1_000_000])
def test_a_full_disk_keeps_what_was_committed(tmp_path: Path, limit: int) -> None:
    Run.create(tmp_path / "run", {}).close()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "run"), str(limit)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    committed = [int(line) for line in lines if line.isdigit()]
    assert committed
    for start in ("error: cannot write to", "again: cannot write to", "blob: cannot write to"):
        assert any(line.startswith(start) and str(tmp_path) in line for line in lines), lines
    with Run.open(tmp_path / "run", write=True) as run:
        assert len(run) >= committed[-1]
        assert next(run._rows("PRAGMA integrity_check")) == ("ok",)
        run.add_tree("more", {})  # and it can continue
    assert not list((tmp_path / "run").glob("**/.part-*"))


BLOB = """
import resource, sys
from ramify.base.errors import RamifyError
from ramify.trace.db import Run
with Run.open(sys.argv[1], write=True) as run:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        run.put_blob(bytes(10**6))
    except RamifyError as error:
        print(error)
"""


def test_a_blob_that_does_not_fit(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {}).close()
    done = subprocess.run([sys.executable, "-c", BLOB, str(tmp_path / "run")], capture_output=True, text=True, timeout=110)
    assert done.stdout.startswith("cannot store a blob of 1000000 bytes"), done.stderr
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "blobs" in path.parts] == []
