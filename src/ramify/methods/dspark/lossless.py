"""Whether drafting leaves the target's law alone, checked on a pair of the user's: exact where it can be, by samples where not.

Every schedule runs under made-up costs (64 units a pass and one a token) at which drafts are cut short now and then: cutting is where a
schedule could go wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.seeds import place_key
from ramify.engine.drafters import Drafter
from ramify.engine.local import LocalModel
from ramify.engine.rows import Row
from ramify.engine.sampling import Picked, adjusted, laws
from ramify.engine.schedules import schedule_of
from ramify.engine.speculate import Speculator
from ramify.engine.verify import residual
from ramify.model.protocol import Draw, Prefix, Sampling
from ramify.stats.checks import Check
from ramify.stats.tests import chi_square

LOADS = (1, 8, 32)
"""Requests at once at which draws are compared with those without drafts."""
FEW = 4
"""Tokens left at each position for the test by samples, so that whole outputs of three tokens can be counted."""
LENGTH = 3
TOLERANCE, LEAST_P = 1e-12, 1e-3


class _Costs:
    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        return np.asarray(64.0 + np.asarray(tokens, np.float64))


class _Watched(Speculator):
    """Keeps the largest distance between the law of a verified draft's token and the target's, over all that were verified."""

    worst = 0.0
    seen = 0

    def _verify(
        self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[Sequence[int]], places: Sequence[int], by_coupling: bool
    ) -> list[Picked]:
        lengths = [len(draft) for draft in drafts]
        if not by_coupling and any(lengths):
            stops = np.cumsum([n + 1 for n in lengths])
            entries = [int(stop) - n - 1 + k for stop, n in zip(stops, lengths, strict=True) for k in range(n)]
            settings = [row.job.settings for row, n in zip(rows, lengths, strict=True) for _ in range(n)]
            first = [not row.logprobs and k == 0 for row, n in zip(rows, lengths, strict=True) for k in range(n)]
            _, sampler = laws(logits[entries], settings, first)
            q = [self._weights[k][place] for place, n in zip(places, lengths, strict=True) for k in range(n)]
            found = distance(_whole(sampler.exp()), _whole(torch.stack(q)))
            self.worst, self.seen = max(self.worst, float(found.max())), self.seen + len(entries)
        return super()._verify(logits, rows, drafts, places, by_coupling)


def distance(p: Tensor, q: Tensor) -> Tensor:
    """Total variation between ``p`` and the law of one verified token drafted from ``q``, float64 [N, V] each: exact, [N]."""
    stays = torch.minimum(p, q)  # q x min(1, p / q)
    law = stays + (1 - stays.sum(-1, keepdim=True)) * _whole(residual(p, q))
    return (law - p).abs().sum(-1) / 2


def _whole(weights: Tensor) -> Tensor:
    weights = weights.double()
    return weights / weights.sum(-1, keepdim=True)


def verify(
    model: LocalModel,
    drafter: Drafter,
    prompts: Sequence[np.ndarray],
    seed: int = 0,
    draws: int = 10_000,
    loads: Sequence[int] = LOADS,
) -> list[Check]:
    """The checks, for every schedule: greedy tokens and coupled draws are those without drafts, bit for bit, at each of
    ``loads`` requests at once; the law of one verified token is the target's to 1e-12; ``draws`` outputs of three tokens follow the target's law.

    ``model`` draws without drafts. Raises UserError without prompts.
    """
    if not prompts:
        raise UserError("checking a pair needs at least one prompt")
    block = drafter.config.block
    names = ("fixed:1", f"fixed:{block}", "threshold:0.5", "greedy", "stale2")
    given = [prompts[i % len(prompts)] for i in range(max(len(prompts), max(loads)))]
    settings, greedy = Sampling(max_tokens=4 * block), Sampling(max_tokens=4 * block, temperature=0.0)
    plain = _bare(model)
    wanted = {s.temperature: _draw(plain, given, s, max(loads), seed) for s in (settings, greedy)}
    few = Sampling(max_tokens=LENGTH + 2, top_k=FEW)
    outcomes, law = output_law(plain, given[0], few, LENGTH)
    checks = []
    for name in names:

        def speculating(law: str, name: str = name) -> tuple[LocalModel, _Watched]:
            made = _Watched(drafter, schedule_of(name, block, _Costs()), model.forward.layers, law)
            return plain.speculating(made), made

        for title, sampling, kind in (("coupled draws", settings, "coupled"), ("greedy tokens", greedy, "rejection")):
            differ = 0
            for load in loads:
                made = _draw(speculating(kind)[0], given, sampling, load, seed)
                bits = kind == "coupled"
                differ += sum(not _same(a, b, bits) for a, b in zip(made, wanted[sampling.temperature], strict=True))
            checks.append(_check(f"{name}: {title} that differ", differ, len(loads) * len(given), seed, "==", 0.0))
        sampled, watched = speculating("rejection")
        counts = _count(sampled, given[0], few, draws, outcomes, seed)
        checks.append(
            _check(f"{name}: distance of the law of a verified token", watched.worst, watched.seen, seed, "<", TOLERANCE)
        )
        p_value = chi_square(counts, law)[1]
        checks.append(_check(f"{name}: p of {LENGTH}-token outputs, chi-square", p_value, draws, seed, ">", LEAST_P))
    return checks


def _check(name: str, value: float, n: int, seed: int, op: str, threshold: float) -> Check:
    return Check(name, float(value), None, n, (seed,), op, threshold)


def _bare(model: LocalModel) -> LocalModel:
    """``model`` without a stop token, so that every draw is as long as asked."""
    return LocalModel(model.module, name=model.name, eos=(), max_rows=max(LOADS))


def _draw(model: LocalModel, prompts: Sequence[np.ndarray], settings: Sampling, load: int, seed: int) -> list[Draw]:
    gate = asyncio.Semaphore(load)

    async def one(i: int) -> Draw:
        async with gate:
            return (await model.sample(Prefix(prompts[i]), 1, settings, [place_key(seed, "lossless", i)]))[0]

    async def every() -> list[Draw]:
        return await asyncio.gather(*(one(i) for i in range(len(prompts))))

    return asyncio.run(every())


def _same(a: Draw, b: Draw, bits: bool) -> bool:
    names = ("tokens", "logprobs", "model_logprobs", "entropy") if bits else ("tokens",)
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def output_law(
    model: LocalModel, prompt: np.ndarray, settings: Sampling, length: int
) -> tuple[dict[tuple[int, ...], int], np.ndarray]:
    """Every possible output of ``length`` tokens with its place, and their probabilities, from ordinary forward passes."""
    level: dict[tuple[int, ...], float] = {(): 1.0}
    for k in range(length):
        rows = [torch.from_numpy(np.append(prompt, seen).astype(np.int64)) for seen in level]
        with torch.inference_mode():
            logits = model.forward.logits(model.forward.full(torch.stack(rows).to(model.forward.device))[:, -1])
            laws_here = adjusted(logits.double(), [settings] * len(rows), [k == 0] * len(rows)).exp().cpu().numpy()
        level = {
            (*seen, int(token)): chance * float(law[token])
            for (seen, chance), law in zip(level.items(), laws_here, strict=True)
            for token in np.flatnonzero(law)
        }
    law = np.array(list(level.values()))
    return {seen: i for i, seen in enumerate(level)}, law / law.sum()


def _count(
    model: LocalModel, prompt: np.ndarray, settings: Sampling, draws: int, outcomes: dict[tuple[int, ...], int], seed: int
) -> np.ndarray:
    """How often each outcome came, int [outcomes]; one outside them would be the last, with probability 0."""
    keys = [place_key(seed, "lossless", "sample", i) for i in range(draws)]
    made = asyncio.run(model.sample(Prefix(prompt), draws, settings, keys))
    length = len(next(iter(outcomes)))
    found = [outcomes.get(tuple(draw.tokens[:length].tolist()), -1) for draw in made if draw.tokens is not None]
    if -1 in found:
        raise UserError("an output came that the target cannot give: near-ties at a cut; take another prompt")
    return np.bincount(found, minlength=len(outcomes))


def verdict(checks: Sequence[Check]) -> list[list[Any]]:
    """Rows of a table: check, value, what it must be, observations, status."""
    return [[c.name, c.value, f"{c.op} {c.threshold:g}" if c.threshold is not None else "", c.n, c.status] for c in checks]
