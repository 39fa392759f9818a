"""Time of step credit, in CPU-seconds of one core.

    python benchmarks/credit.py [--repeats 5] [--json]

``rule``: 128 attempts x 50 steps, text keys to advantages. The others are about 1,000 attempts x 50 steps (20 tasks, 10^6 sampled
tokens) in a run on disk. ``read``: the stored trees become step columns with keys. ``credit``: keys, merging, credit, the credit
of every token and the numbers behind every step written to the store and committed:
what a training job does, which has the nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from ramify.methods.graph_credit.algorithm import credit
from ramify.score.credit.protocol import CreditGroup, credit_group, find_rule
from ramify.score.steps import run_columns
from ramify.trace.db import Run
from ramify.trace.node import Score, make_node

ATTEMPTS, STEPS, TASKS, TOKENS = 1000, 50, 20, 20


def cpu(work: Callable[[], Any]) -> dict[str, float]:
    """CPU- and wall-seconds of one call."""
    wall, start = time.perf_counter(), time.process_time()
    work()
    return {"cpu": time.process_time() - start, "wall": time.perf_counter() - wall}


def rule() -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    n = 128 * 50
    keys = [f"You are in room {k}. You see a door and a key." for k in rng.integers(0, 60, n)]
    task, attempt, step = np.repeat(np.arange(16), 400), np.repeat(np.arange(128), 50), np.tile(np.arange(50), 128)
    reward = np.where(step == 49, rng.random(n) < 0.3, 0.0)
    return lambda: credit(task, attempt, step, keys, reward)


def fill(folder: Path) -> None:
    """Write the run that ``store`` credits: flat attempts, an observation with a state key after every reply."""
    rng = np.random.default_rng(0)
    tokens, sampled = np.arange(TOKENS + 2, dtype=np.int32), np.arange(TOKENS + 2) > 1
    with Run.create(folder, {}) as run:
        for task in range(TASKS):
            tree = f"t{task}"
            run.add_tree(tree, {"id": tree}, "g")
            root = make_node(tree, None, 0, "user", "start", tokens=tokens[:4], state_key="s0")
            nodes = [root]
            for index in range(ATTEMPTS // TASKS):
                last = root
                for step in range(STEPS):
                    reply = make_node(
                        tree, last.id, len(last), "assistant", "continue", tokens=tokens, sampled=sampled, index=index
                    )
                    end = step == STEPS - 1
                    reward = float(rng.random() < 0.3) if end else 0.0
                    last = make_node(
                        tree, reply.id, len(reply), "user", "a place", tokens=tokens[:4], reward=reward,
                        state_key=f"s{rng.integers(0, 100)}", stop="terminated" if end else "",
                    )  # fmt: skip
                    nodes += [reply, last]
                run.add(*nodes)
                nodes = []
                run.add(Score(last.id, "env", last.reward))


def read(folder: Path) -> None:
    with Run.open(folder) as run:
        run_columns(run, "g")


def prepare(folder: Path) -> Callable[[], Any]:
    """What a training job holds anyway: the nodes and who took which step."""
    with Run.open(folder) as run:
        known = CreditGroup.of(run, "g")

    def work() -> None:
        group = CreditGroup(known.columns, known.reward, known.success, known.nodes)
        with Run.open(folder, write=True) as run, run.transaction():
            credit_group(run, find_rule("g2po"), group)

    return work


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    out = {}
    with tempfile.TemporaryDirectory() as scratch:
        fill(Path(scratch) / "run")
        folder = Path(scratch) / "run"
        for name, work in (("rule", rule()), ("read", lambda: read(folder)), ("credit", prepare(folder))):
            times = [cpu(work) for _ in range(args.repeats)]
            out[name] = {kind: round(statistics.median(t[kind] for t in times), 3) for kind in ("cpu", "wall")}
    print(json.dumps(out) if args.json else "\n".join(f"{k:8} {v['cpu']:.3f} CPU-s  {v['wall']:.3f} s" for k, v in out.items()))
