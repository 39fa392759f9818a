"""vLLM's side of the benchmarks; runs in an interpreter of its own that holds vLLM (its pins clash with ours).

    PYTHON benchmarks/serving_vllm.py FOLDER NEW

Answers ``ready``, then for each line of JSON on its input (token rows) the seconds that sampling NEW tokens for all of them took,
on a line. One process, float32, no compilation: settings in which vLLM's CPU build does best on models this small.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SWITCHES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Vllm:
    """vLLM on a checkpoint folder, in a process of ``python``;
    calling it with token rows gives the seconds it measured itself."""

    def __init__(self, python: str, folder: Path, new: int, threads: int = os.cpu_count() or 1) -> None:
        self.child = subprocess.Popen(
            [python, __file__, str(folder), str(new)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | SWITCHES | {"OMP_NUM_THREADS": str(threads)},
        )
        if self._answer() != "ready":
            raise SystemExit(f"{python} could not start vLLM on {folder}")

    def __call__(self, rows: Any) -> float:
        assert self.child.stdin is not None
        print(json.dumps([list(map(int, row)) for row in rows]), file=self.child.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self.child.kill()
        self.child.wait()

    def _answer(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()


def main() -> None:
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    from vllm import LLM, SamplingParams

    folder, new = sys.argv[1], int(sys.argv[2])
    llm = LLM(
        model=folder,
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=512,
        enable_prefix_caching=False,
    )
    settings = SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, logprobs=0, detokenize=False)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        rows = json.loads(line)
        began = time.perf_counter()
        out = llm.generate([{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False)
        spent = time.perf_counter() - began
        assert all(len(o.outputs[0].token_ids) == new for o in out)
        print(spent, file=answers, flush=True)


if __name__ == "__main__":
    main()
