"""The table of rewards: every worker on every task, several times, kept in a run; and what it says before anything is trained."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import AnyTasks, Task, TaskSet, task_set_of
from ramify.methods.orchestrator.algorithm import LEAST_REPEATS, RoutingGain, by_group, cross_fitted, gain
from ramify.methods.orchestrator.kept import CallNote, call_note, judged_as, provenance_of
from ramify.methods.orchestrator.pool import CallResult, ModelPool
from ramify.model.protocol import Sampling
from ramify.render.result import CALL, Result, Section, table
from ramify.score.judge import Item, Judge, Judgement, judged, records
from ramify.stats.intervals import mean_t
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.lines import read_rows
from ramify.trace.message import Message
from ramify.trace.node import EVAL, AttemptRecord, Finding, Node, make_node
from ramify.trace.sources import run_folder

KIND = "orchestrator collect"
GROUP = ("group", "domain", "category", "subject")
"""Fields of a task that may name its group; the first that is there counts."""


def prompt_of(task: Task) -> str:
    """What a task asks. Raises UserError where it has no ``prompt``."""
    text = task.data.get("prompt", task.data.get("question"))
    if not isinstance(text, str) or not text:
        raise UserError(f"task '{task.id}' has no text 'prompt'")
    return text


def group_of(data: Any) -> str:
    """The group of a task, "" without one."""
    return next((str(data[name]) for name in GROUP if data.get(name) is not None), "")


async def reward_of(judge: Judge, task: Task, text: str) -> Judgement:
    """A judge's word on an answer to ``task``. Raises UserError on a reward outside 0 to 1."""
    (found,) = await judged(judge, [Item(text, task.id, prompt_of(task), task.data)])
    if found.value is not None and not 0 <= found.value <= 1:
        raise UserError(f"the judge '{judge.name}' gave {float(found.value):g} on task '{task.id}'; rewards lie between 0 and 1")
    return found


# -- collecting


async def collect_into(
    run: Run,
    pool: ModelPool,
    tasks: TaskSet,
    judge: Judge,
    n: int,
    settings: Sampling,
    budget: Budget,
    progress: Progress = SILENT,
) -> None:
    """Ask every worker every task ``n`` times, what is not in the run yet; each call is committed with its score. A call that
    failed has no reward, and the same command tries it again. What is to be asked of a worker that is down waits until the others
    are done and it may be asked again; where it is still down then, its calls fail at once.
    Raises BudgetSpentError, and UserError as :func:`reward_of`."""
    who = [provenance_of(pool, worker, settings) for worker in range(len(pool))]
    run.add(*who)
    done = {(one.tree, one.provenance, one.index) for one in run.attempts(purpose=EVAL) if one.failure is None}
    wanted = [(task, w, k) for k in range(n) for task in tasks for w in range(len(pool)) if (task.id, who[w].hash, k) not in done]
    total, failed = n * len(tasks) * len(pool), 0
    progress.begin(total, total - len(wanted), "", "calls")
    gate, ended = asyncio.Semaphore(16), total - len(wanted)

    async def one(task: Task, worker: int, repeat: int) -> None:
        nonlocal ended, failed
        async with gate:
            if (why := pool.rests[worker].why) and not last:
                later.append((task, worker, repeat))
                return
            result = (
                CallResult(worker, None, "down", why)
                if why
                else await pool.call(
                    worker,
                    [Message("user", prompt_of(task))],
                    settings,
                    ("collect", task.id, worker),
                    budget=budget,
                    index=repeat,
                )
            )
            found = None if result.failure else await reward_of(judge, task, result.text)
        keep_call(run, task, pool, settings, repeat, result, judge, found)
        ended, failed = ended + 1, failed + bool(result.failure)
        progress.at(ended, f"{failed} failed" if failed else "")

    async def all_of(cells: Sequence[tuple[Task, int, int]]) -> None:
        for at in range(0, len(cells), 64):
            try:
                async with asyncio.TaskGroup() as group:
                    for cell in cells[at : at + 64]:
                        group.create_task(one(*cell))
            except ExceptionGroup as failed_tasks:  # what the first said; the others were cancelled
                raise failed_tasks.exceptions[0] from None

    later: list[tuple[Task, int, int]] = []
    last = False
    await all_of(wanted)
    if later:
        last, down = True, sorted({worker for _, worker, _ in later})
        wait = max(pool.rests[worker].left for worker in down)
        progress.at(ended, f"{', '.join(pool.names[worker] for worker in down)} down: waiting {wait:.0f} s")
        await asyncio.sleep(wait)
        first = [next(cell for cell in later if cell[1] == worker) for worker in down]  # finds out whether it is back
        await all_of(first)
        await all_of([cell for cell in later if cell not in first])


