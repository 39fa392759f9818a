"""The composer: a language model that writes a workflow, the executor that runs it in isolation,
and its training by GRPO (sections 3.6, 3.7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ramify.base import codec
from ramify.base.budget import Budget
from ramify.base.errors import BudgetSpentError, InfrastructureError, NeedsError, UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.env.protocol import Task, TaskSet
from ramify.methods.orchestrator.algorithm import (
    STEPS,
    CallEvent,
    Workflow,
    composer_reward,
    group_advantages,
    parse_workflow,
    view,
)
from ramify.methods.orchestrator.conversation import (
    STEP,
    TOOL_TURNS,
    Orchestrated,
    Orchestration,
    Shows,
    ToolUse,
    WorkerCall,
    messages_of,
)
from ramify.methods.orchestrator.kept import CallNote
from ramify.methods.orchestrator.pool import MILLION, ModelPool, Rest, failure_of, open_model
from ramify.methods.orchestrator.settings import GrpoConfig
from ramify.methods.orchestrator.table import prompt_of, reward_of
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Completion, Model, Sampling, context_of, sampling_of
from ramify.render import numbers as written
from ramify.rollout.compact import approximate_tokens
from ramify.rollout.sampler import Sampler, sampled_tokens
from ramify.score.judge import Judge, reply_to
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Provenance

if TYPE_CHECKING:
    from ramify.train.batch import Row

PROMPT = """You coordinate several models. Write a workflow that answers the question: up to {steps} steps, as one JSON object \
of three lists of equal length.
"subtasks": for each step, an instruction to the model that does it.
"workers": for each step, the number of a model: {workers}. A model may be used more than once.{myself}
"access": for each step, whose results that model sees besides the question: [] for none, "all" for all earlier steps, or a list \
of earlier steps, counted from 0.
The result of the last step is the answer. Steps that see nothing of each other run at the same time.{again}

{shots}Question: {question}
Workflow:"""
AGAIN = (
    '\nYour last workflow was {plan}\nand its answer was: {answer}\nWrite a better workflow, or {{"subtasks": [], "workers": '
    '[], "access": []}} to accept that answer.'
)
MYSELF = " {number} is yourself: the step is then planned by you."


@dataclass(frozen=True)
class WrittenPlan:
    """A workflow as a composer writes it: "all" is all earlier steps."""

    subtasks: tuple[str, ...]
    workers: tuple[int, ...]
    access: tuple[tuple[int, ...] | Literal["all"], ...]

    def among(self, numbers: Sequence[int]) -> WrittenPlan:
        """The same with its workers taken modulo how many there are."""
        return replace(self, workers=tuple(numbers[worker % len(numbers)] for worker in self.workers))

    def __str__(self) -> str:
        return json.dumps(codec.to_json(self))


SHOTS = (
    (
        "A patient has a fever and a rash after a walk in the woods. What is the likeliest cause?",
        WrittenPlan(
            (
                "List likely causes with evidence for each.",
                "List dangerous causes that must not be missed.",
                "Weigh both lists and name one cause.",
            ),
            (0, 1, 0),
            ((), (), "all"),
        ),
    ),
    (
        "Find all integers n such that n^2 + n + 41 is a square.",
        WrittenPlan(
            (
                "Solve the problem and show each step.",
                "Solve the problem in another way.",
                "Compare the solutions, find the error in the wrong one, and state the right answer.",
            ),
            (1, 0, 1),
            ((), (), "all"),
        ),
    ),
    (
        "Use 3, 5, 7 and 9 once each to make 24.",
        WrittenPlan(("Find an expression of the numbers that equals the target.",), (0,), ((),)),
    ),
    (
        "Use 2, 2, 6 and 8 once each to make 31.",
        WrittenPlan(
            (
                "Try expressions that begin with a product.",
                "Try expressions that begin with a sum.",
                "Check both results, and give the one that is right.",
            ),
            (0, 1, 1),
            ((), (), "all"),
        ),
    ),
)
"""Worked examples out of domain: one medical, one of mathematics, two of arithmetic [C];
their numbers are taken modulo the pool's size."""

