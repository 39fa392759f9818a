"""The drafters against spec section 8: masks, orders, incremental = one-shot, toys; and the conformance battery."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramify.base.errors import UserError
from ramify.engine.cache import KVCache
from ramify.methods.dspark.drafters import DrafterConfig, Qwen3Drafter
from ramify.methods.dspark.dspark_drafter import DFlash, DSpark, small
from ramify.methods.dspark.eagle import Eagle3
from ramify.testing import check_drafter

T = 18


def lively(drafter: Qwen3Drafter) -> Qwen3Drafter:
    """The drafter with weights far from 0, so that every part of it shows, on a target of random embeddings."""
    made = torch.Generator().manual_seed(5)
    c = drafter.config
    with torch.no_grad():
        for weight in drafter.parameters():
            weight.copy_(torch.randn(weight.shape, generator=made) * 0.3 + (weight.dim() == 1))
    drafter.attach(torch.randn((c.vocab, c.width), generator=made), torch.randn((c.vocab, c.width), generator=made))
    return drafter


def text(c: DrafterConfig, rows: int = 2) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(6)
    tokens = torch.randint(c.vocab - 1, (rows, T), generator=made)
    return tokens, torch.randn((rows, T, len(c.target_layers) * c.width), generator=made)


def drafted(
    drafter: Qwen3Drafter, tokens: Tensor, features: Tensor, anchors: list[int], portions: int = 1
) -> tuple[Tensor, Tensor]:
    """Logits [R, K, V] and confidence logits of the engine's path, with the tokens of the text as samples."""
    cache = KVCache(1 + drafter.layers, drafter.config.kv_size, torch.device("cpu"))
    cache.reserve(4, 64)
    for row, p in enumerate(anchors):
        cuts = [p * i // portions for i in range(portions + 1)]
        for start, stop in itertools.pairwise(cuts):
            if stop > start:
                where = torch.arange(start, stop)
                slots = torch.full((stop - start,), row)
                drafter.absorb(cache, 1, slots, where, features[row, start:stop], tokens[row, start + 1 : stop + 1])
    at, rows, seen = torch.tensor(anchors), torch.arange(len(anchors)), []

    def pick(k: int, logits: Tensor) -> Tensor:
        seen.append(logits.clone())
        return tokens[rows, at + k + 1]

    drafts = drafter.draft(cache, 1, rows, tokens[rows, at], at, pick, drafter.config.block)
    return torch.stack(seen, 1), drafts.scores


@pytest.mark.parametrize("made", [DSpark, DFlash, Eagle3])
def test_every_drafter_conforms(made: type[Qwen3Drafter]) -> None:
    assert check_drafter(made()) == []
    assert check_drafter(lively(made())) == []


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_dspark_samples_what_it_was_trained_on(head: str) -> None:
    """Incremental drafting with cached context equals the one-shot training pass on the same anchor."""
    drafter = lively(DSpark(dataclasses.replace(small("dspark"), head=head)))
    tokens, features = text(drafter.config)
    for anchors in ([5, 9], [1, 13]):
        logits, scores = drafter(tokens, features, torch.tensor(anchors)[:, None])
        for portions in (1, 4):
            found, confidence = drafted(drafter, tokens, features, anchors, portions)
            assert torch.allclose(found, logits[:, 0], atol=1e-4, rtol=1e-4)
            assert torch.allclose(confidence, scores[:, 0], atol=1e-4, rtol=1e-4)


def test_eagle_samples_what_it_was_trained_on() -> None:
    drafter = lively(Eagle3())
    tokens, features = text(drafter.config)
    steps = torch.stack(list(drafter(tokens, features)))
    for anchors in ([5, 9], [1, 13]):
        found, scores = drafted(drafter, tokens, features, anchors, portions=2)
        assert scores.isnan().all()
        for row, p in enumerate(anchors):
            assert torch.allclose(found[row], steps[:, row, p - 1], atol=1e-4, rtol=1e-4)


def test_eagle_wider_than_a_key_spreads_its_state_over_layers() -> None:
    drafter = lively(Eagle3(dataclasses.replace(small("eagle3"), heads=2, kv_heads=1, head_size=4)))
    assert drafter.layers == 3
    tokens, features = text(drafter.config)
    found, _ = drafted(drafter, tokens, features, [5, 9])
    steps = torch.stack(list(drafter(tokens, features)))
    assert torch.allclose(found[1], steps[:, 1, 8], atol=1e-4, rtol=1e-4)


@settings(max_examples=15, deadline=None)
@given(anchors=st.sets(st.integers(1, T - 6), min_size=2, max_size=4), data=st.data())
def test_a_block_sees_its_context_and_itself(anchors: set[int], data: st.DataObject) -> None:
    """Block mask: context at or after the anchor and other blocks change nothing; position anchor - 1 does."""
    drafter = lively(DSpark())
    tokens, features = text(drafter.config, rows=1)
    where = sorted(anchors)
    plain = drafter(tokens, features, torch.tensor([where]))[0][0]
    chosen = data.draw(st.integers(0, len(where) - 1))
    p = where[chosen]
    later = features.clone()
    later[:, data.draw(st.integers(p, T - 1))] += 1.0
    assert torch.equal(drafter(tokens, later, torch.tensor([where]))[0][0, chosen], plain[chosen])
    before = features.clone()
    before[:, p - 1] += 1.0
    assert not torch.allclose(drafter(tokens, before, torch.tensor([where]))[0][0, chosen], plain[chosen])
    fewer = where[: chosen + 1][-1:] if chosen else where[:1]
    alone = drafter(tokens, features, torch.tensor([fewer]))[0][0, -1]
    assert torch.allclose(alone, plain[where.index(fewer[-1])], atol=1e-5, rtol=1e-5)


def test_other_blocks_tokens_change_nothing() -> None:
    """The anchor's token enters its own block only; a block's later text enters through the sequential head alone."""
    drafter = lively(DSpark(dataclasses.replace(small("dspark"), rank=0, confidence=False)))
    tokens, features = text(drafter.config, rows=1)
    where = torch.tensor([[4, 10]])
    plain = drafter(tokens, features, where)[0][0]
    other = tokens.clone()
    other[0, 10] = (other[0, 10] + 1) % 30
    changed = drafter(other, features, where)[0][0]
    assert torch.equal(changed[0], plain[0])
    assert not torch.allclose(changed[1], plain[1])


def test_slots_of_a_block_see_each_other_in_both_directions() -> None:
    """With all slots at one position, permuting what is in them permutes what comes out: no slot has a place of its own."""
    drafter = lively(DSpark(dataclasses.replace(small("dspark"), rank=0, confidence=False)))
    _, features = text(drafter.config, rows=1)
    K, order = drafter.config.block, torch.tensor([2, 0, 3, 1])
    from ramify.methods.dspark.dspark_drafter import _block, block_mask

    anchors, made = torch.tensor([[7]]), torch.Generator().manual_seed(8)
    x = torch.randn((1, K, drafter.config.width), generator=made)
    tables = drafter.rotary(T, x.device)
    near, far = tables[:, :T, None], tables[:, 7:8, None].expand(-1, K, -1, -1)
    context = drafter.hidden_norm(drafter.fc(features))
    run = [_block(drafter.blocks[0], part, context, near, far, block_mask(anchors, T, K)) for part in (x, x[:, order])]
    assert torch.allclose(run[0][:, order], run[1], atol=1e-5)
    later = x.clone()
    later[:, K - 1] += 1.0
    changed = _block(drafter.blocks[0], later, context, near, far, block_mask(anchors, T, K))
    assert not torch.allclose(changed[:, 0], run[0][:, 0])


def test_without_w2_dspark_is_dflash_bit_for_bit() -> None:
    spark = lively(DSpark())
    with torch.no_grad():
        spark.markov_head.markov_w2.weight.zero_()
    flash = DFlash(dataclasses.replace(spark.config, kind="dflash", rank=0, confidence=False, confidence_markov=False))
    shared = {name: value for name, value in spark.state_dict().items() if name in flash.state_dict()}
    flash.load_state_dict(shared)
    flash.attach(spark.embedding, spark.head)
    spark.eval()
    tokens, features = text(spark.config)
    assert torch.equal(drafted(spark, tokens, features, [5, 9])[0], drafted(flash, tokens, features, [5, 9])[0])
    anchors = torch.tensor([[3, 8], [2, 11]])
    assert torch.equal(spark(tokens, features, anchors)[0], flash(tokens, features, anchors)[0])


def test_a_block_of_one_knows_the_anchor_alone() -> None:
    drafter = lively(DSpark(dataclasses.replace(small("dspark"), block=1)))
    tokens, features = text(drafter.config)
    plain, _ = drafted(drafter, tokens, features, [5, 9])
    later = tokens.clone()
    later[:, 10:] = 0
    later[0, 6:] = 0
    assert torch.equal(drafted(drafter, later, features, [5, 9])[0], plain)
    anchor = tokens.clone()
    anchor[0, 5] = (anchor[0, 5] + 1) % 30
    assert not torch.allclose(drafted(drafter, anchor, features, [5, 9])[0][0], plain[0])


def test_rank_bounds_what_the_previous_token_adds() -> None:
    drafter = lively(DSpark(dataclasses.replace(small("dspark"), rank=3)))
    every = drafter.markov_head(drafter.markov_head.markov_w1.weight[:, None], torch.zeros((32, 1, 16)))[:, 0]
    assert every.shape == (32, 32)
    assert torch.linalg.matrix_rank(every.detach()) == 3


def test_temperatures_calibrate_confidences() -> None:
    drafter = lively(DSpark())
    tokens, features = text(drafter.config)
    _, scores = drafted(drafter, tokens, features, [5, 9])
    drafter.temperatures = torch.tensor([1.0, 2.0, 0.5, 4.0])
    expected = torch.sigmoid(scores / drafter.temperatures)
    assert torch.equal(drafter.confidences(scores), expected)
    assert ((expected > 0) & (expected < 1)).all()


# --- the two toys of section 8 -------------------------------------------------------------------------------------------------

OF, COURSE, NO, PROBLEM = 0, 1, 2, 3
PHRASES = [(OF, COURSE), (NO, PROBLEM)]
A, X, B, C, D = 0, 1, 2, 3, 4
SHARED = [(A, X, B), (C, X, D)]


def tau_of(kind: str, phrases: list[tuple[int, ...]]) -> tuple[float, list[float]]:
    """Train a tiny drafter on phrases of equal chance behind one anchor;
    tau and conditional acceptance by position, computed exactly."""
    K = len(phrases[0])
    spark = kind != "dflash"
    shape = dataclasses.replace(
        small("dspark" if spark else "dflash"),
        block=K,
        layers=1,
        rank=8 if spark else 0,
        confidence=False,
        head=kind if spark else "vanilla",
    )
    torch.manual_seed(0)
    drafter = (DSpark if spark else DFlash)(shape)
    made = torch.Generator().manual_seed(1)
    drafter.attach(torch.randn((32, 16), generator=made), torch.randn((32, 16), generator=made))
    tokens = torch.tensor([[9, 10, *phrase] for phrase in phrases])
    features = torch.randn((1, 1, 32), generator=made).expand(len(phrases), K + 2, -1)
    anchors = torch.ones((len(phrases), 1), dtype=torch.long)
    drafter.train()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=0.06, weight_decay=0.0)
    for _ in range(120):
        logits = drafter(tokens, features, anchors)[0][:, 0]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drafter.eval()
    with torch.no_grad():
        distributions = drafter(tokens, features, anchors)[0][:, 0].softmax(-1)
    survived, reached, accepted = [1.0] * len(phrases), [], []
    for k in range(K):
        inside = 0.0
        for i, phrase in enumerate(phrases):
            # the target's distribution behind this prefix: the share of phrases that continue so
            same = [p for p in phrases if p[:k] == phrase[:k]]
            target = torch.zeros(32)
            for p in same:
                target[p[k]] += 1 / len(same)
            chance = float(torch.minimum(target, distributions[i, k]).sum())
            inside += survived[i] * chance / len(phrases)
            survived[i] *= chance
        reached.append(inside)
        accepted.append(inside / (reached[k - 1] if k else 1.0))
    return 1 + sum(reached), accepted


