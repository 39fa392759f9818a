"""The table of a run's tasks: for each tree how its attempts ended, where success fell most, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ramify.base.words import plural
from ramify.jobs.why.findings import MAKER as WHY
from ramify.jobs.why.findings import NOTHING
from ramify.render.escape import visible
from ramify.render.svg import clip
from ramify.rollout.attempts import sampled_tokens
from ramify.trace.db import Run
from ramify.trace.node import TreeInfo
from ramify.trace.outcome import Decider, ended
from ramify.web.drawn import DrawnTask
from ramify.web.outline import SuccessAfter, outline
from ramify.web.steps import read_tree

MOST_NODES = 20_000
"""Nodes of a run up to which every tree is read for its row;
of larger runs only those that are shown or in which something was found."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One tree of the table. None is what nobody said, or what was not read."""

    name: str
    group: str
    attempts: int
    successes: int | None
    success: SuccessAfter | None
    """Forks of one step count as one."""
    drop: float | None
    """Change of the chance of success where it fell most."""
    at: str
    """The action there."""
    tokens: int | None
    found: int
    """Findings of methods."""
    forks: int = 0
    """Which are counted neither with the attempts nor with their successes."""

    @property
    def drawn(self) -> DrawnTask:
        """As the page's script takes it; texts are visible ones."""
        low, high = (0.0, 0.0) if self.success is None else self.success.interval
        p = None if self.success is None else (round(self.success.p, 4), round(low, 4), round(high, 4))
        drop = None if self.drop is None else round(self.drop, 4)
        name, group, at = (visible(clip(text, 200)) for text in (self.name, self.group, self.at))
        return DrawnTask(name, group, self.attempts, self.successes, p, drop, at, self.tokens, self.found, self.forks)

    @property
    def shown(self) -> list[str]:
        """As text, for a page without a script: all but the name."""
        p = "-" if self.success is None else f"{100 * self.success.p:.0f} %"
        drop = "-" if self.drop is None else f"{100 * self.drop:+.0f} at {clip(self.at, 60)}"
        tokens = "-" if self.tokens is None else f"{self.tokens}"
        wins = "-" if self.successes is None else f"{self.successes} of {self.attempts}"
        wins += f", {plural(self.forks, 'fork')}" if self.forks else ""
        return [self.group, wins, p, drop.replace("-", "−", 1) if self.drop else drop, tokens, f"{self.found or '-'}"]


def task_rows(run: Run, deciding: Decider, shown: Collection[str] = ()) -> list[TaskRow]:
    """A row for every tree, in the run's order; ``shown`` names trees that are read whatever their number."""
    found: dict[str, list[Any]] = {}
    for finding in run.findings():
        if finding.node is not None:
            found.setdefault(run.node(finding.node).tree, []).append(finding)
    every = len(run) <= MOST_NODES
    rows = []
    for info in run.trees():
        whole = every or info.name in shown or info.name in found
        rows.append(_read(run, info, deciding, found) if whole else _counted(run, info, deciding))
    return rows


def _read(run: Run, info: TreeInfo, deciding: Decider, found: Mapping[str, list[Any]]) -> TaskRow:
    tree = read_tree(run, info.name, deciding)
    choices = outline(run, tree)
    told = [step.outcome == "success" for step in tree.attempts if step.outcome != "done"]
    drop, at = choices.drop or (None, 0)
    text = choices.choices[at].text if at else ""
    for one in found.get(info.name, ()):
        if one.maker == WHY and one.name != NOTHING and one.value is not None and math.isfinite(one.value):
            drop, text = one.value, choices.choices[choices.of.get(one.node, 0)].text
    tokens = sum(sampled_tokens(node) for node in tree.tree.nodes.values() if node.role == "assistant")
    wins = sum(told) if told else None
    size = len(found.get(info.name, ()))
    counts = len(tree.attempts), wins
    return TaskRow(info.name, info.group, *counts, choices.choices[0].chance, drop, text, tokens or None, size, len(tree.forks))


def _counted(run: Run, info: TreeInfo, deciding: Decider) -> TaskRow:
    ends = ended(run, info.name, deciding)
    forks = sum(one.fork for one in ends)
    told = [won for one in ends if not one.fork and (won := one.success) is not None]
    success = SuccessAfter(sum(told) / len(told), float(len(told))) if told else None
    counts = len(ends) - forks, sum(told) if told else None
    return TaskRow(info.name, info.group, *counts, success, None, "", None, 0, forks)
