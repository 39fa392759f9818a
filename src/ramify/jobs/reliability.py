"""How reliable an agent is at each task of a run, and whether two runs of it differ: what ``ramify test`` says of whole runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.render.numbers import p_value, percent, percent_interval, points, points_interval
from ramify.render.result import Result, Section, table
from ramify.rollout.stored import task_of
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow
from ramify.stats.intervals import clustered_share, wilson
from ramify.stats.repeats import OverTasks, all_of, attempts_needed, compare_versions, flip_rate, flips
from ramify.trace.db import Run
from ramify.trace.outcome import Decider, ended, settled, successes_in, undecided

MOST = 30
"""Tasks that are shown, those that flip most or differ most first."""


def counts_of_tasks(run: Run, scorer: str | None = None) -> dict[str, Counts]:
    """Attempts of every task of a run, forks not among them, by the task's id. Raises UserError without an outcome, and where the
    attempts are no independent ones of one agent."""
    if run.kind == "improve":
        raise UserError(
            f"the agent of {run.folder} changed while its attempts were made: play its tasks with one agent first "
            f"(ramify rollout --model hf:{run.folder}/agent)"
        )
    if next(iter(run.journal("tree")), None) is not None:
        raise UserError(
            f"a selector chose where the attempts of {run.folder} start, so they do not tell how reliable its agent is"
        )
    deciding, ends = settled(run, scorer), dict[str, list[bool | None]]()
    failed = {node.id for node in run.failed()}
    for info in run.trees():
        kept = [success for fork, success in successes_in(run, info.name, deciding, failed) if not fork]
        kept += [None] * _unjudged(run, info.name, deciding)
        if kept:
            ends.setdefault(task_of(run, info.name)[0].id, []).extend(kept)
    counts = {task: Counts.of(each) for task, each in ends.items()}
    if not any(each.n for each in counts.values()):
        why = "several scorers judged its attempts: choose one with --scorer" if scorer is None and undecided(run) else ""
        raise UserError(f"no attempt of {run.folder} has an outcome, so there is nothing to count{f' ({why})' if why else ''}")
    return counts


def _unjudged(run: Run, tree: str, deciding: Decider) -> int:
    """Attempts on record that were not scored where others were, as in a log that has rewards of some."""
    known = {end.node for end in ended(run, tree, deciding)}
    records = [record for record in run.attempts(tree) if not record.fork and record.leaf not in known]
    ends = {leaf.id for leaf in run.tree(tree).leaves()} if records else set()
    return len({record.leaf for record in records} & ends)


@dataclass(frozen=True, slots=True)
class TaskReliability:
    """The attempts at one task."""

    task: str
    successes: int
    n: int
    success: float
    interval: tuple[float, float]
    """Wilson, of further attempts at this task."""
    flips: float | None
    """Chance that two attempts end differently; None of one attempt."""
    failed: int
    """Attempts without an outcome, which count as neither."""


@dataclass(frozen=True)
class TestedRun(Result):
    """How reliable the agent of a run is."""

    run: str
    success: OverTasks
    """Share of successful attempts; of one task of its own attempts."""
    all_of: Mapping[int, OverTasks]
    """pass^k by k: the chance that k attempts at one task all succeed."""
    flips: OverTasks | None
    tasks: tuple[TaskReliability, ...]
    difference: float
    needed: int
    """Attempts at each task, by each of two versions, that find ``difference`` 4 times in 5."""

    def sections(self) -> Iterable[Section]:
        """The agent over its tasks, and the tasks that flip most."""
        rows = [("success", *_told(self.success))]
        rows += [(f"pass^{k}", *_told(each)) for k, each in self.all_of.items() if k > 1]
        if self.flips is not None:
            rows.append(("flip rate", *_told(self.flips)))
        single = self.success.tasks == 1
        means = "pass^k: k attempts at one task all succeed. Flip rate: two of them end differently. "
        yield Section.of(
            "",
            f"{self.run}: {plural(sum(row.n for row in self.tasks), 'attempt')} at {plural(len(self.tasks), 'task')}",
            table(("", "share", "95 % interval", "tasks"), rows),
            means + f"Intervals are of {'further attempts at this task' if single else 'other tasks of this kind'}.",
            f"To tell another version from this one, where it is {points(self.difference, 0).lstrip('+')} points better or worse "
            f"at these tasks: {plural(self.needed, 'attempt')} at each task by each version (4 times in 5).",
        )
        worst = sorted(self.tasks, key=lambda row: -(row.flips or 0))[:MOST]
        shown = [
            (row.task, percent(row.success), percent_interval(row.interval), row.successes, row.n, percent(row.flips), row.failed)
            for row in worst
        ]
        head = ("task", "success", "95 % interval", "successes", "attempts", "flips", "failed")
        more = f"{len(self.tasks) - MOST} more tasks flip less." if len(self.tasks) > MOST else ""
        yield Section.of("tasks", table(head, shown), more)


@dataclass(frozen=True)
class TestedVersions(Result):
    """Whether two versions of an agent differ at the tasks that both played."""

    PART: ClassVar[str] = "against"
    first: str
    second: str
    difference: float
    """Mean success of the second minus the first's, each task with equal weight."""
    interval: tuple[float, float] | None
    """Of other tasks of this kind; None of one task."""
    p: float
    """Exact, two-sided: neither differs at any of these tasks."""
    differing: tuple[str, ...]
    """Tasks at which they differ, at 5 % over all of them (Holm)."""
    tasks: Mapping[str, EvidenceRow]
    wanted: float
    needed: int
    """Attempts at each task by each version that find a difference of ``wanted`` 4 times in 5."""

    def sections(self) -> Iterable[Section]:
        """The difference over all tasks, and the tasks at which they differ most."""
        over = f", 95 % interval over tasks {points_interval(self.interval)}" if self.interval else ""
        apart = self.p <= 0.05
        verdict = "The two versions differ at these tasks" if apart else "These attempts do not tell the two versions apart"
        lines = [
            f"{self.second} against {self.first}, {plural(len(self.tasks), 'task')}: {points(self.difference)} points{over}.",
            f"{verdict} (p = {p_value(self.p)}, exact within tasks).",
        ]
        if self.p > 0.05:
            lines.append(
                f"A difference of {points(self.wanted, 0).lstrip('+')} points takes {plural(self.needed, 'attempt')} at each "
                "task by each version (4 times in 5)."
            )
        if self.differing:
            lines.append(f"They differ at {', '.join(self.differing[:MOST])}.")
        rows = [
            (name, f"{_before(row)}", f"{row.hits} of {row.n}", points(row.difference), p_value(row.p_corrected))
            for name, row in sorted(self.tasks.items(), key=lambda item: (item[1].p, -abs(item[1].difference)))[:MOST]
        ]
        head = ("task", "before", "after", "points", "p, corrected")
        yield Section.of("", *lines, table(head, rows))


