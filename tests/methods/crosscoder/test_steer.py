"""Steering: exact no-ops, linearity, one position of one layer while the prompt is read, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.engine.hidden import collect
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.crosscoder.dictionary import Dictionary, DictionaryConfig, encode_rows
from ramify.methods.crosscoder.steer import (
    StateChange,
    along,
    clamp,
    patched,
    random_like,
    reachless,
    reconstruct,
    sample,
    scale,
    static_vector,
)
from ramify.model.protocol import Sampling

SHAPE = TinyConfig(vocab=40, width=16, layers=3, heads=2, kv_heads=1, head_size=8, ffn=24, context=32)
ROWS = [np.array(row, np.int32) for row in ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7])]
GREEDY = Sampling(temperature=0.0, max_tokens=5)


def make(seed: int = 0, **changes: Any) -> Dictionary:
    shape: dict[str, Any] = {"width": 16, "features": 30, "k": 30, "exclusive": 0.2}
    d = Dictionary(DictionaryConfig(**{**shape, **changes}), seed)
    completions = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in d.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=completions))
        d.mean.copy_(torch.randn(d.mean.shape, generator=completions))
        d.scale.copy_(torch.rand(d.scale.shape, generator=completions) + 0.5)
        d.enforce()
    return d


def states(n: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 2, 16)).astype(np.float32)


def model(seed: int = 0) -> TinyLM:
    made = TinyLM(SHAPE, seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
    return made


def told(sampled: list[Any]) -> list[list[int]]:
    return [one.tokens.tolist() for one in sampled]


def test_a_gain_of_one_is_the_clean_reply_token_for_token() -> None:
    d, x = make(), states(3)
    change = scale(d, encode_rows(d, x), range(30), 1.0)
    assert not change.delta.any()
    local = LocalModel(model())
    clean = asyncio.run(sample(local, ROWS, 2, None, GREEDY))
    assert told(asyncio.run(sample(local, ROWS, 2, change, GREEDY))) == told(clean)
    strong = along(np.arange(16.0) - 7, 50.0, 3)
    assert told(asyncio.run(sample(local, ROWS, 2, strong, GREEDY))) != told(clean)


@pytest.mark.parametrize("target", [0, 1])
def test_a_gain_of_nothing_takes_out_all_but_the_bias(target: int) -> None:
    d, x = make(), states()
    change = scale(d, encode_rows(d, x), range(30), 0.0, target)
    back = x[:, target] + reconstruct(d, x, target).delta
    bias = (d.decoder_bias * d.scale + d.mean)[target].detach().numpy()
    assert change.delta == pytest.approx(-(back - bias), abs=1e-4)


@given(st.floats(-20, 20), st.floats(-20, 20), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_scaling_is_linear_in_the_gain_and_adds_over_features(alpha: float, beta: float, seed: int) -> None:
    d = make(seed)
    codes = encode_rows(d, states(seed=seed))

    def delta(features: Any, gain: float) -> np.ndarray:
        return scale(d, codes, features, gain).delta

    close = {"rtol": 1e-4, "atol": 1e-3}
    assert np.allclose(delta(range(30), 1 + alpha + beta), delta(range(30), 1 + alpha) + delta(range(30), 1 + beta), **close)
    assert np.allclose(delta(range(30), alpha), delta(range(0, 30, 2), alpha) + delta(range(1, 30, 2), alpha), **close)


def test_features_of_the_other_model_change_nothing_exactly() -> None:
    d = make()
    codes = encode_rows(d, states())
    for partition, target in (("b", 0), ("a", 1)):
        features = d.partition(partition).tolist()
        assert not scale(d, codes, features, 64.0, target).delta.any()
        assert not clamp(d, codes, features, 20.0, target).delta.any()
        assert reachless(d, features, target) == features
        assert reachless(d, features, 1 - target) == []


def test_scaling_a_feature_up_leaves_scale_mode_and_moves_clamp_mode() -> None:
    d, x = make(), states()
    before = [scale(d, encode_rows(d, x), [2], 5.0).delta, clamp(d, encode_rows(d, x), [2], 5.0).delta]
    with torch.no_grad():
        d.decoder.div_(3)
        for weight in (d.encoder, d.encoder_bias, d.threshold):
            weight.mul_(3)
    after = [scale(d, encode_rows(d, x), [2], 5.0).delta, clamp(d, encode_rows(d, x), [2], 5.0).delta]
    assert after[0] == pytest.approx(before[0], abs=1e-4)
    assert np.abs(after[1] - before[1]).max() > 0.1


def test_coverage_and_size() -> None:
    d = make(k=8)
    x = states(200)
    codes = encode_rows(d, x)
    feature = int(np.abs((codes > 0)[:, :6].mean(axis=0) - 0.5).argmin())
    fires = codes[:, feature] > 0
    change = scale(d, codes, [feature], 32.0)
    assert 0 < fires.mean() < 1
    assert np.array_equal(change.fired, fires)
    assert np.array_equal(change.moved, fires)  # a prompt on which it does not fire is an explicit no-op
    assert clamp(d, codes, [feature], 5.0).moved.all()
    length = np.linalg.norm(x[:, 0], axis=1)
    assert along(np.ones(16), 3 * length, 200).size(x[:, 0]) == pytest.approx(np.full(200, 3.0), rel=1e-5)
    nothing = scale(d, codes, [], 32.0)
    assert not nothing.moved.any()
    assert not nothing.fired.any()


def test_random_controls_are_as_long_and_repeatable() -> None:
    d, x = make(k=8), states()
    change = scale(d, encode_rows(d, x), range(30), 16.0)
    one, again, other = (random_like(change, seed, "x") for seed in (1, 1, 2))
    lengths = np.linalg.norm(change.delta, axis=1)
    assert np.linalg.norm(one.delta, axis=1) == pytest.approx(lengths, rel=1e-5)
    assert np.array_equal(one.delta, again.delta)
    assert not np.array_equal(one.delta, other.delta)


def test_a_fixed_vector_is_the_mean_of_what_scaling_adds() -> None:
    d, x = make(), states()
    codes = encode_rows(d, x)
    wanted = 31 * codes[:, 3].mean() * d.directions(0)[3].numpy()
    assert static_vector(d, codes, 3, 32.0) == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_only_the_named_position_of_the_named_layer_moves() -> None:
    made, delta = model(), np.ones(16, np.float32)
    local = LocalModel(made)
    from ramify.engine.taps import Edit, Read, Taps
    from ramify.model.protocol import Prefix

    last = len(ROWS[0]) - 1
    reads = tuple(Read(layer) for layer in (1, 2, 3))

    def read(*edits: Edit) -> Any:
        taps = Taps(reads, edits)
        return asyncio.run(local.sample_tapped(Prefix(ROWS[0]), 1, GREEDY, [1], taps))[0].states

    clean, steered = read(), read(Edit(2, last, delta, last + 1))
    for position in range(last):
        assert all(np.array_equal(clean[layer][position], steered[layer][position]) for layer in (1, 2, 3))
    assert np.array_equal(clean[1][last], steered[1][last])
    assert steered[2][last] == pytest.approx(clean[2][last] + 1, abs=1e-5)
    # layer l here is hidden_states[l] of transformers, 0 the embedding
    assert collect(made, [ROWS[0]], [-1], [2])[0, 0, 0] == pytest.approx(clean[2][last], abs=1e-5)


def test_a_transformers_model_is_patched_while_it_reads_and_only_then() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=32, bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    hf = LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[3, 1, 4, 1, 5]])

    def reply() -> list[int]:
        out = hf.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
        return out[0, 5:].tolist()

    delta = np.linspace(-3, 3, 16)[None].astype(np.float32)
    local = LocalModel(hf)
    ours = told(
        asyncio.run(
            sample(
                local, [prompt[0].numpy().astype(np.int32)], 2, StateChange(delta, np.ones(1, bool)), Sampling(0.0, max_tokens=6)
            )
        )
    )
    clean = reply()
    with patched(hf, 2, delta):
        first, second = reply(), reply()  # a second generate is changed again
    assert first == second == ours[0] != clean
    assert reply() == clean
    with pytest.raises(ZeroDivisionError), patched(hf, 2, delta):
        raise ZeroDivisionError
    assert reply() == clean
    assert not any(block._forward_hooks and "patched" in str(block._forward_hooks) for block in hf.model.layers)
    # rows of two lengths, padded on the left, with their own vectors
    both = torch.tensor([[0, 0, 9, 2, 6], [3, 1, 4, 1, 5]])
    mask = (torch.arange(5) >= torch.tensor([[2], [0]])).long()
    with patched(hf, 2, np.concatenate([0 * delta, delta])):
        out = hf.generate(both, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert out[1, 5:].tolist() == first
    with pytest.raises(UserError, match="2 prompts need as many"), patched(hf, 2, delta):
        hf(both)
    with pytest.raises(UserError, match="blocks are 1 to 3"), patched(hf, 0, delta):
        pass
    with pytest.raises(UserError, match="rows of 16"), patched(hf, 1, np.zeros((1, 15))):
        pass


def test_bad_input() -> None:
    d = make()
    codes = encode_rows(d, states())
    with pytest.raises(UserError, match="feature 30 does not exist"):
        scale(d, codes, [3, 30], 2.0)
    with pytest.raises(UserError, match="model 2 does not exist"):
        scale(d, codes, [3], 2.0, 2)
    with pytest.raises(UserError, match="length 0"):
        along(np.zeros(16), 1.0, 3)
    with pytest.raises(UserError, match="layer 4 does not exist"):
        asyncio.run(sample(LocalModel(model()), ROWS, 4, along(np.ones(16), 1.0, 3), GREEDY))
    with pytest.raises(UserError, match="3 prompts need as many"):
        asyncio.run(sample(LocalModel(model()), ROWS, 2, along(np.ones(16), 1.0, 2), GREEDY))
