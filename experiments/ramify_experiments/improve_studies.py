"""Small studies beside the comparison of ``ramify improve``,
each one command that prints its table and can keep it in ``repro/``:

    python -m ramify_experiments.improve_studies credits --save    what other credit rules bring at equal tokens
    python -m ramify_experiments.improve_studies rules --seeds 5 --save    rules that credit single steps, at equal tokens
    python -m ramify_experiments.improve_studies rules-textworld --seeds 5 --save    the same in TextWorld's games
    python -m ramify_experiments.improve_studies rules-agentdojo --seeds 5 --save    the same at AgentDojo's tasks
    python -m ramify_experiments.improve_studies critic --save     how well the critic ranks alternative steps
    python -m ramify_experiments.improve_studies splitting --save    what a won task costs, split or not, by how rare wins are
    python -m ramify_experiments.improve_studies textworld --seeds 5 --save    three arms in games that nobody here wrote
    python -m ramify_experiments.improve_studies comparison --seeds 10 --save  what the finished cells of `ramify repro improve`
    say

Seeds are others than those of the comparison, but for the last, which plays nothing.
Finished cells are kept, so that a study that was interrupted continues.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from ramify.base import codec
from ramify.base.config import check
from ramify.base.seeds import generator
from ramify.engine.devices import kernels
from ramify.engine.local import LocalModel
from ramify.engine.profile import machine_name
from ramify.env.builtin.household import Demonstrated, shortest
from ramify.env.protocol import Task, TaskSet
from ramify.jobs.critic import SharedCritic, states_at
from ramify.jobs.grown import gather_all
from ramify.jobs.improve import ImproveConfig, Job
from ramify.jobs.results import UpdateReport
from ramify.render.terminal import say
from ramify.render.text import table
from ramify.rollout.backends import Player, Unit
from ramify.score.credit.imitate import Imitate
from ramify.score.credit.protocol import CreditGroup, CreditRule
from ramify.stats.drops import Counts
from ramify.stats.intervals import clustered_mean
from ramify.stats.tests import fisher
from ramify.trace.db import Run
from ramify.train import checkpoint
from ramify_experiments.dojo import DojoRecipe
from ramify_experiments.improve import BUDGETS, TIMES, TUNE_SEEDS, cell, comparisons, frozen, kept, placed, so_far, tuning
from ramify_experiments.lab import Checks, ResultCache, cache
from ramify_experiments.recipes import TextWorldRecipe

FIRST_SEED, EPISODES = 300, 600
UNTUNED = {"auto": {"lr": 1e-3, "epochs": 4}, "imitate": {"lr": 1e-3, "epochs": 4}, "grpo": {"lr": 5e-4, "epochs": 1}}
"""Rates and passes that arms had before they were tuned, for what was measured with them."""
CREDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "imitate": ("start", {"arm": "imitate"}),
    "imitate, recovery": ("imitate", {"arm": "imitate", "credit": "recovery"}),
    "imitate, implicit-advantage": ("imitate", {"arm": "imitate", "credit": "implicit-advantage"}),
    "grpo": ("start", {"arm": "grpo"}),
    "grpo, cliffs": ("grpo", {"arm": "grpo", "credit": "cliffs"}),
}
"""Name of an arm -> the one that it is compared with, and its settings of ``ramify improve``;
rates and passes are :data:`UNTUNED`."""


RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("start", {"arm": "grpo"}),
    "step-returns": ("grpo", {"arm": "grpo", "credit": "step-returns"}),
    "gigpo": ("grpo", {"arm": "grpo", "credit": "gigpo"}),
    "g2po": ("grpo", {"arm": "grpo", "credit": "g2po"}),
    "g2po-released": ("g2po", {"arm": "grpo", "credit": "g2po-released"}),
}
"""The same, of rules that credit a step apart from its attempt."""
HOUSEHOLD: dict[str, Any] = {"budget": "40k", "episodes": EPISODES}
GAMES: dict[str, Any] = {"budget": "games", "env": "textworld"}
ERRANDS: dict[str, Any] = {"budget": "40k", "env": "agentdojo", "episodes": 616, "train": {"lr": 1e-3, "epochs": 1}}
"""Attempts at eight a task; the better of two rates of ``grpo`` on a seed of the tuning's."""


