"""OpenAI's Responses and Anthropic's Messages, asked by their own clients: of a model here, and of endpoints that speak each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from api_server import NAME, household, served

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))


from ramify.model.endpoint import HttpModel
from ramify.model.scripted import ScriptedModel
from ramify.trace.message import joined_reply

anthropic = pytest.importorskip("anthropic")

PLACE = {"type": "object", "properties": {"at": {"enum": ["desk", "bed"]}}, "required": ["at"], "additionalProperties": False}
TOOL = {"name": "look", "input_schema": PLACE}
FUNCTION: Any = {"type": "function", "name": "look", "parameters": TOOL["input_schema"], "strict": False}
MADE = [{"type": "function", "function": {"name": "look", "arguments": json.dumps({"at": at})}} for at in ("desk", "bed")]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def reply(messages: Any, key: int) -> str:
    said = messages[-1]
    if "both" in said.text:
        return joined_reply("I look.", MADE)
    return f"{said.role}: {said.text}"


SCRIPTED = ScriptedModel(reply, tokens=False)


@dataclass(frozen=True)
class Clients:
    url: str
    ai: openai.OpenAI
    claude: Any


OPENED: list[Any] = []


def clients(url: str, key: str = "none") -> Clients:
    own: dict[str, Any] = {"api_key": key, "max_retries": 0}
    made = Clients(url, openai.OpenAI(base_url=url, **own), anthropic.Anthropic(base_url=url.removesuffix("/v1"), **own))
    OPENED.extend((made.ai, made.claude))
    return made


@contextlib.contextmanager
def closing_clients() -> Iterator[None]:
    """Closes, at the end, the clients that were made meanwhile."""
    before = len(OPENED)
    try:
        yield
    finally:
        for client in OPENED[before:]:
            client.close()
        del OPENED[before:]


@pytest.fixture(scope="module", params=["here", "chat", "anthropic", "responses"])
def both(request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Clients of a model here, and of a gateway to a server that speaks one protocol (the first server)."""
    with served(SCRIPTED) as url, closing_clients():
        if request.param == "here":
            yield clients(url)
            return
        with served(HttpModel(f"{url}?retries=0", NAME, request.param)) as gateway:
            yield clients(gateway)


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_message_is_answered_whole_and_in_events(both: Clients) -> None:
    ask = {"model": NAME, "max_tokens": 200, "system": "Be brief.", "messages": said("hi")}
    message = both.claude.messages.create(**ask)
    assert [(block.type, block.text) for block in message.content] == [("text", "user: hi")]
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", NAME)
    with both.claude.messages.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_message().content[0].text == "user: hi"
    assert [kinds[0], *kinds[-3:]] == ["message_start", "content_block_stop", "message_delta", "message_stop"]


def test_calls_of_a_message_and_their_results_go_round(both: Clients) -> None:
    ask = {"model": NAME, "max_tokens": 400, "tools": [TOOL], "messages": said("both")}
    with both.claude.messages.stream(**ask) as stream:
        message = stream.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [("look", {"at": "desk"}), ("look", {"at": "bed"})]
    assert (message.content[0].text, message.stop_reason) == ("I look.", "tool_use")
    assert [block.type for block in both.claude.messages.create(**ask).content] == ["text", "tool_use", "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": call.input["at"]}]} for call in calls
    ]
    history = [*said("both"), {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    assert both.claude.messages.create(**{**ask, "messages": history}).content[0].text == "tool: bed"


def test_a_response_is_answered_whole_and_in_events(both: Clients) -> None:
    ask: Any = {"model": NAME, "instructions": "Be brief.", "input": "hi"}
    response = both.ai.responses.create(**ask)
    assert (response.output_text, response.status, response.instructions) == ("user: hi", "completed", "Be brief.")
    with both.ai.responses.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "user: hi"
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds


def test_calls_of_a_response_continue_by_its_id_and_by_its_items(both: Clients) -> None:
    ask: Any = {"model": NAME, "tools": [FUNCTION], "input": "both"}
    with both.ai.responses.stream(**ask) as stream:
        response = stream.get_final_response()
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("look", {"at": "desk"}), ("look", {"at": "bed"})]
    results: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "a pen"} for call in calls]
    after = both.ai.responses.create(**{**ask, "input": results, "previous_response_id": response.id})
    items = [*said("both"), *(item.to_dict() for item in response.output), *results]
    again = both.ai.responses.create(**{**ask, "input": items})
    assert (after.output_text, again.output_text) == ("tool: a pen", "tool: a pen")


