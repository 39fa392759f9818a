"""What reaches a terminal: the one sanitizer, the one exit for results, tables and the progress bar."""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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


def emit(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Print ``result`` as one JSON line, or else ``text``, to standard output. Everything a verb reports goes through here."""
    if as_json:
        # ASCII only, so no character of a trace can act on the terminal; DEL is the one control JSON leaves as it is.
        print(json.dumps(result, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f"), flush=True)
    else:
        print(_printable(sanitize(text), sys.stdout), flush=True)


def say(text: str) -> None:
    """Print one message for a person (an error, a warning, a hint) to standard error."""
    print(_printable(sanitize(text), sys.stderr), file=sys.stderr, flush=True)


def _printable(text: str, stream: Any) -> str:
    """``text`` with characters the stream's encoding lacks replaced: a report must not die of a terminal's locale."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """A plain text table. Cells are sanitised and flattened to one line; columns that hold only numbers are set to the right.

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
        numbers = bool(rows) and all(row[i] is None or isinstance(row[i], int | float) for row in rows)
        grid.add_column(Text(sanitize(name, flatten=True)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(sanitize(_cell(value), flatten=True)) for value in row))
    out = StringIO()
    width = Console().width if sys.stdout.isatty() else 160
    page = Console(file=out, width=width, color_system=None, force_terminal=False)
    if title:  # above the grid, not in it: there a long one is broken at the width of a narrow table
        page.print(Text(sanitize(title, flatten=True)))
    page.print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


LINES = 30.0
"""Least seconds between two lines of progress where standard error is no terminal: shorter work says nothing there."""


class Bar:
    """A progress bar's handle; does nothing where the bar is silent."""

    def __init__(self, live: Any = None, task: Any = None) -> None:
        self._live, self._task = live, task

    def begin(self, total: float, done: float = 0) -> None:
        """Set the whole once it is known; ``done`` of it was done by an earlier call and does not count towards the rate."""
        if self._live is not None:
            self._live.reset(self._task, total=total, completed=int(done), earlier=done)

    def at(self, done: float, note: str = "") -> None:
        """Set the bar to ``done`` units in all, with a short note (``update 3, success 41 %``)."""
        if self._live is not None:
            self._live.update(self._task, completed=done, note=sanitize(note, flatten=True))


class _Lines(Bar):
    """Progress for a log: a plain line now and then, and one at the end where there were others."""

    def __init__(self, title: str, total: float, done: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self._title, self._total, self._done, self._note, self._clock = title, total, done, "", clock
        self._start = self._told = clock()

    def begin(self, total: float, done: float = 0) -> None:
        self._total, self._done = total, done

    def at(self, done: float, note: str = "") -> None:
        self._done, self._note = done, note
        if self._clock() - self._told >= LINES:
            self._tell()

    def end(self) -> None:
        if self._told > self._start:
            self._tell()

    def _tell(self) -> None:
        self._told = self._clock()
        share = self._done / self._total if self._total else 1.0
        line = f"{self._title}: {share:.0%} after {(self._told - self._start) / 60:.1f} min"
        say(sanitize(f"{line}, {self._note}" if self._note else line, flatten=True))


@contextmanager
def progress(
    title: str, total: float, unit: str, as_json: bool = False, done: float = 0, clock: Callable[[], float] = time.monotonic
) -> Iterator[Bar]:
    """A progress bar on standard error with the rate, and the budget left in ``unit``.

    Where standard error is no terminal, a plain line every ``LINES`` seconds of ``clock`` at most; silent with ``as_json``. ``done`` is
    what an earlier, interrupted call did already; it does not count towards the rate.
    """
    if as_json:
        yield Bar()
        return
    if not sys.stderr.isatty():
        lines = _Lines(title, total, done, clock)
        yield lines
        lines.end()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Spent(ProgressColumn):
        def render(self, task: Task) -> Text:
            left = max(0.0, (task.total or 0) - task.completed)
            seconds = task.elapsed or 0.0
            rate = (task.completed - task.fields["earlier"]) / seconds if seconds > 0 else 0.0
            return Text(f"{short(rate)} {unit}/s, {short(left)} of {short(task.total or 0)} left")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        Spent(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as live:
        task = live.add_task(sanitize(title, flatten=True), total=total, completed=int(done), note="", earlier=done)
        yield Bar(live, task)


def short(number: float) -> str:
    """A count in at most four characters or so: 950, 1.2k, 34k, 5.6M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.{1 if abs(number) < 10 * size else 0}f}{suffix}"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"
