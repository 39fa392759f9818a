"""Reproduction 7(a): three procedural domains, a small target, drafters of each kind, calibration, schedules on the recorded rounds.

Every drafter of a seed is trained on the same text drawn by the target and measured on the same prompts. Axis legend: P prompts, G = gamma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.engine.schedules import ranked, rates, schedule_of, survival, until_loss
from ramify.methods.dspark.algorithm import (
    Rounds,
    StepCosts,
    calibration,
    conditional_acceptance,
    joined,
    logits_of,
    sequential_temperatures,
    simulate,
)
from ramify.methods.dspark.domains import DOMAINS, prompts
from ramify.stats.checks import Cells, Check
from ramify.stats.intervals import bootstrap, mean_t

BLOCK = 7
SHALLOW = "DSpark, 2 layers"
_PARALLEL = {"sequences": 2400, "steps": 3000}
DRAFTERS: dict[str, dict[str, Any]] = {
    "DSpark": {"kind": "dspark", "layers": 3, "rank": 32, **_PARALLEL},
    "DFlash": {"kind": "dflash", "layers": 3, **_PARALLEL},
    "Eagle3": {"kind": "eagle3", "sequences": 600, "steps": 1200},
    "Eagle3, equal positions": {"kind": "eagle3", "sequences": 2400, "steps": 818},
    SHALLOW: {"kind": "dspark", "layers": 2, "rank": 32, **_PARALLEL},
}
"""What is trained. 818 steps of Eagle3 (616 positions a sequence) supervise as many positions as 3,000 of the others (168)."""
COMPARED = ("DSpark", "DFlash")
"""Trained with every seed, where there are several; the others with the first."""
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
PAGE = "see docs/methods/dspark.md"

Measured = Mapping[str, Mapping[str, Mapping[str, Rounds]]]
"""Drafter -> seed -> domain -> rounds."""


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
    statistic: Callable[[np.ndarray], np.ndarray],
) -> tuple[float, tuple[float, float]]:
    """A statistic of ratios, and its 95 % bootstrap interval over prompts.

    Each part is a ratio over the rounds of a drafter in a domain; prompt i is resampled in all parts at once, so drafters are paired.
    ``statistic`` maps ratios [draws, parts] to [draws].
    """
    prompts = max(int(rounds.prompt.max()) + 1 for _, rounds in parts)
    sums = np.stack([_ratio(over, rounds, prompts) for over, rounds in parts])  # [parts, 2, P]

    def of(picks: np.ndarray) -> np.ndarray:
        drawn = sums[:, :, picks.astype(int)].sum(axis=-1)  # [parts, 2, draws]
        return statistic((drawn[:, 0] / np.maximum(drawn[:, 1], 1)).T)

    whole = float(of(np.arange(prompts)[None])[0])
    return whole, bootstrap(np.arange(prompts), of)


def acceptance_checks(found: Measured, quick: bool) -> list[Check]:
    """The first three thresholds of section 7(a), and tau of every drafter and domain."""
    pooled = {
        name: {domain: joined([rounds[domain] for rounds in by_seed.values()]) for domain in DOMAINS}
        for name, by_seed in found.items()
    }
    checks = []

    def add(
        name: str, parts: Sequence[Any], statistic: Any, op: str = "report", limit: float | None = None, who: str = "DSpark"
    ) -> None:
        value, interval = resampled(parts, statistic)
        known = tuple(int(seed) for seed in found[who])
        checks.append(Check(name, value, interval, min(len(rounds) for _, rounds in parts), known, op, limit))

    for name, by_domain in pooled.items():
        for domain, rounds in by_domain.items():
            add(f"{name}: tokens a pass, {domain}", [(tokens, rounds)], lambda r: r[:, 0], who=name)
        macro = [(tokens, by_domain[domain]) for domain in DOMAINS]
        add(f"{name}: tokens a pass, macro", macro, lambda r: r.mean(axis=1), who=name)

    def ratio(r: np.ndarray) -> np.ndarray:
        return np.asarray(r[:, :3].mean(axis=1) / r[:, 3:].mean(axis=1))

    both = [(tokens, pooled[name][domain]) for name in COMPARED for domain in DOMAINS]
    add("DSpark over DFlash: tokens a pass, macro", both, ratio, ">=", 1.03 if quick else 1.10)
    if SHALLOW in found:
        seed = next(iter(found[SHALLOW]))
        both = [(tokens, found[name][seed][domain]) for name in (SHALLOW, "DFlash") for domain in DOMAINS]
        add(f"{SHALLOW}, over DFlash of 3: tokens a pass, macro", both, ratio, who=SHALLOW)
    for domain in DOMAINS:
        first = [(acceptance(1), pooled[name][domain]) for name in COMPARED]
        limit = 0.15 if quick else 0.08
        add(f"DSpark and DFlash: distance at position 1, {domain}", first, lambda r: abs(r[:, 0] - r[:, 1]), "<=", limit)
    late = (2, 3, 4) if quick else (5, 6, 7)  # a drafter trained for seconds seldom gets further

    def gain(r: np.ndarray) -> np.ndarray:
        half = r.shape[1] // 2
        return np.asarray(r[:, :half].mean(axis=1) - r[:, half:].mean(axis=1))

    for where in (*DOMAINS, "all"):
        some = [domain for domain in DOMAINS if where in (domain, "all")]
        parts = [(acceptance(k), pooled[name][domain]) for name in COMPARED for domain in some for k in late]
        wanted = (">=", 0.03 if quick else 0.10) if where in (("all",) if quick else ("code", "chat")) else ("report", None)
        add(f"DSpark - DFlash: acceptance at positions {late[0]} to {late[-1]}, {where}", parts, gain, *wanted)
    for name, by_domain in () if quick else pooled.items():
        for domain, rounds in by_domain.items():
            for k in range(1, BLOCK + 1):
                add(f"{name}: acceptance at position {k}, {domain}", [(acceptance(k), rounds)], lambda r: r[:, 0], who=name)
    return checks


# -- calibration


def halves(rounds: Rounds) -> tuple[Rounds, Rounds]:
    """Rounds of even and of odd prompts."""
    return rounds.pick(rounds.prompt % 2 == 0), rounds.pick(rounds.prompt % 2 == 1)


def calibration_cell(rounds: dict[str, Any], heat: float) -> dict[str, Any]:
    """Temperatures fitted on half of the rounds with confidence logits times ``heat``, and the errors of the other half.

    Means over positions: before (with the heat), after, the floor, AUROC; and the temperatures.
    """
    fit, test = halves(Rounds.from_json(rounds))
    found = sequential_temperatures(heat * logits_of(fit.confidence), fit)
    z = heat * logits_of(test.confidence)
    before, after = calibration(z, test), calibration(z, test, found)
    return {
        "temperatures": found.tolist(),
        "before": [one.error for one in before],
        "after": [one.error for one in after],
        "floor": [one.floor for one in after],
        "ranking": [one.ranking for one in after],
        "n": len(test),
    }


def calibration_checks(
    plain: Sequence[dict[str, Any]], heated: Sequence[dict[str, Any]], seeds: Sequence[int], quick: bool
) -> list[Check]:
    """What scaling does to the head as trained, and to one whose logits were doubled."""
    checks = []
    for name, cells in (("as trained", plain), ("logits doubled", heated)):
        for key, shown in (("before", "before scaling"), ("after", "after scaling"), ("floor", "of a perfect predictor")):
            checks.append(_over_seeds(f"calibration, {name}: error {shown}", [np.mean(c[key]) for c in cells], cells, seeds))
            for k in () if quick else range(BLOCK):
                checks.append(
                    _over_seeds(f"calibration, {name}: error {shown}, position {k + 1}", [c[key][k] for c in cells], cells, seeds)
                )
        checks.append(_over_seeds(f"calibration, {name}: AUROC", [np.nanmean(c["ranking"]) for c in cells], cells, seeds))
    worst = [float(np.mean(c["after"]) / np.mean(c["before"])) for c in heated]
    checks.append(
        _over_seeds("calibration, logits doubled: error after over before", worst, heated, seeds, "<=", 0.8 if quick else 0.5)
    )
    found = [float(np.exp(np.mean(np.log(c["temperatures"])))) for c in heated]
    checks.append(_over_seeds("calibration, logits doubled: mean temperature found", found, heated, seeds))
    return checks


def _over_seeds(
    name: str,
    values: Sequence[float],
    cells: Sequence[dict[str, Any]],
    seeds: Sequence[int],
    op: str = "report",
    limit: float | None = None,
) -> Check:
    """Mean over seeds; the interval is that of Student's t where there are several."""
    interval = mean_t(values) if len(values) > 1 else None
    return Check(name, float(np.mean(values)), interval, sum(c["n"] for c in cells), tuple(seeds), op, limit)


