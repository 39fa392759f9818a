"""OpenHands: ``output.jsonl`` of its evaluations, and the events of a conversation, of the application (``action``,
``observation``) and of its SDK (``kind``), in one file or in a folder of one file an event."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.attempts import Attempts, WholeAttempt, asked, ending, named, words
from ramify.integrations.formats.exchanges import tool_call
from ramify.trace.aliases import RECORD, Judged
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field as field_of
from ramify.trace.lines import read_conversations, read_json
from ramify.trace.message import Message, as_text, number, plain, read_message
from ramify.trace.notes import unread

_KNOWN = frozenset(
    (
        *(
            "instance_id",
            "history",
            "test_result",
            "instruction",
            "metadata",
            "metrics",
            "error",
            "instance",
            "report",
            "success",
        ),
        *("git_patch", "issue", "issue_type", "base_commit", "comment_success", "result_explanation", "attempt"),
    )
)
_SILENT = ("change_agent_state", "recall", "condensation", "condensation_request", "null", "agent_state_changed")
"""Actions and observations of the application that say nothing that the model said or saw."""
_OF_AGENT = re.compile(
    r"agent_?stuck|stuck in a loop|malformed_?action|no_?action|function_?call_?(validation|conversion)|response_?error",
    re.IGNORECASE,
)
_OF_LIMIT = re.compile(
    r"maximum (iteration|budget)|max_?(iterations|budget)|iteration limit|context_?window|budget", re.IGNORECASE
)
_FILE = re.compile(r"event-(\d+)-.*\.json$")
_SDK = re.compile(r"(Event|Observation|Condensation|CondensationRequest)$")


def read_openhands(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from OpenHands' ``output.jsonl``, a file with the events of one conversation, or the folder of
    one. Returns how many attempts.

    The task is ``instance_id``, or of a conversation what its user asked first. An action is a reply with its call of a tool;
    actions of one answer of the model are one reply; an observation is the call's result. The outcome is
    ``test_result.report.resolved`` or ``report.resolved`` where the evaluation wrote it. ``error`` says whose fault a bad end
    was: that an agent was stuck or reached a limit is its own. Changes of state, condensations and what is not a message are
    counted as left out. Raises UserError naming file, event and field.
    """
    importer = _Importer()
    records = _folder(path) if path.is_dir() else read_conversations(path, "history", ("source", "kind"), ("history",))
    return import_records(path, folder, "openhands", importer.add, records, end=importer.attempts.end)


def _events(path: Path) -> list[Path]:
    """The files of a folder that hold an event each, in order."""
    for folder in (path, path / "events"):
        files = sorted((file for file in folder.glob("event-*.json") if _FILE.search(file.name)), key=_number)
        if files:
            return files
    return []


def _number(file: Path) -> int:
    numbered = _FILE.search(file.name)
    return int(numbered[1]) if numbered else 0


