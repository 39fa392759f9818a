"""Canary secrets in the environment, in URLs, headers, errors and settings:
no trace of them in a run folder or on the console."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import InfrastructureError
from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Observation

KEY = "sk-canary-51f2c7d09ab34e68"
ESCAPED = "".join(f"\\u{ord(c):04x}" for c in KEY)
PASSWORD = "canary-hunter2-51f2c7d0"
TINY = ["--count", "1", "--attempts", "2", "--max-reply", "8"]


class Echo(BaseHTTPRequestHandler):
    """Answers with everything that was sent: after a few good answers,
    as the refusals that real servers and proxies make of it."""

    protocol_version = "HTTP/1.1"
    good, seen, escapes = 3, list[str](), False

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        sent = self.headers["authorization"]
        self.seen.append(sent)
        number = len(self.seen)
        if number <= self.good:
            message = {"role": "assistant", "content": f"wait {sent}"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self._answer(
                200, {"id": sent, "model": "tiny", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
            )
        elif number % 2:
            self._answer(401, {"error": {"message": f"bad header Authorization: {sent}", "headers": dict(self.headers)}}, sent)
        else:
            self._answer(307, {"detail": sent}, sent)

    def _answer(self, status: int, body: dict[str, Any], echo: str = "") -> None:
        data = json.dumps(body).replace(KEY, ESCAPED if self.escapes else KEY).encode()
        self.send_response(status)
        for name, value in (("www-authenticate", echo), ("location", f"http://me:{echo[7:]}@elsewhere.example/?key={echo[7:]}")):
            if echo:
                self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing on the console: what is looked for there is ramify's."""


class Quiet(ThreadingHTTPServer):
    """Says nothing of a client that hangs up with an answer unread, as one may on a redirect it refuses to follow."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that says back what it is sent."""
    Echo.seen = []
    with Quiet(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with canaries in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAMIFY_API_KEY", "OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("DB_PASSWORD", PASSWORD)
    return tmp_path


def leaks(folder: Path, *texts: str) -> list[str]:
    """Where a canary is: files under ``folder``, texts."""
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = files | {f"text {i}": text.encode() for i, text in enumerate(texts)}
    canaries = [word.encode() for word in (KEY, PASSWORD, ESCAPED)]
    return [name for name, data in found.items() if any(word in data for word in canaries)]


def looked_at(run: str) -> None:
    """Every verb that shows or writes a run."""
    for words in (
        ["show", run], ["show", run, "--json"], ["show", run, "--html", "page.html"], ["export", run, "out.jsonl"],
        ["export", run, "out.parquet"], ["export", run, "journal.parquet", "--records", "journal"],
        ["export", run, "report.html"],
    ):  # fmt: skip
        assert main(words) == 0, words


@pytest.mark.slow
@pytest.mark.parametrize("escapes", [False, True])
def test_a_server_that_says_the_key_back(
    here: Path, echo: str, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, escapes: bool
) -> None:
    monkeypatch.setattr(Echo, "escapes", escapes)
    model = f"chat:tiny@{echo}?retries=0"
    assert main(["rollout", *TINY, "--model", model, "--out", "run", "--json"]) in (0, 1)
    assert main(["resume", "run"]) in (0, 1)
    assert set(Echo.seen) == {f"Bearer {KEY}"}
    assert len(Echo.seen) > Echo.good + 2  # refused by both kinds of answer
    looked_at("run")
    main(["doctor", "--endpoint", echo])
    main(["doctor", "--json", "--endpoint", echo.replace("//", f"//me:{PASSWORD}@")])
    said = capfd.readouterr()
    assert "answers 401" in said.out
    assert "Traceback" not in said.err
    assert leaks(here, said.out, said.err) == []


class LeakyEnvironment(HouseholdEnvironment):
    """A stranger's environment whose client library quotes the key when it fails, as many do."""

    def make(self) -> Any:
        env = super().make()

        def step(action: str) -> Observation:
            raise ConnectionError(
                f"401 for postgres://me:{PASSWORD}@db.example/x with headers {{'Authorization': 'Bearer {KEY}'}}"
            )

        env.step = step  # type: ignore[method-assign]
        return env


def broken() -> HouseholdEnvironment:
    """A factory that fails with the key in its words."""
    raise RuntimeError(f"cannot log in with {KEY}")


@pytest.mark.parametrize("name", ["LeakyEnvironment", "broken"])
def test_a_environment_that_quotes_the_key_when_it_fails(here: Path, name: str, capfd: pytest.CaptureFixture) -> None:
    code = main(["rollout", *TINY, "--env", f"factory:{__name__}:{name}", "--out", "run"])
    if name == "LeakyEnvironment":
        assert code == 1  # every attempt failed
        looked_at("run")
    else:
        assert code == 2
    said = capfd.readouterr()
    assert "[redacted]" in said.out + said.err
    assert leaks(here, said.out, said.err) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--model", f"chat:m@https://me:{PASSWORD}@h/v1"], 2),
        (["--model", f"chat:m@https://h/v1?api_key={KEY}"], 2),
        (["--model", f"hf:{KEY}"], 2),
        (["--env", f"factory:{KEY}:x"], 2),
        (["--backend", KEY], 2),
        (["--config", "keys.toml"], 2),
        (["--api-key", KEY], 2),
        ([f"--api-key={KEY}"], 2),
        ([KEY], 2),
    ],
)
def test_mistakes_do_not_quote_a_secret(here: Path, words: list[str], code: int, capfd: pytest.CaptureFixture) -> None:
    (here / "keys.toml").write_text(f'api_key = "{KEY}"\nmodel = "builtin"\n')
    assert main(["rollout", *words, "--out", "run"]) == code
    (here / "keys.toml").unlink()
    said = capfd.readouterr()
    assert said.err.count("\n") == 1
    assert leaks(here, said.out, said.err) == []


def test_failures_are_stored_without_secrets(here: Path) -> None:
    assert (
        str(InfrastructureError("tool", f"GET https://me:pw@h/ {KEY} failed"))
        == "tool: GET https://[redacted]@h/ [redacted] failed"
    )
    assert InfrastructureError("tool", f"a {PASSWORD}").message == "a [redacted]"


FAULT = """
import sys
import ramify.cli
from ramify.cli.main import VERBS, main
ramify.cli.__path__.append(sys.argv[1])
VERBS.append("fault")
sys.argv[1:] = ["fault"]
sys.exit(main())
"""


def test_the_traceback_of_a_fault_of_ours(here: Path) -> None:
    (here / "fault.py").write_text(
        "import os\nraise RuntimeError(f\"\\x1b[2J\\u202e {os.environ['RAMIFY_API_KEY']} https://me:pw@h/\")\n"
    )
    done = subprocess.run([sys.executable, "-c", FAULT, str(here)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("ramify: a bug in ramify")
    assert "RuntimeError:  [redacted] https://[redacted]@h/" in done.stderr
    assert not set("\x1b\u202e") & set(done.stderr)
    assert leaks(here, done.stdout, done.stderr) == []