# -- schedules


def simulation_cell(rounds: dict[str, Any], stair: int, requests: int, steps: int, seed: int) -> dict[str, list[float]]:
    """Throughput over no drafting, and drafts verified per request and step, of every schedule at one load.

    The drafter's confidences are calibrated on half of the rounds; the simulation draws from the other half.
    """
    fit, test = halves(Rounds.from_json(rounds))
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
    smooth: Sequence[Mapping[int, Mapping[str, list[float]]]],
    stairs: Sequence[Mapping[int, Mapping[str, list[float]]]],
    seeds: Sequence[int],
    steps: int,
    quick: bool = False,
) -> list[Check]:
    """The thresholds on schedules: ``smooth`` and ``stairs`` hold, for each seed, load -> schedule -> (throughput, budget)."""
    checks = []

    def add(name: str, values: Sequence[float], op: str = "report", limit: float | None = None) -> None:
        checks.append(_over_seeds(name, values, [{"n": steps}] * len(seeds), seeds, op, limit))

    def fixed(at: Mapping[str, list[float]]) -> float:
        return max(value[0] for name, value in at.items() if name.startswith("fixed") or name == "off")

    for kind, runs in (("T = 64 + B", smooth), ("staircase of 16", stairs)):
        for load in runs[0]:
            add(f"{kind}, {load} requests: best fixed length", [fixed(run[load]) for run in runs])
            for name in ("fixed:7", "threshold:0.3", "threshold:0.5", "threshold:0.7", "greedy", "stale2"):
                add(f"{kind}, {load} requests: {name}", [run[load][name][0] for run in runs])
            add(f"{kind}, {load} requests: budget of stale2", [run[load]["stale2"][1] for run in runs])
    loads = list(smooth[0])
    against = [[run[load]["stale2"][0] / fixed(run[load]) for load in loads] for run in smooth]
    high = [i for i, load in enumerate(loads) if load >= 16]
    add("stale2 over the best fixed length, at the worst load", [min(one) for one in against], ">=", 0.93 if quick else 0.97)
    add(
        "stale2 over the best fixed length, at the best load from 16",
        [max(one[i] for i in high) for one in against],
        ">=",
        1.0 if quick else 1.05,
    )
    top = max(loads)
    add(f"stale2 over fixed:7 at {top}", [run[top]["stale2"][0] / run[top]["fixed:7"][0] for run in smooth], ">=", 1.2)
    margin = [min(run[load]["stale2"][0] - run[load]["greedy"][0] for load in loads if load >= 16) for run in stairs]
    add("staircase: stale2 - greedy, at the worst load from 16", margin, ">", 0.0)
    budgets = [[run[load]["stale2"][1] for load in loads] for run in smooth]
    add("loads at which the budget of stale2 rises", [float(sum(np.diff(one) >= 0)) for one in budgets], "==", 0.0)
    return checks


