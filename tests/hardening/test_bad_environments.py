"""Environments that raise, answer garbage or call exit(): their attempts fail as data, the others are played, on every back end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.cli.main import main
from ramify.trace.db import Run

HERE = Path(__file__).parent
KEY = "sk-canary-51f2c7d09ab34e68"


@pytest.mark.parametrize(
    ("env", "backend", "word"),
    [("raising", "local", "cannot reach"), ("garbage", "local", "TypeError"), ("exiting", "local", "SystemExit"),
     ("garbage", "processes:1", "TypeError"), ("exiting", "processes:1", "SystemExit")],
)  # fmt: skip
def test_its_attempts_fail_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], env: str, backend: str, word: str
) -> None:
    for folder in (HERE, HERE.parent / "rollout"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    words = ["--model", "factory:worker_parts:walker", "--env", f"factory:ray_parts:{env}", "--panel", "3", "--attempts", "2"]
    assert main(["rollout", *words, "--seed", "3", "--backend", backend, "--out", str(tmp_path / "run"), "--json"]) == 0
    told, err = capsys.readouterr()
    result = json.loads(told)
    assert (result["n"], result["failed"], result["missing"]) == (2, 4, 0)
    assert all(word in failure and failure.startswith("env: step failed") for failure in result["failures"])
    assert "Traceback" not in err
    with Run.open(tmp_path / "run") as run:
        assert len(run.journal("attempt")) == 2  # those that failed are played again by `ramify resume`
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or not any(word in path.read_bytes() for word in (KEY.encode(), b"hunter2"))
