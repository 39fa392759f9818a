"""What a server answers and what the model said: by kinds of servers, over real sockets, whole and streamed; rates by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_server import GOOD, MODEL, REPLIES, FaultyServer, chat, completion, good, http

import ramify
from ramify.engine.checkpoints import model_folder
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.integrations.environments.tools import ToolEpisode, ToolReply, refusal
from ramify.model import http as http_module
from ramify.model.address import EndpointLimits
from ramify.model.endpoint import HttpModel
from ramify.model.http import ProviderError
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.sse import StreamedCalls
from ramify.model.streaming import gathered
from ramify.model.wire import request_messages
from ramify.rollout.run import Answering
from ramify.trace.db import Run
from ramify.trace.message import Message

HELLO = Prefix(messages=(Message("user", "hello"),))
SETTINGS = Sampling(max_tokens=8)


def model(server: FaultyServer, mode: str = "chat", options: str = "", **more: Any) -> HttpModel:
    """Past its look at the server."""
    made = HttpModel(server.url + options, MODEL, mode, limits=EndpointLimits(retries=0), **more)
    made._offers = frozenset({"tokens", "continue", "logprobs"} if mode == "completions" else ())
    return made


def sample(made: HttpModel, streams: bool = False, prefix: Prefix = HELLO) -> Completion:
    if streams:
        return asyncio.run(gathered(made.stream(prefix, SETTINGS, 1)))
    return asyncio.run(made.sample(prefix, 1, SETTINGS, [1]))[0]


def events(*chunks: Any) -> bytes:
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return http(f"{text}data: [DONE]\n\n".encode(), kind="text/event-stream")


def chunk(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "model": MODEL, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | more


def streamed(raw: bytes) -> bytes:
    """A whole answer as a stream of two events."""
    answer = json.loads(raw.partition(b"\r\n\r\n")[2])
    (choice,) = answer["choices"]
    return events(chunk(choice["message"], model=answer["model"]), chunk({}, choice["finish_reason"], model=answer["model"]))


@pytest.mark.parametrize("streams", [False, True])
def test_what_the_model_said_is_a_reply_in_whatever_form(streams: bool) -> None:
    for name, (raw, text, calls, thought) in REPLIES.items():
        with FaultyServer(streamed(raw) and (lambda body, raw=raw: streamed(raw) if streams else raw)) as server:  # type: ignore[misc]
            made = sample(model(server), streams)
        assert (made.text, made.stop) == (text, "eos"), name
        data = made.data or {}
        found = [(call["function"]["name"], call["function"]["arguments"]) for call in data.get("tool_calls", ())]
        assert (found, data.get("reasoning", "")) == (calls, thought), name


FORMS: dict[str, list[list[tuple[Any, Any, Any, Any]]]] = {
    "by number": [
        [(0, "a", "get", "")],
        [(0, None, None, '{"a": ')],
        [(0, None, None, "1}")],
        [(1, "b", "set", "")],
        [(1, None, None, "{}")],
    ],
    "interleaved": [
        [(0, "a", "get", None), (1, "b", "set", None)],
        [(0, None, None, '{"a": ')],
        [(1, None, None, "{")],
        [(0, None, None, "1}"), (1, None, None, "}")],
    ],
    "all of number 0": [[(0, "a", "get", '{"a": 1}')], [(0, "b", "set", "{}")]],
    "all of number 0, in pieces": [
        [(0, "a", "get", "")],
        [(0, None, None, '{"a": 1}')],
        [(0, "b", "set", "")],
        [(0, None, None, "{}")],
    ],
    "all of number 0, without ids": [[(0, None, "get", '{"a": 1}')], [(0, None, "set", "{}")]],
    "all of number 0 in one event": [[(0, None, "get", '{"a": 1}'), (0, None, "set", "{}")]],
    "without numbers": [[(None, "a", "get", '{"a": ')], [(None, None, None, "1}")], [(None, "b", "set", "{}")]],
    "without numbers and ids": [[(None, None, "get", '{"a": 1}')], [(None, None, "set", "{}")]],
    "numbers as text": [[("0", "a", "get", '{"a": 1}')], [("1", "b", "set", "{}")]],
    "an id a piece": [[(0, "a", "get", "")], [(0, "c", None, '{"a": ')], [(0, "d", None, "1}")], [(1, "b", "set", "{}")]],
    "said in every piece": [
        [(0, "a", "get", '{"a": ')],
        [(0, "a", "get", "1}")],
        [(1, "b", "set", "{")],
        [(1, "b", "set", "}")],
    ],
    "numbers that count pieces": [[(0, "a", "get", '{"a": ')], [(1, None, None, "1}")], [(2, "b", "set", "{}")]],
    "one id for all": [[(0, "a", "get", '{"a": 1}')], [(1, "a", "set", "{}")]],
    "said again at the end": [
        [(0, "a", "get", '{"a": 1}')],
        [(1, "b", "set", "{}")],
        [(0, "a", "get", '{"a": 1}'), (1, "b", "set", "{}")],
    ],
    "arguments as objects": [[(0, "a", "get", {"a": 1})], [(0, "b", "set", {})]],
    "a name in pieces": [[(0, "a", "g", "")], [(0, None, "et", '{"a": 1}')], [(1, "b", "set", "{}")]],
}  # fmt: skip
"""How servers stream the calls get(a=1) and set(): each event's pieces as (index, id, name, arguments), None where absent."""


