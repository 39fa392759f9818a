"""Tables for Markdown files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table; None is a dash, a bar in a cell is spelled out."""

    def cell(value: Any) -> str:
        text = "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    return ["| " + " | ".join(map(cell, line)) + " |" for line in (columns, ["---"] * len(columns), *rows)]