@pytest.mark.parametrize(
    ("bad", "kind", "status"),
    [
        ({"model": "other"}, anthropic.NotFoundError, 404),
        ({"max_tokens": -1}, anthropic.BadRequestError, 400),
        ({"messages": [{"role": "owl", "content": "hu"}]}, anthropic.BadRequestError, 400),
        ({"tools": [{"name": "look", "input_schema": 3}]}, anthropic.BadRequestError, 400),
    ],
)
def test_a_refused_message_raises_what_the_protocol_has(both: Clients, bad: Any, kind: Any, status: int) -> None:
    ask = {"model": NAME, "max_tokens": 9, "messages": said("hi"), **bad}
    with pytest.raises(kind) as refused:
        both.claude.messages.create(**ask)
    assert refused.value.status_code == status
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] in ("not_found_error", "invalid_request_error")
    with pytest.raises(kind), both.claude.messages.stream(**ask) as stream:
        stream.get_final_message()


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"previous_response_id": "resp_gone"}, openai.BadRequestError),
        ({"input": [{"type": "owl"}]}, openai.BadRequestError),
        ({"background": True}, openai.BadRequestError),
    ],
)
def test_a_refused_response_raises_what_the_protocol_has(both: Clients, bad: Any, kind: Any) -> None:
    ask: Any = {"model": NAME, "input": "hi", **bad}
    with pytest.raises(kind) as refused:
        both.ai.responses.create(**ask)
    assert refused.value.message
    with pytest.raises(kind), both.ai.responses.stream(**ask) as stream:
        stream.get_final_response()


