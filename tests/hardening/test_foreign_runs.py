"""Import, then fork or resume: a third party's settings start no program, import no module, contact nobody, and get no key."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ramify.cli.main import main
from ramify.rollout.components import check_trust
from ramify.trace.db import Run


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rollout of two attempts, played here, exported as JSON lines."""
    folder = tmp_path_factory.mktemp("made")
    assert main(["rollout", "--out", str(folder / "run"), "--count", "1", "--attempts", "2", "--json"]) == 0
    assert main(["export", str(folder / "run"), str(folder / "run.jsonl")]) == 0
    return folder / "run.jsonl"


class Listener(BaseHTTPRequestHandler):
    """Notes every request; answers none."""

    seen: list[str] = []  # noqa: RUF012  (one list for the server's whole life is what is wanted)

    def do_GET(self) -> None:
        self.seen.append(f"{self.path} {self.headers}")
        self.send_error(404)

    do_POST = do_GET  # noqa: N815  (the name that http.server calls)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def listener() -> Iterator[str]:
    Listener.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def imported(exported: Path, folder: Path, **changed: object) -> tuple[Path, str]:
    """A run imported from the file with other settings in its first line, and one of its nodes."""
    head, rest = exported.read_text(encoding="utf-8").split("\n", 1)
    record = json.loads(head)
    record["config"] |= changed
    (folder / "theirs.jsonl").write_text(json.dumps(record) + "\n" + rest, encoding="utf-8")
    assert main(["import", str(folder / "theirs.jsonl"), "--run", str(folder / "theirs")]) == 0
    with Run.open(folder / "theirs") as run:
        (tree, *_) = run.trees()
        node = next(node.id for node in run.nodes(tree.name) if node.role == "assistant")
    return folder / "theirs", node


FORKED = [
    {"env": "mcp:sh -c 'touch {}'"}, {"env": "python:theirs_module:make"}, {"env": "gymnasium:theirs_module:Id-v0"},
    {"env": "factory:theirs_module:make"}, {"model": "factory:theirs_module:make"}, {"compactor": "factory:theirs_module:make"},
]  # fmt: skip
RESUMED = [*FORKED, {"tasks": "/etc/passwd"}, {"backend": "ray:2"}]


@pytest.mark.parametrize(("verb", "changed"), [*(("fork", one) for one in FORKED), *(("resume", one) for one in RESUMED)])
def test_import_then_fork_or_resume_runs_nothing(
    exported: Path,
    tmp_path: Path,
    verb: str,
    changed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "theirs_module.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed = {name: value.format(ran) for name, value in changed.items()}
    run, node = imported(exported, tmp_path, **changed)
    capsys.readouterr()
    assert main([verb, str(run), *([node, "--n", "1"] if verb == "fork" else [])]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "was imported or made elsewhere" in told
    assert "--trust" in told
    for name, value in changed.items():
        assert f"{name} {value!r}" in told
    assert not ran.exists()


@pytest.mark.parametrize(
    "name", ["theirs_module.py:Rule", "python:theirs_module:Rule", "factory:theirs_module:make", "no-such:rule"]
)
def test_a_third_partys_credit_rule_is_not_imported(
    exported: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "theirs_module.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    run, _ = imported(exported, tmp_path, credit={"name": name, "gamma": 0.9})
    assert main(["resume", str(run)]) == 2
    assert f"credit {name!r}" in capsys.readouterr().err
    assert not ran.exists()


def test_a_credit_rule_of_ours_needs_no_trust(exported: Path, tmp_path: Path) -> None:
    run, _ = imported(exported, tmp_path, credit={"name": "gigpo"})
    with Run.open(run) as opened:
        check_trust(opened, trust=False)


@pytest.mark.parametrize("verb", ["fork", "resume"])
def test_import_then_resume_sends_no_key(
    exported: Path, tmp_path: Path, verb: str, listener: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key-1234567890")
    run, node = imported(exported, tmp_path, model=f"chat:m@{listener}")
    assert main([verb, str(run), *([node, "--n", "1"] if verb == "fork" else [])]) == 2
    assert "--trust" in capsys.readouterr().err
    assert Listener.seen == []


def test_a_run_folder_that_says_it_was_made_elsewhere_is_foreign(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, node = imported(exported, tmp_path)
    for owner in ('"somebody"', None):
        with closing(sqlite3.connect(run / "run.sqlite")) as db, db:
            db.execute("DELETE FROM meta WHERE key = 'owner'")
            if owner:
                db.execute("INSERT INTO meta VALUES ('owner', ?)", (owner,))
            config = json.loads(next(db.execute("SELECT value FROM meta WHERE key = 'config'"))[0])
            db.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps({**config, "env": "mcp:true"}),))
        assert main(["fork", str(run), node, "--n", "1"]) == 2
        assert "env 'mcp:true'" in capsys.readouterr().err


def test_an_imported_run_of_built_in_parts_and_a_trusted_one_continue(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, node = imported(exported, tmp_path)
    assert main(["fork", str(run), node, "--n", "1", "--json"]) == 0
    other = tmp_path / "other"
    other.mkdir()
    run, node = imported(exported, other, env="factory:no_such_module_of_theirs:make")
    capsys.readouterr()
    assert main(["fork", str(run), node, "--n", "1", "--trust"]) == 2
    assert "No module named 'no_such_module_of_theirs'" in capsys.readouterr().err


def test_a_run_made_here_needs_no_trust(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {"model": "chat:m@http://127.0.0.1:9/v1"}):
        pass
    with Run.open(tmp_path / "run") as run:
        assert not run.foreign
