"""What an agent was shown, as parts (tools, messages, JSON items, paragraphs, lines, sentences), and the same without some.

A leaf is left out in one of two ways, so that an effect of removing as such is not taken for the part's own: deleted, or replaced
by filler that says nothing. A message never vanishes (calls and their results stay paired, roles stay in turn), but for a system
message, and a tool goes as a whole either way.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.trace.message import Message
from ramify.trace.segment import sentences

NOTHING = "(empty)"
"""What a message says of which everything was deleted."""
FILLER = ("There is nothing to add here.", "This line was left as it is.", "No further remark.")
"""What replaces a leaf, by turns."""
_WIDE = 12
"""More parts than these on one level are put into groups."""
_SHORT = 2
"""A text of fewer characters is not a part."""


@dataclass(frozen=True, slots=True)
class ContextPart:
    """A part: where it stands, its text, the leaves it is made of, and the parts in it by number."""

    where: str
    text: str
    role: str
    """tool (a schema), or the message's role: system, user, assistant, tool result."""
    leaves: tuple[int, ...]
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Leaf:
    message: int | None
    """None: a tool."""
    tool: str = ""
    path: tuple[str | int, ...] | None = None
    """Inside a message that is JSON."""
    span: tuple[int, int] | None = None
    """Characters of the message, or of the text at ``path``; None: all of it."""


@dataclass(frozen=True)
class ContextParts:
    """The parts of a prompt. ``top`` are the messages and the tools as one."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    parts: tuple[ContextPart, ...]
    top: tuple[int, ...]
    _leaves: tuple[_Leaf, ...] = field(repr=False, default=())

    @property
    def size(self) -> int:
        """How many leaves."""
        return len(self._leaves)

    def texts(self, left_out: Collection[int], filler: bool) -> dict[int, str | None]:
        """Message number -> what it says without the leaves ``left_out``; None: it is left out. Only those that change."""
        by_message: dict[int, list[int]] = {}
        for leaf in sorted(left_out):
            at = self._leaves[leaf].message
            if at is not None:
                by_message.setdefault(at, []).append(leaf)
        whole = {at: sum(entry.message == at for entry in self._leaves) for at in by_message}
        return {
            at: self._all(at, filler) if len(leaves) == whole[at] else self._some(at, leaves, filler)
            for at, leaves in by_message.items()
        }

    def without(self, messages: Sequence[Message], left_out: Collection[int], filler: bool) -> tuple[Message, ...]:
        """``messages``, of which the first are those that were taken apart, without the leaves ``left_out``."""
        texts = self.texts(left_out, filler)
        changed = [_said(message, texts.get(at, message.text)) for at, message in enumerate(messages)]
        return tuple(message for message in changed if message is not None)

    def tools_left(self, left_out: Collection[int]) -> frozenset[str]:
        """Names of the tools that are left out."""
        return frozenset(self._leaves[leaf].tool for leaf in left_out if self._leaves[leaf].message is None)

    def _all(self, at: int, filler: bool) -> str | None:
        if self.messages[at].role == "system" and not filler:
            return None
        return FILLER[at % len(FILLER)] if filler else NOTHING

    def _some(self, at: int, leaves: Sequence[int], filler: bool) -> str:
        text = self.messages[at].text
        chosen = [(leaf, self._leaves[leaf]) for leaf in leaves]
        if any(entry.path is not None for _, entry in chosen):
            return _without_items(text, chosen, filler)
        spans = [(*entry.span, FILLER[leaf % len(FILLER)] if filler else "") for leaf, entry in chosen if entry.span is not None]
        return _cut(text, spans) or NOTHING


def _said(message: Message, text: str | None) -> Message | None:
    if text is None:
        return None
    return message if text == message.text else replace(message, text=text, sent=None)


def _cut(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    """``text`` without ``spans``, or with what replaces each; space around a span stays where that is something."""
    for start, end, instead in sorted(spans, reverse=True):
        gone = text[start:end]
        if instead:
            instead = gone[: len(gone) - len(gone.lstrip())] + instead + gone[len(gone.rstrip()) :]
        text = text[:start] + instead + text[end:]
    return text.strip("\n ") if not text.strip() else text


def _without_items(text: str, leaves: Sequence[tuple[int, _Leaf]], filler: bool) -> str:
    value = copy.deepcopy(json.loads(text))
    cuts: dict[tuple[str | int, ...], list[tuple[int, int, str]]] = {}
    gone: list[tuple[tuple[str | int, ...], int]] = []
    for leaf, entry in leaves:
        path = entry.path or ()
        if entry.span is not None:
            cuts.setdefault(path, []).append((*entry.span, FILLER[leaf % len(FILLER)] if filler else ""))
        else:
            gone.append((path, leaf))
    for path, spans in cuts.items():
        _put(value, path, _cut(_get(value, path), spans))
    for path, leaf in sorted(
        gone, key=lambda pair: [(isinstance(key, int), key if isinstance(key, int) else 0) for key in pair[0]], reverse=True
    ):
        if filler:
            old = _get(value, path)
            _put(value, path, FILLER[leaf % len(FILLER)] if isinstance(old, str) else None)
        else:
            del _get(value, path[:-1])[path[-1]]
    indent = 2 if "\n" in text.strip() else None
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _get(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: Sequence[str | int], new: Any) -> None:
    _get(value, path[:-1])[path[-1]] = new


# --- taking apart -----------------------------------------------------------------------------------------------------


class _Taken:
    """Parts as they are taken."""

    def __init__(self) -> None:
        self.parts: list[ContextPart] = []
        self.leaves: list[_Leaf] = []

    def leaf(self, where: str, text: str, role: str, leaf: _Leaf) -> int:
        self.leaves.append(leaf)
        self.parts.append(ContextPart(where, text, role, (len(self.leaves) - 1,)))
        return len(self.parts) - 1

    def group(self, where: str, text: str, role: str, children: Sequence[int]) -> int:
        """A part of several; of very many, groups of them between. A part of one is that one."""
        if len(children) == 1:
            return children[0]
        if len(children) > _WIDE:
            each = -(-len(children) // max(2, round(len(children) ** 0.5)))
            inner = []
            for start in range(0, len(children), each):
                some = children[start : start + each]
                first, last = (self.parts[entry].where.removeprefix(where).strip(" ,") for entry in (some[0], some[-1]))
                said = " ".join(self.parts[entry].text.strip() for entry in some)
                inner.append(self.group(f"{where}, {first} to {last}", said, role, some) if len(some) > 1 else some[0])
            children = inner
        leaves = tuple(leaf for child in children for leaf in self.parts[child].leaves)
        self.parts.append(ContextPart(where, text, role, leaves, tuple(children)))
        return len(self.parts) - 1


def take_apart(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), kept: Collection[str] = ()) -> ContextParts:
    """The parts of a prompt. Tools in ``kept`` (those that the step calls) are no parts: without them it could not be taken."""
    taken, top = _Taken(), []
    schemas = [(name, tool) for tool in tools if (name := tool_name(tool)) and name not in kept]
    named = [
        taken.leaf(f"the tool {name}", str(_about(tool).get("description") or name), "tool schema", _Leaf(None, name))
        for name, tool in schemas
    ]
    if named:
        top.append(taken.group("the tools", ", ".join(name for name, _ in schemas), "tool schema", named))
    counts: dict[str, int] = {}
    for at, message in enumerate(messages):
        if len(message.text.strip()) < _SHORT:
            continue
        role = "tool result" if message.role == "tool" else message.role
        counts[role] = counts.get(role, 0) + 1
        where = "the system prompt" if role == "system" and counts[role] == 1 else f"{role} {counts[role]}"
        top.append(_message(taken, where, role, at, message.text))
    return ContextParts(tuple(messages), tuple(name for name, _ in schemas), tuple(taken.parts), tuple(top), tuple(taken.leaves))


def tool_name(tool: Mapping[str, Any]) -> str:
    """The name of a tool's schema, in OpenAI's or Anthropic's form; "" where it has none."""
    return str(_about(tool).get("name") or "")


