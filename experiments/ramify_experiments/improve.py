"""The comparison for ``ramify improve``: ways to spend the same generated tokens, each with its own best training settings.

Arms are tuned on seeds of their own (their tasks are others, too) and then frozen. The comparison runs on other seeds: all arms of a seed from
one starting agent, on the same tasks in the same order and with as many updates, evaluated on one fixed task set. Differences are paired by
seed, and corrected over the rivals (Holm). Every cell is a small record in ``repro/improve-cells`` of a checkout: an interrupted comparison
continues there, on this machine or another; all arms of one seed run on one kind of processor, which is in the record.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import ramify
from ramify.base.config import check
from ramify.base.seeds import generator
from ramify.engine.devices import kernels
from ramify.engine.profile import machine_name
from ramify.jobs.improve import ImproveConfig, Job
from ramify.render.terminal import say
from ramify.score.credit.imitate import Imitate
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.stats.evidence import holm
from ramify.stats.intervals import paired_t
from ramify.stats.tests import paired_permutation
from ramify.trace.db import Run
from ramify_experiments.lab import Checks, ResultCache, sized
from ramify_experiments.recipes import TextWorldRecipe

EDITION = "1"
"""Of the cells: raised when a change of the code changes what they hold."""
DEFAULT = ImproveConfig().arm
TREES = "infotree+g2po"
RUNNER_UP = "imitate, runner-up"
"""Imitation with the second best settings of its tuning, added when the best ones had failed on some seeds: not claimed before the runs."""
SAME_RATE = "auto, no forks, same rate"
"""``auto`` without forks at the settings ``auto`` was frozen with, added since those of its own tuning differ: not claimed either."""
AFTERWARDS = (RUNNER_UP, SAME_RATE)
SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {"arm": "auto"},
    "auto, no forks": {"arm": "auto", "sampling": "flat"},
    "imitate": {"arm": "imitate"},
    "grpo": {"arm": "grpo"},
    TREES: {"arm": TREES},
    RUNNER_UP: {"arm": "imitate"},
    SAME_RATE: {"arm": "auto", "sampling": "flat"},
    "imitate, other tasks for settled ones": {"arm": "imitate", "sampling": "resample"},
    "grpo, other tasks for settled ones": {"arm": "grpo+resample"},
    "random credit": {"arm": "imitate", "credit": "factory:ramify_experiments.improve:RandomCredit"},
    "shuffled credit": {"arm": "imitate", "credit": "factory:ramify_experiments.improve:ShuffledCredit"},
    "trees, flat credit": {"arm": "grpo", "sampling": "infotree"},
    "no trees, graph credit": {"arm": "g2po"},
}
"""Name of an arm -> its settings of ``ramify improve``."""
MAIN = ("auto", "auto, no forks", "imitate", "grpo", TREES)
"""Arms of the whole grid; the others are compared on the household: :data:`AFTERWARDS` at both budgets, the rest at the small one."""
LONG = ("start", "auto", "auto, no forks", "imitate", "grpo")
"""Arms that are looked at where success is rare."""
AGAINST = {
    "start, sharper": ("start",),
    RUNNER_UP: ("imitate", "auto", TREES),
    SAME_RATE: ("auto, no forks", "auto"),
    "imitate, other tasks for settled ones": ("imitate",),
    "grpo, other tasks for settled ones": ("grpo",),
    "random credit": ("imitate",),
    "shuffled credit": ("imitate",),
    "trees, flat credit": ("grpo", TREES),
    "no trees, graph credit": ("grpo", TREES),
}
"""Arm -> the arms of the whole grid that it is paired with, which differ by what it is there to show."""
BUDGETS: dict[str, dict[str, int]] = {
    "quick": {"updates": 10, "tokens": 25_000},
    "tune": {"updates": 12, "tokens": 30_000},
    "games": {"updates": 16, "tokens": 15_000},
    "40k": {"updates": 16, "tokens": 40_000},
    "150k": {"updates": 50, "tokens": 150_000},
}
ENVS = ("household", "long-household")
TUNED = [{"lr": lr, "epochs": epochs} for lr in (5e-4, 1e-3, 2e-3) for epochs in (1, 4)]
UNTUNED = {
    "auto": {"lr": 1e-3, "epochs": 4},
    "auto, no forks": {"lr": 1e-3, "epochs": 4},
    "imitate": {"lr": 1e-3, "epochs": 4},
    "grpo": {"lr": 5e-4, "epochs": 1},
}
"""Rates and passes that arms had before they were tuned, for what was measured with them."""
TUNE_SEEDS, EXTRA_SEEDS = (100, 101, 102), 5
EVALUATED, TIMES = 500, 4
"""Held-out tasks and attempts at each: 2,000 episodes, and pass@4."""
GAMES = {"train": 96, "eval": 100}
"""Games of TextWorld, which take about a second each to generate, so all seeds share them."""
SPENT = ("attempts", "solved", "forks", "mixed", "tokens", "prefill", "seconds")
"""What is told of an arm's training: attempts, solved tasks, forks, share of mixed groups, tokens generated and read, seconds with evaluation."""
SECONDS = {"household": 2.2, "long-household": 5.0}
"""Seconds a thousand tokens take, sampling and training, on one idle core of an EPYC: for the estimate alone."""


