"""Small models from scratch: a recipe learns, and is found again by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramify.engine.tiny import TinyLM
from ramify.env.worlds import chain
from ramify_experiments import models, recipes


def test_a_learning_rate_warms_up_and_decays() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def rates(**course: Any) -> list[float]:
        found = []
        for step in range(4):
            models.set_rate(optimizer, 2.0, step, 4, **course)
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates() == [2.0] * 4
    assert rates(warm=4) == [0.5, 1.0, 1.5, 2.0]
    assert rates(decay="linear") == [2.0, 1.5, 1.0, 0.5]
    assert rates(decay="linear", floor=0.5) == [2.0, 1.75, 1.5, 1.25]
    assert rates(decay="cosine") == pytest.approx([2.0, 1 + 0.5**0.5, 1.0, 1 - 0.5**0.5])
    assert rates(warm=2, decay="cosine", floor=1.0) == [1.0, 2.0, 2.0, 2.0]


def test_a_recipe_learns_and_is_cached_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path))
    said: list[str] = []
    small = recipes.Recipe(name="household", demonstrations=40, steps=51, rows=8, lr=1e-2, width=32, layers=1, vocab=300)
    folder = recipes.cached("household", small, said.append)
    losses = [float(line.split()[3]) for line in said if line.startswith("step")]
    assert losses[-1] < 0.6 * losses[0]
    assert json.loads((folder / "recipe.json").read_text())["steps"] == 51
    assert TinyLM.load(folder).config.width == 32
    said.clear()
    assert recipes.cached("household", small, said.append) == folder
    assert not said, "trained again"


def test_the_chain_recipe_stops_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path))
    said: list[str] = []
    small = recipes.ChainRecipe(
        hops=1, mod=5, operand=4, accuracy=0.0, below=2.0, demonstrations=9, held_out=9, rows=4, width=32, layers=1, lr=1e-2
    )
    model = TinyLM.load(recipes.cached("chain", small, said.append))
    assert len(said) == 1, "it looked more than once"
    tokenizer = recipes.chain_tokenizer(5)
    tasks = list(chain.ChainWorld((1, 1), 5).panel("train", 9))
    reply = recipes.chain_reply(tasks[0], np.random.default_rng(0))
    assert tokenizer.decode(tokenizer.encode(reply)) == reply
    assert chain.check(tasks[0], reply).right
    first, again = (recipes.chain_answers(model, tokenizer, tasks, 1.0, seed=3) for _ in range(2))
    assert first.shape == (9,)
    assert (first == again).all()
