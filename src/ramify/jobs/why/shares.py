"""Credit shared over the steps of an attempt in a run: what was played is stored there, and what is stored is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ramify.base.errors import RamifyError
from ramify.jobs.share import Looks, walks
from ramify.jobs.why import sentences
from ramify.jobs.why.answer import Why
from ramify.jobs.why.attempts import AskedAttempt, walked
from ramify.jobs.why.findings import MAKER
from ramify.jobs.why.question import WhyQuestion
from ramify.jobs.why.records import Chance, Share, StepShare
from ramify.jobs.why.search import REPEATS
from ramify.rollout.run import Episodes
from ramify.stats.drops import Counts
from ramify.trace.view import TokenMessage, View


async def shared(episodes: Episodes, case: AskedAttempt, result: Why, question: WhyQuestion) -> Why:
    """The result with credit shared over the steps, at most ``question.samples`` continuations in all; where no single step
    stands out those with credit are its headline."""
    looks = Looks(question.n, question.level, question.least, result.success)
    steps, name = case.trace.length, f"share {result.attempt[:12]} {episodes.provenance.hash[:12]}"
    game = HeldSteps(episodes, case, f"{MAKER} {name}")
    await game.check()
    taken, spent = await walks(game, steps, looks, name, question.budget - result.samples)
    rows = []
    for step in range(steps):
        value, interval, credited = None, None, False
        if taken:
            value, interval = looks.share(taken, step)
            credited = looks.credited(interval)
        rows.append(StepShare(case.replies[step].node, case.trace.actions[step], value, interval, credited))
    ends = Chance.of(Counts.of(one.outcomes[-1] for one in taken), exact=not game.flaky)
    start = Chance.of(Counts.of(one.outcomes[0] for one in taken))
    share = Share(len(taken), start, ends, game.played, tuple(rows), game.failed, spent)
    result = replace(result, share=share, failed=result.failed + share.failed, spent=result.spent or spent)
    if result.verdict == "step" or not share.credited:
        return result
    return replace(result, headline=sentences.together(result, share))


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """A played attempt: the node before each of its steps, its actions, and its outcome."""

    nodes: tuple[str, ...]
    actions: tuple[str, ...]
    success: bool


class HeldSteps:
    """Coalitions of the steps of an attempt in a run. Played attempts are stored in the run,
    and those that are stored are loaded."""

    def __init__(self, episodes: Episodes, case: AskedAttempt, purpose: str) -> None:
        self.episodes, self.case = episodes, case
        self.purpose = purpose
        self.played = self.failed = 0
        self.flaky = False
        """Whether the recorded actions come to another outcome each time."""
        self.known = {
            (one.purpose, one.index): (one.leaf, one.outcome)
            for one in episodes.run.attempts(tree=case.trace.tree)
            if one.outcome is not None
        }
        """Stored attempts by purpose and index: their last node and their outcome."""

    async def free(self, walk: int) -> HeldAttempt | None:
        """See :class:`ramify.jobs.share.Coalitions`."""
        return await self._play(self.case.trace.nodes[0], walk, 0, {})

    async def hold(self, attempt: HeldAttempt, step: int, held: frozenset[int], walk: int) -> HeldAttempt | None:
        """See :class:`ramify.jobs.share.Coalitions`."""
        if step >= len(attempt.actions) or attempt.actions[step] == self.case.trace.actions[step]:
            return attempt
        turns = {one - step: self.case.replies[one].reply for one in held if one >= step}
        return await self._play(attempt.nodes[step], walk, step + 1, turns)

    async def whole(self) -> bool:
        """See :class:`ramify.jobs.share.Coalitions`."""
        return await self._again() if self.flaky else bool(self.case.trace.correct)

    async def check(self) -> None:
        """Repeat the attempt as it was some times: where its outcome differs, chance decides it.
        Raises RamifyError where it cannot be."""
        self.flaky = any([await self._again() != bool(self.case.trace.correct) for _ in range(REPEATS)])

    async def _again(self) -> bool:
        trace = self.case.trace
        turns = {t: step.reply for t, step in enumerate(self.case.replies)}
        again = await self.episodes.branch(trace.tree, trace.task, trace.nodes[0], 0, held=turns, purpose=f"{self.purpose}/again")
        if again.outcome is None:
            raise RamifyError(f"the attempt's own actions could not be repeated: {again.failure}")
        return again.outcome

    async def _play(self, node: str, walk: int, index: int, turns: Mapping[int, TokenMessage]) -> HeldAttempt | None:
        trace, purpose = self.case.trace, f"{self.purpose}/{walk}"
        if (purpose, index) not in self.known:
            attempt = await self.episodes.branch(trace.tree, trace.task, node, index, held=turns, purpose=purpose)
            self.played += len(attempt.turns) != sum(turn < len(attempt.turns) for turn in turns)
            if attempt.outcome is None:
                self.failed += 1
                return None
            leaf, success = attempt.leaf, attempt.outcome
        else:
            leaf, success = self.known[purpose, index]
            self.played += 1
        tree = self.episodes.load(trace.tree)
        steps, seen, _ = walked(View(self.case.view.info, tree, tree.path(leaf)))
        return HeldAttempt(tuple(one.id for one in seen), tuple(one.action for one in steps), success)
