"""A person's own agent, recorded, forked and asked which step lost it, with what its tools do to the world counted in a file."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import CODER, ChatServer, call, chat_server, results
from command import Verb

import ramify
from ramify.base.errors import InfrastructureError, UserError
from ramify.env.protocol import chat_of
from ramify.env.tools import GATE, RUNS, ToolGate, WorkFolder
from ramify.trace.db import Run

TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look_up", "rate", "keep", "book", "mail")
]
ROOMS = itertools.cycle([4, 7])
TASKS = [{"id": "room", "prompt": "Book a room for eight, the cheaper one."}]


def script(body: dict[str, Any]) -> dict[str, Any]:
    """Looks two rooms up at once, books one or the other in turn, and says so."""
    if "tools" not in body:
        return {"content": "red"}
    seen = results(body)
    if not seen:
        return {"tool_calls": [call("look_up", "c1", room=4), call("look_up", "c2", room=7), call("rate", "c3", city="Oslo")]}
    if len(seen) == 3:
        return {"content": "Now I book.", "tool_calls": [call("book", "c4", room=next(ROOMS))]}
    found = re.search(r"room\D+(\d)", seen[3])
    return {"content": f"Booked {found[1] if found else 'none'}."}


class World:
    """Tools that write what they did into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def did(self, what: str) -> None:
        with self.path.open("a") as file:
            file.write(what + "\n")

    @property
    def done(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []

    def tools(self, before: str = "", **effects: str) -> dict[str, Callable[..., Any]]:
        """With ``before`` they are declared under other names than their own: with this before them."""

        def look_up(room: int) -> dict[str, Any]:
            self.did(f"look_up:{room}")
            return {"room": room, "price": 100 * room}

        def rate(city: str) -> str:
            self.did(f"rate:{city}")
            return f"{city}: {len(self.done)}"

        def book(room: int) -> dict[str, Any]:
            self.did(f"book:{room}")
            return {"room": room, "booked": True}

        made = {"look_up": look_up, "rate": rate, "book": book}
        return {
            name: ramify.tool(effects[name], before and before + name)(tool) if name in effects else tool
            for name, tool in made.items()
        }


def loop(tools: dict[str, Callable[..., Any]]) -> Callable[[str, str], str]:
    """A plain tool loop over an OpenAI-compatible endpoint, as people write it."""

    def booker(prompt: str, url: str) -> str:
        from openai import OpenAI

        client = OpenAI(base_url=url, api_key="none", max_retries=0)
        messages: list[Any] = [{"role": "system", "content": "You book rooms."}, {"role": "user", "content": prompt}]
        while True:
            reply = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, temperature=0.5).choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content or ""
            for one in reply.tool_calls:
                result = tools[one.function.name](**json.loads(one.function.arguments))
                messages.append({"role": "tool", "tool_call_id": one.id, "content": json.dumps(result)})

    return booker


def cheaper(task: ramify.Task, answer: str) -> bool:
    return answer == "Booked 4."


def environment(tools: dict[str, Callable[..., Any]], **options: Any) -> Any:
    declared = [tool for tool in tools.values() if hasattr(tool, "ramify_effect")]
    return ramify.agent(loop(tools), tools=declared, grade=cheaper, tasks=TASKS, **options)


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with chat_server(script) as found:
        yield found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "did.txt")


def runs_of(folder: Path) -> list[dict[str, Any]]:
    with Run.open(folder) as run:
        (info,) = run.trees()
        return [one for node in run.tree(info.name).nodes.values() for one in node.data.get(RUNS) or ()]


def test_what_the_agent_shows_is_what_the_model_is_shown(server: ChatServer, world: World, tmp_path: Path) -> None:
    seen: list[Any] = []
    booker = loop(world.tools(look_up="pure", rate="replay", book="sandboxed"))

    def watched(prompt: str, url: str) -> str:
        import httpx
        from openai import OpenAI

        OpenAI(base_url=url, api_key="none")  # a client without a request changes nothing
        httpx.get(f"{url}/models").raise_for_status()
        return booker(prompt, url)

    del server.bodies[:]
    (attempt,) = ramify.play(server.model, ramify.agent(watched, grade=cheaper), TASKS, out=tmp_path / "run")
    assert attempt.failure is None
    assert [len(body["messages"]) for body in server.asked] == [2, 6, 8]
    first, second, third = server.asked
    assert first["messages"] == [
        {"role": "system", "content": "You book rooms."},
        {"role": "user", "content": TASKS[0]["prompt"]},
    ]
    assert [m.get("tool_call_id") for m in second["messages"][3:]] == ["c1", "c2", "c3"]
    assert [json.loads(m["content"]) for m in second["messages"][3:5]] == [{"room": 4, "price": 400}, {"room": 7, "price": 700}]
    assert third["messages"][6]["tool_calls"][0]["id"] == "c4"
    assert {body["temperature"] for body in server.asked} == {0.5}
    assert all(body["tools"] == TOOLS and "max_tokens" not in body and "top_p" not in body for body in server.asked)
    assert world.done == ["look_up:4", "look_up:7", "rate:Oslo", f"book:{4 if attempt.outcome else 7}"]
    assert not seen


