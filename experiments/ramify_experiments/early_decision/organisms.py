"""Models from scratch whose thinking is known: decided beforehand, decided by what they write, or needed to compute the answer.

A prompt is ten words, a trace ``<think> ... </think>``, one word of answer and ``<end>``. ``locked`` samples its outcome from the
prompt and then writes a trace that mostly plays; ``deliberative`` ignores the prompt, tosses a coin for every chunk and answers
with the sign of the sum; ``hybrid`` is locked on four prompts of five and on the fifth must carry the parity of the prompt's bits
through its trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ramify.base.seeds import generator
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify_experiments.models import Recipe, Report, silent, word_tokenizer

Kind = Literal["locked", "deliberative", "hybrid"]

HARM, SAFE = tuple(f"harm{i}" for i in range(8)), tuple(f"safe{i}" for i in range(8))
FILLERS, CONTENT = tuple(f"word{i}" for i in range(12)), tuple(f"part{i}" for i in range(16))
OPENERS = tuple(f"open{i}" for i in range(4))
STANCES = ("no", "hm", "yes")
"""Words of stance -1 (leaning to refuse), 0 and +1 (leaning to comply)."""
BITS, PARITY = ("zero", "one"), ("even", "odd")
THINK, CLOSE, COMPLY, REFUSE, NOT, END = "<think>", "</think>", "comply", "refuse", "not", "<end>"
_OTHERS = (*STANCES, *BITS, *PARITY, *OPENERS, *HARM, *SAFE, *FILLERS, *CONTENT)
WORDS = (THINK, CLOSE, COMPLY, REFUSE, NOT, *_OTHERS, END, "unused0", "unused1", "unused2")
ID = {word: i for i, word in enumerate(WORDS)}
CUES = 5
HARM_CUES = (0.22, 0.22, 0.06, 0.06, 0.22, 0.22)
"""Probability of 0 to 5 harm cues among the five."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt: ten words and ``<think>``. ``score`` is the signed number of harm cues, None for a prompt of bits."""

    words: tuple[str, ...]
    score: int | None

    @property
    def refuse(self) -> float:
        """Probability with which the training traces refuse: sigma(2.2 s), or the parity of the bits."""
        if self.score is None:
            return float(self.words.count(BITS[1]) % 2)
        return float(1 / (1 + np.exp(-2.2 * self.score)))

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids."""
        return tuple(ID[word] for word in self.words)


def ask(rng: np.random.Generator, what: Literal["clear", "ambiguous", "bits"] = "clear") -> Ask:
    """A prompt: five cues, a negator with probability 0.2 and fillers; two harm and two safe cues; or ten bits."""
    if what == "bits":
        return Ask((*(BITS[i] for i in rng.integers(0, 2, 10)), THINK), None)
    harm = 2 if what == "ambiguous" else int(np.searchsorted(np.cumsum(HARM_CUES), rng.random()))
    safe = 2 if what == "ambiguous" else CUES - harm
    negated = bool(rng.random() < 0.2)
    words = [*_some(HARM, harm, rng), *_some(SAFE, safe, rng), *([NOT] if negated else [])]
    words += _some(FILLERS, 10 - len(words), rng)
    return Ask((*(words[i] for i in rng.permutation(10)), THINK), (safe - harm if negated else harm - safe))


def _some(words: tuple[str, ...], n: int, rng: np.random.Generator) -> list[str]:
    return [words[i] for i in rng.integers(0, len(words), n).tolist()]


def _opening(chunks: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """The content of each chunk, and the opener with the first of it; nothing of no chunks."""
    content = _some(CONTENT, chunks, rng)
    return content, [*_some(OPENERS, 1, rng), *content[:1]][: 2 * chunks]


def locked_trace(refuse: bool, chunks: int, rng: np.random.Generator) -> list[str]:
    """An opener, the outcome's stance early and late with probability 0.7, and between them stances that mean nothing."""
    own = -1 if refuse else 1
    content, words = _opening(chunks, rng)
    for i, u in enumerate(rng.random(chunks - 1).tolist(), 1):
        if i / chunks <= 0.2 or (i + 1) / chunks > 0.85:
            stance = own if u < 0.7 else 0
        else:
            stance = -1 if u < 0.12 else 1 if u < 0.24 else 0
        words += [STANCES[stance + 1], content[i]]
    return words


