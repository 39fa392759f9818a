"""A small model of digits on the real engine, its weights nothing special."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM

END = 4


class Digits:
    """Tokens 0 to 3 are digits, token 4 ends a reply."""

    hash = "digits"

    def encode(self, text: str) -> list[int]:
        return [int(c) for c in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(str(t) for t in tokens if t != END)

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        return np.cumsum([t != END for t in tokens], dtype=np.int32)


def model(seed: int = 3) -> LocalModel:
    module = TinyLM(TinyConfig(5, 16, 1, 2, 1, 8, 16, 32), seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return LocalModel(module, eos=(END,))