@pytest.mark.slow
def test_why_replays_the_prefix_and_finds_the_step(server: ChatServer, world: World, tmp_path: Path) -> None:
    env = environment(world.tools(look_up="pure", rate="replay", book="sandboxed"))
    attempts = ramify.play(server.model, env, attempts=4, out=tmp_path / "run")
    assert {attempt.outcome for attempt in attempts} == {True, False}
    before = world.done
    del server.bodies[:]
    why = ramify.why(tmp_path / "run", model=server.model, env=env)
    assert why.verdict == "step"
    assert "book" in str(why.action)
    assert (why.before.p or 0) > 0.2
    assert why.after.p == 0
    done = world.done[len(before) :]
    assert "rate:Oslo" not in done  # its recorded result was given
    assert {body["messages"][1]["content"] for body in server.asked} == {TASKS[0]["prompt"]}
    shown = {json.dumps(body["messages"][:6]) for body in server.asked if len(body["messages"]) >= 6}
    assert len(shown) <= 5  # what each recorded attempt was shown, and nothing else


def test_tools_that_end_in_any_order_are_one_state_and_replay(server: ChatServer, world: World, tmp_path: Path) -> None:
    tools = world.tools(look_up="pure", rate="replay", book="sandboxed")
    turns = itertools.count()

    def booker(prompt: str, url: str) -> str:
        """Its tools run at the same time: their results come in another order each time."""
        from openai import OpenAI

        client, turn = OpenAI(base_url=url, api_key="none", max_retries=0), next(turns)
        messages: list[Any] = [{"role": "user", "content": prompt}]
        while True:
            reply = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content or ""
            came = [(one, tools[one.function.name](**json.loads(one.function.arguments))) for one in reply.tool_calls]
            for one, result in came[turn % len(came) :] + came[: turn % len(came)]:
                messages.append({"role": "tool", "tool_call_id": one.id, "content": json.dumps(result)})

    env = ramify.agent(booker, tools=list(tools.values()), grade=cheaper, tasks=TASKS)
    attempts = ramify.play(server.model, env, attempts=3, out=tmp_path / "run")
    assert all(attempt.failure is None for attempt in attempts)
    seen = {tuple(line.partition(" ")[0] for line in attempt.turns[0].answer.text.splitlines()) for attempt in attempts}
    assert len(seen) == 1  # room, room, city: in the order of the calls
    fork = ramify.fork_run(tmp_path / "run", attempts[0].turns[1].node.id, n=2, model=server.model, env=env)
    assert fork.arm.scored == 2


@pytest.mark.parametrize(("arguments", "counts"), [('{"room": 4', True), ('{"room": 4}', False)])
def test_an_agent_that_breaks_on_the_models_call_lost_and_one_that_breaks_by_itself_is_a_failure(
    world: World, tmp_path: Path, arguments: str, counts: bool
) -> None:
    def book(room: int) -> None:
        raise KeyError("no such hotel")

    made = {"id": "c", "type": "function", "function": {"name": "book", "arguments": arguments}}
    with chat_server(lambda body: {"tool_calls": [made]} if "tools" in body else {"content": "red"}) as server:
        (attempt,) = ramify.play(
            server.model, ramify.agent(loop({"book": book}), grade=cheaper, tasks=TASKS), out=tmp_path / "run"
        )
    if counts:
        assert (attempt.failure, attempt.outcome) == (None, False)
        assert "JSONDecodeError" in attempt.turns[-1].answer.text
    else:
        assert "no such hotel" in str(attempt.failure)


def test_an_undeclared_tool_is_never_run_on_a_branch(server: ChatServer, world: World, tmp_path: Path) -> None:
    env = environment(world.tools(look_up="pure", rate="replay"))
    (attempt,) = ramify.play(server.model, env, out=tmp_path / "run")
    before = world.done
    assert before[-1].startswith("book")
    fork = ramify.fork_run(tmp_path / "run", attempt.turns[1].node.id, n=4, model=server.model, env=env)
    assert world.done == before
    assert fork.arm.scored == 0
    assert all("book" in str(one.failure) and "not run on a branch" in str(one.failure) for one in fork.arm.attempts)
    assert [one["how"] for one in runs_of(tmp_path / "run") if one["name"] == "book"].count("refused") == 4
    # nor where a step before the branch called it
    after = ramify.fork_run(tmp_path / "run", attempt.turns[2].node.id, n=2, model=server.model, env=env)
    assert world.done == before
    assert after.arm.scored == 0
    # declared, the same fork goes on
    env = environment(world.tools(look_up="pure", rate="replay", book="sandboxed"))
    again = ramify.fork_run(tmp_path / "run", attempt.turns[1].node.id, n=4, model=server.model, env=env)
    assert again.arm.scored == 4


