"""Cost of long conversations: CPU per turn of the runner at 8 to 512 turns, and tokens the engine runs more than once.

    python benchmarks/turns.py [--save]

The second figure is counted, not timed: forward rows of the local engine, beyond one for each token of the conversation. A
conversation that is encoded or run again at each turn would cost a multiple of its length;
the target is under 0.5 % at 128 turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

import torch
from common import save
from runner import CorridorEnvironment, per_rollout

from ramify.engine.checkpoints import model_folder
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.tokenizer import HfTokenizer
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run

TURNS, REPLY = (8, 32, 128, 512), 24


def again(turns: int) -> tuple[int, int]:
    """(tokens of one conversation of ``turns`` turns, tokens the engine ran more than once)."""
    torch.manual_seed(0)
    tokenizer = HfTokenizer.load(model_folder("builtin"))
    module = TinyLM(
        TinyConfig(vocab=tokenizer.size, width=32, layers=1, heads=2, kv_heads=1, head_size=16, ffn=48, context=1 << 16)
    )
    model = LocalModel(module, tokenizer)
    template = TagTemplate(tokenizer)
    sampling = Sampling(max_tokens=REPLY, stop_tokens=template.stop_tokens)
    environment = CorridorEnvironment(turns)
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", {}) as run:
        episodes = Episodes(Agent(model, template, sampling), environment, run)
        (task,) = environment.task_set("train", 1)
        attempt = asyncio.run(episodes.attempt(task.id, task, 0))
        last = attempt.turns[-1].node
        length = sum(kept for _, kept in run.path(last.id).segments)
    return length, max(0, model.stats.forward_rows - model.stats.padded_rows - length)  # what is sampled last need not run at all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    rows = []
    per_rollout(8, True, 20)
    for turns in TURNS:
        rollouts = max(4, 2048 // turns)
        cpu = [
            statistics.median(1e3 * per_rollout(turns, tokens, rollouts) / turns for _ in range(args.rounds))
            for tokens in (False, True)
        ]
        length, extra = again(turns)
        rows.append([turns, *(f"{value:.3f}" for value in cpu), length, extra, f"{extra / length:.3%}"])
        print(rows[-1])
    if args.save:
        columns = ["turns", "CPU ms a turn, chat", "CPU ms a turn, tokens", "tokens of the conversation", "run again", "share"]
        note = "Target: cost linear in turns (the cost a turn stays flat) and under 0.5 % of tokens run again at 128 turns."
        save("turns", "Long conversations", columns, rows, note)


if __name__ == "__main__":
    main()
