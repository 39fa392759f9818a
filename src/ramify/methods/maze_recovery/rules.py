"""The credit rule of ``ramify improve --credit recovery``: imitation of a mix of successes with recoveries and clean ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.methods.maze_recovery.loops import Loops
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.trace.graph import MergedGraph


@register("credit", "recovery")
class RecoveryMix(CreditRule):
    """Imitation of successes: steps into a loop are not trained, and attempts that found back make up half of the weight
    (``recovery:0.3``: another share)."""

    maker = "recovery"
    loss = "cross_entropy"
    turn_bonus = -0.3
    numbers: ClassVar = {
        "A": "weight in training, the mean over the attempts through the step",
        "trained": "share of the attempts through the step in which it succeeded and was no step into a loop",
        "recovers": "share of the attempts through the step that came back from a loop",
        "attempts": "attempts that go through the step",
    }

    def __init__(self, share: str = "0.5") -> None:
        """``share``: of the weight, that of attempts with a recovery; 1 leaves out the others.
        Raises UserError where it is not a share."""
        try:
            self.share = float(share)
        except ValueError:
            self.share = -1.0
        if not 0 <= self.share <= 1:
            raise UserError(f"credit rule 'recovery': the share of recoveries is '{share}'; a number from 0 to 1 is needed")

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        columns = group.columns
        graph = MergedGraph.of(columns["task_id"], columns["attempt_id"], columns["step"], columns["anchor"], columns["action"])
        loops = Loops.of(graph)
        self._recovers = np.isin(group.attempt, group.attempt[[one.turn for one in loops.recoveries]])
        # as in the sets that build_sft makes: a retreat helps where it leaves a state that the attempt's way does not lead
        # through
        state = group.attempt * (int(graph.visit_group.max(initial=0)) + 1) + graph.visit_group
        helps = loops.kept | ((loops.moves < 0) & ~np.isin(state, state[loops.kept]))
        self._group, self._trained = group, helps & group.success[group.attempt]
        weight = self._trained.astype(np.float64)
        tokens = np.array([group.nodes[node].sampled_mask.sum() for node in columns["node"]]) * weight
        kinds = [float(tokens[self._recovers == kind].sum()) for kind in (False, True)]
        self.doubts = ()
        if all(kinds):
            total = sum(kinds)
            for kind, share in ((False, 1 - self.share), (True, self.share)):
                weight[self._recovers == kind] *= share * total / kinds[kind]
        elif any(kinds):
            self.doubts = (f"no success {'shows a' if kinds[0] else 'is without a'} recovery: there is nothing to mix",)
        self.doubts += self.turn_doubts(group, ", since steps into a loop are not trained")
        return group.spread(weight)

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`."""
        rows = self._group.rows_of(node)
        columns = {"trained": self._trained, "recovers": self._recovers}
        return {name: float(values[rows].mean()) for name, values in columns.items()} | {"attempts": len(rows)}