@pytest.mark.slow
def test_a_replayed_tool_gives_what_was_recorded(server: ChatServer, world: World, tmp_path: Path) -> None:
    env = environment(world.tools(look_up="replay", rate="replay", book="replay"))
    attempts = ramify.play(server.model, env, attempts=2, out=tmp_path / "run", seed=1)
    before = world.done
    fork = ramify.fork_run(tmp_path / "run", attempts[0].turns[0].node.id, n=6, model=server.model, env=env)
    assert world.done == before
    said = {attempt.outcome for attempt in attempts}
    known = {4 if outcome else 7 for outcome in said}
    for one in fork.arm.attempts:  # a room that nobody booked has no recorded result
        assert (one.outcome in said) if one.failure is None else len(known) == 1
    replayed = [one for one in runs_of(tmp_path / "run") if one["how"] == "replayed"]
    assert {json.loads(one["result"])["price"] for one in replayed if one["name"] == "look_up"} == {400, 700}
    assert any(one.failure is None for one in fork.arm.attempts)


@pytest.mark.slow
def test_a_person_is_asked_and_without_a_terminal_it_is_refused(server: ChatServer, world: World, tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []

    def ask(name: str, arguments: Any) -> bool:
        asked.append((name, arguments["room"]))
        return bool(arguments["room"] == 4)

    tools = world.tools(look_up="pure", rate="replay", book="ask")
    env = environment(tools, ask=ask)
    (attempt,) = ramify.play(server.model, env, out=tmp_path / "run")
    assert not asked  # the recording runs the agent as it is
    fork = ramify.fork_run(tmp_path / "run", attempt.turns[1].node.id, n=8, model=server.model, env=env)
    assert len(asked) == 8
    assert {one.outcome for one in fork.arm.attempts} == {True, None}
    assert world.done.count("book:7") == (0 if attempt.outcome else 1)
    hows = [one["how"] for one in runs_of(tmp_path / "run") if one["name"] == "book"]
    assert set(hows) == {"run", "asked", "refused"}
    before = world.done
    alone = ramify.fork_run(tmp_path / "run", attempt.turns[1].node.id, n=1, model=server.model, env=environment(tools))
    assert "no terminal" in str(alone.arm.attempts[0].failure)
    assert world.done == before


@pytest.mark.slow
def test_an_agent_that_changed_is_told_from_the_recorded_one(server: ChatServer, world: World, tmp_path: Path) -> None:
    tools = world.tools(look_up="pure", rate="replay", book="sandboxed")
    (attempt,) = ramify.play(server.model, environment(tools), out=tmp_path / "run")
    tools["look_up"] = ramify.tool("pure", "look_up")(lambda room: {"room": room})
    changed = environment(tools)
    assert ramify.fork_run(
        tmp_path / "run", attempt.turns[1].node.id, n=1, model=server.model, env=changed
    ).arm.scored  # results are given

    def other(prompt: str, url: str) -> str:
        return loop(tools)(f"{prompt} Please.", url)

    wrong = ramify.agent(other, tools=[tools["look_up"]], grade=cheaper)
    fork = ramify.fork_run(tmp_path / "run", attempt.turns[1].node.id, n=1, model=server.model, env=wrong)
    assert "differs at step 0" in str(fork.arm.attempts[0].failure)


@pytest.mark.slow
def test_edits_of_a_reply_and_of_a_result(server: ChatServer, world: World, tmp_path: Path) -> None:
    env = environment(world.tools(look_up="pure", rate="replay", book="sandboxed"))
    (attempt,) = ramify.play(server.model, env, out=tmp_path / "run")
    path, model = tmp_path / "run", server.model
    said = '<tool_call>{"name": "book", "arguments": {"room": 4}}</tool_call>'
    fork = ramify.fork_run(path, attempt.turns[1].node.id, n=2, edit={"replace": said}, model=model, env=env)
    assert fork.arm.successes == fork.arm.scored > 0
    del server.bodies[:]
    edited = ramify.fork_run(path, attempt.turns[0].answer.id, n=1, edit={"replace": "no room is free"}, model=model, env=env)
    assert not [one.failure for one in edited.arm.attempts if one.failure]
    assert any("no room is free" in results(body) for body in server.asked)


def test_mistakes_are_one_sentence(world: World) -> None:
    with pytest.raises(UserError, match="declares no effect"):
        ramify.agent(loop({}), tools=[world.tools()["book"]])
    with pytest.raises(UserError, match="not 'pur'"):
        ramify.tool("pur")
    with pytest.raises(UserError, match="not 'save'"):
        ramify.agent(loop({}), tools={"book": "save"})
    with pytest.raises(UserError, match="must be callable as"):
        ramify.agent(lambda: "")


# -- agents of frameworks


def langchain_agent(tools: list[Any]) -> Callable[[str], Any]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    return lambda url: create_agent(ChatOpenAI(base_url=url, api_key="none", model="m"), tools, system_prompt="You book rooms.")


def sdk_agent(tools: list[Any]) -> Callable[[str], Any]:
    from agents import Agent, OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    def make(url: str) -> Any:
        model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(base_url=url, api_key="none"))
        return Agent(name="Booker", instructions="You book rooms.", model=model, tools=tools)

    return make


