"""transformers' own ways to draw from the same checkpoint, as peers of a benchmark: plain ``generate``, prompt lookup, an assistant, DFlash.

All run through ``generate`` at batch 1, which is what their users call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ramify.base.errors import NeedsError, UserError
from ramify.engine.drafters import Drafter
from ramify.model.protocol import Sampling

#: Draws ``new`` tokens after each prompt, one after the other: (seconds, target passes).
Peer = Callable[[Sequence[np.ndarray], int], tuple[float, int]]


def peer(target: Path, kind: str, settings: Sampling, drafter: Drafter | Path | None = None, ahead: int = 7) -> Peer:
    """A peer on the checkpoint folder ``target``: ``generate``, ``prompt_lookup``, ``hf_assistant`` (``drafter`` a checkpoint folder) or
    ``hf_dflash`` (``drafter`` one of kind dflash). All look ``ahead`` tokens.

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
    elif kind == "hf_dflash" and isinstance(drafter, Drafter):
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
            assert out.shape[1] == len(prompt) + new, "a peer drew fewer tokens than were asked for"
        return time.perf_counter() - begun, passes[0]

    return run


def _load(folder: Path) -> Any:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise NeedsError("peers of a benchmark are transformers' own: install ramify[hf]") from error
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # every reply is drawn to its full length
    return model


def transformers_dflash(drafter: Drafter) -> Any:
    """A drafter of kind dflash as the model class behind transformers' ``speculation_type="dflash"``, same weights.

    transformers drafts with the slots after the anchor's; here the anchor's slot drafts the first token. So the model is told of a block
    one longer, runs without the last mask, and its hidden states get one in front that nobody reads.
    """
    try:
        from transformers.models.muse_glimmer_assistant import modeling_muse_glimmer_assistant as theirs
    except ImportError as error:
        raise NeedsError("this transformers has no DFlash drafter class; 5.23 has") from error
    c = drafter.config
    if c.kind != "dflash":
        raise UserError(f"hf_dflash needs a drafter of kind dflash, not {c.kind}")
    config = theirs.MuseGlimmerAssistantConfig(
        hidden_size=c.width,
        intermediate_size=c.ffn,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_size,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        max_position_embeddings=c.context,
        layer_types=["full_attention"] * c.layers,
        block_size=c.block,
        mask_token_id=c.mask_token,
        target_layer_ids=list(c.target_layers),
        eos_token_id=None,
    )

    class Shifted(theirs.MuseGlimmerAssistantModel):  # type: ignore[misc]
        def forward(self, noise_embeds: Tensor, **rest: Any) -> Any:
            out = super().forward(noise_embeds, **rest)
            hidden = out.last_hidden_state
            out.last_hidden_state = torch.cat((torch.zeros_like(hidden[:, :1]), hidden), 1)
            return out

    model: nn.Module = Shifted(config).eval()
    names = {"fc": "encoder.fc", "hidden_norm": "encoder.output_norm_enc"}
    weights = {}
    for name, value in drafter.state_dict().items():
        head, _, rest = name.partition(".")
        weights[f"{names.get(head, head)}.{rest}".replace("blocks.", "layers.")] = value
    model.load_state_dict(weights)
    return model
