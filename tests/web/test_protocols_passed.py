"""The two protocols at a gateway: what the upstream is sent, what middleware changes, what is recorded, whose key goes where."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import openai
import pytest
from api_server import served
from test_protocols import PIXEL, SCRIPTED, TOOL, clients, closing_clients, said

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import MODEL, FaultyServer, chat, good, http
from model_server import serving

from ramify.model.endpoint import HttpModel
from ramify.model.middleware import Middleware, wrap
from ramify.model.protocol import Completion, Prefix
from ramify.trace.db import Run
from ramify.web.api import Api
from ramify.web.limits import Guard, Slots
from ramify.web.recording import Recorder

anthropic = pytest.importorskip("anthropic")
RULE = "Never mail anyone outside acme.com."
KEY = "sk-ant-clients-own-0123456789"
EVENTS = "text/event-stream"


def sse(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


# As https://docs.anthropic.com/en/api/messages-streaming shows them: pings, thinking with its signature, input in pieces.
THOUGHT = {"type": "thinking", "thinking": "Where is it? On the desk.", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"}
USE = {"type": "tool_use", "id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "name": "look", "input": {"at": "desk"}}
ANSWER: dict[str, Any] = {
    "id": "msg_014p7gG3wDgGV9EUtLvnow3U", "type": "message", "role": "assistant", "model": MODEL,
    "content": [THOUGHT, {"type": "text", "text": "I look."}, USE], "stop_reason": "tool_use", "stop_sequence": None,
    "usage": {"input_tokens": 472, "cache_read_input_tokens": 100, "output_tokens": 89},
}  # fmt: skip
STREAM = sse(
    {"type": "message_start", "message": {**ANSWER, "content": [], "usage": {**ANSWER["usage"], "output_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Where is it? "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "On the desk."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": THOUGHT["signature"]}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "look."}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {**USE, "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"at": "'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": 'desk"}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 89}},
    {"type": "message_stop"},
)  # fmt: skip


def as_claude(body: dict[str, Any]) -> bytes:
    return http(STREAM, kind=EVENTS) if body.get("stream") else http(ANSWER)


#: What Claude Code sends, in small: blocks of the system with marks of its cache, a tool, a reply with its thought.
ASK: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "user_1"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<hint/>"}, {"type": "text", "text": "Where is the pen?"}]},
        {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "I look."}, USE]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": USE["id"], "content": [{"type": "text", "text": "a pen"}], "is_error": False},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}},
        ]},
    ],
    "context_management": {"edits": []},
}  # fmt: skip


@contextmanager
def gateway(
    plan: Callable[[dict[str, Any]], bytes], mode: str, folder: Path | None = None, layers: tuple[str, ...] = (), **api: Any
) -> Iterator[tuple[str, FaultyServer]]:
    def answer(body: dict[str, Any]) -> Any:  # the gateway looks at a server of chats before it starts
        return good(body) if "Name a colour" in json.dumps(body) else plan(body)

    with FaultyServer(answer) as upstream:
        model = wrap(HttpModel(f"{upstream.url}?retries=0", MODEL, mode), layers)
        recorder = Recorder(folder, {}) if folder else None
        guard = Guard(Api(model, MODEL, Slots(8, 8), recorder, **api).app(), seconds=60)
        with serving(guard) as url, closing_clients():
            yield url, upstream
        if recorder is not None:
            recorder.close()


CLIENT = httpx2.Client(trust_env=False, timeout=60, verify=False)


def post(url: str, path: str, body: dict[str, Any], **headers: str) -> Any:
    return CLIENT.post(url + path, json=body, headers=headers | {"connection": "close"})


# -- the upstream speaks the client's protocol


@pytest.mark.parametrize("streams", [False, True])
def test_a_message_passes_as_it_is_to_who_speaks_it(streams: bool) -> None:
    body = {**ASK, "stream": streams, "new_field": {"x": [1, None]}}
    with gateway(as_claude, "anthropic") as (url, upstream):
        answer = post(
            url, "/messages", body, **{"anthropic-beta": "b-1,b-2", "anthropic-version": "2023-06-01", "x-api-key": KEY}
        )
        (path, headers, sent) = upstream.requests[-1]
    assert (path, sent) == ("/v1/messages", body)
    assert answer.content == (STREAM if streams else json.dumps(ANSWER).encode())
    assert headers["anthropic-beta"] == "b-1,b-2"
    assert KEY not in json.dumps(dict(headers))


@pytest.fixture
def pins(tmp_path: Path) -> str:
    path = tmp_path / "rules.txt"
    path.write_text(RULE)
    return f"pins:{path}"


def test_a_rule_is_put_into_a_message_and_nothing_else_of_it_changes(pins: str) -> None:
    with gateway(as_claude, "anthropic", None, (pins,)) as (url, upstream):
        whole = post(url, "/messages", ASK).json()
        streamed = post(url, "/messages", ASK | {"stream": True}).text
        sent = upstream.requests[0][2]
    assert sent["system"][:2] == ASK["system"]
    assert RULE in sent["system"][2]["text"]
    assert len(sent["system"]) == 3
    assert {k: v for k, v in sent.items() if k != "system"} == {k: v for k, v in ASK.items() if k != "system"}
    assert whole == ANSWER | {"ramify": {"pins": {"reinserted": [RULE]}}}
    kept, last = streamed.split("event: message_delta")
    assert kept.encode() == STREAM.split(b"event: message_delta")[0]
    assert json.loads(last.split("data: ")[1].split("\n")[0])["ramify"] == {"pins": {"reinserted": [RULE]}}


ITEMS: list[Any] = [
    {"role": "user", "content": [
        {"type": "input_text", "text": "Where is the pen?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
    ]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"at":"desk"}'},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "shell", "input": "ls"},
    {"type": "function_call_output", "call_id": "call_1", "output": "a pen"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "notes.txt"}]},
]  # fmt: skip
CODEX: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are Codex.",
    "input": ITEMS,
    "tools": [
        {"type": "function", "name": "look", "parameters": TOOL["input_schema"], "strict": True},
        {"type": "custom", "name": "shell", "description": "Runs.", "format": {"type": "text"}},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low"},
    "text": {"verbosity": "low"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"x": "y"},
}


def test_a_rule_is_put_into_a_response_and_nothing_else_of_it_changes(pins: str) -> None:
    with (
        served(SCRIPTED) as speaks,
        gateway(lambda body: http({"error": {"message": "none"}}, 500), "responses", None, (pins,)) as (url, upstream),
    ):
        assert post(url, "/responses", CODEX).status_code == 502
        sent = upstream.requests[0][2]
        with served(wrap(HttpModel(f"{speaks}?retries=0", "tiny", "responses"), (pins,))) as told:
            answer = post(told, "/responses", {"model": "tiny", "input": "hi"}).json()
    assert RULE in sent["input"][0]["content"]
    assert sent["input"][1:] == ITEMS
    assert {k: v for k, v in sent.items() if k != "input"} == {k: v for k, v in CODEX.items() if k != "input"}
    assert answer["ramify"] == {"pins": {"reinserted": [RULE]}}


class Loud(Middleware):
    """Makes capitals, of replies too."""

    name, rewrites = "loud", True

    async def before(self, given: Prefix) -> Prefix:
        last = given.messages[-1]
        return replace(given, messages=(*given.messages[:-1], replace(last, text=last.text.upper())))

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        return replace(completion, text=completion.text.upper())


def test_a_reply_that_middleware_changes_is_told_anew() -> None:
    with FaultyServer(as_claude) as upstream:
        model = Loud(HttpModel(f"{upstream.url}?retries=0", MODEL, "anthropic"))
        with serving(Guard(Api(model, MODEL, Slots(8, 8)).app(), seconds=60)) as url, closing_clients():
            ask: Any = {"model": MODEL, "max_tokens": 99, "messages": ASK["messages"]}
            whole = clients(url).claude.messages.create(**ask)
            with clients(url).claude.messages.stream(**ask) as stream:
                events = stream.get_final_message()
        sent = upstream.requests[-1][2]["messages"][-1]["content"]
    assert [part["type"] for part in sent] == ["tool_result", "image", "text"]
    assert sent[-1] == {"type": "text", "text": "AND NOW?", "cache_control": {"type": "ephemeral"}}
    for message in (whole, events):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        assert message.content[1].text == "I LOOK."
        assert message.content[2].input == {"at": "desk"}
        assert message.usage.output_tokens == 89


# -- the upstream speaks chat completions only


def test_a_message_is_translated_for_who_speaks_chats() -> None:
    with gateway(lambda body: http(chat()), "chat") as (url, upstream):
        answer = post(
            url,
            "/messages",
            {**ASK, "top_k": 5, "stop_sequences": ["\n"], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        )
        sent = upstream.requests[-1][2]
    assert answer.json()["content"] == [{"type": "text", "text": "fine", "citations": None}]
    assert answer.headers["x-ramify-ignored"] == "context_management, thinking"
    call = {"id": USE["id"], "type": "function", "function": {"name": "look", "arguments": '{"at": "desk"}'}}
    assert sent == {
        "model": MODEL, "max_tokens": 32000, "top_k": 5, "stop": ["\n"], "user": "user_1",
        "tool_choice": "required", "parallel_tool_calls": False,
        "tools": [{"type": "function", "function": {"name": "look", "parameters": TOOL["input_schema"]}}],
        "messages": [
            {"role": "system", "content": "You are Claude Code.\nBe brief."},
            {"role": "user", "content": "<hint/>\nWhere is the pen?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": USE["id"], "content": "a pen"},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                {"type": "text", "text": "and now?"},
            ]},
        ],
    }  # fmt: skip


def test_a_response_is_translated_for_who_speaks_chats() -> None:
    called = {"id": "c9", "type": "function", "function": {"name": "shell", "arguments": '{"input": "cat notes.txt"}'}}
    reply = {"role": "assistant", "content": None, "reasoning_content": "Look inside.", "tool_calls": [called]}
    with gateway(lambda body: http(chat(reply, "tool_calls")), "chat") as (url, upstream):
        answer = post(url, "/responses", CODEX)
        sent = upstream.requests[-1][2]
    assert [item["type"] for item in answer.json()["output"]] == ["reasoning", "custom_tool_call"]
    assert answer.json()["output"][1]["input"] == "cat notes.txt"
    assert answer.headers["x-ramify-ignored"] == "client_metadata, tools[2] (web_search)"
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert [call["function"] for call in sent["messages"][2]["tool_calls"]] == [
        {"name": "look", "arguments": '{"at":"desk"}'},
        {"name": "shell", "arguments": '{"input": "ls"}'},
    ]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["look", "shell"]
    told = {
        "reasoning_effort": "low",
        "verbosity": "low",
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
    }
    assert {name: sent[name] for name in told} == told
    assert not {"store", "include", "instructions", "input"} & sent.keys()


def piece(finish: str | None = None, **delta: Any) -> bytes:
    return (
        b"data: "
        + json.dumps({"id": "c", "model": MODEL, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()
        + b"\n\n"
    )


def call_piece(at: int, arguments: str, name: str = "") -> bytes:
    head = {"id": f"c{at}", "type": "function"} if name else {}
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return piece(tool_calls=[{"index": at, **head, "function": function}])


COUNTS = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
USAGE = b"data: " + json.dumps({"id": "c", "choices": [], "usage": COUNTS}).encode() + b"\n\n"
PIECES = [
    piece(role="assistant", content=""), piece(reasoning_content="Hm."), piece(content="I "), piece(content="look."),
    call_piece(0, "", "look"), call_piece(0, '{"at": '), call_piece(0, '"desk"}'),
    call_piece(1, "", "look"), call_piece(1, '{"at": "bed"}'), piece("tool_calls"), USAGE, b"data: [DONE]\n\n",
]  # fmt: skip


def test_pieces_of_a_chat_are_told_as_they_come() -> None:
    with gateway(lambda body: http(b"".join(PIECES), kind=EVENTS), "chat") as (url, _):
        ask: Any = {"model": MODEL, "max_tokens": 99, "messages": said("both")}
        with clients(url).claude.messages.stream(**ask) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            message = stream.get_final_message()
        with clients(url).ai.responses.stream(model=MODEL, input="both") as stream:
            deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            response = stream.get_final_response()
    assert pieces == deltas == ['{"at": ', '"desk"}', '{"at": "bed"}']
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in message.content[2:]] == [{"at": "desk"}, {"at": "bed"}]
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (4, 3, 5)
    assert message.stop_reason == "tool_use"
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (7, 3)


@pytest.mark.parametrize("mode", ["chat", "anthropic"])
def test_an_upstream_that_refuses_or_breaks_off_is_said_as_the_protocol_has_it(mode: str) -> None:
    slow = http({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}, 429, {"retry-after": "7"})
    begun = STREAM.split(b'event: content_block_start\ndata: {"type": "content_block_start", "index": 2')[0]
    cut = http(b"".join(PIECES[:4]) if mode == "chat" else begun, kind=EVENTS)
    ask: Any = {"model": MODEL, "max_tokens": 99, "messages": said("hi")}
    with gateway(lambda body: cut if body.get("stream") else slow, mode) as (url, _):
        with pytest.raises(anthropic.RateLimitError, match="slow down") as limited:
            clients(url).claude.messages.create(**ask)
        assert limited.value.response.headers["retry-after"] == "7"
        with (
            pytest.raises(anthropic.APIStatusError, match="ended before its reply did"),
            clients(url).claude.messages.stream(**ask) as stream,
        ):
            assert "".join(stream.text_stream) == "never whole"
        if mode == "chat":
            told: list[Any] = []
            with (
                pytest.raises(openai.APIError, match="ended before its reply did"),
                clients(url).ai.responses.stream(model=MODEL, input="hi") as events,
            ):
                told.extend(events)
            assert told[-1].type == "response.failed"
            assert told[-1].response.error is not None
            assert "ended before its reply did" in told[-1].response.error.message


# -- what is recorded


def nodes(run: Run) -> list[list[tuple[str, str]]]:
    return [
        [(node.role, node.text) for node in run.nodes(info.name) if node.text or node.role == "assistant"] for info in run.trees()
    ]


@pytest.mark.parametrize("mode", ["anthropic", "chat"])
def test_a_conversation_is_one_tree_though_ids_change_and_protocols(tmp_path: Path, mode: str) -> None:
    whole = chat(
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "own", "type": "function", "function": {"name": "look", "arguments": '{"at":"desk"}'}}],
        },
        "tool_calls",
    )
    plan = as_claude if mode == "anthropic" else lambda body: http(whole)
    with gateway(plan, mode, tmp_path / "run") as (url, _):
        ask = {"model": MODEL, "max_tokens": 99, "messages": said("Where is the pen?")}
        post(url, "/messages", ask)
        for id in ("toolu_a", "toolu_b"):
            reply = [{"type": "text", "text": "I look."}, {**USE, "id": id}]
            result = [{"type": "tool_result", "tool_use_id": id, "content": "a pen"}]
            post(
                url,
                "/messages",
                ask
                | {
                    "messages": [
                        *said("Where is the pen?"),
                        {"role": "assistant", "content": reply},
                        {"role": "user", "content": result},
                    ]
                },
            )
        items = [*said("Where is the pen?"), *ITEMS[2:4], ITEMS[5]]
        assert post(url, "/responses", {"model": MODEL, "input": items}).status_code == 200
    with Run.open(tmp_path / "run") as run:
        (tree,) = nodes(run)
        replies = [node for info in run.trees() for node in run.nodes(info.name) if node.role == "assistant"]
    assert tree.count(("user", "Where is the pen?")) == 1
    assert tree.count(("tool", "a pen")) == 1
    assert tree.count(("assistant", "I look.")) == len(replies) == 4
    assert all(node.context is None for node in replies)


def test_a_response_that_continues_another_is_recorded_below_it(tmp_path: Path) -> None:
    with served(SCRIPTED) as speaks:
        recorder = Recorder(tmp_path / "run", {})
        with served(HttpModel(f"{speaks}?retries=0", "tiny", "responses"), record=recorder) as url, closing_clients():
            ai = clients(url).ai
            first = ai.responses.create(model="tiny", input="hi")
            with ai.responses.stream(model="tiny", input="and?", previous_response_id=first.id) as stream:
                second = stream.get_final_response()
            ai.responses.create(model="tiny", input="more", previous_response_id=second.id)
        recorder.close()
    with Run.open(tmp_path / "run") as run:
        (tree,) = nodes(run)
    assert [text for _, text in tree] == ["hi", "user: hi", "and?", "user: and?", "more", "user: more"]


# -- whose key


def says(mode: str, text: str) -> bytes:
    """A piece of a stream's text."""
    if mode == "chat":
        return piece(content=text)
    if mode == "anthropic":
        return sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
    return sse({"type": "response.output_text.delta", "output_index": 0, "item_id": "msg_1", "delta": text})


