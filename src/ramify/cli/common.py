"""What several verbs share: finding a run by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramify.base.errors import UserError, nearest

RUNS = Path("runs")
DATABASE = "run.sqlite"
REPORT = "report.html"

Device = Annotated[
    str, typer.Option(help="Where the local engine runs: cpu, cuda, cuda:1, ...; default: RAMIFY_DEVICE, else cpu.")
]
Dtype = Annotated[
    str, typer.Option(help="float32, or bfloat16 on an accelerator, where seeds then do not repeat; default: RAMIFY_DTYPE.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or its name under ./runs.")]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Let the settings of a run that was imported, or made elsewhere, load code, connect and read files."
    ),
]


def find_run(text: str) -> Path:
    """The folder of the run ``text`` names. Raises UserError with the nearest run that exists."""
    for folder in (Path(text), RUNS / text):
        if (folder / DATABASE).is_file():
            return folder
    if not text:
        raise UserError("a run is named by its folder, and the name given is empty")
    if Path(text).is_file():
        raise UserError(f"{text} is a file; a run is a folder with a {DATABASE}")
    if Path(text).is_dir():
        raise UserError(f"{text} is not a run: it holds no {DATABASE}")
    known = [path.parent.name for path in RUNS.glob(f"*/{DATABASE}")]
    raise UserError(f"no run '{text}' ({nearest(Path(text).name, known)})")
