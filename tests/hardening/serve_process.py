"""``ramify serve`` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raw_client import get
from waiting import PATIENCE


class Served:
    """A running server: its port, its process, what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self._said, self.port = process, said, 0

    @property
    def said(self) -> str:
        """Standard output and standard error so far."""
        return self._said.read_text("utf-8", "replace")

    def gauge(self, name: str) -> float:
        """A number of ``/metrics``; nan where it is not there."""
        found = re.search(rf"^{name} (\S+)$", get(self.port, "/metrics")[2].decode(), re.MULTILINE)
        return float(found.group(1)) if found else float("nan")

    def settled(self, name: str, value: float, seconds: float = PATIENCE) -> bool:
        """Whether a number of ``/metrics`` comes to ``value`` in time."""
        until = time.monotonic() + seconds
        while (now := self.gauge(name)) != value and time.monotonic() < until:
            time.sleep(0.05)
        return now == value

    def end(self, signum: int = signal.SIGTERM, seconds: float = PATIENCE) -> int:
        """Ask it to end and return its exit code."""
        self.process.send_signal(signum)
        return self.process.wait(seconds)


@contextmanager
def serve(folder: Path, *words: str, **variables: str) -> Iterator[Served]:
    """``ramify serve WORDS`` on a free port, ready to answer; killed when the block is left, if it still runs."""
    said = folder / "said.txt"
    settings = {"OMP_NUM_THREADS": "1", "RAMIFY_CACHE": str(folder / "cache")} | variables
    with said.open("wb") as log:
        command = [sys.executable, "-m", "ramify.cli.main", "serve", *words, "--port", "0"]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=os.environ | settings)
    served = Served(process, said)
    try:
        until = time.monotonic() + 300
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", served.said)):
            assert process.poll() is None, served.said
            assert time.monotonic() < until, served.said
            time.sleep(0.05)
        served.port = int(found.group(1))
        while get(served.port, "/health")[0] not in (200, 401):
            assert time.monotonic() < until, served.said
            time.sleep(0.05)
        yield served
    finally:
        process.kill()
        process.wait()
