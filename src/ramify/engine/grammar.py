"""Constraints on the next token from the reply so far: a grammar that it has to match, and penalties for tokens it holds already.

:class:`Grammars` turns a :class:`ramify.model.protocol.Grammar` into a parser over the model's vocabulary (llguidance: an Earley
parser over the bytes of every token), once for each grammar. A :class:`Shaper` is the state of one reply: it moves on with every
sampled token, and shapes the logits of the next one, also after drafts that are not sure yet,
so that drafter and target are cut alike.

Axis legend: V vocabulary.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.engine.sampling import Shape, Shapes
from ramify.model.grammar import WHITESPACE, subschemas
from ramify.model.grammar_child import refusal, refusal_in_time
from ramify.model.protocol import Grammar, Sampling
from ramify.model.tokenizer import HfTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

KEPT = 64
"""Compiled grammars that are remembered."""
_OPTIONS = {
    "whitespace_pattern": WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
_TRIES = 100
"""Parts of a refused schema that are compiled by themselves to find the one that is wrong."""


class Grammars:
    """Grammars over one model's vocabulary. ``eos`` are the tokens that end a reply, where the grammar lets it end."""

    def __init__(self, tokenizer: HfTokenizer | None, vocab: int, eos: Sequence[int]) -> None:
        self.tokenizer, self.vocab, self.eos = tokenizer, vocab, frozenset(eos)
        self._known: LLTokenizer | None = None
        self._limits: LLParserLimits | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    async def shapers(self, settings: Sampling, prompt: np.ndarray, n: int) -> list[Shaper | None]:
        """The state of ``n`` replies to ``prompt`` at their beginning; None each where the settings look at no token before.

        Raises UserError on a grammar that cannot be followed.
        """
        if settings.grammar is None:
            return [Shaper(settings, prompt, self) if settings.penalised else None for _ in range(n)]
        if settings.grammar not in self._compiled:  # in a thread: a large one takes up to a second, for which others would wait
            self._compiled[settings.grammar] = await asyncio.to_thread(self.compile, settings.grammar)
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(settings.grammar)
        matcher = self._compiled[settings.grammar]
        return [Shaper(settings, prompt, self, matcher.deep_copy()) for _ in range(n)]

    def compile(self, grammar: Grammar) -> LLMatcher:
        """A parser at the beginning of a text. Raises UserError where the grammar cannot be followed."""
        from llguidance import LLMatcher, LLParserLimits

        if self.tokenizer is None:
            raise UserError("a grammar needs a model with a tokenizer")
        whole, name = written(grammar), _NAMES.get(grammar.kind, "grammar")
        parts = list(itertools.islice(subschemas(json.loads(grammar.text)), _TRIES)) if grammar.kind == "json" else []
        check = refusal_in_time if any(f'"{word}"' in grammar.text for word in ("pattern", "patternProperties")) else refusal
        wrong = check(whole, [(path, written(Grammar("json", json.dumps(part)))) for path, part in parts])
        if wrong is not None:
            raise UserError(f"the {name} cannot be followed{' at ' * bool(wrong[0])}{wrong[0]}: {_sentence(wrong[1])}")
        if self._known is None:
            # of MOST_PROPERTIES optional properties a row has four items each, and every choice among alternatives has as many
            self._limits = LLParserLimits(max_items_in_row=20_000, verbose_errors=False)
            self._known = _vocabulary(self.tokenizer, self.vocab)
        matcher = LLMatcher(self._known, whole, log_level=0, limits=self._limits)
        matcher.compute_bitmask()  # the first one is the dearest, and what it finds out is shared by every reply
        if matcher.is_error():
            raise UserError(f"the {name} cannot be followed: {_sentence(matcher.get_error())}")
        return matcher


_NAMES = {"json": "schema", "regex": "regular expression"}


def written(grammar: Grammar) -> str:
    """A grammar as llguidance reads it."""
    from llguidance import LLMatcher

    if grammar.kind == "json":
        return LLMatcher.grammar_from_json_schema(grammar.text, overrides=_OPTIONS)  # type: ignore[arg-type]
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    raise UserError(f"there is no grammar of the kind '{grammar.kind}' (known: json, lark, regex)")


def _sentence(message: str) -> str:
    """The first lines of what llguidance says, as a clause."""
    if message.startswith("NoExtension"):
        return "no token of the vocabulary fits"
    if message.startswith("oneOf"):
        return "'oneOf' is offered only where no value can fit two of its schemas; 'anyOf' takes any"
    return re.sub(r"\s+", " ", message.partition("<state>")[0].partition("<non-verbose/>")[0]).strip().rstrip(".")[:300]


