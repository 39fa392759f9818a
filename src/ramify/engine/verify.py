"""Which drafts stay, and the token after them. Two distributions;
under both a sample has exactly the distribution it has without drafts.

``rejection`` accepts a draft x with probability min(1, p(x) / q(x)), p the target's and q the drafter's distribution as sampled
from (temperature, cuts and bans applied to both), and replaces the first rejected one by a sample from max(0, p - q), normalised;
after drafts that were all accepted comes a bonus token from p (Leviathan et al. 2023; paper, section on speculative decoding).
``coupled`` samples at every position the token the engine would sample there without speculation, from the same uniform, and
accepts a draft that equals it: the same tokens with and without speculation. It accepts a little less often.

Everything but the tokens (log-probabilities, entropy) is the target's. Drafts were cut to their lengths before the target ran.

Axis legend: R rows, E batch entries of these rows (each row's anchor and drafts), K most drafts of a row, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ramify.engine.grammar import Shaper, shapes_after
from ramify.engine.sampling import Picked, distributions, inverse_cdf, pick_from
from ramify.model.protocol import Sampling

NOTHING = 1e-12
"""Residual mass that is rounding only."""


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Weights of max(0, p - q), float64 [N, V], of weights of that shape and of equal sums (q may be 0);
    p where nothing is left of it."""
    left = (p - q).clamp_(min=0)
    return torch.where(left.sum(-1, keepdim=True) > NOTHING, left, p)


def accepted(p: float, q: float, u: float) -> bool:
    """Whether a draft with target probability ``p`` and draft probability ``q`` is accepted at the uniform ``u``."""
    return u * q < p


def coupled(
    logits: Tensor,
    settings: Sequence[Sampling],
    first: Sequence[bool],
    u: Sequence[np.ndarray],
    drafts: Sequence[Sequence[int]],
    shapers: Sequence[Shaper | None] | None = None,
) -> list[Picked]:
    """What each row emits. ``logits`` [E, V], row by row; ``u[r]`` the uniforms of row r's next len(drafts[r]) + 1 tokens."""
    picked = pick_from(*_distributions(logits, settings, first, drafts, shapers), np.concatenate(u).tolist())
    result, start = [], 0
    for row in drafts:
        n = 0
        while n < len(row) and picked.tokens[start + n] == row[n]:
            n += 1
        result.append(_slice(picked, start, start + n + 1))
        start += len(row) + 1
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
    model, sampler = _distributions(logits, settings, first, drafts, shapers)
    of_model = model.exp()
    entropy = (of_model * model).nansum(-1).neg_()
    p = of_model if sampler is model else sampler.exp()
    device, (R, K, V) = p.device, q.shape
    q = q.transpose(0, 1).reshape(K * R, V)  # slot by slot, as the drafter makes it
    starts, of_p, of_q = list[int](), list[int](), list[int]()
    chosen_tokens: list[int] = []
    for r, row in enumerate(drafts):  # few numbers: lists are faster than arrays here
        starts.append(start := len(chosen_tokens))
        of_p += [(start + k) * V + token for k, token in enumerate(row)]
        of_q += [(k * R + r) * V + token for k, token in enumerate(row)]
        chosen_tokens += row
        chosen_tokens.append(0)
    indices = torch.tensor([of_p, of_q], dtype=torch.int64, device=device).unbind(0)
    at_p, at_q = p.flatten().index_select(0, indices[0]).tolist(), q.flatten().index_select(0, indices[1]).tolist()
    sum_p, sum_q = p.sum(-1, dtype=torch.float64).tolist(), q.sum(-1, dtype=torch.float64).tolist()
    last, refused, scales, cut = [], [], [], False
    for r, (start, row, chances) in enumerate(zip(starts, drafts, accept.tolist(), strict=True)):
        n = 0
        while n < len(row) and accepted(
            at_p[start - r + n] / sum_p[start + n], at_q[start - r + n] / sum_q[n * R + r], chances[n]
        ):
            n += 1
        last.append(start + n)
        if n < len(row):
            cut = True
            refused.append(n * R + r)
            scales.append((sum_p[start + n], sum_q[n * R + r], u[r][n]))
        else:  # all drafts were accepted: nothing / infinity is taken away from the target's weights
            refused.append(0)
            scales.append((sum_p[start + n], math.inf, u[r][n]))
    picked, of_draft = torch.tensor([last, refused], device=device).unbind(0)
    sums_p, sums_q, final = torch.tensor(scales, dtype=torch.float64, device=device).unsqueeze(2).unbind(1)
    weights = p.index_select(0, picked) / sums_p
    if cut:
        weights = residual(weights, q.index_select(0, of_draft) / sums_q)
    for at, token in zip(last, inverse_cdf(weights, final).tolist(), strict=True):
        chosen_tokens[at] = token
    tokens = torch.tensor(chosen_tokens, device=device).unsqueeze(1)
    chosen = sampler.gather(1, tokens).squeeze(1).tolist()
    plain = chosen if sampler is model else model.gather(1, tokens).squeeze(1).tolist()
    whole = Picked(chosen_tokens, chosen, plain, entropy.tolist())
    return [_slice(whole, start, stop + 1) for start, stop in zip(starts, last, strict=True)]


def _distributions(
    logits: Tensor,
    settings: Sequence[Sampling],
    first: Sequence[bool],
    drafts: Sequence[Sequence[int]],
    shapers: Sequence[Shaper | None] | None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [E, V] of the model and of the sampler at every entry, each after the drafts before it."""
    if all(s.plain(f) for s, f in zip(settings, first, strict=True)):
        model = logits.float().log_softmax(-1)
        return model, model
    each = [s for s, row in zip(settings, drafts, strict=True) for _ in range(len(row) + 1)]
    begins = [f and k == 0 for f, row in zip(first, drafts, strict=True) for k in range(len(row) + 1)]
    shapes = None
    if shapers is not None and any(shapers):
        owners = [shaper for shaper, row in zip(shapers, drafts, strict=True) for _ in range(len(row) + 1)]
        shapes = shapes_after(owners, [row[:k] for row in drafts for k in range(len(row) + 1)])
    return distributions(logits, each, begins, shapes)


def _slice(picked: Picked, start: int, stop: int) -> Picked:
    part = slice(start, stop)
    return Picked(picked.tokens[part], picked.logprobs[part], picked.model_logprobs[part], picked.entropy[part])
