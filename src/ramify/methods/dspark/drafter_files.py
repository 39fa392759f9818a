"""Drafters for a target, and on disk in the layout of DeepSpec, which vLLM and SGLang read, or of speculators
(:mod:`ramify.methods.dspark.speculators`).

In DeepSpec's the folder holds ``config.json`` (the fields of a Qwen3 model, and of the drafter) and ``model.safetensors`` with
the names ``embed_tokens, layers.*, norm, fc, hidden_norm, lm_head, markov_head.*, confidence_head.proj`` (Eagle3: ``midlayer.*``,
``fc``, ``norm``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from ramify.base import registry
from ramify.base.errors import NeedsError, UserError
from ramify.base.files import reason, write_whole
from ramify.engine.tiny import TinyLM, read_config
from ramify.methods.dspark import speculators
from ramify.methods.dspark.drafters import DrafterConfig, Qwen3Drafter

ARCHITECTURES = {"dspark": "Qwen3DSparkModel", "dflash": "Qwen3DSparkModel", "eagle3": "Eagle3Qwen3ForCausalLM"}
"""Kind to the architecture named in ``config.json``; a Qwen3DSparkModel of rank 0 without confidence head is DFlash."""
TRAINING = "training"
"""Subfolder of a drafter with the state its training continues from; servers ignore it."""
FEATURES = 5
"""Target layers read where ``target_layers`` is "auto" (m in the paper)."""


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """What a drafter takes over from its target."""

    shape: dict[str, Any]
    """Fields of :class:`DrafterConfig` that are the target's."""
    embedding: Tensor
    """[V, D]."""
    head: Tensor
    """[V, D]."""


def target_of(module: nn.Module) -> TargetWeights:
    """What a drafter takes over from a TinyLM or a transformers causal language model.

    Raises NeedsError where the embedding or the logits are more than one matrix (scaled, capped),
    which drafters here do not repeat.
    """
    if isinstance(module, TinyLM):
        c = module.config
        names = ("vocab", "width", "heads", "kv_heads", "head_size", "ffn", "context", "rope_theta", "norm_eps")
        return TargetWeights(
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
    return TargetWeights(shape, embedding.weight, head.weight)


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
    drafted: Sequence[int] = (),
    seed: int = 0,
) -> Qwen3Drafter:
    """A new drafter for a target, attached to it.

    ``rank`` and ``confidence`` count for DSpark only, ``layers`` not for Eagle3 (one). ``mask_token`` (None: the last of the
    vocabulary) must not occur in the training data. ``drafted``: the only tokens that it can draft, none: all. Raises UserError
    on a shape that cannot be, NeedsError on a target that has no drafter.
    """
    make, target = registry.get("drafter", kind), target_of(module)
    spark = kind == "dspark"
    confident = spark and (True if confidence is None else confidence)
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
        confidence=confident,
        confidence_markov=confident and rank > 0,
        anchors=anchors,
        drafted=len(drafted),
        **target.shape,
    )
    drafter: Qwen3Drafter = make(config, seed)
    drafter.tokens = torch.tensor(sorted(drafted), dtype=torch.long)
    drafter.to(target.head.device)
    drafter.attach(target.embedding, target.head)
    return drafter


