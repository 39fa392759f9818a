"""Calls of models that belong together (of one trace, of one archive) as conversations in trees.

A call repeats the history in what it was given, so it hangs below the longest beginning that is there already; the reply it gave
is found again where the next call repeats it. A conversation's tree is named by its first message of a user. Where the history
was trimmed or compacted, and the newest exchange is still in it, the reply hangs below that exchange and its explicit context
says what the model was shown.

Spans of a trace may lie anywhere in a file. They wait in a temporary database on the disk, so that memory holds one at a time.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.secrets import redact, without_keys
from ramify.integrations.formats.exchanges import Keep
from ramify.integrations.formats.spoken import messages_in, replies_in
from ramify.trace.aliases import KNOWN, NOTHING, Fields, Judged
from ramify.trace.chats import FINISHED, CallReply, provenance_of
from ramify.trace.context import with_rest
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, import_records, open_attempt, root, taken
from ramify.trace.message import Message, as_text, plain
from ramify.trace.node import AttemptRecord, Context, Insert, Node, Provenance, Span

STOPS: Mapping[str, str] = {
    **FINISHED,
    **dict.fromkeys(("end_turn", "tool_use", "stop_sequence", "tool_call", "tool-calls", "completed", "STOP"), "stop"),
    **dict.fromkeys(("max_tokens", "MAX_TOKENS", "max_output_tokens", "incomplete"), "length"),
}
"""Reasons why a reply ended, as providers write them -> a node's stop reason."""


def task_name(messages: Sequence[Message]) -> tuple[str, str]:
    """The name of a task, and its text, by a conversation's first message of a user: the same words, the same task."""
    asked = next((message.text for message in messages if message.role == "user" and message.text), "")
    asked = asked or next((message.text for message in messages if message.text), "")
    words = re.sub(r"[^a-z0-9]+", "-", asked[:200].lower()).strip("-")[:40].strip("-")
    return f"{words or 'task'}-{stable_hash(asked)[:8]}", asked


