"""Where attempts at one task part first, and what good and bad attempts differ in as a whole: from the attempts that are there,
so a place to look first, and no cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramify.jobs.why.alternatives import NO_CALL, tools_of, words
from ramify.jobs.why.attempts import attempts_in, walked
from ramify.stats.drops import Counts
from ramify.stats.evidence import holm
from ramify.stats.tests import fisher, fisher_stratified
from ramify.trace.db import Run
from ramify.trace.outcome import Decider
from ramify.trace.view import View

ENDS = "(it ended)"
FEWEST = 2
"""Attempts that take a way, for the way to be one: fewer stand together."""
REST = "(each something else)"


@dataclass(frozen=True, slots=True)
class TakenWay:
    """One way that attempts went on."""

    action: str
    k: int
    n: int


@dataclass(frozen=True, slots=True)
class FirstParting:
    """The first step at which attempts at one task do different things, and how each way fared."""

    task: str
    step: int
    """From 1."""
    node: str
    """The last node before it, on one of the attempts."""
    ways: tuple[TakenWay, ...]
    """The most frequent first."""
    p: float
    """That all ways fare alike: each against the others (Fisher), corrected over the ways (Bonferroni)."""


@dataclass(frozen=True, slots=True)
class WholeDifference:
    """Something that some attempts have and others lack, and how both fared, over all tasks."""

    what: str
    having: Counts
    lacking: Counts
    p: float
    """Exact, within tasks, two-sided."""
    p_corrected: float
    """Over all that was compared (Holm)."""


def judged(run: Run, deciding: Decider) -> dict[str, list[View]]:
    """Judged attempts from the beginning of every task, forks not among them."""
    tasks: dict[str, list[View]] = {}
    for info in sorted(run.trees(), key=lambda each: each.name):
        for view in attempts_in(run, info, deciding):
            if not view.fork and view.success is not None and view.broken_off is None and view.steps:
                tasks.setdefault(view.cohort, []).append(view)
    return tasks


def first_partings(tasks: Mapping[str, Sequence[View]]) -> tuple[FirstParting, ...]:
    """Of each task with several attempts the first step where they part: the ways that fared most differently first."""
    partings = [parting for task, views in tasks.items() if (parting := first_parting(task, views)) is not None]
    return tuple(sorted(partings, key=lambda each: (each.p, each.task)))


def first_parting(task: str, views: Sequence[View]) -> FirstParting | None:
    """Where ``views``, attempts at one task, part; None where they never do. Of agents that call tools the wording of other
    replies does not count, and where they hardly make the same call twice, its arguments do not."""
    walks = [walked(view) for view in views]
    lines = [[words(step.action) for step in steps] for steps, _, _ in walks]
    every = iter(tools_of([action for line in lines for action in line]))
    tools = [[next(every) for _ in line] for line in lines]
    for t in range(max(map(len, lines))):
        said = [
            ENDS if t >= len(line) else tool[t] if tool[t] == NO_CALL else line[t]
            for line, tool in zip(lines, tools, strict=True)
        ]
        if 2 * len(set(said)) > len(said):
            said = [line[t] if t < len(line) else ENDS for line in tools]
        if len(set(said)) == 1 and said[0] != ENDS:
            continue
        counts: dict[str, Counts] = {}
        often = Counter(said)
        for action, view in zip(said, views, strict=True):
            way = action if often[action] >= FEWEST or len(often) == 2 else REST
            counts[way] = counts.get(way, Counts(0, 0)) + Counts(int(bool(view.success)), 1)
        if len(counts) < 2:
            return None
        first = next(seen for steps, seen, _ in walks if t < len(seen))
        ways = sorted(counts.items(), key=lambda item: -item[1].n)
        whole = sum(counts.values(), Counts(0, 0))
        apart = min(fisher(each.k, each.n, whole.k - each.k, whole.n - each.n) for _, each in ways)
        taken = tuple(TakenWay(name, each.k, each.n) for name, each in ways)
        return FirstParting(task, t + 1, first[t].id, taken, min(1.0, apart * (1 if len(ways) == 2 else len(ways))))
    return None


def whole_differences(tasks: Mapping[str, Sequence[View]]) -> tuple[WholeDifference, ...]:
    """What attempts have or lack as a whole (a tool, a repeated action, many steps, an end by a limit) and how both fared, by an
    exact test within tasks; the strongest first. Only what some attempts have and others lack."""
    groups = list(tasks.values())
    actions = [[step.action for view in views for step in view.steps] for views in groups]
    tools = iter(tools_of([action for each in actions for action in each]))
    longest = [sorted(len(view.steps) for view in views)[len(views) // 2] for views in groups]
    traits = [[_traits(view, [next(tools) for _ in view.steps], longest[i]) for view in views] for i, views in enumerate(groups)]
    compared = []
    for what in dict.fromkeys(name for views in traits for each in views for name in each):
        having, lacking = (
            [_counted(views, [what in each for each in traits[i]], value) for i, views in enumerate(groups)]
            for value in (True, False)
        )
        a, b = (sum(side, Counts(0, 0)) for side in (having, lacking))
        if a.n and b.n:
            p = fisher_stratified([(each.k, each.n) for each in having], [(each.k, each.n) for each in lacking])
            compared.append((what, a, b, p))
    corrected = holm([p for *_, p in compared]) if compared else []
    rows = [WholeDifference(*row, after) for row, after in zip(compared, corrected, strict=True)]
    return tuple(sorted(rows, key=lambda row: (row.p, row.what)))


def _traits(view: View, tools: Iterable[str], median: int) -> frozenset[str]:
    said = [words(step.action) for step in view.steps]
    traits = {f"calls {tool}" for tool in tools if tool not in ("", NO_CALL)}
    if any(a == b for a, b in pairwise(said)):
        traits.add("does the same twice in a row")
    if len(said) > median:
        traits.add("takes more steps than most at its task")
    if view.ended.cut:
        traits.add("ends at a limit")
    if any(not step.valid for step in view.steps):
        traits.add("does something that the environment refuses")
    return frozenset(traits)


def _counted(views: Sequence[View], has: Sequence[bool], value: bool) -> Counts:
    return Counts.of(view.success for view, mine in zip(views, has, strict=True) if mine is value)
