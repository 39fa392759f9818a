"""The search for the step at which success fell: which positions are forked, and what their counts come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramify.jobs.decline import Decline, falls
from ramify.jobs.why import sentences
from ramify.jobs.why.alternatives import alternatives
from ramify.jobs.why.answer import Why
from ramify.jobs.why.passages import Passages
from ramify.jobs.why.question import WhyQuestion
from ramify.jobs.why.records import Chance, StepChance
from ramify.rollout.potential import RunCounts, potential
from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval
from ramify.trace.db import Run

REPEATS = 8
"""How often the last action is repeated, where it is the one that stands out: its outcome was seen once."""


async def searched(passages: Passages, question: WhyQuestion, purpose: str) -> Why:
    """The answer by forks of the attempt's positions, which count for ``purpose``; those that are stored are loaded."""
    gain = bool(passages.case.view.success)
    rule = Decline(question.n, question.first, question.level, question.least, question.budget, passages.passing, gain=gain)
    rule, own, stood = await _search(passages, rule, purpose, question.describe)
    return _answer(passages, rule, own, stood)


async def _search(
    passages: Passages, rule: Decline, purpose: str, describe: int
) -> tuple[Decline, dict[int, Counts], tuple[int, ...]]:
    """The rule with the positions it knows, the counts of forks, and the steps that stand out, the largest change first."""
    trace, store = passages.case.trace, _ShownCounts(passages.episodes.run)
    positions = range(trace.length + 1)
    rule = replace(rule, known=frozenset({trace.length} if trace.ended else ()))
    own, stood = await potential(passages.forks, trace, positions, rule, purpose, store)
    again = Counts.of(await passages.repeated(REPEATS) if trace.ended and trace.length in stood[:1] else ())
    if again.k != bool(trace.correct) * again.n:
        passages.flaky, rule = True, replace(rule, known=frozenset())
        own, stood = await potential(passages.forks, trace, positions, rule, purpose, store)
    if stood:
        t = stood[0] - 1
        have, there = own.get(t, Counts(0, 0)), len(passages.through(own)[t])
        left = rule.samples - sum(c.forks for t, c in own.items() if t != trace.length or not trace.ended)
        if (more := int(min(describe - have.forks - there, left))) > 0:
            own[t] = have + await passages.forks.count(trace, t, more, purpose, start=have.forks)
            store.keep(trace, purpose, {t: own[t]})
    return rule, own, stood


def _answer(passages: Passages, rule: Decline, own: Mapping[int, Counts], stood: Sequence[int]) -> Why:
    """What the counts come to."""
    case = passages.case
    last, known = case.trace.length, rule.known
    plain = replace(rule, gain=False)
    counts = plain.merged(own)
    confidence = 1 - rule.level / max(last, 1)
    at = {t: Chance.of(c, confidence, t in known) for t, c in counts.items() if c.n or t in known}
    fell = {one.t: one for one in falls(rule, own, last)}
    sign = 1 if rule.gain else -1
    steps = []
    for t in range(1, last + 1):
        one = fell.get(t)
        change = None if one is None else sign * one.value + 0.0
        interval = None if one is None else _signed(one.interval, sign)
        stands = one is not None and t in stood
        where = case.replies[t - 1].node, case.trace.actions[t - 1]
        steps.append(StepChance(*where, at.get(t), change, interval, stands, case.conversation(t)))
    played = sum(c.forks for t, c in own.items() if t != last or not case.trace.ended)
    through = passages.through(own)
    free = len(
        {one.leaf for t in at for one in through[t] if one.start != case.trace.nodes[t]} & {one.leaf for one in passages.others}
    )
    whole = Why(
        tree=case.view.info.name,
        attempt=case.view.leaf,
        success=bool(case.view.success),
        verdict="none",
        headline="",
        before=at.get(0, Chance.of(Counts(0, 0))),
        after=at.get(last, Chance.of(Counts(0, 0))),
        steps=tuple(steps),
        samples=played,
        free=free,
        failed=sum(c.missing for c in own.values()),
        spent=played >= rule.samples and not stood,
    )
    if not stood:
        return replace(whole, headline=sentences.nothing(whole))
    t = stood[0]
    there = through[t - 1] + [
        one for (s, i), one in sorted(passages.made.items()) if s == t - 1 and i < own.get(s, Counts(0, 0)).forks
    ]
    lost = whole.at_step(t, at[t - 1], at[t], alternatives(case, t, there))
    return replace(lost, headline=sentences.lost(lost, len(there)))


def _signed(interval: Interval, sign: int) -> Interval:
    low, high = interval
    return (low, high) if sign > 0 else (-high + 0.0, -low + 0.0)


class _ShownCounts:
    """A store that keeps counts for pages and loads none: forks are read from the trees."""

    def __init__(self, run: Run) -> None:
        self.kept = RunCounts(run)

    def load(self, path: Any, purpose: str) -> dict[int, Counts]:
        """Nothing."""
        return {}

    def keep(self, path: Any, purpose: str, counts: Mapping[int, Counts]) -> None:
        """Store them as annotations."""
        self.kept.keep(path, purpose, counts)
