"""The router's second stage: evolution on whole trajectories (section 3.4), in a conversation with a judge or in any environment.

Every candidate of a generation plays the same tasks on the same samples of the same workers, so equal choices are paid once and
luck decides nothing. The mean is kept, not the luckiest candidate,
and only where it is better on fresh samples. Each generation is committed whole.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import derive_key, generator
from ramify.env.protocol import Environment, Task, TaskSet
from ramify.methods.orchestrator.algorithm import RoutingGain, SearchState, SepCma, gain, population
from ramify.methods.orchestrator.conversation import Orchestrated, Orchestration
from ramify.methods.orchestrator.middleware import Routed
from ramify.methods.orchestrator.pool import ModelPool
from ramify.methods.orchestrator.settings import EvolveRouterConfig
from ramify.methods.orchestrator.table import prompt_of, reward_of
from ramify.methods.orchestrator.turns import answer_with
from ramify.model.protocol import Sampling
from ramify.render.result import CALL, Result, Section, table
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.score.judge import Judge
from ramify.trace.db import Run
from ramify.trace.message import Message

if TYPE_CHECKING:
    from ramify.methods.orchestrator.router import TurnRouter

GENERATION = "generation"


class _Steady(Routed):
    """One identity for all candidates of a generation, so that the same history has the same samples whoever came to it."""

    @property
    def settings(self) -> Any:
        return None if self.pool is None else self.pool.identity

    async def _answer(self, chat: Orchestration) -> Orchestrated:
        made = await super()._answer(chat)
        if chat.outage:
            raise InfrastructureError("provider", f"the router's choice did not answer: {'; '.join(chat.notes)}")
        return made


class Trial:
    """Plays episodes with a router: tasks with a judge, or an environment. The pool's seed decides every sample."""

    def __init__(
        self, pool: ModelPool, tasks: TaskSet, config: EvolveRouterConfig, judge: Judge | None = None,
        environment: Environment | None = None,
        budget: Budget | None = None, exclude: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Raises UserError unless there is a judge or an environment, and not both."""
        if (judge is None) == (environment is None):
            raise UserError("evolution plays tasks with --judge, or an environment with --evolved.env: give one of them")
        self.pool, self.tasks, self.config, self.judge = pool, list(tasks), config, judge
        self.environment, self.budget, self.exclude = environment, budget, tuple(exclude)
        self.sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)

    async def rewards(self, router: TurnRouter, name: str, n: int) -> list[float | None]:
        """Rewards of ``n`` episodes; ``name`` decides tasks and samples, the same for every router. None of one in
        which a worker failed: another answered in its place, if any, and that says nothing about the choice."""
        picks = generator(self.pool.seed, name, "tasks").integers(len(self.tasks), size=n)
        if self.environment is not None:
            return await self._played(router, name, [self.tasks[int(i)] for i in picks])
        return list(
            await asyncio.gather(*(self._answered(router, self.tasks[int(i)], f"{name}/{at}") for at, i in enumerate(picks)))
        )

    async def _answered(self, router: TurnRouter, task: Task, key: str) -> float | None:
        assert self.judge is not None
        chat = Orchestration(
            self.pool, [Message("user", prompt_of(task))], key, settings=self.sampling, budget=self.budget, exclude=self.exclude
        )
        try:
            made = await answer_with(chat, router, self.config.turns)
        except InfrastructureError:
            return None
        if chat.outage:
            return None
        found = await reward_of(self.judge, task, made.answer)
        return None if found.value is None else float(found.value)

    async def _played(self, router: TurnRouter, name: str, tasks: Sequence[Task]) -> list[float | None]:
        assert self.environment is not None
        model = _Steady(self.pool.models[0]).over(self.pool, router)
        model.exclude = self.exclude
        with tempfile.TemporaryDirectory() as scratch, Run.create(Path(scratch) / "run", {}) as run:
            seed = derive_key(self.pool.seed, name) % 2**31
            episodes = Episodes(Agent(model, None, self.sampling), self.environment, run, seed, budget=self.budget)
            done = await asyncio.gather(*(episodes.attempt(f"{at}", task, 0) for at, task in enumerate(tasks)))
        return [None if one.failure else float(one.outcome) if one.outcome is not None else one.reward for one in done]


def fitness(rewards: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean reward of each candidate, of (K, E) rewards, over the episodes that went well for all: what an outage hid from one is
    compared for none. Raises InfrastructureError where there is no such episode."""
    held = np.array(rewards, float)
    known = np.isfinite(held).all(axis=0)
    if not known.any():
        raise InfrastructureError(
            "provider", "a worker failed in every episode, of one candidate or another: --exclude it, or wait until it is back"
        )
    return [float(one) for one in held[:, known].mean(axis=1)]


@dataclass(frozen=True)
class RouterGeneration:
    """A finished generation: how the search continues, and what its candidates got."""

    state: SearchState
    mean: float
    best: float


@dataclass(frozen=True)
class EvolvedRouter(Result):
    """What evolution made of a router. ``kept``: it was better on fresh samples, else the router is as it was."""

    generations: int
    parameters: int
    size: int
    """Candidates of a generation."""
    sigma: float
    means: tuple[float, ...]
    """Mean reward of each generation."""
    start: float
    end: float
    gain: RoutingGain | None
    kept: bool
    says: str
    out: str = ""
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=CALL)
    cached: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """What it came to, and what each worker was asked."""
        spent = table(("worker", "unit", "spent"), ((who, *one) for who, own in self.spent.items() for one in own.items()))
        yield Section.of("", self.says, spent)


