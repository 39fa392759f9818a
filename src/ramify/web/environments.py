"""Any environment over HTTP, in the protocol of OpenEnv's clients:
reset, step and state, and the same as messages of a WebSocket at ``/ws``.

Protocol: huggingface/OpenEnv, ``openenv/core/env_server/types.py`` and ``env_client.py`` (0.3 to 0.10). A connection to ``/ws``
is one episode at a time, as there. Beyond it, plain HTTP holds many episodes: those that name an ``episode_id``, and one that
names none; ``/fork`` begins another where one stands. ``timeout_s`` of a request is not read:
what bounds an answer is the server's ``--timeout``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from ramify.base.errors import InfrastructureError, RamifyError, UserError, nearest
from ramify.base.version import VERSION
from ramify.env.protocol import Env, Environment, Observation, Task, close, tools_of
from ramify.trace.message import write_call
from ramify.web.limits import RefusedRequestError, error_handlers, read_json

MOST = 1024
"""Episodes that are held at once; of more, the one whose last call is the oldest is given up."""
THREADS = 64
"""Calls that environments answer at once."""
_CODES = {
    400: "VALIDATION_ERROR",
    404: "VALIDATION_ERROR",
    409: "SESSION_ERROR",
    413: "VALIDATION_ERROR",
    429: "CAPACITY_REACHED",
}
T = TypeVar("T")


@dataclass
class ServedEpisode:
    """One episode of a client."""

    id: str
    env: Env
    task: Task
    seed: int
    actions: list[str] = field(default_factory=list)
    total: float = 0.0
    """Rewards so far."""
    done: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class EnvironmentApi:
    """``environment`` with its ``tasks``, served. ``seed`` is that of an episode that names none; ``most`` episodes are held."""

    def __init__(self, environment: Environment, tasks: Sequence[Task], seed: int = 0, most: int = MOST) -> None:
        self.environment, self.seed, self.most = environment, seed, most
        self.tasks = {task.id: task for task in tasks}
        if not self.tasks:
            raise UserError(f"the environment '{environment.name}' is served without a task")
        self.connections = 0
        self._held: OrderedDict[str, ServedEpisode] = OrderedDict()
        self._begun = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ramify-env")

    def app(self) -> Starlette:
        """The application, for :class:`ramify.web.limits.Guard`."""
        routes = [
            Route("/health", self._health),
            Route("/metadata", self._metadata),
            Route("/schema", self._schema),
            Route("/tasks", self._tasks),
            Route("/reset", self._reset, methods=["POST"]),
            Route("/step", self._step, methods=["POST"]),
            Route("/state", self._state),
            Route("/fork", self._fork, methods=["POST"]),
            WebSocketRoute("/ws", self._socket),
        ]
        return Starlette(routes=routes, exception_handlers=error_handlers())

    def end(self) -> None:
        """Give all episodes back."""
        while self._held:
            close(self._held.popitem()[1].env)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # what is served

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def _metadata(self, request: Request) -> Response:
        about = f"An environment of ramify with {len(self.tasks)} tasks."
        return JSONResponse({"name": self.environment.name, "description": about, "version": VERSION})

    async def _schema(self, request: Request) -> Response:
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        calls = [
            {
                "type": "object",
                "description": str(tool["function"].get("description", "")),
                "properties": {"name": {"const": tool["function"]["name"]}, "arguments": tool["function"].get("parameters", {})},
                "required": ["name", "arguments"],
            }
            for tool in tools_of(self.environment)
        ]
        names = ("text", "role", "valid", "terminated", "truncated", "outcome", "data")
        seen = {"type": "object", "properties": {name: {} for name in names}}
        state = {"type": "object", "properties": {"episode_id": {"type": "string"}, "step_count": {"type": "integer"}}}
        return JSONResponse({"action": {"anyOf": [*calls, text]} if calls else text, "observation": seen, "state": state})

    async def _tasks(self, request: Request) -> Response:
        return JSONResponse({"tasks": list(self.tasks)})

    async def _reset(self, request: Request) -> Response:
        data = await _body(request)
        name = _name(data, "episode_id")
        episode, seen = await self._begin(data, name)
        self._hold(episode)
        return JSONResponse(_shown(seen, None, False))

    async def _step(self, request: Request) -> Response:
        data = await _body(request)
        episode = self._known(_name(data, "episode_id"))
        if "action" not in data:
            raise RefusedRequestError(400, "'action' is missing.", "action")
        return JSONResponse(await self._act(episode, data["action"]))

    async def _state(self, request: Request) -> Response:
        return JSONResponse(await self._about(self._known(request.query_params.get("episode_id", ""))))

    async def _fork(self, request: Request) -> Response:
        """A further episode, ``as``, in the state of ``episode_id``."""
        data = await _body(request)
        source, name = self._known(_name(data, "episode_id")), _name(data, "as")
        if name == source.id:
            raise RefusedRequestError(400, "'as' must name another episode.", "as")
        async with source.lock:
            if source.done:
                raise RefusedRequestError(409, f"The episode {source.id!r} is over.")
            env = await self._in_thread(lambda: self._restored(source))
            self._hold(ServedEpisode(name, env, source.task, source.seed, list(source.actions), source.total))
        return JSONResponse({"episode_id": name, "step_count": len(source.actions)})

    def _restored(self, source: ServedEpisode) -> Env:
        snapshot = source.env.snapshot()
        env, _ = self._started(source.task, source.seed, branched=True)
        try:
            if snapshot is not None:
                env.restore(snapshot)
            else:
                for action in source.actions:
                    if failure := env.step(action).failure:
                        raise InfrastructureError(*failure.split(": ", 1))
        except BaseException:
            close(env)
            raise
        return env

    async def _socket(self, socket: WebSocket) -> None:
        """One client: messages of type reset, step, state and close, each answered by one of observation, state or error."""
        await socket.accept()
        self.connections += 1
        episode: ServedEpisode | None = None
        try:
            if self.connections > self.most:
                await _tell(socket, "error", {"message": f"{self.most} clients are connected", "code": "CAPACITY_REACHED"})
                return
            while True:
                try:
                    message = read_json((await socket.receive_text()).encode("utf-8", "surrogateescape"))
                except RefusedRequestError as refused:
                    await _tell(socket, "error", {"message": refused.message, "code": "INVALID_JSON"})
                    continue
                kind, data = message.get("type"), message.get("data", {})
                if kind == "close":
                    return
                try:
                    if not isinstance(data, dict):
                        raise RefusedRequestError(400, "'data' must be an object.", "data")
                    if kind == "reset":
                        before = episode
                        episode, seen = await self._begin(data, _name(data, "episode_id"))
                        if before is not None:
                            close(before.env)
                        await _tell(socket, "observation", _shown(seen, None, False))
                    elif kind not in ("step", "state"):
                        await _tell(socket, "error", {"message": f"Unknown message type: {kind!r}", "code": "UNKNOWN_TYPE"})
                    elif episode is None:
                        raise RefusedRequestError(409, "There is no episode yet: reset first.")
                    elif kind == "step":
                        await _tell(socket, "observation", await self._act(episode, data))
                    else:
                        await _tell(socket, "state", await self._about(episode))
                except RefusedRequestError as refused:
                    code = _CODES.get(refused.status, "EXECUTION_ERROR")
                    await _tell(socket, "error", {"message": refused.message, "code": code})
        except WebSocketDisconnect:
            pass
        finally:
            self.connections -= 1
            if episode is not None:
                close(episode.env)
            with suppress(RuntimeError):  # the client has closed it
                await socket.close()

    # episodes

    async def _begin(self, data: Mapping[str, Any], name: str) -> tuple[ServedEpisode, Observation]:
        seed = data.get("seed")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise RefusedRequestError(400, "'seed' must be a whole number from 0.", "seed")
        task = self._task(data.get("task", data.get("task_id")), seed)
        env, seen = await self._in_thread(lambda: self._started(task, self.seed if seed is None else seed))
        return ServedEpisode(name, env, task, self.seed if seed is None else seed), seen

    def _started(self, task: Task, seed: int, branched: bool = False) -> tuple[Env, Observation]:
        env = self.environment.make()
        try:
            if branched and (told := getattr(env, "branch", None)) is not None:
                told((), ())  # its answers were not kept, so tools that give recorded ones are refused
            return env, env.reset(task, seed)
        except BaseException:
            close(env)
            raise

    def _task(self, named: Any, seed: int | None) -> Task:
        """The one that is named; else the seed's, else the next in turn."""
        if named is None:
            number = self._begun if seed is None else seed
            self._begun += seed is None
            return list(self.tasks.values())[number % len(self.tasks)]
        if not isinstance(named, str) or named not in self.tasks:
            raise RefusedRequestError(404, f"There is no task {named!r} ({nearest(str(named), self.tasks)}).", "task")
        return self.tasks[named]

    async def _act(self, episode: ServedEpisode, action: Any) -> dict[str, Any]:
        text = _action(action)
        async with episode.lock:
            if episode.done:
                raise RefusedRequestError(409, "The episode is over: reset first.")
            seen = await self._in_thread(lambda: episode.env.step(text))
            if inspect.isawaitable(seen):
                seen = await seen
            episode.actions.append(text)
            episode.total += seen.reward
            cut = not seen.terminated and (seen.truncated or len(episode.actions) >= episode.env.max_turns)
            episode.done = seen.terminated or cut
        shown = _shown(seen, seen.reward, episode.done)
        shown["observation"]["truncated"] = cut
        return shown

    async def _about(self, episode: ServedEpisode) -> dict[str, Any]:
        about = {"episode_id": episode.id, "step_count": len(episode.actions), "task": episode.task.id, "seed": episode.seed}
        about |= {"done": episode.done, "total_reward": episode.total, "max_turns": episode.env.max_turns}
        own = getattr(episode.env, "state", None)
        async with episode.lock:
            return about | ({"state": await self._in_thread(own)} if callable(own) else {})

    def _known(self, name: str) -> ServedEpisode:
        found = self._held.get(name)
        if found is None:
            named = f"no episode {name!r}" if name else "no episode without a name"
            raise RefusedRequestError(404, f"There is {named}: reset first (at most {self.most} are held).", "episode_id")
        self._held.move_to_end(name)
        return found

    def _hold(self, episode: ServedEpisode) -> None:
        before = self._held.pop(episode.id, None)
        self._held[episode.id] = episode
        if before is None and len(self._held) > self.most:
            before = self._held.popitem(last=False)[1]
        if before is not None:
            close(before.env)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except InfrastructureError as error:
            raise RefusedRequestError(502, error.message, code=error.boundary) from error
        except UserError as error:
            raise RefusedRequestError(400, str(error)) from error
        except RamifyError as error:
            raise RefusedRequestError(500, str(error)) from error


