"""What computing shared prefixes once saves in training: CPU of a step on the rows of trees, with and without, in turn.

    python benchmarks/training.py [--save]

Two trees a step. A tree: a prompt of 120 tokens, 5 turns of 30 tokens (10 sampled) an attempt, each attempt leaving an earlier
one after a random turn. One thread; the median of the paired ratios of 4 pairs, with quartiles.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from common import save, spread
from transformers import LlamaConfig, LlamaForCausalLM

from ramify.engine.generic import HfForward
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.train.batch import Row, in_tree_order, share_of_rows
from ramify.train.loop import TrainConfig, Trainer

VOCAB = 512


def tree(
    leaves: int, rng: np.random.Generator, prompt: int = 120, turns: int = 5, length: int = 30, sampled: int = 10
) -> list[Row]:
    """The rows of so many attempts; what several share is trained in the first one's row, as ramify's credit has it."""
    paths = [[rng.integers(0, VOCAB, prompt), *rng.integers(0, VOCAB, (turns, length))]]
    while len(paths) < leaves:
        path, kept = paths[rng.integers(len(paths))], int(rng.integers(1, turns + 1))
        paths.append([*path[:kept], *rng.integers(0, VOCAB, (turns + 1 - kept, length))])
    rows: list[Row] = []
    seen: set[int] = set()
    for path in paths:
        mask = [np.arange(len(part)) < (sampled if i and id(part) not in seen else 0) for i, part in enumerate(path)]
        seen |= {id(part) for part in path}
        tokens = np.concatenate(path).astype(np.int32)
        values = {"advantage": rng.normal(size=len(tokens)).astype(np.float32), "logprobs": np.full(len(tokens), -6, np.float32)}
        rows.append(Row(tokens, np.concatenate(mask), values))
    return rows


def models() -> dict[str, torch.nn.Module]:
    """Networks by name: ramify's own decoder, and one of transformers as the engine loads it."""
    shape = {"layers": 4, "heads": 4, "kv_heads": 2}
    made: dict[str, torch.nn.Module] = {
        "0.5 M, own decoder": TinyLM(TinyConfig(vocab=VOCAB, width=96, head_size=24, ffn=256, **shape)),
    }
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=320,
        intermediate_size=896,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    made["5 M, transformers' Llama"] = HfForward(LlamaForCausalLM(config)).module
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/training.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, module in models().items():
        for leaves in (8, 16, 32, 64) if isinstance(module, TinyLM) else (8, 32):
            rng = np.random.default_rng(leaves)
            made = [row for _ in range(2) for row in tree(leaves, rng)]
            arms = {share: Trainer(module, TrainConfig(lr=0.0, share_prefixes=share)) for share in (True, False)}
            seconds: dict[bool, list[float]] = {share: [] for share in arms}
            for _ in range(5):
                for share, trainer in arms.items():
                    began = time.thread_time()
                    trainer.update(made, {"policy_gradient": 1.0})
                    seconds[share].append(time.thread_time() - began)
            ratios = [flat / shared for flat, shared in zip(seconds[False][1:], seconds[True][1:], strict=True)]
            distinct = 1 / (1 - share_of_rows(in_tree_order(made)))
            rows.append([name, leaves, f"{distinct:.2f}", spread(ratios), f"{np.median(seconds[True]):.2f}"])
            print(*rows[-1], flush=True)
    if options.save:
        save(
            "training",
            "Training on trees: shared prefixes once",
            ["model", "attempts a tree", "tokens, rows over distinct", "speed-up", "CPU-s a step"],
            rows,
            "Speed-up: CPU of a step on flat rows over that with what rows share computed once; the gradients agree to 1e-5 (a "
            "test).",
        )


if __name__ == "__main__":
    main()
