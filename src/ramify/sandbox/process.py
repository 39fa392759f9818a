"""The process sandbox: Linux namespaces without root, resource limits and a system-call filter,
one small server per host process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.registry import register
from ramify.base.waiting import wait_for
from ramify.sandbox import launch
from ramify.sandbox.channel import Channel, Tools, serve
from ramify.sandbox.group import home
from ramify.sandbox.protocol import Command, CommandRunner, Outcome, make_command
from ramify.sandbox.worker import WorkerSession

SESSION_COMMANDS = 8
"""Commands of one session that run at a time; more wait."""
_GRACE = 12.0
"""Seconds after a limit at which the host stops waiting for the monitor's report."""


@register("sandbox", "process")
class ProcessSandbox(CommandRunner):
    """Runs commands in fresh namespaces on this machine. See docs/howto/sandbox.md for what is covered and what is not.

    ``readable`` are further files and folders shown read-only at their own paths. Where the kernel forbids namespaces the first
    use raises NeedsError, unless ``allow_unsandboxed``: then limits, the filter and the hunt for runaway processes remain, and
    the code can read what this user can read. ``namespaces=False`` does so even where they are allowed.
    """

    name = "process"

    def __init__(self, readable: Iterable[str | Path] = (), allow_unsandboxed: bool = False, namespaces: bool = True) -> None:
        prefixes = {sys.base_prefix, sys.prefix, sys.exec_prefix} - {"/", "/usr"}
        self._readable = tuple(sorted(prefixes | {os.path.abspath(path) for path in readable}))
        self.allow_unsandboxed, self._namespaces = allow_unsandboxed, namespaces

    @property
    def isolates(self) -> bool:
        """Namespaces separate the code from this machine (starts the server to know)."""
        return self._namespaces and not launch.server(self._readable, True).failed

    def server(self) -> launch.ForkServer:
        """The running server. Raises NeedsError where nothing isolates and that was not accepted."""
        if self._namespaces:
            server = launch.server(self._readable, True)
            if not server.failed:
                return server
            reason = f"the kernel forbids namespaces to this user ({server.failed})"
        else:
            reason = "namespaces were turned off"
        if not self.allow_unsandboxed:
            raise launch.refusal(reason)
        return launch.server(self._readable, False)

    async def run_command(self, command: Command) -> Outcome:
        """Run ``command`` in a fresh box, gone when this returns. Raises InfrastructureError when the box itself fails."""
        server = self.server()
        control = server.box(launch.box_request(command, once=True))
        end = launch.Drain(control.fileno(), 1 << 16)
        try:
            outcome = await run_in(control, command, server.namespaces, 1)
        except InfrastructureError as error:
            await asyncio.wait([end.ended], timeout=1.0)
            raise box_error(bytes(end.data)) or error from None
        finally:
            with contextlib.suppress(BaseException):
                await asyncio.wait([end.ended], timeout=1.0)
            end.stop()
            control.close()
        return outcome

    @asynccontextmanager
    async def session(self, **fields: Any) -> AsyncIterator[WorkerSession]:
        """A box that stays until the context ends: a folder that lasts, commands in it,
        and a Python worker that keeps its state."""
        base = make_command(["true"], fields)
        server = self.server()
        control = server.box(launch.box_request(base, once=False))
        end = launch.Drain(control.fileno(), 1 << 16)
        gate = asyncio.Semaphore(SESSION_COMMANDS)

        async def run(command: Command) -> Outcome:
            async with gate:
                try:
                    return await run_in(control, command, server.namespaces, SESSION_COMMANDS)
                except InfrastructureError as error:
                    raise box_error(bytes(end.data)) or error from None

        async def start(command: Command) -> launch.Running:
            return launch.Running(control, command, environment(command, server.namespaces, True), SESSION_COMMANDS, True)

        folder = "/ramify" if server.namespaces else str(launch.INSIDE)
        session = WorkerSession(base, run, start, folder)
        try:
            if base.files:
                await session.write(base.files)
            yield session
        finally:
            try:
                await session.close()
            finally:
                control.shutdown(2)
                with contextlib.suppress(BaseException):
                    await asyncio.wait([end.ended], timeout=2.0)
                end.stop()
                control.close()


