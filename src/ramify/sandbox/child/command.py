"""One command in a box: the monitor that holds it to its limits, the init that owns its processes, the command itself.

monitor (watches, measures, kills) -> init (process 1 of the command's process namespace) -> command. When init ends, by the
monitor's SIGKILL or after the command's first process, the kernel ends every process of the namespace, whatever it did to escape.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from ramify.sandbox.child import kernel, watch
from ramify.sandbox.child.collect import collect

COLLECT_SECONDS = 10.0
"""How long returning files may take after the command has ended."""
MAPPED = 8 << 30
"""Bytes of addresses a process may map beyond its memory: programs and shared memory. It bounds the page tables, too."""
_OPEN_FILES = 256
_ERRORS = 200
"""Descriptor on which a command that could not begin says why."""


@dataclass(frozen=True)
class Box:
    """A command's view of its box."""

    isolated: bool
    work: str
    temporary: str
    inside: str
    """Where the files of ``sandbox/inside`` are seen."""
    program: bytes
    """The system-call filter."""


def monitor(fds: dict[str, int], box: Box) -> None:
    """Run the command described by ``fds['spec']``, hold it to its limits, and send the outcome to ``fds['report']``."""
    host = socket.socket(fileno=fds.pop("report"))
    spec, files_at = _read_spec(fds["spec"])
    answer: dict[str, Any] = {"reason": "error", "error": "the monitor failed"}
    try:
        answer = _watched(spec, files_at, fds, box, host)
    except OSError as error:
        answer = {"reason": "error", "error": str(error)}
    finally:
        with contextlib.suppress(OSError):
            host.send(json.dumps(answer).encode())
        host.close()


def _read_spec(handle: int) -> tuple[dict[str, Any], int]:
    (size,) = struct.unpack("<Q", os.pread(handle, 8, 0))
    return json.loads(os.pread(handle, size, 8)), 8 + size


def _watched(spec: dict[str, Any], files_at: int, fds: dict[str, int], box: Box, host: socket.socket) -> dict[str, Any]:
    limits = spec["limits"]
    kernel.adopt_orphans()
    monitor_end, init_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if box.isolated:
        if spec["clock"] is not None:
            _restart_clocks()
        kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS)
    clock = None
    with contextlib.suppress(OSError):
        clock = kernel.TaskClock()
    before, start = time.process_time(), time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            monitor_end.close()
            host.close()
            _init(spec, files_at, fds, box, init_end)
        except BaseException as error:
            with contextlib.suppress(OSError):
                init_end.send(json.dumps({"error": f"{error}"}).encode())
        finally:
            os._exit(0)
    init_end.close()
    for handle in fds.values():
        os.close(handle)
    group = watch.WatchedGroup(None if box.isolated else child, clock=clock, own_seconds=before)
    answer: dict[str, Any] = {"reason": None}
    deadline = start + limits["seconds"]
    poll = select.poll()
    poll.register(monitor_end, select.POLLIN)
    poll.register(host, select.POLLIN)
    pause = 0.01
    while answer["reason"] is None:
        ready = [fd for fd, _ in poll.poll(1e3 * max(0.0, min(pause, deadline - time.monotonic())))]
        pause = min(2 * pause, 0.05)
        if monitor_end.fileno() in ready:
            data, handles, _, _ = socket.recv_fds(monitor_end, 65536, 1)
            if handles:
                group.proc = handles[0]
            elif not data:
                break
            else:
                answer |= json.loads(data)
                answer.setdefault("seconds", time.monotonic() - start)
                deadline = time.monotonic() + COLLECT_SECONDS
        elif host.fileno() in ready:
            answer["reason"] = "killed"
        elif "status" not in answer:
            answer["reason"] = "timeout" if time.monotonic() >= deadline else group.exceeds(limits)
        elif time.monotonic() >= deadline:
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    usage = os.wait4(child, 0)[2]
    if not box.isolated:
        watch.end_descendants()
    answer.setdefault("seconds", time.monotonic() - start)
    return _explained(answer, group, max(usage.ru_utime + usage.ru_stime - group.init_seconds, group.counted()))


def _explained(answer: dict[str, Any], group: watch.WatchedGroup, spent: float) -> dict[str, Any]:
    """The report: reason of death, exit code or signal, and what was used."""
    status = answer.pop("status", None)
    if answer["reason"] is None and "error" not in answer and status is not None:
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            answer |= {"reason": "cpu" if number == signal.SIGXCPU else "signal", "signal": number}
        else:
            answer |= {"reason": "exit", "code": os.WEXITSTATUS(status)}
    answer["reason"] = answer["reason"] or "error"
    if answer["reason"] == "error":
        answer.setdefault("error", "its first process vanished")
    return answer | {"cpu_seconds": max(0.0, spent, group.cpu_seconds), "memory_bytes": group.peak_bytes}


