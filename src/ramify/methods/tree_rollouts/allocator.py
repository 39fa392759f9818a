"""Move budget between prompts: from settled groups to undecided ones, then to lopsided ones (3.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.tree_rollouts.algorithm import Allocation, l1_mass, learn, learned_tie_break, tie_break
from ramify.methods.tree_rollouts.record import GrownTree
from ramify.methods.tree_rollouts.sampler import TreeSampler

if TYPE_CHECKING:
    from ramify.env.protocol import Task

FEATURES = 6  # bias, leaves, entropy, depth, refused turns, share of earlier epochs that were mixed


class BudgetAllocator:
    """Spends one total budget on many tasks. Keep the object between epochs: the learned form and the history live here.

    Decisions are taken in rounds, on the complete results of the round before and in task order, so they do not depend on how
    many attempts run at once.
    """

    def __init__(self, sampler: TreeSampler, total: float, config: Allocation | None = None) -> None:
        """``total`` is the budget of all tasks together, in the sampler's unit."""
        self.sampler, self.total, self.config = sampler, total, config or Allocation()
        self.weights = np.zeros(FEATURES)
        self.history: dict[str, tuple[int, int]] = {}
        self.log: list[dict[str, Any]] = []
        """one entry a chunk: round, task, chunk, chance (predicted), mixed (what came)"""
        self._epoch = 0

    async def run(self, tasks: Sequence[Task]) -> list[GrownTree]:
        """Grow one tree per task, in the order of ``tasks``; their summed cost stays within the total and its overhead."""
        if not tasks:
            return []
        base = self.total / len(tasks)
        one_attempt = min(
            base, self.sampler.config.worst_attempt or 0.0
        )  # a first share pays at least one attempt where the base does
        trees = await self.sampler.run_all(tasks, max(base * self.config.fraction, one_attempt))
        pool = self.total * (1 + self.config.overhead) - sum(tree.cost for tree in trees)
        closed: set[int] = set()
        self.log = []
        while picks := self._round(trees, pool, base, closed):
            features = {i: self._features(trees[i]) for i in picks}
            was = {i: (trees[i].root.n, trees[i].mixed) for i in picks}
            spent = await asyncio.gather(*(self.sampler.extend(trees[i], tasks[i], chunk) for i, (chunk, _) in picks.items()))
            for (i, (chunk, chance)), cost in zip(picks.items(), spent, strict=True):
                pool -= cost
                n, mixed = was[i]
                if not cost:
                    closed.add(i)
                elif not mixed and self.config.learned:
                    self.weights = learn(
                        self.weights, features[i], self._closed(trees[i], n, chunk), trees[i].mixed, self.config.rate
                    )
                self.log.append({"task": tasks[i].id, "chunk": chunk, "cost": cost, "chance": chance, "mixed": trees[i].mixed})
        for tree in trees:
            seen, mixed_before = self.history.get(tree.prompt_id, (0, 0))
            self.history[tree.prompt_id] = (seen + 1, mixed_before + tree.mixed)
        self._epoch += 1
        return trees

    def _round(self, trees: list[GrownTree], pool: float, base: float, closed: set[int]) -> dict[int, tuple[float, float]]:
        """Up to ``width`` chunks: task index -> (chunk, predicted chance that it breaks the tie). Best gain per cost first."""
        uniform, mixed = [], []
        for i, tree in enumerate(trees):
            chunk = self._chunk(tree, base)
            if i in closed:
                continue
            if tree.cost + chunk > self.config.cap * base:
                tree.abandoned = not tree.mixed
            elif tree.mixed:
                mixed.append((l1_mass(tree.root.s, tree.root.n), i, chunk, 1.0))
            else:
                chance = self._chance(tree, chunk)
                uniform.append((-chance / chunk, i, chunk, chance))
        order = sorted(uniform or mixed)
        if uniform and self.config.learned:
            rng = generator(self.sampler.seed, "floor", self._epoch, len(self.log))
            for slot in range(min(self.config.width, len(order))):
                if rng.random() < self.config.floor:
                    other = int(rng.integers(slot, len(order)))
                    order[slot], order[other] = order[other], order[slot]
        picks: dict[int, tuple[float, float]] = {}
        for _, i, chunk, chance in order:
            if len(picks) < self.config.width and chunk <= pool:
                pool -= chunk
                picks[i] = (chunk, chance)
        return picks

    def _chunk(self, tree: GrownTree, base: float) -> float:
        """Cost of one attempt from the root: the worst case where it is known, else the mean of those seen,
        and what the tree has run over."""
        over = max(0.0, tree.cost - tree.budget)  # without it the chunk would pay no attempt, and the tree would count as closed
        return self.sampler.config.worst_attempt or (tree.root.expected or base) + over

    def _leaves(self, tree: GrownTree, chunk: float) -> float:
        """How many leaves a chunk buys: one from the root, more where the sampler may fork."""
        if self.sampler.config.rule == "flat" or not tree.leaves:
            return 1.0
        return max(1.0, chunk * len(tree.leaves) / tree.cost)

    def _closed(self, tree: GrownTree, n: int, chunk: float) -> float:
        return tie_break(n, self._leaves(tree, chunk), self.config.a, self.config.b)

    def _chance(self, tree: GrownTree, chunk: float) -> float:
        closed = self._closed(tree, tree.root.n, chunk)
        return learned_tie_break(self.weights, self._features(tree), closed) if self.config.learned else closed

    def _features(self, tree: GrownTree) -> np.ndarray:
        """Inputs of the learned form in addition to the closed form, each of order 1, shape (6,)."""
        places = list(tree.places.values())
        entropies = [place.entropy for place in places if place.entropy is not None]
        ends = [tree.places[leaf.node].depth for leaf in tree.leaves]
        depth = float(np.mean(ends)) if ends else 0.0
        seen, mixed = self.history.get(tree.prompt_id, (0, 0))
        return np.array(
            [
                1.0,
                tree.root.n / (tree.root.n + 8),
                float(np.mean(entropies)) if entropies else 0.0,
                depth / (depth + 10),
                sum(place.errors for place in places) / len(places),
                (mixed + 0.5) / (seen + 1) - 0.5,
            ]
        )
