"""What an agent did, as it is stored, shown to the reflector, and searched for what came from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.trace.message import Message, read_message

MOST_MESSAGES, MOST_CHARS = 400, 6000
"""Messages of one task and characters of one message that are stored; the middle is left out."""
_WORD = re.compile(r"\w+", re.UNICODE)
SHINGLE = 5
"""Words in a row that say that a text was taken from another."""


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call as it is stored: its arguments are JSON."""

    name: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A message as it is stored."""

    role: str
    text: str
    calls: tuple[KeptCall, ...] = ()


def messages_in(given: Sequence[Any], where: str = "the trajectory") -> list[Message]:
    """Messages of objects in OpenAI's form or of :class:`Message`. Raises UserError naming the one that is none."""
    found = [one if isinstance(one, Message) else read_message(one, f"{where}: message {i}") for i, one in enumerate(given, 1)]
    if not found:
        raise UserError(f"{where} holds no message")
    return found


def stored(messages: Sequence[Message]) -> list[KeptMessage]:
    """Messages as they are kept, within the limits."""
    kept = list(messages)
    if len(kept) > MOST_MESSAGES:
        half = MOST_MESSAGES // 2
        kept = [*kept[:half], Message("user", f"... {len(kept) - MOST_MESSAGES} messages are left out ..."), *kept[-half:]]
    return [_stored(one) for one in kept]


def _stored(one: Message) -> KeptMessage:
    calls = [
        KeptCall(str(call.name), cut(json.dumps(dict(call.arguments), ensure_ascii=False, default=str))) for call in one.calls
    ]
    return KeptMessage(one.role, cut(one.text), tuple(calls))


def cut(text: str, most: int = MOST_CHARS) -> str:
    """``text`` without its middle where it is longer than ``most``."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def calls_in(kept: Sequence[KeptMessage]) -> list[str]:
    """Names of the calls that were made, in order."""
    return [call.name for one in kept for call in one.calls]


def compact(kept: Sequence[KeptMessage], width: int = 160) -> list[str]:
    """One line a step: what was called, or said, or came back."""
    lines = []
    for i, one in enumerate(kept):
        text = " ".join((" ".join(map(str, one.calls)) or one.text).split())
        lines.append(f"{i}. {one.role}: {text if len(text) <= width else text[: width - 1] + '…'}")
    return lines


def in_full(kept: Sequence[KeptMessage], numbers: Sequence[Any]) -> dict[str, str]:
    """The steps of these numbers in full, at most twelve."""
    wanted = [n for n in numbers if isinstance(n, int) and 0 <= n < len(kept)][:12]
    return {str(n): json.dumps(_whole(kept[n]), ensure_ascii=False) for n in wanted}


def _whole(one: KeptMessage) -> Any:
    return {name: value for name, value in codec.to_json(one).items() if value != []}


def found_in(quote: str, kept: Sequence[KeptMessage]) -> tuple[int, str] | None:
    """Step and role where ``quote`` stands word for word (but for spaces):
    the first from outside (role tool), else the first. None where nowhere."""
    wanted = " ".join(quote.split())
    if not wanted:
        return None
    positions, first = [], _first_request(kept)
    for i, one in enumerate(kept):
        texts = [one.text, *map(str, one.calls)]
        if any(wanted in " ".join(text.split()) for text in texts) or wanted in compact([one])[0]:
            positions.append((i, "tool" if one.role == "user" and i != first else one.role))
    return next((position for position in positions if position[1] == "tool"), positions[0] if positions else None)


def outside(kept: Sequence[KeptMessage]) -> str:
    """All that tools returned, and whatever a user said after the first request: text that nobody vouches for."""
    first = _first_request(kept)
    return "\n".join(one.text for i, one in enumerate(kept) if one.role == "tool" or (one.role == "user" and i != first))


def _first_request(kept: Sequence[KeptMessage]) -> int:
    return next((i for i, one in enumerate(kept) if one.role == "user"), -1)


def taken_from(text: str, source: str, size: int = SHINGLE) -> str:
    """The first ``size`` words in a row of ``text`` that stand in ``source``; "" where none do."""
    words = [w.casefold() for w in _WORD.findall(text)]
    there = [w.casefold() for w in _WORD.findall(source)]
    known = {tuple(there[i : i + size]) for i in range(len(there) - size + 1)}
    return next((" ".join(words[i : i + size]) for i in range(len(words) - size + 1) if tuple(words[i : i + size]) in known), "")


def literals(text: str, source: str, known: str) -> list[str]:
    """Words of ``text`` with a digit, an upper-case letter within,
    a hyphen or an underscore that stand in ``source`` and not in ``known``."""
    pattern = re.compile(r"[\w@][\w.@/-]*[\w]", re.UNICODE)
    there, vouched = set(pattern.findall(source)), set(pattern.findall(known))
    odd = [w for w in pattern.findall(text) if w in there and w not in vouched]
    return list(dict.fromkeys(w for w in odd if re.search(r"\d|[-_@/]|\w[A-Z]", w)))