def box_error(data: bytes) -> InfrastructureError | None:
    """The error of a box that could not be built."""
    return InfrastructureError("sandbox", f"the box could not be built: {json.loads(data)['failed']}") if data else None


async def run_in(control: Any, command: Command, isolated: bool, commands: int) -> Outcome:
    """Run ``command`` in the box that ``control`` reaches."""
    tools = Tools(command.tools)
    running = launch.Running(control, command, environment(command, isolated, bool(command.tools)), commands, bool(command.tools))
    serving: asyncio.Task[None] | None = None
    broke = ""

    async def answer(channel: Channel) -> None:
        nonlocal broke
        try:
            broke = await serve(channel, tools)
            if broke:
                running.kill("killed")
        finally:
            channel.close()

    try:
        try:
            if running.channel is not None:
                serving = asyncio.create_task(answer(await running.open_channel()))
            report = await running.report(command.limits.seconds + _GRACE)
        finally:
            if serving is not None:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
        return outcome_of(report, running, broke)  # before its group is removed, with what that counted
    finally:
        await running.close()


def outcome_of(report: Mapping[str, Any], running: launch.Running, broke: str) -> Outcome:
    """The monitor's report and what was read, as an Outcome."""
    reason, group, memory = report["reason"], running.group, report["memory_bytes"]
    if group is not None and group.overran:
        reason = "memory" if reason in ("exit", "signal", "error") else reason
        memory = max(memory, group.peak_bytes)  # the last sample may be of before
    if reason == "error":
        raise InfrastructureError("sandbox", f"the command could not be started: {report['error']}")
    if reason == "killed" or (running.killed_for == "output" and reason in ("exit", "signal")):
        reason = running.killed_for or reason
    stdout, stderr = running.output()
    returned = running.drains.get("returns")
    files, refused = launch.unpack_returned(bytes(returned.data)) if returned else ({}, {})
    ended = reason in ("exit", "signal")
    return Outcome(
        reason=reason,
        code=report.get("code") if ended else None,
        signal=report.get("signal") if ended else None,
        stdout=stdout,
        stderr=stderr,
        seconds=report["seconds"],
        cpu_seconds=max(report["cpu_seconds"], group.cpu_seconds if group else 0.0),
        memory_bytes=memory,
        files=files,
        refused=refused,
        detail=broke,
    )


