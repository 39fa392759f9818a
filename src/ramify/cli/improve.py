"""``ramify improve``: the main job, its dry run, and how its result is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramify.base.errors import UserError
from ramify.cli.common import DATABASE, RUNS, InterruptedRunError, Json, SettingsCommand

if TYPE_CHECKING:
    from ramify.base.config import Config

app = typer.Typer(add_completion=False)


class ImproveCommand(SettingsCommand):
    """``ramify improve`` with the settings of the job as options."""

    def settings(self) -> type[Config]:
        """The job's configuration."""
        from ramify.jobs.improve import ImproveConfig

        return ImproveConfig


@app.command(cls=ImproveCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def improve(
    context: typer.Context,
    config: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="TOML file with settings; later files win.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder of the run to make; default: the next free runs/improve-N.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings and the bill; run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make an agent better: branching rollouts, credit per step, training, a before/after report.

    Without settings it runs on the built-in agent and world, offline, in minutes.
    """
    from ramify.base.config import load
    from ramify.jobs import improve as job
    from ramify.render import terminal

    settings = load(job.ImproveConfig, config or [], context.args)
    if dry_run:
        bill = job.plan(settings)
        record = {"config": settings.to_json(), "bill": bill}
        rows = [(name, _flat(value)) for name, value in settings.to_json().items()]
        text = terminal.table(["setting", "value"], rows) + "\n\n" + terminal.table(["bill", "at most"], list(_leaves(bill)))
        terminal.emit(record, as_json, text)
        return
    folder = out or next_run("improve")
    if (folder / DATABASE).exists():
        raise UserError(f"{folder} holds a run already: go on with `ramify resume {folder}`, or choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot make a run in {folder}: it is a file")
    finish(folder, as_json, lambda progress: job.improve(settings, folder, progress))


def finish(folder: Path, as_json: bool, work: Any) -> None:
    """Do ``work(progress)`` on the run in ``folder`` under a progress bar and print its result. Ctrl-C says how to go on."""
    from ramify.render import terminal

    try:
        with terminal.progress(folder.name, 1, "tokens", as_json) as bar:
            result = work(bar)
    except KeyboardInterrupt:
        if not (folder / DATABASE).exists():
            raise InterruptedRunError("interrupted before anything was done") from None
        raise InterruptedRunError(f"interrupted; what was done is kept: go on with `ramify resume {folder}`") from None
    terminal.emit(result, as_json, summary(result))


def summary(result: dict[str, Any]) -> str:
    """The before/after table and where to look next."""
    from ramify.render import terminal

    rows = []
    for name in ("before", "after"):
        low, high = result[name]["interval"]
        rows.append((name, f"{result[name]['success']:.1%}", f"[{low:.1%}, {high:.1%}]"))
    text = terminal.table(["", "success", "95 % interval"], rows)
    spent = f"{terminal.short(result['tokens'])} tokens, {result['seconds']:.0f} s"
    return f"\n{text}\n\n{spent}; run: {result['run']}\nLook at it with `ramify show {result['run']}` (or --web)."


def next_run(name: str) -> Path:
    """The next free ``runs/NAME-N``."""
    taken = [int(found[1]) for path in RUNS.glob(f"{name}-*") if (found := re.fullmatch(rf"{name}-(\d+)", path.name))]
    return RUNS / f"{name}-{max(taken, default=0) + 1}"


def _leaves(table: dict[str, Any], prefix: str = "") -> Any:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_flat(inner)}" for key, inner in value.items())
    return ",".join(_flat(v) for v in value) if isinstance(value, list) else str(value)
