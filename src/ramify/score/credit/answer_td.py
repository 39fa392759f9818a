"""How much likelier each step made the answer that is known: TRACE (Tao et al. 2026, arXiv 2607.13988), by its abstract.

A frozen reference model reads the attempt. The value of the state before a step is the log-probability it gives to the task's
answer there, less that at the start; a step is credited the change, which is a temporal difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.score.credit.grpo import Grpo
from ramify.score.credit.protocol import CreditGroup

EPSILON = 1e-6


@register("credit", "answer-td")
class AnswerTd(Grpo):
    """``grpo``, and how much likelier the step made the task's answer to the agent that training began with (TRACE).

    For tasks whose data have an ``answer``. A change of 0 is paid 0: a step that teaches nothing gets what ``grpo`` gives. The
    last step of an attempt is credited by its end alone.
    """

    maker = "answer-td"
    answers = True
    numbers: ClassVar = {
        "A": "credit: A_ep + w change / change_rms, the mean over the attempts that go through the step",
        "A_ep": "attempt term, that of grpo",
        "answer": "log-probability of the task's answer instead of the step's reply, nats a token, under the agent that "
        "training began with",
        "change": "how much it rose with the step: the difference to the next step's, the mean where several go on",
        "change_rms": "root mean square of it over the steps of the task",
        **{name: meaning for name, meaning in Grpo.numbers.items() if name != "A"},
    }

    def __init__(self, w: float = 1.0, norm: Literal["mean_std", "mean"] = "mean_std", ddof: Literal[0, 1] = 1) -> None:
        """``w``: weight of the changes; the others as for ``grpo``. Raises UserError where ``w`` is negative or not finite."""
        super().__init__(norm=norm, ddof=ddof)
        if not 0 <= w < np.inf:
            raise UserError(f"credit rule 'answer-td': w is {w:g}; a number from 0 on is needed")
        self.w = w

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        by_attempt = super().assign(group)
        self._values = group.answers or {}
        if not self._values:
            self.doubts = (*self.doubts, "no task has an answer to be likely, so the credit is that of grpo")
        self._change = answer_changes(group)
        rows = group.task[group.attempt]
        self._scale = np.sqrt(np.bincount(rows, self._change**2) / np.maximum(np.bincount(rows, self._change != 0), 1))
        changes = group.spread(self.w * self._change / (self._scale[rows] + EPSILON))
        self._terms = by_attempt
        return {node: values + changes[node] for node, values in by_attempt.items()}

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        rows, sampled = self._group.rows_of(node), self._group.nodes[node].sampled_mask
        told: dict[str, Any] = {"A_ep": float(self._terms[node][sampled].mean()) if sampled.any() else 0.0}
        if node in self._values:
            scale = self._scale[self._group.task[self._group.attempt[rows[0]]]]
            told |= {"answer": self._values[node], "change": float(self._change[rows].mean()), "change_rms": float(scale)}
        return {**told, **super().explain(node)}


def answer_changes(group: CreditGroup) -> np.ndarray:
    """float64 (N,): how much the log-probability of the task's answer rises from before each step to before the attempt's next;
    0 for the last step, and where either is not known."""
    known = group.answers or {}
    values = np.array([known.get(node, np.nan) for node in group.columns["node"]], np.float64)
    rise = np.zeros(len(values))
    same = group.attempt[1:] == group.attempt[:-1]
    rise[:-1][same] = np.nan_to_num(np.diff(values)[same])
    return rise
