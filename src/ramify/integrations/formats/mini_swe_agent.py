"""Trajectories of mini-swe-agent (``.traj.json``): version 1 with commands in the text, version 2 with calls of tools, both
also from models that speak OpenAI's Responses interface."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.attempts import Attempts, WholeAttempt, asked, ending, named, objects, words
from ramify.integrations.formats.exchanges import Keep, ToolExchange
from ramify.integrations.formats.responses import read_output
from ramify.trace.aliases import RECORD
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field, read_documents
from ramify.trace.message import Message, number, plain, read_message, unanswered
from ramify.trace.notes import unread

FORMAT = "mini-swe-agent-"
_TWICE = ("response", "actions")
"""What ``extra`` of a message repeats: the provider's whole answer, and the commands of the calls."""
_KNOWN = frozenset(("messages", "info", "trajectory_format", "instance_id"))


def read_mini(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a trajectory of mini-swe-agent, or several, one a line. Returns how many.

    The task is ``instance_id``; a file that names none is an attempt at the task of every file with the same first message of
    the user. How it ended is ``info.exit_status``, cost and calls are metrics. The closing message of role ``exit`` is the last
    observation. Raises UserError naming file, message and field.
    """
    importer = _Importer()
    return import_records(path, folder, "mini-swe-agent", importer.add, read_documents(path, _slim), end=importer.attempts.end)


def _slim(name: str, item: dict[str, Any]) -> dict[str, Any]:
    extra = item.get("extra")
    if name == "messages" and isinstance(extra, dict):
        return {**item, "extra": {key: value for key, value in extra.items() if key not in _TWICE}}
    return item


class _Importer:
    def __init__(self) -> None:
        self.attempts = Attempts()

    def add(self, run: Run, record: dict[str, Any], place: str, _: int) -> None:
        info = field(record, "info", dict, place)
        messages = list(_messages(record.get("messages"), place, run.put_blob))
        task = record.get("instance_id")
        if task is not None and not isinstance(task, (str, int)):
            raise UserError(f"{place}: 'instance_id' must be text")
        model = named(info, "config", "model")
        rest = {key: value for key, value in record.items() if key not in _KNOWN}
        unread(rest, RECORD, "record")
        attempt = WholeAttempt(
            task=asked(messages) if task in (None, "") else str(task),
            messages=messages,
            judged=ending({"info": {"exit_status": info.get("exit_status")}}, place),
            about={**rest, "info": {key: value for key, value in info.items() if key != "config"}},
            model=words(named(model, "model_name")),
            settings=named(model, "model_kwargs") if isinstance(named(model, "model_kwargs"), Mapping) else {},
            metrics={
                name: value
                for name in ("instance_cost", "api_calls")
                if (value := number(named(info, "model_stats", name))) is not None
            },
        )
        self.attempts.hang(run, attempt, place)


def _messages(values: Any, place: str, keep: Keep) -> Iterator[Message]:
    exchange, waiting = ToolExchange(), dict[str, None]()
    for spot, entry in objects(values, f"{place}: 'messages'"):
        extra = entry.get("extra")
        about = {k: plain(v) for k, v in extra.items() if k not in _TWICE and v is not None} if isinstance(extra, Mapping) else {}
        kept = {key: value for key, value in entry.items() if key != "extra"}
        if entry.get("object") == "response":
            said = read_output(field(dict(entry), "output", list, spot), spot, keep, exchange)
        elif "role" not in entry and words(entry.get("type")).endswith("_output"):
            said = read_output([kept], spot, keep, exchange)
        elif entry.get("role") == "exit":  # what the last command printed, where that submitted
            text = read_message({**kept, "role": "user"}, spot).text
            last = [*waiting][-1:] if about.get("exit_status") == "Submitted" else []
            answers = {"tool_call_id": last[0]} if last else {}
            said = [Message("tool" if last else "user", text, {"name": "exit", **answers})]
        else:
            said = [read_message(kept, spot)]
        for message in said:
            waiting.pop(str(message.data.get("tool_call_id")), None)
            waiting |= {call["id"]: None for call in unanswered([message])}
            printed = words(about.get("raw_output"))
            more = {key: value for key, value in about.items() if key != "raw_output" or printed not in message.text}
            yield Message(message.role, message.text, {**message.data, **({"extra": more} if more else {})})


def _is_mini(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None or not isinstance(first.get("messages"), list) or not isinstance(first.get("info"), Mapping):
        return False
    kind = first.get("trajectory_format")
    return kind.startswith(FORMAT) if isinstance(kind, str) else kind is None and "mini_version" in first["info"]


_CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
_EXAMPLE = {
    "info": {
        "model_stats": {"instance_cost": 0.1, "api_calls": 1},
        "mini_version": "2.0.0",
        "exit_status": "Submitted",
        "submission": "diff",
    },
    "messages": [
        {"role": "system", "content": "Fix the bug."},
        {"role": "user", "content": "It fails."},
        {"role": "assistant", "content": "I look.", "tool_calls": [_CALL], "extra": {"cost": 0.1}},
        {"role": "tool", "content": "a.py", "tool_call_id": "c1", "extra": {"raw_output": "a.py", "returncode": 0}},
        {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}},
    ],
    "trajectory_format": "mini-swe-agent-1.1",
    "instance_id": "repo__repo-1",
}
register("reader", "mini-swe-agent")(
    Reader(
        "mini-swe-agent",
        "Trajectories of mini-swe-agent (.traj.json), versions 1 and 2: exit status, cost, instance, calls of bash.",
        _is_mini,
        read_mini,
        example=json.dumps(_EXAMPLE) + "\n",
    )
)
