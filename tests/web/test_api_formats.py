"""Replies held to a format, with the clients that ask for it:
the openai client's ``parse``, LangChain's structured output and tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from api_server import NAME, client, household, served
from pydantic import BaseModel, Field

from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.chat import TagTemplate
from ramify.model.laid import Layout
from ramify.model.scripted import ScriptedModel
from ramify.web.exchange import Exchange

ASK: list[Any] = [{"role": "user", "content": "go to the hall"}]


class Move(BaseModel):
    """Where to go."""

    place: Literal["hall", "attic"]
    steps: int = Field(ge=0, le=20)
    note: str = Field(max_length=6)


class Plan(BaseModel):
    """Some moves."""

    moves: list[Move] = Field(max_length=2)
    done: bool | None


GO: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "go",
        "parameters": {
            "type": "object",
            "properties": {"to": {"enum": ["hall", "attic"]}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
}
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
EXCHANGES: list[Exchange] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A model that knows nothing, with room for what tools look like in a prompt."""
    known = household()[0]
    assert known.tokenizer is not None
    shape = TinyConfig(known.forward.vocab, width=32, layers=2, heads=4, kv_heads=2, head_size=8, ffn=48, context=4096)
    local = LocalModel(TinyLM(shape, seed=3), known.tokenizer, eos=known.eos)

    async def record(exchange: Exchange) -> None:
        EXCHANGES.append(exchange)

    with served(Layout(local, TagTemplate(known.tokenizer)), record=record) as found:
        yield found


@pytest.fixture(scope="module")
def ai(url: str) -> Iterator[openai.OpenAI]:
    with client(url) as found:
        yield found


def test_the_openai_client_parses_what_comes(ai: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": NAME, "messages": ASK, "response_format": Plan, "seed": 1}
    reply = ai.chat.completions.parse(**request).choices[0]
    assert reply.finish_reason == "stop"
    assert isinstance(reply.message.parsed, Plan)
    with ai.chat.completions.stream(**request) as events:
        for _ in events:
            pass
        assert events.get_final_completion().choices[0].message.parsed == reply.message.parsed
    with pytest.raises(openai.LengthFinishReasonError):
        ai.chat.completions.parse(**request, max_tokens=9)
    assert EXCHANGES[-1].settings.grammar is not None
    assert EXCHANGES[-1].settings.to_json()["grammar"]["kind"] == "json"


def test_json_mode_and_texts_are_held_to(ai: openai.OpenAI) -> None:
    for seed in range(6):
        mode = ai.chat.completions.create(
            model=NAME, messages=ASK, seed=seed, max_tokens=200, response_format={"type": "json_object"}
        ).choices[0]
        assert str(mode.message.content).startswith("{")
        assert mode.finish_reason == "length" or isinstance(json.loads(str(mode.message.content)), dict)
    for wanted, pattern in (({"regex": "[a-c]{2}-[0-9]"}, "[a-c]{2}-[0-9]"), ({"choice": ["yes", "no"]}, "yes|no")):
        extra = {"structured_outputs": wanted}
        chat = ai.chat.completions.create(model=NAME, messages=ASK, extra_body=extra, logprobs=True).choices[0]
        assert re.fullmatch(pattern, str(chat.message.content))
        assert chat.logprobs is not None
        text = ai.completions.create(model=NAME, prompt="go", extra_body=extra, n=2)
        assert all(re.fullmatch(pattern, choice.text) for choice in text.choices)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 3, "minimum": 1}}}
    text = ai.completions.create(model=NAME, prompt="go", extra_body={"response_format": schema}, n=3)
    assert {int(choice.text) for choice in text.choices} <= {1, 2, 3}


def test_tools_that_must_be_called_are(ai: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": NAME, "messages": ASK, "tools": [GO, LOOK], "max_tokens": 400}
    for seed in range(4):
        one = ai.chat.completions.create(**request, seed=seed, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert one.finish_reason == "tool_calls"
        (call,) = one.message.tool_calls or ()
        given = json.loads(call.function.arguments)  # type: ignore[union-attr]
        assert given in ([{}] if call.function.name == "look" else [{"to": "hall"}, {"to": "attic"}])  # type: ignore[union-attr]
        assert one.message.content is None
    named = {"type": "function", "function": {"name": "go"}}
    reply = ai.chat.completions.create(**request, tool_choice=named).choices[0].message
    assert [call.function.name for call in reply.tool_calls or ()] == ["go"]  # type: ignore[union-attr]
    several = ai.chat.completions.create(**request, seed=2, tool_choice="required").choices[0]
    assert len(several.message.tool_calls or ()) >= 1
    parsed = ai.chat.completions.parse(
        **{**request, "tools": [openai.pydantic_function_tool(Move)]}, tool_choice="required", parallel_tool_calls=False
    )
    (call,) = parsed.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Move)  # type: ignore[union-attr]


def test_a_strict_tool_holds_the_calls_that_a_model_is_free_to_make(ai: openai.OpenAI) -> None:
    strict = {**GO, "function": {**GO["function"], "strict": True}}
    for tools, held in (([GO], False), ([GO, strict], True)):
        ai.chat.completions.create(model=NAME, messages=ASK, tools=tools, max_tokens=5)
        grammar = EXCHANGES[-1].settings.grammar
        assert (grammar is not None) == held
        assert grammar is None or "hall" in grammar.text


@pytest.mark.slow
def test_langchain(url: str) -> None:
    langchain = pytest.importorskip(
        "langchain_openai", reason="langchain-openai is not installed: ITS STRUCTURED OUTPUT IS NOT TESTED"
    )
    model = langchain.ChatOpenAI(base_url=url, api_key="none", model=NAME, max_retries=0, seed=5)
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Plan, method=method).invoke("go"), Plan)
    made = model.bind_tools([Move, Plan], tool_choice="any", parallel_tool_calls=False).invoke("go")
    (call,) = made.tool_calls
    {"Move": Move, "Plan": Plan}[call["name"]].model_validate(call["args"])


