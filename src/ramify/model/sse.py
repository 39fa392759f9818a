"""Streamed answers of OpenAI-compatible servers: bytes to events, events to samples. Everything is bounded and validated on
arrival; every fault of a server is a ProviderError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.model import wire
from ramify.model.address import HIDDEN, Secret
from ramify.model.http import ProviderError
from ramify.model.protocol import Completion

TYPE = r"text/event-stream"
MAX_EVENT, MAX_ANSWER = 1 << 20, 16 << 20
"""Bytes of one event, and of one streamed answer."""
MAX_CHOICES, MAX_CALLS = 128, 128
SHOWN = 8
"""So many characters of a secret at the end of a stream are withheld; fewer may be chance."""
_BETWEEN = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINES = re.compile(rb"\r\n|\n|\r")


class EventParser:
    """Parses bytes into events. ``done`` once the server sent ``[DONE]``; anything after that is dropped."""

    def __init__(self, host: str) -> None:
        self.host, self.done = host, False
        self._rest = bytearray()
        self._size = 0

    def push(self, raw: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The events that ``raw`` completes: their bytes as they came, and their JSON objects. ``[DONE]`` is none of them.

        Raises ProviderError (too_large, json, shape) where it comes to what is wrong.
        """
        self._size += len(raw)
        if self._size > MAX_ANSWER:
            raise ProviderError("too_large", f"{self.host} streams more than {MAX_ANSWER:,} bytes")
        start, at = (
            0,
            max(0, len(self._rest) - 3),
        )  # what came before holds no gap: a large event in tiny pieces is looked at once
        self._rest += raw
        while gap := _BETWEEN.search(self._rest, at):
            event, start, at = bytes(self._rest[start : gap.end()]), gap.end(), gap.end()
            data = b"\n".join(line[5:].strip() for line in _LINES.split(event) if line.startswith(b"data:"))
            if data == b"[DONE]":
                self.done = True
                return
            if data:
                yield event, self._read(data)
        del self._rest[:start]
        if len(self._rest) > MAX_EVENT:
            raise ProviderError("too_large", f"{self.host} streams an event of more than {MAX_EVENT:,} bytes")

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(":")[0]
            raise ProviderError("json", f"{self.host} streams something that is not JSON ({why})") from None
        if not isinstance(value, dict):
            raise ProviderError("shape", f"{self.host} streams a {type(value).__name__} instead of a JSON object")
        return value


@dataclass
class _Choice:
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Slot:
    """One text that comes in pieces, as far as its end may be the beginning of the secret."""

    pieces: list[tuple[int, dict[str, Any], str]] = field(default_factory=list)
    """Number of the event, and the object and the name under which the piece lies there."""
    choices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(holder[name] for _, holder, name in self.pieces)

    def put(self, text: str) -> None:
        """Say ``text`` in the first piece and nothing in the others; log-probs would spell what was there."""
        for at, (_, holder, name) in enumerate(self.pieces):
            holder[name] = "" if at else text
        for choice in self.choices:
            if choice.get("logprobs") is not None:
                choice["logprobs"] = None


class Withheld:
    """Events of a stream on their way, without ``secret`` in any text, be it in pieces over many events.

    An event waits while what it says, joined with what came before, may be the beginning of the secret. Events that say nothing
    of it pass with the bytes that came.
    """

    def __init__(self, secret: Secret) -> None:
        self.secret = secret
        self._waiting: list[tuple[bytes, dict[str, Any]]] = []
        self._changed: set[int] = set()
        self._slots: dict[tuple[str, ...], _Slot] = {}
        self._count = 0  # events that have passed

    def push(self, event: bytes, value: dict[str, Any]) -> list[tuple[bytes, dict[str, Any]]]:
        """The events that may pass after ``event``, whose JSON is ``value``."""
        if not self.secret.hidden:
            return [(event, value)]
        number = self._count + len(self._waiting)
        clean = self.secret.scrubbed(value)
        if clean is not value:
            self._changed.add(number)
        self._waiting.append((event, clean))
        for key, holder, name, choice in _texts_of(clean):
            slot = self._slots.setdefault(key, _Slot())
            slot.pieces.append((number, holder, name))
            slot.choices.append(choice)
            self._look(key, slot)
        return self._pass(min((slot.pieces[0][0] for slot in self._slots.values()), default=number + 1))

    def rest(self) -> list[tuple[bytes, dict[str, Any]]]:
        """The events that still wait at the end of the stream; most of a secret is withheld as all of it is."""
        for slot in self._slots.values():
            text = slot.text
            if (begun := self.secret.begun(text)) >= SHOWN:
                self._changed |= {number for number, _, _ in slot.pieces}
                slot.put(text[: len(text) - begun] + HIDDEN)
        self._slots.clear()
        return self._pass(self._count + len(self._waiting))

    def _look(self, key: tuple[str, ...], slot: _Slot) -> None:
        """Take the secret out of a slot's text, and let go of the pieces before what may be its beginning."""
        text = slot.text
        if (clean := self.secret.scrub(text)) != text:
            self._changed |= {number for number, _, _ in slot.pieces}
            slot.put(clean)
            text = clean
        begun, length = self.secret.begun(text), len(text)
        while slot.pieces and (begun == 0 or length - len(_piece_text(slot.pieces[0])) >= begun):
            length -= len(_piece_text(slot.pieces.pop(0)))
            slot.choices.pop(0)
        if not slot.pieces:
            del self._slots[key]

    def _pass(self, until: int) -> list[tuple[bytes, dict[str, Any]]]:
        going, self._waiting = self._waiting[: until - self._count], self._waiting[until - self._count :]
        numbers = range(self._count, self._count + len(going))
        self._count += len(going)
        found = [
            (as_event(value) if n in self._changed else event, value) for n, (event, value) in zip(numbers, going, strict=True)
        ]
        self._changed.difference_update(numbers)
        return found


