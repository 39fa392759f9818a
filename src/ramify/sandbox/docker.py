"""The docker sandbox: the same protocol in a container, where a container engine runs. A box is a container that ends when its
standard input does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.registry import register
from ramify.sandbox.channel import Channel
from ramify.sandbox.launch import INSIDE, Drain, content_bytes, unpack_returned
from ramify.sandbox.protocol import Command, CommandRunner, Outcome, make_command
from ramify.sandbox.worker import WorkerSession

_START_SECONDS = 60.0
_WORK = "/box/work"


@register("sandbox", "docker")
class DockerSandbox(CommandRunner):
    """Runs commands in containers of ``image``, which needs python3 and is never pulled. ``engine`` is the client program.

    Differences from the process sandbox: tools are for sessions' Python only; a session's container ends when one of its commands
    breaks a limit; the wall clock counts from the client's start; processor time and memory used are not reported; signals are
    derived from exit codes above 128."""

    name = "docker"

    def __init__(self, image: str = "python:3.11-slim", engine: str = "docker", readable: Iterable[str | Path] = ()) -> None:
        self.image, self.engine = image, engine
        self._readable = tuple(os.path.abspath(path) for path in readable)

    def check(self) -> str:
        """The engine's version. Raises NeedsError with the reason when there is no client, no engine or no image."""
        if shutil.which(self.engine) is None:
            raise NeedsError(f"the program '{self.engine}' is not installed")
        version = self._docker("version", "--format", "{{.Server.Version}}")
        if version.returncode:
            raise NeedsError(f"no {self.engine} engine answers ({_last_line(version.stderr)})")
        if self._docker("image", "inspect", self.image).returncode:
            raise NeedsError(f"the engine has no image '{self.image}': {self.engine} pull {self.image}")
        return version.stdout.strip()

    def _docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run([self.engine, *words], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 1, "", "no answer within 20 seconds")

    def run_arguments(self, name: str, command: Command) -> list[str]:
        """The engine's command line for a container ``name`` with the limits of ``command``."""
        limits = command.limits
        scratch = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk_bytes},nr_inodes={limits.files}"
        memory = limits.memory_bytes + 3 * limits.disk_bytes  # files live in memory and count
        mounts = [(str(INSIDE), "/ramify"), (str(INSIDE.parent / "child" / "collect.py"), "/ramify-child/collect.py")]
        mounts += [(path, path) for path in self._readable]
        words = [
            self.engine, "run", "--interactive", "--rm", "--init", "--pull", "never", "--name", name,
            "--hostname", "sandbox", "--network", "bridge" if command.network is True else "none",
            "--read-only", "--ipc", "private", "--log-driver", "none",
            "--memory", str(memory), "--memory-swap", str(memory), "--pids-limit", str(limits.processes + 4),
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534",
            "--shm-size", str(limits.disk_bytes),
        ]  # fmt: skip
        words += ["--ulimit", "core=0", "--ulimit", "nofile=256", "--ulimit", f"fsize={limits.file_bytes}"]
        if limits.cpu_seconds is not None:
            words += ["--ulimit", f"cpu={math.ceil(limits.cpu_seconds)}"]
        words += ["--tmpfs", f"{_WORK}:{scratch}", "--tmpfs", f"/tmp:{scratch}", "--workdir", _WORK]
        for source, target in mounts:
            words += ["--mount", f"type=bind,source={source},target={target},readonly"]
        return [*words, self.image, "cat"]

    def exec_arguments(self, name: str, command: Command, channel: bool = False) -> list[str]:
        """The engine's command line that runs ``command`` in container ``name``."""
        env = {"HOME": _WORK, "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        paths = []
        if command.clock is not None:
            env |= {"RAMIFY_CLOCK": repr(float(command.clock)), "SOURCE_DATE_EPOCH": str(int(command.clock))}
            paths.append("/ramify/clock")
        if channel:
            env["RAMIFY_HOST_FD"] = "0,1"
            paths.append("/ramify")
        env |= command.env
        if paths:
            env["PYTHONPATH"] = ":".join([*paths, *filter(None, [command.env.get("PYTHONPATH")])])
        words = [self.engine, "exec", "--interactive", "--workdir", f"{_WORK}/{command.folder}"]
        for key, value in env.items():
            words += ["--env", f"{key}={value}"]
        return [*words, name, *command.argv]

    async def run_command(self, command: Command) -> Outcome:
        """Run ``command`` in a fresh container, gone when this returns."""
        _no_tools(command)
        async with self._container(command) as name:
            return await self._run_in(name, command)

    @asynccontextmanager
    async def session(self, **fields: Any) -> AsyncIterator[WorkerSession]:
        """A container that stays until the context ends."""
        base = make_command(["true"], fields)
        async with self._container(base) as name:
            turn = asyncio.Lock()

            async def run(command: Command) -> Outcome:
                if command.tools is not base.tools:
                    _no_tools(command)
                async with turn:
                    return await self._run_in(name, command)

            async def start(command: Command) -> _Worker:
                return await _Worker.started(self, name, command)

            session = WorkerSession(base, run, start, "/ramify")
            try:
                if base.files:
                    await session.write(base.files)
                yield session
            finally:
                await session.close()

    @asynccontextmanager
    async def _container(self, command: Command) -> AsyncIterator[str]:
        await asyncio.to_thread(self.check)
        name = f"ramify-{uuid.uuid4().hex[:12]}"
        pipe = asyncio.subprocess.PIPE
        client = await asyncio.create_subprocess_exec(*self.run_arguments(name, command), stdin=pipe, stdout=pipe, stderr=pipe)
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            client.stdin.write(b"ready\n")
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_START_SECONDS):
                    if await client.stdout.readline() == b"ready\n":
                        yield name
                        return
            reason = _last_line((await client.communicate())[1].decode(errors="replace")) if client.returncode else "no answer"
            raise InfrastructureError("sandbox", f"the container did not start: {reason}")
        finally:
            client.stdin.close()  # cat ends, and the container with it
            await asyncio.shield(self._end(name, client))

    async def _end(self, name: str, client: asyncio.subprocess.Process) -> None:
        await self.kill(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await client.wait()
                return
        client.kill()
        await client.wait()

    async def kill(self, name: str) -> None:
        """End container ``name`` and all in it."""
        null = asyncio.subprocess.DEVNULL
        await (await asyncio.create_subprocess_exec(self.engine, "kill", name, stdin=null, stdout=null, stderr=null)).wait()

    async def _run_in(self, name: str, command: Command) -> Outcome:
        limits = command.limits
        if command.files:
            await self._put(name, command)
        outcome = await self._exec(self.exec_arguments(name, command), content_bytes(command.stdin), name, command)
        if not command.returns or outcome.reason not in ("exit", "signal"):
            return outcome
        fetch = Command(["python3", "-S", "/ramify/files.py", "get", str(limits.returned_bytes), *command.returns])
        words = self.exec_arguments(name, fetch)
        got = await self._exec(words, b"", name, Command(["true"], limits=limits), limits.returned_bytes)
        files, refused = unpack_returned(got.stdout)
        return replace(outcome, files=files, refused=refused)

    async def _put(self, name: str, command: Command) -> None:
        files = {path: content_bytes(content) for path, content in command.files.items()}
        head = json.dumps([[path, len(data), data.startswith(b"#!")] for path, data in files.items()]).encode()
        data = b"".join([struct.pack("<Q", len(head)), head, *files.values()])
        words = self.exec_arguments(name, Command(["python3", "-S", "/ramify/files.py", "put"]))
        done = await self._exec(words, data, name, Command(["true"]))
        if not done.ok:
            raise InfrastructureError("sandbox", f"the files could not be written: {_last_line(done.error_text)}")

    async def _exec(self, words: Sequence[str], stdin: bytes, name: str, command: Command, cap: int = 0) -> Outcome:
        """Run one client to its end or to a limit; at a limit the container ends."""
        limits = command.limits
        reason = ""
        reads = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        full = asyncio.Event()
        begun = time.monotonic()
        client = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=reads[0][1], stderr=reads[1][1]
        )
        drains = [Drain(read, cap or limits.output_bytes, full.set) for read, _ in reads]
        for _, write in reads:
            os.close(write)
        feeding = asyncio.create_task(_feed(client, stdin))
        watching = asyncio.create_task(full.wait())
        ended = asyncio.create_task(client.wait())
        try:
            done, _ = await asyncio.wait([ended, watching], timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if ended not in done:
                reason = "output" if watching in done else "timeout"
                await self.kill(name)
                await asyncio.wait([ended], timeout=10)
            await asyncio.wait([drain.ended for drain in drains], timeout=2)
        finally:
            if client.returncode is None:
                client.kill()
                await asyncio.shield(self.kill(name))
            for task in (feeding, watching, ended):
                task.cancel()
            await asyncio.gather(feeding, watching, ended, return_exceptions=True)
            for drain, (read, _) in zip(drains, reads, strict=True):
                drain.stop()
                os.close(read)
        code = client.returncode
        signal = code - 128 if code is not None and 128 < code <= 192 else None
        reason = reason or ("output" if full.is_set() else "signal" if signal else "exit")
        return Outcome(
            reason=reason,
            code=code if reason == "exit" else None,
            signal=signal if reason == "signal" else None,
            stdout=bytes(drains[0].data),
            stderr=bytes(drains[1].data),
            seconds=time.monotonic() - begun,
        )


class _Worker:
    """A session's Python in a container: the client's standard input and output are the channel."""

    def __init__(
        self, sandbox: DockerSandbox, name: str, client: asyncio.subprocess.Process, end: socket.socket, errors: Drain
    ) -> None:
        self._sandbox, self._name, self._client, self._end, self._errors = sandbox, name, client, end, errors
        self.killed_for = ""
        self._killing: asyncio.Task[None] | None = None

    @classmethod
    async def started(cls, sandbox: DockerSandbox, name: str, command: Command) -> _Worker:
        host_end, client_end = socket.socketpair()
        read, write = os.pipe2(os.O_CLOEXEC)
        words = sandbox.exec_arguments(name, _python3(command), channel=True)
        with client_end:
            client = await asyncio.create_subprocess_exec(
                *words, stdin=client_end.fileno(), stdout=client_end.fileno(), stderr=write
            )
        os.close(write)
        return cls(sandbox, name, client, host_end, Drain(read, command.limits.output_bytes))

    async def open_channel(self) -> Channel:
        return await Channel.over(self._end)

    def kill(self, reason: str) -> None:
        self.killed_for = self.killed_for or reason
        self._killing = self._killing or asyncio.create_task(self._sandbox.kill(self._name))

    async def report(self, seconds: float | None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                code = await self._client.wait()
        except TimeoutError:
            raise InfrastructureError("sandbox", "the container did not end") from None
        return {"reason": "killed" if self.killed_for else "exit", "code": code}

    def output(self) -> tuple[bytes, bytes]:
        return b"", bytes(self._errors.data)

    async def close(self) -> None:
        if self._client.returncode is None:
            self._client.kill()  # the channel closes, and the worker inside ends at its next read
            await self._client.wait()
        if self._killing is not None:
            await self._killing
        self._errors.close()


def _python3(command: Command) -> Command:
    return replace(command, argv=["python3", *command.argv[1:]])


def _no_tools(command: Command) -> None:
    if command.tools:
        raise NeedsError("the docker sandbox offers tools to a session's Python (execute, call) only, not to commands")


async def _feed(client: asyncio.subprocess.Process, data: bytes) -> None:
    assert client.stdin is not None
    with contextlib.suppress(ConnectionError):
        client.stdin.write(data)
        await client.stdin.drain()
    client.stdin.close()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
