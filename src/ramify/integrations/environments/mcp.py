"""MCP tool servers as environments: ``mcp:tasks=FILE COMMAND ARGS...`` starts the command for every episode and offers its tools.

The server's state is its own, so there is no snapshot: a fork starts a new server and makes those of the recorded calls again
that are declared ``sandboxed``. A tool that declares no effect is not run on a branch. What a server's annotations say of a tool
(``readOnlyHint``) is a hint of a third party: it declares nothing, and is only told to the person who has to. Every server is
reaped, also one that hangs, and it inherits no variable of the environment but HOME, PATH and the like.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ramify.base.errors import InfrastructureError, UserError, nearest
from ramify.base.plugins import own_function
from ramify.base.registry import register
from ramify.env.protocol import Env, Observation, Snapshot, Task, TaskSet, read_task_set
from ramify.env.tools import describe, how_to_declare, read_effects, tool_json
from ramify.integrations.environments.spec import TaskList, import_package, value_of
from ramify.integrations.environments.tools import Grade, ToolEpisode, ToolReply, names, refusal
from ramify.render.terminal import say

T = TypeVar("T")
TIMEOUT = 30.0
"""Seconds a server has to start, and to answer a call."""
LEAVING = 10.0
"""Seconds after which a server that does not end is left to the reaper's kill."""
AT_ONCE = 8
_SETTINGS = ("tasks", "grade", "timeout", "max_turns", "at_once", "effects")


class ToolServer:
    """One server process and the session with it, which lives in a thread of its own.
    Raises InfrastructureError("tool") on any failure."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command, self._timeout = list(command), timeout
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        self._client: Any = None
        self.read_only: set[str] = set()
        """The tools of which the server says that they only read."""
        self.left_out: dict[str, str] = {}
        """The tools that nobody could call, by name, and why."""
        self._leave: asyncio.Event | None = None
        self._started: Future[list[dict[str, Any]]] = Future()
        self._served: Future[None] = asyncio.run_coroutine_threadsafe(self._serve(), _loop())
        _open.add(self)
        try:
            self.tools = self._started.result(timeout + LEAVING)
        except BaseException as error:
            failure = self._failure("does not start", error)
            self.close()
            raise failure from error

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool; the result as the protocol gives it."""
        try:
            return self._wait(self._client.call_tool(name, dict(arguments), read_timeout_seconds=self._timeout))
        except Exception as error:
            raise self._failure(f"fails in '{name}'", error) from error

    def close(self) -> None:
        """End the server: close its input, then terminate, then kill. Returns when it is gone."""
        if not self._served.done():
            _loop().call_soon_threadsafe(self._end)
        try:
            self._served.result(LEAVING)
        except BaseException:  # its end was reported to the caller that waited
            self._served.cancel()
        self._errors.close()
        _open.discard(self)

    def _end(self) -> None:
        if self._leave is not None:
            self._leave.set()

    async def _serve(self) -> None:
        """The session from beginning to end; one task, as its cancel scopes demand."""
        mcp, stdio = (
            import_package("mcp", "environments", "an MCP server"),
            import_package("mcp.client.stdio", "environments", "an MCP server"),
        )
        self._leave = asyncio.Event()
        parameters = mcp.StdioServerParameters(command=self._command[0], args=self._command[1:], encoding_error_handler="replace")
        transport = self._sound(stdio.stdio_client(parameters, errlog=self._errors))
        try:
            async with asyncio.timeout(self._timeout) as limit:
                async with mcp.Client(transport, read_timeout_seconds=self._timeout) as client:
                    tools, cursor = [], None
                    for _ in range(100):
                        page = await client.list_tools(cursor=cursor)
                        tools += [tool_json(t.name, t.description or "", t.input_schema) for t in page.tools]
                        self.read_only |= {t.name for t in page.tools if t.annotations and t.annotations.read_only_hint}
                        cursor = page.next_cursor
                        if not cursor:
                            break
                    limit.reschedule(None)
                    self._client = client
                    self._started.set_result(tools)
                    await self._leave.wait()
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    @asynccontextmanager
    async def _sound(self, transport: Any) -> AsyncGenerator[Any, None]:
        """``transport``, with the tools left out that are not as the protocol wants them: its client refuses the whole list for
        one of them."""
        async with transport as (read, write):
            yield _Sound(read, self.left_out), write

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._served.done():
            work.close()
            raise ConnectionError("it has ended")
        return asyncio.run_coroutine_threadsafe(work, _loop()).result(self._timeout + LEAVING)

    def _failure(self, what: str, error: BaseException) -> InfrastructureError:
        import pydantic

        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        late = isinstance(error, TimeoutError) or "timed out" in str(error).lower()
        detail = str(error)
        if isinstance(error, pydantic.ValidationError):  # of what is wrong with the message, the first
            first = error.errors()[0]
            detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']} ({error.title})"
        why = f"no answer in {self._timeout:g} s" if late else f"{type(error).__name__}: {' '.join(detail.split())[:300]}"
        # by position: the server writes where the file's own position is
        end = os.fstat(self._errors.fileno()).st_size
        stderr = os.pread(self._errors.fileno(), 4096, max(0, end - 4096)).decode("utf-8", "replace").strip().rpartition("\n")[2]
        last = f" (its last words: {stderr[-200:]})" if stderr else ""
        return InfrastructureError("tool", f"the MCP server '{self._command[0]}' {what}: {why}{last}")