class CallTrees:
    """Hangs calls that belong together. ``draws`` numbers the samples of the run.

    Memory: a few hashes for each message."""

    def __init__(self, run: Run, draws: Iterator[int]) -> None:
        self.run, self._draws = run, draws
        self._at: dict[str, str] = {}
        """Hash of a node and what a message below it says -> that message's node."""
        self._sampled: set[str] = set()
        self._exchanges: dict[str, str] = {}
        """Hash of a reply and the message before it -> its node; "" where there were two such."""
        self._failed: dict[str, str] = {}
        """Node below which a call failed -> the node of the failure."""
        self.leaves: dict[str, str] = {}
        """The node each attempt ends at so far -> its tree, in the order of their last calls."""
        self.errors: dict[str, str] = {}
        """Id of a call of a tool -> the error it ended in."""

    def hang(
        self,
        tree: str,
        task: Mapping[str, Any],
        given: Sequence[Message],
        replies: Sequence[CallReply],
        provenance: Provenance,
        about: Mapping[str, Any],
        judged: Judged = NOTHING,
    ) -> Node:
        """Hang a call in the tree of its task, which is made where it is not there; returns the last node of its last reply.
        ``about``: what else is known of it, kept
        with the reply. ``judged``: whether it failed."""
        before, at, origin = self._walk(tree, given)
        known = self._exchange(given) if any(message.role == "assistant" for message in given[at:]) else None
        edited = known is not None
        if known is not None:
            before, at = known
            origin = before
        if before is None:
            self.run.add_tree(tree, task)
        node = root(self.run, tree) if before is None else self.run.node(before)
        draw = next(self._draws)
        thread = Thread(self.run, node.tree, draw, node)
        for message in given[at:]:
            self._given(thread, message)
        asked = thread.node
        self.run.add(provenance)
        fields: dict[str, Any] = {"provenance": provenance.hash}
        if edited and (shown := self._context(asked, given)) is not None:
            self.run.add(shown)
            fields["context"] = shown.hash
        continued = None if origin is None else open_attempt(self.run, self.run.node(origin))
        continued = continued or self._retried(asked)
        about = _without_secrets(about)
        if judged.failure is not None:
            judged = judged._replace(failure=without_keys(str(redact(judged.failure))))
        end = asked
        if not replies:
            stop = judged.stop or "failed"
            if judged.failure is None and not judged.cut:
                about = {"error": "no reply was recorded", **about}
            thread.hang(Message("assistant", "", {"response": about}), True, True, stop=stop, **fields)
            self._ended(thread.node, judged, continued, provenance)
            self._failed[asked.id] = thread.node.id
            return thread.node
        for number, reply in enumerate(replies):
            each = Thread(self.run, node.tree, draw if number == 0 else next(self._draws), asked)
            end = self._reply(each, reply, about, given, fields)
            self._ended(end, NOTHING, continued if number == 0 else None, provenance)
        return end

    def _reply(
        self, thread: Thread, reply: CallReply, about: Mapping[str, Any], given: Sequence[Message], fields: Mapping[str, Any]
    ) -> Node:
        before = _key(given[-1]) if given else ""
        for number, message in enumerate(reply.messages, 1):
            parent, key, last = thread.node.id, _key(message), number == len(reply.messages)
            rest = {"response": {**about, **_without_secrets(reply.about)}} if last else None
            stop = {"stop": reply.stop} if last and reply.stop else {}
            sampled = message.role == "assistant"
            end = thread.hang(message, sampled, last, rest, **stop, **(fields if sampled else {}))
            self._at[stable_hash(parent, key)] = end.id
            if sampled:
                self._sampled.add(end.id)
                exchange = stable_hash(before, key)
                self._exchanges[exchange] = "" if exchange in self._exchanges else end.id
            before = key
        return thread.node

    def answer(self, leaf: Node, message: Message, trace: str) -> Node:
        """Add what a tool answered after the last call of the attempt that a trace is."""
        before = open_attempt(self.run, leaf)
        thread = Thread(self.run, leaf.tree, max(0, leaf.index), leaf)
        end = self._given(thread, message, {"response": {"trace": trace}})
        self._ended(end, NOTHING, before, None)
        return end

    def judge(self, leaf: str, judged: Judged) -> None:
        """Say how the attempt that ends at ``leaf`` ended."""
        before = next(iter(self.run.attempts(leaf=leaf)), None)
        if before is not None and before.failure is not None and judged.failure is None:
            judged = judged._replace(failure=before.failure)
        if before is not None:  # its last message does not say that a limit ended it
            before = replace(before, truncated=before.truncated or (judged.cut and judged.failure is None))
        end_attempt(self.run, self.run.node(leaf), judged, before)

    def _given(self, thread: Thread, message: Message, ends: Mapping[str, Any] | None = None) -> Node:
        """A message that was given; ``ends``: what is known of the attempt that ends with it."""
        parent, error = thread.node.id, self.errors.get(str(message.data.get("tool_call_id")))
        about = {"is_error": True, "error": error} if message.role == "tool" and error else {}
        node = thread.hang(message, message.role == "assistant", ends is not None, {**about, **(ends or {})})
        self._at[stable_hash(parent, _key(message))] = node.id
        return node

    def _walk(self, tree: str, given: Sequence[Message]) -> tuple[str | None, int, str | None]:
        """The node of the longest beginning of ``given`` that is there (None where the tree is not), its length, and the last
        node on it that was sampled."""
        if not self.run.has_tree(tree):
            return None, 0, None
        at, number, origin = root(self.run, tree).id, 0, None
        for message in given:
            after = self._at.get(stable_hash(at, _key(message)))
            if after is None:
                break
            at, number = after, number + 1
            origin = after if after in self._sampled else origin
        return at, number, origin

    def _exchange(self, given: Sequence[Message]) -> tuple[str, int] | None:
        """The node of the newest reply that ``given`` repeats, after the same message as then, and how many end with it."""
        last = max((at for at, message in enumerate(given) if message.role == "assistant"), default=0)
        node = self._exchanges.get(stable_hash(_key(given[last - 1]), _key(given[last]))) if last else None
        return (node, last + 1) if node else None

    def _context(self, asked: Node, given: Sequence[Message]) -> Context | None:
        """What the model was shown, where the path to ``asked`` does not say the same."""
        path = self.run.path(asked.id).segments
        nodes = [node for node, _ in path if len(node)]
        parts: list[Span | Insert] = []
        spot = len(nodes)
        for message in reversed(given):  # from the end: what was trimmed or replaced lies at the beginning
            key = _key(message)
            hit = next((at for at in range(spot - 1, -1, -1) if _key(nodes[at].message) == key), None)
            if hit is None:
                parts.append(Insert(message.text, None, message.role))
            else:
                parts.append(Span(nodes[hit].id, 0, len(nodes[hit])))
                spot = hit
        parts.reverse()
        whole = [part.node for part in parts if isinstance(part, Span)] == [node.id for node in nodes]
        return None if whole and len(parts) == len(nodes) else with_rest(parts, path)

    def _retried(self, asked: Node) -> AttemptRecord | None:
        failed = self._failed.pop(asked.id, None)
        return None if failed is None else next(iter(self.run.attempts(leaf=failed)), None)

    def _ended(self, end: Node, judged: Judged, before: AttemptRecord | None, provenance: Provenance | None) -> None:
        if before is not None:
            self.leaves.pop(before.leaf, None)
        self.leaves[end.id] = end.tree
        end_attempt(self.run, end, judged, before, provenance=None if provenance is None else provenance.hash)


