"""A sample's bits depend on its prefix, settings and key alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.engine.forward import Exactness
from ramify.engine.local import LocalModel
from ramify.model.protocol import Completion, Prefix, Sampling

from .helpers import sample, tiny, tokens

SETTINGS = (
    Sampling(max_tokens=6),
    Sampling(max_tokens=18, temperature=0.7, top_p=0.9),  # more than a block of the cache
    Sampling(max_tokens=3, top_k=7, ban_first=(3, 4)),
    Sampling(max_tokens=9, temperature=0.0),
)
LENGTHS = (1, 2, 5, 17, 33, 40, 90, 170)


def prefix(i: int) -> np.ndarray:
    """Prefixes that share beginnings of different lengths with each other."""
    row = tokens(LENGTHS[i % len(LENGTHS)], seed=i // 3 % 2)
    if i % 3:
        row[-1] = i % 61
    return row


@cache
def module() -> object:
    return tiny(qk_norm=True, kv_heads=2)


@cache
def alone(i: int, s: int, key: int) -> tuple[bytes, ...]:
    """The sample from a fresh model that does nothing else, one row at most and no cache."""
    model = LocalModel(module(), max_sequences=1, cache_bytes=0)  # type: ignore[arg-type]
    return bits(asyncio.run(model.sample(Prefix(prefix(i)), 1, SETTINGS[s], [key]))[0])


def bits(d: Completion) -> tuple[bytes, ...]:
    assert d.tokens is not None
    assert d.logprobs is not None
    assert d.model_logprobs is not None
    assert d.entropy is not None
    return d.tokens.tobytes(), d.logprobs.tobytes(), d.model_logprobs.tobytes(), d.entropy.tobytes(), d.stop.encode()


REQUEST = st.tuples(st.integers(0, 11), st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=5))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=8),
    workers=st.sampled_from([1, 2, 8, 64]),
    max_sequences=st.sampled_from([1, 3, 8, 64]),
    budget=st.sampled_from([0, 20_000, 200_000, 1 << 28]),
    again=st.booleans(),
)
def test_a_sample_does_not_depend_on_its_batch_mates(
    requests: list[tuple[int, int, list[int]]], workers: int, max_sequences: int, budget: int, again: bool
) -> None:
    model = LocalModel(module(), max_sequences=max_sequences, cache_bytes=budget)  # type: ignore[arg-type]
    assert "batch_invariant" in model.capabilities

    async def run() -> list[list[Completion]]:
        gate = asyncio.Semaphore(workers)

        async def one(i: int, s: int, keys: list[int]) -> list[Completion]:
            async with gate:
                return await model.sample(Prefix(prefix(i)), len(keys), SETTINGS[s], keys)

        return await asyncio.gather(*(one(*request) for request in requests))

    for _ in range(1 + again):
        results = asyncio.run(run())
        for (i, s, keys), completions in zip(requests, results, strict=True):
            assert [bits(d) for d in completions] == [alone(i, s, key) for key in keys]
    assert model._scheduler.cache.prefixes.bytes <= max(budget, 0)


def test_continuing_from_a_sample_equals_sampling_through() -> None:
    """Keys and values made while sampling are those made from the same tokens given as a prompt."""
    whole = sample(LocalModel(tiny(), cache_bytes=0), tokens(20), [7], max_tokens=40)[0]
    assert whole.tokens is not None
    assert whole.logprobs is not None
    for cut in (1, 15, 16, 17, 39):
        for cache_bytes in (0, 1 << 28):
            model = LocalModel(tiny(), cache_bytes=cache_bytes)
            if cache_bytes:
                sample(model, tokens(20), [7], max_tokens=40)
            row = np.concatenate((tokens(20), whole.tokens[:cut]))
            rest = sample(model, row, [9], max_tokens=40 - cut, temperature=0)[0]
            fresh = sample(LocalModel(tiny(), cache_bytes=0), row, [9], max_tokens=40 - cut, temperature=0)[0]
            assert bits(rest) == bits(fresh)
            if cache_bytes:
                assert model.stats.prompt_tokens <= 20 + 1  # one token runs again for its logits; nothing else does


def test_long_neighbours_do_not_matter() -> None:
    model = LocalModel(tiny(context=1024))

    async def both() -> list[list[Completion]]:
        long = model.sample(Prefix(tokens(700, seed=5)), 1, Sampling(max_tokens=50), [1])
        short = model.sample(Prefix(tokens(9)), 3, Sampling(max_tokens=50), [1, 2, 3])
        return list(await asyncio.gather(long, short))

    short = asyncio.run(both())[1]
    other = sample(LocalModel(tiny(context=1024), max_sequences=1), tokens(9), [1, 2, 3], max_tokens=50)
    assert [bits(d) for d in short] == [bits(d) for d in other]


PROGRAM = """
import hashlib, torch
from engine.helpers import sample, tiny, tokens
from ramify.engine.forward import Exactness
from ramify.engine.local import LocalModel
shape = {"width": 128, "ffn": 384, "head_size": 32, "vocab": 512, "layers": 2}
for threads in (1, 2):
    torch.set_num_threads(threads)
    model = LocalModel(tiny(**shape))
    assert "batch_invariant" in model.capabilities
    completions = sample(model, tokens(40), list(range(13)), max_tokens=8) + sample(model, tokens(3), [5], max_tokens=8)
    one = sample(LocalModel(tiny(**shape), max_sequences=1, cache_bytes=0), tokens(40), [10], max_tokens=8)[0]
    assert one.logprobs.tobytes() == completions[10].logprobs.tobytes()
    print(hashlib.sha256(b"".join(d.tokens.tobytes() + d.logprobs.tobytes() for d in completions)).hexdigest())