def _folder(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    files = _events(path)
    if not files:
        raise UserError(f"{path} holds no event-NUMBER-ID.json of OpenHands")
    yield 1, {"history": [read_json(file, dict) for file in files]}


class _Importer:
    def __init__(self) -> None:
        self.attempts = Attempts()

    def add(self, run: Run, record: dict[str, Any], place: str, _: int) -> None:
        talk = _Conversation(self.attempts)
        history = record.get("history", record.get("messages"))
        for at, entry in enumerate(field_of({"history": history}, "history", list, place, [])):
            spot = f"{place}: 'history': item {at}"
            pair = entry if isinstance(entry, list) else [entry]
            for event in pair:
                if not isinstance(event, Mapping):
                    raise UserError(f"{spot} is not an object")
                talk.add(event, spot)
        rest = {
            key: value
            for key, value in record.items()
            if key not in ("history", "messages", "instance", "metadata", "instruction")
        }
        unread({key: value for key, value in rest.items() if key not in _KNOWN}, RECORD, "record")
        messages = talk.messages()
        if not any(message.role == "user" for message in messages) and (told := words(record.get("instruction"))):
            messages.insert(0, Message("user", told))
        task = field_of(record, "instance_id", (str, int), place, None)
        metadata = record.get("metadata")
        cost = number(named(record, "metrics", "accumulated_cost"))
        attempt = WholeAttempt(
            task=asked(messages) if task is None else str(task),
            messages=messages,
            judged=_judged(record, talk.error, place),
            about=rest,
            model=talk.model or words(named(metadata, "llm_config", "model")),
            settings={
                name: value for name in ("temperature", "top_p") if (value := named(metadata, "llm_config", name)) is not None
            },
            metrics={} if cost is None else {"accumulated_cost": cost},
        )
        self.attempts.hang(run, attempt, place)


def _judged(record: Mapping[str, Any], error: str, place: str) -> Judged:
    said = words(record.get("error")) or error
    result = record.get("test_result")
    flags = (
        named(result, "report", "resolved"),
        named(record, "report", "resolved"),
        named(result, "resolved"),
        record.get("success"),
    )
    resolved = next((flag for flag in flags if isinstance(flag, bool)), None)
    if not said or _OF_AGENT.search(said) or _OF_LIMIT.search(said):
        judged = ending({}, place, resolved)
        return judged._replace(cut=bool(_OF_LIMIT.search(said)))
    return ending({"error": said}, place, resolved)


@dataclass
class _Turn:
    """A message while it is read: a reply grows by further calls of one answer."""

    role: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    """The id of the model's answer that the reply is."""


class _Conversation:
    """Turns events into messages, in order."""

    def __init__(self, attempts: Attempts) -> None:
        self.attempts = attempts
        self.turns: list[_Turn] = []
        self.open: list[str] = []
        """Ids of the calls without a result that the log itself gives none."""
        self.model = self.error = ""

    def messages(self) -> list[Message]:
        """The conversation."""
        return [Message(turn.role, turn.text, turn.data) for turn in self.turns]

    def add(self, event: Mapping[str, Any], spot: str) -> None:
        """One more event. Raises UserError naming ``spot`` where it is of no form known here."""
        if isinstance(kind := event.get("kind"), str):
            self._sdk(event, kind, spot)
        elif isinstance(action := event.get("action"), str):
            self._action(event, action, spot)
        elif isinstance(event.get("observation"), str):
            self._observation(event, event["observation"], spot)
        else:
            raise UserError(f"{spot} has neither 'action' nor 'observation' nor 'kind': it is not an event of OpenHands")

    # the application

    def _action(self, event: Mapping[str, Any], action: str, spot: str) -> None:
        if action in _SILENT:
            self.attempts.leave_out(action, "events")
            return
        args = event.get("args")
        args = (
            args
            if isinstance(args, Mapping)
            else {k: v for k, v in event.items() if k not in ("action", "id", "timestamp", "source")}
        )
        said = next((text for name in ("content", "thought", "final_thought") if (text := words(args.get(name)))), "")
        if action == "system":
            self.turns.append(_Turn("system", said or words(event.get("message"))))
        elif event.get("source") == "user" or (action == "message" and not self.turns):
            self.turns.append(_Turn("user", said if action == "message" else f"{action}({as_text(plain(args))})"))
        elif action == "message":
            self._reply(_Turn("assistant", said, answer=self._answer(event)))
        else:
            self._call(event, action, args, said)

    def _call(self, event: Mapping[str, Any], action: str, args: Mapping[str, Any], said: str) -> None:
        meta = event.get("tool_call_metadata")
        message = next(iter(_listed(named(meta, "model_response", "choices"))), {}).get("message")
        key = words(named(meta, "tool_call_id"))
        name = words(named(meta, "function_name")) or action
        calls = [call for call in _listed(named(message, "tool_calls")) if call.get("id") == key]
        hidden = ("thought", "content", "hidden", "confirmation_state", "is_confirmed", "action_risk", "keep_prompt")
        arguments = named(calls[0], "function", "arguments") if calls else {k: v for k, v in args.items() if k not in hidden}
        if not key and action != "finish":
            key = f"call_{len(self.turns)}"
            self.open.append(key)
        call = tool_call(key, name, arguments)
        if action == "finish":  # nothing answers it
            call.pop("id")
        text = said or words(named(message, "content"))
        reasoning = words(named(message, "reasoning_content"))
        self._reply(
            _Turn(
                "assistant", text, {"tool_calls": [call], **({"reasoning": reasoning} if reasoning else {})}, self._answer(event)
            )
        )

    def _answer(self, event: Mapping[str, Any]) -> str:
        response = named(event.get("tool_call_metadata"), "model_response")
        self.model = self.model or words(named(response, "model"))
        return words(named(response, "id"))

    def _reply(self, turn: _Turn) -> None:
        """A reply, or further calls of the answer that a reply before it began."""
        last = next((earlier for earlier in reversed(self.turns) if earlier.role == "assistant"), None)
        if last is not None and turn.answer and last.answer == turn.answer:
            last.data.setdefault("tool_calls", []).extend(turn.data.get("tool_calls", ()))
        else:
            self.turns.append(turn)

    def _observation(self, event: Mapping[str, Any], kind: str, spot: str) -> None:
        if kind in _SILENT and kind != "recall":
            self.attempts.leave_out(kind, "events")
            return
        content, extras = event.get("content"), event.get("extras")
        text = content if isinstance(content, str) else words(event.get("message"))
        about = (
            {k: plain(v) for k, v in extras.items() if isinstance(v, (bool, int, float))} if isinstance(extras, Mapping) else {}
        )
        about |= {"exit_code": code} if (code := named(extras, "metadata", "exit_code")) is not None else {}
        key = words(named(event.get("tool_call_metadata"), "tool_call_id"))
        if kind == "recall":
            knowledge = plain(extras) if isinstance(extras, Mapping) else {}
            self.turns.append(_Turn("user", text, {"name": "recall", "extras": knowledge}))
        elif key:
            self.turns.append(_Turn("tool", text, {"tool_call_id": key, **({"extras": about} if about else {})}))
        elif self.open:
            self.turns.append(_Turn("tool", text, {"tool_call_id": self.open.pop(0), **({"extras": about} if about else {})}))
        else:
            self.turns.append(_Turn("user", text, {"name": kind}))

    # the SDK

    def _sdk(self, event: Mapping[str, Any], kind: str, spot: str) -> None:
        if kind == "SystemPromptEvent":
            texts = [words(named(event.get(name), "text")) for name in ("system_prompt", "dynamic_context")]
            self.turns.append(_Turn("system", "\n\n".join(text for text in texts if text)))
        elif kind == "MessageEvent":
            message = read_message(event.get("llm_message"), f"{spot}: 'llm_message'")
            role = "assistant" if event.get("source") == "agent" else "user" if message.role == "assistant" else message.role
            more = _text(event.get("extended_content"), spot)
            self._reply(
                _Turn(
                    role, message.text + (f"\n\n{more}" if more else ""), dict(message.data), words(event.get("llm_response_id"))
                )
            )
        elif kind == "ActionEvent":
            call = event.get("tool_call")
            name, key = words(named(call, "name")) or words(event.get("tool_name")), words(event.get("tool_call_id"))
            arguments = named(call, "arguments")
            made = tool_call(key, name, plain(event.get("action")) if arguments is None else arguments)
            reasoning = words(event.get("reasoning_content"))
            data = {"tool_calls": [made], **({"reasoning": reasoning} if reasoning else {})}
            self._reply(_Turn("assistant", _text(event.get("thought"), spot), data, words(event.get("llm_response_id"))))
        elif kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
            self.turns.append(_Turn("tool", _result(event, kind, spot), {"tool_call_id": words(event.get("tool_call_id"))}))
        elif kind == "ConversationErrorEvent":
            self.error = f"{words(event.get('code'))}: {words(event.get('detail'))}"
        else:
            self.attempts.leave_out(kind, "events")


def _result(event: Mapping[str, Any], kind: str, spot: str) -> str:
    if kind == "UserRejectObservation":
        return f"Action rejected: {words(event.get('rejection_reason'))}"
    if kind == "AgentErrorEvent":
        return words(event.get("error"))
    seen = event.get("observation")
    content = named(seen, "content")
    texts = [_text(content, spot) if content is not None else as_text(plain(seen)), _text(event.get("extended_content"), spot)]
    return "\n\n".join(text for text in texts if text)


def _text(parts: Any, spot: str) -> str:
    """The text of a list of parts."""
    return read_message({"role": "user", "content": [] if parts is None else parts}, spot).text


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _is_event(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    if isinstance(kind := value.get("kind"), str):
        return "source" in value and bool(_SDK.search(kind))
    acts = isinstance(value.get("action"), str) and ("args" in value or "thought" in value)
    sees = isinstance(value.get("observation"), str) and ("extras" in value or "content" in value)
    return acts or sees


def _is_openhands(path: Path, first: Mapping[str, Any] | None) -> bool:
    if path.is_dir():
        return bool(_events(path))
    if first is None or _FILE.search(path.name):  # one event of a folder is not a conversation
        return False
    history = first.get("history")
    if isinstance(history, list) and history:
        entry = history[0][0] if isinstance(history[0], list) and history[0] else history[0]
        return _is_event(entry) or (isinstance(entry, Mapping) and isinstance(entry.get("action"), str))
    if "history" in first:
        return {"instance_id", "test_result"} <= first.keys()
    return _is_event(first) and "source" in first


_CALL = {
    "function_name": "execute_bash",
    "tool_call_id": "c1",
    "model_response": {
        "id": "r1",
        "model": "local",
        "choices": [
            {
                "message": {
                    "content": "I look.",
                    "tool_calls": [{"id": "c1", "function": {"name": "execute_bash", "arguments": '{"command": "ls"}'}}],
                }
            }
        ],
    },
}
_EXAMPLE = {
    "instance_id": "repo__repo-1",
    "test_result": {"git_patch": "diff", "report": {"resolved": True}},
    "instruction": "Fix the bug.",
    "metadata": {"agent_class": "CodeActAgent", "llm_config": {"model": "local"}},
    "history": [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "Fix the bug."}},
        {
            "id": 1,
            "source": "agent",
            "action": "run",
            "args": {"command": "ls", "thought": "I look."},
            "tool_call_metadata": _CALL,
        },
        {
            "id": 2,
            "source": "agent",
            "observation": "run",
            "content": "a.py",
            "extras": {"command": "ls"},
            "cause": 1,
            "tool_call_metadata": _CALL,
        },
        {"id": 3, "source": "agent", "action": "finish", "args": {"final_thought": "Done."}},
    ],
    "metrics": {"accumulated_cost": 0.1},
    "error": None,
}
register("reader", "openhands")(
    Reader(
        "openhands",
        "OpenHands: output.jsonl of its evaluations, the events of a conversation, or the folder of one.",
        _is_openhands,
        read_openhands,
        example=json.dumps(_EXAMPLE) + "\n",
    )
)
