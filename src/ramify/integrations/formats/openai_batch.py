"""OpenAI's Batch in and out: files of requests and of their answers, one a line, matched by ``custom_id``."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ramify.base.config import Config, check
from ramify.base.errors import UserError, nearest
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import text_of
from ramify.integrations.formats.protocols import CHAT, protocol_of, read_wire
from ramify.integrations.formats.spans import CallTrees, task_name
from ramify.integrations.trainers.rows import count_media, settings_of, write_table
from ramify.trace.aliases import KNOWN, NOTHING, message_of
from ramify.trace.chats import provenance_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader, UnknownFormatError, Writer
from ramify.trace.lines import field, first_record, read_lines
from ramify.trace.message import Message, plain
from ramify.trace.node import Node
from ramify.trace.notes import noting, skipping, unread
from ramify.trace.offered import tools_of
from ramify.trace.view import View, views

_BESIDE = 200
"""So many files of a folder are looked at for the requests of a batch."""
_ASKED = re.compile(r"(.+)/[0-9a-f]{24}", re.DOTALL)
"""The ``custom_id`` of a request that a run wrote: task and node."""


def read_batch(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from the answers of a batch. Returns how many lines were read.

    The requests stand in the same file, or in a file of the same folder. Each answer is an attempt at the task that its request
    begins with; a request that ``ramify export --to openai-batch`` wrote is of the tree that it was written from. Raises
    UserError naming file, line and field, also where an answer's request is not there. Nothing is left in ``folder`` then."""
    with closing(_Requests()) as requests:
        with noting(skipping()):  # what is wrong with a line is counted where the line is read
            answers = requests.take(path)
        if not answers:
            raise _lonely(path, len(requests))
        requests.look_beside(path)
        draws = count()

        def add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
            if _is_answer(record):  # no answer continues another
                _add(run, record, place, CallTrees(run, draws), requests)
            elif not _is_request(record):
                raise UserError(f"{place}: it is neither a request ('method', 'url', 'body') nor an answer ('response', 'error')")

        def end(run: Run) -> None:
            if requests.open:
                run.log("ignored", "without an answer", {"count": requests.open, "what": "requests"})

        return import_records(path, folder, "openai-batch", add, end=end)


def _lonely(path: Path, asked: int) -> UserError:
    if not asked:
        return UserError(f"{path} holds no record of a batch")
    return UnknownFormatError(
        f"{path} holds {asked} requests of a batch and no answer: import the output file, with this one beside it in its folder"
    )


def _is_request(record: Mapping[str, Any]) -> bool:
    return "custom_id" in record and isinstance(record.get("body"), Mapping) and isinstance(record.get("url"), str)


def _is_answer(record: Mapping[str, Any]) -> bool:
    return "custom_id" in record and "body" not in record and ("response" in record or "error" in record)


