"""Which rules a harness's compaction dropped in its own logged conversations, when, and what was called afterwards."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base import codec
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.words import plural
from ramify.env.protocol import CHAT, conversation_of
from ramify.methods.governance import obeyed
from ramify.methods.governance.calls import read_calls
from ramify.methods.governance.obeyed import BEFORE, FINDABLE, LOST, Obedience, RuleJudges, RulePhase, shown_at
from ramify.methods.governance.predicates import NEEDS, Call, UnreadableError
from ramify.methods.governance.written_rules import Rule, breaks, instructions, rules_of
from ramify.render.numbers import p_value, percent
from ramify.render.result import Result, Section, Verbatim, table
from ramify.rollout.commands import Commands
from ramify.rollout.rules import CLASSES, SURVIVED, survival
from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval, wilson
from ramify.trace.aliases import name_in
from ramify.trace.db import Run
from ramify.trace.intake import take
from ramify.trace.message import Message, compacted, opaque
from ramify.trace.node import Annotation, Finding, Node, Provenance
from ramify.trace.sources import opened, run_folder


@dataclass(frozen=True)
class LoggedCompaction:
    """A compaction that a log records or shows."""

    session: str
    step: int | None
    """The reply after it; None after the last."""
    dropped: int | None
    """Messages that are not shown any more."""
    strategy: str | None
    """Who made it, where that is known."""


@dataclass(frozen=True)
class RuleLoss:
    """A reply at which a rule that was shown before could not be read any more."""

    session: str
    step: int
    became: str
    """One of :data:`ramify.rollout.rules.CLASSES`."""
    node: str
    judged: bool | None = None
    """Whether judges still find it in what the model was shown, in other words; None: nobody was asked, or they cannot say."""


@dataclass(frozen=True)
class CallWithout:
    """A call made while a rule that was stated could not be read."""

    session: str
    step: int
    name: str
    arguments: Mapping[str, Any]
    forbidden: bool | None
    """None: no predicate says, or the call cannot be read."""
    node: str


@dataclass(frozen=True)
class RuleFate:
    """One rule through all sessions."""

    rule: str
    stated_in: int
    lost: tuple[RuleLoss, ...]
    replies_since_stated: int
    replies_without: int
    replies_unknown: int
    calls_without: tuple[CallWithout, ...]
    forbidden: int | None
    """Of these calls; None where no predicate says what the rule forbids."""
    predicate: Mapping[str, Any] | None = None
    """By which it is checked; of a rule in Markdown, read off its words."""
    phases: tuple[RulePhase, ...] = ()
    """How often it was broken before any compaction, after one that left it readable, and once it was lost; empty where neither
    a predicate nor a judge decides it."""

    @property
    def gone(self) -> bool:
        """Whether it was lost, and no judge finds it all the same."""
        return any(not loss.judged for loss in self.lost)

    def lines(self, most: int = 20) -> Iterable[str]:
        """When it was lost and what was called without it, a line each, ``most`` of each kind."""
        for loss in self.lost[:most]:
            says = "" if loss.judged is None else ", though judges still find it" if loss.judged else ", judges find it no more"
            yield f"lost: {self.rule!r} ({loss.became}{says}) at reply {loss.step} of {loss.session}"
        if self.replies_unknown:
            at = plural(self.replies_unknown, "reply")
            yield f"unknown: {self.rule!r} at {at}: a provider's own compaction cannot be read"
        for call in self.calls_without[:most]:
            mark = "FORBIDDEN " if call.forbidden else ""
            given = json.dumps(call.arguments, ensure_ascii=False)[:120]
            yield f"  {mark}call without it at reply {call.step}: {call.name}({given})"
        yield from obeyed.sentence(self.rule, self.phases)


@dataclass(frozen=True)
class ForkPlace:
    """A reply that made a call which a dropped rule forbids."""

    rule: str
    session: str
    step: int
    node: str


@dataclass(frozen=True)
class LeftOutPlace(ForkPlace):
    """One that could not be played."""

    why: str


@dataclass(frozen=True)
class BrokenShare:
    """Continuations of one arm that break the rule, with Wilson's 95 % interval."""

    value: float
    interval: Interval
    k: int
    n: int
    failed: int
    """Those that did not come to their end, which are left out."""

    @classmethod
    def of(cls, counts: Counts) -> BrokenShare:
        """Of at least one."""
        return cls(counts.rate, wilson(counts.k, counts.n), counts.k, counts.n, counts.missing)

    @property
    def ends(self) -> str:
        """The interval in words."""
        return " to ".join(percent(end, 0) for end in self.interval)


