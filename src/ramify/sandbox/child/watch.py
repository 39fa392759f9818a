"""Resource use of all processes of one command, read from its /proc, and killing them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramify.sandbox.child.kernel import TaskClock

_LONGEST = 16 << 20
"""Bytes read of a file of /proc; the longest a process can make is its list of 65,530 mappings."""
_PAGE, _TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


@dataclass
class WatchedGroup:
    """The processes of a command. ``root`` is None where ``proc`` shows only them,
    else the process whose descendants they are."""

    root: int | None
    proc: int = -1
    """An open /proc."""
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    init_seconds: float = 0.0
    clock: TaskClock | None = None
    """Counts this process and the group, where the kernel lets it."""
    own_seconds: float = 0.0
    """Processor time of this process when the clock began."""

    def counted(self) -> float:
        """Processor time of the group by the kernel's counter; 0 without one."""
        watching = time.process_time() - self.own_seconds + self.init_seconds
        return 0.0 if self.clock is None else self.clock.seconds() - watching

    def exceeds(self, limits: dict[str, Any]) -> str | None:
        """Sample the group; the name of the limit it breaks, if any: memory (all processes together), cpu, processes."""
        if self.proc < 0:
            return None
        init = 1 if self.root is None else self.root
        pids = [pid for pid in self._pids() if pid != init]
        ticks = memory = mapped = 0
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                ticks += sum(self._times(pid))
                pages, resident = self._pages(pid)
                mapped += pages * _PAGE
                memory += resident * _PAGE
        with contextlib.suppress(OSError, ValueError, IndexError):
            spent, waited = self._times(init)
            self.init_seconds = spent / _TICK
            ticks += waited
        self.cpu_seconds = max(self.cpu_seconds, ticks / _TICK, self.counted())
        if mapped > limits["memory_bytes"]:  # else nothing hidden can be more than that, either
            memory = self._whole(pids)
        self.peak_bytes = max(self.peak_bytes, memory)
        if memory > limits["memory_bytes"]:
            return "memory"
        if limits["cpu_seconds"] is not None and self.cpu_seconds > limits["cpu_seconds"]:
            return "cpu"
        return "processes" if self.root is not None and len(pids) > limits["processes"] else None

    def _pids(self) -> list[int]:
        if self.root is None:
            return [int(name) for name in os.listdir(self.proc) if name.isdigit()]
        return [self.root, *descendants(self.root)]

    def _times(self, pid: int) -> tuple[int, int]:
        """Clock ticks used by the process, and by its children that ended and were waited for."""
        fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])

    def _pages(self, pid: int) -> tuple[int, int]:
        """Pages a process maps, and those it holds."""
        pages, resident = self._read(f"{self._living(pid)}/statm").split()[:2]
        return int(pages), int(resident)

    def _living(self, pid: int) -> str:
        """Where /proc tells of a process's memory: at a thread that lives,
        since of a first one that has ended it tells nothing."""
        if self._read(f"{pid}/statm").startswith("0 "):
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
            try:
                threads = os.listdir(folder)
            finally:
                os.close(folder)
            for thread in threads:
                with contextlib.suppress(OSError):
                    if not self._read(f"{pid}/task/{thread}/statm").startswith("0 "):
                        return f"{pid}/task/{thread}"
        return str(pid)

    def _whole(self, pids: list[int]) -> int:
        """Bytes the processes hold, a page shared by n counted 1/n in each (PSS), with page tables. Of shared memory without a
        name all that is mapped counts, once: pages that a process gave back (MADV_DONTNEED) stay with the mapping."""
        total = 0
        shared: dict[str, int] = {}
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                folder = self._living(pid)
                kib = dict(line.split(":", 1) for line in self._read(f"{folder}/smaps_rollup").splitlines()[1:])
                total += 1024 * (int(kib["Pss"].split()[0]) - int(kib.get("Pss_Shmem", "0").split()[0]))
                total += 1024 * int(self._read(f"{folder}/status").partition("VmPTE:")[2].split()[0])
                of_process: dict[str, int] = {}
                for line in self._read(f"{folder}/maps").splitlines():
                    if line.endswith("/dev/zero (deleted)"):
                        span, _, _, _, inode = line.split()[:5]
                        start, end = (int(word, 16) for word in span.split("-"))
                        of_process[inode] = of_process.get(inode, 0) + end - start
                shared |= {inode: max(size, shared.get(inode, 0)) for inode, size in of_process.items()}
        return total + sum(shared.values())

    def _read(self, path: str) -> str:
        handle = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        try:
            text = b""
            while (more := os.read(handle, 1 << 20)) and len(text) < _LONGEST:
                text += more
            return text.decode(errors="replace")
        finally:
            os.close(handle)


def descendants(pid: int) -> list[int]:
    """Processes below ``pid`` in this /proc, nearest first."""
    below: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as file:
                    children = [int(word) for word in file.read().split()]
                    below += children
                    todo += children
    return below


def end_all() -> None:
    """End every other process of this process namespace; only its process 1 may ask."""
    if os.getpid() != 1:
        raise RuntimeError("not process 1")
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def end_descendants() -> None:
    """End everything below this process, which adopts orphans: stop all first, so that none can fork away, then kill and reap."""
    stopped: set[int] = set()
    while new := set(descendants(os.getpid())) - stopped:
        _signal(new, signal.SIGSTOP)
        stopped |= new
    while below := descendants(os.getpid()):
        _signal(below, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.wait()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def user_tasks() -> int:
    """Processes and threads of this process's user, as far as /proc shows them."""
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count
