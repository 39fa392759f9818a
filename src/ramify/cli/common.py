"""What several verbs share: finding a run by name, settings of a typed configuration as options, writing a file whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ramify.base.errors import EXIT_INTERRUPTED, RamifyError, UserError, nearest

if TYPE_CHECKING:
    from ramify.base.config import Config

RUNS = Path("runs")
DATABASE = "run.sqlite"
REPORT = "report.html"

Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or its name under ./runs.")]


class InterruptedRunError(RamifyError):
    """Ctrl-C; the sentence says what was kept and how to go on (exit code 130)."""

    exit_code = EXIT_INTERRUPTED


def find_run(text: str) -> Path:
    """The folder of the run ``text`` names. Raises UserError with the nearest run that exists."""
    for folder in (Path(text), RUNS / text):
        if (folder / DATABASE).is_file():
            return folder
    if Path(text).is_file():
        raise UserError(f"{text} is a file; a run is a folder with a {DATABASE}")
    if Path(text).is_dir():
        raise UserError(f"{text} is not a run: it holds no {DATABASE}")
    known = [path.parent.name for path in RUNS.glob(f"*/{DATABASE}")]
    raise UserError(f"no run '{text}' ({nearest(Path(text).name, known)})")


def find_improved(text: str) -> Path:
    """The folder of a run that ``ramify improve`` made. Raises UserError for an imported one: its agent and world are not known."""
    folder = find_run(text)
    from ramify.base.config import check
    from ramify.jobs.improve import ImproveConfig
    from ramify.trace.db import Run

    with Run.open(folder) as run:
        config = run.meta.get("config")
    if not isinstance(config, dict) or not {"model", "env", "updates"} <= config.keys():
        raise UserError(f"{folder} was not made by `ramify improve`, so there is no agent and no world to go on with")
    check(ImproveConfig, config, f"the stored settings of {folder}")
    return folder


def write_whole(path: Path, data: bytes | str) -> None:
    """Write ``path`` whole or not at all. Raises UserError when its folder does not exist or it is a folder itself."""
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    raw = data.encode("utf-8") if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class SettingsCommand(TyperCommand):
    """A command whose further options are the settings of a :class:`Config`; ``--help`` lists them."""

    def settings(self) -> type[Config]:
        """The configuration class; imported only when help is asked for."""
        raise UserError(f"'{self.name}' has no settings")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then one entry per setting with type, help text and default."""
        super().format_help(ctx, formatter)
        from ramify.base.config import describe

        lines = ["Settings (--NAME VALUE; lower precedence: --config FILE.toml, then these defaults):"]
        for setting in describe(self.settings()):
            default = f" [{setting.default}]" if setting.default else " [required]"
            lines.append(f"  --{setting.name.replace('_', '-')} {setting.type}\n        {setting.help}{default}")
        typer.echo("\n".join(lines))
