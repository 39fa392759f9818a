"""What rows share at their start is computed once, and nothing else changes: losses, gradients, the rows of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ramify.engine.generic import HfForward
from ramify.engine.sharing import SharedRows, in_order
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.train import large
from ramify.train.batch import Row, collate, in_tree_order, share_of_rows, shared_batches
from ramify.train.loop import TrainConfig, Trainer, batches, score_batch, shares, with_reference

SHAPE = TinyConfig(vocab=17, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=64, context=64)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    shape = {"vocab_size": 17, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, n_positions=64))


def tree(leaves: int, seed: int = 0, prompt: int = 9, turns: int = 4, length: int = 5) -> list[Row]:
    """The rows of attempts of which each leaves an earlier one after some turn;
    a shared token is trained in its first row, as credit does it."""
    rng = np.random.default_rng(seed)
    paths = [[rng.integers(0, 17, prompt), *rng.integers(0, 17, (turns, length))]]
    while len(paths) < leaves:
        path, kept = paths[rng.integers(len(paths))], int(rng.integers(1, turns + 1))
        paths.append([*path[:kept], *rng.integers(0, 17, (turns + 1 - kept, length))])
    rows, seen = [], set()
    for path in paths:
        mask = np.concatenate([np.full(len(part), i > 0 and id(part) not in seen) for i, part in enumerate(path)])
        seen |= {id(part) for part in path}
        values = {"advantage": rng.normal(size=len(mask)).astype(np.float32), "logprobs": np.full(len(mask), -2.8, np.float32)}
        rows.append(Row(np.concatenate(path).astype(np.int32), mask, values))
    return rows


def gradient(module: nn.Module, rows: list[Row], share: bool, micro_tokens: int = 16384) -> torch.Tensor:
    trainer = Trainer(module, TrainConfig(lr=0.0, share_prefixes=share, micro_tokens=micro_tokens, clip_norm=1e9))
    trainer.update(rows, {"policy_gradient": 1.0})
    return torch.cat([w.grad.flatten() for w in module.parameters() if w.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: TinyLM(SHAPE, seed=3), llama, gpt2], ids=["tiny", "llama", "gpt2"])
@pytest.mark.parametrize("leaves", [2, 8, 32])
def test_the_gradient_is_that_of_flat_rows(make, leaves: int) -> None:
    module, rows = make(), tree(leaves)
    if not isinstance(module, TinyLM):
        HfForward(module)
    assert shares(module)
    flat = gradient(module, rows, share=False)
    for micro in (16384, 60):
        shared = gradient(module, rows, share=True, micro_tokens=micro)
        assert float((shared - flat).norm() / flat.norm()) < 1e-5


def test_the_same_token_trained_in_two_rows_counts_twice() -> None:
    rows = tree(6)
    every = [Row(row.tokens, np.ones(len(row.tokens), np.bool_), row.token_values) for row in rows]
    model = TinyLM(SHAPE, seed=3)
    flat, shared = (gradient(model, every, share) for share in (False, True))
    assert float((shared - flat).norm() / flat.norm()) < 1e-5


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=12),
    st.integers(2, 40),
)
def test_any_rows_keep_their_log_probs(texts: list[list[int]], most: int) -> None:
    model = TinyLM(SHAPE, seed=3)
    rows = [Row(np.array(text, np.int32), np.ones(len(text), np.bool_)) for text in texts]
    seen = []
    for pack in shared_batches(in_tree_order(rows), most):
        seen += [id(row) for row in pack]
        with torch.no_grad():
            found, alone = (score_batch(model, collate(pack, share=share)).logprobs for share in (True, False))
        assert torch.allclose(found, alone, atol=1e-5)
    assert sorted(seen) == sorted(id(row) for row in rows)


def test_each_distinct_token_is_there_once() -> None:
    rows = [np.array(text, np.int32) for text in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4, 6], [7])]
    laid_out = SharedRows.of([rows[i] for i in in_order(rows)])
    assert laid_out.tokens.tolist() == [1, 2, 3, 4, 6, 5, 7]
    assert laid_out.positions.tolist() == [0, 1, 2, 3, 4, 2, 0]
    assert [place.tolist() for place in laid_out.places] == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 5], [6]]


def test_a_share_of_rows_by_hand() -> None:
    rows = [Row(np.array(text, np.int32), np.ones(len(text), np.bool_)) for text in ([1, 2, 3], [1, 2, 4], [5, 6])]
    assert share_of_rows(in_tree_order(rows[::-1])) == pytest.approx(2 / 8)
    assert share_of_rows(rows[:1]) == 0


@given(st.lists(st.integers(2, 12), min_size=1, max_size=9), st.integers(2, 40))
def test_a_large_model_s_rows_that_share_nothing_are_packed_and_give_the_gradient_of_one_row_at_a_time(
    lengths: list[int], most: int
) -> None:
    rng, rows = np.random.default_rng(sum(lengths)), []
    for first, n in enumerate(lengths):
        tokens = np.concatenate(([first], rng.integers(0, 17, n - 1))).astype(np.int32)
        values = {"advantage": rng.normal(size=n), "logprobs": np.full(n, -2.8)}
        rows.append(Row(tokens, np.arange(n) >= 1, {name: array.astype(np.float32) for name, array in values.items()}))
    model = TinyLM(SHAPE, seed=3)
    alone = gradient(model, rows, share=False, micro_tokens=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large, "LARGE", 1)
        shared = [batch.shared for _, batch in batches(model, rows, most)]
        packed = gradient(model, rows, share=True, micro_tokens=most)
    assert sum(len(layout.tokens) for layout in shared if layout is not None) == sum(lengths) - len(lengths), "no padding"
    assert float((packed - alone).norm() / alone.norm()) < 1e-5


def test_rows_that_share_little_are_computed_as_before() -> None:
    rows = [Row(np.arange(i, i + 9, dtype=np.int32) % 17, np.ones(9, np.bool_)) for i in range(5)]
    assert [batch.shared for _, batch in batches(TinyLM(SHAPE), rows, 100)] == [None]
    assert all(batch.shared is not None for _, batch in batches(TinyLM(SHAPE), tree(4), 100))


def test_a_model_that_is_not_the_engine_s_is_computed_row_by_row() -> None:
    module = llama()
    assert not shares(module)
    assert all(batch.shared is None for _, batch in batches(module, tree(4), 100))


def test_a_reference_s_log_probs_do_not_depend_on_sharing() -> None:
    model, rows = TinyLM(SHAPE, seed=4), tree(8)
    found = {row.tokens.tobytes(): row.token_values["reference"] for row in with_reference(model, rows)}
    for row in rows:
        with torch.no_grad():
            alone = score_batch(model, collate([row])).logprobs[0].numpy()
        assert np.allclose(found[row.tokens.tobytes()], alone, atol=1e-5)
