"""Thinking traces: the policy that closes a thought and answers, and the prefixes and settings of a thought that is cut anywhere.

Cuts are on the token ids that were sampled, never on text. The answer is what follows the closing marker; a trace that was never
closed has none, and nothing may be read off its thinking instead. Models that write channels (GPT-OSS, the harmony format) think
in ``analysis`` and answer in ``final``; what is between these,
a second analysis or a tool call's commentary, belongs to the thinking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.model.protocol import Completion, Model, Prefix, Sampling, Tokenizer, context_of, eos_of, require
from ramify.rollout.sampler import Ask, Key, token_ids

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
    """Token ids around thinking: ``open`` starts it, ``close`` is appended by force,
    ``mark`` is how the model's own close ends."""

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
        """Markers as this tokenizer writes them; where a text is "", the model's own:
        channels where it has such tokens, else THINK.

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
class ThinkingAnswer:
    """The answer after the close: token ids (the one that ended it left out), their text, why it ended."""

    tokens: tuple[int, ...]
    text: str
    stop: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Thinking from some prefix to its close, and the answer; None where it was never closed or left no room for one."""

    thinking: tuple[int, ...]
    closed: Closed
    answer: ThinkingAnswer | None
    ended: bool = False
    """The model ended its reply by itself without closing the thinking: nothing cut it."""


