"""`ramify record`: somebody's agent as it is, in a real git repository, with a real client, a check that decides, and forks."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import CODER, ChatServer, call, chat_server, results
from command import Verb

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.integrations.harnesses.commands import CommandSettings
from ramify.integrations.harnesses.worktrees import Worktree, base_commit, git
from ramify.trace.db import Run

CHECK = f"{sys.executable} -c 'from area import area; assert area(3, 4) == 12'"
CLIENT = """
import json, os, subprocess, sys, time, uuid
from openai import OpenAI
assert os.environ["PWD"] == os.getcwd()  # what opencode goes by
client = OpenAI()
titled = client.chat.completions.create(model="weak", messages=[{"role": "user", "content": "A title for: " + sys.argv[1]}])
now = f"Session {uuid.uuid4()}, {time.strftime('%Y-%m-%d %H:%M:%S')}, in {os.getcwd()}."
messages = [{"role": "system", "content": now}, {"role": "user", "content": sys.argv[1]}]
tools = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object", "properties": {}}}}]
while True:
    answer = client.chat.completions.create(model="strong", messages=messages, tools=tools, user=str(uuid.uuid4()))
    said = answer.choices[0].message
    messages.append(said)
    if not said.tool_calls:
        break
    for one in said.tool_calls:
        began = time.time()
        done = subprocess.run(json.loads(one.function.arguments)["command"], shell=True, capture_output=True, text=True)
        text = f"{done.stdout}{done.stderr} in {time.time() - began:.4f}s"
        messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
print(said.content)
"""
"""A coding harness on the openai client: a title by a weak model, then a conversation with what differs from run to run."""


def script(operators: str, commands: tuple[str, ...] = ("cat area.py", "{write}")) -> Callable[[dict[str, Any]], dict[str, Any]]:
    turn = itertools.cycle(operators)

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        seen = len(results(body))
        if "tools" not in body or seen == len(commands):
            return {"content": "done"}
        command = commands[seen]
        if command == "{write}":
            command = f"printf 'def area(a, b):\\n    return a {next(turn)} b\\n' > area.py"
        return {"content": None, "tool_calls": [call("shell", f"s{seen}", command=command)]}

    return reply


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository, in the folder that is the current one; the harnesses stand beside it."""
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "coder.py").write_text(CODER)
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "area.py").write_text("# to do\n")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(script("+*")) as found:
        yield found


def record(server: ChatServer, *options: str, harness: str = "coder.py", n: int = 2, check: str = CHECK) -> list[str]:
    command = [sys.executable, str(Path.cwd() / harness), "Write area(a, b) in area.py."]
    decides = ["--check", check] if check else []
    return [
        *("record", "-n", str(n), "--repo", "repo", "--run", "run", "--model", server.model, "--concurrency", "1"),
        *(*decides, *options, "--", *command),
    ]


def outcomes(purpose: str = "rollout") -> list[bool | None]:
    with Run.open("run") as run:
        found = [one for info in run.trees() for one in run.attempts(info.name) if one.purpose == purpose]
    return [one.outcome for one in sorted(found, key=lambda one: one.index)]


def failures() -> list[str]:
    with Run.open("run") as run:
        return [str(one.failure) for info in run.trees() for one in run.attempts(info.name) if one.failure]


def reply_with(text: str) -> str:
    """The first reply in the run that makes a call with ``text`` in it."""
    with Run.open("run") as run:
        nodes = [node for info in run.trees() for node in run.tree(info.name).nodes.values() if node.role == "assistant"]
    return next(node.id for node in nodes if text in json.dumps(node.data.get("tool_calls")))


def left(repo: Path) -> list[str]:
    """Work trees of the repository that are still there."""
    alternates = Path(tempfile.gettempdir()).glob("ramify-*/worktree/.git/objects/info/alternates")
    return [str(file) for file in alternates if str(repo) in file.read_text()]


