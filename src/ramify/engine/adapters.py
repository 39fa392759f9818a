"""LoRA adapters in the layout of PEFT (``adapter_config.json``, ``adapter_model.safetensors``), added to the weights of their base."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ramify.base.errors import NeedsError, UserError
from ramify.base.files import read_record, reason
from ramify.engine.forward import threads_for
from ramify.engine.tiny import distinct_weights, set_distinct_weights

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_A, _B = ".lora_A.weight", ".lora_B.weight"
#: Unsupported settings of an adapter that would change its result, with the value that turns each off.
_PLAIN = {"use_dora": False, "bias": "none", "lora_bias": False, "alpha_pattern": {}, "rank_pattern": {}}


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter instead of a whole model."""
    return (folder / CONFIG).is_file()


def adapter_base(folder: Path) -> Path:
    """The folder of the model an adapter is for. Raises UserError where that is not a folder here."""
    base = Path(str(_config(folder).get("base_model_name_or_path") or "")).expanduser()
    for found in (base, folder / base):
        if (found / "config.json").is_file():
            return found
    raise UserError(
        f"the adapter {folder} is for '{base}', which is no folder with a model here: "
        f"name that folder as 'base_model_name_or_path' in {folder / CONFIG}"
    )


def whole_folder(folder: Path) -> Path:
    """Where the ``config.json`` and the whole weights of a checkpoint lie: ``folder``, or the base of the adapter in it."""
    return adapter_base(folder) if is_adapter(folder) else folder


def tokenizer_folder(folder: Path) -> Path:
    """The folder of a checkpoint's tokenizer and chat template: ``folder``, or the base of an adapter without them."""
    return folder if (folder / "tokenizer.json").is_file() else whole_folder(folder)


def add_adapter(module: nn.Module, folder: Path) -> None:
    """Add the LoRA adapter in ``folder`` to the weights of ``module``, which are on the CPU: W + (alpha / r) B A.

    Raises NeedsError on adapters of another kind, UserError where the adapter does not fit the model.
    """
    config = _config(folder)
    if config.get("peft_type") != "LORA":
        raise NeedsError(f"the adapter {folder} is of type {config.get('peft_type')}; LORA is what can be added to weights here")
    for name, plain in _PLAIN.items():
        if config.get(name) not in (None, plain):
            raise NeedsError(f"the adapter {folder} sets '{name}' to {config[name]!r}, which is not supported")
    file = folder / WEIGHTS
    try:
        parts = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the adapter {file}: {reason(error)}") from error
    rank, strength = (_number(config, name, folder) for name in ("r", "lora_alpha"))
    if rank < 1 or rank != int(rank):
        raise UserError(f"{folder / CONFIG}: 'r' is {rank:g}, and a rank is a whole number from 1")
    scale = strength / (rank**0.5 if config.get("use_rslora") else rank)
    weights = distinct_weights(module)
    for key in parts:
        stem = key.removesuffix(_A).removesuffix(_B)
        name = stem.removeprefix("base_model.model.") + ".weight"
        if not key.endswith((_A, _B)) or name not in weights:
            raise UserError(f"{file}: '{key}' is no low-rank part of a weight of the adapter's base model")
        if other := {stem + _A, stem + _B} - parts.keys():
            raise UserError(f"{file}: '{key}' has no other half '{other.pop()}'")
        if key.endswith(_A):
            up, down = parts[stem + _B].double(), parts[key].double()
            if up.dim() != 2 or down.dim() != 2 or not up.shape[1] == down.shape[0] == rank:
                raise UserError(f"{file}: '{key}' and its other half are not of rank {rank:g}, as the adapter's settings say")
            with threads_for(0):  # workers add it with one thread, too, and must get the same bits
                change = scale * (up @ down)
            if config.get("fan_in_fan_out"):  # GPT-2 keeps its matrices the other way round
                change = change.T
            if change.shape != weights[name].shape:
                raise UserError(f"{file}: '{key}' does not fit the weight '{name}' of the adapter's base model")
            weights[name] = (weights[name].double() + change).to(torch.float32)
    set_distinct_weights(module, weights)


def _number(config: dict[str, Any], name: str, folder: Path) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{folder / CONFIG}: '{name}' must be a number" + (", and it is missing" * (value is None)))
    return float(value)


def _config(folder: Path) -> dict[str, Any]:
    return read_record(folder / CONFIG, "the adapter's")