class RandomCredit(CreditRule):
    """A control: successes are weighted by a random number a step, so their mean is kept and where it lies is not."""

    maker, loss = "random-credit", "cross_entropy"
    numbers: ClassVar[Mapping[str, str]] = {}

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        values = Imitate().assign(group)
        return {node: one * np.float32(2 * generator(0, "random credit", node).random()) for node, one in values.items()}


class ShuffledCredit(CreditRule):
    """A control: whole attempts are imitated, as many as succeeded at each task, whichever they are."""

    maker, loss = "shuffled-credit", "cross_entropy"
    numbers: ClassVar[Mapping[str, str]] = {}

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        values = np.zeros(len(group.success))
        for task in range(int(group.task.max(initial=-1)) + 1):
            rows = np.flatnonzero(group.task == task)
            name = str(group.columns["task_id"][int(np.flatnonzero(group.task[group.attempt] == task)[0])])
            values[generator(0, "shuffled credit", name).permutation(rows)] = group.success[rows]
        return group.spread(values)


def cell(
    arm: str,
    seed: int,
    budget: str,
    env: str = "household",
    train: Mapping[str, Any] | None = None,
    episodes: int = 0,
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One arm on one seed: what it can do after the tokens that every arm gets (arm ``start``: before any), and what it spent.

    ``own``: the settings of an arm that is not in :data:`SETTINGS`. ``episodes`` 0: the fixed task set. Arm ``start, sharper``: the starting
    agent at temperature .5, to tell learning from sharpening."""
    settings = {
        **placed(env),
        "seed": seed,
        **BUDGETS[budget],
        **(own or SETTINGS.get(arm, {"arm": DEFAULT})),
    }
    held_out = GAMES["eval"] if env == "textworld" else EVALUATED
    settings |= {"train": dict(train or {}), "eval_episodes": episodes or held_out * TIMES}
    config, began = check(ImproveConfig, settings), time.perf_counter()
    if arm == "start, sharper":
        config = config.model_copy(update={"temperature": 0.5})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Job(config, path) as job, Run.create(path, config.to_json()) as run:
            if env == "textworld":
                job.train_task_set, job.eval_task_set = (job.environment.task_set(split, n, 0) for split, n in GAMES.items())
            elif not episodes:
                job.eval_task_set = job.environment.task_set("eval", EVALUATED, 0)
            spent = 0 if arm.startswith("start") else job.learn(run, config.arm)
            prefill = job.model.stats.prompt_tokens
            after, updates = job.evaluate(run, "after"), [entry.payload for entry in run.journal("update")]
            tasks = job.eval_task_set.hash
    outcomes = [bool(one) for one in after["outcomes"]]
    found: dict[str, Any] = {
        "success": after["success"],
        "n": after["n"],
        "entropy": after["entropy"],
        "tokens": spent,
        "prefill": prefill,
        "updates": len(updates),
        "tasks": tasks,
    }
    if not episodes:
        found[f"pass@{TIMES}"] = float(np.reshape(outcomes, (TIMES, -1)).any(axis=0).mean())
    found |= {name: sum(int(one[name]) for one in updates) for name in ("attempts", "forks", "solved", "split")}
    found["mixed"] = float(np.mean([one["mixed"] for one in updates])) if updates else 0.0
    found["curve"] = [[one["tokens"], round(one["success"], 4), one["solved"]] for one in updates]
    ranked = [one["critic"]["auroc"] for one in updates if one["critic"] and one["critic"]["auroc"] is not None]
    found["critic auroc"] = float(np.mean(ranked)) if ranked else None
    found |= {f"{what} s": round(sum(one["seconds"][what] for one in updates), 1) for what in ("sample", "credit", "train")}
    found |= {"seconds": round(time.perf_counter() - began, 1), "processor": f"{machine_name()} ({kernels()})"}
    return found | {"version": ramify.__version__}


def placed(env: str) -> dict[str, str]:
    """Environment and agent by their names: a household with the agent that goes with it, or TextWorld's games with their recipe's."""
    if env == "textworld":
        return {"env": TextWorldRecipe.GAMES, "model": f"hf:{TextWorldRecipe().folder()}"}
    return {"env": env, "model": f"builtin:{env}"}


@dataclass(frozen=True)
class ArmGrid:
    """Arms on an environment at a budget."""

    env: str
    budget: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    part: str = ""

    @property
    def name(self) -> str:
        """How checks name it."""
        return ", ".join(filter(None, (self.env, self.budget, self.part)))

    def cells(self, seed: int, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Key and arguments of every cell of one seed; ``settings``: arm -> its frozen training settings."""
        common = {"seed": seed, "env": self.env}
        return {
            self.key(arm, seed): {"arm": arm, "train": dict(settings.get(arm, {})), "budget": self._budget(arm), **common}
            for arm in self.arms
        }

    def key(self, arm: str, seed: int) -> str:
        """Of a cell."""
        return f"{self.env} {self._budget(arm)} {arm}, seed {seed}"

    def _budget(self, arm: str) -> str:
        """The start is one cell, whatever is spent after it."""
        return "40k" if arm.startswith("start") else self.budget


def comparisons(seeds: Sequence[int]) -> list[ArmGrid]:
    """The grid on ``seeds``, in the order in which it is run: what a tuning of an environment opens comes right after it."""
    grid = [ArmGrid(env, budget, ("start", *MAIN), tuple(seeds)) for env in ENVS for budget in ("40k", "150k")]
    again = [
        ArmGrid("household", budget, (*AGAINST[arm], arm), tuple(seeds), arm) for arm in AFTERWARDS for budget in ("40k", "150k")
    ]
    others = [arm for arm in AGAINST if arm not in AFTERWARDS]
    rivals = dict.fromkeys(rival for arm in others for rival in AGAINST[arm])
    controls = ArmGrid("household", "40k", (*rivals, *others), tuple(seeds[:EXTRA_SEEDS]), "controls")
    return [*grid[:2], *again, controls, *grid[2:]]


def tuning(env: str) -> dict[str, dict[str, Any]]:
    """Cells of the tuning of every main arm, on seeds of their own; 200 episodes on tasks of the seed."""
    cells = {}
    for arm, (number, train), seed in itertools.product(MAIN, enumerate(TUNED), TUNE_SEEDS):
        common = {"seed": seed, "budget": "tune", "env": env, "episodes": 200}
        cells[f"tune {env} {arm} {number}, seed {seed}"] = {"arm": arm, "train": train, **common}
    return cells


def frozen(done: Mapping[str, Mapping[str, Any]], env: str) -> dict[str, dict[str, Any]]:
    """The best settings of each main arm by mean success, the first of equals; the other arms take those of the arm they vary."""
    found = {}
    for arm in MAIN:
        means = [
            np.mean([done[f"tune {env} {arm} {number}, seed {seed}"]["success"] for seed in TUNE_SEEDS])
            for number in range(len(TUNED))
        ]
        best, second = np.argsort(-np.array(means), kind="stable")[:2]
        found[arm] = TUNED[int(best)]
        if arm == "imitate":
            found[RUNNER_UP] = TUNED[int(second)]
    alike = {arm: found[one["arm"] if one["arm"] in found else "grpo"] for arm, one in SETTINGS.items()}
    return alike | found


def hours(cells: Mapping[str, Mapping[str, Any]], workers: int = 2) -> float:
    """About how long ``cells`` take with ``workers`` cores."""
    seconds = 0.0
    for one in cells.values():
        tokens = 0 if one["arm"].startswith("start") else BUDGETS[one["budget"]]["tokens"]
        evaluated = (one.get("episodes") or EVALUATED * TIMES) * (33 if one["env"] == "household" else 110) / 3  # sampling only
        seconds += SECONDS[one["env"]] * (tokens + evaluated) / 1000
    return seconds / workers / 3600


def kept(cells: ResultCache) -> ResultCache:
    """The cells of the comparison: in ``repro/improve-cells`` of a checkout, else in the folder of ``cells``."""
    home = Path(__file__).resolve().parents[2] / "repro"
    folder = home / "improve-cells" if home.is_dir() else cells.folder
    return ResultCache(folder, cells.progress, cells.runner, edition=EDITION)


def may_continue(here: str, done: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a seed, of which ``done`` are the finished cells, can go on with the processor ``here``."""
    return all(one["processor"] == here for one in done.values())


@sized("improve", quick=1, cpu=10)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Run the comparison. ``quick`` checks the headline gain of the default arm only, on one seed."""
    if size == "quick":
        checks = Checks(seeds)
        few = {arm: {"arm": arm, "budget": "quick", "episodes": 200} for arm in ("start", DEFAULT)}
        start, default = (one["success"] for (one,) in cells.grid(cell, few, seeds).values())
        checks.value(f"{DEFAULT}: gain", default - start, 1, ">=", 0.05)
        return checks
    return compared(kept(cells), comparisons(seeds), f"{machine_name()} ({kernels()})")


_EQUAL = "forks find more tasks to learn from, and the agents end as equals at this budget; see docs/improve.md"
LONG_KNOWN = {f"auto - {arm}: success": _EQUAL for arm in ("auto, no forks", "imitate")}


@sized("improve-long", quick=1, cpu=5)
def reproduce_long(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """The long household, where success is rare. ``quick`` looks at the starting agent only."""
    arms = ("start",) if size == "quick" else LONG
    checks = Checks(seeds, LONG_KNOWN)
    runs = _untuned(cells, seeds, "long-household", arms, 200 if size == "quick" else 400)
    checks.value("start: success", np.mean([one["start"]["success"] for one in runs.values()]), len(seeds), "<=", 0.05)
    _described(checks, runs, arms[1:])
    for arm in arms[2:]:
        _paired(checks, runs, "auto", arm, "success", ">", 0.0)  # the claims of the grid, by the mean alone
        _paired(checks, runs, "auto", arm, "solved")
    return checks


def _untuned(cells: ResultCache, seeds: Sequence[int], env: str, arms: Sequence[str], episodes: int) -> dict[int, dict[str, Any]]:
    """seed -> arm -> its cell: 40,000 tokens, every arm :data:`UNTUNED`."""
    jobs = {
        f"{arm}, seed {seed}": {
            "arm": arm,
            "seed": seed,
            "budget": "40k",
            "env": env,
            "episodes": episodes,
            "train": UNTUNED.get(arm, {}),
        }
        for seed in seeds
        for arm in arms
    }
    found = cells.map(cell, jobs)
    return {seed: {arm: found[f"{arm}, seed {seed}"] for arm in arms} for seed in seeds}


def _described(checks: Checks, runs: Mapping[int, Mapping[str, Any]], arms: Sequence[str]) -> None:
    for arm in arms:
        for what in ("success", "solved", "forks", "tokens"):
            checks.mean(f"{arm}: {what}", [one[arm][what] for one in runs.values()])


def _paired(
    checks: Checks,
    runs: Mapping[int, Mapping[str, Any]],
    arm: str,
    rival: str,
    what: str,
    op: str = "report",
    threshold: float | None = None,
) -> None:
    won, other = ([one[each][what] for one in runs.values()] for each in (arm, rival))
    checks.paired(f"{arm} - {rival}: {what}", won, other, op, threshold)


def compared(cells: ResultCache, grid: Sequence[ArmGrid], here: str) -> Checks:
    """The comparisons, cell by cell. A seed that another kind of processor began is left to it, and counts where it is complete."""
    first = {key: one for env in ENVS for key, one in tuning(env).items()}
    every = first | {
        key: one for comparison in grid for seed in comparison.seeds for key, one in comparison.cells(seed, {}).items()
    }
    there = {c.key(arm, seed) for c in grid for seed, arms in known_cells(cells, c).items() for arm in arms}
    done = len(cells.known(cell, first)) + len(there)
    say(f"about {hours(every):.1f} hours on two idle cores in all; {done} of {len(every)} cells are there")
    checks = Checks(tuple(sorted({seed for comparison in grid for seed in comparison.seeds})))
    for comparison in grid:
        settings = frozen(cells.map(cell, tuning(comparison.env)), comparison.env)
        for seed in comparison.seeds:
            wanted = comparison.cells(seed, settings)
            if may_continue(here, cells.known(cell, wanted)):
                cells.map(cell, wanted)
        checks += judged(comparison, known_cells(cells, comparison))
    return checks


def so_far(cells: ResultCache, grid: Sequence[ArmGrid]) -> Checks:
    """What the cells that are there say; plays nothing. A seed counts where all arms of its comparison are there."""
    every = {key: one for env in ENVS for key, one in tuning(env).items()}
    checks = Checks(())
    checks.value("tuning: cells", len(cells.known(cell, every)), len(every))
    for comparison in grid:
        found = known_cells(cells, comparison)
        there = sum(map(len, found.values()))
        checks.value(
            f"{comparison.name}, {len(comparison.arms)} arms: cells", there, len(comparison.seeds) * len(comparison.arms)
        )
        checks += judged(comparison, found)
    return checks


def known_cells(cells: ResultCache, comparison: ArmGrid) -> dict[int, dict[str, Any]]:
    """seed -> arm -> its cell, of those that are there: none before the tuning of the environment is complete."""
    jobs = tuning(comparison.env)
    tuned = cells.known(cell, jobs)
    if jobs.keys() - tuned.keys():
        return {}
    found = {}
    for seed in comparison.seeds:
        ones = cells.known(cell, comparison.cells(seed, frozen(tuned, comparison.env)))
        found[seed] = {arm: ones[key] for arm in comparison.arms if (key := comparison.key(arm, seed)) in ones}
    return found


def judged(comparison: ArmGrid, found: Mapping[int, Mapping[str, Any]]) -> Checks:
    """What the complete seeds of a comparison say: means, and the claims that were fixed before the runs."""
    runs = {seed: arms for seed, arms in found.items() if len(arms) == len(comparison.arms)}
    checks = Checks(tuple(runs))
    if not runs:
        return checks
    got = {arm: np.array([one[arm]["success"] for one in runs.values()]) for arm in comparison.arms}
    for arm in comparison.arms:
        if comparison.part and arm not in AGAINST:
            continue  # told where the whole grid is
        checks.mean(f"{comparison.name}, {arm}: success", got[arm])
        told = (f"pass@{TIMES}", "entropy") if arm.startswith("start") else (f"pass@{TIMES}", "entropy", *SPENT)
        for what in told:
            checks.mean(f"{comparison.name}, {arm}: {what}", [one[arm][what] for one in runs.values()])
    if len(runs) < 2:
        return checks
    for arm in comparison.arms:
        for other in AGAINST.get(arm, ()):
            checks.paired(f"{comparison.name}, {arm} - {other}: success", got[arm], got[other])
    if not got.keys() >= set(MAIN):
        return checks
    rivals = [arm for arm in MAIN if arm != "auto"]
    corrected = holm([paired_permutation(got["auto"], got[arm]) for arm in rivals])
    for arm, p in zip(rivals, corrected, strict=True):
        interval = paired_t(got["auto"], got[arm])
        op, bound = dict(claims(comparison.env)).get(arm, ("report", None))
        name = f"{comparison.name}, auto - {arm}: lower 95 % bound"
        checks.value(name, interval[0], len(runs), op, bound, interval)
        checks.value(f"{comparison.name}, auto - {arm}: p, corrected", p, len(runs))
    for arm in MAIN[1:]:
        if arm != TREES:
            checks.paired(f"{comparison.name}, {TREES} - {arm}: success", got[TREES], got[arm])
    return checks


def claims(env: str) -> Iterator[tuple[str, tuple[str, float | None]]]:
    """Rival -> what was claimed of the lower bound of auto's advantage before any run."""
    yield "grpo", (">", 0.0)
    yield "imitate", (">", -0.01 if env == "household" else 0.0)
    if env == "long-household":
        yield "auto, no forks", (">", 0.0)
