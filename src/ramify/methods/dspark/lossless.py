"""Whether drafting leaves the target's distribution alone, checked on a pair of the user's:
exact where it can be, by samples where not.

greedy and stale2 run under the profile of the pair where there is one; otherwise under made-up costs (64 units a pass and one a
token) at which drafts are cut short now and then: cutting is where a schedule could go wrong.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from dataclasses import replace

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafter, Drafts, Pick
from ramify.engine.local import LocalModel
from ramify.engine.sampling import Picked, adjusted, distributions
from ramify.engine.schedules import Costs, FixedSchedule, Schedule, ranked, rates, schedule_of, survival
from ramify.engine.sequence import Sequence
from ramify.engine.speculate import Round, Speculator
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.engine.verify import rejection
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.model.protocol import Completion, Grammar, Prefix, Sampling
from ramify.stats.checks import Check
from ramify.stats.intervals import wilson
from ramify.stats.tests import chi_square

LOADS = (1, 8, 32)
"""Requests at once at which samples are compared with those without drafts."""
FEW = 4
"""Tokens left at each position for the test by samples, so that whole outputs of three tokens can be counted."""
LENGTH = 3
TOLERANCE, LEAST_P = 1e-12, 1e-3
CONTROL = 1000
"""Outputs of the control at least: its two models are tiny, and its bias must be seen."""
FEW_OPEN = 10.0
"""Variance of a number of accepted drafts below which it is not taken as normal: nearly all of their chances are 0 or 1."""
MEASURED = 64
"""Verified drafts with different pasts at which the distribution of verification is measured."""
HALVINGS = 50
OFTEN = 50
"""Least number of drafts after one prefix that is tested against its distribution."""

Past = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens sampled, and tokens drafted after them."""


class _Costs:
    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        return np.asarray(64.0 + np.asarray(tokens, np.float64))


class _Watched(Speculator):
    """Counts the drafts by what came before them, and keeps what was verified."""

    def __init__(self, drafter: Drafter, schedule: Schedule, first: int, distribution: str) -> None:
        super().__init__(drafter, schedule, first, distribution)
        self._controller = None  # a check should not depend on the clock
        self.sampled: dict[Past, tuple[np.ndarray, np.ndarray]] = {}
        """By past: the sum of the distributions said to be sampled from, and how often each token was drafted, [V] each."""
        self.verified: dict[Past, tuple[Tensor, Tensor, Sampling]] = {}
        """By past: the target's logits and the drafter's weights, [V] each, and the settings."""
        self.acceptances: list[tuple[np.ndarray, np.ndarray]] = []
        """By pass: of the drafts that were reached, the chance of being accepted that their distributions give, and whether they
        were."""

    def _draft(self, cache: KVCache, sequences: GenericSequence[Sequence], slots: GenericSequence[int], depth: int) -> Round:
        made = super()._draft(cache, sequences, slots, depth)
        for seq, block, weights in zip(sequences, made.drafts, () if made.q is None else made.q, strict=made.q is not None):
            for k, q in enumerate(weights):
                past = _past(seq, block[:k])
                # A sum: a drafter may know more or less of the same past, so its distribution there need not be one.
                expected, count = self.sampled.setdefault(past, (np.zeros(len(q)), np.zeros(len(q), np.int64)))
                expected += _whole(q).cpu().numpy()
                count[block[k]] += 1
        return made

    def _verify(self, logits: Tensor, sequences: GenericSequence[Sequence], round_: Round, by_coupling: bool) -> list[Picked]:
        entry, q = 0, None if by_coupling else round_.q
        for seq, draft, index in zip(sequences, round_.drafts, round_.places, strict=True):
            for k in range(len(draft)):
                past = _past(seq, draft[:k])
                if q is not None and past not in self.verified and len(self.verified) < MEASURED:
                    self.verified[past] = logits[entry + k].clone(), q[index, k].clone(), seq.request.settings
            entry += len(draft) + 1
        emitted = super()._verify(logits, sequences, round_, by_coupling)
        if not by_coupling:
            self._count_accepted(logits, sequences, round_, [len(made.tokens) - 1 for made in emitted])
        return emitted

    def _count_accepted(
        self, logits: Tensor, sequences: GenericSequence[Sequence], round_: Round, stayed: GenericSequence[int]
    ) -> None:
        """Keep what became of every draft that was reached; the first ``stayed[i]`` of sequence i were accepted."""
        if round_.q is None:
            return
        each = [
            (seq.request.settings, not seq.logprobs and k == 0)
            for seq, d in zip(sequences, round_.drafts, strict=True)
            for k in range(len(d) + 1)
        ]
        p = _whole(distributions(logits, [s for s, _ in each], [first for _, first in each])[1].exp())
        q = _whole(round_.q)
        starts = np.cumsum([0, *(len(draft) + 1 for draft in round_.drafts[:-1])]).tolist()
        reached = [
            (start + k, index, k, draft[k], k < n)
            for start, index, draft, n in zip(starts, round_.places, round_.drafts, stayed, strict=True)
            for k in range(min(n + 1, len(draft)))
        ]
        if reached:
            e, r, k, token, kept = (np.array(column) for column in zip(*reached, strict=True))
            self.acceptances.append((np.minimum(1.0, (p[e, token] / q[r, k, token]).cpu().numpy()), kept.astype(bool)))

    def apart(self) -> float:
        """The largest :func:`distance` over the verified drafts that were kept; 0 without any."""
        if not self.verified:
            return 0.0
        logits, q, settings = zip(*self.verified.values(), strict=True)
        return float(distance(torch.stack(logits).cpu(), torch.stack(q).cpu(), settings).max())

    def p_of_drafts(self) -> float:
        """Least p of the drafts' chi-squares against the distributions kept, by past, times their number."""
        found = [
            chi_square(count, distribution / distribution.sum())[1]
            for distribution, count in self.sampled.values()
            if count.sum() >= OFTEN
        ]
        return min(1.0, min(found, default=1.0) * len(found)) if found else 1.0


