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
        from ramify.web.server import serve_run

        serve_run(folder, port=port)
        return
    if html is not None:
        write_report(folder, html)
        terminal.emit({"run": str(folder), "html": str(html)}, as_json, f"wrote {html}")
        return
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        record = summarise(opened)
    terminal.emit(record, as_json, _text(record))


def write_report(folder: Path, out: Path) -> None:
    """Write the run's report as one HTML file, whole or not at all."""
    from ramify.trace.db import Run
    from ramify.web.pages import report_html

    with Run.open(folder) as run:
        write_whole(out, report_html(run))


def summarise(run: Run) -> dict[str, Any]:
    """Everything the summary shows, as JSON: size, settings, gain, spending, and the journal by kind with its last entries."""
    kinds: dict[str, list[Entry]] = {}
    for entry in run.journal():
        kinds.setdefault(entry.kind, []).append(entry)
    return {
        "run": str(run.folder),
        "ramify": run.meta.get("ramify"),
        "config": run.meta.get("config"),
        "trees": len(run.trees()),
        "nodes": len(run),
        "gain": _gain({entry.key: entry.payload for entry in kinds.get("eval", [])}),
        "spent": _spent(kinds, (run.meta.get("config") or {}).get("arm", "ours")),
        "journal": {
            kind: {"n": len(entries), "last": [{"key": e.key, "payload": e.payload} for e in entries[-LAST:]]}
            for kind, entries in kinds.items()
        },
    }


def _gain(evals: dict[str, Any]) -> dict[str, Any] | None:
    """Success after training minus before, with its 95 % interval (Newcombe); None until both are known."""
    if not {"before", "after"} <= evals.keys():
        return None
    from ramify.stats.intervals import difference_of_proportions

    counts = [(round(evals[key]["success"] * evals[key]["n"]), evals[key]["n"]) for key in ("after", "before")]
    gain = evals["after"]["success"] - evals["before"]["success"]
    return {"points": 100 * gain, "interval": [100 * end for end in difference_of_proportions(*counts[0], *counts[1])]}


def _spent(kinds: dict[str, list[Entry]], arm: str) -> dict[str, dict[str, float]]:
    """Tokens and seconds of one arm by what they went into. An update's tokens are the total so far; its seconds are its own, by part."""
    updates = [entry.payload for entry in kinds.get("update", []) if entry.payload.get("arm") == arm]
    spent: dict[str, dict[str, float]] = {}
    for update in updates:
        for part, seconds in update.get("seconds", {}).items():
            row = spent.setdefault(part, {"tokens": 0, "seconds": 0.0})
            row["seconds"] += seconds
    if "sample" in spent:
        spent["sample"]["tokens"] = max(update.get("tokens", 0) for update in updates)
    for entry in kinds.get("eval", []):
        spent[f"evaluation {entry.key}"] = {name: entry.payload.get(name, 0) for name in ("tokens", "seconds")}
    return spent


def _text(record: dict[str, Any]) -> str:
    from ramify.render import terminal

    parts = [f"{record['run']}: {record['trees']} trees, {record['nodes']} nodes, made by ramify {record['ramify']}"]
    if record["gain"]:
        low, high = record["gain"]["interval"]
        parts.append(f"Success changed by {record['gain']['points']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}.")
    for kind in [kind for kind in record["journal"] if kind != "result"]:  # the result repeats the evaluations
        work = record["journal"][kind]
        entries = [{kind: entry["key"]} | dict(_scalars(entry["payload"])) for entry in work["last"]]
        columns = list(dict.fromkeys(name for entry in entries for name in entry))
        title = kind if work["n"] <= LAST else f"{kind} (last {LAST} of {work['n']})"
        parts.append(terminal.table(columns, [[entry.get(name) for name in columns] for entry in entries], title))
    if record["spent"]:
        rows = [(name, terminal.short(row["tokens"]), f"{row['seconds']:.1f}") for name, row in record["spent"].items()]
        parts.append(terminal.table(["where the budget went", "tokens", "seconds"], rows))
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
