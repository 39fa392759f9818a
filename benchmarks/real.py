"""The local engine on a real pretrained model beside transformers' ``generate``, in interleaved pairs, in processor seconds.

    OMP_NUM_THREADS=1 python benchmarks/real.py [--model smollm2] [--pairs 5] [--save]

Prompts of 100 random tokens, new ones in every pair, batches of 1, 8 and 32. "First" is the time to the first token of all rows;
"tokens" is what is sampled after it in a processor second, from the difference between a run of 1 and one of 1 + NEW tokens.
Each peer runs in turn in this process, on the same weights. Loading and its memory are measured in processes of their own. The
table of forks counts forward rows and involves no clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import quartiles, save, spread

import ramify.engine  # noqa: F401  (pins the matrix kernels before torch first uses them)
from ramify.engine.checkpoints import model_folder
from ramify.engine.local import LocalModel
from ramify.model.protocol import Prefix, Sampling

PROMPT, NEW, BATCHES = 100, 16, (1, 8, 32)
Run = Callable[[np.ndarray, int], Any]
LOAD = """
import resource, sys, time
import ramify.engine, torch
from ramify.engine.local import LocalModel
base, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
model = LocalModel.load(sys.argv[1])
load, read = time.process_time() - began, time.process_time()
for file in model.folder.glob("*.safetensors"):
    with file.open("rb") as data:
        while data.read(1 << 22):
            pass
read, probe = time.process_time() - read, time.process_time()
exact = model.exactness
probe, peak = time.process_time() - probe, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import asyncio, numpy as np
from ramify.model.protocol import Prefix, Sampling
row = np.arange(100, dtype=np.int32)
asyncio.run(model.sample(Prefix(row), 1, Sampling(max_tokens=16), [0]))
sampled = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = sum(p.nbytes for p in model.module.parameters())
import json
print(json.dumps({"load": load, "read": read, "probe": probe, "exact": str(exact), "base": base * 1024, "peak": peak * 1024,
                  "sampled": sampled * 1024, "weights": weights}))
"""


def prompts(batch: int, number: int, vocab: int) -> np.ndarray:
    return np.random.default_rng((batch, number)).integers(3, vocab, (batch, PROMPT)).astype(np.int32)


def ours(model: LocalModel) -> Run:
    def run(rows: np.ndarray, new: int) -> None:
        async def go() -> None:
            settings = Sampling(max_tokens=new)
            await asyncio.gather(*(model.sample(Prefix(row), 1, settings, [i]) for i, row in enumerate(rows)))

        asyncio.run(go())

    return run


def generate(folder: str) -> Run:
    import torch
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def run(rows: np.ndarray, new: int) -> None:
        ids = torch.from_numpy(rows.astype(np.int64))
        mask, length = torch.ones_like(ids), {"max_new_tokens": new, "min_new_tokens": new}
        other.generate(ids, attention_mask=mask, do_sample=True, top_k=0, pad_token_id=0, **length)

    return run


def timed(run: Run, batch: int, number: int, vocab: int) -> tuple[float, float]:
    """Processor seconds to the first tokens, and for one token more of every row."""
    seconds = []
    for part, new in enumerate((1, 1 + NEW)):
        rows, began = prompts(batch, 2 * number + part, vocab), time.process_time()
        run(rows, new)
        seconds.append(time.process_time() - began)
    return seconds[0], (seconds[1] - seconds[0]) / NEW


def compare(engine: Run, peer: Run, batch: int, pairs: int, vocab: int) -> dict[str, Any]:
    """Medians and pair ratios (the peer's time over the engine's); who goes first alternates."""
    for run in (engine, peer):
        run(prompts(batch, 10_000, vocab), 3)
    first, step = [], []
    for number in range(pairs):
        order = (engine, peer) if number % 2 else (peer, engine)
        both = {run: timed(run, batch, number, vocab) for run in order}
        first.append((both[engine][0], both[peer][0]))
        step.append((both[engine][1], both[peer][1]))
    speeds = [quartiles([batch / pair[side] for pair in step])[0] for side in (0, 1)]
    ratios = {name: [peer / own for own, peer in times] for name, times in (("first", first), ("tokens", step))}
    return {"batch": batch, "ours": speeds[0], "generate": speeds[1], **ratios}


def forks(model: LocalModel, prefix: int = 300, n: int = 32, new: int = 30) -> dict[str, Any]:
    """Forward rows of n forks at one node against one prefix and n suffixes."""
    model.refresh()
    before = model.stats.forward_rows
    row = prompts(1, 77, model.forward.vocab)[0]
    settings = Sampling(max_tokens=new, ban=model.eos)  # so that every fork has as many tokens
    asyncio.run(model.sample(Prefix(np.resize(row, prefix)), n, settings, range(n)))
    rows = model.stats.forward_rows - before
    return {"prefix": prefix, "forks": n, "new": new, "rows": rows, "ratio": rows / (prefix + n * new)}


def loading(folder: str) -> list[dict[str, Any]]:
    """Of a first start, which probes, and of a second."""
    import tempfile

    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {"RAMIFY_CACHE": cache}
        command = [sys.executable, "-c", LOAD, folder]
        return [json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout) for _ in range(2)]


def said(start: dict[str, Any]) -> str:
    times = {name: start[name] / start["weights"] for name in ("peak", "sampled", "base")}
    return (
        f"load {start['load']:.1f} CPU s (reading the files {start['read']:.1f}), probe {start['probe']:.1f}, "
        f"peak {times['peak']:.2f} times the weights, "
        f"{times['sampled']:.2f} with a reply, of which Python and torch are {times['base']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="keep the table for docs/performance.md")
    given = parser.parse_args()
    folder = str(model_folder(given.model))
    starts = loading(folder)
    model = LocalModel.load(folder, cache_bytes=1 << 26)
    engine, peer = ours(model), generate(folder)
    print("batch  tokens a CPU second: engine, generate   ratio [quartiles]   first token: ratio [quartiles]")
    found = []
    for batch in BATCHES:
        found.append(r := compare(engine, peer, batch, given.pairs, model.forward.vocab))
        speeds = f"{r['ours']:27.1f}, {r['generate']:8.1f}"
        print(f"{batch:5}  {speeds}   {spread(r['tokens'])}   {spread(r['first'])}", flush=True)
    for name, start in zip(("first start", "later start"), starts, strict=True):
        print(f"{name}: {said(start)}")
    fork = forks(model)
    counted = (
        f"{fork['forks']} forks of a prefix of {fork['prefix']} tokens, {fork['new']} new each: "
        f"{fork['rows']} rows, {fork['ratio']:.2f} of one prefix and the suffixes"
    )
    print(counted)
    if given.save:
        rows: list[list[Any]] = [
            [r["batch"], f"{r['ours']:.0f}", f"{r['generate']:.0f}", spread(r["tokens"]), spread(r["first"])] for r in found
        ]
        note = (
            f"Model {model.name}, prompts of {PROMPT} tokens, one thread. "
            f"First start: {said(starts[0])}. Later: {said(starts[1])}. "
            f"{counted[0].upper()}{counted[1:]}."
        )
        columns = ("batch", "engine, tokens a CPU s", "generate", "ratio", "first token, ratio")
        save("real", "A pretrained model of 135 M weights", columns, rows, note)


if __name__ == "__main__":
    main()
