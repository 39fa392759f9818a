"""The verbs of ``ramify orchestrator`` (``serve`` is in :mod:`ramify.cli.serve`).
POOL is a TOML file of workers; TASKS are JSON lines of id and prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ramify.base.budget import Budget
from ramify.base.config import Config
from ramify.base.errors import EXIT_FAILED, UserError, nearest
from ramify.base.ids import stable_hash
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import TaskSet, read_task_set
from ramify.kit import DryRun, Json, RunArgument, Seed, Verbs, argument, find_run, option
from ramify.methods.orchestrator import table as tables
from ramify.methods.orchestrator.algorithm import STEPS, gain
from ramify.methods.orchestrator.composer import Composer, GrpoConfig
from ramify.methods.orchestrator.conversation import ANSWER, MAKER, Orchestrated
from ramify.methods.orchestrator.evolution import KIND as EVOLVE
from ramify.methods.orchestrator.evolution import EvolveRouterConfig, Trial
from ramify.methods.orchestrator.pool import ModelPool, open_model, read_pool
from ramify.methods.orchestrator.settings import POSITION, RouterFitConfig
from ramify.methods.orchestrator.views import call_of, call_text
from ramify.model.protocol import Sampling
from ramify.render.terminal import emit, progress, say
from ramify.render.text import table
from ramify.rollout.compact import approximate_tokens
from ramify.score.judge import Judge, find_judge
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Finding
from ramify.trace.sources import conclude

if TYPE_CHECKING:
    from ramify.methods.orchestrator.router import TurnRouter

app = Verbs(
    "orchestrator",
    help="Is routing between my models worth it? A learned router or composer over endpoints, local models and functions.",
)

PoolArgument = Annotated[
    Path, argument("POOL", help="TOML file: [[workers]] with name, model, and optional price, context, tags.")
]
PoolOption = Annotated[Path, option("--pool", metavar="POOL", help="TOML file of workers.")]
Tasks = Annotated[
    Path, option("--tasks", metavar="FILE", help="JSON lines: id, prompt, what the judge needs (answer), optional group.")
]
JudgeOption = Annotated[
    str,
    option(
        "--judge",
        metavar="JUDGE",
        help="Says how good an answer is, 0 to 1: exact, number, cmd:check.sh, FILE.py:FUNCTION, judge:MODEL#PROMPT.",
    ),
]
RouterOption = Annotated[Path | None, option("--router", metavar="DIR", help="A router that `train-router` or `evolve` wrote.")]
ComposerOption = Annotated[
    str | None,
    option(
        "--composer",
        metavar="MODEL",
        help="The model that writes workflows: a worker of the pool, hf:DIR, chat:MODEL@URL, FILE.py:FUNCTION.",
    ),
]
MaxSteps = Annotated[int, option("--max-steps", min=1, max=20, help="Most steps of a workflow.")]
Rounds = Annotated[int, option("--rounds", min=0, help="Further workflows a composer may write when it has seen its answer.")]
Exclude = Annotated[
    list[str] | None, option("--exclude", metavar="WORD", help="A worker's name, or a tag: never asked; repeatable.")
]
Usd = Annotated[
    float | None, option("--max-usd", min=0, help="Stop before a call that could exceed it (replies counted at --max-tokens).")
]
MaxCalls = Annotated[int | None, option("--max-calls", min=1, help="Most calls of workers.")]
Source = Annotated[
    Path,
    argument("SOURCE", help="A run of `collect`, any run with scores of several models, or JSON lines of task, worker, reward."),
]
Scorer = Annotated[str | None, option("--scorer", metavar="NAME", help="Whose scores of the run count; default: the only one.")]


class CallConfig(Config):
    """How workers are asked."""

    temperature: float = Field(0.7, ge=0)
    """Of the workers' replies."""
    max_tokens: int = Field(1024, ge=1)
    """Longest reply."""

    @property
    def sampling(self) -> Sampling:
        """As workers take it."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


def _judge(spec: str) -> Judge:
    return find_judge(spec)


def _budget(usd: float | None, calls: int | None) -> Budget:
    return Budget({"money": usd, "calls": None if calls is None else float(calls)})


def _estimate(pool: ModelPool, tasks: TaskSet, calls_a_worker: float, max_tokens: int) -> dict[str, Any]:
    given = sum(approximate_tokens(tables.prompt_of(task)) + 4 for task in tasks) * calls_a_worker
    sampled = len(tasks) * calls_a_worker * max_tokens
    worst = sum(pool.cost(worker, given, sampled) for worker in range(len(pool)))
    return {"calls": int(len(tasks) * len(pool) * calls_a_worker), "usd_at_most": worst}


@app.verb(settings=CallConfig)
def pool_check(options: CallConfig, pool: PoolArgument, as_json: Json = False) -> None:
    """Ask every worker of a pool for one word: who answers, how fast, at which price. Exit code 1 where one does not answer."""
    held = read_pool(pool)
    settings = Sampling(temperature=options.temperature, max_tokens=min(16, options.max_tokens))

    async def ask() -> list[Any]:
        asked = [Message("user", "Say ok.")]
        return list(await asyncio.gather(*(held.call(w, asked, settings, ("pool-check",)) for w in range(len(held)))))

    with progress("pool-check", as_json=as_json, kept="nothing was written"):
        found = wait_for(ask())
    rows = [
        {
            "worker": one.name,
            "model": one.model if isinstance(one.model, str) else "",
            "says": call.text[:40],
            "seconds": call.seconds,
            "usd": call.usd,
            "failure": call.failure or None,
            "why": call.why or None,
            "tags": sorted(one.tags),
        }
        for one, call in zip(held.workers, found, strict=True)
    ]
    failed = [row for row in rows if row["failure"]]
    text = table(
        ["worker", "answers", "seconds", "USD", "failure", "why"],
        [[r["worker"], r["says"], r["seconds"], r["usd"], r["failure"] or "", (r["why"] or "")[:80]] for r in rows],
    )
    emit({"workers": rows, "failed": len(failed)}, as_json, text)
    if failed:
        raise SystemExit(EXIT_FAILED)


@app.verb(settings=CallConfig)
def collect(
    options: CallConfig,
    pool: PoolArgument,
    tasks: Tasks,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    judge: JudgeOption = "exact",
    n: Annotated[int, option("--n", min=1, help="Repeats of every worker on every task; headroom needs 5.")] = 8,
    max_usd: Usd = None,
    max_calls: MaxCalls = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Ask every worker every task several times, and keep replies, scores, tokens and USD.
    The same command continues and retries failures."""
    held, made, chosen = read_task_set(tasks), read_pool(pool, seed), _judge(judge)
    for task in held:
        tables.prompt_of(task)
    if dry_run:
        cost = _estimate(made, held, n, options.max_tokens)
        emit({"settings": options.to_json(), "plan": cost}, as_json, table(["at most", ""], list(cost.items())))
        return
    budget = _budget(max_usd, max_calls)
    with (
        tables.begin_collect(out, made, held, chosen, n, options.sampling) as run,
        progress("collect", 0, "calls", as_json, kept=f"every call is kept in {out}: the same command continues") as bar,
    ):
        wait_for(tables.collect_into(run, made, held, chosen, n, options.sampling, budget, bar))
        found = tables.table_of(run)
    rows = _workers(found)
    result = {"out": str(out), "tasks": len(held), "workers": rows, "spent": made.ledger.to_json()["spent"]}
    emit(result, as_json, _worker_table(rows) + f"\n\n`ramify orchestrator headroom {out}` says whether routing is worth it")