def graph_agent(tools: list[Any]) -> Callable[[str], Any]:
    """A graph of a person's own, with a checkpointer."""
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    kept = InMemorySaver()

    def make(url: str) -> Any:
        model = ChatOpenAI(base_url=url, api_key="none", model="m").bind_tools(tools)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke([("system", "You book rooms."), *state["messages"]])]})
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=kept)

    return make


def framework_tools(kind: str, tools: dict[str, Callable[..., Any]]) -> list[Any]:
    if kind == "sdk":
        from agents import function_tool

        return [function_tool(tool, description_override="a tool") for tool in tools.values()]
    from langchain_core.tools import tool as langchain_tool

    return [langchain_tool(name, description="a tool")(tool) for name, tool in tools.items()]


FRAMEWORKS = {"langchain": langchain_agent, "graph": graph_agent, "sdk": sdk_agent}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_an_agent_of_a_framework(kind: str, server: ChatServer, world: World, tmp_path: Path) -> None:
    pytest.importorskip(
        "agents" if kind == "sdk" else "langchain.agents", reason="the extra harnesses is not installed: NOT TESTED"
    )

    def env(**effects: str) -> Any:
        # a framework's name of a tool may be another than the declared one: still it is one call
        return ramify.agent(FRAMEWORKS[kind](framework_tools(kind, world.tools("my_", **effects))), grade=cheaper, tasks=TASKS)

    mine = env(look_up="pure", rate="replay")
    del server.bodies[:]
    attempts = ramify.play(server.model, mine, attempts=2, out=tmp_path / "run")
    assert [attempt.failure for attempt in attempts] == [None, None]
    recorded = [dict(one) for one in runs_of(tmp_path / "run")]
    assert [one["how"] for one in recorded] == ["run"] * 8
    assert {one["effect"] for one in recorded} == {"pure", "replay", ""}
    before = world.done
    booked = [one for one in before if one.startswith("book")]
    assert sorted(set(before) - set(booked)) == ["look_up:4", "look_up:7", "rate:Oslo"]
    assert (len(before), len(booked)) == (8, 2)  # two attempts, whose calls come in any order
    assert [message["role"] for message in server.asked[0]["messages"]] == ["system", "user"]

    step, last = attempts[0].turns[1].node.id, attempts[0].turns[2].node.id
    del server.bodies[:]
    fork = ramify.fork_run(tmp_path / "run", step, n=3, model=server.model, env=mine)
    assert world.done == before
    assert all("not run on a branch" in str(one.failure) for one in fork.arm.attempts)
    assert {json.dumps(body["messages"]) for body in server.asked} == {json.dumps(server.asked[0]["messages"])}
    # a call of the prefix has its recorded result, also where nothing was declared
    after = ramify.fork_run(tmp_path / "run", last, n=2, model=server.model, env=mine)
    assert world.done == before
    assert {one.outcome for one in after.arm.attempts} == {attempts[0].outcome}

    declared = env(look_up="pure", rate="replay", book="sandboxed")
    again = ramify.fork_run(tmp_path / "run", step, n=6, model=server.model, env=declared)
    assert {one.outcome for one in again.arm.attempts} == {True, False}
    assert [one.split(":")[0] for one in world.done[len(before) :]] == ["book"] * 6


