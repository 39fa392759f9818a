"""Two runs beside each other: success task by task, and the steps at which their agents chose differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramify.render.svg import clip
from ramify.stats.evidence import each_against
from ramify.stats.intervals import Interval, difference_of_proportions
from ramify.trace.db import Run
from ramify.trace.node import TreeInfo
from ramify.trace.outcome import Decider
from ramify.web.outline import Choice, Outline, SuccessAfter, outline
from ramify.web.steps import read_tree

MOST_PAIRS = 200
"""Tasks that are compared."""
LEAST = 3
"""Samples that each run must have after a history, for its actions to be compared there."""
_SHOWN = 15


@dataclass(frozen=True, slots=True)
class BesideRow:
    """One task in both runs."""

    name: str
    other: str
    """Name of its tree in the other run."""
    success: SuccessAfter | None
    other_success: SuccessAfter | None

    @property
    def difference(self) -> tuple[float, Interval] | None:
        """Success in the other run minus that in this one, with Newcombe's interval."""
        a, b = self.success, self.other_success
        if a is None or b is None:
            return None
        return b.p - a.p, difference_of_proportions(b.p * b.n, b.n, a.p * a.n, a.n)


@dataclass(frozen=True, slots=True)
class Parting:
    """One action after one history that both runs came through, and how often each took it."""

    tree: str
    history: str
    """The step before, "" at the start."""
    action: str
    taken: tuple[int, int]
    """Times this run took it, of how many."""
    other_taken: tuple[int, int]
    success: SuccessAfter | None
    """After it, of both runs together."""
    p: float
    """Fisher's, corrected over all actions that are compared (Holm)."""


def pairs(run: Run, other: Run) -> list[tuple[TreeInfo, TreeInfo]]:
    """Trees of the same name, else of the same task where each run has one tree of it, in this run's order."""
    named = {info.name: info for info in other.trees()}
    mine, theirs = _by_task(run.trees()), _by_task(other.trees())
    found = []
    for info in run.trees():
        task = str(info.task.get("id", info.name))
        same = named.get(info.name) or (theirs[task][0] if len(mine[task]) == 1 == len(theirs.get(task, ())) else None)
        if same is not None:
            found.append((info, same))
    return found


def _by_task(infos: Sequence[TreeInfo]) -> dict[str, list[TreeInfo]]:
    found: dict[str, list[TreeInfo]] = {}
    for info in infos:
        found.setdefault(str(info.task.get("id", info.name)), []).append(info)
    return found


def compare_runs(run: Run, other: Run, deciding: Decider, theirs: Decider) -> tuple[list[BesideRow], list[Parting]]:
    """The tasks of both runs, and the actions whose shares differ most surely, those first."""
    rows: list[BesideRow] = []
    counts: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
    about: dict[str, tuple[str, str, str, SuccessAfter | None]] = {}
    for info, same in pairs(run, other)[:MOST_PAIRS]:
        a, b = outline(run, read_tree(run, info.name, deciding)), outline(other, read_tree(other, same.name, theirs))
        rows.append(BesideRow(info.name, same.name, a.choices[0].chance, b.choices[0].chance))
        for history, action, taken, taken_there, success in _partings(a, b):
            key = str(len(counts))
            counts[key] = taken, taken_there
            about[key] = info.name, history, action, success
    tested = each_against(counts) if counts else []
    found = [
        Parting(*about[row.intervention][:3], *counts[row.intervention], about[row.intervention][3], row.p_corrected)
        for row in tested
    ]
    found.sort(key=lambda one: (one.p, -abs(_share(one.other_taken) - _share(one.taken)), one.tree, one.action))
    return rows, found[:_SHOWN]


def _share(taken: tuple[int, int]) -> float:
    return taken[0] / taken[1] if taken[1] else 0.0


def _partings(a: Outline, b: Outline) -> Iterator[tuple[str, str, tuple[int, int], tuple[int, int], SuccessAfter | None]]:
    """Actions after every history that is in both, walked from the start down."""
    stack = [(a.choices[0], b.choices[0])]
    while stack:
        left, right = stack.pop()
        mine, theirs = _next(a, left), _next(b, right)
        for lead in mine.keys() & theirs.keys():
            ours, others = mine[lead], theirs[lead]
            n, m = sum(len(choice.steps) for choice in ours.values()), sum(len(choice.steps) for choice in others.values())
            for action in sorted(ours.keys() | others.keys()):
                one, two = ours.get(action), others.get(action)
                taken = len(one.steps) if one else 0, n
                taken_there = len(two.steps) if two else 0, m
                if len(ours.keys() | others.keys()) > 1 and min(n, m) >= LEAST:
                    chances = [choice.chance for choice in (one, two) if choice is not None and choice.chance is not None]
                    weight = sum(chance.n for chance in chances)
                    both = SuccessAfter(sum(chance.p * chance.n for chance in chances) / weight, weight) if weight else None
                    yield clip(left.text, 60), clip(action, 80), taken, taken_there, both
                if one is not None and two is not None:
                    stack.append((one, two))


def _next(of: Outline, choice: Choice) -> Mapping[tuple[str, ...], dict[str, Choice]]:
    """By what was shown next: the choices that were made there, by text; edited ones are left out."""
    found: dict[tuple[str, ...], dict[str, Choice]] = {}
    for at in choice.children:
        child = of.choices[at]
        if not child.edit:
            found.setdefault(tuple(message.text for message in child.steps[0].seen.lead), {})[child.text] = child
    return found
