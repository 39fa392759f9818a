"""Find the components a job names: the environment, the tasks to train on and those held out."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.env.protocol import AnyTasks, Environment, TaskSet, task_set_of
from ramify.model.chat import ChatTemplate, JinjaTemplate, read_template
from ramify.model.protocol import Model
from ramify.rollout.agent import Agent
from ramify.rollout.components import find_environment, find_model, make_agent, read_sampling
from ramify.rollout.stored import kept_template
from ramify.trace.connect import holds_run
from ramify.trace.db import Run

HELD_OUT = 4
"""One task in this many of a user's own task set is held out for evaluation."""


def surroundings(model: Model) -> dict[str, Any]:
    """What a run stores about the machine: versions of what is installed, cores, of a local model its device, the kernels and how
    sequences run on them, of an endpoint what was found of how its server draws."""
    noted: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count() or 1}
    noted |= {name: metadata.version(name) for name in ("torch", "numpy", "transformers") if find_spec(name) is not None}
    if caution := getattr(model, "caution", ""):
        noted["server"] = caution
    if (exactness := getattr(model, "exactness", None)) is not None:
        from ramify.engine.devices import kernels

        noted |= {"kernels": kernels(), "rows": str(exactness), **getattr(model, "placed", {})}
    return noted


def cautions(model: Model) -> tuple[str, ...]:
    """A caution for the reader of a result where sequences were not batch-invariant here, or a server was found to draw otherwise
    after other requests; else none."""
    text = getattr(getattr(model, "exactness", model), "caution", "")
    return (str(text),) if text else ()


def worker_components(settings: Mapping[str, Any]) -> tuple[Agent, Environment]:
    """A worker's agent and environment, from names: see :func:`ramify.jobs.play.open_players`."""
    shortens = {"compactor": settings.get("compactor"), "window": settings.get("window", 0)}
    placed = settings.get("device", ""), settings.get("dtype", "")
    model, template = find_model(settings["model"], *placed, settings.get("template"))
    return make_agent(model, template, read_sampling(settings["sampling"]), **shortens), find_environment(settings["env"])


def template_entry(template: ChatTemplate | None) -> dict[str, str]:
    """The hash of a chat template that can change apart from the weights, as a part of a run
    (:meth:`ramify.trace.db.Run.begin`)."""
    return {"chat template": str(template.to_json()["hash"])} if isinstance(template, JinjaTemplate) else {}


def wanted_template(file: str | None, folder: Path) -> dict[str, Any] | None:
    """The template in ``file``, with the date on which the run in ``folder`` began, where there is one.

    Raises UserError where the file cannot be read.
    """
    given: dict[str, Any] = dict(read_template(Path(file).expanduser())) if file else {}
    if holds_run(folder):
        with Run.open(folder) as run:
            kept = kept_template(run)
        given |= {"date": kept["date"]} if kept else {}
    return given or None


def task_sets(environment: Environment, tasks: AnyTasks | None, train: int, evaluate: int, seed: int) -> tuple[TaskSet, TaskSet]:
    """Tasks to train on and tasks to evaluate on, disjoint.

    A user's tasks are split by the hash of each task's id, so a task stays in its split when others are added.
    """
    if tasks is None:
        return environment.task_set("train", train, seed), environment.task_set("eval", evaluate, seed)
    task_set = task_set_of(tasks)
    held = {task.id for task in task_set if int(stable_hash("held-out", task.id)[:8], 16) % HELD_OUT == 0}
    if not held or len(held) == len(task_set):
        held = {next(iter(task_set)).id}
    if len(task_set) < 2:
        named = tasks if isinstance(tasks, str | Path) else "tasks"
        raise UserError(f"{named} holds one task; at least two are needed, one to train on and one held out")
    return TaskSet.of(t for t in task_set if t.id not in held), TaskSet.of(t for t in task_set if t.id in held)


def tasks_to_choose_by(
    environment: Environment, tasks: AnyTasks | None, train: TaskSet, n: int, seed: int
) -> tuple[TaskSet, TaskSet]:
    """``train`` without, and the tasks with which checkpoints are compared: ``n`` of the environment's split ``tune``.

    Of a user's own tasks, and of an environment that has no such split, they are one in four of ``train``,
    chosen by the hash of the id; a single training task is both."""
    if tasks is None:
        with suppress(UserError):
            return train, environment.task_set("tune", n, seed)
    chosen = {task.id for task in train if int(stable_hash("tune", task.id)[:8], 16) % HELD_OUT == 0} or {next(iter(train)).id}
    if len(chosen) == len(train):
        return train, train
    return TaskSet.of(t for t in train if t.id not in chosen), TaskSet.of(t for t in train if t.id in chosen)
