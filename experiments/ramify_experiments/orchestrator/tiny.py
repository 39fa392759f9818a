"""Section 7(a) A3: four real character models, each a specialist of one procedural domain,
and a router on a one-layer backbone."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ramify.base.budget import Budget
from ramify.base.seeds import generator
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.protocol import Task, TaskSet
from ramify.methods.orchestrator.algorithm import by_group, cross_fitted
from ramify.methods.orchestrator.evolution import Trial, evolve
from ramify.methods.orchestrator.pool import ModelPool, PoolWorker
from ramify.methods.orchestrator.router import TurnRouter, render
from ramify.methods.orchestrator.settings import EvolveRouterConfig, RouterFitConfig
from ramify.methods.orchestrator.table import RewardTable, begin_collect, collect_into, subset, table_of
from ramify.model.protocol import Prefix, Sampling
from ramify.score.judge import find_judge
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.train.batch import Row
from ramify_experiments.models import Course, train, word_tokenizer

DOMAINS = ("arithmetic", "reversal", "sorting", "brackets")
CHARACTERS = ["<end>", *"0123456789", *"abcdefgh", *"()[]{}", *"+%=rsk", "user:", "?"]
TOKENIZER = word_tokenizer(CHARACTERS, "?")


def problem(domain: str, rng: np.random.Generator) -> tuple[str, str]:
    """A prompt and its answer, characters apart by spaces."""
    if domain == "arithmetic":
        a, b = (int(x) for x in rng.integers(0, 10, 2))
        return f"{a} + {b} % 7 =", str((a + b) % 7)
    if domain == "reversal":
        text = [str(x) for x in rng.choice(list("abcdefgh"), 4)]
        return f"r {' '.join(text)} =", " ".join(text[::-1])
    if domain == "sorting":
        text = [str(x) for x in rng.integers(0, 10, 4)]
        return f"s {' '.join(text)} =", " ".join(sorted(text))
    opened = [int(x) for x in rng.integers(0, 3, 4)]
    return f"k {' '.join('([{'[x] for x in opened)} =", " ".join(")]}"[x] for x in opened[::-1])


def _row(text: str, reply: str) -> Row:
    given, said = TOKENIZER.encode(text), TOKENIZER.encode(f"{reply} <end>")
    return Row(np.array([*given, *said], np.int32), np.arange(len(given) + len(said)) >= len(given))


def specialist(domain: str, seed: int, steps: int) -> LocalModel:
    """Two layers of width 128, trained on its domain and a tenth of the others."""
    shape = TinyConfig(TOKENIZER.size, 128, 2, 4, 4, 32, 384, context=64, eos=(0,))
    model = TinyLM(shape, seed + DOMAINS.index(domain))

    def batch(step: int) -> list[Row]:
        rng = generator(seed, "train", domain, step)
        picked = [domain if rng.random() > 0.1 else str(rng.choice(DOMAINS)) for _ in range(48)]
        return [_row(*problem(one, rng)) for one in picked]

    train(model, batch, Course(2e-3, steps, 20, "cosine", 0.1), seed)
    return LocalModel(model, TOKENIZER, name=domain)


def backbone(seed: int, steps: int) -> LocalModel:
    """One layer, trained on all prompts."""
    model = TinyLM(TinyConfig(TOKENIZER.size, 128, 1, 4, 4, 32, 384, context=64, eos=(0,)), seed + 99)

    def batch(step: int) -> list[Row]:
        rng = generator(seed, "prompts", step)
        rows = []
        for _ in range(32):
            tokens = np.array(TOKENIZER.encode(f"user: {problem(str(rng.choice(DOMAINS)), rng)[0]}"), np.int32)
            rows.append(Row(tokens, np.arange(len(tokens)) > 0))
        return rows

    train(model, batch, Course(2e-3, steps, 20, "cosine", 0.1), seed)
    return LocalModel(model, TOKENIZER, name="backbone")


def worker(model: LocalModel) -> Callable[..., Any]:
    """The model as a plain function of messages and key: what every worker may be."""

    async def reply(messages: list[dict[str, Any]], key: int) -> str:
        tokens = np.array(TOKENIZER.encode(messages[-1]["content"]), np.int32)
        (found,) = await model.sample(Prefix(tokens=tokens), 1, Sampling(max_tokens=6), [key])
        return found.text.removesuffix("<end>").strip() or "-"

    reply.__qualname__ = model.name
    return reply


def _tasks(split: str, n: int, seed: int) -> TaskSet:
    rng, tasks = generator(seed, "tasks", split), []
    for at in range(n):
        domain = DOMAINS[at % 4]
        prompt, answer = problem(domain, rng)
        tasks.append(Task(f"{split}{at:04}", {"prompt": prompt, "answer": answer, "group": domain}))
    return TaskSet.of(tasks)


def _table(pool: ModelPool, tasks: TaskSet, n: int, folder: Path) -> RewardTable:
    judge = find_judge("exact")
    with begin_collect(folder, pool, tasks, judge, n, Sampling(max_tokens=6)) as run:
        asyncio.run(collect_into(run, pool, tasks, judge, n, Sampling(max_tokens=6), Budget()))
        return table_of(run)


def permuted(table: RewardTable, order: list[int]) -> RewardTable:
    """The same table with its workers in another order."""
    one = subset(table, range(len(table.tasks)))
    one.workers = [table.workers[i] for i in order]
    one.rewards, one.usd, one.failures = table.rewards[:, order], table.usd[:, order], [table.failures[i] for i in order]
    return one


def tiny(seed: int, steps: int = 140, tasks: int = 160, generations: int = 2, fresh: int = 160) -> dict[str, Any]:
    """Everything of A3: models, the first stage on n = 4 repeats, singular values and evolution,
    and fresh tasks to measure on."""
    torch.set_num_threads(1)
    models = [specialist(domain, seed, steps) for domain in DOMAINS]
    pool = ModelPool([PoolWorker(one.name, worker(one)) for one in models], seed=seed, cached=True)
    base = backbone(seed, max(20, steps // 2))
    with tempfile.TemporaryDirectory() as scratch:
        table = _table(pool, _tasks("train", tasks, seed), 4, Path(scratch) / "train")
        test = _table(pool, _tasks("test", fresh, seed), 4, Path(scratch) / "test")
        router = TurnRouter.of(base, list(DOMAINS), hidden_pos=-2, svf=("layers.0.mlp",))
        config = RouterFitConfig(steps=300, lr=3e-3)
        router.fit(table, config, seed)
        first = choices(router, test)
        order = [2, 0, 3, 1]
        other = TurnRouter.of(base, [DOMAINS[i] for i in order], hidden_pos=-2, svf=("layers.0.mlp",))
        other.fit(permuted(table, order), config, seed)
        followed = float(np.mean([order[b] == a for a, b in zip(first, choices(other, test), strict=True)]))
        trial = Trial(
            pool,
            _tasks("train", tasks, seed),
            EvolveRouterConfig(generations=generations, episodes=12, check=48, temperature=1.0, max_tokens=6),
            find_judge("exact"),
        )
        with Run.create(Path(scratch) / "evolve", {}) as run:
            evolved = asyncio.run(evolve(router, trial, run))
    means = test.means()
    rows, last = np.arange(len(means)), choices(router, test)
    oracle, single = cross_fitted(test.rewards, seed)
    own = {domain: float(means[[g == domain for g in test.groups], at].mean()) for at, domain in enumerate(DOMAINS)}
    return {
        "workers": own,
        "best single": float(single.mean()),
        "random": float(means.mean()),
        "oracle, cross-fitted": float(oracle.mean()),
        "best worker of each domain": float(by_group(test.rewards, test.groups, seed).mean()),
        "routed, first stage": float(means[rows, first].mean()),
        "routed": float(means[rows, last].mean()),
        "permuted": followed,
        "parameters": router.size,
        "evolution kept": evolved.kept,
    }


def choices(router: TurnRouter, table: RewardTable) -> np.ndarray:
    """The worker chosen for each task of a table."""
    found: np.ndarray = router.choices([render([Message("user", prompt)]) for prompt in table.prompts]).argmax(axis=1)
    return found
