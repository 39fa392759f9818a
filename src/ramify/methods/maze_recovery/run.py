"""Reading traces for the audit and the builder: whole traces in lines, runs, and any file that `ramify import` reads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.score.attempts import Traces, from_records, from_run
from ramify.trace.convert import read_run
from ramify.trace.db import Run
from ramify.trace.keys import Canonicaliser, exact, scrub, with_history
from ramify.trace.lines import first_record, read_lines


class Source(Config):
    """How traces are read."""

    state_field: str | None = None
    """Field of a step that tells its state apart (default: state, else obs); for files of whole traces."""
    task_field: str = "task_id"
    """Field with the task of a trace; equal states of two tasks are never merged."""
    scrub: tuple[str, ...] = ()
    """Taken out of states before they are compared: numbers, timestamps, whitespace. A run's states are its texts then."""
    history: int = Field(0, ge=0)
    """How many earlier states each key includes."""
    group: str | None = None
    """Only trees of this group of a run."""
    scorer: str | None = None
    """Whose verdict of a run says what succeeded; by default env, or the only one there is."""

    def keys(self) -> Canonicaliser | None:
        """The canonicaliser, None where states are compared as they are."""
        if not (self.scrub or self.history):
            return None
        return with_history(self.history, scrub(*self.scrub) if self.scrub else exact)


def load(source: Path, settings: Source | None = None) -> Traces:
    """Traces of a run's folder, of a file with a whole trace a line (``{"task_id", "steps", "success"}``), or of any that can be imported.

    Raises UserError naming the file, line and field that is wrong.
    """
    c = settings or Source()
    keys = c.keys()
    if not (source / "run.sqlite").is_file():
        first = None if source.is_dir() else first_record(source)[1]
        if first is not None and "steps" in first and "kind" not in first:
            records = ((f"{source}:{number}", record) for number, record in read_lines(source))
            return Traces(from_records(records, c.state_field, c.task_field), keys)
        if c.state_field is not None:
            raise UserError(f"{source} holds no whole traces (lines with 'steps'), so --state-field has nothing to name")
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            read_run(source, place)
            try:
                return load(place, settings)
            except UserError as error:
                raise UserError(str(error).replace(str(place), str(source))) from error
    if c.state_field is not None:
        raise UserError(f"{source} is a run, whose states are its own, so --state-field has nothing to name")
    with Run.open(source) as run:
        return Traces(from_run(run, c.group, c.scorer, texts=keys is not None), keys)


def __getattr__(name: str) -> Any:
    if name == "app":
        from ramify.methods.maze_recovery.verbs import app

        return app
    raise AttributeError(name)