def _credits(
    arms: Mapping[str, tuple[str, dict[str, Any]]],
    common: Mapping[str, Any],
    cells: ResultCache,
    seeds: Sequence[int],
) -> Checks:
    """Success after, and the difference to the arm that differs by the credit rule alone, paired by seed; ``common``: of every
    cell, the environment and the tokens."""
    recipe = {"textworld": TextWorldRecipe, "agentdojo": DojoRecipe}.get(common.get("env", ""))
    if recipe is not None:
        recipe().folder(say)  # once, before cells that need it run side by side
    every: dict[str, dict[str, Any]] = {"start": {"arm": "start", **common}}
    every |= {arm: {"arm": arm, "own": own, "train": UNTUNED[own["arm"]], **common} for arm, (_, own) in arms.items()}
    done = cells.map(cell, {f"{arm}, seed {seed}": {**one, "seed": seed} for seed in seeds for arm, one in every.items()})
    checks = Checks(seeds)
    got = {arm: [done[f"{arm}, seed {seed}"]["success"] for seed in seeds] for arm in every}
    for arm, success in got.items():
        checks.mean(f"{arm}: success", success)
    for arm, (rival, _) in arms.items():
        checks.paired(f"{arm} - {rival}", got[arm], got[rival])
    return checks


TASKS, TRIED, FORKS, FEW = 120, 12, 32, 4
"""Of the critic's study, a seed: held-out tasks, at each one state of an attempt; steps sampled there; continuations of each
different step that are the truth; and those that a rival estimates from."""
DECIDED = 0.01
"""Two steps of a state count where the truth tells their chances apart with this p-value (Fisher)."""


