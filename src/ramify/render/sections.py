"""What a method shows of its runs: sections of the report, the served pages and the terminal.

A method's module ``views`` has ``sections(run)``; a run is a method's where its kind begins with the method's name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramify.base import registry
from ramify.base.errors import UserError

if TYPE_CHECKING:
    from ramify.trace.db import Run

MOST_ROWS = 100
"""Rows of a table, and texts to unfold, of one section."""


@dataclass(frozen=True)
class Section:
    """A title, a sentence, a table, and texts to unfold. Every text is shown as it is, never as markup."""

    title: str
    says: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    """Cells: texts, numbers, None for nothing."""
    folded: Sequence[tuple[str, str]] = ()
    """(title, text) of what a reader unfolds; not in the terminal."""

    @property
    def left(self) -> int:
        """How many rows are not shown."""
        return max(0, len(self.rows) - MOST_ROWS)

    @property
    def cells(self) -> list[list[str]]:
        """The rows that are shown, as texts."""
        return [[shown(value) for value in row] for row in self.rows[:MOST_ROWS]]


def shown(value: Any) -> str:
    """A cell as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sections_of(run: Run) -> list[Section]:
    """What the method that made ``run`` shows of it; nothing where no method made it, or one without views."""
    slug, space, _ = run.kind.partition(" ")
    if not space:
        return []
    try:
        package = registry.get("method", slug).__name__
    except UserError:
        return []
    if importlib.util.find_spec(f"{package}.views") is None:
        return []
    made: list[Section] = importlib.import_module(f"{package}.views").sections(run)
    return made