def _workers(found: tables.RewardTable) -> list[dict[str, Any]]:
    means = found.means()
    return [
        {
            "worker": name,
            "mean": tables._mean(means[:, at]),
            "usd_a_call": tables._mean(found.usd[:, at]),
            "failures": dict(found.failures[at]),
        }
        for at, name in enumerate(found.workers)
    ]


def _worker_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ["worker", "mean reward", "USD a call", "failures"],
        [[r["worker"], r["mean"], r["usd_a_call"], ", ".join(f"{n} {kind}" for kind, n in r["failures"].items())] for r in rows],
    )


@app.verb()
def headroom(source: Source, scorer: Scorer = None, seed: Seed = 0, as_json: Json = False) -> None:
    """Is routing worth it? The best single worker against a perfect choice per task,
    cross-fitted over the repeats, with its interval."""
    found = tables.headroom(tables.read_table(source, scorer), seed)
    if why := conclude(source, "orchestrator headroom", [tables.finding_of(found)]):
        say(f"warning: {why}")
    text = _worker_table(found["workers"])
    rows = [["random choice", found["random"], ""], ["best single worker", max(r["mean"] for r in found["workers"]), ""]]
    if found["groups"] is not None:
        rows.append(["best worker of each group", found["groups"]["value"], _gained(found["groups"]["gain"])])
    if found["oracle"] is not None:
        rows.append(["perfect choice, cross-fitted", found["oracle"], _gained(found["gain"])])
    text += "\n\n" + table(["who answers", "reward", "over the best single"], rows) + f"\n\n{found['says']}"
    if found["tasks_left_out"] or found["workers_left_out"]:
        text += (
            f"\nleft out for failed calls: {found['tasks_left_out']} tasks; workers: "
            f"{', '.join(found['workers_left_out']) or 'none'}"
        )
    emit(found, as_json, text)


