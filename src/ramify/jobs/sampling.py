"""How an update of ``ramify improve`` spends its tokens: the registry kind ``sampling``, one class a way.

Every way gets the same tokens an update, within the last attempts' length. Attempts are played in waves of tasks, and what a wave
decides depends on whole results alone: on nothing that concurrency, a back end or an interruption could change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.registry import register
from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.jobs.critic import SharedCritic, states_at
from ramify.jobs.grown import EpisodeRecorder, gather_all
from ramify.methods.tree_rollouts.algorithm import Allocation, TreeConfig
from ramify.methods.tree_rollouts.allocator import BudgetAllocator
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify.rollout.attempts import Attempt
from ramify.rollout.backends import Player, Unit
from ramify.trace.node import Node

LEAST = 5.0
"""A tree of ``infotree`` gets at least the tokens of this many attempts: with fewer there is nothing to branch with."""


class SplittingConfig(Config):
    """Multilevel splitting: attempts pause, hopeless ones are dropped, and the others continue several times.

    A kind of twisted sequential Monte Carlo (Glasserman et al. 1999; Zhao et al. 2024, arXiv 2404.17546)."""

    attempts: int = Field(default=4, ge=2)
    """attempts at a task that run side by side; also the group of flat sampling. For a pretrained model and a rule that compares
    attempts, where none is given: 4, 8 or 16, as a trial's successes need"""
    turns: int = Field(default=4, ge=1)
    """turns between two pauses"""
    drop: float = Field(default=0.25, ge=0, le=1)
    """states whose value is below this share of the start's are dropped ..."""
    keep: float = Field(default=0.1, ge=0, le=1)
    """... but for this share of them, so that the critic's mistakes can be seen"""
    below: float = Field(default=0.07, ge=0, le=1)
    """the sampling ``auto`` splits at tasks whose expected success is below this:
    above it independent attempts find wins for less"""


