"""Losses in closed form, a trainer whose result does not depend on how rows are packed, checkpoints without code."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch

from ramify.base.errors import UserError
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.train import checkpoint
from ramify.train.batch import Batch, Row, collate, micro_batches
from ramify.train.loop import TrainConfig, Trainer, token_logprobs, with_reference
from ramify.train.losses import LossConfig, Scores, cross_entropy, policy_gradient, preference, reference_kl
from ramify.train.muon import Muon, matrices_of, orthogonal

SHAPE = TinyConfig(vocab=17, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=64, context=64)


def rows(n: int = 9, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        length = int(rng.integers(3, 20))
        token_values = {"advantage": rng.normal(size=length).astype(np.float32), "logprobs": np.full(length, -2.8, np.float32)}
        made.append(Row(rng.integers(0, 17, length).astype(np.int32), rng.random(length) < 0.6, token_values))
    return made


def batch_of(**token_values: list[float]) -> Batch:
    width = len(next(iter(token_values.values())))
    shaped = {name: torch.tensor([values]) for name, values in token_values.items()}
    return Batch(torch.zeros((1, width), dtype=torch.int64), torch.ones((1, width), dtype=torch.bool), shaped)


def test_clipped_policy_gradient_in_closed_form() -> None:
    scores = Scores(torch.tensor([[math.log(0.5), math.log(0.5), math.log(0.5), math.log(0.5)]]))
    batch = batch_of(advantage=[1.0, -1.0, 1.0, -1.0], logprobs=[math.log(0.25)] * 2 + [math.log(1.0)] * 2)
    # ratios 2, 2, .5, .5: a positive advantage is clipped from above at 1.2, a negative one from below at .8
    found = policy_gradient(batch, scores, LossConfig())
    assert found[0].tolist() == pytest.approx([-1.2, 2.0, -0.5, 0.8])


def test_reference_kl_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    scores = Scores(torch.tensor([[-1.0, -1.0, -1.0]]))
    found = reference_kl(batch_of(reference=[-1.0, -2.0, 0.0]), scores, LossConfig())[0].tolist()
    assert found == pytest.approx([0.0, math.exp(-1), math.e - 2])


def test_cross_entropy_weighs_rows() -> None:
    scores = Scores(torch.tensor([[-1.0, -2.0]]))
    assert cross_entropy(batch_of(weight=[2.0, 0.5]), scores, LossConfig())[0].tolist() == [2.0, 1.0]


def test_preference_in_closed_form() -> None:
    batch = batch_of(rival=[3.0, 3.0], reference=[-1.0, -1.0], rival_reference=[-1.0, -2.0])
    scores = Scores(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]))
    # margins 0 and 2 - 1, times beta
    found = preference(batch, scores, LossConfig(beta=0.5))[0].tolist()
    assert found == pytest.approx([math.log(2), math.log(1 + math.exp(-0.5))])


def test_preference_needs_rivals() -> None:
    token_values = {name: [0.0] for name in ("rival", "reference", "rival_reference")}
    with pytest.raises(UserError, match="needs the token values 'rival'"):
        preference(batch_of(reference=[0.0]), Scores(torch.zeros(1, 1)), LossConfig())
    with pytest.raises(UserError, match="these scores have none"):
        preference(batch_of(**token_values), Scores(torch.zeros(1, 1)), LossConfig())


def test_a_preference_moves_the_odds_of_its_pair() -> None:
    model, tokens = TinyLM(SHAPE, seed=3), np.array([1, 2, 3, 4, 5], np.int32)
    last = np.array([False] * 4 + [True])
    pair = Row(tokens, last, {"rival": np.where(last, 9, 0).astype(np.float32)})

    @torch.no_grad()
    def odds() -> float:
        full = torch.log_softmax(model(torch.from_numpy(tokens[None, :-1]).long()), -1)[0, -1]
        return float(full[5] - full[9])

    rows = with_reference(model, [pair])
    held = rows[0].token_values
    assert held["reference"][-1] - held["rival_reference"][-1] == pytest.approx(odds(), abs=1e-5)
    before, trainer = odds(), Trainer(model, TrainConfig(lr=1e-2))
    first = trainer.update(rows, {"preference": 1.0})
    assert first["preference"] == pytest.approx(math.log(2), abs=1e-5)
    assert first["tokens"] == 1
    assert odds() > before + 0.1


def test_a_rival_outside_the_vocabulary_is_refused() -> None:
    pair = Row(np.array([1, 2], np.int32), np.array([False, True]), {"rival": np.array([0, 17], np.float32)})
    with pytest.raises(UserError, match="rival 17 is not a token; the model knows 0 to 16"):
        with_reference(TinyLM(SHAPE, seed=3), [pair])


def test_a_missing_stream_is_named() -> None:
    with pytest.raises(UserError, match="needs the token values 'advantage'"):
        policy_gradient(batch_of(logprobs=[0.0]), Scores(torch.zeros(1, 1)), LossConfig())


def test_token_logprobs_equal_a_plain_forward() -> None:
    model = TinyLM(SHAPE, seed=3)
    batch = collate(rows())
    full = torch.log_softmax(model(batch.tokens), -1)
    plain = torch.zeros(batch.tokens.shape)
    plain[:, 1:] = full[:, :-1].gather(-1, batch.tokens[:, 1:, None])[..., 0]
    assert torch.allclose(token_logprobs(model, batch), torch.where(batch.mask, plain, 0.0), atol=1e-5)


def test_packing_changes_no_step() -> None:
    found = []
    for micro in (40, 100_000):
        trainer = Trainer(TinyLM(SHAPE, seed=3), TrainConfig(lr=1e-2, micro_tokens=micro))
        for seed in range(3):
            trainer.update(rows(seed=seed), {"policy_gradient": 1.0})
        found.append(trainer.module.head.detach().clone())
    assert torch.allclose(*found, atol=2e-5)
    assert not torch.equal(found[0], TinyLM(SHAPE, seed=3).head)


def test_micro_batches_keep_every_row_within_bounds() -> None:
    made = rows(50)
    packs = list(micro_batches(made, 60))
    assert sorted(id(r) for pack in packs for r in pack) == sorted(id(r) for r in made)
    assert all(len(pack) * max(len(r.tokens) for r in pack) <= 60 for pack in packs)


@pytest.mark.parametrize("muon", [False, True])
def test_restored_trainer_continues_bit_for_bit(muon: bool) -> None:
    def made(seed: int) -> Trainer:
        model = TinyLM(SHAPE, seed=seed)
        matrices = matrices_of(model, ("embed_tokens",)) if muon else ()
        return Trainer(model, TrainConfig(lr=1e-2, minibatches=2, epochs=2), matrices=matrices)

    one, other = made(3), made(9)
    one.update(rows(seed=1), {"policy_gradient": 1.0})
    other.restore(*checkpoint.unpack(checkpoint.pack(*one.state())))
    for trainer in (one, other):
        trainer.update(rows(seed=2), {"policy_gradient": 1.0})
    assert all(torch.equal(a, b) for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True))


def test_muon_steps_of_matrices_are_orthogonal_and_as_large_as_adamws() -> None:
    torch.manual_seed(0)
    for shape in ((6, 40), (40, 6)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert 0.6 < float(values.min()) <= float(values.max()) < 1.25
    matrix, vector = (torch.nn.Parameter(torch.zeros(size)) for size in ((8, 8), (8,)))
    optimizer = Muon([matrix, vector], [matrix], lr=0.01, weight_decay=0.0)
    matrix.grad, vector.grad = torch.randn(8, 8), torch.randn(8)
    optimizer.step()
    assert torch.allclose(vector.abs(), torch.full((8,), 0.01), rtol=1e-3)
    assert float(matrix.detach().square().mean().sqrt()) == pytest.approx(0.2 * 0.01, rel=0.2)


def test_nothing_to_train_on_changes_nothing() -> None:
    model = TinyLM(SHAPE, seed=3)
    before = model.head.detach().clone()
    empty = [Row(np.arange(4, dtype=np.int32), np.zeros(4, bool))]
    assert Trainer(model, TrainConfig()).update(empty, {"cross_entropy": 1.0})["tokens"] == 0
    assert torch.equal(model.head, before)


def test_a_row_with_nan_or_ragged_streams_is_refused() -> None:
    tokens, mask = np.arange(3, dtype=np.int32), np.ones(3, bool)
    with pytest.raises(UserError, match="not finite"):
        Row(tokens, mask, {"advantage": np.array([0.0, np.nan, 1.0], np.float32)})
    with pytest.raises(UserError, match="2 entries for 3 tokens"):
        Row(tokens, mask[:2])


@pytest.mark.parametrize(
    "blob",
    [b"", b"abc", b"\x80\x04\x95", struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 2) + b"{}", b"PK\x03\x04" + bytes(100)],
)
def test_a_foreign_checkpoint_is_refused(blob: bytes) -> None:
    with pytest.raises(UserError, match="not a checkpoint"):
        checkpoint.unpack(blob)
