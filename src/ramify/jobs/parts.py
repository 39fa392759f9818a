"""Find the parts a job names: the agent's model and chat template, the world, the tasks to train on and those held out."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from ramify.base import registry
from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import stable_hash
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.env.protocol import Panel, World, read_panel
from ramify.model.chat import ChatTemplate, JinjaTemplate, TagTemplate
from ramify.model.tokenizer import HfTokenizer

AGENT = "agent"
"""Folder of the improved checkpoint inside a run."""
HELD_OUT = 4
"""One task in this many of a user's own panel is held out for evaluation."""


def model_folder(spec: str) -> Path:
    """Folder of the checkpoint that ``builtin`` or ``hf:PATH`` names. Raises UserError when there is none."""
    if spec == "builtin":
        return Path(str(resources.files("ramify") / "assets" / "household"))
    kind, _, path = spec.partition(":")
    if kind != "hf" or not path:
        raise UserError(f"model '{spec}' is neither 'builtin' nor 'hf:PATH'")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"model '{spec}': there is no folder {folder}")
    return folder


def load_model(folder: Path, max_rows: int = 64) -> tuple[LocalModel, ChatTemplate]:
    """The checkpoint in ``folder`` on the local engine, and the chat template that goes with its tokenizer."""
    model = LocalModel.load(folder, max_rows=max_rows)
    tokenizer = HfTokenizer.load(folder)
    try:
        return model, TagTemplate(tokenizer)
    except NeedsError:
        return model, JinjaTemplate.from_folder(tokenizer, folder)


def save_model(model: LocalModel, start: Path, folder: Path) -> None:
    """Write the model as it is now as a checkpoint folder that transformers, vLLM and ``hf:PATH`` load; ``start`` is where it came from."""
    if isinstance(model.module, TinyLM):
        model.module.save(folder, model.tokenizer)
    else:
        model.module.save_pretrained(folder)  # type: ignore[operator]
        if model.tokenizer is not None:
            (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (start / name).is_file():
            shutil.copyfile(start / name, folder / name)


def find_world(name: str) -> World:
    """The registered world of that name."""
    world: World = registry.get("env", name)()
    return world


def panels(world: World, tasks: str | None, train: int, evaluate: int, seed: int) -> tuple[Panel, Panel]:
    """Tasks to train on and tasks to evaluate on; they share none.

    A user's own file is split by the hash of each task's id, so a task stays on its side when others are added.
    """
    if tasks is None:
        return world.panel("train", train, seed), world.panel("eval", evaluate, seed)
    panel = read_panel(Path(tasks))
    held = {task.id for task in panel if int(stable_hash("held-out", task.id)[:8], 16) % HELD_OUT == 0}
    if not held or len(held) == len(panel):
        held = {next(iter(panel)).id}
    if len(panel) < 2:
        raise UserError(f"{tasks} holds one task; at least two are needed, one to train on and one held out")
    return Panel.of(t for t in panel if t.id not in held), Panel.of(t for t in panel if t.id in held)
