"""Devices of the engine: GPUs that torch sees, threads and kernels, and whether batches are exact."""

from __future__ import annotations

import os
from typing import Any

import torch

from ramify.base.errors import NeedsError, UserError
from ramify.engine.forward import Exactness, TinyForward, exactness
from ramify.engine.tiny import TinyConfig, TinyLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def placement(device: str = "", dtype: str = "") -> tuple[torch.device, torch.dtype]:
    """Device and data type of a model; "" takes RAMIFY_DEVICE and RAMIFY_DTYPE, else the CPU and float32.

    Raises UserError on an unknown name, bfloat16 on a CPU and int8 elsewhere, NeedsError on a device that is not here.
    """
    device = device or os.environ.get("RAMIFY_DEVICE", "") or "cpu"
    dtype = dtype or os.environ.get("RAMIFY_DTYPE", "") or "float32"
    if dtype not in DTYPES:
        raise UserError(f"the dtype '{dtype}' is none of the engine's, which are {', '.join(DTYPES)}")
    try:
        target = torch.device(device)
    except RuntimeError:
        raise UserError(f"'{device}' names no device; one is named like cpu, cuda or cuda:0") from None
    here = available()
    if target.type != "cpu" and (str(target) if target.index is not None else f"{target}:0") not in here:
        raise NeedsError(f"there is no device '{device}' here that torch {torch.__version__} can use; it has {', '.join(here)}")
    if target.type == "cpu" and dtype == "bfloat16":
        raise UserError(
            "bfloat16 is for accelerators: on a CPU it is slower than float32 and not exact; leave the dtype out there"
        )
    if target.type != "cpu" and dtype == "int8":
        raise UserError("int8 is for CPUs: on an accelerator bfloat16 is what saves memory and time")
    return target, DTYPES[dtype]


def available() -> list[str]:
    """Names of the devices that torch can use: cpu, then the accelerators by number."""
    if not torch.accelerator.is_available():
        return ["cpu"]
    kind = torch.accelerator.current_accelerator()
    return ["cpu", *(f"{kind.type if kind else 'cuda'}:{index}" for index in range(torch.accelerator.device_count()))]


def describe() -> dict[str, Any]:
    """Graphics cards with their memory in GiB, torch's CUDA version ("" where it has none),
    threads, and the processor's kernels."""
    cards = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        cards.append({"name": card.name, "memory_gib": round(card.total_memory / 2**30, 1)})
    return {"cuda": str(torch.version.cuda or ""), "gpus": cards, "threads": torch.get_num_threads(), "kernels": kernels()}


def kernels() -> str:
    """Which instructions torch computes with and what MKL is held to: logits of other kernels differ in their last bits."""
    return f"{torch.backends.cpu.get_cpu_capability()}, MKL_CBWR {os.environ.get('MKL_CBWR', 'not set')}"


def exactness_here() -> Exactness:
    """How rows run here, as the engine's probe finds it on a small model made for it."""
    shape = TinyConfig(vocab=64, width=64, layers=2, heads=2, kv_heads=1, head_size=32, ffn=128, context=640)
    return exactness(TinyForward(TinyLM(shape, seed=0)))
