from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.taps import Edit, Read, Taps
from ramify.model.protocol import Prefix, Sampling

from .helpers import sample, tiny, tokens
from .kernels import needs_tiles
from .test_determinism import bits
from .test_generic import module_of


def as_arrays(states: Mapping[int, Mapping[int, np.ndarray]]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """layer -> (positions int64 (P,), states float32 (P, D)), sorted by position."""
    return {
        layer: (np.array(sorted(by_position)), np.stack([by_position[p] for p in sorted(by_position)]))
        for layer, by_position in sorted(states.items())
    }


def tapped(model: LocalModel, taps: Taps, prefix: np.ndarray, keys: list[int], **settings: Any) -> list[Any]:
    return asyncio.run(model.sample_tapped(Prefix(prefix), len(keys), Sampling(**settings), keys, taps))


def hand_written(model: LocalModel, row: np.ndarray, edits: tuple[Edit, ...]) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits [T, V] and hidden states of one row, patched in an ordinary forward pass."""
    states: dict[int, Tensor] = {}

    def tap(layer: int, x: Tensor) -> Tensor:
        x = x.clone()
        for edit in edits:
            if edit.layer == layer:
                vector = torch.from_numpy(edit.vector)
                where = slice(edit.start, edit.stop)
                x[0, where] = vector if edit.replace else x[0, where] + vector
        states[layer] = x[0]
        return x

    with torch.no_grad():
        return model.module(torch.from_numpy(row.astype(np.int64))[None], tap=tap)[0], states


def vector(seed: int, size: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def test_reading_changes_no_bit_and_reads_the_forward_pass() -> None:
    model = LocalModel(tiny())
    plain = sample(model, tokens(11), [1, 2, 3], max_tokens=9)
    read = tapped(model, Taps(reads=(Read(0), Read(1, 4, 15), Read(2, 10))), tokens(11), [1, 2, 3], max_tokens=9)
    assert [bits(d) for d in plain] == [bits(t.completion) for t in read]
    for t in read:
        row = np.concatenate((tokens(11), t.completion.tokens))
        _, states = hand_written(model, row, ())
        found = as_arrays(t.states)
        assert found[0][0].tolist() == list(range(19))  # the last sampled token is never run
        assert found[1][0].tolist() == list(range(4, 15))
        assert found[2][0].tolist() == list(range(10, 19))
        for layer, (positions, values) in found.items():
            np.testing.assert_allclose(values, states[layer][positions].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "edits",
    [
        (Edit(1, 6, vector(1), 7),),
        (Edit(0, 3, vector(2), 4, replace=True),),
        (Edit(2, 0, vector(3)), Edit(1, 12, vector(4), 14)),
    ],
)
def test_patched_samples_equal_a_hand_written_forward(edits: tuple[Edit, ...]) -> None:
    model = LocalModel(tiny())
    plain = sample(model, tokens(11), [1, 2], max_tokens=9)  # fills the cache with unpatched keys and values
    patched = tapped(model, Taps(edits=edits), tokens(11), [1, 2], max_tokens=9)
    for t, unpatched in zip(patched, plain, strict=True):
        row = np.concatenate((tokens(11), t.completion.tokens))
        logits, _ = hand_written(model, row, edits)
        exact = logits.log_softmax(-1)[range(10, 19), t.completion.tokens.tolist()].numpy()
        np.testing.assert_allclose(t.completion.model_logprobs, exact, atol=1e-5)
        assert t.completion.model_logprobs.tobytes() != unpatched.model_logprobs.tobytes()  # type: ignore[union-attr]
        scores = asyncio.run(model.logprobs([row], taps=Taps(edits=edits)))
        np.testing.assert_allclose(scores[0].logprobs[11:], exact, atol=1e-6)
    again = sample(model, tokens(11), [1, 2], max_tokens=9)  # patched keys and values never reach another sample
    assert [bits(d) for d in again] == [bits(d) for d in plain]
    needs_tiles(model.exactness)
    rows = model.stats.forward_rows
    tapped(model, Taps(edits=edits), tokens(90, seed=1), list(range(8)), max_tokens=4)
    assert model.stats.forward_rows - rows <= 1.3 * (90 + 8 * 4)  # forks under taps share their prefix too


def test_taps_work_on_transformers_models() -> None:
    model = LocalModel(module_of("gpt_neox"))
    edits = (Edit(1, 5, vector(1), 6),)
    plain = sample(model, tokens(9), [1], max_tokens=6)[0]
    read = tapped(model, Taps(reads=(Read(0), Read(2))), tokens(9), [1], max_tokens=6)[0]
    assert bits(read.completion) == bits(plain)
    row = np.concatenate((tokens(9), read.completion.tokens))
    with torch.no_grad():
        out = model.module(torch.from_numpy(row.astype(np.int64))[None], output_hidden_states=True)
    np.testing.assert_allclose(as_arrays(read.states)[0][1], out.hidden_states[0][0, :14].numpy(), atol=1e-5)
    patched = tapped(model, Taps(edits=edits), tokens(9), [1], max_tokens=6)[0]
    row = np.concatenate((tokens(9), patched.completion.tokens))
    scores = asyncio.run(model.logprobs([row], taps=Taps(edits=edits)))[0]
    np.testing.assert_allclose(patched.completion.model_logprobs, scores.logprobs[9:], atol=1e-5)
    assert patched.completion.model_logprobs.tobytes() != plain.model_logprobs.tobytes()  # type: ignore[union-attr]


def test_bad_taps_are_one_sentence() -> None:
    model = LocalModel(tiny())
    for taps, said in (
        (Taps(reads=(Read(3),)), "layer 3 does not exist"),
        (Taps(reads=(Read(1, 4, 4),)), "positions 4 to 4"),
        (Taps(edits=(Edit(1, 0, vector(1, 31)),)), r"shape \(31,\)"),
    ):
        with pytest.raises(UserError, match=said):
            tapped(model, taps, tokens(3), [1])
    assert Taps(edits=(Edit(1, 0, vector(1)),)).to_json() == Taps(edits=(Edit(1, 0, vector(1)),)).to_json()


@pytest.mark.parametrize("generic", [False, True])
def test_hidden_states_are_those_that_predict_the_next_token(generic: bool) -> None:
    model = LocalModel(module_of("llama") if generic else tiny())
    rows, places = [tokens(7, vocab=40), tokens(12, seed=1, vocab=40)], [[0, 6], [11]]
    found = asyncio.run(model.hidden(rows, places))
    assert [states.shape[0] for states in found] == [2, 1]
    for row, states, wanted in zip(rows, found, places, strict=True):
        logits = model.forward.logits(torch.from_numpy(states))
        alone = model.forward.logits(model.forward.full(torch.from_numpy(row.astype(np.int64))[None]))[0]
        assert torch.allclose(logits, alone[wanted], atol=1e-4)
    with pytest.raises(UserError, match="outside of a row of 7"):
        asyncio.run(model.hidden(rows, [[7], []]))
