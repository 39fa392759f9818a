"""Confidence points the right way: the more peaked the distributions, the higher."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from ramify.base.errors import NeedsError
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.implicit_advantage.confidence import bottom10, tail, token_columns, token_confidence
from ramify.model.protocol import TokenScores


def test_a_peaked_model_is_the_surer_one() -> None:
    flat = TinyLM(TinyConfig(vocab=60, width=32, layers=1, heads=1, kv_heads=1, head_size=32, ffn=32, tied=False), seed=0)
    peaked = TinyLM(flat.config, seed=0)
    with torch.no_grad():
        peaked.head.mul_(20)
    row = np.arange(20, dtype=np.int32)
    low, high = (asyncio.run(token_columns(LocalModel(m), [row]))[0] for m in (flat, peaked))
    assert (low["certainty"][1:] < high["certainty"][1:]).all()
    assert (low["certainty"] >= -1e-6).all()
    top = np.array([0.1, 0.5, 0.9, 0.99])[:, None]
    shares = np.concatenate((top, np.repeat((1 - top) / 19, 19, 1)), 1)  # all the mass on 20 tokens, as a real model's nearly is
    assert (np.diff(token_confidence(TokenScores(np.zeros(4), top_logprobs=np.log(shares)))) > 0).all()


def test_the_released_codes_score_is_minus_the_confidence() -> None:
    top = np.log(np.array([[0.9, 0.05], [0.5, 0.4]]))
    assert token_confidence(TokenScores(np.zeros(2), top_logprobs=top)) == pytest.approx(-top.mean(1))
    with pytest.raises(NeedsError, match="likeliest alternatives"):
        token_confidence(TokenScores(np.zeros(2)))


def test_tail_and_bottom() -> None:
    steps = np.arange(11.0)
    assert (tail(steps), bottom10(steps)) == (10.0, 0.5)
