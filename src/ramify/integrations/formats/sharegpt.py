"""ShareGPT in and out: ``{"conversations": [{"from", "value"}, ...]}``, with function calls and their results as turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.base.config import check
from ramify.base.errors import UserError, nearest
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import ToolExchange, object_of, text_of, tool_call
from ramify.integrations.trainers.rows import (
    Selection,
    attempts,
    count_compacted,
    count_media,
    settings_of,
    write_table,
)
from ramify.trace.aliases import KNOWN, Fields
from ramify.trace.chats import hang_chat
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader, Writer
from ramify.trace.lines import field as field_of
from ramify.trace.lines import read_conversations
from ramify.trace.message import FIELDS, Message, parse_tool_calls, plain
from ramify.trace.notes import unread
from ramify.trace.offered import tools_of

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model"), "assistant"),
    "system": "system",
    "function_call": "call",
    **dict.fromkeys(("observation", "tool", "function_response", "tool_response"), "tool"),
}
"""Who a turn is from, as ShareGPT and the data sets in its form say it."""
IGNORED = ("weight", "loss")
"""Fields of a turn about training: ignored, counted and reported."""


def read_sharegpt(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from conversations in ShareGPT's form:
    JSON lines, one JSON list, or one conversation. Returns how many.

    A turn is ``{"from", "value"}`` (or ``{"role", "content"}``). A ``function_call`` holds the JSON of a call, or of a list of
    calls, and what follows it from ``observation`` or ``tool`` is the result; calls may also stand in a reply's text between
    ``<tool_call>`` tags. ``chosen`` and ``rejected`` turns alongside the conversation are two attempts. Task and reward stand
    under any name of :mod:`ramify.trace.aliases`. Raises UserError naming file, line and turn: on a field of a wrong type, a call
    that is not JSON, a result without a call.
    Nothing is left in ``folder`` then.
    """
    ignored = dict.fromkeys(IGNORED, 0)

    def add(run: Run, record: dict[str, Any], where: str, number: int) -> None:
        for turn in record["conversations"] if isinstance(record.get("conversations"), list) else ():
            for name in IGNORED:
                ignored[name] += isinstance(turn, dict) and turn.get(name) is not None
        messages = _messages(record, where)
        taken = {"conversations", "system"}
        ends = [name for name in ("chosen", "rejected") if isinstance(record.get(name), dict)]
        for side in ends:
            turn = _Turns().message(record[side], f"{where}: '{side}'")
            rest = {k: v for k, v in record.items() if k not in (*ends, "preference")}
            task = rest if fields.task_of(rest, where) is not None or fields.task else {**rest, "task_id": f"chat-{number:06d}"}
            scores = {"reward": {"preference": float(side == "chosen")}}
            hang_chat(run, {**task, **scores}, where, 2 * number + ends.index(side), [*messages, *turn], taken, fields)
        if not ends:
            hang_chat(run, record, where, number, messages, taken, fields)

    def end(run: Run) -> None:
        for name, count in ignored.items():
            if count:
                run.log("ignored", name, {"count": count, "what": "turns"})

    return import_records(
        path, folder, "sharegpt", add, read_conversations(path, "conversations", ("from",), ("conversations",)), end=end
    )


def _messages(record: dict[str, Any], where: str) -> list[Message]:
    turns = field_of(record, "conversations", list, where)
    if not turns:
        raise UserError(f"{where}: 'conversations' is empty")
    system = field_of(record, "system", str, where, "")
    reading = _Turns()
    messages = [Message("system", system)] if system else []
    return messages + [message for at, turn in enumerate(turns) for message in reading.message(turn, f"{where}: turn {at}")]