def test_a_client_as_it_is_is_recorded_continued_and_forked(
    repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str], verb: Verb
) -> None:
    assert main(record(server, harness="client.py", n=1)) == 0
    assert main(record(server, harness="client.py")) == 0  # the same command, with one attempt more
    assert "up to 2 conversations" in capsys.readouterr().out
    assert outcomes() == [False, True]
    assert {body["model"] for body in server.bodies} == {"scripted"}
    place = {body["messages"][0]["content"].rpartition(" in ")[2] for body in server.asked}
    assert place == {"/ramify/worktree."}
    asked = len(server.asked)
    told = verb.json("fork", "run", reply_with("a + b"), "--n", "2")
    assert (told["fork"]["successes"], told["fork"]["n"]) == (1, 2), told
    assert len(server.asked) - asked == 4  # of each fork the step itself and the last reply: the rest was recorded
    assert (repo / "area.py").read_text() == "# to do\n"
    assert left(repo) == []


@pytest.mark.slow
def test_why_needs_nothing_more(repo: Path, verb: Verb) -> None:
    with chat_server(script("+**+*", ("cat area.py", "{write}", "cat area.py"))) as server:
        assert main(record(server)) == 0
        assert outcomes() == [False, True]
        told = verb.json("why", "run", "--samples", "60")
    assert told["verdict"] == "step"
    assert "a + b" in told["action"]


@pytest.mark.parametrize(
    ("ends", "check", "expected"),
    [
        ("sys.exit(3)", CHECK, (False, True)),  # the check says it, whatever the command's exit code
        ("sys.exit(3)", "", (False, False)),  # without one the exit code does
        ("", "grep -q 'to do' area.py || kill -9 $$", (None, None)),
        ("", "test ! -e area.py || kill -11 $$", (False, False)),  # a program that crashes is wrong
    ],
)
def test_who_decides(
    repo: Path,
    server: ChatServer,
    capsys: pytest.CaptureFixture[str],
    ends: str,
    check: str,
    expected: tuple[bool | None, ...],
) -> None:
    Path("coder.py").write_text(f"{CODER}\n{ends}\n")
    code = main(record(server, check=check))
    assert tuple(outcomes()) == expected
    assert code == (1 if expected == (None, None) else 0)
    assert all("was ended from outside" in why for why in failures())
    assert ("2 x exit code 3: done" in capsys.readouterr().out) == bool(ends)


def test_what_is_not_the_models_fault(repo: Path, server: ChatServer, verb: Verb) -> None:
    Path("coder.py").write_text("import sys; sys.exit('no such option')")
    assert main(record(server, n=1)) == 1
    assert failures() == ["env: the command ended with exit code 1 before it asked a model: no such option"]
    Path("coder.py").write_text(CODER)
    model, server.model = server.model, "chat:m@http://127.0.0.1:9/v1"
    other = record(server, n=1)
    other[other.index("run")] = "other"
    assert main(other) in (1, 4)
    assert left(repo) == []
    limited = [("few" if word == "run" else word) for word in record(server, "--calls", "1", n=1)]
    server.model = limited[limited.index("--model") + 1] = model
    assert "1 x cut off after the most calls" in verb.says(*limited)
    assert "another seconds: 3600, now 1.0" in verb.refused(*record(server, "--seconds", "1"))


def test_a_check_that_takes_too_long_decides_nothing(repo: Path, server: ChatServer) -> None:
    slow = "grep -q 'to do' area.py || sleep 60"
    assert main(record(server, "--check-seconds", "0.5", n=1, check=slow)) == 1
    assert failures() == [f"scorer: the check `{slow}` took longer than 0.5 s"]


def test_a_fork_that_goes_another_way_says_so(repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]) -> None:
    told = 'os.environ.get("ASKED", "plainly")'
    Path("coder.py").write_text(CODER.replace('" The folder is "', f'{told} + " The folder is "'))
    assert main(record(server, n=1)) == 0
    os.environ["ASKED"] = "nicely"
    try:
        assert main(["fork", "run", reply_with("area.py"), "--n", "1"]) == 1
    finally:
        del os.environ["ASKED"]
    assert "differs at step 0" in capsys.readouterr().err + "".join(failures())
    assert outcomes("fork") == [None]


