"""Reproduction on two cores without counters and without a model (section 7.1 of the method's specification).

Candidates of one kernel are built, checked and timed once and their trial is shared by all arms and seeds, so arms differ by what
they choose and not by what this machine did meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.kernel_search.algorithm import KernelSearchConfig, reward
from ramify.methods.kernel_search.asm import Loop
from ramify.methods.kernel_search.diagnosis import gather
from ramify.methods.kernel_search.edits import TRANSFORMS
from ramify.methods.kernel_search.loop import BestKernel, KernelSearch, ranked_speedup
from ramify.methods.kernel_search.proposers import Proposal, TransformProposer
from ramify.methods.kernel_search.task import KernelTask, from_c
from ramify.methods.kernel_search.tools import TOOLS, WEIGHT, KernelMetrics, Prescription, examine
from ramify.methods.kernel_search.transforms import variants
from ramify.methods.kernel_search.wall import ROUNDS, Built, Code, Wall, WallTrial
from ramify.stats.intervals import wilson
from ramify_experiments.kernel_search.redteam import attempt, cheats_in_c
from ramify_experiments.kernel_search.suite import BY_NAME, HEALTHY, SUITE
from ramify_experiments.lab import Checks, ResultCache, sized

QUICK = ("reduction", "softmax", "columns")
PAIRS, BATCH, BUDGET = 5, 0.005, 6
MATMUL = """#include <string.h>
// ramify: n = 384, 64, 128; a[n*n]; b[n*n]; c[n*n]; flops 2*n*n*n; knob BLOCK = 0, 32, 64; knob REGS = 0, 1; knob PACK = 0, 1
void matmul(int n, const float *restrict a, const float *restrict b, float *restrict c) {
  static float packed[384 * 384];
#if BLOCK == 0
#if PACK
  for (int j = 0; j < n; j++)
    for (int k = 0; k < n; k++)
      packed[j * n + k] = b[k * n + j];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      float s = 0;
      for (int k = 0; k < n; k++)
        s += a[i * n + k] * packed[j * n + k];
      c[i * n + j] = s;
    }
#else
  memset(c, 0, sizeof(float) * n * n);
  for (int i = 0; i < n; i++)
    for (int k = 0; k < n; k++)
      for (int j = 0; j < n; j++)
        c[i * n + j] += a[i * n + k] * b[k * n + j];
#endif
#else
  memset(c, 0, sizeof(float) * n * n);
  for (int jj = 0; jj < n; jj += BLOCK)
    for (int kk = 0; kk < n; kk += BLOCK) {
#if PACK
      for (int k = 0; k < BLOCK; k++)
        memcpy(packed + k * BLOCK, b + (kk + k) * n + jj, sizeof(float) * BLOCK);
      const float *tile = packed;
      const int step = BLOCK;
#else
      const float *tile = b + kk * n + jj;
      const int step = n;
#endif
#if REGS
      for (int i = 0; i < n; i += 4)
        for (int j = 0; j < BLOCK; j += 32) {
          float s[4][32];
          for (int r = 0; r < 4; r++)
            for (int q = 0; q < 32; q++)
              s[r][q] = c[(i + r) * n + jj + j + q];
          for (int k = 0; k < BLOCK; k++)
            for (int r = 0; r < 4; r++)
              for (int q = 0; q < 32; q++)
                s[r][q] += a[(i + r) * n + kk + k] * tile[k * step + j + q];
          for (int r = 0; r < 4; r++)
            for (int q = 0; q < 32; q++)
              c[(i + r) * n + jj + j + q] = s[r][q];
        }
#else
      for (int i = 0; i < n; i++)
        for (int j = 0; j < BLOCK; j++) {
          float s = c[i * n + jj + j];
          for (int k = 0; k < BLOCK; k++)
            s += a[i * n + kk + k] * tile[k * step + j];
          c[i * n + jj + j] = s;
        }
#endif
    }
