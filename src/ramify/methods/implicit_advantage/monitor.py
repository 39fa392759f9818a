"""Grade an agent while it acts: the grade of a step needs only what came before it, so it is there as soon as the action is.

Both models keep their keys and values, so a step costs each of them one pass over its new tokens. A grade is a warning light,
never a permission: an action that training made likelier may still be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, step_columns
from ramify.methods.implicit_advantage.follow import Follower
from ramify.methods.implicit_advantage.run import finite
from ramify.model.pair import Pair


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

    Raises IncompatiblePairError where the two models do not share a tokenizer, UserError on ``max_length`` and
    ``keep_truncated``: a growing row is never cut.
    """

    def __init__(
        self,
        policy: LocalModel,
        reference: LocalModel,
        on_step: Callable[[Grade], None] | None = None,
        config: AdvantageConfig | None = None,
    ) -> None:
        self._special = list(Pair(policy, reference).special)
        self.config, self.on_step = config or AdvantageConfig(), on_step
        for name in ("max_length", "keep_truncated"):
            if getattr(self.config, name) != getattr(AdvantageConfig(), name):
                raise UserError(f"a monitor has no '{name}': it never cuts an attempt")
        self.grades: list[Grade] = []
        self._followers = Follower(policy), Follower(reference)

    def see(self, tokens: Sequence[int] | np.ndarray) -> None:
        """What the agent is shown: the prompt, a tool's answer, headers of messages. It is not graded."""
        self._extend(tokens)

    def act(self, tokens: Sequence[int] | np.ndarray) -> Grade:
        """What the agent did: one action, graded at once.

        Raises UserError where nothing was shown before it, where a model does not know a token (nothing has moved then), and
        where a log-prob is not a finite number (the action was followed, but has no grade).
        """
        if not self._followers[0].length:
            raise UserError("the agent was shown nothing before its first action, so its first token has no log-prob")
        policy, reference = self._extend(tokens)
        step = np.zeros(len(policy), np.int64)
        if not self.config.keep_special:
            step[np.isin(tokens, self._special)] = -1
        for name, values in (("policy", policy), ("reference", reference)):
            finite(values, step, np.asarray(tokens), name)
        found = step_columns(policy, reference, step, 1, self.config)
        value = float(found[f"A_{self.config.token}"][0])
        before = self.grades[-1].total if self.grades else 0.0
        grade = Grade(len(self.grades), value, int(found["n_tokens"][0]), before + value)
        self.grades.append(grade)
        if self.on_step is not None:
            self.on_step(grade)
        return grade

    def _extend(self, tokens: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        for follower in self._followers:
            follower.checked(tokens)  # both, before either moves
        return [follower.extend(tokens) for follower in self._followers]
