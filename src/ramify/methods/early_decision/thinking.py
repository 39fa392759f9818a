"""Thinking traces: draw the thinking, close it, draw the answer; cut the thinking anywhere and go on, at once or thinking further.

Cuts are on the token ids that were drawn, never on text. The answer is what follows the closing marker; a trace that was never closed has
none, and nothing may be read off its thinking instead. Models that write channels (GPT-OSS, the harmony format) think in ``analysis`` and
answer in ``final``; what is between these, a second analysis or a tool call's commentary, belongs to the thinking.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.model.protocol import Draw, Model, Prefix, Sampling, Tokenizer, require
from ramify.rollout.failures import FailurePolicy
from ramify.rollout.sampler import Place, Policy, Sampler, token_ids

Closed = Literal["own", "forced", "never"]
THINK = "<think>\n", "</think>"
"""What opens and closes thinking in most models."""
CHANNELS = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
"""What opens and closes it in models that write channels."""
_MESSAGE = re.compile(
    r"<\|channel\|>\s*(\w+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>(.*?)(?=<\|(?:end|return|call|start|channel)\|>|\Z)", re.S
)


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids around thinking: ``open`` starts it, ``close`` is put behind it by force, ``mark`` is how the model's own close ends."""

    open: tuple[int, ...]
    close: tuple[int, ...]
    mark: tuple[int, ...]
    opened: tuple[tuple[int, ...], ...] = ()
    """Ends of a prompt by which thinking is open already, as some templates leave it."""
    primer: tuple[int, ...] = ()
    """Tokens every thinking starts with: a sentence on safety makes this the defence SafePath-ZS."""
    ends: tuple[int, ...] = ()
    """Tokens that end an answer whatever the model says of itself: a channel's."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, open_text: str = "", close_text: str = "", primer: str = "") -> Marks:
        """Markers as this tokenizer writes them; where a text is "", the model's own: channels where it has such tokens, else THINK.

        Raises UserError where one is blank.
        """
        own = CHANNELS if all(_single(tokenizer, token) for token in ("<|channel|>", "<|message|>")) else THINK
        open_text, close_text = open_text or own[0], close_text or own[1]
        if not open_text.strip() or not close_text.strip():
            raise UserError("the markers that open and close thinking must not be empty")
        known = {tuple(tokenizer.encode(text)) for text in (open_text, open_text.strip(), open_text.strip() + "\n")}
        started, close, mark = (tuple(tokenizer.encode(text)) for text in (open_text, close_text, close_text.strip()))
        spoken = ("<|end|>", "<|return|>", "<|call|>") if close_text == CHANNELS[1] else ()
        ends = tuple(tokenizer.encode(token)[0] for token in spoken if _single(tokenizer, token))
        return cls(started, close, mark, tuple(sorted(known)), tuple(tokenizer.encode(primer)), ends)

    def start(self, prompt: Sequence[int]) -> np.ndarray:
        """The prompt with thinking opened, int32 (T,)."""
        row = tuple(int(token) for token in prompt)
        there = any(end and row[-len(end) :] == end for end in (self.open, *self.opened))
        return np.array((*row, *(() if there else self.open), *self.primer), np.int32)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said behind the close: token ids (the one that ended it left out), their text, why it ended."""

    tokens: tuple[int, ...]
    text: str
    stop: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Thinking from some prefix to its close, and the answer; None where it was never closed or left no room for one."""

    thinking: tuple[int, ...]
    closed: Closed
    answer: Answer | None


class NoRoomError(UserError):
    """A prefix with the answer's tokens does not fit the model's context."""


class Thinker:
    """Samples thinking and answers from one model. Samples are keyed by position: order and concurrency change nothing.

    ``think`` and ``answer`` are the settings of each part, their limits of tokens the budgets. Thinking that reaches its budget is closed
    by force, or with ``force`` False left unclosed. ``tokenizer`` None is for models of ids only, whose texts are the ids. ``guard`` steps
    in while either is written. What fails is None, counted in ``failures``. Raises NeedsError where the model does not continue token ids
    (a chat endpoint cannot take a started reply), before anything is sampled.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        marks: Marks,
        think: Sampling,
        answer: Sampling,
        *,
        seed: int = 0,
        force: bool = True,
        eos: Sequence[int] | None = None,
        policy: FailurePolicy | None = None,
        guard: Policy | None = None,
    ) -> None:
        require(model, ("tokens", "continue"), "continuing a trace from inside its thinking")
        self.sampler = Sampler(model, seed, policy=guard, retries=policy)
        self.model, self.tokenizer, self.marks, self.force = model, tokenizer, marks, force
        self.eos = frozenset((*(getattr(model, "eos", ()) if eos is None else eos), *answer.stop_tokens, *marks.ends))
        self.answer_settings = replace(answer, stop_tokens=tuple(sorted(self.eos)))
        mark = np.array(marks.mark, np.int32)
        if len(mark) == 1:
            self.think_settings = replace(think, stop_tokens=(*marks.mark, *sorted(self.eos)))
        else:
            self.think_settings = replace(
                think, stop_tokens=tuple(sorted(self.eos - set(marks.mark))), until=lambda drawn: _ends(drawn, mark)
            )

    @property
    def failures(self) -> int:
        """Continuations that failed."""
        return self.sampler.failed

    @property
    def first_failure(self) -> str:
        """The first sentence with which the model failed."""
        return self.sampler.first_failure

    def text(self, tokens: Sequence[int]) -> str:
        """Text of drawn tokens."""
        return " ".join(map(str, tokens)) if self.tokenizer is None else self.tokenizer.decode(list(tokens))

    def closed_prefix(self, prompt: Sequence[int], thinking: Sequence[int], closed: Closed = "forced") -> np.ndarray:
        """Prompt, thinking and its close, int32 (T,): the model's own marker where the trace was ``closed`` by itself."""
        return np.array(
            [*self.marks.start(prompt), *thinking, *(self.marks.mark if closed == "own" else self.marks.close)], np.int32
        )

    def fits(self, prefix: np.ndarray) -> bool:
        """Whether an answer of full length fits behind ``prefix``; True where the model's context is not known."""
        context = getattr(self.model, "context", None)
        return context is None or len(prefix) + self.answer_settings.max_tokens <= int(context)

    async def answers(self, prefix: np.ndarray, n: int, place: Place, start: int = 0) -> list[Answer | None]:
        """``n`` answers behind a closed prefix, which is computed once; ``start`` is the index of the first, which decides its draw.

        Raises NoRoomError where none fits.
        """
        if not self.fits(prefix):
            raise NoRoomError(f"{len(prefix)} tokens and an answer do not fit the context of '{self.model.identity.name}'")
        draws = await self._draw(prefix, n, self.answer_settings, (*place, "answer"), start)
        return [None if draw is None else self._answer(draw) for draw in draws]

    async def think(
        self, prompt: Sequence[int], n: int, place: Place, head: Sequence[int] = (), start: int = 0
    ) -> list[Thought | None]:
        """``n`` times: go on thinking behind ``head``, close, answer; None where one of these failed. ``start`` is the index of the first,
        which decides its draw.

        The budget is what ``head`` leaves of it. A ``head`` that has used it up is closed at once.
        """
        prefix = np.concatenate([self.marks.start(prompt), np.array(head, np.int32)])
        left = self.think_settings.max_tokens - len(head)
        drawn: list[tuple[tuple[int, ...], Closed] | None] = [((), "forced" if self.force else "never")] * n
        if left > 0:
            settings = replace(self.think_settings, max_tokens=left)
            draws = await self._draw(prefix, n, settings, (*place, "think"), start)
            drawn = [None if draw is None else self._split(draw) for draw in draws]

        async def finish(i: int, one: tuple[tuple[int, ...], Closed] | None) -> Thought | None:
            if one is None:
                return None
            thinking, closed = (*map(int, head), *one[0]), one[1]
            row = self.closed_prefix(prompt, thinking, closed)
            if closed == "never" or not self.fits(row):
                return Thought(thinking, closed, None)
            (said,) = await self.answers(row, 1, (*place, i))
            return None if said is None else Thought(thinking, closed, said)

        return list(await asyncio.gather(*(finish(i, one) for i, one in enumerate(drawn, start))))

    async def extend(self, prompt: Sequence[int], thinking: Sequence[int], tokens: int, place: Place) -> tuple[int, ...] | None:
        """``thinking`` with ``tokens`` more, the close (its first token) and the end of the turn banned; None where it failed."""
        prefix = np.concatenate([self.marks.start(prompt), np.array(thinking, np.int32)])
        ban = tuple(sorted({self.marks.mark[0], *self.eos}))
        settings = replace(self.think_settings, max_tokens=tokens, ban=ban, stop_tokens=(), until=None)
        (draw,) = await self._draw(prefix, 1, settings, (*place, "extend", tokens))
        return None if draw is None else (*map(int, thinking), *token_ids(draw))

    # -- parts

    async def _draw(self, prefix: np.ndarray, n: int, settings: Sampling, place: Place, start: int = 0) -> list[Draw | None]:
        return await self.sampler.sample(Prefix(prefix), n, settings, place, start)

    def _split(self, draw: Draw) -> tuple[tuple[int, ...], Closed]:
        """The thinking of a draw, without the marker or token that ended it, and how it was closed."""
        tokens, mark = tuple(token_ids(draw)), self.marks.mark
        if tokens[-len(mark) :] == mark:
            return tokens[: -len(mark)], "own"
        if tokens and tokens[-1] in self.eos.difference(mark):
            return tokens[:-1], "never"
        if not self.force or draw.stop != "length":
            return tokens, "never"
        part = next((i for i in range(len(mark) - 1, 0, -1) if tokens[-i:] == mark[:i]), 0)
        return tokens[: len(tokens) - part], "forced"  # a marker that the budget cut in two is not written twice

    def _answer(self, draw: Draw) -> Answer:
        tokens = tuple(token_ids(draw))
        spoken = tokens[:-1] if tokens and tokens[-1] in self.eos else tokens
        return Answer(spoken, self.text(spoken), draw.stop)


