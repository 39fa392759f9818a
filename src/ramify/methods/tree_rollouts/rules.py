"""The credit rules of ``ramify improve --credit NAME`` that know where attempts branch (3.8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ramify.base.registry import register
from ramify.methods.tree_rollouts.algorithm import grpo, tree_grpo
from ramify.score.credit.protocol import CreditGroup, CreditRule


def _by_task(group: CreditGroup) -> list[np.ndarray]:
    """The attempts at each task, by number."""
    return [np.flatnonzero(group.task == task) for task in range(int(group.task.max(initial=-1)) + 1)]


@register("credit", "tree-grpo")
class TreeGrpo(CreditRule):
    """GRPO over all attempts at a task plus GRPO over those that share its first step (Tree-GRPO)."""

    maker = "tree-grpo"
    numbers: ClassVar = {
        "over_task": "the attempt's reward against all attempts at its task, in their standard deviations",
        "over_branch": "the same against those that share its first step; A is the sum of both, the mean over the attempts of "
        "the step",
        "attempts": "attempts that go through the step",
    }

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        first = np.unique(group.attempt, return_index=True)[1]
        branch = np.unique([group.columns["node"][row] for row in first], return_inverse=True)[1]
        self._task, total = np.zeros(len(group.reward)), np.zeros(len(group.reward))
        for rows in _by_task(group):
            rewards = group.reward[rows].tolist()
            self._task[rows], total[rows] = grpo(rewards), tree_grpo(rewards, branch[rows].tolist())
        self._group, self._branch = group, total - self._task
        return group.spread(total)

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        through = self._group.attempts_of(node)
        parts = {"over_task": self._task, "over_branch": self._branch}
        return {name: float(part[through].mean()) for name, part in parts.items()} | {"attempts": len(through)}


@register("credit", "tree-node")
class TreeNode(CreditRule):
    """Of each step the mean GRPO advantage of the attempts through it, times the root of their number (TreeRL's weighting)."""

    maker = "tree-node"
    numbers: ClassVar = {
        "mean": "mean advantage of the attempts that go through the step; A is this times the root of their number",
        "attempts": "attempts that go through the step",
    }

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        self._group, self._advantage = group, np.zeros(len(group.reward))
        for rows in _by_task(group):
            self._advantage[rows] = grpo(group.reward[rows].tolist())
        shared = {node: math.sqrt(len(group.attempts_of(node))) for node in dict.fromkeys(group.columns["node"])}
        return {node: values * np.float32(shared[node]) for node, values in group.spread(self._advantage).items()}

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        through = self._group.attempts_of(node)
        return {"mean": float(self._advantage[through].mean()), "attempts": len(through)}
