"""Chat logs in the form of OpenAI's as text-only nodes: whole conversations, and logs of single calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.trace.aliases import KNOWN, RECORD, Fields, Found
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, import_records, open_attempt, root
from ramify.trace.lines import field, read_conversations
from ramify.trace.message import Message, plain, read_message, read_messages, refuse_unknown, unanswered
from ramify.trace.node import Node, Provenance
from ramify.trace.notes import opened, unread

#: Fields around the choices of an answer.
ENVELOPE = ("id", "object", "model", "created", "usage", "system_fingerprint", "service_tier", "error", "prompt_filter_results")
#: OpenAI's finish reasons -> a node's stop reason.
FINISHED = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop", "content_filter": "stop"}


def read_chats(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from chats, one a line: ``{"messages": [{"role", "content"}, ...]}``. Returns how many.

    Optional, under any name of :mod:`ramify.trace.aliases`: the task (chats of one task share a tree, otherwise each line is its
    own), a reward or success (a score of scorer "imported" on the last message; rewards by name are one each), and the task's
    right answer. Other fields are kept with the last message. A line may also be the log of one
    call, ``{"request": {...}, "response": {...}}``; a reply that a later call of the same task repeats in its request is the node
    that was sampled. A file that is one JSON document holds one chat, a list of chats, or the list of one chat's messages. Raises
    UserError naming file and line; nothing is left in ``folder`` then.
    """
    calls = Calls(fields)

    def add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
        if "messages" not in record and "request" in record and "response" in record:
            calls.add(run, record, place, number)
        else:
            values = enumerate(field(record, "messages", list, place))
            messages = [message for at, value in values for message in _read(value, f"{place}: message {at}")]
            hang_chat(run, record, place, number, messages, {"messages"}, fields)

    return import_records(path, folder, "chats", add, read_conversations(path, "messages"))