@dataclass(frozen=True)
class RestoredFork(ForkPlace):
    """What came of the rule at one call: the shares that break it, with it and as it was."""

    restored: BrokenShare
    as_it_was: BrokenShare
    difference: float
    interval: Interval
    p: float
    """Fisher's, exact."""
    corrected: float
    """Holm's over the calls."""
    found: bool
    """Whether the rule is broken less often where it is restored."""

    @property
    def sentence(self) -> str:
        """Both shares."""
        with_rule, was = self.restored, self.as_it_was
        return (
            f"the rule restored: {with_rule.k} of {with_rule.n} break it ({with_rule.ends}), "
            f"{was.k} of {was.n} as it was ({was.ends}), p = {p_value(self.corrected)}"
        )

    @property
    def line(self) -> str:
        """Where, and both shares."""
        return f"{self.rule!r} at reply {self.step} of {self.session}: {self.sentence}"


@dataclass(frozen=True)
class RestoredRules:
    """Forks at the forbidden calls of a run."""

    n: int
    """Continuations on either side."""
    verdict: str
    forks: tuple[RestoredFork, ...] = ()
    left_out: tuple[LeftOutPlace, ...] = ()


@dataclass(frozen=True)
class RuleAudit(Result):
    """The fate of each rule in logged conversations."""

    sessions: int
    replies: int
    compactions: tuple[LoggedCompaction, ...]
    other_calls: Mapping[str, int]
    """Calls that are no replies of an agent, by what they are for."""
    rules: tuple[RuleFate, ...]
    verdict: str
    forks: RestoredRules | None = None
    known: tuple[Rule, ...] = field(default=(), metadata={"json": False})
    """The rules that were looked for."""
    strict: bool = field(default=False, metadata={"json": False})
    """Exit code 1 where a rule was lost."""

    @property
    def exit_code(self) -> int:
        """See :attr:`strict`."""
        return EXIT_FAILED if self.strict and any(rule.gone for rule in self.rules) else EXIT_DONE

    @property
    def head(self) -> str:
        """What was read, in one line: replies, sessions, compactions and by whom, calls that are no replies of an agent."""
        by = Counter(one.strategy for one in self.compactions if one.strategy)
        made = f" ({', '.join(f'{count} by {name}' for name, count in by.items())})" if by else ""
        apart = [
            f"{plural(count, 'call')} {_OTHERS.get(purpose, f'for {purpose}')}" for purpose, count in self.other_calls.items()
        ]
        excluded = f"; no replies: {', '.join(apart)}" if apart else ""
        return (
            f"{plural(self.replies, 'reply')} in {plural(self.sessions, 'session')}, "
            f"{plural(len(self.compactions), 'compaction')}{made}{excluded}"
        )

    def sections(self) -> Iterable[Section]:
        """What was read, a row for each rule, when each was lost, the verdict."""
        rows = [
            (
                rule.rule,
                rule.stated_in,
                len(rule.lost),
                f"{rule.replies_without} of {rule.replies_since_stated}",
                len(rule.calls_without),
                "no predicate" if rule.forbidden is None else rule.forbidden,
            )
            for rule in self.rules
        ]
        head = ("rule", "sessions", "times lost", "replies without it", "calls then", "of them forbidden")
        lines = [line for rule in self.rules for line in rule.lines()]
        lines += [] if self.forks is None else [fork.line for fork in self.forks.forks]
        done = [
            (rule.rule, "judges" if rule.predicate is None else str(rule.predicate["kind"]), *(one.share for one in rule.phases))
            for rule in self.rules
            if rule.phases
        ]
        columns = ("rule", "checked by", "broken before", "after, findable", "after, lost")
        broken = table(columns, done) if done and self.compactions else None
        yield Section.of("", self.head, table(head, rows), broken, Verbatim("\n".join(lines)) if lines else None, self.verdict)


