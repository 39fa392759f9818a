"""A batch with several tokens of several rows gives the bits of decoding them one by one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.engine.batch import ForwardBatch
from ramify.engine.cache import KVCache
from ramify.engine.forward import Forward, TinyForward, exactness, probe
from ramify.engine.generic import HfForward

from .helpers import VOCAB, tiny, tokens
from .kernels import needs_tiles
from .test_generic import module_of

ROWS = 5
LENGTH = 40


NAMES = ["tiny", "one head a key", "transformers"]


@cache
def forward_of(name: str) -> Forward:
    if name == "transformers":
        return HfForward(module_of("llama", num_key_value_heads=2))
    return TinyForward(tiny() if name == "tiny" else tiny(kv_heads=4, layers=1, head_size=12))


def run(forward: Forward, cache: KVCache, ids: list[int], where: list[int], rows: Any = None) -> torch.Tensor:
    with torch.inference_mode():
        batch = ForwardBatch(cache, forward.kv_heads, ids, where, rows)
        return forward.logits(forward.hidden(batch))[: batch.used].clone()


def cache_of(forward: Forward) -> KVCache:
    cache = KVCache(forward.layers, forward.kv_size, forward.device)
    cache.reserve(8, 128)
    return cache


TEXTS = [tokens(LENGTH, seed=r).tolist() for r in range(ROWS)]


@cache
def one_by_one(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [ROWS, LENGTH, V] and the cache's contents, each row alone, a token at a time."""
    forward, kept, logits = forward_of(name), [], []
    for text in TEXTS:
        cache = cache_of(forward)
        logits.append(torch.cat([run(forward, cache, [token], [p]) for p, token in enumerate(text)]))
        kept.append(cache.kv[:, 0, :LENGTH])
    return torch.stack(logits), torch.stack(kept, dim=1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    steps=st.lists(st.lists(st.integers(0, 8), min_size=ROWS, max_size=ROWS), min_size=1, max_size=12),
    name=st.sampled_from(NAMES),
)
def test_a_ragged_tile_has_the_bits_of_one_by_one(steps: list[list[int]], name: str) -> None:
    forward = forward_of(name)
    needs_tiles(exactness(forward))
    logits, kept = one_by_one(name)
    cache, done = cache_of(forward), [0] * ROWS
    for counts in steps:
        spans = [range(done[r], min(done[r] + n, LENGTH)) for r, n in enumerate(counts)]
        rows = [r for r, span in enumerate(spans) for _ in span]
        if not rows:
            continue
        where = [p for span in spans for p in span]
        found = run(forward, cache, [TEXTS[r][p] for r, p in zip(rows, where, strict=True)], where, rows)
        assert torch.equal(found, logits[rows, where])
        done = [span.stop for span in spans]
    for r in range(ROWS):
        assert torch.equal(cache.kv[:, r, : done[r]], kept[:, r, : done[r]])


def test_wrong_guesses_that_are_overwritten_leave_no_trace() -> None:
    """A batch of guesses, most of them wrong; then the right tokens from the first wrong one on."""
    forward = forward_of("tiny")
    needs_tiles(exactness(forward))
    logits, _ = one_by_one("tiny")
    cache = cache_of(forward)
    for r, text in enumerate(TEXTS):
        run(forward, cache, text[:20], list(range(20)), r)
    guesses = [[text[20], (text[21] + 1) % VOCAB, *text[22:26]] for text in TEXTS]
    found = run(
        forward,
        cache,
        [token for guess in guesses for token in guess],
        [p for _ in guesses for p in range(20, 26)],
        [r for r in range(ROWS) for _ in range(6)],
    ).view(ROWS, 6, VOCAB)
    assert torch.equal(found[:, 0], logits[:, 20])
    assert not torch.equal(found[:, 1], logits[:, 21])
    for p in (21, 22, 23):
        assert torch.equal(run(forward, cache, [text[p] for text in TEXTS], [p] * ROWS), logits[:, p])


def test_entries_may_see_the_whole_block() -> None:
    """With ``sees`` the first of three entries depends on the third; without it, it does not."""
    forward = forward_of("tiny")
    results = {}
    for sees in (None, [12, 12, 12]):
        for last in (1, 2):
            cache = cache_of(forward)
            run(forward, cache, TEXTS[0][:10], list(range(10)), 2)
            with torch.inference_mode():
                batch = ForwardBatch(cache, forward.kv_heads, [5, 6, last], [10, 11, 12], 2, sees)
                results[sees is None, last] = forward.hidden(batch)[0].clone()
    assert torch.equal(results[True, 1], results[True, 2])
    assert not torch.equal(results[False, 1], results[False, 2])


@pytest.mark.parametrize("name", NAMES)
def test_the_probe_covers_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = forward_of(name)
    needs_tiles(exactness(forward))
    assert probe(forward)
    attend = ForwardBatch.attend

    def worse(self: ForwardBatch, *given: Any) -> torch.Tensor:
        found = attend(self, *given)
        return found if self._gather is None else found * (1 + 1e-6)

    monkeypatch.setattr(ForwardBatch, "attend", worse)
    assert not probe(forward)
