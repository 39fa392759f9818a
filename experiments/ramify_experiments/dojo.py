"""AgentDojo's user tasks for a model of the size that two cores train: its suites and checkers, and replies of a few words.

A reply names one of the replies of the suite's own solutions: a call as its tool and a number (``send_money 2``), an answer as
``answer`` and a number. What a tool returns is shown in its first words. No task is held out: 77 tasks from four unlike suites do
not teach a small model a fifth, so what is learnt is to solve these more often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np

from ramify.base.seeds import generator
from ramify.engine.tiny import TinyLM
from ramify.env.protocol import Env, Observation, Snapshot, Task, TaskSet
from ramify.integrations.environments.agentdojo import AgentDojoEnvironment
from ramify.model.tokenizer import HfTokenizer
from ramify.trace.message import parse_tool_calls
from ramify_experiments.models import Report, silent
from ramify_experiments.recipes import CrowdRecipe

SUITES = ("banking", "slack", "travel", "workspace")
LEAST, MOST = 3, 11
"""Replies of AgentDojo's own solution, of a task that is taken: with fewer there is no step to credit apart from its attempt."""
PROMPT, RESULT = 40, 12
"""Words of a task and of a tool's result that are shown."""
SYSTEM = "Name one call, or the answer."


class DojoEpisode:
    """A task of a suite, played by the names of replies."""

    max_turns, system = MOST + 1, SYSTEM

    def __init__(self, environment: DojoEnvironment) -> None:
        self._environment = environment
        self._episode: Env
        self._replies: Mapping[str, str] = {}

    def reset(self, task: Task, seed: int) -> Observation:
        """Show the task's first words."""
        suite = self._environment.suites[task.data["suite"]]
        self._episode, self._replies = suite.make(), self._environment.replies[suite.name]
        return _short(self._episode.reset(task, seed), PROMPT)

    def step(self, action: str) -> Observation:
        """Make the call, or give the answer, that the reply names."""
        reply = self._replies.get(" ".join(action.split()))
        return Observation("no such call", valid=False) if reply is None else _short(self._episode.step(reply), RESULT)

    def snapshot(self) -> Snapshot | None:
        """The suite's."""
        return self._episode.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        self._episode.restore(snapshot)

    def key(self) -> str | None:
        """The task and the suite's state."""
        return self._episode.key()


class DojoEnvironment:
    """The tasks of all suites whose solutions have :data:`LEAST` to :data:`MOST` replies."""

    name = "agentdojo in few words"

    @cached_property
    def suites(self) -> dict[str, AgentDojoEnvironment]:
        """Name -> suite."""
        return {name: AgentDojoEnvironment(name) for name in SUITES}

    @cached_property
    def replies(self) -> dict[str, dict[str, str]]:
        """Environment of a suite -> name of a reply -> the reply, of all solutions of the suite."""
        return {suite.name: _named(suite) for suite in self.suites.values()}

    @cached_property
    def _tasks(self) -> list[Task]:
        return [
            Task(task.id, {**task.data, "suite": name})
            for name, suite in self.suites.items()
            for task in _every(suite)
            if LEAST <= len(suite.walkthrough(task)) <= MOST
        ]

    def make(self) -> DojoEpisode:
        """A fresh episode."""
        return DojoEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """All tasks, whatever the split."""
        return TaskSet.of(self._tasks)

    def solution(self, task: Task) -> list[str]:
        """AgentDojo's own, by the names of its replies."""
        suite = self.suites[task.data["suite"]]
        names = {reply: name for name, reply in self.replies[suite.name].items()}
        return [names[reply] for reply in suite.walkthrough(task)]


def _every(suite: AgentDojoEnvironment) -> Iterable[Task]:
    return [task for split in ("train", "tune", "eval") for task in suite.task_set(split, 1000)]


def _named(suite: AgentDojoEnvironment) -> dict[str, str]:
    """Name -> reply: a tool's calls, and the answers, are counted in the order of the tasks."""
    replies, counted = dict[str, str](), dict[str, int]()
    for reply in dict.fromkeys(reply for task in _every(suite) for reply in suite.walkthrough(task)):
        calls = parse_tool_calls(reply)
        kind = calls[0].name if calls else "answer"
        counted[kind] = counted.get(kind, 0) + 1
        replies[f"{kind} {counted[kind]}"] = reply
    return replies


def _short(seen: Observation, words: int) -> Observation:
    """What is shown of it, as the user's words, and how the attempt ended."""
    return Observation(" ".join(seen.text.split()[:words]), seen.reward, seen.terminated, outcome=seen.outcome, valid=seen.valid)


class DojoRecipe(CrowdRecipe):
    """The crowd of the small models at these tasks: a careless demonstrator makes any call of the suite's solutions."""

    NAME: ClassVar[str] = "agentdojo"
    times: int = 40
    """Demonstrations of a task."""
    vocab: int = 800
    rows: int = 8
    steps: int = 1200

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Imitate the demonstrations."""
        environment = DojoEnvironment()
        dialogues = []
        for task in environment.task_set("train", 0):
            for attempt in range(self.times):
                rng = generator(self.seed, "demo", task.id, attempt)
                dialogues.append(_shown(environment, task, self.noise(rng), rng))
        return self.imitated(dialogues, report)


def _shown(environment: DojoEnvironment, task: Task, noise: float, rng: np.random.Generator) -> list[tuple[str, str]]:
    """One noisy demonstration as (role, text); it ends with the answer."""
    episode, messages = environment.make(), [("system", SYSTEM)]
    seen, left = episode.reset(task, 0), environment.solution(task)
    calls = [name for name in environment.replies[f"agentdojo:{task.data['suite']}"] if not name.startswith("answer")]
    for _ in range(episode.max_turns):
        if seen.terminated:
            break
        reply = str(rng.choice(calls)) if rng.random() < noise else left.pop(0)
        messages += [("user", seen.text), ("assistant", reply)]
        seen = episode.step(reply)
    return messages
