"""``ramify show``: a run's summary in the terminal, as one HTML file, or as local web pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramify.base.errors import UserError
from ramify.cli.common import Json, RunArgument, find_run, write_whole

if TYPE_CHECKING:
    from ramify.trace.db import Entry, Run

app = typer.Typer(add_completion=False)

LAST = 5
"""How many entries of each kind of work the terminal shows."""


@app.command()
def show(
    run: RunArgument,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as one self-contained HTML file.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Serve the report on this machine until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="Port of --web.", min=0, max=65535)] = 8765,
    as_json: Json = False,
) -> None:
    """Summarise a run: before and after, the last updates, where the budget went."""
    folder = find_run(run)
    if web and html is not None:
        raise UserError("choose one of --web and --html")
    from ramify.render import terminal

    if web:
        from ramify.web.server import serve

        serve(folder, port)
        return
    if html is not None:
        from ramify.web.pages import report_html

        write_whole(html, report_html(folder))
        terminal.emit({"run": str(folder), "html": str(html)}, as_json, f"wrote {html}")
        return
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        record = summarise(opened)
    terminal.emit(record, as_json, _text(record))


def summarise(run: Run) -> dict[str, Any]:
    """Everything the summary shows, as JSON: size, settings, and the journal by kind with its last entries."""
    kinds: dict[str, list[Entry]] = {}
    for entry in run.journal():
        kinds.setdefault(entry.kind, []).append(entry)
    return {
        "run": str(run.folder),
        "ramify": run.meta.get("ramify"),
        "config": run.meta.get("config"),
        "trees": len(run.trees()),
        "nodes": len(run),
        "journal": {
            kind: {"n": len(entries), "last": [{"key": e.key, "payload": e.payload} for e in entries[-LAST:]]}
            for kind, entries in kinds.items()
        },
    }


def _text(record: dict[str, Any]) -> str:
    from ramify.render import terminal

    parts = [f"{record['run']}: {record['trees']} trees, {record['nodes']} nodes, made by ramify {record['ramify']}"]
    for kind, work in record["journal"].items():
        rows = [{kind: entry["key"]} | dict(_scalars(entry["payload"])) for entry in work["last"]]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        title = kind if work["n"] <= LAST else f"{kind} (last {LAST} of {work['n']})"
        parts.append(terminal.table(columns, [[row.get(name) for name in columns] for row in rows], title))
    return "\n\n".join(parts)


def _scalars(payload: Any, prefix: str = "") -> Any:
    """Numbers and short texts of a payload, nested ones dotted; a pair of numbers is an interval."""
    if not isinstance(payload, Mapping):
        payload = {} if payload is None else {"value": payload}
    for name, value in payload.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}.")
        elif isinstance(value, list) and len(value) == 2 and all(isinstance(end, float) for end in value):
            yield prefix + name, f"[{value[0]:.4g}, {value[1]:.4g}]"
        elif value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40):
            yield prefix + name, value
