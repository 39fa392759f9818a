"""What a run of ``diagnose run`` shows: its case files, one issue after the other."""

from __future__ import annotations

from collections.abc import Iterable

from ramify.methods.diagnose.record import cases
from ramify.render.result import Section
from ramify.trace.db import Run


def sections(run: Run) -> Iterable[Section]:
    """Every case file: the kept result is that of the newest issue."""
    for case in cases(run):
        yield from case.sections()