def test_no_key_reaches_the_command_or_the_run(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"OPENAI_API_KEY": "key-of-openai-77", "RAMIFY_API_KEY": "key-of-ramify-77", "GITHUB_TOKEN": "token-of-github-77"}
    field = '"model": "m", "metadata": {"api_key": "key-in-metadata-77"}'
    assert CODER.count('"model": "m"') == 1
    Path("coder.py").write_text(CODER.replace('"model": "m"', field))
    several = 'line-of-deploy-77 "quoted"\nback\\slash-of-deploy-77\n'  # in JSON it is written otherwise
    for name, value in (secrets | {"DEPLOY_KEY": several}).items():
        monkeypatch.setenv(name, value)
    with chat_server(script("*", ("env; echo $GITHUB_TOKEN > token.txt; cat token.txt", "{write}"))) as server:
        assert main(record(server, n=1)) == 0
        assert "GITHUB_TOKEN=[redacted]" in results(server.bodies[-1])[0]
        shown = json.dumps(server.bodies)
    stored = b"".join(file.read_bytes() for file in Path("run").rglob("*") if file.is_file())
    assert not [
        value for value in (*secrets.values(), "of-deploy-77", "key-in-metadata-77") if value.encode() in stored or value in shown
    ]
    held = record(server, n=1)
    assert main([*held, "--api-key", "sk-" + "a" * 24]) == 2


