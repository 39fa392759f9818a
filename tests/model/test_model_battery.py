"""The model battery accepts sound models and catches each model broken on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify.engine.checkpoints import load_model, model_folder
from ramify.model.protocol import Completion, Prefix, Sampling, TokenScores
from ramify.model.scripted import ScriptedModel
from ramify.testing import check_model


class Markov:
    """A real sampler: the next of four tokens depends on the last one; token 0 ends."""

    def __init__(self) -> None:
        rows = np.random.default_rng(0).normal(size=(4, 4))
        self.table = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        self.identity = ScriptedModel(name="markov").identity
        self.capabilities = frozenset(
            {"tokens", "continue", "logprobs", "prompt_logprobs", "entropy", "seeds", "batch_invariant"}
        )

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        assert prefix.tokens is not None
        return [self.one(int(prefix.tokens[-1]) if len(prefix.tokens) else 0, settings, key) for key in keys]

    def one(self, last: int, settings: Sampling, key: int) -> Completion:
        rng, tokens, logprobs, entropy, stop = generator(key), [], [], [], "length"
        while len(tokens) < settings.max_tokens:
            row = self.table[last]
            kept = row.copy()
            if not tokens:
                kept[list(settings.ban_first)] = -np.inf
            odds = np.exp(kept) / np.exp(kept).sum()
            last = int(rng.choice(4, p=odds))
            tokens.append(last)
            logprobs.append(np.log(odds[last]))
            entropy.append(-(np.exp(row) * row).sum())
            if last == 0 or last in settings.stop_tokens:
                stop = "stop" if last in settings.stop_tokens else "eos"
                break
        scores = np.array(logprobs, np.float32)
        return Completion("x" * len(tokens), stop, np.array(tokens, np.int32), scores, scores, np.array(entropy, np.float32))

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        return [
            TokenScores(np.array([0.0, *(self.table[a, b] for a, b in itertools.pairwise(row))], np.float32)) for row in tokens
        ]


class Changed(Markov):
    """Markov with every sample changed by a function of (sample, number of samples in the call)."""

    def __init__(self, change: Callable[[Completion, int], Completion]) -> None:
        super().__init__()
        self.change = change

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        return [self.change(sample, n) for sample in await super().sample(prefix, n, settings, keys)]


def found(model: Any) -> set[str]:
    return {problem.check for problem in check_model(model)}


@pytest.mark.parametrize(
    "model",
    [
        Markov(),
        ScriptedModel(),
        ScriptedModel(["a reply of many characters"]),
        ScriptedModel(lambda messages, key: f"number {key % 7}"),
        ScriptedModel(["a reply of many characters"], tokens=False),
    ],
)
def test_sound_models_pass(model: Any) -> None:
    assert check_model(model) == []


def test_broken_samples_are_caught() -> None:
    noise = itertools.count()
    changes: dict[str, Callable[[Completion, int], Completion]] = {
        "a log-prob above 0": lambda d, n: replace(d, logprobs=-d.logprobs),
        "log-probs one short": lambda d, n: replace(d, logprobs=d.logprobs[:-1]),
        "no log-probs": lambda d, n: replace(d, logprobs=None),
        "a log-prob of minus infinity": lambda d, n: replace(d, logprobs=np.full_like(d.logprobs, -np.inf)),
        "no entropy": lambda d, n: replace(d, entropy=None),
        "an entropy below 0": lambda d, n: replace(d, entropy=-d.entropy),
        "no tokens": lambda d, n: replace(d, tokens=None),
        "an unknown stop reason": lambda d, n: replace(d, stop="done"),
        "ends beyond the text": lambda d, n: replace(d, ends=np.arange(2, len(d.tokens) + 2, dtype=np.int32)),
    }
    for name, change in changes.items():
        assert "samples" in found(Changed(change)), name
    assert "seeds" in found(Changed(lambda d, n: replace(d, text=f"{d.text}{next(noise)}")))
    assert "batch" in found(Changed(lambda d, n: replace(d, logprobs=d.logprobs - np.float32(1e-6) * n)))
    assert "scores" in found(Changed(lambda d, n: replace(d, logprobs=d.logprobs - np.float32(0.1))))


def test_a_missing_sample_is_caught() -> None:
    class Broken(Markov):
        async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
            return (await super().sample(prefix, n, settings, keys))[: max(1, n - 1)]

    assert "samples" in found(Broken())


@pytest.mark.parametrize(
    ("ignored", "check"),
    [({"max_tokens": 20}, "samples"), ({"stop_tokens": ()}, "stops"), ({"ban_first": ()}, "stops")],
)
def test_ignored_settings_are_caught(ignored: dict[str, Any], check: str) -> None:
    class Broken(Markov):
        async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
            return await super().sample(prefix, n, replace(settings, **ignored), keys)

    assert check in found(Broken())


def test_false_claims_and_crashes_are_caught() -> None:
    class Boastful(Markov):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities |= {"telepathy"}

    class Fragile(Markov):
        async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
            assert prefix.tokens is not None
            prefix.tokens[-1]
            return await super().sample(prefix, n, settings, keys)

    class Shifted(Markov):
        async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
            return [TokenScores(np.roll(scores.logprobs, -1)) for scores in await super().logprobs(tokens)]

    assert found(Boastful()) == {"claims"}
    assert found(Fragile()) == {"empty"}
    assert found(Shifted()) == {"scores"}


@pytest.mark.parametrize("claim", ["grammar", "penalties"])
def test_a_setting_that_is_claimed_and_ignored_is_caught(claim: str) -> None:
    class Boastful(Markov):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities |= {claim}

    assert found(Boastful()) == {"follows"}


def test_the_local_engine_keeps_what_it_claims() -> None:
    model = load_model(model_folder("builtin"))[0]
    assert {"grammar", "penalties"} <= model.capabilities
    assert check_model(model) == []
