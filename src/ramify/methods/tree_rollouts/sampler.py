"""Grow one prompt's tree under a budget: choose a node, continue from it to a leaf, back up (3.5, 3.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.seeds import generator
from ramify.methods.tree_rollouts.algorithm import TreeConfig, shrunk, uucb
from ramify.methods.tree_rollouts.record import GrownTree, Place
from ramify.rollout.search import search

if TYPE_CHECKING:
    from ramify.env.protocol import Task
    from ramify.rollout.attempts import Attempt


class Grower(Protocol):
    """What plays the episodes; ``rollout.run.Episodes`` is one."""

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        """Play from the beginning. ``index`` is unique in the tree."""
        ...

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        """Put the environment back to its state after ``node_id`` and play on."""
        ...


@dataclass(frozen=True, slots=True)
class Pick:
    """One choice: expand ``place`` with sample ``index``."""

    place: Place
    index: int


class TreeSampler:
    """Samples trees of attempts, one per task. Everything but the samples themselves is decided here, deterministically."""

    def __init__(self, grower: Grower, config: TreeConfig | None = None, seed: int = 0, prefix: str = "") -> None:
        """``prefix`` starts the name of every stored tree (``update-003/``)."""
        self.grower, self.config, self.seed, self.prefix = grower, config or TreeConfig(), seed, prefix

    async def run(self, task: Task, budget: float) -> GrownTree:
        """Grow a tree on ``task``. Raises UserError when ``budget`` cannot pay one attempt from the root."""
        least = self.config.worst_attempt or 1
        if budget < least:
            raise UserError(f"a budget of {budget:g} {self.config.unit} is below one attempt from the root: at least {least:g}")
        name = self.prefix + task.id
        selector = {"rule": self.config.rule, "roots": self.config.roots, **self.config.selector.model_dump(mode="json")}
        tree = GrownTree(task.id, name, self.seed, budget, self.config.unit, selector)
        tree.places["root"] = Place("root", None, 0, forkable=True)
        await self.extend(tree, task, 0.0)
        return tree

    async def run_all(self, tasks: Sequence[Task], budget: float) -> list[GrownTree]:
        """One tree per task, each with ``budget``, all at once."""
        return list(await asyncio.gather(*(self.run(task, budget) for task in tasks)))

    async def extend(self, tree: GrownTree, task: Task, more: float) -> float:
        """Grow on with ``more`` budget; returns the cost."""
        before = tree.cost
        tree.budget += more
        tree.granted += more

        async def expand(pick: Pick) -> Attempt | str:
            try:
                if pick.place is tree.root:
                    return await self.grower.attempt(tree.tree, task, pick.index)
                return await self.grower.branch(tree.tree, task, pick.place.id, pick.index)
            except InfrastructureError as error:
                return str(error)

        await search(tree, self._select, expand, self._absorb, width=self.config.parallel, tau=self.config.tau)
        return tree.cost - before

    def _need(self, place: Place) -> float:
        """What must be left to continue from ``place``: the worst case where it is known, else the expected cost."""
        worst = self.config.worst_attempt
        return place.expected if worst is None else worst - place.path_cost

    def _select(self, tree: GrownTree) -> Pick | None:
        left = tree.budget - tree.cost - sum(tree.reserved)
        step = len(tree.log)
        if left <= 0 or (step >= self.config.roots and not tree.root.passes and tree.root.pending):
            return None  # spent, or nothing is known yet about what an attempt costs
        places = [tree.root] if self.config.rule == "flat" or step < self.config.roots else tree.places.values()
        floor = self.config.least * tree.root.expected
        able = [p for p in places if p.forkable and self._need(p) <= left and (p is tree.root or p.expected >= floor)]
        if not able:
            return None
        place, terms = self._choose(tree, able)
        pick = Pick(place, step)
        tree.log.append({"step": step, "node": place.id, "score_terms": terms})
        tree.reserved.append(self._need(place))
        for above in tree.path(place.id):
            above.pending += 1
        return pick

    def _choose(self, tree: GrownTree, able: list[Place]) -> tuple[Place, dict[str, float]]:
        """The position to expand and its weighted score terms. N and the posteriors are those of the results merged so far."""
        if len(able) == 1:
            return able[0], {}
        if self.config.rule == "random":
            return able[int(generator(self.seed, tree.tree, len(tree.log)).integers(len(able)))], {}
        places, rule = list(tree.places.values()), self.config.selector
        at = {place.id: i for i, place in enumerate(places)}
        parents = [-1 if place.parent is None else at[place.parent] for place in places]
        mu = shrunk([p.n for p in places], [p.s for p in places], parents, rule)
        terms = uucb(
            np.array([mu[at[p.id]] for p in able]),
            np.array([p.n + p.pending for p in able]),
            np.array([p.entropy or 0.0 for p in able]),
            tree.root.s,
            tree.root.n,
            rule,
        )
        score = terms.sum(axis=1)
        if rule.cost_aware:
            score = score / np.array([max(p.expected, 1.0) for p in able])
        if np.isnan(score).any():
            raise ValueError("the score of a place is not a number")
        won = min(range(len(able)), key=lambda i: (-score[i], able[i].depth, able[i].id))
        return able[won], dict(zip(("value", "explore", "entropy"), terms[won].tolist(), strict=True))

    def _absorb(self, tree: GrownTree, pick: Pick, attempt: Attempt | str) -> GrownTree:
        tree.reserved.pop(0)
        for above in tree.path(pick.place.id):
            above.pending -= 1
        if isinstance(attempt, str) or not attempt.turns:
            # nothing was sampled: trying the same position again would never end
            pick.place.forkable = False
            why = attempt if isinstance(attempt, str) else attempt.failure or "the attempt had no turn"
            self._note(tree, f"node {pick.place.id} cannot be forked: {why}", "cannot be forked")
            return tree
        scored = attempt.outcome is not None and attempt.failure is None
        tree.absorb(pick.place.id, attempt, scored and not (attempt.truncated and self.config.truncated == "exclude"))
        if self.config.rule == "uucb" and self.config.selector.lam and pick.place.entropy is None:
            self._note(tree, "the model gives no log-probs: the entropy term of the selector is 0", "no log-probs")
        return tree

    @staticmethod
    def _note(tree: GrownTree, text: str, kind: str) -> None:
        if not any(kind in note for note in tree.notes):
            tree.notes.append(text)