def test_a_chat_is_answered_whatever_the_endpoint_speaks(both: Clients) -> None:
    ask: Any = {"model": NAME, "messages": said("hi")}
    assert both.ai.chat.completions.create(**ask).choices[0].message.content == "user: hi"
    pieces = both.ai.chat.completions.create(**ask, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == "user: hi"


# -- a model here


@pytest.fixture(scope="module")
def here() -> Iterator[Clients]:
    with served(household()[1]) as url, closing_clients():
        yield clients(url)


def test_tokens_are_counted_as_the_model_is_shown_them(here: Clients) -> None:
    ask = {"model": NAME, "messages": said("go"), "system": "Play."}
    counted = here.claude.messages.count_tokens(**ask, tools=[TOOL]).input_tokens
    used = here.claude.messages.create(**ask, tools=[TOOL], max_tokens=1).usage
    assert counted == used.input_tokens + used.cache_read_input_tokens
    assert used.output_tokens == 1
    assert counted > here.claude.messages.count_tokens(**ask).input_tokens


def test_a_reply_ends_as_the_protocol_says_it(here: Clients) -> None:
    ask = {"model": NAME, "messages": said("go to the hall"), "extra_body": {"temperature": 0}}
    assert here.claude.messages.create(**ask, max_tokens=1).stop_reason == "max_tokens"
    ask |= {"max_tokens": 9, "stop_sequences": ["hall"]}
    stopped = here.claude.messages.create(**ask)
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (" ", "stop_sequence", "hall")
    with here.claude.messages.stream(**ask) as stream:
        assert stream.get_final_message().stop_sequence == "hall"
    response = here.ai.responses.create(model=NAME, input="go to the hall", max_output_tokens=1)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert (response.usage.output_tokens, response.usage.total_tokens) == (1, response.usage.input_tokens + 1)


class Move(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    steps: int = pydantic.Field(ge=1, le=9)


def test_a_reply_keeps_to_a_schema(here: Clients) -> None:
    parsed = here.ai.responses.parse(model=NAME, input="how far?", text_format=Move, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Move)
    ask = {"model": NAME, "max_tokens": 200, "messages": said("how far?")}
    held = here.claude.messages.create(
        **ask, output_config={"format": {"type": "json_schema", "schema": Move.model_json_schema()}}
    )
    assert Move.model_validate_json(held.content[0].text)


def test_what_a_model_here_has_nothing_for_is_refused_or_said_in_a_header(here: Clients) -> None:
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}]
    ask: Any = {"model": NAME, "max_tokens": 4, "messages": said("hi")}
    with pytest.raises(anthropic.BadRequestError, match="reads text only, and a message holds an image"):
        here.claude.messages.create(**{**ask, "messages": [{"role": "user", "content": image}]})
    part = [{"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}]
    with pytest.raises(openai.BadRequestError, match="reads text only"):
        here.ai.responses.create(model=NAME, input=[{"role": "user", "content": part}])  # type: ignore[list-item, misc]
    search = {"type": "web_search_20250305", "name": "web_search"}
    raw = here.claude.beta.messages.with_raw_response.create(
        **ask, betas=["context-1m-2025-08-07"], thinking={"type": "enabled", "budget_tokens": 1024}, tools=[search]
    )
    assert raw.headers["x-ramify-ignored"] == "thinking, tools[0] (web_search_20250305)"
    told = here.ai.responses.with_raw_response.create(
        model=NAME, input="hi", max_output_tokens=4, reasoning={"effort": "low"}, tools=[{"type": "web_search"}]
    )
    assert told.headers["x-ramify-ignored"] == "tools[0] (web_search), reasoning_effort"
    with pytest.raises(anthropic.BadRequestError, match="Unknown field 'odd'"):
        here.claude.messages.create(**ask, extra_body={"odd": 1})


def test_a_response_is_kept_until_it_is_deleted_and_not_kept_where_that_is_asked(here: Clients) -> None:
    ask: Any = {"model": NAME, "input": "hi", "max_output_tokens": 4}
    kept, other = here.ai.responses.create(**ask), here.ai.responses.create(**ask, store=False)
    assert here.ai.responses.retrieve(kept.id).output_text == kept.output_text
    here.ai.responses.delete(kept.id)
    for gone in (kept, other):
        with pytest.raises(openai.NotFoundError):
            here.ai.responses.retrieve(gone.id)
        with pytest.raises(openai.BadRequestError, match="There is no response"):
            here.ai.responses.create(**ask, previous_response_id=gone.id)


def test_the_models_are_listed_for_either_client(here: Clients) -> None:
    assert [model.id for model in here.claude.models.list()] == [NAME]
    assert [model.id for model in here.ai.models.list()] == [NAME]


def test_a_token_is_taken_from_the_header_that_anthropics_client_sends() -> None:
    token = "a-token-of-some-length"
    with served(SCRIPTED, token=token) as url, closing_clients():
        message = clients(url, token).claude.messages.create(model=NAME, max_tokens=9, messages=said("hi"))
        assert message.content[0].text == "user: hi"
        with pytest.raises(anthropic.AuthenticationError) as refused:
            clients(url, "another").claude.messages.create(model=NAME, max_tokens=9, messages=said("hi"))
        assert refused.value.body["error"]["type"] == "authentication_error"
        assert clients(url, token).ai.responses.create(model=NAME, input="hi").output_text == "user: hi"


# -- frameworks, as they come


def both_places(messages: Any, key: int) -> str:
    """Looks at two places, then says what is there."""
    results = [message.text for message in messages if message.role == "tool"]
    return f"There: {', '.join(results)}." if results else joined_reply("I look.", MADE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["claude", "responses"])
@pytest.mark.parametrize("mode", ["here", "chat", "anthropic", "responses"])
def test_an_agent_of_langchain_plays_to_its_end(kind: str, mode: str) -> None:
    agents = pytest.importorskip("langchain.agents", reason="the extra harnesses is not installed: NOT TESTED")
    claude = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed: NOT TESTED")
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def look(at: str) -> str:
        """Looks."""
        return f"dust on the {at}"

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(ScriptedModel(both_places, tokens=False)))
        if mode != "here":
            url = stack.enter_context(served(HttpModel(f"{url}?retries=0", NAME, mode)))
        model: Any = ChatOpenAI(base_url=url, api_key="none", model=NAME, use_responses_api=True)
        if kind == "claude":
            model = claude.ChatAnthropic(base_url=url.removesuffix("/v1"), api_key="none", model=NAME, max_tokens=400)
        agent = agents.create_agent(model, [look], system_prompt="You look around.")
        asked = {"messages": [("user", "What is there?")]}
        assert agent.invoke(asked)["messages"][-1].text == "There: dust on the desk, dust on the bed."
        streamed = [piece.text for piece, _ in agent.stream(asked, stream_mode="messages") if piece.type == "AIMessageChunk"]
        assert "".join(streamed).endswith("There: dust on the desk, dust on the bed.")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["here", "chat", "responses"])
def test_the_agents_sdk_speaks_responses_by_default(mode: str) -> None:
    sdk = pytest.importorskip("agents", reason="the extra harnesses is not installed: NOT TESTED")

    @sdk.function_tool
    def look(at: str) -> str:
        """Looks."""
        return f"dust on the {at}"

    async def run(url: str) -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as ai:
            model = sdk.OpenAIResponsesModel(model=NAME, openai_client=ai)
            agent = sdk.Agent(name="Looker", instructions="You look around.", model=model, tools=[look])
            quiet = sdk.RunConfig(tracing_disabled=True)
            whole = await sdk.Runner.run(agent, "What is there?", run_config=quiet)
            streamed = sdk.Runner.run_streamed(agent, "What is there?", run_config=quiet)
            async for _ in streamed.stream_events():
                pass
            return whole.final_output, streamed.final_output

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(ScriptedModel(both_places, tokens=False)))
        if mode != "here":
            url = stack.enter_context(served(HttpModel(f"{url}?retries=0", NAME, mode)))
        assert asyncio.run(run(url)) == ("There: dust on the desk, dust on the bed.",) * 2
