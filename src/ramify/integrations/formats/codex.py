"""Codex into a run: rollouts (``~/.codex/sessions``), the bare lines of old ones, and what ``codex exec --json`` prints.

A rollout is one attempt at the task, which the first prompt names; a turn that was rolled back is a branch. Items of the model
that follow each other are one message. A compaction stays on the path: from there on the context of each reply is the history
that replaced it. An error that ended the last turn is a failure, and running out of context a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.base.secrets import redact
from ramify.integrations.formats.exchanges import list_of, object_of, text_of
from ramify.integrations.formats.responses import KINDS, SILENT, ItemTurn
from ramify.integrations.formats.sessions import LooseExchange, SessionPath, grow_tree, task_name
from ramify.trace.aliases import NOTHING, Judged, message_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import at_place
from ramify.trace.lines import field as field_of
from ramify.trace.message import Message, compacted, plain
from ramify.trace.node import Insert, Provenance, Span
from ramify.trace.notes import noting, unread

MAKER = "codex"
_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_STREAM = ("thread.started", "turn.started", "turn.completed", "turn.failed", "item.started", "item.updated", "item.completed")
_SILENT_LINES = ("world_state", "inter_agent_communication", "inter_agent_communication_metadata")
_SILENT_ITEMS = (
    *(*SILENT, "ghost_snapshot", "compaction_trigger", "context_compaction", "configuration_update", "additional_tools"),
    "other",
)
_EVENTS = ("error", "task_started", "turn_started", "task_complete", "turn_complete", "turn_aborted", "thread_rolled_back")
"""Events that say how a turn ended; the others repeat items, or tell a screen what to show."""
_LIMITS = ("context_window_exceeded", "session_budget_exceeded", "budget_limited")
_HARNESS = ("<", "# AGENTS.md instructions")
"""How texts begin that Codex puts before the person's."""
_ITEM = ("id", "type", "role", "content", "summary", "call_id", "name", "arguments", "input", "output", "action", "status")
_META = ("base_instructions", "instructions", "source", "parent_thread_id")
_RUN_ITEMS = {"command_execution": "command", "file_change": "changes", "mcp_tool_call": "arguments", "web_search": "query"}
"""Items of ``codex exec --json`` that are calls -> their arguments."""


