"""The key of an endpoint does not come back: in pieces over a stream's events, escaped, in tool calls,
nor as most of it at the end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.model.address import Secret
from ramify.model.sse import Heard, Withheld, as_event

KEY = "sk-canary/51f2c7d09ab34e68"


def spoken(texts: list[str], secret: str = KEY, name: str = "content") -> tuple[str, list[bytes]]:
    """What a client reads of a reply whose text comes as ``texts``, and the events."""
    withheld, out = Withheld(Secret(secret)), []
    last = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    for event in [*({"choices": [{"index": 0, "delta": {name: text}, "finish_reason": None}]} for text in texts), *last]:
        out += withheld.push(as_event(event), event)
    out += withheld.rest()
    for raw, event in out:
        assert json.loads(raw.removeprefix(b"data: ")) == event
    spelled = "".join(choice["delta"].get(name, "") for _, event in out for choice in event["choices"])
    return spelled, [raw for raw, _ in out]


def pieces(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randrange(1, 12))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("name", ["content", "reasoning_content"])
@pytest.mark.parametrize("seed", range(20))
def test_a_key_in_any_pieces(seed: int, name: str) -> None:
    rng = random.Random(seed)
    escaped = "".join(rng.choice((f"\\u{ord(c):04x}", c, "\\/" if c == "/" else c)) for c in KEY)
    for key in (KEY, escaped):
        text, _ = spoken(pieces(f"Here it is: {key}, take care of sk-can and {key}!", rng), name=name)
        assert text == "Here it is: ***, take care of sk-can and ***!"


def test_one_character_at_a_time() -> None:
    text, raw = spoken(list(f"a{KEY}b"))
    assert text == "a***b"
    assert len(raw) == len(KEY) + 3  # no event is lost


@given(st.lists(st.text(alphabet="sk-cany/\\u0731f2"), max_size=30))
def test_what_is_no_key_passes_with_the_bytes_that_came(texts: list[str]) -> None:
    text, raw = spoken(texts)
    if text == "".join(texts):
        assert raw[:-1] == [as_event({"choices": [{"index": 0, "delta": {"content": t}, "finish_reason": None}]}) for t in texts]
    else:
        assert "***" in text


@pytest.mark.parametrize(("length", "shown"), [(3, KEY[:3]), (7, KEY[:7]), (8, "***"), (len(KEY) - 1, "***")])
def test_most_of_a_key_at_the_end_is_withheld_too(length: int, shown: str) -> None:
    assert spoken(["it is ", KEY[:2], KEY[2:length]])[0] == f"it is {shown}"


def test_a_stream_of_beginnings_does_not_pile_up() -> None:
    withheld, passed = Withheld(Secret(KEY)), 0
    for count in range(1, 200):
        event = {"choices": [{"index": 0, "delta": {"content": "s"}}]}
        passed += len(withheld.push(as_event(event), event))
        assert count - passed <= 1


def test_choices_and_calls_are_told_apart_and_log_probs_of_the_key_go() -> None:
    withheld, out = Withheld(Secret(KEY)), list[tuple[bytes, dict[str, Any]]]()
    for half in (KEY[:9], KEY[9:]):
        event = {
            "choices": [
                {"index": 0, "delta": {"content": half}, "logprobs": {"content": [{"token": half}]}},
                {"index": 1, "delta": {"tool_calls": [{"index": 0, "function": {"name": "say", "arguments": half}}]}},
                {"index": 2, "delta": {"content": "fine"}, "logprobs": {"content": [{"token": "fine"}]}},
            ]
        }
        out += withheld.push(as_event(event), event)
    out += withheld.rest()
    first, second = (event["choices"] for _, event in out)
    assert [first[0]["delta"]["content"], second[0]["delta"]["content"]] == ["***", ""]
    assert [first[0]["logprobs"], second[0]["logprobs"]] == [None, None]
    assert [c[1]["delta"]["tool_calls"][0]["function"]["arguments"] for c in (first, second)] == ["***", ""]
    assert first[2]["logprobs"] == {"content": [{"token": "fine"}]}
    heard = Heard("host")
    for _, event in out:
        heard.take(event)


def test_a_placeholder_is_no_secret() -> None:
    assert spoken(["non", "e of it"], "none")[0] == "none of it"
