"""How rare it is that a log of a successful attempt breaks a rule: what makes a step that breaks one worth naming.

A step is named where at most the share ``level`` of successful attempts would have one named. The rank of a log is that of the
rarest rule it breaks, in the fixed order of :data:`ramify.jobs.log.rules.RULES`; its p is the share of successful logs of that
rank or a rarer one, with itself counted (split conformal: exact where the successful logs are of the same kind as the log that is
asked about).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from ramify.jobs.log.rules import RULES, Violation, violations
from ramify.jobs.why.attempts import attempts_in
from ramify.jobs.why.records import BrokenRule
from ramify.trace.db import Run
from ramify.trace.outcome import Decider

PUBLIC = {
    "contradicted result": 0,
    "skipped plan step": 0,
    "ignored error": 1,
    "repeated action": 1,
    "refused call": 1,
    "failed call": 20,
}
"""Of :data:`PUBLIC_LOGS` successful public logs, how many break this rule or one before it (``repro/why-outside.json``)."""
PUBLIC_LOGS = 147
"""84 of tau-bench (gpt-4o, airline), 63 of an AgentDojo with ten domains (gpt-5.6-luna)."""
MOST = 400
"""Successful attempts of a run that are read."""
_RANKS = {rule: rank for rank, rule in enumerate(RULES)}
_NONE = len(RULES)


@dataclass(frozen=True)
class Successes:
    """The ranks of a run's successful attempts, by their last node."""

    ranks: tuple[tuple[str, int], ...]

    def rarity(self, rule: str, level: float, leaf: str = "") -> tuple[int, int, bool]:
        """(k, n, own): of ``n`` successful attempts other than ``leaf``, ``k`` break the rule or a rarer one. Those of the run
        (``own``) where there are enough to name a step at ``level``, or some of them break it; else the public ones."""
        ranks = [rank for end, rank in self.ranks if end != leaf]
        k = sum(rank <= _RANKS[rule] for rank in ranks)
        if k or 1 / (len(ranks) + 1) <= level:
            return k, len(ranks), True
        return PUBLIC[rule], PUBLIC_LOGS, False


def successes(run: Run, deciding: Decider) -> Successes:
    """The successful attempts of a run, at most :data:`MOST`."""
    views = (view for info in sorted(run.trees(), key=lambda entry: entry.name) for view in attempts_in(run, info, deciding))
    won = (view for view in views if view.success and view.broken_off is None and not view.fork)
    return Successes(tuple((view.leaf, rank(violations(run, view))) for view in islice(won, MOST)))


def rank(broken: Iterable[Violation]) -> int:
    """The rank of the rarest rule; the number of rules where none is broken."""
    return min((_RANKS[entry.rule] for entry in broken), default=_NONE)


def broken_rules(broken: Sequence[Violation], among: Successes, level: float, leaf: str) -> tuple[BrokenRule, ...]:
    """Each violation with how rare it is, the rarest rule first, then by step."""
    rows = []
    for entry in sorted(broken, key=lambda entry: (_RANKS[entry.rule], entry.step)):
        k, n, of_run = among.rarity(entry.rule, level, leaf)
        rows.append(BrokenRule(entry.rule, entry.step, entry.node, entry.action, entry.shown, entry.why, k, n, of_run))
    return tuple(rows)
