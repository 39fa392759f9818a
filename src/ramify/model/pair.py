"""A policy and its reference model with one tokenizer, and the log-probs of both on the same tokens.

Every method that reads a log-ratio needs the same care: one tokenizer (its vocabulary and merges, not its size), the same ids for
both, full-softmax log-probs at temperature 1, and one model in memory at a time where two do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import EXIT_BUDGET, InfrastructureError, NeedsError, UserError
from ramify.base.files import write_whole
from ramify.base.ids import stable_hash
from ramify.model.protocol import Identity, Model, TokenScores, require

NEEDS = ("tokens", "prompt_logprobs")
PART = 1 << 17
"""Tokens that are scored between two saves of log-probs and progress reports."""
_SPLITTING = ("type", "ignore_merges", "byte_fallback", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")


class IncompatiblePairError(UserError):
    """Two models that cannot be compared token by token (exit code 3)."""

    exit_code = EXIT_BUDGET


Fault = UserError | InfrastructureError
"""What a model may raise on one row; the other rows continue."""


@dataclass
class Side:
    """One of the two models, opened when it is first needed.

    ``open`` makes the model; ``tokenizer`` is what it reads text with, known before the weights are loaded, or None.
    """

    open: Callable[[], Model]
    name: str
    tokenizer: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    """The checkpoint's config.json, {} where there is none."""
    keep: bool = True
    """Keep the model in memory after its rows are scored."""
    stamp: str = ""
    """Changes when the files change that ``open`` reads; "" where that is unknown.
    With it, kept log-probs are found without the model."""
    identity: Identity | None = None
    """Known once the model was opened."""
    local: bool | None = None
    """The weights are here and hashed, so log-probs may be kept by them; None while that is unknown."""
    _model: Model | None = None

    @classmethod
    def of(cls, model: Model, name: str = "") -> Side:
        """A side whose model is open already."""
        side = cls(lambda: model, name or model.identity.name, getattr(model, "tokenizer", None))
        side._model, side.identity = model, model.identity
        return side

    def model(self) -> Model:
        """The model. Raises IncompatiblePairError where it gives no log-probs of given tokens (chat endpoints)."""
        if self._model is None:
            self._model = self.open()
        try:
            require(self._model, NEEDS, "a pair of policy and reference")
        except NeedsError as error:
            raise IncompatiblePairError(str(error)) from error
        self.identity, self.local = self._model.identity, "train" in self._model.capabilities
        return self._model

    def release(self) -> None:
        """Let go of the model where it need not stay in memory."""
        if not self.keep:
            self._model = None


