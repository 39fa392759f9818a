"""Small models that more than one experiment, the built-in agent or an example is made of: the households and chain arithmetic.

``python -m ramify_experiments.recipes household --out src/ramify/assets/household`` makes the built-in agent again.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin import chain, household, long_household
from ramify.env.protocol import Task, close
from ramify.integrations.environments.textworld import TextWorldEnvironment
from ramify.model.protocol import Prefix, Sampling
from ramify.model.tokenizer import HfTokenizer
from ramify.rollout.components import find_environment
from ramify.train.batch import Row
from ramify_experiments.models import Course, Recipe, Report, chat_rows, picked, silent, training, turns, word_tokenizer


class CrowdRecipe(Recipe):
    """A decoder that imitates a crowd's demonstrations, a few careful and most careless."""

    careful: float = 0.3
    """Share of demonstrators that know what they do; the others are careless, as crowds are."""
    careful_noise: float = 0.1
    """Probability of a random action at each step of a careful demonstration."""
    careless_noise: float = 0.7
    """The same of a careless one."""
    vocab: int = 600
    """Size of the byte-level BPE vocabulary."""
    context: int = 1536
    """Longest row, in tokens."""
    steps: int = 1500

    def noise(self, rng: np.random.Generator) -> float:
        """That of one demonstrator."""
        return self.careful_noise if rng.random() < self.careful else self.careless_noise

    def imitated(self, dialogues: Sequence[Sequence[tuple[str, str]]], report: Report) -> tuple[TinyLM, HfTokenizer]:
        """A tokenizer of ``dialogues``, each a list of (role, text), and a model that imitates what the assistant says there."""
        tokenizer, rows = chat_rows(dialogues, self.vocab)
        end = (tokenizer.token_id("<|end|>"),)
        shape = TinyConfig(
            tokenizer.size, self.width, self.layers, self.width // 32, 1, 32, 3 * self.width, context=self.context, eos=end
        )
        model = TinyLM(shape, self.seed)
        weights, length = sum(w.numel() for w in model.parameters()), np.mean([len(row.tokens) for row in rows])
        report(f"{weights:,} weights, {length:.0f} tokens a demonstration")
        return self.imitate(model, rows, report), tokenizer


class HouseholdRecipe(CrowdRecipe):
    """Demonstrations of the household environment."""

    NAME: ClassVar[str] = "household"
    demonstrations: int = 9000
    """Demonstrations to imitate."""
    careless_noise: float = 0.8
    vocab: int = 420
    context: int = 512
    steps: int = 3000

    @property
    def environment(self) -> household.HouseholdEnvironment | long_household.LongHouseholdEnvironment:
        """Where it is demonstrated."""
        return household.HouseholdEnvironment()

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Imitate the demonstrations."""
        environment = self.environment
        shown = []
        for i, task in enumerate(environment.task_set("demo", self.demonstrations, self.seed)):
            rng = generator(self.seed, "demo", i)
            shown.append(turns(household.demonstrate(task, self.noise(rng), rng, environment=environment)))
        return self.imitated(shown, report)


class LongHouseholdRecipe(HouseholdRecipe):
    """The same crowd in the long household: its careful members slip less, for a house of many steps forgives less."""

    NAME: ClassVar[str] = "long-household"
    demonstrations: int = 5000
    careful_noise: float = 0.05
    context: int = 1536
    steps: int = 1800

    @property
    def environment(self) -> long_household.LongHouseholdEnvironment:
        """See :class:`HouseholdRecipe`."""
        return long_household.LongHouseholdEnvironment()


class TextWorldRecipe(CrowdRecipe):
    """The same crowd in TextWorld's treasure hunts: five rooms, five right commands, and another object that loses the game.

    A careless demonstrator gives any command that the game takes at a step, else the one that TextWorld would."""

    NAME: ClassVar[str] = "textworld"
    GAMES: ClassVar[str] = "textworld:treasure?level=10&max_turns=12"
    """The environment."""
    games: int = 240
    """Games that are demonstrated ..."""
    times: int = 8
    """... so many times each."""
    rows: int = 8

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Imitate the demonstrations; the first time, the games are generated, about a second each."""
        environment = cast(TextWorldEnvironment, find_environment(self.GAMES))
        dialogues = []
        for i, task in enumerate(environment.task_set("demo", self.games, self.seed)):
            for attempt in range(self.times):
                rng = generator(self.seed, "demo", i, attempt)
                dialogues.append(hunted(environment, task, self.noise(rng), rng))
            if i % 20 == 0:
                report(f"{i} of {self.games} games demonstrated")
        return self.imitated(dialogues, report)