# -- one reply


class Shaper:
    """How one reply shapes the logits of its next token. ``matcher`` is at the beginning of the reply, and its own."""

    def __init__(self, settings: Sampling, prompt: np.ndarray, grammars: Grammars, matcher: LLMatcher | None = None) -> None:
        self.settings, self.complete = settings, False
        self._matcher, self._vocab = matcher, grammars.vocab
        ends = sorted(grammars.eos.union(settings.stop_tokens))
        self._ends, self._ending = np.array(ends, np.int64), frozenset(ends)
        self._prompt, self._length = prompt, 0
        self._counts = self._seen = torch.empty(0)
        self._ahead: list[int] = []  # drafts that the matcher has taken beyond the sampled tokens
        self._allowed: dict[tuple[int, ...], Tensor | str | None] = {}

    def after(self, drafts: Sequence[int]) -> Shape:
        """What shapes the logits of the token after ``drafts`` (none: the next one)."""
        held = tuple(drafts)

        def shape(logits: Tensor) -> None:
            if self._matcher is not None and isinstance(allowed := self._mask(held), Tensor):
                logits.masked_fill_(~allowed.to(logits.device), float("-inf"))
            if self.settings.penalised:
                self._penalise(logits, held)

        return shape

    def take(self, token: int) -> Exception | None:
        """Move on by a sampled token. Sets ``complete`` where no token can follow; returns what went wrong with the grammar."""
        if len(self._counts):
            self._counts[token] += 1
            self._seen[token] = True
        self._length += 1
        matcher = self._matcher
        if matcher is None:
            return None
        if isinstance(reason := self._allowed.get(()), str):
            return UserError(f"no token can follow after {self._length - 1} tokens of a reply under its grammar: {reason}")
        self._allowed = {drafts[1:]: mask for drafts, mask in self._allowed.items() if drafts and drafts[0] == token}
        if token in self._ending:
            return None
        if self._ahead and self._ahead[0] == token:
            self._ahead.pop(0)
        else:
            self._back(0)
            if not matcher.consume_token(token):
                return UserError(f"token {token} of a reply does not fit its grammar: {_sentence(matcher.get_error())}")
        self.complete = not self._ahead and matcher.is_stopped()
        return None

    def _mask(self, drafts: tuple[int, ...]) -> Tensor | str | None:
        """The tokens allowed after ``drafts``, bool [V]; why there is none;
        or None where the drafts do not fit, so nothing comes of it."""
        if drafts not in self._allowed:
            self._allowed[drafts] = self._mask_after(drafts) if self._went(drafts) else None
        return self._allowed[drafts]

    def _mask_after(self, drafts: tuple[int, ...]) -> Tensor | str:
        assert self._matcher is not None
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        if self._matcher.is_error():
            return _sentence(self._matcher.get_error())
        allowed = bits[: self._vocab].astype(bool)
        if bits[self._vocab]:  # the end of a text, a token of the parser's own
            allowed[self._ends] = True
        allowed[list(self.settings.ban)] = False
        if not drafts and not self._length:
            allowed[list(self.settings.ban_first)] = False
        if not allowed.any():
            return "the tokens that it allows are banned"
        return torch.from_numpy(allowed)

    def _went(self, drafts: tuple[int, ...]) -> bool:
        """Advance the matcher by exactly ``drafts``; False where they do not fit or the reply ends before."""
        assert self._matcher is not None
        if not self._ending.isdisjoint(drafts):
            return False
        common = next((i for i, (a, b) in enumerate(zip(drafts, self._ahead, strict=False)) if a != b), None)
        self._back(min(len(drafts), len(self._ahead)) if common is None else common)
        for token in drafts[len(self._ahead) :]:
            if self._matcher.is_stopped() or not self._matcher.try_consume_tokens([token]):
                return False
            self._ahead.append(token)
        return not self._matcher.is_stopped()

    def _back(self, length: int) -> None:
        """Take back the drafts that the matcher took beyond the first ``length``."""
        if len(self._ahead) > length:
            assert self._matcher is not None
            self._matcher.rollback(len(self._ahead) - length)
            del self._ahead[length:]

    def _penalise(self, logits: Tensor, drafts: tuple[int, ...]) -> None:
        s = self.settings
        if not len(self._counts):
            self._counts = torch.zeros(self._vocab, dtype=torch.float64, device=logits.device)
            self._seen = torch.zeros(self._vocab, dtype=torch.bool, device=logits.device)
            self._seen[torch.from_numpy(self._prompt.astype(np.int64)).to(logits.device)] = True
        counts, seen = self._counts, self._seen
        if drafts:
            more = torch.tensor(drafts, device=logits.device)
            counts = counts.index_add(0, more, torch.ones(len(drafts), dtype=counts.dtype, device=logits.device))
            seen = seen.index_fill(0, more, True)
        if s.repetition_penalty != 1:
            divided = torch.where(logits > 0, logits / s.repetition_penalty, logits * s.repetition_penalty)
            logits.copy_(torch.where(seen, divided, logits))
        logits.sub_(s.frequency_penalty * counts + s.presence_penalty * (counts > 0))