@pytest.mark.parametrize(
    ("mode", "ask"), [("anthropic", "messages"), ("chat", "messages"), ("chat", "responses"), ("responses", "responses")]
)
@pytest.mark.parametrize("passes", [True, False])
def test_a_clients_key_goes_to_the_upstream_alone_and_only_where_that_is_said(
    tmp_path: Path, mode: str, ask: str, passes: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def leaky(body: dict[str, Any]) -> bytes:
        if body.get("stream"):
            return http(b"".join(says(mode, text) for text in ("your key is ", KEY[:9], KEY[9:])), kind=EVENTS)
        return http({"error": {"message": f"who is {KEY}?"}}, 401)

    with gateway(leaky, mode, tmp_path / "run", pass_key=passes) as (url, upstream):
        own = clients(url, KEY)
        body: Any = (
            {"model": MODEL, "max_tokens": 9, "messages": said("hi")} if ask == "messages" else {"model": MODEL, "input": "hi"}
        )
        client = own.claude.messages if ask == "messages" else own.ai.responses
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as refused:
            client.create(**body)
        assert refused.value.status_code == (401 if passes else 502)  # whose key it is that was refused
        streamed = post(url, f"/{ask}", body | {"stream": True}, **{"x-api-key": KEY, "authorization": f"Bearer {KEY}"}).text
        heads = [
            json.dumps(headers)
            for path, headers, _ in upstream.requests
            if headers.get("x-api-key") or KEY in json.dumps(headers)
        ]
    assert (len(heads) == 2) is passes
    assert not heads or all(KEY in head for head in heads)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    kept = b"".join(path.read_bytes() for path in files)
    printed = "".join(capfd.readouterr())
    said_to = str(refused.value) + json.dumps(refused.value.body)
    if passes:
        for text in (kept.decode("latin-1"), printed, said_to, streamed):
            assert KEY not in text
            assert KEY[9:] not in text


def test_the_servers_own_token_goes_to_no_upstream_and_the_clients_key_does() -> None:
    token = "a-token-of-this-server"
    with FaultyServer(as_claude) as upstream:
        model = HttpModel(f"{upstream.url}?retries=0", MODEL, "anthropic")
        guard = Guard(Api(model, MODEL, Slots(8, 8), pass_key=True).app(), token=token, seconds=60)
        with serving(guard) as url:
            body = {"model": MODEL, "max_tokens": 9, "messages": said("hi")}
            heads = {"authorization": f"Bearer {token}", "x-api-key": KEY}, {"authorization": f"Bearer {KEY}", "x-api-key": token}
            for headers in heads:
                assert post(url, "/messages", body, **headers).status_code == 200
            assert post(url, "/chat/completions", body, **heads[0]).json()["error"]["message"].startswith("With --pass-key")
        sent = [headers for _, headers, _ in upstream.requests]
    shown = [(headers.get("x-api-key"), headers.get("authorization")) for headers in sent]
    assert shown == [(KEY, None), (None, f"Bearer {KEY}")]


@pytest.mark.parametrize("mode", ["anthropic", "chat"])
def test_no_client_is_served_with_anothers_key(mode: str) -> None:
    plan = as_claude if mode == "anthropic" else lambda body: http(chat())
    with gateway(plan, mode, pass_key=True) as (url, upstream):
        for headers in ({"x-api-key": KEY}, {}, {"x-api-key": "sk-ant-another-0123456789"}):
            post(url, "/messages", {"model": MODEL, "max_tokens": 9, "messages": said("hi")}, **headers)
        sent = [headers.get("x-api-key") or headers.get("authorization", "none") for _, headers, _ in upstream.requests]
    assert [key.removeprefix("Bearer ") for key in sent] == [KEY, "none", "sk-ant-another-0123456789"]


# -- what nobody promised


ODD: tuple[Any, ...] = (None, True, -1, 1e300, "", "x", [], {}, [None], [[]], {"type": "text"}, [{"type": "text", "text": 5}])


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside ``value``."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield (*path, name)
        yield from spots(inner, (*path, name))


def spoiled(value: Any, random: Random) -> Any:
    """A copy with one value that does not belong there."""
    value = json.loads(json.dumps(value))
    *above, name = random.choice(list(spots(value)))
    holder = value
    for step in above:
        holder = holder[step]
    holder[name] = random.choice(ODD)
    return value


@pytest.mark.parametrize("layered", [False, True])
@pytest.mark.parametrize("mode", ["anthropic", "responses"])
def test_an_answer_of_any_shape_is_passed_or_refused_and_never_a_fault(
    mode: str, layered: bool, pins: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    random, ask = Random(mode), {"model": MODEL, "max_tokens": 9, "messages": said("hi"), "input": "hi"}
    with served(SCRIPTED) as speaks:
        asked = {"model": "tiny", "input": "both"}
        whole = ANSWER if mode == "anthropic" else post(speaks, "/responses", asked).json()
        stream = STREAM if mode == "anthropic" else post(speaks, "/responses", asked | {"stream": True}).content
    events = [json.loads(line[5:]) for line in stream.decode().splitlines() if line.startswith("data:")]

    def plan(body: dict[str, Any]) -> bytes:
        if not body.get("stream"):
            return http(spoiled(whole, random))
        return http(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in spoiled(events, random)), kind=EVENTS)

    statuses = Counter[int]()
    with gateway(plan, mode, tmp_path / "run", (pins,) if layered else ()) as (url, _):
        for streams in [False, True] * 15:
            path = "/messages" if mode == "anthropic" else "/responses"
            statuses[post(url, path, ask | {"stream": streams}).status_code] += 1
    assert statuses.keys() <= {200, 502}
    assert statuses[200]
    assert "fault" not in capfd.readouterr().err


@pytest.mark.parametrize(("path", "ask"), [("/messages", ASK), ("/responses", CODEX)])
def test_a_request_of_any_shape_is_answered_or_refused_in_a_sentence(path: str, ask: dict[str, Any]) -> None:
    random = Random(path)
    with served(SCRIPTED) as url:
        for _ in range(40):
            answer = post(url, path, spoiled(ask | {"model": "tiny"}, random))
            assert answer.status_code in (200, 400, 404), answer.text
            assert answer.status_code == 200 or answer.json()["error"]["message"].endswith(".")
