"""verify-or-ship here: closed cases, programs with executed critics over prices of the verifier, and mutants of real packages.

The thresholds of the programs are those of the specification's section 7(a), fixed before the code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.verify_or_ship.algorithm import (
    REWRITE,
    STOP,
    VERIFY,
    ControlConfig,
    ControlState,
    Kernel,
    Likelihood,
    Plan,
    Policy,
    Tables,
    fixed_rules,
    greedy,
    worth,
)
from ramify.methods.verify_or_ship.calibration import CandidateAttempt, CodeCandidate, calibrate, prr, same_text
from ramify.methods.verify_or_ship.replay import AWARE, GREEDY, NULL, PLAIN, Replay, beliefs, replay
from ramify.stats.intervals import normal_quantile
from ramify_experiments.lab import Checks, ResultCache, sized
from ramify_experiments.verify_or_ship import mutants, programs, rewriter

PRICES = (2.0, 5.0, 15.0, 30.0, 40.0, 50.0, 60.0, 70.0)
MIDDLE = (15.0, 30.0, 40.0, 50.0)
COSTS = ("syntax=1", "tests=2", "review=5", "types=2", "coin 0=2", "coin 1=2")
MIXED = {"S": (0.99, 0.90), "T": (0.90, 0.35), "L": (0.75, 0.35)}
ORACLE = {"S": (0.99, 0.95), "T": (0.99, 0.02), "L": (0.70, 0.40)}
CLOSED: dict[str, tuple[dict[str, tuple[float, float]], float, float, float]] = {
    "pi .4, c_v 30": (MIXED, 0.4, 30.0, 22.742552),
    "pi .2, c_v 30": (MIXED, 0.2, 30.0, 4.591200),
    "pi .6, c_v 60": (MIXED, 0.6, 60.0, 11.977439),
    "pi .4, c_v 60": (MIXED, 0.4, 60.0, 3.791200),
    "pi .8, c_v 5": (MIXED, 0.8, 5.0, 79.021500),
    "near-oracle test, pi .4, c_v 30": (ORACLE, 0.4, 30.0, 35.085870),
}
"""Critics, prior, price of the verifier, and the optimum to six places (two implementations agree)."""
SURE = (0.86, 0.08, 0.04, 0.02)
"""Probabilities of 0 to 3 mutations that make four first candidates in five right."""
CHEAP = ("always verify", *(f"best of {n}" for n in range(2, 9)))


def closed_case(name: str) -> tuple[Tables, ControlConfig]:
    """Tables and prices of a closed case."""
    critics, prior, price, _ = CLOSED[name]
    kernel = Kernel(fix=0.6 * prior, broken=0.08)
    tables = Tables(prior=prior, critics={key: Likelihood.of(*own) for key, own in critics.items()}, kernel=kernel)
    return tables, ControlConfig(c_ver=price, costs=("S=1", "T=2", "L=5"))


def gridded(tables: Tables, config: ControlConfig, points: int = 51) -> Policy:
    """The planner of the paper's released code: beliefs on a grid, one critic and then an end, no chain of critics."""
    grid = np.linspace(0, 1, points)
    value = np.maximum(config.reward * grid - config.c_ver, 0.0)
    after = value
    tables_of: list[np.ndarray] = []
    for _ in range(config.horizon):
        tables_of.append(after)
        nearest = np.rint((tables.kernel.fix + (1 - tables.kernel.broken - tables.kernel.fix) * grid) * (points - 1)).astype(int)
        ends = np.maximum(np.maximum(config.reward * grid - config.c_ver, 0.0), -config.c_gen + after[nearest])
        best = ends
        for name, own in tables.critics.items():
            found = np.full(points, -config.cost(name))
            for right, wrong in zip(own.right, own.wrong, strict=True):
                p = right * grid + wrong * (1 - grid)
                then = np.divide(right * grid, p, out=np.zeros(points), where=p > 0)
                found = found + p * ends[np.rint(then * (points - 1)).astype(int)]
            best = np.maximum(best, found)
        after = best
    later = tables_of[::-1]  # later[k]: value of the next candidate, after candidate k

    def decide(state: ControlState) -> str:
        last = state.step >= config.horizon - 1

        def ends(b: float) -> list[tuple[float, str]]:
            moved = tables.kernel.after(b)
            again = [] if last else [(-config.c_gen + float(later[state.step][round(moved * (points - 1))]), REWRITE)]
            return [(0.0, STOP), (config.reward * b - config.c_ver, VERIFY), *again]

        ways = ends(state.belief)
        for name in sorted(state.unused):
            own, found = tables.critics[name], -config.cost(name)
            for level, (right, wrong) in enumerate(zip(own.right, own.wrong, strict=True)):
                p = right * state.belief + wrong * (1 - state.belief)
                found += p * max(ends(own.update(state.belief, level)))[0]
            ways.append((found, name))
        return max(ways, key=lambda way: way[0])[1]

    return decide


