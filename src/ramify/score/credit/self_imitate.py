"""Imitation weighted by the positive part of the advantage (self-imitation learning, Oh et al. 2018, arXiv 1806.05635, equation
2), with generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, equation 16, without a discount)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.score.credit.protocol import CreditGroup, CreditRule


def base_values(group: CreditGroup) -> np.ndarray:
    """(N,): chance of success before each step before outcomes of equal states are known: the critic's value, or without a critic
    the success rate of the task's other attempts."""
    if group.values is not None:
        return group.values
    success = group.success.astype(np.float64)
    attempts, wins = np.bincount(group.task), np.bincount(group.task, success)
    others = (wins[group.task] - success) / np.maximum(attempts[group.task] - 1, 1)
    return np.asarray(others[group.attempt])


def corrected(group: CreditGroup, base: np.ndarray, trust: float) -> np.ndarray:
    """(N,): ``base`` (N,), which counts for ``trust`` outcomes, with the outcomes of the other attempts that were in an equal
    state of the task, each attempt once."""
    success = group.success.astype(np.float64)
    states = group.states()
    visits = np.unique(np.stack([states, group.attempt]), axis=1)
    known, state = np.unique(visits[0], return_inverse=True)
    count, wins = np.bincount(state), np.bincount(state, success[visits[1]])
    here = np.searchsorted(known, states)
    others, won = count[here] - 1, wins[here] - success[group.attempt]
    return np.asarray((trust * base + won) / (trust + others))


def ends(group: CreditGroup) -> np.ndarray:
    """bool (N,): the last step of each attempt."""
    return np.append(group.attempt[1:] != group.attempt[:-1], True)


def values_after(group: CreditGroup, before: np.ndarray) -> np.ndarray:
    """(N,): the value ``before`` (N,) the next step of the attempt; at its end whether it succeeded."""
    return np.where(ends(group), group.success[group.attempt].astype(np.float64), np.roll(before, -1))


@register("credit", "self-imitate")
class SelfImitate(CreditRule):
    """Supervised training on steps of won attempts that raised the chance of success, weighted by how much:
    the positive part of the advantage.

    Steps that no won attempt passed get no credit, however much the critic likes them: an agent that wins rarely would learn the
    critic's mistakes from all its updates without a win.

    The value of a state is a critic's, corrected by how other attempts went that passed through an equal state of the same task.
    Without a critic the mean of the task's other attempts takes its place."""

    maker = "self-imitate"
    loss = "cross_entropy"
    critic = True
    turn_bonus = -0.02
    numbers: ClassVar = {
        "A": "weight in training: the advantage, the mean over the attempts through the step, where one of them won and it is "
        "above the noise, else 0",
        "advantage": "advantage of the step: discounted sum of the changes in value from here to the end",
        "V": "chance of success before the step",
        "V_next": "chance of success after the step; at the end whether the attempt succeeded",
        "critic": "what the critic says of the state before the step; without one the success rate of the task's other attempts",
        "attempts": "attempts that go through the step",
    }

    def __init__(self, lam: float = 0.9, trust: float = 4.0, least: float = 0.1) -> None:
        """``lam``: lambda of the advantage, 1 is outcome minus value; ``trust``: how many outcomes of equal states the critic's
        value counts for; ``least``: smaller advantages are taken for the critic's noise, and get no credit. Raises UserError
        where they are out of range."""
        if not (0 <= lam <= 1 and trust > 0 and 0 <= least < 1):
            raise UserError(
                f"credit rule 'self-imitate': lam is {lam}, trust {trust} and least {least}; 0 to 1, a number above 0 and 0 to "
                "below 1 are needed"
            )
        self.lam, self.trust, self.least = lam, trust, least

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        self._group, self._base = group, base_values(group)
        self._value = value = corrected(group, self._base, self.trust)
        self._next, last = values_after(group, value), ends(group)
        change = self._next - value
        advantage = np.zeros(len(value))
        carried = 0.0
        for row in range(len(value) - 1, -1, -1):
            carried = change[row] + (0.0 if last[row] else self.lam * carried)
            advantage[row] = carried
        self._advantage, self.doubts = advantage, self.turn_doubts(group, ", none with lam = 1 and least = 0")
        won = group.spread(group.success.astype(np.float64))
        return {
            node: np.where((values >= self.least) & (won[node] > 0), values, 0)
            for node, values in group.spread(advantage).items()
        }

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        rows = self._group.rows_of(node)
        columns = {"advantage": self._advantage, "V": self._value, "V_next": self._next, "critic": self._base}
        return {name: float(values[rows].mean()) for name, values in columns.items()} | {"attempts": len(rows)}