# -- the whole


def target_cell(size: dict[str, Any], seed: int) -> dict[str, float]:
    """Train the target of a seed and draw its text; its cross-entropy in each domain, in nats a token."""
    import torch

    from ramify.methods.dspark.lab import Lab

    lab = Lab(size, seed)
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
    from ramify.methods.dspark.lab import Lab

    lab = Lab(size, seed)
    return {domain: rounds.to_json() for domain, rounds in lab.rounds(lab.drafter(what), size["prompts"], size["tokens"]).items()}


def rivals_cell(size: dict[str, Any], seed: int) -> dict[str, dict[str, float]]:
    """Tokens a pass of what transformers has: rival -> domain -> value."""
    from ramify.methods.dspark.lab import GIVEN, Lab
    from ramify.methods.dspark.peers import peer
    from ramify.model.protocol import Sampling

    lab, drawn = Lab(size, seed), Sampling(max_tokens=size["tokens"])
    ways = {"prompt lookup": ("prompt_lookup", None), "assistant of one layer": ("hf_assistant", lab.assistant(2400, 1500))}
    found: dict[str, dict[str, float]] = {}
    for name, (kind, helper) in ways.items():
        run = peer(lab.folder, kind, drawn, helper, BLOCK)
        found[name] = {}
        for domain in DOMAINS:
            starts = prompts(domain, size["rivals"], GIVEN, seed, "test")
            found[name][domain] = size["rivals"] * size["tokens"] / run(starts, size["tokens"])[1]
    return found