#endif
}
"""
"""ikj, and from it blocking, packing and register tiles, one macro each: blocking alone and packing alone are slower."""


class SharedWall(Wall):
    """A wall that tries each code once and confirms it once: later trials of the same code are the first one's."""

    def __init__(self, task: KernelTask, built: dict[str, Built | str] | None = None, **more: Any) -> None:
        """``built`` may be shared by the walls of one kernel."""
        super().__init__(task, **{"pairs": PAIRS, "batch_seconds": BATCH, "keep": 2, "call_seconds": 10.0, **more})
        self.tried: dict[str, WallTrial] = {}
        self.confirmed: dict[str, WallTrial] = {}
        self.built: dict[str, Built | str] = {} if built is None else built
        self.read: dict[str, KernelMetrics] = {}

    async def build(self, code: Code, symbol: str | None = None) -> Built | str:
        """See :class:`Wall`."""
        key = code.key + " ".join(code.words)
        if key not in self.built:
            self.built[key] = await super().build(code, symbol)
        return self.built[key]

    async def trial(
        self, code: Code, number: int = 0, *, time: bool = True, built: Built | str | None = None, pairs: int | None = None
    ) -> WallTrial:
        """See :class:`Wall`."""
        if code.key not in self.tried:
            self.tried[code.key] = await super().trial(code, number, time=time, built=built, pairs=pairs)
        return self.tried[code.key]

    async def confirm(
        self, code: Code, number: int = 0, *, built: Built | str | None = None, pairs: int | None = None
    ) -> WallTrial:
        """See :class:`Wall`."""
        if code.key not in self.confirmed:
            self.confirmed[code.key] = await super().confirm(code, number, built=built, pairs=pairs)
        return self.confirmed[code.key]

    async def metrics(self, code: Code) -> KernelMetrics:
        """What the tools read of a code, gathered once."""
        if code.key not in self.read:
            self.read[code.key] = await gather(self, code, await self.build(code))
        return self.read[code.key]


class SharedSearch(KernelSearch):
    """A search whose findings are gathered once for each code."""

    async def _findings(self, number: int) -> list[Prescription]:
        assert isinstance(self.wall, SharedWall)
        return examine(await self.wall.metrics(self.codes[number]))[0]


class Planted(TransformProposer):
    """Transforms, and a wrong candidate that seems a thousand times faster."""

    async def propose(
        self, code: Code, findings: Sequence[Prescription], error: str, n: int, position: Sequence[int], known: Mapping[str, Any]
    ) -> list[Proposal]:
        """See :class:`ramify.methods.kernel_search.proposers.KernelProposer`."""
        wrong = Code(WRONG, self.task.flags)
        found = await super().propose(code, findings, error, n, position, known)
        return found if wrong.key in known or error else [(wrong, "planted", ""), *found[: n - 1]]


EASY = ("does nothing", "writes zeros", "writes NaN", "first answer")
WRONG = "// ramify: n = 65536, 1001, 1; flops n\nfloat reduction(int n, const float *x) { return 0; }\n"


