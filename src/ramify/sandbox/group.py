"""Control groups: where this user may make one, the kernel bounds the memory of a command's processes together and counts their
time.

Version 2: below the nearest ancestor of this process's own group whose children have the memory controller and which this user
may write (a service or scope with ``Delegate=yes``, a user's session, a container's own tree). Version 1: below this process's
group of the memory controller, and for time of cpuacct. Nothing of this process's own groups is changed. Sources: the kernel's
cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ramify.sandbox.protocol import Limits

BESIDE = 16 << 20
"""Bytes that a group may use besides memory and files of its command: the kernel's own for its processes, pipes and sockets."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Home:
    """Where groups can be made."""

    version: int
    memory: Path
    time: Path | None
    """Of version 1, where cpuacct's tree may be written too."""


def home() -> Home | None:
    """Where this process may make groups, tried by making one and moving a child there; None where it may not."""
    return _home(os.getpid())


def make(limits: Limits) -> ControlGroup | None:
    """A group for one command with ``limits``; None where none can be made."""
    place = home()
    try:
        return None if place is None else ControlGroup(place, limits)
    except OSError:
        return None


@cache
def _home(pid: int) -> Home | None:
    for home in _candidates():
        for folder in (home.memory, home.time):
            if folder is not None:
                _sweep(folder)
        try:
            group = ControlGroup(home, Limits())
        except OSError:
            continue
        try:
            with open(os.devnull, "rb") as nothing:
                moved = subprocess.run(
                    ["sh", "-c", f"for fd in {' '.join(map(str, group.entries))}; do echo 0 > /proc/self/fd/$fd || exit 1; done"],
                    pass_fds=group.entries,
                    stdin=nothing,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    timeout=10,
                )
            if moved.returncode == 0:
                return home
        except (OSError, subprocess.SubprocessError):
            continue
        finally:
            group.close()
    return None


def _candidates() -> Iterator[Home]:
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, names, path = line.split(":", 2)
            paths |= {"2": path} if number == "0" else dict.fromkeys(names.split(","), path)
    mounts: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, about = line.partition(" - ")
            kind, _, options = about.split(" ", 2)
            if kind == "cgroup2":
                mounts["2"] = Path(mount.split()[4])
            elif kind == "cgroup":
                mounts |= dict.fromkeys(set(options.split(",")) & {"memory", "cpuacct"}, Path(mount.split()[4]))
    if "2" in mounts and "2" in paths:
        here = mounts["2"] / paths["2"].lstrip("/")
        for folder in (here, *here.parents):
            with contextlib.suppress(OSError):
                if "memory" in (folder / "cgroup.subtree_control").read_text().split() and os.access(folder, os.W_OK):
                    yield Home(2, folder, None)
            if folder == mounts["2"]:
                break
    if "memory" in mounts:
        folders = {
            name: next((p for p in (mounts[name] / paths.get(name, "/").lstrip("/"), mounts[name]) if p.is_dir()), None)
            for name in mounts
            if name != "2"
        }
        if folders["memory"] is not None:
            yield Home(1, folders["memory"], folders.get("cpuacct"))


def _sweep(folder: Path) -> None:
    """Remove groups of processes that are gone."""
    for left in folder.glob("ramify-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                left.rmdir()


class ControlGroup:
    """One command's group. ``entries``: descriptors to which its first process writes ``0`` to enter.
    Raises OSError where none can be made."""

    def __init__(self, home: Home, limits: Limits) -> None:
        self._home, self.entries = home, list[int]()
        name = f"ramify-{os.getpid()}-{next(_numbers)}"
        self._folders = [folder / name for folder in (home.memory, home.time) if folder is not None]
        most = str(limits.memory_bytes + limits.disk_bytes + BESIDE)
        try:
            for folder in self._folders:
                folder.mkdir()
            if home.version == 2:
                self._set("memory.max", most)
                for setting, value in (
                    ("memory.swap.max", "0"),
                    ("memory.oom.group", "1"),
                    ("pids.max", str(limits.processes + 4)),
                ):
                    with contextlib.suppress(OSError):
                        self._set(setting, value)
            else:
                self._set("memory.limit_in_bytes", most)
                with contextlib.suppress(OSError):  # where swap is accounted
                    self._set("memory.memsw.limit_in_bytes", most)
            for folder in self._folders:
                self.entries.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            self.close()
            raise

    def _set(self, name: str, value: str) -> None:
        (self._folders[0] / name).write_text(value)

    def _count(self, file: str, key: str = "") -> int:
        """A number of a file of the group, of the line that begins with ``key``; 0 where it is not there."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = self._folders[-1] if file.startswith("cpu") else self._folders[0]
            lines = (folder / file).read_text().splitlines()
            return int(next(line.split()[-1] for line in lines if line.startswith(key))) if key else int(lines[0])
        return 0

    @property
    def cpu_seconds(self) -> float:
        """Processor time of everything that was in it; 0 where that is not counted."""
        if self._home.version == 2:
            return self._count("cpu.stat", "usage_usec") / 1e6
        return self._count("cpuacct.usage") / 1e9 if self._home.time is not None else 0.0

    @property
    def peak_bytes(self) -> int:
        """Most memory it ever used, cached files included."""
        return self._count("memory.peak" if self._home.version == 2 else "memory.max_usage_in_bytes")

    @property
    def overran(self) -> bool:
        """Whether the kernel ended a process of it because its memory was used up."""
        file = "memory.events" if self._home.version == 2 else "memory.oom_control"
        return self._count(file, "oom_kill ") > 0

    def close(self) -> None:
        """Remove it; what of it has not quite ended yet is waited for, briefly, and swept later."""
        for entry in self.entries:
            os.close(entry)
        self.entries.clear()
        for folder in self._folders:
            for _ in range(4):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.005)
