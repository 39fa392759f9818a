"""`ramify test RUN STEP`: an agent of the OpenAI client, recorded, asked again without a model and with one that tosses a coin,
and written as a pytest file."""

from __future__ import annotations

import ast
import itertools
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Verb

import ramify
from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.jobs.regression import write_test
from ramify.stats import RateTest
from ramify.testing import RecordedStep, recorded_step
from ramify.testing.steps import ACCEPT
from ramify.trace.db import Run
from ramify.web.way import answers

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))
from chat_server import ChatServer, call, chat_server, results

AGENT = """
import json
import ramify
from openai import OpenAI

SYSTEM = "You book rooms.\\nLook a room up before you book it."
BOOK = "Book a room."


@ramify.tool("replay")
def look_up(room):
    with open("looked", "a") as file:
        file.write("x")
    return {"room": room, "price": 100 * room}


@ramify.tool("sandboxed")
def book(room):
    return {"booked": room}


def shape(name, description):
    about = {"type": "object", "properties": {"room": {"type": "integer"}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": about}}


def booker(prompt, url):
    client, tools = OpenAI(base_url=url, api_key="none", max_retries=0), {"look_up": look_up, "book": book}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    shown = [shape("look_up", "Price of a room."), shape("book", BOOK)]
    while True:
        reply = client.chat.completions.create(model="m", messages=messages, tools=shown).choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            return reply.content
        for one in reply.tool_calls:
            result = tools[one.function.name](**json.loads(one.function.arguments))
            messages.append({"role": "tool", "tool_call_id": one.id, "content": json.dumps(result)})


def cheaper(task, answer):
    return answer == "Booked 4."


env = ramify.agent(booker, tools=[look_up, book], grade=cheaper, tasks=[{"id": "room", "prompt": "Book 4 or 7, the cheaper."}])
"""


class Booker:
    """Looks room 4 up, then books one of ``rooms`` in turn."""

    def __init__(self) -> None:
        self.rooms = itertools.cycle([4])

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        seen = results(body)
        if "tools" not in body:
            return {"content": "red"}
        if not seen:
            return {"tool_calls": [call("look_up", "c1", room=4)]}
        if len(seen) == 1:
            room = next(self.rooms)
            return {"tool_calls": [call("book", "c2", room=room)]} if room else {"content": "No room is free."}
        return {"content": f"Booked {json.loads(seen[1])['booked']}."}


@pytest.fixture(scope="module")
def booker() -> Booker:
    return Booker()


@pytest.fixture(scope="module")
def server(booker: Booker) -> Iterator[ChatServer]:
    with chat_server(booker) as found:
        yield found