def shapes_after(shapers: Sequence[Shaper | None], drafts: Sequence[Sequence[int]]) -> Shapes:
    """Of each sequence after its ``drafts``; None for one without a shaper, and where none has one."""
    if not any(shapers):
        return None
    return [None if shaper is None else shaper.after(row) for shaper, row in zip(shapers, drafts, strict=True)]


def drafted_shapes(shapers: Sequence[Shaper | None], drafted: Sequence[Tensor]) -> Shapes:
    """As :func:`shapes_after`, after ``drafted`` tokens that are tensors: one int64 [R] for each position so far."""
    if not any(shapers):
        return None
    rows: list[list[int]] = torch.stack(list(drafted), 1).tolist() if drafted else [[] for _ in shapers]
    return shapes_after(shapers, rows)


# -- the vocabulary


def _vocabulary(tokenizer: HfTokenizer, vocab: int) -> LLTokenizer:
    """Every token's bytes, and one token more, which no model samples: the end of a text."""
    from llguidance import LLTokenizer, TokenizerWrapper

    added = tokenizer.raw.get_added_tokens_decoder()
    spelled = token_bytes(tokenizer, vocab)
    ids = {piece: token for token, piece in enumerate(spelled) if piece and not (token in added and added[token].special)}
    longest = max(map(len, ids), default=0)

    class Known:
        def __init__(self) -> None:
            self.tokens = [*spelled, b"<|end of the text|>"]
            self.eos_token_id, self.bos_token_id = vocab, None
            self.special_token_ids = [vocab, *(token for token in added if added[token].special and token < vocab)]

        def __call__(self, text: str) -> list[int]:
            """Tokens of a text that the grammar leaves no choice about, as far as the vocabulary can spell it."""
            tokens, left = tokenizer.encode(text), text.encode("utf-8", "replace")
            if b"".join(spelled[token] for token in tokens if token < vocab) == left:
                return tokens
            tokens = []  # a tokenizer that begins every text with a space, or has a token for whatever it does not know
            while left and (size := next((n for n in range(longest, 0, -1) if left[:n] in ids), 0)):
                tokens.append(ids[left[:size]])
                left = left[size:]
            return tokens

    return LLTokenizer(TokenizerWrapper(Known()), n_vocab=vocab + 1)


def token_bytes(tokenizer: HfTokenizer, vocab: int) -> list[bytes]:
    """The bytes that each of ``vocab`` tokens adds to a text; none for an id without a token.

    Byte-level tokens (GPT-2's alphabet) and those of a byte fallback (``<0x0A>``) are taken apart; others add what they decode to
    inside a text.
    """
    record: Any = json.loads(tokenizer.to_json())
    decoders = _types(record.get("decoder"))
    alphabet = _byte_alphabet() if "ByteLevel" in decoders else {}
    spelled = [b""] * vocab
    added = tokenizer.raw.get_added_tokens_decoder()
    for name, token in tokenizer.raw.get_vocab(with_added_tokens=True).items():
        if token >= vocab:
            continue
        if token in added:
            spelled[token] = name.encode("utf-8", "replace")
        elif alphabet:
            spelled[token] = b"".join(alphabet.get(letter, letter.encode("utf-8", "replace")) for letter in name)
        elif "ByteFallback" in decoders and (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name)):
            spelled[token] = bytes([int(byte[1], 16)])
        else:
            spelled[token] = tokenizer.piece(token, first=False).encode("utf-8", "replace")
    return spelled


def _types(part: Any) -> set[str]:
    """The types of a decoder and of those inside it."""
    if not isinstance(part, dict):
        return set()
    return {str(part.get("type"))}.union(*(_types(inner) for inner in part.get("decoders") or []))


def _byte_alphabet() -> dict[str, bytes]:
    """The letters with which byte-level tokenizers spell bytes: printable ones themselves, the others from 256 up (GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(256 + at): bytes([byte]) for at, byte in enumerate(others)}
