"""Three procedural domains of different predictability over 256 tokens, and a small target that learned them.

``math``: sums, whose operands are random and whose results follow. ``code``: functions with matched brackets and copied names of
two tokens. ``chat``: phrases of 3 to 7 shared tokens, sampled by topic, with copied names. In each there are several equally good
continuations that share tokens: a drafter that cannot see which one it has begun mixes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar, Literal

import numpy as np

from ramify.base.seeds import generator
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify_experiments.models import Recipe, Report, silent, word_tokenizer

Domain = Literal["math", "code", "chat"]
DOMAINS: tuple[Domain, ...] = ("math", "code", "chat")

END, MASK = "<end>", "<mask>"
DIGITS = tuple("0123456789")
VERBS, NOUNS = tuple(f"do{i}" for i in range(24)), tuple(f"thing{i}" for i in range(24))
FIRST, LAST = tuple(f"given{i}" for i in range(24)), tuple(f"family{i}" for i in range(24))
TOPICS, WORDS = tuple(f"topic{i}" for i in range(8)), tuple(f"word{i}" for i in range(120))
TOKENS = (
    *(END, MASK, "<math>", "<code>", "<chat>"),
    *DIGITS,
    *"+=;()[]{},.:",
    *("def", "if", "while", "not", "return"),
    *VERBS,
    *NOUNS,
    *FIRST,
    *LAST,
    *TOPICS,
    *WORDS,
)
ID = {token: i for i, token in enumerate(TOKENS)}
VOCAB = len(TOKENS)
PHRASES, SLOTS = 96, 24
"""Phrases of the book, and how many of them name somebody."""

Name = tuple[str, str]
Rng = np.random.Generator


def row(domain: Domain, length: int, rng: Rng) -> np.ndarray:
    """``length`` token ids of ``domain``, int32: its tag and whatever follows; it never ends by itself."""
    words = [f"<{domain}>"]
    write: Callable[[list[str], int, Rng], None] = {"math": _math, "code": _code, "chat": _chat}[domain]
    write(words, length, rng)
    return np.array([ID[word] for word in words[:length]], np.int32)


def prompts(domain: Domain, n: int, length: int, seed: int, part: str) -> list[np.ndarray]:
    """``n`` starts of ``length`` tokens; ``part`` (train, calibrate, test) keeps them disjoint."""
    return [row(domain, length, generator(seed, "dspark", domain, part, i)) for i in range(n)]


def _math(words: list[str], length: int, rng: Rng) -> None:
    """``ab+cd=ef;``: random operands of digits up to 4, so that nothing is carried."""
    while len(words) < length:
        a, b = rng.integers(0, 5, (2, 2))
        words += f"{a[0]}{a[1]}+{b[0]}{b[1]}={a[0] + b[0]}{a[1] + b[1]};"


def _code(words: list[str], length: int, rng: Rng) -> None:
    while len(words) < length:
        names = [_name(VERBS, NOUNS, rng) for _ in range(3)]
        words += ["def", *names[0], "(", *names[1], ",", *names[2], ")", "{"]
        for _ in range(int(rng.integers(2, 5))):
            _statement(words, names, rng, 0)
        words += ["return", *_expression(names, rng, 0), "}"]


def _statement(words: list[str], names: list[Name], rng: Rng, depth: int) -> None:
    kind = rng.random()
    if kind < 0.25 and depth < 2:
        words += [("if", "while")[int(rng.integers(2))], "(", *_expression(names, rng, 1), ")", "{"]
        _statement(words, names, rng, depth + 1)
        words += ["}"]
    elif kind < 0.7:
        if rng.random() < 0.3:
            names.append(_name(VERBS, NOUNS, rng))
            words += [*names[-1], "="]
        else:
            words += [*_one(names, rng), "="]
        words += [*_expression(names, rng, 0), ";"]
    else:
        words += [*_one(names, rng), "(", *_expression(names, rng, 1), ")", ";"]


def _expression(names: list[Name], rng: Rng, depth: int) -> list[str]:
    kind = rng.random()
    if kind < 0.45 or depth > 2:
        return [*_one(names, rng)]
    if kind < 0.6:
        return [*_one(names, rng), "+", *_one(names, rng)]
    if kind < 0.7:
        return ["not", *_one(names, rng)]
    if kind < 0.85:
        return [*_one(names, rng), "[", *_expression(names, rng, depth + 1), "]"]
    return [*_one(names, rng), "(", *_expression(names, rng, depth + 1), ")"]


def _name(first: tuple[str, ...], second: tuple[str, ...], rng: Rng) -> Name:
    return first[int(rng.integers(len(first)))], second[int(rng.integers(len(second)))]


def _one(names: list[Name], rng: Rng) -> Name:
    return names[int(rng.integers(len(names)))]


@cache
def _phrasebook() -> tuple[list[list[str]], np.ndarray]:
    """The phrases, ``@`` for a name, and the distribution over them of each topic, float64 [topics,
    phrases]: Zipf in an order of its own."""
    rng = generator(0, "dspark", "phrasebook")
    shared = 1.0 / np.arange(3, len(WORDS) + 3)
    phrases = []
    for i in range(PHRASES):
        picks = rng.choice(len(WORDS), int(rng.integers(3, 8)), p=shared / shared.sum())
        phrase = [WORDS[j] for j in picks]
        if i < SLOTS:
            phrase[int(rng.integers(1, len(phrase) - 1))] = "@"
        phrases.append(phrase)
    zipf = 1.0 / np.arange(1, PHRASES + 1) ** 1.2
    orders = np.stack([rng.permutation(PHRASES) for _ in TOPICS])
    distributions = np.zeros((len(TOPICS), PHRASES))
    np.put_along_axis(distributions, orders, np.broadcast_to(zipf / zipf.sum(), distributions.shape), axis=1)
    return phrases, distributions


def _chat(words: list[str], length: int, rng: Rng) -> None:
    phrases, distributions = _phrasebook()
    topic = int(rng.integers(len(TOPICS)))
    names = [_name(FIRST, LAST, rng) for _ in range(2)]
    words += [TOPICS[topic], *names[0], ",", *names[1], ":"]
    while len(words) < length:
        for word in phrases[int(rng.choice(PHRASES, p=distributions[topic]))]:
            words += [*_one(names, rng)] if word == "@" else [word]
        if rng.random() < 0.3:
            words.append(".")


def tokenizer() -> HfTokenizer:
    """One token a word, words apart by spaces."""
    return word_tokenizer(TOKENS, END)


class TargetRecipe(Recipe):
    """The target, of Qwen3's shape (0.47 M weights), or with fewer layers a model of the same kind;
    it learns rows of the domains by turns."""

    NAME: ClassVar[str] = "dspark"
    head_size: int = 32
    """Size of an attention head; vLLM's CPU attention knows 32 and 64, not 24."""
    length: int = 96
    """Tokens of a row."""
    layers: int = 4
    rows: int = 12
    steps: int = 1500
    lr: float = 4e-3

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Train the target."""
        heads, ffn = self.width // 24, 8 * self.width // 3
        shape = TinyConfig(VOCAB, self.width, self.layers, heads, heads // 2, self.head_size, ffn, context=512, eos=(ID[END],))
        rows = []
        for i in range(min(self.steps * self.rows, 12_000)):
            tokens = row(DOMAINS[i % 3], self.length, generator(self.seed, "dspark", "target", i))
            rows.append(Row(tokens, np.ones(self.length, np.bool_)))
        return self.imitate(TinyLM(shape, self.seed), rows, report), tokenizer()