@dataclass(eq=False)
class UpdatePlan:
    """What one update may spend, and what it plays with."""

    player: Player
    recorder: EpisodeRecorder
    critic: SharedCritic
    tasks: Sequence[Task]
    """The update's tasks, the first :attr:`count` of which are its own; the others may replace them."""
    count: int
    share: float
    """Tokens."""
    cost: float
    """Tokens of an attempt from the start to its end: an estimate."""
    seed: int
    prefix: str
    """Start of the names of the trees."""
    tree: TreeConfig = field(default_factory=lambda: TreeConfig(unit="tokens"))
    allocation: Allocation = field(default_factory=Allocation)
    splitting: SplittingConfig = field(default_factory=SplittingConfig)
    split: set[str] = field(default_factory=set)
    """Trees at whose tasks attempts were split."""
    abandoned: list[str] = field(default_factory=list)
    """Tasks that reached their cap while all attempts still ended alike."""
    _next: int = 0
    _used: Counter[str] = field(default_factory=Counter)
    _visits: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def left(self) -> float:
        """Tokens that are left."""
        return self.share - self.recorder.tokens

    def name(self, task: Task) -> str:
        """The tree of a task."""
        return self.prefix + task.id

    async def waves(self, play: Callable[[list[Task]], Awaitable[object]], tasks: int) -> None:
        """Play tasks, the first ``tasks`` of them in turn, as many at once as the tokens that are left pay for."""
        unit = self.splitting.attempts * self.cost
        first = True
        while first or self.left >= unit / 2:
            before, size = self.recorder.tokens, min(tasks, max(1, int(self.left / unit)))
            wave = [self.tasks[(self._next + i) % tasks] for i in range(size)]
            self._next, first = self._next + size, False
            await play(wave)
            if self.recorder.tokens == before:  # failures only: another wave would not end otherwise
                break

    async def play(self, task: Task, node: str | None = None, turns: int | None = None) -> Attempt:
        """The next attempt at ``task``: from the start, or from the observation ``node``; it pauses after ``turns``."""
        tree = self.name(task)
        index, self._used[tree] = self._used[tree], self._used[tree] + 1
        if node is None:
            attempt = await self.recorder.attempt(tree, task, index, turns)
        else:
            attempt = await self.recorder.branch(tree, task, node, index, turns)
        return attempt

    async def flat(self, tasks: Iterable[Task]) -> None:
        """Independent attempts."""
        await gather_all(self.play(task) for task in tasks for _ in range(self.splitting.attempts))

    async def expected(self, tasks: Sequence[Task]) -> np.ndarray:
        """Expected success of each task, float64: the critic's value of its start, or the rate of the attempts so far."""
        if not self.critic.speaks:
            return np.full(len(tasks), self.critic.rate)
        # an attempt of no turn opens the environment, and costs no token
        starts = await gather_all(self.player.tried(Unit(self.name(task), task, 0, None, 0)) for task in tasks)
        return await self._values([None if start.failure else start for start in starts])

    async def split_at(self, tasks: Sequence[Task], starts: Sequence[float]) -> None:
        """Multilevel splitting at ``tasks``, whose starts have the values ``starts``: a task ends at its first win."""
        c = self.splitting
        root = dict(zip((self.name(task) for task in tasks), starts, strict=True))
        under_way = {self.name(task): (task, [None] * c.attempts) for task in tasks}
        level, going = 0, {name: list[str | None](nodes) for name, (_, nodes) in under_way.items()}
        self.split |= root.keys()
        while going:
            jobs = [(name, node) for name, nodes in going.items() for node in nodes]
            played = await gather_all(self.play(under_way[name][0], node, c.turns) for name, node in jobs)
            won = {attempt.tree for attempt in played if attempt.outcome}
            for attempt in played:
                self._visits[attempt.tree].update(turn.answer.state_key for turn in attempt.turns if turn.answer.state_key)
            paused = [attempt for attempt in played if attempt.paused and attempt.tree not in won]
            values = await self._values(paused)
            going = {}
            for name in dict.fromkeys(attempt.tree for attempt in paused):
                here = [i for i, attempt in enumerate(paused) if attempt.tree == name]
                floor = c.drop * root[name] if self.critic.speaks else 0.0
                chosen = resampled(values[here], floor, c, generator(self.seed, "split", name, level))
                going[name] = [paused[here[i]].leaf for i in chosen]
            level += 1

    async def _values(self, paused: Sequence[Attempt | None]) -> np.ndarray:
        """Value of the state where each attempt stopped, float64; the rate so far of one that is None.

        Before the critic speaks a state's value is one over how often it was seen in its tree."""
        known = [attempt for attempt in paused if attempt is not None]
        values = np.full(len(paused), self.critic.rate)
        if not known:
            return values
        nodes = [self._node(attempt) for attempt in known]
        if self.critic.speaks:
            values_seen = self.critic.value(await states_at(self._model, self.player.episodes, nodes, self._max_turns))
        else:
            seen = (self._visits[node.tree][node.state_key] if node.state_key else 1 for node in nodes)
            values_seen = np.array([1 / max(1, times) for times in seen])
        values[[attempt is not None for attempt in paused]] = values_seen
        return values

    def _node(self, attempt: Attempt) -> Node:
        return self.player.episodes.load(attempt.tree).node(attempt.leaf)

    @property
    def _model(self) -> Any:
        return self.player.episodes.agent.model

    @property
    def _max_turns(self) -> int:
        return self.recorder.max_turns


def resampled(values: np.ndarray, floor: float, config: SplittingConfig, rng: np.random.Generator) -> list[int]:
    """Which states continue, ``config.attempts`` numbers of states in all,
    in proportion to ``values`` (N,): systematic resampling.

    Those below ``floor`` are dropped but for a share ``config.keep``; where all are, the best continues. Expected copies of a
    state are proportional to its value (Douc and Cappe 2005), each state that is kept has at least one where there is room."""
    low = values < floor
    spared = rng.random(len(values)) < config.keep
    kept = np.flatnonzero(~low | spared)
    if not len(kept):
        kept = np.array([int(values.argmax())])
    weight = np.maximum(values[kept], max(floor, 1e-6))
    edges = np.cumsum(weight / weight.sum())
    points = (rng.random() + np.arange(config.attempts)) / config.attempts
    return [int(kept[i]) for i in np.minimum(np.searchsorted(edges, points), len(kept) - 1)]