def sampled(tables: Tables, seed: int, name: str, instances: int, steps: int = 3) -> list[CandidateAttempt]:
    """Attempts sampled from tables: what a calibration would see where they are the truth."""
    rng, found = generator(seed, "verify-or-ship", "closed", name), []
    for i in range(instances):
        right, candidates = bool(rng.random() < tables.prior), []
        for step in range(steps):
            if step:
                right = bool(rng.random() < (1 - tables.kernel.broken if right else tables.kernel.fix))
            checks: dict[str, bool | float | None] = {
                key: bool(rng.random() < (own.right if right else own.wrong)[1]) for key, own in tables.critics.items()
            }
            candidates.append(CodeCandidate(right, checks))
        found.append(CandidateAttempt(f"{name} {i}", tuple(candidates)))
    return found


def closed(seed: int, instances: int) -> dict[str, Any]:
    """Optimum and regrets of every closed case: of the plan made of ``instances`` sampled attempts,
    of greedy, and of the released grid."""
    found = {}
    for name in CLOSED:
        tables, config = closed_case(name)
        fitted = calibrate(sampled(tables, seed, name, instances)).plain()
        best = Plan(tables, config).value
        rules = {rule: worth(policy, tables, config) for rule, policy in fixed_rules(tables, config).items()}
        found[name] = {
            "optimum": best,
            "enumerated": worth(Plan(tables, config).decide, tables, config),
            "fitted": worth(Plan(fitted, config).decide, fitted, config, truth=tables),
            "greedy": worth(greedy(tables, config), tables, config, resets=True),
            "grid": worth(gridded(tables, config), tables, config),
            "fixed": max(rules.values()),
        }
    return found


def _gain(played: Replay, name: str = AWARE) -> dict[str, Any]:
    """A policy against the best fixed rule and against always verifying: mean, deviation and number of paired differences."""
    best, always = (played.utilities[name] - played.utilities[rule] for rule in (played.best_fixed, "always verify"))
    return {"gain": float(best.mean()), "sd": float(best.std(ddof=1)), "n": len(best), "over_always": float(always.mean())}


def prices(tables: Tables, held: Sequence[CandidateAttempt]) -> dict[str, Any]:
    """Every policy on ``held`` at every price, with ``tables`` of other instances."""
    found: dict[str, Any] = {}
    for price in PRICES:
        played = replay(held, ControlConfig(c_ver=price, costs=COSTS), tables)
        means = {name: float(values.mean()) for name, values in played.utilities.items()}
        calls = {name: sum(one.actions.count(name) for one in played.plays[AWARE]) for name in tables.names}
        found[f"{price:g}"] = {
            "means": means,
            "best_fixed": played.best_fixed,
            "planned": played.planned[AWARE],
            "asked": calls,
            **_gain(played),
        }
    return found


