"""Reproduction 7(a), items 1 to 5: the collapse law, selector and allocator on a toy, the proxy, and training of a tabular policy."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramify.base.seeds import generator, place_key
from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import UUCB, TreeConfig, grpo, l1_mass, p_mix, proxy, shrunk
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify.methods.tree_rollouts.toy import (
    ACTIONS,
    ARMS,
    BUDGET,
    MIXTURE,
    TURNS,
    Prompt,
    ToyGrower,
    grow,
    make_prompts,
    sweep_grid,
)
from ramify.stats.checks import Check
from ramify_experiments.lab import Cells, sized

MAIN, TRAPS = tuple(ARMS)[:8], ("flat", "random", "uucb", *tuple(ARMS)[8:])


def law_cell(n: int, p: float, groups: int, seed: int) -> dict[str, float]:
    """Share of mixed groups among simulated ones, its closed form, and their distance in standard errors."""
    k = generator(seed, "law", n, str(p)).binomial(n, p, groups)
    seen, law = float(((k > 0) & (k < n)).mean()), p_mix(n, p)
    return {"seen": seen, "law": law, "z": abs(seen - law) / math.sqrt(max(law * (1 - law), 1 / groups) / groups)}


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
        for tree in grow(table, arm, place_key(seed, update), f"{update}/"):
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


async def _random_selection(name: str, prompt: Prompt, seed: int, rng: np.random.Generator) -> tuple[float, float]:
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
        index = int(rng.integers(10**6, 10**9))  # fresh draws each time: index names the draw
        place = places[pick]
        drawn = await (grower.attempt(name, task, index) if place is tree.root else grower.branch(name, task, place.id, index))
        tree.absorb(place.id, drawn, counted=True)
    return score, l1_mass(tree.root.s, tree.root.n)


@dataclass(frozen=True)
class _Size:
    """What one size runs, and its thresholds: (L1 gain, entropy on easy, mixed gain, hard gain, training gain)."""

    groups: int
    prompts: int
    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    train_prompts: int
    train_arms: tuple[str, ...]
    rates: tuple[float, ...]
    updates: int
    proxies: int
    sweep: int
    thresholds: tuple[float, float, float, float, float]


_SIZES = {
    "quick": _Size(
        20_000, 300, (0,), ("flat", "uucb", "uucb, no entropy", "uucb + allocator"), 90, ("flat", "uucb + allocator"), (1.0,), 15, 6, 0,
        (0.03, 0.0, 0.03, 0.02, 0.01),
    ),
    "cpu": _Size(
        200_000, 1200, (0, 1, 2, 3, 4), MAIN, 90, ("flat", "flat + allocator", "uucb", "uucb + allocator"), (0.3, 1.0, 3.0), 25, 60, 60,
        (0.05, 0.03, 0.06, 0.08, 0.02),
    ),
}  # fmt: skip


@sized("tree-rollouts")
def reproduce(size: str, cells: Cells, first: int = 0) -> list[Check]:
    """Run items 1 to 5 of section 7(a)."""
    plan = replace(_SIZES[size], seeds=tuple(first + seed for seed in _SIZES[size].seeds))
    return [*_law(plan, cells), *_selection(plan, cells), *_extras(plan, cells), *_training(plan, cells)]


def _law(plan: _Size, cells: Cells) -> list[Check]:
    grid = {
        f"law n={n} p={p}": {"n": n, "p": p, "groups": plan.groups, "seed": plan.seeds[0]}
        for n, p in itertools.product((8, 16, 64), (0.5, 0.1, 0.01, 0.001))
    }
    worst = max(cell["z"] for cell in cells.map(law_cell, grid, workers=1).values())
    return [
        Check(
            "collapse law: largest distance over 12 cells, in standard errors",
            worst,
            None,
            plan.groups * 12,
            plan.seeds[:1],
            "<",
            3.0,
        )
    ]


def _selection(plan: _Size, cells: Cells) -> list[Check]:
    done = cells.grid(selection_cell, {arm: {"arm": arm, "prompts": plan.prompts} for arm in plan.arms}, plan.seeds)
    pooled = {arm: {name: np.concatenate([run[name] for run in runs]) for name in runs[0]} for arm, runs in done.items()}

    def gain(name: str, better: str, worse: str, what: str, threshold: float, kind: str = "") -> Check:
        keep = pooled[better]["kind"] == kind if kind else np.ones(len(pooled[better]["kind"]), bool)
        a, b = pooled[better][what][keep].astype(float), pooled[worse][what][keep].astype(float)
        return Check.paired(name, a, b, plan.seeds, ">=", threshold)

    l1, entropy, mixed, hard, _ = plan.thresholds
    checks = [
        gain("selector: L1 mass, uucb - flat", "uucb", "flat", "l1", l1),
        gain("selector: mixed on easy prompts, entropy term's share", "uucb", "uucb, no entropy", "mixed", entropy, "easy"),
        gain("allocator: mixed, uucb + allocator - flat", "uucb + allocator", "flat", "mixed", mixed),
        gain("allocator: mixed on hard prompts, uucb + allocator - flat", "uucb + allocator", "flat", "mixed", hard, "hard"),
    ]
    spent = [float(arm["cost"].mean()) for arm in pooled.values()]
    checks.append(Check.worst("turns a prompt, largest over arms", spent, plan.seeds, "<=", float(BUDGET)))
    for arm, columns in pooled.items():
        for kind in ("", *MIXTURE):
            keep = columns["kind"] == kind if kind else np.ones(len(columns["kind"]), bool)
            values = columns["mixed"][keep].astype(float)
            name = f"mixed, {arm}" + (f", {kind}" if kind else "")
            checks.append(Check.mean(name, values, plan.seeds))
        checks.append(Check.mean(f"L1 mass, {arm}", columns["l1"], plan.seeds))
    return checks


def _extras(plan: _Size, cells: Cells) -> list[Check]:
    found = cells.get("proxy", proxy_cell, prompts=plan.proxies, selections=40, seed=plan.seeds[0])
    name = "proxy: correlation of F with the L1 mass it led to"
    checks = [
        Check.mean(f"{name}, within a prompt", found["within"], plan.seeds[:1]),
        Check(f"{name}, pooled over prompts", found["pooled"], None, found["n"], plan.seeds[:1], "report"),
    ]
    if plan.sweep:
        grid = cells.get("sweep", sweep_grid, prompts=plan.sweep, seed=plan.seeds[0])
        name = "sweep: share of 125 cells within .05 of the best L1 mass"
        checks.append(Check(name, grid["plateau"], None, plan.sweep, plan.seeds[:1], "report"))
        keys = {
            f"trap {arm}": {"arm": arm, "prompts": 600, "seed": plan.seeds[0], "kinds": ["harder"], "budget": 2 * BUDGET}
            for arm in TRAPS
        }
        for arm, cell in zip(TRAPS, cells.map(selection_cell, keys).values(), strict=True):
            mixed = np.array(cell["mixed"], float)
            checks.append(Check.mean(f"traps: mixed on harder prompts at 128 turns, {arm}", mixed, plan.seeds[:1]))
    return checks


def _training(plan: _Size, cells: Cells) -> list[Check]:
    keys = {
        f"train {arm}, lr {lr:g}, seed {seed}": {
            "arm": arm,
            "lr": lr,
            "prompts": plan.train_prompts,
            "updates": plan.updates,
            "seed": seed,
        }
        for arm, lr in itertools.product(plan.train_arms, plan.rates)
        for seed in (plan.seeds if lr == 1 else plan.seeds[:3])
    }
    done = cells.map(training_cell, keys)
    checks = []
    for lr, update in itertools.product(plan.rates, sorted({15, plan.updates})):
        seeds = plan.seeds if lr == 1 else plan.seeds[:3]
        at = {arm: [done[f"train {arm}, lr {lr:g}, seed {seed}"][update] for seed in seeds] for arm in plan.train_arms}
        for arm in plan.train_arms[1:]:
            gains = np.subtract(at[arm], at["flat"])
            judged = arm == "uucb + allocator" and lr == 1 and update == 15
            name = f"training: success after {update} updates at lr {lr:g}, {arm} - flat"
            op, threshold = (">=", plan.thresholds[4]) if judged else ("report", None)
            checks.append(Check.mean(name, gains, seeds, op, threshold))
        name = f"training: success after {update} updates at lr {lr:g}, flat"
        checks.append(Check(name, float(np.mean(at["flat"])), None, len(seeds), seeds, "report"))
    return checks