async def evolve(router: TurnRouter, trial: Trial, run: Run, progress: Progress = SILENT) -> EvolvedRouter:
    """Evolve ``router`` in place, from the last generation in ``run``. Raises BudgetSpentError: finished generations are kept."""
    config = trial.config
    begun = router.vector()
    stored = list(run.memo(GENERATION, RouterGeneration).values())
    first = config.sigma or router.step_size()
    search = SepCma(begun, first, trial.pool.seed, config.size or population(router.size))
    if stored:
        search = SepCma.of(stored[-1].state)
    means = [one.mean for one in stored]

    async def generation() -> tuple[RouterGeneration, tuple[()]]:
        trial.pool.forget()
        candidates, name = search.ask(), f"generation {search.generation}"
        rewards = []
        for candidate in candidates:
            router.set_vector(candidate)
            rewards.append(await trial.rewards(router, name, config.episodes))
        scores = fitness(rewards)
        search.tell(candidates, scores)
        return RouterGeneration(search.state, float(np.mean(scores)), max(scores)), ()

    progress.begin(config.generations, search.generation, "", "generations")
    while search.generation < config.generations:
        made = await run.once_awaited(GENERATION, str(search.generation + 1), RouterGeneration, generation)
        means.append(made.mean)
        progress.at(search.generation, f"mean reward {made.mean:.3f}")
    trial.pool.forget()
    old: list[float | None] = []
    new: list[float | None] = []
    for vector, checked in ((begun, old), (search.mean, new)):
        router.set_vector(vector)
        checked += await trial.rewards(router, "check", config.check)
    start, end = fitness([old, new])
    pairs = [(a, b) for a, b in zip(new, old, strict=True) if a is not None and b is not None]
    better = gain(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])) if len(pairs) > 1 else None
    kept = better is not None and better.value > 0
    router.set_vector(search.mean if kept else begun)
    if kept:
        router.history.append(f"evolve {config.generations}")
    says = f"evolution moved the reward from {start:.3f} to {end:.3f} on fresh samples: "
    says += "kept" if kept else "not better, so the router is as it was"
    shape = (search.generation, router.size, search.size, search.sigma)
    return EvolvedRouter(*shape, tuple(means), start, end, better, kept, says)
