"""Shared by the readers of providers' conversations: matching results to calls, and placeholders for images."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.trace.message import Message, as_text, plain

Keep = Callable[[bytes], str]
"""Stores bytes in the run and returns their name (:meth:`ramify.trace.db.Run.put_blob`)."""


@dataclass
class ToolExchange:
    """Calls of tools and their results, in the order in which a conversation has them. A call may stay without its result: the
    attempt was broken off. Every fault is a UserError naming the spot."""

    waiting: dict[str, str] = field(default_factory=dict)
    """Id -> name of the calls that have no result yet."""
    done: set[str] = field(default_factory=set)
    """Ids of the calls that need no result (any more)."""

    def call(self, name: str, spot: str, key: str, waits: bool = True) -> None:
        """A call; one that does not ``wait`` is made by the provider itself and may come without its result."""
        if key in self.waiting or not key:
            why = "is that of an earlier call, which has no result yet" if key else "of the call is empty"
            raise UserError(f"{spot}: the id '{key}' {why}")
        self.done.discard(key)
        if waits:
            self.waiting[key] = name
        else:
            self.done.add(key)

    def result(self, spot: str, key: str, own: bool = False) -> None:
        """A result; ``own``: of a call that the provider made itself."""
        if key not in self.waiting and not (own and key in self.done):
            why = "is answered already" if key in self.done else f"was not made before ({nearest(key, self.waiting)})"
            raise UserError(f"{spot} is a result without a call: the call '{key}' {why}")
        self.waiting.pop(key, None)
        self.done.add(key)


def text_of(value: Mapping[str, Any], name: str, spot: str, default: str | None = None) -> str:
    """A field that must be text. Raises UserError naming ``spot`` and field."""
    found = value.get(name, default)
    if not isinstance(found, str):
        raise UserError(f"{spot}: '{name}' must be text" + ("" if name in value else ", and it is missing"))
    return found


def object_of(value: Any, spot: str) -> Mapping[str, Any]:
    """``value``, which must be an object. Raises UserError naming ``spot``."""
    if not isinstance(value, Mapping):
        raise UserError(f"{spot} is not an object")
    return value


def list_of(value: Any, spot: str) -> list[Any]:
    """``value``, which must be a list. Raises UserError naming ``spot``."""
    if not isinstance(value, list):
        raise UserError(f"{spot} must be a list")
    return value


def tool_call(key: str, name: str, arguments: Any, **about: Any) -> dict[str, Any]:
    """A call in OpenAI's form; arguments that are not text become canonical JSON."""
    return {"id": key, "type": "function", "function": {"name": name, "arguments": as_text(plain(arguments))}, **about}


def data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 data of a ``data:`` URL; None of any other."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    return head.removeprefix("data:").removesuffix(";base64") or "application/octet-stream", data


@dataclass
class Media:
    """The images and documents of one message: a placeholder each in its text, and where they are kept (``data["media"]``).

    Bytes are kept as blobs of the run, named by their content, so two images never have one placeholder.
    """

    keep: Keep
    found: dict[str, Any] = field(default_factory=dict)

    def encoded(self, kind: str, media_type: str, data: str, spot: str) -> str:
        """The placeholder of base64 ``data``. Raises UserError where it is none."""
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UserError(f"{spot}: the data of the {kind} is not a base64") from None
        blob = self.keep(raw)
        return self._put(f"[{kind}: {media_type}, {blob[:12]}]", {"type": kind, "media_type": media_type, "blob": blob})

    def named(self, kind: str, where: str, name: str) -> str:
        """The placeholder of remote content: ``where`` is "url" or "file"."""
        if where == "url" and (inline := data_url(name)) is not None:
            return self.encoded(kind, *inline, spot=f"a {kind}")
        return self._put(f"[{kind}: {name}]", {"type": kind, where: name})

    def _put(self, placeholder: str, part: dict[str, Any]) -> str:
        self.found[placeholder] = part
        return placeholder

    def data(self) -> dict[str, Any]:
        """Their entry in a message's data."""
        return {"media": dict(self.found)} if self.found else {}


def split_media(message: Message) -> Iterator[str | Mapping[str, Any]]:
    """The text of a message in pieces, and between them what its placeholders stand for."""
    media = message.data.get("media")
    known = {name: part for name, part in media.items() if isinstance(part, Mapping)} if isinstance(media, Mapping) else {}
    pieces = re.split(f"({'|'.join(map(re.escape, known))})", message.text) if known else [message.text]
    for piece in pieces:
        if piece:
            yield known.get(piece, piece)
