"""``ramify show``: a run's summary in the terminal, as one HTML file, or as local web pages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.kit import RunArgument, Verbs, find_run, option
from ramify.render.result import Result, Section

app = Verbs("show")

TOKEN = "RAMIFY_TOKEN"
HOST, PORT = "127.0.0.1", 8765


@dataclass(frozen=True)
class WrittenReport(Result):
    """The report of a run as a file."""

    run: str
    html: str

    def sections(self) -> Iterable[Section]:
        """Where it is."""
        yield Section.of("", f"wrote {self.html}")


@app.itself()
def show(
    run: RunArgument,
    html: Annotated[Path | None, option(metavar="FILE", help="Write the report as one self-contained HTML file.")] = None,
    web: Annotated[bool, option("--web", help="Serve the report on this machine until Ctrl-C.")] = False,
    port: Annotated[int, option(help="Port of --web.", min=0, max=65535)] = PORT,
    host: Annotated[str, option(help="Address to bind --web to; beyond this machine a token is needed.")] = HOST,
    token: Annotated[
        bool,
        option(
            "--token", help="Require a token from visitors of --web: RAMIFY_TOKEN, or one that is generated and printed once."
        ),
    ] = False,
    scorer: Annotated[
        str | None,
        option(metavar="NAME", help="Scorer that decides which attempts succeeded; default: env, or the imported reward."),
    ] = None,
    beside: Annotated[
        str | None, option(metavar="RUN", help="Another run to compare with, on the pages of --web and --html.")
    ] = None,
) -> Result | None:
    """Summarise a run: how often its attempts succeeded; of an improve run before and after,
    the last updates, where the budget went."""
    folder = find_run(run)
    if web and html is not None:
        raise UserError("choose one of --web and --html")
    if not web and (token or (host, port) != (HOST, PORT)):
        raise UserError("--host, --port and --token go with --web")
    if beside is not None and not web and html is None:
        raise UserError("--beside goes with --web or --html")
    other = None if beside is None else find_run(beside)
    if web:
        from ramify.web.limits import is_loopback
        from ramify.web.server import ServedRuns, serve_pages

        shown = ServedRuns.of(folder, scorer, other, alone=not is_loopback(host))
        serve_pages(shown, host, port, os.environ.get(TOKEN, "") if token else None)
        return None
    if html is not None:
        write_report(folder, html, scorer, other)
        return WrittenReport(str(folder), str(html))
    from ramify.jobs.summary import summarise  # help starts twice as fast without what jobs need
    from ramify.trace.db import Run
    from ramify.trace.schema import stored

    with Run.open(folder) as opened:
        return stored(summarise)(opened, scorer)


def write_report(folder: Path, out: Path, scorer: str | None = None, beside: Path | None = None) -> None:
    """Write the run's report as one HTML file, whole or not at all; ``beside`` is a run to compare with."""
    from contextlib import nullcontext

    from ramify.trace.db import Run
    from ramify.trace.schema import stored
    from ramify.web.pages import report_html

    with Run.open(folder) as run, nullcontext() if beside is None else Run.open(beside) as other:
        write_whole(out, stored(report_html)(run, scorer=scorer, beside=other))
