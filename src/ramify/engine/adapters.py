"""LoRA adapters in the layout of PEFT (``adapter_config.json``, ``adapter_model.safetensors``),
added to the weights of their base.

While one is trained the model keeps whole weights, so everything else runs as without it: layers hand their gradients to the
low-rank parts (:mod:`ramify.train.large`), and the weights are added up anew after every step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ramify.base.errors import NeedsError, UserError
from ramify.base.files import read_record, reason
from ramify.base.seeds import derive_key
from ramify.engine.forward import threads_for
from ramify.engine.tiny import distinct_weights

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_A, _B, _STEM = ".lora_A.weight", ".lora_B.weight", "base_model.model."
#: Unsupported settings of an adapter that would change its result, with the value that turns each off.
_PLAIN = {"use_dora": False, "bias": "none", "lora_bias": False, "alpha_pattern": {}, "rank_pattern": {}}


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter instead of a whole model."""
    return (folder / CONFIG).is_file()


def adapter_base(folder: Path) -> Path:
    """The folder of the model an adapter is for. Raises UserError where that is not a folder here."""
    base = Path(str(_config(folder).get("base_model_name_or_path") or "")).expanduser()
    for candidate in (base, folder / base):
        if (candidate / "config.json").is_file():
            return candidate
    raise UserError(
        f"the adapter {folder} is for '{base}', which is not a folder with a model here: "
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
    Adapter.read(folder, module).merge_into(module)


def head_of(module: nn.Module) -> nn.Module | None:
    """The output layer of a model; None where it has none of its own, or is none."""
    head: nn.Module | None = getattr(module, "get_output_embeddings", lambda: getattr(module, "lm_head", None))()
    return head


def numbers_of_adapter(module: nn.Module, rank: int) -> tuple[int, int]:
    """Weights that a new adapter of ``rank`` for ``module`` is added to, and numbers in its parts."""
    head = head_of(module)
    layers: list[Any] = [layer for layer in module.modules() if type(layer).__name__ in ("Linear", "Conv1D")]
    sizes = [(int(rows), int(columns)) for rows, columns in (layer.weight.shape for layer in layers if layer is not head)]
    return sum(rows * columns for rows, columns in sizes), rank * sum(rows + columns for rows, columns in sizes)


@dataclass(eq=False)
class Adapter:
    """Low-rank parts of some weights, which can be trained: W = base + scale B A."""

    config: dict[str, Any]
    """PEFT's record."""
    parts: dict[str, tuple[Tensor, Tensor]]
    """Name of a weight -> A (r, in) and B (out, r), float32 on the CPU."""
    base: dict[str, Tensor]
    """Those weights without the adapter, float32 on the CPU."""

    @classmethod
    def new(cls, module: nn.Module, rank: int, seed: int, base: Path) -> Adapter:
        """One of ``rank`` for every linear layer of ``module`` but its head, a change of nothing at first: A as PEFT starts it
        (uniform, Kaiming), B zero. Its strength alpha is twice its rank. ``base`` is the folder of the model.

        Raises UserError where there is no such layer, or layers of both ways to lay out a matrix."""
        kinds = {
            name: type(layer).__name__ for name, layer in module.named_modules() if type(layer).__name__ in ("Linear", "Conv1D")
        }
        head = head_of(module)
        layers = {name: kind for name, kind in kinds.items() if module.get_submodule(name) is not head}
        if len(set(layers.values())) != 1:
            raise UserError(
                f"{type(module).__name__} has {'no' if not layers else 'two kinds of'} linear layers: no adapter can be made "
                "for it"
            )
        turned = "Conv1D" in layers.values()  # GPT-2 keeps its matrices the other way round
        weights = {f"{name}.weight": _weight(module, name).detach().cpu().clone() for name in layers}
        parts = {}
        for name, weight in weights.items():
            out, into = reversed(weight.shape) if turned else weight.shape
            first = torch.empty(rank, into).uniform_(-(into**-0.5), into**-0.5, generator=_seeded(seed, name))
            parts[name] = first, torch.zeros(out, rank)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(base.absolute()),
            "r": rank,
            "lora_alpha": 2 * rank,
            "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
            "fan_in_fan_out": turned,
            "bias": "none",
            "lora_dropout": 0.0,
            "inference_mode": True,
        }
        return cls(config, parts, weights)

    @classmethod
    def read(cls, folder: Path, module: nn.Module) -> Adapter:
        """The LoRA adapter in ``folder`` for ``module``, its base. Raises NeedsError on adapters of another kind, UserError where
        it does not fit."""
        config = _config(folder)
        if config.get("peft_type") != "LORA":
            raise NeedsError(
                f"the adapter {folder} is of type {config.get('peft_type')}; LORA is what can be added to weights here"
            )
        for name, plain in _PLAIN.items():
            if config.get(name) not in (None, plain):
                raise NeedsError(f"the adapter {folder} sets '{name}' to {config[name]!r}, which is not supported")
        file = folder / WEIGHTS
        try:
            halves = load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read the adapter {file}: {reason(error)}") from error
        rank = _number(config, "r", folder)
        _number(config, "lora_alpha", folder)
        if rank < 1 or rank != int(rank):
            raise UserError(f"{folder / CONFIG}: 'r' is {rank:g}, and a rank is a whole number from 1")
        weights = distinct_weights(module)
        parts = {}
        for key in halves:
            stem = key.removesuffix(_A).removesuffix(_B)
            name = stem.removeprefix(_STEM) + ".weight"
            if not key.endswith((_A, _B)) or name not in weights:
                raise UserError(f"{file}: '{key}' is not a low-rank part of a weight of the adapter's base model")
            if other := {stem + _A, stem + _B} - halves.keys():
                raise UserError(f"{file}: '{key}' has no other half '{other.pop()}'")
            if key.endswith(_A):
                up, down = halves[stem + _B].float(), halves[key].float()
                if up.dim() != 2 or down.dim() != 2 or not up.shape[1] == down.shape[0] == rank:
                    raise UserError(f"{file}: '{key}' and its other half are not of rank {rank:g}, as the adapter's settings say")
                shape = (up.shape[0], down.shape[1])
                if weights[name].shape != (shape[::-1] if config.get("fan_in_fan_out") else shape):
                    raise UserError(f"{file}: '{key}' does not fit the weight '{name}' of the adapter's base model")
                parts[name] = down, up
        return cls(config, parts, {name: weights[name].detach().cpu().clone() for name in parts})

    @property
    def rank(self) -> int:
        """r."""
        return int(self.config["r"])

    @property
    def scale(self) -> float:
        """alpha / r, or alpha / sqrt(r)."""
        return float(self.config["lora_alpha"]) / (self.rank**0.5 if self.config.get("use_rslora") else self.rank)

    def merge_into(self, module: nn.Module) -> None:
        """Set the weights of ``module`` to those with their low-rank parts added: the same bits wherever the parts are the
        same."""
        weights = dict(module.named_parameters())
        with torch.no_grad(), threads_for(0):  # workers add it with one thread, too, and must get the same bits
            for name, (down, up) in self.parts.items():
                base = self.base[name]
                turned = bool(self.config.get("fan_in_fan_out"))
                if turned or not base.is_contiguous():  # made as the weight lies in memory: by columns where the model is large
                    change = down.double().t() @ up.double().t()
                    change = change if turned else change.t()
                else:
                    change = up.double() @ down.double()
                weights[name].copy_(change.mul_(self.scale).add_(base))

    def write(self, folder: Path, base: Path) -> None:
        """Write it as PEFT does, for the model in ``base``."""
        halves: dict[str, Tensor] = {}
        for name, (down, up) in self.parts.items():
            stem = _STEM + name.removesuffix(".weight")
            halves |= {stem + _A: down.detach().contiguous(), stem + _B: up.detach().contiguous()}
        (folder / WEIGHTS).write_bytes(save(halves, metadata={"format": "pt"}))
        record = self.config | {"base_model_name_or_path": str(base.absolute())}
        (folder / CONFIG).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _weight(module: nn.Module, layer: str) -> Tensor:
    return dict(module.get_submodule(layer).named_parameters())["weight"]


def _seeded(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_key(seed, "lora", name))


def _number(config: dict[str, Any], name: str, folder: Path) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{folder / CONFIG}: '{name}' must be a number" + (", and it is missing" * (value is None)))
    return float(value)


def _config(folder: Path) -> dict[str, Any]:
    return read_record(folder / CONFIG, "the adapter's")
