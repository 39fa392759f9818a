"""From logits to one token per row: applies the sampling settings to the model's distribution.

In vLLM's order: grammar and bans, ``logit_bias``, ``repetition_penalty``, ``frequency_penalty`` and ``presence_penalty``,
temperature, ``min_p``, ``top_k``, ``top_p``; then one uniform a row through the inverse of the CDF.

Axis legend: N rows that sample, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.seeds import row_of_uniforms
from ramify.model.protocol import Sampling

Shape = Callable[[Tensor], None]
"""Changes one row's logits, float64 [V], in place by what the reply says so far:
grammar and penalties (:mod:`ramify.engine.grammar`)."""
Shapes = Sequence[Shape | None] | None
"""One a row, None for a row that has none; None where no row has one."""


PIECE = 1 << 18
"""Logits that are worked on together."""
WIDE, WITHIN = 8192, 256
"""Vocabulary from which a token is looked for in blocks; entries of a block."""


@dataclass(frozen=True, slots=True)
class Picked:
    """One token a row, each list of length N. ``logprobs`` under the sampler,
    ``model_logprobs`` under the model; entropy in nats."""

    tokens: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    entropy: list[float]


def check(settings: Sampling, vocab: int) -> None:
    """Raises UserError on an invalid setting, naming the field."""
    if not settings.temperature >= 0 or settings.temperature == float("inf"):
        raise UserError(f"temperature is {settings.temperature}; it must be a number from 0 up")
    if not 0 < settings.top_p <= 1:
        raise UserError(f"top_p is {settings.top_p}; it must lie above 0 and at most at 1")
    if settings.top_k < 0:
        raise UserError(f"top_k is {settings.top_k}; it must be 0 (keep all) or more")
    if not 0 <= settings.min_p <= 1:
        raise UserError(f"min_p is {settings.min_p}; it must lie between 0 and 1")
    if not 0 < settings.repetition_penalty < math.inf:
        raise UserError(f"repetition_penalty is {settings.repetition_penalty}; it must be a number above 0")
    for name in ("frequency_penalty", "presence_penalty"):
        if not math.isfinite(getattr(settings, name)):
            raise UserError(f"{name} is {getattr(settings, name)}; it must be a number")
    for token, value in settings.logit_bias:
        if not 0 <= token < vocab:
            raise UserError(f"logit_bias names token {token}; the model knows 0 to {vocab - 1}")
        if not math.isfinite(value):
            raise UserError(f"logit_bias of token {token} is {value}; it must be a number")
    if settings.max_tokens < 1:
        raise UserError(f"max_tokens is {settings.max_tokens}; it must be at least 1")
    if "" in settings.stop_texts:
        raise UserError("stop_texts holds an empty text, which every sample contains")
    for name in ("stop_tokens", "ban", "ban_first"):
        for token in getattr(settings, name):
            if not 0 <= token < vocab:
                raise UserError(f"{name} holds token {token}; the model knows 0 to {vocab - 1}")
    if len({*settings.ban, *settings.ban_first}) >= vocab:
        raise UserError("ban and ban_first leave no token to sample")


def key_uniforms(key: int, count: int) -> np.ndarray:
    """float64 (count,): the uniforms of one sample, by position in the sample;
    kept off 1 so that rounding never passes the last token."""
    return row_of_uniforms(key, count, 1 - 2.0**-52)


def adjusted(logits: Tensor, settings: Sequence[Sampling], first: Sequence[bool], shapes: Shapes = None) -> Tensor:
    """Log-probabilities of the sampling distribution, float64 [N, V] of ``logits`` float64 [N, V]; cut tokens have -inf.

    Ties at a cut are kept by lowest id. Top-p keeps the fewest most likely tokens whose mass reaches ``top_p`` after top-k.
    Temperature 0 puts all mass on the most likely token (lowest id on ties).
    Without its shape a row has neither grammar nor penalties.
    """
    z = logits.clone()
    for row, (s, is_first) in enumerate(zip(settings, first, strict=True)):
        banned = (*s.ban, *s.ban_first) if is_first else s.ban
        if banned:
            z[row, list(banned)] = float("-inf")
        if s.logit_bias:
            ids, values = zip(*s.logit_bias, strict=True)
            z[row, list(ids)] += torch.tensor(values, dtype=torch.float64, device=z.device)
        if shapes is not None and (shape := shapes[row]) is not None:
            shape(z[row])
    greedy = [s.temperature == 0 for s in settings]
    heat = torch.tensor([s.temperature or 1.0 for s in settings], dtype=torch.float64, device=z.device)
    z /= heat[:, None]
    if any(s.min_p for s in settings):
        least = torch.tensor(
            [math.log(s.min_p) if s.min_p else -math.inf for s in settings], dtype=torch.float64, device=z.device
        )
        z.masked_fill_(z < z.amax(-1, keepdim=True) + least[:, None], float("-inf"))
    if all(greedy) and z.shape[1] >= WIDE:  # the sort below says the same, and takes milliseconds
        places = torch.arange(z.shape[1], device=z.device)
        best = torch.where(z == z.amax(-1, keepdim=True), places, z.shape[1]).amin(-1, keepdim=True)
        return torch.full_like(z, float("-inf")).scatter_(1, best, 0.0)
    if any(greedy) or any(s.top_k or s.top_p < 1 for s in settings):
        top_k = torch.tensor([1 if g else s.top_k or z.shape[1] for s, g in zip(settings, greedy, strict=True)], device=z.device)
        top_p = torch.tensor([s.top_p for s in settings], dtype=torch.float64, device=z.device)
        ordered, order = z.sort(dim=-1, descending=True, stable=True)
        ordered.masked_fill_(torch.arange(z.shape[1], device=z.device) >= top_k[:, None], float("-inf"))
        mass = ordered.softmax(-1)
        before = mass.cumsum(-1) - mass
        ordered.masked_fill_((before >= top_p[:, None]) & (top_p[:, None] < 1), float("-inf"))
        z = torch.full_like(z, float("-inf")).scatter_(1, order, ordered)
    return z.log_softmax(-1)


def distributions(
    logits: Tensor, settings: Sequence[Sampling], first: Sequence[bool], shapes: Shapes = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the model and of the sampler, float32 [N, V] each;
    one tensor where no row's settings change the model's.

    ``first[i]`` marks row i's first sampled token. A row's result depends on that row alone.
    """
    model = logits.float().log_softmax(-1)
    changed = [i for i, (s, f) in enumerate(zip(settings, first, strict=True)) if not s.plain(f)]
    if not changed:
        return model, model
    shaped = None if shapes is None else [shapes[i] for i in changed]
    part = adjusted(logits[changed].double(), [settings[i] for i in changed], [first[i] for i in changed], shaped)
    sampler = model.clone()
    sampler[changed] = part.float()
    return model, sampler


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """int64 [N]: one index a row of ``weights`` [N, V], which need not sum to 1,
    at the uniforms ``u`` float64 [N, 1]. Sums are float64, of a wide row by blocks first, then inside one."""
    if weights.shape[1] >= WIDE:
        return _in_blocks(weights, u)
    cdf = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cdf, u * cdf.narrow(1, cdf.shape[1] - 1, 1), right=True).squeeze(1)


