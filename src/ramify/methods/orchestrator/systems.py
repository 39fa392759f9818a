"""Systems that answer tasks, the simple ones a router or composer has to beat among them, and their honest comparison."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.env.protocol import Task, TaskSet
from ramify.methods.orchestrator.algorithm import STEPS, Workflow, gain
from ramify.methods.orchestrator.composer import Composer
from ramify.methods.orchestrator.conversation import Orchestrated, Orchestration, answer_with
from ramify.methods.orchestrator.pool import ModelPool
from ramify.methods.orchestrator.table import RewardTable, group_of, prompt_of, reward_of
from ramify.model.protocol import Sampling
from ramify.score.judge import Judge, plain, records
from ramify.stats.intervals import mean_t
from ramify.trace.db import Run
from ramify.trace.message import Message

if TYPE_CHECKING:
    from ramify.methods.orchestrator.router import TurnRouter

Answers = Callable[[Task, Orchestration], Awaitable[Orchestrated]]
MERGE = "Several answers to the question are above. Compare them and give the best complete answer."


@dataclass(frozen=True)
class NamedSystem:
    """A system by its name; ``answer`` works on a conversation that asks the task."""

    name: str
    answer: Answers


def allowed_of(chat: Orchestration) -> list[int]:
    """The workers that a conversation does not exclude, whether or not they are down."""
    return [at for at, ok in enumerate(chat.pool.available(chat.exclude)) if ok]


def single(pool: ModelPool, worker: int) -> NamedSystem:
    """One worker for everything."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        return chat.result(await _sure(chat, worker))

    return NamedSystem(f"single {pool.names[worker]}", answer)


async def _sure(chat: Orchestration, worker: int) -> Any:
    if not chat.available()[worker]:
        raise InfrastructureError("provider", f"'{chat.pool.names[worker]}' is excluded or down")
    call = await chat.ask(worker, chat.question(), 0, 0, "always this one")
    if call.result.failure:
        raise InfrastructureError("provider", call.result.why)
    return call


def at_random(pool: ModelPool, seed: int = 0) -> NamedSystem:
    """A worker at random for each task, of those that are not excluded."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        held = allowed_of(chat)
        return chat.result(await _sure(chat, held[int(generator(seed, "random", task.id).integers(len(held)))]))

    return NamedSystem("random", answer)


def oracle(pool: ModelPool, table: RewardTable) -> NamedSystem:
    """The worker that was best on each task in ``table``, whose samples are others: an oracle without the winner's curse."""
    means = np.nan_to_num(table.means(), nan=-1.0)
    known = [pool.index(name) for name in table.workers]

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        if task.id not in table.tasks:
            raise UserError(f"the table knows no task '{task.id}', so there is no oracle for it")
        own = dict(zip(known, means[table.tasks.index(task.id)], strict=True))
        return chat.result(await _sure(chat, max(allowed_of(chat), key=lambda at: (own.get(at, -1.0), -at))))

    return NamedSystem("oracle", answer)


def majority(pool: ModelPool) -> NamedSystem:
    """Every worker that may answers; the most frequent answer (up to case and spaces), of equals the earliest."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        calls = await asyncio.gather(
            *(chat.ask(w, chat.question(), 0, 0, "everyone votes") for w in np.flatnonzero(chat.available()).tolist())
        )
        said = [call for call in calls if not call.result.failure]
        if not said:
            raise InfrastructureError("provider", "every worker failed")
        votes = Counter(plain(call.result.text) for call in said)
        return chat.result(max(said, key=lambda call: votes[plain(call.result.text)]))

    return NamedSystem("majority", answer)


def mixture(pool: ModelPool, aggregator: int, allowed: Sequence[bool] | None = None) -> NamedSystem:
    """Mixture of agents, fixed: every worker (of those ``allowed``) answers in isolation,
    then ``aggregator`` sees all and merges."""
    asked = tuple(at for at in range(len(pool)) if allowed is None or allowed[at])
    tasks = (*["Answer the question."] * len(asked), MERGE)
    plan = Workflow(tasks, (*asked, aggregator), (*[()] * len(asked), tuple(range(len(asked)))))

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        return chat.result(
            await Composer(pool.models[aggregator], pool, fallback=aggregator).execute(chat, plan), [plan.to_json()]
        )

    return NamedSystem("mixture of agents", answer)


def routed(router: TurnRouter, turns: int = STEPS) -> NamedSystem:
    """The router: one turn, or with roles a loop of turns."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        return await answer_with(chat, router, turns)

    return NamedSystem("router", answer)


