"""How reliable an agent is at each task of a run, and whether two runs of it differ: what ``ramify test`` says of whole runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from ramify.base.words import plural
from ramify.jobs.junit import JunitCase
from ramify.render.numbers import p_value, percent, percent_interval, points, points_interval
from ramify.render.result import Result, Section, table
from ramify.rollout.stored import task_of
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow
from ramify.stats.intervals import clopper_pearson, clustered_share, wilson
from ramify.stats.repeats import OverTasks, all_of, attempts_needed, compare_versions, flip_rate, flips
from ramify.trace.db import Run
from ramify.trace.outcome import Decider, ended, settled, successes_in, undecided

DIFFERENCES = (0.05, 0.1, 0.2, 0.3)
"""Of success, that a plan says runs for."""
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
    at_least: float | None = None
    confidence: float = 0.95
    surely: float = 0.0
    """The success that these attempts show with ``confidence``, of tasks like these."""

    @property
    def exit_code(self) -> int:
        """That of a failure where the stated success is not shown."""
        return EXIT_FAILED if self.at_least is not None and self.surely < self.at_least else EXIT_DONE

    @property
    def verdict(self) -> str:
        """Whether the stated success is shown, one sentence; "" where none was stated."""
        if self.at_least is None:
            return ""
        shown = "That shows" if self.surely >= self.at_least else "That does not show"
        return (
            f"{shown} a success of {percent(self.at_least)} or more: with {percent(self.confidence, 0)} confidence it is at "
            f"least {percent(self.surely)}."
        )

    def junit(self) -> list[JunitCase]:
        """All tasks as a test, and each: it fails where its own attempts lie below the stated success, beyond chance over all of
        them (Bonferroni)."""
        told = {f"ramify {name}": _properties(over) for name, over in (("success", self.success), *self._named())}
        every = {
            name: value for over in told for name, value in zip((over, f"{over} low", f"{over} high"), told[over], strict=True)
        }
        failed = self.verdict if self.exit_code else ""
        return [JunitCase("all tasks", failed, properties=every), *(self._task(row) for row in self.tasks)]

    def _named(self) -> list[tuple[str, OverTasks]]:
        named = [(f"pass^{k}", each) for k, each in self.all_of.items() if k > 1]
        return named if self.flips is None else [*named, ("flip rate", self.flips)]

    def _task(self, row: TaskReliability) -> JunitCase:
        ends = clopper_pearson(row.successes, row.n, 1 - 2 * (1 - self.confidence) / len(self.tasks))
        failure = ""
        if self.at_least is not None and ends[1] < self.at_least:
            failure = f"{row.successes} of {row.n} attempts succeeded, surely fewer than {percent(self.at_least)}"
        told = {"runs": row.n, "successes": row.successes, "without outcome": row.failed, "success": f"{row.success:.6g}"}
        told |= {"success low": f"{row.interval[0]:.6g}", "success high": f"{row.interval[1]:.6g}"}
        told |= {} if row.flips is None else {"flip rate": f"{row.flips:.6g}"}
        return JunitCase(row.task, failure, properties={f"ramify {name}": str(value) for name, value in told.items()})

    def sections(self) -> Iterable[Section]:
        """The agent over its tasks, and the tasks that flip most."""
        rows = [(name, *_told(over)) for name, over in (("success", self.success), *self._named())]
        single = self.success.tasks == 1
        means = "pass^k: k attempts at one task all succeed. Flip rate: two of them end differently. "
        yield Section.of(
            "",
            f"{self.run}: {plural(sum(row.n for row in self.tasks), 'attempt')} at {plural(len(self.tasks), 'task')}",
            self.verdict,
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
    of: str = "attempts"
    """What was counted: attempts at tasks, or ``samples`` of one step."""

    @property
    def exit_code(self) -> int:
        """That of a failure where the second is worse, beyond chance."""
        return EXIT_FAILED if self.p <= 0.05 and self.difference < 0 else EXIT_DONE

    def junit(self) -> list[JunitCase]:
        """All tasks as a test, and each: it fails where the second is worse there, beyond chance over all of them (Holm)."""
        said = f"{points(self.difference)} points, p = {p_value(self.p)}"
        cases = [JunitCase("all tasks", f"{self.second} is worse than {self.first}: {said}" if self.exit_code else "")]
        for name, row in self.tasks.items():
            worse = name in self.differing and row.difference < 0
            why = f"{_before(row)} before, {row.hits} of {row.n} after, p = {p_value(row.p_corrected)}" if worse else ""
            told = {"before": row.share - row.difference, "after": row.share, "p": row.p_corrected}
            properties = {f"ramify {key}": f"{value:.6g}" for key, value in told.items()} | {"ramify runs": str(row.n)}
            cases.append(JunitCase(name, why, properties=properties))
        return cases if len(self.tasks) > 1 else cases[:1]

    def sections(self) -> Iterable[Section]:
        """The difference over all tasks, and the tasks at which they differ most."""
        among = "" if self.of == "samples" else " over tasks"
        over = f", 95 % interval{among} {points_interval(self.interval)}" if self.interval else ""
        apart = self.p <= 0.05
        step = self.of == "samples"
        where = "here" if step else "at these tasks"
        verdict = f"The two versions differ {where}" if apart else f"These {self.of} do not tell the two versions apart"
        what = next(iter(self.tasks)) if step else plural(len(self.tasks), "task")
        lines = [
            f"{self.second} against {self.first}, {what}: {points(self.difference)} points{over}.",
            f"{verdict} (p = {p_value(self.p)}, exact{'' if step else ' within tasks'}).",
        ]
        if self.p > 0.05:
            each = plural(self.needed, self.of.rstrip("s"))
            by = f"{each} by each version" if step else f"{each} at each task by each version"
            lines.append(f"A difference of {points(self.wanted, 0).lstrip('+')} points takes {by} (4 times in 5).")
        if self.differing and not step:
            lines.append(f"They differ at {', '.join(self.differing[:MOST])}.")
        rows = [
            (name, f"{_before(row)}", f"{row.hits} of {row.n}", points(row.difference), p_value(row.p_corrected))
            for name, row in sorted(self.tasks.items(), key=lambda item: (item[1].p, -abs(item[1].difference)))[:MOST]
        ]
        head = ("step" if step else "task", "before", "after", "points", "p, corrected")
        yield Section.of("", *lines, table(head, rows))


def _before(row: EvidenceRow) -> str:
    return percent(row.share - row.difference)


def _told(over: OverTasks) -> tuple[str, str, int]:
    return percent(over.value), percent_interval(over.interval), over.tasks


def reliability(
    run: Run, scorer: str | None = None, difference: float = 0.1, at_least: float | None = None, confidence: float = 0.95
) -> TestedRun:
    """Success, pass^k, flip rate of the run's attempts, whether they show a success of ``at_least``, and a plan. Raises UserError
    without an outcome."""
    counts = {task: each for task, each in counts_of_tasks(run, scorer).items() if each.n}
    over, surely = _success(counts), _success(counts, 2 * confidence - 1).interval[0]
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
        at_least=at_least,
        confidence=confidence,
        surely=surely,
        caveats=tuple(few),
    )


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Runs that tell two versions apart, 4 times in 5, which differ by ``difference`` in their success."""

    difference: float
    each: int
    """By each version at each task."""
    total: int
    """By both at all tasks."""


