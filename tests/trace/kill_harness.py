"""Kills a writer at random instants and checks the run after each: started by test_crash.py, in a process without threads.

Usage: kill_harness.py FOLDER KILLS SEED. The writer is forked, so that a kill costs milliseconds and not a start of Python.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import numpy as np

from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Score, TokenValues, make_node


def write(folder: str, start: int, promises: int) -> None:
    """Write rollouts for ever; promise each on the pipe once it is committed."""
    run = Run.open(folder, write=True)
    for rollout in range(start, 10**9):
        tree = f"task-{rollout // 8}"
        run.add_tree(tree, {"id": rollout // 8})
        node = make_node(tree, None, 0, "root", "")
        run.add(node)
        ids = []
        for _ in range(4):
            node = make_node(
                tree, node.id, len(node), "assistant", "x" * 50, tokens=np.arange(50), sampled=np.ones(50, bool),
                logprobs=np.zeros(50), index=rollout,
            )  # fmt: skip
            ids.append(node.id)
            run.add(node, TokenValues(node.id, "entropy", "m", np.zeros(50)))
        run.add(
            Score(node.id, "env", 1.0, judges={"env": "e"}), AttemptRecord(node.id, tree, index=rollout, outcome=True, reward=1.0)
        )
        run.log("rollout", str(rollout))
        run.commit()
        os.write(promises, f"{rollout} {' '.join(ids)}\n".encode())


def kill_one(folder: str, start: int, wait: float) -> dict[int, list[str]]:
    """Fork a writer, kill it after its first promise and ``wait`` seconds; returns what it promised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write(folder, start, writing)
    os.close(writing)
    text = os.read(reading, 1 << 16)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    while piece := os.read(reading, 1 << 16):
        text += piece
    os.close(reading)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    whole = [line.split() for line in text.decode().splitlines(keepends=True) if line.endswith("\n")]
    return {int(number): ids for number, *ids in whole}


def check(folder: str, promised: dict[int, list[str]]) -> None:
    """Everything promised is there, and every rollout is there whole or not at all."""
    with Run.open(folder) as run:
        stored = set(run.columns(["id"])["id"].tolist())
        assert all(node in stored for ids in promised.values() for node in ids)
        done = {int(entry.key) for entry in run.journal("rollout")}
        assert set(promised) <= done
        assert len(run.scores()) == len(done)
        assert {one.index for one in run.attempts()} == done
        assert len(run.token_values()) == 4 * len(done)
        assert len(stored) == 4 * len(done) + len(run.trees())
        assert next(run._rows("PRAGMA integrity_check")) == ("ok",)


def main(folder: str, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    Run.create(folder, {}).close()
    promised: dict[int, list[str]] = {}
    for _ in range(kills):
        promised |= kill_one(folder, max(promised, default=-1) + 1, rng.random() * 0.03)
        check(folder, promised)
    print(kills, len(promised))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
