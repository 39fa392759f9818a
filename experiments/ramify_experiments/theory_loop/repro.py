"""Reproduction on two CPU cores (section 7(a)): hidden rules recovered by the loop with scripted roles,
the dial, the gate, the three hypotheses."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.theory_loop.algorithm import LoopConfig, MetricEstimate, candidate_loss, mse_pb, welch_p
from ramify.methods.theory_loop.bench import TheoryBench
from ramify.methods.theory_loop.canonical import CANONICAL
from ramify.methods.theory_loop.confirmation import LAPSE, level_shift, steep_flat, t_test
from ramify.methods.theory_loop.domain import Design, hilbig
from ramify.methods.theory_loop.loop import loop_of, pool_of, predictions
from ramify.methods.theory_loop.proposer import BINARY
from ramify.methods.theory_loop.theories import Theory
from ramify.stats.intervals import clopper_pearson
from ramify.trace.db import Run
from ramify_experiments.lab import Checks, ResultCache, columns, sized

TRUTHS = ("ttb", "tallying", "wadd")
DRAWS = 100
"""Parameter draws of a theory's proportions of B choices, with one choice a stimulus each."""
EXACT = 4000
"""Parameter draws of the hidden rule's own proportions, its probabilities averaged:
it is what they are compared with, without noise."""
QUICK = {"rounds": 3, "iterations": 6, "searched": 30}


def recovered(seed: int, truth: str, designer: str = "adversarial", noise: float = 0.0, **more: Any) -> dict[str, Any]:
    """One loop with a hidden rule, the other two as seeds; errors on the 24 stimuli against the rule without noise."""
    config = LoopConfig(participants=f"simulated:{truth}", designer=designer, noise=noise, seed=seed, **more)
    specs = [one for one in TRUTHS if one != truth]
    with tempfile.TemporaryDirectory() as folder:
        found = loop_of(config, specs, Path(folder) / "run")
        with Run.open(Path(folder) / "run") as run:
            pool = pool_of(run)

    async def errors() -> dict[str, Any]:
        async with TheoryBench() as bench:
            reference = (await bench.tables(CANONICAL[truth], [(hilbig(), EXACT)], 0, "reference"))[0].mean(axis=0)
            own = [mse_pb(await proportions(bench, pool.theories[label], seed, label), reference) for label in pool.slots]
            start = [mse_pb(await proportions(bench, CANONICAL[one], seed, one), reference) for one in specs]
            losses: dict[str, float] = {}
            for family in (*BINARY, *specs):  # without any revision: the whole-range family that loses least on the same data
                predicted = await predictions(bench, CANONICAL[family], f"baseline {family}", pool.observations, config)
                losses[family] = candidate_loss(
                    [None if one.real is None else one.real.value for one in pool.observations],
                    [None if one is None else one.value for one in predicted],
                    [[None if v is None else v.value for v in one.predictions.values()] for one in pool.observations],
                )
            chosen = min(losses, key=losses.__getitem__)
            return {
                "seeds": float(np.mean(start)),
                "survivors": float(np.mean(own)),
                "best": min(own),
                "ceiling": mse_pb(await proportions(bench, CANONICAL[truth], seed, "ceiling"), reference),
                "coin": mse_pb(np.full(len(reference), 0.5), reference),
                "baseline": mse_pb(await proportions(bench, CANONICAL[chosen], seed, "baseline"), reference),
            }

    return {**asyncio.run(errors()), "gate": found.gate.passed / found.gate.of, "problems": dict(found.problems)}


async def proportions(bench: TheoryBench, theory: Theory, seed: int, *key: str) -> np.ndarray:
    """(24,) proportion of B choices of DRAWS subjects, one choice a stimulus each."""
    order = np.tile(np.arange(hilbig().pairs), (DRAWS, 1))
    return (await bench.simulate(theory, hilbig(), DRAWS, seed, "proportions", *key, order=order)).p_b


def dial() -> dict[str, float]:
    """The share of the 24 stimuli on which weights v^gamma choose as each special case does;
    a tie on either side agrees with a tie only."""
    sure = {"beta": "[1000, 1000]", "epsilon": "[0, 0]"}

    async def sides() -> dict[str, np.ndarray]:
        async with TheoryBench() as bench:
            cases = {
                name: replace(CANONICAL[name], parameters={**CANONICAL[name].parameters, **sure})
                for name in ("tallying", "validity-wadd", "ttb")
            }
            power = CANONICAL["power-weights"]
            cases |= {str(g): replace(power, parameters={**power.parameters, **sure, "gamma": f"[{g}, {g}]"}) for g in (0, 1, 12)}
            return {name: np.round((await bench.tables(one, [(hilbig(), 2)], 0))[0][0], 2) for name, one in cases.items()}

    found = asyncio.run(sides())
    return {
        name: float(np.mean(found[gamma] == found[name]))
        for gamma, name in (("0", "tallying"), ("1", "validity-wadd"), ("12", "ttb"))
    }


