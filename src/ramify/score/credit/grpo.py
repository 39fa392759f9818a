"""One credit an attempt: its reward against the others at its task (GRPO, Shao et al. 2024, arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.score.group import moments, normalise


@register("credit", "grpo")
class Grpo(CreditRule):
    """The attempt's reward relative to the attempts at its task, the same on each of its tokens (GRPO)."""

    maker = "grpo"
    numbers: ClassVar = {
        "A": "credit: (reward - reward_mean) / reward_std, the mean over the attempts that go through the step",
        "reward": "reward of the attempt, the mean where several go through the step",
        "reward_mean": "mean reward of the attempts at this task",
        "reward_std": "standard deviation of their rewards",
        "attempts": "attempts that go through the step",
    }

    def __init__(
        self,
        norm: Literal["mean_std", "mean"] = "mean_std",
        weight: Literal["attempt", "step"] = "attempt",
        ddof: Literal[0, 1] = 1,
        truncation: Literal["fail", "bootstrap", "drop"] = "fail",
    ) -> None:
        """See ``CreditConfig``. Raises UserError on ``truncation="bootstrap"``, which needs the values of states."""
        if truncation == "bootstrap":
            raise UserError(
                "credit rule 'grpo' has no values of states to bootstrap from: --credit g2po --credit.w 0 is grpo with them"
            )
        self.norm, self.weight, self.ddof, self.truncation = norm, weight, ddof, truncation

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        kept = np.ones(len(group.reward), bool) if self.truncation == "fail" else ~group.truncated
        rows = kept[group.attempt] if self.weight == "step" else kept
        reward, task = group.reward, group.task
        if self.weight == "step":
            reward, task = reward[group.attempt], task[group.attempt]
        values = np.zeros(len(rows))
        values[rows] = normalise(reward[rows], task[rows], std=self.norm == "mean_std", ddof=self.ddof)
        self._group, self._moments = group, moments(reward[rows], task[rows], ddof=self.ddof)
        alike = "in every task all attempts have one reward: there is nothing to credit"
        over_steps = "attempts at one task differ in turns: with weight = step and norm = mean_std their number enters the credit"
        uneven = self.weight == "step" and self.norm == "mean_std" and group.uneven
        self.doubts = (*([] if values.any() else [alike]), *([over_steps] if uneven else []))
        return group.spread(values)

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        group, (mean, deviation, _) = self._group, self._moments
        through = group.attempts_of(node)
        task = int(group.task[through[0]])
        numbers = {"reward": group.reward[through].mean(), "reward_mean": mean[task], "reward_std": deviation[task]}
        return {name: float(value) for name, value in numbers.items()} | {"attempts": len(through)}
