"""The credit rules of ``ramify improve --credit NAME`` that merge attempts by state: ``algorithm`` with other terms each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ramify.base import codec
from ramify.base.config import check
from ramify.base.registry import register
from ramify.methods.graph_credit.algorithm import RULES, CreditConfig
from ramify.methods.graph_credit.decisive import LEVEL
from ramify.methods.graph_credit.report import StepNumbers
from ramify.methods.graph_credit.run import MAKER, StateGraph
from ramify.score.credit.protocol import CreditGroup, CreditRule

#: What the numbers behind a step's credit mean, in the order in which they are shown.
NUMBERS = {
    "A": "credit: the sum of the terms below, as used in training",
    "A_ep": "attempt term: this attempt's reward against the task's other attempts",
    "A_nc": "local term: this step against other steps from the same state",
    "A_ec": "progress term: the change in value against all steps of the task",
    "decisive": "whether the step stands out of chance; null where no attempt did anything else when first in its state",
    "difference": "mean reward of the attempts that made this move, minus that of those which did something else in its state",
    "interval": "95 % interval of that difference alone",
    "p": "chance of so large a difference where the move does not matter",
    "p_corrected": "the same, of any of the moves compared: the step stands out where it is small",
    "takers": "attempts that made this move when first in its state",
    "others": "attempts that did something else",
    "V": "value of the state before the step",
    "V_next": "value of the state after it",
    "delta": "change in value",
    "reward": "reward of the attempt, the mean where several go through the step",
    "task": "task of the attempts",
    "group_size": "visits of the state before the step",
    "group": "state before the step",
    "next_group": "state after the step",
    "group_id": "number of the state before the step",
    "next_group_id": "number of the state after the step",
    "attempts": "attempts that go through the step",
}

TURN_BONUS = {"grpo": -0.02, "gigpo": -0.05, "ep+nc": -0.22, "ep+ec": -0.06, "g2po": -0.28, "g2po-released": -0.33}
"""``CreditRule.turn_bonus`` of each rule; of grpo with statistics over steps, else it has none."""


class GraphCredit(CreditRule):
    """Credit by progress on the merged graph of the attempts, by the terms of ``config.rule``."""

    rule: ClassVar[str] = "g2po"
    maker = MAKER
    numbers = NUMBERS

    def __init__(self, config: CreditConfig | None = None, level: float = LEVEL, **settings: Any) -> None:
        """``settings`` are fields of ``CreditConfig``, instead of ``config``; ``level``: chance of calling any step decisive
        where none is. Raises UserError on settings that do not fit the rule."""
        self.config = config or check(CreditConfig, {"rule": self.rule} | settings)
        self.level, self.turn_bonus = level, TURN_BONUS[self.config.rule]
        self.doubts: Sequence[str] = ()
        self.steps: Mapping[str, StepNumbers] = {}
        """Of the group that was credited last, by node."""

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        graph = StateGraph.of_attempts(group.columns)
        credit = graph.assign(self.config)["A"]
        self.doubts, self.steps = [*graph.doubts(), *self._turns(group)], graph.node_credit(self.level)
        return group.spread(credit)

    def _turns(self, group: CreditGroup) -> tuple[str, ...]:
        c = self.config
        terms = bool(RULES[c.rule] and c.w and (c.gamma < 1 or c.norm == "mean_std"))
        over_steps = c.weight == "step" and c.norm == "mean_std"
        return self.turn_doubts(group, ", none with gamma = 1 and norm = mean") if terms or over_steps else ()

    def explain(self, node: str) -> Mapping[str, Any]:
        """See :class:`CreditRule`: all numbers of the rule, and whether the step stands out of chance."""
        numbers: dict[str, Any] = codec.to_json(self.steps[node])
        return {name: value for name, value in numbers.items() if value is not None or name == "decisive"}


@register("credit", "g2po")
class G2po(GraphCredit):
    """Episode + w (node term + edge term): credit by progress on the attempts merged by state (graph-credit, G2PO)."""


@register("credit", "g2po-released")
class G2poReleased(GraphCredit):
    """g2po as the authors' released code computes it: episode statistics over steps, tasks with one reward credited too, ends
    valued by success."""

    rule = "g2po-released"


@register("credit", "gigpo")
class Gigpo(GraphCredit):
    """Episode + w times the node term on the attempt's own return (GiGPO)."""

    rule = "gigpo"


@register("credit", "ep+nc")
class EpisodeNode(GraphCredit):
    """Episode + w times graph-credit's node term alone."""

    rule = "ep+nc"


@register("credit", "ep+ec")
class EpisodeEdge(GraphCredit):
    """Episode + w times graph-credit's edge term alone."""

    rule = "ep+ec"
