"""The potential of an agent's steps: put the environment back to its state after a step, continue many times, count successes.

Positions are counted as for tokens: position t of an attempt lies after its step t, position 0 before the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ramify.base.errors import UserError
from ramify.base.ledger import Ledger
from ramify.env.protocol import Task
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.stats.drops import Counts


@dataclass(frozen=True)
class StepTrace:
    """One attempt as a row of positions. ``nodes`` (T + 1,) are the observations after each step, the task's own first."""

    id: str
    tree: str
    task: Task
    nodes: tuple[str, ...]
    actions: tuple[str, ...]
    """What the agent said, (T,)."""
    correct: bool | None
    ended: bool
    """The environment ended the attempt at its last position; false where a failure or a limit of turns did."""
    potentials: tuple[Counts | None, ...] | None = None
    early_stopped_at: int | None = None

    @property
    def length(self) -> int:
        """T: steps."""
        return len(self.nodes) - 1

    def at(self, t: int) -> tuple[str, int]:
        """Where counts of position ``t`` are kept in the run: at the observation after the step."""
        return self.nodes[t], 0

    def with_potentials(self, measured: Mapping[int, Counts], early_stopped_at: int | None = None) -> StepTrace:
        """This attempt with the potentials of the positions measured."""
        known = tuple(measured.get(t) for t in range(len(self.nodes)))
        return replace(self, potentials=known, early_stopped_at=early_stopped_at)


def step_trace(episodes: Episodes, attempt: Attempt) -> StepTrace:
    """The whole path of an attempt, the part before a branch included. Raises UserError where the agent took no step."""
    segments = [node for node, _ in episodes.load(attempt.tree).path(attempt.leaf).segments]
    replies = [node for node in segments if node.role == "assistant" and node.opens]
    seen = [node for node in segments if node.role in ("user", "tool")]
    if not replies or len(seen) != len(replies) + 1:
        raise UserError(
            f"the attempt that ends at {attempt.leaf} has {len(replies)} steps and {len(seen)} observations; one more is needed"
        )
    return StepTrace(
        id=f"{attempt.tree}/{attempt.leaf[:12]}",
        tree=attempt.tree,
        task=attempt.task,
        nodes=tuple(node.id for node in seen),
        actions=tuple(node.text for node in replies),
        correct=attempt.outcome,
        ended=attempt.outcome is not None and not attempt.truncated,
    )


@dataclass(frozen=True)
class ForksSpent:
    """What forks took: how many, tokens sampled and given, by purpose and in all."""

    forks: int = 0
    sampled_tokens: int = 0
    forward_tokens: int = 0
    """Run through the model: scored ones, given ones that no cache held, and sampled ones."""
    given_tokens: int = 0
    turns: int = 0
    shared: bool = False
    """Whether the model says what it had cached; else it is taken to share nothing."""
    by_purpose: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    first_failure: str = ""


class StepForks:
    """Counts successes of attempts that continue after a step, for :func:`ramify.rollout.potential.potential`.

    Forks are stored in the run like every attempt; those of another ``purpose`` are other samples. ``truncated`` says what
    becomes of attempts that a limit of turns ended: counted apart, or by the environment's outcome.
    """

    def __init__(self, episodes: Episodes, truncated: Literal["apart", "graded"] = "apart") -> None:
        self.episodes, self.truncated = episodes, truncated
        self.ledger = Ledger()
        self.first_failure = ""

    async def count(self, trace: StepTrace, t: int, n: int, purpose: str, start: int = 0) -> Counts:
        """Successes among ``n`` attempts that continue from position ``t``. An attempt a failure cut off is missing, not failed.

        The last position of an attempt that ended is not played from: its outcome is that of every fork. Raises UserError on a
        position there is none of.
        """
        if not 0 <= t <= trace.length or n < 1:
            raise UserError(f"attempt '{trace.id}' has positions 0 to {trace.length} to continue from, not {t}")
        if t == trace.length and trace.ended:
            return Counts(n * bool(trace.correct), n)
        sampled = await asyncio.gather(
            *(self.episodes.branch(trace.tree, trace.task, trace.nodes[t], start + i, purpose=purpose) for i in range(n))
        )
        self.ledger.add(
            purpose, forks=n, sampled_tokens=sum(a.sampled_tokens for a in sampled), turns=sum(len(a.turns) for a in sampled)
        )
        self.first_failure = self.first_failure or next((a.failure for a in sampled if a.failure), "")
        scored = [a for a in sampled if a.outcome is not None]
        kept = [a for a in scored if self.truncated == "graded" or not a.truncated]
        return Counts(sum(bool(a.outcome) for a in kept), len(kept), n - len(scored), len(scored) - len(kept))

    def spent(self) -> ForksSpent:
        """What was spent: forks, turns and tokens sampled; ``forward_tokens`` are the latter,
        as prompts are counted by the model alone."""
        forks, sampled, turns = (int(self.ledger.total(unit)) for unit in ("forks", "sampled_tokens", "turns"))
        by = self.ledger.to_json()["spent"]
        return ForksSpent(forks, sampled, sampled, turns=turns, by_purpose=by, first_failure=self.first_failure)
