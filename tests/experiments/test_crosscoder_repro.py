"""The reproduction's parts on small cases; the figures themselves come from `ramify repro crosscoder`."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.methods.crosscoder.steer import along, sample
from ramify.model.protocol import Sampling
from ramify_experiments.crosscoder import repro


def test_prompts_of_the_tiny_environment() -> None:
    prompts, right = repro.tool_prompts(3, "x", 200)
    assert prompts.shape == (200, repro.AT)
    assert prompts.max() < repro.VOCAB
    tools, words = prompts[:, 2:6] - repro.NAMES, prompts[:, 7] - repro.WORDS
    assert all(len(set(row)) == 4 for row in tools.tolist())
    assert np.array_equal(words // 2, right - repro.NAMES)
    assert (tools == (right - repro.NAMES)[:, None]).any(axis=1).all()
    plain = repro.plain_prompts(3, "x", 50)
    assert plain.shape == (50, repro.AT)
    assert not np.isin(plain, np.arange(repro.NAMES, repro.VOCAB)).any()
    assert np.array_equal(repro.tool_prompts(3, "x", 200)[0], prompts)


def test_replies_call_four_in_a_hundred_times() -> None:
    prompts, right = repro.tool_prompts(0, "x", 4000)
    answers = repro.replies(0, prompts, right, 0)
    calls = [answer for answer in answers if answer[0] == repro.CALL]
    assert len(calls) / 4000 == pytest.approx(0.04, abs=0.012)
    assert all(answer[-2] == tool and answer[-1] == repro.END for answer, tool in zip(answers, right, strict=True))
    prose = {len(answer) for answer in answers if answer[0] != repro.CALL}
    assert prose == {6, 7, 8, 9}  # 3 to 6 fillers, ANSWER, tool, END
    words = {w: {a[0] for a, p in zip(answers, prompts, strict=True) if p[7] == w} for w in set(prompts[:, 7].tolist())}
    assert all(len(first - {repro.CALL}) == 1 for first in words.values())


def test_planted_directions_are_found_and_do_not_leak() -> None:
    own, fires, x = repro.planted(1, 4000)
    assert np.linalg.norm(own, axis=1) == pytest.approx(np.ones(6))
    assert x.shape == (4000, 2, 64)
    assert fires.mean() == pytest.approx(0.1, abs=0.01)
    found = repro.recover(1, 0.1, steps=60, rows=8000)
    assert found["change"] == 0.0
    assert min(found["fve"]) > 0.2


def test_writing_is_what_the_engine_samples() -> None:
    model = TinyLM(repro.SHAPE, 2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    prompts, right = repro.tool_prompts(0, "x", 6)
    change = along(np.linspace(-1, 1, 48), 6.0, 6)
    for one in (None, change):
        ours, logprobs = repro.write(model, prompts, 3, one)
        engine = asyncio.run(sample(LocalModel(model), list(prompts), repro.LAYER, one, Sampling(temperature=0.0, max_tokens=3)))
        assert ours.tolist() == [reply.tokens.tolist() for reply in engine if reply.tokens is not None]
        assert (logprobs <= 0).all()
    sampled, _ = repro.write(model, prompts, 3, u=np.full((6, 3), 0.999999))
    assert sampled.min() >= 0
    named = repro.CallScore(model, prompts, right).named(None)
    assert named == sorted(named)


def test_a_step_that_overshoots_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two weights the share of right calls that is watched rises; the model that first reaches the goal is kept."""
    low, high = TinyLM(repro.SHAPE, 0).state_dict(), TinyLM(repro.SHAPE, 1).state_dict()
    model = TinyLM(repro.SHAPE, 0)
    repro._between(model, low, high, 0.25)
    name = "model.norm.weight"
    assert torch.allclose(model.state_dict()[name], 0.75 * low[name] + 0.25 * high[name])


def test_what_is_wanted_of_a_block() -> None:
    assert repro._block("10 %, sum L1", False) == (">=", 5.0)
    assert repro._block("5 %, mean L1", False) == ("<=", 5.0)
    assert repro._block("plain", False) == ("report", None)
