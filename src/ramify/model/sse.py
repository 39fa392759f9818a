"""Streamed answers of OpenAI-compatible servers: bytes to events, events to samples. Everything is bounded and validated on
arrival; every fault of a server is a ProviderError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.model import wire
from ramify.model.address import HIDDEN, Secret
from ramify.model.http import UNREAD, ProviderError
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
    """Parses bytes into events. ``done`` once the server sent ``[DONE]``; anything after that is dropped.

    ``lenient``: an event that is not a JSON object comes as an empty one, and ``unread`` says why, instead of an error.
    """

    def __init__(self, host: str, lenient: bool = False) -> None:
        self.host, self.lenient, self.done, self.unread = host, lenient, False, ""
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
            return self._parsed(data)
        except ProviderError as error:
            if not self.lenient:
                raise
            self.unread = self.unread or error.message
            return {}

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(":")[0]
            raise ProviderError("json", f"{self.host} streams something that is not JSON ({why})") from None
        if not isinstance(value, dict):
            raise ProviderError("shape", f"{self.host} streams a {type(value).__name__} instead of a JSON object")
        return value


class StreamedCalls:
    """Calls of tools that come in pieces.

    Servers number the calls (``index``), or number none, or all 0, and some give each piece an id of its own. So what a piece
    belongs to is decided by all that it says: a new id begins a call, and so does a name where none is to be continued."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self._at: dict[int, dict[str, Any]] = {}
        """The newest call by its number."""

    def take(self, pieces: Sequence[Any]) -> None:
        """The pieces of one event. Raises ValueError where there are too many calls."""
        named: list[dict[str, Any]] = []
        for piece in pieces:
            if wire.calls_function(piece):
                self._take(piece, named)

    def _take(self, piece: Mapping[str, Any], named: list[dict[str, Any]]) -> None:
        index, id = piece.get("index"), piece.get("id")
        index, id = index if type(index) is int else None, id if isinstance(id, str) else ""
        name, arguments = wire.function_of(piece)
        there = self._at.get(index) if index is not None else None
        same = next((call for call in reversed(self.made) if id and call["id"] == id), None)
        if index is not None and there is None and name:
            same = None  # some servers give every call one id
        last = self.made[-1] if self.made and (index is None or not (id or name)) else None
        call = same or there or last
        if call is None or self._begins(call, index, id, name, arguments, any(call is known for known in named)):
            if len(self.made) >= MAX_CALLS:
                raise ValueError(f"more than {MAX_CALLS} calls of tools")
            call = {"id": id, "function": {"name": "", "arguments": ""}}
            self.made.append(call)
        if index is not None:
            self._at[index] = call
        function, call["id"] = call["function"], call["id"] or id
        if name:
            named.append(call)
        function["name"] += "" if name == function["name"] or function["arguments"] else name
        if not (name and id and arguments == function["arguments"] and wire.is_object(arguments)):  # said twice
            function["arguments"] += arguments

    def _begins(self, call: dict[str, Any], index: int | None, id: str, name: str, arguments: str, named: bool) -> bool:
        """Whether a piece begins another call than the one it would continue; ``named``: that one was named in this event."""
        function = call["function"]
        complete = wire.is_object(function["arguments"])
        if id and call["id"] and id != call["id"]:
            return bool(name) or complete  # some servers give every piece of a call an id of its own, and name it once
        if not name or not function["name"]:
            return False
        if not function["arguments"]:
            return not id and (named or index is None)  # else a name in pieces
        return name != function["name"] or (not id and (named or (complete and bool(arguments))))


@dataclass
class _Choice:
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)
    calls: StreamedCalls = field(default_factory=StreamedCalls)
    old_call: dict[str, Any] = field(default_factory=dict)
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
        passed = [
            (as_event(value) if n in self._changed else event, value) for n, (event, value) in zip(numbers, going, strict=True)
        ]
        self._changed.difference_update(numbers)
        return passed


def _piece_text(piece: tuple[int, dict[str, Any], str]) -> str:
    text: str = piece[1][piece[2]]
    return text


def _texts_of(event: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str, dict[str, Any]]]:
    """Every text of an event that continues in later ones: which it is,
    the object and the name under which it lies, its choice."""
    choices = event.get("choices")
    if choices is None and isinstance(event, dict) and "delta" in event:  # of Anthropic's Messages, or OpenAI's Responses
        part = event["delta"] if isinstance(event["delta"], dict) else event
        spot = str(event.get("index", event.get("output_index", 0)))
        for name in ("text", "thinking", "partial_json", "delta"):
            if isinstance(part.get(name), str):
                yield (spot, name), part, name, event
        return
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
    """A server-sent event; one that says its ``type`` is of that name."""
    kind = value.get("type")
    name = f"event: {kind}\n" if isinstance(kind, str) and kind.isprintable() else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def check_event(event: Mapping[str, Any], host: str) -> None:
    """Raises ProviderError where an event of a stream says that the server failed."""
    if event.get("error") is not None:
        message = event["error"]
        message = str(message.get("message", message) if isinstance(message, dict) else message)[:300]
        unread = UNREAD.search(message) is not None
        raise ProviderError("unread" if unread else "server", f"{host} broke the stream off: {message}", final=unread)