def audit(
    source: Path | Sequence[Path], rules: Sequence[Rule] | None, form: str | None = None, judges: RuleJudges | None = None
) -> RuleAudit:
    """The fate of each rule in the conversations of ``source``: the folder of a run, a file of any format that can be imported,
    or several files and folders of these. Without ``rules`` those are looked for that the sessions show the model from CLAUDE.md
    and AGENTS.md. ``judges`` read what no predicate and no keyword decides.

    What counts is what the model was shown at each of its replies: explicit contexts of a run, the requests of logged calls, or a
    conversation as it grew. It is compared with what was shown at the reply before in the same session, and a session is one
    attempt: a path from the root to a leaf. A call continues from the reply that its request repeats; one that repeats none, and
    does not begin as another did, was compacted, and follows the call before it in the log (of its ``task`` and attempt, where it
    names them); where a trace itself declares what a compaction followed, that counts. Of requests that a server recorded, one
    that repeats no reply follows the session's call before it where that was whoever compacts, whose summary it holds. Calls of
    whoever compacts, and of scorers, are no replies of an agent, nor are the continuations that
    :func:`ramify.methods.governance.restored.restored` played.
    After a provider's own compaction that cannot be read a rule is ``unknown``: neither kept nor lost.
    Raises UserError like the readers, and where no rules are given and none are shown.
    """
    with _opened([source] if isinstance(source, Path) else source, form) as (run, caveats):
        found = _audited(run, shown_rules(run) if rules is None else rules, judges)
    return replace(found, caveats=(*found.caveats, *caveats))


@contextmanager
def _opened(sources: Sequence[Path], form: str | None) -> Iterator[tuple[Run, list[str]]]:
    """One run of all sources, and what of them was not read."""
    if len(sources) == 1 and (run_folder(sources[0]) is not None or not sources[0].is_dir()):
        with opened(sources[0], form) as run:
            yield run, []
        return
    for source in sources:
        if run_folder(source) is not None:
            raise UserError(f"{source} is a run, which is audited alone: leave out the others")
    with tempfile.TemporaryDirectory() as scratch:
        taken = take(sources, Path(scratch) / "run", form)
        more = f" ({', '.join(taken.unknown[:3])}{', ...' if len(taken.unknown) > 3 else ''})"
        with Run.open(Path(scratch) / "run") as run:
            yield run, [f"{plural(len(taken.unknown), 'file')} of no known format: not read{more}"] if taken.unknown else []


def shown_rules(run: Run) -> list[Rule]:
    """The rules of each CLAUDE.md and AGENTS.md that a run's conversations show a model. Raises UserError where none is shown."""
    texts = dict.fromkeys(
        text for node in run.each(Node) if node.role in ("system", "user", "tool") for text in instructions([node.message])
    )
    rules = list({rule.text: rule for text in texts for rule in rules_of(text)}.values())
    if not rules:
        raise UserError(f"no CLAUDE.md or AGENTS.md is shown in {run.folder}: name the rules with --rules FILE{_UNWRITTEN}")
    return rules


_UNWRITTEN = (
    " (Claude Code sends the project's CLAUDE.md with each request and does not write it into its session file; "
    "`ramify serve --record` records it)"
)