def keep_call(
    run: Run, task: Task, pool: ModelPool, settings: Sampling, repeat: int, result: CallResult, judge: Judge,
    found: Judgement | None,
) -> None:  # fmt: skip
    """Store a call, which is an attempt at its task, and its score, whole."""
    note, who = CallNote.of(pool, result), provenance_of(pool, result.worker, settings).hash
    stop = "failed" if result.completion is None else result.completion.stop
    outcome, reward = judged_as(found)
    with run.transaction():
        run.add_tree(task.id, {"id": task.id, "data": dict(task.data)})
        asked = make_node(task.id, root(run, task.id).id, 0, "user", prompt_of(task))
        about = {"index": repeat, "provenance": who, "stop": stop, "data": note.to_data()}
        reply = make_node(task.id, asked.id, 1, "assistant", result.text, **about)
        failure = str(note.failure) if note.failure else None
        attempt = AttemptRecord(reply.id, task.id, None, 0, EVAL, repeat, outcome, reward, False, failure, who)
        run.add(asked, reply, attempt, *([] if found is None else records(judge, reply.id, found)))


def collect(
    pool: ModelPool,
    tasks: AnyTasks,
    judge: Judge,
    folder: Path,
    n: int = 8,
    settings: Sampling | None = None,
    budget: Budget | None = None,
) -> RewardTable:
    """As ``ramify orchestrator collect``: makes or continues the run in ``folder`` and returns its table."""
    from ramify.base.waiting import wait_for

    held, chosen = task_set_of(tasks), settings or Sampling(max_tokens=1024)

    async def work() -> RewardTable:
        with begin_collect(folder, pool, held, judge, n, chosen) as run:
            await collect_into(run, pool, held, judge, n, chosen, budget or Budget())
            return table_of(run)

    return wait_for(work())


def begin_collect(folder: Path, pool: ModelPool, tasks: TaskSet, judge: Judge, n: int, settings: Sampling) -> Run:
    """The run of a collection, new or continued. Raises UserError naming what differs."""
    decides = {"judge": judge.name, "seed": pool.seed, "settings": settings.to_json(), "workers": pool.names}
    return Run.begin(folder, KIND, decides, {"n": n}, {"pool": pool.identity, "tasks": tasks.hash, "judge": judge.identity})


# -- the table


@dataclass
class RewardTable:
    """Rewards (I, L, R) of L workers on I tasks with at most R repeats; NaN where there is none.
    ``usd`` and ``failures`` likewise."""

    tasks: list[str]
    workers: list[str]
    rewards: np.ndarray
    usd: np.ndarray
    failures: list[Counter[str]] = field(default_factory=list)
    """Failures of each worker, by kind."""
    prompts: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    @property
    def identity(self) -> str:
        """Hash of tasks, workers, prompts and rewards."""
        names = (*self.tasks, "workers", *self.workers, "prompts", *self.prompts)
        return stable_hash("rewards", *names, np.ascontiguousarray(self.rewards).tobytes())

    def means(self) -> np.ndarray:
        """Mean rewards (I, L); NaN where a worker has none."""
        with np.errstate(invalid="ignore"):
            counts = np.isfinite(self.rewards).sum(axis=2)
            found: np.ndarray = np.nansum(self.rewards, axis=2) / np.where(counts, counts, np.nan)
        return found

    def whole(self) -> tuple[list[int], list[int], np.ndarray]:
        """Workers kept, tasks kept, and their rewards without a hole: a worker that failed on more than half of the tasks is left
        out, then every task and repeat on which a kept worker failed."""
        counts = np.isfinite(self.rewards).sum(axis=2)
        repeats = int(counts.max(initial=0))
        kept = [w for w in range(len(self.workers)) if 2 * (counts[:, w] >= max(1, repeats - 1)).sum() >= len(self.tasks)]
        if not kept or not repeats:
            return kept, [], np.zeros((0, len(kept), 0))
        least = counts[:, kept].min(axis=1)
        best = max(range(1, repeats + 1), key=lambda r: (r * int((least >= r).sum()), r))
        tasks = np.flatnonzero(least >= best)
        rows = np.array([[[x for x in self.rewards[i, w] if np.isfinite(x)][:best] for w in kept] for i in tasks])
        return kept, tasks.tolist(), rows.reshape(len(tasks), len(kept), best)


