"""Middleware on forwarded requests and answers (JSON): reads them, and writes its changes back; everything else is unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import canonical_json
from ramify.model import wire
from ramify.model.http import ProviderError
from ramify.model.middleware import Middleware, shown_by
from ramify.model.protocol import Completion, Prefix
from ramify.model.translation import ShownMessage, SpokenRequest, Translation
from ramify.trace.message import Message, plain, read_message
from ramify.web.forms import NOTES

_OTHER_FIELDS = ("model", "messages", "tools", "prompt", "stream", "stream_options", "n", "system", "input", "instructions")
"""Fields of a request that are not among :attr:`Prefix.asked`."""


# -- requests


def prompts_of(fields: Mapping[str, Any]) -> list[Any]:
    """The prompts of a request for completions: texts, or lists of token ids."""
    given = fields.get("prompt")
    several = isinstance(given, list) and bool(given) and all(isinstance(one, (str, list)) for one in given)
    return given if several else [given]  # type: ignore[return-value]


def prefixes(route: str, fields: Mapping[str, Any]) -> list[Prefix]:
    """What a request asks to be continued, also where it is not what the protocol says: the upstream is who refuses that."""
    rest = _rest(fields)
    if route == "chat":
        given, tools = fields.get("messages"), fields.get("tools")
        messages = tuple(map(_message, given if isinstance(given, list) else [given]))
        offered = tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
        return [Prefix(messages=messages, tools=offered, asked=rest)]
    return [_prompt(one, rest) for one in prompts_of(fields)]


def _rest(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _OTHER_FIELDS}


def read_spoken(
    translation: Translation, fields: Mapping[str, Any], before: Sequence[Any], strict: bool
) -> tuple[SpokenRequest, Prefix]:
    """A request of another protocol that is forwarded as it is, and what it asks to be continued; ``before`` are the items of the
    responses that it continues. Where it is not what the protocol says the upstream refuses it, unless ``strict``: UserError."""
    whole = {**fields, "input": [*before, *input_of(fields)]} if before else fields
    try:
        asked = translation.read(whole, native=True)
    except UserError:
        if strict:
            raise
        return SpokenRequest(fields, {"messages": []}), Prefix(
            messages=(Message("user", canonical_json(plain(fields))),), asked=_rest(fields)
        )
    if before:
        asked = replace(asked, request=fields, origins=tuple(_after(origin, len(before)) for origin in asked.origins))
    return asked, Prefix(
        messages=tuple(map(_message, asked.fields["messages"])), tools=tuple(asked.fields.get("tools", ())), asked=_rest(fields)
    )


def input_of(fields: Mapping[str, Any]) -> list[Any]:
    """The items of a request for a response, also where it is one text."""
    given = fields.get("input")
    return given if isinstance(given, list) else [] if given is None else [{"role": "user", "content": given}]


def _after(origin: tuple[Any, ...] | None, count: int) -> tuple[Any, ...] | None:
    """Where a message stands in a request that does not repeat the first ``count`` items; None where it is among these."""
    if origin is None or origin == (-1,):
        return origin
    return tuple(at - count for at in origin if at >= count) or None


def _prompt(one: Any, rest: Mapping[str, Any]) -> Prefix:
    if isinstance(one, list) and one and all(type(token) is int and 0 <= token < 1 << 31 for token in one):
        return Prefix(np.array(one, np.int32), asked=rest)
    return Prefix(messages=(Message("user", one if isinstance(one, str) else canonical_json(plain(one))),), asked=rest)


def _message(value: Any) -> Message:
    try:
        return replace(read_message(value, "a message"), sent=value)
    except UserError:
        return Message("user", canonical_json(plain(value)), {}, value)


async def edited(
    layers: Sequence[Middleware], route: str, fields: Mapping[str, Any], given: Sequence[Prefix]
) -> tuple[list[list[Prefix]], dict[str, Any]]:
    """What each layer was given of each prompt (:func:`ramify.model.middleware.shown_by`),
    and the fields of the request that they changed.

    Raises NeedsError where a prompt of /v1/completions cannot hold what a layer puts into a chat, and what the layers raise.
    """
    if route == "chat" and not isinstance(fields.get("messages"), list):
        raise UserError("field 'messages': it must be a list of messages")
    seen = [await shown_by(layers, prefix) for prefix in given]
    changed: dict[str, Any] = {}
    for first, last in ((stages[0], stages[-1]) for stages in seen):
        changed |= _asked_otherwise(first, last)
        if route == "chat":
            if not _same(first.messages, last.messages):
                changed["messages"] = [_sent(message) for message in last.messages]
            if not _same(first.tools, last.tools):
                changed["tools"] = [dict(tool) for tool in last.tools]
    if route == "completions":
        were = prompts_of(fields)
        shown = [_continued(layers, stages, one) for stages, one in zip(seen, were, strict=True)]
        if not _same(were, shown):
            changed["prompt"] = shown if len(shown) > 1 else shown[0]
    return seen, changed


def _asked_otherwise(first: Prefix, last: Prefix) -> dict[str, Any]:
    if last.asked is first.asked:
        return {}
    changed = {name: value for name, value in last.asked.items() if first.asked.get(name) != value}
    return changed | dict.fromkeys(first.asked.keys() - last.asked.keys())  # null is as good as absent


async def edited_spoken(
    layers: Sequence[Middleware], translation: Translation, asked: SpokenRequest, given: Prefix
) -> tuple[list[list[Prefix]], dict[str, Any]]:
    """As :func:`edited`, of a request of another protocol: a message that no layer changed stays as the client sent it, in all
    that a chat has no words for (``cache_control``, signatures, ids)."""
    stages = await shown_by(layers, given)
    first, last = stages[0], stages[-1]
    changed = _asked_otherwise(first, last)
    if not _same(first.messages, last.messages):
        spots = {id(message.sent): at for at, message in enumerate(first.messages)}
        shown = []
        for message in last.messages:
            at = None if message.sent is None else spots.get(id(message.sent))
            origin = None if at is None else asked.origins[at]
            shown.append(ShownMessage(_sent(message), None if at is None else message.sent, origin))
        changed |= translation.rewrite(asked, shown)
    if not _same(first.tools, last.tools):
        changed["tools"] = translation.tools(last.tools)
    return [stages], changed


def _same(first: Sequence[Any], last: Sequence[Any]) -> bool:
    return len(first) == len(last) and all(a is b for a, b in zip(first, last, strict=True))


def _sent(message: Message) -> Any:
    """A message as it goes to the upstream. One that a client sent keeps what else it says; one that is new is what it says."""
    data = message.data
    if message.sent is None:
        return {"role": message.role, "content": wire.clean(message.text), **data}
    if not isinstance(message.sent, Mapping):
        return message.sent
    was, found = _message(message.sent), dict(message.sent)
    if message.role != was.role:
        found["role"] = message.role
    if message.text != was.text:
        found["content"] = _content(found.get("content"), wire.clean(message.text))
    for name in {**was.data, **data}:
        if name != "content" and was.data.get(name) != data.get(name):
            found[name] = data.get(name)
    return found


def _content(content: Any, text: str) -> Any:
    """``content`` with another text: of a list of parts the first text part says it, and the others of text go."""
    if not isinstance(content, list):
        return text
    found: list[Any] = []
    placed = False
    for part in content:
        if not isinstance(part, str) and part.get("type", "text") != "text":
            found.append(part)
        elif not placed:
            placed = True
            found.append({**part, "text": text} if isinstance(part, dict) else text)
    return found if placed else [{"type": "text", "text": text}, *found]


def _continued(layers: Sequence[Middleware], stages: Sequence[Prefix], given: Any) -> Any:
    """The prompt that is shown instead of ``given``."""
    for layer, shown in zip(layers, stages[1:], strict=True):
        if (shown.tokens is None) != (stages[0].tokens is None) or (shown.tokens is None and len(shown.messages) != 1):
            raise NeedsError(
                f"middleware '{layer.name}' does its work on the messages of a chat, and a prompt of /v1/completions has none: "
                "use /v1/chat/completions"
            )
    first, last = stages[0], stages[-1]
    if last.tokens is not None:
        return given if last.tokens is first.tokens else last.tokens.tolist()
    return given if last.messages[0].text == first.messages[0].text else last.messages[0].text


# -- answers


def read_choice(route: str, choice: Mapping[str, Any], usage: Any, host: str) -> Completion:
    """A choice of a whole answer in the form that middleware and the run get. Raises ProviderError where it is malformed.

    Fields that a sample lacks are in ``data["extra"]``: log-probs, annotations, audio, ...
    """
    message = choice.get("message") if route == "chat" else {"content": choice["text"]} if "text" in choice else None
    try:
        completion = wire.reply_of({**choice, "message": message}, usage, host)
    except ProviderError as error:
        if error.kind != "filtered":
            raise
        completion = Completion("", "failed", data={"failure": str(error)})
    extra = wire.extra_of(choice, message) if isinstance(message, dict) else {}
    return replace(completion, data={**(completion.data or {}), "extra": extra}) if extra else completion


def write_choice(route: str, choice: dict[str, Any], was: Completion, now: Completion) -> None:
    """Write into a choice of a whole answer what middleware changed of its sample."""
    if now is was:
        return
    target = choice["message"] if route == "chat" else choice
    if now.text != was.text:
        name = "text" if route == "completions" else "content" if target.get("content") is not None else "refusal"
        name = name if target.get(name) is not None else "content"
        target[name] = _shown_text(choice, was, now)
        _forget_logprobs(choice)
    for name, value in _changes(target, was, now):
        target[name] = value
    _add_notes(choice, now)


def write_spoken(
    translation: Translation, answer: dict[str, Any], choice: dict[str, Any], was: Completion, now: Completion
) -> None:
    """As :func:`write_choice`, into the answer of another protocol, of which ``choice`` is what it says as a chat."""
    if now is was:
        return
    write_choice("chat", choice, was, now)
    if now.text != was.text or any(_changes(choice["message"], was, now)):
        translation.content(answer, choice)
    if "ramify" in choice:
        answer["ramify"] = choice["ramify"]


def _shown_text(choice: Mapping[str, Any], was: Completion, now: Completion) -> str:
    """A sample says the stop text that ended it; a reply does not."""
    stop = choice.get("stop_reason")
    return now.text.removesuffix(stop) if isinstance(stop, str) and was.stop == "stop" else now.text


def _changes(target: Mapping[str, Any], was: Completion, now: Completion) -> Iterator[tuple[str, Any]]:
    """Fields of a message whose value is another now."""
    before, after = was.data or {}, now.data or {}
    if after.get("tool_calls") != before.get("tool_calls"):
        yield "tool_calls", after.get("tool_calls")
    if after.get("reasoning") != before.get("reasoning"):
        yield next((name for name in wire.THOUGHTS if name in target), wire.THOUGHTS[0]), after.get("reasoning")


def _forget_logprobs(choice: dict[str, Any]) -> None:
    """They tell of tokens that are not in the reply any more."""
    if choice.get("logprobs") is not None:
        choice["logprobs"] = None


def _add_notes(choice: dict[str, Any], now: Completion) -> None:
    """What middleware has to say."""
    data = now.data or {}
    if notes := {name: data[name] for name in NOTES if name in data}:
        own = choice.get("ramify")
        choice["ramify"] = {**(own if isinstance(own, dict) else {}), **notes}


class Held:
    """Events of a stream that wait until middleware has seen the whole reply:
    with ``rewrites`` all, else those from a choice's last one on."""

    def __init__(self, rewrites: bool) -> None:
        self.rewrites = rewrites
        self.events: list[dict[str, Any]] = []
        self._ended: set[Any] = set()

    def takes(self, event: dict[str, Any]) -> bool:
        """Whether ``event`` waits; it is kept then."""
        choices = event.get("choices") or ()
        self._ended |= {choice.get("index", 0) for choice in choices if wire.reason_of(choice)}
        waits = self.rewrites or (
            any(choice.get("index", 0) in self._ended for choice in choices) if choices else bool(self.events)
        )
        if waits:
            self.events.append(event)
        return waits

    def released(self, route: str, was: Mapping[int, Completion], now: Mapping[int, Completion]) -> list[dict[str, Any]]:
        """The events that waited, with what middleware made of each choice."""
        for at, completion in now.items():
            mine = [choice for event in self.events for choice in event.get("choices") or () if choice.get("index", 0) == at]
            if completion is was[at] or not mine:
                continue
            if self.rewrites:
                _rewrite(route, mine, was[at], completion)
            last = next((choice for choice in reversed(mine) if wire.reason_of(choice)), mine[-1])
            _add_notes(last, completion)
        return self.events


