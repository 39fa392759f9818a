"""A simulated environment behind HTTP and OpenEnv's WebSocket, and answers that outlive the process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, until

from ramify.base.errors import UserError
from ramify.env.protocol import Environment
from ramify.methods.world_model.answers import ANSWERS, KeptAnswers
from ramify.methods.world_model.control import Fault
from ramify.trace.db import Run
from ramify.web.environments import EnvironmentApi
from ramify.web.limits import Guard
from ramify.web.server import address, open_server
from tests.methods.world_model.worlds import TASKS, Says, notes, talking


@contextmanager
def served(environment: Environment, token: str | None = None, most: int = 8) -> Iterator[httpx.Client]:
    """A client of ``environment``, served on loopback by the kernel's server."""
    api = EnvironmentApi(environment, TASKS, most=most)
    server, listener = open_server(Guard(api.app(), token=token, probe="/health"), drain=2, sockets=True)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert until(lambda: server.started)
        with httpx.Client(base_url=address("127.0.0.1", listener), timeout=PATIENCE) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        api.end()
        assert not thread.is_alive()


def step(client: httpx.Client, action: Any, **more: Any) -> dict[str, Any]:
    answer = client.post("/step", json={"action": action, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_over_http_it_answers_as_it_does_here() -> None:
    environment = notes(controls=[Fault("busy", on=(3,), tool="get")], max_turns=5)
    actions = ["get a", "set a green", "get a", "get a", "dance"]
    env = environment.make()
    opening = env.reset(TASKS[0], 7).text
    here = [env.step(action) for action in actions]
    with served(environment) as client:
        assert client.get("/health").json() == {"status": "healthy"}
        assert client.get("/tasks").json()["tasks"] == [task.id for task in TASKS]
        assert client.post("/reset", json={"task": "t0", "seed": 7}).json() == {
            "observation": {
                "text": opening,
                "role": "user",
                "valid": True,
                "terminated": False,
                "truncated": False,
                "outcome": None,
                "data": {},
            },
            "reward": None,
            "done": False,
        }
        there = [step(client, {"text": action}) for action in actions]
        assert [one["observation"]["text"] for one in there] == [one.text for one in here]
        assert [one["observation"]["data"] for one in there] == [dict(one.data) for one in here]
        assert [one["done"] for one in there] == [False] * 4 + [True], "cut after as many turns as the environment allows"
        assert there[-1]["observation"]["truncated"]
        about = client.get("/state").json()
        assert (about["step_count"], about["done"], about["task"], about["seed"]) == (5, True, "t0", 7)
        assert about["state"]["tables"]["notes"]["a"] == "green"


def test_episodes_are_apart_and_a_fork_goes_its_own_way() -> None:
    with served(notes(), most=3) as client:
        for name in ("one", "two"):
            client.post("/reset", json={"task": "t1", "episode_id": name})
        step(client, "set a green", episode_id="one")
        assert client.post("/fork", json={"episode_id": "one", "as": "three"}).json() == {"episode_id": "three", "step_count": 1}
        step(client, "set a black", episode_id="three")
        said = {name: step(client, "get a", episode_id=name)["observation"]["text"] for name in ("one", "two", "three")}
        assert said == {"one": "green", "two": "red", "three": "black"}
        client.post("/reset", json={"episode_id": "four"})  # the oldest makes room
        assert client.get("/state", params={"episode_id": "one"}).status_code == 404


def test_what_is_wrong_is_refused_in_one_sentence() -> None:
    with served(talking(predictor=Says(lambda s: None), retries=0)) as client:
        client.post("/reset", json={"task": "t0"})
        for path, body, status, says in [
            ("/reset", {"task": "task0"}, 404, "There is no task 'task0' (known: t0"),
            ("/reset", {"seed": -1}, 400, "'seed' must be"),
            ("/reset", {"episode_id": 4}, 400, "'episode_id' must be a text"),
            ("/step", {}, 400, "'action' is missing"),
            ("/step", {"action": {"value": 1}}, 400, 'An action is {"text"'),
            ("/step", {"action": "look", "episode_id": "x"}, 404, "There is no episode 'x'"),
            ("/step", {"action": "look"}, 502, "no observation after 'look'"),
            ("/fork", {"as": ""}, 400, "'as' must name another"),
        ]:
            answer = client.post(path, json=body)
            assert (answer.status_code, says in answer.json()["error"]["message"]) == (status, True), answer.text
        assert client.post("/step", content=b"[1]").status_code == 400
        assert client.get("/state").json()["step_count"] == 0, "what failed took no step"
    with served(talking(), token="a-token-of-some-length") as client:
        assert client.post("/reset").status_code == 401
        assert client.get("/health").status_code == 200
        client.headers["authorization"] = "Bearer a-token-of-some-length"
        assert client.post("/reset").json()["observation"]["text"] == "Room 0."


@pytest.mark.slow
def test_openenv_s_messages_over_a_websocket() -> None:
    """The messages of ``openenv.core.env_client.EnvClient``, as it writes and reads them."""
    websockets = pytest.importorskip("websockets")

    async def talk(url: str, messages: list[Any], **more: Any) -> list[Any]:
        async with websockets.connect(url, **more) as socket:
            found = []
            for message in messages:
                await socket.send(message if isinstance(message, str) else json.dumps(message))
                found.append(json.loads(await socket.recv()))
            await socket.send(json.dumps({"type": "close"}))
            return found

    with served(notes()) as client:
        url = str(client.base_url).replace("http", "ws") + "ws"
        messages = [
            {"type": "step", "data": {"text": "get a"}}, {"type": "reset", "data": {"task": "t1", "seed": 3}},
            {"type": "step", "data": {"text": "get a"}}, {"type": "state"}, {"type": "sing"}, {"type": "step", "data": {}}, "{",
        ]  # fmt: skip
        early, opened, seen, state, unknown, bad, broken = asyncio.run(talk(url, messages))
        assert [one["data"]["code"] for one in (early, unknown, bad, broken)] == [
            "SESSION_ERROR", "UNKNOWN_TYPE", "VALIDATION_ERROR", "INVALID_JSON",
        ]  # fmt: skip
        assert (opened["type"], set(opened["data"])) == ("observation", {"observation", "reward", "done"})
        assert opened["data"]["observation"]["text"] == "Room 1."
        assert (seen["data"]["observation"]["text"], seen["data"]["reward"]) == ("red", 0.0)
        assert (state["type"], state["data"]["step_count"], state["data"]["seed"]) == ("state", 1, 3)
        with pytest.raises(websockets.InvalidStatus, match="403"):
            asyncio.run(talk(url, [], origin="http://elsewhere.example"))
    with served(notes(), token="a-token-of-some-length") as client:
        url = str(client.base_url).replace("http", "ws") + "ws"
        with pytest.raises(websockets.InvalidStatus, match="403"):
            asyncio.run(talk(url, []))
        bearer = {"authorization": "Bearer a-token-of-some-length"}
        assert asyncio.run(talk(url, [{"type": "reset"}], additional_headers=bearer))[0]["type"] == "observation"


@pytest.mark.slow
def test_over_mcp_the_one_who_runs_the_agent_learns_what_it_must_not(tmp_path: Path) -> None:
    """Who answered, what was invented, and success go with the result, where no model reads them."""
    mcp, stdio = pytest.importorskip("mcp"), pytest.importorskip("mcp.client.stdio")
    (tmp_path / "say.py").write_text(
        'def say(situation):\n    return "Bob says " + situation.action\n'
        'def brief(task, answer, state):\n    return True if "bye" in answer else None\n'
    )
    words = ["-m", "ramify", "world-model", "serve", "--model", f"predict:{tmp_path / 'say.py'}:say"]
    words += ["--verify", f"{tmp_path / 'say.py'}:brief", "--prompt", "A hall."]

    async def talk() -> list[Any]:
        transport = stdio.stdio_client(stdio.StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ)))
        async with mcp.Client(transport) as client:
            return [await client.call_tool("act", {"action": action}) for action in ("hello", "bye", "again")]

    first, won, over = asyncio.run(talk())
    assert [one.content[0].text for one in (first, won, over)] == ["Bob says hello", "Bob says bye", "error: the episode is over"]
    assert first.meta["ramify/world"] == {"by": "model", "invented": ["Bob"], "outcome": None, "reward": 0.0, "terminated": False}
    assert (won.meta["ramify/world"]["outcome"], won.meta["ramify/world"]["terminated"]) == (True, True)
    assert over.is_error


