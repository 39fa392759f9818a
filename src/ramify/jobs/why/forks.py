"""Forks of the positions of an attempt, counted; those that are stored in the run are read, without their environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ramify.base.errors import RamifyError
from ramify.jobs.why.attempts import KNOWN, AskedAttempt, Passage, walked
from ramify.rollout.run import Episodes
from ramify.rollout.steps import StepForks, StepTrace
from ramify.stats.drops import Counts
from ramify.trace.view import Step, View

DEAD = 8
"""So many continuations in a row that the agent's endpoint failed end the search: it is gone, or refuses all of them."""


class AttemptForks(StepForks):
    """Counts forks; those that are stored are read, without their environment."""

    def __init__(self, episodes: Episodes, case: AskedAttempt, purpose: str) -> None:
        super().__init__(episodes, truncated="graded")
        self.case = case
        self.flaky = False
        """Whether the answer to the last action is another one each time."""
        mine = {node: t for t, node in reversed(list(enumerate(case.trace.nodes)))}
        self.refused = 0
        """Continuations in a row that the model failed, not the environment: that one may be at fault in one state alone."""
        self.made: dict[tuple[int, int], Passage] = {}
        """Forks by position and number."""
        self.others: list[Passage] = []
        for one in case.others:
            if one.start in mine and one.purpose == purpose:
                self.made[mine[one.start], one.index] = one
            elif one.purpose in KNOWN:
                self.others.append(one)

    async def count(self, trace: StepTrace, t: int, n: int, purpose: str, start: int = 0) -> Counts:
        """See :class:`ramify.rollout.steps.StepForks`; of an end that chance decides,
        how often the last action's answer is a success."""
        if t == trace.length and trace.ended:
            return await self.repeated(n) if self.flaky else Counts(n * bool(trace.correct), n)
        counts = Counts(0, 0)
        missing = []
        for i in range(start, start + n):
            known = self.made.get((t, i))
            if known is None:
                missing.append(i)
            else:
                counts += Counts(int(known.success), 1)
        if missing:
            counts += await self._play(trace, t, missing, purpose)
        return counts

    async def repeated(self, n: int) -> Counts:
        """Successes among ``n`` repetitions of the last action as it was, in the state it was done in:
        what the environment alone decides."""
        trace = self.case.trace
        before = self.episodes.load(trace.tree).node(trace.nodes[-2])
        said = [self.case.replies[-1].reply.message.written()]
        ends = [await self.episodes.reissue(trace.tree, trace.task, before, said) for _ in range(n)]
        return Counts.of(end.outcome for end in ends)

    async def _play(self, trace: StepTrace, t: int, missing: Sequence[int], purpose: str) -> Counts:
        if self.refused >= DEAD:
            why = "the same command continues with those that were played"
            raise RamifyError(f"{self.refused} continuations in a row failed, the first at {self.first_failure}; {why}")
        played = await asyncio.gather(
            *(self.episodes.branch(trace.tree, trace.task, trace.nodes[t], i, purpose=purpose) for i in missing)
        )
        self.ledger.add(purpose, forks=len(played), sampled_tokens=sum(a.sampled_tokens for a in played))
        for i, attempt in zip(missing, played, strict=True):
            refused = attempt.outcome is None and (attempt.failure or "").startswith(("provider", "engine"))
            self.refused = self.refused + 1 if refused else 0
            if attempt.outcome is None:
                self.first_failure = self.first_failure or attempt.failure or ""
                continue
            view = View(self.case.view.info, self.episodes.load(trace.tree), self.episodes.load(trace.tree).path(attempt.leaf))
            steps, seen, keys = walked(view)
            at = next(j for j, node in enumerate(seen) if node.id == trace.nodes[t])
            first: dict[str, Step | None] = {}
            for j in range(at, len(seen)):
                first.setdefault(keys[j], steps[j] if j < len(steps) else None)
            self.made[t, i] = Passage(attempt.outcome, trace.nodes[t], purpose, i, first, attempt.leaf)
        return Counts.of(a.outcome for a in played)

    def through(self, own: Mapping[int, Counts]) -> dict[int, list[Passage]]:
        """What passed through each position besides the forks from it:
        other attempts, and the forks from elsewhere that are counted."""
        counted = [(s, one) for (s, i), one in sorted(self.made.items()) if s in own and i < own[s].forks]
        return {
            t: self.case.passing(t, self.others) + self.case.passing(t, [one for s, one in counted if s != t])
            for t in range(self.case.trace.length + 1)
        }

    def passing(self, own: Mapping[int, Counts]) -> dict[int, Counts]:
        """The counts of :meth:`through`; at an end that is known none are needed."""
        last = self.case.trace.length if self.case.trace.ended and not self.flaky else -1
        return {t: Counts.of(one.success for one in ones) for t, ones in self.through(own).items() if ones and t != last}
