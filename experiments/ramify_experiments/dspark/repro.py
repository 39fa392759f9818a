"""Reproduction 7(a): three procedural domains, a small target, drafters of each kind, calibration,
schedules on the recorded rounds.

Every drafter is trained on the same text sampled by the target and measured on the same prompts.
Axis legend: P prompts, G = gamma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.seeds import derive_key
from ramify.engine.schedules import ranked, rates, schedule_of, survival, until_loss
from ramify.methods.dspark.algorithm import (
    StepCosts,
    halves,
    logits_of,
    scaled,
    sequential_temperatures,
    simulate,
)
from ramify.methods.dspark.rounds import KeptRounds, Rounds, conditional_acceptance, joined
from ramify.stats.checks import Check
from ramify.stats.intervals import bootstrap
from ramify_experiments.dspark.domains import DOMAINS, prompts
from ramify_experiments.dspark.lab import GIVEN, DrafterLab
from ramify_experiments.lab import Checks, ResultCache, Wanted, sized

BLOCK = 7
SEED = 0
"""The first seed of target, text and drafters: results of one seed alone are of this one.
All are shifted by the first one requested."""
_PARALLEL = {"sequences": 2400, "steps": 3000}
VARIANTS: dict[str, dict[str, Any]] = {
    "DSpark, 2 layers": {"kind": "dspark", "layers": 2, "rank": 32, **_PARALLEL},
    "DSpark, 5 layers": {"kind": "dspark", "layers": 5, "rank": 32, **_PARALLEL},
}
"""Other sizes of DSpark."""
DRAFTERS: dict[str, dict[str, Any]] = {
    "DSpark": {"kind": "dspark", "layers": 3, "rank": 32, **_PARALLEL},
    "DFlash": {"kind": "dflash", "layers": 3, **_PARALLEL},
    "Eagle3": {"kind": "eagle3", "sequences": 600, "steps": 1200},
    "Eagle3, equal positions": {"kind": "eagle3", "sequences": 2400, "steps": 818},
    **VARIANTS,
}
"""What is trained. 818 steps of Eagle3 (616 positions a sequence) supervise as many positions as 3,000 of the others (168)."""
COMPARED = ("DSpark", "DFlash")
"""At the quick size only these are trained."""
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"target": {}, "prompts": 120, "tokens": 64, "simulated": 600, "rivals": 10, "loads": (1, 4, 16, 64, 256)},
    "quick": {
        "target": {"layers": 2, "width": 48, "steps": 150, "length": 64},
        "drafters": {"sequences": 240, "steps": 100, "layers": 1, "anchors": 12},
        "prompts": 24,
        "tokens": 40,
        "simulated": 100,
        "loads": (1, 16, 64),
    },
}

Statistic = Callable[[np.ndarray], np.ndarray]
"""Ratios [samples, parts] -> [samples]."""
Measured = Mapping[str, Mapping[str, Rounds]]
"""Drafter -> domain -> rounds."""


def _ratio(over: Callable[[Rounds], tuple[np.ndarray, np.ndarray]], rounds: Rounds, prompts: int) -> np.ndarray:
    """Sums of a numerator and a denominator over the rounds of each prompt, float [2, P]."""
    return np.stack([np.bincount(rounds.prompt, part, prompts) for part in over(rounds)])


def tokens(rounds: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """What tau is the ratio of: tokens and rounds."""
    return rounds.emitted.astype(float), np.ones(len(rounds))


def acceptance(k: int) -> Callable[[Rounds], tuple[np.ndarray, np.ndarray]]:
    """What the conditional acceptance at position k (from 1) is the ratio of."""

    def both(rounds: Rounds) -> tuple[np.ndarray, np.ndarray]:
        reached = (rounds.proposed >= k) & (rounds.accepted >= k - 1)
        return (reached & (rounds.accepted >= k)).astype(float), reached.astype(float)

    return both


def resampled(
    parts: Sequence[tuple[Callable[[Rounds], tuple[np.ndarray, np.ndarray]], Rounds]],
    statistic: Statistic,
) -> tuple[float, tuple[float, float]]:
    """A statistic of ratios, and its 95 % bootstrap interval over prompts.

    Each part is a ratio over the rounds of a drafter in a domain; prompt i is resampled in all parts at once, so drafters are
    paired. ``statistic`` maps ratios [samples, parts] to [samples].
    """
    prompts = max(int(rounds.prompt.max()) + 1 for _, rounds in parts)
    sums = np.stack([_ratio(over, rounds, prompts) for over, rounds in parts])  # [parts, 2, P]

    def of(picks: np.ndarray) -> np.ndarray:
        sampled = sums[:, :, picks.astype(int)].sum(axis=-1)  # [parts, 2, samples]
        return statistic((sampled[:, 0] / np.maximum(sampled[:, 1], 1)).T)

    whole = float(of(np.arange(prompts)[None])[0])
    return whole, bootstrap(np.arange(prompts), of)


class Ratios(Checks):
    """Checks of statistics of ratios, with their intervals over prompts; see :func:`resampled`."""

    def ratio(
        self, name: str, parts: Sequence[Any], statistic: Statistic, op: str = "report", limit: float | None = None
    ) -> None:
        """One statistic of ``parts``."""
        value, interval = resampled(parts, statistic)
        self.value(name, value, min(len(rounds) for _, rounds in parts), op, limit, interval)


def acceptance_checks(found: Measured, quick: bool) -> Checks:
    """The first three thresholds of section 7(a), and tau of every drafter and domain."""
    checks = Ratios((SEED,))
    for name, by_domain in found.items():
        for domain, rounds in by_domain.items():
            checks.ratio(f"{name}: tokens a pass, {domain}", [(tokens, rounds)], _mean)
        checks.ratio(f"{name}: tokens a pass, macro", [(tokens, by_domain[domain]) for domain in DOMAINS], _mean)
    checks += compared(found, quick)
    for name in (name for name in VARIANTS if name in found):
        both = [(tokens, found[one][domain]) for one in (name, "DFlash") for domain in DOMAINS]
        checks.ratio(f"{name}, over DFlash of 3: tokens a pass, macro", both, _over)
    for name, by_domain in () if quick else found.items():
        for domain, rounds in by_domain.items():
            for k in range(1, BLOCK + 1):
                checks.ratio(f"{name}: acceptance at position {k}, {domain}", [(acceptance(k), rounds)], _mean)
    return checks


def compared(found: Measured, quick: bool, seed: int = SEED) -> Checks:
    """DSpark compared with DFlash: tokens a pass, and acceptance at the first position and at late ones."""
    checks = Ratios((seed,))
    both = [(tokens, found[name][domain]) for name in COMPARED for domain in DOMAINS]
    checks.ratio("DSpark over DFlash: tokens a pass, macro", both, _over, ">=", 1.03 if quick else 1.10)
    for domain in DOMAINS:
        first = [(acceptance(1), found[name][domain]) for name in COMPARED]
        title = f"DSpark and DFlash: distance at position 1, {domain}"
        checks.ratio(title, first, lambda r: abs(_gain(r)), "<=", 0.15 if quick else 0.08)
    late = (2, 3, 4) if quick else (5, 6, 7)  # a drafter trained for seconds seldom gets further
    for where in (*DOMAINS, "all"):
        some = [domain for domain in DOMAINS if where in (domain, "all")]
        parts = [(acceptance(k), found[name][domain]) for name in COMPARED for domain in some for k in late]
        wanted = (">=", 0.03 if quick else 0.10) if where in (("all",) if quick else ("code", "chat")) else ()
        checks.ratio(f"DSpark - DFlash: acceptance at positions {late[0]} to {late[-1]}, {where}", parts, _gain, *wanted)
    return checks


def seed_checks(by_seed: Mapping[int, Measured]) -> Checks:
    """:func:`compared` of each seed of target, text and drafters, and the means over seeds with their Student intervals.

    The thresholds are judged on the means, too: prompts resampled within a seed say nothing of another target.
    """
    checks = Checks(tuple(by_seed))
    for same in zip(*(compared(found, False, seed) for seed, found in by_seed.items()), strict=True):
        checks += [replace(one, name=f"{one.name}, seed {one.seeds[0]}", op="report", threshold=None) for one in same]
        checks.mean(f"{same[0].name}, mean over seeds", [one.value for one in same], same[0].op, same[0].threshold)
    return checks


def _mean(r: np.ndarray) -> np.ndarray:
    return np.asarray(r.mean(axis=1))


def _over(r: np.ndarray) -> np.ndarray:
    first, second = np.split(r, 2, axis=1)
    return np.asarray(first.mean(axis=1) / second.mean(axis=1))


def _gain(r: np.ndarray) -> np.ndarray:
    first, second = np.split(r, 2, axis=1)
    return np.asarray(first.mean(axis=1) - second.mean(axis=1))


# -- calibration


def _rounds(kept: Any) -> Rounds:
    return codec.from_json(KeptRounds, kept, "recorded rounds").rounds()


def calibration_cell(rounds: dict[str, Any], heat: float) -> dict[str, Any]:
    """Temperatures fitted on half of the rounds with confidence logits times ``heat``, and the errors of the other half.

    Means over positions: before (with the heat), after, the floor, AUROC; and the temperatures.
    """
    found, before, after = scaled(_rounds(rounds), heat)
    return {
        "temperatures": found.tolist(),
        "before": [one.error for one in before],
        "after": [one.error for one in after],
        "floor": [one.floor for one in after],
        "ranking": [one.ranking for one in after],
        "n": after[0].n,
    }


def calibration_checks(plain: dict[str, Any], heated: dict[str, Any], quick: bool) -> Checks:
    """What scaling does to the head as trained, and to one whose logits were doubled."""
    checks, n = Checks((SEED,)), heated["n"]
    for name, cell in (("as trained", plain), ("logits doubled", heated)):
        for key, shown in (("before", "before scaling"), ("after", "after scaling"), ("floor", "of a perfect predictor")):
            title = f"calibration, {name}: error {shown}"
            checks.value(title, np.mean(cell[key]), cell["n"])
            for k in () if quick else range(BLOCK):
                checks.value(f"{title}, position {k + 1}", cell[key][k], cell["n"])
        checks.value(f"calibration, {name}: AUROC", np.nanmean(np.array(cell["ranking"], float)), cell["n"])
    left = np.mean(heated["after"]) / np.mean(heated["before"])
    checks.value("calibration, logits doubled: error after over before", left, n, "<=", 0.8 if quick else 0.5)
    found = np.exp(np.mean(np.log(heated["temperatures"])))
    checks.value("calibration, logits doubled: mean temperature found", found, n)
    return checks


# -- schedules


def simulation_cell(rounds: dict[str, Any], stair: int, requests: int, steps: int, seed: int) -> dict[str, list[float]]:
    """Throughput over no drafting, and drafts verified per request and step, of every schedule at one load.

    The drafter's confidences are calibrated on half of the rounds; the simulation samples from the other half.
    """
    fit, test = halves(_rounds(rounds))
    temperatures = sequential_temperatures(logits_of(fit.confidence), fit)
    calibrated = 1 / (1 + np.exp(-logits_of(test.confidence) / temperatures))
    test = Rounds(test.accepted, test.proposed, test.ended, calibrated, test.prompt)
    costs, prior = StepCosts(stair=stair), conditional_acceptance(fit)
    names = [f"fixed:{k}" for k in range(1, BLOCK + 1)] + ["threshold:0.3", "threshold:0.5", "threshold:0.7", "greedy", "stale2"]
    found = {"off": [1.0, 0.0]}
    for name in names:
        one = simulate(test, schedule_of(name, BLOCK, costs, prior), costs, requests, steps, seed)
        found[name] = [one.throughput, one.budget]
    return found


def simulation_checks(
    smooth: Mapping[int, Mapping[str, list[float]]],
    stairs: Mapping[int, Mapping[str, list[float]]],
    steps: int,
    quick: bool = False,
) -> Checks:
    """The thresholds on schedules: ``smooth`` and ``stairs`` hold load -> schedule -> (throughput, budget)."""
    checks = Checks((SEED,))

    def fixed(at: Mapping[str, list[float]]) -> float:
        return max(value[0] for name, value in at.items() if name.startswith("fixed") or name == "off")

    for kind, run in (("T = 64 + B", smooth), ("staircase of 16", stairs)):
        for load, at in run.items():
            checks.value(f"{kind}, {load} requests: best fixed length", fixed(at), steps)
            for name in ("fixed:7", "threshold:0.3", "threshold:0.5", "threshold:0.7", "greedy", "stale2"):
                checks.value(f"{kind}, {load} requests: {name}", at[name][0], steps)
            checks.value(f"{kind}, {load} requests: budget of stale2", at["stale2"][1], steps)
    against = {load: at["stale2"][0] / fixed(at) for load, at in smooth.items()}
    worst, best = min(against.values()), max(value for load, value in against.items() if load >= 16)
    checks.value("stale2 over the best fixed length, at the worst load", worst, steps, ">=", 0.93 if quick else 0.97)
    checks.value("stale2 over the best fixed length, at the best load from 16", best, steps, ">=", 1.0 if quick else 1.05)
    top = max(smooth)
    checks.value(f"stale2 over fixed:7 at {top}", smooth[top]["stale2"][0] / smooth[top]["fixed:7"][0], steps, ">=", 1.2)
    margin = min(at["stale2"][0] - at["greedy"][0] for load, at in stairs.items() if load >= 16)
    checks.value("staircase: stale2 - greedy, at the worst load from 16", margin, steps, ">", 0.0)
    rises = np.diff([at["stale2"][1] for at in smooth.values()]) >= 0
    checks.value("loads at which the budget of stale2 rises", sum(rises), steps, "==", 0.0)
    return checks


# -- the whole


def target_cell(size: dict[str, Any], seed: int) -> dict[str, float]:
    """Train the target and sample its text; its cross-entropy in each domain, in nats a token."""
    import torch

    lab = DrafterLab(size, seed)
    lab.text(size.get("drafters", _PARALLEL)["sequences"])
    found: dict[str, float] = {}
    for domain in DOMAINS:
        rows = torch.from_numpy(np.stack(prompts(domain, 64, lab.recipe.length, seed, "held out"))).long()
        with torch.inference_mode():
            logits = lab.model.module(rows[:, :-1])
        found[domain] = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
    return found


def drafter_cell(size: dict[str, Any], seed: int, what: dict[str, Any]) -> dict[str, Any]:
    """Train a drafter and record its rounds: domain -> rounds."""
    lab = DrafterLab(size, seed)
    found = lab.rounds(lab.drafter(what), size["prompts"], size["tokens"])
    return {domain: codec.to_json(rounds.kept()) for domain, rounds in found.items()}


def rivals_cell(size: dict[str, Any], seed: int) -> dict[str, dict[str, float]]:
    """Tokens a pass of what transformers has: rival -> domain -> value."""
    import torch

    from ramify.methods.dspark.peers import peer
    from ramify.model.protocol import Sampling

    lab, sampled = DrafterLab(size, seed), Sampling(max_tokens=size["tokens"])
    ways = {"prompt lookup": ("prompt_lookup", None), "assistant of one layer": ("hf_assistant", lab.assistant(2400, 1500))}
    found: dict[str, dict[str, float]] = {}
    for name, (kind, helper) in ways.items():
        run = peer(lab.folder, kind, sampled, helper, BLOCK)
        found[name] = {}
        for domain in DOMAINS:
            torch.manual_seed(derive_key(seed, "dspark", "rival", name, domain))  # what transformers samples by
            starts = prompts(domain, size["rivals"], GIVEN, seed, "test")
            found[name][domain] = size["rivals"] * size["tokens"] / run(starts, size["tokens"])[1]
    return found


def lossless_cell(size: dict[str, Any], seed: int, what: dict[str, Any], samples: int) -> list[dict[str, Any]]:
    """The checks of ``verify-lossless`` on the trained pair, each with value, n, operator and threshold."""
    from ramify.methods.dspark.lossless import verify

    lab = DrafterLab(size, seed)
    given = [prompt for domain in DOMAINS for prompt in prompts(domain, 3, GIVEN, seed, "lossless")]
    found: list[dict[str, Any]] = codec.to_json(verify(lab.model, lab.drafter(what), given, seed, samples))
    return found


def first_token_distribution(search: Callable[[np.ndarray], int]) -> np.ndarray:
    """Distribution of the first token, [2], in the example of section 8: two drafts whose confidences (.8; .9 after A, 0 after B)
    are known when ``search`` picks from the rates of admitting 0, 1 or 2 of them.
    The target's distribution is (.7, .3), the drafter's (.5, .5).
    """
    p, q, speed = np.array([0.7, 0.3]), np.array([0.5, 0.5]), np.array([1.0, 0.5, 0.45])
    left = np.maximum(p - q, 0)
    distribution = np.zeros(2)
    for x, second in enumerate((0.9, 0.0)):
        _, values = ranked(survival(np.array([[0.8, second]])))
        if search(rates(values, 1, 1 / speed[: len(values) + 1])):
            stays = q[x] * min(1.0, p[x] / q[x])
            distribution[x] += stays
            distribution += (q[x] - stays) * left / left.sum()
        else:
            distribution += q[x] * p
    return distribution


def lossless_checks(found: Sequence[Mapping[str, Any]]) -> Checks:
    """The pair's checks, and the example in which a search on this step's confidences is caught, in closed form."""
    checks, example = Checks((SEED,)), Checks(())
    for c in found:
        checks.value(f"lossless, {c['name']}", c["value"], c["n"], c["op"], c["threshold"])
    searches: dict[str, tuple[Callable[[np.ndarray], int], Wanted]] = {
        "greedy": (until_loss, ("<", 1e-12)),
        "a search on this step's confidences": (lambda rate: int(np.argmax(rate)), (">", 0.1)),
    }
    for name, (search, wanted) in searches.items():
        apart = np.abs(first_token_distribution(search) - [0.7, 0.3]).sum() / 2
        example.value(f"lossless, example of section 8, {name}: distance from the target's distribution", apart, 2, *wanted)
    checks += example
    return checks


@sized("dspark", quick=1, cpu=2)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> list[Check]:
    """Section 7(a). ``cpu``: the drafters of :data:`DRAFTERS`, those of :data:`COMPARED` with two seeds; ``quick``: DSpark and
    DFlash on a smaller target, looser thresholds."""
    quick, counts = size == "quick", SIZES[size]
    drafters = {k: v | counts.get("drafters", {}) for k, v in DRAFTERS.items() if not quick or k in COMPARED}
    of = {"size": counts, "seed": seeds[0]}
    entropy = cells.map(target_cell, {"target": of})["target"]
    (found,) = _found(cells, counts, drafters, seeds[:1])
    checks = Checks((SEED,))
    for domain in DOMAINS:
        checks.value(f"target: cross-entropy, {domain}", entropy[domain], 64)
    checks += acceptance_checks(found, quick)
    if not quick:
        others = _found(cells, counts, {name: DRAFTERS[name] for name in COMPARED}, seeds[1:])
        checks += seed_checks(dict(enumerate([found, *others])))
        rivals = cells.map(rivals_cell, {"rivals": of})["rivals"]
        for name, run in rivals.items():  # transformers' own ways, as they are
            for domain, value in (*run.items(), ("macro", np.mean(list(run.values())))):
                checks.value(f"transformers, {name}: tokens a pass, {domain}", value, counts["rivals"] * counts["tokens"])
    mixed = codec.to_json(joined([found["DSpark"][domain] for domain in DOMAINS]).kept())
    heats = cells.map(calibration_cell, {f"calibration {heat}": {"rounds": mixed, "heat": heat} for heat in (1.0, 2.0)})
    checks += calibration_checks(heats["calibration 1.0"], heats["calibration 2.0"], quick)
    steps, loads = counts["simulated"], counts["loads"]
    plan = {
        f"schedules {stair} {load}": {"rounds": mixed, "stair": stair, "requests": load, "steps": steps, "seed": SEED}
        for stair in (1, 16)
        for load in loads
    }
    done = cells.map(simulation_cell, plan)
    smooth, stairs = ({load: done[f"schedules {stair} {load}"] for load in loads} for stair in (1, 16))
    checks += simulation_checks(smooth, stairs, steps, quick)
    exact = of | {"what": drafters["DSpark"], "samples": 10_000}
    checks += lossless_checks([] if quick else cells.map(lossless_cell, {"lossless": exact})["lossless"])
    return [replace(check, seeds=tuple(seeds[0] + seed for seed in check.seeds)) for check in checks]


def _found(cells: ResultCache, counts: dict[str, Any], drafters: Mapping[str, Any], seeds: Sequence[int]) -> list[Measured]:
    """Train ``drafters`` and record their rounds, seed by seed."""
    raw = cells.grid(drafter_cell, {name: {"size": counts, "what": what} for name, what in drafters.items()}, seeds)
    return [{name: {d: _rounds(r) for d, r in raw[name][i].items()} for name in drafters} for i in range(len(seeds))]