def _audited(run: Run, rules: Sequence[Rule], judges: RuleJudges | None = None) -> RuleAudit:
    known: dict[str, list[str]] = {}
    fates = [_Fate(rule) for rule in rules]
    compactions: list[LoggedCompaction] = []
    marks: dict[str, Counter[str]] = {}
    after: set[str] = set()  # replies in a session that was compacted before them
    history: dict[str, tuple[str | None, list[Call]]] = {}
    ends: set[str] = set()
    others = _others(run)
    for step, reply in enumerate(_replies(run, others), 1):
        node, before = reply.node, reply.before
        marks[node.id] = Counter(_mark(message) for message in reply.shown)
        gone = 0 if before is None else (marks[before] - marks[node.id]).total()
        named: Sequence[str | None] = reply.compactions
        if before is not None and gone and not named:
            named = [_seen(reply, marks[before])]
        if named or before in after:
            after.add(node.id)
        compactions += [
            LoggedCompaction(reply.session, step, gone if at == len(named) - 1 else 0, strategy)
            for at, strategy in enumerate(named)
        ]
        compactions += [LoggedCompaction(reply.session, None, None, name) for name in reply.then]
        ends.add(node.id)
        ends.discard(before or "")
        calls = list(calls_of(node))
        history[node.id] = (before, calls)
        unread = any(opaque(message.data) for message in reply.shown)
        for at, fate in enumerate(fates):
            kinds = []
            for message in reply.shown:
                cached = known.setdefault(stable_hash(message.text), [])
                while len(cached) <= at:
                    cached.append(survival(rules[len(cached)].text, message.text).kind)
                kinds.append(cached[at])
            kind = min(kinds, key=CLASSES.index, default="dropped")
            kind = kind if kind in SURVIVED or not unread else "unknown"
            earlier = _earlier(history, before) if fate.looks_back and calls else ()
            fate.see(reply, step, kind, calls, node.id in after, earlier)
    if not marks:
        raise UserError(f"{run.folder} holds no reply of a model, so nothing can be said of rules")
    for fate in fates if judges is not None else ():
        fate.ask(run, judges)  # type: ignore[arg-type]
    reports = [fate.report(ends) for fate in fates]
    told = obeyed.compared([rule.phases for rule in reports])
    reports = [replace(rule, phases=phases) for rule, phases in zip(reports, told, strict=True)]
    purposes = Counter(others.purposes.values())
    apart = {purpose: purposes[purpose] for purpose in sorted(purposes)}
    return RuleAudit(
        len(ends),
        len(marks),
        tuple(compactions),
        apart,
        tuple(reports),
        verdict(reports),
        known=tuple(rules),
        caveats=(*_unseen(run, reports), *([] if judges is None else judges.failures)),
    )


def _earlier(history: Mapping[str, tuple[str | None, list[Call]]], before: str | None) -> list[Call]:
    """The calls of a session up to a reply, oldest first; what a compaction dropped among them."""
    chain: list[list[Call]] = []
    while before is not None:
        before, calls = history[before]
        chain.append(calls)
    return [call for calls in reversed(chain) for call in calls]


def _unseen(run: Run, rules: Sequence[RuleFate]) -> Iterator[str]:
    """What the audit cannot say, and why."""
    unstated = sum(not rule.stated_in for rule in rules)
    if unstated:
        sessions = any(maker.settings.get("agent") == "claude-code" for maker in run.each(Provenance))
        yield f"{unstated} of {plural(len(rules), 'rule')} {'is' if unstated == 1 else 'are'} never shown in what was logged" + (
            _UNWRITTEN if sessions else ""
        )
    unchecked = sum(not rule.phases for rule in rules if rule.stated_in)
    if unchecked:
        yield f"whether {plural(unchecked, 'rule')} {'was' if unchecked == 1 else 'were'} obeyed cannot be said without --judge"
    unread = sum(phase.unread for rule in rules for phase in rule.phases)
    if unread:
        yield f"{plural(unread, 'call')} could not be read, or judges left them open: in no rate of obedience"


def _mark(message: Message) -> str:
    """Key that identifies a message; a call by what is called, since harnesses rewrite ids and arguments."""
    own = canonical_json(message.data["content"]) if opaque(message.data) else ""
    return stable_hash(message.role, message.spoken(), own)


def _seen(reply: _Reply, before: Counter[str]) -> str | None:
    """Maker of a compaction that no log names: ``native`` where a provider's own is in the context since, else unknown."""
    new = [message for message in reply.shown if _mark(message) not in before]
    return "native" if any(_native(message) for message in new) else None


def _native(message: Message) -> bool:
    parts = message.data.get("content")
    return isinstance(parts, list) and any(isinstance(part, Mapping) and compacted(part) is not None for part in parts)


class _Reply(NamedTuple):
    """What the model was shown at one of its replies, and the reply before it in the same session:
    None where the session begins."""

    session: str
    node: Node
    shown: Sequence[Message]
    before: str | None
    compactions: Sequence[str] = ()
    """Compactions that the log records since the previous reply: the maker of each."""
    then: Sequence[str] = ()
    """As well, but after the last reply."""


