"""Edits of a fork: one change, as one small JSON object.

In the agent's message, at a token:

- ``{"append": "text"}`` or ``{"append_tokens": [ids]}``: the message continues with this, then with the agent's own words;
- ``{"sentence": {"at": 2, "text": "..."}}``: this replaces its sentence 2 (from 0) and all after it; without ``text``
  sentence 2 is sampled anew. ``"by"`` says what a sentence is (prose, stops, lines);
- ``{"ban": ["text", ...]}`` or ``{"ban_tokens": [ids]}``: the next token must not be (the first token of) any of these;
- ``{"replace": "text"}``: the whole message is this.

At an observation: ``{"replace": "text"}``: what the agent sees (a tool's result) is this; the environment stays as it was.

Anywhere, in what the agent is shown from there on:

- ``{"insert": {"role": "user", "text": "..."}}``: one more message, before its next reply;
- ``{"rule": "text"}``: the system message is this; or ``{"rule": {"add": "text"}}`` (at its end),
  ``{"rule": {"first": "text"}}``, ``{"rule": {"remove": "text"}}``, ``{"rule": {"replace": ["old", "new"]}}``;
- ``{"history": {"message": 3, "text": "..."}}``: message 3 of what is shown (from 0) is this; null leaves it out; or
  ``{"history": {"message": 3, "replace": ["old", "new"]}}``;
- ``{"tool": {"name": "pay", "description": "..."}}``: the description of a tool is this, of a model that takes messages;
- ``{"shown": {"replace": ["old", "new"]}}``: wherever the agent is shown the one text, but for its own replies, it says the
  other (a file that it has read);
- ``{"state": {"layer": 2, "vector": [...], "start": -1, "stop": 0, "replace": false}}``: for the reply sampled there the vector
  is added to (or put instead of) the hidden state at the positions, counted from the first sampled token;
  without ``stop`` to its end.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.base.ids import json_hash
from ramify.model.chat import ChatTemplate
from ramify.model.laid import said
from ramify.model.protocol import Prefix
from ramify.trace.context import tokens_of
from ramify.trace.message import Message
from ramify.trace.node import Insert
from ramify.trace.path import Part, by_message, message_of

EDITS: dict[str, tuple[type, ...]] = {
    "append": (str,),
    "append_tokens": (list,),
    "replace": (str,),
    "ban": (list,),
    "ban_tokens": (list,),
    "sentence": (dict,),
    "insert": (dict,),
    "rule": (str, dict),
    "history": (dict,),
    "tool": (dict,),
    "shown": (dict,),
    "state": (dict,),
}
SHOWN = ("rule", "history")
"""Edits of what is shown that leave the history as it was."""
SENT = ("tool", "shown")
"""Edits of what is sent, at the first sample and at all later ones."""
_LARGEST = 3.4e38  # of a float32
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "sentence": {
        "at": lambda v: type(v) is int and v >= 0,
        "text": lambda v: v is None or isinstance(v, str),
        "by": lambda v: v in ("prose", "stops", "lines"),
    },
    "insert": {"role": lambda v: v in ("user", "system", "tool"), "text": lambda v: isinstance(v, str) and v != ""},
    "rule": {
        "add": lambda v: isinstance(v, str) and v != "",
        "first": lambda v: isinstance(v, str) and v != "",
        "remove": lambda v: isinstance(v, str) and v != "",
        "replace": lambda v: _pair(v),
    },
    "history": {
        "message": lambda v: type(v) is int and v >= 0,
        "text": lambda v: v is None or (isinstance(v, str) and v != ""),
        "replace": lambda v: _pair(v),
    },
    "tool": {"name": lambda v: isinstance(v, str) and v != "", "description": lambda v: isinstance(v, str)},
    "shown": {"replace": lambda v: _pair(v)},
    "state": {
        "layer": lambda v: type(v) is int and v >= 0,
        "vector": lambda v: isinstance(v, list) and v != [] and all(type(x) in (int, float) and abs(x) <= _LARGEST for x in v),
        "start": lambda v: type(v) is int,
        "stop": lambda v: v is None or type(v) is int,
        "replace": lambda v: isinstance(v, bool),
    },
}
_NEEDED = {
    "sentence": ("at",),
    "insert": ("role", "text"),
    "rule": (),
    "history": ("message",),
    "tool": ("name", "description"),
    "shown": ("replace",),
    "state": ("layer", "vector"),
}
_ONE_OF = {"rule": ("add", "first", "remove", "replace"), "history": ("text", "replace")}


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value) and value[0] != ""


def check_edit(edit: Any) -> dict[str, Any] | None:
    """An edit as read from JSON, checked. Raises UserError in one sentence."""
    if edit is None:
        return None
    if not isinstance(edit, dict) or len(edit) != 1:
        raise UserError(f"an edit is one JSON object with one key out of {', '.join(EDITS)}")
    ((kind, value),) = edit.items()
    if kind not in EDITS:
        raise UserError(f"unknown edit '{kind}' ({nearest(kind, EDITS)})")
    inner = {"append_tokens": int, "ban_tokens": int, "ban": str}.get(kind)
    wrong = inner is not None and isinstance(value, list) and not all(type(v) is inner and v != "" for v in value)
    wrong = wrong or (inner is int and not all(0 <= v < 1 << 31 for v in value))
    if not isinstance(value, EDITS[kind]) or not value or wrong:
        what = (
            "a non-empty text" if inner is None else f"a non-empty list of {'token ids' if inner is int else 'non-empty texts'}"
        )
        what = f"an object with {', '.join(_FIELDS[kind])}" if kind in _FIELDS else what
        raise UserError(f"edit '{kind}' takes {what}")
    if isinstance(value, dict):
        _check_fields(kind, value)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"edit '{kind}' holds a lone surrogate, which is not valid text") from None
    return edit


def _check_fields(kind: str, value: dict[str, Any]) -> None:
    known = _FIELDS[kind]
    for name, given in value.items():
        if name not in known:
            raise UserError(f"edit '{kind}' has no field '{name}' ({nearest(str(name), known)})")
        if not known[name](given):
            raise UserError(f"edit '{kind}': the field '{name}' cannot be {json.dumps(given)[:60]}")
    for name in _NEEDED[kind]:
        if name not in value:
            raise UserError(f"edit '{kind}' lacks the field '{name}'")
    if kind in _ONE_OF and len(set(_ONE_OF[kind]) & set(value)) != 1:
        raise UserError(f"edit '{kind}' takes one of {', '.join(_ONE_OF[kind])}")


@dataclass(frozen=True)
class Change:
    """The change at the first sample of a fork. ``ban``: tokens excluded there; ``state``: a hidden-state edit."""

    ban: tuple[int, ...] = ()
    rewrite: Callable[[list[Part]], list[Part]] | None = None
    """The changed prompt; None where it stays as it was."""
    state: Mapping[str, Any] | None = None
    shown: Callable[[Prefix], Prefix] | None = None
    """What a model that takes messages is sent instead, at this sample and at all later ones of the attempt."""
    name: str = ""
    """What ``shown`` does, as kept with the provenance."""

    def stored(self) -> dict[str, Any] | None:
        """The hidden-state edit as kept with the provenance: its place and the hash of its vector; or what is shown."""
        if self.shown is not None:
            return {"shown": self.name}
        return None if self.state is None else {**self.state, "vector": json_hash(self.state["vector"])}


def taps_of(state: Mapping[str, Any], prompt: int) -> Any:
    """A ``state`` edit as :class:`ramify.engine.taps.Taps` of a row whose first ``prompt`` tokens are given."""
    import numpy as np

    from ramify.engine.taps import Edit, Taps

    start = max(0, prompt + state.get("start", -1))
    stop = state.get("stop")
    vector = np.asarray(state["vector"], np.float32)
    return Taps(
        edits=(Edit(state["layer"], start, vector, None if stop is None else max(0, prompt + stop), bool(state.get("replace"))),)
    )


def rewriting(edit: Mapping[str, Any], template: ChatTemplate | None) -> Callable[[list[Part]], list[Part]]:
    """How a ``rule`` or ``history`` edit changes the prompt.
    The function raises UserError where the message or text is not there."""

    def rewrite(parts: list[Part]) -> list[Part]:
        groups = by_message(parts)
        messages = [message_of(group) for group in groups]
        if "rule" in edit:
            has = bool(messages) and messages[0].role == "system"
            text = _ruled(edit["rule"], messages[0].text if has else "")
            return _put(groups, messages, 0 if has else None, "system", text, template)
        change, at = edit["history"], edit["history"]["message"]
        check_history(change, messages)
        text = _swapped(change["replace"], messages[at].text, f"message {at}") if "replace" in change else change["text"]
        return _put(groups, messages, at, messages[at].role, text, template)

    return rewrite


def check_history(change: Mapping[str, Any], messages: Sequence[Message]) -> None:
    """Raises UserError where a prompt of ``messages`` has not the one that a ``history`` edit changes, or needs it."""
    at, last = change["message"], len(messages) - 1 - bool(messages and messages[-1].role == "assistant")
    if at > last or (at == last and change.get("text", "") is None):
        raise UserError(f"message {at} of the prompt cannot be changed: it has messages 0 to {last}, and the last stays")


def _ruled(rule: Any, old: str) -> str | None:
    if isinstance(rule, str):
        return rule
    if "add" in rule:
        return f"{old}\n{rule['add']}" if old else str(rule["add"])
    if "first" in rule:
        return f"{rule['first']}\n{old}" if old else str(rule["first"])
    return _swapped(rule.get("replace", [rule.get("remove", ""), ""]), old, "the system message").strip() or None


def _swapped(pair: Sequence[str], text: str, where: str) -> str:
    old, new = pair
    if old not in text:
        raise UserError(f"{where} does not hold {old[:60]!r}")
    return text.replace(old, new)


def _put(
    groups: list[list[Part]], messages: list[Message], at: int | None, role: str, text: str | None, template: ChatTemplate | None
) -> list[Part]:
    """The messages with number ``at`` (None: a new first one) saying ``text``, or left out;
    laid out anew where a neighbour changed."""
    rest = 0 if at is None else at + 1
    before = messages[at - 1].role if at else ""
    shown = [part for group in groups[: rest - 1 if at is not None else 0] for part in group]
    if text is not None:
        shown.append(_rendered(role, text, before, template))
    after = role if text is not None else before
    was = "" if at is None else messages[at].role
    for i in range(rest, len(groups)):
        group = groups[i]
        if i == rest and after != was and template is not None and messages[i].role != "assistant":
            fresh = _rendered(messages[i].role, messages[i].text, after, template)
            tokens = tokens_of(group)
            group = group if tokens is not None and tokens.tolist() == list(fresh.tokens or ()) else [fresh]
        shown += group
    return shown


def _rendered(role: str, text: str, after: str, template: ChatTemplate | None) -> Insert:
    if template is None:
        return Insert(text, None, role)
    tokens, _, text = template.render(role, text, after)
    return Insert(text, tuple(tokens), role)


def saying(texts: Mapping[int, str | None], template: ChatTemplate | None) -> Callable[[list[Part]], list[Part]]:
    """How a prompt changes whose messages say ``texts``, by their number; None leaves one out."""

    def rewrite(parts: list[Part]) -> list[Part]:
        for at in sorted(texts, reverse=True):
            groups = by_message(parts)
            messages = [message_of(group) for group in groups]
            parts = _put(groups, messages, at, messages[at].role, texts[at], template)
        return parts

    return rewrite


def sending(edit: Mapping[str, Any], about: Sequence[tuple[Message, int]] = ()) -> Callable[[Prefix], Prefix]:
    """How a ``tool``, ``shown``, ``rule`` or ``history`` edit changes what a model that takes messages is sent. What the edit is
    about need not be there; a ``history`` edit is ``about`` some messages, each with how many before it say the same."""
    ((kind, value),) = edit.items()
    if kind == "history":
        if "replace" in value:
            _swapped(value["replace"], "\n".join(one.text for one, _ in about), f"message {value['message']}")
            texts: list[str | None] = [one.text.replace(*value["replace"]) for one, _ in about]
        else:
            texts = [value["text"], *[None] * (len(about) - 1)]
        return lambda prefix: replace(prefix, messages=_told(prefix.messages, about, texts))
    if kind == "shown":
        old, new = value["replace"]
        pairs = [(old, new), (json.dumps(old)[1:-1], json.dumps(new)[1:-1])]  # the second: in a result that is JSON
        return lambda prefix: replace(prefix, messages=tuple(_saying(message, pairs) for message in prefix.messages))
    if kind == "rule":
        return lambda prefix: replace(prefix, messages=_ruling(value, prefix.messages))

    def described(prefix: Prefix) -> Prefix:
        tools = tuple(_described(tool, **value) for tool in prefix.tools)
        listed = prefix.asked.get("tools")
        asked = {"tools": [_described(tool, **value) for tool in listed]} if isinstance(listed, list) else {}
        return replace(prefix, tools=tools, asked={**prefix.asked, **asked})

    return described


def _saying(message: Message, pairs: Sequence[tuple[str, str]]) -> Message:
    def swapped(value: Any) -> Any:
        if isinstance(value, str):
            return next((value.replace(old, new) for old, new in pairs if old in value), value)
        if isinstance(value, Mapping):
            return {key: swapped(inner) for key, inner in value.items()}
        return [swapped(inner) for inner in value] if isinstance(value, list) else value

    if message.role == "assistant":
        return message
    return replace(message, text=swapped(message.text), data=swapped(message.data), sent=swapped(message.sent))


def _told(messages: Sequence[Message], about: Sequence[tuple[Message, int]], texts: Sequence[str | None]) -> tuple[Message, ...]:
    """The messages, in which each that says what one of ``about`` says, after as many such, says its text; None: is left out."""
    changed = dict[int, str | None]()
    for (known, number), text in zip(about, texts, strict=True):
        same = [i for i, message in enumerate(messages) if said(message) == said(known)]
        changed |= dict.fromkeys(same[number : number + 1], text)
    told = ((message, changed.get(i, message.text)) for i, message in enumerate(messages))
    return tuple(replace(message, text=text) for message, text in told if text is not None)


def _ruling(rule: Any, messages: Sequence[Message]) -> tuple[Message, ...]:
    at = next((i for i, message in enumerate(messages) if message.role == "system"), None)
    old = "" if at is None else messages[at].text
    needed = rule.get("replace", [rule.get("remove", "")])[0] if isinstance(rule, Mapping) else ""
    text = _ruled(rule, old) if needed in old else old
    rest = [*messages[:at], *messages[at + 1 :]] if at is not None else list(messages)
    if text:
        rest.insert(at or 0, Message("system", text) if at is None else replace(messages[at], text=text, sent=None))
    return tuple(rest)


def _described(tool: Any, name: str, description: str) -> Any:
    """A tool's schema, in OpenAI's or Anthropic's form, with this description where it is the one of that ``name``."""
    about = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(about, Mapping) or about.get("name") != name:
        return tool
    changed = {**about, "description": description}
    return {**tool, "function": changed} if "function" in tool else changed


def diff_sent(before: Prefix, after: Prefix) -> str:
    """:func:`diff` of two prompts of messages, their tools' descriptions among them."""

    def messages(prefix: Prefix) -> list[Message]:
        listed = [*prefix.tools, *(tool for tool in prefix.asked.get("tools") or () if isinstance(tool, Mapping))]
        about = [tool.get("function", tool) for tool in listed]
        return [*(Message(f"tool {each.get('name')}", str(each.get("description", ""))) for each in about), *prefix.messages]

    return diff(messages(before), messages(after))


def diff(before: Sequence[Message], after: Sequence[Message]) -> str:
    """Unified diff of two conversations, each message under a line with its role."""

    def lines(messages: Sequence[Message]) -> list[str]:
        return [line for message in messages for line in (f"[{message.role}]", *message.text.splitlines())]

    return "\n".join(difflib.unified_diff(lines(before), lines(after), "shown", "shown, changed", lineterm="", n=1))
