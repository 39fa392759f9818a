"""Two small models that more than one experiment, the built-in agent or an example is made of: the household and chain arithmetic.

``python -m ramify_experiments.recipes household --out src/ramify/assets/household`` makes the built-in agent again.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ramify.base.config import Config
from ramify.base.seeds import generator, place_key
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.protocol import Task
from ramify.env.worlds import chain, household
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Prefix, Sampling
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify.train.loop import TrainConfig, Trainer
from ramify_experiments.models import Make, chat_row, fit, kept, set_rate, train_tokenizer, word_tokenizer, write


class Recipe(Config):
    """What decides a small model: the same recipe gives the same weights on the same kind of machine."""

    name: str
    """Name of the world it imitates."""
    demonstrations: int = 9000
    """Demonstrations to imitate."""
    careful: float = 0.3
    """Share of demonstrators that know what they do; the others are careless, as crowds are."""
    careful_noise: float = 0.1
    """Probability of a random action at each step of a careful demonstration."""
    careless_noise: float = 0.8
    """The same of a careless one."""
    steps: int = 3000
    """Optimiser steps."""
    rows: int = 16
    """Demonstrations per step."""
    vocab: int = 420
    """Size of the byte-level BPE vocabulary."""
    width: int = 96
    """Model width."""
    layers: int = 3
    """Decoder blocks."""
    lr: float = 2e-3
    """Peak learning rate (linear warm-up, cosine decay)."""
    seed: int = 0
    """Decides weights, demonstrations and their order."""


def make_household(recipe: Recipe, report: Callable[[str], None] = print) -> tuple[TinyLM, HfTokenizer]:
    """Imitate a crowd's demonstrations of the household world, a few careful and most careless."""
    world = household.HouseholdWorld()
    tasks = list(world.panel("demo", recipe.demonstrations, recipe.seed))
    dialogues: list[list[tuple[str, str]]] = []
    for i, task in enumerate(tasks):
        messages: list[tuple[str, str]] = []
        rng = generator(recipe.seed, "demo", i)
        noise = recipe.careful_noise if rng.random() < recipe.careful else recipe.careless_noise
        for seen, action in household.demonstrate(task, noise, rng):
            messages += [("user", seen), ("assistant", action)]
        dialogues.append(messages)
    tokenizer = train_tokenizer((text for dialogue in dialogues for _, text in dialogue), recipe.vocab)
    template = TagTemplate(tokenizer)
    rows = [chat_row(template, dialogue) for dialogue in dialogues]
    shape = TinyConfig(
        vocab=tokenizer.size,
        width=recipe.width,
        layers=recipe.layers,
        heads=recipe.width // 32,
        kv_heads=1,
        head_size=32,
        ffn=recipe.width * 3,
        context=512,
        eos=(tokenizer.token_id("<|end|>"),),
    )
    model = TinyLM(shape, recipe.seed)
    report(
        f"{sum(w.numel() for w in model.parameters()):,} weights, {np.mean([len(r.tokens) for r in rows]):.0f} tokens a demonstration"
    )
    fit(model, rows, recipe.steps, recipe.rows, recipe.lr, recipe.seed, report)
    return model, tokenizer


FILLERS = ("so", "then", "now", "next")
"""Words before a step of a chain that change nothing."""


class ChainRecipe(Config):
    """What decides a model of chain arithmetic that is stopped while it still slips."""

    demonstrations: int = 8000
    """Demonstrations to imitate, without a mistake."""
    hops: int = 6
    """Steps of a chain."""
    mod: int = 23
    """Modulus."""
    operand: int = 9
    """Largest operand."""
    held_out: int = 300
    """Chains it is looked at on."""
    accuracy: float = 0.45
    """Share of the held-out chains, sampled at temperature 1, at which training stops."""
    every: int = 10
    """Optimiser steps between two looks at it ..."""
    below: float = 0.4
    """... once the cross-entropy per token is below this."""
    steps: int = 4000
    """Most optimiser steps."""
    rows: int = 48
    """Demonstrations per step."""
    width: int = 96
    """Model width."""
    layers: int = 2
    """Decoder blocks."""
    lr: float = 1.5e-3
    """Learning rate, after a warm-up of 100 steps."""
    seed: int = 0
    """Decides weights, demonstrations and their order."""


