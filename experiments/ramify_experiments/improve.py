"""The comparison for ``ramify improve``: ways to spend the same generated tokens, each with its own best training settings.

Arms are tuned on seeds of their own (their tasks are others, too) and then frozen. The comparison runs on other seeds: all arms
of a seed from one starting agent, on the same tasks in the same order and with as many updates, evaluated on one fixed task set.
Differences are paired by seed, and corrected over the rivals (Holm). Every cell is a small record in ``repro/improve-cells`` of a
checkout: an interrupted comparison continues there, on this machine or another;
all arms of one seed run on one kind of processor, which is in the record.
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
from ramify.jobs.results import UpdateReport
from ramify.render.terminal import say
from ramify.score.credit.imitate import Imitate
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.stats.evidence import holm
from ramify.stats.intervals import paired_t
from ramify.stats.tests import paired_permutation
from ramify.trace.db import Run
from ramify_experiments.dojo import DojoRecipe
from ramify_experiments.lab import Checks, ResultCache, sized
from ramify_experiments.recipes import TextWorldRecipe

EDITION = "1"
"""Of the cells: raised when a change of the code changes what they hold."""
DEFAULT = ImproveConfig().arm
TREES = "infotree+g2po"
RUNNER_UP = "imitate, runner-up"
"""Imitation with the second best settings of its tuning, added when the best ones had failed on some seeds."""
AUTO_RUNNER_UP = "auto, runner-up"
"""``auto`` with the second best settings of its tuning, which are those of :data:`RUNNER_UP` and of
``ramify improve --arm auto``: added when the best ones had done worse than :data:`RUNNER_UP`."""
WEIGHTED, WEIGHTED_FLAT = "auto, weighted", "weighted, no forks"
"""``auto`` as it was before the long household was tuned: successes weighted by the advantage; the same without forks."""
SAME_RATE = "weighted, no forks, same rate"
"""Weighted successes without forks at the settings of :data:`WEIGHTED`, added since those of its own tuning differ."""
SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {"arm": "auto"},
    "imitate": {"arm": "imitate"},
    "grpo": {"arm": "grpo"},
    TREES: {"arm": TREES},
    RUNNER_UP: {"arm": "imitate"},
    AUTO_RUNNER_UP: {"arm": "auto"},
    WEIGHTED: {"arm": "auto", "credit": "self-imitate"},
    WEIGHTED_FLAT: {"arm": "auto", "sampling": "flat", "credit": "self-imitate"},
    SAME_RATE: {"arm": "auto", "sampling": "flat", "credit": "self-imitate"},
    "imitate, other tasks for settled ones": {"arm": "imitate", "sampling": "resample"},
    "grpo, other tasks for settled ones": {"arm": "grpo+resample"},
    "random credit": {"arm": "imitate", "credit": "factory:ramify_experiments.improve:RandomCredit"},
    "shuffled credit": {"arm": "imitate", "credit": "factory:ramify_experiments.improve:ShuffledCredit"},
    "trees, flat credit": {"arm": "grpo", "sampling": "infotree"},
    "no trees, graph credit": {"arm": "g2po"},
}
"""Name of an arm -> its settings of ``ramify improve``. ``auto`` without forks is ``imitate``."""
MAIN = {"household": (WEIGHTED, WEIGHTED_FLAT, "imitate", "grpo", TREES), "long-household": ("auto", "imitate", "grpo", TREES)}
"""Environment -> the arms that the claims fixed before the runs name; the first is the one they are made for."""
TODAY, FRESH = ("auto", RUNNER_UP, "grpo"), 10
"""Today's ``auto`` on the household and its rivals, on seeds that nothing was seen of: those of the comparison, that many higher.
The runner-up is ``imitate`` as ``ramify improve`` runs it."""
AFTERWARDS = {RUNNER_UP: 0, SAME_RATE: 0, AUTO_RUNNER_UP: FRESH}
"""Arm that came to the household when the others were known,
at both budgets -> how much higher its seeds are than those of the comparison."""
AGAINST = {
    RUNNER_UP: ("imitate", "grpo", WEIGHTED, TREES),
    AUTO_RUNNER_UP: ("auto", RUNNER_UP, "grpo"),
    SAME_RATE: (WEIGHTED_FLAT, WEIGHTED, RUNNER_UP),
    "start, sharper": ("start",),
    "imitate, other tasks for settled ones": ("imitate",),
    "grpo, other tasks for settled ones": ("grpo",),
    "random credit": ("imitate",),
    "shuffled credit": ("imitate",),
    "trees, flat credit": ("grpo", TREES),
    "no trees, graph credit": ("grpo", TREES),
}
"""Arm of the household beyond :data:`MAIN` -> the arms that it is paired with, which differ by what it is there to show."""
TUNING = ("auto", WEIGHTED, WEIGHTED_FLAT, "imitate", "grpo", TREES)
"""Arms with a tuning of their own."""
TUNED_AS = {
    RUNNER_UP: "imitate",
    AUTO_RUNNER_UP: "auto",
    SAME_RATE: WEIGHTED,
    "imitate, other tasks for settled ones": "imitate",
    "grpo, other tasks for settled ones": "grpo",
    "random credit": "imitate",
    "shuffled credit": "imitate",
    "trees, flat credit": "grpo",
    "no trees, graph credit": "grpo",
}
"""Arm -> the one whose settings it has, where it is not tuned itself."""
BUDGETS: dict[str, dict[str, int]] = {
    "quick": {"updates": 10, "tokens": 25_000},
    "tune": {"updates": 12, "tokens": 30_000},
    "games": {"updates": 16, "tokens": 15_000},
    "40k": {"updates": 16, "tokens": 40_000},
    "150k": {"updates": 50, "tokens": 150_000},
}
ENVS = ("household", "long-household")
TUNED = [{"lr": lr, "epochs": epochs} for lr in (5e-4, 1e-3, 2e-3) for epochs in (1, 4)]
TUNE_SEEDS, EXTRA_SEEDS = (100, 101, 102), 5
KNOWN = {
    f"long-household, {budget}, auto - imitate: lower 95 % bound": "splitting wins hardly more tasks than independent attempts "
    "once the agent "
    "wins some; see docs/improve.md"
    for budget in ("40k", "150k")
} | {
    f"household, {budget}, fresh seeds, auto - {rival}: lower 95 % bound": "three seeds of tuning chose a rate for auto with "
    "which it learns "
    "less; see docs/improve.md"
    for budget in ("40k", "150k")
    for rival in (RUNNER_UP, "grpo")
}
"""Claim that does not hold -> why, with the page that explains it."""
EVALUATED, TIMES = 500, 4
"""Held-out tasks and attempts at each: 2,000 episodes, and pass@4."""
GAMES = {"train": 96, "eval": 100}
"""Games of TextWorld, which take about a second each to generate, so all seeds share them; those of the tuning share others."""
SPENT = ("attempts", "solved", "forks", "mixed", "tokens", "prefill", "seconds")
"""What is told of an arm's training: attempts, solved tasks, forks, share of mixed groups,
tokens generated and read, seconds with evaluation."""
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

    ``own``: the settings of an arm that is not in :data:`SETTINGS`. ``episodes`` 0: the fixed task set. Arm ``start, sharper``:
    the starting agent at temperature .5, to tell learning from sharpening."""
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
                others = int(seed in TUNE_SEEDS)
                job.train_task_set, job.eval_task_set = (job.environment.task_set(split, n, others) for split, n in GAMES.items())
            elif not episodes:
                job.eval_task_set = job.environment.task_set("eval", EVALUATED, 0)
            spent = 0 if arm.startswith("start") else job.learn(run, config.arm)
            prefill = job.model.stats.prompt_tokens
            after, updates = job.evaluate(run, "after"), list(run.memo("update", UpdateReport).values())
            tasks = job.eval_task_set.hash
    outcomes = [bool(one) for one in after.outcomes]
    found: dict[str, Any] = {
        "success": after.success,
        "n": after.n,
        "entropy": after.entropy,
        "tokens": spent,
        "prefill": prefill,
        "updates": len(updates),
        "tasks": tasks,
    }
    if not episodes:
        found[f"pass@{TIMES}"] = float(np.reshape(outcomes, (TIMES, -1)).any(axis=0).mean())
    found |= {name: sum(int(getattr(one, name)) for one in updates) for name in ("attempts", "forks", "solved", "split")}
    found["mixed"] = float(np.mean([one.mixed for one in updates])) if updates else 0.0
    found["curve"] = [[one.tokens, round(one.success, 4), one.solved] for one in updates]
    ranked = [one.critic.auroc for one in updates if one.critic and one.critic.auroc is not None]
    found["critic auroc"] = float(np.mean(ranked)) if ranked else None
    found |= {f"{what} s": round(sum(one.seconds[what] for one in updates), 1) for what in ("sample", "credit", "train")}
    found |= {"seconds": round(time.perf_counter() - began, 1), "processor": f"{machine_name()} ({kernels()})"}
    return found | {"version": ramify.__version__}


