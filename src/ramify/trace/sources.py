"""Sources of attempts for a verb: the folder of a run, or a file of any format that can be imported."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ramify.base.errors import NeedsError, RamifyError, UserError
from ramify.trace.aliases import Fields
from ramify.trace.connect import FILE
from ramify.trace.convert import read_run
from ramify.trace.db import Record, Run
from ramify.trace.failures import failures
from ramify.trace.node import Finding

RUNS = Path("runs")
"""Where runs lie that are named without a folder."""


@contextmanager
def opened(source: Path, form: str | None = None, fields: Fields | None = None) -> Iterator[Run]:
    """The run in the folder ``source``, or of that name under ./runs, or a temporary one made from a file that can be imported.

    ``form`` names the format of a file, by default it is detected from the content; ``fields`` name its task and reward. Raises
    UserError where there is neither; errors raised inside name ``source`` and say where every attempt in it failed."""
    folder = run_folder(source)
    if folder is not None:
        if form is not None:
            raise UserError(f"{source} is a run, which has no other format, so --from does not apply")
        with Run.open(folder) as run, _errors_name(run, source):
            yield run
        return
    if source.is_dir() and form is None:
        raise UserError(f"{source} is a folder and not that of a run: it holds no {FILE}")
    with tempfile.TemporaryDirectory() as scratch:
        read_run(source, Path(scratch) / "run", form, fields)
        with Run.open(Path(scratch) / "run") as run, _errors_name(run, source):
            yield run


def run_folder(source: Path) -> Path | None:
    """The folder of the run that ``source`` is or names; None where it is something else."""
    return next((folder for folder in (source, RUNS / source) if (folder / FILE).is_file()), None)


def next_run(name: str) -> Path:
    """The next free ``runs/NAME-N``."""
    taken = [int(match[1]) for path in RUNS.glob(f"{name}-*") if (match := re.fullmatch(rf"{name}-(\d+)", path.name))]
    return RUNS / f"{name}-{max(taken, default=0) + 1}"


def conclude(source: Path, maker: str, findings: Iterable[Finding], records: Iterable[Record] = ()) -> str:
    """Keep the findings of the verb ``maker``, which replace its earlier ones, and other records of its, as :func:`keep`."""
    return keep(source, records, lambda run: run.conclude(maker, findings))


def keep(source: Path, records: Iterable[Record], also: Callable[[Run], None] = lambda run: None) -> str:
    """Add ``records`` to the run that ``source`` names, and do what is ``also`` to be done, all or nothing.

    Nothing is kept of a file that is not a run. Returns why nothing could be kept (another process writes there, the disk is
    read-only), else an empty text."""
    folder = run_folder(source)
    if folder is None:
        return ""
    try:
        with Run.open(folder, write=True) as run, run.transaction():
            run.add(*records)
            also(run)
    except RamifyError as error:
        return f"what was found is not stored in the run: {error}"
    return ""


@contextmanager
def _errors_name(run: Run, source: Path) -> Iterator[None]:
    try:
        yield
    except (UserError, NeedsError) as error:
        why = failures(run)
        note = f"; {why.sentence()}" if why.all else ""
        error.args = (str(error).replace(str(run.folder), str(source)) + note,)
        raise
