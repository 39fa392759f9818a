"""Training drafters: data from the target, anchors, losses, and continuing after a stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.recorder import record
from ramify.methods.dspark.training import (
    CHECKPOINT,
    DrafterTraining,
    block_loss,
    most_frequent,
    regenerate,
    sample_anchors,
    train_drafter,
    unused_token,
)
from ramify.model.protocol import Sampling
from ramify.train.batch import Row

MASK = 23


def target() -> LocalModel:
    shape = TinyConfig(vocab=24, width=16, layers=3, heads=2, kv_heads=1, head_size=8, ffn=32, context=48)
    module = TinyLM(shape, seed=2)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2.5)
    return LocalModel(module)


def rows_of(model: LocalModel, n: int = 6) -> list[Row]:
    prompts = [np.array([1 + i, 2], np.int32) for i in range(n)]
    return asyncio.run(regenerate(model, prompts, Sampling(ban=(MASK,)), seed=3, length=16 + (n > 3)))


def drafter_of(model: LocalModel, kind: str = "dspark") -> Qwen3Drafter:
    return for_target(model.module, kind, layers=1, block=3, rank=4, mask_token=MASK)


SIZE = DrafterTraining(steps=8, rows=3, anchors=4, lr=1e-2)


@pytest.mark.parametrize("kind", ["dspark", "eagle3"])
def test_a_drafter_of_few_tokens_learns_to_draft_them(kind: str) -> None:
    """Half of the vocabulary, by frequency; what it drafts is of that half, and the loss is the whole one's where it is all."""
    model = target()
    rows = rows_of(model)
    chosen = most_frequent(rows, 12, 24)
    written = np.bincount(np.concatenate([row.tokens[row.mask] for row in rows]), minlength=24)
    assert len(chosen) == 12
    assert written[chosen].min() >= np.delete(written, chosen).max()
    assert most_frequent(rows, 24, 24) == most_frequent(rows, 0, 24) == []
    some = for_target(model.module, kind, layers=1, block=3, rank=4, mask_token=MASK, drafted=chosen)
    long = DrafterTraining(steps=60, rows=6, anchors=8, lr=1e-2)
    losses = [step.loss for step in train_drafter(some, model, rows, long)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    spread = some.spread(torch.randn(2, 12))
    assert spread.shape == (2, 24)
    assert set(spread.argmax(-1).tolist()) <= set(chosen)
    assert spread.softmax(-1)[:, [i for i in range(24) if i not in chosen]].sum() == 0
    rounds = record(model, some, [np.array([1, 2], np.int32)], Sampling(max_tokens=12), 0)
    assert len(rounds)
    # named one by one, all tokens are the whole vocabulary
    shape: dict[str, Any] = {"layers": 1, "block": 3, "rank": 0, "confidence": False, "mask_token": MASK}
    both = [for_target(model.module, kind, drafted=tokens, **shape) for tokens in ((), range(24))]
    first, second = (train_drafter(one, model, rows, SIZE, stop_at=2)[-1] for one in both)
    assert (second.loss, second.tau) == pytest.approx((first.loss, first.tau), rel=1e-5)


def test_rows_are_what_the_target_sampled() -> None:
    model = target()
    rows = rows_of(model)
    assert [len(row.tokens) for row in rows] == [17] * 6
    assert all(not row.mask[:2].any() and row.mask[2:].all() for row in rows)
    assert all((a.tokens == b.tokens).all() for a, b in zip(rows, rows_of(model), strict=True))
    alone = asyncio.run(regenerate(model, [np.array([1, 2], np.int32)], Sampling(ban=(MASK,)), seed=3, length=17))
    assert (alone[0].tokens == rows[0].tokens).all()
    with pytest.raises(UserError, match="prompt 0 has 16 tokens"):
        asyncio.run(regenerate(model, [np.ones(16, np.int32)], Sampling(), seed=3, length=17))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "optimizer"), [("dspark", "adamw"), ("dflash", "adamw"), ("eagle3", "muon"), ("dspark", "muon")]
)
def test_a_stopped_training_continues_to_the_same_bits(kind: str, optimizer: str, tmp_path: Path) -> None:
    model, size = target(), SIZE.model_copy(update={"optimizer": optimizer})
    rows = rows_of(model)
    whole = drafter_of(model, kind)
    records = train_drafter(whole, model, rows, size)
    assert records[-1].step == 8
    assert records[-1].loss < records[0].loss
    parts = drafter_of(model, kind)
    train_drafter(parts, model, rows, size, tmp_path, stop_at=5)
    fresh = drafter_of(model, kind)  # as after a kill: nothing is left but the file
    assert train_drafter(fresh, model, rows, size, tmp_path) == records
    for (name, one), other in zip(whole.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert train_drafter(drafter_of(model, kind), model, rows, size, tmp_path) == records  # done already


def test_a_state_of_another_training_is_refused(tmp_path: Path) -> None:
    model = target()
    rows = rows_of(model)
    train_drafter(drafter_of(model), model, rows, SIZE, tmp_path, stop_at=1)
    with pytest.raises(UserError, match=f"{CHECKPOINT} is the state of another training"):
        train_drafter(drafter_of(model), model, rows, SIZE.model_copy(update={"seed": 1}), tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"12345678{")
    with pytest.raises(UserError, match=f"{CHECKPOINT}.*not a checkpoint"):
        train_drafter(drafter_of(model), model, rows, SIZE, tmp_path)


def test_data_that_cannot_train_is_refused() -> None:
    model = target()
    row = Row(np.array([1, 2, MASK, 3], np.int32), np.ones(4, np.bool_))
    with pytest.raises(UserError, match="row 0 holds token 23, the drafter's mask token"):
        train_drafter(drafter_of(model), model, [row], SIZE)
    shown = Row(np.array([1, 2, 3, 4], np.int32), np.array([False, True, False, True]))
    with pytest.raises(UserError, match="none of the 1 rows"):
        train_drafter(drafter_of(model), model, [shown], SIZE)
    assert unused_token([row], 24) == 22
    with pytest.raises(UserError, match="all 3 tokens occur"):
        unused_token([Row(np.array([0, 1, 2], np.int32), np.ones(3, np.bool_))], 3)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.data())
