"""``ramify resume``: go on with an interrupted run."""

from __future__ import annotations

import typer

from ramify.cli.common import Json, RunArgument, find_improved
from ramify.cli.improve import finish

app = typer.Typer(add_completion=False)


@app.command()
def resume(run: RunArgument, as_json: Json = False) -> None:
    """Go on with an interrupted run; it ends where the undisturbed run would have.

    A run that is done already prints its result again.
    """
    folder = find_improved(run)
    from ramify.jobs import improve as job

    finish(folder, as_json, lambda bar: job.resume(folder, bar))