def _about(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _message(taken: _Taken, where: str, role: str, at: int, text: str) -> int:
    value = _json(text)
    if value is not None:
        return _item(taken, where, text, role, at, (), value)
    return _text(taken, where, text, role, _Leaf(at), 0)


def _json(text: str) -> Any:
    """The list or object of several items that a text is; None where it is none."""
    if text.strip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list | dict) and value else None


def _item(taken: _Taken, where: str, text: str, role: str, at: int, path: tuple[str | int, ...], value: Any) -> int:
    """An item of JSON: its own items, the sentences of a long text, or a leaf."""
    if isinstance(value, list | dict) and value:
        items: Iterator[tuple[str | int, Any]] = iter(value.items() if isinstance(value, dict) else enumerate(value))
        children = [
            _item(
                taken,
                f"{where}{_key(key)}",
                item if isinstance(item, str) else json.dumps(item, ensure_ascii=False),
                role,
                at,
                (*path, key),
                item,
            )
            for key, item in items
        ]
        return taken.group(where, text, role, children)
    if isinstance(value, str) and path:
        return _text(taken, where, value, role, _Leaf(at, path=path), 0)
    return taken.leaf(where, text, role, _Leaf(at, path=path))


def _key(key: str | int) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def _text(taken: _Taken, where: str, text: str, role: str, whole: _Leaf, start: int) -> int:
    """Paragraphs, else lines, else sentences of a text; or a leaf."""
    unit, spans = _split(text)
    if len(spans) < 2:
        span = None if start == 0 and whole.path is not None and not whole.span else (start, start + len(text))
        return taken.leaf(where, text, role, replace(whole, span=span))
    children = [
        _text(taken, f"{where}, {unit} {number}", text[a:b], role, replace(whole, span=(0, 0)), start + a)
        for number, (a, b) in enumerate(spans, 1)
    ]
    return taken.group(where, text, role, children)


def _split(text: str) -> tuple[str, list[tuple[int, int]]]:
    for unit in ("paragraph", "line", "sentence"):
        if unit == "sentence":
            spans = sentences(text, "stops")
        else:
            spans, at = [], 0
            for piece in text.split("\n\n" if unit == "paragraph" else "\n"):
                spans.append((at, at + len(piece)))
                at += len(piece) + (2 if unit == "paragraph" else 1)
            spans = [(a, b) for a, b in spans if len(text[a:b].strip()) >= _SHORT]
        if len(spans) > 1:
            return unit, spans
    return "", []
