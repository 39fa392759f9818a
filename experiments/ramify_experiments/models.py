"""Small models from scratch, in minutes on two cores: tokenizers, rows, a learning rate's course, training, and what is kept of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ramify.base.config import Config
from ramify.base.ids import json_hash
from ramify.base.seeds import generator
from ramify.engine.tiny import TinyLM
from ramify.model.chat import TagTemplate
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify.train.loop import TrainConfig, Trainer
from ramify_experiments.code import code_of
from ramify_experiments.lab import MADE, cache

SPECIALS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")


def train_tokenizer(texts: Iterable[str], vocab: int) -> HfTokenizer:
    """A byte-level BPE tokenizer with chat tags, trained on ``texts``; words keep their leading space, any text round-trips."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[^\s.,:]+|\s|[.,:]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(SPECIALS), initial_alphabet=sorted(alphabet), show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    return HfTokenizer(raw)


def word_tokenizer(words: Iterable[str], unknown: str) -> HfTokenizer:
    """One token a word, words apart by spaces; any other word is taken for ``unknown``, one of ``words``."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=unknown))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return HfTokenizer(raw)


def chat_row(template: TagTemplate, messages: Iterable[tuple[str, str]]) -> Row:
    """A supervised row: the assistant's words and its end-of-turn token are trained on, the rest is shown."""
    tokens: list[int] = []
    mask: list[bool] = []
    for role, text in messages:
        header, whole = len(template.open(role)), list(template.render(role, text)[0])
        tokens += whole
        mask += [False] * header + [role == "assistant"] * (len(whole) - header)
    return Row(np.asarray(tokens, np.int32), np.asarray(mask, np.bool_))


def set_rate(
    optimizer: torch.optim.Optimizer,
    lr: float,
    step: int,
    steps: int,
    warm: int = 0,
    decay: Literal["cosine", "linear", "none"] = "none",
    floor: float = 0.0,
) -> None:
    """Give ``optimizer`` the learning rate of ``step`` (from 0) of ``steps``: a linear warm-up over ``warm`` steps to ``lr``, times a decay
    that would reach ``floor`` of it after the last step."""
    up = min(1.0, (step + 1) / warm) if warm else 1.0
    left = {"none": 1.0, "linear": 1 - step / steps, "cosine": float(np.cos(np.pi * step / steps))}[decay]
    if decay == "cosine":
        left = (1 + floor) / 2 + (1 - floor) / 2 * left
    elif decay == "linear":
        left = floor + (1 - floor) * left
    for group in optimizer.param_groups:
        group["lr"] = lr * up * left


def fit(model: TinyLM, rows: list[Row], steps: int, batch: int, lr: float, seed: int, report: Callable[[str], None]) -> None:
    """Supervised training with a linear warm-up over a tenth of the steps and a cosine decay to a tenth of ``lr``."""
    trainer = Trainer(model, TrainConfig(lr=lr, weight_decay=0.01), seed)
    for step in range(steps):
        set_rate(trainer.optimizer, lr, step, steps, max(1, steps // 10), "cosine", 0.1)
        picks = generator(seed, "sft", step).integers(0, len(rows), batch)
        metrics = trainer.update([rows[i] for i in picks], {"cross_entropy": 1.0})
        if step % 50 == 0 or step == steps - 1:
            report(f"step {step}: cross-entropy {metrics['cross_entropy']:.3f} per token")


Make = Callable[[Any, Callable[[str], None]], tuple[TinyLM, HfTokenizer]]


def kept(name: str, recipe: Config, make: Make, report: Callable[[str], None] = lambda line: None) -> Path:
    """Folder of the checkpoint that ``make`` makes of ``recipe``; trained on first use, then found by what decides it: recipe and code."""
    folder = place(name, recipe.model_dump(), make.__module__)
    if not (folder / "recipe.json").exists():
        write(folder, recipe, *make(recipe, report))
    return folder


def place(name: str, decided: Mapping[str, Any], module: str) -> Path:
    """Folder, which need not exist yet, of what ``decided`` and the code that ``module`` reaches decide.

    Under ``$RAMIFY_MADE`` (a reproduction keeps what it makes with its cells), else ``recipes`` in :func:`ramify_experiments.lab.cache`.
    """
    own = os.environ.get(MADE)
    return (Path(own) if own else cache() / "recipes") / f"{name}-{json_hash({**decided, 'code': code_of(module)})}"


def write(folder: Path, recipe: Config, model: TinyLM, tokenizer: HfTokenizer) -> None:
    """Save a checkpoint with its recipe; the recipe comes last and marks the folder as whole."""
    model.save(folder, tokenizer)
    text: dict[str, Any] = recipe.model_dump()
    (folder / "recipe.json").write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
