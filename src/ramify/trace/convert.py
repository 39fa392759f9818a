"""A run into other forms and back: JSON lines (exactly), Parquet, Graphviz text; traces of other tools into a run."""

from __future__ import annotations

from pathlib import Path

from ramify.trace.aliases import Fields
from ramify.trace.formats import pick_reader
from ramify.trace.intake import readable
from ramify.trace.jsonl import write_lines
from ramify.trace.parquet import write_parquet

__all__ = ["read_run", "write_lines", "write_parquet"]


def read_run(path: Path, folder: Path, form: str | None = None, fields: Fields | None = None) -> str:
    """Make a run in ``folder`` from a file of the format ``form``, or of the detected one. Returns the format's name. ``fields``
    names the fields of task and reward, where these have unusual names. Raises UserError naming file and line or field; nothing
    is left in ``folder`` then."""
    with readable(path) as file:
        reader = pick_reader(file, form)
        reader.make(file, folder, fields)
    return reader.name
