"""A small real run to export, and the built-in agent as a transformers model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramify.engine.checkpoints import model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.jobs.play import play
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Score, make_node


def household_run(folder: Path, tasks: int = 4, attempts: int = 4) -> Path:
    """Attempts of the built-in agent: some succeed, some do not."""
    play("builtin", "household", HouseholdEnvironment().task_set("train", tasks, 0), attempts=attempts, out=folder, seed=1)
    return folder


def hf_agent() -> tuple[Any, Any]:
    """The built-in agent opened by transformers, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = model_folder("builtin")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end|>", pad_token="<|end|>")
    return model, tokenizer


def token_tree(run: Run, name: str = "t") -> tuple[str, str, str]:
    """A tree by hand: prompt 1 2, reply 3 4 5, and a fork that keeps 3 4 of it and continues 6. Ids of prompt, reply and fork."""
    run.add_tree(name, {"id": name, "data": {"answer": "go"}})
    root = make_node(name, None, 0, "root", "", tokens=[])
    prompt = make_node(name, root.id, 0, "user", "do", tokens=[1, 2])
    sampled: dict[str, Any] = {"sampled": [0, 1, 1], "logprobs": [0.0, -0.5, -0.25], "ends": [0, 1, 2]}
    reply = make_node(name, prompt.id, 2, "assistant", "ab", tokens=[3, 4, 5], index=0, **sampled)
    seen = make_node(name, reply.id, 3, "user", "ok", tokens=[8])
    fork = make_node(
        name, reply.id, 2, "assistant", "c", tokens=[6], sampled=[1], logprobs=[-1.0], ends=[1], opens=False, index=1
    )
    run.add(root, prompt, reply, seen, fork)
    run.add(Score(seen.id, "env", 1.0), Score(fork.id, "env", 0.0))
    run.add(AttemptRecord(seen.id, name, outcome=True, reward=1.0))
    run.add(AttemptRecord(fork.id, name, reply.id, 2, index=1, outcome=False, reward=0.0))
    return prompt.id, reply.id, fork.id
