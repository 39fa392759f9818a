"""Open a pair of policy and reference by name: two checkpoints, a LoRA with its adapter off, a merged reference, servers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import stable_hash
from ramify.engine.adapters import adapter_base, is_adapter
from ramify.engine.merged import Method, merged_model
from ramify.engine.named import find_model, is_local
from ramify.engine.tiny import read_config
from ramify.model.chat import ChatTemplate, JinjaTemplate, TagTemplate
from ramify.model.pair import IncompatiblePairError, Pair, Side
from ramify.model.protocol import Model
from ramify.model.tokenizer import HfTokenizer


def open_pair(
    policy: str,
    reference: str | None = None,
    *,
    alpha: float = 0.0,
    method: Method = "linear",
    density: float = 0.2,
    cache: Path | str | None = None,
    together: bool = False,
) -> Pair:
    """The pair of two models named as everywhere (``builtin``, ``hf:PATH``,
    ``completions:MODEL@URL``) or by a checkpoint's folder.

    A LoRA adapter is added to its own base, whatever the other side is. Without ``reference`` the policy must be a LoRA adapter,
    whose model with the adapter off then is the reference. ``alpha`` above 0 moves the reference towards the policy
    (:func:`ramify.engine.merged.merge`). Weights are loaded one model after the other unless ``together``. Raises UserError on
    what cannot be opened, IncompatiblePairError on endpoints without log-probs of given tokens and on tokenizers that differ.
    """
    folder = _folder(policy)
    if reference is None and (folder is None or not is_adapter(folder)):
        raise UserError(f"'{policy}' is not a LoRA adapter, whose base would be the reference: name a reference")
    there = adapter_base(folder) if reference is None and folder is not None else _folder(reference or "")
    sides = [_side(policy, folder, there, together), _side(reference or str(there), there, None, together)]
    if alpha:
        if folder is None or there is None or is_adapter(folder) or is_adapter(there):
            raise UserError("a merged reference needs two checkpoint folders with whole models")
        sides[1].open = partial(merged_model, there, folder, alpha, method, density)
        sides[1].name += f" (alpha {alpha:g}, {method})"
        sides[1].stamp = stable_hash(sides[0].stamp, sides[1].stamp, f"{alpha} {method} {density}")
    return Pair(sides[0], sides[1], cache)


def pair_template(policy: str) -> ChatTemplate | None:
    """The chat template of the policy, or None where it has none that ramify can render messages with."""
    folder = _folder(policy)
    try:
        if folder is None:
            return find_model(policy)[1]
        has_tokenizer = (folder / "tokenizer.json").is_file() or not is_adapter(folder)
        for source in [folder] if has_tokenizer else [adapter_base(folder)]:
            if (source / "tokenizer.json").is_file():
                tokenizer = HfTokenizer.load(source)
                try:
                    return TagTemplate(tokenizer)
                except NeedsError:
                    return JinjaTemplate.from_folder(tokenizer, source)
    except NeedsError:
        return None
    return None


def _folder(spec: str) -> Path | None:
    """The checkpoint folder that a name stands for, None for a model on an endpoint or a registered one."""
    from ramify.engine.checkpoints import model_folder

    _, colon, _ = spec.partition(":")
    if is_local(spec):
        return model_folder(spec)
    if colon and not Path(spec).is_dir():
        return None
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} with a model (models: builtin, hf:PATH, completions:MODEL@URL)")
    return model_folder(f"hf:{folder}")


def _side(spec: str, folder: Path | None, instead: Path | None, together: bool) -> Side:
    if folder is None:
        if spec.partition(":")[0] == "chat":
            raise IncompatiblePairError(
                "a chat endpoint gives no log-probs of given tokens; use completions:MODEL@URL?tokenizer=FOLDER"
            )
        model = find_model(spec)[0]
        return Side.of(model)
    if is_adapter(folder):
        base = _base(folder, instead)
        tokens = next((f for f in (folder, base) if (f / "tokenizer.json").is_file()), None)
        stamp = _stamp(folder, base)
        return Side(partial(_load, folder, base), folder.name, _tokenizer(tokens), read_config(base), together, stamp)
    return Side(partial(_load, folder, None), folder.name, _tokenizer(folder), read_config(folder), together, _stamp(folder))


def _base(adapter: Path, instead: Path | None) -> Path:
    """The model an adapter is for: its own base, and only where that is not here ``instead``, if that is a whole model."""
    try:
        return adapter_base(adapter)
    except UserError:
        if instead is None or is_adapter(instead):
            raise
        return instead


def _stamp(*folders: Path) -> str:
    """Changes when a weight or config file of the folders does: their names, sizes and times."""
    files = [file for folder in folders for file in sorted(folder.glob("*")) if file.suffix in (".safetensors", ".bin", ".json")]
    return stable_hash(*(f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files))


def _load(folder: Path, base: Path | None) -> Model:
    from ramify.engine.local import LocalModel

    return LocalModel.load(folder, base=base)


def _tokenizer(folder: Path | None) -> Any:
    return HfTokenizer.load(folder) if folder is not None and (folder / "tokenizer.json").is_file() else None
