"""Runs for the verbs to act on: one imported from a chat log, one small run of the main job."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
CHAT = [
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4 \x1b[31mred</script>"}]},
    {"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]},
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def chats(here: Path) -> Path:
    """runs/chats: a run imported from a chat log."""
    (here / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHAT))
    (here / "runs").mkdir()
    assert main(["import", "chats.jsonl", "--run", "runs/chats"]) == 0
    return here / "runs" / "chats"


@pytest.fixture(scope="session")
def improved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the main job, as small as one can be."""
    folder = tmp_path_factory.mktemp("improved") / "run"
    settings = ["--updates", "1", "--tokens", "400", "--eval-episodes", "4", "--tasks-per-update", "4", "--train-tasks", "8"]
    assert main(["improve", *settings, "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture
def mypy(tmp_path: Path) -> Callable[..., list[str]]:
    """Makes the words that check some modules as ``mypy --strict`` does. What a check of the whole project has remembered of
    ramify counts, with its settings: a minute less than anew."""

    def words(*modules: str) -> list[str]:
        settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        strict = f"module = {json.dumps(modules)}\ndisallow_any_generics = true\ndisallow_untyped_calls = true\n"
        (tmp_path / "types.toml").write_text(f"{settings}\n[[tool.mypy.overrides]]\n{strict}", encoding="utf-8")
        if (ROOT / ".mypy_cache").is_dir():
            shutil.copytree(ROOT / ".mypy_cache", tmp_path / "types")
        return [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(tmp_path / "types.toml"),
            "--cache-dir",
            str(tmp_path / "types"),
        ]

    return words