def _restart_clocks() -> None:
    """Monotonic and boot clocks of the command start near 0 (a time namespace), where the kernel has them."""
    with contextlib.suppress(OSError):
        kernel.unshare(kernel.CLONE_NEWTIME)
        with open("/proc/self/timens_offsets", "w") as file:
            for name, clock in (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME)):
                file.write(f"{name} {-int(time.clock_gettime(clock))} 0\n")


def _init(spec: dict[str, Any], files_at: int, fds: dict[str, int], box: Box, monitor_end: socket.socket) -> None:
    """Process 1: start the command, reap, end everything with it, return files."""
    kernel.die_with_parent()
    kernel.own_proc_files(False)
    if box.isolated:
        if os.getpid() != 1:
            raise OSError(f"init is process {os.getpid()}, not 1 of a namespace of its own")
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    else:
        kernel.adopt_orphans()
    for name in [name for name in fds if name.startswith("group")]:
        with contextlib.suppress(OSError):  # an old kernel checks the process that enters, not the one that opened the descriptor
            os.write(fds[name], b"0")
        os.close(fds.pop(name))
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(monitor_end, [b"proc"], [proc])
    os.close(proc)
    errors, write_error = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write_error, _ERRORS, inheritable=False)
        try:
            _command(spec, files_at, fds, box)
        except BaseException as error:
            os.write(_ERRORS, str(error).encode()[:4000])
        finally:
            os._exit(127)
    os.close(write_error)
    for name, handle in fds.items():
        if name != "returns":
            os.close(handle)
    if problem := os.read(errors, 4096):
        monitor_end.send(json.dumps({"error": problem.decode(errors="replace")}).encode())
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    if box.isolated:
        watch.end_all()
    else:
        watch.end_descendants()
    monitor_end.send(json.dumps({"status": status}).encode())
    if "returns" in fds:
        collect(spec["returns"], box.work, fds["returns"], spec["limits"]["returned_bytes"])


def _command(spec: dict[str, Any], files_at: int, fds: dict[str, int], box: Box) -> None:
    """Become the command: its files, descriptors, limits, filter; then exec."""
    os.setsid()
    os.chdir(box.work)
    _write_files(spec["files"], fds["spec"], files_at)
    os.chdir(spec["folder"])
    env = {"HOME": box.work, "TMPDIR": box.temporary, **spec["env"]}
    _descriptors([fds["stdin"], fds["stdout"], fds["stderr"], *([fds["channel"]] if "channel" in fds else [])])
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    kernel.own_proc_files(True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # before, the file is root's
        file.write("1000")
    _limit(spec["limits"], box.isolated)
    kernel.drop_privileges()
    kernel.install_filter(box.program)
    try:
        os.execvpe(spec["argv"][0], spec["argv"], env)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC):
            raise
        os.write(2, f"sandbox: {spec['argv'][0]}: {error.strerror}\n".encode())
        os._exit(126 if error.errno in (errno.EACCES, errno.ENOEXEC) else 127)


def _write_files(files: list[list[Any]], spec: int, at: int) -> None:
    """Create the given files (path, size, executable), their bytes one after another in ``spec`` from ``at`` on."""
    for path, size, executable in files:
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if executable else 0o644)
        end = at + size
        while at < end:
            at += os.write(handle, os.pread(spec, min(1 << 20, end - at), at))
        os.close(handle)


def _descriptors(wanted: list[int]) -> None:
    """``wanted`` become 0, 1, 2, 3; every other descriptor closes, now or (the one for errors) on exec."""
    for number, handle in enumerate([fcntl.fcntl(handle, fcntl.F_DUPFD, 64) for handle in wanted]):
        os.dup2(handle, number)
    os.closerange(len(wanted), _ERRORS)
    os.closerange(_ERRORS + 1, 1 << 30)


def _limit(limits: dict[str, Any], isolated: bool) -> None:
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: limits["memory_bytes"],
        resource.RLIMIT_AS: limits["memory_bytes"] + MAPPED,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_STACK: 8 << 20,
    }
    # Counted per user namespace: box, monitors, inits and commands. Without one it counts all tasks of the user, and spares root.
    others = 3 * limits["commands"] + 1 if isolated else watch.user_tasks()
    wanted[resource.RLIMIT_NPROC] = limits["processes"] + others
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if limits["cpu_seconds"] is not None:
        seconds = int(limits["cpu_seconds"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