class HeldSpoken:
    """As :class:`Held`, of a stream of another protocol."""

    def __init__(self, rewrites: bool, translation: Translation, asked: SpokenRequest) -> None:
        self.rewrites, self.translation, self.asked = rewrites, translation, asked
        self.events: list[dict[str, Any]] = []
        self.id = ""

    def takes(self, event: dict[str, Any]) -> bool:
        """Whether ``event`` waits; it is kept then."""
        inside = event.get("message") or event.get("response")
        if not self.id and isinstance(inside, dict):
            self.id = str(inside.get("id") or "")
        waits = self.rewrites or bool(self.events) or event.get("type") in ("message_delta", *self.translation.ends)
        if waits:
            self.events.append(event)
        return waits

    def released(self, route: str, was: Mapping[int, Completion], now: Mapping[int, Completion]) -> list[dict[str, Any]]:
        """The events that waited, with what middleware made of the reply; told anew where it changed what it says."""
        if not now or now[0] is was[0]:
            return self.events
        choice: dict[str, Any] = {"index": 0}
        _add_notes(choice, now[0])
        if self.rewrites and (now[0].text != was[0].text or any(_changes({}, was[0], now[0]))):
            return list(self._anew(now[0], choice))
        last = next((e for e in self.events if e.get("type") in ("message_delta", *self.translation.ends)), None)
        if last is not None and "ramify" in choice:
            (last["response"] if isinstance(last.get("response"), dict) else last)["ramify"] = choice["ramify"]
        return self.events

    def _anew(self, now: Completion, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        data = now.data or {}
        calls = [{"index": at, **call} for at, call in enumerate(data.get("tool_calls") or ())]
        delta = {"reasoning_content": data.get("reasoning"), "content": now.text, "tool_calls": calls}
        finish = "length" if now.stop == "length" else "tool_calls" if calls else "stop"
        telling = self.translation.telling(self.asked, self.id)
        usage = data.get("usage", {})
        usage = {**usage, "prompt_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)}}
        chunk = {"choices": [{**choice, "delta": delta, "finish_reason": finish}], "usage": usage}
        yield from telling.push(chunk)
        yield from telling.end()


def _rewrite(route: str, pieces: Sequence[dict[str, Any]], was: Completion, now: Completion) -> None:
    """Put what changed into the first piece that tells of it (else the last), and take it out of the others."""
    targets = [piece if route == "completions" else _delta(piece) for piece in pieces]

    def put(names: Iterable[str], value: Any) -> None:
        telling = [(target, name) for target in targets for name in names if target.get(name)]
        spot, name = telling[0] if telling else (targets[-1], next(iter(names)))
        for target, other in telling:
            target.pop(other) if route == "chat" else target.update({other: ""})
        spot[name] = value

    if now.text != was.text:
        ended = next((piece for piece in pieces if piece.get("stop_reason")), {})
        put(("text",) if route == "completions" else ("content", "refusal"), _shown_text(ended, was, now))
        for piece in pieces:
            _forget_logprobs(piece)
    for name, value in _changes({name: "" for target in targets for name in target}, was, now):
        put((name,), [{"index": at, **call} for at, call in enumerate(value or ())] if name == "tool_calls" else value)


def _delta(piece: dict[str, Any]) -> dict[str, Any]:
    """The delta of a piece, put there where it has none."""
    if not isinstance(piece.get("delta"), dict):
        piece["delta"] = {}
    found: dict[str, Any] = piece["delta"]
    return found
