"""How a localizer's reply is read: a final answer, a tool call, a call whose wrapper is missing, or nothing that can be used.

A reply is only ever taken apart; where two readings exist, none is chosen (section 3.5, implicit calls).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.methods.diagnose.case import FIELDS, Diagnosis
from ramify.methods.diagnose.tools import NAMES, normal
from ramify.trace.message import Message

_LOCATIONS = re.compile(r"<locations>(.*?)(?:</locations>|\Z)", re.DOTALL)
_FINDINGS = re.compile(r"<findings>(.*?)</findings>", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_PLACE = re.compile(r"^\s*(?:[-*]\s*)?`?([^\s`:][^`:\n]*?)`?:\s*(\d+)(?:\s*(?:-|,|to|\.\.)\s*(\d+))?\s*`?\s*$", re.MULTILINE)
_DIRECT = re.compile(rf"\b({'|'.join(NAMES)})\s*\(([^()\n]*)\)")


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call; ``recovered`` where its wrapper was missing."""

    name: str
    arguments: Mapping[str, Any]
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """A final answer, locations not yet checked against the repository."""

    found: tuple[Diagnosis, ...]


@dataclass(frozen=True, slots=True)
class Unclear:
    """Neither: why, in words for the model."""

    why: str


def read_reply(message: Message, implicit: bool = True) -> Located | AskedCall | Unclear:
    """What a reply asks for. A call counts before an answer in the same reply: it was made before its result was known."""
    text = _THOUGHT.sub("", message.text)
    calls = Message(message.role, text, message.data).calls
    good = [one for one in calls if not one.error]
    if good:
        return AskedCall(good[0].name, good[0].arguments)
    if (found := _LOCATIONS.search(text)) is not None:
        locations = _locations(found[1], text)
        return Located(locations) if locations else Unclear("<locations> holds no line of the form path/to/file.py:12-20")
    broken = calls[0].error if calls else ""
    guesses = _guesses(text)
    if len(guesses) == 1 and implicit:
        return guesses[0]
    if len(guesses) > 1:
        return Unclear(f"it could mean {len(guesses)} different calls: make one, inside <tool_call>...</tool_call>")
    return Unclear(broken or "there is neither a <tool_call> nor <locations> in it")


def _locations(block: str, text: str) -> tuple[Diagnosis, ...]:
    objects = _written(text)
    made = []
    for at, found in enumerate(_PLACE.finditer(block)):
        file, start = normal(found[1]), int(found[2][:9])
        end = int(found[3][:9]) if found[3] else start
        own = next(
            (one for one in objects if normal(str(one.get("file", ""))) == file and one.get("start") in (None, start)), None
        )
        own = own or (objects[at] if at < len(objects) and "file" not in objects[at] else {})
        fields: dict[str, Any] = {name: str(own.get(name) or "") for name in FIELDS}
        made.append(Diagnosis(file, start, end, **fields))
    return tuple(made)


def _written(text: str) -> list[Mapping[str, Any]]:
    """The objects of <findings>, a JSON list or one object."""
    found = _FINDINGS.search(text)
    if found is None:
        return []
    body = re.sub(r"^\s*```(?:json)?|```\s*$", "", found[1].strip())
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping)]


def _guesses(text: str) -> list[AskedCall]:
    """Every different call that a reply without a wrapper can be read as:
    JSON objects with a tool's name, and ``tool(arguments)``."""
    made: list[AskedCall] = []
    for value in _objects(text):
        name = value.get("name") or value.get("tool") or value.get("tool_name")
        arguments = next((value[key] for key in ("arguments", "args", "parameters", "input") if key in value), None)
        if name in NAMES and isinstance(arguments, Mapping):
            made.append(AskedCall(str(name), arguments, recovered=True))
    for found in _DIRECT.finditer(text):
        if (arguments := _direct(found[1], found[2])) is not None:
            made.append(AskedCall(found[1], arguments, recovered=True))
    return [one for at, one in enumerate(made) if one not in made[:at]]


def _objects(text: str) -> list[Mapping[str, Any]]:
    decoder, found, at = json.JSONDecoder(), list[Mapping[str, Any]](), 0
    for _ in range(50):
        at = text.find("{", at)
        if at < 0:
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, Mapping):
            found.append(value)
    return found


_FIRST = {"view_file": ("path", "view_range"), "codebase_search": ("query",), "repo_tree": (), "connected_tree": ("file",)}


def _direct(name: str, inside: str) -> dict[str, Any] | None:
    """Arguments of ``tool(...)`` written as Python or JSON values, by place or by name."""
    names, at = re.findall(r"(\w+)\s*=", re.sub(r"\"[^\"]*\"|'[^']*'", "", inside)), iter(_FIRST[name])
    values = re.sub(r"(?<![\"'\w])(\w+)\s*=\s*(?=[\"'\[\d])", "", inside).strip().rstrip(",")
    values = re.sub(r"'([^'\"\\]*)'", r'"\1"', values)
    try:
        read: Sequence[Any] = json.loads(f"[{values}]")
    except (ValueError, RecursionError):
        return None
    if names and len(names) != len(read):
        return None
    keys = names or [key for key, _ in zip(at, read, strict=False)]
    return dict(zip(keys, read, strict=True)) if len(keys) == len(read) else None
