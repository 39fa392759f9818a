"""reasoning-gym's tasks as an environment: ``reasoning-gym:DATASET``, settings of the dataset after ``?``. One question, one
reply, its score."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from ramify.base.errors import InfrastructureError, UserError, nearest
from ramify.base.ids import json_hash
from ramify.base.registry import register
from ramify.env.protocol import Env, Observation, Task, TaskSet
from ramify.integrations.environments.spec import generated, import_package, options

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningEpisode:
    """One question. The reply's last ``<answer>...</answer>``, or the whole reply, is scored by the dataset."""

    system = "Write your final answer as <answer>...</answer>."
    max_turns = 1

    def __init__(self, environment: ReasoningGymEnvironment) -> None:
        self._environment = environment
        self._seed: int | None = None
        self._over = False

    def reset(self, task: Task, seed: int) -> Observation:
        """Show the question. Raises UserError where the task has no seed or another version of the dataset made it."""
        number = task.data.get("seed")
        if type(number) is not int or number < 0:
            raise UserError(f"task '{task.id}': 'seed' must be a whole number from 0, not {number!r}")
        question = self._environment.entry(number)[1]["question"]
        if task.data.get("question", question) != question:
            raise UserError(
                f"task '{task.id}' has another question than {self._environment.name} makes of its seed {number} here"
            )
        self._seed, self._over = number, False
        return Observation(question)

    def step(self, action: str) -> Observation:
        """Score the reply and end."""
        if self._seed is None or self._over:
            raise InfrastructureError("env", "step without a running episode")
        self._over = True
        dataset, entry = self._environment.entry(self._seed)
        found = _ANSWER.findall(action)
        try:
            score = float(dataset.score_answer((found[-1] if found else action).strip(), entry))
        except Exception:  # some scorers parse the reply and raise on what is not an answer at all
            return Observation("The answer cannot be read.", terminated=True, outcome=False, valid=False)
        return Observation(f"score {score:g}", score, terminated=True, outcome=score >= 1)

    def snapshot(self) -> dict[str, Any]:
        """The seed and whether the question was answered."""
        return {"seed": self._seed, "over": self._over}

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._seed, self._over = snapshot["seed"], snapshot["over"]

    def key(self) -> str:
        """The question and whether it was answered."""
        return json_hash([self._environment.name, self._seed, self._over])


@register("env", "reasoning-gym")
class ReasoningGymEnvironment:
    """One of reasoning-gym's datasets. A task is a seed of it;
    the question's hash decides its split, so splits share no question.

    Raises UserError on an unknown dataset or setting, NeedsError where reasoning-gym is not installed.
    """

    def __init__(self, argument: str = "") -> None:
        self._dataset, self._settings = options(argument)
        gym = import_package("reasoning_gym", "environments", "the environment 'reasoning-gym'")
        known = import_package("reasoning_gym.factory", "environments", "the environment 'reasoning-gym'").DATASETS
        self.name = f"reasoning-gym:{argument}"
        if self._dataset not in known:
            raise UserError(f"reasoning-gym has no dataset '{self._dataset}' ({nearest(self._dataset, known)})")
        self._create = gym.create_dataset
        self.entry = lru_cache(maxsize=256)(self._entry)
        """The dataset of a seed and its first entry."""
        try:
            self.entry(0)
        except Exception as error:  # datasets check their settings with asserts, TypeErrors and more
            raise UserError(f"reasoning-gym refuses {argument}: {error}") from error

    def _entry(self, seed: int) -> tuple[Any, dict[str, Any]]:
        dataset = self._create(self._dataset, seed=seed, size=1, **self._settings)
        return dataset, dataset[0]

    def make(self) -> Env:
        """A fresh episode."""
        return ReasoningEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` different questions of a split. Raises UserError where the settings allow fewer."""
        return generated(self._dataset, self._draft, split, n, seed)

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """The answer and two that are none, for the conformance battery."""
        return [f"<answer>{self.entry(task.data['seed'])[1]['answer']}</answer>", "<answer>-1</answer>", "no idea"]

    def _draft(self, number: int) -> dict[str, Any]:
        return {"seed": number, "question": self.entry(number)[1]["question"]}