@pytest.mark.slow
def test_a_first_order_head_joins_phrases_that_a_parallel_drafter_mixes() -> None:
    """Spec 8: "of course" and "no problem" at equal odds: tau 2.5 without, 3 with a Markov head."""
    flash, accepted = tau_of("dflash", PHRASES)
    assert flash == pytest.approx(2.5, abs=0.02)
    assert accepted[1] == pytest.approx(0.5, abs=0.02)
    assert tau_of("vanilla", PHRASES)[0] == pytest.approx(3.0, abs=0.02)


@pytest.mark.slow
def test_a_shared_middle_token_needs_a_memory() -> None:
    """Spec 8: "a x b" and "c x d": the Markov head fails at position 3, the RNN head does not."""
    markov, accepted = tau_of("vanilla", SHARED)
    assert accepted[2] == pytest.approx(0.5, abs=0.03)
    assert markov == pytest.approx(3.5, abs=0.05)
    assert tau_of("rnn", SHARED)[0] == pytest.approx(4.0, abs=0.05)


# --- configurations that cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block": 0}, "block is 0"),
        ({"target_layers": (0, 3)}, "is the last"),
        ({"target_layers": (0, 7)}, "the target has layers 0 to 3"),
        ({"target_layers": (2, 1)}, "rising"),
        ({"target_layers": ()}, "at least one"),
        ({"rank": 0}, "set confidence_markov to false"),
        ({"rank": -1}, "rank is -1"),
        ({"mask_token": 32}, "vocabulary is 0 to 31"),
        ({"head": "gru"}, "known: vanilla, gated, rnn"),
        ({"kind": "dflash"}, "neither a sequential nor a confidence head"),
        ({"kind": "eagle3"}, "eagle3 has one layer"),
        ({"kv_heads": 3}, "key/value heads"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        dataclasses.replace(small("dspark"), **change)
    assert "\n" not in str(caught.value)


def test_a_target_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="has 33 tokens of width 16; the drafter's has 32"):
        DSpark().attach(torch.zeros((33, 16)), torch.zeros((33, 16)))