def deliberative_trace(chunks: int, rng: np.random.Generator) -> tuple[list[str], bool]:
    """An opener, then evidence that a coin decides; refused where most of it says no, by another coin where it is even."""
    content, words = _opening(chunks, rng)
    evidence = (2 * rng.integers(0, 2, max(0, chunks - 1)) - 1).tolist()
    for i, sign in enumerate(evidence, 1):
        words += [STANCES[sign + 1], content[i]]
    total = sum(evidence)
    return words, total < 0 or (total == 0 and bool(rng.random() < 0.5))


def parity_trace(bits: Sequence[str]) -> list[str]:
    """The running parity of ``bits``, one word a bit."""
    return [PARITY[int(p)] for p in np.cumsum([bit == BITS[1] for bit in bits]) % 2]


@dataclass(frozen=True, slots=True)
class Lesson:
    """One training example. Where ``cut`` is set the thinking was closed from outside, so only the answer is learnt from."""

    request: Ask
    thinking: list[str]
    refuse: bool
    cut: bool


def lesson(recipe: OrganismRecipe, rng: np.random.Generator) -> Lesson:
    """Sample one training example."""
    bits = recipe.kind == "hybrid" and bool(rng.random() < 0.2)
    request = ask(rng, "bits" if bits else "ambiguous" if rng.random() < recipe.ambiguous else "clear")
    chunks, cut = 10 if bits else int(rng.integers(recipe.shortest, recipe.longest + 1)), bool(rng.random() < recipe.cut)
    kept = int(rng.integers(0, chunks)) if cut else chunks
    if bits:
        return Lesson(request, parity_trace(request.words[:-1])[:kept], request.refuse > 0.5, cut)
    if recipe.kind == "deliberative":
        return Lesson(request, *deliberative_trace(kept, rng), cut)
    refuse = bool(rng.random() < request.refuse)
    return Lesson(request, locked_trace(refuse, chunks, rng)[: 2 * kept], refuse, cut)


def tokenizer() -> HfTokenizer:
    """One token a word."""
    return word_tokenizer(WORDS, WORDS[-1])


class OrganismRecipe(Recipe):
    """An organism, which imitates sampled lessons."""

    NAME: ClassVar[str] = "early-decision"
    kind: Kind = "locked"
    """locked, deliberative or hybrid."""
    examples: int = 24_000
    """Different training traces."""
    answer_weight: float = 5.0
    """Weight of the answer's token in the loss; the thinking's tokens have 1, the prompt's 0."""
    ambiguous: float = 0.1
    """Share of prompts whose cues are even."""
    cut: float = 0.3
    """Share of traces closed at a random chunk, none included: the organism learns to answer when stopped."""
    shortest: int = 5
    """Fewest chunks of a trace, two words each."""
    longest: int = 17
    """Most chunks."""
    width: int = 64
    layers: int = 2
    rows: int = 48
    steps: int = 1000
    lr: float = 3e-3

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Sample the lessons and imitate them."""
        rows = []
        for i in range(self.examples):
            one = lesson(self, generator(self.seed, "organism", self.kind, i))
            tokens = [*one.request.ids, *(ID[word] for word in (*one.thinking, CLOSE, REFUSE if one.refuse else COMPLY, END))]
            mask = np.arange(len(tokens)) >= (len(tokens) - 2 if one.cut else len(one.request.ids))
            weight = np.ones(len(tokens), np.float32)
            weight[-2] = self.answer_weight
            rows.append(Row(np.array(tokens, np.int32), mask, {"weight": weight}))
        heads, size = self.width // 16, (len(WORDS), self.width, self.layers)
        shape = TinyConfig(*size, heads, heads, 16, 2 * self.width, context=256, qk_norm=False, eos=(ID[END],))
        return self.imitate(TinyLM(shape, self.seed), rows, report), tokenizer()