def _past(seq: Sequence, draft: GenericSequence[int]) -> Past:
    return tuple(seq.sampled), tuple(draft)


def distance(logits: Tensor, q: Tensor, settings: GenericSequence[Sampling]) -> Tensor:
    """Total variation between the target's distribution and that of a token verified by the engine's ``rejection``, float64 [N].

    ``logits`` and the drafter's weights ``q`` are [N, V], of which the 2 x ``FEW`` likeliest tokens of a row count.
    """
    likely = (
        (distributions(logits, settings, [False] * len(q))[1].exp().double() + _whole(q)).topk(min(q.shape[1], 2 * FEW)).indices
    )
    likely = likely.sort().values  # in order, so that ties at a cut fall as before
    logits, q = logits.gather(1, likely), q.gather(1, likely)
    distribution = torch.from_numpy(verified_distribution(logits, q, settings))
    return (distribution - _whole(distributions(logits, settings, [False] * len(q))[1].exp())).abs().sum(-1) / 2


def verified_distribution(logits: Tensor, q: Tensor, settings: GenericSequence[Sampling]) -> np.ndarray:
    """Distribution of one verified token drafted from ``q``, float64 [N, V],
    found by halving on the uniforms that ``rejection`` decides by.

    For each draft, the uniform above which it is rejected; for a rejected one, where each token of the correction ends.
    """
    n, vocab = q.shape
    batch = logits.repeat_interleave(2 * vocab, 0)  # for each draft its own entry and the one of the bonus
    weights, each = q.repeat_interleave(vocab, 0)[:, None], [s for s in settings for _ in range(vocab)]

    def border(below: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        low, high = np.zeros(n * vocab), np.ones(n * vocab)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            yes = below(middle)
            low, high = np.where(yes, middle, low), np.where(yes, high, middle)
        return high.reshape(n, vocab)

    def run(drafts: np.ndarray, accept: np.ndarray, u: np.ndarray) -> list[list[int]]:
        made = rejection(
            batch, each, [False] * len(each), list(np.stack((u, u), 1)), drafts[:, None].tolist(), weights, accept[:, None]
        )
        return [one.tokens for one in made]

    every = np.tile(np.arange(vocab), n)
    half = np.full(n * vocab, 0.5)
    stays = border(lambda u: np.array([len(tokens) == 2 for tokens in run(every, u, half)]))
    chance = _whole(q).numpy()
    refused = np.where(chance > 0, stays, 2.0).argmin(axis=1).repeat(vocab)
    ends = border(lambda u: np.array([t[0] for t in run(refused, np.ones(n * vocab), u)]) <= every)
    corrected = np.diff(ends, prepend=0.0)
    return np.asarray(chance * stays + (chance * (1 - stays)).sum(axis=1, keepdims=True) * corrected)


def _whole(weights: Tensor) -> Tensor:
    weights = weights.double()
    return weights / weights.sum(-1, keepdim=True)


def verify(
    model: LocalModel,
    drafter: Drafter,
    prompts: GenericSequence[np.ndarray],
    seed: int = 0,
    samples: int = 10_000,
    loads: GenericSequence[int] = LOADS,
    costs: Costs | None = None,
    schedules: GenericSequence[str] = (),
    grammar: Grammar | None = None,
    progress: Progress = SILENT,
) -> list[Check]:
    """The checks, for every schedule (or those in ``schedules``): greedy tokens and coupled samples are those without drafts, bit
    for bit, at each of ``loads`` requests at once; the engine's verification of a token, measured, has the target's distribution
    to 1e-12; drafts follow the distribution that verification is told, and ``draws`` outputs of three tokens the target's
    distribution; over all schedules, as many drafts are accepted as their distributions say. Last, :func:`control`.

    With a ``grammar`` greedy tokens and coupled samples are compared under it, too. ``model`` samples without drafts; ``costs``
    are for greedy and stale2 (None: made-up ones). A check's n is what it rests on: 0 where a schedule drafted nothing under its
    costs. Each schedule is a phase of ``progress``. Raises UserError without prompts and for an unknown schedule.
    """
    if not prompts:
        raise UserError("checking a pair needs at least one prompt")
    block = drafter.config.block
    names = schedules or ("fixed:1", f"fixed:{block}", "threshold:0.5", "greedy", "stale2")
    for name in names:
        schedule_of(name, block, costs or _Costs())
    given = [prompts[i % len(prompts)] for i in range(max(len(prompts), max(loads)))]
    progress.begin(len(names), 0, "without drafts", "schedules")
    settings, greedy = Sampling(max_tokens=4 * block), Sampling(max_tokens=4 * block, temperature=0.0)
    plain = _bare(model)
    cases = [("coupled samples", settings, "coupled"), ("greedy tokens", greedy, "rejection")]
    if grammar is not None:
        cases += [(f"{title} under the grammar", replace(s, grammar=grammar), kind) for title, s, kind in cases]
    wanted = {title: _sample(plain, given, s, max(loads), seed) for title, s, _ in cases}
    few = Sampling(max_tokens=LENGTH + 2, top_k=FEW)
    outcomes, distribution = output_distribution(plain, given[0], few, LENGTH)
    checks: list[Check] = []
    reached: list[tuple[np.ndarray, np.ndarray]] = []
    for i, name in enumerate(names):
        progress.at(i, phase=name)

        def speculating(distribution: str, name: str = name) -> tuple[LocalModel, _Watched]:
            made = _Watched(drafter, schedule_of(name, block, costs or _Costs()), model.forward.layers, distribution)
            return plain.speculating(made), made

        for title, sampling, kind in cases:
            differ = 0
            for load in loads:
                made = _sample(speculating(kind)[0], given, sampling, load, seed)
                bits = kind == "coupled"
                differ += sum(not _same(a, b, bits) for a, b in zip(made, wanted[title], strict=True))
            checks.append(_check(f"{name}: {title} that differ", differ, len(loads) * len(given), seed, "==", 0.0))
        sampled, watched = speculating("rejection")
        counts = _count(sampled, given[0], few, samples, outcomes, seed, name)
        reached += watched.acceptances
        seen = len(watched.verified)
        checks.append(
            _check(f"{name}: distance of the distribution of a verified token", watched.apart(), seen, seed, "<", TOLERANCE)
        )
        drafted = sum(int(count.sum()) for _, count in watched.sampled.values())
        checks.append(_check(f"{name}: p of drafts, chi-square", watched.p_of_drafts(), drafted, seed, ">", LEAST_P))
        p_value = chi_square(counts, distribution)[1]
        checks.append(_check(f"{name}: p of {LENGTH}-token outputs, chi-square", p_value, samples, seed, ">", LEAST_P))
    return checks + _accepted(reached, seed) + control(max(samples, CONTROL), seed)


def shift_seen(samples: int) -> float:
    """The least probability that must move from one half of the outputs to the other for ``samples`` of them to show it: with
    power .8 at p below ``LEAST_P``, by the normal approximation of a share of one half. Of more cells it must be more."""
    return (float(ndtri(1 - LEAST_P / 2)) + float(ndtri(0.8))) / (2 * math.sqrt(samples))


def _accepted(reached: GenericSequence[tuple[np.ndarray, np.ndarray]], seed: int) -> list[Check]:
    """The share of drafts that were accepted, and the two-sided p of their number against the sum of their chances.

    Given the past a draft is accepted with its chance, so the number less the sum of the chances is a martingale: asymptotically
    normal with the sum of their variances. Where that sum is small, Chebyshev's bound stands in.
    """
    chance, kept = (
        (np.concatenate([[], *column]) for column in zip(*reached, strict=True)) if reached else (np.empty(0), np.empty(0))
    )
    n, k, variance = len(kept), int(kept.sum()), float((chance * (1 - chance)).sum())
    off = abs(k - float(chance.sum()))
    if variance >= FEW_OPEN:
        p_value = math.erfc(off / math.sqrt(2 * variance))
    else:
        p_value = min(1.0, variance / off**2) if off > 0.5 else 1.0
    share = Check("all schedules: drafts accepted", k / n if n else math.nan, wilson(k, n) if n else None, n, (seed,), "report")
    return [share, _check("all schedules: p of accepted drafts, against their chances", p_value, n, seed, ">", LEAST_P)]


class _Coin(Qwen3Drafter):
    """The drafter of the specification's example: even odds, confidence .8, then .9 after token 0 and 0 after token 1."""

    def absorb(self, cache: KVCache, first: int, slots: Tensor, positions: Tensor, features: Tensor, following: Tensor) -> None:
        """Nothing: its distribution is the same everywhere."""

    def draft(
        self, cache: KVCache, first: int, slots: Tensor, anchors: Tensor, positions: Tensor, pick: Pick, depth: int
    ) -> Drafts:
        """Up to two tokens."""
        made = [pick(k, torch.zeros((len(slots), 2))) for k in range(depth)]
        sure = [torch.full((len(slots),), 0.8), torch.where(made[0] == 0, 0.9, 0.0)][:depth]
        confidence = torch.stack(sure, 1)
        return Drafts(torch.stack(made, 1), confidence, torch.logit(confidence))


class Anticipating:
    """What must not be done: each row's best total by this step's confidences, which look past a draft before it is admitted."""

    speed = np.array([1.0, 0.5, 0.45])

    def depth(self, requests: int) -> int:
        """Always both."""
        return 2

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """The total of the highest rate."""
        values = [ranked(survival(row[None]))[1] for row in confidence]
        best = [int(np.argmax(rates(one, 1, 1 / self.speed[: len(one) + 1]))) for one in values]
        return np.asarray(np.minimum(best, limits))


def control(samples: int, seed: int) -> list[Check]:
    """The specification's example in the running engine, target (.7, .3), counted as the pair's outputs are: a schedule that
    anticipates is caught, and the same pair passes with both drafts always verified.
    """
    target = TinyLM(TinyConfig(2, width=8, layers=2, heads=1, kv_heads=1, head_size=8, ffn=8, context=64, tied=False))
    with torch.no_grad():
        for weight in target.parameters():
            weight.fill_(float(weight.dim() == 1))
        target.model.embed_tokens.weight.fill_(1.0)
        target.head.copy_(torch.tensor([0.7, 0.3]).log()[:, None].expand(2, 8) / 8)  # every state is (1, .., 1)
    drafter = _Coin(for_target(target, layers=1, block=2, rank=1).config)
    plain = LocalModel(target, eos=(), max_sequences=max(LOADS))
    prompt, settings = np.zeros(2, np.int32), Sampling(max_tokens=LENGTH + 2)
    outcomes, distribution = output_distribution(plain, prompt, settings, LENGTH)
    checks = []
    for name, schedule, op in (("biased control is caught", Anticipating(), "<"), ("both drafts always", FixedSchedule(2), ">")):
        made = plain.speculating(_Watched(drafter, schedule, plain.forward.layers, "rejection"))
        p_value = chi_square(_count(made, prompt, settings, samples, outcomes, seed, name), distribution)[1]
        checks.append(_check(f"example of section 8, {name}: p of {LENGTH}-token outputs", p_value, samples, seed, op, LEAST_P))
    return checks


def _check(name: str, value: float, n: int, seed: int, op: str, threshold: float) -> Check:
    return Check(name, float(value), None, n, (seed,), op, threshold)


def _bare(model: LocalModel) -> LocalModel:
    """``model`` without a stop token, so that every sample has the requested length."""
    return LocalModel(model.module, model.tokenizer, name=model.name, eos=(), max_sequences=max(LOADS))


def _sample(
    model: LocalModel, prompts: GenericSequence[np.ndarray], settings: Sampling, load: int, seed: int
) -> list[Completion]:
    gate = asyncio.Semaphore(load)

    async def one(i: int) -> Completion:
        async with gate:
            return (await model.sample(Prefix(prompts[i]), 1, settings, [derive_key(seed, "lossless", i)]))[0]

    async def every() -> list[Completion]:
        return await asyncio.gather(*(one(i) for i in range(len(prompts))))

    return wait_for(every())


def _same(a: Completion, b: Completion, bits: bool) -> bool:
    names = ("tokens", "logprobs", "model_logprobs", "entropy") if bits else ("tokens",)
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def output_distribution(
    model: LocalModel, prompt: np.ndarray, settings: Sampling, length: int
) -> tuple[dict[tuple[int, ...], int], np.ndarray]:
    """Every possible output of ``length`` tokens with its index, and their probabilities, from ordinary forward passes."""
    level: dict[tuple[int, ...], float] = {(): 1.0}
    for k in range(length):
        rows = [torch.from_numpy(np.append(prompt, seen).astype(np.int64)) for seen in level]
        with torch.inference_mode():
            logits = model.forward.logits(model.forward.full(torch.stack(rows).to(model.forward.device))[:, -1])
            distributions_here = adjusted(logits.double(), [settings] * len(rows), [k == 0] * len(rows)).exp().cpu().numpy()
        level = {
            (*seen, int(token)): chance * float(distribution[token])
            for (seen, chance), distribution in zip(level.items(), distributions_here, strict=True)
            for token in np.flatnonzero(distribution)
        }
    distribution = np.array(list(level.values()))
    return {seen: i for i, seen in enumerate(level)}, distribution / distribution.sum()


def _count(
    model: LocalModel,
    prompt: np.ndarray,
    settings: Sampling,
    samples: int,
    outcomes: dict[tuple[int, ...], int],
    seed: int,
    name: str,
) -> np.ndarray:
    """How often each outcome came, int [outcomes]; one outside them would be the last, with probability 0.

    The samples are those of ``name``: schedules that shared theirs would repeat one another's accidents.
    """
    keys = [derive_key(seed, "lossless", "sample", name, i) for i in range(samples)]
    made = wait_for(model.sample(Prefix(prompt), samples, settings, keys))
    length = len(next(iter(outcomes)))
    found = [outcomes.get(tuple(completion.tokens[:length].tolist()), -1) for completion in made if completion.tokens is not None]
    if -1 in found:
        raise UserError("an output came that the target cannot give: near-ties at a cut; take another prompt")
    return np.bincount(found, minlength=len(outcomes))