def composed(composer: Composer) -> NamedSystem:
    """The composer."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        return await composer.converse(chat)

    return NamedSystem("composer", answer)


@dataclass
class SystemScores:
    """What a system got on each task, None where it could not answer or the judge could not judge."""

    name: str
    rewards: list[float | None] = field(default_factory=list)
    usd: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


async def evaluate(
    systems: Sequence[NamedSystem],
    pool: ModelPool,
    tasks: TaskSet,
    judge: Judge,
    *,
    settings: Sampling | None = None,
    budget: Budget | None = None,
    exclude: Collection[str] = (),
    run: Run | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Every system on every task, on the same samples of the same workers;
    each against the first, with interval, cost and tokens.

    With a ``run`` each answer is kept with its calls and its score,
    and what is there is not asked again. Raises BudgetSpentError, UserError.
    """
    done = {entry.key: entry.payload for entry in run.journal("answered")} if run is not None else {}
    found = [SystemScores(system.name) for system in systems]
    progress.begin(len(systems) * len(tasks), len(done), "", "answers")
    at = len(done)
    for task in tasks:
        for system, scores in zip(systems, found, strict=True):
            key = f"{task.id} {system.name}"
            if key not in done:
                row = await _answered(system, pool, task, judge, settings, budget, exclude, run, key)
                done[key] = row
                at += 1
                progress.at(at, system.name)
            scores.rewards.append(done[key]["reward"])
            scores.usd.append(done[key]["usd"])
            scores.tokens.append(done[key]["tokens"])
    return compared(found, [group_of(task.data) for task in tasks])


async def _answered(
    system: NamedSystem, pool: ModelPool, task: Task, judge: Judge, settings: Sampling | None, budget: Budget | None,
    exclude: Collection[str], run: Run | None, key: str,
) -> dict[str, Any]:  # fmt: skip
    asked = [Message("user", prompt_of(task))]
    chat = Orchestration(pool, asked, task.id, settings=settings, exclude=exclude, budget=budget, run=run, tree=key)
    row: dict[str, Any] = {"reward": None, "usd": 0.0, "tokens": 0, "failure": ""}
    try:
        made = await system.answer(task, chat)
    except InfrastructureError as error:
        row["failure"] = error.message
    else:
        found = await reward_of(judge, task, made.answer)
        row |= {
            "reward": None if found.value is None else float(found.value),
            "usd": made.usd,
            "tokens": made.tokens,
            "failure": found.failure,
        }
        answer = next((call.node for call in reversed(chat.calls) if call.result.text == made.answer and call.node), "")
        if run is not None and answer:
            run.add(*records(judge, answer, found))
    if run is not None:
        run.log("answered", key, row)
        run.commit()
    return row


def compared(found: Sequence[SystemScores], groups: Sequence[str]) -> dict[str, Any]:
    """Each system's mean with interval, cost and tokens a task, its gain over the first,
    and the mean of that gain within groups."""
    rows, first = [], found[0]
    for one in found:
        known = [i for i, (a, b) in enumerate(zip(one.rewards, first.rewards, strict=True)) if a is not None and b is not None]
        own = np.array([one.rewards[i] for i in known], float)
        base = np.array([first.rewards[i] for i in known], float)
        row: dict[str, Any] = {
            "system": one.name,
            "n": len(known),
            "unanswered": sum(x is None for x in one.rewards),
            "mean": float(own.mean()) if known else None,
            "interval": list(mean_t(own)) if len(known) > 1 else None,
            "usd_a_task": float(np.mean(one.usd)),
            "tokens_a_task": float(np.mean(one.tokens)),
            "gain": None,
            "within_groups": None,
        }
        if one is not first and known:
            row["gain"] = gain(own, base)
            names = [groups[i] for i in known]
            if len(set(names)) > 1:
                row["within_groups"] = {
                    name: float((own - base)[[n == name for n in names]].mean()) for name in sorted(set(names))
                }
        rows.append(row)
    return {"systems": rows, "against": first.name}


def plain_row(row: Mapping[str, Any]) -> list[Any]:
    """A row of :func:`compared` for a table."""
    gained = row["gain"]
    over = "-" if gained is None else f"{gained['value']:+.3f}" + (" (tie)" if gained["tie"] else "")
    return [
        row["system"],
        row["mean"],
        _ends(row["interval"]),
        over,
        _ends(gained and gained["interval"]),
        row["usd_a_task"],
        row["tokens_a_task"],
        row["unanswered"],
    ]


def _ends(ends: Any) -> str:
    return "-" if not ends else f"{ends[0]:.3f} to {ends[1]:.3f}"