@pytest.fixture(scope="module")
def made(server: ChatServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("booker")
    (folder / "agent.py").write_text(AGENT)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["rollout", "--env", "agent.py:env", "--model", server.model, "--attempts", "2", "--out", "run"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def here(made: Path, booker: Booker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the agent and the run, that the test is in."""
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    booker.rooms = itertools.cycle([4])
    return tmp_path / "work"


def booking(run: str = "run") -> str:
    """The reply that books."""
    with Run.open(run) as opened:
        nodes = opened.tree(opened.trees()[0].name).nodes.values()
        return next(node.id[:12] for node in nodes if node.role == "assistant" and "book" in node.message.spoken())


def edit(old: str, new: str) -> None:
    text = Path("agent.py").read_text()
    assert old in text
    Path("agent.py").write_text(text.replace(old, new))


def renamed() -> str:
    """A file with the agent as it is now: a module is imported once."""
    text = Path("agent.py").read_text()
    name = f"agent_{abs(hash(text))}.py"
    Path(name).write_text(text)
    return name


def step(file: str = "test_room.py") -> RecordedStep:
    """As a written file reads it, with the agent as it is now."""
    return recorded_step(file, agent=f"{renamed()}:env")


def test_asked_without_a_model(here: Path, server: ChatServer, verb: Verb) -> None:
    del server.bodies[:]
    looked = Path("looked").read_text()
    found = verb.json("test", "run", booking(), "--n", "0", "--junit", "out.xml")
    assert (found["same"], found["difference"], found["n"]) == (True, "", 0)
    assert server.bodies == []
    assert Path("looked").read_text() == looked  # the recorded result was given
    suite = ET.parse("out.xml").getroot()[0]
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("asks as recorded", []),
        ("the agent calls book", ["properties", "skipped"]),
    ]


def test_a_written_file_moves_with_its_data_and_shows_what_changed(here: Path, server: ChatServer) -> None:
    assert main(["test", "run", booking(), "--write", "test_room.py"]) == 0
    Path("deep").mkdir()
    for name in ("test_room.py", "test_room.json"):
        shutil.move(name, f"deep/{name}")
    step("deep/test_room.py").asks_as_recorded()
    written = Path("deep/test_room.json").read_text()
    assert '"Look a room up before you book it."' in written  # a line of the prompt is a line of the file
    edit("Look a room up before you book it.", "Book at once.")
    with pytest.raises(AssertionError) as failed:
        step("deep/test_room.py").asks_as_recorded()
    assert "in request 1 of 2" in str(failed.value)
    assert "\n-Look a room up before you book it.\n+Book at once.\n" in str(failed.value)
    edit("Book at once.", "Look a room up before you book it.")
    edit('{"room": {"type": "integer"}}', '{"room": {"type": "string"}}')
    with pytest.raises(AssertionError, match=r'(?s)@@ \[tool look_up\] @@.*-.*"integer"\n\+.*"string"'):
        step("deep/test_room.py").asks_as_recorded()
    edit('{"room": {"type": "string"}}', '{"room": {"type": "integer"}}')
    edit("messages.append(reply)", "messages.append(reply); shown = shown[:1]")
    with pytest.raises(AssertionError, match=r"(?s)in request 2 of 2.*\n-\[tool book\]"):
        step("deep/test_room.py").asks_as_recorded()


def test_what_is_asked_now_can_be_accepted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["test", "run", booking(), "--write", "test_room.py"]) == 0
    edit("Price of a room.", "Price of a room, in euro.")
    monkeypatch.setenv(ACCEPT, "1")
    step().asks_as_recorded()
    monkeypatch.delenv(ACCEPT)
    step().asks_as_recorded()
    assert "in euro" in Path("test_room.json").read_text()


def test_an_agent_that_ends_before_the_step(here: Path) -> None:
    assert main(["test", "run", booking(), "--write", "test_room.py"]) == 0
    edit("        for one in reply.tool_calls:", "        return 'none'\n        for one in reply.tool_calls:")
    with pytest.raises(AssertionError, match="request 2 of 2 is not made: the agent has ended by then"):
        step().asks_as_recorded()


def test_a_rate_is_settled_and_stored(here: Path, server: ChatServer, booker: Booker, verb: Verb) -> None:
    found = verb.json("test", "run", booking(), "--at-least", "0.8")
    assert (found["verdict"], found["successes"], found["n"], found["same"]) == ("passed", 17, 17, True)
    del server.bodies[:]
    assert verb.json("test", "run", booking(), "--at-least", "0.8")["n"] == 17
    assert server.asked == []  # the run keeps the samples
    booker.rooms = itertools.cycle([4, 0])
    found = verb.json("test", "run", booking(), "--expect", "not:says:free", "--at-least", "0.8", code=1)
    assert found["verdict"] == "failed"
    assert found["n"] < 12
    assert next(iter(found["reasons"])) == "No room is free."
    assert found["measures"]["pass^2"]["value"] < 0.5
    assert "flip rate" in found["measures"]
    assert "pass^2" in verb.says("show", "run")


def test_a_task_by_its_outcome_and_a_step_that_lost(
    here: Path, booker: Booker, server: ChatServer, capsys: pytest.CaptureFixture[str], verb: Verb
) -> None:
    booker.rooms = itertools.cycle([7])
    found = verb.json("test", "run", "room", "--n", "3")
    assert (found["target"], found["successes"], found["n"]) == ("outcome", 0, 3)
    assert next(iter(found["reasons"])) == "Booked 7."
    assert main(["rollout", "--env", "agent.py:env", "--model", server.model, "--attempts", "1", "--out", "lost"]) == 0
    capsys.readouterr()
    assert main(["test", "lost", booking("lost"), "--n", "0"]) == 2
    assert "say with --expect what it should do" in " ".join(capsys.readouterr().err.split())
    assert verb.json("test", "lost", booking("lost"), "--n", "4", "--expect", "says:room.*7")["successes"] == 4


def test_two_versions_at_a_step_and_the_plan(
    here: Path, booker: Booker, server: ChatServer, capsys: pytest.CaptureFixture[str], verb: Verb
) -> None:
    coin = Booker()
    coin.rooms = itertools.cycle([4, 0, 0])
    with chat_server(coin) as other:
        assert main(["rollout", "--env", "agent.py:env", "--model", other.model, "--attempts", "1", "--out", "other"]) == 0
        found = verb.json("test", "run", booking(), "--against", "other", "--n", "12", "--junit", "out.xml")
        assert (found["of"], found["first"], found["p"] < 0.01) == ("samples", "other", True)
        assert found["difference"] == pytest.approx(8 / 12)
        assert main(["test", "other", booking("other"), "--against", "run", "--n", "12"]) == 1  # the new one is worse
        assert "differ here" in " ".join(capsys.readouterr().out.split())
    assert ET.parse("out.xml").getroot()[0].get("failures") == "0"
    plan = verb.json("test", "run", booking(), "--plan", "--at-least", "0.8")
    assert plan["rate"]["most"] < 60
    assert [row["each"] for row in plan["rows"]] == sorted((row["each"] for row in plan["rows"]), reverse=True)
    whole = verb.json("test", "run", "--plan")
    assert whole["rows"][1]["total"] == 2 * whole["rows"][1]["each"]


def test_whole_runs_as_junit_and_as_a_gate(here: Path, verb: Verb) -> None:
    found = verb.json("test", "run", "--at-least", "0.3", "--junit", "out.xml")
    assert found["surely"] > 0.3
    cases = {case.get("name"): case for case in ET.parse("out.xml").getroot()[0]}
    assert list(cases) == ["all tasks", "room"]
    told = {p.get("name"): p.get("value") for p in cases["all tasks"].iter("property")}
    assert told["ramify pass^2"] == "1"
    assert float(told["ramify success low"] or 1) < 1
    verb.json("test", "run", "--at-least", "0.8", "--junit", "out.xml", code=1)
    assert ET.parse("out.xml").getroot()[0].get("failures") == "1"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "--expect", "calls:x"], "--expect is about a step"),
        (["run", "STEP", "--at-least", "0.8", "--n", "3"], "takes no --n"),
        (["run", "STEP", "--at-least", "1"], "lies between 0 and 1"),
        (["run", "STEP", "--usual", "0.9"], "--usual says at which rate"),
        (["run", "STEP", "--write", "test-room.txt"], "names a Python file"),
        (["run", "STEP", "--write", "no/test_room.py"], "there is no folder"),
        (["run", "STEP", "--write", "agent.py"], "is there already"),
        (["run", "STEP", "--expect", "says:("], "not a regular expression"),
        (["run", "STEP", "--against", "run", "--n", "0"], "--against compares"),
        (["run", "--junit", "no/out.xml"], "there is no folder"),
        (["run", "zz"], "zz"),
    ],
)
def test_mistakes_of_a_call(here: Path, words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = [booking() if word == "STEP" else word for word in words]
    assert main(["test", *named]) == 2
    assert wanted in " ".join(capsys.readouterr().err.split())
    assert not Path("test_room.json").exists()


def test_a_file_that_holds_no_step_is_one_sentence(here: Path) -> None:
    assert main(["test", "run", booking(), "--write", "test_room.py"]) == 0
    record = json.loads(Path("test_room.json").read_text())
    for wrong in ("", "[]", "{}", json.dumps({**record, "steps": []}), json.dumps({**record, "steps": [{"messages": 1}]})):
        Path("test_room.json").write_text(wrong)
        with pytest.raises(UserError, match=r"test_room\.json"):
            recorded_step("test_room.py")
    Path("test_room.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="name it with agent="):
        recorded_step("test_room.py").asks_as_recorded()
    with pytest.raises(UserError, match="cannot read"):
        recorded_step("test_other.py")


def test_a_run_that_names_no_agent_asks_what_was_recorded(tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = {"task_id": "t", "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
    Path("log.jsonl").write_text(json.dumps({**lines, "reward": 1.0}) + "\n")
    assert main(["import", "log.jsonl", "--run", "log"]) == 0
    with Run.open("log") as run:
        node = next(n.id for n in run.tree(run.trees()[0].name).nodes.values() if n.role == "assistant")
    found = verb.json("test", "log", node, "--n", "0", "--write", "test_log.py")
    assert found["same"] is None
    assert "# def test_asks_as_recorded" in Path("test_log.py").read_text()
    assert main(["test", "log", node]) == 2  # nobody to ask
    with chat_server(lambda body: {"content": "4" if "tools" not in body else "5"}) as server:
        assert verb.json("test", "log", node, "--model", server.model, "--n", "3")["successes"] == 3


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sdk", "langchain"])
def test_an_agent_of_a_framework_under_pytest(kind: str, booker: Booker, server: ChatServer, tmp_path: Path) -> None:
    """The whole way of a person: recorded, written, run by a pytest of its own, changed, asked live."""
    pytest.importorskip(
        "agents" if kind == "sdk" else "langchain.agents", reason="the extra harnesses is not installed: NOT TESTED"
    )
    (tmp_path / "agent.py").write_text(FRAMEWORKS[kind])
    booker.rooms = itertools.cycle([4])
    ramify.play(server.model, f"{tmp_path}/agent.py:env", attempts=1, out=tmp_path / "run")
    node = booking(str(tmp_path / "run"))
    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests" / "test_room.py"
    assert main(["test", str(tmp_path / "run"), node, "--write", str(file)]) == 0
    file.write_text(file.read_text().replace(f"{tmp_path}/", ""))  # as of a run that was made in the folder

    def pytest_of(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, out = pytest_of("--ramify-live", "--junitxml", "out.xml")
    assert (code, "2 passed" in out, "17 of 17 runs succeeded" in out) == (0, True, True), out
    told = {p.get("name"): p.get("value") for p in ET.parse(tmp_path / "out.xml").getroot().iter("property")}
    assert (told["ramify runs"], told["ramify pass^8"]) == ("17", "1")
    booker.rooms = itertools.cycle([4, 0])
    text = (tmp_path / "agent.py").read_text()
    (tmp_path / "agent.py").write_text(text.replace("You book rooms.", "You book hotels.").replace("Price of", "Cost of"))
    code, out = pytest_of("--ramify-live", "--ramify-model", server.model)
    assert (code, "2 failed" in out, "flip rate" in out, "it said: No room is free." in out) == (1, True, True, True), out
    assert ("-You book rooms." in out, "+You book hotels." in out, "Cost of" in out) == (True, True, True), out


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_example_of_github_actions_runs(here: Path, server: ChatServer) -> None:
    """Its commands, as they stand, in a folder laid out as it expects."""
    yaml = pytest.importorskip("yaml")
    example = yaml.safe_load((Path(__file__).parents[2] / "examples" / "github-actions.yml").read_text())
    lines = [line for job in example["jobs"].values() for step in job["steps"] for line in step.get("run", "").splitlines()]
    commands = [line for line in lines if not line.startswith("pip install -r ")]
    assert [command.split()[:2] for command in commands] == [
        ["pytest", "tests/agent"],
        ["pytest", "tests/agent"],
        ["ramify", "rollout"],
        ["ramify", "rollout"],
        ["ramify", "test"],
    ]
    Path("tests/agent").mkdir(parents=True)
    assert main(["test", "run", booking(), "--write", "tests/agent/test_room.py"]) == 0
    for folder in ("before", "after"):
        Path(folder).mkdir()
        shutil.copy("agent.py", folder)
    env = os.environ | {"RAMIFY_MODEL": server.model, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(["sh", "-eu", "-c", command], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    told = {name: ET.parse(f"{name}.xml").getroot() for name in ("recorded", "live", "versions")}
    assert [root.find("testsuite").get("tests") for root in told.values()] == ["2", "2", "1"]  # type: ignore[union-attr]


FRAMEWORKS = {
    "sdk": '''
import ramify
from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI


@function_tool
@ramify.tool("pure")
def look_up(room: int) -> str:
    """Price of a room."""
    return f'{{"price": {100 * room}}}'


@function_tool
@ramify.tool("sandboxed")
def book(room: int) -> str:
    """Book a room."""
    return f'{{"booked": {room}}}'


def make(url):
    model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(base_url=url, api_key="none"))
    return Agent(name="Booker", instructions="You book rooms.", model=model, tools=[look_up, book])


env = ramify.agent(make, grade=lambda task, answer: answer == "Booked 4.", tasks=[{"id": "room", "prompt": "Book 4."}])
''',
    "langchain": '''
import ramify
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
@ramify.tool("pure")
def look_up(room: int) -> str:
    """Price of a room."""
    return f'{{"price": {100 * room}}}'


@tool
@ramify.tool("sandboxed")
def book(room: int) -> str:
    """Book a room."""
    return f'{{"booked": {room}}}'


def make(url):
    model = ChatOpenAI(base_url=url, api_key="none", model="m")
    return create_agent(model, [look_up, book], system_prompt="You book rooms.")


env = ramify.agent(make, grade=lambda task, answer: answer == "Booked 4.", tasks=[{"id": "room", "prompt": "Book 4."}])
''',
}


def test_the_token_that_ends_a_reply_is_no_part_of_it(tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is given tokens: the reply is what was recorded, and the environment is given it as in the run."""
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", "--model", "builtin", "--count", "1", "--attempts", "1", "--temperature", "0", "--out", "run"]) == 0
    with Run.open("run") as run:
        (info,) = run.trees()
        replies = [node for node in run.tree(info.name).nodes.values() if node.role == "assistant"]
        won = next(iter(run.attempts(info.name))).success
    assert verb.json("test", "run", replies[0].id, "--expect", "same", "--n", "2")["successes"] == 2
    played = verb.json("test", "run", info.name, "--n", "1")
    assert played["successes"] == int(bool(won))
    assert "<|" not in str(played["reasons"])


def test_an_agent_that_ends_before_the_step_is_a_failure_and_asks_no_model(here: Path, server: ChatServer, verb: Verb) -> None:
    edit("        for one in reply.tool_calls:", "        return 'none'\n        for one in reply.tool_calls:")
    del server.bodies[:]
    found = verb.json("test", "run", booking(), "--env", f"{renamed()}:env", "--n", "4", code=1)
    assert (found["same"], found["n"], server.bodies) == (False, 0, [])
    assert "the agent has ended by then" in found["difference"]


def test_outcomes_are_of_the_agent_as_it_is(here: Path, booker: Booker, verb: Verb) -> None:
    """What becomes of an attempt after the step depends on the agent's own code: of another one nothing is loaded."""
    booker.rooms = itertools.cycle([4])
    assert verb.json("test", "run", "room", "--env", f"{renamed()}:env", "--n", "2")["successes"] == 2
    edit('answer == "Booked 4."', 'answer == "Booked 7."')
    assert verb.json("test", "run", "room", "--env", f"{renamed()}:env", "--n", "2")["successes"] == 0


def test_a_written_file_says_what_a_run_says_and_does_nothing_of_it(here: Path) -> None:
    with Run.open("run") as run:
        node = run.node(booking())
        step = RecordedStep.of(run, node)
        step.model = 'm"""\nraise SystemExit("run")\n"""\\'
        write_test(step, node, run, step.target("calls:book"), RateTest(0.8), Path("test_room.py"))
    tree = ast.parse(Path("test_room.py").read_text())
    assert not any(isinstance(part, ast.Raise) for part in ast.walk(tree))
    assert main(["test", "run", booking(), "--write", "test_sure.py", "--confidence", "0.99"]) == 0
    assert "confidence=0.99)" in Path("test_sure.py").read_text()


def test_the_run_keeps_what_was_found_of_every_step(here: Path, verb: Verb) -> None:
    first, last = booking(), "room"
    for where in (first, last):
        verb.json("test", "run", where, "--n", "0")
    with Run.open("run") as run:
        assert len([kept for kept in run.results() if kept.maker.startswith("test step ")]) == 2
        assert len(answers(run, "test")) == 2
