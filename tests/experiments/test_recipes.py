"""Small models from scratch: a recipe learns, and is found again by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramify.engine.checkpoints import load_model
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin import chain
from ramify.train.batch import Row
from ramify_experiments import models, recipes


def test_a_learning_rate_warms_up_and_decays() -> None:
    def rates(**course: Any) -> list[float]:
        return [models.Course(2.0, 4, **course).rate(step) for step in range(4)]

    assert rates() == [2.0] * 4
    assert rates(warm=4) == [0.5, 1.0, 1.5, 2.0]
    assert rates(decay="linear") == [2.0, 1.5, 1.0, 0.5]
    assert rates(decay="linear", floor=0.5) == [2.0, 1.75, 1.5, 1.25]
    assert rates(decay="cosine") == pytest.approx([2.0, 1 + 0.5**0.5, 1.0, 1 - 0.5**0.5])
    assert rates(warm=2, decay="cosine", floor=1.0) == [1.0, 2.0, 2.0, 2.0]


def test_rows_and_a_loss_made_from_the_model_train_alike() -> None:
    tokens = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 5]])
    rows = [Row(row.numpy().astype(np.int32), np.ones(4, np.bool_)) for row in tokens]
    course = models.Course(1e-2, 6, warm=2, decay="cosine")
    given, made = (TinyLM(TinyConfig(8, 16, 1, 1, 1, 16, 16, 8), 0) for _ in range(2))

    def loss(step: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(made(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    models.train(given, lambda step: rows, course)
    seen = [(step, found["loss"]) for step, found in models.training(made, loss, course)]
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1][1] < seen[0][1]
    for a, b in zip(given.parameters(), made.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert next(iter(models.training(made, loss, models.Course(1e-2, None))))[0] == 1, "a course without an end"


@pytest.mark.slow
def test_a_recipe_learns_and_is_cached_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path))
    said: list[str] = []
    small = recipes.HouseholdRecipe(demonstrations=40, steps=51, rows=8, lr=1e-2, width=32, layers=1, vocab=300)
    folder = small.folder(said.append)
    losses = [float(line.split()[3]) for line in said if line.startswith("step")]
    assert losses[-1] < 0.6 * losses[0]
    assert json.loads((folder / "recipe.json").read_text())["steps"] == 51
    assert TinyLM.load(folder).config.width == 32
    said.clear()
    assert small.folder(said.append) == folder
    assert not said, "trained again"


@pytest.mark.slow
def test_the_chain_recipe_stops_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path))
    said: list[str] = []
    small = recipes.ChainRecipe(
        hops=1, mod=5, operand=4, accuracy=0.0, below=2.0, demonstrations=9, held_out=9, rows=4, width=32, layers=1, lr=1e-2
    )
    model = TinyLM.load(small.folder(said.append))
    assert len(said) == 1, "it looked more than once"
    tokenizer = recipes.chain_tokenizer(5)
    tasks = list(chain.ChainEnvironment((1, 1), 5).task_set("train", 9))
    reply = recipes.chain_reply(tasks[0], np.random.default_rng(0))
    assert tokenizer.decode(tokenizer.encode(reply)) == reply
    assert chain.check(tasks[0], reply).right
    first, again = (recipes.chain_answers(model, tokenizer, tasks, 1.0, seed=3) for _ in range(2))
    assert first.shape == (9,)
    assert (first == again).all()


def test_the_long_household_has_a_recipe_of_the_same_kind(tmp_path: Path) -> None:
    small = recipes.LongHouseholdRecipe(demonstrations=30, steps=2, rows=4, width=32, layers=1, vocab=300)
    small.write(tmp_path)
    model, _ = load_model(tmp_path)
    assert model.context >= 1024, "28 turns fit"
    assert recipes.RECIPES["long-household"] is recipes.LongHouseholdRecipe