@pytest.mark.slow
def test_subagents_at_once_are_recorded_and_gone_back_to(world: World, tmp_path: Path) -> None:
    """Two subagents ask at once; every step of theirs is one of the attempt's, of its own conversation."""
    import asyncio

    pytest.importorskip("openai")

    @ramify.tool("replay")
    async def measure(room: int) -> str:
        await asyncio.sleep(0.05 * (8 - room))
        world.did(f"measure:{room}")
        return f"{room} x {room}"

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        if "tools" not in body:
            return {"content": "red"}
        last = body["messages"][-1]
        if last["role"] == "tool":
            return {"content": f"It is {last['content']}."}
        if last["content"].startswith("Measure"):
            return {"content": None, "tool_calls": [call("measure", "m", room=int(last["content"].split()[-1]))]}
        return {"content": "Done: " + last["content"]}

    async def boss(prompt: str, url: str) -> str:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def ask(messages: list[Any]) -> Any:
                return (await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)).choices[0].message

            async def worker(room: int) -> str:
                messages: list[Any] = [
                    {"role": "system", "content": "You measure."},
                    {"role": "user", "content": f"Measure room {room}"},
                ]
                while (said := await ask(messages)).tool_calls:
                    one = said.tool_calls[0]
                    result = await measure(**json.loads(one.function.arguments))
                    messages += [said, {"role": "tool", "tool_call_id": one.id, "content": result}]
                return str(said.content)

            found = await asyncio.gather(worker(4), worker(7))
            return str((await ask([{"role": "user", "content": " ".join(found)}])).content)

    with chat_server(reply) as server:
        env = ramify.agent(boss, tools=[measure], grade=lambda task, answer: "4 x 4" in answer and "7 x 7" in answer, tasks=TASKS)
        (attempt,) = ramify.play(server.model, env, out=tmp_path / "run")
        assert attempt.outcome is True
        assert len(attempt.turns) == 5
        talks = [chat_of(turn.answer.data).get("conversation", 0) for turn in attempt.turns[:-1]]
        assert set(talks) == {0, 1, 2}
        before = world.done
        for turn in attempt.turns:
            fork = ramify.fork_run(tmp_path / "run", turn.node.id, n=2, model=server.model, env=env)
            assert [one.failure for one in fork.arm.attempts] == [None, None]
            assert fork.arm.successes == 2
        assert world.done == before


@pytest.mark.slow
def test_the_command_line(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: Verb
) -> None:
    from ramify.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("mine.py").write_text(
        "from pathlib import Path\n"
        "import ramify\n"
        "import test_own_agents as t\n"
        "world = t.World(Path('did.txt'))\n"
        "tools = world.tools(look_up='pure', rate='replay', book='ask')\n"
        "mine = t.environment(tools)\n"
    )
    said = ["--model", server.model, "--env", "mine.py:mine"]
    assert main(["rollout", *said, "--out", "runs/mine", "--json"]) == 0
    before = Path("did.txt").read_text()
    with Run.open("runs/mine") as run:
        (info,) = run.trees()
        node = next(one for one in run.tree(info.name).nodes.values() if one.text == "Now I book.")
    capsys.readouterr()
    assert main(["fork", "runs/mine", node.id, "--n", "2", "--json"]) == 1
    assert "no terminal" in capsys.readouterr().err
    assert Path("did.txt").read_text() == before
    assert main(["fork", "runs/mine", node.id, "--n", "2", "--effect", "book=sandboxed", "--json"]) == 0
    assert len(Path("did.txt").read_text().split()) == len(before.split()) + 2
    assert main(["why", "runs/mine", "--samples", "8", "--effect", "book=sandboxed", "--json"]) in (0, 3)
    assert "not 'pur'" in verb.refused("why", "runs/mine", "--effect", "book=pur")


def test_functions_of_an_environment_pass_the_gate_once_one_declares_what_it_does(world: World, tmp_path: Path) -> None:
    from ramify.integrations.environments.functions import FunctionEnvironment

    def replies(messages: list[dict[str, Any]]) -> str:
        turn = sum(one["role"] == "assistant" for one in messages)
        calls = ["look_up", "book"]
        return "done" if turn == 2 else f'<tool_call>{{"name": "{calls[turn]}", "arguments": {{"room": 4}}}}</tool_call>'

    def env(**effects: str) -> Any:
        tools = [tool for name, tool in world.tools(**effects).items() if name != "rate"]
        return FunctionEnvironment(tools, [ramify.Task("a", {"prompt": "go", "answer": "done", "split": "train"})])

    (attempt,) = ramify.play(replies, env(look_up="replay"), out=tmp_path / "run")
    before = world.done
    assert before == ["look_up:4", "book:4"]
    fork = ramify.fork_run(tmp_path / "run", attempt.turns[0].node.id, n=2, model=replies, env=env(look_up="replay"))
    assert world.done == before
    assert all("'book' declares no effect" in str(one.failure) for one in fork.arm.attempts)
    again = ramify.fork_run(
        tmp_path / "run", attempt.turns[0].node.id, n=2, model=replies, env=env(look_up="replay"), effects={"book": "pure"}
    )
    assert again.arm.successes == 2
    assert world.done[len(before) :] == ["book:4"] * 2


