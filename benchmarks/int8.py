"""Weights in int8 beside float32 in the local engine, and beside llama.cpp on the same file, in processor seconds of one thread.

    OMP_NUM_THREADS=1 python benchmarks/int8.py [--model smollm2] [--pairs 5] [--llama FOLDER] [--save]

As ``real.py``: prompts of 100 random tokens, new ones in every turn, all that are compared one after the other in every turn.
llama.cpp, at batch 1, is the binary that ``npm install node-llama-cpp@3.21.1`` put into FOLDER, on the GGUF file of smollm2,
whose weights take five bits. The distance is that of log-probabilities on the general texts that come with ramify.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from common import quartiles, save, spread
from real import BATCHES, NEW, PROMPT, loading, ours, prompts

from ramify.engine.checkpoints import model_folder
from ramify.engine.gguf import smollm2_file
from ramify.engine.local import LocalModel
from ramify.jobs.keep_texts import TEXTS
from ramify.train.fidelity import GeneralTexts

Spent = Callable[[np.ndarray, int], float]
"""Processor seconds to continue rows by so many tokens."""


def engine(model: LocalModel) -> Spent:
    run = ours(model)

    def spent(rows: np.ndarray, new: int) -> float:
        began = time.process_time()
        run(rows, new)
        return time.process_time() - began

    return spent


@contextmanager
def llama(folder: Path) -> Iterator[Spent]:
    command = ["node", str(Path(__file__).with_name("llama.mjs").resolve()), str(smollm2_file())]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def spent(rows: np.ndarray, new: int) -> float:
            process.stdin.write(json.dumps({"tokens": rows[0].tolist(), "new": new}) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return float(process.stdout.readline())  # type: ignore[union-attr]

        yield spent
        process.stdin.close()


def turns(peers: dict[str, Spent], batch: int, count: int, vocab: int) -> dict[str, list[tuple[float, float]]]:
    """Of each in every turn: seconds to the first tokens, and for one token more of every row."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    for spent in peers.values():
        spent(prompts(batch, 10_000, vocab), 3)
    for turn in range(count):
        for name in list(peers)[:: 1 if turn % 2 else -1]:
            first, more = (peers[name](prompts(batch, 2 * turn + part, vocab), new) for part, new in enumerate((1, 1 + NEW)))
            found[name].append((first, (more - first) / NEW))
    return found


def row_of(batch: int, name: str, times: list[tuple[float, float]], base: list[tuple[float, float]]) -> list[Any]:
    first, step = ([own[part] for own in times] for part in (0, 1))
    ratios = [[other[part] / own[part] for own, other in zip(times, base, strict=True)] for part in (0, 1)]
    speed = f"{quartiles([batch / seconds for seconds in step])[0]:.0f}"
    against = ["", ""] if times is base else [spread(ratio) for ratio in ratios]
    return [batch, name, speed, against[1], f"{quartiles(first)[0]:.2f}", against[0]]


def distance(exact: LocalModel, near: LocalModel) -> str:
    texts = GeneralTexts(exact, TEXTS)
    now = texts.measured(near.module)
    rows = [row.numpy().astype(np.int32) for row in texts.rows]
    before, after = (np.concatenate([s[1:] for s in asyncio.run(model.chosen_logprobs(rows))]) for model in (exact, near))
    apart = np.abs(before - after)
    return (
        f"On {texts.tokens} tokens of general texts: KL {now.kl:.4f} nats a token, |difference of log-probs| mean "
        f"{apart.mean():.3f}, 99 % {np.quantile(apart, 0.99):.2f}, most {apart.max():.2f}, perplexity "
        f"{texts.start.perplexity:.2f} -> {now.perplexity:.2f}"
    )


def memory(folder: str, dtype: str) -> str:
    os.environ["RAMIFY_DTYPE"] = dtype
    try:
        start = loading(folder)[1]
    finally:
        del os.environ["RAMIFY_DTYPE"]
    own = (start["sampled"] - start["base"]) / 2**20
    return f"{dtype}: load {start['load']:.1f} CPU s, peak {own:.0f} MiB beyond Python and torch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--llama", type=Path, help="folder with node_modules/node-llama-cpp")
    parser.add_argument("--save", action="store_true", help="keep the table for docs/performance.md")
    given = parser.parse_args()
    folder = str(model_folder(given.model))
    notes = [memory(folder, dtype) for dtype in ("float32", "int8")]  # first: a process begins with the peak of its parent
    print(*notes, sep="\n", flush=True)
    models = {dtype: LocalModel.load(folder, dtype=dtype, cache_bytes=1 << 26) for dtype in ("float32", "int8")}
    peers = {f"engine, {dtype}": engine(model) for dtype, model in models.items()}
    rows: list[list[Any]] = []
    columns = ["batch", "what", "tokens a CPU s", "ratio to float32", "first token, CPU s", "ratio to float32"]
    print(*columns, sep="   ")
    for batch in BATCHES:
        with llama(given.llama) if given.llama and batch == 1 else nullcontext() as other:
            also = {} if other is None else {"llama.cpp, Q4_1": other}
            found = turns(peers | also, batch, given.pairs, models["int8"].forward.vocab)
        for name, times in found.items():
            rows.append(row_of(batch, name, times, found["engine, float32"]))
            print(*rows[-1], sep="   ", flush=True)
    notes.insert(0, distance(models["float32"], models["int8"]))
    print(notes[0], flush=True)
    if given.save:
        name = Path(folder).name
        note = f"Model {name}, prompts of {PROMPT} tokens, one thread, median [quartiles] of {given.pairs} turns; "
        note += "a ratio above 1 is faster. "
        save("int8", "The same model in int8, and llama.cpp on the same file", columns, rows, note + ". ".join(notes) + ".")


if __name__ == "__main__":
    main()
