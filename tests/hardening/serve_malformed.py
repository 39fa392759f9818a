"""Malformed requests to the OpenAI-compatible server, each made from a seed: what is sent, and what may come back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bad:
    """Bytes to send. ``kind`` names the family; ``refused`` says that nothing but a 4xx in one sentence may come back."""

    kind: str
    raw: bytes
    refused: bool = True
    leave: bool = False
    """Nothing more will be sent, and the server is told so."""


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HUGE = 10**30
#: Values of a type, size or kind that a field does not have, unless it is named in FITS below.
POOL: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**9,
    HUGE,
    -HUGE,
    1e300,
    "",
    "x",
    "\x00",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    [1, "a"],
    "9" * 300,
)
WRONG: dict[str, tuple[Any, ...]] = {
    "model": (7, [], {}, True),
    "messages": ("hello", 7, {}, [], [7], ["hello"], [{}], [{"role": "user"}, 3], [[]]),
    "prompt": (7, {}, [], [[]], [None], [1, "a"], [[1], "a"], [-1], [10**9], [[10**9]], [HUGE], [1.5], [True]),
    "n": (-1, 0, 1.5, "2", HUGE, 10**9, [], True),
    "max_tokens": (-1, 1.5, "9", HUGE, [], True, "all"),
    "temperature": (-0.1, "1", [], HUGE, 1e300, True, {}),
    "top_p": (-1, 0, 1.1, "1", HUGE, [], True),
    "top_k": (-2, 1.5, "5", HUGE, []),
    "seed": (1.5, "7", HUGE, -HUGE, [], True),
    "stop": (7, [7], [[]], {}, [""], ["x" * 10_000], ["a"] * 1000),
    "stream": ("yes", 1, [], {}),
    "stream_options": (7, "x", [], {"include_usage": "yes"}),
    "logit_bias": (7, [], {"a": -100}, {"1": "5"}, {"-1": -100}, {"9" * 300: -100}, {"999999999": -100}, {"1": None}),
    "presence_penalty": ({}, "1", [], HUGE),
    "response_format": (
        {"type": "x"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}},
        7,
        "text",
        [],
    ),
    "suffix": ("x",),
    "tools": (7, "x", [7], [{}], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}], [{"type": "x"}]),
    "tool_choice": (7, "required", "x", {"type": "function", "function": {"name": "f"}}, []),
    "top_logprobs": (-1, 21, "3", 1.5, HUGE, []),
    "echo": ("yes", 1, []),
    "no_such_field": (1, "x", None),
}
ONLY_CHAT = ("messages", "tools", "tool_choice", "top_logprobs")
ONLY_TEXT = ("prompt", "echo", "suffix")
MESSAGES: tuple[Any, ...] = (
    {"role": "wizard", "content": "x"},
    {"role": "user", "content": 7},
    {"role": "user", "content": {"text": "x"}},
    {"content": "x"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]},
    {"role": ["user"], "content": "x"},
    {"role": "user", "content": [{"type": "text", "text": 7}]},
    {"role": "assistant", "content": "x", "tool_calls": "x"},
    {"role": "assistant", "tool_calls": [{"id": 1, "function": {}}]},
    {"role": "user", "content": "x", "extra": 1},
    {"role": "USER", "content": "x"},
)
BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"}",
    b"null",
    b"[]",
    b'"x"',
    b"7",
    b"NaN",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b'{"model": }',
    b"model=x&messages=y",
    b'{"model": "builtin", "messages": NaN}',
    b'{"a": Infinity}',
    b'{"a": "\\ud800"}',
    b'{"a": "\\udfff\\ud800"}',
    b'{"a": "\xed\xa0\x80"}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"a": ' + b"9" * 100_000 + b"}",
    b'{"a": [' + b"{}," * 250_000 + b"{}]}",
    b'{"a": "' + b"x" * 1000,
    b"\x00" * 1000,
    b'{"a": "\n"}',
    b"{'model': 'x'}",
    b"\x1f\x8b\x08\x00\x00",
)
HTTP: tuple[bytes, ...] = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"\r\n" * 500,
    b"\x00" * 200,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost : x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\nhello",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET "
    b"/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
    b"identity\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\nHost: localhost\nX:\x0by\n\n",
    b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
)
PATHS = (
    "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "/v1/../v1/models/x", "/v1/%2e%2e/etc/passwd", "/v1/models/%00",
    "/v1/models/..%2f..%2fetc%2fpasswd", "//v1/models", "/V1/MODELS", "/v1/completions%20", "/v1/embeddings", "/v1/files",
    "/v1/responses", "/admin", "/%ff%fe", "/v1/models/%ed%a0%80", "/v1;/models", "/v1/completions\\x",
    "http://evil.example/v1/models", "*",
)  # fmt: skip


def make_bad(seed: int, host: str) -> Bad:
    """The malformed request of a seed, for a server that is called ``host``."""
    rng = random.Random(seed)
    make = rng.choices(
        [_typed, _message, _missing, _body, _http, _path, _length, _mutated, _ids], [30, 8, 4, 12, 12, 8, 6, 12, 8]
    )[0]
    return make(rng, host)


def good(rng: random.Random, path: str) -> dict[str, Any]:
    """A request that the server answers."""
    said: dict[str, Any] = {"model": "builtin", "max_tokens": 4, "temperature": rng.choice([0, 0.5, 1])}
    if path == CHAT:
        return said | {"messages": [{"role": "user", "content": rng.choice(["hi", "2+2", "ü"])}]}
    return said | {"prompt": rng.choice(["hi", ["a", "b"], [1, 2, 3]])}


def request(host: str, path: str, body: bytes, method: str = "POST", more: str = "", length: int | None = None) -> bytes:
    """The bytes of a request."""
    size = len(body) if length is None else length
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{more}Content-Length: "
        f"{size}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


def _sent(rng: random.Random, host: str, path: str, said: Any, kind: str, refused: bool = True) -> Bad:
    return Bad(
        kind, request(host, path, json.dumps(said, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")), refused
    )


def _typed(rng: random.Random, host: str) -> Bad:
    path = rng.choice([CHAT, TEXT])
    said = good(rng, path)
    names = [name for name in WRONG if name not in (ONLY_TEXT if path == CHAT else ONLY_CHAT)]
    name = rng.choice(names)
    if rng.random() < 0.3:  # anything at all, which may happen to fit
        return _sent(rng, host, path, said | {name: rng.choice(POOL)}, "anything", refused=False)
    return _sent(rng, host, path, said | {name: rng.choice(WRONG[name])}, f"type of {name}")


def _message(rng: random.Random, host: str) -> Bad:
    said = good(rng, CHAT)
    said["messages"].insert(rng.randint(0, 1), rng.choice(MESSAGES))
    return _sent(rng, host, CHAT, said, "message")


def _missing(rng: random.Random, host: str) -> Bad:
    path = rng.choice([CHAT, TEXT])
    said = good(rng, path)
    del said[rng.choice(["messages" if path == CHAT else "prompt", "model"])]
    return _sent(rng, host, path, said, "missing")


def _body(rng: random.Random, host: str) -> Bad:
    return Bad("body", request(host, rng.choice([CHAT, TEXT]), rng.choice(BODIES)))


def _http(rng: random.Random, host: str) -> Bad:
    return Bad("http", rng.choice(HTTP), leave=True)


def _path(rng: random.Random, host: str) -> Bad:
    method, path = rng.choice(["GET", "POST", "DELETE", "PUT", "OPTIONS"]), rng.choice(PATHS)
    if rng.random() < 0.3:
        method, path = rng.choice(
            [
                ("DELETE", "/v1/models"),
                ("GET", CHAT),
                ("PUT", TEXT),
                ("TRACE", "/health"),
                ("POST", "/v1/models"),
                ("CONNECT", "/"),
            ]
        )
    return Bad("path", request(host, path, b"{}" if method == "POST" else b"", method))


def _length(rng: random.Random, host: str) -> Bad:
    body = json.dumps(good(rng, CHAT)).encode()
    how: list[Callable[[], Bad]] = [
        lambda: Bad("length", request(host, CHAT, body, length=len(body) + rng.randint(1, 99)), refused=False, leave=True),
        lambda: Bad("length", request(host, CHAT, body, length=rng.randrange(len(body)))),
        lambda: Bad("length", request(host, CHAT, body, length=11 << 20)),
        lambda: Bad("length", request(host, CHAT, body, more="Content-Length: 7\r\n")),
        lambda: Bad("length", request(host, CHAT, body, more="Transfer-Encoding: chunked\r\n")),
        lambda: Bad("length", request(host, CHAT, body, more="Content-Encoding: gzip\r\n")),
        lambda: Bad("length", request(host, CHAT, body, more="Origin: http://evil.example\r\n")),
        lambda: Bad("length", request("evil.example", CHAT, body)),
    ]
    return rng.choice(how)()


def _mutated(rng: random.Random, host: str) -> Bad:
    """Some bytes of a good request cut, doubled or changed: it may still be one."""
    path = rng.choice([CHAT, TEXT])
    data = bytearray(json.dumps(good(rng, path)).encode())
    whole = rng.random() < 0.3
    if whole:
        data = bytearray(request(host, path, bytes(data)))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        how = rng.random()
        if how < 0.4:
            data[at] = rng.randrange(256)
        elif how < 0.7:
            del data[at : at + rng.randint(1, 20)]
        else:
            data[at:at] = data[at : at + rng.randint(1, 20)]
        if not data:
            break
    return Bad("mutated", bytes(data) if whole else request(host, path, bytes(data)), refused=False, leave=whole)


def _ids(rng: random.Random, host: str) -> Bad:
    """Numbers that have the right type and are out of range."""
    wrong = rng.choice(
        [
            (TEXT, {"prompt": [10**6]}),
            (TEXT, {"prompt": [1, 2, 2**31 - 1]}),
            (TEXT, {"prompt": [[1], [2**31]]}),
            (TEXT, {"prompt": [-5]}),
            (TEXT, {"prompt": "x", "logprobs": 21}),
            (TEXT, {"prompt": "x", "logit_bias": {"9999999": -100}}),
            (CHAT, {"max_tokens": -(10**9)}),
            (CHAT, {"n": 129}),
            (CHAT, {"n": 10**9}),
            (TEXT, {"prompt": ["x"] * 129}),
            (CHAT, {"stop": ["x"] * 17}),
            (CHAT, {"messages": []}),
            (TEXT, {"prompt": [7] * 200_000}),
            (TEXT, {"prompt": "word " * 200_000}),
            (CHAT, {"messages": [{"role": "user", "content": "word " * 200_000}]}),
            (CHAT, {"model": "gpt-4"}),
        ]
    )
    return _sent(rng, host, wrong[0], good(rng, wrong[0]) | wrong[1], "range")
