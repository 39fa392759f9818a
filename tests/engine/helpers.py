from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.tokenizer import HfTokenizer

VOCAB = 61
LETTERS = "abcd"
WORDS = ("ab", "abc", "bad", "dad", "da", "cab")
"""Texts of these letters, some the beginnings of others."""


def tiny(seed: int = 0, **changes: Any) -> TinyLM:
    shape: dict[str, Any] = {
        "vocab": VOCAB,
        "width": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 8,
        "ffn": 48,
        "context": 256,
    }
    model = TinyLM(TinyConfig(**{**shape, **changes}), seed=seed)
    with torch.no_grad():  # weights large enough that distributions are far from flat
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 1)))
    return model


def tokens(length: int, seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, length).astype(np.int32)


def sample(model: LocalModel, prefix: np.ndarray, keys: Sequence[int], **settings: Any) -> list[Completion]:
    return asyncio.run(model.sample(Prefix(prefix), len(keys), Sampling(**settings), keys))


def byte_tokenizer(vocab_size: int = 300) -> HfTokenizer:
    """A byte-level BPE trained on a few lines, some with characters of several bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    raw.train_from_iterator(["open the door with the key", "déjà vu, naïve café", "日本語 the end 🙂 the key"] * 4, trainer)
    return HfTokenizer(raw)


def letters() -> HfTokenizer:
    """Four letters, and token 4, which ends a reply."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {letter: i for i, letter in enumerate([*LETTERS, "<end>"])}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens(["<end>"])
    return HfTokenizer(raw)


def speller(seed: int = 0, **options: Any) -> LocalModel:
    return LocalModel(tiny(vocab=5, seed=seed), letters(), eos=(4,), **options)
