"""Steps without drafts keep no features: what they computed runs again, to the same bits,
when drafting continues, and only then."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ramify.engine.cache import KVCache, PrefixCache
from ramify.engine.local import LocalModel
from ramify.engine.schedules import FixedSchedule
from ramify.engine.speculate import Speculator
from ramify.model.protocol import Prefix, Sampling

from .helpers import tiny, tokens
from .speculating import Shadow, prompts, sample_all


class Watched(Shadow):
    """Keeps the bytes of all features it was given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.features: set[bytes] = set()

    def absorb(self, cache: KVCache, first: int, slots: Tensor, positions: Tensor, features: Tensor, following: Tensor) -> None:
        super().absorb(cache, first, slots, positions, features, following)
        self.features |= {row.numpy().tobytes() for row in features}


class InTurns(FixedSchedule):
    """Drafts for some steps, then for some not."""

    def __init__(self, k: int, drafting: int, resting: int) -> None:
        super().__init__(k)
        self.steps, self.drafting, self.resting = 0, drafting, resting

    def depth(self, requests: int) -> int:
        self.steps += 1
        return self.k if (self.steps - 1) % (self.drafting + self.resting) < self.drafting else 0


def engine(schedule: FixedSchedule, drafter: Watched | None = None, **options: Any) -> tuple[LocalModel, Watched]:
    target = tiny(layers=2)
    drafter = drafter or Watched(target)
    model = LocalModel(target, eos=(), **options)
    return model.speculating(Speculator(drafter, schedule, model.forward.layers)), drafter


@pytest.mark.slow
@pytest.mark.parametrize(("drafting", "resting"), [(1, 1), (1, 5), (3, 2)])
@pytest.mark.parametrize("at_once", [1, 6])
def test_what_runs_again_has_the_same_features(drafting: int, resting: int, at_once: int):
    always, whole = engine(FixedSchedule(3))
    turns, part = engine(InTurns(3, drafting, resting))
    wanted = sample_all(always, prompts(6), at_once, n=2, max_tokens=20)  # longer, for the features of the last tokens
    found = sample_all(turns, prompts(6), at_once, n=2, max_tokens=12)
    assert all(
        np.array_equal(a.tokens, b.tokens[:12]) and np.array_equal(a.logprobs, b.logprobs[:12])
        for a, b in zip(found, wanted, strict=True)
    )
    assert always.speculation is not None
    assert always.speculation.recalled == 0
    assert turns.speculation is not None
    assert turns.speculation.recalled > 20
    assert part.features <= whole.features
    assert len(part.features) > 30


def test_without_drafts_nothing_is_kept_and_nothing_runs_again():
    turns, drafter = engine(InTurns(3, 0, 1))
    sample_all(turns, prompts(6), 6, max_tokens=12)
    assert turns.speculation is not None
    assert turns.speculation.recalled == drafter.absorbed == 0


def test_a_prefix_is_completed_by_the_first_row_that_needs_its_features():
    """A reply sampled without drafts is kept without features; who drafts behind it computes them, who comes after finds them."""
    schedule = InTurns(3, 0, 1)
    model, _ = engine(schedule)
    prompt = tokens(32, seed=3)
    (first,) = sample_all(model, [prompt], 1, max_tokens=33)
    history = np.concatenate((prompt, first.tokens[:32]))
    schedule.drafting, schedule.resting = 1, 0
    stats, recalled = model.speculation, []
    assert stats is not None
    for seed in (1, 2):
        before = stats.recalled
        follow = np.concatenate((history, tokens(5, seed=seed)))
        asyncio.run(model.sample(Prefix(follow), 1, Sampling(max_tokens=6), [seed]))
        recalled.append(stats.recalled - before)
    assert recalled[0] >= 32
    assert recalled[1] < 8  # what came after the shared blocks


def test_what_is_found_is_the_longest_prefix_of_all_that_was_kept():
    store, kept, rng = PrefixCache(1 << 20), [], np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, 2, int(rng.integers(1, 60))).tolist()  # two tokens: long prefixes in common
        known = max(
            (
                sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False)))
                for other in kept
            ),
            default=0,
        )
        assert sum(piece.shape[1] for piece in store.match(np.array(ids, np.int32), len(ids))) == known
        store.insert(ids, lambda start, stop: torch.zeros(1, stop - start, 2), lambda stop: 1)
        kept.append(ids)
    assert store.bytes == sum(block.nbytes for block in store._recent.values())


def test_a_block_with_fewer_layers_is_replaced_by_one_with_more():
    store = PrefixCache(1 << 20)
    ids = np.arange(32, dtype=np.int32)

    def put(layers: int) -> None:
        store.insert(ids, lambda start, stop: torch.full((layers, stop - start, 2), float(layers)), lambda stop: layers)

    put(2)
    small = store.bytes
    put(3)
    assert store.bytes == small * 3 // 2
    assert [len(piece) for piece in store.match(ids, 32)] == [3, 3]
    put(2)
    assert [len(piece) for piece in store.match(ids, 32)] == [3, 3]
    assert store.bytes == small * 3 // 2