def hunted(environment: TextWorldEnvironment, task: Task, noise: float, rng: np.random.Generator) -> list[tuple[str, str]]:
    """One noisy demonstration of a game as (role, text); it ends with the game, at the turn limit,
    or where nothing wins any more."""
    episode = environment.make()
    expert = environment.open(str(environment.file(task)), "policy_commands", "admissible_commands")
    state, seen = expert.reset(), episode.reset(task, 0)
    messages = [("system", episode.system)]
    for _ in range(environment.max_turns):
        if seen.terminated or not state["policy_commands"]:
            break
        careless = rng.random() < noise
        command = str(rng.choice(state["admissible_commands"])) if careless else state["policy_commands"][0]
        messages += [("user", seen.text), ("assistant", command)]
        seen = episode.step(command)
        state, _, _ = expert.step(command)
    close(episode)
    expert.close()
    return messages


FILLERS = ("so", "then", "now", "next")
"""Words before a step of a chain that change nothing."""


class ChainRecipe(Recipe):
    """Chain arithmetic, learnt from worked chains and stopped while it still slips.
    The learning rate stays, after 100 steps of warm-up."""

    NAME: ClassVar[str] = "chain"
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
    rows: int = 48
    layers: int = 2
    lr: float = 1.5e-3

    @property
    def environment(self) -> chain.ChainEnvironment:
        """Where its chains come from."""
        return chain.ChainEnvironment((self.hops, self.hops), self.mod, operand=self.operand)

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Imitate worked chains until ``accuracy`` of held-out ones are right when sampled."""
        tokenizer = chain_tokenizer(self.mod)
        rows = []
        for i, task in enumerate(self.environment.task_set("train", self.demonstrations, self.seed)):
            prompt, reply = chain.prompt(task), chain_reply(task, generator(self.seed, "chain-words", i))
            given, sampled = tokenizer.encode(prompt), tokenizer.encode(reply)
            rows.append(Row(np.array([*given, *sampled], np.int32), np.arange(len(given) + len(sampled)) >= len(given)))
        heads, end = self.width // 32, (tokenizer.token_id("<end>"),)
        model = TinyLM(
            TinyConfig(tokenizer.size, self.width, self.layers, heads, heads, 32, 3 * self.width, context=256, eos=end), self.seed
        )
        tune, sample = list(self.environment.task_set("tune", self.held_out, self.seed)), picked(rows, self.rows, self.seed)
        course = Course(self.lr, self.steps, warm=100)
        for step, found in training(model, lambda step: sample(step + 1), course, self.seed, weight_decay=0.01):
            if step % self.every == 0 and found["cross_entropy"] < self.below:
                right = float(chain_answers(model, tokenizer, tune, 1.0, self.seed).mean())
                report(f"step {step}: cross-entropy {found['cross_entropy']:.3f} per token, {right:.0%} right")
                if right >= self.accuracy:
                    break
        return model, tokenizer


def chain_tokenizer(mod: int) -> HfTokenizer:
    """One token a word: the numbers up to ``mod``, the words of a chain, and ``<end>``."""
    numbers = map(str, range(mod + 1))
    return word_tokenizer(["<end>", *numbers, *chain.OPERATORS, "=", ";", "start", "mod", "answer", *FILLERS], "<end>")


def chain_reply(task: Task, rng: np.random.Generator) -> str:
    """The worked chain with a free word before each step and ``<end>`` after the answer."""
    *steps, answer = chain.solve(task).split(" ; ")
    picks = rng.integers(0, len(FILLERS), len(steps))
    return " ; ".join([*(f"{FILLERS[i]} {step}" for i, step in zip(picks, steps, strict=True)), f"{answer} <end>"])


def chain_answers(model: TinyLM, tokenizer: HfTokenizer, tasks: Sequence[Task], temperature: float, seed: int = 0) -> np.ndarray:
    """Whether one reply to each task, sampled at ``temperature`` (0: greedy), ends right; bool (tasks,)."""
    engine = LocalModel(model, tokenizer, max_sequences=256)
    settings = Sampling(temperature=temperature, max_tokens=12 * max(len(task.data["steps"]) for task in tasks))

    async def sample(task: Task) -> str:
        prefix = Prefix(np.array(tokenizer.encode(chain.prompt(task)), np.int32))
        (sampled,) = await engine.sample(prefix, 1, settings, [derive_key(seed, "answer", task.id)])
        return sampled.text

    async def sample_all() -> list[str]:
        return await asyncio.gather(*(sample(task) for task in tasks))

    return np.array([chain.check(task, reply).right for task, reply in zip(tasks, asyncio.run(sample_all()), strict=True)])


RECIPES: dict[str, type[Recipe]] = {
    recipe.NAME: recipe for recipe in (HouseholdRecipe, LongHouseholdRecipe, TextWorldRecipe, ChainRecipe)
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small model from scratch by its recipe.")
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    args = parser.parse_args()
    RECIPES[args.name]().write(args.out, print)
