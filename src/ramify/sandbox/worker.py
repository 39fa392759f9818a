"""A session: commands in one box, and a Python worker to which code is sent as JSON frames. Nothing it answers is trusted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ramify.base.errors import InfrastructureError, UserError
from ramify.sandbox.channel import AbuseError, Channel, Tools
from ramify.sandbox.protocol import REASONS, Command, Json, Outcome, SessionReply, make_command

_FOREVER = 10.0 * 365 * 86400
_TEXT = 10_000


class Handle(Protocol):
    """A command of the session that runs alongside the host and talks over a channel."""

    killed_for: str
    """Why this side ended it, if it did."""

    async def open_channel(self) -> Channel:
        """The host's end."""
        ...

    def kill(self, reason: str) -> None:
        """End it and all it started."""
        ...

    async def report(self, seconds: float | None) -> dict[str, Any]:
        """Wait for its end, ``seconds`` at most, and say what became of it (``reason``). Raises InfrastructureError."""
        ...

    def output(self) -> tuple[bytes, bytes]:
        """What it wrote so far to standard output and standard error."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


class WorkerSession:
    """See `ramify.sandbox.protocol.Session`. One call of the worker at a time; commands may run alongside it."""

    def __init__(
        self,
        base: Command,
        run: Callable[[Command], Awaitable[Outcome]],
        start: Callable[[Command], Awaitable[Handle]],
        inside: str,
    ) -> None:
        self._base, self._run, self._start, self._inside = base, run, start, inside
        self._tools = Tools(base.tools)
        self._turn = asyncio.Lock()
        self._worker: tuple[Handle, Channel] | None = None
        self._number = 0

    async def run(self, argv: Sequence[str], **fields: Any) -> Outcome:
        """Run a command in the session's folder; limits, env and tools are the session's unless given."""
        for name in ("network", "clock"):
            if name in fields:
                raise UserError(f"'{name}' belongs to the session, not to one of its commands")
        return await self._run(make_command(argv, fields, replace(self._base, files={})))

    async def write(self, files: Mapping[str, bytes | str]) -> None:
        """Put files into the session's folder. Raises InfrastructureError when they do not fit."""
        await self.run(["true"], files=files, tools={})

    async def read(self, *patterns: str) -> Mapping[str, bytes]:
        """Files of the session's folder; links, special files and what is too large are left out."""
        return (await self.run(["true"], returns=patterns, tools={})).files

    async def execute(self, code: str, seconds: float | None = None) -> SessionReply:
        """Run Python ``code`` in the worker, where earlier calls left their names."""
        return await self._request({"execute": code}, seconds)

    async def call(self, function: str, *args: Json, seconds: float | None = None, **kwargs: Json) -> SessionReply:
        """Call a function that earlier code defined, with JSON arguments."""
        return await self._request({"call": function, "args": list(args), "kwargs": kwargs}, seconds)

    async def _request(self, request: dict[str, Any], seconds: float | None) -> SessionReply:
        seconds = self._base.limits.seconds if seconds is None else seconds
        async with self._turn:
            if self._worker is None:
                self._worker = await self._started()
            channel = self._worker[1]
            self._tools.calls = 0
            self._number += 1
            begun = time.monotonic()
            try:
                async with asyncio.timeout(seconds):
                    await channel.write({"id": self._number, **request})
                    frame = await self._reply(channel)
            except TimeoutError:
                return await self._gone("timeout", "", time.monotonic() - begun)
            except AbuseError as error:
                return await self._gone("killed", str(error), time.monotonic() - begun)
            except BaseException:  # cancelled: what the worker does now is nobody's any more
                await self.close()
                raise
            spent = time.monotonic() - begun
            return await self._gone("", "", spent) if frame is None else _reply(frame, spent)

    async def _started(self) -> tuple[Handle, Channel]:
        limits = replace(self._base.limits, seconds=_FOREVER, cpu_seconds=None)
        running = await self._start(replace(self._base, argv=["python", f"{self._inside}/worker.py"], files={}, limits=limits))
        return running, await running.open_channel()

    async def _reply(self, channel: Channel) -> dict[str, Any] | None:
        """The worker's answer to this call; host calls on the way are served."""
        while True:
            frame = await channel.read()
            if frame is None:
                return None
            if "tool" in frame:
                await channel.write(await self._tools.answer(frame))
            elif frame.get("done") == self._number:
                return frame
            else:
                raise AbuseError("an answer to a call nobody made")

    async def _gone(self, reason: str, detail: str, seconds: float) -> SessionReply:
        """End the worker and say why; its last output comes along."""
        assert self._worker is not None
        (running, channel), self._worker = self._worker, None
        channel.close()
        if reason:
            running.kill(reason)
        try:
            report = await running.report(5.0)
        except InfrastructureError as error:
            report = {"reason": "killed", "error": error.message}
        finally:
            await running.close()
        if not reason:
            reason = running.killed_for if report["reason"] == "killed" else report["reason"]
        stdout, stderr = (data.decode(errors="replace") for data in running.output())
        detail = detail or str(report.get("error") or REASONS.get(reason, reason))
        return SessionReply(reason, stdout=stdout, stderr=stderr, error=detail, seconds=seconds)

    async def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            (running, channel), self._worker = self._worker, None
            channel.close()
            await running.close()


def _reply(frame: Mapping[str, Any], seconds: float) -> SessionReply:
    words = {name: frame.get(name, "") for name in ("text", "stdout", "stderr", "error")}
    texts = {name: word if isinstance(word, str) else "" for name, word in words.items()}
    texts["text"] = texts["text"][:_TEXT]
    return SessionReply("error" if texts["error"] else "done", value=frame.get("value"), seconds=seconds, **texts)