def placed(env: str) -> dict[str, str]:
    """Environment and agent by their names: a household with the agent that goes with it,
    or TextWorld's games or AgentDojo's tasks with their recipe's."""
    if env == "textworld":
        return {"env": TextWorldRecipe.GAMES, "model": f"hf:{TextWorldRecipe().folder()}"}
    if env == "agentdojo":
        return {"env": "factory:ramify_experiments.dojo:DojoEnvironment", "model": f"hf:{DojoRecipe().folder()}"}
    return {"env": env, "model": f"builtin:{env}"}


@dataclass(frozen=True)
class ArmGrid:
    """Arms on an environment at a budget."""

    env: str
    budget: str
    arms: tuple[str, ...]
    """Those it tells about."""
    seeds: tuple[int, ...]
    part: str = ""
    rivals: tuple[str, ...] = ()
    """Arms of other comparisons that its own are paired with; without any, the claims are made of its first arm."""

    @property
    def name(self) -> str:
        """How checks name it."""
        return ", ".join(filter(None, (self.env, self.budget, self.part)))

    def cells(self, seed: int, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Key and arguments of every cell of one seed; ``settings``: arm -> its frozen training settings."""
        common = {"seed": seed, "env": self.env}
        return {
            self.key(arm, seed): {"arm": arm, "train": dict(settings.get(arm, {})), "budget": self._budget(arm), **common}
            for arm in self.every
        }

    @property
    def every(self) -> tuple[str, ...]:
        """All arms that it needs."""
        return self.rivals + self.arms

    def key(self, arm: str, seed: int) -> str:
        """Of a cell."""
        return f"{self.env} {self._budget(arm)} {arm}, seed {seed}"

    def _budget(self, arm: str) -> str:
        """The start is one cell, whatever is spent after it."""
        return "40k" if arm.startswith("start") else self.budget


def comparisons(seeds: Sequence[int]) -> list[ArmGrid]:
    """The grid on ``seeds``, in the order in which it is run: what a tuning of an environment opens comes right after it."""
    grid = {env: [ArmGrid(env, budget, ("start", *MAIN[env]), tuple(seeds)) for budget in ("40k", "150k")] for env in ENVS}
    again = [
        ArmGrid("household", budget, (arm,), tuple(seed + first for seed in seeds), arm, AGAINST[arm])
        for arm, first in AFTERWARDS.items()
        for budget in ("40k", "150k")
    ]
    today = [
        ArmGrid("household", budget, ("start", *TODAY), tuple(seed + FRESH for seed in seeds), "fresh seeds")
        for budget in ("40k", "150k")
    ]
    others = tuple(arm for arm in AGAINST if arm not in AFTERWARDS)
    rivals = tuple(dict.fromkeys(rival for arm in others for rival in AGAINST[arm]))
    controls = ArmGrid("household", "40k", others, tuple(seeds[:EXTRA_SEEDS]), "controls", rivals)
    return [*grid["household"], *again, controls, *grid["long-household"], *today]


def tuned_arms(arms: Sequence[str]) -> list[str]:
    """The arms whose tuning ``arms`` need."""
    return list(dict.fromkeys(TUNED_AS.get(arm, arm) for arm in arms if not arm.startswith("start")))


def tuning(env: str, arms: Sequence[str] = TUNING, budget: str = "tune") -> dict[str, dict[str, Any]]:
    """Cells of the tuning that ``arms`` need, on seeds of their own; 200 episodes on tasks of their own."""
    cells = {}
    for arm, (number, train), seed in itertools.product(tuned_arms(arms), enumerate(TUNED), TUNE_SEEDS):
        common = {"seed": seed, "budget": budget, "env": env, "episodes": 200}
        cells[f"tune {env} {arm} {number}, seed {seed}"] = {"arm": arm, "train": train, **common}
    return cells


def tuned(done: Mapping[str, Mapping[str, Any]], env: str, arm: str) -> np.ndarray:
    """Mean success of an arm with each of :data:`TUNED`."""
    return np.array(
        [
            np.mean([done[f"tune {env} {arm} {number}, seed {seed}"]["success"] for seed in TUNE_SEEDS])
            for number in range(len(TUNED))
        ]
    )


def frozen(done: Mapping[str, Mapping[str, Any]], env: str, arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The best settings of each of ``arms`` by mean success, the first of equals;
    the second best of a runner-up, none of a start."""
    found = {}
    for arm in arms:
        if not arm.startswith("start"):
            best, second = np.argsort(-tuned(done, env, TUNED_AS.get(arm, arm)), kind="stable")[:2]
            found[arm] = TUNED[int(second if arm in (RUNNER_UP, AUTO_RUNNER_UP) else best)]
    return found


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


def compared(cells: ResultCache, grid: Sequence[ArmGrid], here: str) -> Checks:
    """The comparisons, cell by cell. A seed that another kind of processor began is left to it,
    and counts where it is complete."""
    first = {key: one for env in ENVS for key, one in tuning(env).items()}
    every = first | {
        key: one for comparison in grid for seed in comparison.seeds for key, one in comparison.cells(seed, {}).items()
    }
    there = {c.key(arm, seed) for c in grid for seed, arms in known_cells(cells, c).items() for arm in arms}
    done = len(cells.known(cell, first)) + len(there)
    say(f"about {hours(every):.1f} hours on two idle cores in all; {done} of {len(every)} cells are there")
    checks = Checks(tuple(sorted({seed for comparison in grid for seed in comparison.seeds})))
    for comparison in grid:
        settings = frozen(cells.map(cell, tuning(comparison.env, comparison.every)), comparison.env, comparison.every)
        for seed in comparison.seeds:
            wanted = comparison.cells(seed, settings)
            if may_continue(here, cells.known(cell, wanted)):
                cells.map(cell, wanted)
        checks += judged(comparison, known_cells(cells, comparison))
    return checks


def so_far(cells: ResultCache, grid: Sequence[ArmGrid]) -> Checks:
    """What the cells that are there say; plays nothing. A seed counts where all arms of its comparison are there."""
    checks = Checks(())
    for env, arm in itertools.product(ENVS, TUNING):
        jobs = tuning(env, (arm,))
        done = cells.known(cell, jobs)
        checks.value(f"tuning, {env}, {arm}: cells", len(done), len(jobs))
        if len(done) == len(jobs):
            means = tuned(done, env, arm)
            best = TUNED[int(means.argmax())]
            name = f"tuning, {env}, {arm}: the best, a rate of {best['lr']:g} and epochs {best['epochs']}"
            checks.value(name, means.max(), len(TUNE_SEEDS))
    for comparison in grid:
        found = known_cells(cells, comparison)
        there, arms = sum(map(len, found.values())), len(comparison.every)
        checks.value(f"{comparison.name}, {arms} arms: cells", there, len(comparison.seeds) * arms)
        checks += judged(comparison, found)
    return checks


def known_cells(cells: ResultCache, comparison: ArmGrid) -> dict[int, dict[str, Any]]:
    """seed -> arm -> its cell, of those that are there: none before the tuning of its arms is complete."""
    jobs = tuning(comparison.env, comparison.every)
    done = cells.known(cell, jobs)
    if jobs.keys() - done.keys():
        return {}
    found, settings = {}, frozen(done, comparison.env, comparison.every)
    for seed in comparison.seeds:
        ones = cells.known(cell, comparison.cells(seed, settings))
        found[seed] = {arm: ones[key] for arm in comparison.every if (key := comparison.key(arm, seed)) in ones}
    return found


def complete(comparison: ArmGrid, found: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The seeds of which all arms are there."""
    return {seed: arms for seed, arms in found.items() if len(arms) == len(comparison.every)}


def judged(comparison: ArmGrid, found: Mapping[int, Mapping[str, Any]]) -> Checks:
    """What the complete seeds of a comparison say: means, and the claims that were fixed before the runs."""
    runs = complete(comparison, found)
    checks = Checks(tuple(runs), KNOWN)
    if not runs:
        return checks
    got = {arm: np.array([one[arm]["success"] for one in runs.values()]) for arm in comparison.every}
    for arm in comparison.arms:
        checks.mean(f"{comparison.name}, {arm}: success", got[arm])
        told = (f"pass@{TIMES}", "entropy") if arm.startswith("start") else (f"pass@{TIMES}", "entropy", *SPENT)
        for what in told:
            checks.mean(f"{comparison.name}, {arm}: {what}", [one[arm][what] for one in runs.values()])
    if len(runs) < 2:
        return checks
    if comparison.rivals:
        for arm in comparison.arms:
            for other in AGAINST[arm]:
                checks.paired(f"{comparison.name}, {arm} - {other}: success", got[arm], got[other])
        return checks
    claimed, *rivals = (arm for arm in comparison.arms if arm != "start")
    corrected = holm([paired_permutation(got[claimed], got[arm]) for arm in rivals])
    for arm, p in zip(rivals, corrected, strict=True):
        interval = paired_t(got[claimed], got[arm])
        op, bound = dict(claims(comparison.env)).get(arm, ("report", None))
        name = f"{comparison.name}, {claimed} - {arm}: lower 95 % bound"
        checks.value(name, interval[0], len(runs), op, bound, interval)
        checks.value(f"{comparison.name}, {claimed} - {arm}: p, corrected", p, len(runs))
    for arm, other in itertools.combinations(reversed(rivals), 2):
        checks.paired(f"{comparison.name}, {arm} - {other}: success", got[arm], got[other])
    return checks


def claims(env: str) -> Iterator[tuple[str, tuple[str, float | None]]]:
    """Rival -> what was claimed of the lower bound of auto's advantage before any run. On the long household ``imitate`` is auto
    without forks, too."""
    yield "grpo", (">", 0.0)
    yield RUNNER_UP, (">", -0.01)
    yield "imitate", (">", -0.01 if env == "household" else 0.0)
