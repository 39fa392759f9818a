"""``ramify resume``: go on with an interrupted run."""

from __future__ import annotations

import typer

from ramify.base.command import Json
from ramify.cli.common import RunArgument, Trust, find_improved, find_run
from ramify.cli.improve import finish
from ramify.cli.rollout import collected

app = typer.Typer(add_completion=False)


@app.command()
def resume(run: RunArgument, trust: Trust = False, as_json: Json = False) -> None:
    """Go on with an interrupted run; it ends where the undisturbed run would have.

    A run that is done already prints its result again.
    """
    folder = find_run(run)
    from ramify.jobs import collect, trees
    from ramify.jobs import improve as job
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        config = opened.meta.get("config")
    rollouts = collect.is_collection(config)
    if trees.of_trees(config):
        collected(folder, as_json, lambda bar: trees.resume(folder, bar, trust))
        return
    if rollouts:
        collected(folder, as_json, lambda bar: collect.resume(folder, bar, trust))
        return
    folder = find_improved(run)
    finish(folder, as_json, lambda bar: job.resume(folder, bar, trust))