def _piece_text(piece: tuple[int, dict[str, Any], str]) -> str:
    text: str = piece[1][piece[2]]
    return text


def _texts_of(event: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str, dict[str, Any]]]:
    """Every text of an event that continues in later ones: which it is,
    the object and the name under which it lies, its choice."""
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        at, delta = choice.get("index", 0), choice.get("delta")
        for holder in (choice, delta) if isinstance(delta, dict) else (choice,):
            for name, value in holder.items():
                if isinstance(value, str) and name not in ("role", "finish_reason"):
                    yield (str(at), name), holder, name, choice
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            for name, value in function.items():
                if isinstance(value, str):
                    yield (str(at), str(call.get("index", 0)), name), function, name, choice


def as_event(value: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


class Heard:
    """The content of a streamed answer so far, by choice. ``model`` is the model that must answer ("":
    any), ``who`` the one that did.

    With ``extra`` a sample's data holds the other fields (:func:`ramify.model.wire.extra_of`).
    """

    def __init__(self, model: str, host: str, extra: bool = False) -> None:
        self.model, self.host, self.extra, self.id, self.who = model, host, extra, "", ""
        self.choices: dict[int, _Choice] = {}
        self.usage: Any = None

    def take(self, event: Mapping[str, Any]) -> list[tuple[int, str]]:
        """The new text of each choice in ``event``. Raises ProviderError on an error it reports, and on a malformed chunk."""
        if event.get("error") is not None:
            message = event["error"]
            message = message.get("message", message) if isinstance(message, dict) else message
            raise ProviderError("server", f"{self.host} broke the stream off: {str(message)[:300]}")
        self.id = self.id or str(event.get("id") or "")[:200]
        self.usage = event.get("usage") or self.usage
        self.who = self.who or wire.who_answers(event)
        if self.model and (event.get("choices") != [] or not self.choices):
            wire.check_who(event, self.model, self.host)
        news = []
        for choice in wire.choices_of(event, self.host):
            at = choice.get("index", 0)
            if type(at) is not int or not 0 <= at < MAX_CHOICES:
                raise ProviderError("shape", f"{self.host} streams a choice without its index")
            news.append((at, self._hear(self.choices.setdefault(at, _Choice()), choice)))
        return news

    def _hear(self, heard: _Choice, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta", choice) if "delta" not in choice or choice["delta"] is not None else {}
        if not isinstance(delta, dict):
            raise ProviderError("shape", f"{self.host} streams a delta that is no object")
        if choice.get("finish_reason") is not None:
            heard.ended = {k: choice[k] for k in ("finish_reason", "stop_reason") if k in choice}
        text = next((delta[k] for k in ("content", "text", "refusal") if delta.get(k) is not None), "")
        thought = next((delta[k] for k in ("reasoning_content", "reasoning") if delta.get(k) is not None), "")
        if isinstance(text, list):  # parts
            text = "".join(part["text"] for part in text if isinstance(part, dict) and isinstance(part.get("text"), str))
        if not isinstance(text, str) or not isinstance(thought, str):
            raise ProviderError("shape", f"{self.host} streams content that is no text")
        heard.texts.append(text)
        heard.thoughts.append(thought)
        if self.extra and (extra := wire.extra_of(choice, delta)):
            wire.merge(heard.extra, extra)
        calls = delta.get("tool_calls") or ()
        for call in calls if isinstance(calls, list) else ():
            if wire.calls_function(call) or not isinstance(call, dict):
                self._call(heard, call)
        return text

    def _call(self, heard: _Choice, call: Any) -> None:
        at = call.get("index", 0) if isinstance(call, dict) else None
        if type(at) is not int or not 0 <= at < MAX_CALLS:
            raise ProviderError("shape", f"{self.host} streams a tool call without its index")
        made = heard.calls.setdefault(at, {"id": "", "function": {"name": "", "arguments": ""}})
        made["id"] = made["id"] or call.get("id") or ""
        function = call.get("function") or {}
        for name in ("name", "arguments"):
            piece = function.get(name) if isinstance(function, dict) else None
            if isinstance(piece, str):
                made["function"][name] += piece

    @property
    def whole(self) -> bool:
        """Whether every choice has ended."""
        return bool(self.choices) and all(choice.ended for choice in self.choices.values())

    def completions(self, failed: str = "") -> dict[int, Completion]:
        """The sample of each choice. Where the stream broke off, those that had not ended say ``failed``; so does one withheld.

        Raises ProviderError where an ending is none that the protocol knows.
        """
        found = {}
        for at, heard in self.choices.items():
            message: dict[str, Any] = {"content": "".join(heard.texts), "reasoning": "".join(heard.thoughts) or None}
            if heard.calls:
                message["tool_calls"] = [call for _, call in sorted(heard.calls.items())]
            withheld = heard.ended.get("finish_reason") == "content_filter"
            ended = {"finish_reason": "length"} if withheld or not heard.ended else heard.ended
            answer = {"choices": [{"message": message, **ended}], "usage": self.usage}
            completion = wire.chat_completion(answer, self.model, self.host)
            why = "content_filter" if withheld else "" if heard.ended else failed
            if heard.extra:
                completion = replace(completion, data={**(completion.data or {}), "extra": heard.extra})
            found[at] = (
                replace(completion, stop="failed", data={**(completion.data or {}), "failure": why}) if why else completion
            )
        return found