def sweep(seed: int, test: str, calibration: int, evaluation: int) -> dict[str, Any]:
    """Every policy at every price, with tables of other instances; ablations at a price of 30; PRR of the belief."""
    known = programs.trajectories(seed, range(calibration), test)
    held = programs.trajectories(seed, range(calibration, calibration + evaluation), test)
    tables = calibrate(known)
    found: dict[str, Any] = {"prior": tables.prior, "prices": prices(tables, held)}
    config = ControlConfig(costs=COSTS)
    blind = [CandidateAttempt(one.instance, tuple(replace(c, payload="") for c in one.candidates)) for one in held]
    unread = [CandidateAttempt(one.instance, tuple(replace(c, payload="") for c in one.candidates)) for one in known]
    without = replay(blind, config, calibrate(unread))
    found["ablation"] = {"texts not compared": _gain(without), "texts not compared, one table": _gain(without, PLAIN)}
    return found | {"prr": ranking(seed, known, held, test)}


def ranking(seed: int, known: Sequence[CandidateAttempt], held: Sequence[CandidateAttempt], test: str) -> dict[str, Any]:
    """PRR at 50 % of the belief, of each critic and of the share of critics passed; and with two critics that toss coins."""
    found = {}
    for coins in (0, 2):
        if coins:
            numbers = [int(one.instance.split()[1]) for one in (*known, *held)]
            every = programs.trajectories(seed, numbers, test, coins=coins)
            known, held = every[: len(known)], every[len(known) :]
        tables = calibrate(known)
        scored = [(state.belief, one.candidates[at]) for one, at, state in beliefs(held, tables)]
        right = [bool(candidate.right) for _, candidate in scored]
        single = {name: prr([float(candidate.checks[name] or 0.0) for _, candidate in scored], right) for name in tables.names}
        passed = prr([float(np.mean([float(v or 0.0) for v in candidate.checks.values()])) for _, candidate in scored], right)
        found[f"{coins} coins"] = {
            "belief": prr([b for b, _ in scored], right),
            "best critic": max(v or 0.0 for v in single.values()),
            "share passed": passed,
        }
    return found


def make_rewriter() -> int:
    """Train the rewriter once, before cells share it; how many parameters it has."""
    return sum(weight.numel() for weight in rewriter.RewriterRecipe().model().parameters())


def learned(seed: int, calibration: int, evaluation: int) -> dict[str, Any]:
    """:func:`sweep` where a small transformer writes the rewrites; what rewrites did;
    PRR of the belief and of the log-probability."""
    made = rewriter.trajectories(seed, range(calibration + evaluation), "weak")
    known, held = made.attempts[:calibration], made.attempts[calibration:]
    tables = calibrate(known)
    scored = {(one.instance, at): state.belief for one, at, state in beliefs(held, tables)}
    rows = [
        (scored[one.instance, at], logprob, bool(one.candidates[at].right))
        for one, own in zip(held, made.logprobs[calibration:], strict=True)
        for at, logprob in enumerate(own, 1)
    ]
    right = [ok for _, _, ok in rows]
    steps = zip(*(one.candidates for one in held), strict=True)
    same = [[same_text(*pair) for pair in itertools.pairwise(one.candidates)] for one in held]
    return {
        "prior": tables.prior,
        "prices": prices(tables, held),
        "right": [float(np.mean([bool(one.right) for one in candidates])) for candidates in steps],
        "same": [float(share) for share in np.mean(same, axis=0)],
        "kernel": [tables.kernel.fix, tables.kernel.broken],
        "prr": {"belief": prr([b for b, _, _ in rows], right), "log-probability": prr([p for _, p, _ in rows], right)},
    }


