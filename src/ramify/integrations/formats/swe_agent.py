"""Trajectories of SWE-agent (``.traj``): the conversation in ``history``, what was run and seen in ``trajectory``, the end in
``info``.

A file of the retrying agent holds several ``attempts`` at its instance, each an attempt here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.registry import register
from ramify.integrations.formats.attempts import Attempts, WholeAttempt, ending, named, objects, stem_of, words
from ramify.trace.aliases import RECORD
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field, read_documents
from ramify.trace.message import Message, plain, read_message
from ramify.trace.notes import unread

_SAID_TWICE = frozenset(("agent", "message_type", "thought", "action", "is_demo", "tags", "cache_control", "tool_call_ids"))
"""Fields of a message of ``history`` that repeat its content, or say how it was shown."""
_STEP = frozenset(("action", "observation", "response", "thought", "state", "query", "execution_time", "extra_info", "messages"))
_KNOWN = frozenset(("trajectory", "messages", "history", "info", "replay_config", "environment", "attempts", "instance_id"))


def read_traj(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a trajectory of SWE-agent, old or new, or several, one a line. Returns how many files'
    worth.

    The task is the instance that the replay settings name, else the file's name. The model's replies are those of ``history``,
    in order; a reply has the ``state`` of the environment and the seconds that its action took. Demonstrations are given text.
    How the attempt ended is ``info.exit_status``; whether it solved its instance the file does not say. Raises UserError naming
    file, item and field.
    """
    importer = _Importer(stem_of(path))
    return import_records(path, folder, "swe-agent", importer.add, read_documents(path, _slim), end=importer.attempts.end)


def _slim(name: str, item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "query"} if name == "trajectory" else item


class _Importer:
    def __init__(self, stem: str) -> None:
        self.stem = stem
        self.attempts = Attempts()

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        tries = record.get("attempts")
        if not tries:
            self._add(run, record, place, {})
            return
        best = named(record, "info", "best_attempt_idx")
        for at, (spot, attempt) in enumerate(objects(tries, f"{place}: 'attempts'")):
            self._add(run, {**attempt, "instance_id": record.get("instance_id")}, spot, {"chosen": at == best})

    def _add(self, run: Run, record: Mapping[str, Any], place: str, about: Mapping[str, Any]) -> None:
        fields = dict(record)
        info = field(fields, "info", dict, place, {})
        steps = list(objects(record.get("trajectory"), f"{place}: 'trajectory'"))
        for spot, step in steps:
            unread(step, _STEP, "step")
            for name in ("action", "observation", "response"):
                field(dict(step), name, str, spot, "")
        history = record.get("messages", record.get("history"))
        messages = list(_told(history, steps, place) if history else _run(steps))
        config = _config(record.get("replay_config"))
        model = named(config, "agent", "model")
        rest = {key: value for key, value in record.items() if key not in _KNOWN}
        unread(rest, RECORD, "record")
        self.attempts.hang(
            run,
            WholeAttempt(
                task=words(record.get("instance_id")) or words(named(config, "problem_statement", "id")) or self.stem,
                messages=messages,
                judged=ending({"info": {k: info.get(k) for k in ("exit_status", "error")}}, place),
                about={**rest, **about, "info": {k: v for k, v in info.items() if not k.startswith("edited_files")}},
                model=words(named(model, "name")),
                settings={k: named(model, k) for k in ("temperature", "top_p") if named(model, k) is not None},
            ),
            place,
        )


def _config(value: Any) -> Any:
    """The settings that a new trajectory keeps, as JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _told(history: Any, steps: list[tuple[str, Mapping[str, Any]]], place: str) -> Iterator[Message]:
    """The messages of the conversation, and what was seen last where it ends before."""
    entries = list(objects(history, f"{place}: 'history'"))
    replies = sum(entry.get("role") == "assistant" and not entry.get("is_demo") for _, entry in entries)
    told = iter([step for _, step in steps] if replies == len(steps) else [])
    last: Message | None = None
    for spot, entry in entries:
        kept = {key: value for key, value in entry.items() if key not in _SAID_TWICE}
        ids = entry.get("tool_call_ids")
        if entry.get("role") == "tool" and isinstance(ids, list) and ids:
            kept["tool_call_id"] = str(ids[0])
        demo = bool(entry.get("is_demo"))
        message = read_message(kept, spot)
        data = dict(message.data)
        if message.role == "assistant" and demo:  # shown to the model, not its own
            message, data = Message("user", message.text), {**data, "name": "demonstration"}
            data.pop("tool_calls", None)
        elif message.role == "assistant":
            data |= _state(next(told, {}))
        elif message.role == "tool" and demo:
            message, data = Message("user", message.text), {"name": "demonstration"}
        last = Message(message.role, message.text, data)
        yield last
    if last is not None and last.role == "assistant" and steps and (seen := words(steps[-1][1].get("observation"))):
        yield Message("user", seen)


def _run(steps: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Message]:
    """The conversation of a file without ``history``: replies and observations, what was asked before them where a step says
    it."""
    asked = steps[0][1].get("query") if steps else None
    for spot, entry in objects(asked, "'query'") if isinstance(asked, list) and asked and asked != [{}] else ():
        message = read_message({k: v for k, v in entry.items() if k not in _SAID_TWICE}, spot)
        yield message if message.role != "assistant" else Message("user", message.text, {"name": "demonstration"})
    for _, step in steps:
        yield Message("assistant", words(step.get("response")) or words(step.get("action")), _state(step))
        yield Message("user", words(step.get("observation")))


def _state(step: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: plain(step[name]) for name in ("state", "execution_time", "extra_info") if step.get(name)}
    return {"step": kept} if kept else {}


def _is_traj(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None:
        return False
    tries = first.get("attempts")
    record = tries[0] if isinstance(tries, list) and tries and isinstance(tries[0], Mapping) else first
    steps = record.get("trajectory")
    return isinstance(steps, list) and "info" in record and all(_is_step(step) for step in steps[:3])


def _is_step(step: Any) -> bool:
    return isinstance(step, Mapping) and {"action", "observation"} <= step.keys()


_EXAMPLE = {
    "environment": "main",
    "trajectory": [
        {"action": "ls", "observation": "a.py", "response": "I look.\nls", "thought": "I look.", "state": {"open_file": "n/a"}},
        {"action": "submit", "observation": "", "response": "Done.\nsubmit", "thought": "Done.", "state": {"open_file": "n/a"}},
    ],
    "history": [
        {"role": "system", "content": "Fix the bug.", "agent": "main", "message_type": "system_prompt"},
        {"role": "assistant", "content": "I look.\nls", "thought": "I look.", "action": "ls", "agent": "main"},
        {"role": "user", "content": "a.py", "agent": "main", "message_type": "observation"},
        {"role": "assistant", "content": "Done.\nsubmit", "thought": "Done.", "action": "submit", "agent": "main"},
    ],
    "info": {"exit_status": "submitted", "submission": "diff", "model_stats": {"instance_cost": 0.1, "api_calls": 2}},
}
register("reader", "swe-agent")(
    Reader(
        "swe-agent",
        "Trajectories of SWE-agent (.traj), old and new: replies with the environment's state, exit status, submission.",
        _is_traj,
        read_traj,
        example=json.dumps(_EXAMPLE) + "\n",
    )
)
