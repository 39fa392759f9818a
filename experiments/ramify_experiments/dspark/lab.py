"""What the reproduction trains and measures: a target, text it sampled, drafters of each kind.
Each is made once and kept by content hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.methods.dspark.drafter_files import load_drafter
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.recorder import record
from ramify.methods.dspark.rounds import Rounds
from ramify.methods.dspark.run import Target, train
from ramify.methods.dspark.settings import TrainOptions
from ramify.methods.dspark.training import kept_text
from ramify.model.protocol import Sampling
from ramify.train.batch import Row
from ramify_experiments.dspark import domains
from ramify_experiments.models import place

START, GIVEN = 8, 24
"""Tokens of a prompt in training and in measurement."""


class DrafterLab:
    """The target of a seed, and what is made for it. ``size`` holds the counts of a size of the reproduction."""

    def __init__(self, size: dict[str, Any], seed: int) -> None:
        self.size, self.seed = size, seed
        self.recipe = domains.TargetRecipe(**size["target"], seed=seed)

    @cached_property
    def folder(self) -> Path:
        """The target's checkpoint; trained on first use."""
        return self.recipe.folder()

    @cached_property
    def model(self) -> LocalModel:
        """The target on the engine. No prompt is sampled from twice, so nothing is kept of them."""
        return LocalModel.load(self.folder, cache_bytes=0)

    def _place(self, what: str, **decided: Any) -> Path:
        return place(f"dspark-{what}", decided | {"target": self.recipe.model_dump()}, __name__)

    def text(self, sequences: int) -> list[Row]:
        """Rows of the target's own text after starts of the three domains, by turns; sampled tokens count.

        The few rows in which it sampled the mask token, which it never saw, are left out.
        """
        each = [domains.prompts(domain, sequences // 3, START, self.seed, "train") for domain in domains.DOMAINS]
        starts = [prompt for three in zip(*each, strict=True) for prompt in three]
        length = self.recipe.length
        folder = self._place("text", sequences=sequences, length=length)
        rows = kept_text(self.model, starts, Sampling(max_tokens=length), self.seed, folder, length)
        return [row for row in rows if domains.ID[domains.MASK] not in row.tokens]

    def drafter(self, what: dict[str, Any]) -> Qwen3Drafter:
        """The drafter that ``what``, fields of TrainOptions, describes; trained on first use."""
        options = TrainOptions(**what, seed=self.seed)
        shape = {name: what[name] for name in ("layers", "rank", "head") if name in what}
        training = options.training().model_dump()
        folder = self._place("drafter", training=training, kind=options.kind, sequences=options.sequences, **shape)
        if not (folder / "config.json").is_file():
            target = Target(f"hf:{self.folder}", self.model, None)
            train(target, self.text(options.sequences), options, folder, mask=domains.ID[domains.MASK])
        return load_drafter(folder, self.model.module)

    def rounds(self, drafter: Qwen3Drafter, prompts: int, tokens: int) -> dict[str, Rounds]:
        """Rounds of a drafter in each domain, on prompts that no text was sampled from."""
        return {domain: self._rounds(drafter, domain, prompts, tokens) for domain in domains.DOMAINS}

    def _rounds(self, drafter: Qwen3Drafter, domain: domains.Domain, prompts: int, tokens: int) -> Rounds:
        starts: Sequence[np.ndarray] = domains.prompts(domain, prompts, GIVEN, self.seed, "test")
        return record(self.model, drafter, starts, Sampling(max_tokens=tokens), self.seed)

    def assistant(self, sequences: int, steps: int) -> Path:
        """A model of one layer trained on the target's text: what assisted generation drafts with."""
        folder = self._place("assistant", sequences=sequences, steps=steps, seed=self.seed)
        if not (folder / "config.json").is_file():
            target: Any = self.model.module
            small = TinyLM(replace(target.config, layers=1), self.seed)
            rows = [Row(row.tokens, np.ones(len(row.tokens), np.bool_)) for row in self.text(sequences)]
            self.recipe.model_copy(update={"steps": steps}).imitate(small, rows)
            small.save(folder, domains.tokenizer())
        return folder
