"""Environments that raise, answer garbage or call exit(): their attempts fail as data,
the others are played, on every back end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from ramify.cli.main import main
from ramify.trace.db import Run

pytestmark = pytest.mark.slow

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
    words = ["--model", "factory:worker_parts:walker", "--env", f"factory:ray_parts:{env}", "--count", "3", "--attempts", "2"]
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


def test_one_that_hangs_ends_at_the_second_ctrl_c(tmp_path: Path) -> None:
    """The first asks the loop, which the environment holds; the second does not ask."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "rollout")])
    words = [
        "--model", "factory:worker_parts:walker", "--env", "factory:ray_parts:hanging", "--count", "2", "--attempts", "2",
        "--out", "run",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "ramify.cli.main", "rollout", *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert until((tmp_path / "hangs").exists)
        process.send_signal(signal.SIGINT)
        assert not until(lambda: process.poll() is not None, 1.0)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, out
    assert "interrupted" in out
    assert "Traceback" not in out
