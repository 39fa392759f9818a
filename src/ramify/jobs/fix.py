"""Edits that make an agent better: screened at the step that lost an attempt, confirmed by whole attempts at tasks that the
screening never saw.

Every candidate is an edit of what the agent is shown from a step on. At the step all of them are played against one control that
nothing changes; those that do better there are played from the beginning of other tasks, beside as many unedited attempts from
the same beginning, so that neither playing again nor the task is the effect. Screening and confirmation share no sample, and the
chance of accepting any edit that changes nothing is at most the level, over all that were confirmed and all looks at them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.jobs.why.findings import found
from ramify.jobs.why.parting import judged
from ramify.render.numbers import p_value, points, points_interval
from ramify.render.result import Result, Section, Verbatim, table
from ramify.rollout.attempts import Attempt
from ramify.rollout.edits import check_edit
from ramify.rollout.fork import compare
from ramify.rollout.run import Episodes
from ramify.rollout.stored import WhoPlays, episodes_in, task_of
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow
from ramify.stats.repeats import VersionsCompared, compare_versions
from ramify.trace.db import Run
from ramify.trace.node import Node
from ramify.trace.outcome import Decider

PROMISING = 0.5
"""A candidate is confirmed where it did better at the step, and its two-sided p there is at most this: about one in five of those
that change nothing pass."""
CANDIDATES = ("rule", "insert")
"""Edits that mean the same at every task. An edit of ``history`` changes one conversation, and ``append`` one reply."""


@dataclass(frozen=True, slots=True)
class FixQuestion:
    """How many attempts are played, and how sure the answer is."""

    n: int = 16
    """Continuations of the step for each candidate and for the control."""
    tasks: int = 8
    """Other tasks at most."""
    attempts: int = 8
    """Whole attempts at each of them at most, edited and unedited each."""
    level: float = 0.05
    """Chance of accepting any candidate that changes nothing."""

    @property
    def looks(self) -> tuple[int, ...]:
        """Attempts at each task at which the confirmation is looked at."""
        return tuple(dict.fromkeys(max(1, round(self.attempts * share)) for share in (0.5, 1.0)))

    def most(self, candidates: int, tasks: int) -> int:
        """Attempts that are played at most."""
        return (candidates + 1) * (self.n + tasks * self.attempts)


@dataclass(frozen=True, slots=True)
class ConfirmedTask:
    """Whole attempts at one task."""

    task: str
    unedited: Counts
    edited: Counts
    p_corrected: float
    """Fisher, over the tasks (Holm)."""

    @property
    def verdict(self) -> str:
        """better, worse, or the same: what these attempts show, at 5 % over all tasks."""
        if self.p_corrected > 0.05:
            return "same"
        return "better" if self.edited.rate > self.unedited.rate else "worse"


@dataclass(frozen=True, slots=True)
class ConfirmedFix:
    """What whole attempts said of one candidate."""

    name: str
    accepted: bool
    difference: float
    """Mean success with it minus without it, each task with equal weight."""
    interval: tuple[float, float] | None
    """Over tasks; None of one task."""
    p: float
    """Exact within tasks, at the last look."""
    level: float
    """What ``p`` must not exceed."""
    tasks: tuple[ConfirmedTask, ...]


@dataclass(frozen=True)
class Fixes(Result):
    """Which edits made the agent better."""

    run: str
    node: str
    """The step at which they were screened."""
    task: str
    screened: tuple[EvidenceRow, ...]
    confirmed: tuple[ConfirmedFix, ...]
    edits: Mapping[str, Mapping[str, Any]]
    diffs: Mapping[str, str]
    """What each changes in the prompt of the step, as a unified diff."""
    attempts: int
    failed: int
    """Attempts that an infrastructure failure ended, which count as neither."""
    other: bool = True
    """Whether the whole attempts were at other tasks than the step's, which a run with one task does not hold."""
    wrote: str = ""
    """The file that holds the accepted edit."""

    @property
    def accepted(self) -> str | None:
        """The candidate that helped most of those accepted."""
        able = [fix for fix in self.confirmed if fix.accepted]
        return max(able, key=lambda fix: fix.difference).name if able else None

    def sections(self) -> Iterable[Section]:
        """The answer, the screening, what whole attempts said at each task, and the accepted edit."""
        best = next((fix for fix in self.confirmed if fix.name == self.accepted), None)
        tasks, at = ("other task", "other tasks") if self.other else ("task", "the same task")
        over = plural(0 if not self.confirmed else len(self.confirmed[0].tasks), tasks)
        if best is not None:
            said = f"{best.name} helps: {points(best.difference)} points over {over}{_ends(best)}, p = {p_value(best.p)}."
        elif self.confirmed:
            said = f"No edit is accepted: none was shown to help over {over}."
        else:
            said = "No edit is accepted: none did better at the step than leaving it as it is."
        told = f"{plural(self.attempts, 'attempt')} played" + (
            f", {self.failed} failed and count as neither" if self.failed else ""
        )
        yield Section.of("", said, f"Screened at step {self.node[:12]} of {self.task}; {told}.")
        base = self.screened[0].share - self.screened[0].difference if self.screened else 0.0
        rows = [
            (row.intervention, f"{row.hits} of {row.n}", points(row.difference), points_interval(row.difference_interval))
            for row in self.screened
        ]
        title = f"at the step, where {base:.0%} of the unedited succeed"
        yield Section.of(title, table(("edit", "succeeded", "points", "95 % interval"), rows))
        for fix in self.confirmed:
            lines = [
                (each.task, f"{each.unedited.k} of {each.unedited.n}", f"{each.edited.k} of {each.edited.n}", each.verdict)
                for each in fix.tasks
            ]
            verdict = "accepted" if fix.accepted else "not accepted"
            wanted = f"p = {p_value(fix.p)}, wanted at most {p_value(fix.level)}"
            says = f"{points(fix.difference)} points{_ends(fix)}, {wanted}: {verdict}."
            head = ("task", "unedited", "edited", "")
            yield Section.of(f"{fix.name}: whole attempts at {at}", table(head, lines), says)
        if self.accepted is not None:
            kept = f"Written to {self.wrote}." if self.wrote else "Nothing was written: --write FILE keeps the edit."
            yield Section.of("the edit", Verbatim(self.diffs[self.accepted], "diff"), kept)


