"""What every protocol besides chat completions is to the rest: a translation of requests, answers and streams to chats and back.

A server and a model at an endpoint know one form, OpenAI's chat completions. ``ramify.model.anthropic`` (Messages) and
``ramify.model.responses`` (Responses) turn theirs into it once, and it into theirs once.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from ramify.base.errors import UserError
from ramify.model import wire
from ramify.model.sse import StreamedCalls

Origin: TypeAlias = tuple[Any, ...]
"""Where a message of a chat stands in the request that it was read from; the protocol's own."""


@dataclass(frozen=True, slots=True)
class SpokenRequest:
    """A request of another protocol, read as a chat."""

    request: Mapping[str, Any]
    """As the client sent it."""
    fields: dict[str, Any]
    """As a request for a chat."""
    origins: tuple[Origin | None, ...] = ()
    """Where each of its messages comes from; None of one that the request does not hold."""
    ignored: tuple[str, ...] = ()
    """Fields, and tools that the provider would run, that a chat has nothing for."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message of a chat as it is now, and where it comes from, as it ``was``."""

    message: Mapping[str, Any]
    was: Mapping[str, Any] | None = None
    origin: Origin | None = None


class Telling(ABC):
    """Turns the events of a streamed chat, as they come, into those of another protocol. Of one choice, the first."""

    def __init__(self, asked: SpokenRequest, id: str) -> None:
        self.asked, self.id = asked, id
        self.usage: Mapping[str, Any] = {}
        self.finish = ""
        self.stopped: str | None = None
        self.notes: Any = None
        self.model = str(asked.fields.get("model", ""))
        self._begun = False
        self._open = ""
        self._calls = StreamedCalls()
        self._at = self._sent = 0
        self._late = ""

    def push(self, chunk: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events that ``chunk`` makes certain."""
        if isinstance(chunk.get("model"), str):
            self.model = chunk["model"]
        if not self._begun:
            self._begun = True
            yield from self.begin()
        self.usage = chunk.get("usage") or self.usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                yield from self._hear(choice)

    def _hear(self, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        text, thought, _ = wire.said(delta, "the upstream")
        for kind, piece in (("thinking", thought), ("text", text)):
            if piece and self._open == "call":  # a call that is under way is told to its end first
                self._late += piece if kind == "text" else ""
            elif piece:
                yield from self._say(kind, piece)
        pieces = delta.get("tool_calls")
        try:
            self._calls.take(pieces if isinstance(pieces, list) else ())
        except ValueError as error:
            raise UserError(f"the upstream streams {error}") from None
        yield from self._tell_calls(False)
        self.finish = wire.reason_of(choice) or self.finish
        if isinstance(choice.get("stop_reason"), str):
            self.stopped = choice["stop_reason"]
        self.notes = choice.get("ramify") or self.notes

    def end(self) -> Iterator[dict[str, Any]]:
        """The events after the last chunk."""
        if not self._begun:
            self._begun = True
            yield from self.begin()
        yield from self._tell_calls(True)
        if self._late:
            yield from self._say("text", self._late)
        yield from self._shut()
        yield from self.close()

    def _say(self, kind: str, piece: str) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._shut()
            self._open = kind
            yield from self.opened(kind, {})
        yield from self.delta(kind, piece)

    def _shut(self) -> Iterator[dict[str, Any]]:
        if self._open:
            kind, self._open = self._open, ""
            yield from self.shut(kind)

    def _tell_calls(self, last: bool) -> Iterator[dict[str, Any]]:
        """What is certain of the calls: of one after the other, since a piece of an earlier call may come late."""
        while self._at < len(self._calls.made):
            call = self._calls.made[self._at]
            arguments, more = call["function"]["arguments"], self._at + 1 < len(self._calls.made)
            if not (arguments or more or last):
                return
            if self._open != "call":
                yield from self._shut()
                self._open = "call"
                call["id"] = call["id"] or f"call_{uuid.uuid4().hex[:24]}"
                yield from self.opened("call", call)
            if arguments[self._sent :]:
                yield from self.delta("call", arguments[self._sent :])
                self._sent = len(arguments)
            if not (last or (more and wire.is_object(arguments))):
                return
            yield from self._shut()
            self._at, self._sent = self._at + 1, 0

    @abstractmethod
    def begin(self) -> Iterator[dict[str, Any]]:
        """The first events of the answer."""

    @abstractmethod
    def opened(self, kind: str, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """A block of ``kind`` (text, thinking, call) begins; ``call`` is in OpenAI's form."""

    @abstractmethod
    def delta(self, kind: str, piece: str) -> Iterator[dict[str, Any]]:
        """More of the open block: its text, or arguments as text."""

    @abstractmethod
    def shut(self, kind: str) -> Iterator[dict[str, Any]]:
        """The open block ends."""

    @abstractmethod
    def close(self) -> Iterator[dict[str, Any]]:
        """The last events of the answer."""

    @abstractmethod
    def failed(self, status: int, error: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The last events of an answer that breaks off; ``error`` as OpenAI writes it."""


class Hearing(ABC):
    """Turns the events of another protocol's stream into those of a streamed chat."""

    @abstractmethod
    def take(self, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The chunks that an event is. An event that says nothing of a reply is none."""


@dataclass
class Chunks:
    """Makes chunks of a streamed chat: what a :class:`Hearing` returns."""

    id: str = ""
    model: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    def of(self, delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
        """One chunk."""
        choice = {"index": 0, "delta": dict(delta or {}), "finish_reason": finish, **more}
        return {"id": self.id, "model": self.model, "choices": [choice]}

    def end(self, finish: str, **more: Any) -> list[dict[str, Any]]:
        """The chunks that end a reply."""
        return [self.of({}, finish, **more), {"id": self.id, "model": self.model, "choices": [], "usage": self.usage}]


class Translation(ABC):
    """One protocol. Everything here takes any JSON: what is of another shape is a UserError in requests, and in answers is passed
    over, so that who reads the chat says what is missing."""

    name: ClassVar[str]
    """The route, and what a recording calls it."""
    path: ClassVar[str]
    """Below the endpoint's address."""
    id_head: ClassVar[str]
    """What ids of its answers begin with."""
    ends: ClassVar[tuple[str, ...]]
    """Types of the events that end a stream."""

    @abstractmethod
    def read(self, request: Mapping[str, Any], native: bool = False) -> SpokenRequest:
        """A request as a chat. ``native``: it goes on as it is, and the chat is for middleware and the recording, so nothing is
        left out or refused. Raises UserError, whose sentence names the field."""

    @abstractmethod
    def write(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """A request for a chat as this protocol has it. Raises UserError where it has nothing for a part."""

    @abstractmethod
    def rewrite(self, asked: SpokenRequest, messages: Sequence[ShownMessage]) -> dict[str, Any]:
        """The fields of the request that hold its messages, now that they are ``messages``; what did not change stays as sent."""

    @abstractmethod
    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Tools in OpenAI's form as this protocol has them."""

    @abstractmethod
    def heard(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """An answer as a chat's."""

    @abstractmethod
    def told(self, answer: Mapping[str, Any], asked: SpokenRequest, id: str) -> dict[str, Any]:
        """A chat's answer as this protocol's."""

    @abstractmethod
    def content(self, answer: dict[str, Any], choice: Mapping[str, Any]) -> None:
        """Put what ``choice``, of a chat, says into an answer of this protocol instead of what it says."""

    @abstractmethod
    def hearing(self) -> Hearing:
        """For one stream."""

    @abstractmethod
    def telling(self, asked: SpokenRequest, id: str) -> Telling:
        """For one stream."""

    @abstractmethod
    def refused(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a refusal; ``error`` has message, type, param and code, as OpenAI writes them."""

    def new_id(self) -> str:
        """An id for an answer."""
        return self.id_head + uuid.uuid4().hex


def renamed(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of an answer or an event that name the model, with ``name`` instead."""
    result: dict[str, Any] = {"model": name} if "model" in value else {}
    for inside in ("message", "response"):
        if isinstance(value.get(inside), dict) and "model" in value[inside]:
            result[inside] = {**value[inside], "model": name}
    return result


def objects(value: Any, spot: str) -> list[dict[str, Any]]:
    """``value``, a list of objects. Raises UserError naming ``spot``."""
    if not isinstance(value, list):
        raise UserError(f"field '{spot}': it must be a list")
    for at, item in enumerate(value):
        if not isinstance(item, dict):
            raise UserError(f"field '{spot}[{at}]': it must be an object")
    return value


def text_in(value: Mapping[str, Any], name: str, spot: str) -> str:
    """A field that must be text. Raises UserError naming it."""
    result = value.get(name)
    if not isinstance(result, str):
        raise UserError(f"field '{spot}.{name}': it must be text" + ("" if name in value else ", and it is missing"))
    return result


def counts(usage: Any, prompt: str, sampled: str) -> tuple[int, int]:
    """Two counts of a usage, 0 where it does not say them."""
    usage = usage if isinstance(usage, Mapping) else {}
    given, written = usage.get(prompt), usage.get(sampled)
    return (given if type(given) is int else 0), (written if type(written) is int else 0)


def detail(usage: Any, group: str, name: str) -> int:
    """A count inside a usage's details, 0 where it does not say it."""
    inside = usage.get(group) if isinstance(usage, Mapping) else None
    result = inside.get(name) if isinstance(inside, Mapping) else None
    return result if type(result) is int else 0


def first_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice of a chat's answer, an empty one where there is none."""
    choices = answer.get("choices")
    return next((choice for choice in choices if isinstance(choice, dict)), {}) if isinstance(choices, list) else {}


def spoken(choice: Mapping[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
    """Text, reasoning and calls (OpenAI's form) of a whole choice of a chat."""
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    text, thought, _ = wire.said(message, "the upstream")
    return text, thought, wire.calls_in(message)


def with_text(parts: Sequence[Any], text: str, kinds: Sequence[str]) -> list[Any]:
    """``parts`` with another text: the first that holds text says it, and the others of text go. Where none did, it stands before
    the first call."""
    of_text = [at for at, part in enumerate(parts) if isinstance(part, dict) and part.get("type") in kinds]
    if of_text:
        return [{**part, "text": text} if at == of_text[0] else part for at, part in enumerate(parts) if at not in of_text[1:]]
    calls = [at for at, part in enumerate(parts) if isinstance(part, dict) and part.get("type") == "tool_use"]
    at = calls[0] if calls else len(parts)
    return [*parts[:at], {"type": kinds[0], "text": text}, *parts[at:]]
