"""The samples of one update: the attempts by tree, and the shares that reports and curves show."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from ramify.env.protocol import Task
from ramify.jobs.results import GrownReport
from ramify.methods.tree_rollouts.algorithm import is_mixed, l1_mass
from ramify.rollout.attempts import Attempt
from ramify.rollout.backends import Player, Unit
from ramify.trace.tree import Tree

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Grown:
    """What one update sampled."""

    attempts: dict[str, list[Attempt]]
    """By tree; an attempt that paused and continued is several, each with its own turns."""
    trees: dict[str, Tree]
    split: frozenset[str] = frozenset()
    """Trees at whose tasks attempts were split: those that ended there are no independent sample of the task's success."""
    abandoned: Sequence[str] = ()

    @property
    def every(self) -> list[Attempt]:
        """All attempts, trees in the order of their names."""
        return [attempt for group in self.attempts.values() for attempt in group]

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(attempt.sampled_tokens for attempt in self.every)

    @cached_property
    def ends(self) -> list[Attempt]:
        """The attempts with which a path ends: those that paused and continued left out."""
        starts = {attempt.start for attempt in self.every}
        return [each for each in self.every if each.turns and not (each.paused and each.leaf in starts)]

    @property
    def forks(self) -> int:
        """How often a state other than a task's start was continued once more than it would have been."""
        paused = {attempt.leaf for attempt in self.every if attempt.paused}
        times = Counter(each.start for each in self.every if each.turns and each.start != self._first[each.tree])
        return sum(times.values()) - sum(start in paused for start in times)

    @property
    def outcomes(self) -> list[bool]:
        """How attempts ended that were played from start to end at tasks that were not split: a sample of the agent's success."""
        flat = (attempt for attempt in self.ends if attempt.tree not in self.split and attempt.start == self._first[attempt.tree])
        return [attempt.outcome for attempt in flat if attempt.outcome is not None]

    @property
    def cost(self) -> float:
        """Mean tokens of an attempt from the start to its end, those that paused left out; 0 where none ended."""
        paths = [self.trees[attempt.tree].path(attempt.leaf) for attempt in self.ends if attempt.outcome is not None]
        return float(np.mean([sum(node.sampled_tokens for node, _ in path.segments) for path in paths])) if paths else 0.0

    @cached_property
    def _first(self) -> dict[str, str]:
        """The observation with which each tree's task starts."""
        return {
            name: next((attempt.start for attempt in group if attempt.index == 0), "") for name, group in self.attempts.items()
        }

    def report(self) -> GrownReport:
        """Shares over groups and attempts."""
        counts = []
        for group in self.attempts.values():
            scored = [attempt.outcome for attempt in group if attempt.outcome is not None]
            counts.append((sum(scored), len(scored)))
        n = sum(total for _, total in counts)
        return GrownReport(
            success=sum(k for k, _ in counts) / max(1, n),
            mixed=float(np.mean([is_mixed(k, total) for k, total in counts])),
            l1=float(np.mean([l1_mass(k, total) for k, total in counts])),
            groups=len(counts),
            solved=sum(k > 0 for k, _ in counts),
            split=len(self.split),
            leaves=n,
            attempts=len(self.ends),
            forks=self.forks,
            independent=(sum(self.outcomes), len(self.outcomes)),
            abandoned=tuple(self.abandoned),
        )


class EpisodeRecorder:
    """Plays episodes for a sampling and keeps the attempts by tree, in the order of their sample index."""

    def __init__(
        self, player: Player, max_turns: int = 1, on_attempt: Callable[[Attempt], object] = lambda attempt: None
    ) -> None:
        """``max_turns``: the environment's; ``on_attempt`` is called with every attempt that ended or paused."""
        self.player, self.max_turns, self.on_attempt = player, max_turns, on_attempt
        self.tokens = 0
        """Tokens generated so far."""
        self._attempts: dict[str, dict[int, Attempt]] = {}

    @property
    def attempts(self) -> dict[str, list[Attempt]]:
        """Attempts by tree name, trees and attempts in an order no concurrency changes."""
        return {name: [group[i] for i in sorted(group)] for name, group in sorted(self._attempts.items())}

    async def attempt(self, tree: str, task: Task, index: int, turns: int | None = None) -> Attempt:
        """See :meth:`Player.tried`."""
        return self._keep(await self.player.tried(Unit(tree, task, index, None, turns)))

    async def branch(self, tree: str, task: Task, node_id: str, index: int, turns: int | None = None) -> Attempt:
        """See :meth:`Player.tried`."""
        return self._keep(await self.player.tried(Unit(tree, task, index, node_id, turns)))

    def _keep(self, attempt: Attempt) -> Attempt:
        self._attempts.setdefault(attempt.tree, {})[attempt.index] = attempt
        self.tokens += attempt.sampled_tokens
        self.on_attempt(attempt)
        return attempt


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all; when one fails the others are cancelled and waited for before it is raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
