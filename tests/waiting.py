"""How tests wait for what must happen: for the event itself, far longer than it takes, on a machine that may pause."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds."""


def until(happened: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait for an event; whether it came."""
    end = time.monotonic() + seconds
    while not (found := happened()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(found)