def critic_cell(seed: int, budget: str = "40k", tasks: int = TASKS, tried: int = TRIED, forks: int = FORKS) -> dict[str, Any]:
    """Train the arm ``auto``, then at one state a held-out task: the different steps that the agent samples there, each with the
    share of samples, the critic's value of the state after it, successes of :data:`FEW` continuations,
    and of ``forks`` others, the truth.

    Steps that end the attempt are left out: of them nobody needs an estimate. Returned: ``states``, a list of steps each."""
    settings = {"arm": "auto", "seed": seed, **BUDGETS[budget], "eval_episodes": tasks, "train": UNTUNED["auto"]}
    config = check(ImproveConfig, settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Job(config, path) as job, Run.create(path, config.to_json()) as run:
            job.learn(run, "auto")
            last = list(run.memo("update", UpdateReport).values())[-1]
            tensors, record = checkpoint.unpack(run.get_blob(last.checkpoint))
            critic = SharedCritic(config.critic, seed)
            critic.restore(tensors, record["critic"])
            player = job.player(run, "critic")
            held_out = list(job.eval_task_set)[:tasks]
            states = job.players.run(
                gather_all(_state(player, critic, job.max_turns, task, seed, tried, forks) for task in held_out)
            )
    ranked = None if last.critic is None else last.critic.auroc
    return {"states": [state for state in states if len(state) > 1], "critic auroc": ranked, "won": critic.won}


async def _state(
    player: Player, critic: SharedCritic, max_turns: int, task: Task, seed: int, tried: int, forks: int
) -> list[dict[str, Any]]:
    """The different steps at a state of an attempt at ``task``, as :func:`critic_cell` says."""
    tree = f"critic/{task.id}"
    attempt = await player.tried(Unit(tree, task, 0))
    if attempt.failure or not attempt.turns:
        return []
    starts = [attempt.start, *(turn.answer.id for turn in attempt.turns[:-1])]
    start = starts[int(generator(seed, "critic study", task.id).integers(len(starts)))]
    steps: dict[str, list[str]] = {}
    for one in await gather_all(player.tried(Unit(tree, task, 1 + i, start, 1)) for i in range(tried)):
        if one.paused:
            steps.setdefault(" ".join(one.turns[0].node.text.split()), []).append(one.leaf)
    if len(steps) < 2:
        return []
    nodes = [player.episodes.load(tree).node(leaves[0]) for leaves in steps.values()]
    model = player.episodes.agent.model
    assert isinstance(model, LocalModel)
    values = critic.value(await states_at(model, player.episodes, nodes, max_turns))
    found = []
    for (action, leaves), value in zip(steps.items(), values.tolist(), strict=True):
        played = await gather_all(player.tried(Unit(tree, task, i, leaves[0])) for i in range(FEW + forks))
        few, truth = (Counts.of(one.outcome for one in part) for part in (played[:FEW], played[FEW:]))
        shares = {"share": len(leaves) / tried, "critic": value, "few": few.rate}
        found.append({"action": action, **shares, "k": truth.k, "n": truth.n})
    return found


def ranked(states: Sequence[Sequence[Mapping[str, Any]]], by: str) -> tuple[list[float], list[int], int]:
    """Of each pair of steps of a state that the truth tells apart whether ``by`` ranks them as the truth does (1, 0; 0.5 where it
    has no opinion), the pair's state, and how many pairs there are in all."""
    right, clusters, every = list[float](), list[int](), 0
    for number, state in enumerate(states):
        for i, a in enumerate(state):
            for b in state[:i]:
                every += 1
                if fisher(a["k"], a["n"], b["k"], b["n"]) < DECIDED:
                    truth = a["k"] / a["n"] - b["k"] / b["n"]
                    right.append(0.5 + 0.5 * float(np.sign(truth * (a[by] - b[by]))))
                    clusters.append(number)
    return right, clusters, every


def critic_study(cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """How often the critic, few continuations, and the agent's own preference rank two steps of one state as many continuations
    do."""
    runs = list(cells.map(critic_cell, {f"critic, seed {seed}": {"seed": seed} for seed in seeds}).values())
    states, checks = [state for one in runs for state in one["states"]], Checks(seeds)
    checks.value("states with several steps", len(states), len(states))
    names = {"critic": "the critic's value", "few": f"{FEW} continuations", "share": "the agent's own preference"}
    for by, name in names.items():
        right, clusters, every = ranked(states, by)
        if by == "critic":
            checks.value("pairs of steps", every, every)
            checks.value(f"pairs that {FORKS} continuations each tell apart", len(right), len(right))
        value, interval = clustered_mean(right, clusters) if right else (float("nan"), None)
        checks.value(f"ranked right by {name}", value, len(right), interval=interval)
    aurocs = [one["critic auroc"] for one in runs]
    checks.mean("area under the ROC curve of the critic over all states of the last update", aurocs)
    return checks


HOUSES: dict[str, tuple[str, int, int]] = {
    "household": ("household", 0, 99),
    "10 to 13 steps": ("long-household", 10, 13),
    "14 to 17 steps": ("long-household", 14, 17),
    "18 to 20 steps": ("long-household", 18, 20),
    "21 to 26 steps": ("long-household", 21, 26),
}
"""Name -> environment, fewest and most steps of the shortest win: the longer, the rarer wins are."""


class NoCredit(CreditRule):
    """Every step's credit is 0, so nothing is learned."""

    maker, loss = "no-credit", "cross_entropy"
    numbers: ClassVar[Mapping[str, str]] = {}

    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """See :class:`CreditRule`."""
        return {node: np.zeros_like(one) for node, one in Imitate().assign(group).items()}


def sampled_cell(houses: str, sampling: str, seed: int, budget: str = "40k") -> dict[str, Any]:
    """What the untrained agent wins in some :data:`HOUSES` with as many tokens as a job has:
    nothing is learned but by the critic."""
    env, fewest, most = HOUSES[houses]
    credit = "factory:ramify_experiments.improve_studies:NoCredit"
    settings = {**placed(env), "sampling": sampling, "credit": credit, "seed": seed, **BUDGETS[budget], "train_tasks": 4000}
    config = check(ImproveConfig, settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Job(config, path) as job, Run.create(path, config.to_json()) as run:
            knows = cast(Demonstrated, job.environment)
            fitting = [task for task in job.train_task_set if fewest <= shortest(task, knows) <= most]
            job.train_task_set = TaskSet.of(fitting)
            tokens = job.learn(run, config.arm)
            updates = list(run.memo("update", UpdateReport).values())
    won, tried = (sum(one.independent[i] for one in updates) for i in (0, 1))
    found = {name: sum(int(getattr(one, name)) for one in updates) for name in ("attempts", "forks", "solved")}
    return found | {"independent won": won, "independent": tried, "tokens": tokens, "tasks": len(fitting)}


def splitting_study(cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """What a won task costs an agent that does not learn, from common wins to rare ones: by splitting; by independent attempts,
    four at a task, where a task counts once; and by independent attempts at one task each,
    where every win counts, which is the strongest without forks."""
    jobs = {
        f"splitting study, {houses}, {sampling}, seed {seed}": {"houses": houses, "sampling": sampling, "seed": seed}
        for houses in HOUSES
        for sampling in ("flat", "splitting")
        for seed in seeds
    }
    done, checks = cells.map(sampled_cell, jobs), Checks(seeds)
    for houses in HOUSES:
        flat, split = (
            [done[f"splitting study, {houses}, {sampling}, seed {seed}"] for seed in seeds] for sampling in ("flat", "splitting")
        )
        won, tried = (sum(int(one[name]) for one in flat) for name in ("independent won", "independent"))
        checks.share(f"{houses}: independent attempts that win", won, tried)
        ways = {
            "one attempt a task": (flat, "independent won"),
            "four attempts a task": (flat, "solved"),
            "splitting": (split, "solved"),
        }
        rates = {}
        for name, (ones, what) in ways.items():
            rates[name] = [1e4 * one[what] / one["tokens"] for one in ones]
            checks.mean(f"{houses}, {name}: tasks won in 10,000 tokens", rates[name])
            total = sum(one[what] for one in ones)
            checks.value(f"{houses}, {name}: tokens a won task", sum(one["tokens"] for one in ones) / max(1, total), total)
        for name in list(ways)[:2]:
            checks.paired(f"{houses}: splitting - {name}, tasks won in 10,000 tokens", rates["splitting"], rates[name])
    return checks


HUNTERS = ("auto", "imitate", "grpo")


def textworld_study(cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """TextWorld's treasure hunts, 15,000 tokens, which are about 450 attempts (commands are short), every arm tuned on games of
    the tuning's own: success after, and differences paired by seed. Its cells are kept with the comparison's."""
    TextWorldRecipe().folder(say)  # once, before cells that need it run side by side
    cells = kept(cells)
    settings = frozen(cells.map(cell, tuning("textworld", HUNTERS, "games")), "textworld", HUNTERS)
    common = {"budget": "games", "env": "textworld"}
    keys = {(arm, seed): f"textworld {arm}, seed {seed}" for arm in ("start", *HUNTERS) for seed in seeds}
    done = cells.map(
        cell, {key: {"arm": arm, "seed": seed, "train": settings.get(arm, {}), **common} for (arm, seed), key in keys.items()}
    )
    runs = {arm: [done[keys[arm, seed]] for seed in seeds] for arm in ("start", *HUNTERS)}
    checks = Checks(seeds)
    for arm, ones in runs.items():
        for what in ("success", f"pass@{TIMES}", *(() if arm == "start" else ("solved", "forks", "tokens"))):
            checks.mean(f"{arm}: {what}", [one[what] for one in ones])
    got = {arm: [one["success"] for one in ones] for arm, ones in runs.items()}
    for arm in HUNTERS:
        for name, value in settings[arm].items():
            checks.value(f"{arm}: {name}, tuned", value, len(TUNE_SEEDS))
        checks.paired(f"{arm} - start: success", got[arm], got["start"])
    for rival in HUNTERS[1:]:
        checks.paired(f"auto - {rival}: success", got["auto"], got[rival])
    return checks


def comparison_study(cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """What is there of the comparison's first seeds, as many as ``seeds``."""
    checks = Checks(tuple(range(len(seeds))))
    checks += so_far(kept(cells), comparisons(checks.seeds))
    return checks


STUDIES: dict[str, Callable[[ResultCache, Sequence[int]], Checks]] = {
    "credits": partial(_credits, CREDITS, HOUSEHOLD),
    "rules": partial(_credits, RULES, HOUSEHOLD),
    "rules-textworld": partial(_credits, RULES, GAMES),
    "rules-agentdojo": partial(_credits, RULES, ERRANDS),
    "critic": critic_study,
    "splitting": splitting_study,
    "textworld": textworld_study,
    "comparison": comparison_study,
}


def main() -> None:
    """Run one study, print its table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--cells", type=Path, help="folder of finished cells")
    parser.add_argument("--save", action="store_true", help="write repro/improve-STUDY.json of this checkout")
    options = parser.parse_args()
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + options.seeds))
    cells = ResultCache(options.cells or cache() / f"improve-{options.study}", edition="1")
    checks = STUDIES[options.study](cells, seeds)
    shown = [
        (one.name, f"{one.value:.3f}", "" if one.interval is None else f"[{one.interval[0]:.3f}, {one.interval[1]:.3f}]", one.n)
        for one in checks
    ]
    say(table(["", "value", "95 % interval", "n"], shown))
    if options.save:
        record = {
            "slug": "improve",
            "size": options.study,
            "command": f"python -m ramify_experiments.improve_studies {options.study} --seeds {options.seeds} --save",
            "seeds": list(checks.seeds),
            "passed": all(one.status != "miss" for one in checks),
            "processor": f"{machine_name()} ({kernels()})",
            "checks": codec.to_json(checks),
        }
        file = Path(__file__).resolve().parents[2] / "repro" / f"improve-{options.study}.json"
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {file}")


if __name__ == "__main__":
    from ramify_experiments import improve_studies

    improve_studies.main()  # under its own name, which cells keep, and not under that of the script
