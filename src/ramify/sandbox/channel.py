"""JSON frames between the host and code inside, and the host functions that code may call. Nothing from inside is trusted."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from ramify.base.errors import UserError
from ramify.sandbox.protocol import Json, Tool

FRAME_BYTES = 2 << 20
"""A longer frame ends the command."""
MOST_CALLS = 10_000
"""Host calls of one command, or of one call of a session; more end it."""


class AbuseError(Exception):
    """Code inside broke the frame protocol."""


class Channel:
    """Frames over a socket pair: u32 length (little-endian), then UTF-8 JSON, one object."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """The host's end of the pair."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=1 << 16))

    async def read(self) -> dict[str, Any] | None:
        """The next frame, None at the end. Raises AbuseError."""
        try:
            (size,) = struct.unpack("<I", await self._reader.readexactly(4))
            if size > FRAME_BYTES:
                raise AbuseError(f"a frame of {size} bytes; {FRAME_BYTES} are allowed")
            data = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return parse(data)

    async def write(self, frame: Mapping[str, Any]) -> None:
        """Send a frame, waiting while the other side does not read. A closed channel is not an error."""
        data = json.dumps(frame, allow_nan=False).encode()
        try:
            self._writer.write(struct.pack("<I", len(data)) + data)
            await self._writer.drain()
        except ConnectionError:
            pass

    def close(self) -> None:
        """Close the host's end at once, whatever is left to send."""
        self._writer.transport.abort()


def parse(data: bytes) -> dict[str, Any]:
    """A JSON object from inside. Raises AbuseError: not JSON, too deep, NaN or infinity, lone surrogates, not an object."""
    try:
        frame = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        json.dumps(frame, ensure_ascii=False, allow_nan=False).encode("utf-8")  # 1e999 and lone surrogates
    except (ValueError, RecursionError) as error:
        raise AbuseError(f"a frame is not plain JSON ({type(error).__name__})") from None
    if not isinstance(frame, dict):
        raise AbuseError("a frame is not a JSON object")
    return frame


def _no_constant(name: str) -> None:
    raise ValueError(name)


class Tools:
    """The host functions code inside may call: only listed names, JSON in, JSON out, a limited number of calls."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = dict(tools)
        self.calls = 0

    async def answer(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request ``{"tool": name, "arguments": {...}, "id": n}``. Raises AbuseError on a malformed one."""
        name, arguments, number = frame.get("tool"), frame.get("arguments"), frame.get("id")
        if not isinstance(name, str) or not isinstance(arguments, dict) or type(number) is not int:
            raise AbuseError("a host call that is not {tool, arguments, id}")
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise AbuseError(f"more than {MOST_CALLS} host calls")
        if name not in self._tools:
            return {"answer": number, "error": f"no tool '{name[:100]}'; there are: {', '.join(sorted(self._tools)) or 'none'}"}
        try:
            value = await self._value(self._tools[name], arguments)
            data = json.dumps({"answer": number, "value": value}, allow_nan=False)
        except UserError as error:  # meant to be read; any other message might reveal something of the host
            return {"answer": number, "error": str(error)}
        except Exception as error:
            return {"answer": number, "error": f"{name} failed ({type(error).__name__})"}
        if len(data) > FRAME_BYTES:
            return {"answer": number, "error": f"the answer of {name} is too large"}
        return {"answer": number, "value": value}

    @staticmethod
    async def _value(tool: Tool, arguments: dict[str, Json]) -> Json:
        value = tool(**arguments)
        return await value if inspect.isawaitable(value) else value


async def serve(channel: Channel, tools: Tools) -> str:
    """Answer host calls one after another until the channel ends; a sentence when the code inside broke the protocol."""
    try:
        while (frame := await channel.read()) is not None:
            await channel.write(await tools.answer(frame))
    except AbuseError as error:
        return str(error)
    return ""
