"""The variant of section 7(a) whose rewriter is a model: a small transformer,
trained from scratch on mutants and their references.

It is shown a specification and a candidate and writes a program, one token a symbol. The specification is the reference with a
share of its symbols hidden, so a faulty symbol can be corrected where it is visible, and must be guessed where it is not. A
hidden fault stays hidden: a second rewrite repairs less than the first, and often brings the same text back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.verify_or_ship.calibration import CandidateAttempt, CodeCandidate
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify_experiments.models import Course, Recipe, Report, silent, training, word_tokenizer
from ramify_experiments.verify_or_ship.programs import DEPTH, OPS, Expr, expression, first_draft, judged, text_of

LENGTH = 24
"""Symbols of a specification and of a candidate; shorter ones are padded, references that are longer are not used."""
HIDDEN = 0.5
TEMPERATURE = 0.7
"""Of the rewriter; chosen on seed 100 by what rewrites do: it repairs a third,
and most right candidates come back as they were."""
END, PAD, BLANK, BROKEN, WHOLE = "<end>", ".", "_", "<broken>", "<whole>"
ARITY = {**dict.fromkeys(OPS, 2), "if": 4}
WORDS = (END, PAD, BLANK, BROKEN, WHOLE, *ARITY, "x", "y", *map(str, range(10)))


class RewriterRecipe(Recipe):
    """A decoder of a million parameters that writes the reference of a mutant."""

    NAME: ClassVar[str] = "rewriter"
    width: int = 160
    layers: int = 3
    rows: int = 48
    steps: int = 480
    lr: float = 2e-3
    seed: int = 0

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Train it on references of its own, mutated zero to three times."""
        tokenizer = word_tokenizer(WORDS, PAD)
        heads, end = self.width // 32, (tokenizer.token_id(END),)
        shape = TinyConfig(len(WORDS), self.width, self.layers, heads, heads, 32, 3 * self.width, context=3 * LENGTH + 8, eos=end)
        model, numbers = TinyLM(shape, self.seed), itertools.count()

        def batch(step: int) -> list[Row]:
            return [_example(tokenizer, self.seed, next(numbers)) for _ in range(self.rows)]

        course = Course(self.lr, self.steps, self.steps // 10, "cosine", 0.1)
        for step, found in training(model, batch, course, self.seed, weight_decay=0.01):
            if step % 50 == 0:
                report(f"step {step}: cross-entropy {found['cross_entropy']:.3f} per token")
        return model, tokenizer


@dataclass(frozen=True)
class Assignment:
    """A reference, and how much of it the rewriter is shown."""

    reference: Expr
    shown: tuple[str, ...]

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Assignment:
        """A random one of at most LENGTH symbols."""
        while len(symbols(text_of(reference := expression(rng, DEPTH)))) > LENGTH:
            pass
        whole = symbols(text_of(reference))
        return cls(reference, tuple(BLANK if rng.random() < HIDDEN else word for word in whole))

    def prompt(self, text: str) -> str:
        """What the rewriter reads when ``text`` is the candidate."""
        words = symbols(text)[:LENGTH]
        whole = text.count("(") == text.count(")")
        return " ".join([*_padded(self.shown), *_padded(words), WHOLE if whole else BROKEN])


def _padded(words: Sequence[str]) -> list[str]:
    return [*words, *[PAD] * (LENGTH - len(words))]


def symbols(text: str) -> list[str]:
    """Operators, variables and numbers of a program's text, without brackets."""
    return text.replace("(", " ").replace(")", " ").split()


def program_of(words: Sequence[str]) -> str:
    """The text of symbols, with brackets where they make a program; else as they are, which no syntax check passes."""

    def read(at: int) -> tuple[Expr, int]:
        head, parts, at = words[at], [], at + 1
        for _ in range(ARITY.get(head, 0)):
            part, at = read(at)
            parts.append(part)
        return (head, *parts), at

    try:
        found, end = read(0)
    except IndexError:
        return " ".join(words)
    return text_of(found) if end == len(words) else " ".join(words)


def _example(tokenizer: HfTokenizer, seed: int, number: int) -> Row:
    rng = generator(seed, "verify-or-ship", "rewriter", number)
    one = Assignment.sample(rng)
    given = tokenizer.encode(one.prompt(first_draft(one.reference, rng).text))
    wanted = tokenizer.encode(" ".join([*symbols(text_of(one.reference)), END]))
    return Row(np.array([*given, *wanted], np.int32), np.arange(len(given) + len(wanted)) >= len(given))


@dataclass(frozen=True)
class Rewritten:
    """Attempts whose rewrites a model wrote, and the mean log-probability of a symbol of each rewrite, (rewrites,) an attempt."""

    attempts: list[CandidateAttempt]
    logprobs: list[list[float]]


def trajectories(
    seed: int, instances: Sequence[int], test: str, recipe: RewriterRecipe | None = None, steps: int = 3
) -> Rewritten:
    """One attempt of ``steps`` candidates at each instance:
    a mutant, then what the model of the recipe (the default one) makes of it."""
    model = (recipe or RewriterRecipe()).model()
    tokenizer = word_tokenizer(WORDS, PAD)
    engine = LocalModel(model, tokenizer, max_sequences=256)
    rngs = [generator(seed, "verify-or-ship", "specified program", instance) for instance in instances]
    given = [Assignment.sample(rng) for rng in rngs]
    drafts = [first_draft(one.reference, rng) for one, rng in zip(given, rngs, strict=True)]
    found: list[list[CodeCandidate]] = [
        [judged(draft, one.reference, seed, instance, test)]
        for draft, one, instance in zip(drafts, given, instances, strict=True)
    ]
    logprobs: list[list[float]] = [[] for _ in instances]
    for step in range(1, steps):
        prompts = [tokenizer.encode(one.prompt(own[-1].payload)) for one, own in zip(given, found, strict=True)]
        keys = [derive_key(seed, "verify-or-ship", "rewrite", instance, step) for instance in instances]
        for at, sample in enumerate(asyncio.run(_sampled(engine, prompts, keys))):
            text = program_of([word for word in sample.text.split() if word != END])
            found[at].append(judged(text, given[at].reference, seed, instances[at], test))
            logprobs[at].append(float(np.mean(sample.logprobs)) if sample.logprobs is not None else 0.0)
    attempts = [CandidateAttempt(f"program {i}", tuple(own)) for i, own in zip(instances, found, strict=True)]
    return Rewritten(attempts, logprobs)


async def _sampled(engine: LocalModel, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> list[Completion]:
    settings = Sampling(temperature=TEMPERATURE, max_tokens=LENGTH + 1)

    async def one(prompt: Sequence[int], key: int) -> Completion:
        (made,) = await engine.sample(Prefix(np.array(prompt, np.int32)), 1, settings, [key])
        return made

    return list(await asyncio.gather(*(one(prompt, key) for prompt, key in zip(prompts, keys, strict=True))))