class _Sound:
    """A stream of a server's messages in whose lists of tools every tool can be called; ``left_out`` gets the others."""

    def __init__(self, stream: Any, left_out: dict[str, str]) -> None:
        self._stream, self._left_out = stream, left_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        """The next message."""
        return self._checked(await self._stream.receive())

    def __aiter__(self) -> _Sound:
        return self

    async def __anext__(self) -> Any:
        return self._checked(await self._stream.__anext__())

    async def __aenter__(self) -> _Sound:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def _checked(self, item: Any) -> Any:
        result: Any = getattr(getattr(item, "message", None), "result", None)
        tools = result.get("tools") if isinstance(result, dict) else None
        if isinstance(tools, list):
            sound: dict[str, Any] = {}
            for at, tool in enumerate(tools, 1):
                name = tool.get("name") if isinstance(tool, dict) else None
                name = name if isinstance(name, str) and name else f"tool {at}"
                try:
                    made = _sound_tool(tool)
                    if name in sound:
                        raise ValueError("another one has its name")
                    sound[name] = made
                except ValueError as error:
                    self._left_out[name] = str(error)
            result["tools"] = list(sound.values())
        return item


def _sound_tool(tool: Any) -> dict[str, Any]:
    """A tool of a server's list as the protocol wants it, what is odd and not needed left out. Raises ValueError that says why
    nobody could call it."""
    from mcp.types import Tool

    schemas = import_package("jsonschema", "environments", "an MCP server")  # a requirement of mcp

    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        raise ValueError("it has no name")
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        raise ValueError("it has no inputSchema" if schema is None else "its inputSchema is not an object")
    schema = {"type": "object", **schema}
    if schema["type"] != "object":
        raise ValueError(f'its inputSchema has the type {json.dumps(schema["type"])[:60]} where the protocol wants "object"')
    try:
        schemas.validators.validator_for(schema, schemas.Draft202012Validator).check_schema(schema)
    except schemas.SchemaError as error:
        where = ".".join(map(str, error.path))
        raise ValueError(f"its inputSchema is not a JSON schema: {where + ': ' if where else ''}{error.message[:120]}") from None
    except Exception as error:  # a schema that leads the checker itself astray, such as a $schema that is not text
        raise ValueError(f"its inputSchema cannot be checked: {type(error).__name__}") from None
    words = tool.get("description")
    needed = {"name": tool["name"], "description": words if isinstance(words, str) else "", "inputSchema": schema}
    try:
        Tool.model_validate(tool)
    except ValueError:
        return needed
    return {**tool, **needed}


class McpEpisode(ToolEpisode):
    """One episode with a server of its own. The grader's state is the list of calls made:
    ``{"name", "arguments", "text", "error"}``."""

    def __init__(self, environment: McpEnvironment) -> None:
        super().__init__(self.call, [], "", environment.max_turns, environment.grade, environment.effects)
        self._environment = environment
        self._server: ToolServer | None = None
        self._calls: list[dict[str, Any]] = []

    def reset(self, task: Task, seed: int) -> Observation:
        """Start a server and show ``task``. Raises UserError where the task has no text."""
        self.close()
        first = self.begin(task)
        self._calls = []
        self._server = ToolServer(self._environment.command, self._environment.timeout)
        self.system = describe(self._server.tools)
        self._environment.known(self._server)
        return first

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Have the server run the tool of that name."""
        if self._server is None:
            raise InfrastructureError("env", "step without a running episode")
        known = names(self._server.tools)
        if name not in known:
            return refusal(f"there is no tool '{name}' ({nearest(name, known)})")
        server = self._server

        def run() -> ToolReply:
            reply = server.call(name, arguments)
            return ToolReply("\n".join(map(_part, reply.content)), failed=bool(reply.is_error))

        result = self.guarded(name, arguments, run)
        self._calls.append({"name": name, "arguments": dict(arguments), "text": result.text, "error": result.failed})
        return result

    def declaring(self, name: str) -> str:
        """How a tool is declared; where the server calls it read-only, that, too."""
        hint = " (its server calls it read-only, which would be pure)" if self._server and name in self._server.read_only else ""
        return how_to_declare(name, f"effects={name}=EFFECT before the server's command") + hint

    def judged(self) -> list[dict[str, Any]]:
        """The calls made so far."""
        return self._calls

    def snapshot(self) -> None:
        """None: the state is the server's."""

    def restore(self, snapshot: Snapshot) -> None:
        """Never called: there are no snapshots."""
        raise InfrastructureError("env", "an MCP server has no snapshot")

    def key(self) -> None:
        """None: the state is the server's."""

    def close(self) -> None:
        """End the server."""
        super().close()
        if self._server is not None:
            self._server.close()
            self._server = None


