"""The grade as a scorer of paths: what `ramify check scorer`, TRL's reward functions and inspect's scorers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ramify.base.errors import BoundaryError, NeedsError, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.env.protocol import Task
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, token_advantages
from ramify.methods.implicit_advantage.run import MAKER, AdvantageScorer, Scored
from ramify.model.pair import Pair
from ramify.score.trajectories import Layout, Trajectory, path_trajectory
from ramify.trace.node import Stream, Verdict
from ramify.trace.path import Path


class AdvantageGrader:
    """Implements :class:`ramify.score.protocol.Scorer` with a pair: open it with ``together=True``, else each call loads both models.

    The verdict is the attempt's score; the streams ``advantage`` hold A of each drawn token, or of a text node's whole step. ``layout``
    lays attempts without tokens out (``chat_layout`` of the policy's template). The reward is that of a *frozen* pair: with a reference
    that moves along with the policy under training it would grade itself.
    """

    name = MAKER

    def __init__(self, pair: Pair, layout: Layout | None = None, config: AdvantageConfig | None = None) -> None:
        self.pair, self.layout, self.config = pair, layout, config or AdvantageConfig()
        self.template = getattr(layout, "template", None)
        """Lays out the prompts of completions whose token ids are known (:func:`ramify.integrations.trl_trainer.reward_function`)."""
        self._scorer = AdvantageScorer(pair, self.config)

    @property
    def judge(self) -> str:
        """Identity of both models and of the settings."""
        sides = [side.identity or side.model().identity for side in (self.pair.policy, self.pair.reference)]
        return stable_hash(
            MAKER, *(part for one in sides for part in (one.weights, one.tokenizer)), canonical_json(self.config.to_json())
        )

    async def score(self, path: Path, task: Task) -> Sequence[Verdict | Stream]:
        """See :class:`ramify.score.protocol.Scorer`. An attempt that a model cannot score gets BoundaryError("scorer")."""
        (found,) = await self.score_many([path], [task])
        if isinstance(found, BoundaryError):
            raise found
        return found

    async def score_many(self, paths: Sequence[Path], tasks: Sequence[Task]) -> list[Sequence[Verdict | Stream] | BoundaryError]:
        """Judge attempts in one pass of each model; one that cannot be scored is its BoundaryError("scorer")."""
        found: list[Any] = []
        for path, task in zip(paths, tasks, strict=True):
            try:
                found.append(path_trajectory(path, path.segments[-1][0].id, task.id, layout=self.layout))
            except (UserError, NeedsError, UnicodeError, TypeError) as error:
                found.append(error)
        attempts = [one for one in found if isinstance(one, Trajectory)]
        try:
            scores = iter(await self._scorer.each(attempts) if attempts else [])
        except (UserError, NeedsError, BoundaryError) as error:  # the models themselves cannot be had
            raise BoundaryError("scorer", str(error)) from error
        found = [next(scores) if isinstance(one, Trajectory) else one for one in found]
        return [
            self._records(path, one) if isinstance(one, Scored) else BoundaryError("scorer", str(one))
            for path, one in zip(paths, found, strict=True)
        ]

    def _records(self, path: Path, scored: Scored) -> list[Verdict | Stream]:
        evidence = {"steps": [round(float(v), 6) for v in scored.steps], "warnings": list(scored.warnings)}
        judges = {self.name: self.judge}
        verdict = Verdict(path.segments[-1][0].id, self.name, scored.score, "advantage", evidence=evidence, judges=judges)
        return [verdict, *_streams(path, scored)]


def _streams(path: Path, scored: Scored) -> list[Stream]:
    """A of every drawn token of the nodes on the path; one number, the grade of the step, for a node of text alone."""
    nodes = {name: i for i, name in enumerate(scored.trajectory.nodes)}
    if any(node.tokens is None and len(node) for node, _ in path.segments):
        grades = scored.columns[f"A_{scored.config.token}"]
        return [
            Stream(node.id, "advantage", MAKER, np.array([grades[nodes[node.id]]], np.float32))
            for node, _ in path.segments
            if node.id in nodes and nodes[node.id] < len(grades)
        ]
    kept = len(scored.step)
    step = np.concatenate([np.full(len(scored.trajectory.tokens) - kept, -1), scored.step])
    values = np.zeros(len(step))
    values[len(step) - kept :] = token_advantages(*scored.logprobs, scored.config.beta)
    values = np.where(step >= 0, values, 0.0)
    found, start = [], 0
    for node, length in path.segments:
        if (step[start : start + length] >= 0).any():
            own = np.zeros(len(node), np.float32)
            own[:length] = values[start : start + length]
            found.append(Stream(node.id, "advantage", MAKER, own))
        start += length
    return found
