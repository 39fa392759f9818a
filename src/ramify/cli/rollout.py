"""``ramify rollout``: play tasks with any agent in any environment, here or on workers, and keep the trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.progress import SILENT, Progress
from ramify.jobs.results import Collected
from ramify.kit import Verbs, option
from ramify.methods.tree_rollouts.run import TreeReport
from ramify.render.result import Planned

if TYPE_CHECKING:
    from ramify.jobs.collect import Collection
    from ramify.jobs.trees import TreeCollection, TreeRolloutConfig

app = Verbs("rollout")


tree_app = Verbs("tree-rollouts")


def _settings() -> type[TreeRolloutConfig]:
    from ramify.jobs.trees import TreeRolloutConfig

    return TreeRolloutConfig


def _collection(settings: TreeRolloutConfig, out: Path, tree: bool) -> Collection:
    from ramify.jobs import trees as job
    from ramify.jobs.collect import Collection
    from ramify.jobs.components import wanted_template

    template = wanted_template(settings.chat_template, out)
    return job.TreeCollection(settings, template) if tree else Collection(job.flat(settings), template)


def _plan(settings: TreeRolloutConfig, out: Path, tree: bool) -> Planned:
    collection = _collection(settings, out, tree)
    return Planned(collection.config.to_json(), collection.plan())


@app.study(settings=_settings, plan=_plan, unit="attempts", itself=True, folder="rollout", resumed=True, keeps=False)
def rollout(
    settings: TreeRolloutConfig,
    out: Annotated[
        Path | None,
        option(metavar="RUN", help="Folder of the run to make or continue; default: the next free runs/rollout-N."),
    ] = None,
    tree: Annotated[
        bool, option("--tree", help="Grow a tree of attempts per task under --tree-budget (see `ramify tree-rollouts`).")
    ] = False,
    bar: Progress = SILENT,
) -> Collected:
    """Play tasks with any agent in any environment, here or on workers, and keep the trees.

    Exit code 3 when a budget ended it before every attempt was played; the same command with --out and a larger budget continues.
    """
    assert out is not None
    return _collection(settings, out, tree).collect(out, bar)


def _trees(
    env: str,
    model: str,
    budget: float,
    unit: str,
    tasks: str | None,
    count: int,
    rule: str,
    allocate: bool,
    max_reply: int,
    seed: int,
) -> TreeCollection:
    """The collection that ``ramify tree-rollouts run`` asks for."""
    from ramify.base.config import check
    from ramify.jobs.trees import TreeCollection, TreeRolloutConfig

    given = {"env": env, "model": model, "tree_budget": budget, "allocate": allocate, "tasks": tasks, "count": count}
    given |= {"tree": {"rule": rule, "unit": unit, "parallel": 4}, "max_reply": max_reply, "seed": seed}
    flags = {"tree_budget": "--budget", "tree.rule": "--rule", "tree.unit": "--unit"}
    return TreeCollection(check(TreeRolloutConfig, given, flags))


def _tree_plan(out: Path, **asked: Any) -> Planned:
    collection = _trees(**asked)
    return Planned(collection.config.to_json(), collection.plan())


@tree_app.study("run", plan=_tree_plan, unit="turns", folder="trees", resumed=True)
def tree_run(
    out: Annotated[
        Path | None,
        option("--run", metavar="RUN", help="Folder of the run to make or continue; default: the next free runs/trees-N."),
    ] = None,
    env: Annotated[str, option("--env", help="Environment the agent acts in, as in `ramify rollout`.")] = "household",
    model: Annotated[str, option(help="The agent, as in `ramify rollout`: builtin, hf:FOLDER, chat:MODEL@URL, ...")] = "builtin",
    budget: Annotated[float, option(help="Budget per task.")] = 64,
    unit: Annotated[str, option(help="Unit of the budget: turns or tokens.")] = "turns",
    tasks: Annotated[
        str | None, option(metavar="FILE", help="Tasks as JSON lines; default: tasks the environment generates.")
    ] = None,
    count: Annotated[int, option(min=1, help="Tasks the environment generates.")] = 8,
    rule: Annotated[str, option(help="uucb, random, or flat (independent attempts).")] = "uucb",
    allocate: Annotated[bool, option(help="Move budget from tasks whose outcome is settled to undecided ones.")] = True,
    max_reply: Annotated[int, option(min=1, help="Longest reply of the agent, in tokens.")] = 24,
    seed: Annotated[int, option(help="Decides every sample.")] = 0,
    bar: Progress = SILENT,
) -> TreeReport | Collected:
    """Sample a tree of attempts per task under a budget, and report on the groups: a short form of `ramify rollout --tree`."""
    assert out is not None
    found = _trees(env, model, budget, unit, tasks, count, rule, allocate, max_reply, seed).collect(out, bar)
    if found.trees is None or found.exit_code:
        return found
    return replace(found.trees, run=str(out), caveats=found.caveats)