def sure(seed: int, calibration: int, evaluation: int) -> list[dict[str, Any]]:
    """Regime 1: a generator that is right four times in five, a cheap verifier, and two critics that toss coins."""
    known = programs.trajectories(seed, range(calibration), "weak", mutations=SURE, coins=2)
    held = programs.trajectories(seed, range(calibration, calibration + evaluation), "weak", mutations=SURE, coins=2)
    tables, found = calibrate(known), []
    for price in (2.0, 5.0):
        config = ControlConfig(c_ver=price, costs=COSTS)
        played = replay(held, config, tables)
        gap = float((played.utilities[AWARE] - played.utilities["always verify"]).mean())
        rules = fixed_rules(tables, config)
        useful = Plan(tables, config).value - max(
            worth(rule, tables, config) for name, rule in rules.items() if name in (NULL, *CHEAP)
        )
        coins = sum(action.startswith("coin") for one in played.plays[AWARE] for action in one.actions)
        found.append({"prior": tables.prior, "gap": gap, "useful": max(0.0, useful), "coins": coins})
    return found


def _pooled(cells: Sequence[Mapping[str, Any]]) -> tuple[float, tuple[float, float]]:
    """Mean of the seeds' gains and its interval from the spread between instances."""
    value = float(np.mean([cell["gain"] for cell in cells]))
    error = math.sqrt(sum(cell["sd"] ** 2 / cell["n"] for cell in cells)) / len(cells)
    half = normal_quantile(0.95) * error
    return value, (value - half, value + half)


def _kind(rule: str) -> int:
    return 0 if rule in CHEAP else 2 if rule == NULL else 1


_GAINS = "prices of 15 to 50 at which planning gains 1.5 or more over the best fixed rule"
KNOWN = {
    f"learned rewriter: {_GAINS}": "the rewriter repairs at once what it can see and nothing later, and one kernel for all "
    "rewrites does not "
    "say so: docs/methods/verify-or-ship-evidence.md, a learned rewriter"
}