@sized("kernel-search", quick=1, cpu=3)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7.1, items 1 to 5, and the red team. ``quick``: four kernels, one seed, and no ranker."""
    quick = size == "quick"
    names = QUICK if quick else tuple(one.name for one in SUITE)
    healthy = tuple(one.name for one in HEALTHY)[: 1 if quick else 4]
    checks = Checks(seeds)
    found = {name: cells.get(f"kernel {name}, {size}", kernel, name=name, seeds=list(seeds), quick=quick) for name in names}
    controls = {name: cells.get(f"healthy {name}, {size}", validity, name=name) for name in healthy}
    _validity(checks, {**{name: one["validity"] for name, one in found.items()}, **controls})
    _guided(checks, found, quick)
    if not quick:
        _ranker(checks, found)
        _dip(checks, cells.get(f"dip, {size}", dip, seeds=[seeds[0] + i for i in range(5)]))
    _planted(checks, cells.get(f"planted, {size}", planted, seeds=list(range(2 if quick else 10))))
    cheats = cells.get(f"cheats, {size}", cheating, names=list(EASY) if quick else [one.name for one in cheats_in_c()])
    checks.value("cheats that gain something", sum(not one["held"] for one in cheats), len(cheats), "==", 0)
    checks.value("cheats tried", len(cheats), len(cheats), ">=", 4 if quick else 12)
    return checks


# -- cells
# ---------------------------------------------------------------------------------------------------------------------------


def validity(name: str) -> dict[str, Any]:
    """The tools that fire on a kernel at severity warn and above, and what was seeded."""
    one = BY_NAME[name]
    wall = Wall(one.task)
    found, missing = examine(asyncio.run(gather(wall, wall.original)))
    return {
        "fired": {each.tool: each.severity for each in found if each.severity != "info"},
        "seeded": sorted(one.tools),
        "missing": missing,
    }


def kernel(name: str, seeds: list[int], quick: bool) -> dict[str, Any]:
    """One kernel of the suite: validity, guided and blind searches, greedy, and every transform from the original."""
    return asyncio.run(_kernel(name, seeds, quick))


async def _kernel(name: str, seeds: list[int], quick: bool) -> dict[str, Any]:
    one = BY_NAME[name]
    wall = SharedWall(one.task)
    await wall.prepare()
    metrics = await wall.metrics(wall.original)
    fired, _ = examine(metrics)
    result: dict[str, Any] = {
        "validity": {
            "fired": {each.tool: each.severity for each in fired if each.severity != "info"},
            "seeded": sorted(one.tools),
        }
    }
    arms = {"guided": ("mcts", False, BUDGET), "blind": ("mcts", True, BUDGET)}
    if not quick:
        arms |= {"guided greedy": ("greedy", False, BUDGET)}
    for arm, (algo, blind, budget) in arms.items():
        result[arm] = []
        for seed in seeds:
            best = await _searched(
                wall, KernelSearchConfig(evals=budget, algo=algo, seed=seed), TransformProposer(one.task, seed, blind)
            )
            result[arm].append({"speedup": best.speedup, "refused": sum(not trial.ok for trial in best.trials)})
    if quick:
        return result
    result["transitions"] = {}
    for edit in TRANSFORMS:
        made = variants(edit, wall.original, one.task)
        worth = [ranked_speedup(await wall.trial(code, built=await wall.build(code))) for code in made[:1]]
        result["transitions"][edit] = max((value for value in worth if value is not None), default=None)
    result["raw"] = raw_numbers(metrics)
    result["tools"] = {each.tool: WEIGHT[each.severity] for each in fired}
    return result


async def _searched(wall: SharedWall, config: KernelSearchConfig, proposer: Any, **more: Any) -> BestKernel:
    return await SharedSearch(wall.task, config, wall=wall, proposer=proposer, **more).go()


def raw_numbers(metrics: KernelMetrics) -> dict[str, float]:
    """About 25 raw metrics of the loop with most work, as a profiler would print them."""
    loops: Sequence[Loop] = metrics.loops or ()
    loop = max(loops, key=lambda one: metrics.share(one.line) or 0.0) if loops else None
    counts = [one.name for one in fields(Loop) if one.type == "int" and one.name != "line"]
    found = {name: float(getattr(loop, name)) if loop else 0.0 for name in counts}
    found["calls"] = float(len(loop.calls)) if loop else 0.0
    for event in ("Ir", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw"):
        found[event] = math.log1p(metrics.of_loop(loop, event)) if loop else 0.0
    cycles, block = (metrics.mca or {}).get(loop.line, (0.0, 0.0)) if loop else (0.0, 0.0)
    return found | {
        "cycles": cycles,
        "block": block,
        "flops": math.log1p(metrics.flops or 0),
        "bytes": math.log1p(metrics.bytes or 0),
    }


def dip(seeds: list[int]) -> dict[str, Any]:
    """The matrix product whose path dips: what each step is worth, and what MCTS and greedy reach with 40 candidates."""
    task = from_c(MATMUL, "matmul", path="matmul.c")
    built: dict[str, Built | str] = {}

    async def each() -> dict[str, Any]:
        found: dict[str, Any] = {"mcts": [], "greedy": []}
        for seed in seeds:
            wall = SharedWall(task, built, pairs=5, batch_seconds=0.01, seed=seed)
            for algo in ("mcts", "greedy"):
                config = KernelSearchConfig(evals=40, algo=algo, seed=seed)
                best = await _searched(wall, config, TransformProposer(task, seed, True, names=["knob"]))
                found[algo].append({"speedup": best.speedup, "candidates": len(best.trials) - 1})
        steps = {
            "blocking alone": {"BLOCK": "64"},
            "packing alone": {"PACK": "1"},
            "blocking and registers": {"BLOCK": "64", "REGS": "1"},
            "all three": {"BLOCK": "64", "REGS": "1", "PACK": "1"},
        }
        for name, macros in steps.items():
            trial = await wall.confirm(Code(task.source, task.flags, {**wall.original.macros, **macros}))
            found[name] = None if trial.gain is None else [trial.gain.speedup, trial.gain.low, trial.gain.high]
        return found

    return asyncio.run(each())


def planted(seeds: list[int]) -> dict[str, Any]:
    """How often the planted wrong candidate is chosen: linear reward without the wall, and the method's own."""
    one = BY_NAME["reduction"]
    wall, wrong = SharedWall(one.task), Code(WRONG, one.task.flags).key

    def seduced(trial: WallTrial) -> float | None:
        return 1000.0 if trial.stage == "wrong" else ranked_speedup(trial)

    async def each() -> dict[str, Any]:
        found: dict[str, Any] = {"linear": [], "log": []}
        for seed in seeds:
            for arm, more in (("linear", {"rank": seduced, "score": lambda s: s or 0.0}), ("log", {"score": reward})):
                search = SharedSearch(
                    one.task, KernelSearchConfig(evals=8, seed=seed), wall=wall, proposer=Planted(one.task, seed), **more
                )
                await search.go()
                found[arm].append(
                    {"wrong is best": search.tree.nodes[search.tree.best].key == wrong, "seen": wrong in search.tree.known}
                )
        return found

    return asyncio.run(each())


