"""A command that another process started and attends to (the queue of ``ramify ui --act``, a tool of ``ramify mcp``).

It writes how far it is, what it spends and what it found into a folder, and ends as at Ctrl-C, with what is done kept, when a
limit is reached, when a file called ``stop`` appears there, or when the process that started it is gone.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.base.progress import REPLIES

VARIABLE = "RAMIFY_ATTENDED"
"""Holds JSON: ``folder``, ``parent`` (a process), ``tokens`` and ``seconds`` (the limits)."""
STATE, STOP, RESULT = "state.json", "stop", "result.json"
LOOK = 0.25
"""Seconds between two looks."""
REASONS = {
    "stop": "it was stopped",
    "gone": "what had started it ended",
    "tokens": "its budget of tokens is spent",
    "seconds": "its budget of seconds is spent",
}


class _Attended:
    """What this process tells, where it is attended to."""

    folder: Path | None = None
    parent = 0
    tokens = seconds = 0.0
    facts: Callable[[], Mapping[str, Any]] = staticmethod(dict)
    counted: Mapping[str, Any] = {}
    """The last facts of work whose size is known: while something is loaded, or printed, there are others."""
    ending = ""
    since = 0.0


_this = _Attended()
_writing = threading.Lock()


def attend() -> None:
    """Begin, where this process was started so. The variable is taken away: what this process starts is not attended to."""
    if (told := os.environ.pop(VARIABLE, None)) is None:
        return
    given = json.loads(told)
    _this.folder, _this.parent, _this.since = Path(given["folder"]), given["parent"], time.monotonic()
    _this.tokens, _this.seconds = given["tokens"], given["seconds"]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started by what a shell had put into the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit.register(_write)
    threading.Thread(target=_look, name="ramify-attended", daemon=True).start()


def showing(facts: Callable[[], Mapping[str, Any]]) -> None:
    """``facts`` says from now on how far this process is. What the one before counted last is kept."""
    _count()
    _this.facts = facts


def concluded(result: Callable[[], Mapping[str, Any]]) -> None:
    """Keep what the command found, where it is attended to."""
    if _this.folder is not None:
        _replace(_this.folder / RESULT, result())


def _look() -> None:
    while not _this.ending:
        _this.ending = _reason()
        _write()
        if _this.ending:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(LOOK)


def _reason() -> str:
    assert _this.folder is not None
    if os.getppid() != _this.parent:
        return "gone"
    if (_this.folder / STOP).exists():
        return "stop"
    if time.monotonic() - _this.since >= _this.seconds:
        return "seconds"
    return "tokens" if REPLIES.tokens >= _this.tokens else ""


def _count() -> None:
    facts = _this.facts()
    if facts.get("total") or not _this.counted:
        _this.counted = facts


def _write() -> None:
    assert _this.folder is not None
    _count()
    state = {**_this.counted, "tokens": REPLIES.tokens, "ending": _this.ending, "took": time.monotonic() - _this.since}
    with suppress(OSError):  # a full disk: the work itself says so
        _replace(_this.folder / STATE, state)


def _replace(path: Path, record: Mapping[str, Any]) -> None:
    """Not flushed to the disk, as it is written several times a second."""
    with _writing:
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(record), "utf-8")
        aside.replace(path)
