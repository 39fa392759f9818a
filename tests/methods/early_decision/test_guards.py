"""Guards step in where they should, at most so often, and a guarded sample is repeatable."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import NeedsError
from ramify.methods.early_decision.guards import Reminder, SelfCheck
from ramify.methods.early_decision.thinking import Marks
from ramify.model.protocol import Completion, Identity, Prefix, Sampling
from ramify.model.scripted import CharTokenizer, ScriptedModel
from ramify.rollout.sampler import Sampler

TOKENIZER = CharTokenizer()
MARKS = Marks.of(TOKENIZER, "<think>", "</think>")


class Writer:
    """Writes the alphabet over and over from where the text stands; sure of every 'k'.
    Asked a question, it answers by the last letter."""

    capabilities = frozenset({"tokens", "continue", "entropy", "seeds"})
    identity = Identity("writer", "w")
    eos = (4,)

    def __init__(self, harmful: str = "") -> None:
        self.harmful, self.asked = harmful, 0

    async def sample(self, prefix: Prefix, n: int, sampling: Sampling, keys: Any) -> list[Completion]:
        assert prefix.tokens is not None
        text = TOKENIZER.decode(prefix.tokens.tolist())
        if text.endswith("yes or no:"):
            self.asked += 1
            said = " Yes." if self.harmful and text.split("\n\nIs the")[0][-1] in self.harmful else " No."
            return [Completion(said, "length", np.array(TOKENIZER.encode(said)))]
        last = next((c for c in reversed(text) if c.islower()), "z")
        letters = [chr((ord(last) - 96 + i) % 26 + 97) for i in range(sampling.max_tokens)]
        surprise = [0.1 if c == "k" else 2.0 for c in letters]
        tokens = np.array(TOKENIZER.encode("".join(letters)), np.int32)
        return [Completion("".join(letters), "length", tokens, entropy=np.array(surprise, np.float32))]


def sampled(model: Any, guard: Any, start: str = "Q<think>", length: int = 150) -> str:
    prefix = Prefix(np.array(TOKENIZER.encode(start), np.int32))
    completion = asyncio.run(Sampler(model, policy=guard).one(prefix, Sampling(max_tokens=length), ("p",)))
    assert completion.text == TOKENIZER.decode(completion.tokens.tolist())
    assert len(completion.tokens) == length
    return str(completion.text)


def test_a_reminder_is_put_in_where_the_model_grows_sure_three_times_at_most() -> None:
    text = sampled(Writer(), Reminder(TOKENIZER, MARKS, "[SAFE]"), length=200)
    assert text.count("[SAFE]") == 3
    assert text.startswith("lmnopqrstuvwxyzabcdefghijk[SAFE]l")  # the writer continues behind its own last letter
    assert sampled(Writer(), Reminder(TOKENIZER, MARKS, "[SAFE]"), "Q<think>x</think>").count("[SAFE]") == 0


def test_a_check_goes_back_to_the_last_safe_point_four_times_at_most() -> None:
    calm = Writer()
    assert sampled(calm, SelfCheck(TOKENIZER)) == sampled(Writer(), SelfCheck(TOKENIZER))
    assert calm.asked == 5  # every 32 of 150 tokens
    alarmed = Writer("q")  # the 32nd letter is q, whatever is tried again
    sampled(alarmed, SelfCheck(TOKENIZER))
    assert alarmed.asked == 4


def test_a_guard_says_what_it_needs_and_who_it_is() -> None:
    with pytest.raises(NeedsError, match="entropy"):
        Sampler(ScriptedModel(["x"]), policy=Reminder(TOKENIZER, MARKS, "r"))
    assert Sampler(Writer(), policy=SelfCheck(TOKENIZER)).identity.name == "writer+self-check"


def test_a_primer_starts_every_thinking() -> None:
    marks = Marks.of(TOKENIZER, "<think>", "</think>", primer="Safety first. ")
    for prompt in ("Q", "Q<think>"):
        assert TOKENIZER.decode(marks.start(TOKENIZER.encode(prompt)).tolist()) == "Q<think>Safety first. "
