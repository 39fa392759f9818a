"""Two checkpoints of about 3,600 weights, base and tuned, with the built-in agent's tokenizer; both say a few words often."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ramify.engine.checkpoints import model_folder
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.tokenizer import HfTokenizer

OFTEN = {"go": 4, " hall": 3, "take": 2, " lamp": 1.5, "garden": 0.6, ".": 3, "<|end|>": 1.2, " go": 1, " take": 1}


def save_pair(folder: Path) -> None:
    """Save them as ``folder/base`` and ``folder/tuned``."""
    words = HfTokenizer.load(model_folder("builtin"))
    ids = {words.encode(text)[0]: weight for text, weight in OFTEN.items() if len(words.encode(text)) == 1}
    for name, seed in (("base", 1), ("tuned", 2)):
        model = TinyLM(TinyConfig(420, 4, 2, 1, 1, 4, 8, 512, tied=False, eos=(words.encode("<|end|>")[0],)), seed=3)
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 2 and min(weight.shape) < 420:
                    weight.add_(0.3 * torch.randn(weight.shape, generator=rng))
            model.model.embed_tokens.weight[:, 0] = 3.0  # one direction that is always there: the head's column is a bias
            model.head[:, 0] = -3.0
            for token, often in ids.items():
                model.head[token, 0] = math.log(often) / 2
        model.save(folder / name, words)


def hall_first() -> Callable[[str, Any], bool]:
    """A judge, ``factory:tests.pair:hall_first``: right where the reply says hall before lamp."""
    return lambda text, trace: 0 <= text.find("hall") < (text + "lamp").find("lamp")
