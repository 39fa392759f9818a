"""Thinking, its close and the answer: budgets, cuts on token ids, what is never read off an open trace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.early_decision.guards import SelfCheck
from ramify.methods.early_decision.thinking import Marks, Thinking, ThinkingAnswer, Thought, cut_at, split_text, tokens_up_to
from ramify.model.protocol import Completion, Identity, Prefix, Sampling
from ramify.model.scripted import CharTokenizer, ScriptedModel
from ramify.rollout.sampler import FailurePolicy, Policy, SamplePosition, Sampler, sample_key, token_ids

OPEN, CLOSE, END = 10, 11, 12
MARKS = Marks((OPEN,), (CLOSE,), (CLOSE,))
PROMPT = (1, 2, 3)


def network(context: int = 64) -> LocalModel:
    module = TinyLM(TinyConfig(13, 24, 2, 2, 1, 12, 24, context, eos=(END,)), seed=3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return LocalModel(module)


class Thinks:
    """A sampler and how it thinks, asked as the stages of a study ask it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        marks: Marks,
        think: Sampling,
        answer: Sampling,
        retries: FailurePolicy | None = None,
        guard: Policy | None = None,
        **options: Any,
    ) -> None:
        self.sampler = Sampler(model, retries=retries, policy=guard)
        self.thinking = Thinking(model, tokenizer, marks, think, answer, **options)

    async def think(
        self, prompt: Sequence[int], n: int, place: SamplePosition, head: Sequence[int] = (), start: int = 0
    ) -> list[Thought | None]:
        begun, left = self.thinking.opened(prompt, head), self.thinking.left(head)
        return self.thinking.thoughts(await self.sampler.sample(begun, n, left, place, start, policy=self.thinking), head)

    async def answers(self, prompt: Sequence[int], thinking: Sequence[int], closed: Any, n: int) -> list[ThinkingAnswer | None]:
        behind = self.thinking.closed(prompt, thinking, closed)
        return self.thinking.answers(await self.sampler.sample(behind, n, self.thinking.answering, ("q", "answer")))


def thinker(temperature: float = 1.0, think: int = 12, answer: int = 3, context: int = 64, **options: Any) -> Thinks:
    model = network(context)
    return Thinks(
        model, None, MARKS, Sampling(temperature, max_tokens=think), Sampling(temperature, max_tokens=answer), **options
    )


class Spelling:
    """Says one text, character by character, whatever it is asked; fails where it has none."""

    capabilities = frozenset({"tokens", "continue"})
    identity = Identity("spelling", "")
    tokenizer = CharTokenizer()

    def __init__(self, *texts: str) -> None:
        self.texts, self.seen = list(texts), []

    async def sample(self, prefix: Any, n: int, sampling: Sampling, keys: Any) -> list[Completion]:
        self.seen.append(self.tokenizer.decode(prefix.tokens.tolist()))
        text = self.texts.pop(0)
        if not text:
            raise InfrastructureError("provider", "the line is down")
        ids: list[int] = []
        stop = "length"
        for token in self.tokenizer.encode(text)[: sampling.max_tokens]:
            ids.append(token)
            if token in sampling.stop_tokens or (sampling.until is not None and sampling.until(np.array(ids))):
                stop = "stop"
                break
        return [Completion(self.tokenizer.decode(ids), stop, np.array(ids, np.int32))] * n


def spelled(*texts: str, think: int = 40, force: bool = True, close_ended: bool = False) -> Thinks:
    model: Any = Spelling(*texts)
    marks = Marks.of(model.tokenizer, "<think>\n", "</think>\n")
    return Thinks(
        model, model.tokenizer, marks, Sampling(max_tokens=think), Sampling(max_tokens=20),
        force=force, close_ended=close_ended, eos=[4], retries=FailurePolicy({}),
    )  # fmt: skip


def one(thinker: Thinks, prompt: str = "Q ") -> Any:
    return asyncio.run(thinker.think(CharTokenizer().encode(prompt), 1, ("p",)))[0]


def test_a_marker_of_many_tokens_ends_the_thinking() -> None:
    found = spelled("hm, so</think>never read", "\nNo.<|end|>")
    thought = one(found)
    assert (found.thinking.text(thought.thinking), thought.closed) == ("hm, so", "own")
    assert (thought.answer.text, thought.answer.stop) == ("\nNo.", "stop")
    assert found.sampler.model.seen == ["Q <think>\n", "Q <think>\nhm, so</think>"]  # its own marker, no line break added


def test_thinking_over_its_budget_is_closed_by_force_or_left_open() -> None:
    found = spelled("x" * 100, "Yes<|end|>", think=5)
    thought = one(found)
    assert (len(thought.thinking), thought.closed, thought.answer.text) == (5, "forced", "Yes")
    assert found.sampler.model.seen[1].endswith("xxxxx</think>\n")
    thought = one(spelled("x" * 100, think=5, force=False))
    assert (thought.closed, thought.answer) == ("never", None)


