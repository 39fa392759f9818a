"""transformers' own ways to sample from the same checkpoint, as peers of a benchmark:
plain ``generate``, prompt lookup, an assistant, DFlash.

All run through ``generate`` at batch 1, which is what their users call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ramify.base.errors import UserError
from ramify.base.extras import told
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.model.protocol import Sampling

#: Samples ``new`` tokens after each prompt, one after the other: (seconds, target passes).
Peer = Callable[[Sequence[np.ndarray], int], tuple[float, int]]


def peer(target: Path, kind: str, settings: Sampling, drafter: Qwen3Drafter | Path | None = None, ahead: int = 7) -> Peer:
    """A peer on the checkpoint folder ``target``: ``generate``, ``prompt_lookup``, ``hf_assistant`` (``drafter`` a checkpoint
    folder) or ``hf_dflash`` (``drafter`` one of kind dflash). All look ``ahead`` tokens.

    Raises NeedsError without transformers, UserError on an unknown kind or a drafter of another kind.
    """
    model = _load(target)
    options: dict[str, Any] = {}
    if kind == "prompt_lookup":
        options = {"prompt_lookup_num_tokens": ahead}
    elif kind == "hf_assistant" and isinstance(drafter, Path):
        assistant = _load(drafter)
        constant = {
            "num_assistant_tokens": ahead,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        for name, value in constant.items():
            setattr(assistant.generation_config, name, value)
        options = {"assistant_model": assistant}
    elif kind == "hf_dflash" and isinstance(drafter, Qwen3Drafter):
        from ramify.methods.dspark.transformers_drafter import transformers_dflash

        options = {"assistant_model": transformers_dflash(drafter), "speculation_type": "dflash"}
    elif kind != "generate":
        raise UserError(
            f"peer '{kind}' is not one of generate, prompt_lookup, hf_assistant (with a checkpoint), hf_dflash (with a drafter)"
        )
    passes = [0]
    model.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    sampling = (
        {"do_sample": True, "temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
        if settings.temperature
        else {"do_sample": False}
    )

    def run(prompts: Sequence[np.ndarray], new: int) -> tuple[float, int]:
        passes[0] = 0
        begun = time.perf_counter()
        for prompt in prompts:
            ids = torch.from_numpy(prompt.astype(np.int64))[None]
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, pad_token_id=0, **sampling, **options
            )
            assert out.shape[1] == len(prompt) + new, "a peer sampled fewer tokens than requested"
        return time.perf_counter() - begun, passes[0]

    return run


def _load(folder: Path) -> Any:
    with told():
        from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # every reply is sampled to its full length
    return model
