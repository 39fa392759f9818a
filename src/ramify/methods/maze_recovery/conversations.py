"""Conversations to imitate, with a loss on chosen spans only, as rows that TRL's SFTTrainer and the trainer here read.

A turn keeps the tokens it has; text without tokens is rendered once, by a chat template. Trained spans are given in characters of
a turn's text, so one description serves all forms: messages, pairs of prompt and completion, and tokens with labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.trace.keys import canonical
from ramify.trace.view import TokenMessage

if TYPE_CHECKING:
    from ramify.model.chat import ChatTemplate
    from ramify.train.batch import Row

IGNORED = -100
"""Label of a token without loss, as in transformers and TRL."""
MOST = 1e15
"""Numbers beyond this are mistakes: their sums would lose digits or fit no float."""
CHARACTERS = 4
"""Characters counted as one token where there is neither token nor tokenizer."""

Spans = tuple[tuple[int, int], ...]
"""Half-open ranges of characters of a turn's text that are trained; a reply's whole text includes the token that ends it."""


@dataclass(frozen=True, eq=False)
class Conversation:
    """Turns and, for each, what of it is trained: nothing where its spans are empty."""

    turns: tuple[TokenMessage, ...]
    trained: tuple[Spans, ...]

    def __post_init__(self) -> None:
        for turn, spans in zip(self.turns, self.trained, strict=True):
            if spans and turn.role != "assistant":
                raise UserError(f"a message of role '{turn.role}' cannot be trained on: only the assistant's are")
            if spans and turn.viewed:
                raise NeedsError(
                    "a reply was sampled from an explicit context (compaction), so its path is not a conversation to imitate"
                )

    def cost(self, template: ChatTemplate | None = None) -> int:
        """Tokens with a loss: sampled or rendered by ``template``;
        else counted by the trace, else one per ``CHARACTERS`` characters."""
        total = 0
        for i, (turn, spans) in enumerate(zip(self.turns, self.trained, strict=True)):
            if spans and (turn.tokens is not None or template is not None):
                total += int(_tokens_of(turn, spans, template, self._after(i))[1].sum())
            elif spans:
                share = 1.0 if spans == whole(turn) else sum(b - a for a, b in spans) / len(turn.text)
                length = len(turn.text) + len(canonical(turn.data["tool_calls"]) if turn.data.get("tool_calls") else "")
                total += max(1, round(share * (counted(turn) or length / CHARACTERS)))
        return total

    def to_messages(self) -> dict[str, Any]:
        """``messages`` and, for each, ``loss``: the trained ranges of characters, an empty list where there is none; and
        ``loss_calls``: whether its calls of tools are trained,
        as they are with the end of the text before them (which may be empty)."""
        each = list(zip(self.turns, self.trained, strict=True))
        return {
            "messages": [turn.message.to_openai() for turn in self.turns],
            "loss": [[list(span) for span in spans] for spans in self.trained],
            "loss_calls": [bool(t.data.get("tool_calls") and spans and spans[-1][1] == len(t.text)) for t, spans in each],
        }

    def to_completions(self) -> Iterator[dict[str, Any]]:
        """``prompt`` and ``completion`` for each trained reply: a loss mask that every trainer of pairs keeps.

        Raises UserError where only part of a reply is trained.
        """
        messages = [turn.message.to_openai() for turn in self.turns]
        for i, (turn, spans) in enumerate(zip(self.turns, self.trained, strict=True)):
            if spans and spans != whole(turn):
                raise UserError("a loss on part of a reply does not fit prompt and completion: write tokens or messages")
            if spans:
                yield {"prompt": messages[:i], "completion": [messages[i]]}

    def tokens(self, template: ChatTemplate | None = None) -> tuple[np.ndarray, np.ndarray]:
        """int32 (T,) tokens and bool (T,) which have a loss.
        Raises NeedsError where a turn has text only and no template is given."""
        rendered = [
            _tokens_of(turn, spans, template, self._after(i))
            for i, (turn, spans) in enumerate(zip(self.turns, self.trained, strict=True))
        ]
        return np.concatenate([ids for ids, _ in rendered]), np.concatenate([mask for _, mask in rendered])

    def to_tokens(self, template: ChatTemplate | None = None) -> dict[str, Any]:
        """``input_ids`` and ``labels`` (-100 without a loss): rows that TRL's SFTTrainer takes as they are."""
        ids, mask = self.tokens(template)
        return {"input_ids": ids.tolist(), "labels": np.where(mask, ids, IGNORED).tolist()}

    def to_row(self, template: ChatTemplate | None = None) -> Row:
        """The conversation as a training row for :class:`ramify.train.loop.Trainer`."""
        from ramify.train.batch import Row

        return Row(*self.tokens(template))

    def _after(self, i: int) -> str:
        return self.turns[i - 1].role if i else ""


def counted(turn: TokenMessage) -> int | None:
    """Tokens of the text, where the trace says how many without naming them."""
    count = turn.data.get("tokens")
    return count if type(count) is int and 0 <= count <= MOST else None


def whole(turn: TokenMessage) -> Spans:
    """The spans that train all of a turn."""
    return ((0, len(turn.text)),)


def _tokens_of(turn: TokenMessage, spans: Spans, template: ChatTemplate | None, after: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a turn and which of them are trained."""
    full = spans == whole(turn)
    ids, may, ends = turn.tokens, turn.sampled, turn.ends
    if ids is None:
        ids, may, ends = _render(turn, full, template, after)
    elif may is None:
        may = np.zeros(len(ids), np.bool_)
    assert may is not None
    if not spans or full:
        return ids, may if full else np.zeros(len(ids), np.bool_)
    if ends is None:
        raise NeedsError("the tokens of a reply carry no character ends, so a loss on part of it cannot be placed")
    starts = np.concatenate([[0], ends[:-1]])
    inside = np.zeros(len(ids), np.bool_)
    for a, b in spans:
        inside |= (ends > a) & ((starts < b) | (b == len(turn.text)))  # the token that ends the reply goes with its last words
    return ids, may & inside


def _render(
    turn: TokenMessage, full: bool, template: ChatTemplate | None, after: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens of a text, which of them a model would have sampled (its words and the token that ends its turn), and their ends."""
    if template is None:
        raise NeedsError(
            "the traces have text only: name the checkpoint whose tokenizer and chat template lay them out as tokens"
        )
    if turn.data.get("tool_calls"):
        raise NeedsError("replies with tool calls are not rendered here: write messages, and let the trainer's template do it")
    rendered, places, text = template.render(turn.role, turn.text, after)
    if text != turn.text and not full and turn.role == "assistant":
        raise NeedsError("the chat template changes a reply's text, so a loss on part of it cannot be placed")
    ids = np.asarray(rendered, np.int32)
    may = (
        np.arange(len(ids)) >= len(template.open(turn.role, after)) if turn.role == "assistant" else np.zeros(len(ids), np.bool_)
    )
    stops = np.flatnonzero(may & np.isin(ids, template.stop_tokens))
    if len(stops):
        may[stops[0] + 1 :] = False
    return ids, may, np.asarray(places, np.int32)