def lossless_cell(size: dict[str, Any], seed: int, what: dict[str, Any], draws: int) -> list[dict[str, Any]]:
    """The checks of ``verify-lossless`` on the pair of a seed, each with value, n, operator and threshold."""
    from ramify.methods.dspark.lab import GIVEN, Lab
    from ramify.methods.dspark.lossless import verify

    lab = Lab(size, seed)
    given = [prompt for domain in DOMAINS for prompt in prompts(domain, 3, GIVEN, seed, "lossless")]
    return [check.to_json() for check in verify(lab.model, lab.drafter(what), given, seed, draws)]


def first_token_law(search: Callable[[np.ndarray], int]) -> np.ndarray:
    """Law of the first token, [2], in the example of section 8: two drafts whose confidences (.8; .9 after A, 0 after B) are known when
    ``search`` picks from the rates of admitting 0, 1 or 2 of them. The target's law is (.7, .3), the drafter's (.5, .5).
    """
    p, q, speed = np.array([0.7, 0.3]), np.array([0.5, 0.5]), np.array([1.0, 0.5, 0.45])
    left = np.maximum(p - q, 0)
    law = np.zeros(2)
    for x, second in enumerate((0.9, 0.0)):
        _, values = ranked(survival(np.array([[0.8, second]])))
        if search(rates(values, 1, 1 / speed[: len(values) + 1])):
            stays = q[x] * min(1.0, p[x] / q[x])
            law[x] += stays
            law += (q[x] - stays) * left / left.sum()
        else:
            law += q[x] * p
    return law