def test_a_run_from_elsewhere_starts_its_command_on_the_users_word_alone(
    repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(record(server, n=1)) == 0
    node = reply_with("area.py")
    assert main(["export", "run", "run.jsonl", "--to", "jsonl"]) == 0
    assert main(["import", "run.jsonl", "--run", "theirs"]) == 0
    asked = len(server.bodies)
    capsys.readouterr()
    for words in (["fork", "theirs", node, "--n", "1"], ["why", "theirs"], ["resume", "theirs"]):
        assert main(words) == 2
        assert "coder.py" in (said := capsys.readouterr().err) or "was not made by" in said
    assert len(server.bodies) == asked
    assert main(["fork", "theirs", node, "--n", "1", "--trust"]) == 0


def test_what_an_attempt_does_to_its_branches_stays_in_its_work_tree(repo: Path) -> None:
    subprocess.run(["git", "-C", str(repo), "config", "user.name", "me"], check=True)
    subprocess.run(["git", "-C", str(repo), "config", "http.extraheader", "Authorization: secret"], check=True)
    subprocess.run(["git", "-C", str(repo), "tag", "v1"], check=True)
    base = base_commit(repo, "HEAD")
    refs = ["for-each-ref", "--format=%(refname)"]
    before = git(repo, *refs).splitlines()
    for _ in range(2):  # the second finds nothing of the first
        tree = Worktree(repo, base)
        try:
            assert git(tree.folder, *refs).splitlines() == before
            assert git(tree.folder, "config", "user.name") == "me"
            assert "secret" not in (tree.folder / ".git" / "config").read_text()
            made = tree.ended(
                "git checkout -q -b mine && echo new > new.txt && git add -A && git commit -qm mine && git stash list", {}
            )
            assert (made.code, made.out) == (0, "")
            assert (
                tree.ended("git tag theirs && git branch -D mine 2>&1; git log --oneline | wc -l", {}).out.strip().endswith("2")
            )
            step = tree.commit()
            tree.ended("rm new.txt", {})
            assert tree.commit() != step
            tree.back(step)
            assert (tree.folder / "new.txt").read_text() == "new\n"
        finally:
            tree.close()
    assert [ref for ref in git(repo, *refs).splitlines() if not ref.startswith("refs/ramify/")] == before
    assert git(repo, "show", f"{step}:new.txt") == "new"  # though the attempt had stored the file with its own objects
    assert git(repo, "fsck", "--full", "--strict") == ""
    assert left(repo) == []


def test_nothing_outlives_a_command(repo: Path) -> None:
    tree = Worktree(repo, base_commit(repo, "HEAD"))
    leaves = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    try:
        done = tree.ended([sys.executable, "-c", f"{leaves}print(os.getpid())"], {})
        assert done.code == 0
        mark = tree._mark.encode()
        alive = [one for one in Path("/proc").iterdir() if one.name.isdecimal() and mark in environment(one)]
        assert alive == []
        assert tree.ended("sleep 600", {}, 0.2).late
    finally:
        tree.close()
    assert left(repo) == []


def environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("struck", [signal.SIGINT, signal.SIGKILL])
def test_struck_it_leaves_nothing_and_continues(repo: Path, server: ChatServer, struck: int) -> None:
    coder = CODER.replace("while True:", "import time\nsubprocess.Popen(['sleep', '600'])\nwhile not time.sleep(1):")
    if struck == signal.SIGKILL:  # also where a tool gives something else each time: the attempt goes on from there
        coder = coder.replace('"content": done.stdout', '"content": done.stdout + os.urandom(3).hex()')
    Path("coder.py").write_text(coder)
    command = [sys.executable, "-m", "ramify", *record(server)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(server.asked) < 5 and process.poll() is None:  # in the second attempt
        time.sleep(0.02)
    process.send_signal(struck)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if struck == signal.SIGINT else -struck)
    assert outcomes() == [False]
    if struck == signal.SIGINT:
        assert "`ramify resume run`" in said
        assert left(repo) == []
    before = len(server.asked)
    assert main(record(server)) == 0
    assert [one is None for one in outcomes()] == [False, False]
    assert len(server.asked) - before <= 2  # the replies that were there are not asked for again
    assert left(repo) == []


def test_a_folder_of_a_repository_is_where_command_and_check_run(
    repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    part = repo / "part"
    part.mkdir()
    (repo / "area.py").rename(part / "area.py")
    for words in (["add", "-A"], ["-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qm", "a part"]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    (part / "coder.py").write_text(CODER)
    line = [("repo/part" if word == "repo" else word) for word in record(server)]
    beside = [("coder.py" if "coder.py" in word else "other" if word == "run" else word) for word in line]
    assert main(beside) == 1
    assert "note: 'coder.py' is not in HEAD of repo/part" in " ".join(capsys.readouterr().err.split())
    assert main(line) == 0
    assert {body["messages"][0]["content"].rpartition(" ")[2] for body in server.asked} == {"/ramify/worktree/part"}
    assert outcomes() == [False, True]
    assert main(["fork", "run", reply_with("a + b"), "--n", "1"]) == 0
    assert left(repo) == []


def test_mistakes_are_one_sentence(repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]) -> None:
    (repo / "new").mkdir()
    line = record(server, n=1)
    told = {
        "there is no command 'no-such-agent'": [*line[: line.index("--") + 1], "no-such-agent"],
        "CMD... is missing: the agent's command, after --": line[: line.index("--")],
        "'./mine.sh' is not in HEAD of repo": [*line[: line.index("--") + 1], "./mine.sh"],
        "there is no command /no/such": [*line[: line.index("--") + 1], "/no/such"],
        "repo/new is not in the commit": [("repo/new" if word == "repo" else word) for word in line],
        "cannot be run in a fresh checkout": record(server, check="no-such-check -q"),
        "is not a git repository": [("." if word == "repo" else word) for word in line],
        "--model says who answers": [word for word in line if word not in ("--model", server.model)],
    }
    for said, words in told.items():
        assert main(words) == 2, said
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    with pytest.raises(UserError, match="what `ramify record` stores"):
        CommandSettings.of('{"command": []}')


SPEAKS = """
import os, subprocess, sys
from {package} import {client}
client = {client}()
text = sys.argv[1] + " The folder is " + os.getcwd()
tool = {{"name": "shell", "{schema}": {{"type": "object", "properties": {{"command": {{"type": "string"}}}}}}}}
"""
MESSAGES = (
    SPEAKS.format(package="anthropic", client="Anthropic", schema="input_schema")
    + """
messages = [{"role": "user", "content": text}]
while True:
    with client.messages.stream(model="m", max_tokens=99, messages=messages, tools=[tool]) as stream:
        said = stream.get_final_message()
    messages.append({"role": "assistant", "content": said.content})
    calls = [one for one in said.content if one.type == "tool_use"]
    if not calls:
        break
    results = []
    for one in calls:
        done = subprocess.run(one.input["command"], shell=True, capture_output=True, text=True)
        results.append({"type": "tool_result", "tool_use_id": one.id, "content": done.stdout})
    messages.append({"role": "user", "content": results})
assert client.messages.count_tokens(model="m", messages=messages).input_tokens > 0
"""
)
RESPONSES = (
    SPEAKS.format(package="openai", client="OpenAI", schema="parameters")
    + """
import json
items = [{"role": "user", "content": text}]
while True:
    with client.responses.stream(model="m", input=items, tools=[{"type": "function", **tool}], store=False) as stream:
        said = stream.get_final_response()
    items += [one.to_dict() for one in said.output]
    calls = [one for one in said.output if one.type == "function_call"]
    if not calls:
        break
    for one in calls:
        done = subprocess.run(json.loads(one.arguments)["command"], shell=True, capture_output=True, text=True)
        items.append({"type": "function_call_output", "call_id": one.call_id, "output": done.stdout})
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("program", [MESSAGES, RESPONSES], ids=["anthropic", "responses"])
def test_clients_of_the_other_protocols(repo: Path, server: ChatServer, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("anthropic" if "anthropic" in program else "openai")
    Path("coder.py").write_text(program)
    assert main(record(server)) == 0
    assert failures() == []
    assert outcomes() == [False, True]
    asked = len(server.asked)
    assert main(["fork", "run", reply_with("a + b"), "--n", "2"]) == 0
    assert sorted(map(str, outcomes("fork"))) == ["False", "True"]
    assert len(server.asked) - asked == 4
    assert left(repo) == []


HARNESSES = {
    "mini": (
        "mini -m openai/scripted -y --exit-immediately -o /dev/null -t {task}",
        ("cat area.py", "{write}", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ),
    "aider": (
        "aider --model openai/scripted --edit-format diff --yes-always --no-check-update --no-analytics --no-auto-commits "
        "--no-show-model-warnings --map-tokens 0 --message {task} area.py",
        (),
    ),
}
"""Real programs: how they are started, and what their model has them do."""


def harness_script(commands: tuple[str, ...]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    turn = itertools.cycle("+*")

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        done = sum(message["role"] == "assistant" for message in body["messages"])
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        if "bash" in names:
            code = f"def area(a, b):\\n    return a {next(turn) if done == 1 else ''} b\\n"
            command = commands[done].replace("{write}", f"printf '{code}' > area.py")
            return {"content": "Next.", "tool_calls": [call("bash", f"b{done}", command=command)]}
        if "SEARCH" in json.dumps(body["messages"]):
            new = f"def area(a, b):\n    return a {next(turn)} b"
            return {
                "content": f"I write it.\n\narea.py\n```python\n<<<<<<< SEARCH\n# to do\n=======\n{new}\n>>>>>>> REPLACE\n```\n"
            }
        return {"content": "red"}

    return reply


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HARNESSES)
def test_a_real_harness(
    name: str, repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `.ci/harnesses`, which installs each in an environment of its own and names their folder."""
    line, commands = HARNESSES[name]
    where = os.environ.get("RAMIFY_HARNESSES", "")
    if not (Path(where) / name / "bin" / name).exists():
        pytest.skip("RAMIFY_HARNESSES names no folder with it (.ci/harnesses makes one): NOT TESTED")
    settings = {"PATH": f"{where}/{name}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for key, value in (settings | {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}).items():
        monkeypatch.setenv(key, value)
    words = [word.replace("{task}", "Write area(a, b).") for word in line.split()]
    with chat_server(harness_script(commands)) as server:
        options = record(server)
        assert main([*options[: options.index("--") + 1], *words]) == 0
        assert failures() == []
        assert outcomes() == [False, True]
        capsys.readouterr()
        assert main(["why", "run", "--samples", "4", "--first", "2", "--describe", "0", "--json"]) in (0, 3)
        with Run.open("run") as run:
            lost = min((one for info in run.trees() for one in run.attempts(info.name)), key=lambda one: one.index)
            step = run.node(str(run.node(lost.leaf).parent)).id
        assert main(["fork", "run", step, "--n", "1"]) == 0
    assert failures() == []
    assert left(repo) == []
