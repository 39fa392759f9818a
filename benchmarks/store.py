"""What the record store costs: writing, reading, opening, erasing, and memory as a run grows.

    python benchmarks/store.py [--rollouts 200000] [--json]

Each part runs in a process of its own, so that its peak memory is its own. CPU time is that of the process (user and system),
wall time depends on what else the machine does. A rollout here is one tree leaf of four nodes of 100 tokens (a given prompt and
three sampled turns) with log-probs, mask and ends, and the record of its attempt; prompts are shared by the eight rollouts of a
task.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Node, Score, make_node

TOKENS, TURNS, GROUP = 100, 3, 8


class Clock:
    """CPU and wall seconds of a block."""

    def __enter__(self) -> Clock:
        self.cpu, self.wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu, self.wall = time.process_time() - self.cpu, time.perf_counter() - self.wall


def nodes_of(rollout: int, tokens: np.ndarray, logprobs: np.ndarray) -> list[Node]:
    """The nodes of one rollout, fresh arrays each."""
    tree, text, ends = f"task-{rollout // GROUP}", "word " * TOKENS, np.arange(5, 5 * TOKENS + 1, 5, dtype=np.int32)
    mask = np.ones(TOKENS, bool)
    node = make_node(tree, None, 0, "user", text, tokens=tokens, ends=ends)
    nodes = [node]
    for turn in range(TURNS):
        node = make_node(
            tree, node.id, TOKENS, "assistant", text, tokens=np.roll(tokens, turn + rollout), sampled=mask,
            logprobs=logprobs, ends=ends, index=rollout, stop="eos",
        )  # fmt: skip
        nodes.append(node)
    return nodes


def write(folder: Path, rollouts: int) -> dict[str, float]:
    """Write ``rollouts``; makes nodes, their ids and rows, all counted."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 500, TOKENS, dtype=np.int32)
    logprobs = -rng.random(TOKENS, dtype=np.float32)
    with Clock() as making:
        for rollout in range(2000):
            nodes_of(rollout, tokens, logprobs)
    with Run.create(folder, {}) as run, Clock() as clock:
        for rollout in range(rollouts):
            if rollout % GROUP == 0:
                run.add_tree(f"task-{rollout // GROUP}", {"id": rollout // GROUP})
            nodes = nodes_of(rollout, tokens, logprobs)
            run.add(*nodes, AttemptRecord(nodes[-1].id, nodes[-1].tree, index=rollout, outcome=True, reward=1.0))
        run.commit()
        count = len(run)
    made = making.cpu / (2000 * (1 + TURNS))
    size = (folder / "run.sqlite").stat().st_size / count
    return {
        "nodes": count,
        "write nodes/CPU-s": count / clock.cpu,
        "write nodes/s": count / clock.wall,
        "make_node us": made * 1e6,
        "bytes/node": size,
    }


def read(folder: Path, _: int) -> dict[str, float]:
    """All nodes as columns, four arrays a node: first with cold memory, then again."""
    with Run.open(folder) as run:
        out = {}
        for when in ("first", "second"):
            with Clock() as clock:
                columns = run.columns(["tokens", "sampled", "logprobs", "ends"])
            n = len(columns["rows"]) - 1
            del columns
            out |= {f"read nodes/CPU-s, {when}": n / clock.cpu, f"read nodes/s, {when}": n / clock.wall}
    return out


def paths(folder: Path, _: int) -> dict[str, float]:
    """Open the run afresh and one path of it, for 50 nodes anywhere in it;
    then resume (open for writing and list what is done)."""
    with Run.open(folder) as run:
        ids = [row[0] for row in run._rows("SELECT id FROM nodes WHERE seq % (1 + (SELECT count(*) FROM nodes) / 50) = 1")]
    times = []
    for node in ids:
        with Clock() as clock, Run.open(folder) as run:
            assert len(run.path(node).tokens) % TOKENS == 0
        times.append(clock.wall * 1e3)
    with Clock() as start, Run.open(folder, write=True) as run:
        names = {tree.name for tree in run.trees()}
        run.journal()
    assert names
    return {"open a path ms, median": float(np.median(times)), "open a path ms, worst": max(times), "resume start s": start.wall}


def erase(folder: Path, rollouts: int) -> dict[str, float]:
    """Give the nodes scores of ten judges, 5 a rollout (10^6 at 200,000 rollouts), and erase one judge of ten."""
    with Run.open(folder, write=True) as run:
        ids = [row[0] for row in run._rows("SELECT id FROM nodes LIMIT ?", max(1, rollouts // 2))]
        with Clock() as clock:
            for node in ids:
                run.add(*(Score(node, f"scorer-{j}", 0.5, judges={"main": f"judge-{j}"}) for j in range(10)))
            run.commit()
        with Clock() as erasing:
            erased = run.erase_judge("judge-3")
    assert erased == len(ids)
    return {
        "scores": 10 * len(ids),
        "write scores/CPU-s": 10 * len(ids) / clock.cpu,
        "erase one of ten CPU-s": erasing.cpu,
        "erase one of ten s": erasing.wall,
    }


PARTS: dict[str, Callable[[Path, int], dict[str, float]]] = {"write": write, "read": read, "paths": paths, "erase": erase}


def peak_mib() -> float:
    """Peak memory of this process; unlike ru_maxrss it does not count what the parent had before the exec."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def measure(part: str, folder: Path, rollouts: int) -> dict[str, float]:
    """Run one part in a child process; adds its peak memory."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder), "--rollouts", str(rollouts)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.part:
        figures = PARTS[args.part](args.folder, args.rollouts)
        print(json.dumps(figures | {"peak MiB": peak_mib()}))
        return
    table: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        tenth = measure("write", Path(name) / "tenth", args.rollouts // 10)
        table["write peak MiB at a tenth"] = tenth["peak MiB"]
        for part in PARTS:
            figures = measure(part, Path(name) / "run", args.rollouts)
            table |= {(f"{part} {key}" if key == "peak MiB" else key): value for key, value in figures.items()}
    if args.json:
        print(json.dumps({"rollouts": args.rollouts} | {key: round(value, 4) for key, value in table.items()}))
        return
    for key, value in table.items():
        print(f"{key:32s} {value:14,.2f}")


if __name__ == "__main__":
    main()