USERS_TEST = """
def test_it_copes_with_a_busy_shop(sim_env):
    env = sim_env("world.toml")
    assert [env.call("price", of="tea").text for _ in range(3)] == ["3 euro", "busy", "3 euro"]
    assert env.state()["tables"] == {"shop": {"tea": "3 euro"}}
"""


@pytest.mark.slow
def test_a_users_tests_have_it_as_a_fixture(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "tools.json").write_text(json.dumps([{"name": "price"}]))
    effect = {"tool": "price", "do": "get", "table": "shop", "key": "of"}
    (folder / "state.json").write_text(json.dumps({"shop": {"tea": "3 euro"}, "effects": [effect]}))
    (folder / "control.toml").write_text('[[control]]\nkind = "fault"\non = [2]\ntext = "busy"\n')
    (folder / "world.toml").write_text('model = "copy"\ntools = "tools.json"\nstate = "state.json"\ncontrol = "control.toml"\n')
    (folder / "test_users.py").write_text(USERS_TEST)
    plugin = ("-p", "ramify.integrations.pytest.plugin", "-p", "no:cacheprovider")
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "tests"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_it_is_a_gymnasium_environment() -> None:
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from ramify.integrations.environments.gymnasium import as_gymnasium

    made = as_gymnasium(notes(max_turns=2, verify=lambda task, answer, state: "green" in answer or None))
    check_env(made, skip_render_check=True)
    text, info = made.reset(seed=1, options={"task": "t1"})
    assert (text, info["task"]) == ("Room 1.", "t1")
    assert made.step("get a")[:4] == ("red", 0.0, False, False)
    assert made.step("set a green")[1:] == (
        1.0,
        True,
        False,
        {"outcome": True, "is_success": True, "valid": True, "role": "user", "data": {"by": "code"}},
    )
    made.reset(seed=1)
    assert [made.step("get a")[3] for _ in range(2)] == [False, True], "cut after as many turns as the environment allows"
    with pytest.raises(UserError, match="no task 'nowhere'"):
        made.reset(options={"task": "nowhere"})
    made.close()