class Heard:
    """The content of a streamed answer so far, by choice. ``who`` is the model that answered; ``done`` is set by who reads the
    stream, once the server said ``[DONE]``: a choice that did not say why it ended is whole then.

    With ``extra`` a sample's data holds the other fields (:func:`ramify.model.wire.extra_of`). ``lenient``: what is of another
    shape than the protocol's is not an error; ``unread`` says what it was, and so does each sample.
    """

    def __init__(self, host: str, extra: bool = False, lenient: bool = False) -> None:
        self.host, self.extra, self.lenient, self.id, self.who, self.unread, self.done = host, extra, lenient, "", "", "", False
        self.choices: dict[int, _Choice] = {}
        self.usage: Any = None

    def take(self, event: Mapping[str, Any]) -> list[tuple[int, str]]:
        """The new text of each choice in ``event``. Raises ProviderError on an error it reports, and on a malformed chunk."""
        check_event(event, self.host)
        self.id = self.id or str(event.get("id") or "")[:200]
        self.usage = event.get("usage") or self.usage
        self.who = self.who or wire.who_answers(event)
        news: list[tuple[int, str]] = []
        try:
            for choice in wire.choices_of(event, self.host):
                at = choice.get("index", 0)
                if type(at) is not int or not 0 <= at < MAX_CHOICES:
                    raise ProviderError("shape", f"{self.host} streams a choice without its index")
                news.append((at, self._hear(self.choices.setdefault(at, _Choice()), choice)))
        except ProviderError as error:
            if not self.lenient:
                raise
            self.unread = self.unread or error.message
        return news

    def _hear(self, heard: _Choice, choice: Mapping[str, Any]) -> str:
        if wire.reason_of(choice):
            heard.ended = {k: choice[k] for k in ("finish_reason", "stop_reason") if k in choice}
        delta = choice.get("delta", choice) if "delta" not in choice or choice["delta"] is not None else {}
        if not isinstance(delta, dict):
            raise ProviderError("shape", f"{self.host} streams a delta that is not an object")
        text, thought, parts = wire.said(delta, self.host)
        heard.texts.append(text)
        heard.thoughts.append(thought)
        heard.parts += [part for part in parts or () if isinstance(part, dict) and part.get("type") not in wire.SPOKEN]
        if self.extra and (extra := wire.extra_of(choice, delta)):
            wire.merge(heard.extra, extra)
        if isinstance(delta.get("function_call"), dict):
            wire.merge(heard.old_call, {"function_call": {k: v for k, v in delta["function_call"].items() if isinstance(v, str)}})
        calls = delta.get("tool_calls")
        try:
            heard.calls.take(calls if isinstance(calls, list) else ())
        except ValueError as error:
            raise ProviderError("shape", f"{self.host} streams {error}") from None
        return text

    @property
    def whole(self) -> bool:
        """Whether every choice has ended."""
        return bool(self.choices) and (self.done or all(choice.ended for choice in self.choices.values()))

    def completions(self, failed: str = "") -> dict[int, Completion]:
        """The sample of each choice. Where the stream broke off, those that had not ended say ``failed``; so does one withheld.

        Raises ProviderError where an ending is none that the protocol knows; its sample says so where this is ``lenient``.
        """
        completions = {}
        for at, heard in self.choices.items():
            message: dict[str, Any] = {"content": "".join(heard.texts), "reasoning": "".join(heard.thoughts)}
            message |= {"tool_calls": heard.calls.made, **heard.old_call}
            withheld = wire.is_withheld(heard.ended)
            ended = {"finish_reason": "length"} if withheld else heard.ended
            why = "content_filter" if withheld else "" if heard.ended or self.done else failed
            try:
                completion = wire.reply_of({"message": message, **ended}, self.usage, self.host)
            except ProviderError as error:
                if not self.lenient:
                    raise
                completion, why = wire.reply_of({"message": message}, self.usage, self.host), error.message
            more: dict[str, Any] = {"content": heard.parts} if heard.parts else {}
            more |= {"unread": self.unread} if self.unread else {}
            more |= {"extra": heard.extra} if heard.extra else {}
            if why:
                completion, more = replace(completion, stop="failed"), {**more, "failure": why}
            completions[at] = replace(completion, data={**(completion.data or {}), **more}) if more else completion
        return completions