class Thinking:
    """Policy: think to the close, then answer; both are one continuation, which :meth:`thoughts` reads.

    ``think`` and ``answer`` are the settings of thinking and answer, their token limits the budgets. Thinking that reaches its
    budget is closed by force, or with ``force`` False left unclosed. ``close_ended``: so it is where the model ends its reply in
    it, as one that writes no marker does. ``tokenizer`` None is for models of ids only, whose texts
    are the ids. An answer that does not fit the model's context is not requested. Raises NeedsError where the model does not
    continue token ids (a chat endpoint cannot take a started reply).
    """

    name = "thinking"
    needs: tuple[str, ...] = ("tokens", "continue")

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        marks: Marks,
        think: Sampling,
        answer: Sampling,
        *,
        force: bool = True,
        close_ended: bool = False,
        eos: Sequence[int] | None = None,
    ) -> None:
        require(model, self.needs, "continuing a trace from inside its thinking")
        self.tokenizer, self.marks, self.force, self.close_ended = tokenizer, marks, force, close_ended
        self.context = context_of(model)
        self.eos = frozenset((*(eos_of(model) if eos is None else eos), *answer.stop_tokens, *marks.ends))
        self.answering = replace(answer, stop_tokens=tuple(sorted(self.eos)))
        """Settings of an answer after a closed prefix."""
        mark = np.array(marks.mark, np.int32)
        if len(mark) == 1:
            self._think = replace(think, stop_tokens=(*marks.mark, *sorted(self.eos)))
        else:
            self._think = replace(
                think, stop_tokens=tuple(sorted(self.eos - set(marks.mark))), until=lambda sampled: _ends(sampled, mark)
            )

    def text(self, tokens: Sequence[int]) -> str:
        """Text of sampled tokens."""
        return " ".join(map(str, tokens)) if self.tokenizer is None else self.tokenizer.decode(list(tokens))

    def opened(self, prompt: Sequence[int], head: Sequence[int] = ()) -> Prefix:
        """What thinking continues: the prompt with thinking opened and begun."""
        return Prefix(np.concatenate([self.marks.start(prompt), np.array(head, np.int32)]))

    def closed(self, prompt: Sequence[int], thinking: Sequence[int], closed: Closed = "forced") -> Prefix:
        """What an answer continues: prompt, thinking and its close,
        the model's own marker where the trace was ``closed`` by itself."""
        return Prefix(np.array([*self.marks.start(prompt), *thinking, *self._close(closed)], np.int32))

    def left(self, head: Sequence[int] = ()) -> Sampling:
        """Settings of thinking that begins with ``head``, which counts towards its budget.
        If that is used up, it is closed at once."""
        return replace(self._think, max_tokens=max(0, self._think.max_tokens - len(head)))

    def open_for(self, tokens: int) -> Sampling:
        """Settings of ``tokens`` more of thinking that neither closes (the close's first token is banned) nor ends the turn."""
        ban = tuple(sorted({self.marks.mark[0], *self.eos}))
        return replace(self._think, max_tokens=tokens, ban=ban, stop_tokens=(), until=None)

    def fits(self, prefix: Prefix) -> bool:
        """Whether an answer of full length fits after a closed prefix; True where the model's context is not known."""
        assert prefix.tokens is not None
        return self.context is None or len(prefix.tokens) + self.answering.max_tokens <= self.context

    async def sample(self, ask: Ask, prefix: Prefix, settings: Sampling, key: Key) -> Completion:
        """See :class:`ramify.rollout.sampler.Policy`; ``settings`` are those of :meth:`left`."""
        assert prefix.tokens is not None
        part: list[int] = []
        closed: Closed = "forced" if self.force else "never"
        stop = "length"
        if settings.max_tokens > 0:
            sampled = await ask(prefix, settings, Key(key.seed, (*key.position, "think"), key.index))
            part, closed = self.split(sampled)
            stop = sampled.stop
        tokens, answered = [*part, *(() if closed == "never" else self._close(closed))], False
        after = Prefix(np.concatenate([prefix.tokens, np.array(tokens, np.int32)]))
        if closed != "never" and self.fits(after):
            reply = await ask(after, self.answering, Key(key.seed, (*key.position, str(key.index), "answer"), 0))
            tokens, answered, stop = [*tokens, *token_ids(reply)], True, reply.stop
        data = {"thinking": len(part), "closed": closed, "answered": answered}
        return Completion(self.text(tokens), stop, np.array(tokens, np.int32), data=data)

    def thoughts(self, completions: Sequence[Completion | None], head: Sequence[int] = ()) -> list[Thought | None]:
        """Continuations that were sampled by this policy, of thinking that begins with ``head``; None for one that failed."""
        return [None if completion is None else self._thought(completion, tuple(map(int, head))) for completion in completions]

    def answers(self, completions: Sequence[Completion | None]) -> list[ThinkingAnswer | None]:
        """Continuations of a closed prefix; None for one that failed."""
        return [None if completion is None else self.answer(completion) for completion in completions]

    def answer(self, completion: Completion) -> ThinkingAnswer:
        """A continuation of a closed prefix."""
        return self._answer(token_ids(completion), completion.stop)

    def split(self, completion: Completion) -> tuple[list[int], Closed]:
        """The thinking of a sample with the settings of :meth:`left`, without the marker or token that ended it, and how it was
        closed."""
        tokens, mark = token_ids(completion), list(self.marks.mark)
        if tokens[-len(mark) :] == mark:
            return tokens[: -len(mark)], "own"
        if tokens and tokens[-1] in self.eos.difference(mark):
            return tokens[:-1], "forced" if self.close_ended else "never"
        if not self.force or completion.stop != "length":
            return tokens, "never"
        part = next((i for i in range(len(mark) - 1, 0, -1) if tokens[-i:] == mark[:i]), 0)
        return tokens[: len(tokens) - part], "forced"  # a marker that the budget cut in two is not written twice

    # -- parts

    def _thought(self, completion: Completion, head: tuple[int, ...]) -> Thought:
        data, tokens = completion.data or {}, token_ids(completion)
        closed, end = data["closed"], data["thinking"]
        answer = self._answer(tokens[end + len(self._close(closed)) :], completion.stop) if data["answered"] else None
        return Thought((*head, *tokens[:end]), closed, answer, closed == "never" and completion.stop != "length")

    def _close(self, closed: Closed) -> tuple[int, ...]:
        return self.marks.mark if closed == "own" else self.marks.close

    def _answer(self, tokens: list[int], stop: str) -> ThinkingAnswer:
        spoken = tokens[:-1] if tokens and tokens[-1] in self.eos else tokens
        return ThinkingAnswer(tuple(spoken), self.text(spoken), stop)


def cut_at(length: int, share: float) -> int:
    """How many of ``length`` thinking tokens a share up to 1 keeps: max(1, floor(share length)); none at share 0. (3.6)"""
    if not 0 <= share <= 1:
        raise UserError(f"a share of the thinking lies between 0 and 1, not {share:g}")
    return min(length, max(1, math.floor(share * length + 1e-9))) if share else 0


def split_text(text: str, open_text: str = "", close_text: str = "") -> tuple[str, str] | None:
    """(thinking, answer) of a reply that was kept as it was written, "" where it has none; None where it has no tags of either.

    The tags are channels where the text has such (thinking is all of ``analysis``, the answer the last ``final``), else the two
    given, which are those of THINK where they are "".
    """
    if "<|channel|>" in text:
        messages = _MESSAGE.findall(text)
        final = [content for channel, content in messages if channel == "final"]
        return "\n".join(content for channel, content in messages if channel == "analysis"), final[-1] if final else ""
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


def _ends(sampled: np.ndarray, mark: np.ndarray) -> bool:
    return len(sampled) >= len(mark) and bool((sampled[-len(mark) :] == mark).all())