def piece(of: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    index, id, name, arguments = of
    function = {"name": name, "arguments": arguments}
    fields = {"index": index, "id": id, "function": {k: v for k, v in function.items() if v is not None}}
    return {k: v for k, v in fields.items() if v is not None}


@pytest.mark.parametrize("form", FORMS)
def test_streamed_calls_are_told_apart_however_they_are_numbered(form: str) -> None:
    heard = StreamedCalls()
    for one in FORMS[form]:
        heard.take(list(map(piece, one)))
    made = [(call["function"]["name"], call["function"]["arguments"]) for call in heard.made]
    assert made == [("get", '{"a": 1}'), ("set", "{}")]


def test_streamed_calls_are_those_that_the_model_is_told_to_have_made() -> None:
    deltas = [{"tool_calls": list(map(piece, one))} for one in FORMS["all of number 0, in pieces"]]
    with FaultyServer(lambda body: events(*map(chunk, deltas), chunk({}, "tool_calls"))) as server:
        made = sample(model(server), True)
    assert [call["id"] for call in made.data["tool_calls"]] == ["a", "b"]  # type: ignore[index]


# -- whose fault it was


class Desk:
    """An environment of one tool; a task is won by the answer that it names. The history must be valid, as servers demand."""

    name = "desk"
    max_turns = 4
    tools = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([Task(name, {"prompt": name, "answer": "fine"}) for name in PLANS])

    def make(self) -> Any:
        return _Desk()


class _Desk(ToolEpisode):
    def __init__(self) -> None:
        super().__init__(self._look, list(Desk.tools), "", 4, None, {})

    def _look(self, name: str, arguments: Any) -> ToolReply:
        return ToolReply(f"seen {arguments}") if name == "look" else refusal(f"no tool '{name}'")

    def reset(self, task: Task, seed: int) -> Observation:
        return self.begin(task)

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: Any) -> None:
        raise AssertionError

    def key(self) -> None:
        return None


def look(arguments: Any, id: str = "c", name: Any = "look") -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


#: task -> the model's first message, its finish_reason, whether the attempt succeeds; after a tool's result it says "fine"
PLANS: dict[str, tuple[Any, Any, bool | None]] = {
    "good": (GOOD, "stop", True),
    "a call": (look("{}"), "tool_calls", True),
    "no JSON": (look('{"path": "a'), "tool_calls", True),
    "a list": (look("[1]"), "tool_calls", True),
    "NaN": (look('{"a": NaN}'), "tool_calls", True),
    "no name": (look("{}", name=None), "tool_calls", True),
    "null reason": (look("{}"), None, True),
    "reasoning alone": ({"role": "assistant", "content": None, "reasoning_content": "hm"}, "stop", False),
    "a refusal": ({"role": "assistant", "content": None, "refusal": "I will not."}, "stop", False),
    "nothing": ({"role": "assistant", "content": None}, "", False),
    "withheld": (GOOD, "content_filter", None),
    "an ending that nobody knows": (GOOD, "meteor", None),
}


def strict(body: dict[str, Any]) -> bytes:
    """A server that refuses a history with arguments that are no JSON object, as vLLM and llama.cpp do."""
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            try:
                sound = isinstance(json.loads(call["function"]["arguments"], parse_constant=lambda _: 1 / 0), dict)
            except (ValueError, ZeroDivisionError):
                sound = False
            if not sound or not call["function"]["name"]:
                return http({"error": {"message": "Extra data: line 1"}}, 400)
    asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
    if asked not in PLANS or body["messages"][-1]["role"] == "tool":
        return http(chat())
    return http(chat(*PLANS[asked][:2]))