Named = str | int | float | None
"""What may name a task's group."""


@dataclass(frozen=True)
class RewardRow:
    """One repeat of a worker at a task: a line of a file of rewards. ``reward`` is None of a call that failed."""

    task: str
    worker: str
    reward: float | None = None
    usd: float = 0.0
    failure: str | None = ""
    prompt: str = ""
    group: Named = None
    domain: Named = None
    category: Named = None
    subject: Named = None

    def __post_init__(self) -> None:
        if not self.task or not self.worker:
            raise ValueError("'task' and 'worker' must be text")
        if self.reward is not None and not 0 <= self.reward <= 1:
            raise ValueError(f"{self.task} has a reward of {self.reward:g}; rewards lie between 0 and 1")
        if not 0 <= self.usd < math.inf:
            raise ValueError("'usd' must be a number of 0 or more")


def make_table(rows: Iterable[RewardRow]) -> RewardTable:
    """The table of its rows. Raises UserError where there is nothing to compare."""
    cells: dict[tuple[str, str], list[tuple[float, float]]] = {}
    about: dict[str, tuple[str, str]] = {}
    failures: dict[str, Counter[str]] = {}
    for row in rows:
        about.setdefault(row.task, (row.prompt, group_of(vars(row))))
        failures.setdefault(row.worker, Counter())
        if row.reward is None:
            failures[row.worker][row.failure or "unscored"] += 1
        else:
            cells.setdefault((row.task, row.worker), []).append((row.reward, row.usd))
    tasks, workers = sorted(about), list(failures)
    if not cells:
        raise UserError(
            "there is no reward in it: run `ramify orchestrator collect`, or give a run with scores of several models"
        )
    repeats, place = max(map(len, cells.values())), {task: i for i, task in enumerate(tasks)}
    rewards, usd_of = np.full((2, len(tasks), len(workers), repeats), np.nan)
    for (task, worker), found in cells.items():
        cell = place[task], workers.index(worker), slice(len(found))
        rewards[cell], usd_of[cell] = zip(*found, strict=True)
    prompts, groups = [about[task][0] for task in tasks], [about[task][1] for task in tasks]
    return RewardTable(tasks, workers, rewards, usd_of, [failures[worker] for worker in workers], prompts, groups)


def table_of(run: Run, scorer: str | None = None) -> RewardTable:
    """The table of a run: of ``collect``, or any whose attempts at one task are of several models, forks from a task's first step
    included. A path on which several models replied is the reward of none, and left out.
    Raises UserError where scorers differ and none is named."""
    scorers = sorted({name for name, _, given in run.scorers() if given})
    if scorer is None and len(scorers) > 1:
        raise UserError(f"{run.folder} has scores of {', '.join(scorers)}: name one with --scorer")
    if scorer is not None and scorer not in scorers:
        raise UserError(f"{run.folder} has no scores of '{scorer}'; it has those of {', '.join(scorers) or 'nobody'}")
    tasks = {info.name: info.task.get("data") or {} for info in run.trees()}
    rows: list[tuple[int, RewardRow]] = []

    def worker_of(node: Node) -> str:
        note = call_note(node)
        return (note and note.worker) or run.provenance(node.provenance or "").model

    def add(leaf: str, reward: float | None, failed: bool = False) -> None:
        replies = [node for node, _ in run.path(leaf).segments if node.provenance is not None]
        names = {worker_of(node) for node in replies}
        if len(names) != 1:
            return
        said, worker = replies[-1], names.pop()
        note, data = call_note(said), tasks[said.tree]
        failure = "" if not failed else note.failure.kind if note and note.failure else "failed"
        usd, prompt = 0.0 if note is None or failed else note.usd, str(data.get("prompt", ""))
        rows.append((said.index, RewardRow(said.tree, worker, reward, usd, failure, prompt, group_of(data) or None)))

    try:
        for score in run.scores(scorer=scorer):
            add(score.node, score.value)
        for attempt in run.attempts():
            if attempt.failure is not None and not attempt.fork:
                add(attempt.leaf, None, failed=True)
    except ValueError as error:
        raise UserError(f"{run.folder}: {error}") from None
    order = list(run.config.get("workers", []))
    places = {row.worker: order.index(row.worker) if row.worker in order else len(order) for _, row in rows}
    rows.sort(key=lambda one: (places[one[1].worker], one[1].worker, one[1].task, one[0]))
    return make_table(row for _, row in rows)


