"""Plain step returns: what an attempt still gets from a step on, against the others at the same step (REINFORCE with a baseline,
Williams 1992, Machine Learning 8, equation 11). No state is compared and no value learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.score.group import moments, normalise


def returns_to_go(reward: np.ndarray, attempt: np.ndarray, gamma: float) -> np.ndarray:
    """float64 (N,): sum of ``gamma^(t - j) reward_t`` over the steps t >= j of the step's attempt, its own reward undiscounted.

    ``reward`` (N,) and ``attempt`` (N,) have one entry a step; the steps of one attempt are contiguous and in time order.
    """
    returns = np.array(reward, np.float64)
    for row in range(len(returns) - 2, -1, -1):
        if attempt[row] == attempt[row + 1]:
            returns[row] += gamma * returns[row + 1]
    return returns


def same_step(task: np.ndarray, step: np.ndarray) -> np.ndarray:
    """int (N,): a number for each pair of task and step number, 0..G-1; both are (N,)."""
    return np.unique(np.stack([task, step]), axis=1, return_inverse=True)[1].ravel()


@register("credit", "step-returns")
class StepReturns(CreditRule):
    """What the attempt still gets from the step on, relative to the task's other attempts at the same step number.

    With one reward at the end and no discount it is ``grpo`` but for attempts that have ended: the baseline of a step are those
    that are still running. A step that only one attempt has reached has nothing to compare with, and gets none."""

    maker = "step-returns"
    turn_bonus = -0.02
    numbers: ClassVar = {
        "A": "credit: (return - return_mean) / return_std, the mean over the attempts that go through the step",
        "return": "discounted sum of the rewards from the step on, the mean where several attempts go through it",
        "return_mean": "mean of it over the task's attempts at the same step number",
        "return_std": "its standard deviation there",
        "running": "attempts at the task that reached this step number",
        "attempts": "attempts that go through the step",
    }

    def __init__(self, gamma: float = 0.95, norm: Literal["mean_std", "mean"] = "mean_std", ddof: Literal[0, 1] = 1) -> None:
        """See ``CreditConfig``. Raises UserError where ``gamma`` is not above 0 and at most 1."""
        if not 0 < gamma <= 1:
            raise UserError(f"credit rule 'step-returns': gamma is {gamma:g}; a number above 0 and at most 1 is needed")
        self.gamma, self.norm, self.ddof = gamma, norm, ddof

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        self._returns = returns_to_go(np.asarray(group.columns["reward"]), group.attempt, self.gamma)
        self._place = same_step(group.task[group.attempt], np.asarray(group.columns["step"]))
        self._group, self._moments = group, moments(self._returns, self._place, ddof=self.ddof)
        self.doubts = () if self.gamma == 1 else self.turn_doubts(group, ", none with gamma = 1")
        return group.spread(normalise(self._returns, self._place, std=self.norm == "mean_std", ddof=self.ddof))

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        rows = self._group.rows_of(node)
        mean, deviation, running = (values[self._place[rows[0]]] for values in self._moments)
        numbers = {"return": self._returns[rows].mean(), "return_mean": mean, "return_std": deviation}
        return {name: float(value) for name, value in numbers.items()} | {"running": int(running), "attempts": len(rows)}
