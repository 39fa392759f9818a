"""The credit rule of ``ramify improve --credit implicit-advantage``:
imitation of successes without the steps that training turned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.score.credit.protocol import CreditGroup, CreditRule


@register("credit", "implicit-advantage")
class ImplicitAdvantage(CreditRule):
    """Imitation of successes, without the steps that training has made less likely: those whose log-ratio of the agent and the
    one that training began with is below 0 (``implicit-advantage:-0.5``: another floor, in nats)."""

    maker = "implicit-advantage-credit"
    loss = "cross_entropy"
    reference = True
    numbers: ClassVar = {
        "A": "weight in training: the share of the attempts through the step that succeeded, 0 where the grade is below the "
        "floor",
        "grade": "log-probability of the step under the agent, minus that under the one that training began with; in nats",
        "successes": "attempts through the step that succeeded",
        "attempts": "attempts that go through the step",
    }

    def __init__(self, floor: str = "0") -> None:
        """``floor``: the least grade that is trained on, in nats. Raises UserError where it is not a number."""
        try:
            self.floor = float(floor)
        except ValueError:
            self.floor = np.nan
        if not np.isfinite(self.floor):
            raise UserError(f"credit rule 'implicit-advantage': the floor is '{floor}'; a number of nats is needed")

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        self._group, self.doubts = group, ()
        weights = group.spread(group.success.astype(np.float64))
        ratios = group.log_ratios
        if ratios is None:
            self.doubts = ("the steps were not scored by two agents, so no success was left out",)
            self._grades: dict[str, float] = {}
            return weights
        self._grades = {node: float(ratios[node].sum()) if node in ratios else 0.0 for node in weights}
        return {node: values if self._grades[node] >= self.floor else 0 * values for node, values in weights.items()}

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        through = self._group.attempts_of(node)
        grade = {"grade": self._grades[node]} if node in self._grades else {}
        return grade | {"successes": int(self._group.success[through].sum()), "attempts": len(through)}
