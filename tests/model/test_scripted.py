from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import NeedsError, UserError
from ramify.model.chat import TagTemplate, assistant_node_parts
from ramify.model.protocol import Completion, Model, Prefix, Sampling, Tokenizer
from ramify.model.scripted import (
    NO_REAL_CALLS,
    CharTokenizer,
    MergingTokenizer,
    ScriptedModel,
    forbid_real_calls,
    refuse_real_calls,
    scripted_completion,
)
from ramify.trace.message import Message

CHARS = CharTokenizer()
TEMPLATE = TagTemplate(CHARS)


def prefix(*turns: str, begun: str = "") -> Prefix:
    """User and assistant in turn, then the header of the reply and what of it is there already."""
    tokens: list[int] = []
    for i, text in enumerate(turns):
        tokens += TEMPLATE.render(("user", "assistant")[i % 2], text)[0]
    return Prefix(np.array([*tokens, *TEMPLATE.open("assistant"), *CHARS.encode(begun)], np.int32))


def say(model: Any, prefix: Prefix, **sampling: Any) -> Completion:
    return asyncio.run(model.sample(prefix, 1, Sampling(**sampling), [7]))[0]


def test_it_is_a_model_and_its_tokenizers_are_tokenizers() -> None:
    assert isinstance(ScriptedModel(), Model)
    assert isinstance(CHARS, Tokenizer)
    assert CHARS.hash != MergingTokenizer().hash


def test_a_list_answers_by_turn() -> None:
    model = ScriptedModel(["one", "two"])
    assert say(model, prefix("a")).text == "one"
    assert say(model, prefix("a", "one", "b")).text == "two"
    with pytest.raises(UserError, match="has 2 replies, and reply 3"):
        say(model, prefix("a", "one", "b", "two", "c"))


def test_a_dict_answers_the_last_message() -> None:
    model = ScriptedModel({"where": "there", "when": "now"})
    assert say(model, prefix("where")).text == "there"
    assert say(model, prefix("where", "there", "when")).text == "now"
    with pytest.raises(UserError, match="no reply to 'whn' \\(did you mean 'when'"):
        say(model, prefix("whn"))


def test_a_callable_sees_messages_and_key() -> None:
    seen = []

    def reply(messages: tuple[Message, ...], key: int) -> str:
        seen.append([(message.role, message.text) for message in messages])
        return f"key {key}"

    model = ScriptedModel(reply)
    completions = asyncio.run(model.sample(prefix("a", "b", "c"), 2, Sampling(), [3, 4]))
    assert [completion.text for completion in completions] == ["key 3", "key 4"]
    assert seen[0] == [("user", "a"), ("assistant", "b"), ("user", "c")]
    say(model, prefix("a", begun="be"))
    assert seen[-1] == [("user", "a"), ("assistant", "be")]


def test_a_callable_may_return_a_whole_sample() -> None:
    completion = scripted_completion("x", entropy=np.array([0.5, 0.0], np.float32))
    assert say(ScriptedModel(lambda messages, key: completion), prefix("a")) is completion


def test_a_begun_reply_is_finished() -> None:
    for replies in (["hello there"], {"a": "hello there"}, lambda messages, key: "hello there"):
        model = ScriptedModel(replies)
        assert say(model, prefix("a", begun="hello ")).text == "there"
        assert say(model, prefix("a", begun="bye ")).text == "hello there"


def test_what_ends_a_sample() -> None:
    model = ScriptedModel(["hello there"])
    for sampling, text, stop in (
        ({}, "hello there", "eos"),
        ({"max_tokens": 5}, "hello", "length"),
        ({"stop_texts": ("ll",)}, "hell", "stop"),
        ({"stop_tokens": (CHARS.encode("o")[0],)}, "hello", "stop"),
        ({"until": lambda tokens: len(tokens) == 2}, "he", "stop"),
    ):
        completion = say(model, prefix("a"), **sampling)
        assert (completion.text, completion.stop) == (text, stop)
        ended = len(text) + (stop == "eos")
        assert len(completion.tokens) == len(completion.logprobs) == len(completion.ends) == ended
        assert (
            say(ScriptedModel(["hello there"], tokens=False), Prefix(messages=(Message("user", "a"),)), **sampling).text == text
        )


def test_it_refuses_what_it_cannot_do() -> None:
    model = ScriptedModel(["hello"])
    with pytest.raises(NeedsError, match="banned token"):
        say(model, prefix("a"), ban=tuple(CHARS.encode("o")))
    with pytest.raises(NeedsError, match="banned token"):
        say(model, prefix("a"), ban_first=tuple(CHARS.encode("h")))
    assert say(model, prefix("a"), ban_first=tuple(CHARS.encode("o"))).text == "hello"
    with pytest.raises(NeedsError, match="takes tokens only"):
        say(model, Prefix(messages=(Message("user", "a"),)))
    with pytest.raises(NeedsError, match="takes messages only"):
        say(ScriptedModel(tokens=False), prefix("a"))
    with pytest.raises(NeedsError, match="no alternatives"):
        asyncio.run(model.logprobs([np.array([1, 2])], top_k=3))
    with pytest.raises(UserError, match="2 samples need 2 keys"):
        asyncio.run(model.sample(prefix("a"), 2, Sampling(), [1]))


def test_identity_follows_the_script() -> None:
    scripts: list[Any] = [["a"], ["b"], {"a": "b"}, lambda messages, key: "a"]
    assert len({ScriptedModel(script).identity.weights for script in scripts}) == 4
    assert ScriptedModel(["a"]).identity == ScriptedModel(["a"]).identity


def test_shared_samples_cannot_be_changed() -> None:
    completion = say(ScriptedModel(["hello"]), prefix("a"))
    with pytest.raises(ValueError, match="read-only"):
        completion.tokens[0] = 1


def test_the_switch_against_real_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_REAL_CALLS, raising=False)
    refuse_real_calls("the engine")
    with forbid_real_calls(), pytest.raises(NeedsError, match="the engine would call a real model"):
        refuse_real_calls("the engine")
    assert NO_REAL_CALLS not in os.environ
    monkeypatch.setenv(NO_REAL_CALLS, "1")
    with forbid_real_calls():
        pass
    assert os.environ[NO_REAL_CALLS] == "1"


@given(st.text(max_size=40) | st.text("<|enduser>", max_size=40))
@settings(max_examples=80)
def test_tokenizers_lose_nothing(text: str) -> None:
    for tokenizer in (CHARS, MergingTokenizer()):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        ends = tokenizer.ends(tokens).tolist()
        assert [tokenizer.decode(tokens[:i]) for i in range(1, len(tokens) + 1)] == [text[:end] for end in ends]
        assert max(tokens, default=0) < 2**31


def test_messages_come_back_from_the_adversary_too() -> None:
    tokenizer = MergingTokenizer()
    template, seen = TagTemplate(tokenizer), []

    def reply(messages: tuple[Message, ...], key: int) -> str:
        seen.extend(messages)
        return "fine"

    tokens = [*template.render("user", "hello 🗝")[0], *assistant_node_parts(template, scripted_completion("yes"))["tokens"]]
    tokens += [*template.render("user", "more")[0], *template.open("assistant")]
    say(ScriptedModel(reply, tokenizer=tokenizer), Prefix(np.array(tokens, np.int32)))
    assert [message.text for message in seen] == ["hello 🗝", "yes", "more"]
