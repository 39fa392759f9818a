"""States at named positions: the same whatever is beside them, whoever computes them, and whether or not the LM head runs."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.engine.hidden import FINAL, collect, hop, pool, stream
from ramify.engine.local import LocalModel
from ramify.engine.taps import Read, Taps
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.protocol import Prefix, Sampling

SHAPE = TinyConfig(vocab=40, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=48, context=64)
ROWS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3], [5, 8, 9, 7, 9]]


def tiny() -> TinyLM:
    return TinyLM(SHAPE, seed=3)


def gpt() -> torch.nn.Module:
    """A model with learned positions, which padding on the left would shift."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=64, n_embd=32, n_layer=2, n_head=2)).eval()


@pytest.mark.parametrize("make", [tiny, gpt])
def test_padding_on_either_side_changes_no_state(make) -> None:
    model, layers = make(), (0, 1, 2, FINAL)
    alone = [collect(model, [row], [0, -1], layers)[0] for row in ROWS]
    for pad in ("right", "left"):
        together = collect(model, ROWS, [0, -1], layers, pad=pad)
        assert together.shape == (3, 2, 4, 32)
        np.testing.assert_allclose(together, np.stack(alone), atol=2e-6)


@pytest.mark.parametrize("make", [tiny, gpt])
def test_the_last_state_is_what_the_head_reads(make) -> None:
    model = make()
    states = torch.from_numpy(collect(model, ROWS[:1], list(range(8)))[0, :, 0])
    ids = torch.tensor(ROWS[:1])
    with torch.no_grad():
        logits = model(ids)[0] if isinstance(model, TinyLM) else model(ids).logits[0]
    head = model.head if isinstance(model, TinyLM) else model.get_output_embeddings().weight
    torch.testing.assert_close(states @ head.T, logits, atol=1e-5, rtol=1e-4)


def test_with_and_without_the_head_the_states_are_the_same() -> None:
    model = gpt()
    with torch.no_grad():
        whole = model(torch.tensor(ROWS[:1]), output_hidden_states=True).hidden_states
    ours = collect(model, ROWS[:1], list(range(8)), (0, 1, FINAL))[0]
    for k, layer in enumerate((0, 1, 2)):  # transformers gives the last layer after the final norm
        np.testing.assert_array_equal(ours[:, k], whole[layer][0].numpy())


def test_states_equal_those_of_generation() -> None:
    model = LocalModel(tiny())
    taps = Taps(reads=(Read(1), Read(2)))
    prefix = Prefix(tokens=np.array(ROWS[0], np.int32))
    tapped = asyncio.run(model.sample_tapped(prefix, 1, Sampling(max_tokens=6), [7], taps))[0]
    row = [*ROWS[0], *tapped.completion.tokens.tolist()]
    for k, layer in enumerate((1, 2)):
        by_position = tapped.states[layer]
        ours = collect(model, [row], sorted(by_position), (1, 2))[0, :, k]
        np.testing.assert_allclose(ours, np.stack([by_position[p] for p in sorted(by_position)]), atol=1e-5)


def test_a_position_for_each_row_and_half_precision() -> None:
    model = tiny()
    full = collect(model, ROWS, [[2], [1], [-2]])
    np.testing.assert_array_equal(full[0], collect(model, ROWS[:1], [2], batch_tokens=1)[0])
    half = collect(model, ROWS, [[2], [1], [-2]], dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half.astype(np.float32), full, rtol=1e-3, atol=1e-3)
    assert collect(model, [], [0], (0, 1)).shape == (0, 1, 2, 32)


def test_batches_hold_every_position_and_no_gradient() -> None:
    seen = {}
    for batch in stream(tiny(), ROWS, (1,), batch_tokens=12):
        assert batch.states.numel() == 0 or batch.mask.numel() <= 12
        assert not batch.states.requires_grad
        for b, row in enumerate(batch.rows):
            seen[row] = batch.states[b][batch.mask[b]]
    assert [len(seen[i]) for i in range(3)] == [8, 2, 5]
    weight = torch.ones(32, requires_grad=True)
    (seen[0] @ weight).sum().backward()  # states can be trained on
    assert weight.grad is not None


def test_what_does_not_fit_is_named() -> None:
    model = tiny()
    for rows, positions, layers, says in [
        ([[1, 2]], [2], (0,), "position 2 does not exist in row 0, which has 2 tokens"),
        ([[1, 2], [1]], [[0], [-2]], (0,), "position -2 does not exist in row 1"),
        ([[1, 2]], [[0], [1]], (0,), "one list of equal length"),
        ([[1, 2]], [0], (3,), "layer 3 does not exist"),
        ([[1, 40]], [0], (0,), "row 0 holds token 40"),
        ([[]], [], (0,), "row 0 has no tokens"),
        ([[1] * 65], [0], (0,), "row 0 has 65 tokens"),
    ]:
        with pytest.raises(UserError, match=says):
            collect(model, rows, positions, layers)
    with pytest.raises(UserError, match="not from Linear"):
        collect(torch.nn.Linear(2, 2), ROWS, [0])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400))
def test_hops_go_from_the_first_to_the_last(length: int) -> None:
    places = hop(length)
    assert (places[0], places[-1], len(places)) == (0, length - 1, 100)
    assert (np.diff(places) >= 0).all()
    assert (len(set(places.tolist())) < 100) == (length < 100)
    np.testing.assert_allclose(pool(np.full((length, 3), 2.5)), np.full((100, 3), 2.5))


def test_a_span_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="no tokens"):
        hop(0)
    with pytest.raises(UserError, match="no tokens"):
        pool(np.zeros((0, 2)))
