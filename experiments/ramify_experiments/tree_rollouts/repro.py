"""Reproduction 7(a), items 1 to 5: the probability of collapse, selector and allocator on a toy,
the proxy, and training of a tabular policy."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import UUCB, TreeConfig, grpo, l1_mass, p_mix, proxy, shrunk
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify_experiments.lab import Checks, ResultCache, columns, sized
from ramify_experiments.tree_rollouts.sweep import sweep_grid
from ramify_experiments.tree_rollouts.toy import (
    ACTIONS,
    ARMS,
    BUDGET,
    MIXTURE,
    TURNS,
    ToyGrower,
    ToyPrompt,
    grow,
    make_prompts,
)

TRAINED = 90
"""Prompts that training meets."""
MAIN, TRAPS = tuple(ARMS)[:8], ("flat", "random", "uucb", *tuple(ARMS)[8:])


def collapse_cell(n: int, p: float, groups: int, seed: int) -> dict[str, float]:
    """Share of groups with mixed outcomes among simulated ones, its closed form, and their distance in standard errors."""
    k = generator(seed, "law", n, str(p)).binomial(n, p, groups)
    seen, distribution = float(((k > 0) & (k < n)).mean()), p_mix(n, p)
    return {
        "seen": seen,
        "law": distribution,
        "z": abs(seen - distribution) / math.sqrt(max(distribution * (1 - distribution), 1 / groups) / groups),
    }


def selection_cell(
    arm: str, prompts: int, seed: int, kinds: Sequence[str] = MIXTURE, budget: float = BUDGET
) -> dict[str, list[Any]]:
    """Mixed flag, L1 mass and cost of every prompt under one arm."""
    table = make_prompts(prompts, seed, kinds)
    trees = grow(table, arm, seed, budget=budget)
    return {
        "kind": [table[tree.prompt_id].kind for tree in trees],
        "mixed": [int(tree.mixed) for tree in trees],
        "l1": [l1_mass(tree.root.s, tree.root.n) for tree in trees],
        "cost": [tree.cost for tree in trees],
    }


def training_cell(arm: str, lr: float, prompts: int, updates: int, seed: int) -> list[float]:
    """Mean exact success before training and after each update: GRPO on tables, mean over leaves, sum over turns."""
    table = make_prompts(prompts, seed + 1000)
    curve = [float(np.mean([prompt.success for prompt in table.values()]))]
    for update in range(updates):
        for tree in grow(table, arm, derive_key(seed, update), f"{update}/"):
            prompt = table[tree.prompt_id]
            policy, gradient = prompt.policy, np.zeros((TURNS, ACTIONS))
            advantages = grpo([leaf.reward for leaf in tree.group])
            for leaf, advantage in zip(tree.group, advantages.tolist(), strict=True):
                actions = [int(place.text) for place in tree.path(leaf.node)[-2::-1]]
                gradient -= advantage * policy
                gradient[np.arange(TURNS), actions] += advantage
            prompt.logits = prompt.logits + lr * gradient / len(tree.group)
        curve.append(float(np.mean([prompt.success for prompt in table.values()])))
    return curve


def proxy_cell(prompts: int, selections: int, seed: int) -> dict[str, Any]:
    """Correlation of F(S) with the L1 mass after S is carried out, over random selections S of 1 to 8 expansions.

    ``within`` each prompt, and ``pooled`` over the prompts of the family.
    """
    within, scores, masses = [], [], []
    for name, prompt in make_prompts(prompts, seed, ("medium",)).items():
        rng = generator(seed, "proxy", name)
        pairs = np.array([asyncio.run(_random_selection(name, prompt, seed, rng)) for _ in range(selections)])
        scores += pairs[:, 0].tolist()
        masses += pairs[:, 1].tolist()
        if pairs[:, 0].std() > 0 and pairs[:, 1].std() > 0:
            within.append(float(np.corrcoef(pairs.T)[0, 1]))
    return {"within": within, "pooled": float(np.corrcoef(scores, masses)[0, 1]), "n": len(scores)}


async def _random_selection(name: str, prompt: ToyPrompt, seed: int, rng: np.random.Generator) -> tuple[float, float]:
    """F of random expansions of a tree of 2 attempts, and the L1 mass after them."""
    grower, task, rule = ToyGrower({name: prompt}, seed), Task(name), UUCB()
    sampler = TreeSampler(grower, TreeConfig(rule="flat", worst_attempt=TURNS), seed)
    tree = await sampler.run(task, 2 * TURNS)
    places = [place for place in tree.places.values() if place.forkable]
    at = {place.id: i for i, place in enumerate(places)}
    mu = np.array(
        shrunk([p.n for p in places], [p.s for p in places], [-1 if p.parent is None else at[p.parent] for p in places], rule)
    )
    flips = mu if 2 * tree.root.s <= tree.root.n else 1 - mu
    chosen = rng.integers(len(places), size=int(rng.integers(1, 9)))
    counts = np.bincount(chosen, minlength=len(places)).astype(float)
    policy = prompt.policy[[place.depth for place in places]]
    score = sum(proxy(counts, flips[:, None], np.ones(1), policy, tree.root.n, rule))
    for pick in chosen:
        index = int(rng.integers(10**6, 10**9))  # fresh samples each time: index names the sample
        place = places[pick]
        sampled = await (grower.attempt(name, task, index) if place is tree.root else grower.branch(name, task, place.id, index))
        tree.absorb(place.id, sampled, counted=True)
    return score, l1_mass(tree.root.s, tree.root.n)


@dataclass(frozen=True)
class _Size:
    """What one size runs, and its thresholds; the defaults are those of ``cpu``."""

    groups: int = 200_000
    prompts: int = 1200
    arms: tuple[str, ...] = MAIN
    train_arms: tuple[str, ...] = ("flat", "flat + allocator", "uucb", "uucb + allocator")
    rates: tuple[float, ...] = (0.3, 1.0, 3.0)
    updates: int = 25
    proxies: int = 60
    sweep: int = 60
    l1: float = 0.05
    entropy: float = 0.03
    mixed: float = 0.06
    hard: float = 0.08
    trained: float = 0.02


_SIZES = {
    "quick": _Size(
        groups=20_000,
        prompts=300,
        arms=("flat", "uucb", "uucb, no entropy", "uucb + allocator"),
        train_arms=("flat", "uucb + allocator"),
        rates=(1.0,),
        updates=15,
        proxies=6,
        sweep=0,
        l1=0.03,
        entropy=0.0,
        mixed=0.03,
        hard=0.02,
        trained=0.01,
    ),
    "cpu": _Size(),
}


@sized("tree-rollouts", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Run items 1 to 5 of section 7(a)."""
    plan, checks, one = _SIZES[size], Checks(seeds), Checks(seeds[:1])
    distributions = itertools.product((8, 16, 64), (0.5, 0.1, 0.01, 0.001))
    grid = {f"law n={n} p={p}": {"n": n, "p": p, "groups": plan.groups} for n, p in distributions}
    worst = max(cell["z"] for (cell,) in cells.grid(collapse_cell, grid, seeds[:1], workers=1).values())
    one.value("collapse law: largest distance over 12 cells, in standard errors", worst, plan.groups * 12, "<", 3.0)
    _selection(checks, plan, cells)
    checks += _extras(plan, cells, seeds[:1])
    _training(checks, plan, cells)
    one += checks
    return one


