"""What ``ramify serve`` says at its end: whether every request was answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from waiting import PATIENCE, until

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import MODEL, FaultyServer

from ramify.trace.db import Run
from ramify.trace.node import Node

pytestmark = pytest.mark.slow


def ask(url: str, answers: list[int]) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            answers.append(answer.status)
    except urllib.error.HTTPError as error:
        answers.append(error.code)
        error.close()
    except OSError:
        answers.append(0)  # the connection was cut


@pytest.mark.parametrize(("waiting", "drain", "signals"), [(0, "0", 1), (1, "0.2", 1), (2, "600", 2)])
def test_requests_that_are_cut_off_are_counted(waiting: int, drain: str, signals: int, tmp_path: Path) -> None:
    answers: list[int] = []
    with FaultyServer() as upstream:
        words = [
            "serve", f"chat:{MODEL}@{upstream.url}", "--port", "0", "--json", "--drain", drain, "--record",
            str(tmp_path / "run"),
        ]  # fmt: skip
        command = [sys.executable, "-m", "ramify.cli.main", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            try:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["url"]
                ask(url, answers)
                upstream.hang, seen = True, len(upstream.requests)
                clients = [threading.Thread(target=ask, args=(url, answers)) for _ in range(waiting)]
                for client in clients:
                    client.start()
                assert until(lambda: len(upstream.requests) == seen + waiting)
                for _ in range(signals):
                    process.send_signal(signal.SIGTERM)
                    if waiting and signals > 1:
                        assert until(lambda: refused(url))
                log = process.communicate(timeout=PATIENCE)[1]
                for client in clients:
                    client.join(PATIENCE)
            finally:
                process.kill()
    sentences = (
        "every request was answered",
        "1 request was cut off before its answer was complete",
        "2 requests were cut off before their answers were complete",
    )
    assert process.returncode == 0
    assert log.splitlines()[-1] == f"ramify: {sentences[waiting]}; the server has ended"
    assert answers[0] == 200
    assert set(answers[1:]) <= {503, 0}
    assert len(answers) == 1 + waiting
    with Run.open(tmp_path / "run") as run:
        nodes = [node for node in run.each(Node) if node.index >= 0]
    stops = sorted(node.stop for node in nodes)
    assert stops == ["eos"] + ["failed"] * waiting
    assert all("the server cut it off" in node.data["failure"] for node in nodes if node.stop == "failed")


def refused(url: str) -> bool:
    """Whether nothing new is taken."""
    try:
        urllib.request.urlopen(url.removesuffix("/v1") + "/health", timeout=PATIENCE).close()
    except OSError:
        return True
    return False
