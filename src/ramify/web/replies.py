"""From the pieces of a sample to what a client may read: no stop text, no end-of-turn token, no half of a tool call."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.model.protocol import Completion
from ramify.model.streaming import Piece
from ramify.trace.message import CALL, split_reply


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token: its id, its text in the sample ("" where the character ends with a later token),
    its log-prob under the model."""

    id: int
    text: str
    logprob: float | None


@dataclass(slots=True)
class ReplyPart:
    """What became certain of a reply: new text, the tokens of it, and at the end the tool calls in OpenAI's form."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)


class Reply:
    """One choice as it grows. ``enders`` are tokens that end it and are not shown;
    ``calls`` looks for tool calls, ``most`` are given out.

    Everything is given out once, in order, and the whole does not depend on how the sample was cut into pieces. The tokens given
    out are all tokens sampled, those of the stop included.
    """

    def __init__(
        self,
        enders: frozenset[int],
        stops: Sequence[str] = (),
        keep_stop: bool = False,
        calls: bool = False,
        most: int | None = None,
    ) -> None:
        self.enders, self.stops, self.keep_stop, self.looks, self.most = enders, stops, keep_stop, calls, most
        self.text = ""
        """Shown so far."""
        self.stopped: str | int | None = None
        """The stop text, or the token, that ended it."""
        self.completion: Completion | None = None
        self._received = ""
        self._cut: int | None = None  # where a stop text cuts it
        self._over: int | None = None  # where the token that ended it begins
        self._waiting: list[tuple[int, Token]] = []
        self._end = 0  # of the last token, in the sample's text

    @property
    def finish(self) -> str:
        """OpenAI's ``finish_reason`` but for tool calls."""
        return "length" if self.completion is not None and self.completion.stop == "length" and self.stopped is None else "stop"

    def push(self, piece: Piece) -> ReplyPart:
        """What ``piece`` makes sure; with the last piece everything."""
        self._received += piece.text
        self._take(piece)
        kept = self._received[: self._over]
        if self._cut is None and self.stops:
            self._cut = self._find_stop(kept)
        kept = kept[: self._cut]
        if piece.completion is None:
            return self._give(self._sure(kept))
        self.completion = piece.completion
        given = (piece.completion.data or {}).get("tool_calls")
        text, calls = split_reply(kept) if self.looks and not given else (kept, given or [])
        part = self._give(text, last=True)
        part.calls = [{**call, "id": f"call_{uuid.uuid4().hex[:24]}"} if not given else dict(call) for call in calls[: self.most]]
        return part

    def _take(self, piece: Piece) -> None:
        """Note the tokens of a piece; the text of one that ends the reply is cut off."""
        if piece.tokens is None:
            return
        for at, token in enumerate(piece.tokens.tolist()):
            end = len(self._received) if piece.ends is None else int(piece.ends[at])
            if token in self.enders and self._over is None:
                self._over = self._end
                self.stopped = token if self._cut is None else self.stopped
            logprob = None if piece.model_logprobs is None else float(piece.model_logprobs[at])
            self._waiting.append((end, Token(token, self._received[self._end : end], logprob)))
            self._end = end

    def _find_stop(self, text: str) -> int | None:
        found = [(at, -len(stop), stop) for stop in self.stops if (at := text.find(stop, len(self.text))) >= 0]
        if not found:
            return None
        at, _, stop = min(found)
        self.stopped = stop
        return at + len(stop) if self.keep_stop else at

    def _sure(self, text: str) -> str:
        """What of ``text`` no later text can take back."""
        tags = [*self.stops, CALL] if self.looks else list(self.stops)
        begin = text.find(CALL) if self.looks else -1
        end = begin if begin >= 0 else len(text) - max((_begun(text, tag) for tag in tags), default=0)
        return text[:end].rstrip() if self.looks else text[:end]

    def _give(self, text: str, last: bool = False) -> ReplyPart:
        new, self.text = text[len(self.text) :], text if len(text) > len(self.text) else self.text
        ready = len(self._waiting) if last else sum(end <= len(self.text) for end, _ in self._waiting)
        tokens = [token for _, token in self._waiting[:ready]]
        del self._waiting[:ready]
        return ReplyPart(new, tokens)


def _begun(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` with which ``tag`` begins, all of it excepted."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
