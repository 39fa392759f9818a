from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.ids import canonical_json
from ramify.trace.message import Message, parse_tool_calls

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'


def test_calls_with_spans() -> None:
    text = f"let me see {CALL} and {CALL}"
    first, second = parse_tool_calls(text)
    assert (first.name, first.arguments, first.error) == ("add", {"a": 1, "b": [2]}, "")
    assert [text[slice(*call.char_span)] for call in (first, second)] == [CALL, CALL]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"name": "x", "arguments": {"a": NaN}}', "not JSON"),
        ('{"name": "x", "arguments": {"a": 1e999}}', "not JSON"),
        ('{"name": "x", "arguments": {"a": "\\ud800"}}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
        ("[]", "no name"),
        ('{"arguments": {}}', "no name"),
        ('{"name": 3}', "no name"),
        ('{"name": "x", "arguments": "a"}', "not an object"),
        ('{"name": "x"} trailing', "text follows"),
    ],
)
def test_malformed_calls_are_data(body: str, error: str) -> None:
    bad, good = parse_tool_calls(f"<tool_call>{body}</tool_call>{CALL}")
    assert error in bad.error
    assert good.error == ""


def test_an_open_call_and_one_without_arguments() -> None:
    (open_call,) = parse_tool_calls('<tool_call>{"name": "x", "arguments": {}}')
    assert "not closed" in open_call.error
    (bare,) = parse_tool_calls('<tool_call>{"name": "now"}</tool_call>')
    assert (bare.name, bare.arguments, bare.error) == ("now", {}, "")


def test_closing_tag_inside_an_argument() -> None:
    text = '<tool_call>{"name": "say", "arguments": {"text": "</tool_call>"}}</tool_call>'
    (call,) = parse_tool_calls(text)
    assert (call.arguments, call.error) == ({"text": "</tool_call>"}, "")


@given(
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", "{", "}", '"name":', '"x"', ",", '"arguments":', " ", "a"]), max_size=12
    )
)
@settings(max_examples=200)
def test_any_text_is_parsed(parts: list[str]) -> None:
    text = "".join(parts)
    calls = parse_tool_calls(text)
    starts = [call.char_span for call in calls]
    assert starts == sorted(starts)
    for call in calls:
        assert text[call.char_span[0] :].startswith("<tool_call>")
        canonical_json(dict(call.arguments))


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.booleans()), max_size=4))
@settings(max_examples=60)
def test_sound_calls_come_back(arguments: dict) -> None:
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"
    (call,) = parse_tool_calls(text)
    assert (call.name, call.arguments, call.error) == ("f", arguments, "")


def test_calls_beside_the_text_are_written_into_it_where_an_environment_or_a_template_takes_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}
    assert Message("assistant", "", {"tool_calls": [call]}).written() == CALL
    flat = {"name": "add", "arguments": {"a": 1, "b": [2]}}
    assert Message("assistant", "so", {"tool_calls": [flat]}).written() == f"so\n{CALL}"
    for message in (Message("assistant", "", {"tool_calls": [call]}), Message("assistant", "", {"tool_calls": [flat]})):
        assert [(c.name, c.arguments) for c in message.calls] == [(c.name, c.arguments) for c in parse_tool_calls(CALL)]
    assert Message("assistant", CALL, {"tool_calls": [call]}).written() == CALL  # a server's own model wrote it there already
    assert Message("assistant", "x", {"tool_calls": None}).written() == "x"


def test_a_call_beside_the_text_that_cannot_be_made_says_so_and_stays_one_when_it_is_written() -> None:
    for arguments in ("{", "[]", "3"):
        message = Message("assistant", "", {"tool_calls": [{"function": {"name": "add", "arguments": arguments}}]})
        (extra,), (written,) = message.calls, parse_tool_calls(message.written())
        assert extra.error
        assert written.error
    (junk,) = Message("assistant", "", {"tool_calls": ["junk"]}).calls
    assert junk.error == "the call has no name"
