"""A real MCP server over stdio: its tools called, killed in mid-call, hung, surrounded by garbage, and always reaped."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import InfrastructureError, UserError
from ramify.env.protocol import Task, TaskSet
from ramify.jobs.play import fork_run, play
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.components import find_environment
from ramify.rollout.run import Episodes
from ramify.testing import check_env
from ramify.trace.db import Run

pytestmark = pytest.mark.slow
pytest.importorskip("mcp", reason="mcp is not installed: THE mcp DOOR IS NOT TESTED")
from ramify.integrations.environments.mcp import McpEnvironment  # noqa: E402

SERVER = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('mcp_server.py')))}"
BARE = shlex.quote(str(Path(__file__).with_name("bare_mcp_server.py")))
TASK = Task("count", {"prompt": "count to 3", "answer": "3", "split": "train"})
LONG = Sampling(max_tokens=400)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def environment(settings: str = "timeout=60 effects=add=sandboxed,pid=sandboxed", flags: str = "", **more: Any) -> McpEnvironment:
    return McpEnvironment(f"{settings} {SERVER} {flags}", tasks=TaskSet.of([TASK]), **more)


@pytest.fixture
def env() -> Iterator[Any]:
    made = environment().make()
    made.reset(TASK, 0)
    yield made
    made.close()


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not waited for counts as running."""
    return Path(f"/proc/{pid}").exists()


def test_the_tools_are_the_servers() -> None:
    made = environment()
    named = {tool["function"]["name"]: tool["function"] for tool in made.tools}
    assert named["add"]["description"] == "Add to the counter and tell what it shows."
    assert named["add"]["parameters"]["properties"]["amount"]["type"] == "integer"
    assert made.tools is made.tools


ODD: dict[str, tuple[Any, str]] = {
    "absent": ({}, "it has no inputSchema"),
    "null": ({"inputSchema": None}, "it has no inputSchema"),
    "text": ({"inputSchema": "{}"}, "is not an object"),
    "array": ({"inputSchema": {"type": "array"}}, 'has the type "array"'),
    "no type there is": (
        {"inputSchema": {"type": "object", "properties": {"a": {"type": "strin"}}}},
        "properties.a.type: 'strin'",
    ),
    "astray": ({"inputSchema": {"$schema": 7}}, "cannot be checked"),
    "add": ({"inputSchema": {}}, "another one has its name"),
}
SOUND: dict[str, Any] = {
    "no type": {"inputSchema": {}},
    "odd beside": {"inputSchema": {"type": "object"}, "outputSchema": 7, "annotations": "x", "description": None},
}


def test_an_odd_tool_is_named_and_left_out_and_the_others_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [{"name": name, **tool} for name, (tool, _) in ODD.items()] + [
        {"name": name, **tool} for name, tool in SOUND.items()
    ]
    source = Path(__file__).with_name("bare_mcp_server.py").read_text()
    (tmp_path / "odd.py").write_text(source.replace("*plain]", f"*plain, 7, *json.loads({json.dumps(json.dumps(listed))})]"))
    env = McpEnvironment(f"{shlex.quote(sys.executable)} {tmp_path / 'odd.py'}")
    names = [tool["function"]["name"] for tool in env.tools]
    assert names[0] == "add"
    assert names[-2:] == list(SOUND)
    assert not set(names[1:]) & set(ODD)
    episode: Any = env.make()
    episode.reset(TASK, 0)
    assert episode.step(call("add", amount=2)).text == "2"
    assert episode.step(call("odd beside", amount=2)).text == "4"
    assert not episode.step(call("null")).valid
    episode.close()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(ODD) + 1  # once, however many servers are started
    for name, (_, why) in ODD.items():
        assert any(f"the tool '{name}' is left out: " in line and why in line for line in told), name


def test_calls_are_run_by_the_server(env: Any) -> None:
    assert '"name": "add"' in env.system
    seen = env.step(call("add", amount=2))
    assert (seen.text, seen.role, seen.valid) == ("2", "tool", True)
    both = env.step(call("add", amount=1) + call("note", text="é🗝\n\x00</tool_call>"))
    assert both.text == "1. add: 3\n2. note: 1 notes"
    wrong = env.step(call("add", amount="many"))
    assert "valid integer" in wrong.text
    assert wrong.data["tool_results"][0]["error"] is True
    assert env.step(call("fail")).data["tool_results"][0]["error"] is True
    assert env.step(call("ad")).text == "error: there is no tool 'ad' (did you mean 'add'?)"
    assert env.step(call("flood", size=1_000_000)).text.endswith("(984,000 characters more)")
    assert "API" not in env.step(call("variables")).text
    assert [one["name"] for one in env.judged()] == ["add", "add", "note", "add", "fail", "flood", "variables"]
    end = env.step("3")
    assert (end.terminated, end.outcome) == (True, True)


def test_no_secret_of_the_environment_reaches_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_API_KEY", "canary")
    made = environment().make()
    made.reset(TASK, 0)
    assert "RAMIFY_API_KEY" not in made.step(call("variables")).text
    made.close()


