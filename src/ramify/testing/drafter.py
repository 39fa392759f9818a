"""The conformance battery every drafter must pass: what the engine relies on, each point one check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ramify.base.problem import Problem
from ramify.engine.batch import UNIT
from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafter, Drafts
from ramify.testing.probe import run_checks

FIRST = 2
"""KVCache layers before the drafter's: they stand for the target's."""
LENGTHS = (5, 12, 9)
"""Positions of the anchors of the rows."""
BETWEEN = 1e-4
"""How far logits may lie apart that are the same but for rounding."""


def check_drafter(drafter: Drafter, seed: int = 0) -> list[Problem]:
    """Run every check on made-up context; no problem means the drafter conforms. A target of random weights is attached to it."""
    with torch.inference_mode():  # as the engine calls it
        return run_checks(CHECKS, _Probe(drafter, seed))


@dataclass
class _Run:
    """One draft: what it returned, the logits it handed to ``pick``, the cache after it."""

    drafts: Drafts
    logits: Tensor
    cache: KVCache


@dataclass
class _Probe:
    drafter: Drafter
    seed: int
    tokens: Tensor = field(init=False)
    features: Tensor = field(init=False)

    def __post_init__(self) -> None:
        c = self.drafter.config
        generator = torch.Generator().manual_seed(self.seed)
        T = max(LENGTHS) + c.block + 1
        self.tokens = torch.randint(c.vocab, (len(LENGTHS), T), generator=generator)
        self.features = torch.randn((len(LENGTHS), T, len(c.target_layers) * c.width), generator=generator)
        self.drafter.attach(
            torch.randn((c.vocab, c.width), generator=generator), torch.randn((c.vocab, c.width), generator=generator)
        )

    def cache(self, portions: int = 1, rows: range = range(len(LENGTHS))) -> KVCache:
        """A KV cache whose slots hold the context, taken in as so many portions."""
        c = self.drafter.config
        cache = KVCache(FIRST + self.drafter.layers, c.kv_size, torch.device("cpu"))
        cache.reserve(4, max(LENGTHS) + c.block)
        for share in range(portions):
            where = [(r, p) for r in rows for p in range(share * LENGTHS[r] // portions, (share + 1) * LENGTHS[r] // portions)]
            slots, positions = torch.tensor(where).unbind(1)
            self.drafter.absorb(
                cache, FIRST, slots, positions, self.features[slots, positions], self.tokens[slots, positions + 1]
            )
        return cache

    def draft(
        self, cache: KVCache, rows: tuple[int, ...] = (0, 1, 2), depth: int | None = None, sampled: Tensor | None = None
    ) -> _Run:
        """Draft for some rows with the tokens ``sampled`` [rows, T] (None: the made-up ones) whatever the logits say."""
        slots, given = torch.tensor(rows), self.tokens if sampled is None else sampled
        positions = torch.tensor([LENGTHS[r] for r in rows])
        seen: list[Tensor] = []

        def pick(k: int, logits: Tensor) -> Tensor:
            seen.append(logits.clone())
            return given[slots, positions + k + 1]

        depth = self.drafter.config.block if depth is None else depth
        drafts = self.drafter.draft(cache, FIRST, slots, self.tokens[slots, positions], positions, pick, depth)
        return _Run(drafts, torch.stack(seen, 1), cache)


def _shape(probe: _Probe) -> Iterator[str]:
    c = probe.drafter.config
    for depth in {1, c.block}:
        run, rows = probe.draft(probe.cache(), depth=depth), len(LENGTHS)
        if run.logits.shape != (rows, depth, c.vocab) or not torch.isfinite(run.logits).all():
            yield f"pick is not given {depth} times finite logits [rows, {c.vocab}]"
        for name in ("tokens", "confidence", "scores"):
            if getattr(run.drafts, name).shape != (rows, depth):
                yield f"{name} is {tuple(getattr(run.drafts, name).shape)} where {(rows, depth)} was requested"


def _tokens(probe: _Probe) -> Iterator[str]:
    run = probe.draft(probe.cache())
    wanted = torch.stack([probe.tokens[r, p + 1 : p + 1 + probe.drafter.config.block] for r, p in enumerate(LENGTHS)])
    if not torch.equal(run.drafts.tokens, wanted):
        yield "its tokens are not those that pick sampled"


def _confidence(probe: _Probe) -> Iterator[str]:
    confidence = probe.draft(probe.cache()).drafts.confidence
    if not (confidence.isnan().all() or ((confidence >= 0) & (confidence <= 1)).all()):
        yield "its confidences are neither probabilities nor all nan"


def _blind_to_its_own_token(probe: _Probe) -> Iterator[str]:
    """A confidence that has seen its own token makes even a causal threshold biased (spec 8, traps)."""
    plain = probe.draft(probe.cache())
    p = torch.tensor(LENGTHS)
    for k in range(probe.drafter.config.block):
        other = probe.tokens.clone()
        other[torch.arange(len(p)), p + k + 1] = (other[torch.arange(len(p)), p + k + 1] + 1) % probe.drafter.config.vocab
        changed = probe.draft(probe.cache(), sampled=other)
        upto = slice(0, k + 1)
        if not torch.equal(changed.drafts.scores[:, upto].nan_to_num(), plain.drafts.scores[:, upto].nan_to_num()):
            yield f"the confidence of token {k} or of one before it depends on that token"
        if not torch.equal(changed.logits[:, upto], plain.logits[:, upto]):
            yield f"the distribution of token {k} or of one before it depends on that token"


def _repeats(probe: _Probe) -> Iterator[str]:
    first, second = probe.draft(probe.cache()), probe.draft(probe.cache())
    if not torch.equal(first.logits, second.logits):
        yield "the same context gives other logits the second time"


def _portions(probe: _Probe) -> Iterator[str]:
    whole, parts = probe.draft(probe.cache()), probe.draft(probe.cache(portions=3))
    if not torch.allclose(whole.logits, parts.logits, atol=BETWEEN, rtol=BETWEEN):
        yield "context taken in by portions gives other logits than taken in at once"


def _rows(probe: _Probe) -> Iterator[str]:
    together = probe.draft(probe.cache())
    for r in range(len(LENGTHS)):
        alone = probe.draft(probe.cache(), rows=(r,))
        if not torch.allclose(alone.logits[0], together.logits[r], atol=BETWEEN, rtol=BETWEEN):
            yield "a row's logits depend on the rows it is drafted with"


def _later_context(probe: _Probe) -> Iterator[str]:
    plain, cache = probe.draft(probe.cache()), probe.cache()
    for r, p in enumerate(LENGTHS):
        cache.kv[FIRST:, r, p:] = 1e3
    if not torch.allclose(probe.draft(cache).logits, plain.logits, atol=BETWEEN, rtol=BETWEEN):
        yield "it reads what lies in the cache at or after its anchor"


def _earlier_context(probe: _Probe) -> Iterator[str]:
    plain = probe.draft(probe.cache())
    probe.features[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] += 1.0
    changed = probe.draft(probe.cache())
    probe.features[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] -= 1.0
    if any(torch.equal(changed.logits[r], plain.logits[r]) for r in range(len(LENGTHS))):
        yield "the features just before the anchor make no difference"


def _writes(probe: _Probe) -> Iterator[str]:
    cache = probe.cache()
    before = cache.kv.clone()
    probe.draft(cache, rows=(0, 2))
    if not torch.equal(cache.kv[:FIRST], before[:FIRST]):
        yield "it writes to layers that are not its own"
    if not torch.equal(cache.kv[:, 1], before[:, 1]) or not torch.equal(cache.kv[:, 3:], before[:, 3:]):
        yield "it writes to rows that it was not asked for"
    scratch = probe.drafter.config.block + UNIT  # batches are filled up
    for r in (0, 2):
        kept = torch.cat((cache.kv[:, r, : LENGTHS[r]], cache.kv[:, r, LENGTHS[r] + scratch :]), 1)
        was = torch.cat((before[:, r, : LENGTHS[r]], before[:, r, LENGTHS[r] + scratch :]), 1)
        if not torch.allclose(kept, was, atol=BETWEEN, rtol=BETWEEN):
            yield "it changes positions outside its block"


CHECKS: tuple[Callable[[_Probe], Iterator[str]], ...] = (
    _shape, _tokens, _confidence, _blind_to_its_own_token, _repeats, _portions, _rows, _later_context, _earlier_context,
    _writes,
)  # fmt: skip