@dataclass
class _Turns:
    """Reads the turns of one conversation. Calls have no ids in this form:
    they get ``call_0``, ``call_1``, and results are theirs in order."""

    exchange: ToolExchange = field(default_factory=ToolExchange)
    count: int = 0
    written: int = 0
    """Calls in the text of the last reply that may still be answered."""

    def message(self, value: Any, spot: str) -> Iterator[Message]:
        """The message of a turn. Raises UserError naming ``spot``."""
        turn = object_of(value, spot)
        who, name = (text_of(turn, "from", spot), "value") if "from" in turn else (text_of(turn, "role", spot), "content")
        if who not in ROLES:
            raise UserError(f"{spot} is from '{who}', which is unknown ({nearest(who, ROLES)})")
        text = text_of(turn, name, spot)
        data = plain({k: v for k, v in turn.items() if k not in ("from", "value", "role", "content", *IGNORED) and v is not None})
        unread(data, FIELDS, "turn")
        role = ROLES[who]
        if role == "tool":
            yield self._result(text, data, spot)
            return
        self.exchange = ToolExchange()  # one observation may answer several calls, and a call may have none
        self.written = 0
        if role == "call":
            yield Message("assistant", "", {**data, "tool_calls": list(self._calls(text, spot))})
            return
        if role == "assistant":
            self.written = sum(not call.error for call in parse_tool_calls(text))
        yield Message(role, text, data)

    def _result(self, text: str, data: dict[str, Any], spot: str) -> Message:
        if self.exchange.waiting:
            key = next(iter(self.exchange.waiting))
            self.exchange.result(spot, key)
            return Message("tool", text, {**data, "tool_call_id": key})
        if not self.written:
            raise UserError(f"{spot} is a result without a call: what stands before it calls nothing that is not answered")
        return Message("tool", text, data)

    def _calls(self, text: str, spot: str) -> Iterator[dict[str, Any]]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise UserError(f"{spot}: the call is not JSON") from None
        for call in found if isinstance(found, list) and found else [found]:
            name = text_of(object_of(call, f"{spot}: the call"), "name", spot)
            key, self.count = f"call_{self.count}", self.count + 1
            self.exchange.call(name, spot, key)
            yield tool_call(key, name, call.get("arguments", call.get("parameters", {})))


def _is_sharegpt(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None:
        return False
    turns = first.get("conversations", [first] if {"from", "value"} <= first.keys() else None)
    return isinstance(turns, list)


# --- out --------------------------------------------------------------------------------------------------------------


def write_sharegpt(run: Run, out: Path, **settings: Any) -> int:
    """Write attempts as ``{"id", "task", "conversations", "tools", "reward"}``, one a line, the schemas of tools as JSON text;
    returns how many. ``settings``: :class:`Selection`.

    Thoughts that stand apart from a reply are written before it between ``<think>`` tags, calls alongside its text between
    ``<tool_call>`` tags, calls alone as a ``function_call``.
    Raises UserError where no attempt fits the settings, or the file does not end in .jsonl.
    """
    chosen = check(Selection, settings, "sharegpt")
    if out.suffix.lower() != ".jsonl":
        raise UserError(f"cannot write {out}: ShareGPT's conversations go into a file that ends in .jsonl")
    return write_table(out, _rows(run, chosen), {}, chosen.max_rows)


def _rows(run: Run, chosen: Selection) -> Iterator[dict[str, Any]]:
    for ended in attempts(run, chosen):
        count_compacted(ended)
        turns = [turn for message in ended.path.messages() for turn in _turns(message)]
        tools = tools_of(run, ended)
        row = {"id": ended.leaf, "task": ended.task, "conversations": turns}
        row |= {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}
        yield row | ({} if ended.reward is None else {"reward": ended.reward})


def _turns(message: Message) -> Iterator[dict[str, str]]:
    count_media(message)
    who = {"user": "human", "assistant": "gpt", "tool": "observation"}.get(message.role, message.role)
    if message.role != "assistant":
        yield {"from": who, "value": message.text}
        return
    thought = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
    if message.functions and not message.text and not thought:
        calls = [{"name": name, "arguments": arguments} for name, arguments in message.functions]
        yield {"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0], ensure_ascii=False)}
        return
    yield {"from": who, "value": thought + message.written()}


EXAMPLE = [
    {
        "id": "weather",
        "system": "Use the tools.",
        "conversations": [
            {"from": "human", "value": "Is it warm in Oslo?"},
            {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
            {"from": "observation", "value": "4 degrees"},
            {"from": "gpt", "value": "No: 4 degrees."},
        ],
        "reward": 1.0,
    }
]

register("reader", "sharegpt")(
    Reader(
        "sharegpt",
        "ShareGPT's conversations of turns with from and value, function_call and observation included; weight and loss have no "
        "effect.",
        _is_sharegpt,
        read_sharegpt,
        ("task", "reward", "answer"),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
register("writer", "sharegpt")(
    Writer("sharegpt", "attempts as ShareGPT's conversations, one a line (.jsonl)", write_sharegpt, (), settings_of(Selection))
)