def gate_rates(seed: int, n: int) -> dict[str, float]:
    """How often two theories ``d`` between-subject standard deviations apart pass:
    50 simulated subjects each, a test that assumes 25."""
    found = {}
    for d in (0.0, 0.5, 0.76, 1.0, 1.25):
        rng, passed = generator(seed, "gate", repr(d)), 0
        for _ in range(n):
            own, rival = rng.normal(size=(2, 50))
            passed += welch_p(MetricEstimate(own.mean() + d, own.var()), MetricEstimate(rival.mean(), rival.var()), 25) < 0.01
        found[f"{d:g}"] = passed / n
    return found


def hypotheses(seed: int, repeats: int) -> dict[str, float]:
    """How often H2 (n = 100) and H3 (n = 100 and 300) reject, with 30 % lapses: diminishing returns, and linear participants."""
    steep = steep_flat()
    low, high, side = level_shift(seed)
    found: dict[str, float] = {}

    async def tables(name: str, design: Design, n: int) -> np.ndarray:
        async with TheoryBench() as bench:
            return (await bench.tables(CANONICAL[name], [(design, n)], seed, "hypotheses"))[0]  # the same people see every design

    for name in ("dr-wadd", "wadd"):
        rng = generator(seed, "lapses", name)

        def chosen(p: np.ndarray, times: int, rng: np.random.Generator = rng) -> np.ndarray:
            return np.asarray(rng.binomial(times, (1 - LAPSE) * p + LAPSE / 2) / times)

        rates = 1 - chosen(asyncio.run(tables(name, steep, 100 * repeats)), 8)  # A is the low step
        found[f"H2 {name}"] = rejected(rates.mean(axis=1) - 0.5, 100)
        found[f"H2 size {name}"] = float(rates.mean())
        both = [chosen(asyncio.run(tables(name, one, 300 * repeats)), 4) for one in (low, high)]
        effects = [np.where(side[None, :] == 1, one, 1 - one).mean(axis=1) for one in both]
        shift = effects[0] - effects[1]
        found[f"H3 {name} 100"], found[f"H3 {name} 300"] = rejected(shift[: 100 * repeats], 100), rejected(shift, 300)
        found[f"H3 size {name}"] = float(shift.mean())
    return found


def rejected(values: np.ndarray, n: int) -> float:
    """The share of samples of ``n`` people whose mean is above 0 at .05, one-sided."""
    return float(np.mean([t_test(values[i : i + n])[1] < 0.05 for i in range(0, len(values), n)]))