class _Requests:
    """Requests by their ``custom_id``, on the disk."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE requests (name TEXT PRIMARY KEY, body TEXT, answered INTEGER DEFAULT 0)")

    def close(self) -> None:
        self._db.close()

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM requests").fetchone()[0])

    @property
    def open(self) -> int:
        """How many have no answer, of a file with any that has one."""
        return int(self._db.execute("SELECT count(*) FROM requests WHERE NOT answered").fetchone()[0])

    def take(self, path: Path) -> int:
        """Keep the requests of a file; returns how many answers it holds."""
        answers = 0
        for _, record in read_lines(path):
            answers += _is_answer(record)
            if _is_request(record):
                self._db.execute(
                    "INSERT OR REPLACE INTO requests (name, body) VALUES (?, ?)",
                    (stable_hash(str(record["custom_id"])), json.dumps({"url": record["url"], "body": record["body"]})),
                )
        return answers

    def look_beside(self, path: Path) -> None:
        """Keep the requests of the other files of the folder."""
        if len(self):
            return
        for other in sorted(path.parent.glob("*.jsonl"))[:_BESIDE]:
            if other != path and other.is_file() and _is_request(first_record(other)[1] or {}):
                self.take(other)

    def get(self, name: str) -> Mapping[str, Any] | None:
        """The url and body of a request; None where it is not there."""
        row = self._db.execute("SELECT body FROM requests WHERE name = ?", (stable_hash(name),)).fetchone()
        self._db.execute("UPDATE requests SET answered = 1 WHERE name = ?", (stable_hash(name),))
        return None if row is None else json.loads(row[0])


def _add(run: Run, record: dict[str, Any], place: str, trees: CallTrees, requests: _Requests) -> None:
    name = text_of(record, "custom_id", place)
    request = requests.get(name)
    if request is None:
        raise UserError(
            f"{place}: there is no request '{name}' in the file or beside it: put the batch's input file into its folder"
        )
    response = field(record, "response", dict, place, {})
    status, body = response.get("status_code", 200), field(response, "body", dict, f"{place}: 'response'", {})
    protocol = protocol_of(request["url"], request["body"])
    if protocol is None:
        raise UserError(f"{place}: the request '{name}' to {request['url'][:80]!r} is not a call of a model that is read here")
    failed = bool(record.get("error")) or not response or (type(status) is int and status >= 400)
    call = read_wire(protocol, request["body"], {} if failed else body, place, run.put_blob)
    unread({k: v for k, v in record.items() if k not in ("id", "custom_id", "response", "error")}, (), "record")
    error = record.get("error") or body.get("error") or (f"HTTP {status}" if failed else None)
    judged = KNOWN.judged({"error": error}, place) if error and not call.replies else NOTHING
    written = _ASKED.fullmatch(name)
    tree, asked = task_name(call.given)
    task = {"id": tree, "asked": asked[:200]}
    if written is not None:
        tree, task = written[1], {"id": written[1]}
    about = {**call.rest, "custom_id": name, **({"error": message_of(error)} if judged is not NOTHING else {})}
    trees.hang(tree, task, call.given, [] if failed else call.replies, provenance_of(request["body"], body), about, judged)


# --- out --------------------------------------------------------------------------------------------------------------


class BatchSelection(Config):
    """Which contexts of a run are asked again, and of which model."""

    model: str | None = None
    """The model that is asked; by default the one that was."""
    steps: Literal["all", "first", "last", "failed"] = "all"
    """Ask again before every reply, before the first or the last of each attempt, or where a failure ended it."""
    n: int = Field(1, ge=1, le=128)
    """So many replies to each."""
    group: str | None = None
    """Only trees of this group."""
    max_rows: int | None = Field(None, ge=1)
    """Stop after this many requests."""


_SETTINGS = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "frequency_penalty", "presence_penalty", "seed"),
    *("tool_choice", "response_format", "parallel_tool_calls", "reasoning_effort"),
)


def write_batch(run: Run, out: Path, **settings: Any) -> int:
    """Write what the model was shown before its replies as requests of a batch, one a line, each context once; returns how many.
    ``settings``: :class:`BatchSelection`.

    Raises UserError where nothing fits the settings, a group is unknown, or the file does not end in .jsonl."""
    chosen = check(BatchSelection, settings, "openai-batch")
    if out.suffix.lower() != ".jsonl":
        raise UserError(f"cannot write {out}: requests of a batch go into a file that ends in .jsonl")
    if not run.trees(chosen.group):
        known = nearest(chosen.group or "", {info.group for info in run.trees() if info.group})
        raise UserError(
            f"{run.folder} holds no tree of the group '{chosen.group}' ({known})"
            if chosen.group
            else f"{run.folder} holds no tree"
        )
    return write_table(out, _rows(run, chosen), {}, chosen.max_rows)


def _rows(run: Run, chosen: BatchSelection) -> Iterator[dict[str, Any]]:
    asked: set[str] = set()
    for attempt in views(run, chosen.group, unjudged=True):
        if attempt.fork:
            continue
        for node in _replies(attempt, chosen.steps):
            shown = run.shown(node.id).messages
            body = {"model": _model(run, node, chosen.model), "messages": _messages(shown), **_body(run, node, attempt)}
            body |= {"n": chosen.n} if chosen.n > 1 else {}
            key = stable_hash(node.tree, canonical_json(body))
            if not body["messages"] or key in asked:
                continue
            asked.add(key)
            yield {"custom_id": f"{node.tree[:200]}/{node.id}", "method": "POST", "url": f"/v1{CHAT}", "body": body}


def _replies(attempt: View, steps: str) -> list[Node]:
    """The nodes before which is asked."""
    nodes = [step.reply.nodes[0] for step in attempt.steps if step.reply.nodes]
    if steps == "failed":
        return nodes[-1:] if attempt.failure is not None else []
    whole = [node for node in nodes if node.stop != "failed"] if steps != "all" else nodes
    return {"all": whole, "first": whole[:1], "last": whole[-1:]}[steps]


def _model(run: Run, node: Node, wanted: str | None) -> str:
    name = wanted or (run.provenance(node.provenance).model if node.provenance is not None else "")
    if name in ("", "unknown"):
        raise UserError(f"node {node.id} does not say which model was asked: name one with --model")
    return name


def _body(run: Run, node: Node, attempt: View) -> dict[str, Any]:
    known = run.provenance(node.provenance).settings if node.provenance is not None else {}
    settings = {name: known[name] for name in _SETTINGS if known.get(name) is not None}
    tools = tools_of(run, attempt)
    return plain({**settings, **({"tools": tools} if tools else {})}) if settings or tools else {}


def _messages(shown: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Messages as chat completions take them: calls with ids, parts that are not text as they are."""
    written: list[dict[str, Any]] = []
    for at, message in enumerate(shown):
        said = message.to_openai()
        parts = message.data.get("content")
        if isinstance(parts, list) and message.role == "user" and "media" not in message.data:
            said["content"] = parts
        else:
            count_media(message)
        if isinstance(calls := said.get("tool_calls"), list):
            functions = zip(calls, message.functions, strict=True)
            said["tool_calls"] = [
                {
                    "id": str((isinstance(call, Mapping) and call.get("id")) or f"call_{at}_{number}"),
                    "type": "function",
                    "function": {
                        "name": str(name),
                        "arguments": arguments if isinstance(arguments, str) else canonical_json(plain(arguments)),
                    },
                }
                for number, (call, (name, arguments)) in enumerate(functions)
            ]
        written.append(said)
    return written


EXAMPLE = [
    {
        "custom_id": "request-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "some-model", "messages": [{"role": "user", "content": "Is it warm in Oslo?"}]},
    },
    {
        "id": "batch_req_1",
        "custom_id": "request-1",
        "response": {
            "status_code": 200,
            "request_id": "req_1",
            "body": {"choices": [{"message": {"role": "assistant", "content": "No: 4 degrees."}, "finish_reason": "stop"}]},
        },
        "error": None,
    },
]

register("reader", "openai-batch")(
    Reader(
        "openai-batch",
        "Output of OpenAI's Batch; its requests are read from the same file or from the input file beside it.",
        lambda path, first: first is not None and (_is_request(first) or _is_answer(first)),
        read_batch,
        (),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
register("writer", "openai-batch")(
    Writer(
        "openai-batch",
        "what the model was shown before its replies, as requests of OpenAI's Batch (.jsonl)",
        write_batch,
        (),
        settings_of(BatchSelection),
    )
)
