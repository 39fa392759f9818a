"""What grading costs: python benchmarks/implicit_advantage.py [--save].

Time: ``AdvantageScorer.score_many`` beside the least that can be done, the same rows through both modules in batches of the same
size, log-softmax, gather. Both run in turn in one process; the ratio of CPU times counts. Memory: the peak of a process that
grades one attempt, above what it held once the models were loaded, beside the T x V table in fp32 that is never made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from common import save, spread

from ramify.engine.local import SCORE_TOKENS, LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.implicit_advantage import AdvantageScorer
from ramify.model.pair import Pair
from ramify.score.trajectories import Trajectory, trajectory

#: vocabulary, width, layers, tokens of an attempt, attempts
TIMES = ((200, 64, 2, 60, 256), (1000, 128, 4, 200, 64), (8000, 256, 4, 500, 8), (32000, 512, 4, 500, 4))
MEMORY = ((8_000, 1024), (8_000, 4096), (64_000, 1024), (64_000, 4096))


def models(vocab: int, width: int, layers: int) -> tuple[LocalModel, LocalModel]:
    heads = width // 32
    shape = TinyConfig(vocab, width, layers, heads, heads, 32, 3 * width, context=8192)
    return LocalModel(TinyLM(shape, 1), cache_bytes=0), LocalModel(TinyLM(shape, 2), cache_bytes=0)


def attempt(name: str, vocab: int, length: int) -> Trajectory:
    """Half of it actions, twenty tokens each."""
    ids = np.random.default_rng(len(name)).integers(0, vocab, length)
    return trajectory(name, name, [(ids[i : i + 20], i // 20 % 2 == 1) for i in range(0, length, 20)])


def plain(pair: tuple[LocalModel, LocalModel], rows: torch.Tensor) -> None:
    """Two scoring passes and nothing else."""
    step = max(1, SCORE_TOKENS // rows.shape[1])
    with torch.inference_mode():
        for model in pair:
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                F.log_softmax(model.module(part[:, :-1]), -1).gather(-1, part[:, 1:, None])


def ratio(vocab: int, width: int, layers: int, length: int, count: int, rounds: int) -> tuple[list[float], float]:
    pair = models(vocab, width, layers)
    attempts = [attempt("a" * (i + 1), vocab, length) for i in range(count)]
    rows = torch.from_numpy(np.stack([a.tokens for a in attempts]).astype(np.int64))
    scorer = AdvantageScorer(Pair(*pair))
    scorer.score_many(attempts)
    plain(pair, rows)
    ratios, ours = [], []
    for _ in range(rounds):
        start = time.process_time()
        scorer.score_many(attempts)
        middle = time.process_time()
        plain(pair, rows)
        end = time.process_time()
        ratios.append((middle - start) / (end - middle))
        ours.append(middle - start)
    return ratios, min(ours)


def memory(name: str) -> float:
    """VmRSS (now) or VmHWM (the peak), MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def grade_one(vocab: int, length: int) -> None:
    pair = models(vocab, 64, 2)
    scorer = AdvantageScorer(Pair(*pair))
    scorer.score(attempt("warm", vocab, 40))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    scorer.score(attempt("a", vocab, length))
    print(memory("VmHWM") - before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", nargs=2, type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        grade_one(*args.one)
        sys.exit()
    table = []
    for case in TIMES:
        ratios, seconds = ratio(*case, rounds=args.rounds)
        table.append(
            [f"V {case[0]}, D {case[1]}, {case[4]} attempts of {case[3]} tokens", spread(ratios), f"{seconds:.2f} s", ""]
        )
        print(table[-1], flush=True)
    for vocab, length in MEMORY:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(vocab), str(length)], capture_output=True, text=True, check=True
        )
        whole = vocab * length * 4 / 2**20
        table.append(
            [f"one attempt, V {vocab}, {length} tokens", "", "", f"{float(done.stdout):.0f} MiB (the table: {whole:.0f})"]
        )
        print(table[-1], flush=True)
    if args.save:
        columns = ["grading with a pair", "CPU, ours / two plain passes", "CPU, ours", "peak memory added"]
        note = (
            "Target: at most 1.10 of two plain passes (missed where the model is so small that bookkeeping counts); memory "
            "apart from V x T."
        )
        save("implicit_advantage", "Grading with a policy and its reference", columns, table, note)