def cheating(names: list[str]) -> list[dict[str, Any]]:
    """Cheats against the wall of one kernel."""
    wall = Wall(BY_NAME["softmax"].task, pairs=4, batch_seconds=0.005, call_seconds=5.0)
    tried = [asyncio.run(attempt(wall, cheat)) for cheat in cheats_in_c() if cheat.name in names]
    return [{"cheat": one.cheat.name, "held": one.held, "refused": one.trial.refused} for one in tried]


# -- checks
# --------------------------------------------------------------------------------------------------------------------------


def _validity(checks: Checks, found: Mapping[str, Any]) -> None:
    """Item 1."""
    fired = {(name, tool) for name, one in found.items() for tool in one["fired"]}
    seeded = {(name, tool) for name, one in found.items() for tool in one["seeded"]}
    hits = len(fired & seeded)
    checks.value("tools: recall over (kernel, tool)", hits / len(seeded), len(seeded), ">=", 0.9, wilson(hits, len(seeded)))
    checks.value(
        "tools: precision over (kernel, tool)", hits / max(1, len(fired)), len(fired), ">=", 0.8, wilson(hits, max(1, len(fired)))
    )
    critical = sum("critical" in one["fired"].values() for one in found.values() if not one["seeded"])
    checks.value(
        "tools: healthy kernels with a critical finding", critical, sum(not one["seeded"] for one in found.values()), "==", 0
    )


def _guided(checks: Checks, found: Mapping[str, Any], quick: bool) -> None:
    """Item 2, and what MCTS and greedy give on the suite (reported)."""
    logs = {
        arm: np.array([[math.log(row["speedup"]) for row in one[arm]] for one in found.values()])
        for arm in next(iter(found.values()))
        if arm.startswith(("guided", "blind"))
    }
    for arm, values in logs.items():
        checks.value(
            f"search: geometric mean speed-up with {BUDGET} candidates, {arm}", math.exp(float(values.mean())), values.size
        )
    ratio = math.exp(float((logs["guided"] - logs["blind"]).mean()))
    checks.value("search: guided / blind, geometric mean", ratio, logs["guided"].size, ">=", 1.1 if quick else 1.5)
    if not quick:
        from scipy.stats import wilcoxon

        differences = (logs["guided"] - logs["blind"]).mean(axis=1)
        p = float(wilcoxon(differences, alternative="greater").pvalue)
        checks.value("search: guided / blind, Wilcoxon p over kernels", p, len(differences), "<", 0.05)
        checks.value(
            "search: guided MCTS / guided greedy, geometric mean",
            math.exp(float((logs["guided"] - logs["guided greedy"]).mean())),
            logs["guided"].size,
        )


