"""What the engine runs on: the graphics cards torch sees, its threads, and whether this machine keeps a row's bits apart from its batch."""

from __future__ import annotations

from typing import Any

import torch

from ramify.engine.forward import TinyForward, probe
from ramify.engine.tiny import TinyConfig, TinyLM


def describe() -> dict[str, Any]:
    """Graphics cards with their memory in GiB, torch's CUDA version ("" where it has none) and threads."""
    cards = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        cards.append({"name": card.name, "memory_gib": round(card.total_memory / 2**30, 1)})
    return {"cuda": str(torch.version.cuda or ""), "gpus": cards, "threads": torch.get_num_threads()}


def batch_invariant() -> bool:
    """The engine's probe on a small model made for it: a row's numbers do not depend on the rows beside it."""
    shape = TinyConfig(vocab=64, width=64, layers=2, heads=2, kv_heads=1, head_size=32, ffn=128, context=640)
    return probe(TinyForward(TinyLM(shape, seed=0)))
