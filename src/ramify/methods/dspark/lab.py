"""What the reproduction trains and measures: a target, text it drew, drafters of each kind. Each is made once and kept by content hash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.ids import json_hash
from ramify.engine.drafter_files import for_target, load_drafter, save_drafter
from ramify.engine.drafters import Drafter
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.methods.dspark import domains
from ramify.methods.dspark.algorithm import Rounds
from ramify.methods.dspark.measure import record
from ramify.methods.dspark.training import DrafterTraining, regenerate, train_drafter
from ramify.model.protocol import Sampling
from ramify.train.batch import Row

BLOCK = 7
START, GIVEN = 8, 24
"""Tokens of a prompt in training and in measurement."""


class Lab:
    """The target of a seed, and what is made for it. ``size`` holds the counts of a size of the reproduction."""

    def __init__(self, size: dict[str, Any], seed: int) -> None:
        self.size, self.seed = size, seed
        self.recipe = domains.TargetRecipe(**size["target"], seed=seed)

    @cached_property
    def folder(self) -> Path:
        """The target's checkpoint; trained on first use."""
        return domains.target_folder(self.recipe)

    @cached_property
    def model(self) -> LocalModel:
        """The target on the engine. No prompt is drawn from twice, so nothing is kept of them."""
        return LocalModel.load(self.folder, cache_bytes=0)

    def _kept(self, what: str, **decided: Any) -> Path:
        root = Path(os.environ.get("RAMIFY_CACHE", Path.home() / ".cache" / "ramify"))
        decided |= {"target": self.recipe.model_dump()}
        return root / "recipes" / f"dspark-{what}-{json_hash(decided)}"

    def text(self, sequences: int) -> list[Row]:
        """Rows of the target's own text behind starts of the three domains, by turns; drawn tokens count.

        The few rows in which it drew the mask token, which it never saw, are left out.
        """
        file = self._kept("text", sequences=sequences, length=self.recipe.length) / "rows.npy"
        if not file.is_file():
            each = [domains.prompts(domain, sequences // 3, START, self.seed, "train") for domain in domains.DOMAINS]
            starts = [prompt for three in zip(*each, strict=True) for prompt in three]
            rows = asyncio.run(
                regenerate(self.model, starts, Sampling(max_tokens=self.recipe.length), self.seed, self.recipe.length)
            )
            whole = np.full((len(rows), self.recipe.length), -1, np.int32)
            for i, row in enumerate(rows):
                whole[i, : len(row.tokens)] = row.tokens
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file.with_suffix(".part.npy"), whole, allow_pickle=False)
            file.with_suffix(".part.npy").replace(file)
        known = [row[row >= 0] for row in np.load(file, allow_pickle=False)]
        return [Row(row, np.arange(len(row)) >= START) for row in known if domains.ID[domains.MASK] not in row]

    def drafter(self, what: dict[str, Any]) -> Drafter:
        """The drafter that ``what`` (kind, shape, ``sequences``, and fields of the training) describes."""
        training = DrafterTraining(**{k: v for k, v in what.items() if k in DrafterTraining.model_fields}, seed=self.seed)
        shape = {name: what[name] for name in ("layers", "rank", "head") if name in what}
        folder = self._kept("drafter", training=training.model_dump(), kind=what["kind"], sequences=what["sequences"], **shape)
        if not (folder / "config.json").is_file():
            made = for_target(
                self.model.module, what["kind"], block=BLOCK, mask_token=domains.ID[domains.MASK], seed=self.seed, **shape
            )
            train_drafter(made, self.model, self.text(what["sequences"]), training, folder)
            save_drafter(made, folder)
        return load_drafter(folder, self.model.module)

    def rounds(self, drafter: Drafter, prompts: int, tokens: int) -> dict[str, Rounds]:
        """Rounds of a drafter in each domain, on prompts that no text was drawn from."""
        return {domain: self._rounds(drafter, domain, prompts, tokens) for domain in domains.DOMAINS}

    def _rounds(self, drafter: Drafter, domain: domains.Domain, prompts: int, tokens: int) -> Rounds:
        starts: Sequence[np.ndarray] = domains.prompts(domain, prompts, GIVEN, self.seed, "test")
        return record(self.model, drafter, starts, Sampling(max_tokens=tokens), self.seed)

    def assistant(self, sequences: int, steps: int) -> Path:
        """A model of one layer trained on the target's text: what assisted generation drafts with."""
        from dataclasses import replace

        from ramify.train.recipes import fit

        folder = self._kept("assistant", sequences=sequences, steps=steps, seed=self.seed)
        if not (folder / "config.json").is_file():
            target: Any = self.model.module
            small = TinyLM(replace(target.config, layers=1), self.seed)
            rows = [Row(row.tokens, np.ones(len(row.tokens), np.bool_)) for row in self.text(sequences)]
            fit(small, rows, steps, self.recipe.rows, self.recipe.lr, self.seed, lambda line: None)
            small.save(folder, domains.tokenizer())
        return folder
