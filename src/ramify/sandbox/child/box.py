"""One box: namespaces of its own, a work folder of limited size, and the commands that run in it concurrently."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
from typing import Any

from ramify.sandbox.child import command, kernel
from ramify.sandbox.child.command import Box

_SIOCSIFFLAGS, _UP = 0x8914, 1


def serve(request: dict[str, Any], control: socket.socket, options: dict[str, Any], program: bytes) -> None:
    """Build the box ``request`` describes and run commands from ``control`` until the host closes it (one, if ``once``)."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        box = _isolated(request, options, program) if options["namespaces"] else _folder(options, program)
    except OSError as error:
        control.send(json.dumps({"failed": str(error)}).encode())
        return
    try:
        while True:
            data, handles, _, _ = socket.recv_fds(control, 65536, 16)
            if not data:
                break
            fds = dict(zip(json.loads(data)["fds"], handles, strict=True))
            if request["once"]:
                command.monitor(fds, box)
                break
            if os.fork() == 0:
                control.close()
                kernel.die_with_parent()
                command.monitor(fds, box)
                os._exit(0)
            for handle in handles:
                os.close(handle)
            _reap(os.WNOHANG)
    finally:
        _reap(0)
        if not box.isolated:
            shutil.rmtree(os.path.dirname(box.work), ignore_errors=True)


def _reap(flags: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, flags)[0]:
            pass


def _isolated(request: dict[str, Any], options: dict[str, Any], program: bytes) -> Box:
    """Enter fresh namespaces and mount the work folder; /proc is mounted per command."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
    kernel.map_to_nobody(flags | (0 if request["network"] is True else kernel.CLONE_NEWNET))
    kernel.own_proc_files(True)
    socket.sethostname("sandbox")
    if request["network"] == "loopback":
        _loopback_up()
    mounted = 4 + sum(
        path.removeprefix("/dev").count("/") - 1 for path in options["readable"] if path.startswith(("/tmp/", "/dev/shm/"))
    )
    size = f"size={request['disk_bytes']},nr_inodes={request['files'] + mounted},mode=755"
    kernel.mount("box", "/box", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
    for folder, target in (("work", None), ("tmp", "/tmp"), ("shm", "/dev/shm")):
        os.mkdir(f"/box/{folder}")
        if target:
            below = _shown_below(target, options["readable"])
            kernel.mount(f"/box/{folder}", target, None, kernel.MS_BIND)
            for path, tree in below:
                os.makedirs(path, exist_ok=True)
                kernel.move_mount(tree, path)
    # of this namespace: nobody inside gains capabilities in one of his own, or uses up what the host's user may watch
    for name, most in (("user_namespaces", 0), ("inotify_instances", 8), ("inotify_watches", 1000)):
        with contextlib.suppress(OSError), open(f"/proc/sys/user/max_{name}", "w") as file:
            file.write(str(most))
    return Box(True, "/box/work", "/box/tmp", "/ramify", program)


def _shown_below(target: str, readable: list[str]) -> list[tuple[str, int]]:
    """(path, detached copy of what is mounted there) of each folder shown below ``target``, which is about to be covered."""
    trees: list[tuple[str, int]] = []
    for path in sorted({name for shown in readable for name in (shown, os.path.realpath(shown))}):
        inner = any(path.startswith(other + "/") for other, _ in trees)
        if path.startswith(target + "/") and not inner and os.path.isdir(path):
            trees.append((path, kernel.open_tree(path)))
    return trees


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP))


def _folder(options: dict[str, Any], program: bytes) -> Box:
    """Without namespaces: a temporary folder, and limits only."""
    base = tempfile.mkdtemp(dir=options["base"])
    for name in ("work", "tmp"):
        os.mkdir(f"{base}/{name}")
    return Box(False, f"{base}/work", f"{base}/tmp", options["inside"], program)
