"""Systems that answer tasks, the simple ones a router or composer has to beat among them, and their honest comparison."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base import codec
from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.env.protocol import Task, TaskSet
from ramify.methods.orchestrator.algorithm import STEPS, RoutingGain, Workflow, gain
from ramify.methods.orchestrator.composer import Composer
from ramify.methods.orchestrator.conversation import Orchestrated, Orchestration, WorkerCall
from ramify.methods.orchestrator.kept import judged_as
from ramify.methods.orchestrator.pool import ModelPool
from ramify.methods.orchestrator.table import RewardTable, group_of, prompt_of, reward_of
from ramify.methods.orchestrator.turns import answer_with
from ramify.model.protocol import Sampling
from ramify.render.result import CALL, Result, Section, table
from ramify.score.judge import Judge, plain, records
from ramify.stats.intervals import mean_t
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import EVAL, Finding

if TYPE_CHECKING:
    from ramify.methods.orchestrator.baselines import BaselineRouter
    from ramify.methods.orchestrator.router import TurnRouter

ANSWERED = "answered"
AT_ONCE = 16
"""Conversations at once."""
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


async def _sure(chat: Orchestration, worker: int) -> WorkerCall:
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


def oracle(pool: ModelPool, rewards: RewardTable) -> NamedSystem:
    """The worker that was best on each task in ``rewards``, whose samples are others: an oracle without the winner's curse."""
    means = np.nan_to_num(rewards.means(), nan=-1.0)
    known = [pool.index(name) for name in rewards.workers]

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        if task.id not in rewards.tasks:
            raise UserError(f"the table knows no task '{task.id}', so there is no oracle for it")
        own = dict(zip(known, means[rewards.tasks.index(task.id)], strict=True))
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
        call = await Composer(pool.models[aggregator], pool, fallback=aggregator).execute(chat, plan)
        return chat.result(call, [plan])

    return NamedSystem("mixture of agents", answer)


def routed(router: TurnRouter, turns: int = STEPS) -> NamedSystem:
    """The router: one turn, or with roles a loop of turns."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        return await answer_with(chat, router, turns)

    return NamedSystem("router", answer)


def preferred(pool: ModelPool, baseline: BaselineRouter, workers: Sequence[str]) -> NamedSystem:
    """A simple router: of the workers that may be asked the one it prefers. ``workers`` are those of its table."""
    known = [pool.index(name) for name in workers]

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        able = set(allowed_of(chat))
        ranked = [known[at] for at in baseline.ranked([prompt_of(task)])[0]]
        return chat.result(await _sure(chat, next((at for at in ranked if at in able), min(able))))

    return NamedSystem(baseline.name, answer)


def composed(composer: Composer) -> NamedSystem:
    """The composer."""

    async def answer(task: Task, chat: Orchestration) -> Orchestrated:
        return await composer.converse(chat)

    return NamedSystem("composer", answer)


@dataclass(frozen=True)
class SystemAnswer:
    """What a system got on a task: no reward where it could not answer or the judge could not judge."""

    reward: float | None = None
    usd: float = 0.0
    tokens: int = 0
    failure: str = ""


@dataclass(frozen=True)
class SystemRow:
    """A system on the tasks that it and the first one answered."""

    system: str
    n: int
    unanswered: int
    mean: float | None
    interval: tuple[float, float] | None
    usd_a_task: float
    tokens_a_task: float
    gain: RoutingGain | None = None
    """Over the first system."""
    within_groups: Mapping[str, float] | None = None
    """That gain's mean in each group of tasks."""


@dataclass(frozen=True)
class SystemsCompared(Result):
    """Every system beside the first, with cost and tokens."""

    systems: tuple[SystemRow, ...]
    against: str
    out: str = ""
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """A row a system."""
        head = ("system", "reward", "95 % interval", f"over {self.against}", "95 % interval", "USD a task", "tokens a task")
        rows = []
        for one in self.systems:
            over = (
                (None, None)
                if one.gain is None
                else (f"{one.gain.value:+.3f}{' (tie)' * one.gain.tie}", _ends(one.gain.interval))
            )
            rows.append((one.system, one.mean, _ends(one.interval), *over, one.usd_a_task, one.tokens_a_task, one.unanswered))
        yield Section.of("", table((*head, "unanswered"), rows))

    def findings(self, maker: str) -> list[Finding]:
        """How router and composer compare."""
        made = []
        for one in self.systems:
            if one.gain is not None and one.system in ("router", "composer"):
                word = "ties with" if one.gain.tie else "beats" if one.gain.value > 0 else "loses to"
                amount = f"{one.gain.value:+.3f} at {one.tokens_a_task:.0f} tokens a task"
                why, name = f"the {one.system} {word} {self.against}: {amount}", f"{one.system} compared"
                evidence = codec.to_json(one)
                made.append(Finding(name, maker, why, value=one.gain.value, unit="reward", evidence=evidence))
        return made


