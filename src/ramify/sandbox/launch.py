"""The host's side of a box: the server process, descriptors handed over, output read up to its cap, the report awaited."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.sandbox import group
from ramify.sandbox.channel import Channel
from ramify.sandbox.protocol import Command, inside_path

INSIDE = Path(__file__).parent / "inside"
"""Files that are seen inside as /ramify and run there only."""
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from ramify.sandbox.child.server import main; main(int(sys.argv[2]), "
    "sys.argv[3])"
)
_START_SECONDS = 20.0


class ForkServer:
    """The process that forks boxes. It ends when the host closes its socket or ends."""

    def __init__(self, readable: tuple[str, ...], namespaces: bool) -> None:
        self.namespaces = namespaces
        host_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = json.dumps({"readable": list(readable), "namespaces": namespaces, "inside": str(INSIDE)})
        root = str(Path(__file__).parents[2])
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, root, str(server_end.fileno()), config],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[server_end.fileno()], env={}, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self._socket, self._lock = host_end, threading.Lock()
        self._socket.settimeout(_START_SECONDS)
        try:
            hello = json.loads(self._socket.recv(65536) or b'{"failed": "the sandbox server did not start"}')
        except TimeoutError:
            hello = {"failed": "the sandbox server did not answer"}
        self.failed: str = hello.get("failed", "")
        """Why no box can be made; empty when all is well."""

    @property
    def alive(self) -> bool:
        """It can make boxes."""
        return not self.failed and self._process.poll() is None

    def box(self, request: dict[str, Any]) -> socket.socket:
        """Request a box; commands go to the socket returned, and the box ends when it closes."""
        host_end, box_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with box_end, self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [box_end.fileno()])
            except OSError as error:
                host_end.close()
                raise InfrastructureError("sandbox", f"the sandbox server is gone ({error})") from None
        return host_end

    def close(self) -> None:
        """End the server and with it every box."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        self._process.kill()
        self._process.wait()


_servers: dict[tuple[int, tuple[str, ...], bool], ForkServer] = {}
_starting = threading.Lock()


def server(readable: tuple[str, ...], namespaces: bool) -> ForkServer:
    """The running server of this process for these folders; started when there is none. One that failed is returned too."""
    key = (os.getpid(), readable, namespaces)  # a forked child of the host starts its own
    with _starting:
        present = _servers.get(key)
        if present is None or not present.alive:
            if present is not None:
                present.close()
            _servers[key] = present = ForkServer(readable, namespaces)
        return present


@atexit.register
def close_servers() -> None:
    """End every server of this process, and so every box."""
    for key in [key for key in _servers if key[0] == os.getpid()]:
        _servers.pop(key).close()


def box_request(command: Command, once: bool) -> dict[str, Any]:
    """What the server must know to build a box."""
    limits = command.limits
    return {"once": once, "network": command.network, "disk_bytes": limits.disk_bytes, "files": limits.files}


