"""Edits that make an agent better: screened at the step that lost an attempt, confirmed by whole attempts at tasks that the
screening never saw.

At the step all candidates are played against one control that nothing changes; those that do better there are played from the
beginning of other tasks, beside as many unedited attempts from the same beginning, so that neither playing again nor the task
is the effect. A file that the agent had not been shown by then has nothing to be screened, and is played whole at once. Screening
and confirmation share no sample, and the chance of accepting any edit that changes nothing is at most the level, over all that
were confirmed and all looks at them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from ramify.base import codec
from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.env.protocol import EditsFiles, Task
from ramify.jobs.fix.answer import ConfirmedFix, ConfirmedTask, Fixes
from ramify.jobs.fix.candidates import FILE, Edit, at_the_step, check_player, is_file
from ramify.jobs.why.findings import found
from ramify.jobs.why.parting import judged
from ramify.rollout.attempts import Attempt
from ramify.rollout.commands import commands
from ramify.rollout.fork import compare, diff_of
from ramify.rollout.run import Episodes
from ramify.rollout.stored import WhoPlays, episodes_in, task_of
from ramify.score.judge import IS_RIGHT
from ramify.score.target import StepTarget, read_target
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow, evidence
from ramify.stats.repeats import VersionsCompared, compare_versions
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node
from ramify.trace.outcome import Decider

KIND = "fix"
"""Kind of the journal entries that declare what is tried, and how it is counted, before any sample."""
SUCCESS = "success"
PROMISING = 0.5
"""A candidate is confirmed where it did better at the step, and its two-sided p there is at most this: about one in five of those
that change nothing pass."""
EACH, OVERALL = 8, 32
"""Whole attempts at each task by default, and over all of them where these are few."""


@dataclass(frozen=True, slots=True)
class FixQuestion:
    """How many attempts are played, what counts, and how sure the answer is."""

    n: int = 16
    """Continuations of the step for each candidate and for the control."""
    tasks: int = 8
    """Other tasks at most."""
    attempts: int | None = None
    """Whole attempts at each of them at most, edited and unedited each; None: :data:`EACH`, and at few tasks more."""
    level: float = 0.05
    """Chance of accepting any candidate that changes nothing."""
    target: str | None = None
    """What counts instead of success (:func:`wanted`)."""

    def each(self, tasks: int) -> int:
        """Attempts at each of ``tasks`` at most."""
        return max(EACH, math.ceil(OVERALL / max(1, tasks))) if self.attempts is None else self.attempts

    def looks(self, tasks: int) -> tuple[int, ...]:
        """Attempts at each of ``tasks`` at which the confirmation is looked at."""
        return tuple(dict.fromkeys(max(1, round(self.each(tasks) * share)) for share in (0.25, 0.5, 1.0)))

    def most(self, edits: Mapping[str, Edit], tasks: int, screens: bool) -> int:
        """Attempts that are played at most."""
        controls = len({is_file(edit) for edit in edits.values()})
        return (len(edits) + 1) * self.n * screens + (len(edits) + controls) * tasks * self.each(tasks)

    def needs(self, edits: Mapping[str, Edit], run: Run, deciding: Decider, where: str) -> tuple[list[tuple[str, Node]], int]:
        """The :func:`beginnings` of a run that it is confirmed at, and the attempts that are played at most."""
        step = steps_needed(edits, run, where)
        tasks = beginnings(run, deciding, step, self.tasks)
        return tasks, self.most(edits, len(tasks), step is not None)


def wanted(spec: str | None) -> StepTarget | None:
    """What is counted: ``calls:TOOL`` or ``says:REGEX`` in a reply of the agent, or a judge of a reply
    (:func:`ramify.score.judge.find_judge`); None for success. Raises UserError."""
    if spec is None or spec == SUCCESS:
        return None
    if spec == "same":
        raise UserError("--target same is the step as it was: a fix needs calls:TOOL, says:REGEX, a judge, or success")
    return read_target(spec, Message("assistant", ""), IS_RIGHT)


def place_of(run: Run, where: str) -> Node:
    """The reply that is fixed: ``where``, else the one that ``ramify why`` named. Raises UserError without one."""
    if where:
        node = run.node(run.find(where))
        if node.role != "assistant":
            raise UserError(f"node {node.id[:12]} is a {node.role} message; name a reply of the agent")
        return node
    named = _named(run)
    if not named:
        if found(run):
            raise UserError(f"`ramify why` named no step of {run.folder} that lost an attempt: name a NODE, a reply of the agent")
        raise UserError(f"no step of {run.folder} was named yet: ask `{commands(run).why()}` first, or name a NODE")
    return run.node(named[-1])


def _named(run: Run) -> list[str]:
    """Steps that lost an attempt, as ``ramify why`` named them."""
    return [why.node for why in found(run) if why.node is not None and not why.success]


def beginnings(run: Run, deciding: Decider, step: Node | None, most: int) -> list[tuple[str, Node]]:
    """Other tasks of the run than the step's, each with the node after which the agent speaks first; of a run with one task that
    one."""
    tasks = judged(run, deciding)
    mine = {view.cohort for views in tasks.values() for view in views if step is not None and view.info.name == step.tree}
    others = {task: views for task, views in tasks.items() if task not in mine} or tasks
    return [
        (task, views[0].steps[0].observed[-1].nodes[-1])
        for task, views in list(others.items())[:most]
        if views[0].steps[0].observed
    ]


def steps_needed(edits: Mapping[str, Edit], run: Run, where: str) -> Node | None:
    """The step at which candidates are screened; None where nothing needs one: all are of files, and none was named."""
    if not where and all(map(is_file, edits.values())) and not _named(run):
        return None
    return place_of(run, where)


@dataclass
class _Playing:
    """Plays candidates against a control, and counts."""

    run: Run
    who: WhoPlays
    edits: Mapping[str, Edit]
    target: StepTarget | None
    told: Callable[[Attempt], object]
    attempts: int = 0
    failed: int = 0
    broken: str = "(none)"
    """Why the first failed."""
    diffs: dict[str, str] = field(default_factory=dict)
    """What each changes in the prompt of the step, or in its file."""
    opened: dict[tuple[str, str | None], tuple[Episodes, Task]] = field(default_factory=dict)

    def _episodes(self, node: Node) -> tuple[Episodes, Task]:
        """What continues from a node; of a tree and an agent once, since a local model is loaded with it."""
        key = (node.tree, node.provenance)
        if key not in self.opened:
            self.opened[key] = episodes_in(self.run, node, self.who)
        return self.opened[key]

    def plays(self, steps: Sequence[Node], tasks: Sequence[tuple[str, Node]]) -> dict[str, Any]:
        """Where attempts begin, and who plays them: what another agent or environment did says nothing of this one."""
        nodes = [*steps, *(node for _, node in tasks)]
        agents = {self._episodes(node)[0].provenance.hash for node in nodes}
        env = self.who.env if isinstance(self.who.env, str) else self.run.config.get("env") if self.who.env is None else None
        return {"at": [node.id for node in nodes], "agents": sorted(agents), "env": env}

    def screen(self, node: Node, names: Sequence[str], n: int, key: str) -> list[EvidenceRow]:
        """``n`` continuations of the step without an edit and with each; with a target they pause after the reply."""
        base, done = self._at(node, names, n, key, turns=None if self.target is None else 1)
        return evidence((base.k, base.n), {name: (counts.k, counts.n) for name, counts in done.items()})

    def check(self, step: Node | None, tasks: Sequence[Node]) -> list[str]:
        """Candidates that can be screened at ``step``: all but files that the agent had not been shown by then. Raises UserError
        where another one does not go with the step, or with the beginning of a task."""
        screens = [] if step is None else [name for name in self.edits if self._goes(name, step)]
        for node in tasks:
            for name, edit in self.edits.items():
                if not is_file(edit):
                    self._goes(name, node)
        return screens

    def _goes(self, name: str, node: Node) -> bool:
        edit = at_the_step(self.edits[name])
        if edit is None:
            return False
        try:
            self.diffs.setdefault(name, diff_of(self._episodes(node)[0], node, edit))
        except UserError as error:
            if is_file(self.edits[name]):
                return False
            raise UserError(f"{name}: {error}") from None
        return True

    def whole(self, node: Node, names: Sequence[str], done: int, n: int, key: str) -> dict[str, tuple[Counts, Counts]]:
        """Attempts from the first observation ``node`` up to number ``n``, of which ``done`` were counted: unedited and edited
        counts of each. Those of files begin anew, and so does their control."""
        counts: dict[str, tuple[Counts, Counts]] = {}
        forks = [name for name in names if not is_file(self.edits[name])]
        if forks:
            base, edited = self._at(node, forks, n - done, f"{key}/{n}")
            counts |= {name: (base, edited[name]) for name in forks}
        files = [name for name in names if is_file(self.edits[name])]
        if files:
            base, *played = self._anew(node, files, range(done, n), key)
            counts |= {name: (base, each) for name, each in zip(files, played, strict=True)}
        return counts

    def _at(
        self, node: Node, names: Sequence[str], n: int, key: str, turns: int | None = None
    ) -> tuple[Counts, dict[str, Counts]]:
        episodes, task = self._episodes(node)
        edits = {name: edit for name in names if (edit := at_the_step(self.edits[name])) is not None}
        with self._counted(episodes):
            forks, _ = wait_for(compare(episodes, node.tree, task, node.id, edits, None, n, key=key, turns=turns))
        assert forks[0].control is not None
        counted = [self._counts(arm.attempts, turns is not None) for arm in (forks[0].control, *(fork.arm for fork in forks))]
        return counted[0], dict(zip(names, counted[1:], strict=True))

    def _anew(self, node: Node, names: Sequence[str], indices: Iterable[int], key: str) -> list[Counts]:
        """Attempts that begin without a change, and with the text of each candidate in its file; those of a candidate are a tree
        of their own, whose task names what they begin with."""
        episodes, task = self._episodes(node)
        environment = episodes.environment
        assert isinstance(environment, EditsFiles)
        episodes.load(node.tree)
        begun: list[tuple[str, Task]] = [(node.tree, task)]
        for name in names:
            edit = self.edits[name][FILE]
            edited = environment.with_file(task, edit["path"], edit["text"])
            self.diffs[name] = environment.patch(edited)
            begun.append((node.tree + edited.id.removeprefix(task.id), edited))
        played: list[list[Attempt]] = [[] for _ in begun]
        purpose = f"{KIND} {json_hash(key)[:12]}"

        async def play() -> None:
            order = [(arm, index) for index in indices for arm in range(len(begun))]
            plays = (episodes.attempt(*begun[arm], index, purpose=purpose) for arm, index in order)
            for (arm, _), attempt in zip(order, await asyncio.gather(*plays), strict=True):
                played[arm].append(attempt)

        with self._counted(episodes):
            wait_for(play())
        return [self._counts(attempts, False) for attempts in played]

    def _counts(self, attempts: Sequence[Attempt], first: bool) -> Counts:
        """Attempts that succeeded; with a target those that do it: in their ``first`` reply, or in any (a judge: in the last)."""
        target = self.target
        if target is None:
            return Counts.of(attempt.outcome for attempt in attempts)

        async def holds(attempt: Attempt) -> bool | None:
            if attempt.failure is not None or not attempt.turns:
                return None
            last = target.judge is not None and not first
            turns = attempt.turns[:1] if first else attempt.turns[-1:] if last else attempt.turns
            answers = [await target.holds(turn.node.message, [self.run.node(str(turn.node.parent)).message]) for turn in turns]
            return None if None in answers else any(answers)

        async def every() -> list[bool | None]:
            return list(await asyncio.gather(*map(holds, attempts)))

        return Counts.of(wait_for(every()))

    @contextmanager
    def _counted(self, episodes: Episodes) -> Iterator[None]:
        def on_attempt(attempt: Attempt) -> None:
            self.attempts += 1
            if attempt.failure is not None:
                self.broken, self.failed = self.broken if self.failed else attempt.failure, self.failed + 1
            self.told(attempt)

        episodes.on_attempt = on_attempt
        with episodes.committing():
            yield


def fix(
    run: Run,
    edits: Mapping[str, Edit],
    deciding: Decider,
    where: str = "",
    question: FixQuestion | None = None,
    who: WhoPlays | None = None,
    on_attempt: Callable[[Attempt], object] = lambda attempt: None,
    proposed: tuple[int, int] = (0, 0),
) -> Fixes:
    """Screen and confirm ``edits`` (name -> edit, see :func:`ramify.jobs.fix.candidates.check_candidates`) in a run that is open
    for writing. What an earlier call played is read. ``proposed``: how many were proposed, and could not be read. Raises
    UserError where no step is known or the agent cannot be played, RamifyError where no whole attempt came to an outcome."""
    question, who = question or FixQuestion(), who or WhoPlays()
    target, step = wanted(question.target), steps_needed(edits, run, where)
    check_player(run, who)
    tasks = beginnings(run, deciding, step, question.tasks)
    if not tasks:
        raise UserError(f"{run.folder} holds no attempt that somebody judged, so there is no task at which an edit is confirmed")
    playing = _Playing(run, who, edits, target, on_attempt)
    screens = playing.check(step, [node for _, node in tasks])
    key, call = _declared(run, edits, question, target, step, playing.plays([step] if step is not None else [], tasks))
    known = _kept(run, call)
    if known is not None and not known.failed:
        return replace(known, run=str(run.folder), wrote="")
    rows = playing.screen(step, screens, question.n, f"{key}/screen") if step is not None and screens else []
    better = [row.intervention for row in rows if row.difference > 0 and row.p <= PROMISING]
    whole = [name for name in edits if name not in screens]
    same = step is not None and task_of(run, step.tree)[0].id in {task_of(run, node.tree)[0].id for _, node in tasks}
    confirmed = tuple(_confirmed(playing, [*better, *whole], tasks, question, key)) if better or whole else ()
    if (better or whole) and not confirmed:
        raise RamifyError(f"no whole attempt came to an outcome, so nothing is confirmed; the first failed at {playing.broken}")
    return Fixes(
        run=str(run.folder),
        node="" if step is None else step.id,
        task="" if step is None else step.tree,
        target=SUCCESS if target is None else target.name,
        screened=tuple(rows),
        unscreened=tuple(whole),
        confirmed=confirmed,
        edits=edits,
        diffs=playing.diffs,
        attempts=playing.attempts,
        failed=playing.failed,
        other=step is not None and not same,
        proposed=proposed[0],
        unread=proposed[1],
        call=call,
        caveats=tuple(_caveats(rows, whole, confirmed, step, len(tasks) == 1 and (same or step is None), call)),
    )


def _caveats(
    rows: Sequence[EvidenceRow], whole: Sequence[str], confirmed: Sequence[ConfirmedFix], step: Node | None, one: bool, call: int
) -> Iterable[str]:
    if rows and not any(row.n for row in rows):
        yield "no continuation of the step has an outcome"
    if whole and step is None:
        yield "no step was named, so nothing was screened: the candidates were played by whole attempts at once"
    elif whole:
        yield f"not shown to the agent before the step, so not screened there: {', '.join(whole)}"
    if confirmed and one:
        yield "the run holds one task alone: what is accepted helps there, and nothing is known of others"
    if call > 1:
        before = plural(call - 1, "call")
        yield f"{before} before this one tried other candidates, each with a level of its own: one more try is one more chance"


def _declared(
    run: Run, edits: Mapping[str, Edit], question: FixQuestion, target: StepTarget | None, step: Node | None, plays: object
) -> tuple[str, int]:
    """Store what is tried, by whom and where, and how it is counted, before anything is sampled: its key, and the number of the
    call."""
    declared = {
        "step": None if step is None else step.id,
        "candidates": {name: dict(edit) for name, edit in edits.items()},
        "target": question.target or SUCCESS,
        "counts": SUCCESS if target is None else target.identity,
        **{name: getattr(question, name) for name in ("n", "tasks", "attempts", "level")},
        "plays": plays,
    }
    key = f"{KIND}/{json_hash(declared)}"
    run.log(KIND, key, declared)
    run.commit()
    return key, 1 + sum(1 for _ in takewhile(lambda entry: entry.key != key, run.journal(KIND)))


def _kept(run: Run, call: int) -> Fixes | None:
    """What this call found before, where the run kept it."""
    for kept in run.results(f"{KIND} {'' if call == 1 else call}".rstrip()):
        with suppress(UserError):  # of a version that kept something else
            return codec.from_json(Fixes, kept.result)
    return None


def _confirmed(
    playing: _Playing, names: Sequence[str], tasks: Sequence[tuple[str, Node]], question: FixQuestion, key: str
) -> Iterable[ConfirmedFix]:
    """Whole attempts in looks; a candidate that is accepted at one, or not better there, is played no further."""
    looks = question.looks(len(tasks))
    level = question.level / len(names) / len(looks)
    none = Counts(0, 0)
    counts: dict[str, dict[str, tuple[Counts, Counts]]] = {name: {} for name in names}
    results: dict[str, VersionsCompared] = {}
    open_, before = list(names), 0
    for look in looks:
        for task, node in tasks:
            for name, (base, edited) in playing.whole(node, open_, before, look, f"{key}/{task}/{looks[-1]}").items():
                known = counts[name].get(task, (none, none))
                counts[name][task] = known[0] + base, known[1] + edited
        before = look
        for name in list(open_):
            unedited, changed = ({task: pair[side] for task, pair in counts[name].items()} for side in (0, 1))
            if any(pair[0].n and pair[1].n for pair in counts[name].values()):
                results[name] = compare_versions(unedited, changed)
                if results[name].p <= level or results[name].difference <= 0:
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
            tasks=tuple(ConfirmedTask(task, *counts[name][task], row.p_corrected) for task, row in versus.tasks.items()),
        )
