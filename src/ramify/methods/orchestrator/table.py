"""The table of rewards: every worker on every task, several times, kept in a run; and what it says before anything is trained."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import AnyTasks, Task, TaskSet, task_set_of
from ramify.methods.orchestrator.algorithm import LEAST_REPEATS, by_group, cross_fitted, gain
from ramify.methods.orchestrator.pool import CallResult, ModelPool
from ramify.model.protocol import Sampling
from ramify.score.judge import Item, Judge, Judgement, judged, records
from ramify.stats.intervals import mean_t
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.lines import read_lines
from ramify.trace.message import Message
from ramify.trace.node import Finding, Node, Provenance, make_node
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
    run.add(*[provenance_of(pool, worker, settings) for worker in range(len(pool))])
    done = {
        (node.tree, node.data["worker"], node.index) for node in run.each(Node) if "worker" in node.data and node.stop != "failed"
    }
    wanted = [
        (task, w, k) for k in range(n) for task in tasks for w in range(len(pool)) if (task.id, pool.names[w], k) not in done
    ]
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


def provenance_of(pool: ModelPool, worker: int, settings: Sampling) -> Provenance:
    """Who said what a worker said."""
    identity = pool.models[worker].identity
    return Provenance(identity.name, identity.weights, {**settings.to_json(), "worker": pool.names[worker]}, pool.seed)


def about_call(pool: ModelPool, result: CallResult) -> dict[str, Any]:
    """What a run keeps of a call beside its text. ``seconds`` is left out where nothing was asked of a clock."""
    found: dict[str, Any] = {
        "worker": pool.names[result.worker],
        "usd": result.usd,
        "given_tokens": result.given,
        "sampled_tokens": result.sampled,
    }
    if result.failure:
        found["failure"] = {"kind": result.failure, "why": result.why[:300]}
    if result.dropped:
        found["dropped_characters"] = result.dropped
    return found


def keep_call(
    run: Run,
    task: Task,
    pool: ModelPool,
    settings: Sampling,
    repeat: int,
    result: CallResult,
    judge: Judge,
    found: Judgement | None,
) -> None:
    """Store a call and its score, whole."""
    with run.transaction():
        run.add_tree(task.id, {"id": task.id, "data": dict(task.data)})
        asked = make_node(task.id, root(run, task.id).id, 0, "user", prompt_of(task))
        reply = make_node(
            task.id,
            asked.id,
            1,
            "assistant",
            result.text,
            index=repeat,
            provenance=provenance_of(pool, result.worker, settings).hash,
            stop="failed" if result.failure else _stop(result),
            data=about_call(pool, result),
        )
        run.add(asked, reply, *([] if found is None else records(judge, reply.id, found)))


def _stop(result: CallResult) -> str:
    assert result.completion is not None
    return result.completion.stop


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


def make_table(rows: Iterable[tuple[str, str, float | None, float, str, str, str]]) -> RewardTable:
    """The table of (task, worker, reward or None, USD, failure, prompt, group).
    Raises UserError where there is nothing to compare."""
    cells: dict[tuple[str, str], list[tuple[float, float]]] = {}
    about: dict[str, tuple[str, str]] = {}
    failures: dict[str, Counter[str]] = {}
    for task, worker, reward, usd, failure, prompt, group in rows:
        about.setdefault(task, (prompt, group))
        failures.setdefault(worker, Counter())
        if reward is None:
            failures[worker][failure or "unscored"] += 1
        else:
            cells.setdefault((task, worker), []).append((reward, usd))
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
    return RewardTable(
        tasks,
        workers,
        rewards,
        usd_of,
        [failures[w] for w in workers],
        [about[t][0] for t in tasks],
        [about[t][1] for t in tasks],
    )


def table_of(run: Run, scorer: str | None = None) -> RewardTable:
    """The table of a run: of ``collect``, or any whose attempts at one task are of several models.
    Raises UserError where scorers differ and none is named."""
    scorers = sorted({name for name, _, given in run.scorers() if given})
    if scorer is None and len(scorers) > 1:
        raise UserError(f"{run.folder} has scores of {', '.join(scorers)}: name one with --scorer")
    if scorer is not None and scorer not in scorers:
        raise UserError(f"{run.folder} has no scores of '{scorer}'; it has those of {', '.join(scorers) or 'nobody'}")
    order = list(run.config.get("workers", []))
    tasks = {info.name: info.task for info in run.trees()}
    rows = []
    for score in run.scores(scorer=scorer):
        path = run.path(score.node)
        said = next((node for node, _ in reversed(path.segments) if node.provenance is not None), None)
        if said is None:
            continue
        worker = said.data.get("worker") or run.provenance(said.provenance or "").model
        rows.append((said.tree, str(worker), score.value, float(said.data.get("usd", 0.0)), "", said.index))
    for node in run.failed():
        if "worker" in node.data:
            rows.append(
                (
                    node.tree,
                    str(node.data["worker"]),
                    None,
                    0.0,
                    str(node.data.get("failure", {}).get("kind", "failed")),
                    node.index,
                )
            )
    rows.sort(key=lambda row: (order.index(row[1]) if row[1] in order else len(order), row[1], row[0], row[5]))
    made = []
    for tree, worker, value, usd, failure, _ in rows:
        data = tasks[tree].get("data") or {}
        made.append(
            (
                tree,
                worker,
                None if value is None else _reward(value, tree),
                usd,
                failure,
                str(data.get("prompt", "")),
                group_of(data),
            )
        )
    return make_table(made)


def _reward(value: float, where: str) -> float:
    if not 0 <= value <= 1:
        raise UserError(f"{where} has a reward of {value:g}; rewards lie between 0 and 1")
    return float(value)


def read_table(source: Path, scorer: str | None = None) -> RewardTable:
    """The table of a run, or of JSON lines with ``task``, ``worker``, ``reward`` (null of a failed call, with ``failure``) and
    optional ``usd``, ``group``, ``prompt``. Raises UserError naming file, line and field."""
    folder = run_folder(source)
    if folder is not None:
        with Run.open(folder) as run:
            return table_of(run, scorer)
    rows = []
    for number, row in read_lines(source):
        where = f"{source}:{number}"
        for name in ("task", "worker"):
            if not isinstance(row.get(name), str) or not row[name]:
                raise UserError(f"{where}: '{name}' must be text")
        reward, usd = row.get("reward"), row.get("usd", 0.0)
        for name, value in (("reward", reward), ("usd", usd)):
            if isinstance(value, bool) and name == "reward":
                continue
            if not (value is None and name == "reward") and (not isinstance(value, int | float) or not 0 <= value < float("inf")):
                raise UserError(f"{where}: '{name}' must be a number of 0 or more, not {str(value)[:40]}")
        failure = str(row.get("failure") or "")
        rows.append(
            (
                row["task"],
                row["worker"],
                None if reward is None else _reward(float(reward), where),
                float(usd),
                failure,
                str(row.get("prompt", "")),
                group_of(row),
            )
        )
    return make_table(rows)


# -- is routing worth it?


def headroom(table: RewardTable, seed: int = 0) -> dict[str, Any]:
    """Best single worker, random choice, what a perfect choice per task would get (cross-fitted), and whether routing is worth
    it: the 95 % interval of that gain over the best single worker lies above 0.

    With fewer than five repeats no oracle is reported (``worth`` is None): it would be luck.
    Raises UserError on fewer than two workers.
    """
    kept, tasks, rewards = table.whole()
    out = [table.workers[w] for w in range(len(table.workers)) if w not in kept]
    if len(kept) < 2 or len(tasks) < 2:
        what = f"{len(kept)} workers that answered on {len(tasks)} tasks" + (
            f" ({', '.join(out)} failed too often)" if out else ""
        )
        raise UserError(f"headroom compares 2 or more workers on 2 or more tasks, and there are {what}")
    means, groups = rewards.mean(axis=2), [table.groups[i] for i in tasks]
    names, best = [table.workers[w] for w in kept], int(means.mean(axis=0).argmax())
    workers = [
        {
            "worker": name,
            "mean": float(means[:, at].mean()),
            "interval": list(mean_t(means[:, at])),
            "against_best": None if at == best else gain(means[:, at], means[:, best]),
            "usd_a_call": _mean(table.usd[:, kept[at]]),
            "failures": dict(table.failures[kept[at]]),
        }
        for at, name in enumerate(names)
    ]
    found: dict[str, Any] = {
        "tasks": len(tasks),
        "tasks_left_out": len(table.tasks) - len(tasks),
        "repeats": rewards.shape[2],
        "workers": workers,
        "workers_left_out": out,
        "best_single": names[best],
        "random": float(means.mean()),
        "oracle": None,
        "gain": None,
        "groups": None,
        "within_groups": None,
        "worth": None,
    }
    single: np.ndarray | None = None
    if rewards.shape[2] >= LEAST_REPEATS:
        oracle, single = cross_fitted(rewards, seed)
        found |= {"oracle": float(oracle.mean()), "gain": gain(oracle, single)}
        found["worth"] = bool(found["gain"]["interval"][0] > 0)
    if len(set(groups)) > 1:
        grouped = by_group(rewards, groups, seed)
        found["groups"] = {"value": float(grouped.mean()), "gain": gain(grouped, means[:, best])}
        if rewards.shape[2] >= LEAST_REPEATS:
            found["within_groups"] = gain(oracle, grouped)
    return found | {"says": _says(found)}


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _says(found: dict[str, Any]) -> str:
    best = found["best_single"]
    if found["worth"] is None:
        return (
            f"undecided: every worker needs {LEAST_REPEATS} repeats or more on a task, and there are {found['repeats']}; until "
            f"then use '{best}'"
        )
    low, high = found["gain"]["interval"]
    amount = f"{found['gain']['value']:+.3f} [{low:+.3f}, {high:+.3f}] over '{best}'"
    if not found["worth"]:
        return f"routing is not worth it here: a perfect choice per task gains {amount}; use '{best}'"
    within = found["within_groups"]
    more = (
        ""
        if within is None
        else "; within groups there is "
        + ("nothing to gain" if within["tie"] or within["value"] <= 0 else f"{within['value']:+.3f} more")
    )
    return f"routing is worth it: a perfect choice per task gains {amount}{more}"


def finding_of(found: dict[str, Any]) -> Finding:
    """The headroom as a finding of the run that it is about."""
    action = "ramify orchestrator train-router" if found["worth"] else f"use '{found['best_single']}'"
    value = None if found["gain"] is None else found["gain"]["value"]
    return Finding("headroom", "orchestrator headroom", found["says"], action=action, value=value, unit="reward", evidence=found)


def subset(table: RewardTable, rows: Sequence[int]) -> RewardTable:
    """The table of some of its tasks."""
    at = list(rows)
    return replace(
        table, tasks=[table.tasks[i] for i in at], rewards=table.rewards[at], usd=table.usd[at],
        prompts=[table.prompts[i] for i in at], groups=[table.groups[i] for i in at],
    )  # fmt: skip
