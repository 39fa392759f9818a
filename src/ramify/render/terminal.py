"""Terminal output: printing of results and the progress bar."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from ramify.base import attended, codec
from ramify.base.errors import InterruptedRunError
from ramify.base.interrupt import interrupted, interruptible
from ramify.base.progress import REPLIES, SILENT, Progress
from ramify.base.words import plural
from ramify.render.result import Result, to_data, to_text
from ramify.render.text import sanitize

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quiet(as_json: bool) -> Iterator[None]:
    """Inside, progress is shown only where the result is not printed as JSON."""
    token = _quiet.set(as_json)
    try:
        yield
    finally:
        _quiet.reset(token)


def show(result: Result, as_json: bool) -> None:
    """Print what a verb found: its JSON, or the text of its sections; its caveats on standard error."""
    emit(result.to_json() if as_json else {}, as_json, "" if as_json else to_text(result.sections()))
    attended.concluded(lambda: {"sections": to_data(result.sections()), "caveats": list(result.caveats)})
    for caveat in result.caveats:
        say(f"warning: {caveat}")


def emit(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Print ``result`` as one JSON line, or else ``text``, to standard output. Everything a verb reports goes through here."""
    with _patient.elsewhere():  # a line that began while this is written would stand in front of it
        if as_json:
            # ASCII only, so no character of a trace can act on the terminal; DEL is the one control JSON leaves as it is.
            print(json.dumps(codec.to_json(result), ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f"), flush=True)
        else:
            print(_printable(sanitize(text), sys.stdout), flush=True)


def say(text: str) -> None:
    """Print one message for a person (an error, a warning, a hint) to standard error."""
    print(_printable(sanitize(text), sys.stderr), file=sys.stderr, flush=True)


def fitted(text: str, stream: Any) -> str:
    """``text`` with lines that are too wide for the terminal ``stream`` broken at spaces; elsewhere as it is.

    What stands in backquotes, a command to copy, is broken only where it is wider than the terminal itself.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(piece for line in text.split("\n") for piece in _folded(line, width))


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width and line.isascii():
        return [line]
    from rich.cells import cell_len

    if cell_len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    indent = indent if len(indent) <= width // 2 else ""
    pieces, at = [""], 0
    for word in _WORDS.finditer(line):
        if pieces[-1].strip() and cell_len(pieces[-1] + word[0]) > width:
            pieces.append(indent)
            at = len(word[1])
        pieces[-1] += word[0][at:]
        at = 0
    return pieces


_WORDS = re.compile(r"(\s*)(?:`[^`]*`[^\s`]*|\S+)")


def _printable(text: str, stream: Any) -> str:
    """``text`` fitted to a terminal, with characters the stream's encoding lacks replaced:
    a report must not die of its locale."""
    text = fitted(text, stream)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def say_last(text: str) -> None:
    """Print a last message to standard error where work stands still and this process ends: past the live line that another
    thread may hold, whose cursor is shown again."""
    stream = sys.__stderr__
    if stream is not None and stream.isatty():
        from rich.console import Console

        Console(file=stream).show_cursor()
        text = f"\n{text}"
    print(_printable(sanitize(text), stream), file=stream, flush=True)


def _first() -> float:
    try:
        return max(0.0, float(os.environ.get("RAMIFY_FIRST_LINE", "")))
    except ValueError:
        return 1.5


FIRST, LINES = _first(), 30.0
"""Seconds after which work says that it runs (``RAMIFY_FIRST_LINE``, for who reads standard error by a program), and least
seconds between two lines of progress where standard error is not a terminal."""

TITLE, BAR = 24, 28
"""Most cells of a live line that the title takes, and the bar."""


class _Told(Progress):
    """Progress with its current numbers."""

    def __init__(self, title: str, total: float, done: float, unit: str, clock: Callable[[], float]) -> None:
        self.title, self.phase, self.note, self.unit, self.clock = sanitize(title, flatten=True), "", "", unit, clock
        self.total, self.done, self.earlier = total, done, done
        self.start = self.since = clock()
        self.sampled = REPLIES.sampled

    def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
        self.total, self.done, self.earlier, self.since = total, done, done, self.clock()
        self.phase, self.unit, self.note = sanitize(phase, flatten=True), unit or self.unit, ""
        self.sampled = REPLIES.sampled

    def at(self, done: float, note: str = "", phase: str = "") -> None:
        self.done, self.note = done, sanitize(note, flatten=True)
        self.phase = sanitize(phase, flatten=True) or self.phase

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0

    def facts(self) -> list[str]:
        """How much of how much, how fast, how long still, and the note; what is not known is left out."""
        seconds = self.clock() - self.since
        if not self.total:  # not known yet: something is being loaded
            return [minutes(seconds), *self.replies()]
        rate = (self.done - self.earlier) / seconds if seconds > 0 else 0.0
        facts = [f"{short(self.done)}/{short(self.total)} {self.unit}"]
        if rate > 0:
            bound = " at most" if self.unit.endswith("at most") else ""  # such work mostly ends long before
            pace = f"{short(rate)}/s" if rate >= 0.1 else f"{short(60 * rate)}/min"
            facts += [pace, f"{minutes((self.total - self.done) / rate)} left{bound}"]
        else:  # nothing to reckon from yet, but time goes by
            facts += [minutes(seconds), *self.replies()]
        return [*facts, self.note] if self.note else facts

    def replies(self) -> list[str]:
        """Replies under way and the tokens of this phase, where there are any: what is said of work before its first unit."""
        tokens = REPLIES.sampled - self.sampled
        running = [f"{plural(REPLIES.running, 'reply')} under way"] if REPLIES.running else []
        return [*running, f"{short(tokens)} tokens"] if tokens > 0 else running


class _Lines(_Told):
    """Progress for a log: a plain line now and then, also while nothing ends, and one at the end where there were others."""

    last = 0.0
    over: threading.Event

    def open(self) -> None:
        """From now on lines come by themselves, too."""
        attended.showing(lambda: {name: getattr(self, name) for name in ("title", "phase", "done", "total", "unit", "note")})
        self.over = threading.Event()
        threading.Thread(target=self._tick, name="ramify-progress", daemon=True).start()

    def _tick(self) -> None:
        wait = FIRST
        while not self.over.wait(wait):
            self._report(LINES if self.last else 0.0)
            wait = LINES

    def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
        super().begin(total, done, phase, unit)
        self._report(LINES)

    def at(self, done: float, note: str = "", phase: str = "") -> None:
        super().at(done, note, phase)
        self._report(LINES)

    def end(self) -> None:
        """No more lines but the last."""
        self.over.set()
        if self.last:
            self._report(0.0)

    def _report(self, least: float) -> None:
        after = self.clock() - self.start
        if after - self.last >= least and after > 0:
            self.last = after
            head = f"{self.title} {self.phase}".rstrip()
            share = f"{self.share:.0%} after {after / 60:.1f} min, " if self.total else ""
            say(f"{head}: {share}{', '.join(self.facts())}")


class _Live(_Told):
    """Progress for a terminal: one line that is drawn again and again and is never wider than the terminal."""

    def line(self, width: int, ascii_only: bool) -> Any:
        """The line as rich's text, at most ``width`` cells."""
        from rich.cells import cell_len
        from rich.text import Text

        head, phase, tail = Text(self.title), self.phase and f" {self.phase}", ", ".join(self.facts())
        # the title is shortened before the numbers are
        head.truncate(min(TITLE, max(8, width - cell_len(phase + tail) - 1)), overflow="ellipsis")
        head.append(phase)
        room = min(BAR, width - head.cell_len - cell_len(tail) - 2)
        head.append(" ")
        if self.total and room >= 6:
            full = round(room * self.share)
            done, left = "=-" if ascii_only else "━─"
            head.append(done * full, "bar.complete").append(left * (room - full), "bar.back").append(" ")
        head.append(tail)
        head.truncate(width, overflow="ellipsis")
        return head


@contextmanager
def progress(
    title: str,
    total: float = 0,
    unit: str = "",
    as_json: bool | None = None,
    done: float = 0,
    kept: str | Callable[[], str] = "",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Show on standard error how far work is: its phase, done and whole in ``unit``, rate, time left,
    and a note such as its success.

    In a terminal one live line; elsewhere a plain line every ``LINES`` seconds of ``clock`` at most; silent with ``as_json``,
    by default where the verb's result is printed as JSON. A
    ``total`` of 0 is not known yet. ``done`` is what an earlier, interrupted call did; it does not count towards the rate. Ctrl-C
    raises InterruptedRunError, which ends in ``kept``: what is kept, and how to continue; without it Ctrl-C stays what it is.
    """
    silent = _quiet.get() if as_json is None else as_json
    try:
        said = interruptible(lambda: kept if isinstance(kept, str) else kept())
        with _patient.elsewhere(), said, _bar_or_lines(title, total, unit, silent, done, clock) as bar:
            yield bar
    except KeyboardInterrupt:
        if not kept:
            raise
        raise InterruptedRunError(interrupted()) from None


class _Patient:
    """The line of a verb while nothing that shows its own progress is open."""

    def __init__(self) -> None:
        self._title, self._lock, self._timer = "", threading.RLock(), threading.Timer(0, print)
        self._open, self._elsewhere = ExitStack(), 0

    @contextmanager
    def verb(self, title: str) -> Iterator[None]:
        """See :func:`working`."""
        if self._title:  # a verb that calls another
            yield
            return
        self._title = title
        self._begin()
        try:
            yield
        finally:
            self._end()
            self._title = ""

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Inside, something else shows how far work is, or is written."""
        self._end()
        self._elsewhere += 1
        try:
            yield
        finally:
            self._elsewhere -= 1
            if not self._elsewhere:
                self._begin()

    def _begin(self) -> None:
        if self._title:
            self._timer = threading.Timer(FIRST, self._show)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._open.close()

    def _show(self) -> None:
        with self._lock:
            if not self._timer.finished.is_set():
                self._open.enter_context(_bar_or_lines(self._title, 0, "", False, 0, time.monotonic))


_patient = _Patient()


@contextmanager
def working(title: str) -> Iterator[None]:
    """Inside, a verb called ``title`` works: Ctrl-C ends it in seconds, and while it shows no progress of its own it says after
    :data:`FIRST` seconds that it runs, for how long, and what models do for it."""
    with interruptible():
        if _quiet.get():
            yield
        else:
            with _patient.verb(title):
                yield


@contextmanager
def _bar_or_lines(
    title: str, total: float, unit: str, as_json: bool, done: float, clock: Callable[[], float]
) -> Iterator[Progress]:
    if as_json:
        yield SILENT
        return
    if not sys.stderr.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        lines = _Lines(title, total, done, unit, clock)
        lines.open()
        try:
            yield lines
        except BaseException:
            lines.over.set()
            raise
        lines.end()
        return
    from rich.console import Console
    from rich.live import Live

    bar = _Live(title, total, done, unit, clock)
    console = Console(stderr=True)
    # One cell stays free: where a line fills the row, some terminals begin the next.
    with Live(
        get_renderable=lambda: bar.line(console.width - 1, not console.encoding.startswith("utf")),
        console=console,
        refresh_per_second=8,
        redirect_stdout=sys.stdout.isatty(),
    ):
        yield bar


def minutes(seconds: float) -> str:
    """``0:07``, ``12:40``, ``3:05:00``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def short(number: float) -> str:
    """A count in at most four characters or so: 950, 1.2k, 34k, 5.6M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.{1 if abs(number) < 10 * size else 0}f}{suffix}"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"
