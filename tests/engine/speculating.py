"""A small target with drafters that are as good or as bad as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafts, Pick
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.model.protocol import Completion, Prefix, Sampling

from .helpers import tiny, tokens


class Shadow(Qwen3Drafter):
    """Drafts from the target's own weights, run on the row's last tokens, its logits blurred: a good drafter without training.

    ``blur`` mixes noise into the logits; the confidence is made up from the token before. It knows a row's tokens because it is
    told them as they are absorbed.
    """

    def __init__(self, target: TinyLM, block: int = 4, blur: float = 0.5) -> None:
        config = for_target(target, layers=1, block=block, rank=4).config
        super().__init__(config)
        self.attach(target.model.embed_tokens.weight, target.head)
        self.target, self.blur = target, blur
        self.noise = torch.randn((config.vocab, config.vocab), generator=torch.Generator().manual_seed(5))
        self.absorbed = 0

    def absorb(self, cache: KVCache, first: int, slots: Tensor, positions: Tensor, features: Tensor, following: Tensor) -> None:
        """Keep the token after each position in the first number of its draft keys: it then goes wherever the row goes."""
        cache.kv[first, slots, positions, 0] = following.float()
        self.absorbed += len(slots)

    def draft(
        self, cache: KVCache, first: int, slots: Tensor, anchors: Tensor, positions: Tensor, pick: Pick, depth: int
    ) -> Drafts:
        rows = [cache.kv[first, s, : int(p), 0].long().tolist() for s, p in zip(slots, positions, strict=True)]
        made, confidence = [], []
        for k in range(depth):
            window = min(8, *(len(row) for row in rows), 8)
            last = torch.tensor([row[-window:] for row in rows])
            q = self.target(last)[:, -1] + self.blur * self.noise[last[:, -1]]
            confidence.append(0.5 + 0.3 * torch.sigmoid(self.noise[last[:, -1], 0]))
            made.append(pick(k, q))
            for row, token in zip(rows, made[-1].tolist(), strict=True):
                row.append(token)
        c = torch.stack(confidence, 1)
        return Drafts(torch.stack(made, 1), c, torch.logit(c))


def shadowed(schedule: str = "fixed:4", verify: str = "coupled", seed: int = 0, blur: float = 0.5, **options: Any) -> LocalModel:
    target = tiny(seed=seed, layers=2)
    return LocalModel(target, drafter=Shadow(target, blur=blur), schedule=schedule, verify=verify, eos=(), **options)


def sample_all(model: LocalModel, prompts: Sequence[np.ndarray], at_once: int, n: int = 1, **settings: Any) -> list[Completion]:
    """Samples of every prompt, key by place, ``at_once`` prompts under way at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(i: int) -> list[Completion]:
        async with gate:
            return await model.sample(Prefix(prompts[i]), n, Sampling(**settings), [1000 * i + j for j in range(n)])

    async def every() -> list[list[Completion]]:
        return await asyncio.gather(*(one(i) for i in range(len(prompts))))

    return [completion for part in asyncio.run(every()) for completion in part]


def prompts(count: int, shared: int = 5) -> list[np.ndarray]:
    """Prompts of different lengths, some with a common beginning."""
    common = tokens(shared, seed=99)
    return [np.concatenate((common, tokens(1 + i % 7, seed=i))) if i % 3 else tokens(3 + i % 11, seed=i) for i in range(count)]
