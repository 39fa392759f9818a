"""`ramify fix --file`: the text of a file of instructions, for agents that are recorded as they are."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import CODER, ChatServer, call, chat_server, results

from ramify.cli.main import main
from ramify.integrations.harnesses.worktrees import base_commit, commit_with, edited_text, file_at, git, patch_between
from ramify.trace.db import Run

CHECK = f"{sys.executable} -c 'from area import area; assert area(3, 4) == 12'"
OLD = "# Rules\n\nWrite area in area.py.\n"
HELPS = "# Rules\n\nWrite area in area.py.\nMultiply the sides.\n"
REWORDED = "# Rules\n\nPut area into area.py.\n"


def coder(body: dict[str, Any]) -> dict[str, Any]:
    """Reads AGENTS.md, and multiplies where that says so; else it adds, but for every fourth time."""
    seen = results(body)
    if len(seen) == 2:
        return {"content": "done"}
    command = "cat AGENTS.md"
    if seen:
        operator = "*" if "Multiply" in seen[0] or next(TURNS) == 3 else "+"
        command = f"printf 'def area(a, b):\\n    return a {operator} b\\n' > area.py"
    return {"content": None, "tool_calls": [call("shell", f"s{len(seen)}", command=command)]}


TURNS = itertools.cycle(range(4))


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository, in the folder that is the current one."""
    (tmp_path / "coder.py").write_text(CODER)
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "area.py").write_text("# to do\n")
    (folder / "AGENTS.md").write_text(OLD)
    (folder / "skills").mkdir()
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    (tmp_path / "helps.md").write_text(HELPS)
    (tmp_path / "reworded.md").write_text(REWORDED)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(coder) as found:
        yield found


def recorded(server: ChatServer, n: int = 2) -> None:
    words = ["record", "-n", str(n), "--repo", "repo", "--run", "run", "--model", server.model, "--check", CHECK, "--"]
    assert main([*words, sys.executable, str(Path.cwd() / "coder.py"), "Do what AGENTS.md says."]) == 0


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["fix", "run", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_the_text_that_helps_is_accepted_and_the_patch_applies(
    repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(server)
    before = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "branch", "-a")
    found = told(capsys, "--file", "repo/AGENTS.md", "--try", "helps.md", "--try", "reworded.md", "--write", ".")
    print(json.dumps(found, indent=1)[:6000])
    assert main(["show", "run"]) == 0
    assert main(["test", "run"]) == 0
    assert main(["why", "run", "--samples", "0"]) == 0
    print(capsys.readouterr().out)
    assert 0
    assert [fix["name"] for fix in found["confirmed"] if fix["accepted"]] == ["helps.md"]
    assert (git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "branch", "-a")) == before
    subprocess.run(["git", "-C", str(repo), "apply", str(Path("fix.patch").resolve())], check=True)
    assert (repo / "AGENTS.md").read_text() == HELPS
