"""A small OpenAI-compatible server on a real socket, whose replies a function makes, and which keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], dict[str, Any]]
"""A request's body -> the assistant's message."""


class ChatServer:
    """``model`` names it for ramify; ``asked`` are the bodies of the requests with tools, or of all where none has any."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.model = f"chat:scripted@{self.url}"
        self.bodies: list[dict[str, Any]] = []

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [body for body in self.bodies if body.get("tools")]


@contextmanager
def chat_server(reply: Reply) -> Iterator[ChatServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made.bodies.append(body)
            message = {"role": "assistant", "content": None, **reply(body)}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "scripted",
                "choices": [choice],
                "usage": usage,
            }
            self.answer(answer)

        def do_GET(self) -> None:
            self.answer({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

        def answer(self, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = ChatServer(server.server_port)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def call(name: str, id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def results(body: dict[str, Any]) -> list[str]:
    """The contents of a request's tool messages."""
    return [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]


CODER = """
import json, os, subprocess, sys, urllib.request
messages = [{"role": "user", "content": sys.argv[1] + " The folder is " + os.getcwd()}]
while True:
    tools = [{"type": "function", "function": {"name": "shell", "parameters": {}}}]
    body = json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        print(said["content"])
        break
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
"""
"""A coding harness of twenty lines: asks, runs the shell commands that it is told to,
and says what came of them; its model is called m."""