def _ends(fix: ConfirmedFix) -> str:
    return f", 95 % interval over tasks {points_interval(fix.interval)}" if fix.interval else ""


def check_candidates(edits: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Candidates as read from files. Raises UserError where one does not mean the same at every task."""
    checked = dict[str, dict[str, Any]]()
    for name, edit in edits.items():
        candidate = check_edit(edit)
        if candidate is None or next(iter(candidate)) not in CANDIDATES:
            raise UserError(f"{name}: a candidate is an edit {' or '.join(CANDIDATES)}, which means the same at every task")
        twin = next((other for other, edit in checked.items() if edit == candidate), None)
        if twin is not None:
            raise UserError(f"{twin} and {name} are the same candidate")
        checked[name] = candidate
    if not checked:
        raise UserError("there is no candidate: name one with --try FILE or --rule TEXT")
    return checked


def place_of(run: Run, where: str) -> Node:
    """The reply that is fixed: ``where``, else the one that ``ramify why`` named. Raises UserError without one."""
    if where:
        node = run.node(run.find(where))
        if node.role != "assistant":
            raise UserError(f"node {node.id[:12]} is a {node.role} message; name a reply of the agent")
        return node
    answers = found(run)
    named = [why.node for why in answers if why.node is not None and not why.success]
    if not named:
        if answers:
            raise UserError(f"`ramify why` named no step of {run.folder} that lost an attempt: name a NODE, a reply of the agent")
        raise UserError(
            f"no step of {run.folder} was named yet: ask `ramify why {shlex.quote(str(run.folder))}` first, or name a NODE"
        )
    return run.node(named[-1])


def beginnings(run: Run, deciding: Decider, step: Node, most: int) -> list[tuple[str, Node]]:
    """Other tasks of the run, each with the node after which the agent speaks first; of a run with one task that one."""
    tasks = judged(run, deciding)
    mine = {view.cohort for views in tasks.values() for view in views if view.info.name == step.tree}
    others = {task: views for task, views in tasks.items() if task not in mine} or tasks
    return [
        (task, views[0].steps[0].observed[-1].nodes[-1])
        for task, views in list(others.items())[:most]
        if views[0].steps[0].observed
    ]


class _Playing:
    """Plays candidates against a control, and counts."""

    def __init__(self, run: Run, who: WhoPlays, edits: Mapping[str, Mapping[str, Any]], on_attempt: Callable[[Attempt], object]):
        self.run, self.who, self.edits, self.told = run, who, edits, on_attempt
        self.attempts = self.failed = 0

    def at(
        self, node: Node, names: Sequence[str], n: int, key: str
    ) -> tuple[Counts, dict[str, tuple[Counts, str]], list[EvidenceRow]]:
        """``n`` continuations of ``node`` without an edit and with each: counts, and what it changes in the prompt."""
        episodes, task = episodes_in(self.run, node, self.who)
        with self._counted(episodes):
            made = compare(episodes, node.tree, task, node.id, {name: self.edits[name] for name in names}, None, n, key=key)
            forks, rows = wait_for(made)
        assert forks[0].control is not None
        return (
            forks[0].control.counts,
            {name: (fork.arm.counts, fork.diff) for name, fork in zip(names, forks, strict=True)},
            rows,
        )

    @contextmanager
    def _counted(self, episodes: Episodes) -> Any:
        def on_attempt(attempt: Attempt) -> None:
            self.attempts += 1
            self.failed += attempt.outcome is None
            self.told(attempt)

        episodes.on_attempt = on_attempt
        with episodes.committing():
            yield


def fix(
    run: Run,
    edits: Mapping[str, Mapping[str, Any]],
    deciding: Decider,
    where: str = "",
    question: FixQuestion | None = None,
    who: WhoPlays | None = None,
    on_attempt: Callable[[Attempt], object] = lambda attempt: None,
) -> Fixes:
    """Screen and confirm ``edits`` (name -> edit, see :func:`check_candidates`) in a run that is open for writing. What an
    earlier call played is read. Raises UserError where no step is known or the agent cannot be played."""
    question, who = question or FixQuestion(), who or WhoPlays()
    step = place_of(run, where)
    tasks = beginnings(run, deciding, step, question.tasks)
    playing = _Playing(run, who, edits, on_attempt)
    key = f"fix/{json_hash([step.id, {name: dict(edit) for name, edit in edits.items()}])}"
    base, done, rows = playing.at(step, list(edits), question.n, f"{key}/screen")
    better = [row.intervention for row in rows if row.difference > 0 and row.p <= PROMISING]
    caveats = []
    if not base.n:
        caveats.append("no unedited continuation of the step has an outcome")
    same = {task_of(run, step.tree)[0].id} & {task_of(run, node.tree)[0].id for _, node in tasks}
    if better and same:
        caveats.append("the run holds one task alone: what is accepted helps there, and nothing is known of others")
    return Fixes(
        run=str(run.folder),
        node=step.id,
        task=step.tree,
        screened=tuple(rows),
        confirmed=tuple(_confirmed(playing, better, tasks, question, key)) if better and tasks else (),
        edits=edits,
        diffs={name: diff for name, (_, diff) in done.items()},
        attempts=playing.attempts,
        failed=playing.failed,
        other=not same,
        caveats=tuple(caveats),
    )


def _confirmed(
    playing: _Playing, names: Sequence[str], tasks: Sequence[tuple[str, Node]], question: FixQuestion, key: str
) -> Iterable[ConfirmedFix]:
    """Whole attempts in looks; a candidate that is accepted at one is played no further."""
    level = question.level / len(names) / len(question.looks)
    base: dict[str, Counts] = {}
    counts: dict[str, dict[str, Counts]] = {name: {} for name in names}
    open_, before = list(names), 0
    results: dict[str, VersionsCompared] = {}
    beside: dict[str, dict[str, Counts]] = {}
    for look in question.looks:
        for task, node in tasks:
            control, done, _ = playing.at(node, open_, look - before, f"{key}/{task}/{question.attempts}/{look}")
            base[task] = base.get(task, Counts(0, 0)) + control
            for name in open_:
                counts[name][task] = counts[name].get(task, Counts(0, 0)) + done[name][0]
        before = look
        for name in list(open_):
            if any(each.n for each in counts[name].values()) and any(each.n for each in base.values()):
                results[name], beside[name] = compare_versions(base, counts[name]), dict(base)
                if results[name].p <= level and results[name].difference > 0:
                    open_.remove(name)
        if not open_:
            break
    for name, versus in results.items():
        yield ConfirmedFix(
            name=name,
            accepted=versus.p <= level and versus.difference > 0,
            difference=versus.difference,
            interval=versus.interval,
            p=versus.p,
            level=level,
            tasks=tuple(
                ConfirmedTask(task, beside[name][task], counts[name][task], row.p_corrected) for task, row in versus.tasks.items()
            ),
        )
