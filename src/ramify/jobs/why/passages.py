"""What came through the positions of an attempt: forks, those that are stored in the run read without their environment, and
other attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramify.base.errors import RamifyError
from ramify.jobs.why.attempts import KNOWN, AskedAttempt, Passage, walked
from ramify.rollout.potential import ForkEnd, Forks
from ramify.rollout.run import Episodes
from ramify.rollout.steps import StepTrace, branched, step_end
from ramify.stats.drops import Counts
from ramify.trace.view import Step, View

DEAD = 8
"""So many continuations in a row that the agent's endpoint failed end the search: it is gone, or refuses all of them."""


class Passages:
    """The passages through the positions of an attempt. ``forks`` counts those that began there."""

    def __init__(self, episodes: Episodes, case: AskedAttempt, purpose: str) -> None:
        self.episodes, self.case = episodes, case
        self.forks = Forks(self._continued, "graded")
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

    async def _continued(self, trace: StepTrace, t: int, numbers: range, purpose: str) -> list[ForkEnd]:
        """As :class:`ramify.rollout.steps.StepForks`, with the forks that are stored; of an end that chance decides, what the
        last action comes to each time."""
        if t == trace.length and trace.ended:
            outcomes = await self.repeated(len(numbers)) if self.flaky else [trace.correct] * len(numbers)
            return [ForkEnd(outcome, played=False) for outcome in outcomes]
        stored = {i: ForkEnd(self.made[t, i].success, played=False) for i in numbers if (t, i) in self.made}
        missing = [i for i in numbers if i not in stored]
        ends = stored | dict(zip(missing, await self._play(trace, t, missing, purpose), strict=True))
        return [ends[i] for i in numbers]

    async def repeated(self, n: int) -> list[bool | None]:
        """The outcomes of ``n`` repetitions of the last action as it was, in the state it was done in:
        what the environment alone decides."""
        trace = self.case.trace
        before = self.episodes.load(trace.tree).node(trace.nodes[-2])
        said = [self.case.replies[-1].reply.message.written()]
        return [(await self.episodes.reissue(trace.tree, trace.task, before, said)).outcome for _ in range(n)]

    async def _play(self, trace: StepTrace, t: int, missing: Sequence[int], purpose: str) -> list[ForkEnd]:
        if missing and self.refused >= DEAD:
            why = "the same command continues with those that were played"
            raise RamifyError(f"{self.refused} continuations in a row failed, the first at {self.forks.first_failure}; {why}")
        played = await branched(self.episodes, trace, t, missing, purpose)
        for i, attempt in zip(missing, played, strict=True):
            refused = attempt.outcome is None and (attempt.failure or "").startswith(("provider", "engine"))
            self.refused = self.refused + 1 if refused else 0
            if attempt.outcome is None:
                continue
            view = View(self.case.view.info, self.episodes.load(trace.tree), self.episodes.load(trace.tree).path(attempt.leaf))
            steps, seen, keys = walked(view, self.case.limited)
            at = next(j for j, node in enumerate(seen) if node.id == trace.nodes[t])
            first: dict[str, Step | None] = {}
            for j in range(at, len(seen)):
                first.setdefault(keys[j], steps[j] if j < len(steps) else None)
            self.made[t, i] = Passage(attempt.outcome, trace.nodes[t], purpose, i, first, attempt.leaf)
        return list(map(step_end, played))

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
