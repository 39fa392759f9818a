"""Weights made of two checkpoints: a reference moved towards the policy, and a policy that is a base with a low-rank adapter.

``reference + alpha (policy - reference)``: with one task vector TIES is "trim, then add" and DARE-TIES is DARE. All in float32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ramify.base.errors import NeedsError, UserError
from ramify.base.files import reason
from ramify.base.seeds import place_key
from ramify.engine.local import LocalModel
from ramify.model.pair import IncompatiblePairError

Method = Literal["linear", "ties", "dare"]
METHODS: tuple[Method, ...] = ("linear", "ties", "dare")
_A, _B = ".lora_A.weight", ".lora_B.weight"
#: Settings of an adapter that change what it computes and are not done here, with the value that leaves it out.
_PLAIN = {"use_dora": False, "fan_in_fan_out": False, "bias": "none", "lora_bias": False, "alpha_pattern": {}, "rank_pattern": {}}


def merge(
    reference: Mapping[str, Tensor],
    policy: Mapping[str, Tensor],
    alpha: float,
    method: Method = "linear",
    *,
    density: float = 0.2,
    seed: int = 0,
) -> dict[str, Tensor]:
    """``reference + alpha tau`` by name, tau = policy - reference, after ``method``.

    ties keeps the ``density`` of tau that is largest in size, tensor by tensor; dare keeps each entry with that probability and divides
    by it, a draw keyed by ``seed`` and the weight's name. A matrix with fewer rows than its sibling (a smaller vocabulary) is filled up by
    repeating its last row. Raises IncompatiblePairError where the weights are not those of one architecture.
    """
    if not 0 <= alpha <= 1 or not 0 < density <= 1:
        raise UserError(f"alpha must lie in [0, 1] and density in (0, 1], not {alpha} and {density}")
    if method not in METHODS:
        raise UserError(f"unknown way to merge '{method}' (known: {', '.join(METHODS)})")
    if reference.keys() != policy.keys():
        odd = sorted(reference.keys() ^ policy.keys())[0]
        raise IncompatiblePairError(f"the checkpoints cannot be merged: only one of them has the weight '{odd}'")
    out = {}
    for name, start in reference.items():
        left, right = _alike(name, start.float(), policy[name].float())
        tau = right - left
        if method == "ties":
            tau = _trim(tau, density)
        elif method == "dare":
            generator = torch.Generator().manual_seed(place_key(seed, "dare", name))
            tau = tau * (torch.rand(tau.shape, generator=generator) < density) / density
        out[name] = left + alpha * tau
    return out


def _alike(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.shape == b.shape:
        return a, b
    if a.dim() != b.dim() or a.dim() == 0 or a.shape[1:] != b.shape[1:]:
        raise IncompatiblePairError(
            f"the checkpoints cannot be merged: '{name}' is {tuple(a.shape)} in one and {tuple(b.shape)} in the other"
        )
    rows = max(len(a), len(b))
    return tuple(torch.cat((x, x[-1:].expand(rows - len(x), *x.shape[1:]))) for x in (a, b))  # type: ignore[return-value]


def _trim(tau: Tensor, density: float) -> Tensor:
    kept = max(1, round(density * tau.numel()))
    least = tau.abs().flatten().kthvalue(tau.numel() - kept + 1).values
    return torch.where(tau.abs() >= least, tau, torch.zeros_like(tau))


def merged_model(reference: Path, policy: Path, alpha: float, method: Method = "linear", density: float = 0.2) -> LocalModel:
    """The merged reference of two checkpoint folders, in memory. Raises UserError where they do not fit each other."""
    models = [LocalModel.load(folder, max_rows=1, cache_bytes=0) for folder in (reference, policy)]
    start, end = (model.module.state_dict() for model in models)
    weights = merge(start, end, alpha, method, density=density)
    wide = max(models, key=lambda model: model.forward.vocab)  # the one whose vocabulary both fit in
    wide.module.load_state_dict(weights)
    wide.refresh()
    wide.name = f"{reference.name}+{alpha:g}({policy.name}-{reference.name})"
    return wide


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter instead of a whole model."""
    return (folder / "adapter_config.json").is_file()


def adapter_base(folder: Path) -> Path:
    """The folder of the model an adapter is for. Raises UserError where that is no folder here."""
    base = Path(str(_adapter_config(folder).get("base_model_name_or_path") or "")).expanduser()
    for found in (base, folder / base):
        if (found / "config.json").is_file():
            return found
    raise UserError(f"the adapter {folder} is for '{base}', which is no folder with a model here: name it as the reference")


def adapted_model(folder: Path, base: Path) -> LocalModel:
    """The model in ``base`` with the LoRA adapter in ``folder`` added to its weights: W + (alpha / r) B A.

    Raises NeedsError on adapters of another kind, UserError where the adapter does not fit the model.
    """
    config = _adapter_config(folder)
    if config.get("peft_type") != "LORA":
        raise NeedsError(f"the adapter {folder} is of type {config.get('peft_type')}; LORA is what can be added to weights here")
    for name, plain in _PLAIN.items():
        if config.get(name) not in (None, plain):
            raise NeedsError(f"the adapter {folder} sets '{name}' to {config[name]!r}, which is not done here")
    file = folder / "adapter_model.safetensors"
    try:
        parts = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the adapter {file}: {reason(error)}") from error
    rank, strength = (_number(config, name, folder) for name in ("r", "lora_alpha"))
    if rank < 1 or rank != int(rank):
        raise UserError(f"{folder / 'adapter_config.json'}: 'r' is {rank:g}, and a rank is a whole number from 1")
    scale = strength / (rank**0.5 if config.get("use_rslora") else rank)
    model = LocalModel.load(base)
    weights = model.module.state_dict()
    for key in parts:
        stem = key.removesuffix(_A).removesuffix(_B)
        name = stem.removeprefix("base_model.model.") + ".weight"
        if not key.endswith((_A, _B)) or name not in weights:
            raise UserError(f"{file}: '{key}' is no low-rank part of a weight of {base}")
        if other := {stem + _A, stem + _B} - parts.keys():
            raise UserError(f"{file}: '{key}' has no other half '{other.pop()}'")
        if key.endswith(_A):
            up, down = parts[stem + _B].float(), parts[key].float()
            if up.dim() != 2 or down.dim() != 2 or not up.shape[1] == down.shape[0] == rank:
                raise UserError(f"{file}: '{key}' and its other half are not of rank {rank:g}, as the adapter's settings say")
            change = scale * (up @ down)
            if change.shape != weights[name].shape:
                raise UserError(f"{file}: '{key}' does not fit the weight '{name}' of {base}")
            weights[name] = weights[name] + change.to(weights[name].device)
    model.module.load_state_dict(weights)
    model.refresh()
    model.name = folder.name
    return model


def _number(config: dict[str, Any], name: str, folder: Path) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(
            f"{folder / 'adapter_config.json'}: '{name}' must be a number" + (", and it is missing" * (value is None))
        )
    return float(value)


def _adapter_config(folder: Path) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    if not isinstance(record, dict):
        raise UserError(f"{path} must hold one JSON object")
    return record
