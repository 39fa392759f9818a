"""Winning paths of environments that know one, written into a run: to fork from, or to train on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ramify.env.protocol import Environment, Task
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.trace.db import Run


class Guided(Environment, Protocol):
    """An environment that knows how a task is won: TextWorld's, TextWorldExpress's, AgentDojo's."""

    def walkthrough(self, task: Task) -> list[str]:
        """Replies that win the task."""
        ...


async def play_walkthroughs(environment: Guided, tasks: Iterable[Task], run: Run, seed: int = 0) -> list[Attempt]:
    """Write the walkthrough of every task into ``run`` as an attempt."""
    attempts = []
    for task in tasks:
        agent = Agent(ScriptedModel(environment.walkthrough(task), tokens=False, name="walkthrough"))
        attempts.append(await Episodes(agent, environment, run, seed).attempt(task.id, task, 0))
    return attempts
