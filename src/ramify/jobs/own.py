"""Components of the main job that are passed as objects. What can be serialised is kept in the run,
which then continues without them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.engine.checkpoints import copy_of, save_model
from ramify.engine.local import LocalModel
from ramify.env.protocol import AnyEnvironment, AnyTasks, TaskSet, task_set_of
from ramify.model.function import model_of
from ramify.model.protocol import Model, require

if TYPE_CHECKING:
    from ramify.jobs.settings import ImproveConfig

START, TASKS = "start", "tasks.jsonl"
"""Names in a run's folder: the checkpoint of a model object, and the tasks that were given as objects."""


@dataclass(frozen=True)
class Own:
    """``model``, ``env`` and ``tasks`` that replace the settings' own; None leaves those."""

    model: Model | str | None = None
    env: AnyEnvironment | None = None
    tasks: AnyTasks | None = None

    def named(self, config: ImproveConfig, folder: Path) -> ImproveConfig:
        """The settings with the names of these components, or the paths in ``folder`` where they are kept."""
        names: dict[str, Any] = {}
        if self.model is not None:
            names["model"] = self.model if isinstance(self.model, str) else f"hf:{(folder / START).absolute()}"
        if isinstance(self.env, str):
            names["env"] = self.env
        if self.tasks is not None:
            names["tasks"] = str(self.tasks if isinstance(self.tasks, str | Path) else (folder / TASKS).absolute())
        return config.model_copy(update=names)

    def stored(self, config: ImproveConfig) -> dict[str, Any]:
        """The settings as the run stores them: an environment that is an object has no name."""
        return config.to_json() | ({} if self.env is None or isinstance(self.env, str) else {"env": None})

    def agent(self, max_sequences: int) -> LocalModel | None:
        """A copy of the model object, None where there is none. Raises UserError or NeedsError on one that cannot be trained."""
        if self.model is None or isinstance(self.model, str):
            return None
        model = model_of(self.model)
        require(model, ("tokens", "logprobs", "train"), "ramify improve")
        return copy_of(model, START, max_sequences)

    def task_set(self) -> TaskSet | None:
        """The tasks given as objects; None where there are none. Raises UserError naming one that is wrong."""
        return None if self.tasks is None or isinstance(self.tasks, str | Path) else task_set_of(self.tasks)

    def keep(self, folder: Path, model: LocalModel, task_set: TaskSet | None) -> None:
        """Write the agent's copy and the tasks into the run. Raises RamifyError when the disk refuses."""
        if self.model is not None and not isinstance(self.model, str):
            save_model(model, model.folder, folder / START)
        if task_set is not None:
            lines = (json.dumps({"id": task.id, **task.data}, ensure_ascii=False) + "\n" for task in task_set)
            write_whole(folder / TASKS, "".join(lines))


def env_of(record: dict[str, Any], env: AnyEnvironment | None, run: Path | str) -> dict[str, Any]:
    """The stored settings of a run that continues with the environment ``env``. Raises UserError where it is missing."""
    if record.get("env", "") is not None:
        return record
    if env is None:
        raise UserError(f"{run} was made with an environment object: continue in Python, ramify.resume({str(run)!r}, env=...)")
    return {name: value for name, value in record.items() if name != "env"}
