"""`ramify serve MODEL --middleware memory:FILE`, as an OpenAI client and two processes see it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ramify.methods.earned_code_memory.memory import HEAD, Memory

pytestmark = pytest.mark.slow

AGENT = """
def reply(messages):
    told = [m["content"] for m in messages if m["role"] == "system"]
    return "shown: " + " | ".join(told)
"""


def ask(url: str, request: str, **more: Any) -> dict[str, Any]:
    body = {"model": "agent", "messages": [{"role": "user", "content": request}], **more}
    asked = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read().decode()
    return json.loads(text) if not more.get("stream") else {"text": text}


def test_any_client_gets_a_memory_while_another_process_writes(tmp_path: Path) -> None:
    file = tmp_path / "memory.sqlite"
    (tmp_path / "agent.py").write_text(AGENT)
    with Memory(file) as memory:
        memory.add("plan", "delete oldest notes", "Call `notes.list`, then `notes.delete`.")
    words = [
        "serve",
        f"{tmp_path / 'agent.py'}:reply",
        "--port",
        "0",
        "--name",
        "agent",
        "--middleware",
        f"memory:{file}",
        "--json",
    ]
    server = subprocess.Popen([sys.executable, "-m", "ramify", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        url = json.loads(server.stdout.readline())["url"]
        first = ask(url, "delete my 3 oldest notes")["choices"][0]
        assert first["message"]["content"].startswith(f"shown: {HEAD}")
        task = first["ramify"]["memory"]["task"]
        assert ask(url, "what is the weather")["choices"][0]["message"]["content"] == "shown: "
        with Memory(file, create=False) as other:  # written by another process while the server runs
            other.add("fact", "weather today", "The weather comes from `sky.look`.")
        assert "sky.look" in ask(url, "weather today?")["choices"][0]["message"]["content"]
        streamed = ask(url, "delete my 9 oldest notes", stream=True)["text"]
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert "notes.delete" in "".join(one["choices"][0]["delta"].get("content") or "" for one in events)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        server.stdout.close()
        server.stderr.close()
    with Memory(file, create=False) as memory:
        assert [one.query for one in memory.state.tasks.values()] == [
            "delete my 3 oldest notes",
            "what is the weather",
            "weather today?",
            "delete my 9 oldest notes",
        ]
        memory.outcome(task, True)
        assert memory.state.tasks[task].query == "delete my 3 oldest notes"
        assert all(one.recorded for one in memory.state.tasks.values())
