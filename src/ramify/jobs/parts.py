"""Find the parts a job names: the world, the tasks to train on and those held out."""

from __future__ import annotations

from pathlib import Path

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.env.protocol import Panel, World, read_panel
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Model
from ramify.rollout.worker import find_attribute

AGENT = "agent"
"""Folder of the improved checkpoint inside a run."""
HELD_OUT = 4
"""One task in this many of a user's own panel is held out for evaluation."""


def find_world(spec: str) -> World:
    """The world that ``NAME`` or ``NAME:ARGUMENT`` names: a registered one, made with the argument where one is given.
    ``factory:MODULE:ATTRIBUTE`` is what that callable of your own returns.

    Raises UserError where there is none of that name or it does not take the argument.
    """
    name, colon, argument = spec.partition(":")
    if name == "factory":
        own: World = find_attribute(argument)()
        return own
    make = registry.get("env", name)
    world: World = make(argument) if colon else make()
    return world


def find_model(spec: str) -> tuple[Model, ChatTemplate | None]:
    """The model a text names (see :func:`ramify.engine.checkpoints.find_model`), and how chats are laid out for it.

    ``factory:MODULE:ATTRIBUTE`` is what that callable of your own returns. Raises UserError where there is no such model.
    """
    from ramify.engine import checkpoints

    if spec.startswith("factory:"):
        own: Model = find_attribute(spec.removeprefix("factory:"))()
        return own, checkpoints.template_of(own)
    return checkpoints.find_model(spec)


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
