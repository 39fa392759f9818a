"""What the engine runs on: the graphics cards torch sees, its threads, and whether this machine keeps a row's bits apart from its batch."""

from __future__ import annotations

import os
from typing import Any

import torch

from ramify.base.errors import NeedsError, UserError
from ramify.engine.forward import TinyForward, probe
from ramify.engine.tiny import TinyConfig, TinyLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def placement(device: str = "", dtype: str = "") -> tuple[torch.device, torch.dtype]:
    """Where a model is to run and what its numbers are; "" takes RAMIFY_DEVICE and RAMIFY_DTYPE, else the CPU and float32.

    Raises UserError on a name that means nothing and on bfloat16 on a CPU, NeedsError on a device that is not here.
    """
    device = device or os.environ.get("RAMIFY_DEVICE", "") or "cpu"
    dtype = dtype or os.environ.get("RAMIFY_DTYPE", "") or "float32"
    if dtype not in DTYPES:
        raise UserError(f"the dtype '{dtype}' is none of the engine's, which are {' and '.join(DTYPES)}")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UserError(f"'{device}' names no device; one is named like cpu, cuda or cuda:0") from None
    here = available()
    if place.type != "cpu" and (str(place) if place.index is not None else f"{place}:0") not in here:
        raise NeedsError(f"there is no device '{device}' here that torch {torch.__version__} can use; it has {', '.join(here)}")
    if place.type == "cpu" and dtype == "bfloat16":
        raise UserError(
            "bfloat16 is for accelerators: on a CPU it is slower than float32 and not exact; leave the dtype out there"
        )
    return place, DTYPES[dtype]


def available() -> list[str]:
    """Names of the devices that torch can use: cpu, then the accelerators by number."""
    if not torch.accelerator.is_available():
        return ["cpu"]
    kind = torch.accelerator.current_accelerator()
    return ["cpu", *(f"{kind.type if kind else 'cuda'}:{index}" for index in range(torch.accelerator.device_count()))]


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
