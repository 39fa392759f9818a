"""How long work tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a progress bar offers."""

    def begin(self, total: float, done: float = 0) -> None:
        """Set the whole and what is done already."""
        ...

    def at(self, done: float, note: str = "") -> None:
        """Show how far it is."""
        ...
