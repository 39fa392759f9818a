"""Commands in a real pseudo-terminal: what they print there, what a person sees of it, and Ctrl-C.

The screen is read by interpreting the control sequences that rich writes for one live line; any other one is an error, so that
nothing slips by unseen.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len
from waiting import PATIENCE

TOKEN = re.compile(r"\x1b\[([?]?[0-9;]*)([A-Za-z])|\x1b.?|[\r\n]|[^\x1b\r\n]+", re.S)
HIDDEN, SHOWN_AGAIN = "\x1b[?25l", "\x1b[?25h"
"""The cursor goes where a live line begins, and comes back where it is over."""


class Screen:
    """The rows a terminal of ``columns`` shows after ``text``, however far they scrolled; ``wrapped``:
    texts that ran over its edge."""

    def __init__(self, text: str, columns: int) -> None:
        self.rows: list[str] = [""]
        self.wrapped: list[str] = []
        row = column = 0
        for found in TOKEN.finditer(text):
            token, (arguments, final) = found[0], found.groups()
            if token == "\r":
                column = 0
            elif token == "\n":
                row, column = row + 1, 0
            elif final == "K":
                self.rows[row] = "" if arguments == "2" else self.rows[row][:column]
            elif final == "A":
                row -= int(arguments or 1)
            elif final is not None:
                assert final in "mhl", f"unknown control sequence {token!r}"
            else:
                assert not token.startswith("\x1b"), f"unknown control sequence {token!r}"
                if column + cell_len(token) > columns:
                    self.wrapped.append(self.rows[row][:column] + token)
                self.rows[row] = self.rows[row][:column].ljust(column) + token + self.rows[row][column + len(token) :]
                column += len(token)
            while row >= len(self.rows):
                self.rows.append("")

    @property
    def lines(self) -> list[str]:
        """Rows with something on them."""
        return [line.rstrip() for line in self.rows if line.strip()]


class Terminal:
    """A pseudo-terminal of so many columns and what was printed in it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.text = columns, ""
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.name = os.ttyname(self._slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thread: threading.Thread | None = None
        self._code: list[int] = []

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._master)  # hangs up: what still runs in it ends
        os.close(self._slave)
        if self._thread is not None:
            self._thread.join(PATIENCE)

    def start(self, work: Callable[[], int]) -> None:
        """Begin ``work``, which runs a program here and returns its exit code."""
        self._thread = threading.Thread(target=lambda: self._code.append(work()), daemon=True)
        self._thread.start()

    def execute(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        """Begin a command, in a session of its own whose terminal this is."""

        def control() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        token_values = dict.fromkeys(("stdin", "stdout", "stderr"), self._slave)
        env = {name: value for name, value in env.items() if name != "RAMIFY_FIRST_LINE"}
        child = subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, preexec_fn=control, **token_values)  # type: ignore[call-overload]
        self.start(child.wait)

    def until(self, pattern: str, seconds: float = PATIENCE) -> bool:
        """Read until the pattern has appeared; False where the program ended, or the time, before it."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if not self._read() and (self._over() or time.monotonic() > end):
                return bool(re.search(pattern, self.text))
        return True

    def wait(self, seconds: float = 3 * PATIENCE) -> int:
        """Read to the program's end; its exit code."""
        end = time.monotonic() + seconds
        while not self._over():
            self._read()
            assert time.monotonic() < end, f"still runs after {seconds} s:\n{self.text[-2000:]}"
        while self._read():
            pass
        return self._code[0]

    @property
    def group(self) -> int:
        """The session of what runs in it, by its number."""
        return os.tcgetpgrp(self._master)

    def press(self, keys: bytes) -> None:
        """Type: ``b"\\x03"`` is Ctrl-C, which the terminal turns into a signal to the programs in it."""
        os.write(self._master, keys)

    def _over(self) -> bool:
        return bool(self._code) or self._thread is None or not self._thread.is_alive()

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.05)
        if ready:
            self.text += self._decoder.decode(os.read(self._master, 1 << 16)).replace("\r\n", "\n").replace("^C", "")
        return bool(ready)

    @property
    def screen(self) -> Screen:
        """What it shows."""
        return Screen(self.text, self.columns)

    @property
    def live(self) -> list[str]:
        """The live lines that were shown, one after another, as texts without colours."""
        found = []
        for part in self.text.split(HIDDEN)[1:]:
            sampled = re.split(r"\x1b\[2K", part.partition(SHOWN_AGAIN)[0])
            found += [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", "", line) for line in sampled]
        return found