async def _body(request: Request) -> dict[str, Any]:
    return read_json(await request.body() or b"{}")


async def _tell(socket: WebSocket, kind: str, data: Mapping[str, Any]) -> None:
    await socket.send_text(json.dumps({"type": kind, "data": data}))


def _name(data: Mapping[str, Any], key: str) -> str:
    name = data.get(key)
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > 255:
        raise RefusedRequestError(400, f"'{key}' must be a text of at most 255 characters.", key)
    return name


def _action(given: Any) -> str:
    """An action as the agent's reply: text, ``{"text"}`` (or ``"message"``), or ``{"name", "arguments"}`` (or ``"tool_name"``) of
    a tool."""
    match given:
        case str():
            return given
        case {"text": str(text)} | {"message": str(text)}:
            return text
        case {"name": str(name), "arguments": dict(arguments)} | {"tool_name": str(name), "arguments": dict(arguments)}:
            return write_call(name, arguments)
    raise RefusedRequestError(400, 'An action is {"text": "..."}, or {"name": "...", "arguments": {...}} of a tool.', "action")


def _shown(seen: Observation, reward: float | None, done: bool) -> dict[str, Any]:
    own = {"text": seen.text, "role": seen.role, "valid": seen.valid, "terminated": seen.terminated, "truncated": seen.truncated}
    return {"observation": own | {"outcome": seen.outcome, "data": dict(seen.data)}, "reward": reward, "done": done}
