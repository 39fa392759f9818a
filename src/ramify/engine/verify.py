"""Which drafts stay, and the token after them. Two distributions; under both a sample has exactly the distribution it has without drafts.

``rejection`` accepts a draft x with probability min(1, p(x) / q(x)), p the target's and q the drafter's distribution as sampled from
(temperature, cuts and bans applied to both), and replaces the first rejected one by a sample from max(0, p - q), normalised; after
drafts that were all accepted comes a bonus token from p (Leviathan et al. 2023; paper, section on speculative decoding).
``coupled`` samples at every position the token the engine would sample there without speculation, from the same uniform, and accepts a
draft that equals it: the same tokens with and without speculation. It accepts a little less often.

Everything but the tokens (log-probabilities, entropy) is the target's. Drafts were cut to their lengths before the target ran.

Axis legend: R rows, E batch entries of these rows (each row's anchor and drafts), K most drafts of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ramify.engine.grammar import Shaper, shapes_after
from ramify.engine.sampling import Picked, Shapes, distributions, inverse_cdf, pick
from ramify.model.protocol import Sampling

NOTHING = 1e-12
"""Residual mass that is rounding only."""


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Weights of max(0, p - q), float64 [N, V], of weights of that shape and of equal sums (q may be 0); p where nothing is left of it."""
    left = (p - q).clamp_(min=0)
    return torch.where(left.sum(-1, keepdim=True) > NOTHING, left, p)


def accepted(p: np.ndarray, q: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Whether a draft with target probability ``p`` and draft probability ``q`` is accepted at the uniform ``u`` (all one shape)."""
    return np.asarray(u * q < p)


def coupled(
    logits: Tensor,
    settings: Sequence[Sampling],
    first: Sequence[bool],
    u: Sequence[np.ndarray],
    drafts: Sequence[Sequence[int]],
    shapers: Sequence[Shaper | None] | None = None,
) -> list[Picked]:
    """What each row emits. ``logits`` [E, V], row by row; ``u[r]`` the uniforms of row r's next len(drafts[r]) + 1 tokens."""
    each, begins, stops, shapes = _entries(settings, first, drafts, shapers)
    picked = pick(logits, each, begins, np.concatenate(u).tolist(), shapes)
    result, start = [], 0
    for row, stop in zip(drafts, stops, strict=True):
        n = 0
        while n < len(row) and picked.tokens[start + n] == row[n]:
            n += 1
        result.append(_slice(picked, start, start + n + 1))
        start = stop
    return result


def rejection(
    logits: Tensor,
    settings: Sequence[Sampling],
    first: Sequence[bool],
    u: Sequence[np.ndarray],
    drafts: Sequence[Sequence[int]],
    q: Tensor,
    accept: np.ndarray,
    shapers: Sequence[Shaper | None] | None = None,
) -> list[Picked]:
    """As :func:`coupled`, with the drafter's weights ``q`` [R, K, V] and the uniforms ``accept`` [R, K] of the acceptances.

    ``q`` need not sum to 1. ``u`` samples the corrected or bonus token, by its position.
    """
    each, begins, stops, shapes = _entries(settings, first, drafts, shapers)
    model, sampler = distributions(logits, each, begins, shapes)
    of_model = model.exp()
    entropy = -(of_model * model).nansum(-1)
    p = of_model if sampler is model else sampler.exp()
    device, n = p.device, len(drafts)
    p_sum, q_sum = p.sum(-1, dtype=torch.float64), q.sum(-1, dtype=torch.float64).flatten()
    (V, K), q = (p.shape[1], q.shape[1]), q.flatten(0, 1)
    lengths = np.array([len(row) for row in drafts])
    starts = np.array(stops) - lengths - 1
    rows = np.repeat(np.arange(n), lengths)
    at = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    drafted = np.array([token for row in drafts for token in row], np.int64)
    entry, of_q = starts[rows] + at, rows * K + at
    index = torch.from_numpy(np.stack((entry, entry * V + drafted, of_q, of_q * V + drafted))).to(device).unbind(0)
    of_p = p.flatten().index_select(0, index[1]) / p_sum.index_select(0, index[0])
    chances = torch.stack((of_p, q.flatten().index_select(0, index[3]) / q_sum.index_select(0, index[2]))).cpu().numpy()
    ok = np.zeros((n, int(lengths.max())), bool)
    ok[rows, at] = accepted(chances[0], chances[1], accept[rows, at])
    survivors = np.cumprod(ok, axis=1).sum(axis=1)
    last = torch.from_numpy(starts + survivors).to(device)
    weights = p.index_select(0, last) / p_sum.index_select(0, last).unsqueeze(1)
    cut = np.flatnonzero(survivors < lengths)
    if len(cut):
        row, refused = torch.from_numpy(np.stack((cut, cut * K + survivors[cut]))).to(device).unbind(0)
        of_draft = q.index_select(0, refused) / q_sum.index_select(0, refused).unsqueeze(1)
        weights.index_copy_(0, row, residual(weights.index_select(0, row), of_draft))
    final = torch.tensor([row[k] for row, k in zip(u, survivors, strict=True)], dtype=torch.float64, device=device)
    found = np.zeros(len(logits), np.int64)
    found[entry] = drafted
    found[starts + survivors] = inverse_cdf(weights, final).cpu().numpy()
    tokens = torch.from_numpy(found).to(device).unsqueeze(1)
    chosen = sampler.gather(1, tokens).squeeze(1).tolist()
    plain = chosen if sampler is model else model.gather(1, tokens).squeeze(1).tolist()
    whole = Picked(found.tolist(), chosen, plain, entropy.tolist())
    return [_slice(whole, start, start + n + 1) for start, n in zip(starts.tolist(), survivors.tolist(), strict=True)]


def _entries(
    settings: Sequence[Sampling],
    first: Sequence[bool],
    drafts: Sequence[Sequence[int]],
    shapers: Sequence[Shaper | None] | None,
) -> tuple[list[Sampling], list[bool], list[int], Shapes]:
    """Settings and "first token" of every entry, where each row's entries end, and each entry's shape after the drafts before it."""
    each = [s for s, row in zip(settings, drafts, strict=True) for _ in range(len(row) + 1)]
    begins = [f and k == 0 for f, row in zip(first, drafts, strict=True) for k in range(len(row) + 1)]
    stops = np.cumsum([len(row) + 1 for row in drafts]).tolist()
    if shapers is None or not any(shapers):
        return each, begins, stops, None
    owners = [shaper for shaper, row in zip(shapers, drafts, strict=True) for _ in range(len(row) + 1)]
    return each, begins, stops, shapes_after(owners, [row[:k] for row in drafts for k in range(len(row) + 1)])


def _slice(picked: Picked, start: int, stop: int) -> Picked:
    part = slice(start, stop)
    return Picked(picked.tokens[part], picked.logprobs[part], picked.model_logprobs[part], picked.entropy[part])