def _before(row: EvidenceRow) -> str:
    return percent(row.share - row.difference)


def _told(over: OverTasks) -> tuple[str, str, int]:
    return percent(over.value), percent_interval(over.interval), over.tasks


def reliability(run: Run, scorer: str | None = None, difference: float = 0.1) -> TestedRun:
    """Success, pass^k, flip rate of the run's attempts, and the plan of a comparison. Raises UserError without an outcome."""
    counts = {task: each for task, each in counts_of_tasks(run, scorer).items() if each.n}
    over = _success(counts)
    most = max(each.n for each in counts.values())
    each_k = {
        k: over_k for k in (1, 2, 3, 4, 8, 16, 32) if k <= most and (over_k := all_of(list(counts.values()), k)) is not None
    }
    fewest = min(each.n for each in counts.values())
    if fewest == most:
        each_k[1] = over  # the same number, so the same interval
    few = [] if fewest == most else [f"tasks have {fewest} to {most} attempts: pass^k is of those with k or more"]
    if most < 2:
        few.append("no task has a second attempt: whether the agent flips is not known")
    return TestedRun(
        run=str(run.folder),
        success=over,
        all_of=each_k,
        flips=flips(list(counts.values())),
        tasks=tuple(
            TaskReliability(
                task, each.k, each.n, each.rate, wilson(each.k, each.n), flip_rate(each) if each.n > 1 else None, each.missing
            )
            for task, each in counts.items()
        ),
        difference=difference,
        needed=attempts_needed(list(counts.values()), difference),
        caveats=tuple(few),
    )


def _success(counts: Mapping[str, Counts]) -> OverTasks:
    hits = [hit for each in counts.values() for hit in [True] * each.k + [False] * (each.n - each.k)]
    share = clustered_share(hits, [task for task, each in counts.items() for _ in range(each.n)])
    assert share is not None
    return OverTasks(share.value, share.interval or wilson(share.k, share.n), share.clusters)


def compared(first: Run, second: Run, scorer: str | None = None, difference: float = 0.1) -> TestedVersions:
    """The second run against the first. Raises UserError where both are one run, and where no task has outcomes of both."""
    if first.folder.resolve() == second.folder.resolve():
        raise UserError(f"--against {first.folder} is the run itself: name a run of the same tasks by another version")
    a, b = counts_of_tasks(first, scorer), counts_of_tasks(second, scorer)
    try:
        versus = compare_versions(a, b)
    except ValueError:
        names = next(iter(a)), next(iter(b))
        raise UserError(
            f"{first.folder} and {second.folder} share no task (the first are '{names[0]}' and '{names[1]}'), so there is "
            "nothing to compare"
        ) from None
    apart = [
        f"{plural(count, 'task')} of {run.folder} alone {'is' if count == 1 else 'are'} not compared"
        for run, count in zip((first, second), versus.only, strict=True)
        if count
    ]
    apart += [
        f"{plural(failed, 'attempt')} of {run.folder} without an outcome {'counts' if failed == 1 else 'count'} as neither"
        for run, counts in ((first, a), (second, b))
        if (failed := sum(counts[name].missing for name in versus.tasks))
    ]
    both = [a[name] + b[name] for name in versus.tasks]
    return TestedVersions(
        first=str(first.folder),
        second=str(second.folder),
        difference=versus.difference,
        interval=versus.interval,
        p=versus.p,
        differing=versus.differing,
        tasks=versus.tasks,
        wanted=difference,
        needed=attempts_needed(both, difference),
        caveats=tuple(apart),
    )
