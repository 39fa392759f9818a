"""A model without a class of sentences: the law is that of rejection,
nothing is rejected where nothing is said, and it gives up at a cap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from ramify.base.errors import NeedsError
from ramify.base.seeds import generator
from ramify.methods.forensics.filtered import Filtered
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import Equals
from ramify.trace.message import Message

SETTINGS = Sampling(max_tokens=200)


def speaker(chance: float) -> ScriptedModel:
    """Says A or B, then C or D, each by its own coin of the key, and keeps what is begun."""

    def speak(messages: Sequence[Message], key: int) -> str:
        begun = messages[-1].text if messages[-1].role == "assistant" else ""
        u = generator(key, len(begun)).random(2)
        said = [s for s in begun.split(" ") if s]
        words = said[:1] or ["Alpha." if u[0] < chance else "Beta."]
        words += said[1:2] or [("Gamma." if words[0] == "Alpha." else "Delta.") if u[1] < 0.5 else "Omega."]
        return " ".join(words)

    return ScriptedModel(speak)


def prompt(model: ScriptedModel) -> Prefix:
    template = TagTemplate(model.tokenizer)
    return Prefix(np.array([*template.render("user", "go")[0], *template.open("assistant")], np.int32))


def sampled(model: ScriptedModel, pattern: str, n: int = 200, **options: int) -> list[Completion]:
    filtered = Filtered(model, Equals(pattern), pattern, by="stops", **options)
    return asyncio.run(filtered.sample(prompt(model), n, SETTINGS, list(range(n))))


def test_a_class_that_is_never_said_rejects_nothing_and_changes_no_sample() -> None:
    model = speaker(0.5)
    plain = asyncio.run(model.sample(prompt(model), 50, SETTINGS, list(range(50))))
    found = sampled(model, "Never.", 50)
    assert [d.text for d in found] == [d.text for d in plain]
    assert all(d.data == {"forbid": {"rejected": 0, "unfiltered": False}} for d in found)


def test_the_class_is_gone_and_what_depends_on_it_with_it() -> None:
    found = sampled(speaker(0.6), "Alpha.")
    assert {d.text.split()[0] for d in found} == {"Beta."}
    assert not any("Gamma" in d.text for d in found)
    rejected = [d.data["forbid"]["rejected"] for d in found]  # type: ignore[index]
    assert np.mean(rejected) == pytest.approx(0.6 / 0.4, rel=0.25), "a geometric number of resamples"


def test_a_later_sentence_is_resampled_behind_what_was_kept() -> None:
    found = sampled(speaker(0.5), "Gamma.")
    assert not any("Gamma" in d.text for d in found)
    assert np.mean([d.text.startswith("Alpha.") for d in found]) == pytest.approx(0.5, abs=0.12), "what came before keeps its law"
    assert {d.text for d in found} <= {"Alpha. Omega.", "Beta. Delta.", "Beta. Omega."}
    for completion in found:
        assert completion.tokens is not None
        assert completion.ends is not None
        assert completion.logprobs is not None
        assert len(completion.tokens) == len(completion.ends) == len(completion.logprobs)
        assert int(completion.ends[-1]) == len(completion.text)


def test_it_gives_up_at_the_cap_and_says_so() -> None:
    found = sampled(speaker(1.0), "Alpha.", 5, redraws=3)
    assert all(d.text.startswith("Alpha.") for d in found)
    assert all(d.data == {"forbid": {"rejected": 3, "unfiltered": True}} for d in found)


def test_the_limit_of_tokens_counts_what_is_kept() -> None:
    model = speaker(1.0)
    filtered = Filtered(model, Equals("Gamma."), "gamma", by="stops")
    (completion,) = asyncio.run(filtered.sample(prompt(model), 1, Sampling(max_tokens=9), [3]))
    assert completion.tokens is not None
    assert len(completion.tokens) <= 9


def test_it_is_another_model_and_needs_tokens() -> None:
    says = Equals("never")
    model = speaker(0.5)
    filtered = Filtered(model, says, "x", by="stops")
    assert filtered.identity.weights not in (model.identity.weights, Filtered(model, says, "y", by="stops").identity.weights)
    assert len(asyncio.run(filtered.logprobs([np.array([1, 2])]))) == 1
    with pytest.raises(NeedsError, match="forbidding sentences needs a model"):
        Filtered(ScriptedModel(["x"], tokens=False), says, "x")
