"""A model with scripted replies and a tokenizer of one token per character: for tests, examples and runner benchmarks.

Also the switch that forbids real model calls, and a tokenizer that exposes code which re-encodes sampled text.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.ids import json_hash, stable_hash
from ramify.base.registry import register
from ramify.base.words import plural
from ramify.model.chat import END, SPECIALS, TAGS
from ramify.model.protocol import Completion, Identity, Prefix, Sampling, TokenScores, require
from ramify.trace.message import Message

_ROLES = tuple(TAGS)
_END_ID, _ASSISTANT = SPECIALS.index(END), _ROLES.index("assistant")
_FIRST = len(SPECIALS)  # id of the character U+0000
_PAIRS = _FIRST + 0x110000  # id of the pair of two U+0000


class CharTokenizer:
    """One token a character (5 + code point), and one for each role tag and ``<|end|>`` (0 to 4).
    Needs no vocabulary, loses nothing."""

    _split = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
    _ids = {text: token for token, text in enumerate(SPECIALS)}  # noqa: RUF012

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; tags become single tokens."""
        if "<|" not in text:
            return self._plain(text)
        tokens: list[int] = []
        for part in self._split.split(text):
            tokens += [self._ids[part]] if part in self._ids else self._plain(part)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, tags included."""
        return "".join(map(self._piece, tokens))

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        """int32 (T,): character end of each token."""
        return np.cumsum([len(self._piece(token)) for token in tokens], dtype=np.int32)

    @property
    def hash(self) -> str:
        """Identity of the tokenizer."""
        return stable_hash(type(self).__name__, *SPECIALS)

    def _plain(self, text: str) -> list[int]:
        return [_FIRST + ord(character) for character in text]

    def _piece(self, token: int) -> str:
        if token < _FIRST:
            return SPECIALS[token]
        if token < _PAIRS:
            return chr(token - _FIRST)
        return chr((token - _PAIRS) // 128) + chr((token - _PAIRS) % 128)


class MergingTokenizer(CharTokenizer):
    """An adversary for tests: encoding always merges two neighbouring ASCII characters into one token.

    Text sampled character by character therefore comes back as other tokens when it is encoded again, and ``encoded`` lists every
    text that was encoded.
    """

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, pairs merged from the left."""
        self.encoded.append(text)
        return super().encode(text)

    def _plain(self, text: str) -> list[int]:
        tokens, i = [], 0
        while i < len(text):
            pair = text[i : i + 2]
            merged = len(pair) == 2 and pair.isascii()
            tokens.append(_PAIRS + 128 * ord(pair[0]) + ord(pair[1]) if merged else _FIRST + ord(pair[0]))
            i += 2 if merged else 1
        return tokens


Reply = str | Completion
Script = Sequence[str] | Mapping[str, str] | Callable[[tuple[Message, ...], int], Reply]


