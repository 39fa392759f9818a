"""The protocol of sandboxes: run a command under limits, many at once, or a session whose folder and Python state last."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from ramify.base.errors import UserError

MIB = 1 << 20
MOST_BYTES = 16 * MIB
"""What the host keeps of one command at most: both outputs and the files returned."""

Json = Any
"""None, bool, int, float, str, or lists and dicts of them."""
Tool = Callable[..., Json | Awaitable[Json]]
"""A host function that code inside may call by name, with JSON keyword arguments; it may be async."""
Network = bool | Literal["loopback"]
"""False: no network at all. "loopback": 127.0.0.1 inside the sandbox only.
True: the host's network, its local services included."""

REASONS = {
    "exit": "the command ended by itself",
    "signal": "a signal ended it",
    "timeout": "it ran past its wall-clock limit",
    "cpu": "it used more processor time than allowed",
    "memory": "its processes together held more memory than allowed",
    "output": "it wrote more than allowed",
    "processes": "it started more processes than allowed",
    "killed": "the host ended it",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use. Too much ends it (with the reason) or makes the call inside fail, as noted."""

    seconds: float = 10.0
    """Wall clock. Everything the command started is dead by then + 1 s."""
    cpu_seconds: float | None = None
    """Processor time, all processes together; None leaves it to the wall clock."""
    memory_bytes: int = 512 * MIB
    """All processes together (ends it); a single process that asks for more gets an allocation error."""
    file_bytes: int = 64 * MIB
    """Size of one file (the write fails)."""
    files: int = 4096
    """Files and folders in the work folder, /tmp and /dev/shm together (creating fails)."""
    disk_bytes: int = 64 * MIB
    """Bytes of all of them together, in memory (the write fails)."""
    processes: int = 32
    """Processes and threads at a time, counted per box (fork fails)."""
    output_bytes: int = MIB
    """Of standard output and of standard error each (ends it; what came before is kept)."""
    returned_bytes: int = 8 * MIB
    """Of the files returned together (a file that does not fit is refused and named)."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "cpu_seconds" and value is None:
                continue
            wanted = (int, float) if name.endswith("seconds") else (int,)
            if isinstance(value, bool) or not isinstance(value, wanted) or not math.isfinite(value) or value <= 0:
                raise UserError(f"sandbox limit '{name}' must be a positive number, not {value!r}")
        kept = 2 * self.output_bytes + self.returned_bytes
        if kept > MOST_BYTES:
            raise UserError(f"sandbox limits: 2 x output_bytes + returned_bytes is {kept}; the host keeps at most {MOST_BYTES}")


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run and what it gets. The same fields are the arguments of `Sandbox.run`."""

    argv: Sequence[str]
    """Program and arguments; ``python`` is the host's Python version with its installed packages."""
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    """Path below the work folder -> content; a content that starts with ``#!`` is made executable."""
    stdin: bytes | str = b""
    limits: Limits = field(default_factory=Limits)
    network: Network = False
    clock: float | None = None
    """Where the wall clock starts, in seconds since 1970; it then advances by 1 us a reading and by what is slept (Python
    programs)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to a small clean environment; nothing of the host's is passed on."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """Host functions that ``ramify_host.call(name, {...})`` reaches from inside."""
    returns: Sequence[str] = ()
    """Files to bring back: paths below the work folder, or patterns in which ``*`` also matches ``/``."""
    folder: str = "."
    """Where to start, below the work folder."""

    def __post_init__(self) -> None:
        if isinstance(self.argv, str | bytes) or not self.argv or not all(isinstance(word, str) for word in self.argv):
            raise UserError(f"a sandbox command is a list of strings such as ['python', 'main.py'], not {self.argv!r}")
        kinds = {"files": Mapping, "env": Mapping, "tools": Mapping, "stdin": bytes | str, "limits": Limits, "folder": str}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"sandbox {name} cannot be a {type(getattr(self, name)).__name__}")
        if not all(isinstance(name, str) and callable(tool) for name, tool in self.tools.items()):
            raise UserError("sandbox tools: a name for each function")
        if isinstance(self.returns, str):
            raise UserError(f"returns is a list of paths, not the string {self.returns!r}")
        if not self.argv[0]:
            raise UserError("a sandbox command begins with the name of a program")
        for name in ("argv", "env", "returns"):
            values = getattr(self, name)
            words = [*values, *values.values()] if isinstance(values, Mapping) else [*values]
            if not all(isinstance(word, str) and "\0" not in word and _encodes(word) for word in words):
                raise UserError(f"sandbox {name}: strings without NUL bytes or lone surrogates only")
        if any(not name or "=" in name for name in self.env):
            raise UserError("sandbox env: a name is not empty and has no '='")
        for path in (*self.files, self.folder):
            inside_path(path)
        for path, content in self.files.items():
            if not isinstance(content, bytes | str):
                raise UserError(f"sandbox file '{path}': content is bytes or text, not {type(content).__name__}")
        if self.network not in (False, True, "loopback"):
            raise UserError(f"sandbox network is False, 'loopback' or True, not {self.network!r}")
        if self.clock is not None and not (math.isfinite(self.clock) and 0 <= self.clock < 1 << 36):
            raise UserError(f"sandbox clock: seconds since 1970, not {self.clock!r}")


def inside_path(path: str, most: int = 1000) -> None:
    """Raise UserError unless ``path`` is relative, without ``..`` and NUL, at most ``most`` characters."""
    bad = (
        not isinstance(path, str)
        or not path
        or path.startswith("/")
        or "\0" in path
        or ".." in path.split("/")
        or not _encodes(path)
    )
    if bad or len(path) > most:
        raise UserError(f"sandbox path {path!r}: a relative path below the work folder, without '..', is needed")


def _encodes(word: str) -> bool:
    return word.isascii() or word.encode("utf-8", "replace") == word.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command. Seconds are measured outside it, where it cannot reach."""

    reason: str
    """One of REASONS."""
    code: int | None = None
    """Exit code, when it ended by itself; 127: no such program, 126: not executable."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    """Highest sample of all its processes together, taken about every 50 ms: 0 for a short command."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files returned: path -> bytes."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Files asked for that were not returned -> why (a link, not a regular file, too large)."""
    detail: str = ""
    """More on the reason, if there is more."""

    @property
    def ok(self) -> bool:
        """It ended by itself with exit code 0."""
        return self.reason == "exit" and self.code == 0

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode(errors="replace")

    @property
    def error_text(self) -> str:
        """Standard error as text."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class SessionReply:
    """What a session's Python answered. All of it was made by code nobody trusts: JSON and text, nothing else."""

    reason: str
    """``done``; ``error`` (the code raised); or why the worker is gone: one of REASONS. A new worker starts at the next call."""
    value: Json = None
    """The last expression's value (or the function's result) where it is JSON, else None."""
    text: str = ""
    """repr of that value, shortened to 10,000 characters."""
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    """The traceback, or one sentence on why the worker is gone."""
    seconds: float = 0.0
    """Measured by the host."""

    @property
    def ok(self) -> bool:
        """The code ran to its end."""
        return self.reason == "done"


class Session(Protocol):
    """A box that stays: files last from command to command, Python state from call to call."""

    async def run(self, argv: Sequence[str], **command: Any) -> Outcome:
        """Run a command in the session's folder; arguments as for `Sandbox.run`. ``network`` and ``clock`` are the session's."""
        ...

    async def execute(self, code: str, seconds: float | None = None) -> SessionReply:
        """Run Python ``code`` in the session's worker, where earlier calls left their names."""
        ...

    async def call(self, function: str, *args: Json, seconds: float | None = None, **kwargs: Json) -> SessionReply:
        """Call a function that earlier code defined, with JSON arguments."""
        ...

    async def write(self, files: Mapping[str, bytes | str]) -> None:
        """Put files into the session's folder. Raises InfrastructureError when they do not fit."""
        ...

    async def read(self, *patterns: str) -> Mapping[str, bytes]:
        """Files of the session's folder; links, special files and what is too large are left out."""
        ...


class Sandbox(Protocol):
    """Runs code nobody trusts."""

    name: str

    async def run(self, argv: Sequence[str], **command: Any) -> Outcome:
        """Run one command in a fresh box; keyword arguments are the fields of `Command`."""
        ...

    async def run_many(self, commands: Iterable[Command], at_once: int | None = None) -> list[Outcome]:
        """Run commands, each in a box of its own, ``at_once`` at a time (default: one per processor); outcomes in their order."""
        ...

    def session(self, **command: Any) -> AbstractAsyncContextManager[Session]:
        """A box that stays until the context ends; arguments: files, limits, network, clock, env, tools of `Command`."""
        ...


class CommandRunner(ABC):
    """`run` and `run_many` on top of one method that runs a `Command`."""

    @abstractmethod
    async def run_command(self, command: Command) -> Outcome:
        """Run ``command`` in a fresh box."""

    async def run(self, argv: Sequence[str], **command: Any) -> Outcome:
        """Run one command in a fresh box; keyword arguments are the fields of `Command`. Raises UserError on bad ones."""
        return await self.run_command(make_command(argv, command))

    async def run_many(self, commands: Iterable[Command], at_once: int | None = None) -> list[Outcome]:
        """Run commands, each in a box of its own, ``at_once`` at a time (default: one per processor); outcomes in their order."""
        import os

        gate = asyncio.Semaphore(at_once or os.cpu_count() or 1)

        async def one(command: Command) -> Outcome:
            async with gate:
                return await self.run_command(command)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(command)) for command in commands]
        return [task.result() for task in tasks]


def make_command(argv: Sequence[str], fields: Mapping[str, Any], base: Command | None = None) -> Command:
    """A `Command` from `Sandbox.run`'s arguments, on top of ``base``. Raises UserError on an unknown one."""
    from ramify.base.errors import nearest

    known = set(Command.__slots__)
    for name in fields:
        if name not in known:
            raise UserError(f"unknown sandbox argument '{name}' ({nearest(name, known)})")
    return replace(base, argv=argv, **fields) if base else Command(argv, **fields)
