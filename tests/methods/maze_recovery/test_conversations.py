"""Conversations with a loss on chosen parts: messages, pairs and tokens say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.engine.checkpoints import chat_template, model_folder
from ramify.methods.maze_recovery.conversations import IGNORED, Conversation, whole
from ramify.trace.message import Message
from ramify.trace.node import make_node
from ramify.trace.path import Path
from ramify.trace.view import TokenMessage, messages_of
from ramify_experiments.models import chat_row


def turn(role: str, text: str, **data: Any) -> TokenMessage:
    return TokenMessage(Message(role, text, data))


TEMPLATE = chat_template(model_folder("builtin"))
SAID = [
    turn("system", "Play."),
    turn("user", "Hall. exits east."),
    turn("assistant", "go east"),
    turn("user", "Kitchen."),
    turn("assistant", "go west"),
]


def trained(*which: int) -> Conversation:
    return Conversation(tuple(SAID), tuple(whole(one) if i in which else () for i, one in enumerate(SAID)))


def test_tokens_are_those_of_the_recipes_rows():
    row = trained(2, 4).to_row(TEMPLATE)
    same = chat_row(TEMPLATE, [(one.role, one.text) for one in SAID])
    assert row.tokens.tolist() == same.tokens.tolist()
    assert row.mask.tolist() == same.mask.tolist()
    ids = trained(4).to_tokens(TEMPLATE)
    assert len(ids["labels"]) == len(ids["input_ids"])
    kept = [token for token, label in zip(ids["input_ids"], ids["labels"], strict=True) if label != IGNORED]
    assert TEMPLATE.tokenizer.decode(kept) == "go west<|end|>"
    assert trained(4).cost(TEMPLATE) == len(kept)
    assert trained(2, 4).cost(TEMPLATE) == int(row.mask.sum())


def test_part_of_a_reply():
    reply = turn("assistant", "Go east. Wait, go west. Done.")
    talk = Conversation((SAID[1], reply), ((), ((9, 24),)))
    ids, mask = talk.tokens(TEMPLATE)
    assert TEMPLATE.tokenizer.decode(ids[mask].tolist()).strip() == "Wait, go west."
    ended = Conversation((SAID[1], reply), ((), ((9, len(reply.text)),)))
    ids, mask = ended.tokens(TEMPLATE)
    assert TEMPLATE.tokenizer.decode(ids[mask].tolist()).strip() == "Wait, go west. Done.<|end|>"
    with pytest.raises(UserError, match="part of a reply"):
        list(talk.to_completions())
    assert talk.to_messages()["loss"] == [[], [[9, 24]]]
    assert talk.cost() == 4  # 15 characters of 29, a token per 4


def test_pairs_hold_what_is_trained_and_nothing_else():
    [pair] = trained(4).to_completions()
    assert [m["content"] for m in pair["prompt"]] == ["Play.", "Hall. exits east.", "go east", "Kitchen."]
    assert pair["completion"] == [{"role": "assistant", "content": "go west"}]
    assert not list(trained().to_completions())


def test_sampled_tokens_stay_what_they_are():
    given = make_node("t", None, 0, "user", "ab", tokens=[1, 2], ends=[1, 2])
    sampled = make_node("t", given.id, 2, "assistant", "xy", tokens=[9, 3, 4, 5], sampled=[0, 1, 1, 1], ends=[0, 1, 2, 2])
    more = make_node("t", sampled.id, 3, "assistant", "z", tokens=[6, 7], sampled=[1, 1], ends=[1, 1], opens=False)
    turns = messages_of(Path.of([given, sampled, more]))
    assert [one.text for one in turns] == ["ab", "xyz"]
    assert turns[1].tokens.tolist() == [9, 3, 4, 6, 7]
    assert turns[1].ends.tolist() == [0, 1, 2, 3, 3]
    talk = Conversation(tuple(turns), ((), whole(turns[1])))
    assert talk.to_tokens() == {"input_ids": [1, 2, 9, 3, 4, 6, 7], "labels": [IGNORED] * 3 + [3, 4, 6, 7]}
    assert talk.cost() == 4
    assert Conversation(tuple(turns), ((), ((1, 3),))).to_tokens()["labels"][3:] == [IGNORED, 4, 6, 7]


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(UserError, match="role 'user' cannot be trained on"):
        trained(1)
    with pytest.raises(NeedsError, match="text only"):
        trained(2).to_tokens()
    called = turn("assistant", "", tool_calls=[{"id": "1", "function": {"name": "look", "arguments": "{}"}}])
    with pytest.raises(NeedsError, match="tool calls"):
        Conversation((called,), (whole(called),)).to_tokens(TEMPLATE)
    assert Conversation((called,), ((),)).to_messages()["messages"][0]["tool_calls"]
    viewed = make_node("t", None, 0, "assistant", "x", tokens=[1], sampled=[1], context="abc")
    turns = messages_of(Path.of([viewed]))
    with pytest.raises(NeedsError, match="explicit context"):
        Conversation(tuple(turns), (whole(turns[0]),))


def test_tokens_counted_by_the_trace():
    go = turn("assistant", "go", tokens=7)
    assert Conversation((go,), (whole(go),)).cost() == 7
    assert Conversation((go,), ((),)).cost() == 0
    assert np.isscalar(Conversation((go,), (whole(go),)).cost())
