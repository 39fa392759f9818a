"""Open an agent's checkpoint by name, with the chat template that goes with it, and save one."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.files import folder_aside, refusal, whole_file
from ramify.engine.adapters import Adapter, is_adapter, tokenizer_folder, whole_folder
from ramify.engine.generation import FILE as GENERATION
from ramify.engine.gguf import gguf_file, smollm2_file, unpacked
from ramify.engine.local import LocalModel
from ramify.engine.products import refuse_int8
from ramify.engine.tiny import TinyLM, distinct_weights, read_config, set_distinct_weights
from ramify.model.chat import ChatTemplate, JinjaTemplate, template_in
from ramify.model.protocol import Model
from ramify.model.tokenizer import HfTokenizer

_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files that accompany a tokenizer."""
_NOT_OURS = ("auto_map", "torch_dtype", "dequantised_from")
"""Fields of the start's config.json that do not hold for what is saved."""


def model_folder(spec: str) -> Path:
    """Folder of the checkpoint that ``builtin``, ``builtin:NAME``, ``hf:PATH``, ``gguf:FILE`` or ``smollm2`` names.

    That of a GGUF file, which is dequantised once, lies in the cache. Raises UserError when there is none, and as
    :func:`ramify.engine.gguf.unpacked`.
    """
    kind, _, path = spec.partition(":")
    if kind == "builtin":
        assets = Path(str(resources.files("ramify") / "assets"))
        known = sorted(config.parent.name for config in assets.glob("*/config.json"))
        if path and path not in known:
            raise UserError(f"there is no built-in agent '{path}' ({nearest(path, known)})")
        return assets / (path or "household")
    if kind in ("chat", "completions", "anthropic", "responses"):
        raise NeedsError(f"'{kind}:...' is a model at an endpoint; this needs weights in this process: builtin or hf:PATH")
    if spec == "smollm2":
        return unpacked(smollm2_file())
    if kind not in ("hf", "gguf") or not path:
        raise UserError(f"model '{kind}' is neither 'builtin' nor 'hf:PATH', 'gguf:FILE' or 'smollm2'")
    place = Path(path).expanduser()
    if kind == "hf" and not place.is_dir():
        raise UserError(f"model '{spec}': there is no folder {place}")
    if (file := gguf_file(place)) is not None:
        return unpacked(file)
    if kind == "gguf":
        raise UserError(f"model '{spec}': {place} is not a GGUF file{'' if place.exists() else ', and there is none'}")
    return place


def load_model(
    folder: Path,
    max_sequences: int = 64,
    device: str = "",
    dtype: str = "",
    given: Mapping[str, Any] | None = None,
    weights: bool = True,
) -> tuple[LocalModel, ChatTemplate]:
    """The checkpoint in ``folder`` on the local engine, and the chat template that goes with its tokenizer, or is ``given``.
    ``weights`` as in :meth:`LocalModel.load`."""
    model = LocalModel.load(folder, max_sequences=max_sequences, device=device, dtype=dtype, weights=weights)
    return model, chat_template(folder, given)


def copy_of(model: Model, name: str, max_sequences: int = 64) -> LocalModel:
    """A copy of a model object with its own equal weights and an empty cache.
    Raises NeedsError where it is none of this engine's."""
    if not isinstance(model, LocalModel):
        raise NeedsError(f"'{model.identity.name}' is not a LocalModel, the kind of model whose weights can be trained here")
    module, template = copy.deepcopy(model.module), model.own_template
    own: dict[str, Any] = {"template": template, "folder": model.folder, "eos": model.eos, "defaults": model.defaults}
    return LocalModel(module, model.tokenizer, name=name, max_sequences=max_sequences, **own)


def chat_template(folder: Path, given: Mapping[str, Any] | None = None) -> ChatTemplate:
    """The chat template of the checkpoint in ``folder`` (see :func:`template_in`). Raises NeedsError where it has none."""
    folder = tokenizer_folder(folder)
    return template_in(folder, HfTokenizer.load(folder), given)