def _ends(ends: tuple[float, float] | None) -> str | None:
    return None if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"


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
) -> SystemsCompared:
    """Every system on every task, on the same samples of the same workers;
    each against the first, with interval, cost and tokens.

    With a ``run`` each answer is kept with its calls, its score and the record of the attempt,
    and what is there is not asked again. Raises BudgetSpentError, UserError.
    """

    async def answered(system: NamedSystem, task: Task, key: str) -> tuple[SystemAnswer, Iterable[Any]]:
        asked = [Message("user", prompt_of(task))]
        chat = Orchestration(pool, asked, task.id, settings=settings, exclude=exclude, budget=budget, run=run, tree=key)
        try:
            made = await system.answer(task, chat)
        except InfrastructureError as error:
            ended = [] if run is None else [chat.attempt(run, None, EVAL, failure=error.message)]
            return SystemAnswer(failure=error.message), ended
        judgement = await reward_of(judge, task, made.answer)
        outcome, reward = judged_as(judgement)
        row = SystemAnswer(reward, made.usd, made.tokens, judgement.failure)
        if run is None:
            return row, ()
        attempt = chat.attempt(run, made, EVAL, outcome=outcome, reward=reward)
        return row, (attempt, *records(judge, attempt.leaf, judgement))

    done = {} if run is None else run.memo(ANSWERED, SystemAnswer)
    at = len(done)
    progress.begin(len(systems) * len(tasks), at, "", "answers")
    limited = budget is not None and min(budget.remaining("calls"), budget.remaining("money")) < math.inf
    gate = asyncio.Semaphore(1 if limited else AT_ONCE)  # calls at once would each see what is left, and exceed it together

    async def answer(system: NamedSystem, task: Task) -> SystemAnswer:
        nonlocal at
        key = f"{task.id} {system.name}"
        if key in done:
            return done[key]
        make = partial(answered, system, task, key)
        async with gate:
            said = (await make())[0] if run is None else await run.once_awaited(ANSWERED, key, SystemAnswer, make)
        at += 1
        progress.at(at, system.name)
        return said

    pairs = [(system, task) for task in tasks for system in systems]
    try:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(answer(*pair)) for pair in pairs]
    except ExceptionGroup as failed:  # what the first said; the others were cancelled
        raise failed.exceptions[0] from None
    rows = [[one.result() for one in answers[number :: len(systems)]] for number in range(len(systems))]
    groups = [group_of(task.data) for task in tasks]
    first = rows[0]
    compared = [_compared(system.name, own, first, groups) for system, own in zip(systems, rows, strict=True)]
    return SystemsCompared(tuple(compared), systems[0].name)


def _compared(name: str, rows: Sequence[SystemAnswer], first: Sequence[SystemAnswer], groups: Sequence[str]) -> SystemRow:
    """A system's mean with interval, cost and tokens a task, its gain over the first, and the mean of that within groups."""
    pairs = [
        (one.reward, other.reward, group)
        for one, other, group in zip(rows, first, groups, strict=True)
        if one.reward is not None and other.reward is not None
    ]
    own, base = (np.array([pair[side] for pair in pairs], float) for side in (0, 1))
    names = np.array([group for *_, group in pairs])
    over, within = None, None
    if rows is not first and pairs:
        over = gain(own, base)
        differ = own - base
        within = {group: float(differ[names == group].mean()) for group in sorted(set(names.tolist()))}
    return SystemRow(
        name, len(pairs), sum(one.reward is None for one in rows),
        float(own.mean()) if pairs else None, mean_t(own) if len(pairs) > 1 else None,
        float(np.mean([one.usd for one in rows])), float(np.mean([one.tokens for one in rows])),
        over, within if within and len(within) > 1 else None,
    )  # fmt: skip
