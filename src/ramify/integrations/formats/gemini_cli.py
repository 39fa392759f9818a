"""Sessions of Gemini CLI (``~/.gemini/tmp/PROJECT/chats/session-*``): one JSON document, or since 0.40 a message a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.attempts import stem_of
from ramify.integrations.formats.exchanges import list_of, object_of, text_of, tool_call
from ramify.integrations.formats.sessions import SessionPath, grow_tree, task_name
from ramify.trace.aliases import KNOWN, NOTHING, Judged
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field as field_of
from ramify.trace.lines import read_documents
from ramify.trace.message import Message, plain, read_message
from ramify.trace.node import Provenance
from ramify.trace.notes import noting, unread

MAKER = "gemini-cli"
_REPLIES = ("gemini", "model")
_SHOWN = ("info", "warning", "error")
"""Types of messages that the harness shows to the person, and not to the model."""
_SESSION = frozenset(("sessionId", "projectHash", "startTime", "lastUpdated", "kind", "messages", "summary", "directories"))
_BESIDE = frozenset(("type", "displayContent", "toolCalls", "thoughts", "tokens", "model"))
_CALL = frozenset(
    ("id", "name", "args", "result", "status", "timestamp", "agentId", "displayName", "description", "resultDisplay")
)


def read_gemini_cli(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a session of Gemini CLI. Returns how many lines it has.

    What a rewind took back is an attempt, and what follows branches off before it. An error that is the last message ended the
    attempt. Raises UserError naming file, line and message: on a field of a wrong type, a message of an unknown type.
    """
    session = _Session(path)
    return import_records(path, folder, MAKER, session.add, read_documents(path, lambda name, item: item), end=session.end)


