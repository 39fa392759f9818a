"""Small models from scratch, in minutes on two cores: tokenizers, rows, the one loop of training,
recipes and what is kept of them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from torch import Tensor, nn

from ramify.base.config import Config
from ramify.base.ids import json_hash
from ramify.base.seeds import generator
from ramify.engine.tiny import TinyLM
from ramify.model.chat import TagTemplate, train_tokenizer
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify.train.loop import TrainConfig, Trainer
from ramify_experiments.code import code_of
from ramify_experiments.lab import MADE, cache

IMITATION = {"cross_entropy": 1.0}
M = TypeVar("M", bound=nn.Module)
Report = Callable[[str], None]


def silent(line: str) -> None:
    """Say nothing."""


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


def turns(demonstration: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A demonstration (what was seen, what was done) as a dialogue of (role, text)."""
    return [turn for seen, done in demonstration for turn in (("user", seen), ("assistant", done))]


def chat_rows(dialogues: Sequence[Sequence[tuple[str, str]]], vocab: int) -> tuple[HfTokenizer, list[Row]]:
    """A tokenizer of ``dialogues``, each a list of (role, text), and a row of each, in which what the assistant says is trained
    on."""
    tokenizer = train_tokenizer((text for dialogue in dialogues for _, text in dialogue), vocab)
    template = TagTemplate(tokenizer)
    return tokenizer, [chat_row(template, dialogue) for dialogue in dialogues]


def picked(rows: Sequence[Row], n: int, seed: int) -> Callable[[int], list[Row]]:
    """The ``n`` of ``rows`` that a step learns from, sampled by ``seed`` and the step."""
    return lambda step: [rows[i] for i in generator(seed, "sft", step).integers(0, len(rows), n)]


@dataclass(frozen=True)
class Course:
    """A learning rate's course over ``steps`` steps, None without an end: up to ``lr`` over ``warm`` steps in a straight line,
    times a decay that would reach ``floor`` of it after the last step."""

    lr: float
    steps: int | None
    warm: int = 0
    decay: Literal["cosine", "linear", "none"] = "none"
    floor: float = 0.0

    def rate(self, step: int) -> float:
        """The learning rate of ``step``, counted from 0."""
        up, left = min(1.0, (step + 1) / self.warm) if self.warm else 1.0, 1.0
        if self.decay == "linear":
            left = self.floor + (1 - self.floor) * (1 - step / (self.steps or 1))
        elif self.decay == "cosine":
            left = (1 + self.floor) / 2 + (1 - self.floor) / 2 * float(np.cos(np.pi * step / (self.steps or 1)))
        return self.lr * up * left


def training(
    model: nn.Module,
    batch: Callable[[int], Sequence[Row] | Tensor],
    course: Course,
    seed: int = 0,
    losses: Mapping[str, float] = IMITATION,
    **config: Any,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train ``model`` in place, step by step, for as long as the caller takes the next one:
    the steps done so far, and the last one's losses.

    ``batch(step)``, counted from 0, gives rows, which are trained on by the weighted sum of ``losses``, or a loss that was made
    from the model itself. ``config``: fields of TrainConfig.
    """
    trainer = Trainer(model, TrainConfig(lr=course.lr, **config), seed)
    for step in itertools.count() if course.steps is None else range(course.steps):
        given = batch(step)
        trainer.set_rate(course.rate(step))
        if isinstance(given, Tensor):
            yield step + 1, {"loss": given.item(), "grad_norm": trainer.descend(given)}
        else:
            yield step + 1, trainer.update(given, losses)


def train(
    model: M,
    batch: Callable[[int], Sequence[Row] | Tensor],
    course: Course,
    seed: int = 0,
    losses: Mapping[str, float] = IMITATION,
    **config: Any,
) -> M:
    """:func:`training` to the end of its course; ``model``."""
    for _ in training(model, batch, course, seed, losses, **config):
        pass
    return model.eval()


class Recipe(Config):
    """What decides a small model: the same recipe and code give the same weights on the same kind of machine."""

    NAME: ClassVar[str]
    """What folders of its checkpoints begin with."""
    width: int = 96
    """Model width."""
    layers: int = 3
    """Decoder blocks."""
    rows: int = 16
    """Rows per step."""
    steps: int = 3000
    """Optimiser steps, the most where training ends by what was learnt."""
    lr: float = 2e-3
    """Peak learning rate."""
    seed: int = 0
    """Decides weights, examples and their order."""

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Train the model."""
        raise NotImplementedError

    def imitate(self, model: TinyLM, rows: Sequence[Row], report: Report = silent) -> TinyLM:
        """``model`` after supervised steps on ``rows``: warm-up over a tenth of them, cosine decay to a tenth of the rate."""
        course = Course(self.lr, self.steps, max(1, self.steps // 10), "cosine", 0.1)
        for step, found in training(model, picked(rows, self.rows, self.seed), course, self.seed, weight_decay=0.01):
            if step in (1, self.steps) or step % 50 == 0:
                report(f"step {step}: cross-entropy {found['cross_entropy']:.3f} per token")
        return model

    def folder(self, report: Report = silent) -> Path:
        """The checkpoint; made on first use, then found by what decides it: recipe and code."""
        folder = place(self.NAME, self.model_dump(), type(self).__module__)
        if not (folder / "recipe.json").exists():
            self.write(folder, report)
        return folder

    def model(self) -> TinyLM:
        """The model of :meth:`folder`."""
        return TinyLM.load(self.folder()).eval()

    def write(self, folder: Path, report: Report = silent) -> None:
        """Make the model and save it with its recipe, which is written last and shows that the folder is complete."""
        model, tokenizer = self.make(report)
        model.save(folder, tokenizer)
        (folder / "recipe.json").write_text(json.dumps(self.model_dump(), indent=2) + "\n", encoding="utf-8")


def place(name: str, decided: Mapping[str, Any], module: str) -> Path:
    """Folder, which need not exist yet, of what ``decided`` and the code that ``module`` reaches decide.

    Under ``$RAMIFY_MADE`` (a reproduction keeps what it makes with its cells), else ``recipes`` in
    :func:`ramify_experiments.lab.cache`.
    """
    own = os.environ.get(MADE)
    return (Path(own) if own else cache() / "recipes") / f"{name}-{json_hash({**decided, 'code': code_of(module)})}"
