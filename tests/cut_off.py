"""Work that is killed in the middle of a write: at the first one that would take a file beyond a size."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable


def cut_off(size: int, work: Callable[[], object]) -> bool:
    """Do ``work`` in a child process, which the system kills where it would make a file longer than ``size`` bytes; whether it
    did."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
