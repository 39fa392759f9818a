"""Compactors that a study compares, and plain chats: identity, pairs of calls and results, failures that keep the messages."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramify.base import registry
from ramify.base.errors import InfrastructureError, UserError
from ramify.methods.governance.filler import filler, opening
from ramify.model.scripted import ScriptedModel
from ramify.rollout.compact import (
    NEUTRAL,
    Entry,
    HeadTail,
    Hierarchical,
    LlmSummarize,
    RecencyTruncate,
    Window,
    compact_chat,
    first_words,
    readable,
    text_of,
)
from ramify.rollout.rules import keywords
from ramify.testing import conformance
from ramify.trace.message import Message

CHAT = [*opening("en"), *filler("en", 8, "test")]


def says(text: str = "So far so good.") -> Any:
    async def ask(messages: Any, tokens: int) -> str:
        return text

    return ask


def shorten(compactor: Any, messages: Any = CHAT, budget: int | None = 200, **options: Any) -> Any:
    return asyncio.run(compact_chat(compactor, messages, budget, **({"ask": says()} | options)))


FAMILY = [RecencyTruncate(), LlmSummarize(), Hierarchical(), HeadTail(), HeadTail(middle=LlmSummarize())]


@pytest.mark.parametrize("name", [name for name in registry.names("compactor") if name not in ("drop-oldest", "summarize")])
def test_the_family_conforms(name: str) -> None:
    assert conformance.check("compactor", registry.named("compactor", name)) == []


@pytest.mark.parametrize("compactor", FAMILY, ids=lambda c: c.name)
def test_within_the_budget_nothing_changes_byte_for_byte(compactor: Any) -> None:
    shown, record = shorten(compactor, budget=100_000)
    assert shown == CHAT
    assert (record.fired, record.inserted, record.before, record.failure) == (False, (), record.after, "")


@pytest.mark.parametrize("compactor", FAMILY, ids=lambda c: c.name)
def test_calls_keep_their_results_and_the_input_is_left_alone(compactor: Any) -> None:
    before = copy.deepcopy(CHAT)
    shown, record = shorten(compactor)
    assert before == CHAT
    assert record.fired
    assert record.after <= 200
    made = {call["id"] for m in shown for call in m.get("tool_calls", ())}
    assert {m["tool_call_id"] for m in shown if m["role"] == "tool"} <= made
    assert shown[0] == CHAT[0]
    old = [m for m in shown if m in CHAT]
    assert old == [m for m in CHAT if m in old]
    assert len(CHAT) - len(record.evicted) == len(old)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_head_tail_keeps_message_0(rounds: int) -> None:
    shown: Any = CHAT[1:]
    for number in range(rounds):
        shown, record = shorten(HeadTail(head=1), shown)
        assert record.fired
        assert shown[0] == CHAT[1]
        shown = [*shown, *filler("en", 8, number)]


def test_a_second_summary_holds_the_first() -> None:
    asked = []

    async def ask(messages: Any, tokens: int) -> str:
        asked.append(messages[-1].text)
        return f"summary {len(asked)}"

    shown, first = shorten(LlmSummarize(), ask=ask)
    assert first.inserted[0].endswith("summary 1")
    shown, _ = shorten(LlmSummarize(), [*shown, *filler("en", 8, "more")], ask=ask)
    assert "summary 1" in asked[1]
    assert sum("summary" in str(m["content"]) for m in shown) == 1


def test_the_request_for_a_summary_is_neutral() -> None:
    assert not keywords(NEUTRAL) & keywords(
        "rules rule policy constraint instruction forbidden drop discard forget keep important"
    )


def test_hierarchical_summarises_summaries() -> None:
    asked = []

    async def ask(messages: Any, tokens: int) -> str:
        asked.append(messages[-1].text)
        return f"part {len(asked)}"

    _, record = shorten(Hierarchical(chunk=6), ask=ask)
    assert len(asked) > 2
    assert all(f"part {i}" in asked[-1] for i in range(1, len(asked)))
    assert record.inserted[0].endswith(f"part {len(asked)}")


def test_a_long_summary_is_cut_to_its_words() -> None:
    assert first_words("one two three four", 2) == "one two"
    assert first_words("一二三四 five", 3) == "一二三"
    assert first_words(" short ", 10) == "short"
    _, record = shorten(LlmSummarize(words=3), ask=says("a b c d e f"))
    assert record.inserted[0].endswith("a b c")


@pytest.mark.parametrize("said", ["", "   ", None])
def test_a_summariser_that_fails_leaves_the_messages(said: str | None) -> None:
    async def ask(messages: Any, tokens: int) -> str:
        if said is None:
            raise InfrastructureError("provider", "503 overloaded")
        return said

    shown, record = shorten(LlmSummarize(), ask=ask)
    assert shown == CHAT
    assert ("503" if said is None else "empty") in record.failure
    assert not any("503" in text_of(m) for m in shown)


def test_a_summary_that_repeats_its_input_is_a_failure() -> None:
    async def ask(messages: Any, tokens: int) -> str:
        return messages[-1].text.partition("\n\n")[2]

    shown, record = shorten(LlmSummarize(), ask=ask)
    assert shown == CHAT
    assert "repeats" in record.failure


def test_a_harness_of_ones_own() -> None:
    def last(messages: list[dict[str, Any]], k: int = 4) -> list[dict[str, Any]]:
        messages[0]["content"] = "changed by a careless harness"
        return messages[-k:]

    before = copy.deepcopy(CHAT)
    shown, record = shorten(last, budget=None)
    assert before == CHAT
    assert shown == CHAT[-4:]
    assert record.evicted == tuple(range(len(CHAT) - 4))

    async def awaited(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return messages[:1]

    assert shorten(awaited, budget=None)[0] == CHAT[:1]
    assert "ZeroDivisionError" in shorten(lambda messages: [1 / 0], budget=None)[1].failure
    assert shorten(lambda messages: [], budget=None)[1].failure == "it left nothing"


def test_a_providers_own_item_is_opaque() -> None:
    def native(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"type": "compaction", "encrypted_content": "gAAAA"}, *messages[-2:]]

    shown, record = shorten(native, budget=None)
    assert record.opaque
    assert not readable(shown[0])
    assert record.inserted == ()


def test_bad_input() -> None:
    with pytest.raises(UserError, match="at least 1 word"):
        LlmSummarize(words=0)
    with pytest.raises(UserError, match="must say where"):
        LlmSummarize(request="Summarise.")
    with pytest.raises(UserError, match="head and tail"):
        HeadTail(head=0)
    with pytest.raises(UserError, match="chunk"):
        Hierarchical(chunk=0)
    with pytest.raises(UserError, match="needs a budget"):
        shorten(RecencyTruncate(), budget=None)
    with pytest.raises(UserError, match="give it one"):
        shorten(LlmSummarize(), ask=None)
    with pytest.raises(UserError, match="none of system, user, assistant, tool"):
        shorten(RecencyTruncate(), [{"role": "robot", "content": "", "tool_calls": []}])


def test_a_model_of_its_own_answers() -> None:
    _, record = shorten(LlmSummarize(model=ScriptedModel(["my own words"], tokens=False)), ask=None)
    assert record.inserted[0].endswith("my own words")


shapes = st.lists(st.tuples(st.sampled_from(["user", "assistant", "call"]), st.integers(1, 40)), min_size=1, max_size=14)


@example([("user", 1), ("assistant", 1), ("assistant", 14)], 20)
@given(shapes, st.integers(20, 300))
@settings(max_examples=25, deadline=None)
def test_the_promises_hold_on_histories_of_calls(shape: list[tuple[str, int]], limit: int) -> None:
    from ramify.rollout.compact import faults

    entries: list[Entry] = [Entry("system", "s" * 5, 5, 0)]
    for role, size in shape:
        if role == "call":
            name = f"c{len(entries)}"
            entries += [
                Entry("assistant", "c", 1, len(entries), (name,)),
                Entry("tool", "r" * size, size, len(entries) + 1, (), name),
            ]
        else:
            entries.append(Entry(role, "m" * size, size, len(entries)))

    async def ask(messages: Any, tokens: int) -> str:
        return "what was done"

    window = Window(limit, lambda message: len(message.text), ask)
    for compactor in FAMILY:
        try:
            shown = asyncio.run(compactor.compact(entries, window))
        except InfrastructureError:
            continue
        assert faults(entries, shown, window) == []
        assert all(isinstance(item, Entry | Message) for item in shown)
