"""Subagents of a person's own agent: each conversation of an attempt is told from the others, named, and drawn beside them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_server import call, chat_server, results

import ramify
from ramify.env.protocol import conversation_of
from ramify.trace.db import Run
from ramify.web.lanes import lanes
from ramify.web.pages import report_html
from ramify.web.steps import read_tree

pytestmark = pytest.mark.slow

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("survey", "look")]
TASKS = [{"id": "rooms", "prompt": "Survey rooms 4 and 7."}]


def ask(url: str, messages: list[Any]) -> Any:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    return client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message


def subagent(url: str, room: int, found: dict[int, str]) -> None:
    messages: list[Any] = [{"role": "system", "content": "You survey."}, {"role": "user", "content": f"Survey room {room}."}]
    while (said := ask(url, messages)).tool_calls:
        messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": f"room {room} is free"}]
    found[room] = str(said.content)


def boss(prompt: str, url: str) -> str:
    """Starts a subagent in a thread for each call, waits for both, and answers."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while (said := ask(url, messages)).tool_calls:
        messages.append(said)
        found: dict[int, str] = {}
        rooms = {one.id: int(one.function.arguments) for one in said.tool_calls}
        threads = [threading.Thread(target=subagent, args=(url, room, found)) for room in rooms.values()]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        messages += [{"role": "tool", "tool_call_id": id, "content": found[room]} for id, room in rooms.items()]
    return str(said.content)


def scripted(body: dict[str, Any], reports: Any = lambda room: "free") -> dict[str, Any]:
    last, seen = body["messages"][-1]["content"], results(body)
    if "tools" not in body:
        return {"content": "red"}
    if body["messages"][0]["role"] == "system":
        room = re.findall(r"\d", str(body["messages"][1]["content"]))[0]
        return {"content": f"{room}: {reports(room)}"} if seen else {"content": None, "tool_calls": [call("look", f"l{room}")]}
    if seen:
        return {"content": " and ".join(seen)}
    calls = [{"id": f"s{r}", "type": "function", "function": {"name": "survey", "arguments": str(r)}} for r in (4, 7)]
    return {"content": None, "tool_calls": calls} if "Survey" in last else {"content": "?"}


def environment(run: Any = boss, **options: Any) -> Any:
    right = "4: free and 7: free"
    effects = {"survey": "pure", "look": "pure"}
    return ramify.agent(run, tools=effects, grade=lambda task, answer: answer == right, tasks=TASKS, **options)


def talks_of(attempt: Any) -> list[int]:
    """The conversation of each request after the first."""
    return [conversation_of(turn.answer.data) for turn in attempt.turns[:-1]]


def test_two_subagents_in_threads_are_drawn_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    with chat_server(scripted) as server:
        env = environment()
        (attempt,) = ramify.play(server.model, env, out=tmp_path / "run")
        assert attempt.outcome is True
        talks = [0, *talks_of(attempt)]
        assert sorted(talks) == [0, 0, 1, 1, 2, 2]
        assert (talks[0], talks[-1]) == (0, 0)
        for step in (attempt.turns[2], attempt.turns[-1]):  # a subagent's, and the one after both
            fork = ramify.fork_run(tmp_path / "run", step.node.id, n=2, model=server.model, env=env)
            assert [one.failure for one in fork.arm.attempts] == [None, None]
            assert fork.arm.successes == 2
    with Run.open(tmp_path / "run") as run:
        (drawn,) = lanes(read_tree(run, run.trees()[0].name))  # the forks are none
        page = report_html(run)
    assert [step.conversation for step in drawn.steps] == talks
    assert drawn.conversations == (0, 1, 2)
    assert 0 in drawn.steps[1].open  # the agent waits for them
    assert page.count('<td class="did') == 6
    assert "conversation 2</th>" in page


def test_why_names_the_conversation_that_lost_it(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    said = iter(range(10_000))

    def reports(room: str) -> str:  # the second room's report is wrong at first, then every fourth time
        return "taken" if room == "7" and next(said) % 4 == 0 else "free"

    with chat_server(lambda body: scripted(body, reports)) as server:
        env = environment()
        ramify.play(server.model, env, out=tmp_path / "run")
        found = ramify.why(tmp_path / "run", model=server.model, env=env, samples=150)
    assert (found.verdict, found.action) == ("step", "7: taken")
    assert found.conversation in (1, 2)
    assert f"Lost at `7: taken` (conversation {found.conversation}): success" in found.headline
    assert found.to_json()["conversation"] == found.conversation


@pytest.mark.parametrize("kept", ["the opening", "the end"])
def test_an_agent_that_edits_its_history_has_one_conversation(kept: str, tmp_path: Path) -> None:
    """Compaction is not a subagent: what is left of the history tells it."""
    pytest.importorskip("openai")

    def compacting(prompt: str, url: str) -> str:
        first = [{"role": "user", "content": prompt}]
        said = ask(url, first)
        result = {"role": "tool", "tool_call_id": "l", "content": "room 4 is free"}
        summary = {"role": "user", "content": "Summary: room 4 was looked at."}
        again = [*first, summary] if kept == "the opening" else [summary, said, result]
        return str(ask(url, again).content)

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) > 1 or "tools" not in body:
            return {"content": "4: free and 7: free"}
        return {"content": None, "tool_calls": [call("look", "l")]}

    with chat_server(reply) as server:
        env = environment(compacting)
        (attempt,) = ramify.play(server.model, env, out=tmp_path / "run")
        assert attempt.outcome is True
        assert talks_of(attempt) == [0]
        fork = ramify.fork_run(tmp_path / "run", attempt.turns[1].node.id, n=1, model=server.model, env=env)
        assert fork.arm.successes == 1
    with Run.open(tmp_path / "run") as run:
        assert lanes(read_tree(run, run.trees()[0].name)) == []