def _in_blocks(weights: Tensor, u: Tensor) -> Tensor:
    blocks = F.pad(weights, (0, -weights.shape[1] % WITHIN)).unflatten(1, (-1, WITHIN))
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted = u * ends[:, -1:]
    block = torch.searchsorted(ends, wanted, right=True)
    before = F.pad(ends, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, WITHIN))[:, 0].cumsum(-1, dtype=torch.float64)
    last = torch.nextafter(inside[:, -1:], torch.zeros_like(before))  # the two ways to sum a block differ in their last bits
    return (block * WITHIN + torch.searchsorted(inside, torch.minimum(wanted - before, last), right=True)).squeeze(1)


def pick(
    logits: Tensor, settings: Sequence[Sampling], first: Sequence[bool], u: Sequence[float], shapes: Shapes = None
) -> Picked:
    """Sample one token for each row of ``logits`` [N, V]; ``first[i]`` marks row i's first sampled token, ``u[i]`` its uniform.

    A row's result depends on that row alone. Log-probabilities are those of the float32 logits,
    sums over the vocabulary are float64. A few rows are done at a time: what is made of their logits stays in the processor's
    cache, and new memory is what costs most here.
    """
    rows = max(1, PIECE // logits.shape[1])
    picked = Picked([], [], [], [])
    for at in range(0, len(logits), rows):
        part = slice(at, at + rows)
        shaped = None if shapes is None else shapes[part]
        some = pick_from(*distributions(logits[part], settings[part], first[part], shaped), u[part])
        picked.tokens.extend(some.tokens)
        picked.logprobs.extend(some.logprobs)
        picked.model_logprobs.extend(some.model_logprobs)
        picked.entropy.extend(some.entropy)
    return picked


def pick_from(model: Tensor, sampler: Tensor, u: Sequence[float]) -> Picked:
    """As :func:`pick`, given what :func:`distributions` found."""
    weights = model.exp()
    entropy = (weights * model).nansum(-1).neg_()  # 0 x -inf is 0 here
    uniforms = torch.tensor(u, dtype=torch.float64, device=model.device).unsqueeze(1)
    tokens = inverse_cdf(weights if sampler is model else sampler.exp(), uniforms).unsqueeze(1)
    chosen = sampler.gather(1, tokens).squeeze(1).tolist()
    of_model = chosen if sampler is model else model.gather(1, tokens).squeeze(1).tolist()
    return Picked(tokens.squeeze(1).tolist(), chosen, of_model, entropy.tolist())
