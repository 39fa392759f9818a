"""Two models of one tokenizer, a policy and the reference it came from, and what each of them thinks of the same tokens.

Every method that reads a log-ratio needs the same care: one tokenizer (its vocabulary and merges, not its size), the same ids for both,
full-softmax log-probs at temperature 1, and one model in memory at a time where two do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import EXIT_BUDGET, NeedsError, UserError
from ramify.base.files import write_whole
from ramify.base.ids import stable_hash
from ramify.model.protocol import Identity, Model, TokenScores, require

NEEDS = ("tokens", "prompt_logprobs")


class IncompatiblePairError(UserError):
    """Two models that cannot be compared token by token (exit code 3)."""

    exit_code = EXIT_BUDGET


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
    identity: Identity | None = None
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
        self.identity = self._model.identity
        return self._model

    def release(self) -> None:
        """Let go of the model where it need not stay in memory."""
        if not self.keep:
            self._model = None


class Pair:
    """A policy and its reference. ``cache`` is a folder in which log-probs are kept by weights and tokens; None keeps none.

    Raises IncompatiblePairError where the tokenizers differ. ``warnings`` says what is odd but no error.
    """

    def __init__(self, policy: Side | Model, reference: Side | Model, cache: Path | str | None = None) -> None:
        self.policy = policy if isinstance(policy, Side) else Side.of(policy)
        self.reference = reference if isinstance(reference, Side) else Side.of(reference)
        self.cache = None if cache is None else Path(cache)
        self.warnings: list[str] = []
        self.noise = 0.0
        """Deviation of a token's log-ratio by rounding alone, in nats, once :meth:`logprobs` measured it."""
        same_tokenizer(self.policy, self.reference)
        self._ancestry()

    async def logprobs(self, rows: Sequence[np.ndarray], again: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Log-probs of every token of every row under the policy and under the reference: float32 (T,), entry 0 is 0.

        First the policy over all rows, then the reference, each in the model's own batches. ``again`` rows are scored a second time,
        each alone, which tells how much of a log-ratio is rounding (``noise``). Raises what the models raise.
        """
        found, squares = [], []
        for side in (self.policy, self.reference):
            scores = await self._side(side, rows)
            for row, score in zip(rows[:again], scores, strict=False):
                (alone,) = await side.model().logprobs([row])
                squares.append(np.mean(np.square(alone.logprobs - score, dtype=np.float64)))
            side.release()
            found.append(scores)
        if squares:
            self.noise = float(np.sqrt(2 * np.mean(squares)))
        one, other = self.policy.identity, self.reference.identity
        if one and other and one.weights and one.weights == other.weights:
            self._warn("the reference has the policy's own weights, so every advantage is 0")
        return found[0], found[1]

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of the policy tokenizer's special tokens (ends of turns, role tags)."""
        tokenizer = self.policy.tokenizer
        if not hasattr(tokenizer, "to_json"):
            return frozenset()
        added = json.loads(tokenizer.to_json()).get("added_tokens") or []
        return frozenset(token["id"] for token in added if token.get("special"))

    async def _side(self, side: Side, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        model = side.model()
        files = [self._file(model, row) for row in rows]
        found: dict[int, np.ndarray] = {}
        for i, (file, row) in enumerate(zip(files, rows, strict=True)):
            if file is not None and file.is_file():
                kept = np.frombuffer(file.read_bytes(), np.float32)
                if len(kept) == len(row):
                    found[i] = kept
        missing = [i for i in range(len(rows)) if i not in found]
        if missing:
            scores: list[TokenScores] = await model.logprobs([rows[i] for i in missing])
            for i, score in zip(missing, scores, strict=True):
                found[i] = score.logprobs
                file = files[i]
                if file is not None:
                    write_whole(file, score.logprobs.astype(np.float32).tobytes())
        return [found[i] for i in range(len(rows))]

    def _file(self, model: Model, row: np.ndarray) -> Path | None:
        """Where a row's log-probs are kept. A server's weights cannot be hashed, so what it said is never kept."""
        if self.cache is None or "train" not in model.capabilities:
            return None
        self.cache.mkdir(parents=True, exist_ok=True)
        return self.cache / f"{stable_hash('logprobs', model.identity.weights, np.asarray(row, np.int32).tobytes())}.f32"

    def _ancestry(self) -> None:
        """Warn where the two checkpoints cannot be one model before and after training."""
        one, other = self.policy.config, self.reference.config
        keys = (
            "model_type",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
        )
        if not one or not other:
            return
        for key in keys:
            if one.get(key) != other.get(key):
                self._warn(
                    f"the reference is no ancestor of the policy: '{key}' is {one.get(key)} in {self.policy.name} and "
                    f"{other.get(key)} in {self.reference.name}"
                )
                return

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def same_tokenizer(one: Side, other: Side) -> None:
    """Raise IncompatiblePairError unless both sides read text as the same ids: vocabulary, merges, and how text is split.

    A token that only one side has, at an id beyond the other's, is allowed: the attempt that uses it is refused when it is scored.
    """
    a, b = one.tokenizer, other.tokenizer
    if a is None or b is None or a.hash == b.hash:
        return
    said = f"{one.name} and {other.name} do not share a tokenizer"
    if not hasattr(a, "to_json") or not hasattr(b, "to_json"):
        raise IncompatiblePairError(f"{said}: their hashes differ")
    first, second = (json.loads(side.to_json()) for side in (a, b))
    vocab = [_vocabulary(record) for record in (first, second)]
    for token in sorted(vocab[0].keys() & vocab[1].keys()):
        if vocab[0][token] != vocab[1][token]:
            raise IncompatiblePairError(f"{said}: {token!r} is token {vocab[0][token]} in one and {vocab[1][token]} in the other")
    ids = [{number: token for token, number in words.items()} for words in vocab]
    for number in sorted(ids[0].keys() & ids[1].keys()):
        if ids[0][number] != ids[1][number]:
            raise IncompatiblePairError(
                f"{said}: token {number} is {ids[0][number]!r} in one and {ids[1][number]!r} in the other"
            )
    merges = [record.get("model", {}).get("merges") or [] for record in (first, second)]
    for i, (left, right) in enumerate(zip(*merges, strict=False)):
        if _merge(left) != _merge(right):
            raise IncompatiblePairError(f"{said}: merge {i} is {_merge(left)} in one and {_merge(right)} in the other")
    if len(merges[0]) != len(merges[1]):
        raise IncompatiblePairError(f"{said}: one has {len(merges[0])} merges, the other {len(merges[1])}")
    for part in ("normalizer", "pre_tokenizer"):
        if first.get(part) != second.get(part):
            raise IncompatiblePairError(f"{said}: their '{part}' differs, so they split text differently")


def _vocabulary(record: dict[str, Any]) -> dict[str, int]:
    words = record.get("model", {}).get("vocab") or {}
    if isinstance(words, list):  # unigram: (piece, score) by id
        words = {piece[0]: i for i, piece in enumerate(words)}
    return {**words, **{token["content"]: token["id"] for token in record.get("added_tokens") or []}}


def _merge(merge: Any) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)