def cut_at(length: int, share: float) -> int:
    """How many of ``length`` thinking tokens a share up to 1 keeps: max(1, floor(share length)); none at share 0. (3.6)"""
    if not 0 <= share <= 1:
        raise UserError(f"a share of the thinking lies between 0 and 1, not {share:g}")
    return min(length, max(1, math.floor(share * length + 1e-9))) if share else 0


def split_text(text: str, open_text: str = "", close_text: str = "") -> tuple[str, str] | None:
    """(thinking, answer) of a reply that was kept as it was written, "" where it has none; None where it has no marks of either.

    The marks are channels where the text has such (thinking is all of ``analysis``, the answer the last ``final``), else the two given, which
    are those of THINK where they are "".
    """
    if "<|channel|>" in text:
        said = _MESSAGE.findall(text)
        final = [content for channel, content in said if channel == "final"]
        return "\n".join(content for channel, content in said if channel == "analysis"), final[-1] if final else ""
    opens, closes = (given.strip() or own.strip() for given, own in zip((open_text, close_text), THINK, strict=True))
    before, closed, after = text.partition(closes)
    if not closed and opens not in text:
        return None
    return before.partition(opens)[2] if opens in before else before, after


def _single(tokenizer: Tokenizer, token: str) -> bool:
    """Whether a tokenizer has one token for this text (and not merely one for what it does not know)."""
    ids = tokenizer.encode(token)
    return len(ids) == 1 and tokenizer.decode(list(ids)) == token


def tokens_up_to(ends: np.ndarray, character: int) -> int:
    """How many tokens it takes to reach ``character``, given the character ``ends`` (T,) of each."""
    return min(len(ends), int(np.searchsorted(ends, character, "left")) + 1)


def _ends(drawn: np.ndarray, mark: np.ndarray) -> bool:
    return len(drawn) >= len(mark) and bool((drawn[-len(mark) :] == mark).all())