@register("env", "mcp")
class McpEnvironment:
    """``COMMAND ARGS...`` over stdio. Settings before the command: ``tasks=FILE`` (JSON lines with a ``prompt``),
    ``grade=MODULE:FUNCTION`` ((task, answer, calls) -> score), ``timeout=SECONDS``, ``max_turns=N``, ``at_once=N`` (servers open
    at a time), ``effects=TOOL=EFFECT,...`` (what tools do to the world, :data:`ramify.env.tools.EFFECTS`;
    the tool ``*`` is all others).

    Raises UserError on a command or file that does not exist, NeedsError where mcp is not installed.
    """

    blocking = True

    def __init__(self, argument: str = "", *, tasks: TaskSet | None = None, grade: Grade | None = None) -> None:
        try:
            words = shlex.split(argument)
        except ValueError as error:
            raise UserError(f"the environment 'mcp' cannot read its command: {error}") from None
        found: dict[str, str] = {}
        while words and re.match(r"[a-z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            if name not in _SETTINGS:
                raise UserError(f"the environment 'mcp' has no setting '{name}' ({nearest(name, _SETTINGS)})")
            found[name] = value
        if not words:
            raise UserError("the environment 'mcp' needs a command: mcp:tasks=FILE COMMAND ARGS...")
        import_package("mcp", "environments", "the environment 'mcp'")
        if shutil.which(words[0]) is None:
            raise UserError(f"there is no command '{words[0]}' to start an MCP server with")
        self.command, self.name = words, f"mcp:{argument}"
        self.timeout = float(_number(found, "timeout", TIMEOUT, float | int))
        self.max_turns, self.at_once = int(_number(found, "max_turns", 16, int)), int(_number(found, "at_once", AT_ONCE, int))
        self.grade: Grade | None = own_function(found["grade"], "task", "answer", "state") if "grade" in found else grade
        listed = read_task_set(Path(found["tasks"])) if "tasks" in found else tasks
        self._tasks = None if listed is None else TaskList(listed, self.name)
        self._tools: list[dict[str, Any]] | None = None
        self.effects = read_effects(filter(None, found.get("effects", "").split(",")))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The server's tools in OpenAI's JSON form; a server is started for this once. Raises InfrastructureError."""
        if self._tools is None:
            server = ToolServer(self.command, self.timeout)
            self.known(server)
            server.close()
        return self._tools or []

    def declare(self, effects: Mapping[str, str]) -> None:
        """What tools do to the world, by name."""
        self.effects |= effects

    def known(self, server: ToolServer) -> None:
        """Cache a server's answer, so that none is started for it; say which of its tools are left out."""
        if self._tools is None:
            self._tools = server.tools
            for name, why in server.left_out.items():
                say(f"the MCP server '{self.command[0]}': the tool '{name}' is left out: {why}")

    def make(self) -> Env:
        """A fresh episode."""
        return McpEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """At most ``n`` of the listed tasks. Raises UserError where there is no list."""
        if self._tasks is None:
            raise UserError("the environment 'mcp' has no tasks of its own: give tasks=FILE before the command")
        return self._tasks.task_set(split, n, seed)


def _number(found: Mapping[str, str], name: str, default: float, kind: Any) -> float:
    value = value_of(found[name]) if name in found else default
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < 1e6:
        raise UserError(f"{name} must be a positive number, not '{found[name]}'")
    return float(value)


def _part(part: Any) -> str:
    """One part of a result as text."""
    if getattr(part, "text", None) is not None:
        return str(part.text)
    data = getattr(part, "data", "")
    return f"[{part.type}{f', {len(data)} characters of base64' if data else ''}]"


_open: weakref.WeakSet[ToolServer] = weakref.WeakSet()
_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:  # or two episodes that start at once would each get a loop, and talk to the wrong one from then on
        return _only_loop()


@cache
def _only_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the thread that talks to servers, started with the first of them."""
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # a server's other output must not appear as a traceback
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ramify-mcp", daemon=True).start()
    atexit.register(_close_all)
    return loop


def _close_all() -> None:
    """Leave no server behind when the interpreter ends."""
    for server in list(_open):
        server.close()