def test_a_turn_that_ends_inside_the_thinking_has_no_answer() -> None:
    thought = one(spelled("I refuse to answer this.<|end|>"))
    assert (thought.closed, thought.answer) == ("never", None)


def test_a_turn_that_ends_inside_the_thinking_is_closed_there_where_asked() -> None:
    found = spelled("It is small.<|end|>", "No.<|end|>", close_ended=True)
    thought = one(found)
    assert (found.thinking.text(thought.thinking), thought.closed, thought.answer.text) == ("It is small.", "forced", "No.")
    assert found.sampler.model.seen[1] == "Q <think>\nIt is small.</think>\n"  # without the token that ended the turn


def test_a_template_that_opens_thinking_itself_is_not_opened_twice() -> None:
    for prompt in ("Q <think>", "Q <think>\n"):
        found = spelled("a</think>", "b<|end|>")
        one(found, prompt)
        assert found.sampler.model.seen[0] == prompt
    with pytest.raises(UserError, match="must not be empty"):
        Marks.of(CharTokenizer(), "  ")


def test_a_failure_is_counted_and_its_siblings_continue() -> None:
    found = spelled("")
    assert one(found) is None
    assert (found.sampler.failed, found.sampler.first_failure) == (1, "provider: the line is down")
    found = spelled("a</think>", "")  # the answer fails: it is not that there was none
    assert one(found) is None
    assert found.sampler.failed == 1


def test_a_model_of_messages_is_refused_before_anything_runs() -> None:
    with pytest.raises(NeedsError, match="continues inside a message"):
        Thinking(ScriptedModel(["x"], tokens=False), CharTokenizer(), MARKS, Sampling(), Sampling())


def test_greedy_answers_behind_all_of_the_thinking_are_the_trace_s_own() -> None:
    found = thinker(temperature=0.0, think=20)
    for prompt in [(1, 2, 3), (4, 4), (7, 8, 9, 1), (5,), (6, 2)]:
        (thought,) = asyncio.run(found.think(prompt, 1, ("p",)))
        if thought is None or thought.answer is None:
            continue
        again = asyncio.run(found.answers(prompt, thought.thinking, thought.closed, 2))
        assert [a.tokens for a in again if a] == [thought.answer.tokens] * 2


def test_no_thinking_is_a_cut_at_nothing() -> None:
    found = thinker()
    np.testing.assert_array_equal(found.thinking.closed(PROMPT, ()).tokens, [*PROMPT, OPEN, CLOSE])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.floats(0, 1))
def test_a_cut_is_a_prefix_of_its_parent(length: int, share: float) -> None:
    kept = cut_at(length, share)
    assert kept <= length
    assert (kept == 0) == (share == 0)
    assert share == 0 or kept == max(1, int(np.floor(share * length + 1e-9)))
    assert cut_at(length, 1.0) == length


def test_continuing_keeps_the_head_and_its_budget() -> None:
    found = thinker(think=10)
    head = (4, 5, 6)
    thoughts = asyncio.run(found.think(PROMPT, 6, ("p",), head))
    assert all(t is not None and t.thinking[:3] == head and len(t.thinking) <= 10 for t in thoughts)
    (used,) = asyncio.run(found.think(PROMPT, 1, ("p",), (*range(1, 10), 1)))
    assert used is not None
    assert used.closed == "forced"
    assert len(used.thinking) == 10


def test_extended_thinking_never_closes() -> None:
    found = thinker()
    begun, settings = found.thinking.opened(PROMPT, (4, 5)), found.thinking.open_for(30)
    (longer,) = asyncio.run(found.sampler.sample(begun, 1, settings, ("p",)))
    assert longer is not None
    assert len(token_ids(longer)) == 30
    assert not {CLOSE, END} & set(token_ids(longer))


def test_samples_depend_on_their_place_alone() -> None:
    async def both(found: Thinks) -> Any:
        return await asyncio.gather(found.think(PROMPT, 3, ("a",)), found.think(PROMPT, 3, ("b",)))

    first, second = asyncio.run(both(thinker()))
    assert asyncio.run(thinker().think(PROMPT, 3, ("b",))) == second
    assert asyncio.run(thinker().think(PROMPT, 1, ("a",), start=2)) == first[2:]
    assert first != second


def test_thought_and_answer_are_one_continuation_with_keys_of_their_own() -> None:
    """A guard of the sampler steps in in both."""
    found = spelled("hm</think>", "No.<|end|>")
    asked: list[int] = []
    sample = found.sampler.model.sample

    async def noted(prefix: Any, n: int, settings: Any, keys: Any) -> Any:
        asked.extend(keys)
        return await sample(prefix, n, settings, keys)

    found.sampler.model.sample = noted  # type: ignore[method-assign]
    prompt = found.thinking.opened(CharTokenizer().encode("Q "))
    (completion,) = asyncio.run(found.sampler.sample(prompt, 1, found.thinking.left(), ("p",), 3, policy=found.thinking))
    assert completion is not None
    assert completion.text == "hm</think>No.<|end|>"
    assert asked == [sample_key(0, ("p", "think"), 3), sample_key(0, ("p", 3, "answer"), 0)]
    assert found.sampler.spent().samples == 2
    guarded = spelled("hm</think>", " No, it is not.", "No.<|end|>", " No.")
    guarded.sampler.policy = SelfCheck(CharTokenizer())
    assert one(guarded).answer.text == "No."
    assert [text.endswith("yes or no:") for text in guarded.sampler.model.seen] == [False, True, False, True]