class Pair:
    """A policy and its reference. ``cache`` is a folder in which log-probs are kept by weights and tokens; None keeps none.

    Raises IncompatiblePairError where the tokenizers differ. ``warnings`` lists oddities that are not errors.
    """

    def __init__(self, policy: Side | Model, reference: Side | Model, cache: Path | str | None = None) -> None:
        self.policy = policy if isinstance(policy, Side) else Side.of(policy)
        self.reference = reference if isinstance(reference, Side) else Side.of(reference)
        self.cache = None if cache is None else Path(cache)
        self.warnings: list[str] = []
        self.noise: float | None = None
        """Deviation of a token's log-ratio by rounding alone, in nats; None where it was not measured."""
        same_tokenizer(self.policy, self.reference)
        alone = [side.name for side in (self.policy, self.reference) if side.tokenizer is None]
        if len(alone) == 1:
            self._warn(f"{alone[0]} has no tokenizer, so it was not compared with the other model's")
        self._ancestry()

    async def logprobs(self, rows: Sequence[np.ndarray], again: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Log-probs of every token of every row under the policy and under the reference: float32 (T,), entry 0 is 0.

        See :meth:`each`. Raises what a model raises on a row.
        """
        sides: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        for row in await self.each(rows, again):
            if isinstance(row, Exception):
                raise row
            for side, score in zip(sides, row, strict=True):
                side.append(score.logprobs)
        return sides

    async def each(
        self,
        rows: Sequence[np.ndarray],
        again: int = 0,
        top_k: int = 0,
        progress: Callable[[int], object] = lambda rows: None,
    ) -> list[tuple[TokenScores, TokenScores] | Fault]:
        """Scores of each row under policy and reference, or the error that one of them raised on that row; the others continue.

        First the policy over all rows, then the reference, each opened once. ``again`` rows are scored a second time, each alone,
        which measures how much of a log-ratio is rounding (``noise``). ``top_k``: the policy's likeliest alternatives come along
        (at most as many as it has tokens). ``progress`` is called with the rows done on either side."""
        squares: list[float] = []
        policy = await self._side(self.policy, rows, again, top_k, squares, progress)
        left = [i for i, score in enumerate(policy) if isinstance(score, TokenScores)]
        progress(len(rows) - len(left))
        reference = await self._side(self.reference, [rows[i] for i in left], again, 0, squares, progress)
        self.noise = float(np.sqrt(2 * np.mean(squares))) if squares else self.noise
        trained, reference_identity = self.policy.identity, self.reference.identity
        if trained and reference_identity and trained.weights and trained.weights == reference_identity.weights:
            self._warn("the reference has the policy's own weights, so every advantage is 0")
        scored: list[Any] = list(policy)
        for i, score in zip(left, reference, strict=True):
            scored[i] = (scored[i], score) if isinstance(score, TokenScores) else score
        return scored

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of the policy tokenizer's special tokens (ends of turns, role tags)."""
        tokenizer = self.policy.tokenizer
        if not hasattr(tokenizer, "to_json"):
            return frozenset()
        added = json.loads(tokenizer.to_json()).get("added_tokens") or []
        return frozenset(token["id"] for token in added if token.get("special"))

    async def _side(
        self,
        side: Side,
        rows: Sequence[np.ndarray],
        again: int,
        top_k: int,
        squares: list[float],
        progress: Callable[[int], object],
    ) -> list[TokenScores | Fault]:
        """One model over all rows, as :meth:`each`; ``squares`` takes the mean squared deviation of each row scored again."""
        files = [self._file(side, row) for row in rows] if rows else []
        scored: dict[int, TokenScores | Fault] = {}
        if not top_k:
            scored |= {i: kept for i, row in enumerate(rows) if (kept := _scores_in_file(files[i], len(row))) is not None}
        progress(len(scored))
        missing = sorted((i for i in range(len(rows)) if i not in scored), key=lambda i: -len(rows[i]))
        for part in _parts(missing, rows):
            model = side.model()
            wide = min(top_k, getattr(getattr(model, "forward", None), "vocab", top_k))
            for i, score in zip(part, await _scores(model, [rows[i] for i in part], wide), strict=True):
                scored[i] = score
                file = files[i]
                if file is not None and isinstance(score, TokenScores):
                    write_whole(file, score.logprobs.astype(np.float32).tobytes())
            progress(len(part))
        for i in missing[:again] if len(missing) > 1 else ():  # scored alone already: nothing to compare with
            first, second = scored[i], (await _scores(side.model(), [rows[i]], 0))[0]
            if isinstance(first, TokenScores) and isinstance(second, TokenScores):
                squares.append(float(np.mean(np.square(second.logprobs - first.logprobs, dtype=np.float64))))
        side.release()
        return [scored[i] for i in range(len(rows))]

    def _file(self, side: Side, row: np.ndarray) -> Path | None:
        """The cache file of a row's log-probs. A server's weights cannot be hashed, so its scores are never cached."""
        if self.cache is None:
            return None
        self.cache.mkdir(parents=True, exist_ok=True)
        if side.local is None:
            note = self.cache / f"{stable_hash('weights', side.stamp)}.json"
            if side.stamp and note.is_file():
                side.identity, side.local = Identity(**json.loads(note.read_text(encoding="utf-8"))), True
            else:
                side.model()
                if side.stamp and side.local and side.identity is not None:
                    write_whole(note, json.dumps(asdict(side.identity)).encode())
        if side.identity is None or not side.local:
            return None
        return self.cache / f"{stable_hash('logprobs', side.identity.weights, np.asarray(row, np.int32).tobytes())}.f32"

    def _ancestry(self) -> None:
        """Warn where the two checkpoints cannot be one model before and after training."""
        trained, other = self.policy.config, self.reference.config
        keys = (
            "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "intermediate_size",
        )  # fmt: skip
        if not trained or not other:
            return
        for key in keys:
            if trained.get(key) != other.get(key):
                self._warn(
                    f"the reference is not an ancestor of the policy: '{key}' is {trained.get(key)} in {self.policy.name} and "
                    f"{other.get(key)} in {self.reference.name}"
                )
                return

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _scores_in_file(file: Path | None, length: int) -> TokenScores | None:
    """Log-probs kept in ``file``; None where there are none of a row of ``length`` tokens (a file cut short is written anew)."""
    kept = file.read_bytes() if file is not None and file.is_file() else b""
    return TokenScores(np.frombuffer(kept, np.float32)) if kept and len(kept) == 4 * length else None


def _parts(numbers: Sequence[int], rows: Sequence[np.ndarray]) -> list[list[int]]:
    """Row numbers in stretches of about PART tokens."""
    parts: list[list[int]] = []
    room = 0
    for i in numbers:
        room -= len(rows[i])
        if room < 0:
            parts.append([])
            room = PART - len(rows[i])
        parts[-1].append(i)
    return parts


async def _scores(model: Model, rows: list[np.ndarray], top_k: int) -> list[TokenScores | Fault]:
    """Scores of each row, or what the model raised on it: of rows that fail together the halves are tried."""
    alone = getattr(model, "chosen_logprobs", None)  # an engine's cheapest score, where it has one
    try:
        if alone is not None and not top_k:
            return [TokenScores(values) for values in await alone(rows)]
        return list(await model.logprobs(rows, top_k=top_k))
    except (UserError, InfrastructureError) as error:
        if len(rows) == 1:
            return [error]
    half = len(rows) // 2
    return [*await _scores(model, rows[:half], top_k), *await _scores(model, rows[half:], top_k)]


def same_tokenizer(left_side: Side, other: Side) -> None:
    """Raise IncompatiblePairError unless both sides read text as the same ids: vocabulary, merges, and how text is split.

    A token that only one side has, at an id beyond the other's, is allowed:
    the attempt that uses it is refused when it is scored.
    """
    a, b = left_side.tokenizer, other.tokenizer
    if a is None or b is None or a.hash == b.hash:
        return  # a side without one is warned of by the pair
    why = f"{left_side.name} and {other.name} do not share a tokenizer"
    if not hasattr(a, "to_json") or not hasattr(b, "to_json"):
        raise IncompatiblePairError(f"{why}: their hashes differ")
    first, second = (json.loads(side.to_json()) for side in (a, b))
    vocab = [_vocabulary(record) for record in (first, second)]
    for token in sorted(vocab[0].keys() & vocab[1].keys()):
        if vocab[0][token] != vocab[1][token]:
            raise IncompatiblePairError(f"{why}: {token!r} is token {vocab[0][token]} in one and {vocab[1][token]} in the other")
    ids = [{number: token for token, number in words.items()} for words in vocab]
    for number in sorted(ids[0].keys() & ids[1].keys()):
        if ids[0][number] != ids[1][number]:
            raise IncompatiblePairError(f"{why}: token {number} is {ids[0][number]!r} in one and {ids[1][number]!r} in the other")
    merges = [record.get("model", {}).get("merges") or [] for record in (first, second)]
    for i, (left, right) in enumerate(zip(*merges, strict=False)):
        if _merge(left) != _merge(right):
            raise IncompatiblePairError(f"{why}: merge {i} is {_merge(left)} in one and {_merge(right)} in the other")
    if len(merges[0]) != len(merges[1]):
        raise IncompatiblePairError(f"{why}: one has {len(merges[0])} merges, the other {len(merges[1])}")
    models = [record.get("model", {}) for record in (first, second)]
    pieces = [dict(model["vocab"]) if isinstance(model.get("vocab"), list) else {} for model in models]  # unigram: (piece, score)
    if any(pieces[0][piece] != pieces[1][piece] for piece in pieces[0].keys() & pieces[1].keys()):
        raise IncompatiblePairError(f"{why}: the scores of their pieces differ, so they split text differently")
    pairs = [(part, first.get(part), second.get(part)) for part in ("normalizer", "pre_tokenizer")]
    pairs += [(name, models[0].get(name) or None, models[1].get(name) or None) for name in _SPLITTING]
    for name, left, right in pairs:
        if left != right:
            raise IncompatiblePairError(f"{why}: their '{name}' differs, so they split text differently")


def _vocabulary(record: dict[str, Any]) -> dict[str, int]:
    words = record.get("model", {}).get("vocab") or {}
    if isinstance(words, list):  # unigram: (piece, score) by id
        words = {piece[0]: i for i, piece in enumerate(words)}
    return {**words, **{token["content"]: token["id"] for token in record.get("added_tokens") or []}}


def _merge(merge: Any) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)
