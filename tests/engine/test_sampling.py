"""The sampling distribution by enumeration, and what is sampled against it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from ramify.base.seeds import derive_key
from ramify.engine.local import LocalModel
from ramify.engine.sampling import adjusted, key_uniforms, pick
from ramify.model.protocol import Prefix, Sampling

from .helpers import tiny, tokens


def by_enumeration(logits: list[float], s: Sampling, first: bool) -> np.ndarray:
    banned = set(s.ban) | (set(s.ban_first) if first else set())
    free = [i for i in range(len(logits)) if i not in banned]
    order = sorted(free, key=lambda i: (-logits[i], i))
    if s.temperature == 0:
        kept = order[:1]
        heat = 1.0
    else:
        kept = order[: s.top_k or None]
        heat = s.temperature
        weights = np.exp([(logits[i] - logits[kept[0]]) / heat for i in kept])
        before = (np.cumsum(weights) - weights) / weights.sum()
        kept = [i for i, b in zip(kept, before, strict=True) if b < s.top_p or s.top_p == 1]
    p = np.zeros(len(logits))
    p[kept] = np.exp([(logits[i] - logits[kept[0]]) / heat for i in kept])
    return p / p.sum()  # type: ignore[no-any-return]


ROW = st.tuples(
    st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=7, max_size=7),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 3, 7, 50]),
        top_p=st.sampled_from([0.05, 0.37, 0.9, 1.0]),
        ban=st.sampled_from([(), (2,), (0, 1, 2, 3)]),
        ban_first=st.sampled_from([(), (5,), (4, 6)]),
    ),
    st.booleans(),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(ROW, min_size=1, max_size=5), st.integers(0, 10**6))
def test_distribution_is_exact_and_row_by_row(rows: list[tuple[list[float], Sampling, bool]], seed: int) -> None:
    logits = torch.tensor([r[0] for r in rows])
    s, first = [r[1] for r in rows], [r[2] for r in rows]
    found = adjusted(logits.double(), s, first).exp().numpy()
    for row, one, is_first, p in zip(rows, s, first, found, strict=True):
        np.testing.assert_allclose(p, by_enumeration(row[0], one, is_first), atol=1e-12)
    u = np.random.default_rng(seed).random(len(rows)).tolist()
    together = pick(logits, s, first, u)
    for i in range(len(rows)):
        single = pick(logits[i : i + 1], s[i : i + 1], first[i : i + 1], u[i : i + 1])
        assert (single.tokens[0], single.logprobs[0]) == (together.tokens[i], together.logprobs[i])
        assert found[i, together.tokens[i]] > 0
        assert together.logprobs[i] == pytest.approx(np.log(found[i, together.tokens[i]]), abs=1e-6)
        model = logits[i].double().log_softmax(-1)
        assert together.model_logprobs[i] == pytest.approx(float(model[together.tokens[i]]), abs=1e-6)
        assert together.entropy[i] == pytest.approx(float(-(model.exp() * model).sum()), abs=1e-6)


def test_the_ends_of_the_unit_interval_sample_possible_tokens() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    last = (1 - 2.0**-53) * (1 - 2.0**-52)
    assert pick(logits, [Sampling()], [True], [0.0]).tokens == [1]
    assert pick(logits, [Sampling()], [True], [last]).tokens == [3]
    assert key_uniforms(5, 10_000).max() <= last
    assert np.isfinite(pick(logits, [Sampling()], [True], [0.3]).entropy).all()


def test_plain_settings() -> None:
    assert Sampling().plain()
    assert Sampling(ban_first=(1,)).plain(first=False)
    for changed in (
        Sampling(temperature=0.9),
        Sampling(top_p=0.9),
        Sampling(top_k=1),
        Sampling(ban=(1,)),
        Sampling(ban_first=(1,)),
    ):
        assert not changed.plain()


@pytest.mark.slow
@pytest.mark.parametrize("s", [Sampling(max_tokens=1), Sampling(max_tokens=1, temperature=0.6, top_p=0.8, ban_first=(7,))])
def test_samples_follow_the_distribution(s: Sampling) -> None:
    """Chi-square of 20,000 first tokens against the exact probabilities; fixed seeds, so the outcome is fixed."""
    model = LocalModel(tiny(), max_sequences=512)
    n = 20_000
    sampled = asyncio.run(model.sample(Prefix(tokens(12)), n, s, [derive_key(3, i) for i in range(n)]))
    with torch.no_grad():
        logits = model.module(torch.from_numpy(tokens(12).astype(np.int64))[None])[0, -1]
    p = by_enumeration(logits.tolist(), s, True)
    counts = np.bincount([int(d.tokens[0]) for d in sampled if d.tokens is not None], minlength=len(p))
    assert counts[p == 0].sum() == 0
    rare = (p > 0) & (p * n < 10)
    observed = np.append(counts[p * n >= 10], counts[rare].sum())
    expected = np.append(p[p * n >= 10], p[rare].sum()) * n
    keep = expected > 0
    assert chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue > 0.01
