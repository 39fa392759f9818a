"""``ramify rollout``: play tasks with any agent in any world, here or on workers, and keep the trees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramify.base.command import Json, takes
from ramify.base.errors import BudgetSpentError, InterruptedRunError, RamifyError, UserError
from ramify.cli.common import DATABASE
from ramify.cli.improve import next_run
from ramify.render.terminal import Bar, emit, progress, short, table

if TYPE_CHECKING:
    from ramify.base.config import Config

app = typer.Typer(add_completion=False)


def _settings() -> type[Config]:
    from ramify.jobs.collect import RolloutConfig

    return RolloutConfig


@app.command(**takes(_settings))
def rollout(
    context: typer.Context,
    config: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="TOML file with settings; later files win.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Folder of the run to make or to go on with; default: the next free runs/rollout-N."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the bill; run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Play tasks with any agent in any world, here or on workers, and keep the trees.

    The same command again goes on with an interrupted run. Exit code 3 when a budget ended it before every attempt was played.
    """
    from ramify.base.config import load
    from ramify.jobs import collect as job

    folder = out or next_run("rollout")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot make a run in {folder}: it is a file")
    collection = job.Collection(load(job.RolloutConfig, config or [], context.args))
    if dry_run:
        bill = collection.plan()
        record = {"config": collection.config.to_json(), "bill": bill}
        emit(record, as_json, table(["bill", "at most"], list(bill.items())))
        return
    collected(folder, as_json, lambda bar: collection.collect(folder, bar))


def collected(folder: Path, as_json: bool, work: Callable[[Bar], dict[str, Any]]) -> None:
    """Do ``work(bar)`` on the run in ``folder`` under a progress bar and print what came out.

    Ctrl-C says how to go on. After printing, raises BudgetSpentError where a budget ended the work, RamifyError where every attempt failed.
    """
    try:
        with progress(folder.name, 1, "attempts", as_json) as bar:
            result = work(bar)
    except KeyboardInterrupt:
        if not (folder / DATABASE).exists():
            raise InterruptedRunError("interrupted before anything was done") from None
        raise InterruptedRunError(f"interrupted; what was done is kept: go on with `ramify resume {folder}`") from None
    emit(result, as_json, summary(result))
    if result["spent"] is not None:
        raise BudgetSpentError(
            f"the budget of {result['spent']} is spent, {result['missing']} attempts were not played: "
            f"raise --budget.{result['spent']} and give the same command with --out {folder} to go on"
        )
    if result["failed"] and not result["n"]:
        raise RamifyError(f"every attempt failed; `ramify resume {folder}` tries them again")


def summary(result: dict[str, Any]) -> str:
    """The success rate with its interval, what failed, and where to look next."""
    low, high = result["interval"]
    rate = "-" if result["success"] is None else f"{result['success']:.1%}"
    row = (rate, f"[{low:.1%}, {high:.1%}]", result["successes"], result["n"], f"{result['solved']} of {result['tasks']}")
    text = table(["success", "95 % interval", "successes", "attempts", "tasks solved"], [row])
    if result["failed"]:
        reasons = "\n".join(f"  {count} x {why}" for why, count in result["failures"].items())
        text += f"\n\n{result['failed']} attempts failed at a boundary and count neither way:\n{reasons}"
    if result["workers_lost"]:
        text += f"\n\n{result['workers_lost']} workers died; what they were playing was played again."
    spent = f"{short(result['turns'])} turns, {short(result['tokens'])} tokens, {result['seconds']:.0f} s"
    run = result["run"]
    return f"\n{text}\n\n{spent}. Look at them with `ramify show {run}`, or `ramify show {run} --web`."