# -- answers that are kept


def numbered(identity: str = "numbered") -> Says:
    """Answers with how often it was asked, so that an answer made anew is another one."""
    made = Says(name=identity)
    made.say = lambda situation: f"answer {made.asked} to {situation.action}"
    return made


def played(says: Says, cache: Path, actions: tuple[str, ...] = ("look", "wait", "look")) -> list[str]:
    env = talking(predictor=says, cache=cache).make()
    env.reset(TASKS[0], 0)
    return [env.step(action).text for action in actions]


def test_equal_histories_are_answered_equally_by_the_next_process(tmp_path: Path) -> None:
    cache, first, second, other = tmp_path / "answers", numbered(), numbered(), numbered("another model")
    said = played(first, cache)
    KeptAnswers.at(cache).close()  # as the end of the process does
    assert played(second, cache) == said
    assert (first.asked, second.asked) == (3, 0)
    assert played(second, cache, ("look", "dance"))[1] == "answer 1 to dance", "another history is asked for"
    played(other, cache)
    assert other.asked == 3, "another model's answers are its own"
    KeptAnswers.at(cache).close()


def test_a_second_process_reads_and_adds_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "answers"
    said = played(numbered(), cache)
    KeptAnswers.at(cache).close()
    with Run.begin(cache, ANSWERS, {}) as writer:
        late = numbered()
        assert played(late, cache) == said
        played(late, cache, ("sing",))
        assert (late.asked, len(writer.journal(ANSWERS))) == (1, 3)
        KeptAnswers.at(cache).close()


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "other", {}, kind="rollout").close()
    with pytest.raises(UserError, match="was not made by `ramify world-model serve`"):
        played(numbered(), tmp_path / "other")
    with Run.begin(tmp_path / "broken", ANSWERS, {}) as run:
        environment = talking(predictor=numbered(), cache=tmp_path / "broken")
        env = environment.make()
        env.reset(TASKS[0], 0)
    played(numbered(), tmp_path / "good", ("look",))
    KeptAnswers.at(tmp_path / "good").close()
    with Run.open(tmp_path / "good") as good, Run.begin(tmp_path / "broken", ANSWERS, {}) as run:
        run.log(ANSWERS, good.journal(ANSWERS)[0].key, {"text": 4})
    with pytest.raises(UserError, match="holds an answer without text"):
        env.step("look")
    for name in ("other", "broken"):
        KeptAnswers.at(tmp_path / name).close()


WORLD = """
model = "predict:say.py:say"
tools = "tools.json"
state = "state.json"
tasks = "tasks.jsonl"
cache = "answers"
"""


@pytest.mark.slow
def test_a_server_that_was_killed_answers_as_before(tmp_path: Path) -> None:
    """As a person starts it: by its command, killed by SIGKILL, started again; what was answered once is answered so again."""
    text = {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}
    tools = [{"name": name, "description": "", "inputSchema": text} for name in ("price", "ask")]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    effect = {"tool": "price", "do": "get", "table": "shop", "key": "of"}
    (tmp_path / "state.json").write_text(json.dumps({"shop": {"tea": "3 euro"}, "effects": [effect]}))
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "t", "prompt": "tea?", "split": "train"}) + "\n")
    (tmp_path / "say.py").write_text("import uuid\ndef say(situation):\n    return uuid.uuid4().hex\n")
    (tmp_path / "world.toml").write_text(WORLD)
    words = [sys.executable, "-m", "ramify", "world-model", "serve", "--world", "world.toml", "--http", "--port", "0"]
    calls = [{"name": name, "arguments": {"of": "tea"}} for name in ("price", "ask", "ask")]
    heard = []
    for _ in range(2):
        with (tmp_path / "said.txt").open("wb") as log:
            server = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            found: list[str] = []

            def answers(found: list[str] = found, server: subprocess.Popen[bytes] = server) -> bool:
                assert server.poll() is None, (tmp_path / "said.txt").read_text()
                found[:] = re.findall(r"on (http://127\.0\.0\.1:\d+)", (tmp_path / "said.txt").read_text())
                return bool(found)

            assert until(answers)
            with httpx.Client(base_url=found[0], timeout=PATIENCE) as client:
                client.post("/reset", json={"task": "t"})
                heard.append([step(client, call)["observation"]["text"] for call in calls])
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait(PATIENCE)
    assert heard[0] == heard[1]
    assert heard[0][0] == "3 euro"
    assert heard[0][1] != heard[0][2], "the same call later is another history"
