"""A tree as the page draws it: equal replies after an equal history are one choice,
with its count and the chance of success after it.

Every attempt of a tree shares its beginning with others. Choices are the steps of :mod:`ramify.web.steps` with equal ones merged:
the prefix is there once, and a choice says how many samples took it and what became of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.render.svg import clip
from ramify.stats.intervals import wilson
from ramify.trace.db import Run
from ramify.trace.node import Annotation
from ramify.web.steps import ShownStep, TaskTree

MOST_CHOICES = 20_000
"""Choices of one tree that a page holds."""


@dataclass(frozen=True, slots=True)
class SuccessAfter:
    """A probability of success: of how many independent samples it is worth, and its 95 % interval."""

    p: float
    n: float
    measured: bool = False
    """From forks that were counted there, else from the attempts that go through."""

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's."""
        return wilson(self.p * self.n, self.n)


@dataclass(slots=True)
class Choice:
    """One reply after one history, by however many samples. Choice 0 is the task."""

    parent: int
    steps: list[ShownStep] = field(default_factory=list)
    edit: str = ""
    """What was changed here, one line; its outcomes do not count for what comes before."""
    chance: SuccessAfter | None = None
    children: list[int] = field(default_factory=list)

    @property
    def ends(self) -> Counter[str]:
        """Attempts that end here, by outcome."""
        return Counter(step.outcome for step in self.steps if step.outcome)

    @property
    def text(self) -> str:
        """What the agent wrote and called."""
        return self.steps[0].message.spoken() if self.steps else ""


@dataclass(frozen=True, slots=True)
class Outline:
    """The choices of a tree, every parent before its children."""

    choices: tuple[Choice, ...]
    of: Mapping[str, int]
    """Place in ``choices`` by id of a node: of replies, and of the messages that answer them."""
    left_out: int
    """Steps beyond :data:`MOST_CHOICES`."""

    @property
    def drop(self) -> tuple[float, int] | None:
        """The largest fall of the chance of success at one choice that more than chance explains,
        and where; None where there is none.

        Its interval lies below the chance before it."""
        found = []
        for at, choice in enumerate(self.choices[1:], 1):
            before = self.choices[choice.parent].chance
            if choice.chance is not None and before is not None and choice.chance.interval[1] < before.p:
                found.append((choice.chance.p - before.p, at))
        return min(found, default=None)


def outline(run: Run, tree: TaskTree) -> Outline:
    """Merge a tree's equal steps and estimate the chance of success after each."""
    choices = [Choice(-1)]
    places: dict[str, int] = {}
    keys: dict[tuple[Any, ...], int] = {}
    left_out = 0
    for step in tree.steps:
        parent = 0 if step.parent is None else places.get(step.parent, -1)
        edit = _edit(run, step)
        key = (parent, edit, *(message.text for message in step.seen.lead), None, step.message.spoken())
        at = -1 if parent < 0 else keys.get(key, -1)
        if at < 0:
            if parent < 0 or len(choices) > MOST_CHOICES:
                left_out += 1
                continue
            at = keys[key] = len(choices)
            choices.append(Choice(parent, edit=edit))
            choices[parent].children.append(at)
        choices[at].steps.append(step)
        places[step.id] = at
    of: dict[str, int] = {}
    for at, choice in enumerate(choices):
        for step in choice.steps:
            for message in (step.reply, *step.answers):
                for node in message.nodes:
                    of.setdefault(node.id, at)
    for step in tree.steps:  # a reply that others were forked out of is its own step, not theirs
        if step.id in places:
            of[step.id] = places[step.id]
    _estimate(choices, _measured(run, tree, choices, of))
    return Outline(tuple(choices), of, left_out)


def _edit(run: Run, step: ShownStep) -> str:
    """What a fork changed at a step, "" where nothing was."""
    for node in (node for message in (*step.seen.lead, step.reply) for node in message.nodes):
        edit = node.data.get("edit")
        if edit is None and node.provenance is not None:
            edit = run.provenance(node.provenance).edit
        if edit is not None:
            return clip(json.dumps(edit, ensure_ascii=False, default=str), 300)
    return ""


def _measured(run: Run, tree: TaskTree, choices: Sequence[Choice], of: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Counted forks after a choice: at its end, or at a message that answers it, or before the reply that follows."""
    nodes = {step.id: step.node for step in tree.steps}
    found: dict[int, tuple[int, int]] = {}
    for annotation in run.annotations(tree=tree.info.name, name="potential"):
        counts = counted(annotation)
        if counts is None:
            continue
        at = of.get(annotation.node, 0)  # elsewhere are the messages of the prompt
        node = nodes.get(annotation.node)
        if node is not None and annotation.offset <= node.head and node.opens:
            at = choices[at].parent
        elif node is not None and annotation.offset < len(node):
            continue  # inside the reply
        k, n = found.get(at, (0, 0))
        found[at] = k + counts[0], n + counts[1]
    return found


def counted(annotation: Annotation) -> tuple[int, int] | None:
    """Successes and forks of a ``potential`` annotation; None where they are no counts."""
    value = annotation.value if isinstance(annotation.value, Mapping) else {}
    k, n = value.get("k"), value.get("n")
    return (k, n) if type(k) is int and type(n) is int and 0 <= k <= n and n else None


def _estimate(choices: Sequence[Choice], measured: Mapping[int, tuple[int, int]]) -> None:
    """Set every choice's chance, the last ones first.

    The chance at a choice is the mean over the samples taken there of the chance after them, so that many forks of one sample
    count as one before it. Its variance is that within the samples (each choice's own) and that between them (Cochran 1977,
    section 10.2); the chance is worth as many independent samples as have that variance, or,
    where all end alike, as Kish's formula says.
    """
    for at in range(len(choices) - 1, -1, -1):
        choice = choices[at]
        if at in measured:
            k, n = measured[at]
            choice.chance = SuccessAfter(k / n, float(n), True)
            continue
        ends = choice.ends
        parts = [(1.0, 1.0, 1.0)] * ends["success"] + [(1.0, 0.0, 1.0)] * (ends["failure"] + ends["cut"])
        for child in choice.children:
            chance = choices[child].chance
            if chance is not None and not choices[child].edit:
                parts.append((float(len(choices[child].steps)), chance.p, chance.n))
        choice.chance = _pooled(parts)


def _pooled(parts: Sequence[tuple[float, float, float]]) -> SuccessAfter | None:
    """(samples, chance, worth) of each part as one."""
    total = sum(count for count, _, _ in parts)
    if not total:
        return None
    p = min(1.0, max(0.0, sum(count * chance for count, chance, _ in parts) / total))
    within = sum((count / total) ** 2 * chance * (1 - chance) / worth for count, chance, worth in parts)
    between = sum(count / total * (chance - p) ** 2 for count, chance, _ in parts) / total
    spread = within + between
    kish = 1 / sum((count / total) ** 2 / worth for count, _, worth in parts)
    return SuccessAfter(p, p * (1 - p) / spread if 1e-12 < p < 1 - 1e-12 and spread > 0 else kish)
