"""Find the parts a job names: the world, the tasks to train on and those held out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base import registry
from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import stable_hash
from ramify.env.protocol import Panel, World, read_panel
from ramify.rollout.agent import Agent
from ramify.rollout.parts import find_compactor as find_compactor
from ramify.rollout.parts import find_model as find_model
from ramify.rollout.parts import find_world as find_world
from ramify.rollout.parts import make_agent as make_agent
from ramify.rollout.parts import read_sampling as read_sampling
from ramify.trace.db import Run

AGENT = "agent"
"""Folder of the improved checkpoint inside a run."""
HELD_OUT = 4
"""One task in this many of a user's own panel is held out for evaluation."""


def worker_parts(settings: Mapping[str, Any]) -> tuple[Agent, World]:
    """What a worker plays with, from names: see :func:`ramify.jobs.play.open_players`."""
    shortens = {"compactor": settings.get("compactor"), "window": settings.get("window", 0)}
    model, template = find_model(settings["model"], settings.get("device", ""), settings.get("dtype", ""))
    return make_agent(model, template, read_sampling(settings["sampling"]), **shortens), find_world(settings["env"])


def check_trust(run: Run, trust: bool) -> None:
    """Whether the parts that a run's settings name may be made. Those of a foreign run are a third party's words: they could start a
    program, import a module, or send a key to an address of their choice.

    Raises UserError with the list of what would happen, unless ``trust``; parts of ramify's own that do none of that need none.
    """
    if trust or not run.foreign:
        return
    config = run.meta.get("config")
    risks = [f"{name} {config[name]!r}" for name in _RISKY if _risky(name, config.get(name))] if isinstance(config, dict) else []
    if risks:
        raise UserError(
            f"{run.folder} was imported or made elsewhere, and its settings name what loads code, opens a connection or reads files: "
            f"{', '.join(risks)}; where that is what you want, give --trust (trust=True)"
        )


_RISKY = ("model", "env", "compactor", "tasks", "backend")
_HARMLESS = {"model": ("builtin",), "backend": ("local",), "tasks": ()}


def _risky(name: str, value: Any) -> bool:
    if not value:
        return False
    if name in _HARMLESS:
        return value not in _HARMLESS[name] and not (name == "backend" and str(value).partition(":")[0] == "processes")
    try:
        home = registry.get(name, str(value)).__module__
    except (RamifyError, AttributeError):
        return True
    return not str(home).startswith(("ramify.env.", "ramify.rollout."))


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