def _gained(one: Mapping[str, Any]) -> str:
    if one["interval"] is None:
        return f"{one['value']:+.3f}"
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(one["value"], *one["interval"]) + (" tie" if one["tie"] else "")


@app.verb(settings=RouterFitConfig)
def train_router(
    options: RouterFitConfig,
    source: Source,
    out: Annotated[Path, option("--out", metavar="DIR", help="Folder of the router to write.")],
    backbone: Annotated[
        str, option("--backbone", metavar="MODEL", help="Small language model that reads the transcript: builtin or hf:DIR.")
    ] = "builtin",
    hidden_pos: Annotated[
        int, option("--hidden-pos", help="Token whose hidden state is read; negative ones count from the end.")
    ] = POSITION,
    svf: Annotated[
        list[str] | None,
        option("--svf", metavar="NAME", help="Tune the singular values of matrices with this in their name; repeatable."),
    ] = None,
    roles: Annotated[
        bool, option("--roles", help="Also choose a role each turn (Thinker, Worker, Verifier); only `evolve` trains it.")
    ] = False,
    holdout: Annotated[float, option("--holdout", min=0, max=0.9, help="Share of tasks kept back to measure on.")] = 0.2,
    scorer: Scorer = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit a router to soft targets: on which task is which worker good? Says what it gets on tasks kept back, against the best
    single worker."""
    from ramify.methods.orchestrator.router import TurnRouter

    if out.exists():
        raise UserError(f"{out} is there already: choose another folder")
    found = tables.read_table(source, scorer)
    if not all(found.prompts):
        raise UserError(f"{source} has tasks without a prompt: a router reads it")
    order = generator(seed, "holdout").permutation(len(found.tasks)).tolist()
    kept_back = sorted(order[: round(holdout * len(order))])
    router = TurnRouter.from_backbone(backbone, found.workers, hidden_pos=hidden_pos, svf=svf or [], roles=roles)
    with progress("train-router", options.steps, "steps", as_json, kept="nothing was written") as bar:
        fitted = router.fit(tables.subset(found, [i for i in order if i not in set(kept_back)]), options, seed, bar)
    measured = None if len(kept_back) < 2 else measure(router, tables.subset(found, kept_back))
    router.save(out)
    result = {"out": str(out), "parameters": router.size, "fit": fitted, "held_out": measured}
    text = (
        f"{router.size} parameters, {fitted['tasks']} tasks that tell workers apart; divergence {fitted['kl_before']:.3f} -> "
        f"{fitted['kl']:.3f}"
    )
    if measured is not None:
        text += (
            f"\non {measured['tasks']} tasks kept back: router {measured['routed']:.3f}, best single "
            f"'{measured['best_single']}' {measured['single']:.3f}, random {measured['random']:.3f}: {_gained(measured['gain'])}"
        )
    emit(result, as_json, text)


def measure(router: TurnRouter, found: tables.RewardTable) -> dict[str, Any]:
    """What the router's choices get on a table's tasks by its mean rewards, and what the best single worker gets there."""
    import numpy as np

    means = router._means(found)
    rows = np.flatnonzero(np.isfinite(means).all(axis=1))
    if len(rows) < 2:
        raise UserError("fewer than 2 tasks were kept back on which every worker answered: raise --holdout")
    from ramify.methods.orchestrator.router import render

    p = router.choices([render([Message("user", found.prompts[i])]) for i in rows])
    own, best = means[rows, p.argmax(axis=1)], int(means[rows].mean(axis=0).argmax())
    return {
        "tasks": len(rows),
        "routed": float(own.mean()),
        "single": float(means[rows, best].mean()),
        "best_single": router.workers[best],
        "random": float(means[rows].mean()),
        "gain": gain(own, means[rows, best]),
        "choices": {name: int((p.argmax(axis=1) == at).sum()) for at, name in enumerate(router.workers)},
    }


@app.verb(settings=EvolveRouterConfig)
def evolve(
    options: EvolveRouterConfig,
    router: Annotated[Path, argument("ROUTER", help="Folder that `train-router` wrote.")],
    pool: PoolOption,
    out: Annotated[Path, option("--out", metavar="DIR", help="Folder of the evolved router to write.")],
    run: Annotated[Path, option("--run", metavar="RUN", help="Run that keeps every generation, to make or to continue.")],
    tasks: Annotated[
        Path | None, option("--tasks", metavar="FILE", help="JSON lines of tasks; in an environment its own by default.")
    ] = None,
    judge: Annotated[str | None, option("--judge", metavar="JUDGE", help="Says how good an answer is; or --env.")] = None,
    env: Annotated[
        str | None, option("--env", metavar="ENV", help="Environment to play whole episodes in, the router choosing each turn.")
    ] = None,
    count: Annotated[int, option("--count", min=1, help="Tasks of an environment to play.")] = 32,
    exclude: Exclude = None,
    max_usd: Usd = None,
    max_calls: MaxCalls = None,
    as_json: Json = False,
) -> None:
    """Evolve a router on whole trajectories (separable CMA-ES, common random numbers).
    The same command continues; worse results are not kept."""
    from ramify.methods.orchestrator import evolution
    from ramify.methods.orchestrator.router import TurnRouter

    if out.exists():
        raise UserError(f"{out} is there already: choose another folder")
    if tasks is None and env is None:
        raise UserError("evolution plays tasks with --tasks and --judge, or an environment with --env: give one of them")
    made, held = TurnRouter.load(router), read_pool(pool, options.seed, cached=True)
    held.check_router(made.workers)
    held.available(exclude or ())
    environment = None
    if env is not None:
        from ramify.rollout.components import find_environment

        environment = find_environment(env)
    played = read_task_set(tasks) if tasks is not None else environment.task_set("train", count, options.seed)  # type: ignore[union-attr]
    chosen = None if judge is None else _judge(judge)
    trial = Trial(held, played, options, chosen, environment, _budget(max_usd, max_calls), exclude or ())
    decides = {**options.to_json(), "judge": judge, "env": env} | ({"exclude": exclude} if exclude else {})
    decides.pop("generations")
    parts = {"router": made.identity, "pool": held.identity, "tasks": played.hash}
    with (
        Run.begin(run, EVOLVE, decides, {"generations": options.generations}, parts) as journal,
        progress(
            "evolve",
            options.generations,
            "generations",
            as_json,
            kept=f"finished generations are kept in {run}: the same command continues",
        ) as bar,
    ):
        found = wait_for(evolution.evolve(made, trial, journal, bar))
        why = f"evolution moved the reward from {found['start']:.3f} to {found['end']:.3f} on fresh samples"
        value = None if found["gain"] is None else found["gain"]["value"]
        journal.conclude(EVOLVE, [Finding("evolved router", EVOLVE, why, value=value, unit="reward", evidence=found)])
    made.save(out)
    spent = held.ledger.to_json()
    says = why + (": kept" if found["kept"] else ": not better, so the router is as it was")
    emit(
        found | {"out": str(out), "spent": spent["spent"], "cached": spent["cached"], "says": says},
        as_json,
        f"{says}\n{held.ledger}",
    )


@app.verb(settings=GrpoConfig)
def train_composer(
    options: GrpoConfig,
    model: Annotated[str, argument("MODEL", help="The composer to train: hf:DIR, with a chat template.")],
    pool: PoolOption,
    tasks: Tasks,
    out: Annotated[Path, option("--out", metavar="DIR", help="Checkpoint folder to write.")],
    judge: JudgeOption = "exact",
    max_steps: MaxSteps = STEPS,
    max_usd: Usd = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train a model to write workflows: a warm start on random plans, then GRPO with live workers;
    an outage is never a reward of 0."""
    from ramify.engine.checkpoints import load_model, model_folder, save_model
    from ramify.methods.orchestrator import composer as composers

    folder, held, chosen = model_folder(model), read_task_set(tasks), _judge(judge)
    made = read_pool(pool, options.seed)
    if dry_run:
        calls = options.updates * options.questions * options.group * max_steps
        cost = {"plans": options.updates * options.questions * options.group, "calls_at_most": calls}
        emit({"settings": options.to_json(), "plan": cost}, as_json, table(["at most", ""], list(cost.items())))
        return
    if out.exists():
        raise UserError(f"{out} is there already: choose another folder")
    policy, template = load_model(folder)
    composer = Composer(policy, made, template, max_steps=max_steps)
    with progress("train-composer", options.warm + options.updates, "steps", as_json, kept="nothing was written") as bar:
        history = wait_for(composers.train(composer, held, chosen, options, _budget(max_usd, None), bar))
    save_model(policy, folder, out)
    spent = made.ledger.to_json()["spent"]
    rows = [[at + 1, h["reward"], h.get("parsed"), h.get("steps")] for at, h in enumerate(history)]
    shown = rows if len(rows) <= 12 else [*rows[:4], *rows[-8:]]
    emit({"out": str(out), "history": history, "spent": spent}, as_json, table(["update", "reward", "parsed", "steps"], shown))


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
    from ramify.model.protocol import context_of, sampling_of

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
    options: dict[str, Any] = {"rounds": rounds, "max_steps": max_steps, "fallback": fallback, "shots": shots}
    return Composer(policy, pool, template, settings=settings, price=price, **options)


@app.verb(settings=CallConfig)
def run(
    options: CallConfig,
    pool: PoolArgument,
    query: Annotated[str, argument("QUERY", help="What is asked.")],
    router: RouterOption = None,
    composer: ComposerOption = None,
    rounds: Rounds = 0,
    max_steps: MaxSteps = STEPS,
    shots: Annotated[bool, option(help="Show a composer worked examples.")] = True,
    exclude: Exclude = None,
    max_usd: Usd = None,
    max_calls: MaxCalls = None,
    out: Annotated[Path | None, option("--out", metavar="RUN", help="Keep the conversation in this run, for `trace`.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Answer one query with a router or a composer: the answer, every candidate with who saw what, tokens and USD."""
    from ramify.methods.orchestrator.conversation import Orchestration, answer_with, new_tree

    if not query.strip():
        raise UserError("QUERY is empty: there is nothing to answer")
    if (router is None) == (composer is None):
        raise UserError("give --router DIR or --composer MODEL, one of them")
    held = read_pool(pool, seed)
    key = stable_hash("query", query, seed)[:12]
    opened = (
        None
        if out is None
        else Run.begin(out, "orchestrator run", {"seed": seed}, {"settings": options.to_json()}, {"pool": held.identity})
    )
    try:
        with progress("run", as_json=as_json, kept="finished calls are kept" if out else "nothing was written"):
            chat = Orchestration(
                held,
                [Message("user", query)],
                key,
                settings=options.sampling,
                exclude=exclude or (),
                budget=_budget(max_usd, max_calls),
                run=opened,
                tree=key if opened is None else new_tree(opened, key),
            )
            if router is not None:
                from ramify.methods.orchestrator.router import TurnRouter

                made = TurnRouter.load(router)
                held.check_router(made.workers)
                answered = wait_for(answer_with(chat, made))
            else:
                assert composer is not None
                answered = wait_for(
                    open_composer(composer, held, rounds, max_steps, shots=shots, exclude=exclude or ()).converse(chat)
                )
    finally:
        if opened is not None:
            opened.close()
    emit(answered.to_json(), as_json, _answer_text(answered))


def _answer_text(made: Orchestrated) -> str:
    rows = [
        [
            c.step,
            c.worker,
            c.role,
            len(c.saw),
            c.result.given,
            c.result.sampled,
            c.result.usd,
            c.result.failure or " ".join(c.result.text.split())[:60],
        ]
        for c in made.calls
    ]
    text = f"{made.answer}\n\n" + table(
        ["step", "worker", "role", "messages seen", "tokens in", "tokens out", "USD", "reply"], rows
    )
    for at, plan in enumerate(made.workflows):
        text += f"\n\nworkflow {at}: " + json.dumps(plan, ensure_ascii=False)
    text += "".join(f"\n{note}" for note in made.notes)
    return (
        text
        + f"\n\n{len(made.calls)} calls, {made.tokens} tokens, {made.usd:.4g} USD"
        + (f"; trace {made.trace}" if made.trace else "")
    )


@app.verb("eval", settings=CallConfig)
def eval_(
    options: CallConfig,
    pool: PoolArgument,
    tasks: Tasks,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    judge: JudgeOption = "exact",
    router: RouterOption = None,
    composer: ComposerOption = None,
    rounds: Rounds = 0,
    max_steps: MaxSteps = STEPS,
    shots: Annotated[bool, option(help="Show a composer worked examples.")] = True,
    best: Annotated[
        str | None, option("--best", metavar="WORKER", help="The best single worker; default: by --table, else the first.")
    ] = None,
    source: Annotated[
        Path | None, option("--table", metavar="SOURCE", help="Rewards of other samples (a run of `collect`): adds the oracle.")
    ] = None,
    exclude: Exclude = None,
    max_usd: Usd = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare a router and a composer with the best single worker, random choice,
    majority and a fixed mixture, on the same samples, at their cost."""
    from ramify.methods.orchestrator import systems

    held, made, chosen = read_task_set(tasks), read_pool(pool, seed), _judge(judge)
    known = None if source is None else tables.read_table(source)
    allowed = made.available(exclude or ())
    first = _best(made, best, known, allowed)
    parts: dict[str, Any] = {"pool": made.identity, "tasks": held.hash, "judge": chosen.identity}
    compared = [
        systems.single(made, first),
        systems.at_random(made, seed),
        systems.majority(made),
        systems.mixture(made, first, allowed),
    ]
    if router is not None:
        from ramify.methods.orchestrator.router import TurnRouter

        loaded = TurnRouter.load(router)
        made.check_router(loaded.workers)
        parts["router"] = loaded.identity
        compared.append(systems.routed(loaded, STEPS))
    if composer is not None:
        composing = open_composer(composer, made, rounds, max_steps, fallback=first, shots=shots, exclude=exclude or ())
        parts["composer"] = composing.policy.identity.weights
        compared.append(systems.composed(composing))
    if known is not None:
        compared.append(systems.oracle(made, known))
    decides = {
        **options.to_json(),
        "judge": judge,
        "seed": seed,
        "best": made.names[first],
        "rounds": rounds,
        "exclude": exclude or [],
    }
    decides |= {"max_steps": max_steps} if max_steps != STEPS else {}
    asked: dict[str, Any] = {"settings": options.sampling, "budget": _budget(max_usd, None), "exclude": exclude or ()}
    with (
        Run.begin(out, "orchestrator eval", decides, {}, parts) as opened,
        progress("eval", 0, "answers", as_json, kept=f"every answer is kept in {out}: the same command continues") as bar,
    ):
        found = wait_for(systems.evaluate(compared, made, held, chosen, run=opened, progress=bar, **asked))
        opened.conclude("orchestrator eval", _findings(found))
    columns = [
        "system",
        "reward",
        "95 % interval",
        f"over {found['against']}",
        "95 % interval",
        "USD a task",
        "tokens a task",
        "unanswered",
    ]
    text = table(columns, [systems.plain_row(row) for row in found["systems"]])
    emit(found | {"out": str(out), "spent": made.ledger.to_json()["spent"]}, as_json, text)


def _best(pool: ModelPool, named: str | None, known: tables.RewardTable | None, allowed: Sequence[bool]) -> int:
    """The best single worker that is not excluded: as named, else by the table, else the first."""
    if named is not None:
        return best_named(pool, named, allowed)
    means = (
        {} if known is None else {name: tables._mean(column) for name, column in zip(known.workers, known.means().T, strict=True)}
    )
    return max((at for at, ok in enumerate(allowed) if ok), key=lambda at: (means.get(pool.names[at]) or 0.0, -at))


def best_named(pool: ModelPool, name: str, allowed: Sequence[bool]) -> int:
    """The worker of ``--best``. Raises UserError where there is none of that name, and where it is excluded."""
    if not allowed[pool.index(name)]:
        raise UserError(f"--best '{name}' is excluded: name another worker")
    return pool.index(name)


def _findings(found: Mapping[str, Any]) -> list[Finding]:
    made = []
    for row in found["systems"]:
        if row["gain"] is not None and row["system"] in ("router", "composer"):
            word = "ties with" if row["gain"]["tie"] else "beats" if row["gain"]["value"] > 0 else "loses to"
            why = (
                f"the {row['system']} {word} {found['against']}: {row['gain']['value']:+.3f} at {row['tokens_a_task']:.0f} "
                "tokens a task"
            )
            made.append(
                Finding(
                    f"{row['system']} compared",
                    "orchestrator eval",
                    why,
                    value=row["gain"]["value"],
                    unit="reward",
                    evidence=dict(row),
                )
            )
    return made


@app.verb()
def trace(
    run: RunArgument,
    name: Annotated[str | None, argument("TRACE", help="Name of a conversation; without, all are listed.")] = None,
    as_json: Json = False,
) -> None:
    """Who saw what: the calls of a conversation in order, each with the messages its worker was shown,
    its reply, tokens and USD."""
    with Run.open(find_run(run)) as opened:
        ends = {one.node: one.value for one in opened.annotations(name=ANSWER, maker=MAKER)}
        infos = {info.name: info for info in opened.trees()}
        if name is None:
            answered = {opened.node(node).tree: value for node, value in ends.items()}
            rows = [
                {"trace": tree, "prompt": str((info.task.get("data") or {}).get("prompt", "")), **_sums(answered.get(tree))}
                for tree, info in infos.items()
            ]
            emit(
                {"traces": rows},
                as_json,
                table(
                    ["trace", "prompt", "tokens", "USD"], [[r["trace"], r["prompt"][:60], r["tokens"], r["usd"]] for r in rows]
                ),
            )
            return
        if name not in infos:
            raise UserError(f"{opened.folder} has no conversation '{name}' ({nearest(name, infos)})")
        calls = [call_of(opened, node, ends) for node in opened.tree(name).nodes.values() if node.role == "assistant"]
    calls.sort(key=lambda one: one["number"])
    text = "\n\n".join(call_text(one) for one in calls)
    emit({"trace": name, "calls": calls}, as_json, text or "no call was made")


def _sums(value: Any) -> dict[str, Any]:
    known = value if isinstance(value, Mapping) else {}
    return {"tokens": known.get("tokens"), "usd": known.get("usd")}