def save_drafter(drafter: Qwen3Drafter, folder: Path | str, target: Path | None = None) -> None:
    """Write ``config.json`` and ``model.safetensors``, each file whole or not at all: in DeepSpec's layout, or with ``target``,
    the folder of the model that the drafter is for, in that of speculators.

    Raises NeedsError on a drafter that the layout, or vLLM where it reads that of speculators, does not know.
    """
    kind = drafter.config.kind
    if kind not in ARCHITECTURES:
        raise NeedsError(f"DeepSpec's layout knows no drafter of kind '{kind}'")
    record = _to_record(drafter)
    if target is not None:
        names = read_config(target).get("architectures") or []
        record = speculators.to_record(drafter.config, drafter.temperatures.tolist(), target.resolve(), names)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {_outside(name): value for name, value in drafter.state_dict().items()}
    if target is not None:
        tensors = {speculators.outside(name, kind): value for name, value in tensors.items()}
    tensors |= {"embed_tokens.weight": drafter.embedding, "lm_head.weight": drafter.head}
    weights = {name: value.detach().float().cpu().clone().contiguous() for name, value in tensors.items()}
    if drafter.config.drafted:  # as EAGLE-3 has it: how far each drafted token's id is from its place, and which are drafted
        tokens = drafter.tokens.cpu()
        chosen = torch.zeros(drafter.config.vocab, dtype=torch.bool).index_fill_(0, tokens, True)
        weights |= {"d2t": tokens - torch.arange(len(tokens)), "t2d": chosen}
    write_whole(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    write_whole(folder / "config.json", json.dumps(record, indent=2) + "\n")


def unserved(config: DrafterConfig) -> str:
    """Why no server loads such a drafter, as one sentence; "" where one does.
    ``docs/howto/speculation.md`` has the table of what loads where."""
    if config.kind == "eagle3" or (config.kind == "dspark" and config.rank and config.head == "vanilla" and not config.drafted):
        return ""
    kind = (
        config.kind
        if config.kind == "dflash"
        else f"{config.kind} with {f'the head {config.head!r}' if config.rank else 'rank 0'}"
    )
    if config.drafted and config.kind == "dspark" and config.rank and config.head == "vanilla":
        kind = f"{config.kind} with a vocabulary of its own"
    return f"neither vLLM nor SGLang loads a drafter of kind {kind}: it serves `ramify serve --drafter` and transformers only"


def layout(folder: Path) -> str:
    """The layout of the drafter in ``folder``: deepspec or speculators."""
    return "speculators" if speculators.TYPE in read_config(folder) else "deepspec"


def reads(folder: Path) -> bool:
    """Whether ``folder`` holds a drafter in this layout, or the training of one."""
    return (folder / "config.json").is_file() or any(folder.glob(f"{TRAINING}*"))


def load_drafter(folder: Path | str, module: nn.Module) -> Qwen3Drafter:
    """The drafter saved in ``folder``, attached to its target ``module``: what was saved here, or a released checkpoint of
    DeepSpec or speculators.

    Raises UserError naming the file and what is wrong with it: not such a folder, a truncated file, a field or tensor that is
    missing or does not fit the target.
    """
    folder, target = Path(folder), target_of(module)
    if not folder.is_dir():
        raise UserError(f"there is no drafter folder {folder}")
    if not (folder / "config.json").is_file():
        begun = (
            "its training has not ended; give the same `ramify dspark train` again"
            if any(folder.glob(f"{TRAINING}*"))
            else "no config.json"
        )
        raise UserError(f"{folder} holds no drafter: {begun}")
    record = read_config(folder)
    foreign = speculators.TYPE in record
    if foreign:
        config = speculators.from_record(record, folder / "config.json", target.shape["target_depth"])
    else:
        config = _from_record(record, folder / "config.json")
    for name, theirs in target.shape.items():
        stated = getattr(config, name)
        if name in ("vocab", "width", "heads", "kv_heads", "head_size", "target_depth") and stated != theirs:
            raise UserError(
                f"{folder / 'config.json'}: the drafter is for a target with {name} {stated}; this target has {theirs}"
            )
    drafter: Qwen3Drafter = registry.get("drafter", config.kind)(config)
    weights = _read(folder / "model.safetensors")
    if foreign:
        weights = {
            speculators.inside(name, config.kind): value for name, value in weights.items() if name not in speculators.VERIFIERS
        }
    offsets = weights.pop("d2t", None)
    for name in ("embed_tokens.weight", "lm_head.weight", "t2d"):
        weights.pop(name, None)
    own = drafter.state_dict()
    for name in sorted({_outside(name) for name in own} | weights.keys()):
        inside = _inside(name)
        if name not in weights or inside not in own:
            raise UserError(f"{folder}: tensor '{name}' is {'missing' if inside in own else 'not one this drafter has'}")
        if weights[name].shape != own[inside].shape:
            raise UserError(f"{folder}: tensor '{name}' is {tuple(weights[name].shape)}, expected {tuple(own[inside].shape)}")
    drafter.load_state_dict({_inside(name): value.float() for name, value in weights.items()})
    drafter.temperatures = _temperatures(record, config, folder / "config.json")
    drafter.tokens = _drafted(offsets, config, folder)
    drafter.to(target.head.device)
    drafter.attach(target.embedding, target.head)
    return drafter


def _drafted(offsets: Tensor | None, config: DrafterConfig, folder: Path) -> Tensor:
    """The tokens that are drafted, int64 [drafted], from EAGLE-3's ``d2t``."""
    if not config.drafted:
        return torch.arange(0)
    good = offsets is not None and offsets.shape == (config.drafted,) and not offsets.is_floating_point()
    tokens = offsets.long() + torch.arange(config.drafted) if offsets is not None and good else torch.arange(0)
    if not good or tokens[0] < 0 or tokens[-1] >= config.vocab or (tokens.diff() <= 0).any():
        raise UserError(f"{folder}: 'd2t' does not name the {config.drafted} tokens that are drafted")
    return tokens


def _outside(name: str) -> str:
    """A parameter's name in the file: the modules call the list of layers ``blocks``, since ``layers`` is a number there."""
    return "layers." + name.removeprefix("blocks.") if name.startswith("blocks.") else name


def _inside(name: str) -> str:
    return "blocks." + name.removeprefix("layers.") if name.startswith("layers.") else name


def _to_record(drafter: Qwen3Drafter) -> dict[str, Any]:
    """``config.json``: a Qwen3 configuration with the drafter's fields."""
    c = drafter.config
    record = c.block_shape().to_hf() | {
        "architectures": [ARCHITECTURES[c.kind]],
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * c.layers,
        "num_target_layers": c.target_depth,
        "target_layer_ids": list(c.target_layers),
        "block_size": c.block,
        "mask_token_id": c.mask_token,
        "num_anchors": c.anchors,
        "markov_rank": c.rank,
        "enable_confidence_head": c.confidence,
    }
    if c.kind == "eagle3":  # what vLLM reads: it counts layers by what enters them
        record["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in c.target_layers]
        record["draft_vocab_size"] = c.logits
    elif c.drafted:
        record["draft_vocab_size"] = c.drafted
    if c.rank:
        record["markov_head_type"] = c.head
    if c.confidence:
        record["confidence_head_with_markov"] = c.confidence_markov
        record["confidence_temperatures"] = drafter.temperatures.tolist()
    return record


def _from_record(record: dict[str, Any], file: Path) -> DrafterConfig:
    """The configuration in ``config.json``. Raises UserError naming the file and the field."""
    architecture = str((record.get("architectures") or [""])[0])
    eagle = "eagle3" in architecture.lower()
    if not eagle and architecture not in ARCHITECTURES.values():
        raise UserError(
            f"{file}: architecture '{architecture}' is not a drafter known here; known: "
            f"{', '.join(sorted(set(ARCHITECTURES.values())))}"
        )
    rope = record.get("rope_parameters") or record.get("rope_scaling") or {}
    try:
        rank, confidence = int(record.get("markov_rank", 0)), bool(record.get("enable_confidence_head", False))
        heads = int(record["num_attention_heads"])
        return DrafterConfig(
            kind="eagle3" if eagle else "dspark" if rank or confidence else "dflash",
            vocab=int(record["vocab_size"]),
            width=int(record["hidden_size"]),
            heads=heads,
            kv_heads=int(record.get("num_key_value_heads") or heads),
            head_size=int(record.get("head_dim") or record["hidden_size"] // heads),
            ffn=int(record["intermediate_size"]),
            target_depth=int(record["num_target_layers"]),
            target_layers=tuple(int(layer) for layer in record["target_layer_ids"]),
            mask_token=int(record["mask_token_id"]),
            layers=int(record["num_hidden_layers"]),
            block=int(record["block_size"]),
            rank=rank,
            head=str(record.get("markov_head_type", "vanilla")),
            confidence=confidence,
            confidence_markov=bool(record.get("confidence_head_with_markov", False)),
            context=int(record.get("max_position_embeddings", 2048)),
            rope_theta=float(rope.get("rope_theta", record.get("rope_theta", 10000.0))),
            norm_eps=float(record.get("rms_norm_eps", 1e-6)),
            anchors=int(record.get("num_anchors", 512)),
            drafted=0 if record.get("draft_vocab_size") == record["vocab_size"] else int(record.get("draft_vocab_size") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file} describes no drafter: {what}") from error
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _temperatures(record: dict[str, Any], config: DrafterConfig, file: Path) -> Tensor:
    found = record.get("confidence_temperatures", [1.0] * config.block)
    good = isinstance(found, list) and len(found) == config.block and all(isinstance(t, int | float) and t > 0 for t in found)
    if not good:
        raise UserError(f"{file}: confidence_temperatures must be {config.block} positive numbers")
    return torch.tensor(found, dtype=torch.float32)


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise UserError(f"{file.parent} holds no {file.name}")
    try:
        return dict(load(file.read_bytes()))
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot read the drafter's weights {file}: {reason(error)}") from error
