"""Sessions of OpenCode: what ``opencode export`` writes, and the folder ``storage`` that it kept until it had a database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.base.secrets import redact
from ramify.integrations.formats.attempts import Attempts, named, objects, words
from ramify.integrations.formats.exchanges import Media, object_of, text_of, tool_call
from ramify.integrations.formats.sessions import SessionPath, grow_tree, link_subagent, task_name
from ramify.trace.aliases import KNOWN, NOTHING, Judged, message_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field as field_of
from ramify.trace.lines import read_documents, read_json
from ramify.trace.message import Message, plain
from ramify.trace.node import Insert, Provenance, Span
from ramify.trace.notes import unread

MAKER = "opencode"
_SESSION = frozenset(
    (
        *("id", "slug", "projectID", "workspaceID", "directory", "path", "parentID", "title", "version", "summary", "share"),
        *("time", "revert", "permission", "agent", "model", "cost", "tokens", "metadata"),
    )
)
_INFO = frozenset(
    (
        *("id", "sessionID", "role", "time", "format", "summary", "agent", "model", "fallbackModels", "system", "tools"),
        *("variant", "error", "parentID", "modelID", "providerID", "mode", "path", "cost", "tokens", "structured", "finish"),
    )
)
_QUIET = ("step-start", "patch", "snapshot", "agent", "retry", "compaction")
"""Types of parts that say nothing that the model was told, or said: they are counted."""
_AS_TEXT = ("text/plain", "application/x-directory")
"""Types of files that OpenCode puts before the model as text, in a part beside them."""
_STATES = ("pending", "running", "completed", "error")
_ASKED, _CALLED = "What did we do so far?", "The following tool was executed by the user"
"""What the model is shown for a compaction and for a command that starts a subagent."""
_LIMITS = ("MessageOutputLengthError", "ContextOverflowError")
_NO_FAILURES = ("MessageAbortedError", "StructuredOutputError")
"""A person broke it off, or the model did not answer in the shape that was asked for: nothing failed."""
_STOPS = {"stop": "stop", "tool-calls": "stop", "content-filter": "stop", "length": "length"}


def read_opencode(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from an exported session, several of them, or a folder ``storage``. Returns how many.

    The first prompt names the task. A message of several steps is a reply each, with the results of its calls. A compaction is
    the context of what follows. An error of the last message says whose fault the end was; what an earlier failed reply had said
    the model is not shown again: it is counted. Raises UserError naming file, message and part.
    """
    sessions = _Sessions()
    records = _stored(path) if path.is_dir() else read_documents(path, lambda name, item: item)
    return import_records(path, folder, MAKER, sessions.add, records, end=sessions.end)