def _logged(run: Run) -> Iterator[tuple[Node, str, Mapping[str, Any]]]:
    """The replies of logged calls, each with its session and with the other fields of its line. Those of a coding agent's own
    session stand on the path that the session is, and are none."""
    named = {info.name: bool(info.task) for info in run.trees()}
    agents = {maker.hash for maker in run.each(Provenance) if "agent" in maker.settings}
    for node in run.each(Node):
        about = node.data.get("response")
        if about is not None and node.role == "assistant" and node.index >= 0 and node.opens and node.provenance not in agents:
            record = about.get("record") if isinstance(about, Mapping) else None
            record = record if isinstance(record, Mapping) else {}
            session, name = node.tree if named[node.tree] else "log", name_in(record, "attempt")
            yield node, session if name is None else f"{session}#{record[name]}", record


def _recorded(run: Run) -> Iterator[tuple[Node, str]]:
    """The replies that a server recorded (`ramify serve --record`) of clients which name their session in each request: Claude
    Code in ``metadata``, Codex in ``prompt_cache_key``. Each with that name."""
    for node in run.each(Node):
        asked = node.data.get("asked")
        if not isinstance(asked, Mapping) or node.role != "assistant" or node.index < 0 or not node.opens:
            continue
        about = asked.get("metadata")
        user = about.get("user_id") if isinstance(about, Mapping) else None
        try:
            named = json.loads(str(user))["session_id"]
        except (TypeError, ValueError, KeyError):
            named = user or asked.get("prompt_cache_key")
        if isinstance(named, str) and named:
            yield node, named


def _commanded(run: Run) -> Iterator[tuple[Node, str]]:
    """The replies of each attempt of a recorded command, whose requests are its observations, with a name of the attempt."""
    for tree in dict.fromkeys(node.tree for node in run.each(Node) if CHAT in node.data):
        for attempt in run.attempts(tree):
            for node, _ in run.path(attempt.leaf).segments:
                if node.role == "assistant" and node.index >= 0 and node.opens:
                    yield node, attempt.leaf


class _Others(NamedTuple):
    """Calls that are no replies of an agent."""

    purposes: Mapping[str, str]
    """Each -> what it is for."""
    before: Mapping[str, str]
    """Of recorded sessions: a reply after a compaction -> the agent's reply before it."""


def _others(run: Run) -> _Others:
    """Calls that are no replies of an agent: those of whoever compacts, those of whoever scores.

    A log may say so (``purpose``). Where it does not, whoever compacts is known by its reply, which comes back in the very next
    request of the session, not as the assistant's: :class:`_Summaries`.
    """
    purposes: dict[str, str] = {}
    sessions: dict[str, _Summaries] = {}
    for node, session, record in _logged(run):
        if isinstance(purpose := record.get("purpose"), str):
            purposes[node.id] = purpose
            continue
        summaries = sessions.setdefault(session, _Summaries())
        purposes |= dict.fromkeys(summaries.add(node, run.shown(node.id).messages), "compaction")
    sessions, before, last = {}, dict[str, str](), dict[str, list[str]]()
    for node, session in (*_recorded(run), *_commanded(run)):
        summed = sessions.setdefault(session, _Summaries()).add(node, shown_at(run, node))
        purposes |= dict.fromkeys(summed, "compaction")
        agent = [name for name in last.get(session, ()) if name not in summed]
        if summed and agent:  # whoever compacts knows nothing of what was asked meanwhile, such as a title
            held = _said(run, summed[0])
            before[node.id] = next((name for name in reversed(agent) if _said(run, name) & held), agent[-1])
        last[session] = [*agent, node.id]
    return _Others(purposes, before)


def _said(run: Run, name: str) -> set[str]:
    """Keys of the messages that a reply was shown, the system's apart."""
    return {_mark(message) for message in shown_at(run, run.node(name)) if message.role != "system"}


