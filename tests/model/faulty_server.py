"""A model server that does one thing wrong, over real sockets: it speaks HTTP by hand, since no framework will cut its own body.

``FaultyServer`` answers each request with the next of its plans, the last one for ever. A plan is a name in :data:`FAULTS`, or a
function of the request's JSON that returns raw bytes, or pieces of them: as many as the caller reads.
After :data:`RESET` it resets the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

MODEL = "m"
GOOD = {"role": "assistant", "content": "fine"}
Raw = bytes | Iterable[bytes]
Plan = str | Callable[[dict[str, Any]], Raw]
RESET = b"<reset>"
"""As the last piece: no end of the connection, but a reset."""


def http(body: Any, status: int = 200, headers: dict[str, str] | None = None, kind: str = "application/json") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"content-type": kind, "content-length": str(len(raw)), "connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + raw


def chat(message: Any = GOOD, finish: Any = "stop", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "choices": [{"index": 0, "message": message, "finish_reason": finish}]} | more


def completion(**choice: Any) -> dict[str, Any]:
    made = {
        "index": 0,
        "text": "ab",
        "finish_reason": "length",
        "token_ids": [1, 2],
        "logprobs": {"token_logprobs": [-1.0, -0.5]},
    }
    return {"model": MODEL, "choices": [made | choice]}


def good(body: dict[str, Any]) -> bytes:
    return http(completion() if "prompt" in body else chat())


CUT = http(chat())[:-9]

#: name -> (answer, kind of the error it must become)
FAULTS: dict[str, tuple[bytes, str]] = {
    "429": (http({"error": {"message": "slow down"}}, 429), "rate"),
    "quota": (http({"error": {"message": "no money", "code": "insufficient_quota"}}, 429), "rate"),
    "500": (http(b"<h1>oops</h1>", 500, kind="text/html"), "server"),
    "502": (http(b"", 502), "server"),
    "503": (http({"detail": "loading"}, 503), "server"),
    "500-null": (http({"error": None}, 500), "server"),
    "400": (http({"error": {"message": "max_tokens is too large"}}, 400), "request"),
    "422": (http({"detail": [{"loc": ["body"], "msg": "bad"}]}, 422), "request"),
    "401": (http({"error": "who are you"}, 401), "auth"),
    "403": (http({"message": "no"}, 403), "auth"),
    "404": (http({"error": {"message": "The model `m` does not exist"}}, 404), "model"),
    "404-path": (http(b"not here", 404, kind="text/plain"), "request"),
    "413": (http(b"", 413), "request"),
    "200-error": (http({"error": {"message": "upstream died", "code": 502}}), "server"),
    "200-error-odd": (http({"error": "hm"}), "server"),
    "cut-body": (CUT, "cut"),
    "cut-head": (b"HTTP/1.1 200 OK\r\ncontent-ty", "cut"),
    "cut-chunk": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n40\r\n{\"choi", "cut"),
    "nothing": (b"", "cut"),
    "no-http": (b"SSH-2.0-OpenSSH_9.6\r\n", "cut"),
    "bad-length": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: two\r\n\r\n{}", "cut"),
    "redirect": (http(b"", 307, {"location": "http://user:pw@elsewhere.example/v1?key=canary-0123456789"}), "redirect"),
    "redirect-nowhere": (http(b"", 302), "redirect"),
    "html": (http(b"<html>welcome</html>", kind="text/html"), "content_type"),
    "stream": (http(b"data: {}\n\n", kind="text/event-stream"), "content_type"),
    "gzip": (http(b"\x1f\x8b\x08\x00", headers={"content-encoding": "gzip"}), "content_type"),
    "garbage": (http(b"{\"choices\": [{"), "json"),
    "binary": (http(bytes(range(256))), "json"),
    "empty-body": (http(b""), "json"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", "json"),
    "deep": (http(b"[" * 100_000), "json"),
    "digits": (http(b'{"model": "m", "choices": ' + b"9" * 5000 + b"}"), "json"),
    "list": (http([1, 2]), "shape"),
    "null": (http(None), "shape"),
    "no-choices": (http({"model": MODEL}), "shape"),
    "choices-object": (http({"choices": {"0": {}}}), "shape"),
    "choice-text": (http({"choices": ["fine"]}), "shape"),
    "empty-choices": (http({"model": MODEL, "choices": []}), "empty"),
    "no-message": (http({"choices": [{"index": 0, "finish_reason": "stop"}]}), "shape"),
    "odd-finish": (http(chat(finish="meteor")), "shape"),
    "filtered": (http(chat(finish="content_filter")), "filtered"),
    "too-large": (http(chat({"role": "assistant", "content": "x" * 300_000})), "too_large"),
    "endless": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + b" " * 300_000, "too_large"),
}  # fmt: skip


def _with(message: Any, finish: Any = "stop", **more: Any) -> bytes:
    return http(chat({"role": "assistant", **message}, finish, **more))


def _call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    } | more


#: What servers do, and what the model said all the same:
#: name -> (answer, text of the reply, its calls as (name, arguments), its reasoning)
REPLIES: dict[str, tuple[bytes, str, list[tuple[str, str]], str]] = {
    "nothing": (_with({"content": None}), "", [], ""),
    "absent": (_with({}), "", [], ""),
    "reasoning alone": (_with({"content": None, "reasoning_content": "hm"}), "", [], "hm"),
    "reasoning by another name": (_with({"content": "", "reasoning_content": "", "reasoning": "hm"}), "", [], "hm"),
    "refusal": (_with({"content": None, "refusal": "I will not."}), "I will not.", [], ""),
    "refusal beside nothing": (_with({"content": "", "refusal": "I will not."}), "I will not.", [], ""),
    "parts": (_with({"content": [{"type": "text", "text": "hi"}]}), "hi", [], ""),
    "parts that think": (
        _with({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hi"}]}),
        "hi", [], "hm",
    ),
    "no reason": (_with(GOOD, None), "fine", [], ""),
    "an empty reason": (_with(GOOD, ""), "fine", [], ""),
    "loud": (_with(GOOD, "STOP"), "fine", [], ""),
    "tool_call": (_with(_call("{}"), "tool_call"), "", [("f", "{}")], ""),
    "no JSON": (_with(_call('{"a": tru'), "tool_calls"), "", [("f", '{"a": tru')], ""),
    "an object": (_with(_call({"a": 1}), "tool_calls"), "", [("f", '{"a": 1}')], ""),
    "function as text": (
        _with({"content": None, "tool_calls": [{"id": "c", "function": '{"name": "f", "arguments": {"a": 1}}'}]}, "tool_calls"),
        "", [("f", '{"a": 1}')], "",
    ),
    "flat": (_with({"tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]}, "stop"), "", [("f", "{}")], ""),
    "no name": (_with({"tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]}, "stop"), "", [("", "{}")], ""),
    "before tools": (_with({"function_call": {"name": "f", "arguments": "{}"}}, "function_call"), "", [("f", "{}")], ""),
    "another name": (_with(GOOD, model="gpt-nothing"), "fine", [], ""),
}  # fmt: skip
TOKEN_FAULTS: dict[str, tuple[Any, str]] = {
    "missing-logprobs": (completion(logprobs=None), "logprobs"),
    "short-logprobs": (completion(logprobs={"token_logprobs": [-1.0]}), "logprobs"),
    "long-logprobs": (completion(logprobs={"token_logprobs": [-1.0, -1.0, -1.0]}), "logprobs"),
    "positive": (completion(logprobs={"token_logprobs": [-1.0, 0.5]}), "logprobs"),
    "null-logprob": (completion(logprobs={"token_logprobs": [-1.0, None]}), "logprobs"),
    "text-logprob": (completion(logprobs={"token_logprobs": [-1.0, "-2"]}), "logprobs"),
    "bool-logprob": (completion(logprobs={"token_logprobs": [-1.0, False]}), "logprobs"),
    "nan": (completion(logprobs={"token_logprobs": [-1.0, float("nan")]}), "logprobs"),
    "infinite": (completion(logprobs={"token_logprobs": [-1.0, float("-inf")]}), "logprobs"),
    "huge": (completion(logprobs={"token_logprobs": [-1.0, -(10**400)]}), "logprobs"),
    "no-list": (completion(logprobs={"token_logprobs": "-1"}), "logprobs"),
    "no-ids": (completion(token_ids=None), "tokens"),
    "id-too-large": (completion(token_ids=[1, 10**6]), "tokens"),
    "id-huge": (completion(token_ids=[1, 2**70]), "tokens"),
    "id-negative": (completion(token_ids=[1, -1]), "tokens"),
    "id-float": (completion(token_ids=[1, 2.0]), "tokens"),
    "id-bool": (completion(token_ids=[1, True]), "tokens"),
    "ids-text": (completion(token_ids="12"), "tokens"),
    "no-token": (completion(token_ids=[], logprobs={"token_logprobs": []}), "tokens"),
    "too-many": (completion(token_ids=[1] * 99, logprobs={"token_logprobs": [-1.0] * 99}), "tokens"),
    "empty-choices": ({"model": MODEL, "choices": []}, "empty"),
    "aborted": (completion(finish_reason="abort"), "shape"),
}  # fmt: skip


class FaultyServer:
    """Use as a context manager; ``url`` is where it is, ``requests`` what it got (path, headers, JSON)."""

    def __init__(self, *plans: Plan, hang: bool = False) -> None:
        self.plans, self.hang = list(plans) or [good], hang
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.url = ""

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        self._server = self._wait(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(100)

    async def _stop(self) -> None:
        self._server.close()
        for _ in range(5):  # what was just accepted starts a task of its own
            await asyncio.sleep(0)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection; whatever the plan says goes out as it is, and then the connection closes."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"null")
            self.requests.append((head[0].split()[1], headers, body))
            plan = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
            raw = FAULTS[plan][0] if isinstance(plan, str) else plan(body)
            if self.hang:
                await asyncio.sleep(3600)
            for piece in [raw] if isinstance(raw, bytes) else raw:
                if piece is RESET:
                    link: socket.socket = writer.get_extra_info("socket")
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                    return
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller went away
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