def environment(command: Command, isolated: bool, channel: bool) -> dict[str, str]:
    """The environment inside: small, the same everywhere, nothing of the host's. HOME and TMPDIR are added in the box."""
    inside = "/ramify" if isolated else str(launch.INSIDE)
    programs = [f"{prefix}/bin" for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    paths = []
    env = {
        "PATH": ":".join(
            dict.fromkeys([*programs, "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"])
        ),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "USER": "nobody",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",  # a thread pool per processor would eat the limits of a small box
        "OPENBLAS_NUM_THREADS": "1",
    }
    if command.clock is not None:
        env |= {"RAMIFY_CLOCK": repr(float(command.clock)), "SOURCE_DATE_EPOCH": str(int(command.clock))}
        paths.append(f"{inside}/clock")
    if channel:
        env["RAMIFY_HOST_FD"] = "3"
        paths.append(inside)
    if "PYTHONPATH" in command.env:
        paths.append(command.env["PYTHONPATH"])
    return {**env, **command.env, **({"PYTHONPATH": ":".join(paths)} if paths else {})}


# --- strength -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of protection, as measured from inside a box."""

    works: bool
    means: str
    """What follows from it, or from its absence."""


_PROBE = """
import json, os, resource, socket
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def opens(path):
    try: open(path).close(); return True
    except OSError: return False
def reaches():
    try: socket.create_connection(("127.0.0.1", 9), 1)
    except OSError as error: return error.errno != 101
    return True
print(json.dumps({
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")},
    "filter": status.get("Seccomp", "0").strip() == "2", "privileges": status.get("NoNewPrivs", "0").strip() == "1",
    "capabilities": int(status.get("CapEff", "1"), 16) == 0 and int(status.get("CapBnd", "1"), 16) == 0,
    "user": os.getuid(), "root": not os.access("/", os.W_OK) and not os.path.exists("/root/.ssh"), "home": opens(@HOME@),
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]),
    "limits": resource.getrlimit(resource.RLIMIT_CORE) == (0, 0),
    "network": reaches(),
}))
"""


def strength(allow_unsandboxed: bool = False) -> dict[str, Layer]:
    """Each layer of the process sandbox on this machine, measured from inside a box (0.2 s); ``isolation`` sums them up."""
    sandbox = ProcessSandbox(allow_unsandboxed=allow_unsandboxed)
    try:
        seen = wait_for(_probe(sandbox))
    except Exception as error:  # whatever fails is the answer
        return {"isolation": Layer(False, f"{error}"), "docker": _docker()}
    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    apart = {name for name, namespace in seen["namespaces"].items() if namespace != host.get(name)}
    whole = {"user", "mnt", "pid", "net", "ipc", "uts"} <= apart
    table = {
        "isolation": (
            whole and seen["filter"],
            "code sees neither this machine's files nor its processes nor a network",
            "code runs as this user and can read and write what the user can",
        ),
        "files": (
            "mnt" in apart and not seen["home"],
            "a private read-only root; only system programs and Python are shown",
            "the user's files can be read",
        ),
        "processes": (
            "pid" in apart,
            "other processes are invisible; all of a command end with it",
            "escapees are hunted down, not impossible",
        ),
        "network": ("net" in apart and not seen["network"], "no network", "the network is reachable"),
        "users": ("user" in apart and seen["capabilities"], "user nobody without capabilities", "runs as this user"),
        "ipc": ("ipc" in apart, "no shared memory or queues with others", "shared memory is shared"),
        "clocks": (
            "time_for_children" in host,
            "monotonic clocks can be restarted for all programs",
            "a pinned clock covers Python only",
        ),
        "filter": (
            seen["filter"],
            "system calls are those of a list; about 80 of it and all newer ones are refused",
            "no system-call filter on this architecture",
        ),
        "privileges": (seen["privileges"], "set-uid programs gain nothing", "set-uid programs work"),
        "limits": (seen["limits"], "resource limits hold", "resource limits do not hold"),
        "memory": (
            seen["processes"] > 0,
            "bounded by a control group, and sampled every 50 ms"
            if home() is not None
            else "sampled every 50 ms over all processes, page tables and shared memory included: overshoot is possible (no "
            "control group may be made)",
            "limited per process only",
        ),
    }
    return {name: Layer(bool(works), yes if works else no) for name, (works, yes, no) in table.items()} | {"docker": _docker()}


def _docker() -> Layer:
    from ramify.sandbox.docker import DockerSandbox

    try:
        return Layer(True, f"an engine answers (version {DockerSandbox().check()})")
    except NeedsError as error:
        return Layer(False, f"the docker sandbox cannot be used: {error}")


async def _probe(sandbox: ProcessSandbox) -> dict[str, Any]:
    probe = _PROBE.replace("@HOME@", repr(os.path.abspath(__file__)))
    outcome = await sandbox.run(["python", "-I", "-S", "-c", probe])
    if not outcome.ok:
        raise InfrastructureError("sandbox", f"the probe failed: {outcome.reason} {outcome.error_text[-500:]}")
    return dict(json.loads(outcome.stdout))