@register("model", "scripted")
class ScriptedModel:
    """Replies from a script, the same at every position and in every order.

    ``replies`` is a list (entry i answers the i-th assistant turn), a dict keyed by the text of the last message, or a callable
    of (messages, sample key) that returns a text or a whole :class:`Completion`. Messages handed to it end with the assistant's
    own where the reply is begun already; where a scripted text starts with what is there, only the rest is sampled.

    With ``tokens=True`` it takes token prefixes rendered by ``TagTemplate(model.tokenizer)`` and samples one token per character
    plus ``<|end|>``; log-probs are a made-up fixed function of the token.
    With ``tokens=False`` it is a chat endpoint without tokens.
    """

    def __init__(
        self, replies: Script = ("ok",), *, tokens: bool = True, name: str = "scripted", tokenizer: CharTokenizer | None = None
    ) -> None:
        self.tokenizer = tokenizer or CharTokenizer()
        self.tokens = tokens
        self._replies = replies
        if isinstance(replies, Mapping):
            script = json_hash(dict(replies))
        elif callable(replies):
            script = getattr(replies, "__qualname__", type(replies).__qualname__)
        else:
            script = json_hash(list(replies))
        self.identity = Identity(name, stable_hash("scripted", name, script), self.tokenizer.hash if tokens else "")
        offers = {"tokens", "continue", "logprobs", "prompt_logprobs"} if tokens else set()
        self.capabilities = frozenset(offers | {"seeds", "batch_invariant"})

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`.

        Raises UserError where the script has no reply, NeedsError where it would say a banned token.
        """
        if len(keys) != n:
            raise UserError(f"{n} samples need {n} keys, not {len(keys)}")
        require(self, settings.needs, "a sampling setting")
        if self.tokens != (prefix.tokens is not None):
            raise NeedsError(f"the scripted model '{self.identity.name}' takes {'tokens' if self.tokens else 'messages'} only")
        if callable(self._replies):
            messages, begun = self._read(prefix)
            return [self._sample(self._replies(messages, key), begun, settings) for key in keys]
        return [self._sample(*self._scripted(prefix), settings)] * n

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """See :class:`ramify.model.protocol.Model`. Raises NeedsError on ``top_k``: a script has no runners-up."""
        if top_k or not self.tokens:
            raise NeedsError(
                f"the scripted model '{self.identity.name}' has no {'alternatives' if self.tokens else 'tokens'} to score"
            )
        return [TokenScores(np.concatenate([np.zeros(min(1, len(row)), np.float32), _made_up(row[1:])])) for row in tokens]

    def _scripted(self, prefix: Prefix) -> tuple[str, str]:
        """The scripted text and what of it is said already, from a list or a dict."""
        if isinstance(self._replies, Mapping):
            messages, begun = self._read(prefix)
            given = messages[:-1] if begun else messages
            text = given[-1].text if given else ""
            if text not in self._replies:
                raise UserError(f"the script has no reply to {text[:80]!r} ({nearest(text, self._replies)})")
            return self._replies[text], begun
        if prefix.tokens is not None:
            opened = np.flatnonzero(prefix.tokens == _ASSISTANT)
            turn = max(0, len(opened) - 1)
            begun = _begun(prefix.tokens[opened[-1] :], self.tokenizer) if len(opened) else ""
        else:
            turn, begun = sum(message.role == "assistant" for message in prefix.messages), ""
        if turn >= len(self._replies):  # type: ignore[arg-type]
            raise UserError(f"the script has {plural(len(self._replies), 'reply')}, and reply {turn + 1} was requested")  # type: ignore[arg-type]
        return str(self._replies[turn]), begun  # type: ignore[index]

    def _read(self, prefix: Prefix) -> tuple[tuple[Message, ...], str]:
        """The messages of a prefix, and the text of the assistant message it ends in."""
        if prefix.tokens is None:
            return prefix.messages, ""
        messages = []
        marks = [*np.flatnonzero(prefix.tokens < _FIRST).tolist(), len(prefix.tokens)]
        for start, end in itertools.pairwise(marks):
            header = int(prefix.tokens[start])
            if header != _END_ID:
                messages.append(Message(_ROLES[header], self.tokenizer.decode(prefix.tokens[start + 1 : end].tolist())))
        begun = ""
        if messages and messages[-1].role == "assistant" and int(prefix.tokens[-1]) != _END_ID:
            begun = messages[-1].text
            messages = messages if begun else messages[:-1]
        return tuple(messages), begun

    def _sample(self, reply: Reply, begun: str, settings: Sampling) -> Completion:
        if isinstance(reply, Completion):
            return reply
        completion = _spell(reply.removeprefix(begun))
        assert completion.tokens is not None
        banned = np.isin(completion.tokens, settings.ban)
        if banned.any() or int(completion.tokens[0]) in settings.ban_first:
            raise NeedsError(f"the script of '{self.identity.name}' says a banned token")
        return self._cut(completion, settings)

    def _cut(self, completion: Completion, settings: Sampling) -> Completion:
        """Apply what stops a sample early; offer tokens only where the model has them."""
        assert completion.tokens is not None
        assert completion.logprobs is not None
        length, stop = len(completion.tokens), "eos"
        if length > settings.max_tokens:
            length, stop = settings.max_tokens, "length"
        if settings.stop_texts or settings.until or set(settings.stop_tokens) - {_END_ID}:
            for count in range(1, min(length, len(completion.text)) + 1):
                kept = completion.text[:count]
                texts = any(kept.endswith(text) for text in settings.stop_texts)
                if (
                    texts
                    or int(completion.tokens[count - 1]) in settings.stop_tokens
                    or (settings.until and settings.until(completion.tokens[:count]))
                ):
                    length, stop = count, "stop"
                    break
        text = completion.text[:length]
        if not self.tokens:
            return Completion(text, stop)
        if length == len(completion.tokens):
            return completion
        logprobs = completion.logprobs[:length]
        return Completion(
            text,
            stop,
            completion.tokens[:length],
            logprobs,
            logprobs,
            None,
            None if completion.ends is None else completion.ends[:length],
        )


@lru_cache(maxsize=4096)
def _spell(text: str) -> Completion:
    """A text as a sample of one token a character and ``<|end|>``; shared between calls, so its arrays are read-only."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    tokens = np.append(characters.astype(np.int32) + np.int32(_FIRST), np.int32(_END_ID))
    ends = np.minimum(np.arange(1, len(tokens) + 1, dtype=np.int32), np.int32(len(text)))
    logprobs = _made_up(tokens)
    for array in (tokens, ends, logprobs):
        array.flags.writeable = False
    return Completion(text, "eos", tokens, logprobs, logprobs, None, ends)


def _made_up(tokens: np.ndarray) -> np.ndarray:
    """Log-probs that differ between tokens, so that arrays laid out wrongly show."""
    return ((1 + tokens % 7) / np.float32(-8)).astype(np.float32)


def _begun(tokens: np.ndarray, tokenizer: CharTokenizer) -> str:
    """Text of an assistant message that starts with its header and is still open; "" where it is closed."""
    return "" if len(tokens) == 1 or (tokens == _END_ID).any() else tokenizer.decode(tokens[1:].tolist())


NO_REAL_CALLS = "RAMIFY_NO_REAL_CALLS"


@contextmanager
def forbid_real_calls() -> Iterator[None]:
    """Inside, any engine or endpoint that calls a real model refuses; child processes inherit it through the environment."""
    before = os.environ.get(NO_REAL_CALLS)
    os.environ[NO_REAL_CALLS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_REAL_CALLS]
        else:
            os.environ[NO_REAL_CALLS] = before


def refuse_real_calls(who: str) -> None:
    """Every engine and endpoint calls this before it calls a model. Raises NeedsError where real calls are forbidden."""
    if os.environ.get(NO_REAL_CALLS, "0") not in ("", "0"):
        raise NeedsError(f"{who} would call a real model, which {NO_REAL_CALLS} forbids here")


def scripted_completion(text: str, **fields: Any) -> Completion:
    """The sample a :class:`ScriptedModel` makes of ``text``, with ``fields`` of :class:`Completion` replaced."""
    return replace(_spell(text), **fields)