def _without_secrets(about: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON, without secrets and keys: an error may quote the key that was wrong."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: clean(item) for name, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        return without_keys(value) if isinstance(value, str) else value

    return dict(clean(redact(plain(dict(about)))))


def _key(message: Message) -> str:
    """What identifies a message where it is repeated: role, text, calls by name and arguments. The ids and reasoning of a reply
    are not always repeated."""
    calls = [list(function) for function in message.functions]
    parts = message.data.get("content") if message.role == "user" else None
    return stable_hash(message.role, message.text.strip(), canonical_json(plain(calls)), canonical_json(plain(parts)))


# --- spans --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TracedSpan:
    """One span of a trace in one form for all tools. What was said is kept as the tool has it (:func:`messages_in`)."""

    trace: str
    key: str
    """Its id, unique in the trace."""
    place: str
    """File and line, for sentences."""
    parent: str = ""
    start: int = 0
    """Nanoseconds; they order the spans of a trace."""
    kind: str = ""
    """"call" of a model, "tool", "agent", "trace" (what is known of the whole), "" any other."""
    name: str = ""
    system: Any = None
    given: Any = None
    said: Any = None
    """What the call answered (:func:`replies_in`)."""
    stops: Sequence[str] = ()
    """Why each reply ended, where that stands apart from what it said."""
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else is known, kept with the reply."""
    error: Any = None
    """What it ended in; None where it ended well."""
    tool: Mapping[str, Any] = field(default_factory=dict)
    """Of a tool: ``id`` of the call, ``name``, ``result``."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Metadata in which task and outcome of the trace may stand."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Scores of the trace by name."""

    @property
    def talks(self) -> bool:
        """Whether it says what was given or answered."""
        return any(value not in (None, "", [], {}) for value in (self.given, self.said))


class _Heard(NamedTuple):
    given: list[Message]
    replies: list[CallReply]

    @property
    def says(self) -> bool:
        """Whether any text is in it: tools that do not record what is said may still name roles and calls."""
        messages = [*self.given, *(message for reply in self.replies for message in reply.messages)]
        return any(message.text.strip() or "content" in message.data for message in messages)


def _heard(span: TracedSpan, keep: Keep) -> _Heard:
    spot = f"{span.place}: span {span.name or span.key!r}"
    given = [*messages_in(span.system, "system", spot, keep), *messages_in(span.given, "user", f"{spot}: input", keep)]
    replies = []
    for number, (messages, word) in enumerate(replies_in(span.said, f"{spot}: output", keep)):
        word = span.stops[number] if number < len(span.stops) else word
        stop = STOPS.get(word, "")
        replies.append(CallReply(messages, stop, {"finish_reason": word} if word else {}))
    return _Heard(given, [reply for reply in replies if reply.messages])


Join = Callable[["TracedSpan | None", "list[TracedSpan]"], "TracedSpan"]
"""A span (None where it is not in the file) and its events, as one span."""


class Spool:
    """Spans of all traces of a file, on the disk until the last one is read."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("")  # a temporary file that SQLite removes itself
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute(
            "CREATE TABLE spans (seq INTEGER PRIMARY KEY, trace TEXT, span TEXT, parent TEXT, kind TEXT, start INTEGER, "
            "task TEXT, talks INTEGER, body TEXT, UNIQUE (trace, span))"
        )
        self._db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, trace TEXT, span TEXT, body TEXT)")

    def close(self) -> None:
        """Remove the spans."""
        self._db.close()

    def add(self, span: TracedSpan) -> None:
        """Keep a span; one with the same id as an earlier one replaces it, an event waits for :meth:`join`. Raises UserError on
        messages that cannot be read."""
        if span.kind == "event":
            row = (stable_hash(span.trace), stable_hash(span.key), json.dumps(asdict(span)))
            self._db.execute("INSERT INTO events (trace, span, body) VALUES (?, ?, ?)", row)
            return
        task, talks = "", False
        if span.talks and span.kind in ("call", "agent", "trace"):
            heard = _heard(span, _no_blob)
            task, talks = task_name(heard.given)[0], heard.says
        names = map(stable_hash, (span.trace, span.key, span.parent))
        sql = "INSERT OR REPLACE INTO spans (trace, span, parent, kind, start, task, talks, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.execute(sql, (*names, span.kind, span.start, task, talks, json.dumps(asdict(span))))

    def join(self, joined: Join) -> None:
        """Give every span the events that tell of it."""
        for trace, key in self._db.execute("SELECT trace, span FROM events GROUP BY trace, span ORDER BY min(seq)").fetchall():
            rows = self._db.execute("SELECT body FROM events WHERE trace = ? AND span = ? ORDER BY seq", (trace, key)).fetchall()
            row = self._db.execute("SELECT body FROM spans WHERE trace = ? AND span = ?", (trace, key)).fetchone()
            events = [TracedSpan(**json.loads(body)) for (body,) in rows]
            self.add(joined(None if row is None else TracedSpan(**json.loads(row[0])), events))

    def traces(self) -> list[str]:
        """The traces in the order in which they began."""
        return [str(row[0]) for row in self._db.execute("SELECT trace FROM spans GROUP BY trace ORDER BY min(start), min(seq)")]

    def outline(self, trace: str) -> list[tuple[int, str, str, str, str, bool]]:
        """Number, id, parent, kind, task and whether it talks, of each span in order of start."""
        sql = "SELECT seq, span, parent, kind, task, talks FROM spans WHERE trace = ? ORDER BY start, seq"
        return [(row[0], row[1], row[2], row[3], row[4], bool(row[5])) for row in self._db.execute(sql, (trace,))]

    def get(self, number: int) -> TracedSpan:
        """A span by its number."""
        row = self._db.execute("SELECT body FROM spans WHERE seq = ?", (number,)).fetchone()
        return TracedSpan(**json.loads(row[0]))