def test_a_server_of_another_make_conforms() -> None:
    made = McpEnvironment(f"timeout=60 {shlex.quote(sys.executable)} {BARE}", tasks=TaskSet.of([TASK]))
    made.actions = lambda task, snapshot: [call("add", amount=1), call("add"), "3"]  # type: ignore[attr-defined]
    assert check_env(made, tasks=1, turns=3) == []


def script(messages: Any, key: int) -> str:
    turns = sum(m.role == "assistant" for m in messages)
    return call("add", amount=1 + (key % 3 == 0)) if turns < 3 else messages[-1].text


def test_rollout_and_fork_in_a_new_process_memory(tmp_path: Path) -> None:
    model, made = ScriptedModel(script, tokens=False), environment("timeout=60 effects=add=sandboxed at_once=3")
    attempts = play(model, made, [TASK], attempts=5, out=tmp_path / "run", sampling=LONG)
    assert {a.failure for a in attempts} == {None}
    assert {a.outcome for a in attempts} == {True, False}
    done = fork_run(tmp_path / "run", attempts[0].turns[2].node.id, n=3, model=model, env=made)
    assert [a.replayed for a in done.arm.attempts] == [2, 2, 2]
    assert done.arm.scored == 3


@pytest.mark.parametrize(
    ("tool", "seconds", "message"),
    [("die", 60, "fails in 'die': MCPError: Connection closed"), ("hang", 10, "no answer in 10 s")],
)
def test_a_server_that_dies_or_hangs_is_a_failure_on_the_tree_and_is_reaped(
    tmp_path: Path, tool: str, seconds: int, message: str
) -> None:
    pids: list[int] = []

    def reply(messages: Any, key: int) -> str:
        turn = sum(m.role == "assistant" for m in messages)
        if turn == 1:
            pids.append(int(messages[-1].text))
        return [call("pid"), call(tool) if len(pids) % 2 else call("add", amount=3), "3"][turn]

    made = McpEnvironment(f"timeout={seconds} at_once=4 {shlex.quote(sys.executable)} {BARE}", tasks=TaskSet.of([TASK]))
    attempts = play(ScriptedModel(reply, tokens=False), made, [TASK], attempts=6, out=tmp_path / "run", sampling=LONG)
    failed = [a for a in attempts if a.failure]
    assert len(failed) == 3, "siblings continue"
    assert all(str(a.failure).startswith("tool: ") and message in str(a.failure) for a in failed)
    assert all(a.outcome for a in attempts if not a.failure)
    assert pids
    assert not any(map(alive, pids))
    with Run.open(tmp_path / "run") as run:
        assert sum(record.failure is not None for record in run.attempts()) == len(failed)


def test_the_first_servers_of_a_process_may_start_at_once() -> None:
    code = (
        "import sys, threading; from ramify.integrations.environments import mcp\n"
        "ready, told = threading.Barrier(8), []\n"
        "def count():\n"
        "    ready.wait(); server = mcp.ToolServer(sys.argv[1:], 60)\n"
        "    told.append([server.call('add', {'amount': 1}).content[0].text for _ in range(4)]); server.close()\n"
        "threads = [threading.Thread(target=count) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert told == [['1', '2', '3', '4']] * 8, told\n"
        "assert sum(t.name == 'ramify-mcp' for t in threading.enumerate()) == 1\n"
    )
    command = [sys.executable, "-c", code, sys.executable, *shlex.split(BARE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_killed_from_outside_in_mid_episode(env: Any) -> None:
    pid = int(env.step(call("pid")).text)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="tool: the MCP server"):
        env.step(call("add", amount=1))
    env.close()
    assert not alive(pid)
    env.reset(TASK, 0)
    assert env.step(call("add", amount=1)).text == "1"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{SERVER} --silent", "does not start: no answer in 2 s"),
        (f"{SERVER} --broken", r"does not start: .*\(its last words: no such configuration\)"),
        ("true", "does not start"),
        ("cat", "does not start"),
        ("yes", "does not start"),
    ],
)
def test_what_is_no_server_is_a_failed_attempt(tmp_path: Path, command: str, message: str) -> None:
    made = McpEnvironment(f"timeout={2 if 'broken' not in command else 60} {command}", tasks=TaskSet.of([TASK]))
    (attempt,) = play(ScriptedModel(["3"], tokens=False), made, [TASK], out=tmp_path / "run")
    assert attempt.turns == ()
    with pytest.raises(InfrastructureError, match=message):
        raise InfrastructureError("tool", str(attempt.failure))
    if command == "true":
        with pytest.raises(InfrastructureError, match="does not start"):
            _ = made.tools


