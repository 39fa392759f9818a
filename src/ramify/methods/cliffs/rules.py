"""The credit rule of ``ramify improve --credit cliffs``: nothing is learned but where an attempt fell off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.score.credit.self_imitate import base_values, corrected, values_after


@register("credit", "cliffs")
class Cliffs(CreditRule):
    """Change in the chance of success, in states where an attempt lost more than a tenth of it with one step; nothing elsewhere.

    The step that fell is made less likely, those that did better in the same state more likely. The chance of success is a
    critic's, corrected by how other attempts went that passed through an equal state of the task
    (:mod:`ramify.score.credit.self_imitate`)."""

    maker = "cliffs-credit"
    critic = True
    turn_bonus = -0.01
    numbers: ClassVar = {
        "A": "credit: change in the chance of success, where an attempt fell off in the state, else 0",
        "V": "chance of success before the step",
        "V_next": "chance of success after the step; at the end whether the attempt succeeded",
        "cliff": "whether the step lost more than delta0",
        "attempts": "attempts that go through the step",
    }

    def __init__(self, delta0: float = 0.1, trust: float = 4.0) -> None:
        """``delta0``: the drop above which a step is a cliff; ``trust``: how many outcomes of equal states the critic's value
        counts for. Raises UserError where they are out of range."""
        if not (0 <= delta0 < 1 and trust > 0):
            raise UserError(
                f"credit rule 'cliffs': delta0 is {delta0} and trust {trust}; 0 to below 1 and a number above 0 are needed"
            )
        self.delta0, self.trust = delta0, trust

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        self._group = group
        self._value = corrected(group, base_values(group), self.trust)
        self._next = values_after(group, self._value)
        change = self._next - self._value
        self._cliff = -change > self.delta0
        states = group.states()
        self.doubts = (
            self.turn_doubts(group)
            if self._cliff.any()
            else (f"no step lost more than {self.delta0:g} of the chance of success: nothing is credited",)
        )
        return group.spread(np.where(np.isin(states, states[self._cliff]), change, 0.0))

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        rows = self._group.rows_of(node)
        columns = {"V": self._value, "V_next": self._next}
        found = {name: float(values[rows].mean()) for name, values in columns.items()}
        return found | {"cliff": bool(self._cliff[rows].any()), "attempts": len(rows)}
