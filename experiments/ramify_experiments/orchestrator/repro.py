"""Reproduction on two CPU cores (section 7(a)): the router and the composer on simulated workers,
and a router over real tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.orchestrator.algorithm import cross_fitted, population, recombination, soft_targets
from ramify_experiments.lab import Checks, ResultCache, columns, sized
from ramify_experiments.orchestrator.composing import composing
from ramify_experiments.orchestrator.routing import routing
from ramify_experiments.orchestrator.tiny import tiny

BUDGETS = (6_720, 20_160, 80_640)
"""Episodes: 20, 60 and 240 times 21 candidates of 16."""


@sized("orchestrator", quick=1, cpu=3)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a) A1, A2, A3 and the closed forms of section 8. ``quick``: one seed of A1 and of A2 with a third of the updates
    and looser thresholds, without A3."""
    quick = size == "quick"
    checks = _exact(seeds)
    checks += _routing(cells, seeds, quick)
    checks += _composing(cells, seeds, quick)
    if not quick:
        checks += _tiny(cells, seeds[:1])
    return checks


def _exact(seeds: Sequence[int]) -> Checks:
    checks = Checks(seeds[:1])
    wanted = np.array([0.6652, 0.2447, 0.0900])
    checks.worst("exact: soft targets, largest error", np.abs(soft_targets(np.array([1, 0.5, 0]), 0.5) - wanted), "<=", 5e-5)
    sizes = [abs(population(n, up) - k) for n, up, k in ((10_000, True, 32), (320, False, 21), (19_456, True, 34))]
    checks.worst("exact: candidates of a generation, largest error", sizes, "==", 0)
    weights = np.array([0.328, 0.222, 0.160, 0.116, 0.081, 0.053, 0.030, 0.009])
    checks.worst("exact: weights of recombination, largest error", np.abs(recombination(8) - weights), "<=", 6e-4)
    rewards = (generator(seeds[0], "equal workers").random((20_000, 5, 5)) < 0.7).astype(float)
    checks.value("exact: five equal workers, one sample each, the naive oracle", rewards[:, :, 0].max(axis=1).mean(), 20_000)
    naive = rewards.mean(axis=2).max(axis=1).mean()
    checks.value("exact: the same of five samples, distance from .9156", abs(naive - 0.9156), 20_000, "<=", 0.005)
    oracle, _ = cross_fitted(rewards, seeds[0], 4)
    checks.value("exact: the same cross-fitted, distance from .70", abs(float(oracle.mean()) - 0.7), 20_000, "<=", 0.005)
    return checks


def _routing(cells: ResultCache, seeds: Sequence[int], quick: bool) -> Checks:
    """A1."""
    checks = Checks(seeds)
    budgets = [BUDGETS[1]] if quick else list(BUDGETS)
    found = columns(cells.grid(routing, {"A1": {"budgets": budgets}}, seeds)["A1"])
    for name in found:
        checks.mean(f"A1: {name}", found[name])
    single, step = np.array(found["best single"]), BUDGETS[1]
    checks.mean("A1: single step, SFT - oracle", np.subtract(found["single-step sft"], found["single-step oracle"]), ">=", -0.03)
    checks.mean("A1: whole episodes, SFT - best single", found["sft"] - single, "<=", 0.0)
    checks.mean("A1: evolution - best single, 20,160 episodes", found[f"es {step}"] - single, ">=", 0.08)
    searched = np.subtract(found[f"es {step}"], found[f"random search {step}"])
    checks.mean("A1: evolution - random search, 20,160 episodes", searched, ">=", 0.10)
    for episodes in budgets:
        difference = np.subtract(found[f"es {episodes}"], found[f"reinforce {episodes}"])
        checks.mean(f"A1: evolution - REINFORCE, {episodes:,} episodes", difference)
    return checks


def _composing(cells: ResultCache, seeds: Sequence[int], quick: bool) -> Checks:
    """A2."""
    checks = Checks(seeds)
    scale: dict[str, Any] = {"updates": 100} if quick else {}
    arms: dict[str, dict[str, Any]] = {"A2": scale, "A2 structureless": {"start": "structureless", **scale}}
    found = cells.grid(composing, arms, seeds)
    if not quick:
        found |= cells.grid(composing, {"A2 none": {"start": "none"}, "A2 all visible": {"visible": True}}, seeds[:1])
    full, plain = found["A2"], found["A2 structureless"]
    single, routed = ([one[name] for one in full] for name in ("single", "routed"))
    right = np.array([one["end"]["right"] for one in full])
    for name, values in (
        ("best single", single),
        ("route to the best", routed),
        ("after the warm start", [one["warm"]["right"] for one in full]),
    ):
        checks.mean(f"A2: {name}", values)
    for name in full[0]["hand"]:
        checks.mean(f"A2: by hand, {name} and the best judge", [one["hand"][name] for one in full])
    checks.mean("A2: composed", right)
    checks.mean("A2: steps of composed plans", [one["end"]["steps"] for one in full])
    checks.mean("A2: composed - best single", right - single, ">=", 0.10 if quick else 0.20)
    checks.mean("A2: composed - route to the best", right - routed, ">=", 0.0 if quick else 0.05)
    checks.mean(
        "A2: the same plans all visible - isolated", [one["end"]["visible"] - one["end"]["right"] for one in full], "<=", -0.05
    )
    checks.mean("A2: parse rate", [one["end"]["parsed"] for one in full], ">=", 0.95 if quick else 0.99)
    checks.mean("A2: steps from a structureless start", [one["end"]["steps"] for one in plain], "<=", 1.5)
    over = [one["end"]["right"] - one["routed"] for one in plain]
    checks.mean("A2: structureless start - route to the best", over, "<=", 0.02)
    if not quick:
        for name in ("A2 none", "A2 all visible"):
            one = Checks(seeds[:1])
            for what in ("right", "steps", "parsed"):
                one.mean(f"{name.replace('A2', 'A2:')}, {what}", [x["end"][what] for x in found[name]])
            checks += one
    return checks


def _tiny(cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """A3."""
    checks = Checks(seeds)
    found = columns(cells.grid(tiny, {"A3": {}}, seeds)["A3"])
    for name in ("best single", "random", "oracle, cross-fitted", "routed, first stage", "routed", "best worker of each domain"):
        checks.mean(f"A3: {name}", found[name])
    for name, values in sorted(found["workers"][0].items()):
        checks.value(f"A3: accuracy of the model of {name} on its own domain", values, 1)
    routed = np.array(found["routed"])
    checks.mean("A3: routed - best single", routed - found["best single"], ">=", 0.15)
    checks.mean("A3: routed - cross-fitted oracle", routed - found["oracle, cross-fitted"], ">=", -0.05)
    checks.mean(
        "A3: choices that follow when the workers are permuted and the router is trained again", found["permuted"], ">=", 0.95
    )
    checks.mean("A3: parameters of head and scales", found["parameters"])
    return checks