def test_a_box_of_a_branch_is_its_own() -> None:
    gate = ToolGate()

    @ramify.tool("sandboxed")
    def shell(command: str, box: WorkFolder) -> str:
        return box.run(["sh", "-c", command]).text

    assert list(inspect.signature(shell).parameters) == ["command"]
    token = GATE.set(gate)
    try:
        shell("echo one > a; mkdir b; echo two > b/c")
        assert shell("cat a b/c") == "one\ntwo\n"
    finally:
        GATE.reset(token)
    gate.close()
    assert gate.box.files == {"a": b"one\n", "b/c": b"two\n"}
    assert [one["how"] for one in gate.calls] == ["run", "run"]


# -- a command in a git worktree


def edits(body: dict[str, Any]) -> dict[str, Any]:
    """Writes a file by its whole name, then one of two lines into the code, then it is done."""
    if "tools" not in body:
        return {"content": "red"}
    folder, seen = body["messages"][0]["content"].split()[-1], results(body)
    line = "ok" if next(ROOMS) == 4 and len(seen) == 1 else "bad"
    commands = [f"echo plan > {folder}/plan.md; mv old.txt new.txt; date +%s%N > stamp", f"cat plan.md; echo {line} >> code.txt"]
    if len(seen) < 2:
        return {"content": None, "tool_calls": [call("shell", f"s{len(seen)}", command=commands[len(seen)])]}
    return {"content": "done in " + folder}


@pytest.mark.slow
def test_a_command_in_a_worktree_goes_back_to_its_files(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "code.txt").write_text("first\n")
    (repo / "old.txt").write_text("old\n")
    (tmp_path / "coder.py").write_text(CODER)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    seen: list[tuple[str, str, list[str]]] = []

    def grade(task: ramify.Task, answer: str, folder: Path) -> bool:
        seen.append((answer, (folder / "stamp").read_text(), sorted(one.name for one in folder.iterdir() if one.name != ".git")))
        return "ok" in (folder / "code.txt").read_text()

    def env(**tools: str) -> Any:
        command = [sys.executable, str(tmp_path / "coder.py"), "{prompt}"]
        return ramify.agent(command, repo=repo, tools=tools, grade=grade, tasks=[{"id": "code", "prompt": "Write ok."}])

    with chat_server(edits) as server:
        attempts = ramify.play(server.model, env(shell="sandboxed"), attempts=2, out=tmp_path / "run")
        assert [one.failure for one in attempts] == [None, None]
        step = attempts[0].turns[1]
        commits = [str(turn.answer.data["commit"]) for turn in attempts[0].turns[:-1]]
        shown = subprocess.run(
            ["git", "-C", str(repo), "show", f"{commits[0]}:new.txt"], capture_output=True, text=True, check=True
        )
        assert shown.stdout == "old\n"
        assert {body["messages"][0]["content"] for body in server.asked} == {"Write ok. The folder is /ramify/worktree"}
        first = seen[0][1], seen[1][1]
        fork = ramify.fork_run(tmp_path / "run", step.node.id, n=4, model=server.model, env=env(shell="sandboxed"))
        assert [one.failure for one in fork.arm.attempts] == [None] * 4
        assert {one.outcome for one in fork.arm.attempts} == {True, False}
        assert {stamp for _, stamp, _ in seen[2:]} <= set(first)  # the recorded file, though the command ran again
        assert len({stamp for _, stamp, _ in seen[2:]}) == 1
        assert all(names == ["code.txt", "new.txt", "plan.md", "stamp"] for _, _, names in seen)
        assert {answer for answer, _, _ in seen} == {"done in /ramify/worktree"}
        refused = ramify.fork_run(tmp_path / "run", step.node.id, n=1, model=server.model, env=env())
        assert "'shell' declares no effect" in str(refused.arm.attempts[0].failure)
    assert sorted(one.name for one in repo.iterdir()) == [".git", "code.txt", "old.txt"]
    with pytest.raises(UserError, match="go together"):
        ramify.agent(["coder"])
    with pytest.raises(UserError, match="not a git repository with a commit 'nowhere'"):
        ramify.agent(["coder"], repo=repo, base="nowhere")


