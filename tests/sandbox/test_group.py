"""Control groups of commands, where this user may make one: made, entered, counted, removed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tight import SHORT

from ramify.sandbox import group
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Outcome

HOME = group.home()
pytestmark = pytest.mark.skipif(HOME is None, reason="no control group may be made here")


def run(code: str, **limits: object) -> Outcome:
    return asyncio.run(ProcessSandbox().run(["python", "-S", "-c", code], limits=replace(SHORT, **limits)))  # type: ignore[arg-type]


def left() -> list[Path]:
    assert HOME is not None
    return [found for folder in (HOME.memory, HOME.time) if folder for found in folder.glob(f"ramify-{os.getpid()}-*")]


def test_a_command_enters_its_group_and_the_group_goes_with_it() -> None:
    done = run("print(open('/proc/self/cgroup').read())")
    assert f"ramify-{os.getpid()}-" in done.text
    assert left() == []


HELD = (
    "import mmap, os, time\n"
    "for _ in range(8):\n"
    "    if os.fork() == 0:\n"
    "        m = mmap.mmap(-1, 40 << 20)\n"
    "        for at in range(0, len(m), 4096): m[at] = 1\n"
    "        time.sleep(5); os._exit(0)\n"
    "for _ in range(8): os.wait()\n"
)


def test_memory_of_many_processes_is_bounded_by_the_kernel() -> None:
    """Faster than any sampling: what is asked for at once is never there at once."""
    assert run(HELD).reason == "memory"
    assert left() == []


def test_its_counts_are_read_before_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group.ControlGroup, "overran", property(lambda one: one._folders[0].exists()))
    assert run("pass").reason == "memory"


def test_time_of_children_that_nobody_waits_for_is_counted() -> None:
    if HOME is None or (HOME.version == 1 and HOME.time is None):
        pytest.skip("time is not counted here")
    code = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n    end = time.process_time() + .3\n    while time.process_time() < end: pass\n    os._exit(0)\n"
        "try: os.wait()\nexcept ChildProcessError: pass"
    )
    assert run(code).cpu_seconds >= 0.3


def test_groups_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    code = (
        "from ramify.sandbox import group; from ramify.sandbox.protocol import Limits; group.make(Limits()); import os; "
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert HOME is not None
    dead = [found for found in HOME.memory.glob("ramify-*-*") if not Path(f"/proc/{found.name.split('-')[1]}").exists()]
    assert dead
    subprocess.run([sys.executable, "-c", "from ramify.sandbox import group; group.home()"], check=True)
    assert not any(found.exists() for found in dead)
