"""Chat logs in the form of OpenAI's as text-only nodes: whole conversations, and logs of single calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.trace.aliases import KNOWN, Fields, Found
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, import_records, root
from ramify.trace.lines import field, read_document, read_lines
from ramify.trace.message import Message, plain, read_message
from ramify.trace.node import Node, Producer

#: Why a call ended, in OpenAI's words, as a node says it.
FINISHED = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop", "content_filter": "stop"}


def read_chats(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from chats, one a line: ``{"messages": [{"role", "content"}, ...]}``. Returns how many.

    Optional, under any name of :mod:`ramify.trace.aliases`: the task (chats of one task share a tree, otherwise each line is its own),
    and a reward or success (a verdict of scorer "imported" on the last message; rewards by name are one each). Other fields are kept
    with the last message. A line may also be the log of one
    call, ``{"request": {...}, "response": {...}}``; a reply that a later call of the same task repeats in its request is the node
    that was drawn. A file that is one JSON document holds one chat, a list of chats, or the list of one chat's messages. Raises
    UserError naming file and line; nothing is left in ``folder`` then.
    """
    calls = Calls(fields)

    def add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
        if "messages" not in record and "request" in record and "response" in record:
            calls.add(run, record, place, number)
        else:
            _add_chat(run, record, place, number, fields)

    return import_records(path, folder, "chats", add, _records(path))


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, record) of JSON lines, or of one JSON document, where a chat's place in its list stands for the line."""
    document = read_document(path)
    if document is None:
        yield from read_lines(path)
        return
    if isinstance(document, list) and document and isinstance(document[0], dict) and "role" in document[0]:
        document = {"messages": document}
    for number, record in enumerate(document if isinstance(document, list) else [document], 1):
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: item {number} of the list is no object")
        yield number, record


def _add_chat(run: Run, record: dict[str, Any], place: str, number: int, fields: Fields) -> None:
    messages = field(record, "messages", list, place)
    if not messages:
        raise UserError(f"{place}: 'messages' is empty")
    task, judged = fields.task_of(record, place), fields.judged(record, place)
    taken = {"messages", *judged.names, *([task.name] if task else ())}
    thread = Thread(run, _tree(run, task, number), number)
    for at, value in enumerate(messages):
        said = read_message(value, f"{place}: message {at}")
        last = at == len(messages) - 1
        extra = {k: v for k, v in record.items() if k not in taken} if last else {}
        thread.hang(said, said.role == "assistant", last, {"record": plain(extra)} if extra else None)
    run.add(*judged.verdicts(thread.node.id))


class Calls:
    """Logs of single calls. Remembers each drawn reply by its place and content, a few words each, to find it again in a request."""

    def __init__(self, fields: Fields = KNOWN) -> None:
        self._fields = fields
        self._drawn: dict[str, str] = {}
        self._draws = count()

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Hang one call below what its request repeats. Raises UserError naming ``place``."""
        request, response = field(record, "request", dict, place), field(record, "response", dict, place, {})
        task, judged = self._fields.task_of(record, place, record_id=False), self._fields.judged(record, place)
        taken = {"request", "response", *judged.names, *([task.name] if task else ())}
        tree = _tree(run, task, number)
        thread = Thread(run, tree, next(self._draws))
        for at, value in enumerate(field(request, "messages", list, f"{place}: 'request'")):
            said = read_message(value, f"{place}: message {at} of the request")
            known = self._drawn.get(_key(thread.node, said))
            if known is not None:
                thread.node = run.node(known)
            else:
                thread.hang(said, said.role == "assistant")
        producer = _producer(request, response)
        run.add(producer)
        extra = {k: v for k, v in record.items() if k not in taken}
        about = _redacted({k: v for k, v in response.items() if k != "choices"} | ({"record": extra} if extra else {}))
        choices = field(response, "choices", list, f"{place}: 'response'", [])
        if not choices:  # the call failed, or the log does not tell what came of it: an attempt that ended there
            thread.hang(Message("assistant", "", {"response": about}), True, stop="failed", producer=producer.hash)
            run.add(*judged.verdicts(thread.node.id))
        for at, choice in enumerate(choices):
            spot = f"{place}: choice {at} of the response"
            if not isinstance(choice, dict):
                raise UserError(f"{spot} is no object")
            said = read_message({"role": "assistant", **field(choice, "message", dict, spot)}, spot)
            rest = {k: v for k, v in choice.items() if k != "message" and v is not None}
            stop = FINISHED.get(str(choice.get("finish_reason")), "")
            each = Thread(run, tree, thread.draw if at == 0 else next(self._draws), thread.node)
            key = _key(thread.node, said)
            node = each.hang(said, True, about={"response": plain(about | rest)}, stop=stop, producer=producer.hash)
            self._drawn.setdefault(key, node.id)
            run.add(*judged.verdicts(node.id))


def _key(parent: Node, said: Message) -> str:
    calls, parts = said.data.get("tool_calls"), said.data.get("content")
    return stable_hash(parent.id, said.role, said.text, canonical_json(calls), canonical_json(parts))


def _producer(request: dict[str, Any], response: dict[str, Any]) -> Producer:
    settings = {k: v for k, v in request.items() if k not in ("messages", "model", "seed")}
    seed, model = request.get("seed"), response.get("model") or request.get("model")
    return Producer(str(model or "unknown"), "", _redacted(settings), seed if type(seed) is int else 0)


def _redacted(value: dict[str, Any]) -> dict[str, Any]:
    """A log of calls may hold what was sent with them: headers, keys."""
    from ramify.base.secrets import redact

    found: dict[str, Any] = redact(plain(value))
    return found


def _tree(run: Run, task: Found | None, number: int) -> str:
    """The tree of a task, or one of its own."""
    tree = f"chat-{number:06d}" if task is None else str(task.value)
    run.add_tree(tree, {} if task is None else {"id": tree})
    root(run, tree)
    return tree
