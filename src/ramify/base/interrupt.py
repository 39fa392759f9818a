"""Ctrl-C that ends a command in seconds, whatever it is doing.

An interrupt is first what Python makes of it: the work is cancelled, cleans up and says what is kept. That takes as long as the
step that runs: a forward pass of a large model in an event loop, a function that sleeps, a thread that waits for a program. So
the command line watches from a thread of its own, told by the system itself: after :data:`GRACE` seconds what runs is interrupted
where it stands, after :data:`LIMIT` the process ends, and all that it started. Nothing that was committed is lost by that: runs
are written so that a kill at any instant leaves them whole.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ramify.base.errors import EXIT_INTERRUPTED

GRACE, LIMIT = 1.5, 3.5
"""Seconds after Ctrl-C."""


class _Work:
    """What runs: a sentence for each piece of work that is open, the innermost last, on what it leaves."""

    def __init__(self) -> None:
        self.open: list[Callable[[], str]] = []
        self.said = False
        """Whether the command has said its last words."""
        self.kept = ""


_work = _Work()


@contextmanager
def interruptible(kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Work inside ends in seconds at Ctrl-C where the process is :func:`watched`; ``kept`` says then what is kept, "" for
    nothing to say."""
    if not _work.open:
        _work.kept = ""
    _work.open.append(kept)
    try:
        yield
    except KeyboardInterrupt:
        _work.kept = _work.kept or _words([kept])
        raise
    finally:
        _work.open.pop()


def interrupted() -> str:
    """The sentence on an interrupted command, with what the innermost work has kept."""
    return f"interrupted; {_work.kept}" if _work.kept else "interrupted"


def last_words() -> None:
    """The command says how it ended: the watch does not say it again."""
    _work.said = True


def watch(say: Callable[[str], object]) -> None:
    """From now on, to the end of this process, Ctrl-C ends it in seconds while work is open; ``say`` prints the last sentence
    where the command could not. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # what handles the signal may be changed: an event loop does
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(reading, say), name="ramify-interrupt", daemon=True).start()


def _watch(reading: int, say: Callable[[str], object]) -> None:
    while not (signal.SIGINT in os.read(reading, 64) and _work.open):
        pass
    kept = _words(_work.open)
    _work.kept = _work.kept or kept
    time.sleep(GRACE)
    if callable(signal.getsignal(signal.SIGINT)) and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.pthread_kill(
            threading.main_thread().ident or 0, signal.SIGINT
        )  # an event loop's second interrupt is raised where it stands
    time.sleep(LIMIT - GRACE)
    for child in _descendants(os.getpid()):
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    if not _work.said:
        with suppress(Exception):
            say(interrupted())
    os._exit(EXIT_INTERRUPTED)


def _words(work: list[Callable[[], str]]) -> str:
    for kept in reversed(work):
        with suppress(Exception):  # it looks at files that the work may be writing
            if said := kept():
                return said
    return ""


def _descendants(process: int) -> list[int]:
    """Processes that ``process`` started, and those that they did; none where the system does not list them under /proc."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    left = list(parents.get(process, ()))
    for child in left:
        left += parents.get(child, ())
    return left