_BLOCKS = {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use"}
_ITEMS = {"reasoning", "item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}
_WHOSE = {"anthropic": "a block of Anthropic's messages", "responses": "an item of OpenAI's Responses interface"}


def part_of(value: Any) -> tuple[str, str] | None:
    """The reader that a message or item needs beyond OpenAI's chat format, and the evidence for it; None of any other."""
    if not isinstance(value, Mapping):
        return None
    kind = value.get("type")
    if isinstance(kind, str) and "role" not in value and (kind in _ITEMS or kind.endswith(("_call", "_call_output"))):
        return "responses", kind
    content = value.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and (kind in _BLOCKS or kind.endswith("_tool_result")):
            return "anthropic", kind
    return None


def form_of(first: Mapping[str, Any] | None) -> str | None:
    """Which reader a file is for, by its first record: "anthropic", "responses", or None where it is neither's."""
    if first is None:
        return None
    if isinstance(response := first.get("response"), Mapping) and "request" in first:
        if response.get("object") == "response" or isinstance(response.get("output"), list):
            return "responses"
        return "anthropic" if response.get("type") == "message" and "choices" not in response else None
    if isinstance(messages := first.get("messages"), list):
        form = next((form[0] for form in map(part_of, messages) if form), None)
        roles = {value.get("role") for value in messages if isinstance(value, Mapping)}
        return form or ("anthropic" if "system" in first and roles <= {"user", "assistant"} else None)
    items = [value for name in ("items", "input", "output") if isinstance(value := first.get(name), list)]
    if any(
        isinstance(item, Mapping) and ("type" in item and ("role" in item or part_of(item))) for some in items for item in some
    ):
        return "responses"
    if "role" in first and first.get("type") == "message":
        return "anthropic" if "stop_reason" in first else "responses"
    part = part_of(first)
    return None if part is None else part[0]


def _read(value: Any, spot: str) -> list[Message]:
    """A message, or one for each result that it holds; refused where it holds content that only another reader understands."""
    part = part_of(value)
    if part is not None:
        raise UserError(f"{spot} holds '{part[1]}', which is {_WHOSE[part[0]]}: import it with --from {part[0]}")
    return read_messages(value, spot)


def hang_chat(
    run: Run,
    record: Mapping[str, Any],
    place: str,
    number: int,
    messages: Sequence[Message],
    taken: Collection[str],
    fields: Fields = KNOWN,
) -> None:
    """Hang one whole conversation, whose replies were all sampled, in the tree of its record's task, or one of its own.

    ``taken`` are the fields of the record that its reader has read; those with the task and the outcome are read here, the others
    kept with the last message. Raises UserError naming ``place``.
    """
    task, answer, judged = fields.task_of(record, place), fields.answer_of(record, place), fields.judged(record, place)
    if not messages and judged.failure is None:
        raise UserError(f"{place}: 'messages' is empty, and no failure is named that ended the attempt before it began")
    known = {*taken, *judged.names, *([task.name] if task else ())}
    extra = {k: v for k, v in record.items() if k not in known}
    unread(extra, RECORD | {answer.name if answer else ""}, "record")
    about = {**({"record": plain(extra)} if extra else {}), **open_calls(messages)}
    thread = Thread(run, _tree(run, task, number, answer), number)
    for at, message in enumerate(messages or [Message("user", "")], 1):
        last = at == max(1, len(messages))
        stop = {"stop": judged.stop} if last and judged.stop else {}
        thread.hang(message, message.role == "assistant", last, about if last else None, **stop)
    end_attempt(run, thread.node, judged)


def open_calls(messages: Sequence[Message]) -> dict[str, Any]:
    """The mark of an attempt's calls without a result, among the data of its last message; they are counted."""
    calls = unanswered(messages)
    opened(len(calls))
    return {"unanswered": calls} if calls else {}


class CallReply(NamedTuple):
    """The answer to a call: its messages (several where the provider called its own tools in between)."""

    messages: Sequence[Message]
    stop: str = ""
    about: Mapping[str, Any] = {}
    """Further fields of the answer."""


def read_exchange(
    request: dict[str, Any], response: dict[str, Any], place: str
) -> tuple[list[Message], list[CallReply], dict[str, Any]]:
    """A call: what was given, each choice of its answer, and the answer's other fields. Raises UserError naming ``place``."""
    sent = field(request, "messages", list, f"{place}: 'request'")
    given = [said for at, value in enumerate(sent) for said in read_messages(value, f"{place}: message {at} of the request")]
    replies = []
    if response.get("choices") is None and not response.get("error"):
        refuse_unknown(response, ENVELOPE, f"{place}: 'response'", "'choices' nor 'error'")
    for at, choice in enumerate(field(response, "choices", list, f"{place}: 'response'", [])):
        spot = f"{place}: choice {at} of the response"
        if not isinstance(choice, dict):
            raise UserError(f"{spot} is not an object")
        message = read_message({"role": "assistant", **field(choice, "message", dict, spot)}, spot)
        rest = {k: v for k, v in choice.items() if k != "message" and v is not None}
        unread(rest, ("finish_reason", "logprobs", "index", "stop_reason", "content_filter_results"), "choice")
        replies.append(CallReply([message], FINISHED.get(str(choice.get("finish_reason")), ""), rest))
    return given, replies, {k: v for k, v in response.items() if k != "choices"}


class Calls:
    """Logs of single calls. Keeps a hash of each sampled reply by position and content, to find it again in a request."""

    def __init__(self, fields: Fields = KNOWN) -> None:
        self._fields = fields
        self._sampled: dict[str, str] = {}
        self._draws = count()

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Hang one call below what its request repeats. Raises UserError naming ``place``."""
        request, response = field(record, "request", dict, place), field(record, "response", dict, place, {})
        given, replies, envelope = read_exchange(request, response, place)
        self.hang(run, record, place, number, given, replies, provenance_of(request, response), envelope)

    def hang(
        self,
        run: Run,
        record: Mapping[str, Any],
        place: str,
        number: int,
        given: Sequence[Message],
        replies: Sequence[CallReply],
        provenance: Provenance,
        envelope: Mapping[str, Any],
        taken: Collection[str] = ("request", "response"),
        at: Node | None = None,
    ) -> Node:
        """Hang one call: what was ``given`` (below ``at`` where the request says so), its replies, and ``envelope``, what else
        the answer holds. Returns the last node of the last reply. ``taken`` as in :func:`hang_chat`.
        """
        task, judged = self._fields.task_of(record, place, record_id=False), self._fields.judged(record, place)
        answer = self._fields.answer_of(record, place)
        left = {k: v for k, v in record.items() if k not in {*taken, *judged.names}}
        unread(left, RECORD | {answer.name if answer else ""}, "record")
        extra = {k: v for k, v in record.items() if k not in {*taken, *judged.names, *([task.name] if task else ())}}
        tree = _tree(run, task, number, answer) if at is None else at.tree
        thread = Thread(run, tree, next(self._draws), at)
        origin = at
        for message in given:
            known = self._sampled.get(_key(thread.node, message))
            if known is not None:
                thread.node = origin = run.node(known)
            else:
                thread.hang(message, message.role == "assistant")
        run.add(provenance)
        before = None if origin is None else open_attempt(run, origin)
        about = _redacted({**envelope, **({"record": extra} if extra else {})})
        if not replies:  # the call failed, or the log lacks its result: an attempt that ended there
            thread.hang(Message("assistant", "", {"response": about}), True, stop="failed", provenance=provenance.hash)
            end_attempt(run, thread.node, judged, before)
        end = thread.node
        for index, reply in enumerate(replies):
            each = Thread(run, tree, thread.completion if index == 0 else next(self._draws), thread.node)
            for i, message in enumerate(reply.messages, 1):
                key, sampled, last = _key(each.node, message), message.role == "assistant", i == len(reply.messages)
                rest = {"response": plain({**about, **reply.about})} if last else None
                fields = {"stop": reply.stop} if last else {}
                end = each.hang(message, sampled, last, rest, **fields, **({"provenance": provenance.hash} if sampled else {}))
                self._sampled.setdefault(key, end.id)
            end_attempt(run, end, judged, before if index == 0 else None, provenance=provenance.hash)
        return end


def _key(parent: Node, message: Message) -> str:
    calls, parts = message.data.get("tool_calls"), message.data.get("content")
    return stable_hash(parent.id, message.role, message.text, canonical_json(calls), canonical_json(parts))


def provenance_of(request: Mapping[str, Any], response: Mapping[str, Any]) -> Provenance:
    """The model of a call, with the settings of its request, API keys removed."""
    settings = {k: v for k, v in request.items() if k not in ("messages", "input", "system", "instructions", "model", "seed")}
    seed, model = request.get("seed"), response.get("model") or request.get("model")
    return Provenance(str(model or "unknown"), "", _redacted(settings), seed if type(seed) is int else 0)


def _redacted(value: dict[str, Any]) -> dict[str, Any]:
    """A log of calls may hold request headers and keys."""
    from ramify.base.secrets import redact

    safe: dict[str, Any] = redact(plain(value))
    return safe


def _tree(run: Run, task: Found | None, number: int, answer: Found | None) -> str:
    """The tree of a task, or one of its own, with the answer that the task's first record names."""
    tree = f"chat-{number:06d}" if task is None else str(task.value)
    if not run.has_tree(tree):
        facts = {} if answer is None or answer.value is None else {"answer": plain(answer.value)}
        run.add_tree(tree, facts if task is None else {"id": tree, **facts})
    root(run, tree)
    return tree