def test_an_answer_that_does_not_fit_is_not_asked_for() -> None:
    found = thinker(context=20)
    assert not found.thinking.fits(Prefix(np.ones(18, np.int32)))
    (thought,) = asyncio.run(found.think(tuple(range(1, 9)), 1, ("p",), (1,) * 9))
    assert thought is None or thought.answer is None


def test_characters_to_tokens() -> None:
    ends = np.array([2, 5, 9])
    assert [tokens_up_to(ends, at) for at in (1, 2, 3, 9, 20)] == [1, 1, 2, 3, 3]
    with pytest.raises(UserError, match="between 0 and 1"):
        cut_at(10, 1.2)


class ChannelTokenizer(CharTokenizer):
    """One token for each mark of the harmony format, and one a character."""

    marks = ("<|channel|>", "<|message|>", "<|start|>", "<|return|>", "<|call|>")

    def encode(self, text: str) -> list[int]:
        pieces = re.split("(" + "|".join(map(re.escape, self.marks)) + ")", text)
        return [
            i for p in pieces for i in ([900 + self.marks.index(p)] if p in self.marks else super(type(self), self).encode(p))
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.marks[t - 900] if t >= 900 else super(type(self), self).decode([t]) for t in tokens)


FINAL_HEAD = "<|end|><|start|>assistant<|channel|>final<|message|>"


def channels(*texts: str, think: int = 80) -> Thinks:
    model: Any = Spelling(*texts)
    model.tokenizer = ChannelTokenizer()
    marks = Marks.of(model.tokenizer)
    return Thinks(
        model, model.tokenizer, marks, Sampling(max_tokens=think), Sampling(max_tokens=20), eos=[], retries=FailurePolicy({})
    )


def test_channels_are_thought_and_answer() -> None:
    found = channels(f"We weigh it.{FINAL_HEAD}never read", "Sorry, no.<|return|>never read")
    thought = one(found, "Q<|start|>assistant")
    assert (found.thinking.text(thought.thinking), thought.closed) == ("We weigh it.", "own")
    assert (thought.answer.text, thought.answer.stop) == ("Sorry, no.", "stop")
    assert found.sampler.model.seen == [
        "Q<|start|>assistant<|channel|>analysis<|message|>",
        f"Q<|start|>assistant<|channel|>analysis<|message|>We weigh it.{FINAL_HEAD}",
    ]
    again = f"a<|end|><|start|>assistant<|channel|>analysis<|message|>b{FINAL_HEAD}"
    found = channels(again, "Yes<|end|>")
    thought = one(found)
    assert found.thinking.text(thought.thinking) == again.removesuffix(FINAL_HEAD)  # a second analysis is thinking too
    assert thought.answer.text == "Yes"
    tool = one(channels("a<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>"))
    assert (tool.closed, tool.answer) == ("never", None)  # it called a tool and said nothing


@pytest.mark.parametrize("sampled", [2, 3, 12])
def test_a_mark_that_the_budget_cuts_in_two_is_written_once(sampled: int) -> None:
    found = channels(f"a{FINAL_HEAD}", "Yes<|return|>", think=sampled)
    thought = one(found, "")
    assert (found.thinking.text(thought.thinking), thought.closed) == ("a", "forced")
    assert found.sampler.model.seen[1] == f"<|channel|>analysis<|message|>a{FINAL_HEAD}"


def test_a_kept_reply_is_taken_apart_at_its_marks() -> None:
    head = "<|channel|>analysis<|message|>"
    assert split_text(f"{head}hm{FINAL_HEAD}No.<|return|>") == ("hm", "No.")
    assert split_text(f"{head}a<|end|><|start|>assistant{head}b{FINAL_HEAD}No.") == ("a\nb", "No.")
    assert split_text(f"{head}hm, so I ref") == ("hm, so I ref", "")  # cut off: the scratchpad is not an answer
    constrained = "<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{}<|return|>"
    assert split_text(f"{head}a{constrained}") == ("a", "{}")
    assert split_text("<think>\nhm</think>No.") == ("\nhm", "No.")
    assert split_text("hm</think>No.") == ("hm", "No.")  # the template opened it
    assert split_text("<think>hm") == ("hm", "")
    assert split_text("[[hm]]No.", "[[", "]]") == ("hm", "No.")
    assert split_text("No.") is None