def _stored(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The sessions of a folder, as an export has them."""
    if any((path / "part").glob("*.json")):
        raise UserError(f"{path / 'part'} holds parts that are in no message's folder, which is not known here")
    for number, file in enumerate(sorted((path / "session").glob("*/*.json")), 1):
        info = read_json(file, dict)
        messages = []
        for place in sorted((path / "message" / text_of(info, "id", str(file))).glob("*.json")):
            said = read_json(place, dict)
            parts = sorted((path / "part" / text_of(said, "id", str(place))).glob("*.json"))
            messages.append({"info": said, "parts": [read_json(part, dict) for part in parts]})
        yield number, {"info": info, "messages": messages}


@dataclass
class _Entry:
    """A message of a session, as replies and their results."""

    info: Mapping[str, Any]
    spot: str
    messages: list[Message] = field(default_factory=list)
    prompt: str = ""
    """What the person wrote."""
    compacts: Mapping[str, Any] | None = None
    """The part that asks for a compaction."""
    nodes: list[str] = field(default_factory=list)

    @property
    def error(self) -> Mapping[str, Any]:
        return object_of(self.info.get("error") or {}, f"{self.spot}: 'error'")

    @property
    def summary(self) -> bool:
        return self.info["role"] == "assistant" and self.info.get("summary") is True


class _Sessions:
    def __init__(self) -> None:
        self.attempts, self.draws = Attempts(), count()
        self.callers: dict[str, str] = {}
        """Session of a subagent -> the node whose call started it."""
        self.ends: dict[str, str] = {}

    def add(self, run: Run, record: dict[str, Any], place: str, _: int) -> None:
        """Take one session. Raises UserError naming ``place``."""
        session = object_of(record.get("info"), f"{place}: 'info'")
        unread(session, _SESSION, "session")
        unread(record, ("info", "messages", "todos"), "record")
        key = text_of(session, "id", f"{place}: 'info'")
        entries = [self._entry(run, entry, spot) for spot, entry in objects(record.get("messages"), f"{place}: 'messages'")]
        judged = _judged(entries[-1]) if entries else NOTHING
        for entry in entries:
            shown = entry.messages and (entry is entries[-1] or entry.error.get("name") == "MessageAbortedError")
            if entry.error and not shown and not (entry is entries[-1] and judged.stop):
                self.attempts.leave_out(words(entry.error.get("name")), "replies that failed")
                entry.messages = []
        if not any(entry.messages for entry in entries if not entry.summary):
            raise UserError(f"{place} holds no message of a session")
        about = {"session_id" if name == "id" else name: plain(value) for name, value in session.items()}
        todos = {"todos": plain(record["todos"])} if record.get("todos") else {}
        closing: dict[str, Any] = {"record": redact({**about, **todos})}
        prompt = next((entry.prompt for entry in entries if entry.prompt.strip()), "")
        aside = "subagent: " if session.get("parentID") else ""
        name = f"{aside}{task_name(prompt)}" if prompt else key
        path = SessionPath.begin(run, grow_tree(run, name, known=bool(prompt)), next(self.draws))
        self._write(path, entries, judged, closing)
        path.end(judged)
        self.ends[key] = path.node.id

    def _write(self, path: SessionPath, entries: list[_Entry], judged: Judged, closing: dict[str, Any]) -> None:
        ends = [at for at, entry in enumerate(entries) if entry.messages and not entry.summary][-1]
        broken = bool(judged.stop) and ends < len(entries) - 1  # the last reply failed before it said anything
        caller = ""
        for at, entry in enumerate(entries):
            if entry.summary:
                self._compact(path, entries[:at], entry)
                continue
            for number, message in enumerate(entry.messages, 1):
                last = at == ends and number == len(entry.messages) and not broken
                fields: dict[str, Any] = {"stop": judged.stop} if last and judged.stop else {}
                if message.role == "assistant":
                    stop = _STOPS.get(words(message.data.get("finish_reason")), "")
                    fields = {"stop": stop, **fields, "provenance": _provenance(path.run, entry)}
                path.hang(message, message.role == "assistant", last, closing if last else None, **fields)
                entry.nodes.append(path.node.id)
                caller = path.node.id if message.role == "assistant" else caller
                if child := named(message.data, "metadata", "sessionId"):
                    self.callers[str(child)] = caller
        if broken and judged.failure is not None:
            path.fail(judged.failure, closing)
        elif broken:
            path.hang(Message("user", ""), False, True, closing, stop="truncated")

    def _compact(self, path: SessionPath, before: list[_Entry], entry: _Entry) -> None:
        """From here on the model is shown the summary, and before it the last messages where the compaction kept them."""
        if entry.error or not entry.messages or not entry.messages[0].text:
            self.attempts.leave_out("unfinished", "summaries")
            return
        asked = next((some for some in before if some.info.get("id") == entry.info.get("parentID") and some.compacts), None)
        keys = [some.info.get("id") for some in before]
        first = None if asked is None or asked.compacts is None else asked.compacts.get("tail_start_id")
        tail = before[keys.index(first) :] if first in keys else []
        question = [Insert(_ASKED, role="user")] if asked else []
        path.compact(
            [
                *(Span(node, 0, 1) for some in tail for node in some.nodes),
                *question,
                Insert(entry.messages[0].text, role="assistant"),
            ]
        )

    def _entry(self, run: Run, value: Mapping[str, Any], spot: str) -> _Entry:
        info = object_of(value.get("info"), f"{spot}: 'info'")
        role = text_of(info, "role", f"{spot}: 'info'")
        if role not in ("user", "assistant"):
            raise UserError(f"{spot} has the role '{role}', which is none of user, assistant")
        unread(info, _INFO, "message")
        entry = _Entry(info, spot)
        parts = [*objects(value.get("parts"), f"{spot}: 'parts'")]
        if not parts and not entry.error:
            self.attempts.leave_out("no part", "messages")
        if role == "user":
            self._asked(run, entry, parts)
        else:
            entry.messages = [message for step in _steps(parts) for message in self._reply(run, step)]
            last = max((at for at, message in enumerate(entry.messages) if message.role == "assistant"), default=None)
            if last is not None:
                reply = entry.messages[last]
                entry.messages[last] = replace(reply, data={**_of_all(entry, parts), **reply.data})
        return entry

    def _asked(self, run: Run, entry: _Entry, parts: list[tuple[str, Mapping[str, Any]]]) -> None:
        media, texts, about = Media(run.put_blob), list[str](), dict[str, Any]()
        for spot, part in parts:
            kind = text_of(part, "type", spot)
            if kind == "text" and not part.get("ignored"):
                texts.append(text_of(part, "text", spot))
                entry.prompt = entry.prompt or ("" if part.get("synthetic") else texts[-1])
            elif kind == "subtask":
                texts.append(_CALLED)
                entry.prompt, about["subtask"] = entry.prompt or text_of(part, "prompt", spot), plain(part)
            elif kind == "compaction":
                entry.compacts = part
            elif kind == "file" and part.get("mime") not in _AS_TEXT:
                texts.append(_file(media, part, spot))
            else:
                self._leave_out(kind, part)
        if texts:
            entry.messages = [Message("user", "\n\n".join(texts), {**media.data(), **about})]

    def _reply(self, run: Run, parts: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Message]:
        """A reply and the results of its calls; nothing of a step in which nothing was said."""
        media, texts, thoughts = Media(run.put_blob), list[str](), list[str]()
        calls: list[tuple[str, Mapping[str, Any]]] = []
        about: dict[str, Any] = {}
        for spot, part in parts:
            kind = text_of(part, "type", spot)
            if kind in ("text", "reasoning"):
                (texts if kind == "text" else thoughts).append(text_of(part, "text", spot))
            elif kind == "tool":
                calls.append((spot, part))
            elif kind == "file":
                texts.append(_file(media, part, spot))
            elif kind == "step-finish":
                about = {"usage": _usage(part), "finish_reason": part.get("reason")}
            else:
                self._leave_out(kind, part)
        if not (any(texts) or any(thoughts) or calls):
            return
        kept = {name: plain(value) for name, value in about.items() if value}
        kept |= {"reasoning": "\n\n".join(thoughts)} if thoughts else {}
        asked = [_call(part, spot) for spot, part in calls]
        yield Message("assistant", "\n\n".join(texts), {**media.data(), **kept, **({"tool_calls": asked} if asked else {})})
        for spot, part in calls:
            yield from _result(run, part, spot)

    def _leave_out(self, kind: str, part: Mapping[str, Any]) -> None:
        if kind in _QUIET or kind in ("text", "file"):
            self.attempts.leave_out(kind, "parts")
        else:
            unread({kind: "part"}, (), "part")

    def end(self, run: Run) -> None:
        """Link the subagents, and say what was left out."""
        for key, node in self.callers.items():
            if key in self.ends:
                link_subagent(run, node, self.ends[key], MAKER)
        self.attempts.end(run)


def _steps(parts: list[tuple[str, Mapping[str, Any]]]) -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """The parts of each call to the model. Where none begins one, what is said after a call of a tool does."""
    step: list[tuple[str, Mapping[str, Any]]] = []
    begun = called = False
    for spot, part in parts:
        kind = part.get("type")
        if kind == "step-start" or (called and not begun and kind in ("text", "reasoning")):
            yield step
            step, called, begun = [], False, kind == "step-start"
        called = called or kind == "tool"
        step.append((spot, part))
    yield step


def _call(part: Mapping[str, Any], spot: str) -> dict[str, Any]:
    state = object_of(part.get("state"), f"{spot}: 'state'")
    status = text_of(state, "status", f"{spot}: 'state'")
    if status not in _STATES:
        raise UserError(f"{spot}: a call whose state is '{status}', which is none of {', '.join(_STATES)}")
    given = field_of(dict(state), "input", dict, f"{spot}: 'state'", {})
    return tool_call(text_of(part, "callID", spot), text_of(part, "tool", spot), given)


def _result(run: Run, part: Mapping[str, Any], spot: str) -> Iterator[Message]:
    """The result of a call that has ended."""
    state, media = part["state"], Media(run.put_blob)
    about = {"tool_call_id": part["callID"], "name": part["tool"]}
    if isinstance(state.get("metadata"), Mapping) and state["metadata"]:
        about["metadata"] = plain(state["metadata"])
    if state["status"] == "completed":
        texts = [text_of(state, "output", f"{spot}: 'state'")]
        texts += [_file(media, file, at) for at, file in objects(state.get("attachments") or [], f"{spot}: 'attachments'")]
        yield Message("tool", "\n\n".join(texts), {**about, **media.data()})
    elif state["status"] == "error":
        error = text_of(state, "error", f"{spot}: 'state'")
        output = named(state, "metadata", "output") if named(state, "metadata", "interrupted") is True else None
        text = output if isinstance(output, str) else error
        yield Message("tool", text, {**about, "is_error": True, **({"error": error} if text != error else {})})


def _file(media: Media, part: Mapping[str, Any], spot: str) -> str:
    kind = "image" if text_of(part, "mime", spot).startswith("image/") else "file"
    return media.named(kind, "url", text_of(part, "url", spot))


def _of_all(entry: _Entry, parts: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What a message says of all its replies, for the last of them: tokens and cost only where no step has its own."""
    said: dict[str, Any] = {}
    if not any(part.get("type") == "step-finish" for _, part in parts):
        said = {"usage": _usage(entry.info), "finish_reason": entry.info.get("finish")}
    said["structured"] = plain(entry.info.get("structured"))
    said["error"] = message_of(_plainly(entry.error)) if entry.error else None
    return {name: plain(value) for name, value in said.items() if value not in (None, {}, "")}


def _usage(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(fields[name]) for name in ("tokens", "cost") if fields.get(name) is not None}


def _plainly(error: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": error.get("name"), "message": named(error, "data", "message")}


def _judged(last: _Entry) -> Judged:
    """Whose fault the error of the last message is."""
    if not last.error:
        return NOTHING
    name = text_of(last.error, "name", f"{last.spot}: 'error'")
    if name in _NO_FAILURES:
        return NOTHING
    return NOTHING._replace(cut=True) if name in _LIMITS else KNOWN.judged({"error": _plainly(last.error)}, last.spot)


def _provenance(run: Run, entry: _Entry) -> str:
    info = entry.info
    model, provider = (words(info.get(name)) or words(named(info, "model", name)) for name in ("modelID", "providerID"))
    about = {"provider": provider, "mode": words(info.get("agent")) or words(info.get("mode"))}
    provenance = Provenance(model or "unknown", "", {"agent": MAKER, **{name: text for name, text in about.items() if text}}, 0)
    run.add(provenance)
    return provenance.hash


def _is_opencode(path: Path, first: Mapping[str, Any] | None) -> bool:
    if path.is_dir():
        return all((path / name).is_dir() for name in ("session", "message", "part"))
    info, messages = (first or {}).get("info"), (first or {}).get("messages")
    if not isinstance(info, Mapping) or not isinstance(messages, list) or not isinstance(info.get("id"), str):
        return False
    return all(isinstance(message, Mapping) and {"info", "parts"} <= message.keys() for message in messages)


_REPLY = {"role": "assistant", "sessionID": "ses_1", "modelID": "model-x", "providerID": "local", "agent": "build"}
EXAMPLE: dict[str, Any] = {
    "info": {"id": "ses_1", "projectID": "p1", "directory": "/repo", "title": "Fix the test", "version": "1.3.0"},
    "messages": [
        {
            "info": {"id": "msg_1", "sessionID": "ses_1", "role": "user"},
            "parts": [{"type": "text", "text": "Fix the test."}],
        },
        {
            "info": {**_REPLY, "id": "msg_2", "parentID": "msg_1", "cost": 0, "tokens": {"input": 5, "output": 2}},
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "I look first."},
                {
                    "type": "tool",
                    "callID": "c1",
                    "tool": "bash",
                    "state": {"status": "completed", "input": {"command": "ls"}, "output": "test.py"},
                },
                {"type": "step-finish", "reason": "tool-calls", "cost": 0, "tokens": {"input": 5, "output": 2}},
            ],
        },
        {
            "info": {**_REPLY, "id": "msg_3", "parentID": "msg_1", "finish": "stop"},
            "parts": [{"type": "text", "text": "Fixed."}],
        },
    ],
}

register("reader", MAKER)(
    Reader(
        MAKER,
        "Sessions of OpenCode, from `opencode export` or its folder storage: a compaction is a context.",
        _is_opencode,
        read_opencode,
        (),
        json.dumps(EXAMPLE) + "\n",
    )
)
