"""Supervised training on successes: RAFT (Dong et al. 2023, arXiv 2304.06767), rejection sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ramify.base.registry import register
from ramify.score.credit.protocol import CreditGroup, CreditRule


@register("credit", "imitate")
class Imitate(CreditRule):
    """1 on the tokens of successful attempts, 0 on the others: supervised training on what succeeded."""

    maker = "imitate"
    loss = "cross_entropy"
    numbers: ClassVar = {
        "A": "weight in training: the share of the attempts through the step that succeeded",
        "successes": "attempts through the step that succeeded",
        "attempts": "attempts that go through the step",
    }

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        self._group = group
        return group.spread(group.success.astype(np.float64))

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        through = self._group.attempts_of(node)
        return {"successes": int(self._group.success[through].sum()), "attempts": len(through)}