def read_table(source: Path, scorer: str | None = None) -> RewardTable:
    """The table of a run, or of JSON lines with ``task``, ``worker``, ``reward`` (null of a failed call, with ``failure``) and
    optional ``usd``, ``group``, ``prompt``. Raises UserError naming file, line and field."""
    folder = run_folder(source)
    if folder is None:
        return make_table(read_rows(source, RewardRow))
    with Run.open(folder) as run:
        return table_of(run, scorer)


# -- is routing worth it?


@dataclass(frozen=True)
class WorkerRewards:
    """What a worker got in a table, None where no call was scored; ``failures`` by kind."""

    worker: str
    mean: float | None
    usd_a_call: float | None
    failures: Mapping[str, int]
    interval: tuple[float, float] | None = None
    against_best: RoutingGain | None = None
    """Beside the best single worker; None of that one."""


def worker_table(rows: Iterable[WorkerRewards]) -> Any:
    """Workers with their means, for a reader."""
    told = ((one.worker, one.mean, one.usd_a_call, ", ".join(f"{n} {kind}" for kind, n in one.failures.items())) for one in rows)
    return table(("worker", "mean reward", "USD a call", "failures"), told)


@dataclass(frozen=True)
class CollectedRewards(Result):
    """What a collection holds."""

    out: str
    tasks: int
    workers: tuple[WorkerRewards, ...]
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=CALL)

    @classmethod
    def of(cls, held: RewardTable, out: Path, tasks: int, spent: Mapping[str, Mapping[str, float]]) -> CollectedRewards:
        """Of the table of the run ``out``."""
        rows = zip(held.workers, held.means().T, np.moveaxis(held.usd, 1, 0), held.failures, strict=True)
        workers = tuple(WorkerRewards(name, mean_known(means), mean_known(usd), failed) for name, means, usd, failed in rows)
        return cls(str(out), tasks, workers, spent)

    def sections(self) -> Iterable[Section]:
        """Workers, and what to do next."""
        says = f"`ramify orchestrator show headroom {self.out}` says whether routing is worth it"
        yield Section.of("", worker_table(self.workers), says)


@dataclass(frozen=True)
class GroupChoice:
    """What the best worker of each group gets, and what that is over the best single worker."""

    value: float
    gain: RoutingGain


