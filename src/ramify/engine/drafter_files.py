"""Drafters for a target, and on disk in the layout of DeepSpec, which vLLM and SGLang read.

The folder holds ``config.json`` (the fields of a Qwen3 model, and of the drafter) and ``model.safetensors`` with the names
``embed_tokens, layers.*, norm, fc, hidden_norm, lm_head, markov_head.*, confidence_head.proj`` (Eagle3: ``midlayer.*``, ``fc``, ``norm``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ramify.base import registry
from ramify.base.errors import NeedsError, UserError
from ramify.engine.drafters import Drafter, DrafterConfig
from ramify.engine.tiny import TinyLM

ARCHITECTURES = {"dspark": "Qwen3DSparkModel", "dflash": "Qwen3DSparkModel", "eagle3": "Eagle3Qwen3ForCausalLM"}
"""Kind to the architecture named in ``config.json``; a Qwen3DSparkModel of rank 0 without confidence head is DFlash."""
FEATURES = 5
"""Target layers read where ``target_layers`` is "auto" (m in the paper)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a drafter takes over from its target."""

    shape: dict[str, Any]
    """Fields of :class:`DrafterConfig` that are the target's."""
    embedding: Tensor
    """[V, D]."""
    head: Tensor
    """[V, D]."""


def target_of(module: nn.Module) -> Target:
    """What a drafter takes over from a TinyLM or a transformers causal language model.

    Raises NeedsError where the embedding or the logits are more than one matrix (scaled, capped), which drafters here do not repeat.
    """
    if isinstance(module, TinyLM):
        c = module.config
        names = ("vocab", "width", "heads", "kv_heads", "head_size", "ffn", "context", "rope_theta", "norm_eps")
        return Target(
            {name: getattr(c, name) for name in names} | {"target_depth": c.layers}, module.model.embed_tokens.weight, module.head
        )
    config: Any = module.config.get_text_config()  # type: ignore[operator, union-attr]
    embedding: Any = module.get_input_embeddings()  # type: ignore[operator]
    head: Any = module.get_output_embeddings()  # type: ignore[operator]
    odd = [name for name in ("final_logit_softcapping", "logit_scale", "embedding_multiplier") if getattr(config, name, None)]
    if type(embedding) is not nn.Embedding:
        odd.append(type(embedding).__name__)
    if odd or head is None:
        raise NeedsError(
            f"no drafter for '{config.model_type}' here: its embedding or logits use {', '.join(odd) or 'no output layer'}"
        )
    heads, rope = int(config.num_attention_heads), getattr(config, "rope_parameters", None) or {}
    width = int(config.hidden_size)
    shape = {
        "vocab": head.weight.shape[0],
        "width": width,
        "heads": heads,
        "kv_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "head_size": int(getattr(config, "head_dim", None) or width // heads),
        "ffn": int(getattr(config, "intermediate_size", None) or 4 * width),
        "context": int(getattr(config, "max_position_embeddings", 2048)),
        "rope_theta": float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
        "norm_eps": float(getattr(config, "rms_norm_eps", None) or 1e-6),
        "target_depth": int(config.num_hidden_layers),
    }
    return Target(shape, embedding.weight, head.weight)


def auto_layers(depth: int) -> tuple[int, ...]:
    """Up to five target layers, evenly spaced as the paper's (36 layers: 1, 9, 17, 25, 33), never the last.

    Raises UserError where there is no layer before the last.
    """
    if depth < 2:
        raise UserError(f"a drafter reads a layer before the target's last; this target has {depth}")
    start, stop = (1, depth - 3) if depth >= 2 * FEATURES else (0, depth - 2)
    count = min(FEATURES, stop - start + 1)
    return tuple(sorted({round(start + (stop - start) * i / max(1, count - 1)) for i in range(count)}))


def for_target(
    module: nn.Module,
    kind: str = "dspark",
    *,
    layers: int = 5,
    block: int = 7,
    rank: int = 256,
    head: str = "vanilla",
    target_layers: Sequence[int] | str = "auto",
    mask_token: int | None = None,
    confidence: bool | None = None,
    anchors: int = 512,
    seed: int = 0,
) -> Drafter:
    """A new drafter for a target, attached to it.

    ``rank`` and ``confidence`` count for DSpark only, ``layers`` not for Eagle3 (one). ``mask_token`` (None: the last of the vocabulary)
    must not occur in the training data. Raises UserError on a shape that cannot be, NeedsError on a target that has no drafter.
    """
    target = target_of(module)
    spark = kind == "dspark"
    if isinstance(target_layers, str):
        if target_layers != "auto":
            raise UserError(f"target_layers is '{target_layers}'; give layer numbers or 'auto'")
        target_layers = auto_layers(target.shape["target_depth"])
    config = DrafterConfig(
        kind=kind,
        target_layers=tuple(target_layers),
        mask_token=target.shape["vocab"] - 1 if mask_token is None else mask_token,
        layers=1 if kind == "eagle3" else layers,
        block=block,
        rank=rank if spark else 0,
        head={"markov": "vanilla"}.get(head, head),
        confidence=spark and (True if confidence is None else confidence),
        confidence_markov=rank > 0,
        anchors=anchors,
        **target.shape,
    )
    drafter: Drafter = registry.get("drafter", kind)(config, seed)
    drafter.to(target.head.device)
    drafter.attach(target.embedding, target.head)
    return drafter
