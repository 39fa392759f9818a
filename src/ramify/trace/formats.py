"""What a reader of traces and a writer of runs are: the families behind ``ramify import`` and ``ramify export``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.trace.db import Run


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one format of another tool. Registered as ``register("reader", reader.name)(reader)``."""

    name: str
    help: str
    """One line: what it reads, and how that becomes nodes."""
    matches: Callable[[Path, Mapping[str, Any] | None], bool]
    """Given the file (or folder) and its first JSON record, None where it has none: whether this is the format. Must be cheap and
    never raise."""
    read: Callable[[Path, Path], int]
    """Make a run in the (second) folder from the file; returns how many records were read. Raises UserError naming file and line or
    field; leaves nothing in the folder then."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes a run for one tool. Registered as ``register("writer", writer.name)(writer)``."""

    name: str
    help: str
    write: Callable[..., int]
    """``write(run, out, **settings)``: writes the file (or folder) ``out`` whole or not at all; returns how many rows. Raises
    UserError; NeedsError where its tool is not installed."""
    suffixes: tuple[str, ...] = ()
    """File endings that choose this writer where none is named."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings it takes beyond the run and the file (name -> one line of help); each is an option of ``ramify export``."""
