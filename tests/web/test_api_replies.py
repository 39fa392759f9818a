from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramify.model.protocol import Completion
from ramify.model.scripted import scripted_completion
from ramify.model.streaming import Piece, whole
from ramify.trace.message import joined_reply, split_reply
from ramify.web.replies import Reply, ReplyPart

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "hall"}}\n</tool_call>'
BITS = ["a", " b", "\n", "<", "<tool", "sto", "stop", "p", CALL, "<tool_call>{broken", "</tool_call>", "\u20ac"]
TEXTS = st.lists(st.sampled_from(BITS), max_size=8).map("".join)
END = 4


def pieces_of(completion: Completion, cuts: list[int]) -> list[Piece]:
    """``draw`` cut into pieces at these tokens."""
    assert completion.tokens is not None
    assert completion.ends is not None
    bounds = sorted({0, *(cut for cut in cuts if cut < len(completion.tokens))})
    found = []
    for start, stop in zip(bounds, [*bounds[1:], len(completion.tokens)], strict=True):
        text = completion.text[int(completion.ends[start - 1]) if start else 0 : int(completion.ends[stop - 1])]
        logprobs = None if completion.model_logprobs is None else completion.model_logprobs[start:stop]
        found.append(Piece(text, completion.tokens[start:stop], None, logprobs, completion.ends[start:stop]))
    return [*found, Piece("", np.zeros(0, np.int32), None, np.zeros(0, np.float32), np.zeros(0, np.int32), completion)]


def pushed(reply: Reply, pieces: list[Piece]) -> tuple[ReplyPart, list[str]]:
    total, texts = ReplyPart(), []
    for piece in pieces:
        part = reply.push(piece)
        texts.append(part.text)
        total.text += part.text
        total.tokens += part.tokens
        total.calls += part.calls
    return total, texts


@settings(max_examples=100, deadline=None)
@given(
    TEXTS, st.lists(st.integers(0, 60)), st.booleans(), st.booleans(), st.sampled_from([(), ("stop",), ("p", "st"), ("\u20ac",)])
)
@example("a <tool_call>{broken " + CALL + " b", [3, 9], True, False, ())
def test_a_reply_does_not_depend_on_how_it_came(
    text: str, cuts: list[int], calls: bool, keep: bool, stops: tuple[str, ...]
) -> None:
    completion = scripted_completion(text)
    assert completion.tokens is not None
    enders = frozenset({int(completion.tokens[-1])})
    one, many = (Reply(enders, stops, keep, calls) for _ in range(2))
    at_once, _ = pushed(one, [whole(completion)])
    piecewise, _ = pushed(many, pieces_of(completion, cuts))
    assert piecewise.text == at_once.text
    assert [token.id for token in piecewise.tokens] == [token.id for token in at_once.tokens] == completion.tokens.tolist()
    assert [call["function"] for call in piecewise.calls] == [call["function"] for call in at_once.calls]
    assert (one.finish, one.stopped) == (many.finish, many.stopped)
    if not keep:
        assert not any(stop in at_once.text for stop in stops)
    if not stops and not calls:
        assert at_once.text == text


def test_nothing_is_shown_that_may_be_taken_back() -> None:
    reply = Reply(frozenset(), ("stop",), False, True)
    assert reply.push(Piece("a ")).text == "a"
    assert reply.push(Piece("b st")).text == " b"
    assert reply.push(Piece("o")).text == ""
    assert reply.push(Piece("ve <to")).text == " stove"
    last = reply.push(Piece('ol_call>{"name": "x"}</tool_call>', completion=Completion("", "eos")))
    assert last.text == ""
    assert [call["function"]["name"] for call in last.calls] == ["x"]
    assert reply.finish == "stop"


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["", "Let me see.", "a\nb"]),
    st.lists(
        st.tuples(st.sampled_from(["look", "go.to"]), st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=4)))
    ),
)
def test_a_reply_put_together_comes_apart_as_it_was(content: str, made: list[tuple[str, dict[str, Any]]]) -> None:
    calls = [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for at, (name, arguments) in enumerate(made)
    ]
    assert split_reply(joined_reply(content, calls)) == (content, calls)
