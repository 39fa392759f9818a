from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from api_server import NAME, Endless, client, served
from waiting import until

from ramify.base.errors import InfrastructureError
from ramify.model.chat import TagTemplate
from ramify.model.laid import Layout
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.trace.message import Message
from ramify.web.exchange import Exchange

CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"town":   "Oslo"}}\n</tool_call>'
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}},
    }
]
ASK: list[Any] = [{"role": "user", "content": "weather in Oslo?"}]


def reply(messages: tuple[Message, ...], key: int) -> str:
    """Calls the tool where it was told of it; answers from its result."""
    shown = any("<tools>" in message.text for message in messages)
    if messages[-1].role == "tool":
        return f"It is {messages[-1].text}."
    return CALL if shown else "I cannot know."


class Watched(ScriptedModel):
    """Remembers the prompts it was shown."""

    def __init__(self) -> None:
        super().__init__(reply, name="watched")
        self.prompts: list[list[int]] = []

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        assert prefix.tokens is not None
        self.prompts.append(prefix.tokens.tolist())
        return await super().sample(prefix, n, settings, keys)


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Watched()


@pytest.fixture(scope="module")
def ai(watched: Watched) -> Iterator[openai.OpenAI]:
    with served(Layout(watched, TagTemplate(watched.tokenizer))) as url, client(url) as found:
        yield found


def test_a_whole_round_with_a_tool_keeps_the_sampled_tokens(ai: openai.OpenAI, watched: Watched) -> None:
    first = ai.chat.completions.create(model=NAME, messages=ASK, tools=TOOLS)
    message = first.choices[0].message
    assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "Let me see.")
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"town": "Oslo"})
    assert "weather" in watched.tokenizer.decode(watched.prompts[-1])
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    second = ai.chat.completions.create(model=NAME, messages=[*ASK, message, result], tools=TOOLS)  # type: ignore[list-item]
    assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "It is rain.")
    # spaces in the sampled call and all: what was sampled is laid out again as it was sampled
    sampled = watched.tokenizer.encode(CALL)
    prompt = watched.prompts[-1]
    start = len(watched.prompts[-2])
    assert prompt[:start] == watched.prompts[-2]
    assert prompt[start : start + len(sampled)] == sampled


STRICT: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string"}},
                "required": ["town"],
                "additionalProperties": False,
            },
        },
    }
]


def dumped(ai: openai.OpenAI, way: str) -> dict[str, Any]:
    """The message with the call, as the client's own models write it down."""
    if way == "create":
        return ai.chat.completions.create(model=NAME, messages=ASK, tools=STRICT).choices[0].message.model_dump()
    if way == "parse":
        return ai.chat.completions.parse(model=NAME, messages=ASK, tools=STRICT).choices[0].message.model_dump()
    with ai.chat.completions.stream(model=NAME, messages=ASK, tools=STRICT) as stream:
        return stream.get_final_completion().choices[0].message.model_dump()


@pytest.mark.parametrize("way", ["create", "parse", "stream"])
def test_what_the_client_writes_down_of_a_reply_can_be_sent_back(ai: openai.OpenAI, watched: Watched, way: str) -> None:
    message: Any = dumped(ai, way)
    assert {"refusal", "annotations", "audio", "function_call"} <= message.keys()
    others: Any = {"reasoning_details": [{"text": "hm"}], "provider_specific_fields": None}  # of other servers
    result: Any = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    again = ai.chat.completions.create(model=NAME, messages=[*ASK, message | others, result], tools=STRICT)
    assert again.choices[0].message.content == "It is rain."
    sampled = watched.tokenizer.encode(CALL)
    start = len(watched.prompts[-2])
    assert watched.prompts[-1][start : start + len(sampled)] == sampled
    for wrong in ({"audio": {"id": "a"}}, {"function_call": {"name": "weather", "arguments": ""}}):
        with pytest.raises(openai.BadRequestError, match=rf"messages\[1\].{next(iter(wrong))}"):
            ai.chat.completions.create(model=NAME, messages=[*ASK, message | wrong, result])
    with pytest.raises(openai.BadRequestError, match=r"Unknown field 'messages\[0\].contents'"):
        ai.chat.completions.create(model=NAME, messages=[{"role": "user", "contents": "x"}])  # type: ignore[list-item, misc]


def test_stream_options_of_clients_are_taken(ai: openai.OpenAI) -> None:
    for options in (
        {"include_usage": None},
        {"include_usage": False, "include_obfuscation": True, "continuous_usage_stats": True},
    ):
        events = list(ai.chat.completions.create(model=NAME, messages=ASK, stream=True, stream_options=options))  # type: ignore[call-overload]
        assert all(event.choices for event in events)