def read_codex(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a rollout of Codex or the output of ``codex exec --json``. Returns how many lines it has.

    Raises UserError naming file, line and field: on a field of a wrong type, and an item that cannot be read. Nothing is left in
    ``folder`` then.
    """
    rollout = _Rollout(path)
    return import_records(path, folder, MAKER, rollout.add, end=rollout.end)


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None:
        return False
    kind = first.get("type")
    if kind is None:  # the first line of an old rollout
        return {"id", "timestamp", "instructions"} <= first.keys() and isinstance(first["timestamp"], str)
    if not isinstance(kind, str):
        return False
    if kind in _LINES:
        return isinstance(first.get("payload"), Mapping)
    return kind in _STREAM and ("thread_id" in first or isinstance(first.get("item"), Mapping) or kind == "turn.started")


class _Entry(NamedTuple):
    """A line that says something: what it is, and its content as JSON."""

    place: str
    kind: str
    content: bytes


class _Rollout:
    """Gathers the lines of a file that say something, as JSON of at most the file's size, and makes a tree of them at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[_Entry] = []
        self.left_out: dict[str, int] = {}
        self.prompted = False
        """Whether prompts stand among the items; else they are taken from the events."""
        self.begins = 0
        """The number of the first line that is not the history of the parent of a subagent."""
        self.draws, self.names = count(), count(1)

    # reading

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Take one line. Raises UserError naming ``place``."""
        kind = record.get("type")
        if kind is None:
            if "instructions" in record:
                self._keep(place, "meta", {"base_instructions": {"text": record["instructions"]}})
            elif "record_type" in record:
                self._leave_out("bookkeeping")
            else:
                raise UserError(f"{place}: 'type' is missing")
            return
        kind = text_of(record, "type", place)
        ordinal = record.get("ordinal")
        if isinstance(ordinal, int) and 0 < ordinal < self.begins:
            self._leave_out("history of the parent")
            return
        if kind in KINDS and "payload" not in record:
            self._item(record, kind, place)
        elif kind in _STREAM or (kind == "error" and "message" in record):
            self._streamed(record, kind, place, number)
        elif kind == "token_usage_record":
            usage = field_of(record, "payload", dict, place).get("usage")
            self._keep(place, "usage", usage if isinstance(usage, Mapping) else {})
        elif kind in _LINES:
            self._line(field_of(record, "payload", dict, place), kind, place)
        elif kind in _SILENT_LINES:
            self._leave_out("bookkeeping")
        else:
            unread({kind: "line"}, (), "line")

    def _line(self, payload: dict[str, Any], kind: str, place: str) -> None:
        if kind == "session_meta":
            begins = payload.get("subagent_history_start_ordinal")
            self.begins = begins if isinstance(begins, int) and not self.begins else self.begins
            self._keep(place, "meta", {name: payload.get(name) for name in _META})
        elif kind == "turn_context":
            settings = {name: payload[name] for name in ("model", "effort") if isinstance(payload.get(name), str)}
            self._keep(place, "settings", settings)
        elif kind == "response_item":
            self._item(payload, text_of(payload, "type", f"{place}: 'payload'"), place)
        elif kind == "compacted":
            history = field_of(payload, "replacement_history", list, f"{place}: 'payload'", None)
            text = text_of(payload, "message", f"{place}: 'payload'", "")
            for item in history or []:
                self._read(object_of(item, f"{place}: an item of 'replacement_history'"), place)
            self._keep(place, "compacted", {"message": text, "history": history})
        else:
            name = text_of(payload, "type", f"{place}: 'payload'")
            if name in _EVENTS:
                kept = ("type", "num_turns", "message", "codex_error_info", "error", "reason")
                if name == "thread_rolled_back":
                    field_of(payload, "num_turns", int, f"{place}: 'payload'")
                self._keep(place, "event", {key: payload[key] for key in kept if payload.get(key) is not None})
            elif name == "user_message" and isinstance(payload.get("message"), str):
                part = {"type": "input_text", "text": payload["message"]}
                self._keep(place, "asked", {"type": "message", "role": "user", "content": [part]})
            else:
                self._leave_out("event_msg")

    def _item(self, item: dict[str, Any], kind: str, place: str) -> None:
        if kind in ("tool_search_call", "tool_search_output"):
            called = kind == "tool_search_call"
            arguments = json.dumps(plain(item.get("arguments"))) if called else ""
            told = {"name": "tool_search", "arguments": arguments} if called else {"output": json.dumps(plain(item.get("tools")))}
            item = {"type": "function_call" if called else "function_call_output", "call_id": item.get("call_id"), **told}
        elif kind in _SILENT_ITEMS:
            self._leave_out(kind)
            return
        elif kind == "agent_message" and isinstance(item.get("content"), str):  # of another agent
            text = f"{item.get('author')}: {item['content']}"
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        elif kind not in KINDS and compacted(item) is None:
            unread({kind: "item"}, (), "item")
            return
        self._read(item, place)
        self._keep(place, "item", item)
        self.prompted = self.prompted or any(map(_is_prompt, _messages(ItemTurn(lambda data: "", LooseExchange()), item, place)))

    def _read(self, item: Mapping[str, Any], place: str) -> None:
        """Say now what is wrong with an item, when its line is known."""
        turn = ItemTurn(lambda data: "", LooseExchange())
        with at_place(place):
            for _ in _messages(turn, item, place):
                pass

    def _streamed(self, record: dict[str, Any], kind: str, place: str, number: int) -> None:
        if kind in ("thread.started", "turn.started"):
            self._keep(place, "thread" if kind == "thread.started" else "event", {"type": "task_started"})
        elif kind == "turn.completed":
            self._keep(place, "usage", field_of(record, "usage", dict, place, {}))
            self._keep(place, "event", {"type": "task_complete"})
        elif kind in ("turn.failed", "error"):
            why = message_of(record.get("error")) or message_of(record.get("message")) or "it gives no reason"
            self._keep(place, "event", {"type": "error", "message": why})
        else:
            item = field_of(record, "item", dict, place)
            for each in self._run_item(item, kind, f"{place}: 'item'", number):
                self._read(each, place)
                self._keep(place, "item", each)

    def _run_item(self, item: dict[str, Any], kind: str, spot: str, number: int) -> Iterator[dict[str, Any]]:
        """An item of ``codex exec --json`` as items of the Responses interface."""
        what, key = text_of(item, "type", spot), text_of(item, "id", spot, f"line {number}")
        done = kind == "item.completed"
        if what == "agent_message":
            text = {"type": "output_text", "text": text_of(item, "text", spot)}
            yield from [{"type": "message", "role": "assistant", "content": [text]}] if done else []
        elif what == "reasoning":
            text = {"type": "summary_text", "text": text_of(item, "text", spot)}
            yield from [{"type": "reasoning", "summary": [text]}] if done else []
        elif what in _RUN_ITEMS and kind != "item.updated":
            name = ".".join(str(item[part]) for part in ("server", "tool") if item.get(part)) or what
            arguments = {_RUN_ITEMS[what]: item.get(_RUN_ITEMS[what])}
            called = {"type": "function_call", "call_id": key, "name": name, "arguments": json.dumps(plain(arguments))}
            yield called | {"seen": done}
            if done:
                yield {"type": "function_call_output", "call_id": key, "output": _told(item, what)}
        else:
            self._leave_out("bookkeeping" if what in (*_RUN_ITEMS, "todo_list", "error") else what)

    def _keep(self, place: str, kind: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, separators=(",", ":"))
        self.entries.append(_Entry(place, kind, text.encode("utf-8", "surrogatepass")))

    def _leave_out(self, name: str) -> None:
        self.left_out[name] = self.left_out.get(name, 0) + 1

    # making trees

    def end(self, run: Run) -> None:
        """Make the trees. Raises UserError where the file holds no message."""
        talk, attempts = _Talk(self, run), 0
        with noting():  # what is not understood was counted line by line
            for entry in self.entries:
                content = json.loads(entry.content)
                with at_place(entry.place):
                    if entry.kind == "asked" and self.prompted:
                        self._leave_out("event_msg")
                    elif entry.kind == "thread":
                        attempts += talk.finish()
                        talk = _Talk(self, run)
                    else:
                        talk.take(entry, content)
            attempts += talk.finish()
        if not attempts:
            raise UserError(f"{self.path} holds no message of a session")
        for name, many in self.left_out.items():
            run.log("ignored", name, {"count": many, "what": "lines"})


class _Talk:
    """One conversation while it is put into its tree. The last message is held back, since it is written with how it ended."""

    def __init__(self, rollout: _Rollout, run: Run) -> None:
        self.rollout, self.run = rollout, run
        self.turn = ItemTurn(run.put_blob, LooseExchange())
        self.path: SessionPath | None = None
        self.opening: list[Message] = []
        self.held: tuple[Message, dict[str, Any]] | None = None
        self.turns: list[SessionPath] = []
        """Where each prompt was given."""
        self.nodes: dict[tuple[str, str], str] = {}
        """Role and text of what was said -> its node."""
        self.instructed = ""
        """The instructions, which stand before every history."""
        self.open: set[str] = set()
        self.meta: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.ending: Judged = NOTHING
        self.made = 0

    def take(self, entry: _Entry, content: dict[str, Any]) -> None:
        """One more line."""
        if entry.kind == "meta":
            if not self.meta:
                self.meta = content
                text = content.get("base_instructions")
                text = text.get("text") if isinstance(text, Mapping) else text or content.get("instructions")
                if isinstance(text, str) and text:
                    self.opening, self.instructed = [Message("system", text)], text
        elif entry.kind == "settings":
            self._flush()
            self.settings |= content
        elif entry.kind == "usage":
            self.usage = content or self.usage
        elif entry.kind == "event":
            self._flush()
            self._event(content)
        elif entry.kind == "compacted":
            self._compact(content["message"], content["history"], entry.place)
        else:
            if content.pop("seen", False) and content["call_id"] in self.open:
                return  # it began on an earlier line
            if content.get("type") == "function_call":
                self.open.add(content["call_id"])
            for message in _messages(self.turn, content, entry.place):
                self._say(message)

    def _event(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind in ("task_started", "turn_started"):
            self.ending = NOTHING
        elif kind == "thread_rolled_back":
            self._roll_back(event["num_turns"])
        elif kind == "turn_aborted":
            self.ending = NOTHING._replace(cut=event.get("reason") in _LIMITS)
        elif kind == "error" or event.get("error"):
            self.ending = _fault(event["error"] if isinstance(event.get("error"), Mapping) else event)
        elif self.ending.failure is not None:
            self.ending = NOTHING

    def _say(self, message: Message) -> None:
        replied = message.role == "assistant"
        prompt = _is_prompt(message)
        if self.path is None:
            if not (prompt or replied):
                self.opening.append(message)
                return
            self._open(message.text if prompt else "")
        self._settle()
        assert self.path is not None
        if prompt:
            self.turns.append(self.path.branch(self.path.completion))
        about = {"response": {"usage": redact(plain(self.usage))}} if replied and self.usage else {}
        self.usage = {} if replied else self.usage
        self.held = message, about

    def _open(self, prompt: str) -> None:
        source = self.meta.get("source")
        called = (isinstance(source, Mapping) and "subagent" in source) or self.meta.get("parent_thread_id")
        aside = "subagent: " if called else ""
        name = f"{aside}{task_name(prompt)}" if prompt else f"chat-{next(self.rollout.names):06d}"
        tree = grow_tree(self.run, name, known=bool(prompt))
        self.path = SessionPath.begin(self.run, tree, next(self.rollout.draws))
        for message in self.opening:
            self._settle()
            self.held = message, {}
        self.opening = []

    def _settle(self, last: bool = False, **fields: Any) -> None:
        """Write the message that is held back."""
        if self.held is None or self.path is None:
            return
        (message, about), self.held = self.held, None
        replied = message.role == "assistant"
        if replied:
            effort = {"effort": self.settings["effort"]} if "effort" in self.settings else {}
            provenance = Provenance(self.settings.get("model") or "unknown", "", {"agent": MAKER, **effort}, 0)
            self.run.add(provenance)
            fields["provenance"] = provenance.hash
        node = self.path.hang(message, replied, last, about or None, **fields)
        self.nodes[message.role, message.text] = node.id

    def _flush(self) -> None:
        for message in self.turn.flush():
            self._say(message)

    def _compact(self, text: str, history: list[Any] | None, place: str) -> None:
        pending = [*self.turn.flush()]
        if not (len(pending) == 1 and pending[0].text and text.rstrip().endswith(pending[0].text.rstrip())):  # else the summary
            for message in pending:
                self._say(message)
        if self.path is None:
            self._open("")
        self._settle()
        assert self.path is not None
        if history is None:
            given = [node for node, _ in self.run.path(self.path.node.id).segments if node.role in ("system", "user")]
            self.path.compact([*(Span(node.id, 0, 1) for node in given if len(node)), Insert(text, role="user")])
            return
        turn = ItemTurn(self.run.put_blob, LooseExchange())
        said = [message for item in history for message in _messages(turn, item, place)]
        said += turn.flush()
        parts = [self._part(message) for message in said]
        base = [Span(node, 0, 1) for node in (self.nodes.get(("system", self.instructed)),) if node]
        self.path.compact([*(part for part in base if part not in parts), *parts])

    def _part(self, message: Message) -> Span | Insert:
        node = self.nodes.get((message.role, message.text))
        text = message.text or ("[an encrypted compaction]" if "content" in message.data else "")
        return Insert(text, role=message.role) if node is None else Span(node, 0, 1)

    def _roll_back(self, turns: int) -> None:
        """The last turns were taken back: they are an attempt, and what follows branches off before them."""
        self._end()
        if self.path is None or turns < 1:
            return
        before = self.turns[-turns] if turns <= len(self.turns) else SessionPath.begin(self.run, self.path.tree, 0)
        del self.turns[-turns:]
        self.path = before.branch(next(self.rollout.draws))

    def _end(self) -> None:
        """Write the attempt so far, where it has anything of its own."""
        self._flush()
        if self.held is None or self.path is None:
            return
        if self.ending.failure is not None:
            self._settle()
            self.path.fail(self.ending.failure)
        else:
            self._settle(True, **({"stop": "truncated"} if self.ending.cut else {}))
        self.path.end(self.ending)
        self.made += 1

    def finish(self) -> int:
        """Write what is left; returns how many attempts there were."""
        self._flush()
        if self.path is None and (self.opening or self.ending != NOTHING):
            self._open("")
            self.held = self.held or (Message("user", ""), {})
        self._end()
        return self.made


def _is_prompt(message: Message) -> bool:
    """Whether a person, or another agent, wrote it."""
    return message.role == "user" and bool(message.text.strip()) and not message.text.lstrip().startswith(_HARNESS)


def _messages(turn: ItemTurn, item: Mapping[str, Any], place: str) -> Iterator[Message]:
    """The messages that an item ends or is; what a harness adds to items of the interface is left out."""
    known = item if compacted(item) is not None else {name: item[name] for name in _ITEM if item.get(name) is not None}
    kind = "compaction" if compacted(item) is not None else text_of(item, "type", place)
    if kind.endswith("_call") and "id" not in known and "call_id" not in known:
        known = {**known, "id": f"{kind} of {place.rpartition(':')[2]}"}
    if kind not in (*KINDS, "compaction") or kind in SILENT:
        return
    yield from turn.add(known, kind, place)


def _fault(error: Mapping[str, Any]) -> Judged:
    """Whose fault an error is: the context that is full is the model's, anything else is not."""
    code = error.get("codex_error_info")
    name = next(iter(code), "") if isinstance(code, Mapping) else code
    if name in _LIMITS:
        return NOTHING._replace(cut=True)
    why = message_of(error.get("message")) or "it gives no reason"
    return NOTHING._replace(failure=f"{name}: {why}" if isinstance(name, str) and name not in ("", "other") else why)


def _told(item: Mapping[str, Any], what: str) -> str:
    """What a call of ``codex exec --json`` gave, as text."""
    if what == "command_execution":
        output = item.get("aggregated_output")
        code = item.get("exit_code")
        return f"{output if isinstance(output, str) else ''}" + (f"\n(exit code {code})" if code not in (0, None) else "")
    if what == "mcp_tool_call":
        told = item.get("error") or item.get("result")
        parts = told.get("content") if isinstance(told, Mapping) else None
        texts = [
            part["text"]
            for part in list_of(parts or [], "'content'")
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        ]
        return "".join(texts) if texts else json.dumps(plain(told))
    return str(item.get("status") or "")


EXAMPLE: list[dict[str, Any]] = [
    {"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {"id": "s1", "cwd": "/repo", "cli_version": "0.1"}},
    {
        "timestamp": "2026-01-01T00:00:00Z",
        "type": "turn_context",
        "payload": {"cwd": "/repo", "model": "gpt-x", "effort": "high"},
    },
    *(
        {"timestamp": "2026-01-01T00:00:01Z", "type": "response_item", "payload": payload}
        for payload in (
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix the test."}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}], "encrypted_content": "gAAA"},
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"command":["ls"]}'},
            {"type": "function_call_output", "call_id": "c1", "output": "test.py"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Fixed."}]},
        )
    ),
    {"timestamp": "2026-01-01T00:00:02Z", "type": "event_msg", "payload": {"type": "task_complete"}},
]

register("reader", MAKER)(
    Reader(
        MAKER,
        "Rollouts of Codex (~/.codex/sessions) and `codex exec --json`: a turn rolled back is a branch, a compaction a context.",
        _matches,
        read_codex,
        (),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
