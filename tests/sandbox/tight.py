"""Limits that hostile code meets, and how to wait for what it does before one of them ends it."""

from __future__ import annotations

from collections.abc import Callable

from ramify.sandbox.protocol import Limits, Outcome

#: Tight, but for the time, which a busy machine may need to start Python; what is to end by it sets its own.
SHORT = Limits(seconds=30.0, memory_bytes=128 << 20, disk_bytes=8 << 20, file_bytes=16 << 20, files=200, processes=12)


def cut_off(run: Callable[[float], Outcome], seconds: float) -> Outcome:
    """What came of a command that says something and never ends; ``seconds``:
    its limit, longer where nothing was said by then."""
    done = run(seconds)
    while not done.stdout and seconds < 60:
        done = run(seconds := 4 * seconds)
    return done
