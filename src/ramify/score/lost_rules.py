"""Which rules a harness's compaction dropped in its own logged conversations, when, and what was called afterwards."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base.config import read_toml
from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.ids import stable_hash
from ramify.score.calls import read_calls
from ramify.score.predicates import UnreadableError, forbids
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader
from ramify.trace.lines import field, read_document
from ramify.trace.node import Node
from ramify.trace.path import Said
from ramify.trace.rules import CLASSES, SURVIVED, survival


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

    What counts is what the model was shown at each of its replies: explicit contexts of a run, the requests of logged calls (of one
    session: those of one ``task``, or of one file that names none), or a conversation as it grew. Raises UserError like the readers.
    """
    if source.is_dir():
        with Run.open(source) as run:
            return _audited(run, rules)
    with tempfile.TemporaryDirectory() as folder:
        pick_reader(source, form).read(source, Path(folder) / "run")
        with Run.open(Path(folder) / "run") as run:
            return _audited(run, rules)


def _audited(run: Run, rules: Sequence[Rule]) -> dict[str, Any]:
    known: dict[str, list[str]] = {}
    fates = [_Fate(rule) for rule in rules]
    compactions, before, steps = [], dict[str, set[str]](), 0
    for session, node, messages in _steps(run):
        steps += 1
        marks = {stable_hash(m.role, m.text) for m in messages}
        gone = len(before.get(session, set()) - marks)
        if gone:
            compactions.append({"session": session, "step": steps, "dropped": gone})
        calls = list(_calls(node))
        for at, fate in enumerate(fates):
            kinds = []
            for message in messages:
                cached = known.setdefault(stable_hash(message.text), [])
                while len(cached) <= at:
                    cached.append(survival(rules[len(cached)].text, message.text).kind)
                kinds.append(cached[at])
            fate.see(session, steps, min(kinds, key=CLASSES.index, default="dropped"), calls)
        before[session] = marks
    if not steps:
        raise UserError(f"{run.folder.name} holds no reply of a model, so nothing can be said of rules")
    return {"sessions": len(before), "replies": steps, "compactions": compactions, "rules": [fate.report() for fate in fates]}


def _steps(run: Run) -> Iterator[tuple[str, Node, Sequence[Said]]]:
    """(session, drawn node, what the model was shown) in the order in which the log was written."""
    named = {info.name: bool(info.task) for info in run.trees()}
    logs = {node.tree for node in run.each(Node) if "response" in node.data}
    for node in run.each(Node):
        if node.role != "assistant" or node.index < 0 or not node.opens or (node.tree in logs and "response" not in node.data):
            continue  # in a log of calls, what a request repeats is no reply
        yield "log" if node.tree in logs and not named[node.tree] else node.tree, node, run.shown(node.id).messages


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
        self.losses: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.without = self.since = 0

    def see(self, session: str, step: int, kind: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """What the model was shown at one reply says ``kind`` of the rule; it made ``calls``."""
        if kind in SURVIVED:
            self.held[session] = True
        if session not in self.held:  # not stated yet
            return
        self.since += 1
        if kind in SURVIVED:
            return
        self.without += 1
        if self.held[session]:
            self.losses.append({"session": session, "step": step, "became": kind})
        self.held[session] = False
        self.calls += [
            {"session": session, "step": step, "name": name, "arguments": dict(a), "forbidden": self._forbidden(name, a)}
            for name, a in calls
        ]

    def _forbidden(self, name: str, arguments: Mapping[str, Any]) -> bool | None:
        if self.rule.predicate is None:
            return None
        try:
            return forbids(self.rule.predicate, name, arguments)
        except UnreadableError:
            return None

    def report(self) -> dict[str, Any]:
        """The rule's part of the report. ``forbidden`` is None where no predicate says what the rule forbids."""
        return {
            "rule": self.rule.text,
            "stated_in": len(self.held),
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