def plan_rows(counts: Sequence[Counts], differences: Iterable[float] = DIFFERENCES) -> list[PlanRow]:
    """A row for each difference, for the tasks of ``counts``."""
    needed = ((difference, attempts_needed(counts, difference)) for difference in differences)
    return [PlanRow(difference, each, 2 * each * len(counts)) for difference, each in needed]


@dataclass(frozen=True)
class TestPlan(Result):
    """How many runs it takes."""

    __test__ = False
    KEPT = False
    run: str
    known: str
    """What the plan is made from."""
    rows: tuple[PlanRow, ...]
    rate: Mapping[str, float] | None = None
    """Of a rate that was stated: ``at_least``, ``usual``, the mean number of runs there and at most, and that of a test that does
    not stop early."""

    def sections(self) -> Iterable[Section]:
        """A row for each difference, and the test of a rate."""
        rows = [(points(row.difference, 0).lstrip("+"), row.each, row.total) for row in self.rows]
        head = ("points apart", "each version, each task", "in all")
        yield Section.of("", f"{self.run}, {self.known}: runs that tell two versions apart, 4 times in 5.", table(head, rows))
        if self.rate is not None:
            rate = self.rate
            yield Section.of(
                "",
                f"A rate of {rate['at_least']:g} is shown, at a usual rate of {rate['usual']:g}, after {rate['mean']:.0f} runs "
                f"in the mean and {rate['most']:.0f} at most; a test that does not stop early takes {rate['fixed']:.0f}.",
            )


def planned(run: Run, scorer: str | None = None) -> TestPlan:
    """The plan for the tasks of a run. Raises UserError without an outcome."""
    counts = [each for each in counts_of_tasks(run, scorer).values() if each.n]
    known = f"{plural(len(counts), 'task')} with {plural(sum(each.n for each in counts), 'attempt')}"
    return TestPlan(str(run.folder), known, tuple(plan_rows(counts)))


def _properties(over: OverTasks) -> tuple[str, str, str]:
    return f"{over.value:.6g}", f"{over.interval[0]:.6g}", f"{over.interval[1]:.6g}"


def _success(counts: Mapping[str, Counts], level: float = 0.95) -> OverTasks:
    hits = [hit for each in counts.values() for hit in [True] * each.k + [False] * (each.n - each.k)]
    share = clustered_share(hits, [task for task, each in counts.items() for _ in range(each.n)], level)
    assert share is not None
    return OverTasks(share.value, share.interval or wilson(share.k, share.n, level), share.clusters)


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
