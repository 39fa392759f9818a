"""The page about the server and the code say the same of every field; what a request may say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.web.fields import IGNORED, NEUTRAL, REFUSED, ChatMessage, ChatRequest, TextRequest, read_request
from ramify.web.limits import RefusedRequestError, read_json

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def table(head: str) -> list[list[str]]:
    """ResultCache of the rows of the table on the page whose first line is ``head``."""
    lines = PAGE.partition(head + "\n")[2].splitlines()[1:]
    rows = lines[: next(i for i, line in enumerate([*lines, ""]) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def named(start: str, end: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", PAGE.partition(start)[2].partition(end)[0]))


def test_the_page_names_every_field_that_is_taken() -> None:
    rows = {row[0].strip("`"): row[1] for row in table("| Field | Where | What it does |")}
    chat, text = set(ChatRequest.model_fields), set(TextRequest.model_fields)
    where = {name: "both" if name in chat & text else "chat" if name in chat else "completions" for name in chat | text}
    assert rows == where


def test_the_page_names_every_other_field() -> None:
    assert {row[0].strip("`"): json.loads(row[1].strip("`")) for row in table("| Field | Only |")} == {
        name: value for name, (value, _) in NEUTRAL.items()
    }
    assert named("Accepted without effect on the reply:", "In a message:") == set(IGNORED)
    assert named("Refused by name,", "With `chat:") == set(REFUSED)
    unseen = named("In a message:", "so that a reply")
    assert unseen == set(ChatMessage.model_fields) - {"role", "content", "tool_calls", "tool_call_id", "audio", "function_call"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_field_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(RefusedRequestError, match=f"'{name}' is not offered: {re.escape(REFUSED[name])}") as caught:
        read_request({**CHAT, name: {"type": "x"}}, ChatRequest)
    assert (caught.value.status, caught.value.param) == (400, name)
    assert read_request({**CHAT, name: None}, ChatRequest).model == "m"


@pytest.mark.parametrize(("name", "neutral"), [(name, value) for name, (value, _) in NEUTRAL.items()])
def test_a_neutral_field_is_taken_at_its_value_only(name: str, neutral: Any) -> None:
    assert read_request({**CHAT, name: neutral}, ChatRequest).model == "m"
    others: list[Any] = [0.5, "x", {}, not neutral if isinstance(neutral, bool) else bool(neutral)]
    for other in others:
        with pytest.raises(RefusedRequestError, match=f"'{name}' is not offered at another value"):
            read_request({**CHAT, name: other}, ChatRequest)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*ChatRequest.model_fields, *TextRequest.model_fields, *NEUTRAL, *REFUSED, *IGNORED, "other"])


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4), st.sampled_from([ChatRequest, TextRequest]))
def test_any_json_is_a_request_or_one_sentence(body: dict[str, Any], kind: Any) -> None:
    base = CHAT if kind is ChatRequest else {"model": "m", "prompt": "x"}
    refused = None
    try:
        request = read_request(read_json(json.dumps({**base, **body}).encode()), kind)
        assert request.sampling(5).max_tokens == 5
    except RefusedRequestError as error:
        refused = error
    assert refused is None or (refused.status == 400 and "\n" not in refused.message and len(refused.message) < 300)
