"""`ramify why` on what `ramify serve --record` recorded of a coding harness that knows nothing of ramify, in a git worktree."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ramify
from ramify.base.errors import RamifyError, UserError
from ramify.cli.serve import find_served
from ramify.jobs.helped import helped
from ramify.jobs.judged import judge
from ramify.jobs.summary import summarise
from ramify.rollout.stored import WhoPlays
from ramify.trace.db import Run
from ramify.web.api import Api
from ramify.web.limits import Guard, Slots
from ramify.web.recording import Recorder
from ramify.web.server import open_server

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))
from chat_server import CODER, call, chat_server, results

HARNESS = CODER.replace('"model": "m"', '"model": "scripted"')
TASK = "Write area(a, b) in area.py."


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=me", "-c", "user.email=me@x", *words], check=True)


@contextmanager
def recording(model: str, run: Path) -> Iterator[str]:
    """The address of ``ramify serve MODEL --record RUN``."""
    served, gauges = find_served(model, 4)
    recorder = Recorder(run, {"model": model, "middleware": []})
    guard = Guard(Api(served, "scripted", Slots(4, 4, 4), recorder, gauges).app(), "127.0.0.1", None, seconds=60)
    gateway, listener = open_server(guard, 0, 16)
    thread = threading.Thread(target=gateway.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        gateway.should_exit = True
        thread.join(30)
        recorder.close()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "harness.py").write_text(HARNESS)
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "area.py").write_text("# to do\n")
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "begin")
    return repo


def passes(task: ramify.Task, answer: str, folder: Path) -> bool:
    code = "from area import area; assert area(3, 4) == 12"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True).returncode == 0


def harness(repo: Path, place: Path) -> Any:
    command = [sys.executable, str(repo.parent / "harness.py"), "{prompt}"]
    return ramify.agent(
        command, repo=repo, tools={"shell": "sandboxed"}, grade=passes, place=str(place), tasks=[{"id": "area", "prompt": TASK}]
    )


def recorded(repo: Path, model: str, operators: str, run: Path) -> None:
    """Record one run of the harness for each operator, each in a worktree of its own at one place."""
    place = repo.parent / "work"
    with recording(model, run) as url:
        for _ in operators:
            git(repo, "worktree", "add", "-q", "--detach", str(place))
            env = {**os.environ, "OPENAI_BASE_URL": url}
            subprocess.run([sys.executable, str(repo.parent / "harness.py"), TASK], cwd=place, env=env, check=True)
            git(repo, "worktree", "remove", "--force", str(place))


class Coder:
    """Looks, notes, writes the function with one of ``operators``, looks again, is done. The first replies are as ``given``."""

    def __init__(self, operators: str, given: str) -> None:
        self.chance, self.operators, self.given = random.Random(1), operators, list(given)

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        seen = len(results(body))
        if "tools" not in body or seen == 4:
            return {"content": "done"}
        folder = body["messages"][0]["content"].split()[-1]
        command = [f"cat {folder}/area.py", "echo note >> NOTES", "", "cat area.py NOTES"][seen]
        if seen == 2:
            operator = self.given.pop(0) if self.given else self.chance.choice(self.operators)
            command = f"printf 'def area(a, b):\\n    return a {operator} b\\n' > area.py"
        return {"content": None, "tool_calls": [call("shell", f"s{seen}", command=command)]}


@pytest.mark.slow
def test_the_step_that_lost_it_and_what_would_have_helped(repo: Path, tmp_path: Path) -> None:
    run, env = tmp_path / "run", harness(repo, tmp_path / "work")
    with chat_server(Coder("***+", "+*")) as server:
        recorded(repo, server.model, "+*", run)
        with pytest.raises(UserError, match="somebody judged"):
            ramify.why(run)
        found = ramify.why(run, model=server.model, env=env, samples=80)
        assert (found.verdict, found.success) == ("step", False)
        assert "a + b" in str(found.action)
        assert "+ b" in found.headline
        assert "* b" in found.headline
        assert found.after.k == 0
        assert "a * b" in found.alternatives[0].action
        assert found.alternatives[0].p == 1
        done = {one.do: one for one in helped(run, found, ["action", "resample"], n=6, model=server.model, env=env)}
        assert (done["action"].changed.k, done["action"].changed.n) == (6, 6)
        assert done["resample"].changed.k > done["resample"].control.k == 0
        with Run.open(run, write=True) as opened:
            told = summarise(opened)
            assert judge(opened, WhoPlays(server.model, env)) == []
        assert (told.attempts.successes, told.attempts.n) == (1, 2)  # what was recorded, judged by the tests
        assert told.forks.n > 20


@pytest.mark.slow
def test_no_step_stands_out_where_none_lost_it(repo: Path, tmp_path: Path) -> None:
    run, env = tmp_path / "run", harness(repo, tmp_path / "work")
    with chat_server(Coder("+-", "")) as server:
        recorded(repo, server.model, "+", run)
        found = ramify.why(run, model=server.model, env=env, samples=40)
    assert found.verdict == "none"
    assert "0% from the start" in found.headline
    assert "in Python give ramify.why and ramify.fork_run the same model= and env= again" in str(found.sections())


@pytest.mark.slow
def test_a_harness_that_asks_something_else_is_not_judged(repo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with chat_server(Coder("*", "")) as server:
        recorded(repo, server.model, "*", run)
        with pytest.raises(RamifyError, match=r"no recorded attempt could be played again to judge it.*differs at step 0"):
            ramify.why(run, model=server.model, env=harness(repo, tmp_path / "elsewhere"))
    with Run.open(run) as opened:
        assert summarise(opened).attempts is None


def test_a_spoken_call_is_read_back() -> None:
    from ramify.trace.message import Message, split_reply, unspoken

    calls = [{"id": "a", "type": "function", "function": {"name": "shell", "arguments": json.dumps({"command": "a\n(b)"})}}]
    for text in ("", "Now."):
        said, again = split_reply(unspoken(Message("assistant", text, {"tool_calls": calls}).spoken()))
        assert (said, [one["function"] for one in again]) == (text, [one["function"] for one in calls])
    assert [unspoken(text) for text in ("done", "f(x)", 'f({"a": })')] == ["done", "f(x)", 'f({"a": })']