def _replies(run: Run, others: _Others) -> Iterator[_Reply]:
    """Every reply of an agent in the order in which the log was written, after the one it follows."""
    about = {node.id: (session, record) for node, session, record in _logged(run)}
    logs = {run.node(name).tree for name in about}
    calls: dict[str, _Calls] = {}
    declared = {  # a harness that says itself which turn a compaction followed
        mark.node: str(mark.value.get("node"))
        for mark in run.each(Annotation)
        if isinstance(mark.value, Mapping) and mark.value.get("type") == "compaction"
    }
    talks: dict[str, int] = {}  # node -> the conversation of a recorded command that it is of, but for the first
    nearest: dict[str, Mapping[int, str]] = {}  # node -> the reply on its path that is nearest, itself included, by conversation
    forked = {entry.key for entry in run.journal(FORKED)}
    apart: set[str] = set()  # what the audit itself played
    for node in run.each(Node):
        if node.parent in apart or node.purpose in forked:
            apart.add(node.id)
            continue
        talk = conversation_of(node.data) if CHAT in node.data else talks.get(node.parent or "", 0)
        known = nearest.get(node.parent or "", {})
        nearest[node.id] = known
        if talk:
            talks[node.id] = talk
        if node.role != "assistant" or node.index < 0 or not node.opens or node.id in others.purposes:
            continue
        if node.tree in logs and node.id not in about:
            continue  # in a log of calls, what a request repeats is not a reply
        follows = nearest.get(declared.get(node.id, ""), known).get(talk)
        before = others.before.get(node.id, follows)
        nearest[node.id] = {**known, talk: node.id}
        shown = shown_at(run, node)
        if node.id not in about:
            yield _Reply(node.tree, node, shown, before)
            continue
        session, record = about[node.id]
        made, then = (_strategies(record.get(name)) for name in ("compactions", "compactions_after"))
        before = calls.setdefault(session, _Calls()).follows(shown, node, bool(made))
        yield _Reply(session, node, shown, before, made, then)


def _strategies(entries: Any) -> list[str]:
    """Maker of each compaction that a line of a log records."""
    found = (
        [str(one.get("strategy", "")) for one in entries or () if isinstance(one, Mapping)] if isinstance(entries, list) else []
    )
    return ["native" if name == "CompactionNative" else name for name in found]


class _Calls:
    """The logged calls of one task (or file), each a request and a reply: their order is found from what requests repeat."""

    def __init__(self) -> None:
        self._after: dict[str, str] = {}  # hash of a request and its reply -> the reply's node
        self._openings: set[str] = set()
        self._last: str | None = None

    def follows(self, shown: Sequence[Message], node: Node, compacted: bool) -> str | None:
        """The reply that this call continues from, None where it opens an attempt. ``compacted``: the log says so itself."""
        chain, before = "", None
        for message in shown:
            chain = stable_hash(chain, _mark(message))
            before = self._after.get(chain, before)
        if compacted:
            before = self._last
        if before is None and self._last is not None and chain not in self._openings:
            before = self._last  # it repeats no reply whole, and begins as no other did: the history was compacted
        if before is None:
            self._openings.add(chain)
        self._after[stable_hash(chain, _mark(node.message))] = self._last = node.id
        return before


class _Summaries:
    """The logged calls of one session: which of them are those of whoever compacts.

    Such a call follows one of the agent's and calls no tool; in the very next request, which continues with the agent's
    conversation, its reply stands nearly alone in a new message of the user or the system. Calls right before it that know
    nothing of the conversation, and whose replies it was given, are the same one's: a summary of summaries.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        """Messages of the conversation, by their keys."""
        self._tail: list[_LoggedCall] = []
        """The newest call, and those right before it that know nothing of the conversation."""
        self._first = ""

    def add(self, node: Node, shown: Sequence[Message]) -> list[str]:
        """The next call. Returns those before it that turn out to be whoever compacts'."""
        found: list[str] = []
        call = _LoggedCall.of(node, shown)
        if self._tail and self._tail[-1].node.id != self._first and self._goes_on(call) and _sums_up(self._tail[-1], call):
            last = self._tail.pop()
            found, texts = [last.node.id], [_flat(message.text) for message in last.shown]
            while self._tail and not self._tail[-1].own & (self._known | call.marks):
                part = self._tail.pop()
                if not any(_gist(part.node)[:_START] in text for text in texts):
                    break
                found.append(part.node.id)
                texts += [_flat(message.text) for message in part.shown]
        self._first = self._first or node.id
        if found or not self._known or call.own & self._known:
            for one in self._tail:
                self._known |= {*one.marks, one.reply}
            self._tail = []
        if found or not self._known:
            self._known |= call.marks
        self._tail.append(call)
        return found

    def _goes_on(self, call: _LoggedCall) -> bool:
        """Whether a call holds a message of the conversation."""
        return bool(call.marks & self._known) or any(call.marks & {*one.marks, one.reply} for one in self._tail[:-1])


