"""A model that never says a class of sentences: what it sampled is read sentence by sentence,
and one of the class is sampled anew.

Repeated resampling (arXiv 2606.26071, section 3; resilience in arXiv 2510.27484). The distribution is that of sampling sentence
by sentence and rejecting; a whole rest is sampled at a time because it costs fewer calls.
A sample in which nothing is rejected is the model's own sample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.ids import stable_hash
from ramify.base.ledger import Ledger
from ramify.base.seeds import derive_key
from ramify.methods.forensics.judges import says
from ramify.model.protocol import Completion, Identity, Model, Prefix, Sampling, TokenScores, require
from ramify.score.judge import Judge
from ramify.trace.segment import By, sentences


@dataclass(frozen=True)
class SentenceFilter:
    """What was done to a sample, as its data hold it under ``forbid``."""

    rejected: int
    unfiltered: bool
    """Whether a sentence of the class stayed."""


class Filtered:
    """``inner`` without the sentences of which ``judge`` says yes. ``name`` and that of the judge, which its pattern or
    description is in, name the class in the identity.

    A position where ``redraws`` candidates in a row are rejected keeps the next one, whatever it is, and the sample is flagged:
    its data hold a :class:`SentenceFilter`. ``ledger`` has what the judge cost. The log-probs are those of
    ``inner``, not of the filtered distribution. Raises NeedsError where ``inner`` cannot continue inside a message.
    """

    def __init__(
        self, inner: Model, judge: Judge, name: str, redraws: int = 20, by: By = "prose", ledger: Ledger | None = None
    ) -> None:
        require(inner, ("tokens", "continue"), "forbidding sentences")
        self.inner, self.judge, self.redraws, self.by, self.ledger = inner, judge, redraws, by, ledger
        own = inner.identity
        self.identity = Identity(
            f"{own.name} without {name}",
            stable_hash("filtered", own.weights, name, judge.name, redraws, by),
            own.tokenizer,
        )
        self.capabilities = frozenset(inner.capabilities - {"batch_invariant", "taps", "train"})
        self.tokenizer = getattr(inner, "tokenizer", None)

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`."""
        return list(await asyncio.gather(*(self._one(prefix, settings, key) for key in keys)))

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Those of the model that is filtered."""
        return await self.inner.logprobs(tokens, top_k)

    async def _one(self, prefix: Prefix, settings: Sampling, key: int) -> Completion:
        kept: list[Completion] = []
        length = rejected = tries = 0
        assert prefix.tokens is not None
        while True:
            so_far = [prefix.tokens, *(completion.tokens for completion in kept if completion.tokens is not None)]
            left = replace(settings, max_tokens=settings.max_tokens - length, ban_first=() if kept else settings.ban_first)
            own = key if not rejected else derive_key(key, "redraw", rejected)
            (completion,) = await self.inner.sample(replace(prefix, tokens=np.concatenate(so_far)), 1, left, [own])
            cut = None if tries >= self.redraws else await self._first(completion)
            if cut is None:
                stays = tries >= self.redraws and await self._first(completion) is not None
                return _joined([*kept, completion], SentenceFilter(rejected, stays))
            rejected += 1
            tries = tries + 1 if cut == 0 else 1
            if cut:
                kept.append(_upto(completion, cut))
                length += cut

    async def _first(self, completion: Completion) -> int | None:
        """Tokens before the first sentence of the class; None where there is none."""
        assert completion.ends is not None
        for start, end in sentences(completion.text, self.by):
            if await says(self.judge, completion.text[start:end].strip(), self.ledger):
                return int(np.searchsorted(completion.ends, start, side="right"))
        return None


def _upto(completion: Completion, length: int) -> Completion:
    def head(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array[:length]

    assert completion.ends is not None
    arrays: dict[str, Any] = {
        name: head(getattr(completion, name)) for name in ("tokens", "logprobs", "model_logprobs", "entropy", "ends")
    }
    return replace(completion, text=completion.text[: int(completion.ends[length - 1])], **arrays)


def _joined(completions: Sequence[Completion], record: SentenceFilter) -> Completion:
    last = completions[-1]
    data = {**(last.data or {}), "forbid": codec.to_json(record)}
    if len(completions) == 1:
        return replace(last, data=data)
    ends, texts, at = [], "", 0
    for completion in completions:
        assert completion.ends is not None
        ends.append(completion.ends + at)
        texts, at = texts + completion.text, at + len(completion.text)
    arrays: dict[str, Any] = {}
    for name in ("tokens", "logprobs", "model_logprobs", "entropy"):
        pieces = [getattr(completion, name) for completion in completions]
        arrays[name] = None if any(piece is None for piece in pieces) else np.concatenate(pieces)
    return Completion(texts, last.stop, ends=np.concatenate(ends).astype(np.int32), data=data, **arrays)
