"""The potential of an agent's steps: put the environment back to its state after a step, continue many times, count successes.

Positions are counted as for tokens: position t of an attempt lies after its step t, position 0 before the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.rollout.attempts import Attempt
from ramify.rollout.potential import ForkEnd, Forks
from ramify.rollout.run import Episodes
from ramify.rollout.sampler import in_turns
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


class StepForks(Forks[StepTrace, int]):
    """Forks of attempts after a step of theirs; they are stored in the run like every attempt.

    An attempt a failure cut off is missing. The last position of an attempt that ended is not played from: its outcome is that of
    every fork. Counting raises UserError on a position there is none of.
    """

    def __init__(self, episodes: Episodes, truncated: Literal["apart", "graded"] = "apart") -> None:
        super().__init__(self._continued, truncated)
        self.episodes = episodes

    async def _continued(self, trace: StepTrace, t: int, numbers: range, purpose: str) -> list[ForkEnd]:
        if not 0 <= t <= trace.length:
            raise UserError(f"attempt '{trace.id}' has positions 0 to {trace.length} to continue from, not {t}")
        if t == trace.length and trace.ended:
            return [ForkEnd(bool(trace.correct), played=False)] * len(numbers)
        return list(map(step_end, await branched(self.episodes, trace, t, numbers, purpose)))


async def branched(episodes: Episodes, trace: StepTrace, t: int, numbers: Sequence[int], purpose: str) -> list[Attempt]:
    """Attempts that continue ``trace`` from position ``t``, one for each of these numbers."""
    place = trace.tree, trace.task, trace.nodes[t]
    plays = (partial(episodes.branch, *place, number, purpose=purpose) for number in numbers)
    return await in_turns(episodes.agent.model, plays)


def step_end(attempt: Attempt) -> ForkEnd:
    """How a fork of an agent's step ended."""
    cut = attempt.truncated and attempt.outcome is not None
    return ForkEnd(attempt.outcome, cut, attempt.failure or "", attempt.sampled_tokens, len(attempt.turns))
