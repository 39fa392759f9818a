"""New tokens per second of the local engine, transformers' ``generate`` and vLLM's CPU build, at batch 1, 8, 32 and 128.

    python benchmarks/throughput.py [--vllm PYTHON] [--rounds 5] [--save]

Two models trained on nothing (1.05 M and 4.8 M parameters), prompt 32, 96 new tokens, temperature 1, all cores of the machine for
each. The three take turns on the same prompts; the ratio is the median over rounds. ``--vllm`` names an interpreter of an
environment of its own that holds vLLM (its pins clash with ours); it runs in one process there. ramify also returns
log-probability and entropy of each token, vLLM the log-probability, ``generate`` neither.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import save, spread
from engine import engine_run

from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM

PROMPT, NEW, BATCHES = 32, 96, (1, 8, 32, 128)
SIZES = {
    "1 M": TinyConfig(vocab=512, width=128, layers=5, heads=4, kv_heads=2, head_size=32, ffn=384, context=512),
    "5 M": TinyConfig(vocab=512, width=256, layers=6, heads=8, kv_heads=4, head_size=32, ffn=768, context=512),
}
VLLM = """
import json, os, sys, time
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
               "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
from vllm import LLM, SamplingParams
llm = LLM(model=sys.argv[1], dtype="float32", enforce_eager=True, skip_tokenizer_init=True, max_model_len=512,
          enable_prefix_caching=False)
settings = SamplingParams(temperature=1.0, max_tokens=int(sys.argv[2]), ignore_eos=True, logprobs=0, detokenize=False)
print("ready", file=answers, flush=True)
for line in sys.stdin:
    rows = json.loads(line)
    began = time.perf_counter()
    out = llm.generate([{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False)
    spent = time.perf_counter() - began
    assert all(len(o.outputs[0].token_ids) == int(sys.argv[2]) for o in out)
    print(spent, file=answers, flush=True)
"""


def prompts(batch: int, round_: int) -> np.ndarray:
    """int32 [batch, PROMPT]; new ones every round, so that no cache helps."""
    return np.random.default_rng((batch, round_)).integers(1, 512, (batch, PROMPT)).astype(np.int32)


def timed(work: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], float]:
    """Seconds of ``work(rows)``."""

    def run(rows: np.ndarray) -> float:
        began = time.perf_counter()
        work(rows)
        return time.perf_counter() - began

    return run


def generate(folder: Path) -> Callable[[np.ndarray], float]:
    """transformers on the same checkpoint."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def work(rows: np.ndarray) -> None:
        ids = torch.from_numpy(rows.astype(np.int64))
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
        assert found.shape[1] == PROMPT + NEW

    return timed(work)


def vllm(python: str, folder: Path) -> tuple[Callable[[np.ndarray], float], subprocess.Popen[str]]:
    """vLLM on the same checkpoint, in one process of its own interpreter; it times itself."""
    env = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())}
    child = subprocess.Popen(
        [python, "-c", VLLM, str(folder), str(NEW)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    if child.stdout.readline().strip() != "ready":
        raise SystemExit(f"{python} could not start vLLM on {folder}")
    ask, answers = child.stdin, child.stdout

    def run(rows: np.ndarray) -> float:
        print(json.dumps(rows.tolist()), file=ask, flush=True)
        return float(answers.readline())

    return run, child


def compare(name: str, config: TinyConfig, python: str | None, rounds: int) -> list[list[Any]]:
    """Rows of the table for one model."""
    torch.manual_seed(0)
    module, rows = TinyLM(config), []
    with tempfile.TemporaryDirectory() as scratch:
        module.save(Path(scratch))
        model = LocalModel(module, max_sequences=128, cache_bytes=1 << 23, eos=())
        runners = {"ramify": timed(lambda rows: engine_run(model, rows)), "generate": generate(Path(scratch))}
        child = None
        if python:
            runners["vllm"], child = vllm(python, Path(scratch))
        for batch in BATCHES:
            spent: dict[str, list[float]] = {who: [] for who in runners}
            for turn in range(-1, rounds):
                order = list(runners) if turn % 2 else list(runners)[::-1]
                for who in order:
                    seconds = runners[who](prompts(batch, turn + 1))
                    if turn >= 0:
                        spent[who].append(seconds)
            speeds = {who: spread([batch * NEW / s for s in seconds], 0) for who, seconds in spent.items()}
            ratios = [
                spread([other / ours for other, ours in zip(spent[who], spent["ramify"], strict=True)])
                if who in spent
                else "not run"
                for who in ("generate", "vllm")
            ]
            rows.append([name, batch, *(speeds.get(who, "not run") for who in ("ramify", "generate", "vllm")), *ratios])
            print("  ".join(str(cell) for cell in rows[-1]), flush=True)
        if child is not None:
            child.kill()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of an environment that holds vLLM")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    rows = [row for name, config in SIZES.items() for row in compare(name, config, args.vllm, args.rounds)]
    if args.save:
        columns = ["model", "batch", "ramify tok/s", "generate tok/s", "vLLM CPU tok/s", "ramify / generate", "ramify / vLLM"]
        note = (
            "Medians with quartiles over rounds in which the three took turns on the same prompts. Above 1 ramify is the faster "
            "one. ramify gives every row the "
            "same bits in any batch, for which batches are filled up to a multiple of 4 rows; the others do not promise that."
        )
        save("throughput", "Generation on a CPU", columns, rows, note)


if __name__ == "__main__":
    main()