@sized("verify-or-ship", quick=1, cpu=3)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Closed cases, the programs at eight prices with three public tests and with a learned rewriter, and mutants of real
    modules.

    ``quick`` leaves the learned rewriter out.
    """
    quick = size == "quick"
    checks = Checks(seeds, KNOWN)
    _closed_checks(checks, cells.grid(closed, {"closed": {"instances": 500}}, seeds)["closed"])
    sizes = {"calibration": 600, "evaluation": 1000 if quick else 3000}
    arms = {f"test {test}": {"test": test, **sizes} for test in programs.TESTS}
    found = cells.grid(sweep, arms, seeds)
    _sweep_checks(checks, {name.removeprefix("test "): own for name, own in found.items()}, quick)
    if not quick:
        parameters = cells.get("rewriter", make_rewriter)
        _learned_checks(
            checks, parameters, cells.grid(learned, {"learned": {"calibration": 600, "evaluation": 1500}}, seeds)["learned"]
        )
    _sure_checks(checks, cells.grid(sure, {"sure": sizes}, seeds)["sure"])
    of_real = Checks(seeds[:1])
    _real_checks(of_real, cells, quick)
    checks += of_real
    return checks


def _closed_checks(checks: Checks, found: Sequence[Mapping[str, Any]]) -> None:
    worst = max(abs(found[0][name]["optimum"] - CLOSED[name][3]) for name in CLOSED)
    checks.value("closed cases: optimum - golden number, largest difference", worst, len(CLOSED), "<=", 1e-6)
    apart = max(abs(one[name]["optimum"] - one[name]["enumerated"]) for one in found for name in CLOSED)
    checks.value("closed cases: planned - enumerated, largest difference", apart, len(CLOSED), "<=", 1e-9)

    def regret(policy: str) -> list[float]:
        return [1 - sum(one[name][policy] for name in CLOSED) / sum(one[name]["optimum"] for name in CLOSED) for one in found]

    checks.mean("closed cases: regret of the plan from 500 attempts", regret("fitted"), "<=", 0.02)
    for policy, text in {"greedy": "greedy", "grid": "released 51-point grid", "fixed": "best fixed rule"}.items():
        checks.value(f"closed cases: regret, {text}", regret(policy)[0], len(CLOSED))
    worst_case = max(1 - one[name]["fitted"] / one[name]["optimum"] for one in found for name in CLOSED)
    checks.value("closed cases: regret of the plan, worst case", worst_case, len(CLOSED) * len(found))


def _price_checks(checks: Checks, test: str, cells: Sequence[Mapping[str, Any]]) -> None:
    """What each policy got at each price, and the gains of planning."""
    for price in PRICES:
        here = [cell["prices"][f"{price:g}"] for cell in cells]
        for name, text in {
            NULL: "null",
            "always verify": "always",
            "best of 3": "best of 3",
            "gate(tests)": "gate",
            GREEDY: "greedy",
            PLAIN: "one table",
            AWARE: "bayes",
        }.items():
            checks.value(
                f"{test}, c_v {price:g}: utility, {text}",
                float(np.mean([one["means"][name] for one in here])),
                here[0]["n"] * len(here),
            )
        value, interval = _pooled(here)
        checks.value(f"{test}, c_v {price:g}: bayes - best fixed rule", value, here[0]["n"] * len(here), interval=interval)
        checks.value(
            f"{test}, c_v {price:g}: bayes - always verify",
            float(np.mean([one["over_always"] for one in here])),
            here[0]["n"] * len(here),
        )
        checks.value(
            f"{test}, c_v {price:g}: planned - realised",
            float(np.mean([one["planned"] - one["means"][AWARE] for one in here])),
            here[0]["n"] * len(here),
        )


def _learned_checks(checks: Checks, parameters: int, cells: Sequence[Mapping[str, Any]]) -> None:
    checks.value("learned rewriter: parameters", parameters, 1, ">=", 900_000)
    for at, name in enumerate(("first candidates", "first rewrites", "second rewrites")):
        checks.mean(f"learned rewriter: right, {name}", [cell["right"][at] for cell in cells])
    for at, name in enumerate(("first", "second")):
        checks.mean(f"learned rewriter: the same text comes back, {name} rewrites", [cell["same"][at] for cell in cells])
    checks.mean("learned rewriter: repairs, of those that it changed", [cell["kernel"][0] for cell in cells])
    checks.mean("learned rewriter: breaks, of those that it changed", [cell["kernel"][1] for cell in cells])
    _price_checks(checks, "learned", cells)
    gains = [_pooled([cell["prices"][f"{p:g}"] for cell in cells]) for p in MIDDLE]
    checks.value(
        f"learned rewriter: {_GAINS}",
        sum(value >= 1.5 and low > 0 for value, (low, _) in gains),
        len(MIDDLE),
        ">=",
        3,
    )
    for name in ("belief", "log-probability"):
        checks.mean(f"learned rewriter: PRR of rewrites, {name}", [cell["prr"][name] for cell in cells])
    gap = [cell["prr"]["belief"] - cell["prr"]["log-probability"] for cell in cells]
    checks.mean("learned rewriter: PRR, belief - log-probability", gap, ">=", 0.03)


def _sweep_checks(checks: Checks, found: Mapping[str, Sequence[Mapping[str, Any]]], quick: bool) -> None:
    for test, cells in found.items():
        _price_checks(checks, test, cells)
    near = [
        float(
            np.mean([one["prices"][f"{p:g}"]["means"]["gate(tests)"] - one["prices"][f"{p:g}"]["means"][AWARE] for one in cells])
        )
        for test, cells in found.items()
        if test != "weak"
        for p in PRICES
    ]
    checks.value("regime 2: gate(tests) - bayes where it is best", max(near), len(near), ">=", -0.5)
    gains = [_pooled([cell["prices"][f"{p:g}"] for cell in found["weak"]]) for p in MIDDLE]
    paying = sum(value >= 1.5 and low > 0 for value, (low, _) in gains)
    checks.value(
        f"regime 3: {_GAINS}",
        paying,
        len(MIDDLE),
        ">=",
        2 if quick else 3,
    )
    falls = 0
    for cells in found.values():
        kinds = [round(float(np.median([_kind(cell["prices"][f"{p:g}"]["best_fixed"]) for cell in cells]))) for p in PRICES]
        falls += sum(later < before for before, later in itertools.pairwise(kinds))
    checks.value("order of winners along the price: steps back from null, gate, verify", falls, len(PRICES) * len(found), "<=", 0)
    for name in ("texts not compared", "texts not compared, one table"):
        value, interval = _pooled([cell["ablation"][name] for cell in found["weak"]])
        checks.value(
            f"weak, c_v 30: bayes - best fixed rule, {name}",
            value,
            found["weak"][0]["ablation"][name]["n"] * len(found["weak"]),
            interval=interval,
        )
    ranks = [cell["prr"] for cell in found["weak"]]
    for coins in ("0 coins", "2 coins"):
        for name in ("belief", "best critic", "share passed"):
            checks.mean(f"PRR, {coins}: {name}", [one[coins][name] for one in ranks])
    checks.mean(
        "PRR: belief - best critic", [one["0 coins"]["belief"] - one["0 coins"]["best critic"] for one in ranks], ">=", 0.05
    )
    checks.mean(
        "PRR with two coins: belief - share of critics passed",
        [one["2 coins"]["belief"] - one["2 coins"]["share passed"] for one in ranks],
        ">=",
        0.03,
    )


def _sure_checks(checks: Checks, found: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    every = [row for rows in found for row in rows]
    checks.worst("regime 1: prior", [row["prior"] for row in every], ">=", 0.8)
    checks.worst(
        "regime 1: distance to always verify beyond the gain of critics",
        [abs(row["gap"]) - row["useful"] for row in every],
        "<=",
        1.5,
    )
    checks.value("regime 1: questions to critics that toss coins", sum(row["coins"] for row in every), len(every), "<=", 0)


REAL_PRICES = (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)


def real(seed: int, modules: Sequence[str], instances: int) -> list[dict[str, Any]]:
    """Attempts at mutants of modules: see :func:`ramify_experiments.verify_or_ship.mutants.of_module`."""
    return [one for module in modules for one in mutants.of_module(module, seed, range(instances))]


def _real_checks(checks: Checks, cells: ResultCache, quick: bool) -> None:
    names = list(mutants.MODULES)
    if quick:
        names = [
            "mpmath.matrices.linalg",
            "networkx.algorithms.euler",
            "networkx.algorithms.bridges",
            "networkx.algorithms.tree.recognition",
        ]
    made = cells.map(
        real, {f"mutants of {name}": {"seed": 0, "modules": [name], "instances": 6 if quick else 16} for name in names}
    )
    attempts = mutants.read_back(list(made.values()))
    tables = calibrate(attempts)
    checks.value("real modules: first candidates right", tables.prior, tables.instances)
    for name, own in tables.critics.items():
        checks.value(f"real modules: {name} passes right", own.right[-1], own.n_right)
        checks.value(f"real modules: {name} passes wrong", own.wrong[-1], own.n_wrong)
    for price in REAL_PRICES:
        played = replay(attempts, ControlConfig(c_ver=price, costs=COSTS), count=5)
        gain = _gain(played)
        for name in dict.fromkeys(
            (NULL, "always verify", "best of 3", "gate(tests)", "gate(types)", "all critics", GREEDY, AWARE)
        ):
            checks.value(f"real modules, c_v {price:g}: utility, {name}", float(played.utilities[name].mean()), gain["n"])
        value, interval = _pooled([gain])
        checks.value(f"real modules, c_v {price:g}: bayes - best fixed rule", value, int(gain["n"]), interval=interval)
        checks.value(f"real modules, c_v {price:g}: bayes - always verify", gain["over_always"], int(gain["n"]))
