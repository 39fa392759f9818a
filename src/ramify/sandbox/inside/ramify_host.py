"""Inside a sandbox: call the host's functions. ``call("name", {"argument": 1})`` returns the answer or raises HostError.

One process of the command may call at a time. Frames: u32 length (little-endian), then UTF-8 JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import threading
from typing import Any

FRAME_BYTES = 2 << 20
_lock = threading.Lock()
_numbers = itertools.count(1)
_channel: tuple[int, int] | None = None


class HostError(Exception):
    """The host refused a call or its function failed."""


def call(name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Call the host's function ``name`` with JSON keyword ``arguments``; its JSON answer."""
    with _lock:
        send({"tool": name, "arguments": arguments or {}, "id": next(_numbers)})
        answer = receive()
    if answer is None:
        raise HostError("the host is gone")
    if "error" in answer:
        raise HostError(answer["error"])
    return answer.get("value")


def send(frame: dict[str, Any]) -> None:
    """Send one frame."""
    data = json.dumps(frame).encode()
    if len(data) > FRAME_BYTES:
        raise HostError(f"{len(data)} bytes; a frame holds {FRAME_BYTES}")
    view = memoryview(struct.pack("<I", len(data)) + data)
    while view:
        view = view[os.write(_open()[1], view) :]


def receive() -> dict[str, Any] | None:
    """The next frame; None when the host closed the channel."""
    head = _exactly(4)
    data = _exactly(struct.unpack("<I", head)[0]) if head is not None else None
    return None if data is None else json.loads(data)


def _open() -> tuple[int, int]:
    """Descriptors to read from and to write to."""
    global _channel
    if _channel is None:
        if "RAMIFY_HOST_FD" not in os.environ:
            raise HostError("this command was given no tools")
        words = os.environ["RAMIFY_HOST_FD"].split(",")
        _channel = int(words[0]), int(words[-1])
    return _channel


def _exactly(size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        more = os.read(_open()[0], min(1 << 20, size - len(data)))
        if not more:
            return None
        data += more
    return bytes(data)
