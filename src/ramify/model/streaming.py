"""Samples that arrive piece by piece, from any model: one that can stream does, any other gives its whole sample as one piece.

The pieces of a sample, joined, are the sample: texts, tokens and log-probs. A character of several tokens arrives with the last
of them. Closing the iterator before its end cancels the sample: read it inside ``contextlib.aclosing``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from ramify.model.protocol import Completion, Model, Prefix, Sampling, Tokenizer

T = TypeVar("T")
_BROKEN = "\ufffd"  # what decoders put for bytes that are no character
_OPEN = 3
"""Tokens at the end that may be the start of a character: it has four bytes at most, and a token one at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A new piece of one sample. Arrays have shape (T,), T the new tokens; None where the model does not report them (yet)."""

    text: str
    tokens: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    """float32: under the sampling distribution, as :attr:`Completion.logprobs`."""
    model_logprobs: np.ndarray | None = None
    """float32: under the model itself, as :attr:`Completion.model_logprobs`."""
    ends: np.ndarray | None = None
    """int32: character end of each new token in the text of the whole sample, as :attr:`Completion.ends`."""
    completion: Completion | None = None
    """The whole sample, on the last piece and on no other. ``data["usage"]`` counts ``cached_tokens`` where the model knows."""


Pieces: TypeAlias = AsyncGenerator[Piece, None]
Report: TypeAlias = Callable[[Sequence[int], Sequence[float], Sequence[float]], None]
"""Called with new tokens of one sample in the event loop's thread:
ids, log-probs under the sampler, log-probs under the model."""


class StreamingModel(Model, Protocol):
    """A model that streams a sample while it is generated."""

    def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """The pieces of the sample that ``sample(prefix, 1, settings, [key])`` makes; raises what that raises."""
        ...


def stream(model: Model, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
    """The pieces of one sample, from any model."""
    streaming: Callable[[Prefix, Sampling, int], Pieces] | None = getattr(model, "stream", None)
    return (streaming or partial(_at_once, model))(prefix, settings, key)


async def _at_once(model: Model, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
    (completion,) = await model.sample(prefix, 1, settings, [key])
    yield whole(completion)


def whole(completion: Completion) -> Piece:
    """A sample as its only piece."""
    return Piece(completion.text, completion.tokens, completion.logprobs, completion.model_logprobs, completion.ends, completion)


async def gathered(pieces: Pieces, tell: Callable[[Piece], None] | None = None) -> Completion:
    """The sample at the end of ``pieces``; ``tell`` is called with each piece before the last. Cancelled with its reader."""
    async with aclosing(pieces):
        async for piece in pieces:
            if piece.completion is not None:
                return piece.completion
            if tell is not None:
                tell(piece)
    raise AssertionError("a stream ended without its sample")


async def told(start: Callable[[Callable[[str], None]], Awaitable[Completion]]) -> Pieces:
    """Pieces of the sample that ``start`` makes, which calls what it is given with text of that sample as it comes; pieces have
    no tokens.

    A slow reader gets all text since its last read in one piece. Closing cancels ``start`` and waits for its end.
    """
    news, fresh, length = asyncio.Event(), list[str](), 0

    def tell(text: str) -> None:
        fresh.append(text)
        news.set()

    async with _sampling(start, tell, news) as task:
        while await _more(task, news):
            text = "".join(fresh)
            fresh.clear()
            length += len(text)
            yield Piece(text)
        yield Piece(task.result().text[length:], completion=task.result())


@asynccontextmanager
async def _sampling(
    start: Callable[[T], Awaitable[Completion]], report: T, news: asyncio.Event
) -> AsyncGenerator[asyncio.Task[Completion], None]:
    """What ``start`` makes of ``report``, as a task whose end sets ``news``.
    At the end of the block it is cancelled, and its end waited for."""

    async def run() -> Completion:
        return await start(report)

    task = asyncio.create_task(run())
    task.add_done_callback(lambda _: news.set())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: no reader is left to receive it


async def _more(task: asyncio.Task[Completion], news: asyncio.Event) -> bool:
    """Wait for news; whether it is more of the sample, and not its end."""
    await news.wait()
    news.clear()
    return not task.done()


async def reported(start: Callable[[Report], Awaitable[Completion]], tokenizer: Tokenizer | None) -> Pieces:
    """Pieces of the sample that ``start`` makes, which reports its tokens as they are sampled.

    A reader slower than the model gets all tokens since its last read in one piece.
    Closing cancels ``start`` and waits for its end.
    """
    spelled, news = Detokenizer(tokenizer), asyncio.Event()
    logprobs: list[float] = []
    model_logprobs: list[float] = []
    fresh: list[int] = []

    def report(tokens: Sequence[int], under_sampler: Sequence[float], under_model: Sequence[float]) -> None:
        fresh.extend(tokens)
        logprobs.extend(under_sampler)
        model_logprobs.extend(under_model)
        news.set()

    done = 0
    async with _sampling(start, report, news) as task:
        while await _more(task, news):
            text, ends = spelled.push(fresh)
            fresh.clear()
            if count := len(ends):
                tokens = np.array(spelled.tokens[done : done + count], np.int32)
                sampler, model = (np.array(values[done : done + count], np.float32) for values in (logprobs, model_logprobs))
                done += count
                yield Piece(text, tokens, sampler, model, ends if tokenizer is not None else None)
        yield rest_of(task.result(), done, spelled.length)


def rest_of(completion: Completion, tokens: int, characters: int) -> Piece:
    """The rest of ``completion`` after its first ``tokens`` and ``characters``."""
    arrays = (completion.tokens, completion.logprobs, completion.model_logprobs, completion.ends)
    rest = [None if array is None else array[tokens:] for array in arrays]
    return Piece(completion.text[characters:], rest[0], rest[1], rest[2], rest[3], completion)


class Detokenizer:
    """Text of tokens that come a few at a time, in whole characters; without a tokenizer every token has an empty text.

    ``tokens`` are all tokens pushed, ``length`` the characters given out.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.length = 0
        self._known = 0  # tokens whose text is given out
        self._start = (
            0  # decoding starts here: one known token before the new ones, since decoders treat a text's first token apart
        )

    def push(self, tokens: Sequence[int]) -> tuple[str, np.ndarray]:
        """New text, and the ends int32 (K,) in the whole text of the K tokens that it completes (those held back before come
        first)."""
        self.tokens.extend(tokens)
        if self.tokenizer is None:
            count, self._known = len(self.tokens) - self._known, len(self.tokens)
            return "", np.zeros(count, np.int32)
        window = self.tokens[self._start :]
        text, ends = self.tokenizer.decode(window), self.tokenizer.ends(window)
        known = self._known - self._start
        sure = max(known, len(window) - _OPEN) if text.endswith(_BROKEN) else len(window)
        before = int(ends[known - 1]) if known else 0
        new = text[before : int(ends[sure - 1])] if sure > known else ""
        new_ends = (ends[known:sure] + (self.length - before)).astype(np.int32)
        self.length += len(new)
        self._known = self._start + sure
        self._start = max(self._start, self._known - 1)
        return new, new_ends
