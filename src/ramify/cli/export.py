"""``ramify export``: write a run for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramify.base.errors import UserError, nearest
from ramify.cli.common import Json, RunArgument, find_run, write_whole
from ramify.cli.show import write_report

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.tree import Tree

app = typer.Typer(add_completion=False)

SUFFIXES = {".jsonl": "jsonl", ".parquet": "parquet", ".dot": "dot", ".gv": "dot", ".html": "html", ".htm": "html"}
FORMATS = sorted(set(SUFFIXES.values()))


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    to: Annotated[
        str | None,
        typer.Option(help="jsonl (everything, for `ramify import`), parquet (one kind of record), dot (one tree), html."),
    ] = None,
    records: Annotated[
        str, typer.Option(metavar="KIND", help="The kind of record, for parquet: nodes, streams, verdicts, ...")
    ] = "nodes",
    tree: Annotated[str | None, typer.Option(metavar="NAME", help="The tree, for dot.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run for other tools. The format follows from OUT's ending unless --to names it."""
    folder = find_run(run)
    form = to or SUFFIXES.get(out.suffix.lower())
    if form is None:
        raise UserError(f"cannot tell the format of {out}: name one with --to ({', '.join(FORMATS)})")
    if form not in FORMATS:
        raise UserError(f"--to: unknown format '{form}' ({nearest(form, FORMATS)})")
    if records != "nodes" and form != "parquet":
        raise UserError("--records goes with --to parquet")
    if tree is not None and form != "dot":
        raise UserError("--tree goes with --to dot")
    if out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    from ramify.render import terminal
    from ramify.trace import convert
    from ramify.trace.db import Run

    if form == "html":
        write_report(folder, out)
    else:
        with Run.open(folder) as opened:
            if form == "jsonl":
                convert.write_lines(opened, out)
            elif form == "parquet":
                convert.write_parquet(opened, out, records)
            else:
                write_whole(out, convert.tree_dot(_choose(opened, tree)))
    terminal.emit({"run": str(folder), "format": form, "out": str(out)}, as_json, f"wrote {out}")


def _choose(run: Run, name: str | None) -> Tree:
    """The named tree, or the only one. Raises UserError."""
    if name is not None:
        return run.tree(name)
    trees = run.trees()
    if len(trees) != 1:
        listed = ", ".join(tree.name for tree in trees[:5]) + (", ..." if len(trees) > 5 else "")
        raise UserError(f"{run.folder} has {len(trees)} trees: choose one with --tree" + (f" ({listed})" if trees else ""))
    return run.tree(trees[0].name)
