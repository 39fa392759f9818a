"""The conformance battery every sandbox must pass: that it runs commands and contains them, each point one check.

It is a smoke test of containment, not a proof: a sandbox that passes may still be broken in ways tests/sandbox/test_attacks.py
tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.base.problem import Problem
from ramify.base.waiting import wait_for
from ramify.sandbox.protocol import MIB, Limits, Outcome, Sandbox
from ramify.testing.probe import await_checks

_LIMITS = Limits(seconds=20.0, memory_bytes=256 * MIB, disk_bytes=16 * MIB, processes=16)


def check_sandbox(sandbox: Sandbox, seconds: float = 2.0) -> list[Problem]:
    """Run all checks concurrently; no problem means the sandbox follows the protocol. ``seconds``: the limit some wait for.

    Raises NeedsError where the sandbox cannot run here at all.
    """
    return wait_for(await_checks(CHECKS, _Probe(sandbox, seconds), together=True))


@dataclass(frozen=True)
class _Probe:
    sandbox: Sandbox
    seconds: float

    async def python(self, code: str, **fields: Any) -> Outcome:
        fields.setdefault("limits", _LIMITS)
        return await _in_time(self.sandbox.run(["python", "-S", "-c", code], **fields), fields["limits"].seconds + 60)


async def _in_time(work: Awaitable[Outcome], seconds: float) -> Outcome:
    async with asyncio.timeout(seconds):
        return await work


async def _runs(probe: _Probe) -> AsyncIterator[str]:
    code = "import sys; print(sys.stdin.read()); print(sys.argv[1:], file=sys.stderr); sys.exit(7)"
    words = ["a b", "", "$HOME", "'\"", "ü\n"]
    done = await _in_time(probe.sandbox.run(["python", "-S", "-c", code, *words], stdin="line é", limits=_LIMITS), 60)
    if (done.reason, done.code, done.ok) != ("exit", 7, False):
        yield f"exit code 7 is reported as {done.reason}, {done.code}"
    if done.stdout != "line é\n".encode():
        yield f"standard input 'line é' comes back as {done.stdout!r}"
    if done.error_text.strip() != str(words):
        yield f"the arguments {words} arrive as {done.error_text.strip()}"
    if not (await probe.python("print('x')")).ok:
        yield "exit code 0 is not ok"
    missing = await probe.sandbox.run(["no-such-program-anywhere"], limits=_LIMITS)
    if (missing.reason, missing.code) != ("exit", 127):
        yield f"a program that does not exist is reported as {missing.reason}, {missing.code}, not exit, 127"
    died = await probe.python("import os; os.kill(os.getpid(), 6)")
    if (died.reason, died.signal) != ("signal", 6):
        yield f"death by signal 6 is reported as {died.reason}, {died.signal}"


async def _files(probe: _Probe) -> AsyncIterator[str]:
    code = (
        "import os; os.makedirs('out/deep'); open('out/deep/b', 'wb').write(open('a/in').read().upper().encode() + b'\\0\\xff')\n"
        "os.symlink('/etc/passwd', 'out/link'); os.mkfifo('out/fifo'); os.symlink('/etc', 'etc')"
    )
    done = await probe.python(code, files={"a/in": "text"}, returns=["out/*", "etc/passwd"])
    if not done.ok:
        yield f"a file given or a folder to write is missing: {done.error_text.strip()[-300:]}"
    if dict(done.files) != {"out/deep/b": b"TEXT\0\xff"}:
        yield f"of a regular file, a link, a pipe and a file in a linked folder it returned {dict(done.files)}"
    again = await probe.python("import os; print(os.path.exists('a'), os.path.exists('out'))")
    if again.text.split() != ["False", "False"]:
        yield "files of one command are there in the next"


async def _environment(probe: _Probe) -> AsyncIterator[str]:
    canary = secrets.token_hex(8)
    os.environ["RAMIFY_BATTERY_CANARY"] = canary
    try:
        done = await probe.python("import os; print(dict(os.environ))", env={"GIVEN": "this"})
    finally:
        del os.environ["RAMIFY_BATTERY_CANARY"]
    if canary in done.text:
        yield "the host's environment is passed on"
    if "'GIVEN': 'this'" not in done.text:
        yield "the environment given does not arrive"


async def _host_files(probe: _Probe) -> AsyncIterator[str]:
    for folder in (Path.home(), Path.cwd(), Path(tempfile.gettempdir())):
        if not os.access(folder, os.W_OK):
            continue
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".ramify-battery-") as file:
            Path(file.name).chmod(0o666)
            Path(file.name).write_text("canary")
            done = await probe.python(f"print(open({file.name!r}).read())\nopen({file.name!r}, 'w').write('overwritten')")
            if "canary" in done.text:
                yield f"a file of the host in {folder} can be read"
            if Path(file.name).read_text() != "canary":
                yield f"a file of the host in {folder} can be overwritten"


async def _host_processes(probe: _Probe) -> AsyncIterator[str]:
    done = await probe.python(f"import os; os.kill({os.getpid()}, 0); print('seen', open('/proc/{os.getpid()}/cmdline').read())")
    command_line = Path("/proc/self/cmdline").read_text()
    if "seen" in done.text and command_line in done.text:
        yield "processes of the host are visible"


@contextlib.contextmanager
def _listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def _network(probe: _Probe) -> AsyncIterator[str]:
    with _listener() as port:
        done = await probe.python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('reached')")
    if "reached" in done.text:
        yield "a service on the host's loopback can be reached"
    out = await probe.python(
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 9)); print('routed')"
    )
    if "routed" in out.text:
        yield "there is a route to the outside"


async def _time_limit(probe: _Probe) -> AsyncIterator[str]:
    marker = f"ramify-battery-{secrets.token_hex(4)}"
    code = (
        "import os, sys, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        f"    os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(600)', '{marker}'])\n"
        "print('here', flush=True)\n"
        "time.sleep(600)"
    )
    done = await probe.python(code, limits=replace(_LIMITS, seconds=probe.seconds))
    if not done.text:  # a busy machine may not have started Python by then
        done = await probe.python(code, limits=_LIMITS)
    if done.reason != "timeout" or done.code is not None:
        yield f"a command past its time is reported as {done.reason}, {done.code}"
    if done.text != "here\n":
        yield "what it wrote before its time was up is lost"
    for _ in range(20):  # looks, not the clock: the whole machine may pause
        if not (left := _named(marker)):
            break
        await asyncio.sleep(0.05)
    if left:
        yield "a process that left its session outlives the command by more than a second"
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)


def _named(marker: str) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
    return pids


async def _output_limit(probe: _Probe) -> AsyncIterator[str]:
    code = "import os\nfor _ in range(1000): os.write(1, b'x' * 65536)"
    done = await probe.python(code, limits=replace(_LIMITS, output_bytes=1 << 17))
    if done.reason != "output":
        yield f"64 MB of output with 128 KiB allowed is reported as {done.reason}"
    if len(done.stdout) > 1 << 17:
        yield f"{len(done.stdout)} bytes of output are kept with 131072 allowed"


async def _resource_limits(probe: _Probe) -> AsyncIterator[str]:
    memory = await probe.python("x = b'x' * (1 << 30); print('had', len(x))")
    if "had" in memory.text:
        yield "1 GiB of memory can be had with 256 MiB allowed"
    disk = await probe.python("f = open('x', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20)); f.flush()\nprint('had')")
    if "had" in disk.text:
        yield "64 MiB can be written with 16 MiB allowed"
    forks = await probe.python(
        "import os, time\nn = 0\n"
        "try:\n    for _ in range(60):\n        if os.fork() == 0: time.sleep(30); os._exit(0)\n        n += 1\nexcept OSError: "
        "pass\nprint(n)"
    )
    if forks.reason == "exit" and int(forks.text or 0) >= 60:
        yield "60 processes can be started with 16 allowed"


async def _many(probe: _Probe) -> AsyncIterator[str]:
    from ramify.sandbox.protocol import Command

    commands = [Command(["python", "-S", "-c", f"print({i})"], limits=_LIMITS) for i in range(4)]
    done = await probe.sandbox.run_many(commands, at_once=2)
    if [outcome.text.strip() for outcome in done] != ["0", "1", "2", "3"]:
        yield f"four commands in one batch answer {[outcome.text for outcome in done]}"


async def _sessions(probe: _Probe) -> AsyncIterator[str]:
    def double(x: int) -> int:
        return 2 * x

    async with probe.sandbox.session(limits=_LIMITS, files={"given": "g"}, tools={"double": double}) as session:
        first = await session.execute("x = 20\ndef add(y): return x + y")
        value = await session.call("add", 1)
        if not first.ok or value.value != 21:
            yield f"Python state does not last from call to call ({first.error or value.error})"
        reply = await session.execute("import ramify_host; ramify_host.call('double', {'x': x})")
        if reply.value != 40:
            yield f"a host function is not reached ({reply.error})"
        unlisted = await session.execute("ramify_host.call('triple', {'x': x})")
        if unlisted.reason != "error":
            yield "a host function that was not listed can be called"
        raised = await session.execute("1 / 0")
        if raised.reason != "error" or "ZeroDivisionError" not in raised.error:
            yield f"an exception is reported as {raised.reason}, {raised.error!r}"
        await session.write({"a/b": "text"})
        if dict(await session.read("a/*", "given")) != {"a/b": b"text", "given": b"g"}:
            yield "files written to a session are not read back"
        if (await session.run(["cat", "a/b"])).text != "text":
            yield "a session's command does not see its files"
    async with probe.sandbox.session(limits=_LIMITS) as session:
        stuck = await session.execute("while True: pass", seconds=probe.seconds / 2)
        if stuck.reason != "timeout":
            yield f"a call past its time is reported as {stuck.reason}"


#: In the order in which they run.
CHECKS = (
    _runs, _files, _environment, _host_files, _host_processes, _network, _time_limit, _output_limit, _resource_limits, _many,
    _sessions,
)  # fmt: skip