def _ranker(checks: Checks, found: Mapping[str, Any], size: int = 40, rounds: int = 200) -> None:
    """Item 3: one ridge regression chooses the next transform from nothing, from raw metrics, from the tools that fired."""
    names, edits = sorted(found), sorted(TRANSFORMS)
    worth = np.array([[math.log(found[name]["transitions"][edit] or 1 / 16) for edit in edits] for name in names])
    raw_names = sorted(next(iter(found.values()))["raw"])
    raw = np.array([[found[name]["raw"][key] for key in raw_names] for name in names])
    raw = (raw - raw.mean(0)) / (raw.std(0) + 1e-9)
    tools = np.array([[found[name]["tools"].get(tool, 0.0) / 3.0 for tool in TOOLS] for name in names])
    features = {"nothing": np.zeros((len(names), 0)), "raw metrics": raw, "tools": tools}
    hits: dict[str, list[float]] = {arm: [] for arm in features}
    rng = generator(0, "ranker")
    for _ in range(rounds):
        order = rng.permutation(len(names))
        train, test = order[: len(names) // 2], order[len(names) // 2 :]
        pairs = [(int(rng.choice(train)), int(rng.integers(len(edits)))) for _ in range(size)]
        for arm, own in features.items():
            hits[arm].append(_top_one(own, worth, pairs, test.tolist(), len(edits)))
    for arm, values in hits.items():
        checks.value(f"ranker: top-1 hit rate from {arm}", float(np.mean(values)), rounds)
    checks.value(
        "ranker: top-1 hit rate, tools - raw metrics",
        float(np.mean(hits["tools"]) - np.mean(hits["raw metrics"])),
        rounds,
        ">=",
        0.10,
    )
    checks.value(
        "ranker: top-1 hit rate, raw metrics - nothing", float(np.mean(hits["raw metrics"]) - np.mean(hits["nothing"])), rounds
    )


def _top_one(own: np.ndarray, worth: np.ndarray, pairs: Sequence[tuple[int, int]], test: Sequence[int], edits: int) -> float:
    """Share of the test kernels whose chosen transform is within 10 % of the best one's speed-up."""

    def row(name: int, edit: int) -> np.ndarray:
        one = np.zeros((edits, own.shape[1] + 1))
        one[edit] = np.r_[1.0, own[name]]
        return one.ravel()

    x = np.array([row(*pair) for pair in pairs])
    y = np.array([worth[pair] for pair in pairs])
    gram = x @ x.T + 1.0 * np.eye(len(pairs))
    weights = x.T @ np.linalg.solve(gram, y - y.mean())
    chosen = [int(np.argmax([row(name, edit) @ weights for edit in range(edits)])) for name in test]
    return float(
        np.mean([worth[name, edit] >= worth[name].max() - math.log(1.1) for name, edit in zip(test, chosen, strict=True)])
    )


def _dip(checks: Checks, found: Mapping[str, Any]) -> None:
    """Item 4."""
    for name in ("blocking alone", "packing alone", "blocking and registers", "all three"):
        speedup, low, high = found[name] or (math.nan,) * 3
        checks.value(f"matmul: speed-up over ikj, {name}", speedup, ROUNDS, interval=(low, high))
    reached = {algo: sum(one["speedup"] >= 1 / 0.8 for one in found[algo]) for algo in ("mcts", "greedy")}
    seeds = len(found["mcts"])
    checks.share("matmul: MCTS reaches 0.8 of ikj's time within 40 candidates", reached["mcts"], seeds, ">=", 0.8)
    checks.share("matmul: greedy reaches it", reached["greedy"], seeds, "<=", 0.2)


def _planted(checks: Checks, found: Mapping[str, Any]) -> None:
    """Item 5."""
    n = len(found["log"])
    checks.share(
        "planted: linear reward without the wall chooses the wrong candidate",
        sum(one["wrong is best"] for one in found["linear"]),
        n,
        ">=",
        0.9,
    )
    checks.share("planted: log reward with the wall chooses it", sum(one["wrong is best"] for one in found["log"]), n, "<=", 0.0)