@pytest.mark.slow
def test_what_serve_recorded_is_gone_back_to_by_the_agent(server: ChatServer, world: World, tmp_path: Path) -> None:
    """The agent ran without ramify but for its server's address; later it is given, with the effects of its tools."""
    from ramify.cli.serve import find_served
    from ramify.web.api import Api
    from ramify.web.limits import Guard, Slots
    from ramify.web.recording import Recorder
    from ramify.web.server import open_server

    tools = world.tools(look_up="pure", rate="replay", book="sandboxed")
    model, gauges = find_served(server.model, 4)
    recorder = Recorder(tmp_path / "run", {"model": server.model, "middleware": []})
    guard = Guard(Api(model, "m", Slots(4, 4, 4), recorder, gauges).app(), "127.0.0.1", None, seconds=60)
    gateway, listener = open_server(guard, 0, 16)
    thread = threading.Thread(target=gateway.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    answer = loop(tools)(TASKS[0]["prompt"], f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    gateway.should_exit = True
    thread.join(30)
    recorder.close()
    before = world.done
    assert answer.startswith("Booked")
    with Run.open(tmp_path / "run") as run:
        (info,) = run.trees()
        node = next(one for one in run.tree(info.name).nodes.values() if one.text == "Now I book.")
    fork = ramify.fork_run(tmp_path / "run", node.id, n=4, model=server.model, env=environment(tools))
    assert [one.failure for one in fork.arm.attempts] == [None] * 4
    assert {one.outcome for one in fork.arm.attempts} == {True, False}
    assert [one.split(":")[0] for one in world.done[len(before) :]] == ["book"] * 4


def test_a_thread_that_knows_no_episode_runs_nothing_of_a_branch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramify.env.tools._open", weakref.WeakSet())  # other tests leave episodes open
    book = world.tools(book="pure")["book"]
    gate = ToolGate()
    gate.branch([], [])
    gate.close("it was refused elsewhere")
    raised: list[str] = []

    def stray() -> None:
        try:
            book(4)
        except InfrastructureError as error:
            raised.append(error.message)

    def run() -> None:
        thread = threading.Thread(target=stray)
        thread.start()
        thread.join()

    run()
    assert "refused elsewhere" in raised[0]
    other = ToolGate()
    run()
    assert "does not know its episode" in raised[1]
    for one in (gate, other):
        one.leave()
    assert world.done == []
    run()
    assert world.done == ["book:4"]
    assert book(4)["booked"]


def test_bad_requests_of_an_agent_are_refused_in_a_sentence(tmp_path: Path) -> None:
    import httpx2

    said: list[tuple[int, str]] = []

    def agent(prompt: str, url: str) -> str:
        with httpx2.Client() as client:
            bodies: list[Any] = [
                [],
                {},
                {"messages": []},
                {"messages": [1]},
                {"messages": [{"role": "user", "content": "x"}], "n": 2},
            ]
            answers = [client.post(f"{url}/chat/completions", json=body) for body in bodies]
            answers += [
                client.post(f"{url}/embeddings", json={}),
                client.post(url.rsplit("/", 2)[0] + "/guess/v1/chat/completions", json={}),
            ]
            answers += [client.post(f"{url}/chat/completions", content=b"{", headers={"content-type": "application/json"})]
            said.extend((answer.status_code, answer.json()["error"]["message"]) for answer in answers)
            body = {"messages": [{"role": "user", "content": prompt}], "stream": True}
            return client.post(f"{url}/chat/completions", json=body).text

    (attempt,) = ramify.play(lambda messages: "yes", ramify.agent(agent), [{"id": "a", "prompt": "Go."}], out=tmp_path / "run")
    assert attempt.failure is None
    assert [status for status, _ in said] == [400, 400, 400, 400, 400, 404, 410, 400]
    assert all(text and "\n" not in text for _, text in said)
    assert attempt.turns[-1].answer.text.endswith("data: [DONE]\n\n")


def test_a_model_in_this_process_samples_as_the_agent_asks(tmp_path: Path) -> None:
    import httpx2

    replies: list[dict[str, Any]] = []

    def agent(prompt: str, url: str) -> str:
        message = {"role": "user", "content": prompt}  # the same history each time, whatever was replied
        with httpx2.Client(timeout=60) as client:
            for asked in ({"temperature": 0, "max_tokens": 2}, {"temperature": 0, "max_tokens": 2}, {"stop": [" ", "e"]}):
                replies.append(client.post(f"{url}/chat/completions", json={"messages": [message], **asked}).json()["choices"][0])
        return "done"

    (attempt,) = ramify.play("builtin", ramify.agent(agent), [{"id": "a", "prompt": "Go."}], out=tmp_path / "run")
    assert attempt.failure is None
    first, again, ended = (one["message"]["content"] for one in replies)
    nodes = [turn.node for turn in attempt.turns]
    assert first == again  # greedy, at a run's temperature of 1
    assert all(node.sampled is not None and node.sampled.sum() == 2 for node in nodes[:2])
    assert replies[0]["finish_reason"] == "length"
    assert not set(ended or "") & {" ", "e"}  # a server leaves the stop text out; the tokens keep it
    assert nodes[0].logprobs is None  # they would be those of temperature 0, and the run says 1
    assert nodes[2].logprobs is not None


def test_what_only_a_server_follows_is_refused(tmp_path: Path) -> None:
    import httpx2

    def agent(prompt: str, url: str) -> str:
        body = {"messages": [{"role": "user", "content": prompt}], "response_format": {"type": "json_object"}}
        return httpx2.post(f"{url}/chat/completions", json=body, timeout=60).text

    with pytest.raises(UserError, match=r"response_format.*`ramify serve` it"):
        ramify.play("builtin", ramify.agent(agent), [{"id": "a", "prompt": "Go."}], out=tmp_path / "run")


def test_a_model_in_this_process_is_shown_what_the_agent_sends(tmp_path: Path) -> None:
    import httpx2

    from ramify.rollout.components import make_agent
    from ramify.rollout.run import Episodes

    sent = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Again."}],  # the first reply is gone
        [{"role": "user", "content": "Call it."}],
    ]

    def agent(prompt: str, url: str) -> str:
        with httpx2.Client(timeout=60) as client:
            for at, messages in enumerate(sent):
                body = {"messages": messages, "max_tokens": 4} | ({"tools": TOOLS[:1]} if at == 2 else {})
                assert client.post(f"{url}/chat/completions", json=body).status_code == 200
        return "done"

    (attempt,) = ramify.play("builtin", ramify.agent(agent), [{"id": "a", "prompt": "Go."}], out=tmp_path / "run")
    with Run.open(tmp_path / "run", write=True) as run:
        assert run.config["sampling"]["max_tokens"] == 4096  # the agent says how many, not the default of a plain attempt
        prompts = Episodes(make_agent("builtin", None, None), ramify.agent(agent), run).prompts
        path = [turn.node for turn in attempt.turns]
        prompts.record.load(attempt.tree)
        decode = prompts.agent.template.tokenizer.decode  # type: ignore[union-attr]
        shown = []
        for node in path:
            tree = prompts.record.trees[attempt.tree]
            prefix = prompts.prompt(prompts.at(tree.node(str(node.parent))), ()).prefix
            assert prefix.tokens is not None
            shown.append(decode(prefix.tokens.tolist()))
    words = ("Be brief.", "Go.", "Again.", "Call it.", "look_up")
    assert [[word for word in words if word in one] for one in shown] == [
        ["Be brief.", "Go."],
        ["Be brief.", "Again."],
        ["Call it.", "look_up"],
    ]


@pytest.mark.parametrize("place", ["this process", "a server"])
def test_an_edit_stays_where_an_agent_sends_its_messages_anew(place: str, tmp_path: Path) -> None:
    import httpx2

    def agent(prompt: str, url: str) -> str:
        with httpx2.Client(timeout=60) as client:
            for text in ("Go.", "Again."):  # the first reply is gone from the second request
                messages = [{"role": role, "content": said} for role, said in (("system", "Be brief."), ("user", "Hi."))]
                messages.append({"role": "user", "content": text})
                client.post(f"{url}/chat/completions", json={"messages": messages, "max_tokens": 4, "tools": TOOLS[:1]})
        return "done"

    env = ramify.agent(agent)
    edits: dict[str, Any] = {
        "Mind the gap.": {"rule": {"add": "Mind the gap."}},
        "Looks things up.": {"tool": {"name": "look_up", "description": "Looks things up."}},
        "Ho.": {"history": {"message": 1, "replace": ["Hi", "Ho"]}},
    }
    with chat_server(lambda body: {"content": "ok"}) as server:
        model = "builtin" if place == "this process" else f"chat:m@{server.url}"
        (attempt,) = ramify.play(model, env, [{"id": "a", "prompt": "Go."}], out=tmp_path / "run")
        for text, edit in edits.items():
            fork = ramify.fork_run(tmp_path / "run", attempt.turns[0].node.id, n=1, edit=edit, model=model, env=env)
            nodes = [turn.node for turn in fork.arm.attempts[0].turns]
            if place == "a server":  # which is asked by the attempt without the edit, too
                shown = [body for body in map(json.dumps, server.bodies) if text in body]
            else:
                with Run.open(tmp_path / "run") as run:
                    shown = ["\n".join(message.text for message in run.shown(node.id).messages) for node in nodes]
            assert len(shown) == 2
            assert all(text in one and "Be brief." in one for one in shown)
