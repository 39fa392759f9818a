"""One model as world model and agent: does learning what comes next help to choose what to do?

A place has three doors, each to another place. Forward: what is behind this door? Agent: which door leads to the goal?
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from ramify.base.seeds import generator
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.train.batch import Row
from ramify_experiments.models import Course, training

DOORS = ("left", "right", "ahead")
PLACES = tuple(f"p{i}" for i in range(12))
WORDS = ("<unknown>", *DOORS, *PLACES, "go", "goal", ":")
SHOWN = 2 * len(DOORS)
"""Words that list the doors of a place."""
ID = {word: i for i, word in enumerate(WORDS)}


def example(rng: np.random.Generator, agent: bool) -> list[str]:
    """A place, and a question of each door or goal in any order, each answered by the word after it.
    Doors are listed in any order."""
    ends = rng.permutation(PLACES)[: len(DOORS)]
    words = [word for i in rng.permutation(len(DOORS)) for word in (DOORS[i], str(ends[i]))]
    for i in rng.permutation(len(DOORS)):
        words += ["goal", str(ends[i]), ":", DOORS[i]] if agent else ["go", DOORS[i], ":", str(ends[i])]
    return words


def rows(seed: int, purpose: str, step: int, n: int, agent: bool) -> list[Row]:
    """Rows of one step; the answers alone are trained on."""
    made = [[ID[word] for word in example(generator(seed, purpose, step, i), agent)] for i in range(n)]
    answers = np.array([i >= SHOWN and (i - SHOWN) % 4 == 3 for i in range(SHOWN + 4 * len(DOORS))])
    return [Row(np.array(row, np.int32), answers) for row in made]


def right(model: TinyLM, seed: int, agent: bool, n: int) -> float:
    """Share of held-out places whose first question is answered right by the likeliest word."""
    tokens = torch.tensor(np.stack([row.tokens for row in rows(seed, "unified test", 0, n, agent)]), dtype=torch.long)
    with torch.no_grad():
        best = model(tokens[:, : SHOWN + 3])[:, -1].argmax(dim=-1)
    return float((best == tokens[:, SHOWN + 3]).float().mean())


def unified(
    seed: int, updates: list[int], policy: int, demonstrations: int, batch: int, lr: float, test: int
) -> list[dict[str, float]]:
    """Next-observation training up to each of ``updates``, each followed by the same policy training: ``policy`` updates on the
    same ``demonstrations``. What it predicts and how often it succeeds."""
    model = TinyLM(TinyConfig(len(WORDS), 32, 2, 2, 2, 16, 96, context=32, eos=(0,)), seed)
    shown = rows(seed, "unified demonstrations", 0, demonstrations, True)
    found = []

    def measured(count: int) -> None:
        agent = copy.deepcopy(model)

        def batch_of(step: int) -> list[Row]:
            return [shown[i] for i in generator(seed, "unified policy", step).integers(0, len(shown), batch)]

        for _ in training(agent, batch_of, Course(lr, policy, 10, "linear", 0.1), seed):
            pass
        success = right(agent.eval(), seed, True, test)
        found.append({"updates": count, "prediction": right(model.eval(), seed, False, test), "success": success})

    if 0 in updates:
        measured(0)
    course = Course(lr, max(updates), 50, "none")
    for done, _ in training(model, lambda step: rows(seed, "unified world", step, batch, False), course, seed):
        if done in updates:
            measured(done)
    return found