def test_anchors_are_sampled_without_replacement_where_text_counts(seed: int, count: int, data: Any) -> None:
    mask = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3)))
    anchors, keep = sample_anchors(mask, count, seed, 0)
    for row, chosen, kept in zip(mask, anchors, keep, strict=True):
        able = {p for p in range(8) if row[p] and row[p + 1]}
        found = chosen[kept].tolist()
        assert found == sorted(set(found))
        assert set(found) <= able
        assert len(found) == min(count, len(able))
    again = sample_anchors(mask, count, seed, 0)
    assert torch.equal(anchors, again[0])


def test_the_losses_are_the_specs() -> None:
    """Spec 3.5 by plain loops: 0.1 cross-entropy + 0.9 ||p - q||_1 + confidence,
    each a mean over slots of weight exp(-(k-1)/4)."""
    model = target()
    drafter = drafter_of(model)
    with torch.no_grad():
        for weight in drafter.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    tokens = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones((2, 9), dtype=torch.bool)
    mask[0, :3], mask[1, 5] = False, False
    features = torch.randn((2, 9, 32), generator=torch.Generator().manual_seed(3))
    distribution = torch.randn((2, 9, 24), generator=torch.Generator().manual_seed(4)).softmax(-1)
    anchors, keep = torch.tensor([[3, 7], [3, 0]]), torch.tensor([[True, True], [True, False]])
    loss, record = block_loss(drafter, tokens, mask, features, distribution, anchors, keep, DrafterTraining())
    logits, scores = (made.detach() for made in drafter(tokens, features, anchors))
    sums, total = np.zeros(3), 0.0
    for b in range(2):
        for a in range(2):
            for k in range(3):
                label = int(anchors[b, a]) + k + 1
                if not keep[b, a] or label >= 9 or not mask[b, label]:
                    break
                q, p, weight = logits[b, a, k].softmax(-1), distribution[b, label - 1], np.exp(-k / 4)
                apart = float((p - q).abs().sum())
                sure = float(torch.sigmoid(scores[b, a, k]))
                wanted = 1 - apart / 2
                total += weight
                sums[0] -= weight * float(q[tokens[b, label]].log())
                sums[1] += weight * apart
                sums[2] -= weight * (wanted * np.log(sure) + (1 - wanted) * np.log(1 - sure))
    assert float(loss.detach()) == pytest.approx(float(sums @ [0.1, 0.9, 1.0]) / total, rel=1e-5)
    assert record.cross_entropy == pytest.approx(sums[0] / total, rel=1e-5)
    flash = drafter_of(model, "dflash")
    loss, record = block_loss(flash, tokens, mask, features, distribution, anchors, keep, DrafterTraining())
    assert float(loss.detach()) == pytest.approx(record.cross_entropy, rel=1e-6)