@dataclass
class _Session:
    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    said: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    """Id of a message -> it and its place; a later line of the same id replaces it."""
    over: list[list[tuple[dict[str, Any], str]]] = field(default_factory=list)
    """What was said in each attempt that was taken back."""
    paths: dict[tuple[str, ...], SessionPath] = field(default_factory=dict)
    """Ids of messages -> the path that they are."""
    draws: Iterator[int] = field(default_factory=count)

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Take one line. Raises UserError naming ``place``."""
        update = field_of(record, "$set", dict, place, None)
        if "$rewindTo" in record:
            ids = [*self.said]
            at = ids.index(key) if (key := text_of(record, "$rewindTo", place)) in self.said else 0
            self.over.append([*self.said.values()])
            self.said = {key: self.said[key] for key in ids[:at]}
        elif update is not None or "sessionId" in record:
            fields = record if update is None else update
            if "messages" in fields:
                self.said = {}
            for at, message in enumerate(list_of(fields.get("messages") or [], f"{place}: 'messages'")):
                self._keep(message, f"{place}: message {at}")
            unread(fields, _SESSION, "session")
            self.about |= {name: value for name, value in fields.items() if name != "messages"}
        else:
            self._keep(record, place)

    def _keep(self, message: Any, spot: str) -> None:
        kind = text_of(object_of(message, spot), "type", spot)
        if kind not in ("user", *_REPLIES, *_SHOWN):
            raise UserError(f"{spot} is of type '{kind}', which is none of user, {', '.join((*_REPLIES, *_SHOWN))}")
        key = text_of(message, "id", spot)
        if kind not in _SHOWN:
            with noting():  # says now what is wrong with it, when its line is known
                _ = [*_messages(message, spot)]
        self.said[key] = dict(message), spot

    def end(self, run: Run) -> None:
        """Write the attempts. Raises UserError where there is no message."""
        attempts = [some for some in (*self.over, [*self.said.values()]) if _ids(some)]
        if not attempts:
            raise UserError(f"{self.path} holds no message of a session")
        for at, attempt in enumerate(attempts):
            ids = _ids(attempt)
            if not any(_ids(other)[: len(ids)] == ids for other in attempts[:at]):
                self._write(run, attempt)
        kinds = {entry["id"]: entry["type"] for some in (*self.over, [*self.said.values()]) for entry, _ in some}
        for kind, times in Counter(kinds.values()).items():
            if kind in _SHOWN:
                run.log("ignored", kind, {"count": times, "what": "messages"})

    def _write(self, run: Run, attempt: list[tuple[dict[str, Any], str]]) -> None:
        last, spot = attempt[-1]
        judged = KNOWN.judged({"error": _text(last, spot)}, spot) if last["type"] == "error" else NOTHING
        spoken = [(entry, place) for entry, place in attempt if entry["type"] not in _SHOWN]
        keys = _ids(attempt)
        known = max((size for size in range(1, len(keys)) if keys[:size] in self.paths), default=0)
        path = self.paths[keys[:known]].branch(next(self.draws)) if known else self._begin(run, spoken)
        for at, (entry, place) in enumerate(spoken[known:], known + 1):
            said = [*_messages(entry, place)]
            for number, message in enumerate(said, 1):
                ends = at == len(spoken) and number == len(said)
                _hang(run, path, message, ends, self.about, judged)
            self.paths[keys[:at]] = path.branch(path.completion)
        path.end(judged)

    def _begin(self, run: Run, spoken: list[tuple[dict[str, Any], str]]) -> SessionPath:
        prompt = next((_text(entry, spot) for entry, spot in spoken if entry["type"] == "user"), "").strip()
        name = task_name(prompt) if prompt else str(self.about.get("sessionId") or stem_of(self.path))
        return SessionPath.begin(run, grow_tree(run, name, known=bool(prompt)), next(self.draws))


def _ids(attempt: list[tuple[dict[str, Any], str]]) -> tuple[str, ...]:
    return tuple(entry["id"] for entry, _ in attempt if entry["type"] not in _SHOWN)


def _hang(run: Run, path: SessionPath, message: Message, ends: bool, about: Mapping[str, Any], judged: Judged) -> None:
    fields = {"stop": judged.stop} if ends and judged.stop else {}
    if message.role == "assistant":
        provenance = Provenance(str(message.data.get("model") or "unknown"), "", {"agent": MAKER}, 0)
        run.add(provenance)
        fields["provenance"] = provenance.hash
    record = {"session_id" if name == "sessionId" else name: plain(value) for name, value in about.items()}
    path.hang(message, message.role == "assistant", ends, {"record": record} if ends else None, **fields)


def _text(message: Mapping[str, Any], spot: str) -> str:
    return _spoken(message, "user", spot).text


def _spoken(message: Mapping[str, Any], role: str, spot: str) -> Message:
    return read_message({"role": role, **{name: value for name, value in message.items() if name not in _BESIDE}}, spot)


def _messages(message: Mapping[str, Any], spot: str) -> Iterator[Message]:
    """What was said, and the results of its calls."""
    if message["type"] == "user":
        yield _spoken(message, "user", spot)
        return
    spoken = _spoken(message, "assistant", spot)
    thoughts = [
        object_of(thought, f"{spot}: 'thoughts'") for thought in list_of(message.get("thoughts") or [], f"{spot}: 'thoughts'")
    ]
    reasoning = "\n\n".join(": ".join(filter(None, map(thought.get, ("subject", "description")))) for thought in thoughts)
    calls = [object_of(call, f"{spot}: 'toolCalls'") for call in list_of(message.get("toolCalls") or [], f"{spot}: 'toolCalls'")]
    asked = [tool_call(text_of(call, "id", spot), text_of(call, "name", spot), call.get("args") or {}) for call in calls]
    kept = {name: plain(message[name]) for name in ("model", "tokens") if message.get(name) is not None}
    about = {**({"reasoning": reasoning} if reasoning else {}), **({"tool_calls": asked} if asked else {})}
    yield Message("assistant", spoken.text, {**spoken.data, **kept, **about})
    for call in calls:
        unread(call, _CALL, "tool call")
        if call.get("result") is not None:
            yield _result(call, f"{spot}: the result of '{call['name']}'")


def _result(call: Mapping[str, Any], spot: str) -> Message:
    parts = call["result"] if isinstance(call["result"], list) else [call["result"]]
    told = [response_of(part) if isinstance(part, Mapping) else part for part in parts]
    message = read_message({"role": "tool", "content": told}, spot)
    status = {} if call.get("status") in (None, "success") else {"is_error": True, "status": plain(call["status"])}
    return Message("tool", message.text, {**message.data, "tool_call_id": call["id"], "name": call["name"], **status})


def response_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A response of a function as a part of text; any other part as it is."""
    answer = part.get("functionResponse")
    if not isinstance(answer, Mapping):
        return part
    said = answer.get("response")
    only = next(iter(said.values())) if isinstance(said, Mapping) and [*said] in (["output"], ["error"]) else said
    return {"type": "text", "text": only if isinstance(only, str) else json.dumps(plain(only), ensure_ascii=False)}


def _is_gemini_cli(path: Path, first: Mapping[str, Any] | None) -> bool:
    return first is not None and all(isinstance(first.get(name), str) for name in ("sessionId", "projectHash"))


EXAMPLE: list[dict[str, Any]] = [
    {"sessionId": "s1", "projectHash": "p1", "startTime": "2026-01-01T00:00:00Z", "kind": "main"},
    {"id": "m1", "type": "user", "content": [{"text": "Fix the test."}]},
    {
        "id": "m2",
        "type": "gemini",
        "content": "",
        "model": "gemini-x",
        "thoughts": [{"subject": "Look", "description": "I look first."}],
        "toolCalls": [
            {
                "id": "c1",
                "name": "run_shell_command",
                "args": {"command": "ls"},
                "status": "success",
                "result": [{"functionResponse": {"id": "c1", "name": "run_shell_command", "response": {"output": "test.py"}}}],
            }
        ],
    },
    {"$set": {"lastUpdated": "2026-01-01T00:00:02Z"}},
    {"id": "m3", "type": "gemini", "content": "Fixed.", "model": "gemini-x"},
]

register("reader", MAKER)(
    Reader(
        MAKER,
        "Sessions of Gemini CLI (~/.gemini/tmp/PROJECT/chats): what a rewind took back is a branch.",
        _is_gemini_cli,
        read_gemini_cli,
        (),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
