"""Plain text that is safe to print: the sanitizer, and tables."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence

from ramify.render.numbers import cell

# Escape sequences go whole, so that their parameters do not stay behind as text: CSI, then OSC/DCS/SOS/PM/APC up to their
# terminator, then two-byte escapes. Both 7-bit (ESC x) and 8-bit (C1) forms.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
_BREAKS = re.compile(r"\r\n|[\r\x0b\x0c\x85\u2028\u2029]")


def sanitize(text: str, flatten: bool = False) -> str:
    """``text`` without escape sequences, control, format and bidirectional characters, and lone surrogates.

    Line breaks of every kind become newlines, or single spaces with ``flatten`` (for one-line places such as table cells).
    """
    text = _BREAKS.sub("\n", _ESCAPES.sub("", text))
    if flatten:
        text = " ".join(text.split())
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """A plain text table. Cells are sanitised and flattened to one line; columns that hold only numbers or
    intervals are set to the right.

    Floats are shown with 4 significant digits, None as a dash. Raises ValueError when a row's length differs from the header's.
    """
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"every row needs {len(columns)} cells")
    from io import StringIO

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[i]) for row in rows)
        grid.add_column(Text(sanitize(name, flatten=True)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(sanitize(cell(value), flatten=True)) for value in row))
    out = StringIO()
    width = Console().width if sys.stdout.isatty() else 160
    page = Console(file=out, width=width, color_system=None, force_terminal=False)
    if title:  # above the grid, not in it: there a long one is broken at the width of a narrow table
        page.print(Text(sanitize(title, flatten=True)))
    page.print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


_NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?%?|-|\[[-+−\d.,%e ]*\]")


def _is_number(value: object) -> bool:
    """Whether a cell is a number, one that is written with its unit, or nothing."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return value is None or isinstance(value, int | float)