def test_penalties_and_biases_change_what_is_sampled(ai: openai.OpenAI) -> None:
    def ids(**changes: Any) -> list[int]:
        extra = {
            "return_token_ids": True,
            **{name: changes.pop(name) for name in ("min_p", "repetition_penalty") & changes.keys()},
        }
        made = ai.completions.create(model=NAME, prompt="go", seed=1, max_tokens=12, extra_body=extra, **changes)
        return made.choices[0].token_ids  # type: ignore[attr-defined, no-any-return]

    often = {"77": 20}
    assert set(ids(logit_bias=often)) == {77}
    assert set(ids(logit_bias={**often, "77": -100})).isdisjoint({77})
    assert len(set(ids(logit_bias=often, frequency_penalty=2, temperature=0))) > 1
    assert len(set(ids(logit_bias=often, repetition_penalty=100, temperature=0))) > 1
    assert ids(temperature=3) != ids(temperature=3, min_p=1) == ids(temperature=0)
    assert ids(presence_penalty=-2, temperature=0) != ids(presence_penalty=2, temperature=0)


SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "strict": True}}


def held(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("changes", "words", "param"),
    [
        ({"response_format": {"type": "json"}}, "known: json_object, json_schema, text", "response_format"),
        ({"response_format": SCHEMA}, "an object with a 'schema'", "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "unknown field 'schema'", "response_format"),
        (held({"properties": {"a": {"uniqueItems": True}}}), "json_schema.schema.properties.a: the keyword 'uniqueItems'",
         "response_format"),
        (held({"items": {"pattern": "(?=x)"}}), "at items: ", None),
        (held(deep(100)), "nested more than", "response_format"),
        (held({"enum": ["x" * 300_000]}), "larger than", "response_format"),
        ({"extra_body": {"structured_outputs": {"grammar": "start: X"}}}, "unknown field 'grammar'", "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "must have one of", "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"regex": "((a{999}){999}){999}"}}}, "repeats too much", "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"json": "{"}}}, "not JSON", "structured_outputs"),
        ({"tool_choice": "required"}, "needs 'tools'", "tool_choice"),
        ({"tools": [GO], "tool_choice": {"type": "function", "function": {"name": "goo"}}}, "did you mean 'go'", "tool_choice"),
        ({"tools": [GO], "tool_choice": {"type": "allowed_tools"}}, "tool_choice must be", "tool_choice"),
        (
            {"tools": [LOOK, {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
             "tool_choice": "required"},
            "tools[1].function.parameters: the keyword 'not'",
            "tool_choice",
        ),
        ({"logit_bias": {"5": 101}}, "between -100 and 100", "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty", "presence_penalty"),
        ({"extra_body": {"min_p": 2}}, "min_p", "min_p"),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}, "logit_bias": {"34": -100}}}, "", None),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_one_sentence(
    ai: openai.OpenAI, changes: dict[str, Any], words: str, param: str | None
) -> None:
    if not words:  # a grammar whose only tokens are banned: found when it is sampled
        letter = next(iter(household()[0].tokenizer.encode("a")))  # type: ignore[union-attr]
        changes["extra_body"]["logit_bias"] = {str(letter): -100}
        words = "banned"
    with pytest.raises(openai.BadRequestError) as caught:
        ai.chat.completions.create(model=NAME, messages=ASK, max_tokens=5, **changes)
    body = caught.value.body
    assert isinstance(body, dict)
    assert words in body["message"]
    assert body["param"] == param
    assert body["message"].endswith(".")


def test_ten_megabytes_of_schema_are_refused_at_once(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ai.chat.completions.create(model=NAME, messages=ASK, **held({"enum": ["x" * 1000] * 9_000}))
    assert caught.value.status_code == 400
    assert ai.chat.completions.create(model=NAME, messages=ASK, max_tokens=2).choices


def test_a_model_that_cannot_refuses_and_keeps_taking_strict_tools() -> None:
    with served(ScriptedModel(["hello"], tokens=False)) as url, client(url) as ai:
        for changes in (held({"type": "object"}), {"tools": [GO], "tool_choice": "required"}, {"presence_penalty": 1}):
            with pytest.raises(openai.BadRequestError, match="does not offer"):
                ai.chat.completions.create(model=NAME, messages=ASK, **changes)
        strict = {**GO, "function": {**GO["function"], "strict": True}}
        assert ai.chat.completions.create(model=NAME, messages=ASK, tools=[strict]).choices[0].message.content == "hello"