def test_the_rate_counts_what_the_model_did_and_nothing_else(tmp_path: Path) -> None:
    with FaultyServer(strict) as server:
        attempts = ramify.play(model(server), Desk(), out=tmp_path / "run")
        bodies = [body for _, _, body in server.requests]
    ended = {attempt.task.id: None if attempt.failure else attempt.outcome for attempt in attempts}
    assert ended == {name: outcome for name, (_, _, outcome) in PLANS.items()}
    counted = [outcome for outcome in ended.values() if outcome is not None]
    assert (sum(counted), len(counted)) == (7, 10)
    sent = [m for b in bodies for m in b["messages"] if m.get("tool_calls") and b["messages"][1]["content"] == "no JSON"]
    assert json.loads(sent[0]["tool_calls"][0]["function"]["arguments"]) == {"_raw": '{"path": "a'}
    told = next(
        b["messages"][-1] for b in bodies if b["messages"][1]["content"] == "no JSON" and b["messages"][-1]["role"] == "tool"
    )
    assert "the arguments of 'look' are text that is not JSON" in told["content"]
    (bad,) = [turn.node for attempt in attempts if attempt.task.id == "no JSON" for turn in attempt.turns[:1]]
    assert bad.data["tool_calls"][0]["function"]["arguments"] == '{"path": "a'  # the model's own words


def test_what_a_client_sent_is_mended_where_a_server_would_refuse_it_alone() -> None:
    good_call, bad = look('{"a": 1}')["tool_calls"][0], look("{a: 1}", "d")["tool_calls"][0]
    sent = {"role": "assistant", "content": None, "tool_calls": [good_call, bad], "odd": 1}
    (made,) = request_messages([Message("assistant", "", {"tool_calls": [good_call, bad], "odd": 1}, sent)])
    assert made["tool_calls"][0] == good_call
    assert json.loads(made["tool_calls"][1]["function"]["arguments"]) == {"_raw": "{a: 1}"}
    assert made["odd"] == 1
    assert sent["tool_calls"][1] == bad  # what was sent stays


def test_a_completion_that_does_not_say_why_it_ended(tmp_path: Path) -> None:
    import numpy as np

    prefix = Prefix(np.array([1, 2, 3], np.int32))
    with FaultyServer(lambda body: http(completion(finish_reason=None))) as server:
        made = model(server, "completions", tokenizer=model_folder("builtin"))
        whole, cut = (asyncio.run(made.sample(prefix, 1, Sampling(max_tokens=most), [1]))[0] for most in (8, 2))
    assert (whole.stop, cut.stop) == ("eos", "length")


# -- who answered


def names(*answers: str) -> Iterator[bytes]:
    yield from (http(chat(model=name)) for name in answers)


def test_another_name_is_kept_and_a_change_refused_unless_told() -> None:
    said = ["prod-2", "PROD-2", "other"]

    def plan(body: dict[str, Any]) -> bytes:
        return http(chat(model=said.pop(0) if len(said) > 1 else said[0]))

    with FaultyServer(plan) as server:
        made = model(server)
        assert [sample(made).data["model"] for _ in range(2)] == [  # type: ignore[index]
            {"asked": MODEL, "answered": "prod-2"}, {"asked": MODEL, "answered": "PROD-2"},
        ]  # fmt: skip
        with pytest.raises(ProviderError, match=r"answers as 'other' where it answered as 'prod-2' before.*\?answers=any"):
            sample(made)
        said[:] = ["one", "two"]
        free = model(server, options="?answers=any")
        assert [sample(free).data["model"]["answered"] for _ in range(2)] == ["one", "two"]  # type: ignore[index]


def test_a_run_keeps_who_answered_across_calls(tmp_path: Path) -> None:
    with FaultyServer(lambda body: http(chat(model="prod-2"))) as server, Run.create(tmp_path / "run", {}) as run:
        first = model(server)
        here = Answering(run, first)
        sample(first)
        here.keep()
    with FaultyServer(lambda body: http(chat(model="prod-3"))) as server, Run.open(tmp_path / "run", write=True) as run:
        later = model(server)
        later.__dict__["identity"] = first.identity  # the same address
        Answering(run, later)
        with pytest.raises(ProviderError, match="'prod-3' where it answered as 'prod-2'"):
            sample(later)
        new = model(server)
        Answering(run, new)
        assert sample(new).text == "fine"  # another address is another agent


# -- silence


def test_a_silent_server_is_named_once_and_soon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(http_module, "FIRST_WORD", 0.01)
    with FaultyServer(good, hang=True) as server:
        made = HttpModel(server.url, MODEL, limits=EndpointLimits(retries=1, base=0.01, read=0.3, total=0.3))
        with pytest.raises(ProviderError, match="did not answer"):
            made.capabilities  # noqa: B018
        (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"waiting for {server.url} since ")


def test_a_server_that_answers_is_not_waited_for_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer(good) as server:
        assert sample(model(server)).text == "fine"
    assert capsys.readouterr().err == ""
