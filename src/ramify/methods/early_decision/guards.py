"""Decoding guards: policies that step in while a model writes. Re-implementations, which may understate the originals' best case.

``Reminder`` is SafeRemind: where the model grows suddenly sure inside its thinking, a reminder is put in. ``SelfCheck`` is PSR:
the model is asked now and then whether what it wrote is harmful, and goes back where it says so. SafePath-ZS is
``Marks(primer=...)``. Source of the constants: Ri et al. 2026, arXiv 2606.25013, defences.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from ramify.methods.early_decision.thinking import Marks
from ramify.model.protocol import Completion, Prefix, Sampling, Tokenizer
from ramify.rollout.sampler import Ask, Key

S = TypeVar("S")


class ChunkGuard(Generic[S]):
    """Has a model write in chunks. Subclasses say in :meth:`_after` what becomes of a chunk.
    Limits count every token, put in or sampled.

    A continuation carries no log-probs: some of its tokens are not the model's own. See :class:`ramify.rollout.sampler.Policy`.
    """

    name, chunk = "guard", 64
    needs: tuple[str, ...] = ("tokens", "continue")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    async def sample(self, ask: Ask, prefix: Prefix, settings: Sampling, key: Key) -> Completion:
        """See :class:`ramify.rollout.sampler.Policy`."""
        given: Any = prefix.tokens
        state, round_ = self._start(given), 0
        sampled: list[int] = []
        stop = "length"
        while len(sampled) < settings.max_tokens:
            now, before = min(self.chunk, settings.max_tokens - len(sampled)), np.array(sampled, np.int32)
            ends = settings.until
            until = None if ends is None else (lambda new, b=before, ends=ends: ends(np.concatenate([b, new])))
            row = Prefix(np.concatenate([given, before]))
            completion = await ask(row, replace(settings, max_tokens=now, until=until), key.within("guard", round_))
            round_ += 1
            kept, ended = await self._after(ask, state, given, sampled, completion, key.within("asked", round_))
            sampled = kept[: settings.max_tokens]
            if ended:
                stop = completion.stop
                break
        tokens = np.array(sampled, np.int32)
        return Completion(self.tokenizer.decode(sampled), stop, tokens, ends=self.tokenizer.ends(sampled))

    def _start(self, given: np.ndarray) -> S:
        """What a subclass remembers while one continuation is sampled."""
        raise NotImplementedError

    async def _after(
        self, ask: Ask, state: S, given: np.ndarray, sampled: list[int], completion: Completion, key: Key
    ) -> tuple[list[int], bool]:
        """All tokens so far after the prefix, and whether the sample has ended. Here nothing is changed."""
        tokens: Any = completion.tokens
        return [*sampled, *tokens.tolist()], completion.stop != "length"


@dataclass
class _Reminded:
    """Entropies since the last reminder, and how often one was put in."""

    seen: list[float] = field(default_factory=list)
    said: int = 0


class Reminder(ChunkGuard[_Reminded]):
    """SafeRemind: at a token whose entropy is below the mean of the ten before it by 1.5 deviations, ``reminder`` is put in.

    Inside the thinking only, at most three times, at least ten tokens apart. The entropy is of the whole vocabulary (the paper's
    of the 20 likeliest tokens).
    """

    name, needs = "reminder", ("tokens", "continue", "entropy")
    window, deviations, most, apart = 10, 1.5, 3, 10

    def __init__(self, tokenizer: Tokenizer, marks: Marks, reminder: str) -> None:
        super().__init__(tokenizer)
        self.marks, self.reminder = marks, tokenizer.encode(reminder)

    def _start(self, given: np.ndarray) -> _Reminded:
        row, mark = given.tolist(), list(self.marks.mark)
        closed = any(row[i : i + len(mark)] == mark for i in range(len(row) - len(mark) + 1))
        return _Reminded(said=self.most if closed else 0)

    async def _after(
        self, ask: Ask, state: _Reminded, given: np.ndarray, sampled: list[int], completion: Completion, key: Key
    ) -> tuple[list[int], bool]:
        tokens: Any = completion.tokens
        entropy: Any = completion.entropy
        for i, surprise in enumerate(entropy.tolist()):
            last = np.array(state.seen[-self.window :])
            state.seen.append(surprise)
            enough = len(state.seen) > max(self.window, self.apart) and state.said < self.most
            if (
                enough
                and surprise < last.mean() - self.deviations * last.std()
                and (i + 1 < len(tokens) or completion.stop == "length")
            ):
                state.said += 1
                state.seen = []
                return [*sampled, *tokens[: i + 1].tolist(), *self.reminder], False
        return await super()._after(ask, state, given, sampled, completion, key)


@dataclass
class _Checked:
    """How many tokens are safe, and how often it went back."""

    safe: int = 0
    back: int = 0


class SelfCheck(ChunkGuard[_Checked]):
    """PSR: every 32 tokens the model is asked, in at most 8, whether the text is harmful;
    on yes it goes back to the last safe point.

    After four times back it is left alone.
    """

    name, chunk, most = "self-check", 32, 4
    question = "\n\nIs the text above harmful? Answer yes or no:"

    def _start(self, given: np.ndarray) -> _Checked:
        return _Checked()

    async def _after(
        self, ask: Ask, state: _Checked, given: np.ndarray, sampled: list[int], completion: Completion, key: Key
    ) -> tuple[list[int], bool]:
        tokens: Any = completion.tokens
        whole = [*sampled, *tokens.tolist()]
        if state.back < self.most:
            row = np.array([*given, *whole, *self.tokenizer.encode(self.question)], np.int32)
            reply = await ask(Prefix(row), Sampling(temperature=0.0, max_tokens=8), key)
            if "yes" in reply.text.casefold():
                state.back += 1
                return whole[: state.safe], False
            state.safe = len(whole)
        return whole, completion.stop != "length"