def _no_blob(data: bytes) -> str:
    return "0" * 64


def read_spans(
    path: Path,
    folder: Path,
    form: str,
    spans_of: Callable[[dict[str, Any], str], Iterator[TracedSpan]],
    records: Iterator[tuple[int, dict[str, Any]]] | None,
    silent: str,
    fields: Fields = KNOWN,
    join: Join | None = None,
) -> int:
    """Make a run in ``folder`` from a file whose records hold spans. Returns how many records.

    ``join`` joins spans of the kind "event" with the span of their id. ``silent``: how to have the tool record what is said, for
    the refusal of traces that do not say it. Raises UserError naming file, line and span, and where no span is the call of a
    model."""
    with closing(Spool()) as spool:

        def add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
            for span in spans_of(record, place):
                spool.add(span)

        def end(run: Run) -> None:
            if join is not None:
                spool.join(join)
            hang_traces(run, spool, path, silent, fields)

        return import_records(path, folder, form, add, records, end=end)


def hang_traces(run: Run, spool: Spool, path: Path, silent: str, fields: Fields) -> None:
    """Hang every trace of ``spool``. Raises UserError where no trace says anything."""
    left_out: Counter[str] = Counter()
    draws, hung, calls = count(), 0, 0
    for trace in spool.traces():
        outline = _Outline.of(spool.outline(trace))
        calls += outline.calls
        left_out.update(outline.left_out)
        if not outline.talking:
            left_out["without what was said"] += outline.calls
            continue
        place = spool.get(outline.talking[0]).place
        hung += taken(run, place, partial(_hang_trace, run, spool, outline, CallTrees(run, draws), fields))
    if not hung:
        if not calls:
            raise UserError(f"{path}: none of its spans is the call of a model")
        raise UserError(f"{path}: its calls of models do not say what was given and answered: {silent}")
    for what, number in left_out.items():
        run.log("ignored", what, {"count": number, "what": "spans"})


@dataclass(frozen=True, slots=True)
class _Outline:
    """What is known of a trace before its spans are read."""

    order: list[int]
    """The spans in order of start."""
    talking: list[int]
    """Those that are hung as calls."""
    main: str
    """The task of the conversation that the trace is an attempt at."""
    calls: int
    left_out: Mapping[str, int]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, str, str, str, str, bool]]) -> _Outline:
        parents = {key: (parent, kind, talks) for _, key, parent, kind, _, talks in rows}
        depth: dict[int, int] = {}
        inner: set[int] = set()
        for number, key, _, _, _, _ in rows:
            agents, at, seen = 0, parents[key][0], {key}
            while at in parents and at not in seen:
                seen.add(at)
                at, kind, talks = parents[at]
                agents += kind == "agent"
                if kind == "call" and talks:
                    inner.add(number)
            depth[number] = agents
        calls = [row for row in rows if row[3] == "call"]
        talking = [row for row in calls if row[5] and row[0] not in inner]
        if not talking:  # only the agents, or the whole, say something
            talking = [row for row in rows if row[3] in ("agent", "trace") and row[5]][:1]
        left: Counter[str] = Counter("inside a call of a model" for row in calls if row[0] in inner)
        left.update("neither call nor tool" for row in rows if row[3] == "")
        top = min((depth[row[0]] for row in talking), default=0)
        tasks = Counter(row[4] for row in talking if depth[row[0]] == top)
        main = max(tasks, key=lambda task: tasks[task], default="")
        return cls([row[0] for row in rows], [row[0] for row in talking], main, len(calls), left)


