"""The grade as a judge of paths: what `ramify check scorer`, TRL's reward functions and inspect's scorers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig
from ramify.methods.implicit_advantage.run import MAKER, AdvantageScorer, GradedAttempt, token_values
from ramify.model.pair import Pair
from ramify.score.judge import Item, Judgement
from ramify.score.trajectories import MessageLayout, Trajectory, path_trajectory


class AdvantageGrader:
    """Implements :class:`ramify.score.judge.Judge` with a pair: open it with ``together=True``, else each call loads both models.

    The value is the attempt's score; the token values ``advantage`` hold A of each sampled token, or of a text node's whole step.
    ``layout`` renders attempts without tokens (``chat_layout`` of the policy's template). The reward is that of a *frozen* pair:
    with a reference that moves along with the policy under training it would grade itself.
    """

    name = MAKER

    def __init__(self, pair: Pair, layout: MessageLayout | None = None, config: AdvantageConfig | None = None) -> None:
        self.pair, self.layout, self.config = pair, layout, config or AdvantageConfig()
        self.template = getattr(layout, "template", None)
        """Renders the prompts of completions whose token ids are known
        (:func:`ramify.integrations.trainers.trl_trainer.reward_function`)."""
        self._scorer = AdvantageScorer(pair, self.config)

    @property
    def identity(self) -> str:
        """Hash of both models and of the settings."""
        sides = [side.identity or side.model().identity for side in (self.pair.policy, self.pair.reference)]
        return stable_hash(
            MAKER, *(part for one in sides for part in (one.weights, one.tokenizer)), canonical_json(self.config.to_json())
        )

    async def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """See :class:`ramify.score.judge.Judge`: all items in one pass of each model.
        An item without a path, or that a model cannot score, fails alone."""
        found: list[Any] = []
        for item in items:
            try:
                if item.path is None:
                    raise UserError(f"'{item.id}' is not a path, and the grade is of the actions on one")
                found.append(path_trajectory(item.path, item.id, layout=self.layout))
            except (UserError, NeedsError, UnicodeError, TypeError) as error:
                found.append(error)
        attempts = [one for one in found if isinstance(one, Trajectory)]
        try:
            scores = iter(await self._scorer.each(attempts) if attempts else [])
        except (UserError, NeedsError, InfrastructureError) as error:  # the models themselves cannot be had
            return [Judgement(failure=str(error))] * len(items)
        found = [next(scores) if isinstance(one, Trajectory) else one for one in found]
        return [
            self._judgement(item, one) if isinstance(one, GradedAttempt) else Judgement(failure=str(one))
            for item, one in zip(items, found, strict=True)
        ]

    def _judgement(self, item: Item, scored: GradedAttempt) -> Judgement:
        assert item.path is not None
        evidence = {"steps": [round(float(v), 6) for v in scored.steps], "warnings": list(scored.warnings)}
        return Judgement(scored.score, evidence=evidence, unit="advantage", token_values=tuple(token_values(item.path, scored)))