def chain_tokenizer(mod: int) -> HfTokenizer:
    """One token a word: the numbers up to ``mod``, the words of a chain, and ``<end>``."""
    numbers = map(str, range(mod + 1))
    return word_tokenizer(["<end>", *numbers, *chain.OPERATORS, "=", ";", "start", "mod", "answer", *FILLERS], "<end>")


def chain_reply(task: Task, rng: np.random.Generator) -> str:
    """The worked chain with a free word before each step and ``<end>`` behind the answer."""
    *steps, answer = chain.solve(task).split(" ; ")
    picks = rng.integers(0, len(FILLERS), len(steps))
    return " ; ".join([*(f"{FILLERS[i]} {step}" for i, step in zip(picks, steps, strict=True)), f"{answer} <end>"])


def chain_answers(model: TinyLM, tokenizer: HfTokenizer, tasks: Sequence[Task], temperature: float, seed: int = 0) -> np.ndarray:
    """Whether one reply to each task, drawn at ``temperature`` (0: greedy), ends right; bool (tasks,)."""
    engine = LocalModel(model, tokenizer, max_rows=256)
    settings = Sampling(temperature=temperature, max_tokens=12 * max(len(task.data["steps"]) for task in tasks))

    async def draw(task: Task) -> str:
        prefix = Prefix(np.array(tokenizer.encode(chain.prompt(task)), np.int32))
        (drawn,) = await engine.sample(prefix, 1, settings, [place_key(seed, "answer", task.id)])
        return drawn.text

    async def draw_all() -> list[str]:
        return await asyncio.gather(*(draw(task) for task in tasks))

    return np.array([chain.check(task, reply).right for task, reply in zip(tasks, asyncio.run(draw_all()), strict=True)])


def make_chain(recipe: ChainRecipe, report: Callable[[str], None] = print) -> tuple[TinyLM, HfTokenizer]:
    """Imitate worked chains until ``recipe.accuracy`` of held-out ones are right when sampled."""
    world = chain.ChainWorld((recipe.hops, recipe.hops), recipe.mod, operand=recipe.operand)
    tokenizer = chain_tokenizer(recipe.mod)
    rows = []
    for i, task in enumerate(world.panel("train", recipe.demonstrations, recipe.seed)):
        prompt, reply = chain.prompt(task), chain_reply(task, generator(recipe.seed, "chain-words", i))
        given, drawn = tokenizer.encode(prompt), tokenizer.encode(reply)
        rows.append(Row(np.array([*given, *drawn], np.int32), np.arange(len(given) + len(drawn)) >= len(given)))
    shape = TinyConfig(
        vocab=tokenizer.size,
        width=recipe.width,
        layers=recipe.layers,
        heads=recipe.width // 32,
        kv_heads=recipe.width // 32,
        head_size=32,
        ffn=recipe.width * 3,
        context=256,
        eos=(tokenizer.token_id("<end>"),),
    )
    model = TinyLM(shape, recipe.seed)
    tune = list(world.panel("tune", recipe.held_out, recipe.seed))
    trainer = Trainer(model, TrainConfig(lr=recipe.lr, weight_decay=0.01), recipe.seed)
    for step in range(1, recipe.steps + 1):
        set_rate(trainer.optimizer, recipe.lr, step - 1, recipe.steps, warm=100)
        picks = generator(recipe.seed, "sft", step).integers(0, len(rows), recipe.rows)
        loss = trainer.update([rows[i] for i in picks], {"cross_entropy": 1.0})["cross_entropy"]
        if step % recipe.every == 0 and loss < recipe.below:
            right = float(chain_answers(model, tokenizer, tune, 1.0, recipe.seed).mean())
            report(f"step {step}: cross-entropy {loss:.3f} per token, {right:.0%} right")
            if right >= recipe.accuracy:
                break
    return model, tokenizer


RECIPES: dict[str, tuple[Config, Make]] = {
    "household": (Recipe(name="household"), make_household),
    "chain": (ChainRecipe(), make_chain),
}


def cached(name: str, recipe: Config | None = None, report: Callable[[str], None] = print) -> Path:
    """Folder of the checkpoint that ``recipe`` (default: the named one) makes; trained on first use, then found by what decides it: recipe and code."""
    default, make = RECIPES[name]
    return kept(name, recipe or default, make, report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small model from scratch by its recipe.")
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    args = parser.parse_args()
    chosen, maker = RECIPES[args.name]
    write(args.out, chosen, *maker(chosen, print))