def lossless_checks(found: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[Check]:
    """The pair's checks at their worst over seeds, and the example in which a search on this step's confidences is caught."""
    checks = []
    for at, one in enumerate(next(iter(found.values()), ())):
        values = [records[at]["value"] for records in found.values()]
        n = sum(records[at]["n"] for records in found.values())
        worst = min(values) if one["op"] == ">" else max(values)
        checks.append(Check(f"lossless, {one['name']}", worst, None, n, tuple(found), one["op"], one["threshold"]))
    for name, search, op in (
        ("greedy", until_loss, "<"),
        ("a search on this step's confidences", lambda rate: int(np.argmax(rate)), ">"),
    ):
        apart = float(np.abs(first_token_law(search) - [0.7, 0.3]).sum() / 2)
        limit = 1e-12 if op == "<" else 0.1
        checks.append(
            Check(f"lossless, example of section 8, {name}: distance from the target's law", apart, None, 2, (), op, limit)
        )
    return checks


def reproduce(size: str, cells: Cells) -> list[Check]:
    """Section 7(a). ``cpu``: the drafters of :data:`DRAFTERS`; ``quick``: DSpark and DFlash on a smaller target, looser thresholds."""
    if size not in SIZES:
        raise UserError(f"dspark has no size '{size}': there are quick and cpu")
    quick, counts = size == "quick", SIZES[size]
    seeds = (0,)
    drafters = {k: v | counts.get("drafters", {}) for k, v in DRAFTERS.items() if not quick or k in COMPARED}
    of = {name: seeds if name in COMPARED else seeds[:1] for name in drafters}
    entropy = cells.map(target_cell, {f"target {s}": {"size": counts, "seed": s} for s in seeds})
    plan = {f"{name} {s}": {"size": counts, "seed": s, "what": what} for name, what in drafters.items() for s in of[name]}
    raw = cells.map(drafter_cell, plan)
    found = {name: {str(s): {d: Rounds.from_json(r) for d, r in raw[f"{name} {s}"].items()} for s in seeds} for name in drafters}
    checks = [
        _over_seeds(f"target: cross-entropy, {d}", [entropy[f"target {s}"][d] for s in seeds], [{"n": 64}] * len(seeds), seeds)
        for d in DOMAINS
    ]
    checks += acceptance_checks(found, quick)
    if not quick:
        checks += _rivals(cells, counts, seeds[:1])
    exact = {"size": counts, "what": drafters["DSpark"], "draws": 10_000}
    pairs = {} if quick else cells.map(lossless_cell, {f"lossless {s}": exact | {"seed": s} for s in seeds[:1]})
    checks += _calibrated(cells, found["DSpark"], seeds, quick) + _scheduled(cells, found["DSpark"], counts, seeds)
    return checks + lossless_checks({s: pairs[f"lossless {s}"] for s in seeds[:1] if pairs})


def _rivals(cells: Cells, counts: dict[str, Any], seeds: Sequence[int]) -> list[Check]:
    """Tokens a pass of transformers' own ways, as they are."""
    found = cells.map(rivals_cell, {f"rivals {s}": {"size": counts, "seed": s} for s in seeds})
    runs = [found[f"rivals {s}"] for s in seeds]
    checks = []
    for name in runs[0]:
        for domain in (*DOMAINS, "macro"):
            values = [float(np.mean(list(run[name].values()))) if domain == "macro" else run[name][domain] for run in runs]
            drawn = [{"n": counts["rivals"] * counts["tokens"]}] * len(seeds)
            checks.append(_over_seeds(f"transformers, {name}: tokens a pass, {domain}", values, drawn, seeds))
    return checks


def _mixed(by_domain: Mapping[str, Rounds]) -> dict[str, Any]:
    """The rounds of all domains as one set."""
    return joined([by_domain[domain] for domain in DOMAINS]).to_json()


def _calibrated(cells: Cells, found: Mapping[str, Mapping[str, Rounds]], seeds: Sequence[int], quick: bool) -> list[Check]:
    plan = {f"calibration {heat} {s}": {"rounds": _mixed(found[str(s)]), "heat": heat} for heat in (1.0, 2.0) for s in seeds}
    done = cells.map(calibration_cell, plan)
    plain, heated = ([done[f"calibration {heat} {s}"] for s in seeds] for heat in (1.0, 2.0))
    return calibration_checks(plain, heated, seeds, quick)


def _scheduled(
    cells: Cells, found: Mapping[str, Mapping[str, Rounds]], counts: dict[str, Any], seeds: Sequence[int]
) -> list[Check]:
    plan = {
        f"schedules {stair} {load} {s}": {
            "rounds": _mixed(found[str(s)]),
            "stair": stair,
            "requests": load,
            "steps": counts["simulated"],
            "seed": s,
        }
        for stair in (1, 16)
        for load in counts["loads"]
        for s in seeds
    }
    done = cells.map(simulation_cell, plan)
    smooth, stairs = (
        [{load: done[f"schedules {stair} {load} {s}"] for load in counts["loads"]} for s in seeds] for stair in (1, 16)
    )
    return simulation_checks(smooth, stairs, seeds, counts["simulated"], quick="rivals" not in counts)
