"""A Hugging Face ``tokenizers`` tokenizer as :class:`ramify.model.protocol.Tokenizer`. Encoding adds no special tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import read_regular, reason
from ramify.base.ids import stable_hash

if TYPE_CHECKING:
    import tokenizers

    from ramify.model.protocol import Tokenizer

_BROKEN = "\ufffd"  # what decoders put for bytes that are no character
_WINDOW = 12
"""Tokens decoded together to find where one of them ends."""


MOST = 256 << 20
"""Bytes of a ``tokenizer.json``; the largest in use have a seventh of that."""
GROWTH = 1000
"""How many times as long a text may become by what a tokenizer replaces in it before its words are looked up, or after."""


def growth(record: Mapping[str, Any]) -> float:
    """A bound on how many times as long a ``tokenizer.json`` makes a text by its replacements,
    the larger of encoding and decoding."""

    def times(part: Any) -> float:
        if isinstance(part, dict):
            factor, pattern = 1.0, part.get("pattern")
            if part.get("type") == "Replace" and isinstance(pattern, dict):
                factor = max(1.0, len(str(part.get("content", ""))) / max(1, len(pattern.get("String", "."))))
            return factor * times(part.get("normalizers") or part.get("decoders"))
        return math.prod(map(times, part)) if isinstance(part, list) else 1.0

    return max(times(record.get("normalizer")), times(record.get("decoder")))


class HfTokenizer:
    """Wraps a ``tokenizers.Tokenizer``. ``raw`` is the wrapped object."""

    def __init__(self, raw: tokenizers.Tokenizer) -> None:
        self.raw = raw
        self._pieces: dict[tuple[int, bool], str] = {}

    @classmethod
    def load(cls, path: Path | str) -> HfTokenizer:
        """Read ``tokenizer.json``, or the one in folder ``path``. Raises UserError when there is none or it does not parse."""
        from tokenizers import Tokenizer

        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise UserError(f"no tokenizer at {file}")
        text = read_regular(file, "the tokenizer", MOST)
        try:
            tokenizer = cls(Tokenizer.from_str(text.decode()))
        except Exception as error:  # the library raises bare Exception on a malformed file
            raise UserError(f"cannot read the tokenizer {file}: {reason(error)}") from error
        if (times := growth(json.loads(text))) > GROWTH:
            raise UserError(f"the tokenizer {file} may make a text {times:.0e} times as long, which no tokenizer needs")
        return tokenizer

    def to_json(self) -> str:
        """The whole tokenizer as the text of a ``tokenizer.json``."""
        return str(self.raw.to_str(pretty=False))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""
        return list(self.raw.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, special tokens included."""
        return str(self.raw.decode([int(t) for t in tokens], skip_special_tokens=False))

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        """int32 (T,): character offset in ``decode(tokens)`` at which each token's text ends.

        A character that several byte-level tokens make together ends with the last of them. Where every token has a text of its
        own and these make up the whole, the ends are their running length;
        else each is the length of what a prefix's decode shares with the whole.
        """
        ids = [int(t) for t in tokens]
        text = self.decode(ids)
        pieces = [self.piece(t, first=not i) for i, t in enumerate(ids)]
        if "".join(pieces) == text and _BROKEN not in text:
            return np.cumsum([len(piece) for piece in pieces], dtype=np.int32)
        ends = self._windowed_ends(ids, text)
        if ends is None:  # a decoder whose texts do not add up
            ends = np.maximum.accumulate([_shared(self.decode(ids[: i + 1]), text) for i in range(len(ids))], dtype=np.int32)
        ends[len(ids) - 1 :] = len(text)
        return ends

    def _windowed_ends(self, ids: list[int], text: str) -> np.ndarray | None:
        """Ends by decodes of some tokens at a time, None where these do not make up the text.

        A window begins where the text so far ends in a whole character; in a run of broken ones, where the cut changes nothing.
        """

        def read(first: int, stop: int) -> str:
            """Text of ``ids[first:stop]`` inside the whole."""
            before = self.decode(ids[first - 1 : first]) if first else ""
            return self.decode(ids[max(first - 1, 0) : stop])[len(before) :]

        ends = np.zeros(len(ids), dtype=np.int32)
        first = done = 0  # tokens and characters before the window
        for i in range(len(ids)):
            head = read(first, i + 1)
            shared = _shared(head, text[done : done + len(head)])
            ends[i] = max(done + shared, ends[i - 1] if i else 0)
            if shared == len(head) and not head.endswith(_BROKEN):
                first, done = i + 1, done + shared
            elif i + 1 - first >= _WINDOW:
                for cut in range(i - 3, first, -1):  # a character has 4 bytes at most
                    kept = read(first, cut)
                    if kept + read(cut, i + 1) == head and text.startswith(kept, done):
                        first, done = cut, done + len(kept)
                        break
                else:
                    if i + 1 - first >= 4 * _WINDOW:
                        return None
        return ends if text[done:] == read(first, len(ids)) else None

    def piece(self, token: int, first: bool) -> str:
        """Text of one token at the start of a text or inside it (decoders may treat a word's first token differently)."""
        known = self._pieces.get((token, first))
        if known is None:
            alone = self.decode([token])
            known = self._pieces[token, first] = alone if first else self.decode([token, token])[len(alone) :]
        return known

    @cached_property
    def hash(self) -> str:
        """Identity of the tokenizer: every byte of its JSON form, merges and special tokens included."""
        return stable_hash("tokenizer", self.to_json())

    @property
    def size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self.raw.get_vocab_size(with_added_tokens=True))

    def token_id(self, token: str) -> int:
        """Id of a token by its exact name. Raises UserError when the tokenizer has none such."""
        number = self.raw.token_to_id(token)
        if number is None:
            raise UserError(f"the tokenizer has no token {token!r}")
        return int(number)


def continued(
    tokenizer: Tokenizer, before: Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray
) -> tuple[str, np.ndarray]:
    """Text of ``tokens`` after those ``before``, and the ends of each in it, int32 (T,): many decoders drop the space that a text
    begins with, and a character may begin before and end here."""
    known, ids = [int(t) for t in before[-_WINDOW:]], [int(t) for t in tokens]
    ends = tokenizer.ends(known + ids)
    start = int(ends[len(known) - 1]) if known else 0
    return tokenizer.decode(known + ids)[start:], ends[len(known) :] - np.int32(start)


def _shared(a: str, b: str) -> int:
    """Length of what two texts begin with in common."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
