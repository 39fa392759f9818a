"""The grade as a scorer of paths: what `ramify check scorer`, TRL's reward functions and inspect's scorers take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramify.base.errors import BoundaryError, NeedsError, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.env.protocol import Task
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, token_advantages
from ramify.methods.implicit_advantage.run import MAKER, AdvantageScorer, Scored
from ramify.model.pair import Pair
from ramify.score.trajectories import Layout, path_trajectory
from ramify.trace.node import Stream, Verdict
from ramify.trace.path import Path


class AdvantageGrader:
    """Implements :class:`ramify.score.protocol.Scorer` with an open pair.

    The verdict is the attempt's score; the streams ``advantage`` hold A of each drawn token, or of a text node's whole step. ``layout``
    lays attempts without tokens out (``chat_layout`` of the policy's template). The reward is that of a *frozen* pair: with a reference
    that moves along with the policy under training it would grade itself.
    """

    name = MAKER

    def __init__(self, pair: Pair, layout: Layout | None = None, config: AdvantageConfig | None = None) -> None:
        self.pair, self.layout, self.config = pair, layout, config or AdvantageConfig()
        self._scorer = AdvantageScorer(pair, self.config)

    @property
    def judge(self) -> str:
        """Identity of both models and of the settings."""
        sides = [side.model().identity for side in (self.pair.policy, self.pair.reference)]
        return stable_hash(
            MAKER, *(part for one in sides for part in (one.weights, one.tokenizer)), canonical_json(self.config.to_json())
        )

    async def score(self, path: Path, task: Task) -> Sequence[Verdict | Stream]:
        """See :class:`ramify.score.protocol.Scorer`. An attempt that a model cannot score gets BoundaryError("scorer")."""
        last = path.segments[-1][0].id
        try:
            attempt = path_trajectory(path, last, task.id, layout=self.layout)
            (scored,) = await self._scorer.score_all([attempt])
        except (UserError, NeedsError, BoundaryError, UnicodeError, TypeError) as error:
            raise BoundaryError("scorer", str(error)) from error
        evidence = {"steps": [round(float(v), 6) for v in scored.steps], "warnings": list(scored.warnings)}
        verdict = Verdict(last, self.name, scored.score, "advantage", evidence=evidence, judges={self.name: self.judge})
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
    step = scored.trajectory.step
    values = np.zeros(len(step))
    kept = len(scored.logprobs[0])
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
