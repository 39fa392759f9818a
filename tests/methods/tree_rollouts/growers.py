"""Environments to grow trees in: the toy with scrambled arrival order,
and a small scripted one with lengths, failures and repeats."""

from __future__ import annotations

import asyncio
from typing import Any

from ramify.base.errors import InfrastructureError
from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import TreeConfig
from ramify.methods.tree_rollouts.record import GrownTree
from ramify.rollout.attempts import Attempt, Turn
from ramify.trace.node import make_node
from ramify_experiments.tree_rollouts.toy import ToyGrower

TASK = Task("0000")


class Scrambled(ToyGrower):
    """The toy, whose results arrive in a random order."""

    order = 0

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        await self._wait(index)
        return await super().attempt(tree, task, index)

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        await self._wait(index)
        return await super().branch(tree, task, node_id, index)

    async def _wait(self, index: int) -> None:
        for _ in range(int(generator(self.order, "wait", index).integers(0, 9))):
            await asyncio.sleep(0)


class Words:
    """Attempts of 1 to 4 turns with 1 to 3 tokens each; the words come from few, so turns repeat. Faults on demand."""

    def __init__(self, seed: int = 0, **faults: Any) -> None:
        self.seed, self.faults = seed, faults
        self.depth: dict[str, int] = {}

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        return self._play(tree, task, "root", 0, index)

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        if self.faults.get("unforkable"):
            raise InfrastructureError("env", "replay differs at step 1")
        return self._play(tree, task, node_id, self.depth[node_id], index)

    def _play(self, tree: str, task: Task, start: str, depth: int, index: int) -> Attempt:
        rng = generator(self.seed, tree, start, index)
        turns: list[Turn] = []
        parent = start
        length = int(rng.integers(depth + 1, 5)) if depth < 4 else 1
        for level in range(depth, length):
            word = "ab"[int(rng.integers(2))]
            tokens = [ord(word)] * int(rng.integers(1, 4))
            sampled = {"tokens": tokens, "sampled": [True] * len(tokens), "logprobs": [-0.25] * len(tokens), "index": index}
            said = make_node(tree, parent, 1, "assistant", word * len(tokens), **sampled)
            stop = "terminated" if level == length - 1 else ""
            data = {"valid": False} if self.faults.get("refuse") else {}
            seen = make_node(tree, said.id, len(tokens), "user", "ok", tokens=[1], stop=stop, state_key=str(level), data=data)
            self.depth[seen.id] = level + 1
            entropy = None if self.faults.get("no_logprobs") else float(rng.random())
            turns.append(Turn(said, seen, entropy, "none" if entropy is None else "sampled"))
            parent = seen.id
        won = bool(rng.random() < self.faults.get("p", 0.5))
        outcome: bool | None = won
        truncated, failure = False, None
        if rng.random() < self.faults.get("unscored", 0):
            outcome, failure = None, "scorer: down"
        elif rng.random() < self.faults.get("truncated", 0):
            truncated, outcome = True, False
        if self.faults.get("empty"):
            turns, failure, parent = [], "engine: gone", start
        return Attempt(tree, task, index, start, tuple(turns), 1.0 if won else -1.0, outcome, truncated, failure, parent)


def check_accounting(tree: GrownTree, config: TreeConfig) -> None:
    """Section 8, item 8."""
    places = tree.places.values()
    assert tree.cost == sum(leaf.cost for leaf in tree.leaves)
    assert tree.root.n == len(tree.group)
    assert tree.root.s == sum(bool(leaf.outcome) for leaf in tree.group)
    for place in places:
        below = [child for child in places if child.parent == place.id]
        assert place.pending == 0
        if not place.terminal and place.passes:
            assert place.n == sum(child.n for child in below)
            assert place.s == sum(child.s for child in below)
            assert place.passes == sum(child.passes for child in below)
    if config.worst_attempt is not None:
        assert tree.cost <= tree.budget
    assert tree.reserved == []
