"""Grade an agent while it acts: the grade of a step needs only what came before it, so it is there as soon as the action is.

Both models keep their keys and values, so a step costs each of them one pass over its new tokens. A grade is a warning light, never a
permission: an action that training made likelier may still be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.engine.follow import Follower
from ramify.engine.local import LocalModel
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, step_columns
from ramify.model.pair import Side, same_tokenizer


class Grade(NamedTuple):
    """The grade of one action."""

    step: int
    value: float
    """Under the configured token aggregator."""
    n_tokens: int
    total: float
    """Sum of the grades so far."""


class Monitor:
    """Follows one attempt. ``on_step`` is called with the :class:`Grade` of every action.

    Raises IncompatiblePairError where the two models do not share a tokenizer.
    """

    def __init__(
        self,
        policy: LocalModel,
        reference: LocalModel,
        on_step: Callable[[Grade], None] | None = None,
        config: AdvantageConfig | None = None,
    ) -> None:
        same_tokenizer(Side.of(policy), Side.of(reference))
        self.config, self.on_step = config or AdvantageConfig(), on_step
        self.grades: list[Grade] = []
        self._followers = Follower(policy), Follower(reference)

    def see(self, tokens: Sequence[int] | np.ndarray) -> None:
        """What the agent is shown: the prompt, a tool's answer, headers of messages. It is not graded."""
        for follower in self._followers:
            follower.extend(tokens)

    def act(self, tokens: Sequence[int] | np.ndarray) -> Grade:
        """What the agent did: one action, graded at once. Raises UserError where nothing was shown before it."""
        if not self._followers[0].length:
            raise UserError("the agent was shown nothing before its first action, so its first token has no log-prob")
        policy, reference = (follower.extend(tokens) for follower in self._followers)
        found = step_columns(policy, reference, np.zeros(len(policy), np.int64), 1, self.config)
        value = float(found[f"A_{self.config.token}"][0])
        before = self.grades[-1].total if self.grades else 0.0
        grade = Grade(len(self.grades), value, len(policy), before + value)
        self.grades.append(grade)
        if self.on_step is not None:
            self.on_step(grade)
        return grade
