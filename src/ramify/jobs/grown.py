"""The samples of one update: the attempts by tree, and the shares that reports and curves show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import is_mixed, l1_mass
from ramify.methods.tree_rollouts.record import GrownTree
from ramify.methods.tree_rollouts.sampler import Grower
from ramify.rollout.attempts import Attempt
from ramify.trace.tree import Tree

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Grown:
    """What one update sampled."""

    grown: Sequence[GrownTree]
    attempts: dict[str, list[Attempt]]
    trees: dict[str, Tree]

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(a.sampled_tokens for group in self.attempts.values() for a in group)

    def report(self) -> dict[str, Any]:
        """Shares over groups and attempts."""
        counts = [(t.root.s, t.root.n) for t in self.grown]
        n = sum(total for _, total in counts)
        return {
            "success": sum(k for k, _ in counts) / max(1, n),
            "mixed": float(np.mean([is_mixed(k, total) for k, total in counts])),
            "l1": float(np.mean([l1_mass(k, total) for k, total in counts])),
            "groups": len(counts),
            "leaves": n,
            "abandoned": [t.prompt_id for t in self.grown if t.abandoned],
        }


class EpisodeRecorder:
    """Plays episodes for the sampler and keeps the attempts by tree, in the order of their sample index."""

    def __init__(self, grower: Grower, on_attempt: Callable[[Attempt], object] = lambda attempt: None) -> None:
        """``on_attempt`` is called with every attempt that ended."""
        self.grower, self.on_attempt = grower, on_attempt
        self._attempts: dict[str, dict[int, Attempt]] = {}

    @property
    def attempts(self) -> dict[str, list[Attempt]]:
        """Attempts by tree name, trees and attempts in an order no concurrency changes."""
        return {name: [group[i] for i in sorted(group)] for name, group in sorted(self._attempts.items())}

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        """See :class:`Grower`."""
        return self._keep(await self.grower.attempt(tree, task, index))

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        """See :class:`Grower`."""
        return self._keep(await self.grower.branch(tree, task, node_id, index))

    def _keep(self, attempt: Attempt) -> Attempt:
        self._attempts.setdefault(attempt.tree, {})[attempt.index] = attempt
        self.on_attempt(attempt)
        return attempt


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all; when one fails the others are cancelled and waited for before it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
