"""Faults of the world: a writer killed at any instant, a disk that refuses. Committed records stay, every run opens."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ramify.trace.db import Run

WRITER = """
import sys
import numpy as np
from ramify.trace.db import Run
from ramify.trace.node import Mark, Stream, Verdict, make_node

folder, start = sys.argv[1], int(sys.argv[2])
run = Run.open(folder, write=True)
for rollout in range(start, 10**9):
    tree = f"task-{rollout // 8}"
    run.add_tree(tree, {"id": rollout // 8})
    node = make_node(tree, None, 0, "root", "")
    run.add(node)
    ids = []
    for turn in range(4):
        node = make_node(tree, node.id, len(node), "assistant", "x" * 50, tokens=np.arange(50), sampled=np.ones(50, bool),
                         logprobs=np.zeros(50), index=rollout)
        ids.append(node.id)
        run.add(node, Stream(node.id, "entropy", "m", np.zeros(50)))
    run.add(Verdict(node.id, "env", 1.0, judges={"env": "e"}))
    run.log("rollout", str(rollout))
    run.commit()
    print(rollout, *ids, flush=True)
"""


def test_killed_at_random_instants(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {}).close()
    rng = random.Random(5)
    promised: dict[int, list[str]] = {}
    killed = 0
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "run"), str(max(promised, default=-1) + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        lines = [child.stdout.readline()]  # it writes now
        time.sleep(rng.random() * 0.05)
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        killed += child.wait() == -signal.SIGKILL
        child.stdout.close()
        for line in lines:
            if line.endswith("\n"):
                number, *ids = line.split()
                promised[int(number)] = ids
        with Run.open(tmp_path / "run") as run:
            stored = set(run.columns(["id"])["id"].tolist())
            assert all(node in stored for ids in promised.values() for node in ids)
            done = [int(entry.key) for entry in run.journal("rollout")]
            assert set(promised) <= set(done)
            assert len(run.verdicts()) == len(done)  # a rollout is there whole or not at all
            assert len(stored) == 4 * len(done) + len(run.trees())
            assert next(run._rows("PRAGMA integrity_check")) == ("ok",)
    assert killed == 20
    assert len(promised) >= 20


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
        [sys.executable, "-c", FULL, str(tmp_path / "run"), str(limit)], capture_output=True, text=True, timeout=60
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
        run.add_tree("more", {})  # and it can go on
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
    done = subprocess.run([sys.executable, "-c", BLOB, str(tmp_path / "run")], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("cannot store a blob of 1000000 bytes"), done.stderr
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "blobs" in path.parts] == []
