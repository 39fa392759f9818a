"""Conversations of an agent and its subagents side by side: a column each, a row for every step, time downwards.

An attempt with subagents is one path of steps, in the order in which they were taken: the state at a step is what all of them
have done by then, so a fork of any step takes that back, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from ramify.env.protocol import conversation_of
from ramify.web.steps import ShownStep, TaskTree, step_text

MOST_ATTEMPTS, MOST_STEPS = 5, 200
"""Attempts of a tree, and steps of one, that are drawn."""


@dataclass(frozen=True, slots=True)
class LaneStep:
    """One row."""

    id: str
    number: int
    conversation: int
    text: str
    open: frozenset[int]
    """The other conversations that have begun and still go on."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """One attempt."""

    end: str
    """Id of its last step."""
    outcome: str
    conversations: tuple[int, ...]
    steps: tuple[LaneStep, ...]
    left_out: int


def lanes(tree: TaskTree) -> list[Lanes]:
    """The attempts of ``tree`` that have several conversations, at most :data:`MOST_ATTEMPTS`; forks are not drawn."""
    by_id = {step.id: step for step in tree.steps}
    of_step = {step.id: conversation_of(lead[-1].data) if (lead := step.seen.lead) else 0 for step in tree.steps}
    if not any(of_step.values()):
        return []
    found: list[Lanes] = []
    for end in tree.attempts:
        path: list[ShownStep] = [end]
        while path[-1].parent in by_id:
            path.append(by_id[str(path[-1].parent)])
        talks = [of_step[step.id] for step in reversed(path)]
        if not any(talks):
            continue
        first = {talk: talks.index(talk) for talk in talks}
        last = {talk: len(talks) - 1 - talks[::-1].index(talk) for talk in talks}
        rows = [
            LaneStep(step.id, i + 1, talk, step_text(step), frozenset(o for o in first if o != talk and first[o] < i < last[o]))
            for i, (step, talk) in enumerate(zip(reversed(path), talks, strict=True))
        ]
        left = max(0, len(rows) - MOST_STEPS)
        found.append(Lanes(end.id, end.outcome, tuple(sorted(first)), tuple(rows[:MOST_STEPS]), left))
        if len(found) == MOST_ATTEMPTS:
            break
    return found