WARM_RATE = 3e-4
"""Learning rate of the supervised steps before: they teach the form of a plan from nothing, so it is that of training, not the
small one of the updates that follow."""


class Composer:
    """``policy`` writes workflows over the workers of ``pool``, which it knows by number only.

    ``rounds``: further workflows it may write with its own last one and the answer before it; ``depth``:
    how often a step may be its own.
    """

    def __init__(
        self,
        policy: Model,
        pool: ModelPool,
        template: ChatTemplate | None = None,
        *,
        max_steps: int = STEPS,
        rounds: int = 0,
        depth: int = 0,
        shots: bool = True,
        fallback: int = 0,
        settings: Sampling | None = None,
        price: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        if max_steps < 1 or rounds < 0 or depth < 0:
            raise UserError(f"a composer has 1 step or more and no negative rounds and depth, not {max_steps}, {rounds}, {depth}")
        self.policy, self.pool, self.template = policy, pool, template
        self.max_steps, self.rounds, self.depth, self.shots, self.fallback, self.price = (
            max_steps,
            rounds,
            depth,
            shots,
            fallback,
            price,
        )
        self.settings = settings or sampling_of(policy, temperature=0.0, max_tokens=1024)
        self._sampler = Sampler(policy, pool.seed)
        known = (rest for model, rest in zip(pool.models, pool.rests, strict=True) if model is policy)
        self._rest = next(known, None) or Rest(pool.rest)

    # -- plans

    def prompt(
        self, question: str, numbers: Sequence[int], last: tuple[Workflow, str] | None = None, depth: int = 0
    ) -> list[Message]:
        """What the policy is shown: numbers of models, never names."""
        again = "" if last is None else AGAIN.format(plan=json.dumps(codec.to_json(last[0])), answer=last[1])
        myself = MYSELF.format(number=len(self.pool)) if depth < self.depth else ""
        shots = "".join(
            f"Question: {asked}\nWorkflow: {plan.among(numbers)}\n\n"
            for asked, plan in SHOTS
            if self.shots and len(plan.subtasks) <= self.max_steps
        )
        workers = ", ".join(map(str, numbers))
        text = PROMPT.format(steps=self.max_steps, workers=workers, myself=myself, again=again, shots=shots, question=question)
        return [Message("user", text)]

    async def write(
        self, messages: Sequence[Message], position: tuple[str | int, ...], settings: Sampling | None = None
    ) -> Completion:
        """One reply of the policy. Raises InfrastructureError where it fails."""
        stops = () if self.template is None else tuple(self.template.stop_tokens)
        chosen = settings or self.settings
        if stops:
            chosen = replace(chosen, stop_tokens=(*chosen.stop_tokens, *stops))
        return await reply_to(self._sampler, self.template, messages, chosen, position)

    # -- running

    async def run(
        self,
        query: str | Sequence[Message],
        *,
        key: str = "query",
        exclude: Collection[str] = (),
        budget: Budget | None = None,
        run: Run | None = None,
        tools: ToolUse | None = None,
        settings: Sampling | None = None,
        parallel: bool = True,
    ) -> Orchestrated:
        """Plan and execute. A plan that cannot be read is requested once more; then the fallback answers alone, and ``notes`` say
        so. Raises UserError where every worker is excluded, BudgetSpentError,
        and InfrastructureError where every worker failed."""
        given = [Message("user", query)] if isinstance(query, str) else list(query)
        chat = Orchestration(
            self.pool, given, key, settings=settings, exclude=exclude, budget=budget, run=run, tools=tools, fallback=self.fallback
        )
        return await chat.concluded(self.converse(chat, parallel))

    async def converse(self, chat: Orchestration, parallel: bool = True, depth: int = 0) -> Orchestrated:
        """As :meth:`run`, in a conversation that is there."""
        numbers = [at for at, ok in enumerate(chat.available()) if ok]
        question = chat.given[-1].text
        last: tuple[Workflow, str] | None = None
        answer: WorkerCall | None = None
        plans: list[Workflow] = []
        for number in range(1 + self.rounds):
            plan = await self._planned(chat, question, numbers, last, number, depth)
            if plan is None and answer is not None:
                break
            if plan is None:
                answer = await self._alone(chat)
                break
            if not len(plan):
                chat.notes.append(f"round {number}: the answer was accepted")
                break
            plans.append(plan)
            answer = await self.execute(chat, plan, number, parallel, depth)
            last = plan, answer.result.text
        assert answer is not None
        return chat.result(answer, plans)

    async def _alone(self, chat: Orchestration) -> WorkerCall:
        """The fallback answers the question directly."""
        while True:
            worker, _ = chat.or_fallback(self.fallback)
            why = "no workflow could be read"
            call = await chat.ask(worker, chat.question(), 0, 0, why, attempt=len(chat.failed), answers=True)
            if not call.result.failure:
                chat.notes.append(f"no workflow could be read: '{call.worker}' answered alone")
                return call

    async def _planned(
        self,
        chat: Orchestration,
        question: str,
        numbers: Sequence[int],
        last: tuple[Workflow, str] | None,
        number: int,
        depth: int,
    ) -> Workflow | None:
        prompt = self.prompt(question, numbers, last, depth)
        allowed = [*numbers, *([len(self.pool)] if depth < self.depth else [])]
        estimate = sum(approximate_tokens(one.text) + 4 for one in prompt)
        for attempt in range(2):
            if why := self._rest.why:
                chat.notes.append(f"the composer was passed over (down): {why}")
                break
            self._require(chat.budget, estimate)
            reply = await self._written(chat, prompt, (chat.key, "plan", depth, number, attempt))
            if reply is None:
                continue
            given = int(((reply.data or {}).get("usage") or {}).get("prompt_tokens") or estimate)
            sampled = sampled_tokens(reply) or approximate_tokens(reply.text)
            usd = self._usd(given, sampled)
            chat.spent.append((given, sampled, usd))
            self.pool.ledger.add("composer", calls=1, given_tokens=given, sampled_tokens=sampled, usd=usd)
            if chat.budget is not None:
                chat.budget.charge(tokens=sampled, money=usd)
            why = ""
            plan: Workflow | None = None
            try:
                plan = parse_workflow(reply.text, allowed, self.max_steps, last is not None)
            except ValueError as error:
                why = str(error)
                chat.notes.append(f"round {number}, try {attempt}: the workflow cannot be read: {why}")
            identity = self.policy.identity
            provenance = Provenance(identity.name, identity.weights, self.settings.to_json(), self.pool.seed)
            note = CallNote(usd, given, sampled, composer=True, round=number, unreadable=why or None)
            chat.planned(reply.text, prompt, provenance, note)
            if plan is not None:
                return plan
        return None

    def _usd(self, given: int, sampled: int) -> float:
        return (given * self.price[0] + sampled * self.price[1]) / MILLION

    def _require(self, budget: Budget | None, given: int) -> None:
        """Raises BudgetSpentError before a plan that would exceed the budget; it is not a call of a worker."""
        if budget is None:
            return
        budget.require()
        if (most := self._usd(given, self.settings.max_tokens)) > budget.remaining("money"):
            raise BudgetSpentError(
                f"the budget has {budget.remaining('money'):.4g} USD left, and a plan of the composer may cost {most:.4g}"
            )

    async def _written(
        self, chat: Orchestration, prompt: Sequence[Message], position: tuple[str | int, ...]
    ) -> Completion | None:
        """A reply of the policy; None where it fails, which the notes say.
        Like a worker it has the pool's seconds, and rests when it is down."""
        try:
            with self._rest.watching():
                async with asyncio.timeout(self.pool.seconds):
                    return await self.write(prompt, position)
        except (InfrastructureError, TimeoutError) as error:
            kind, why = failure_of(error, self.pool.seconds)
            chat.notes.append(f"the composer failed ({kind}): {why}")
            return None

    async def execute(
        self, chat: Orchestration, plan: Workflow, number: int = 0, parallel: bool = True, depth: int = 0
    ) -> WorkerCall:
        """Run a workflow, steps that see nothing of each other at the same time (one after the other with tools). The last step's
        call."""
        if not any(event.workflow == number for event in chat.log):
            chat.log.append(CallEvent(number, -1, "query", chat.given[-1].text))
        calls: dict[int, WorkerCall] = {}
        waves = plan.waves() if parallel and chat.tools is None else [[step] for step in range(len(plan))]
        for wave in waves:
            for step in wave:
                chat.log.append(CallEvent(number, step, "subtask", plan.subtasks[step]))
            steps = [asyncio.ensure_future(self._step(chat, plan, number, step, depth)) for step in wave]
            try:
                done = await asyncio.gather(*steps)
            finally:
                for one in steps:
                    one.cancel()  # where one has failed for good, nobody reads the others
            for step, call in zip(wave, done, strict=True):
                calls[step] = call
                chat.log.append(CallEvent(number, step, "output", call.result.text, call.node))
        return calls[len(plan) - 1]

    async def _step(self, chat: Orchestration, plan: Workflow, number: int, step: int, depth: int) -> WorkerCall:
        """One agent: its worker, and where that fails the fallback. A step that is the composer's own is planned within its view.
        The last step of the last workflow that may be is the answer, and told as it comes."""
        answers = step == len(plan) - 1 and number == self.rounds
        if plan.workers[step] == len(self.pool):
            inner = Orchestration(
                self.pool, messages_of(shown_to(chat, number, step, plan.access[step])), f"{chat.key}/{number}.{step}",
                settings=chat.settings, exclude=chat.exclude, budget=chat.budget, run=chat.run, tools=chat.tools,
                fallback=self.fallback, tree=f"{chat.tree}/{number}.{step}",
            )  # fmt: skip
            inner.failed |= chat.failed
            inner.tell = chat._told if answers and chat.tell is not None else None
            made = await inner.concluded(self.converse(inner, depth=depth + 1), STEP)
            chat.calls += inner.calls
            chat.notes += inner.notes
            chat.spent += inner.spent
            chat.failed |= inner.failed
            return next(one for one in reversed(inner.calls) if one.result.completion is made.completion)
        worker, why = chat.or_fallback(plan.workers[step])
        why = why or "the composer's plan"
        for turn in range(TOOL_TURNS + len(self.pool)):
            pieces = shown_to(chat, number, step, plan.access[step])
            call = await chat.ask(worker, pieces, number, step, why, attempt=turn, answers=answers and chat.tools is None)
            if call.result.failure:
                worker, why = chat.or_fallback(worker)
                continue
            message = None if call.result.completion is None else call.result.completion.message
            if message is None or chat.tools is None or not message.calls or turn >= TOOL_TURNS:
                return call
            chat.log.append(CallEvent(number, step, "call", message.spoken(), call.node, dict(message.data)))
            for answer in await chat.tools.run(message):
                chat.log.append(CallEvent(number, step, "result", answer.text))
        return call


_ROLE = {"query": "user", "subtask": "user", "output": "assistant", "call": "assistant", "result": "user"}


def shown_to(chat: Orchestration, number: int, step: int, access: Collection[int]) -> list[Shows]:
    """What the worker of a step is shown: the conversation as given, then the log as :func:`view` has it."""
    seen = [event for event in view(chat.log, number, step, access) if event.kind != "query" or event.workflow < number]
    earlier = [event for event in seen if event.workflow < number and event.kind != "query"]
    own = [event for event in seen if event.workflow == number]
    return [*chat.question(), *(Shows(_ROLE[event.kind], event.text, event.node) for event in (*earlier, *own))]


def open_composer(
    spec: str,
    pool: ModelPool,
    rounds: int = 0,
    max_steps: int = STEPS,
    fallback: int = 0,
    shots: bool = True,
    max_tokens: int = 1024,
    exclude: Collection[str] = (),
) -> Composer:
    """The composer that a model's name is, over a pool: also that of one of its workers, at whose price it then plans. It is
    asked nothing yet. Raises UserError where the worker is excluded."""
    policy, template, price = None, None, (0.0, 0.0)
    if spec in pool.names:
        at = pool.index(spec)
        if not pool.available(exclude)[at]:
            raise UserError(f"the composer '{spec}' is a worker that is excluded: name another model with --composer")
        policy, price = pool.models[at], pool.workers[at].price
    else:
        policy, template = open_model(spec)
    most = min(max_tokens, (context_of(policy) or 4 * max_tokens) // 4)
    settings = sampling_of(policy, temperature=0.0, max_tokens=most)
    form = {"max_steps": max_steps, "rounds": rounds, "fallback": fallback}
    return Composer(policy, pool, template, settings=settings, price=price, shots=shots, **form)


# -- training


@dataclass(frozen=True)
class GrpoUpdate:
    """Means of an update over its plans, None where no answer could be judged."""

    reward: float | None
    parsed: float | None
    """Share of plans that could be read."""
    steps: float | None
    """Of a plan; 0 of one that could not be read."""


@dataclass(frozen=True)
class JudgedPlan:
    """A plan of a group: its reward, None where a worker or the judge failed, and its steps, 0 where it could not be read."""

    reply: Completion
    reward: float | None
    steps: int


def warm_plan(rng: np.random.Generator, numbers: Sequence[int], steps: int = STEPS) -> WrittenPlan:
    """A random plan of sensible shape: one to ``steps`` - 1 solvers, three quarters of them isolated, then one judge who sees
    all; a quarter single-step plans; workers uniformly random."""
    solvers = 1 if rng.random() < 0.25 or steps < 2 else int(rng.integers(1, steps))
    single = solvers == 1 and rng.random() < 0.5
    subtasks = ["Solve the problem."] * solvers + ([] if single else ["Compare the results and give the right one."])
    access: list[tuple[int, ...] | Literal["all"]] = [() if rng.random() < 0.75 else "all" for _ in range(solvers)]
    access += [] if single else ["all"]
    return WrittenPlan(tuple(subtasks), tuple(int(rng.choice(list(numbers))) for _ in subtasks), tuple(access))


async def train(
    composer: Composer,
    tasks: TaskSet,
    judge: Judge,
    config: GrpoConfig,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> list[GrpoUpdate]:
    """Supervised steps on random plans, then GRPO; the policy's weights change in place. The pool's seed decides every
    sample.

    An answer whose every worker failed, or that the judge could not judge, has no reward and leaves its group. Raises NeedsError
    where the policy cannot be trained in this process.
    """
    from ramify.engine.local import LocalModel
    from ramify.train.loop import TrainConfig, Trainer

    policy, template = composer.policy, composer.template
    if not isinstance(policy, LocalModel) or template is None:
        raise NeedsError(
            f"'{policy.identity.name}' cannot be trained here: a composer that learns is hf:PATH, with a chat template"
        )
    composer.shots = config.shots
    held, seed = list(tasks), composer.pool.seed
    rng = generator(seed, "warm")
    everyone = list(range(len(composer.pool)))
    trainer = Trainer(policy.module, TrainConfig(lr=WARM_RATE, beta2=0.999), seed)
    progress.begin(config.warm + config.updates, 0, "train", "steps")
    for step in range(config.warm):
        rows = []
        for _ in range(8):
            task = held[int(rng.integers(len(held)))]
            numbers = _subset(rng, everyone, config.subset)
            plan = warm_plan(rng, numbers, composer.max_steps)
            rows.append(_plan_row(template, composer.prompt(prompt_of(task), numbers), str(plan)))
        found = trainer.update(rows, {"cross_entropy": 1.0})
        progress.at(step + 1, f"warm start: {found['cross_entropy']:.3f} a token")
    policy.refresh()
    trainer = Trainer(policy.module, TrainConfig(lr=config.lr, beta2=0.999), seed)
    history = []
    for update in range(config.updates):
        share = (update + 1) / config.updates
        trainer.set_rate(config.lr * (min(1.0, share / 0.03) * 0.5 * (1 + np.cos(np.pi * max(0.0, share - 0.03)))))
        rows, plans = [], list[JudgedPlan]()
        for at in range(config.questions):
            task = held[int(generator(seed, "question", update, at).integers(len(held)))]
            rows_of, plans_of = await _group(composer, task, judge, config, update, at, budget)
            rows += rows_of
            plans += plans_of
        if rows:
            trainer.update(rows, {"policy_gradient": 1.0})
            policy.refresh()
        history.append(_means(plans))
        progress.at(config.warm + update + 1, f"reward {written.number(history[-1].reward)}")
    return history


def _means(plans: Sequence[JudgedPlan]) -> GrpoUpdate:
    if not plans:
        return GrpoUpdate(None, None, None)
    rows = [(plan.reward or 0.0, plan.steps > 0, plan.steps) for plan in plans]
    return GrpoUpdate(*map(float, np.mean(np.array(rows, float), axis=0)))


def _subset(rng: np.random.Generator, everyone: Sequence[int], k: int) -> list[int]:
    return sorted(int(one) for one in rng.permutation(list(everyone))[: k or len(everyone)])


def _plan_row(template: ChatTemplate, prompt: Sequence[Message], reply: str) -> Row:
    from ramify.model.rendered import laid_out
    from ramify.train.batch import Row

    given = laid_out(template, [(one.role, one.text) for one in prompt])
    said = [*template.tokenizer.encode(reply), *template.close("assistant")]
    return Row(np.array([*given, *said], np.int32), np.arange(len(given) + len(said)) >= len(given))


async def _group(
    composer: Composer, task: Task, judge: Judge, config: GrpoConfig, update: int, at: int, budget: Budget | None
) -> tuple[list[Row], list[JudgedPlan]]:
    """The plans for one question that have a reward, and training rows of those with an advantage."""
    from ramify.model.rendered import laid_out
    from ramify.train.batch import Row

    template = composer.template
    assert template is not None
    numbers = _subset(generator(composer.pool.seed, "subset", update, at), range(len(composer.pool)), config.subset)
    prompt = composer.prompt(prompt_of(task), numbers)
    given = np.array(laid_out(template, [(one.role, one.text) for one in prompt]), np.int32)
    settings = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)

    async def one(index: int) -> JudgedPlan:
        reply = await composer.write(prompt, ("train", update, at, index), settings)
        try:
            plan = parse_workflow(reply.text, numbers, composer.max_steps)
        except ValueError:
            return JudgedPlan(reply, composer_reward(False, 0.0), 0)
        chat = Orchestration(
            composer.pool,
            [Message("user", prompt_of(task))],
            f"{task.id}/{update}.{at}.{index}",
            budget=budget,
            fallback=composer.fallback,
            settings=Sampling(temperature=0.2, max_tokens=4096),
        )
        try:
            call = await composer.execute(chat, plan)
        except InfrastructureError:
            return JudgedPlan(reply, None, len(plan))
        if chat.outage:
            return JudgedPlan(reply, None, len(plan))  # an outage is not a fault of the plan
        found = await reward_of(judge, task, call.result.text)
        return JudgedPlan(reply, None if found.value is None else composer_reward(True, float(found.value)), len(plan))

    done = [plan for plan in await asyncio.gather(*map(one, range(config.group))) if plan.reward is not None]
    rows = []
    for plan, advantage in zip(done, group_advantages([plan.reward or 0.0 for plan in done]) if done else (), strict=True):
        if not advantage:
            continue
        assert plan.reply.tokens is not None
        assert plan.reply.logprobs is not None
        tokens = np.concatenate([given, plan.reply.tokens]).astype(np.int32)
        mask = np.arange(len(tokens)) >= len(given)
        values = {"logprobs": np.zeros(len(tokens), np.float32), "advantage": np.where(mask, advantage, 0).astype(np.float32)}
        values["logprobs"][len(given) :] = plan.reply.logprobs
        rows.append(Row(tokens, mask, values))
    return rows, done
