"""No tool that declares no effect is run on a branch: functions and a real MCP server as environments,
by a file of what really ran."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramify
from ramify.base.errors import UserError
from ramify.env.tools import RUNS
from ramify.integrations.environments.functions import FunctionEnvironment
from ramify.trace.db import Run
from ramify.trace.message import named_calls

TASKS = [ramify.Task("count", {"prompt": "count to 5", "answer": "5", "split": "train"})]
SERVER = """
import sys
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server, total = MCPServer("counter"), [0]


def ran(name):
    with open(sys.argv[1], "a") as file:
        print(name, file=file)


@server.tool()
def add(amount: int) -> int:
    ran("add")
    total[0] += amount
    return total[0]


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def peek() -> int:
    ran("peek")
    return total[0]


server.run()
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def clerk(messages: list[dict[str, Any]]) -> str:
    """Adds 2 and 3, looks, and says what it saw."""
    turn = sum(one["role"] == "assistant" for one in messages)
    return [call("add", amount=2), call("add", amount=3), call("peek"), messages[-1]["content"]][turn]


def nodes(attempt: Any) -> list[str]:
    return [turn.node.id for turn in attempt.turns]


def failures(fork: Any) -> set[str]:
    return {str(one.failure) for one in fork.arm.attempts}


class Counter:
    """The environment of functions that write down what they really did."""

    def __init__(self, file: Path, snapshots: bool = True) -> None:
        self.file, self.snapshots = file, snapshots

    @property
    def ran(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    def env(self, **effects: str) -> FunctionEnvironment:
        def note(name: str) -> None:
            with self.file.open("a") as file:
                print(name, file=file)

        def add(amount: int, state: dict[str, Any]) -> str:
            note("add")
            state["total"] += amount
            return str(state["total"])

        def peek(state: dict[str, Any]) -> str:
            note("peek")
            return str(state["total"])

        def state(task: ramify.Task) -> dict[str, Any]:
            return {"total": 0} if self.snapshots else {"total": 0, "lock": _Stuck()}

        tools: list[Callable[..., Any]] = [add, peek]
        return FunctionEnvironment(
            [ramify.tool(effects[t.__name__])(t) if t.__name__ in effects else t for t in tools], TASKS, state=state
        )


class _Stuck:
    """What no snapshot can hold."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not today")


def test_a_rollout_asks_for_nothing_and_a_branch_runs_no_undeclared_function(tmp_path: Path) -> None:
    made = Counter(tmp_path / "ran")
    attempts = ramify.play(clerk, made.env(), TASKS, attempts=3, out=tmp_path / "run")
    assert [one.outcome for one in attempts] == [True] * 3
    assert sorted(made.ran) == ["add"] * 6 + ["peek"] * 3
    assert all(RUNS not in turn.answer.data for turn in attempts[0].turns)
    before = made.ran
    for node in nodes(attempts[0])[:3]:
        refused = ramify.fork_run(tmp_path / "run", node, n=2, model=clerk, env=made.env())
        (why,) = failures(refused)
        assert "declares no effect" in why
        assert "--effect " in why
        assert "@ramify.tool(EFFECT)" in why
        assert "'add'" in why or "'peek'" in why
    last = ramify.fork_run(tmp_path / "run", nodes(attempts[0])[3], n=2, model=clerk, env=made.env())
    assert last.arm.successes == 2, "its state is a snapshot, and no tool is called any more"
    assert made.ran == before


def test_declared_functions_do_run(tmp_path: Path) -> None:
    made = Counter(tmp_path / "ran")
    (attempt,) = ramify.play(clerk, made.env(), TASKS, out=tmp_path / "run")
    before = len(made.ran)
    for env, effects in (
        (made.env(add="sandboxed", peek="pure"), {}),
        (made.env(add="sandboxed"), {"peek": "pure"}),
        (made.env(), {"*": "sandboxed"}),
        (made.env(peek="pure"), {"*": "sandboxed"}),
    ):
        done = ramify.fork_run(tmp_path / "run", nodes(attempt)[1], n=2, model=clerk, env=env, effects=effects)
        assert done.arm.successes == 2
        assert sorted(made.ran[before:]) == ["add", "add", "peek", "peek"]
        before = len(made.ran)
    own = ramify.fork_run(
        tmp_path / "run", nodes(attempt)[2], n=1, model=clerk, env=made.env(peek="replay"), effects={"*": "pure"}
    )
    assert own.arm.successes == 1
    assert len(made.ran) == before, "what a tool declares itself counts more than *"


def test_a_function_with_a_name_of_its_own_passes_the_gate_once(tmp_path: Path) -> None:
    """The agent knows it by the name that its declaration gives; each call is asked about and kept once."""
    asked: list[str] = []

    @ramify.tool("ask", name="send-mail")
    def send(to: str) -> str:
        """Send a mail.

        Args:
            to: Who receives it.
        """
        return f"sent to {to}"

    def writer(messages: list[dict[str, Any]]) -> str:
        first = not any(one["role"] == "assistant" for one in messages)
        return call("send-mail", to="Ada") if first else str(messages[-1]["content"])

    env = FunctionEnvironment([send], [ramify.Task("t", {"prompt": "write", "answer": "sent to Ada", "split": "train"})])
    assert [tool["function"]["name"] for tool in env.tools] == ["send-mail"]
    (attempt,) = ramify.play(writer, env, out=tmp_path / "run")
    assert attempt.outcome is True
    assert [(one["name"], one["effect"], one["how"]) for one in attempt.turns[0].answer.data[RUNS]] == [
        ("send-mail", "ask", "run")
    ]

    def yes(name: str, arguments: Any) -> bool:
        asked.append(name)
        return True

    episode = env.make()
    episode.gate.ask = yes  # type: ignore[attr-defined]  # what stands for a person at a terminal
    episode.gate.branched = True  # type: ignore[attr-defined]
    episode.reset(ramify.Task("t", {"prompt": "write"}), 0)
    assert episode.step(call("send-mail", to="Bo")).text == "sent to Bo"
    assert asked == ["send-mail"]


def test_there_is_no_way_back_past_an_undeclared_call_without_a_snapshot(tmp_path: Path) -> None:
    made = Counter(tmp_path / "ran", snapshots=False)
    (attempt,) = ramify.play(clerk, made.env(), TASKS, out=tmp_path / "run")
    before = made.ran
    refused = ramify.fork_run(tmp_path / "run", nodes(attempt)[2], n=2, model=clerk, env=made.env(peek="pure"))
    (why,) = failures(refused)
    assert why.startswith("tool: the tool 'add' declares no effect, and a step before the branch called it")
    assert made.ran == before
    done = ramify.fork_run(tmp_path / "run", nodes(attempt)[2], n=1, model=clerk, env=made.env(add="sandboxed", peek="pure"))
    assert done.arm.successes == 1
    assert made.ran[len(before) :] == ["add", "add", "peek"]


def test_a_result_that_was_recorded_without_any_declaration_is_given_again(tmp_path: Path) -> None:
    made = Counter(tmp_path / "ran")
    (attempt,) = ramify.play(clerk, made.env(), TASKS, out=tmp_path / "run")
    before = made.ran
    done = ramify.fork_run(
        tmp_path / "run", nodes(attempt)[0], n=2, model=clerk, env=made.env(), effects={"add": "replay", "peek": "replay"}
    )
    assert done.arm.successes == 2
    assert made.ran == before
    assert [run["how"] for run in done.arm.attempts[0].turns[0].answer.data[RUNS]] == ["replayed"]

    def other(messages: list[dict[str, Any]]) -> str:
        return call("add", amount=7)

    new = ramify.fork_run(tmp_path / "run", nodes(attempt)[0], n=1, model=other, env=made.env(), effects={"add": "replay"})
    assert "add(amount=7) was not recorded" in str(new.arm.attempts[0].failure)
    assert made.ran == before


def test_recorded_results_are_given_in_their_order_from_a_snapshot(tmp_path: Path) -> None:
    numbers = iter(range(1, 100))

    @ramify.tool("replay")
    def ticket() -> str:
        return f"ticket {next(numbers)}"

    def taker(messages: list[dict[str, Any]]) -> str:
        turn = sum(one["role"] == "assistant" for one in messages)
        return call("ticket") if turn < 2 else str(messages[-1]["content"])

    env = FunctionEnvironment([ticket], [ramify.Task("t", {"prompt": "two", "answer": "ticket 2", "split": "train"})])
    (attempt,) = ramify.play(taker, env, out=tmp_path / "run")
    done = ramify.fork_run(tmp_path / "run", nodes(attempt)[1], n=2, model=taker, env=env)
    assert (done.arm.successes, next(numbers)) == (2, 3)


def test_why_names_the_tool_and_shows_calls_by_their_names(tmp_path: Path) -> None:
    made = Counter(tmp_path / "ran")

    def hasty(messages: list[dict[str, Any]], key: int) -> str:
        turn = sum(one["role"] == "assistant" for one in messages)
        return [call("add", amount=5 if key % 2 else 4), str(messages[-1]["content"])][turn]

    # so few that they alone do not show which step lost one: it must be sampled again
    attempts = ramify.play(hasty, made.env(), TASKS, attempts=6, out=tmp_path / "run")
    assert {one.outcome for one in attempts} == {True, False}
    before = made.ran
    refused = ramify.why(tmp_path / "run", model=hasty, env=made.env(), samples=4)
    assert any("the first at tool: the tool 'add' declares no effect" in one for one in refused.caveats)
    assert made.ran == before
    found = ramify.why(tmp_path / "run", model=hasty, env=made.env(add="pure"), samples=200)
    assert found.verdict == "step"
    declared = ramify.why(tmp_path / "run", model=hasty, env=made.env(), samples=201, effects={"add": "pure"})
    assert declared.command.endswith(" --web"), "a command cannot name objects of Python, so none that plays is given"
    assert 'Lost at `add({"amount":4})`' in found.headline
    assert 'chose `add({"amount":5})`' in found.headline
    assert found.alternatives[0].action == call("add", amount=5), "what can be tried again is the text as it was"


def test_calls_by_name() -> None:
    assert named_calls(f"I add. {call('add', amount=2)} {call('peek')}") == 'I add. add({"amount":2}) peek({})'
    assert named_calls("go hall") == "go hall"
    assert named_calls("<tool_call>{broken</tool_call>") == "<tool_call>{broken</tool_call>"


def test_a_fork_of_a_served_episode_is_a_branch(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from ramify.web.environments import EnvironmentApi

    for snapshots in (True, False):
        made = Counter(tmp_path / f"ran-{snapshots}", snapshots)
        client = TestClient(EnvironmentApi(made.env(), TASKS).app())
        client.post("/reset", json={"episode_id": "a"})
        add = {"name": "add", "arguments": {"amount": 2}}
        assert client.post("/step", json={"episode_id": "a", "action": add}).json()["observation"]["text"] == "2"
        forked = client.post("/fork", json={"episode_id": "a", "as": "b"})
        said = client.post("/step", json={"episode_id": "b", "action": add}) if snapshots else forked
        assert "'add' declares no effect" in said.text
        assert made.ran == ["add"]


# -- a real server


@pytest.mark.slow
def test_a_branch_runs_no_undeclared_tool_of_a_server(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="mcp is not installed: NO EFFECT OF A SERVER'S TOOL IS TESTED")
    from ramify.env.protocol import TaskSet
    from ramify.integrations.environments.mcp import McpEnvironment

    (tmp_path / "server.py").write_text(SERVER)
    file = tmp_path / "ran"

    def env(effects: str = "") -> McpEnvironment:
        words = [*([f"effects={effects}"] if effects else []), sys.executable, tmp_path / "server.py", file]
        return McpEnvironment(f"timeout=120 {shlex.join(map(str, words))}", tasks=TaskSet.of(TASKS))

    def ran() -> list[str]:
        return file.read_text().split()

    (attempt,) = ramify.play(clerk, env(), TASKS, out=tmp_path / "run")
    assert attempt.outcome is True
    before = ran()
    assert before == ["add", "add", "peek"]
    steps = nodes(attempt)

    refused = ramify.fork_run(tmp_path / "run", steps[0], n=1, model=clerk, env=env())
    (why,) = failures(refused)
    assert "the tool 'add' declares no effect, so it is not run on a branch" in why
    assert "--effect add=EFFECT" in why
    assert "effects=add=EFFECT" in why
    (why,) = failures(ramify.fork_run(tmp_path / "run", steps[2], n=1, model=clerk, env=env("add=replay")))
    assert "'peek' declares no effect" in why, "the server's hint declares nothing"
    assert "its server calls it read-only, which would be pure" in why
    (why,) = failures(ramify.fork_run(tmp_path / "run", steps[2], n=1, model=clerk, env=env("peek=pure")))
    assert "'add' declares no effect, and a step before the branch called it" in why
    assert ran() == before

    given = ramify.fork_run(tmp_path / "run", steps[1], n=1, model=clerk, env=env("*=replay"))
    assert given.arm.successes == 1
    assert ran() == before, "also of a recording that was made when nothing was declared"
    done = ramify.fork_run(tmp_path / "run", steps[1], n=1, model=clerk, env=env("add=sandboxed"), effects={"peek": "pure"})
    assert (done.arm.successes, done.arm.attempts[0].replayed) == (1, 1)
    assert ran()[len(before) :] == ["add", "add", "peek"], "the first is the state, made again in the new server"
    with pytest.raises(UserError, match=r"an effect is pure, replay, sandboxed, ask, not 'pur' \(did you mean 'pure'\?\)"):
        env("add=pur")


def test_a_run_of_an_older_version_is_continued(tmp_path: Path) -> None:
    """Nothing in the recording says what was called but the replies: as before anything could be declared."""
    made = Counter(tmp_path / "ran", snapshots=False)
    (attempt,) = ramify.play(clerk, made.env(), TASKS, out=tmp_path / "run")
    before = made.ran
    with Run.open(tmp_path / "run") as run:
        assert not any(RUNS in node.data for info in run.trees() for node in run.nodes(info.name))
    done = ramify.fork_run(tmp_path / "run", nodes(attempt)[1], n=1, model=clerk, env=made.env(), effects={"*": "replay"})
    assert done.arm.attempts[0].failure is None
    assert made.ran == before
