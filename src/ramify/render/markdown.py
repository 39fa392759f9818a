"""Tables and code for Markdown files: reports, and comments on pull requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ramify.render.numbers import cell
from ramify.render.text import sanitize


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table; a bar in a cell is spelled out."""

    def written(value: Any) -> str:
        return sanitize(cell(value), flatten=True).replace("|", "\\|")

    return ["| " + " | ".join(map(written, line)) + " |" for line in (columns, ["---"] * len(columns), *rows)]


def fenced(text: str, language: str = "") -> str:
    """Code as a block that nothing in it can close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{sanitize(text).rstrip()}\n{fence}"