class _LoggedCall(NamedTuple):
    """A logged call: what was shown, and the keys of it, of it without the system's messages, and of the reply."""

    node: Node
    shown: Sequence[Message]
    marks: Set[str]
    own: Set[str]
    reply: str

    @classmethod
    def of(cls, node: Node, shown: Sequence[Message]) -> _LoggedCall:
        marks = [(_mark(message), message.role) for message in shown]
        own = {mark for mark, role in marks if role != "system"}
        return cls(node, shown, {mark for mark, _ in marks}, own, _mark(node.message))


def _sums_up(call: _LoggedCall, then: _LoggedCall) -> bool:
    """Whether the reply to ``call`` is what stands in the next request ``then``."""
    gist = _gist(call.node)
    if len(gist) < _SHORTEST or call.node.data.get("tool_calls") or call.reply in then.marks:
        return False
    last = _flat(call.shown[-1].text) if call.shown else ""
    request, wanted = last[:20], bool(_WANTED.search(last[:_ASKED]) or _WANTED.search(last[-_ASKED:]))
    new = [_flat(m.text) for m in then.shown if m.role in ("user", "system") and _mark(m) not in call.marks]
    # a harness that renders the whole conversation as one text repeats replies as well, below its earlier questions
    return any(
        gist[:_START] in text and (wanted or len(text) <= 2 * len(gist) + _FRAME) and not (request and text.startswith(request))
        for text in new
    )


_SHORTEST, _START, _FRAME = 16, 80, 600
"""Characters: of a reply that is identified by its text; of its start, since harnesses cut summaries;
of what they write around one."""
_WANTED, _ASKED = re.compile(r"\bsummar(?:y|ize|ise)\b", re.IGNORECASE), 1500
"""What whoever compacts is asked for, in so many characters at either end of the request's last message: then the summary may
stand among other things in one message, as Claude Code and its own reminders do."""
_ANALYSIS = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)
_SUMMARY = re.compile(r"<summary>(.*)</summary>", re.DOTALL)


def _gist(node: Node) -> str:
    """What of a summariser's reply goes into the context: without the analysis that some prompts require before it."""
    text = _ANALYSIS.sub("", node.text)
    framed = _SUMMARY.search(text)
    return _flat(framed[1] if framed else text)


def _flat(text: str) -> str:
    return " ".join(text.split())