class SamplingRule(ABC):
    """A way to spend an update's tokens on its tasks. Derive from it; its class is called without arguments."""

    critic: ClassVar[bool] = False
    """Whether it asks the critic, which is then trained."""

    @abstractmethod
    async def sample(self, plan: UpdatePlan) -> None:
        """Play attempts until the plan's tokens are spent; what is played is kept by the plan's recorder."""


@register("sampling", "flat")
class Flat(SamplingRule):
    """Independent attempts, a group of them at each task."""

    async def sample(self, plan: UpdatePlan) -> None:
        """See :class:`SamplingRule`."""
        await plan.waves(plan.flat, plan.count)


@register("sampling", "splitting")
class Splitting(SamplingRule):
    """Multilevel splitting: attempts pause, hopeless ones are dropped,
    the others continue several times; a task ends at its first win."""

    critic = True

    async def sample(self, plan: UpdatePlan) -> None:
        """See :class:`SamplingRule`."""

        async def play(tasks: list[Task]) -> None:
            once = list({task.id: task for task in tasks}.values())
            await plan.split_at(once, (await plan.expected(once)).tolist())

        await plan.waves(play, len(plan.tasks))


@register("sampling", "auto")
class Auto(SamplingRule):
    """Flat or splitting, by each task's expected success: splitting where wins are rare."""

    critic = True

    async def sample(self, plan: UpdatePlan) -> None:
        """See :class:`SamplingRule`."""

        async def play(tasks: list[Task]) -> None:
            once = list({task.id: task for task in tasks}.values())
            expected = await plan.expected(once)
            rare = [bool(chance < plan.splitting.below) for chance in expected]
            await plan.flat(task for task, split in zip(once, rare, strict=True) if not split)
            hard = [(task, chance) for task, split, chance in zip(once, rare, expected.tolist(), strict=True) if split]
            await plan.split_at([task for task, _ in hard], [chance for _, chance in hard])

        await plan.waves(play, len(plan.tasks))


@register("sampling", "infotree")
class InfoTree(SamplingRule):
    """Trees that branch where the selector of tree-rollouts says, and an allocator that moves budget to undecided tasks."""

    rule: ClassVar[str | None] = None

    async def sample(self, plan: UpdatePlan) -> None:
        """See :class:`SamplingRule`."""
        tree = plan.tree if self.rule is None else plan.tree.model_copy(update={"rule": self.rule})
        count = int(min(plan.count, max(1.0, plan.share / (LEAST * plan.cost))))
        sampler = TreeSampler(plan.recorder, tree, plan.seed, plan.prefix)
        trees = await BudgetAllocator(sampler, plan.share, plan.allocation).run(plan.tasks[:count])
        plan.abandoned += [grown.prompt_id for grown in trees if grown.abandoned]


@register("sampling", "allocator")
class Allocated(InfoTree):
    """Independent attempts whose budget an allocator moves to undecided tasks."""

    rule = "flat"


@register("sampling", "resample")
class Resample(SamplingRule):
    """Independent attempts; half of what is left at a time,
    so that tasks whose attempts ended alike are replaced by others (DAPO)."""

    async def sample(self, plan: UpdatePlan) -> None:
        """See :class:`SamplingRule`."""
        unit, at = plan.splitting.attempts * plan.cost, 0
        while (left := plan.left) >= unit / 2 and at < len(plan.tasks):
            tasks = plan.tasks[at : at + max(1, int(left / unit / 2))]
            at += len(tasks)
            await plan.flat(tasks)
