"""The state of a simulated environment that code keeps: tables, what each tool does to them, and the calls of an action.

What is known is done here, exactly; a model only renders what is not. A row that was deleted is gone, whatever a model would say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ramify.base.errors import UserError, nearest
from ramify.trace.message import parse_tool_calls, write_call

Do = Literal["get", "set", "delete", "list", "search", "open"]
DOES: tuple[Do, ...] = ("get", "set", "delete", "list", "search", "open")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class EnvCall:
    """One call of an action: a tool with named arguments, or the words of a command,
    which are named by their place (``1``, ``2``, ...)."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it is not a call, one clause; "" where it is one."""
    written: bool = False
    """Whether it was written as a tool call, not as words."""

    def argument(self, name: str, place: int) -> Any:
        """The argument ``name``, else the one at ``place`` (from 1); None where there is neither."""
        return self.arguments.get(name, self.arguments.get(str(place)))

    def without(self, *names: str) -> EnvCall:
        """The call without some arguments."""
        return EnvCall(
            self.name, {key: value for key, value in self.arguments.items() if key not in names}, self.error, self.written
        )

    @property
    def text(self) -> str:
        """The call as a model is shown it."""
        if self.written:
            return write_call(self.name, dict(self.arguments))
        return " ".join([self.name, *map(str, self.arguments.values())]).strip()


def read_calls(action: str, tools: bool) -> list[EnvCall]:
    """The calls of an action: those written as tool calls; else,
    where the environment has no ``tools``, its words as one command."""
    calls = parse_tool_calls(action)
    if calls:
        return [EnvCall(call.name, dict(call.arguments), call.error, True) for call in calls]
    if tools:
        return []
    words = action.split()
    return [EnvCall(words[0] if words else "", {str(i): word for i, word in enumerate(words[1:], 1)})]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a tool does to a table: get, set or delete a row, list the keys, search the rows, open one."""

    tool: str
    do: Do
    table: str
    key: str = "key"
    """The argument that names the row, or the query of a search; of words the first."""
    value: str = "value"
    """The argument that is stored by ``set``; of words the second."""
    render: Literal["code", "model"] = "code"
    """Who writes the answer: code, or the model, which is shown the rows it concerns and must repeat their values."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What the store has to say to a call."""

    text: str | None
    """The whole answer; None where the model renders it."""
    facts: tuple[str, ...] = ()
    """Texts that the model's answer must hold."""
    failed: bool = False


class StateStore:
    """Tables of rows (``{table: {key: row}}``, JSON) and the effects that tools have on them.
    Raises UserError on an effect without its table."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None, effects: Iterable[Effect] = ()) -> None:
        self._first = json.dumps({name: dict(rows) for name, rows in (tables or {}).items()})
        self.effects = {effect.tool: effect for effect in effects}
        self.tables: dict[str, dict[str, Any]] = {}
        self.reset()
        for effect in self.effects.values():
            if effect.table not in self.tables:
                raise UserError(f"tool '{effect.tool}' names no table '{effect.table}' ({nearest(effect.table, self.tables)})")

    def copy(self) -> StateStore:
        """A store of its own with the same beginning."""
        return StateStore(json.loads(self._first), self.effects.values())

    def reset(self, more: Mapping[str, Any] | None = None) -> None:
        """Back to the beginning, with a task's own tables (``more``) laid over it."""
        self.tables = json.loads(self._first)
        for name, rows in (more or {}).items():
            self.tables.setdefault(str(name), {}).update(json.loads(json.dumps(rows)))

    def snapshot(self) -> dict[str, Any]:
        """The tables as JSON that nobody else holds."""
        found: dict[str, Any] = json.loads(json.dumps(self.tables))
        return found

    def restore(self, tables: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self.tables = json.loads(json.dumps(tables))

    def apply(self, call: EnvCall) -> StoreAnswer | None:
        """Do what the call does; None where no effect is known of its tool."""
        effect = self.effects.get(call.name)
        if effect is None:
            return None
        rows = self.tables[effect.table]
        key = call.argument(effect.key, 1)
        if effect.do == "list":
            return self._said(effect, "\n".join(sorted(rows)) or "(empty)")
        if key is None:
            return StoreAnswer(f"error: '{call.name}' needs {effect.key}", failed=True)
        name = str(key)
        if effect.do == "search":
            return self._said(effect, self._found(rows, call, name))
        if effect.do == "set":
            rows[name] = call.argument(effect.value, 2)
            return StoreAnswer("ok")
        if name not in rows:
            return StoreAnswer(f"404: no '{name}' in {effect.table}", failed=True)
        if effect.do == "delete":
            del rows[name]
            return StoreAnswer("ok")
        return self._said(effect, row_text(rows[name]))

    def _found(self, rows: Mapping[str, Any], call: EnvCall, query: str) -> str:
        """Numbered lines of the rows that share a word with the query, most shared words first."""
        if not call.written:
            query = " ".join(map(str, call.arguments.values()))
        words = set(_WORD.findall(query.lower()))
        near = {key: len(words & set(_WORD.findall(f"{key} {row_text(row)}".lower()))) for key, row in rows.items()}
        hits = sorted((key for key, shared in near.items() if shared), key=lambda key: (-near[key], key))
        return "\n".join(f"{i}. {key}: {row_text(rows[key])}" for i, key in enumerate(hits, 1)) or "no results"

    @staticmethod
    def _said(effect: Effect, text: str) -> StoreAnswer:
        return StoreAnswer(text) if effect.render == "code" else StoreAnswer(None, (text,))

    def excerpt(self, call: EnvCall, most: int = 2000) -> str:
        """What a model is shown of the state: all of it where that is short, else the rows that share a word with the call."""
        lines = [f"{table} {key}: {row_text(row)}" for table, rows in self.tables.items() for key, row in rows.items()]
        if sum(map(len, lines)) > most:
            words = set(_WORD.findall(call.text.lower()))
            lines = [line for line in lines if words & set(_WORD.findall(line.lower()))]
        kept, size = [], 0
        for line in lines:
            size += len(line) + 1
            if size > most:
                break
            kept.append(line)
        return "\n".join(kept)


def row_text(row: Any) -> str:
    """A row as text: as it is, or as JSON."""
    return row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)


def read_effects(record: Any, where: str) -> tuple[Effect, ...]:
    """Effects of a JSON or TOML list of tables. Raises UserError naming ``where``, the entry and the nearest right name."""
    if not isinstance(record, list) or not all(isinstance(one, dict) for one in record):
        raise UserError(f"{where}: effects are a list of tables with tool, do and table")
    return tuple(_effect(one, f"{where}: effect {i}") for i, one in enumerate(record, 1))


def _effect(one: Mapping[str, Any], where: str) -> Effect:
    names = tuple(Effect.__dataclass_fields__)
    for name, value in one.items():
        if name not in names:
            raise UserError(f"{where} has an unknown field '{name}' ({nearest(name, names)})")
        if not isinstance(value, str):
            raise UserError(f"{where}: '{name}' must be text")
    for name in ("tool", "do", "table"):
        if name not in one:
            raise UserError(f"{where} lacks '{name}'")
    if one["do"] not in DOES:
        raise UserError(f"{where}: unknown 'do' '{one['do']}' ({nearest(one['do'], DOES)})")
    if one.get("render", "code") not in ("code", "model"):
        raise UserError(f"{where}: 'render' is code or model, not '{one['render']}'")
    return Effect(**one)