def save_model(model: LocalModel, start: Path | None, folder: Path, adapter: Adapter | None = None) -> None:
    """Write the current model as a checkpoint folder that transformers, vLLM and ``hf:PATH`` load; ``start`` is where it came
    from, if anywhere. A chat template the model was given is written, too.

    With an ``adapter``, which must be added to the model already, it alone is written, for the base that ``start`` is or names;
    without one, what came from an adapter is written with its base, as a whole model. Each file is there whole or not at all.
    Raises RamifyError when the disk refuses, UserError where the weights are int8.
    """
    refuse_int8(model.module)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_aside(folder) as part:
            _write(model, start, part, adapter)
            for file in sorted(part.iterdir()):
                with whole_file(folder / file.name) as whole:
                    os.replace(file, whole)
    except OSError as error:
        raise refusal(f"cannot write the checkpoint {folder}", error) from error
    except SafetensorError as error:  # what the library makes of a failed write
        raise RamifyError(f"cannot write the checkpoint {folder}: {error}") from error


def adapter_of(model: LocalModel, start: Path, rank: int, seed: int) -> Adapter | None:
    """The adapter to train: that of the checkpoint ``start`` where it is one,
    else a new one of ``rank`` for ``model``, None for rank 0.

    Raises UserError where the checkpoint's adapter is of another rank than one that is asked for, and as :meth:`Adapter.read`."""
    if not is_adapter(start):
        return Adapter.new(model.module, rank, seed, start) if rank else None
    found = Adapter.read(start, LocalModel.load(whole_folder(start), max_sequences=1, cache_bytes=0).module)
    if rank not in (0, found.rank):
        raise UserError(
            f"the checkpoint {start} is an adapter of rank {found.rank}, which goes on as it is: leave --lora {rank} out"
        )
    return found


def weights_of(model: LocalModel) -> bytes:
    """The current weights as safetensors, for a worker's :func:`set_weights`."""
    return bytes(save({name: value.contiguous() for name, value in distinct_weights(model.module).items()}))


def set_weights(model: Model, weights: bytes) -> None:
    """Take over weights that :func:`weights_of` wrote. Raises UserError where they are not those of such a model."""
    if not isinstance(model, LocalModel):
        raise UserError(f"the weights of '{model.identity.name}' cannot be set")
    try:
        set_distinct_weights(model.module, load(weights))
    except (SafetensorError, UserError) as error:
        raise UserError(f"these are no weights of '{model.name}': {error}") from error
    model.refresh()


def _write(model: LocalModel, start: Path | None, folder: Path, adapter: Adapter | None) -> None:
    if adapter is not None and start is not None:
        adapter.write(folder, whole_folder(start))
        if model.tokenizer is not None:
            (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    elif isinstance(model.module, TinyLM):
        model.module.save(folder, model.tokenizer)
        if start is not None:
            config = read_config(whole_folder(start))
            record = {name: value for name, value in config.items() if name not in _NOT_OURS}
            (folder / "config.json").write_text(json.dumps(record | {"dtype": "float32"}, indent=2) + "\n", encoding="utf-8")
    else:
        from ramify.engine.generic import save_transformers

        save_transformers(model.module, folder)
        if model.tokenizer is not None:
            (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    if start is not None:
        tokens, generation = tokenizer_folder(start), start if (start / GENERATION).is_file() else whole_folder(start)
        for source, name in [(tokens, name) for name in _BESIDE] + [(generation, GENERATION)]:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
    template = model.own_template
    if isinstance(template, JinjaTemplate):
        (folder / "chat_template.jinja").write_text(template.source, encoding="utf-8")
        if not (folder / "tokenizer_config.json").exists():
            special = {name: text for name, text in template.variables.items() if name in ("bos_token", "eos_token")}
            (folder / "tokenizer_config.json").write_text(json.dumps(special), encoding="utf-8")
