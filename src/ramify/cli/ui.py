"""``ramify ui``: all runs of a folder in one place, as local web pages."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ramify.cli.show import HOST, PORT, TOKEN
from ramify.kit import Json, Verbs, argument, option

app = Verbs("ui")


@app.itself()
def ui(
    folder: Annotated[Path, argument(metavar="[FOLDER]", help="A folder of runs, or one run.")] = Path("runs"),
    port: Annotated[int, option(help="Port to serve on; 0 takes a free one.", min=0, max=65535)] = PORT,
    host: Annotated[str, option(help="Address to bind to; beyond this machine a token is needed.")] = HOST,
    token: Annotated[
        bool,
        option(
            "--token",
            help="Require a token from visitors: RAMIFY_TOKEN, or one that is generated and printed once. With --act always.",
        ),
    ] = False,
    act: Annotated[
        bool,
        option(
            "--act",
            help="Let the pages start work: sample a step again, try an edit, ask why, fix, record; one job at a time, each with "
            "a budget.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve all runs of a folder as pages on this machine until Ctrl-C: their state, what was left off, and for each run the way
    from a record to a cause, a fix and a test. Without --act it only reads."""
    from ramify.trace.connect import FILE
    from ramify.web.server import ServedRuns, serve_pages

    shown = ServedRuns.of(folder) if (folder / FILE).is_file() else ServedRuns(folder.absolute())
    serve_pages(replace(shown, act=act), host, port, os.environ.get(TOKEN, "") if token or act else None, as_json)