def test_garbage_between_the_messages_is_passed_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    noisy = tmp_path / "noisy.sh"
    noisy.write_text(
        f"(while sleep 0.05; do echo 'this is {{not JSON'; echo; echo '{{\"jsonrpc\": 1}}'; done) &\nexec {SERVER}\n"
    )
    made = McpEnvironment(f"timeout=60 sh {shlex.quote(str(noisy))}", tasks=TaskSet.of([TASK])).make()
    made.reset(TASK, 0)
    assert [made.step(call("add", amount=1)).text for _ in range(10)] == [str(i) for i in range(1, 11)]
    pid = int(made.step(call("pid")).text)
    made.close()
    assert not alive(pid)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ("shapeless", "fails in 'shapeless': ValidationError: content: Input should be a valid list (CallToolResult)"),
        ("refuse", "fails in 'refuse': MCPError: no such method"),
        ("half", "fails in 'half': MCPError: Connection closed"),
    ],
)
def test_an_answer_that_is_none_is_a_failure_in_one_line(tool: str, message: str) -> None:
    made = McpEnvironment(f"timeout=60 {shlex.quote(sys.executable)} {BARE}", tasks=TaskSet.of([TASK])).make()
    made.reset(TASK, 0)
    with pytest.raises(InfrastructureError) as caught:
        made.step(call(tool))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    made.reset(TASK, 0)
    assert made.step(call("stray", amount=2)).text == "2", "bytes that are no text, no JSON or nobody's answer are passed over"
    made.close()


def test_a_server_whose_answers_or_state_are_not_its_own_is_found_out(tmp_path: Path) -> None:
    made = McpEnvironment(f"timeout=60 {shlex.quote(sys.executable)} {BARE}", tasks=TaskSet.of([TASK]))
    made.actions = lambda task, snapshot: [call("pid")]  # type: ignore[attr-defined]
    found = check_env(made, tasks=1, turns=2)
    assert {p.check for p in found} >= {"reset", "sharing"}, found
    shared = tmp_path / "shared.py"
    shared.write_text(Path(shlex.split(BARE)[0]).read_text().replace("count += ", "count = next_count() + "))
    text = shared.read_text().replace("count = 0\n", f"FILE = {str(tmp_path / 'count')!r}\ncount = 0\n", 1)
    keep = "def next_count():\n    with open(FILE, 'a+') as file:\n        file.write('x')\n        return file.tell()\n\n\n"
    shared.write_text(text.replace("def answer", keep + "def answer", 1))
    made = McpEnvironment(f"timeout=60 {shlex.quote(sys.executable)} {shlex.quote(str(shared))}", tasks=TaskSet.of([TASK]))
    made.actions = lambda task, snapshot: [call("add", amount=1)]  # type: ignore[attr-defined]
    assert {p.check for p in check_env(made, tasks=1, turns=2)} >= {"reset", "sharing"}


def test_a_server_that_ignores_the_end_is_killed() -> None:
    made = environment(flags="--stubborn").make()
    made.reset(TASK, 0)
    pid = int(made.step(call("pid")).text)
    made.close()
    assert not alive(pid)


def test_servers_end_with_the_process_that_started_them() -> None:
    code = (
        "from ramify.integrations.environments.mcp import McpEnvironment\n"
        "from ramify.env.protocol import Task, TaskSet; import sys\n"
        "task = Task('a', {'prompt': 'b'})\n"
        "env = McpEnvironment(sys.argv[1], tasks=TaskSet.of([task])).make(); env.reset(task, 0)\n"
        "print(env.step(sys.argv[2]).text)\n"
    )
    command = [sys.executable, "-c", code, f"timeout=60 {SERVER} --stubborn", call("pid")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not alive(int(done.stdout))


def test_forks_notice_a_server_whose_answers_vary(tmp_path: Path) -> None:
    replies = [call("pid"), call("add", amount=3), "3"]
    with Run.create(tmp_path / "run", {}) as run:
        made = Episodes(Agent(ScriptedModel(replies, tokens=False), sampling=LONG), environment(), run)
        first = asyncio.run(made.attempt("t", TASK, 0))
        again = asyncio.run(made.branch("t", TASK, first.turns[1].answer.id, 1))
        assert "differs at step 1" in str(again.failure)


def test_the_tasks_file_and_the_grader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"id": f"t{i}", "prompt": f"add {i}", "want": i}) + "\n" for i in range(12)))
    (tmp_path / "own_grade.py").write_text(
        "def grade(task, answer, calls):\n    return calls[-1]['text'] == str(task.data['want']) and calls[-1]['name'] == 'add'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made: Any = find_environment(f"mcp:tasks={tasks} grade=own_grade:grade timeout=60 {SERVER}")
    task = next(iter(made.task_set("train", 1)))
    env = made.make()
    env.reset(task, 0)
    env.step(call("add", amount=task.data["want"]))
    assert env.step("done").outcome is True
    env.close()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("mcp", "needs a command"),
        ("mcp:timeout=3", "needs a command"),
        ("mcp:no-such-command-here x", "there is no command 'no-such-command-here'"),
        ("mcp:tmeout=3 cat", "did you mean 'timeout'"),
        ("mcp:timeout=soon cat", "timeout must be a positive number"),
        ("mcp:at_once=0 cat", "at_once must be a positive number"),
        ("mcp:tasks=/no/such/file cat", "cannot read"),
        ("mcp:grade=nowhere:grade cat", "nothing that can be imported"),
        ("mcp:'cat", "cannot read its command"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_runs(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_environment(spec)


def test_a_environment_without_tasks_says_so() -> None:
    with pytest.raises(UserError, match="give tasks=FILE"):
        find_environment("mcp:cat").task_set("train", 1)