def calls_of(node: Node) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and arguments of each call of a reply; one that cannot be made is named so."""
    try:
        yield from read_calls(node.message)
    except UnreadableError:
        yield "(unreadable)", {}


class _Fate:
    """One rule through all sessions."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.held: dict[str, bool] = {}
        """Reply at or before which the rule was stated -> whether what was shown still held it."""
        self.losses: list[RuleLoss] = []
        self.calls: list[CallWithout] = []
        self.without = self.since = self.unknown = 0
        self.done = Obedience(rule)
        self.looks_back = rule.predicate is not None and rule.predicate.get("kind") == NEEDS

    def see(self, reply: _Reply, step: int, kind: str, calls: Sequence[Call], compacted: bool, earlier: Sequence[Call]) -> None:
        """What the model was shown at one reply says ``kind`` of the rule; it made ``calls``, after ``earlier`` ones. Whether the
        session was ``compacted`` before."""
        holds = kind in SURVIVED
        held = self.held.get(reply.before or "")
        if not holds and held is None:  # not stated yet
            return
        self.since += 1
        if kind == "unknown":  # a provider's own compaction may hold it, or not
            self.held[reply.node.id] = bool(held)
            self.unknown += 1
            return
        self.held[reply.node.id] = holds
        if holds or compacted:
            self.done.see(reply.node.id, BEFORE if not compacted else FINDABLE if holds else LOST, calls, earlier)
        if holds:
            return
        self.without += 1
        if held:
            self.losses.append(RuleLoss(reply.session, step, kind, reply.node.id))
        for at, (name, given) in enumerate(calls):
            broken = breaks(self.rule, name, given, [*earlier, *calls[:at]])
            self.calls.append(CallWithout(reply.session, step, name, dict(given), broken, reply.node.id))

    def ask(self, run: Run, judges: RuleJudges) -> None:
        """Have judges read what neither keywords nor a predicate decide."""
        if self.rule.predicate is None and self.held:
            judges.obeyed(run, self.done)
        kept = judges.kept(run, self.rule.text, [loss.node for loss in self.losses])
        self.losses = [replace(loss, judged=kept[loss.node]) for loss in self.losses]

    def report(self, ends: Set[str]) -> RuleFate:
        """The rule's entry in the report; ``ends``: the last reply of each session."""
        return RuleFate(
            rule=self.rule.text,
            stated_in=len(self.held.keys() & ends),
            lost=tuple(self.losses),
            replies_since_stated=self.since,
            replies_without=self.without,
            replies_unknown=self.unknown,
            calls_without=tuple(self.calls),
            forbidden=None if self.rule.predicate is None else sum(call.forbidden is True for call in self.calls),
            predicate=self.rule.predicate,
            phases=self.done.report(),
        )


def findings(found: RuleAudit, able: Commands) -> list[Finding]:
    """What an audit of a run, whose commands these are, found, as the run keeps it: each loss of a rule, each forbidden call
    without it, and the verdict."""
    made = [Finding("rules", AUDIT, found.verdict, evidence={"sessions": found.sessions, "replies": found.replies})]
    for rule in found.rules:
        text = {"rule": rule.rule}
        back = f" --edit {shlex.quote(json.dumps({'rule': {'add': rule.rule}}, ensure_ascii=False))} --n 32"
        for loss in rule.lost:
            why = f"what the model was shown no longer holds {rule.rule!r} ({loss.became})"
            do = "pin the rule (`ramify serve --middleware pins:FILE`), or put it back and compare: " + (
                f"`{again}`" if (again := able.fork(loss.node, back)) else able.go_on(loss.node, "with it")
            )
            made.append(Finding("rule lost", AUDIT, why, loss.node, 0, do, evidence=codec.to_json(loss) | text))
        for call in rule.calls_without:
            if call.forbidden:
                why = f"{call.name} was called, which {rule.rule!r} forbids, while the model was not shown it"
                made.append(Finding("forbidden call", AUDIT, why, call.node, evidence=codec.to_json(call) | text))
    return made


AUDIT = "governance audit"
FORKED = "governance fork"
"""Kind of the journal entries of the audit's forks, :class:`ForkedRule`: each is the purpose of what was sampled."""


@dataclass(frozen=True)
class ForkedRule:
    """A fork of the audit: ``n`` continuations on either side at ``node``."""

    n: int
    node: str
    rule: str


_OTHERS = {"compaction": "of whoever compacts", "scoring": "of a scorer"}


def verdict(rules: Sequence[RuleFate]) -> str:
    """What the fates of all rules come to, in one sentence."""
    lost, stated = sum(rule.gone for rule in rules), any(rule.stated_in for rule in rules)
    done = obeyed.verdict([rule.phases for rule in rules])
    done = f"; {done}" if done else ""
    if lost:
        return f"compaction dropped {lost} of {len(rules)} rules{done}"
    if not stated:
        return "nothing stands out: none of the rules is stated in these conversations, so none could be lost"
    unread = sum(bool(rule.replies_unknown) for rule in rules)
    but = f"; {unread} could not be looked for after a provider's own compaction" if unread else ""
    worse = any(phase.found for rule in rules for phase in rule.phases)
    return f"{'' if worse else 'nothing stands out: '}no rule was lost{but}{done}"
