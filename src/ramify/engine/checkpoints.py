"""Open an agent's checkpoint by name, with the chat template that goes with it, and save one."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from ramify.base.errors import NeedsError, RamifyError, UserError
from ramify.base.files import refusal, whole_file
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.model.chat import ChatTemplate, JinjaTemplate, TagTemplate
from ramify.model.protocol import Model
from ramify.model.tokenizer import HfTokenizer


def model_folder(spec: str) -> Path:
    """Folder of the checkpoint that ``builtin`` or ``hf:PATH`` names. Raises UserError when there is none."""
    if spec == "builtin":
        return Path(str(resources.files("ramify") / "assets" / "household"))
    kind, _, path = spec.partition(":")
    if kind in ("chat", "completions"):
        raise NeedsError(f"'{kind}:...' is a model behind an endpoint; this needs weights in this process: builtin or hf:PATH")
    if kind != "hf" or not path:
        raise UserError(f"model '{kind}' is neither 'builtin' nor 'hf:PATH'")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"model '{spec}': there is no folder {folder}")
    return folder


def load_model(folder: Path, max_rows: int = 64) -> tuple[LocalModel, ChatTemplate]:
    """The checkpoint in ``folder`` on the local engine, and the chat template that goes with its tokenizer."""
    return LocalModel.load(folder, max_rows=max_rows), chat_template(folder)


def chat_template(folder: Path) -> ChatTemplate:
    """How the checkpoint in ``folder`` lays chats out. Raises NeedsError where it does not say."""
    tokenizer = HfTokenizer.load(folder)
    try:
        return TagTemplate(tokenizer)
    except NeedsError:
        return JinjaTemplate.from_folder(tokenizer, folder)


def save_model(model: LocalModel, start: Path, folder: Path) -> None:
    """Write the model as it is now as a checkpoint folder that transformers, vLLM and ``hf:PATH`` load; ``start`` is where it came from.

    Each file is there whole or not at all. Raises RamifyError when the disk refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
            _write(model, start, Path(part))
            for file in sorted(Path(part).iterdir()):
                with whole_file(folder / file.name) as whole:
                    os.replace(file, whole)
    except OSError as error:
        raise refusal(f"cannot write the checkpoint {folder}", error) from error
    except SafetensorError as error:  # what the library makes of a failed write
        raise RamifyError(f"cannot write the checkpoint {folder}: {error}") from error


def weights_of(model: LocalModel) -> bytes:
    """The weights as they are now, as safetensors: what a worker takes with :func:`set_weights`."""
    return bytes(save({name: value.detach().clone().contiguous() for name, value in model.module.state_dict().items()}))


def set_weights(model: Model, weights: bytes) -> None:
    """Take over weights that :func:`weights_of` wrote. Raises UserError where they are not those of such a model."""
    if not isinstance(model, LocalModel):
        raise UserError(f"the weights of '{model.identity.name}' cannot be set")
    try:
        model.module.load_state_dict(load(weights))
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"these are no weights of '{model.name}': {error}") from error
    model.refresh()


def _write(model: LocalModel, start: Path, folder: Path) -> None:
    if isinstance(model.module, TinyLM):
        model.module.save(folder, model.tokenizer)
    else:
        model.module.save_pretrained(folder)  # type: ignore[operator]
        if model.tokenizer is not None:
            (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (start / name).is_file():
            shutil.copyfile(start / name, folder / name)