"""


@pytest.mark.slow
def test_thread_count_does_not_matter() -> None:
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    env["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin starve each other on a busy machine
    tests = Path(__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tests, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert len(set(result.stdout.split())) == 1


def test_long_samples_do_not_depend_on_longer_batch_mates() -> None:
    """Attention looks at as many positions as the longest row has; its kernels divide them by their number."""
    lengths = (100, 150, 185, 200, 250, 260, 300, 350, 380)
    wide, long = tiny(context=512), Sampling(max_tokens=4)

    async def together(model: LocalModel) -> list[list[Completion]]:
        return await asyncio.gather(*(model.sample(Prefix(tokens(n, seed=n // 50)), 1, long, [n]) for n in lengths))

    model = LocalModel(wide)
    first, again = asyncio.run(together(model)), asyncio.run(together(model))
    for n, completions, warm in zip(lengths, first, again, strict=True):
        alone = LocalModel(wide, max_sequences=1, cache_bytes=0)
        (wanted,) = sample(alone, tokens(n, seed=n // 50), [n], max_tokens=4)
        assert bits(completions[0]) == bits(wanted) == bits(warm[0])


def test_prompts_of_different_lengths_share_forward_passes() -> None:
    model, lengths = LocalModel(module(), cache_bytes=0), (9, 14, 20, 33, 60, 75)  # type: ignore[arg-type]

    async def together() -> list[list[Completion]]:
        return await asyncio.gather(*(model.sample(Prefix(tokens(n, seed=n)), 1, Sampling(max_tokens=2), [n]) for n in lengths))

    found = asyncio.run(together())
    if model.exactness is not Exactness.ALONE:
        assert model.stats.forward_passes <= 6  # not one for each prompt, and two more
    alone = LocalModel(module(), max_sequences=1, cache_bytes=0)  # type: ignore[arg-type]
    assert [bits(completions[0]) for completions in found] == [
        bits(sample(alone, tokens(n, seed=n), [n], max_tokens=2)[0]) for n in lengths
    ]
