"""The layout of ``speculators`` (vllm-project/speculators, 0.9), which vLLM serves from the drafter's folder alone: its
``config.json`` names the model that the drafter is for.

DSpark is its type ``dspark`` with ``sample_from_anchor``, and Eagle3 its ``eagle3`` with a Qwen3 layer. A DFlash drafter here
samples from the anchor as DeepSpec's do, which vLLM refuses of this layout. Target layers are numbered by what enters them there,
so one more than here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError, UserError
from ramify.methods.dspark.drafters import DrafterConfig

TYPE = "speculators_model_type"
"""The field by which such a ``config.json`` is known."""
VERSION = "0.9.0"
CLASSES = {"dspark": "DSparkSpeculator", "eagle3": "Eagle3Speculator"}
"""Types that are written and read, and the architecture that each names."""
FIXED = {
    "dspark": {"sample_from_anchor": True},
    "eagle3": {
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
    },
}
"""Fields that a drafter here has always so."""
DEFAULTS = {"sample_from_anchor": True, "markov_rank": 256, "enable_confidence_head": True, "confidence_head_with_markov": True}
"""What a dspark's config means where it says nothing."""
LAYER = {
    "model_type": ("qwen3",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attention_dropout": (0, 0.0),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
}
"""What a drafter's layers can be here."""
VERIFIERS = ("verifier_norm.weight", "verifier_lm_head.weight")
"""The target's weights, which training keeps alongside."""


def unwritable(config: DrafterConfig) -> str:
    """Why a drafter has no form in this layout that vLLM loads, as one sentence; "" where it has one."""
    if config.kind not in CLASSES:
        why = ": its DFlash samples no token at the anchor, as one here does" if config.kind == "dflash" else ""
        return f"speculators has no type for a drafter of kind '{config.kind}' that vLLM loads{why}"
    if config.kind == "dspark" and (not config.rank or config.head != "vanilla"):
        what = f"the head '{config.head}'" if config.rank else "rank 0"
        return f"vLLM loads a dspark of speculators with the head 'vanilla' only, and this one has {what}"
    return ""


def to_record(config: DrafterConfig, temperatures: list[float], verifier: Path, architectures: list[str]) -> dict[str, Any]:
    """``config.json`` of a drafter for the model in ``verifier``. Raises NeedsError where :func:`unwritable` says why."""
    if why := unwritable(config):
        raise NeedsError(why)
    c, layers = config, [layer + 1 for layer in config.target_layers]
    shape = c.block_shape().to_hf() | {"tie_word_embeddings": False, "layer_types": ["full_attention"] * c.layers}
    del shape["architectures"]
    greedy = {"proposal_type": "greedy", "speculative_tokens": c.block, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    record = {
        "architectures": [CLASSES[c.kind]],
        TYPE: c.kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": c.kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": str(verifier), "architectures": architectures},
        },
        "transformer_layer_config": shape,
        "draft_vocab_size": c.drafted or c.vocab,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **FIXED[c.kind],
    }
    if c.kind == "eagle3":
        return record | {"eagle_aux_hidden_state_layer_ids": layers, "mask_token_id": c.mask_token}
    if c.confidence:
        record |= {"confidence_temperatures": temperatures}
    return record | {
        "aux_hidden_state_layer_ids": layers,
        "block_size": c.block,
        "mask_token_id": c.mask_token,
        "max_anchors": c.anchors,
        "markov_rank": c.rank,
        "markov_head_type": c.head,
        "enable_confidence_head": c.confidence,
        "confidence_head_with_markov": c.confidence_markov,
    }


def from_record(record: dict[str, Any], file: Path, depth: int) -> DrafterConfig:
    """The configuration of a drafter in ``config.json``, for a target of ``depth`` layers.

    Raises UserError naming the file and the field that is missing, is malformed, or asks for a drafter that is not one here.
    """
    kind = str(record[TYPE])
    if kind not in CLASSES:
        raise UserError(f"{file}: a speculator of type '{kind}' is not a drafter known here; known: {', '.join(CLASSES)}")
    try:
        shape = dict(record["transformer_layer_config"])
        _check(record, shape, kind, file)
        rope: dict[str, Any] = shape.get("rope_parameters") or shape.get("rope_scaling") or {}
        heads = int(shape["num_attention_heads"])
        spark = {**DEFAULTS, **record} if kind == "dspark" else {}
        tokens = int(record["speculators_config"]["proposal_methods"][0]["speculative_tokens"])
        aux = record["aux_hidden_state_layer_ids" if spark else "eagle_aux_hidden_state_layer_ids"]
        vocab, drafted = int(shape["vocab_size"]), int(record["draft_vocab_size"])
        mask: Any = record["mask_token_id"] if spark else record.get("mask_token_id", vocab - 1)
        return DrafterConfig(
            kind=kind,
            vocab=vocab,
            width=int(shape["hidden_size"]),
            heads=heads,
            kv_heads=int(shape.get("num_key_value_heads") or heads),
            head_size=int(shape.get("head_dim") or int(shape["hidden_size"]) // heads),
            ffn=int(shape["intermediate_size"]),
            target_depth=depth,
            target_layers=tuple(int(layer) - 1 for layer in aux),
            mask_token=int(mask),
            layers=int(shape["num_hidden_layers"]),
            block=int(record["block_size"]) if spark else tokens,
            rank=int(spark.get("markov_rank", 0)),
            head=str(spark.get("markov_head_type", "vanilla")),
            confidence=bool(spark.get("enable_confidence_head")),
            confidence_markov=bool(spark.get("enable_confidence_head") and spark.get("confidence_head_with_markov")),
            context=int(shape.get("max_position_embeddings", 2048)),
            rope_theta=float(rope.get("rope_theta") or shape.get("rope_theta") or 10000.0),
            norm_eps=float(shape.get("rms_norm_eps", 1e-6)),
            anchors=int(record.get("max_anchors") or 512),
            drafted=0 if drafted == vocab else drafted,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file} describes no speculator: {what}") from error
    except UserError as error:
        raise error if str(file) in str(error) else UserError(f"{file}: {error}") from error


def _check(record: dict[str, Any], shape: dict[str, Any], kind: str, file: Path) -> None:
    """Raises UserError where a field asks for what no drafter here does."""
    said = {**DEFAULTS, **record} if kind == "dspark" else record
    asked: list[tuple[str, Any, tuple[Any, ...]]] = [
        (name, said.get(name, value), (value,)) for name, value in FIXED[kind].items()
    ]
    asked += [(f"transformer_layer_config.{name}", shape.get(name, good[0]), good) for name, good in LAYER.items()]
    rope = shape.get("rope_parameters") or shape.get("rope_scaling") or {}
    asked.append(("rope_type", rope.get("rope_type", rope.get("type", "default")), ("default",)))
    asked += [("layer_types", one, ("full_attention",)) for one in shape.get("layer_types") or ()]
    width = shape["hidden_size"]
    asked.append(("target_hidden_size", record.get("target_hidden_size"), (None, width)))
    for name, value, good in asked:
        if value not in good:
            raise UserError(f"{file}: {name} is {value!r}, and a drafter here has {good[-1]!r}")


def outside(name: str, kind: str) -> str:
    """A tensor's name in DeepSpec's layout as this one has it."""
    return name.replace("midlayer.", "layers.0.", 1) if kind == "eagle3" else name


def inside(name: str, kind: str) -> str:
    """The other way."""
    return name.replace("layers.0.", "midlayer.", 1) if kind == "eagle3" else name
