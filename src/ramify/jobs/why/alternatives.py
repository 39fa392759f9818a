"""What was done in one state: actions that are the same, and those of agents that never say the same twice by their tool."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramify.jobs.why.attempts import AskedAttempt, Passage
from ramify.jobs.why.records import GROUPED, OTHER, Alternative
from ramify.stats.drops import Counts
from ramify.trace.message import named_calls


def alternatives(case: AskedAttempt, t: int, there: Sequence[Passage]) -> tuple[Alternative, ...]:
    """What was done in the state before step ``t`` other than that step,
    the most successful first (by the lower end of its interval)."""
    own = words(case.trace.actions[t - 1])
    counts: dict[str, Counts] = {}
    texts: dict[str, str] = {}
    for one in there:
        step = one.first[case.keys[t - 1]]
        if step is not None and (said := words(step.action)) != own:
            texts.setdefault(said, step.action)  # with its line ends: it may be played again
            counts[said] = counts.get(said, Counts(0, 0)) + Counts(int(one.success), 1)
    total = sum(c.n for c in counts.values())
    if total >= 4 and 2 * len(counts) > total:  # free text: by its first word, the tool, else together
        heads: dict[str, Counts] = {}
        for said, c in counts.items():
            heads[head(said)] = heads.get(head(said), Counts(0, 0)) + c
        alone = 2 * len(heads) > total or head(own) in heads
        counts = {OTHER: sum(counts.values(), Counts(0, 0))} if alone else {f"{name}{GROUPED}": c for name, c in heads.items()}
    found = [Alternative.of(texts.get(action, action), c) for action, c in counts.items()]
    best = (lambda one: one.interval[0]) if not case.view.success else (lambda one: -one.interval[1])
    return tuple(sorted(found, key=lambda one: (-best(one), -one.n, one.action)))


_CALL = re.compile(r"^([\w.-]+)\((?=\{|\))", re.MULTILINE)
"""A call of a tool as :meth:`ramify.trace.message.Message.spoken` has it."""
NO_CALL = "(no call)"
"""Stands for a reply that calls no tool, of agents that call some."""


def tools_of(actions: Sequence[str]) -> list[str]:
    """The tool that each action calls. Where none calls any (shells, games) what they begin with; else those without a call stand
    together."""
    calls = [_CALL.search(named_calls(action)) for action in actions]
    if any(calls):
        return [call[1] if call else NO_CALL for call in calls]
    return [head(action) for action in actions]


def head(action: str) -> str:
    """The tool that an action calls, where it calls one; else its first word, up to a bracket."""
    if call := _CALL.search(named_calls(action)):
        return call[1]
    return (named_calls(action).split() or [""])[0].split("(")[0].strip(":`*\"'{}[]")


def words(action: str) -> str:
    """An action in one line: two that differ in their spaces alone are the same."""
    return " ".join(action.split())