@dataclass(frozen=True)
class Headroom(Result):
    """Whether routing is worth it. ``oracle``, ``gain`` and ``worth`` are None on too few repeats, ``groups`` without groups."""

    tasks: int
    tasks_left_out: int
    repeats: int
    workers: tuple[WorkerRewards, ...]
    workers_left_out: tuple[str, ...]
    best_single: str
    random: float
    oracle: float | None = None
    gain: RoutingGain | None = None
    groups: GroupChoice | None = None
    within_groups: RoutingGain | None = None
    worth: bool | None = None
    says: str = ""

    def sections(self) -> Iterable[Section]:
        """Workers, who could answer, and what it comes to."""
        best = max(one.mean or 0.0 for one in self.workers)
        rows = [("random choice", self.random, ""), ("best single worker", best, "")]
        if self.groups is not None:
            rows.append(("best worker of each group", self.groups.value, str(self.groups.gain)))
        if self.oracle is not None:
            rows.append(("perfect choice, cross-fitted", self.oracle, str(self.gain)))
        left = f"left out for failed calls: {self.tasks_left_out} tasks; workers: {', '.join(self.workers_left_out) or 'none'}"
        yield Section.of(
            "",
            worker_table(self.workers),
            table(("who answers", "reward", "over the best single"), rows),
            self.says,
            left if self.tasks_left_out or self.workers_left_out else "",
        )

    def sentence(self) -> str:
        """Whether routing is worth it, in words."""
        if self.gain is None or self.gain.interval is None:
            return (
                f"undecided: every worker needs {LEAST_REPEATS} repeats or more on a task, and there are {self.repeats}; until "
                f"then use '{self.best_single}'"
            )
        low, high = self.gain.interval
        amount = f"{self.gain.value:+.3f} [{low:+.3f}, {high:+.3f}] over '{self.best_single}'"
        if not self.worth:
            return f"routing is not worth it here: a perfect choice per task gains {amount}; use '{self.best_single}'"
        within = self.within_groups
        nothing = within is not None and (within.tie or within.value <= 0)
        more = "" if within is None else "nothing to gain" if nothing else f"{within.value:+.3f} more"
        return f"routing is worth it: a perfect choice per task gains {amount}{more and '; within groups there is ' + more}"

    def finding(self, maker: str) -> Finding:
        """As a finding of the run that it is about."""
        action = "ramify orchestrator train router" if self.worth else f"use '{self.best_single}'"
        value = None if self.gain is None else self.gain.value
        return Finding("headroom", maker, self.says, action=action, value=value, unit="reward", evidence=self.to_keep())


def headroom(table: RewardTable, seed: int = 0) -> Headroom:
    """Best single worker, random choice, what a perfect choice per task would get (cross-fitted), and whether routing is worth
    it: the 95 % interval of that gain over the best single worker lies above 0.

    With fewer than five repeats no oracle is reported (``worth`` is None): it would be luck.
    Raises UserError on fewer than two workers.
    """
    kept, tasks, rewards = table.whole()
    out = tuple(name for at, name in enumerate(table.workers) if at not in kept)
    if len(kept) < 2 or len(tasks) < 2:
        what = f"{len(kept)} workers that answered on {len(tasks)} tasks" + (
            f" ({', '.join(out)} failed too often)" if out else ""
        )
        raise UserError(f"headroom compares 2 or more workers on 2 or more tasks, and there are {what}")
    means, groups = rewards.mean(axis=2), [table.groups[i] for i in tasks]
    names, best = [table.workers[w] for w in kept], int(means.mean(axis=0).argmax())
    workers = tuple(
        WorkerRewards(
            name,
            float(means[:, at].mean()),
            mean_known(table.usd[:, kept[at]]),
            dict(table.failures[kept[at]]),
            mean_t(means[:, at]),
            None if at == best else gain(means[:, at], means[:, best]),
        )
        for at, name in enumerate(names)
    )
    left, repeats = len(table.tasks) - len(tasks), rewards.shape[2]
    found = Headroom(len(tasks), left, repeats, workers, out, names[best], float(means.mean()))
    grouped = by_group(rewards, groups, seed) if len(set(groups)) > 1 else None
    if grouped is not None:
        found = replace(found, groups=GroupChoice(float(grouped.mean()), gain(grouped, means[:, best])))
    if repeats >= LEAST_REPEATS:
        oracle, single = cross_fitted(rewards, seed)
        over = gain(oracle, single)
        within = None if grouped is None else gain(oracle, grouped)
        worth = over.interval is not None and over.interval[0] > 0
        found = replace(found, oracle=float(oracle.mean()), gain=over, worth=worth, within_groups=within)
    return replace(found, says=found.sentence())


def mean_known(values: np.ndarray) -> float | None:
    """The mean of what is a number, None where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def subset(table: RewardTable, rows: Sequence[int]) -> RewardTable:
    """The table of some of its tasks."""
    at = list(rows)
    return replace(
        table, tasks=[table.tasks[i] for i in at], rewards=table.rewards[at], usd=table.usd[at],
        prompts=[table.prompts[i] for i in at], groups=[table.groups[i] for i in at],
    )  # fmt: skip
