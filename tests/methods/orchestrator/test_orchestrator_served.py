"""Before three real servers, and as a server: each `ramify serve` and `ramify orchestrator serve` is a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal
from waiting import PATIENCE

from ramify.cli.main import main
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.trace.db import Run
from tests.methods.orchestrator.workers import HERE, endpoints_file, pool_file, serve_words, task_file

pytestmark = pytest.mark.slow


@contextmanager
def serving(*words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A verb that serves, on a free port: its address and its process."""
    command = [sys.executable, "-m", "ramify.cli.main", *map(str, words), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield json.loads(line)["url"], process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def chat(url: str, model: str, text: str, **more: Any) -> tuple[dict[str, Any], str]:
    """The answer of a chat, and the id in its header."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **more}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        raw = reply.read().decode()
        return ({"stream": raw} if more.get("stream") else json.loads(raw)), reply.headers["x-request-id"]


def checkpoint(folder: Path, seed: int) -> Path:
    """A tiny model with the built-in one's tokenizer and template."""
    from ramify.engine.checkpoints import model_folder
    from ramify.model.tokenizer import HfTokenizer

    tokenizer = HfTokenizer.load(model_folder("builtin"))
    end = (tokenizer.token_id("<|end|>"),)
    TinyLM(TinyConfig(tokenizer.size, 32, 1, 1, 1, 32, 64, context=512, eos=end), seed).save(folder, tokenizer)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (model_folder("builtin") / name).is_file():
            (folder / name).write_bytes((model_folder("builtin") / name).read_bytes())
    return folder


@pytest.mark.timeout(900)
def test_three_real_servers_are_collected_routed_and_composed(tmp_path: Path) -> None:
    """The pool is three servers; one dies on the way, which is a failure with a kind and not a wrong answer."""
    judge = tmp_path / "judge.py"
    judge.write_text("def vowels(text, data):\n    return sum(c in 'aeiou' for c in text) / max(1, len(text))\n")
    with ExitStack() as stack:
        served = [stack.enter_context(serving("serve", f"hf:{checkpoint(tmp_path / f'm{i}', i)}")) for i in range(3)]
        names = [f"m{i}" for i in range(3)]
        urls = {name: url for name, (url, _) in zip(names, served, strict=True)}
        pool, tasks = endpoints_file(tmp_path, "retries = 0", **urls), task_file(tmp_path, 4)
        assert main(["orchestrator", "collect", str(pool), "--check"]) == 0
        table = [
            "orchestrator",
            "collect",
            str(pool),
            "--tasks",
            str(tasks),
            "--judge",
            f"{judge}:vowels",
            "--out",
            str(tmp_path / "table"),
        ]
        assert main([*table, "--n", "5", "--max-tokens", "8", "--json"]) == 0
        assert main(["orchestrator", "show", "headroom", str(tmp_path / "table"), "--json"]) == 0
        router = ["orchestrator", "train", "router", str(tmp_path / "table"), "--out", str(tmp_path / "router")]
        router += ["--router.steps", "20", "--router.holdout", "0", "--run", str(tmp_path / "fitted")]
        assert main([*router, "--json"]) == 0
        url, process = stack.enter_context(serving(*serve_words(tmp_path, pool)))
        routed, trace = chat(url, "router", "turn abcd", max_tokens=6)
        about = routed["choices"][0]["ramify"]["orchestrator"]
        assert about["worker"] in names
        assert about["trace"] == trace == routed["id"]
        composed, kept = chat(url, "composer", "turn abcd", max_tokens=6)
        assert composed["choices"][0]["ramify"]["orchestrator"]["calls"] == 3
        served[names.index(about["worker"])][1].kill()
        again, _ = chat(url, "router", "turn abcd", max_tokens=6)
        moved = again["choices"][0]["ramify"]["orchestrator"]
        assert moved["worker"] in set(names) - {about["worker"]}
        assert "failed (connection)" in moved["notes"][0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    with Run.open(tmp_path / "kept") as run:
        calls = [node for node in run.tree(kept).nodes.values() if node.data.get("worker")]
        assert [len(run.shown(node.id).messages) for node in sorted(calls, key=lambda one: one.index)] == [1, 1, 5]
        assert {node.data["failure"]["kind"] for node in run.failed()} == {"connection"}


@pytest.mark.timeout(600)
def test_who_is_excluded_is_not_served_either(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, "adder", "turner")
    with serving("orchestrator", "serve", pool, "--composer", f"{HERE}:planner", "--exclude", "adder") as (url, _):
        with urllib.request.urlopen(f"{url}/models") as answer:
            assert {one["id"] for one in json.loads(answer.read())["data"]} == {"composer", "turner"}
        answer, _ = chat(url, "composer", "turn abcd")
        assert answer["choices"][0]["ramify"]["orchestrator"]["worker"] == "turner"
        with pytest.raises(urllib.error.HTTPError) as refused:
            chat(url, "adder", "add 1 1")
        assert refused.value.code == 404
        refused.value.close()


@pytest.mark.timeout(600)
def test_what_was_answered_is_kept_after_a_kill_and_streams_end(tmp_path: Path) -> None:
    words = (
        "orchestrator",
        "serve",
        pool_file(tmp_path, "adder", "turner"),
        "--composer",
        f"{HERE}:planner",
        "--out",
        tmp_path / "kept",
    )
    ids = []
    with serving(*words) as (url, process):
        for at in range(3):
            answer, name = chat(url, "composer", f"add {at} 1", stream=at == 2)
            ids.append(name)
        assert answer["stream"].rstrip().endswith("data: [DONE]")
        plain, _ = chat(url, "adder", "add 1 1")
        assert plain["choices"][0]["message"]["content"] in ("2", "no idea")
        with pytest.raises(urllib.error.HTTPError) as refused:
            chat(url, "composer", "add 1 1", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
        assert refused.value.code == 400
        assert "send tools to the model 'router'" in refused.value.read().decode()
        process.kill()
        process.wait()
    with Run.open(tmp_path / "kept") as run:
        assert set(ids) <= {info.name for info in run.trees()}
        assert all(len(run.tree(name).nodes) >= 5 for name in ids)


def test_run_in_a_pseudo_terminal(tmp_path: Path) -> None:
    """What a person sees who asks one question."""
    pool = pool_file(tmp_path, "adder", "turner")
    command = [
        sys.executable,
        "-m",
        "ramify.cli.main",
        "orchestrator",
        "run",
        str(pool),
        "add 2 3",
        "--composer",
        f"{HERE}:planner",
    ]
    with Terminal(columns=100) as terminal:
        terminal.execute(command, tmp_path, dict(os.environ))
        assert terminal.wait() == 0
        assert not terminal.screen.wrapped
    assert re.search(r"3 calls, \d+ tokens", terminal.text)