class Drain:
    """Reads a descriptor to its end, keeping the first ``cap`` bytes; calls ``full`` once when there are more."""

    def __init__(self, handle: int, cap: int, full: Callable[[], None] | None = None) -> None:
        self.data, self._handle, self._cap, self._full = bytearray(), handle, cap, full
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(handle, False)
        self._loop.add_reader(handle, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._handle, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        room = self._cap - len(self.data)
        self.data += data[:room]
        if len(data) > room and self._full:
            full, self._full = self._full, None
            full()
        if not data:
            self.stop()

    def close(self) -> None:
        """Read no more and close the descriptor."""
        self.stop()
        os.close(self._handle)

    def stop(self) -> None:
        """Read no more."""
        self._loop.remove_reader(self._handle)
        if not self.ended.done():
            self.ended.set_result(None)


class Running:
    """A command handed to a box: its descriptors on this side, until `close`."""

    def __init__(self, control: socket.socket, command: Command, env: dict[str, str], commands: int, channel: bool) -> None:
        self._read_ends: list[int] = []
        self.killed_for = ""
        """Why this side ended the command, if it did."""
        limits = command.limits
        handed = {"spec": _memory(_spec(command, env, commands)), "stdin": _memory([content_bytes(command.stdin)])}
        pipes = ["stdout", "stderr", *(["returns"] if command.returns else [])]
        for name in pipes:
            read, handed[name] = os.pipe2(os.O_CLOEXEC)
            self._read_ends.append(read)
        self._report, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed["report"] = report.detach()
        self.group = group.make(limits)
        """The control group that bounds it, where this user may make one."""
        handed |= {f"group{i}": os.dup(entry) for i, entry in enumerate(self.group.entries if self.group else ())}
        self.channel: socket.socket | None = None
        if channel:
            self.channel, other = socket.socketpair()
            handed["channel"] = other.detach()
        try:
            socket.send_fds(control, [json.dumps({"fds": list(handed)}).encode()], list(handed.values()))
        except OSError:
            pass  # the box is gone: the report ends without a word
        finally:
            for handle in handed.values():
                os.close(handle)
        caps = [limits.output_bytes, limits.output_bytes, limits.returned_bytes]
        self.drains = {
            name: Drain(handle, cap, lambda: self.kill("output"))
            for name, handle, cap in zip(pipes, self._read_ends, caps, strict=False)
        }
        self._answer = Drain(self._report.fileno(), 1 << 20)

    async def open_channel(self) -> Channel:
        """The host's end of the command's channel, which must have been asked for."""
        assert self.channel is not None
        return await Channel.over(self.channel)

    def output(self) -> tuple[bytes, bytes]:
        """What it wrote so far to standard output and standard error."""
        return bytes(self.drains["stdout"].data), bytes(self.drains["stderr"].data)

    def kill(self, reason: str) -> None:
        """End the command and all it started; the report follows."""
        self.killed_for = self.killed_for or reason
        with contextlib.suppress(OSError):
            self._report.shutdown(socket.SHUT_WR)

    async def report(self, seconds: float | None) -> dict[str, Any]:
        """Wait for the monitor's report, ``seconds`` at most; pipes are read to their end.
        Raises InfrastructureError when none comes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._answer.ended)
        self.kill("timeout")
        waiting = [self._answer.ended, *(drain.ended for drain in self.drains.values())]
        await asyncio.wait(waiting, timeout=2.0)
        try:
            return dict(json.loads(bytes(self._answer.data)))
        except ValueError:
            raise InfrastructureError("sandbox", "the box ended without a report") from None

    async def close(self) -> None:
        """Make sure that it ends, and let go of every descriptor; also right when the caller was cancelled."""
        self.kill("killed")
        try:
            await asyncio.wait([self._answer.ended], timeout=2.0)
        finally:
            for drain in (self._answer, *self.drains.values()):
                drain.stop()
            self._report.close()
            for handle in self._read_ends:
                os.close(handle)
            if self.group is not None:
                self.group.close()


def content_bytes(content: bytes | str) -> bytes:
    """Text as UTF-8; bytes as they are."""
    return content.encode("utf-8", "replace") if isinstance(content, str) else content


def _spec(command: Command, env: dict[str, str], commands: int) -> list[bytes]:
    files = {path: content_bytes(content) for path, content in command.files.items()}
    head = json.dumps(
        {
            "argv": [os.path.abspath(sys.executable) if command.argv[0] == "python" else command.argv[0], *command.argv[1:]],
            "env": env,
            "folder": command.folder,
            "clock": command.clock,
            "returns": list(command.returns),
            "files": [[path, len(data), data.startswith(b"#!")] for path, data in files.items()],
            "limits": {**asdict(command.limits), "commands": commands},
        }
    ).encode()
    return [struct.pack("<Q", len(head)), head, *files.values()]


def _memory(parts: Sequence[bytes]) -> int:
    """A sealed in-memory file with ``parts``, opened for reading: nobody inside can change or grow it."""
    try:
        handle = os.memfd_create("ramify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    except OSError:  # where even the host is in a sandbox that has none
        with tempfile.TemporaryFile() as file:
            handle, seals = os.dup(file.fileno()), 0
    try:
        with open(handle, "wb", closefd=False) as file:
            file.writelines(parts)
        if seals:
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def unpack_returned(data: bytes) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files and refusals from the frames `ramify.sandbox.child.collect` writes; a cut last frame is left out."""
    files: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    at = 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        if at + 4 + size > len(data):
            break
        try:
            head = json.loads(data[at + 4 : at + 4 + size])
            path, length = head["path"].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), head.get("size")
            inside_path(path, 4000)  # escapes of bytes that are not UTF-8 lengthen it
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError):
            break  # a container's code may have got between
        at += 4 + size
        if "refused" in head:
            refused[path] = str(head["refused"])[:200]
        elif type(length) is int and 0 <= length <= len(data) - at:
            files[path] = data[at : at + length]
            at += length
        else:
            break
    return files, refused


def refusal(reason: str) -> NeedsError:
    """The error where no isolation is available."""
    return NeedsError(
        f"no sandbox isolates code here: {reason}; run where namespaces or docker are allowed, or accept the risk with "
        "--allow-unsandboxed"
    )
