"""A server's own null: does the same context, asked again and after other requests, draw from one distribution?

What is counted through an endpoint (forks, what would have helped, a scan) compares replies that were sampled at other times,
beside other requests, with another part of the prompt in a cache. Were the replies drawn otherwise then, a difference would be
the server's. So one context is asked alone, after other requests, after itself, and in a crowd of requests, each time with
another seed, and the replies are compared by permutation tests, corrected together. What no test of equal draws shows is looked
at apart: one reply to everything (a cache of whole replies), replies that come in runs, a long context of which the beginning is
not read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.model.http import ProviderError
from ramify.model.protocol import Completion, Model, Prefix, Sampling
from ramify.render.numbers import p_value
from ramify.render.result import Result, Section, table
from ramify.rollout.sampler import sample_key
from ramify.stats.evidence import holm
from ramify.stats.tests import kernel_permutation
from ramify.trace.message import Message

REPLY = 12
"""Tokens of a reply."""
LONG = 6
"""One other request in this many is long."""
SEEDS = 6
"""Seeds with which the two long contexts are asked."""
ARMS = {
    "alone": "before any other request",
    "itself": "after other requests, right after itself",
    "another": "right after another request",
    "crowd": "in a crowd of requests",
}
COMPARED = {
    ("alone", "itself"): "before and after other requests",
    ("another", "itself"): "right after another request and right after itself",
    ("alone", "crowd"): "alone and in a crowd of requests",
}
_ASKED = "Write one line with a colour, a town, a number and an animal that come to your mind."
_OTHERS = (
    "Name three tools of a carpenter.",
    "What is the opposite of early?",
    "Give a title for a story about a lighthouse.",
    "List two rivers.",
    "Translate 'good morning' into French.",
    "What do bees make?",
    "Write a question about the moon.",
)
_BEGINNINGS = (
    "You are a cook on a pirate ship. You speak of soup, salt, storms and the sea, and of nothing else.",
    "You are a shy astronomer. You count stars, doubt every number and answer in questions.",
)
_WORDS = ("amber", "birch", "copper", "dusk", "ember", "fern", "grain", "harbor", "iron", "juniper", "kettle", "linen", "marble")


@dataclass(frozen=True)
class DrawTest:
    """Whether two sets of replies to one context have one distribution of one thing."""

    compared: str
    about: str
    """first word, text, length, or order."""
    n: int
    """Replies in each of the two."""
    p: float
    p_corrected: float
    """Holm, over all tests of the call."""


@dataclass(frozen=True)
class ServerDraws(Result):
    """What was found of how a server draws."""

    model: str
    samples: int
    """Replies in each arm."""
    level: float
    """Chance of calling a server different that draws the same, over all tests together."""
    tests: tuple[DrawTest, ...]
    one_reply: bool
    """Every reply, whatever its seed, is the same text."""
    greedy: int
    """How many texts four greedy replies to one context are."""
    words: int
    """Of the longest context."""
    cut: str
    """Why the server seems not to read the whole of it; empty where it does."""
    told: bool
    """Whether that could be told: the server counts tokens, or follows seeds."""
    refused: bool
    """It refused such a context."""

    @property
    def differ(self) -> tuple[DrawTest, ...]:
        """The tests that say that replies differ."""
        return tuple(test for test in self.tests if test.p_corrected <= self.level)

    @property
    def caution(self) -> str:
        """What a reader of results through this server must know, in one sentence; empty where nothing was found."""
        faults = []
        if self.one_reply:
            faults.append("gives one reply to every seed (it caches whole replies, or does not sample)")
        groups: dict[str, list[str]] = {}
        for test in self.differ:
            groups.setdefault(test.compared, []).append(test.about)
        faults += [f"draws otherwise {compared} ({', '.join(about)})" for compared, about in groups.items()]
        faults += [self.cut] if self.cut else []
        if not faults:
            return ""
        return f"the server of '{self.model}' {'; it '.join(faults)}: a difference between arms may be the server's"

    @property
    def sentence(self) -> str:
        """What they come to."""
        parts = [
            self.caution
            or f"the same context draws the same, alone, after other requests and among them ({self.samples} replies each, level "
            f"{self.level:g})"
        ]
        if not self.cut:
            unknown = "whether it reads all of a long context cannot be told"
            told = f"it reads all of {self.words} words" if self.told else unknown
            parts.append(f"it refuses contexts of {self.words} words or fewer" if self.refused else told)
        parts.append("greedy replies repeat" if self.greedy == 1 else f"greedy replies do not repeat ({self.greedy} texts of 4)")
        return "; ".join(parts)

    def sections(self) -> Iterable[Section]:
        """The tests, and what they come to."""
        rows = [(test.compared, test.about, test.n, p_value(test.p), p_value(test.p_corrected)) for test in self.tests]
        yield Section.of(
            f"How '{self.model}' draws",
            table(("one context", "of the replies", "each", "p", "p, corrected"), rows),
            self.sentence,
        )


async def server_draws(
    model: Model, samples: int = 24, level: float = 0.05, seed: int = 0, words: int = 300, progress: Progress = SILENT
) -> ServerDraws:
    """Ask ``model``, which takes messages, some 7 times ``samples`` and compare its replies.

    ``words``: of a long context. Raises UserError on too few samples, and what the model raises.
    """
    if samples < 8:
        raise UserError(f"--samples must be at least 8, not {samples}: fewer replies tell no two distributions apart")
    asking = _Asking(model, seed, words, progress)
    progress.begin(6 * samples + 8 + 2 * SEEDS, 0, "ask", "requests")
    drawn: dict[str, list[str]] = {arm: [] for arm in ARMS}
    greedy = [await asking.greedily(), await asking.greedily()]
    for i in range(samples):
        drawn["alone"].append(await asking.same("alone", i))
    for i in range(samples):
        await asking.other(i)
        drawn["another"].append(await asking.same("another", i))
        drawn["itself"].append(await asking.same("itself", i))
    await asking.other(samples)
    greedy.append(await asking.greedily())
    both = ((asking.same("crowd", i), asking.other(samples + 1 + i)) for i in range(samples))
    last, *crowd = await asyncio.gather(asking.greedily(), *itertools.chain.from_iterable(both))
    drawn["crowd"] = [text for text in crowd[::2] if text is not None]
    cut, told = await asking.cut()
    everything = [text for texts in drawn.values() for text in texts]
    return ServerDraws(
        model=model.identity.name,
        samples=samples,
        level=level,
        tests=compared(drawn, seed),
        one_reply=len(set(everything)) == 1,
        greedy=len({*greedy, last}),
        words=words,
        cut=cut,
        told=told,
        refused=asking.refused,
    )


def compared(drawn: Mapping[str, Sequence[str]], seed: int = 0) -> tuple[DrawTest, ...]:
    """The tests of replies by arm (:data:`ARMS`), corrected over all of them."""
    rows: list[tuple[str, str, int, float]] = []
    for (first, second), name in COMPARED.items():
        texts = [*drawn[first], *drawn[second]]
        labels = np.arange(len(texts)) >= len(drawn[first])
        for about, kernel in _kernels(texts).items():
            rows.append((name, about, len(drawn[second]), kernel_permutation(kernel, labels, seed)))
    rows.append(("one after the other", "order", len(drawn["alone"]), _in_runs(drawn["alone"], seed)))
    corrected = holm([p for *_, p in rows])
    return tuple(DrawTest(*test, fair) for test, fair in zip(rows, corrected, strict=True))


def _kernels(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """How alike two replies are, by what is looked at."""
    words = [text.lower().split() for text in texts]
    first = np.array([each[0] if each else "" for each in words])
    sets = [set(each) for each in words]
    shared = [[len(a & b) / max(len(a | b), 1) if a or b else 1.0 for b in sets] for a in sets]
    ranks = np.searchsorted(np.sort(lengths := np.array([len(text) for text in texts])), lengths)
    return {
        "first word": (first[:, None] == first[None, :]).astype(float),
        "text": np.array(shared),
        "length": -np.abs(ranks[:, None] - ranks[None, :]).astype(float),
    }


def _in_runs(texts: Sequence[str], seed: int, samples: int = 2_000) -> float:
    """p-value of as many equal neighbours as there are, under any order of the replies."""
    codes = np.unique(np.array(texts), return_inverse=True)[1]
    orders = generator(seed, "server order").permuted(np.tile(codes, (samples, 1)), axis=1)
    seen = int((codes[1:] == codes[:-1]).sum())
    return (int(((orders[:, 1:] == orders[:, :-1]).sum(1) >= seen).sum()) + 1) / (samples + 1)


class _Asking:
    """The requests, one at a time but where they are gathered; each draw has a seed of its own."""

    def __init__(self, model: Model, seed: int, words: int, progress: Progress) -> None:
        self.model, self.seed, self.words, self.progress = model, seed, words, progress
        self.done = 0
        self.refused = False
        """A long context was refused, which is as good as reading it."""

    async def same(self, arm: str, number: int) -> str:
        """A reply to the context."""
        return (await self._ask(_ASKED, ("same", arm, number))).text

    async def greedily(self) -> str:
        """The greedy reply to it."""
        return (await self._ask(_ASKED, ("greedy",), temperature=0.0)).text

    async def other(self, number: int) -> None:
        """Another request, once in a while a long one."""
        text = f"{_OTHERS[number % len(_OTHERS)]} ({number + 1})"
        await self._ask(text, ("other", number), "" if number % LONG else self._filler(number, self.words // 2))

    async def cut(self) -> tuple[str, bool]:
        """Why the server seems not to read the whole of a long context, "" where it does; whether that could be told."""
        half, whole = self.words // 2, self._filler(0, self.words)
        fillers = "", self._filler(0, half), whole
        asked = [await self._ask(_ASKED, ("long", at), filler) for at, filler in enumerate(fillers)]
        if self.refused:
            return "", False
        counts = [(done.data or {}).get("usage", {}).get("prompt_tokens") for done in asked]
        counted = None not in counts and counts[0] < counts[2]  # else it counts something else
        if counted and min(counts[1] - counts[0], counts[2] - counts[1]) < half:  # a word is a token at least
            return f"cuts contexts: of {half} and of {self.words} words more it counts {counts[1]} and {counts[2]} tokens", True
        if "seeds" not in self.model.capabilities:
            return "", counted
        replies = [
            [(await self._ask(_ASKED, ("beginning", i), whole, beginning)).text for beginning in _BEGINNINGS]
            for i in range(SEEDS)
        ]
        if all(first == second for first, second in replies) and len({first for first, _ in replies}) > 1:
            return f"replies the same whatever a context of {self.words} words begins with: it does not read that", True

        return "", True

    def _filler(self, number: int, words: int) -> str:
        return " ".join(generator(self.seed, "server filler", number).choice(_WORDS, words).tolist())

    async def _ask(
        self, text: str, position: tuple[str | int, ...], filler: str = "", beginning: str = "", temperature: float = 1.0
    ) -> Completion:
        system = [Message("system", beginning)] if beginning else []
        prefix = Prefix(messages=(*system, Message("user", f"{filler}\n\n{text}" if filler else text)))
        settings: dict[str, Any] = {"temperature": temperature, "max_tokens": REPLY}
        key = sample_key(self.seed, ("server draws", *position))
        try:
            (done,) = await self.model.sample(prefix, 1, Sampling(**settings), [key])
        except ProviderError as error:
            if filler and error.kind == "request":
                self.refused = True
            elif error.kind != "unread":  # what the model said there is a draw like others, only nobody can read it
                raise
            done = Completion(f"({error.kind})", "failed")
        self.done += 1
        self.progress.at(self.done)
        return done