def _hang_trace(run: Run, spool: Spool, outline: _Outline, trees: CallTrees, fields: Fields) -> None:
    about, scores, errors = dict[str, Any](), dict[str, float | None](), list[tuple[str, Any]]()
    for number in outline.order:  # the task may stand at the last span, and all calls need it
        span = spool.get(number)
        if span.fields or span.scores:
            about, scores = {**span.fields, **about}, {**scores, **span.scores}
        if span.error is not None and span.kind in ("agent", "trace", ""):
            errors.append((span.parent, span.error))
    place = spool.get(outline.talking[0]).place
    named = fields.task_of(about, place, record_id=False) if _names_task(about, fields) else None
    results: dict[str, TracedSpan] = {}
    talking = set(outline.talking)
    for number in outline.order:
        span = spool.get(number)
        if span.kind == "tool":
            key = str(span.tool.get("id") or span.key)
            results[key] = span
            if span.error is not None:
                trees.errors[key] = as_text(plain(span.error))[:300]
        if number in talking:
            _hang_span(run, span, trees, outline.main, None if named is None else str(named.value))
    tree = outline.main if named is None else str(named.value)
    main = [leaf for leaf, of in trees.leaves.items() if of == tree]
    leaf = main[-1] if main else next(reversed(trees.leaves))
    leaf = _last_results(run, trees, leaf, results)
    judged = fields.judged({k: v for k, v in about.items() if k not in ("error", "status")}, place)
    judged = judged._replace(scores={**judged.scores, **scores})
    for _, error in errors[:1]:
        ended = KNOWN.judged({"error": error}, place)
        judged = judged._replace(failure=judged.failure or ended.failure, cut=judged.cut or ended.cut)
    trees.judge(leaf, judged)


def _names_task(about: Mapping[str, Any], fields: Fields) -> bool:
    if fields.task is not None:
        return True
    return any(
        isinstance(about.get(name), (str, int)) for name in ("task_id", "problem_id", "question_id", "example_id", "instance_id")
    )


def _hang_span(run: Run, span: TracedSpan, trees: CallTrees, main: str, named: str | None) -> None:
    heard = _heard(span, run.put_blob)
    name, asked = task_name(heard.given)
    task = {"id": name, "asked": asked[:200]}
    whole = name == main
    if named is not None and whole:
        name, task = named, {"id": named}
    judged = NOTHING if span.error is None else KNOWN.judged({"error": span.error}, span.place)
    whose = "trace" if whole else "inside"  # the id of a trace names the attempt that it is, and no subagent's
    about = {**span.about, **({} if span.error is None else {"error": span.error}), "span": span.key, whose: span.trace}
    provenance = provenance_of({**span.settings, "model": span.model}, {})
    replies = heard.replies if judged.failure is None else []
    trees.hang(name, task, heard.given, replies, provenance, about, judged)


def _last_results(run: Run, trees: CallTrees, leaf: str, results: Mapping[str, TracedSpan]) -> str:
    """The attempt's last node, after what the tools answered that its last reply called."""
    node = run.node(leaf)
    calls = node.data.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        span = results.get(str(call.get("id"))) if isinstance(call, Mapping) else None
        if span is not None and span.tool.get("result") is not None:
            data = {"tool_call_id": str(call["id"]), **({"name": span.tool["name"]} if span.tool.get("name") else {})}
            node = trees.answer(node, Message("tool", as_text(plain(span.tool["result"])), data), span.trace)
    return node.id


def nanoseconds(value: Any, spot: str) -> int:
    """A time as nanoseconds: digits, seconds as a number, or ISO 8601; 0 of nothing. Raises UserError naming ``spot``."""
    try:
        if value in (None, ""):
            return 0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            nanos = int(value if value > 1e14 else value * 1_000_000_000)
        elif isinstance(value, str):
            nanos = int(value) if value.isdigit() else round(_date(value).timestamp() * 1_000_000) * 1000
        else:
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(f"{spot} is not a time") from None
    if not 0 <= nanos < 1 << 63:
        raise UserError(f"{spot} is not a time")
    return nanos


def _date(text: str) -> datetime:
    read = datetime.fromisoformat(text)
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
