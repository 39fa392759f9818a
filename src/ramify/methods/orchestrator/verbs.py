"""The verbs of ``ramify orchestrator`` (``serve`` is in :mod:`ramify.cli.serve`).
POOL is a TOML file of workers; TASKS are JSON lines of id and prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from ramify.base.ids import stable_hash
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.env.protocol import TaskSet, read_task_set
from ramify.kit import Verbs, argument, find_run, only_for, option
from ramify.methods.orchestrator import systems, training, views
from ramify.methods.orchestrator import table as tables
from ramify.methods.orchestrator.algorithm import STEPS
from ramify.methods.orchestrator.baselines import BaselineRouter, fit_baselines
from ramify.methods.orchestrator.composer import open_composer
from ramify.methods.orchestrator.conversation import AnsweredQuery, Orchestration, new_tree
from ramify.methods.orchestrator.evolution import EvolvedRouter
from ramify.methods.orchestrator.pool import CallResult, ModelPool, PoolWorker, read_pool
from ramify.methods.orchestrator.settings import AnswerConfig, CallConfig, CollectConfig, CompareConfig, OrchestratorTraining
from ramify.methods.orchestrator.systems import SystemsCompared
from ramify.methods.orchestrator.table import CollectedRewards, Headroom
from ramify.methods.orchestrator.training import FittedRouter, TrainedComposer, TrainingTasks
from ramify.methods.orchestrator.turns import answer_with
from ramify.methods.orchestrator.views import ConversationList, ConversationTrace
from ramify.model.protocol import Sampling
from ramify.render.result import Planned, Result, Section, table
from ramify.render.terminal import progress
from ramify.rollout.compact import approximate_tokens
from ramify.score.judge import find_judge
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.sources import conclude, next_run

app = Verbs(
    "orchestrator",
    help="Is routing between my models worth it? A learned router or composer over endpoints, local models and functions.",
)
CHECK_TOKENS = 16
REWARDS = "rewards"
"""Runs of `collect` without --out are runs/rewards-N."""

PoolArgument = Annotated[
    Path, argument("POOL", help="TOML file: [[workers]] with name, model, and optional price, context, tags.")
]
TASKS = "JSON lines: id, prompt, what the judge needs (answer), optional group."
Tasks = Annotated[Path, option("--tasks", metavar="FILE", help=TASKS)]
RouterOption = Annotated[Path | None, option("--router", metavar="DIR", help="A router that `train` wrote.")]
ComposerOption = Annotated[
    str | None,
    option(
        "--composer",
        metavar="MODEL",
        help="The model that writes workflows: a worker of the pool, hf:DIR, chat:MODEL@URL, FILE.py:FUNCTION.",
    ),
]
Exclude = Annotated[
    list[str] | None, option("--exclude", metavar="WORD", help="A worker's name, or a tag: never asked; repeatable.")
]


# -- collect


@dataclass(frozen=True)
class WorkerCheck:
    """What a worker said when it was asked for one word, or how it failed."""

    worker: str
    model: str
    says: str
    seconds: float
    usd: float
    failure: str | None
    why: str | None
    tags: tuple[str, ...]

    @classmethod
    def of(cls, worker: PoolWorker, call: CallResult) -> WorkerCheck:
        """Of its call."""
        model = worker.model if isinstance(worker.model, str) else ""
        failed = (call.failure or None, call.why or None)
        return cls(worker.name, model, call.text[:40], call.seconds, call.usd, *failed, tuple(sorted(worker.tags)))


@dataclass(frozen=True)
class PoolCheck(Result):
    """Who of a pool answers."""

    KEPT = False
    workers: tuple[WorkerCheck, ...]
    failed: int

    @property
    def exit_code(self) -> int:
        """1 where one does not answer."""
        return EXIT_FAILED if self.failed else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """A row a worker."""
        rows = [(one.worker, one.says, one.seconds, one.usd, one.failure or "", (one.why or "")[:80]) for one in self.workers]
        yield Section.of("", table(("worker", "answers", "seconds", "USD", "failure", "why"), rows))


def _collecting(options: CollectConfig, pool: Path, tasks: Path | None, check: bool) -> dict[str, float]:
    held = read_pool(pool, options.seed)
    if check:
        return {"calls": len(held)}
    asked = _asked(tasks)
    given = sum(approximate_tokens(tables.prompt_of(task)) + 4 for task in asked) * options.n
    sampled = len(asked) * options.n * options.max_tokens
    worst = sum(held.cost(worker, given, sampled) for worker in range(len(held)))
    return {"calls": len(asked) * len(held) * options.n, "usd_at_most": worst}


@app.study(settings=CollectConfig, plan=_collecting, unit="calls", folder=REWARDS)
def collect(
    options: CollectConfig,
    pool: PoolArgument,
    bar: Progress,
    out: Annotated[Path | None, option("--out", metavar="RUN", help="Run to make or to continue; default: a new one.")] = None,
    tasks: Annotated[Path | None, option("--tasks", metavar="FILE", help=TASKS)] = None,
    check: Annotated[
        bool,
        option("--check", help="Only ask every worker for one word: who answers, how fast; exit code 1 where one does not."),
    ] = False,
) -> CollectedRewards | PoolCheck:
    """Ask every worker every task several times, and keep replies, scores, tokens and USD; calls that failed are tried again."""
    assert out is not None
    held = read_pool(pool, options.seed)
    if check:
        own = options.model_fields_set - CallConfig.model_fields.keys()
        named = None if out == next_run(REWARDS) else out
        only_for("--check", tasks=tasks, out=named, **dict.fromkeys(sorted(own), True))
        return _checked(held, options, bar)
    asked, judge = _asked(tasks), find_judge(options.judge)
    with tables.begin_collect(out, held, asked, judge, options.n, options.sampling) as run:
        wait_for(tables.collect_into(run, held, asked, judge, options.n, options.sampling, options.budget, bar))
        return CollectedRewards.of(tables.table_of(run), out, len(asked), held.ledger.spent)


def _asked(tasks: Path | None) -> TaskSet:
    """The tasks of a collection. Raises UserError where none are named, and on one without a prompt."""
    if tasks is None:
        raise UserError("a collection needs --tasks FILE; --check asks every worker for one word")
    asked = read_task_set(tasks)
    for task in asked:
        tables.prompt_of(task)
    return asked


def _checked(pool: ModelPool, options: CallConfig, bar: Progress) -> PoolCheck:
    settings = Sampling(temperature=options.temperature, max_tokens=min(CHECK_TOKENS, options.max_tokens))
    asked = [Message("user", "Say ok.")]

    async def ask() -> list[CallResult]:
        return list(await asyncio.gather(*(pool.call(w, asked, settings, ("pool-check",)) for w in range(len(pool)))))

    bar.begin(len(pool))
    workers = tuple(WorkerCheck.of(worker, call) for worker, call in zip(pool.workers, wait_for(ask()), strict=True))
    return PoolCheck(workers, sum(one.failure is not None for one in workers))


# -- train

What = Literal["router", "evolved", "composer"]


def _refuse(options: OrchestratorTraining, what: What, given: TrainingTasks) -> None:
    """Raises UserError on an option that this training does not take."""
    sections = {name: getattr(options, name).model_fields_set for name in ("router", "evolved", "composer") if name != what}
    foreign = {f"{name}.{key}": True for name, keys in sections.items() for key in sorted(keys)}
    if what == "router":
        live = options.model_fields_set & {"judge", "max_usd", "max_calls"}
        foreign |= {"pool": bool(given.pool), "tasks": bool(given.tasks), **dict.fromkeys(sorted(live), True)}
    if what != "evolved":
        foreign["exclude"] = bool(given.exclude)
    only_for(f"train {what}", **foreign)


def _training(
    options: OrchestratorTraining,
    what: What,
    source: str,
    out: Path,
    pool: Path | None,
    tasks: Path | None,
    exclude: list[str] | None,
) -> Planned:
    given = TrainingTasks(pool, tasks, exclude or ())
    _refuse(options, what, given)
    return training.planned(options, what, source, given, out)


@app.study(settings=OrchestratorTraining, plan=_training, unit="steps", run="run", folder="trained", keeps=False)
def train(
    options: OrchestratorTraining,
    what: Annotated[
        What,
        argument(
            "WHAT",
            help="router: soft targets of a table. evolved: a router on whole trajectories. composer: a model that writes "
            "workflows, by GRPO.",
        ),
    ],
    source: Annotated[
        str,
        argument(
            "SOURCE",
            help="What it is made of. router: a run of `collect`, any run with scores of several models, or JSON lines of task, "
            "worker, reward; evolved: the folder of a router; composer: hf:DIR, with a chat template.",
        ),
    ],
    out: Annotated[Path, option("--out", metavar="DIR", help="Folder of the router, or checkpoint, to write.")],
    bar: Progress,
    run: Annotated[
        Path | None,
        option("--run", metavar="RUN", help="Run to make or to continue, with what was found and every generation."),
    ] = None,
    pool: Annotated[Path | None, option("--pool", metavar="POOL", help="TOML file of workers; not of `router`.")] = None,
    tasks: Annotated[
        Path | None, option("--tasks", metavar="FILE", help="JSON lines of tasks; in an environment its own by default.")
    ] = None,
    exclude: Exclude = None,
) -> FittedRouter | EvolvedRouter | TrainedComposer:
    """Train a router, evolve one, or train a composer with live workers, where an outage is never a reward of 0.

    A router says what it gets on tasks kept back, against the best single worker; evolution (separable CMA-ES, common random
    numbers) does not keep a worse one. Every generation is kept; a fit and a composer's training, interrupted, begin anew.
    """
    assert run is not None
    given = TrainingTasks(pool, tasks, exclude or ())
    _refuse(options, what, given)
    if what == "router":
        return training.fit_router(options, Path(source), out, run, bar)
    if what == "evolved":
        return training.evolve_router(options, Path(source), given, out, run, bar)
    return training.train_composer(options, source, given, out, run, bar)


# -- answer


@app.verb(settings=AnswerConfig, keeps="out")
def run(
    options: AnswerConfig,
    pool: PoolArgument,
    query: Annotated[str, argument("QUERY", help="What is asked.")],
    router: RouterOption = None,
    composer: ComposerOption = None,
    exclude: Exclude = None,
    out: Annotated[
        Path | None, option("--out", metavar="RUN", help="Keep the conversation in this run, for `show trace`.")
    ] = None,
) -> AnsweredQuery:
    """Answer one query with a router or a composer: the answer, every candidate with who saw what, tokens and USD."""
    if not query.strip():
        raise UserError("QUERY is empty: there is nothing to answer")
    if (router is None) == (composer is None):
        raise UserError("give --router DIR or --composer MODEL, one of them")
    held, unwanted = read_pool(pool, options.seed), exclude or ()
    key = stable_hash("query", query, options.seed)[:12]
    settings = {"settings": CallConfig(temperature=options.temperature, max_tokens=options.max_tokens).to_json()}
    kept = None if out is None else Run.begin(out, "orchestrator run", {"seed": options.seed}, settings, {"pool": held.identity})
    try:
        with progress("run", kept="finished calls are kept" if out else "nothing was written"):
            tree, asked = key if kept is None else new_tree(kept, key), [Message("user", query)]
            limits: dict[str, Any] = {"settings": options.sampling, "exclude": unwanted, "budget": options.budget}
            chat = Orchestration(held, asked, key, run=kept, tree=tree, **limits)
            if router is not None:
                from ramify.methods.orchestrator.router import TurnRouter

                made = TurnRouter.load(router)
                held.check_router(made.workers)
                return AnsweredQuery.of(wait_for(chat.concluded(answer_with(chat, made))))
            form: dict[str, Any] = {"shots": options.shots, "exclude": unwanted}
            writer = open_composer(composer or "", held, options.rounds, options.max_steps, **form)
            return AnsweredQuery.of(wait_for(chat.concluded(writer.converse(chat))))
    finally:
        if kept is not None:
            kept.close()


def _comparing(options: CompareConfig, pool: Path, tasks: Path, **given: Any) -> dict[str, int]:
    held, more = read_pool(pool, options.seed), sum(given[name] is not None for name in ("router", "composer", "source"))
    asked = read_task_set(tasks)
    workers = sum(held.available(given["exclude"] or ()))
    routed = STEPS * (given["router"] is not None)
    composed = (1 + options.rounds) * options.max_steps * (given["composer"] is not None)
    calls = 2 + workers + workers + 1 + routed + composed + (given["source"] is not None)
    simple = 0 if given["source"] is None else len(_simple(tables.read_table(given["source"]), asked, options.seed))
    return {"answers": (4 + more + simple) * len(asked), "calls": (calls + simple) * len(asked)}


def _simple(known: tables.RewardTable, asked: TaskSet, seed: int) -> list[BaselineRouter]:
    """The simple routers of a table, fitted to its tasks that are not asked."""
    names = {task.id for task in asked}
    return fit_baselines(tables.subset(known, [i for i, name in enumerate(known.tasks) if name not in names]), seed)


@app.study("eval", settings=CompareConfig, plan=_comparing, unit="answers")
def eval_(
    options: CompareConfig,
    pool: PoolArgument,
    tasks: Tasks,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    bar: Progress,
    router: RouterOption = None,
    composer: ComposerOption = None,
    source: Annotated[
        Path | None,
        option(
            "--table",
            metavar="SOURCE",
            help="Rewards of other samples (a run of `collect`): adds the oracle of its tasks, and simple routers fitted to the "
            "others.",
        ),
    ] = None,
    exclude: Exclude = None,
) -> SystemsCompared:
    """Compare a router and a composer with the best single worker, random choice, majority, a fixed mixture, and (with --table)
    cheapest, Elo, kNN and matrix factorisation, on the same samples, at their cost."""
    held, asked, judge, unwanted = read_pool(pool, options.seed), read_task_set(tasks), find_judge(options.judge), exclude or ()
    known, allowed = None if source is None else tables.read_table(source), held.available(unwanted)
    first = held.best(options.best, unwanted) if options.best else _best(held, known, allowed)
    compared = [
        systems.single(held, first),
        systems.at_random(held, options.seed),
        systems.majority(held),
        systems.mixture(held, first, allowed),
    ]
    parts = {"pool": held.identity, "tasks": asked.hash, "judge": judge.identity}
    if router is not None:
        from ramify.methods.orchestrator.router import TurnRouter

        loaded = TurnRouter.load(router)
        held.check_router(loaded.workers)
        parts["router"] = loaded.identity
        compared.append(systems.routed(loaded))
    if composer is not None:
        form: dict[str, Any] = {"fallback": first, "shots": options.shots, "exclude": unwanted}
        composing = open_composer(composer, held, options.rounds, options.max_steps, **form)
        parts["composer"] = composing.policy.identity.weights
        compared.append(systems.composed(composing))
    if known is not None:
        simple = _simple(known, asked, options.seed)
        compared += [systems.preferred(held, baseline, known.workers) for baseline in simple]
        if {task.id for task in asked} <= set(known.tasks):
            compared.append(systems.oracle(held, known))
        elif not simple:
            raise UserError(f"{source} knows not all tasks that are asked, so there is no oracle, and no other task to fit to")
    decides = {**options.to_json(), "best": held.names[first], "exclude": list(unwanted)}
    free = {name: decides.pop(name) for name in ("max_usd", "max_calls")}
    limits: dict[str, Any] = {"settings": options.sampling, "budget": options.budget, "exclude": unwanted}
    with Run.begin(out, "orchestrator eval", decides, free, parts) as kept:
        answered = wait_for(systems.evaluate(compared, held, asked, judge, run=kept, progress=bar, **limits))
        kept.conclude("orchestrator eval", answered.findings("orchestrator eval"))
    return replace(answered, out=str(out), spent=held.ledger.spent)


def _best(pool: ModelPool, known: tables.RewardTable | None, allowed: list[bool]) -> int:
    """The best single worker that is not excluded: by the table, else the first."""
    pairs = () if known is None else zip(known.workers, known.means().T, strict=True)
    means = {name: tables.mean_known(column) for name, column in pairs}
    return max((at for at, ok in enumerate(allowed) if ok), key=lambda at: (means.get(pool.names[at]) or 0.0, -at))


# -- show


@app.verb(keeps="source")
def show(
    what: Annotated[
        Literal["headroom", "trace"],
        argument("WHAT", help="headroom: is routing worth it? trace: who saw what in a conversation."),
    ],
    source: Annotated[
        str,
        argument(
            "SOURCE",
            help="A run; for headroom of `collect`, or any with scores of several models, or JSON lines of task, worker, reward.",
        ),
    ],
    name: Annotated[str | None, argument("TRACE", help="Name of a conversation; without, all are listed.")] = None,
    scorer: Annotated[
        str | None, option("--scorer", metavar="NAME", help="Of headroom: whose scores of the run count; default: the only one.")
    ] = None,
    seed: Annotated[int | None, option("--seed", help="Of headroom: decides how the repeats are halved; default: 0.")] = None,
) -> Headroom | ConversationList | ConversationTrace:
    """Is routing worth it: the best single worker against a perfect choice per task, cross-fitted over the repeats? Or who saw
    what: the calls of a conversation with the messages each worker was shown."""
    if what == "trace":
        only_for("show trace", scorer=scorer, seed=seed)
        return views.trace(find_run(source), name)
    if name is not None:
        raise UserError(f"headroom is of a whole table: '{name}' is one argument too many")
    held = tables.headroom(tables.read_table(Path(source), scorer), seed or 0)
    why = conclude(Path(source), "orchestrator show", [held.finding("orchestrator show")])
    return replace(held, caveats=(why,) if why else ())