def _selection(checks: Checks, plan: _Size, cells: ResultCache) -> None:
    done = cells.grid(selection_cell, {arm: {"arm": arm, "prompts": plan.prompts} for arm in plan.arms}, checks.seeds)
    pooled = {arm: {name: np.concatenate(values) for name, values in columns(runs).items()} for arm, runs in done.items()}

    def gain(name: str, better: str, worse: str, what: str, threshold: float, kind: str = "") -> None:
        keep = pooled[better]["kind"] == kind if kind else slice(None)
        a, b = (pooled[arm][what][keep].astype(float) for arm in (better, worse))
        checks.paired(name, a, b, ">=", threshold)

    gain("selector: L1 mass, uucb - flat", "uucb", "flat", "l1", plan.l1)
    gain("selector: mixed on easy prompts, entropy term's share", "uucb", "uucb, no entropy", "mixed", plan.entropy, "easy")
    gain("allocator: mixed, uucb + allocator - flat", "uucb + allocator", "flat", "mixed", plan.mixed)
    gain("allocator: mixed on hard prompts, uucb + allocator - flat", "uucb + allocator", "flat", "mixed", plan.hard, "hard")
    spent = [float(arm["cost"].mean()) for arm in pooled.values()]
    checks.worst("turns a prompt, largest over arms", spent, "<=", float(BUDGET))
    for arm, found in pooled.items():
        checks.mean(f"mixed, {arm}", found["mixed"])
        for kind in MIXTURE:
            checks.mean(f"mixed, {arm}, {kind}", found["mixed"][found["kind"] == kind])
        checks.mean(f"L1 mass, {arm}", found["l1"])


def _extras(plan: _Size, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    checks, (seed,) = Checks(seeds), seeds
    found = cells.get("proxy", proxy_cell, prompts=plan.proxies, selections=40, seed=seed)
    name = "proxy: correlation of F with the L1 mass it led to"
    checks.mean(f"{name}, within a prompt", found["within"])
    checks.value(f"{name}, pooled over prompts", found["pooled"], found["n"])
    if plan.sweep:
        swept = cells.get("sweep", sweep_grid, prompts=plan.sweep, seed=seed)
        checks.value("sweep: share of 125 cells within .05 of the best L1 mass", swept["plateau"], plan.sweep)
        harder = {f"trap {arm}": {"arm": arm, "prompts": 600, "kinds": ["harder"], "budget": 2 * BUDGET} for arm in TRAPS}
        for arm, (cell,) in zip(TRAPS, cells.grid(selection_cell, harder, seeds).values(), strict=True):
            checks.mean(f"traps: mixed on harder prompts at 128 turns, {arm}", cell["mixed"])
    return checks


def _training(checks: Checks, plan: _Size, cells: ResultCache) -> None:
    """Every arm at every rate: at the main one with all seeds, at the others with three."""
    for lr in plan.rates:
        some = Checks(checks.seeds if lr == 1 else checks.seeds[:3])
        plans = {
            f"train {arm}, lr {lr:g}": {"arm": arm, "lr": lr, "prompts": TRAINED, "updates": plan.updates}
            for arm in plan.train_arms
        }
        done = dict(zip(plan.train_arms, cells.grid(training_cell, plans, some.seeds).values(), strict=True))
        for update in sorted({15, plan.updates}):
            at = {arm: [curve[update] for curve in curves] for arm, curves in done.items()}
            for arm in plan.train_arms[1:]:
                judged = arm == "uucb + allocator" and lr == 1 and update == 15
                name = f"training: success after {update} updates at lr {lr:g}, {arm} - flat"
                some.mean(name, np.subtract(at[arm], at["flat"]), *((">=", plan.trained) if judged else ()))
            name = f"training: success after {update} updates at lr {lr:g}, flat"
            some.value(name, np.mean(at["flat"]), len(some.seeds))
        checks += some
