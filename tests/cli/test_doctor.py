"""ramify doctor: what it reports of this machine, of what is missing and of what is broken; no secret in it."""

from __future__ import annotations

import importlib.metadata
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ramify.base import plugins
from ramify.base.seeds import generator
from ramify.cli import doctor
from ramify.model.scripted import ScriptedModel
from ramify.trace.db import Run
from tests.engine.kernels import Kernels
from tests.model.model_server import NAME, ModelServer, serving


def rows(record: dict) -> dict[tuple[str, str], dict]:
    return {(row["topic"], row["name"]): row for row in record["findings"]}


def test_this_machine_is_well(verb, here) -> None:
    done = verb("doctor", "--json")
    found = rows(done.json)
    assert done.code == (0 if done.json["ok"] else 1)
    for name in (*doctor.CORE, "python", "ramify"):
        assert found["version", name]["status"] == "ok"
    assert f"torch {importlib.metadata.version('torch')}" in found["extra", "local"]["text"]
    for topic, name in (
        ("machine", "cpu"),
        ("machine", "memory"),
        ("machine", "disk"),
        ("machine", "sqlite"),
        ("engine", "device"),
    ):
        assert found[topic, name]["status"] == "ok", found[topic, name]
    assert "MKL_CBWR" in found["engine", "kernels"]["text"]
    assert "batch" in found["engine", "batch invariance"]["text"]
    assert found["engine", "batch invariance"]["status"] in ("ok", "warning")
    assert ("sandbox", "process") in found or ("sandbox", "isolation") in found
    assert list(here.iterdir()) == [], "it leaves nothing behind"
    plain = verb("doctor")
    assert plain.out.splitlines()[0].split() == ["topic", "what", "status"]


@pytest.mark.slow
def test_a_promise_that_is_not_kept_is_a_warning(verb, here) -> None:
    """On kernels that never repeat themselves; nothing is broken, so the exit code says nothing of it."""
    with Kernels(repeats=False):
        done = verb("doctor", "--json")
    row = rows(done.json)["engine", "batch invariance"]
    assert (row["status"], "may depend on its batch" in row["text"]) == ("warning", True)
    assert done.code == (0 if done.json["ok"] else 1)
    with Kernels(repeats=False):
        assert verb("doctor").out.rstrip().endswith("warnings: batch invariance")


def test_missing_extras_are_named_with_what_is_lost(verb, here, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("ray", "trl"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = rows(verb("doctor", "--json").json)
    for extra, package, lost in (("ray", "ray", "--backend ray"), ("rl", "trl", "training with TRL")):
        row = found["extra", extra]
        assert (row["status"], package in row["missing"]) == ("absent", True)
        assert lost in row["text"]
        assert f"pip install 'ramify[{extra}]'" in row["text"]


def test_every_extra_of_the_package_says_what_it_is_for() -> None:
    declared = set(importlib.metadata.metadata("ramify").get_all("Provides-Extra") or []) - {"all"}
    assert declared <= set(doctor.EXTRAS)


def test_something_broken_is_exit_code_1(verb, here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise OSError("no such disk \x1b[2J")

    monkeypatch.setattr(doctor, "_memory", fails)
    monkeypatch.setattr(plugins, "load", list)
    done = verb("doctor")
    assert done.code == 1
    assert "OSError: no such disk" in done.out
    assert "\x1b" not in done.out


def test_endpoints_are_tried_and_no_secret_is_shown(verb, here, monkeypatch: pytest.MonkeyPatch) -> None:
    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"object": "list", "data": [{"id": "tiny-model", "object": "model"}]}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Models)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    held = socket.socket()
    held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
    try:
        up, closed = (f"http://127.0.0.1:{port}/v1" for port in (server.server_port, held.getsockname()[1]))
        monkeypatch.setenv("RAMIFY_ENDPOINTS", f"{up}, {closed}")
        monkeypatch.setenv("RAMIFY_API_KEY", "canary-secret-8472")
        done = verb("doctor", "--json", "--endpoint", "http://user:canary-secret-8472@127.0.0.1:1/v1", "--endpoint", "nonsense")
    finally:
        held.close()
        server.shutdown()
        thread.join()
        server.server_close()
    found = [row for row in done.json["findings"] if row["topic"] == "endpoint"]
    assert [row["status"] for row in found] == ["ok", "broken", "broken", "broken"]
    assert "tiny-model" in found[0]["text"]
    assert done.code == 1
    assert "canary-secret" not in done.out + done.err


def test_what_was_found_of_a_server_goes_with_every_result_through_it(verb, here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(here / "cache"))
    replies: dict[str, str] = {}

    def fresh(messages, key: int) -> str:
        return " ".join(map(str, generator(key, *[message.text for message in messages]).integers(1, 9, 3)))

    def kept(messages, key: int) -> str:
        return replies.setdefault(messages[-1].text, fresh(messages, key))

    server = ModelServer(chat=ScriptedModel(kept, tokens=False))
    with serving(server.app) as url:
        measure = "doctor", "--endpoint", url, "--model", NAME, "--samples", "8", "--json"
        found = verb(*measure).json
        assert found["draws"]["one_reply"]
        assert rows(found)["endpoint", f"draws of {NAME}"]["status"] == "warning"
        play = "rollout", "--model", f"chat:{NAME}@{url}", "--env", "chain", "--count", "1", "--json"
        assert any("one reply to every seed" in text for text in verb(*play, "--out", "one").json["caveats"])
        with Run.open(here / "one") as run:
            (entry,) = run.journal("environment", "versions")
        assert "one reply to every seed" in entry.payload["server"]
        server.chat = ScriptedModel(fresh, tokens=False)
        assert rows(verb(*measure).json)["endpoint", f"draws of {NAME}"]["status"] == "ok"
        assert verb(*play, "--out", "two").json["caveats"] == []


def test_draws_are_measured_of_one_server_by_its_url(verb, here) -> None:
    done = verb("doctor", "--endpoint", "chat:a@http://127.0.0.1:9/v1", "--model", "a")
    assert (done.code, "by its URL alone" in done.err) == (2, True)