@sized("theory-loop", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a). ``quick``: one seed, three rounds of six candidates,
    without the blind designer and the noise; looser thresholds."""
    quick = size == "quick"
    scale: dict[str, Any] = QUICK if quick else {}
    arms: dict[str, dict[str, Any]] = {f"{truth}, adversarial": {"truth": truth, **scale} for truth in TRUTHS}
    if not quick:
        arms |= {f"{truth}, blind": {"truth": truth, "designer": "blind"} for truth in TRUTHS}
    found = cells.grid(recovered, arms, seeds)
    checks = _recovery(found, seeds, quick)
    if not quick:
        few = tuple(seeds[:2])
        noisy = {f"{truth}, noise {noise:g}": {"truth": truth, "noise": noise} for truth in TRUTHS for noise in (0.5, 0.75)}
        checks += _noise(found, cells.grid(recovered, noisy, few), few)
    checks += _exact(cells, seeds[0], 2000 if quick else 20_000, 10 if quick else 100)
    return checks


def pooled(found: dict[str, list[dict[str, Any]]], arm: str, n: int | None = None) -> dict[str, list[Any]]:
    """What the runs of all three truths have, under one name each."""
    return columns([one for truth in TRUTHS for one in found[f"{truth}, {arm}"][:n]])


def _recovery(found: dict[str, list[dict[str, Any]]], seeds: Sequence[int], quick: bool) -> Checks:
    checks = Checks(seeds)
    got = pooled(found, "adversarial")
    means = {name: float(np.mean(got[name])) for name in ("seeds", "survivors", "best")}
    n = len(got["seeds"])
    checks.mean("recovery: MSE_pB of the seeds, at least", got["seeds"], ">=", 0.04 if quick else 0.055)
    checks.mean("recovery: MSE_pB of the seeds, at most", got["seeds"], "<=", 0.10 if quick else 0.080)
    checks.mean("recovery: MSE_pB of both survivors", got["survivors"])
    checks.mean("recovery: MSE_pB of the better survivor", got["best"])
    checks.value("recovery: survivors / seeds", means["survivors"] / means["seeds"], n, "<=", 0.6 if quick else 0.35)
    checks.value("recovery: better survivor / seeds", means["best"] / means["seeds"], n, "<=", 0.35 if quick else 0.15)
    checks.mean("recovery: MSE_pB, ceiling: the rule against itself", got["ceiling"])
    checks.mean("recovery: MSE_pB, floor: a coin", got["coin"])
    checks.mean("recovery: MSE_pB, baseline: the best whole-range theory on the same data", got["baseline"])
    checks.paired("recovery: better survivor - baseline", got["best"], got["baseline"])
    checks.mean("recovery: share of experiments that passed the gate", got["gate"])
    for truth in TRUTHS:
        one = columns(found[f"{truth}, adversarial"])
        checks.mean(f"recovery: MSE_pB of both survivors, {truth}", one["survivors"])
        checks.mean(f"recovery: MSE_pB of the better survivor, {truth}", one["best"])
    if not quick:
        blind = pooled(found, "blind")
        checks.mean("blind: MSE_pB of both survivors", blind["survivors"])
        checks.mean("blind: MSE_pB of the better survivor", blind["best"])
        checks.mean("blind: share of experiments that passed the gate", blind["gate"])
        checks.paired("blind: survivors, adversarial - blind", got["survivors"], blind["survivors"])
        checks.paired("blind: better survivor, adversarial - blind", got["best"], blind["best"])
    return checks


def _noise(found: dict[str, list[dict[str, Any]]], noisy: dict[str, list[dict[str, Any]]], seeds: Sequence[int]) -> Checks:
    checks = Checks(seeds)
    plain = pooled(found, "adversarial", len(seeds))["survivors"]
    for noise in ("0.5", "0.75"):
        checks.mean(f"noise: MSE_pB of both survivors, {noise}", pooled(noisy, f"noise {noise}")["survivors"])
    checks.mean("noise: MSE_pB of both survivors, none", plain)
    checks.paired("noise: survivors, 0.75 - none", pooled(noisy, "noise 0.75")["survivors"], plain, ">", 0.0)
    return checks


def _exact(cells: ResultCache, first: int, n: int, repeats: int) -> Checks:
    checks = Checks((first,))
    for name, share in cells.get("dial", dial).items():
        checks.value(f"dial: stimuli on which v^gamma chooses as {name} does", share, 24, "==", 1.0)
    rates = cells.get(f"gate {n}", gate_rates, seed=first, n=n)
    checks.share("gate: two equal theories pass", round(rates["0"] * n), n, "<=", 0.001, exact=True)
    for d, wanted in (("0.5", 0.12), ("0.76", 0.52), ("1", 0.89), ("1.25", 0.99)):
        checks.value(f"gate: pass at {d} standard deviations, distance from {wanted:g}", abs(rates[d] - wanted), n, "<=", 0.03)
    found = cells.get(f"hypotheses {repeats}", hypotheses, seed=first, repeats=repeats)
    checks.share(
        "H2: rejects at n = 100, diminishing returns", round(found["H2 dr-wadd"] * repeats), repeats, ">=", 0.99, exact=True
    )
    checks.value("H2: share of the low step, diminishing returns", found["H2 size dr-wadd"], 100 * repeats)
    checks.value("H3: size of the shift, diminishing returns", found["H3 size dr-wadd"], 300 * repeats, ">=", 0.015)
    checks.share("H3: rejects at n = 100, diminishing returns", round(found["H3 dr-wadd 100"] * repeats), repeats, exact=True)
    checks.share(
        "H3: rejects at n = 300, diminishing returns", round(found["H3 dr-wadd 300"] * repeats), repeats, ">=", 0.8, exact=True
    )
    for name in ("H2 wadd", "H3 wadd 100", "H3 wadd 300"):
        k = round(found[name] * repeats)
        checks.share(f"{name.split()[0]}: rejects, linear people{name.partition('wadd')[2] or ' 100'}", k, repeats, exact=True)
        low, high = clopper_pearson(k, repeats)
        checks.value(
            f"{name.split()[0]}: rejects, linear people{name.partition('wadd')[2] or ' 100'}, lower 95 % bound",
            low,
            repeats,
            "<=",
            0.05,
            (low, high),
        )
    return checks
