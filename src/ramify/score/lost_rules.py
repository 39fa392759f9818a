"""Which rules a harness's compaction dropped in its own logged conversations, when, and what was called afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base.config import read_toml
from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.ids import stable_hash
from ramify.score.calls import read_calls
from ramify.score.predicates import UnreadableError, forbids
from ramify.trace.aliases import name_in
from ramify.trace.db import Run
from ramify.trace.lines import field, read_document
from ramify.trace.messages import spoken
from ramify.trace.node import Mark, Node
from ramify.trace.path import Said
from ramify.trace.rules import CLASSES, SURVIVED, survival
from ramify.trace.sources import opened


@dataclass(frozen=True)
class Rule:
    """A rule to look for. ``predicate`` says what it forbids, where that can be told from calls."""

    text: str
    predicate: Mapping[str, Any] | None = None


def read_rules(path: Path) -> list[Rule]:
    """Rules of a file: one a line; or TOML with ``[[rule]]`` tables or JSON with a list, of ``text`` and ``predicate``.

    Raises UserError naming the file and the rule that is none.
    """
    if path.suffix == ".toml":
        found: Any = read_toml(path).get("rule")
    elif path.suffix == ".json":
        found = read_document(path)
    else:
        try:
            found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the rules {path}: {reason(error)}") from None
    if not isinstance(found, list) or not found:
        raise UserError(f"{path} holds no rule: write one a line, [[rule]] tables (.toml), or a list (.json)")
    rules = []
    for at, value in enumerate(found):
        value = {"text": value} if isinstance(value, str) else value
        if not isinstance(value, dict):
            raise UserError(f"{path}: rule {at} is neither text nor a table")
        rules.append(
            Rule(field(value, "text", str, f"{path}: rule {at}"), field(value, "predicate", dict, f"{path}: rule {at}", None))
        )
        if rules[-1].predicate is not None:
            _check(rules[-1].predicate, f"{path}: rule {at}")
    return rules


def _check(predicate: Mapping[str, Any], place: str) -> None:
    try:
        tool = predicate.get("tool")
        forbids(predicate, tool if isinstance(tool, str) else (tool or [""])[0], {})
    except UnreadableError:
        pass  # of an empty call nothing can be told: the predicate itself is one
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def audit(source: Path, rules: Sequence[Rule], form: str | None = None) -> dict[str, Any]:
    """The fate of each rule in the conversations of ``source``: the folder of a run, or a file of any format that can be imported.

    What counts is what the model was shown at each of its replies: explicit contexts of a run, the requests of logged calls, or a
    conversation as it grew. It is compared with what was shown at the reply before in the same session, and a session is one attempt: a
    path from the root to a leaf. A call goes on from the reply that its request repeats; one that repeats none, and does not begin as
    another did, was compacted, and follows the call before it in the log (of its ``task`` and attempt, where it names them); where a
    trace itself declares what a compaction followed, that counts. Raises UserError like the readers.
    """
    with opened(source, form) as run:
        return _audited(run, rules)


def _audited(run: Run, rules: Sequence[Rule]) -> dict[str, Any]:
    known: dict[str, list[str]] = {}
    fates = [_Fate(rule) for rule in rules]
    compactions: list[dict[str, Any]] = []
    marks: dict[str, frozenset[str]] = {}
    ends: set[str] = set()
    for step, reply in enumerate(_replies(run), 1):
        node, before = reply.node, reply.before
        marks[node.id] = frozenset(_mark(message) for message in reply.shown)
        gone = 0 if before is None else len(marks[before] - marks[node.id])
        if gone:
            compactions.append({"session": reply.session, "step": step, "dropped": gone})
        ends.add(node.id)
        ends.discard(before or "")
        calls = list(_calls(node))
        for at, fate in enumerate(fates):
            kinds = []
            for message in reply.shown:
                cached = known.setdefault(stable_hash(message.text), [])
                while len(cached) <= at:
                    cached.append(survival(rules[len(cached)].text, message.text).kind)
                kinds.append(cached[at])
            fate.see(reply, step, min(kinds, key=CLASSES.index, default="dropped"), calls)
    if not marks:
        raise UserError(f"{run.folder} holds no reply of a model, so nothing can be said of rules")
    told = [fate.report(ends) for fate in fates]
    return {"sessions": len(ends), "replies": len(marks), "compactions": compactions, "rules": told}


def _mark(message: Said) -> str:
    """Tells a message from others; a call by what is called, since harnesses write ids and arguments anew."""
    return stable_hash(message.role, spoken(message.text, message.data))


class _Reply(NamedTuple):
    """What the model was shown at one of its replies, and the reply before it in the same session: None where the session begins."""

    session: str
    node: Node
    shown: Sequence[Said]
    before: str | None


def _replies(run: Run) -> Iterator[_Reply]:
    """Every reply in the order in which the log was written, after the one it follows."""
    named = {info.name: bool(info.task) for info in run.trees()}
    logs = {node.tree for node in run.each(Node) if "response" in node.data}
    calls: dict[str, _Calls] = {}
    declared = {  # a harness that says itself which turn a compaction followed
        mark.node: str(mark.value.get("node"))
        for mark in run.each(Mark)
        if isinstance(mark.value, Mapping) and mark.value.get("type") == "compaction"
    }
    nearest: dict[str, str] = {}  # node -> the reply of a model on its path that is nearest, itself included
    for node in run.each(Node):
        before = None if node.parent is None else nearest.get(node.parent)
        if before is not None:
            nearest[node.id] = before
        if node.role != "assistant" or node.index < 0 or not node.opens or (node.tree in logs and "response" not in node.data):
            continue  # in a log of calls, what a request repeats is no reply
        before = nearest.get(declared.get(node.id, ""), before)
        nearest[node.id] = node.id
        shown = run.shown(node.id).messages
        session = node.tree
        if node.tree in logs:
            session = "log" if not named[node.tree] else node.tree
            about = node.data["response"]
            record = about.get("record") if isinstance(about, Mapping) else None
            record = record if isinstance(record, Mapping) else {}
            name = name_in(record, "attempt")
            session = session if name is None else f"{session}#{record[name]}"
            before = calls.setdefault(session, _Calls()).follows(shown, node)
        yield _Reply(session, node, shown, before)


class _Calls:
    """The logged calls of one task (or file), each a request and a reply: which follows which is told from what requests repeat."""

    def __init__(self) -> None:
        self._after: dict[str, str] = {}  # hash of a request and its reply -> the reply's node
        self._openings: set[str] = set()
        self._last: str | None = None

    def follows(self, shown: Sequence[Said], node: Node) -> str | None:
        """The reply that this call goes on from, None where it opens an attempt."""
        chain, before = "", None
        for message in shown:
            chain = stable_hash(chain, _mark(message))
            before = self._after.get(chain, before)
        if before is None and self._last is not None and chain not in self._openings:
            before = self._last  # it repeats no reply whole, and begins as no other did: the history was compacted
        if before is None:
            self._openings.add(chain)
        reply = Said(node.role, node.text, node.data)
        self._after[stable_hash(chain, _mark(reply))] = self._last = node.id
        return before


def _calls(node: Node) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        yield from read_calls(node.text, node.data.get("tool_calls") or ())
    except UnreadableError:
        yield "(unreadable)", {}


class _Fate:
    """One rule through all sessions."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.held: dict[str, bool] = {}
        """Reply at or before which the rule was stated -> whether what was shown still held it."""
        self.losses: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.without = self.since = 0

    def see(self, reply: _Reply, step: int, kind: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """What the model was shown at one reply says ``kind`` of the rule; it made ``calls``."""
        holds = kind in SURVIVED
        held = self.held.get(reply.before or "")
        if not holds and held is None:  # not stated yet
            return
        self.held[reply.node.id] = holds
        self.since += 1
        if holds:
            return
        self.without += 1
        if held:
            self.losses.append({"session": reply.session, "step": step, "became": kind})
        self.calls += [
            {"session": reply.session, "step": step, "name": name, "arguments": dict(a), "forbidden": self._forbidden(name, a)}
            for name, a in calls
        ]

    def _forbidden(self, name: str, arguments: Mapping[str, Any]) -> bool | None:
        if self.rule.predicate is None:
            return None
        try:
            return forbids(self.rule.predicate, name, arguments)
        except UnreadableError:
            return None

    def report(self, ends: Set[str]) -> dict[str, Any]:
        """The rule's part of the report; ``ends``: the last reply of each session. ``forbidden`` is None where no predicate says what the rule forbids."""
        return {
            "rule": self.rule.text,
            "stated_in": len(self.held.keys() & ends),
            "lost": self.losses,
            "replies_since_stated": self.since,
            "replies_without": self.without,
            "calls_without": self.calls,
            "forbidden": None if self.rule.predicate is None else sum(call["forbidden"] is True for call in self.calls),
        }


def as_text(found: Mapping[str, Any]) -> list[list[Any]]:
    """A row for each rule: rule, sessions, times lost, replies without it, calls then, forbidden ones."""
    return [
        [
            r["rule"],
            r["stated_in"],
            len(r["lost"]),
            f"{r['replies_without']} of {r['replies_since_stated']}",
            len(r["calls_without"]),
            "no predicate" if r["forbidden"] is None else r["forbidden"],
        ]
        for r in found["rules"]
    ]


def lines(found: Mapping[str, Any], most: int = 20) -> list[str]:
    """When each rule was lost and what was called without it, a line each, ``most`` of each kind a rule."""
    told = []
    for r in found["rules"]:
        told += [
            f"lost: {r['rule']!r} ({loss['became']}) at reply {loss['step']} of {loss['session']}" for loss in r["lost"][:most]
        ]
        for call in r["calls_without"][:most]:
            mark = "FORBIDDEN " if call["forbidden"] else ""
            told.append(
                f"  {mark}call without it at reply {call['step']}: {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)[:120]})"
            )
    return told