def test_one_call_at_a_time_is_sampled_told_and_kept_where_that_is_asked_for() -> None:
    recorded: list[Exchange] = []

    async def record(exchange: Exchange) -> None:
        recorded.append(exchange)

    other = CALL.replace("Oslo", "Rome").partition("\n")[2]
    twice = ScriptedModel(lambda messages, key: f"{CALL}\n{other}", name="twice")
    with served(Layout(twice, TagTemplate(twice.tokenizer)), record=record) as url, client(url) as ai:
        request: dict[str, Any] = {"model": NAME, "messages": ASK, "tools": TOOLS}
        both = ai.chat.completions.create(parallel_tool_calls=True, **request).choices[0]
        one = ai.chat.completions.create(parallel_tool_calls=False, **request).choices[0]
        events = list(ai.chat.completions.create(parallel_tool_calls=False, stream=True, **request))
        ai.chat.completions.create(model=NAME, messages=ASK, parallel_tool_calls=False)  # no tools: no calls to keep
    assert [len(choice.message.tool_calls or ()) for choice in (both, one)] == [2, 1]
    assert (one.finish_reason, one.message.content, one.model_extra) == ("tool_calls", "Let me see.", {"stop_reason": None})
    assert len([call for event in events for call in event.choices[0].delta.tool_calls or ()]) == 1
    sampled = [exchange.outcomes[0][0] for exchange in recorded]
    assert [completion.text for completion in sampled if isinstance(completion, Completion)] == [
        f"{CALL}\n{other}",
        CALL,
        CALL,
        f"{CALL}\n{other}",
    ]


def test_a_streamed_call_comes_whole(ai: openai.OpenAI) -> None:
    events = list(ai.chat.completions.create(model=NAME, messages=ASK, tools=TOOLS, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == "Let me see."
    (call,) = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
    assert call.function is not None
    assert (call.index, call.function.name, json.loads(call.function.arguments or "")) == (0, "weather", {"town": "Oslo"})
    assert call.id
    assert events[-1].choices[0].finish_reason == "tool_calls"


def test_tool_choice_none_tells_of_no_tools(ai: openai.OpenAI) -> None:
    choice = ai.chat.completions.create(model=NAME, messages=ASK, tools=TOOLS, tool_choice="none").choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("I cannot know.", None, "stop")


def test_parts_of_text_a_developer_and_extra_fields_of_old_replies_are_taken(ai: openai.OpenAI, watched: Watched) -> None:
    old: Any = ai.chat.completions.create(model=NAME, messages=ASK).choices[0].message.model_dump()
    parts: Any = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}]
    ai.chat.completions.create(model=NAME, messages=[*parts, *ASK, old, *ASK])
    assert watched.tokenizer.decode(watched.prompts[-1]).startswith("<|system|>Be brief.<|end|><|user|>weather")


def test_what_a_script_cannot_do_is_one_sentence(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="has no alternatives"):
        ai.chat.completions.create(model=NAME, messages=ASK, logprobs=True, top_logprobs=2)
    with pytest.raises(openai.BadRequestError, match="only text parts"):
        ai.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        )


def test_a_model_of_messages_is_served_too() -> None:
    model = ScriptedModel(lambda messages, key: f"{len(messages)} messages", tokens=False)
    with served(model) as url, client(url) as ai:
        assert ai.chat.completions.create(model=NAME, messages=ASK).choices[0].message.content == "1 messages"
        with pytest.raises(openai.BadRequestError, match="takes messages only"):
            ai.completions.create(model=NAME, prompt="x")
        with pytest.raises(openai.BadRequestError, match="does not offer log-probs"):
            ai.chat.completions.create(model=NAME, messages=ASK, logprobs=True)


def test_what_is_recorded_of_answers_failures_and_clients_that_leave() -> None:
    recorded: list[Exchange] = []

    async def record(exchange: Exchange) -> None:
        recorded.append(exchange)

    def fail(messages: tuple[Message, ...], key: int) -> str:
        raise InfrastructureError("provider", "no reply today")

    for model, n in (
        (ScriptedModel(["yes"], tokens=False), 2),
        (ScriptedModel(fail, tokens=False), 1),
        (Endless(tokens=False), 1),
    ):
        with served(model, record=record) as url, client(url) as ai:
            if isinstance(model, Endless):
                events = ai.chat.completions.create(model=NAME, messages=ASK, stream=True)
                assert next(iter(events)).choices[0].delta.role == "assistant"
                events.close()
                assert until(lambda: len(recorded) == 3)
            elif n == 2:
                assert ai.chat.completions.create(model=NAME, messages=ASK, n=2, seed=1).id.startswith("chatcmpl-")
            else:
                with pytest.raises(openai.InternalServerError, match="Upstream: no reply today") as caught:
                    ai.chat.completions.create(model=NAME, messages=ASK)
                assert caught.value.status_code == 502
    kept, failed, left = recorded
    assert [completion.text for completion in kept.outcomes[0] if isinstance(completion, Completion)] == ["yes", "yes"]
    assert len(set(kept.keys[0])) == 2
    assert kept.prompts[0].messages[0].text == ASK[0]["content"]
    assert [str(outcome) for exchange in (failed, left) for outcome in exchange.outcomes[0]] == [
        "provider: no reply today",
        "provider: the client left",
    ]
