"""``ramify import``: make a run from traces in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramify.cli.common import Json

app = typer.Typer(add_completion=False)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines: an exported run, chat logs or steps.")],
    run: Annotated[Path, typer.Option("--run", metavar="RUN", help="Folder of the run to make.")],
    as_json: Json = False,
) -> None:
    """Make a run from traces in a file, whole or not at all."""
    from ramify.render import terminal
    from ramify.trace import convert
    from ramify.trace.db import Run

    form = convert.read_run(file, run)
    with Run.open(run) as opened:
        record = {"run": str(run), "form": form, "trees": len(opened.trees()), "nodes": len(opened)}
    terminal.emit(record, as_json, f"{run}: {record['trees']} trees, {record['nodes']} nodes from {file} ({form})")
