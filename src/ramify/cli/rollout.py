"""``ramify rollout``: play tasks with any agent in any environment, here or on workers, and keep the trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import BudgetSpentError, RamifyError, UserError
from ramify.base.progress import Progress
from ramify.base.words import plural
from ramify.cli.improve import kept, next_run
from ramify.kit import DryRun, Json, Verbs, option
from ramify.render.terminal import emit, progress, short, show, table

if TYPE_CHECKING:
    from ramify.jobs.trees import TreeRolloutConfig

app = Verbs("rollout")


tree_app = Verbs("tree-rollouts")


def _settings() -> type[TreeRolloutConfig]:
    from ramify.jobs.trees import TreeRolloutConfig

    return TreeRolloutConfig


@app.itself(settings=_settings)
def rollout(
    settings: TreeRolloutConfig,
    out: Annotated[
        Path | None,
        option(metavar="RUN", help="Folder of the run to make or continue; default: the next free runs/rollout-N."),
    ] = None,
    tree: Annotated[
        bool, option("--tree", help="Grow a tree of attempts per task under --tree-budget (see `ramify tree-rollouts`).")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Play tasks with any agent in any environment, here or on workers, and keep the trees.

    The same command again continues an interrupted run. Exit code 3 when a budget ended it before every attempt was played.
    """
    from ramify.jobs import trees as job
    from ramify.jobs.collect import Collection
    from ramify.jobs.components import wanted_template

    folder = out or next_run("rollout")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot make a run in {folder}: it is a file")
    template = wanted_template(settings.chat_template, folder)
    collection = job.TreeCollection(settings, template) if tree else Collection(job.flat(settings), template)
    if dry_run:
        cost_estimate = collection.plan()
        record = {"config": collection.config.to_json(), "bill": cost_estimate}
        emit(record, as_json, table(["cost estimate", "at most"], list(cost_estimate.items())))
        return
    collected(folder, as_json, lambda bar: collection.collect(folder, bar))


def collected(folder: Path, as_json: bool, work: Callable[[Progress], dict[str, Any]]) -> None:
    """Do ``work(bar)`` on the run in ``folder`` under a progress bar and print the result.

    After printing, raises BudgetSpentError where a budget ended the work, RamifyError where every attempt failed.
    """
    result = played(folder, as_json, work)
    emit(result, as_json, summary(result))
    ended(folder, result)


def played(folder: Path, as_json: bool, work: Callable[[Progress], dict[str, Any]]) -> dict[str, Any]:
    """What ``work(bar)`` on the run in ``folder`` returns, under a progress bar; Ctrl-C says how to continue."""
    with progress(folder.name, as_json=as_json, kept=lambda: kept(folder)) as bar:
        bar.begin(0, phase="load")
        return work(bar)


def ended(folder: Path, result: dict[str, Any]) -> None:
    """Raises BudgetSpentError where a budget ended the work, RamifyError where every attempt failed."""
    if result["spent"] is not None:
        left = "no tree was sampled" if result["missing"] is None else f"{plural(result['missing'], 'attempt')} not played"
        raise BudgetSpentError(
            f"the budget of {result['spent']} is spent, {left}: "
            f"raise --budget.{result['spent']} and give the same command with --out {folder} to continue"
        )
    if result["failed"] and not result["n"]:
        refused = next(iter(result["failures"]))
        if all(why.startswith("provider (request)") for why in result["failures"]):
            raise RamifyError(
                f"every attempt failed: {refused.partition(': ')[2]}; `ramify resume {folder}` would send the same requests, so "
                "change what is sent first (the model's URL, the sampling options, the environment's tools)"
            )
        raise RamifyError(f"every attempt failed; `ramify resume {folder}` tries them again")


def summary(result: dict[str, Any]) -> str:
    """The success rate with its interval, what failed, and where to look next."""
    rate = "-" if result["success"] is None else f"{result['success']:.1%}"
    solved = f"{result['solved']} of {result['tasks']}"
    if result["interval"] is None:
        text = table(["successes", "attempts", "tasks solved"], [(result["successes"], result["n"], solved)])
        text += f"\n\n{result['trees']}" if result["trees"] else ""
    else:
        low, high = result["interval"]
        row = (rate, f"[{low:.1%}, {high:.1%}]", result["successes"], result["n"], solved)
        text = table(["success", "95 % interval", "successes", "attempts", "tasks solved"], [row])
    if result["failed"]:
        reasons = "\n".join(f"  {count} x {why}" for why, count in result["failures"].items())
        text += f"\n\n{plural(result['failed'], 'attempt')} ended in an infrastructure failure, not counted:\n{reasons}"
    if result["workers_lost"]:
        text += f"\n\n{plural(result['workers_lost'], 'worker')} died; the attempts there were played again."
    if "caution" in result:
        text += f"\n\nNote: {result['caution']}."
    spent = f"{short(result['turns'])} turns, {short(result['tokens'])} tokens, {result['seconds']:.0f} s"
    run = result["run"]
    return f"\n{text}\n\n{spent}. Look at them with `ramify show {run}`, or `ramify show {run} --web`."


@tree_app.verb("run")
def tree_run(
    run: Annotated[
        Path | None,
        option(metavar="RUN", help="Folder of the run to make or continue; default: the next free runs/trees-N."),
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
    as_json: Json = False,
) -> None:
    """Sample a tree of attempts per task under a budget, and report on the groups: a short form of `ramify rollout --tree`.

    The same command with the same --run continues an interrupted run.
    """
    from ramify.base.config import check
    from ramify.jobs.trees import TreeCollection, TreeRolloutConfig

    given = {"env": env, "model": model, "tree_budget": budget, "allocate": allocate, "tasks": tasks, "count": count}
    given |= {"tree": {"rule": rule, "unit": unit, "parallel": 4}, "max_reply": max_reply, "seed": seed}
    flags = {"tree_budget": "--budget", "tree.rule": "--rule", "tree.unit": "--unit"}
    collection = TreeCollection(check(TreeRolloutConfig, given, flags))
    folder = run or next_run("trees")
    result = played(folder, as_json, lambda bar: collection.collect(folder, bar))
    if result["trees"] is not None:
        show(replace(result["trees"], run=str(folder)), as_json)
    ended(folder, result)
