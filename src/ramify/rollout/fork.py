"""Fork: rewind to any token of a stored run, change one thing, sample n continuations, and compare the outcomes.

An edit is one JSON object: see :mod:`ramify.rollout.edits`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from ramify.base import notebook
from ramify.base.errors import EXIT_FAILED, InfrastructureError, NeedsError, UserError
from ramify.base.ids import json_hash
from ramify.env.protocol import Task, chat_of, tools_of
from ramify.model.protocol import Prefix, Tokenizer, require, require_splittable
from ramify.render.numbers import p_value, percent, percent_interval, points, points_interval
from ramify.render.result import Result, Section, Verbatim, table
from ramify.rollout.attempts import Attempt
from ramify.rollout.edits import SENT, SHOWN, Change, check_history, diff, diff_sent, rewriting, saying, sending, taps_of
from ramify.rollout.edits import check_edit as check_edit
from ramify.rollout.prompt import sent_as
from ramify.rollout.record import Position
from ramify.rollout.run import Episodes
from ramify.rollout.sampler import Sampler
from ramify.stats.drops import Counts, SuccessDifference, SuccessShare
from ramify.stats.evidence import EvidenceRow, evidence
from ramify.stats.intervals import Interval
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.message import Message
from ramify.trace.node import FORK, Node, make_node
from ramify.trace.path import as_messages
from ramify.trace.segment import sentence_offsets

AFTER = ("resample", "replay", "keep")


@dataclass(frozen=True, eq=False)
class Arm:
    """The attempts of one side of a fork. Attempts cut off by a failure are counted apart."""

    attempts: tuple[Attempt, ...]

    @property
    def counts(self) -> Counts:
        """Attempts that succeeded, among those with an outcome."""
        return Counts.of(attempt.outcome for attempt in self.attempts)

    @property
    def scored(self) -> int:
        """Attempts with an outcome."""
        return self.counts.n

    @property
    def successes(self) -> int:
        """Attempts that succeeded."""
        return self.counts.k

    def __repr__(self) -> str:
        return f"<{self.successes} of {self.scored} succeeded, {len(self.attempts) - self.scored} unscored>"


@dataclass(frozen=True, eq=False)
class Fork:
    """The result of a fork. ``control`` continued from the same position without the edit; None where there was no edit or
    nothing was sampled."""

    node: str
    offset: int
    edit: Mapping[str, Any] | None
    after: str
    arm: Arm
    control: Arm | None
    kept_logprob: float | None = None
    """after="keep": summed log-probability of the recorded rest after the edit, minus the same without it."""
    diff: str = ""
    """Unified diff of the prompt without and with the edit; empty where the edit does not change the prompt."""

    @property
    def row(self) -> EvidenceRow | None:
        """The edit as a row of evidence against the control; None without one."""
        if self.control is None:
            return None
        base = (self.control.successes, self.control.scored)
        return evidence(base, {next(iter(self.edit or {"": 0})): (self.arm.successes, self.arm.scored)})[0]

    @property
    def difference(self) -> SuccessDifference | None:
        """Success with the edit minus success without it, with its 95 % interval (Newcombe). None where one side was not sampled,
        or none of its attempts has an outcome."""
        row = self.row
        if row is None or self.control is None or not self.arm.scored or not self.control.scored:
            return None
        return SuccessDifference(row.difference, row.difference_interval)

    @property
    def told(self) -> ForkResult:
        """As ``ramify fork`` returns it: counts instead of attempts."""
        played = [attempt for arm in (self.arm, self.control) if arm is not None for attempt in arm.attempts]
        failed = bool(played) and all(attempt.failure for attempt in played)
        failure = f"every continuation failed, the first at {played[0].failure}" if failed else ""
        return ForkResult(
            node=self.node,
            offset=self.offset,
            edit=self.edit,
            after=self.after,
            fork=self.arm.counts.share,
            control=None if self.control is None else self.control.counts.share,
            difference=self.difference,
            evidence=self.row,
            kept_logprob=self.kept_logprob,
            diff=self.diff,
            failure=failure,
            caveats=(failure,) if failed else (),
        )

    def _repr_html_(self) -> str:
        return notebook.html(self.told)

    def __repr__(self) -> str:
        edit = "no edit" if self.edit is None else short(dict(self.edit), 60)
        by = ""
        if (found := self.difference) is not None:
            by = f",\n difference {points(found.success)} points {points_interval(found.interval)}"
        unedited = "" if self.control is None else f", unedited {self.control!r}"
        return f"<fork at {self.node}:{self.offset}, {edit}:\n {self.arm!r}{unedited}{by}>"


@dataclass(frozen=True)
class ForkResult(Result):
    """What a fork found: success of both arms and their difference."""

    node: str
    offset: int
    edit: Mapping[str, Any] | None
    after: str
    fork: SuccessShare
    control: SuccessShare | None
    """The unedited continuations; None where there was no edit, or nothing was sampled."""
    difference: SuccessDifference | None
    evidence: EvidenceRow | None
    kept_logprob: float | None
    diff: str
    failure: str = ""
    """Where every continuation failed: the first reason."""

    @property
    def exit_code(self) -> int:
        """1 where every continuation failed."""
        return EXIT_FAILED if self.failure else super().exit_code

    def sections(self) -> Iterable[Section]:
        """Outcomes of both arms and their difference."""
        if self.kept_logprob is not None:
            yield Section.of("", f"the recorded rest is {self.kept_logprob:+.3f} nats more likely after the edit")
            return
        arms = (("unedited", self.control), ("edited" if self.edit else "forked", self.fork))
        rows = [
            (name, arm.successes, arm.n, percent(arm.success), percent_interval(arm.interval), arm.failed)
            for name, arm in arms
            if arm is not None
        ]
        edit, by = short(dict(self.edit or {}), 200), ""
        if self.difference is not None and self.evidence is not None:
            by = (
                f"The edit changed success by {points(self.difference.success)} points, "
                f"95 % interval {points_interval(self.difference.interval)}, p = {p_value(self.evidence.p)}. These counts would "
                f"have shown a change of {percent(self.evidence.detectable, 0)} 4 times in 5."
            )
        yield Section.of(
            "",
            f"fork at {self.node}:{self.offset}, after: {self.after}" + (f", edit: {edit}" if self.edit else ""),
            table(("", "successes", "of", "success", "95 % interval", "failed"), rows),
            by,
            Verbatim(self.diff, "diff") if self.diff else None,
        )


@dataclass(frozen=True)
class ForksCompared(Result):
    """Several edits at one position against one control."""

    forks: tuple[ForkResult, ...]
    evidence: tuple[EvidenceRow, ...]

    @property
    def exit_code(self) -> int:
        """1 where every continuation failed."""
        return EXIT_FAILED if all(one.failure for one in self.forks) else super().exit_code

    def sections(self) -> Iterable[Section]:
        """The table of evidence and the diff of each."""
        control = self.forks[0].control
        assert control is not None
        rows = [_compared("unedited", control.successes, control.n, control.success, control.interval)]
        for row in self.evidence:
            against = points(row.difference), points_interval(row.difference_interval), p_value(row.p_corrected)
            rows.append(_compared(row.intervention, row.hits, row.n, row.share, row.share_interval, *against))
        head = ("edit", "successes", "success", "95 % interval", "points", "95 % interval of it", "p, corrected")
        yield Section.of("", table(head, rows))
        for row, one in zip(self.evidence, self.forks, strict=True):
            if one.diff:
                yield Section.of(f"{row.intervention}:", Verbatim(one.diff, "diff"))


def _compared(name: str, k: int, n: int, share: float | None, ends: Interval, *against: str) -> tuple[str, ...]:
    return name, f"{k}/{n}", percent(share), percent_interval(ends), *(against or ("", "", ""))


async def fork(
    episodes: Episodes,
    tree: str,
    task: Task,
    node_id: str,
    offset: int | None = None,
    n: int = 32,
    edit: Mapping[str, Any] | None = None,
    after: str = "resample",
    control: bool = True,
    start: int | None = None,
    key: str = "",
    purpose: str = FORK,
    counted: ArmsCounted | None = None,
) -> Fork:
    """Rewind ``tree`` to ``offset`` tokens inside ``node_id`` (default: 0 for an agent's message, its end for an observation).

    ``after``: ``resample`` samples the rest anew n times; ``replay`` re-issues the recorded later actions after the edited
    message once; ``keep`` keeps the recorded rest of the message and only scores it again. With an edit, ``resample`` also
    samples n unedited continuations from the same place as a control. The prefix is computed once. ``start`` is the first sample
    index: samples of one edit that are stored under it already are read, not sampled again; by default every call samples anew,
    but for one with the ``key`` of an earlier one, which continues it (:func:`interruptible`). Samples of another ``purpose`` are
    other ones (:class:`ramify.trace.node.AttemptRecord`). ``counted`` hears of every attempt, for who waits.

    Raises UserError on a place or edit that does not exist or that the model refuses, before anything is sampled to be kept, and
    NeedsError where the model lacks a capability.
    """
    edit = check_edit(edit)
    if after not in AFTER:
        raise UserError(f"after='{after}' is not one of {', '.join(AFTER)}")
    if n < 1:
        raise UserError(f"n must be at least 1, not {n}")
    node = episodes.load(tree).node(node_id)
    if node.role not in ("assistant", "user", "tool"):
        raise UserError(f"node {node_id} is a {node.role} message; fork at an agent's message or at an observation")
    at = _offset(episodes, node, offset, edit)
    plan = _plan(episodes, node, at, edit)
    if after == "keep":
        return Fork(node.id, at, edit, after, Arm(()), None, await _keep(episodes, node, at, plan), plan.diff)
    if after == "replay":
        return Fork(node.id, at, edit, after, Arm((await _replay(episodes, tree, task, node, edit),)), None, None, plan.diff)
    wanted = [WantedArm(node.id, offset, edit, key, start)]
    if edit and control:
        wanted.append(WantedArm(node.id, at, key=key and f"{key}/control", start=None if start is None else start + n))
    edited, *controls = await arms(episodes, tree, task, wanted, n, purpose, counted=counted)
    return Fork(node.id, at, edit, after, edited, controls[0] if controls else None, None, plan.diff)


@dataclass(frozen=True)
class WantedArm:
    """Continuations to sample: from where, under which edit, and from which sample index on (see :func:`fork`)."""

    node: str
    offset: int | None = None
    edit: Mapping[str, Any] | None = None
    key: str = ""
    start: int | None = None


class ArmsCounted:
    """Success of each arm while they are played: ``told`` gets how many attempts ended, and :attr:`note` for the live line."""

    def __init__(self, names: Sequence[str], told: Callable[[int, str], object]) -> None:
        """``names`` in the order of the arms: edited, unedited, further edits."""
        self.names, self.told, self.counts = names, told, [Counts(0, 0) for _ in names]

    def add(self, arm: int, attempt: Attempt) -> None:
        """One more of the ``arm``-th has ended."""
        self.counts[arm] += Counts.of([attempt.outcome])
        self.told(sum(count.forks for count in self.counts), self.note)

    @property
    def note(self) -> str:
        """``edited 5 of 8, unedited 3 of 8: +25.0 points, 95 % interval [-21.0, +60.4]``; of one arm its own interval."""
        said = ", ".join(f"{name} {count.k} of {count.n}" for name, count in zip(self.names, self.counts, strict=True))
        if len(self.counts) == 1 and self.counts[0].n:
            return f"{said}, 95 % interval {percent_interval(self.counts[0].share.interval)}"
        if len(self.counts) == 2 and all(count.n for count in self.counts):
            row = evidence((self.counts[1].k, self.counts[1].n), {"": (self.counts[0].k, self.counts[0].n)})[0]
            return f"{said}: {points(row.difference)} points, 95 % interval {points_interval(row.difference_interval)}"
        return said


async def arms(
    episodes: Episodes,
    tree: str,
    task: Task,
    wanted: Sequence[WantedArm],
    n: int,
    purpose: str = FORK,
    turns: int | None = None,
    counted: ArmsCounted | None = None,
) -> list[Arm]:
    """``n`` continuations of each, sampled in turns, the first of every arm, then the second of every arm: what changes at a
    server with time, load or its cache changes for all arms alike. They pause after ``turns`` replies, where that is given.
    Raises as :func:`fork`."""
    places = []
    for arm in wanted:  # all of them before the first is played, or one would be stored by the time the model refuses another
        node = episodes.load(tree).node(arm.node)
        offset = _offset(episodes, node, arm.offset, arm.edit)
        places.append((node, offset, _plan(episodes, node, offset, arm.edit)))
        await _try(episodes, places[-1][2], offset)
    taken: dict[str, int] = {}
    begun = [
        await _begun(episodes, tree, task, arm, *place, n, purpose, taken, turns)
        for arm, place in zip(wanted, places, strict=True)
    ]
    order = [
        (a, play) for plays in zip_longest(*(plays for _, plays in begun)) for a, play in enumerate(plays) if play is not None
    ]

    async def played_by(arm: int, play: Play) -> Attempt:
        attempt = await play()
        if counted is not None:
            counted.add(arm, attempt)
        return attempt

    done = await asyncio.gather(*(played_by(a, play) for a, play in order))
    played: list[list[Attempt]] = [[] if first is None else [first] for first, _ in begun]
    for (a, _), attempt in zip(order, done, strict=True):
        played[a].append(attempt)
    return [Arm(tuple(attempts)) for attempts in played]


Play = Callable[[], Awaitable[Attempt]]


async def _begun(
    episodes: Episodes,
    tree: str,
    task: Task,
    arm: WantedArm,
    node: Node,
    offset: int,
    plan: _Plan,
    n: int,
    purpose: str,
    taken: dict[str, int],
    turns: int | None,
) -> tuple[Attempt | None, list[Play]]:
    """What plays each continuation of an arm; or the attempt that is all of it, where the edit itself ended it. ``taken``: the
    sample indices below which those at a node are another arm's."""
    edit, key, here = arm.edit, arm.key, plan.node
    at = offset if here is node else len(here)
    parent = episodes.prompts.at(here, at).parent.id
    start = _start(episodes, tree, parent, key, purpose, taken.get(parent, 0)) if arm.start is None else arm.start
    taken[parent] = max(taken.get(parent, 0), start + n)
    if edit and "replace" in edit and node.role == "assistant":
        first = await _replay(episodes, tree, task, node, edit, rest=False)
        start = _start(episodes, tree, first.leaf, key and f"{key}/replaced", purpose)
        if first.failure is not None or episodes.load(tree).node(first.leaf).stop:
            return first, []
        return None, [partial(episodes.branch, tree, task, first.leaf, start + i, turns, purpose=purpose) for i in range(n)]
    play = partial(episodes.edited, tree, task, here.id, at, insert=plan.insert, change=plan.change, purpose=purpose, turns=turns)
    return None, [partial(play, index=start + i) for i in range(n)]


async def compare(
    episodes: Episodes,
    tree: str,
    task: Task,
    node_id: str,
    edits: Mapping[str, Mapping[str, Any]],
    offset: int | None = None,
    n: int = 32,
    correction: str = "holm",
    key: str = "",
    turns: int | None = None,
    counted: ArmsCounted | None = None,
) -> tuple[list[Fork], list[EvidenceRow]]:
    """Several edits at one position against one control of n unedited continuations; p-values are corrected over all of them.
    ``turns``: see :func:`arms`; ``counted`` hears of every attempt, for who waits.

    Raises UserError and NeedsError like :func:`fork`, before anything is sampled where an edit itself is wrong, and UserError
    where edits of sentences lead to different positions, which cannot share a control.
    """
    checked = {name: check_edit(dict(edit)) for name, edit in edits.items()}
    node = episodes.load(tree).node(node_id)
    offsets = {name: _offset(episodes, node, offset, edit) for name, edit in checked.items()}
    if len(set(offsets.values())) > 1:
        listed = ", ".join(f"{name} at token {at}" for name, at in offsets.items())
        raise UserError(
            f"edits that are compared share one control and so one position in node {node.id}, not {listed}: fork each separately"
        )
    if not any(checked.values()):
        raise UserError("a comparison needs at least one edit")
    at = next(iter(offsets.values()))
    wanted = [WantedArm(node.id, offset, edit, key and f"{key}/{i}") for i, edit in enumerate(checked.values())]
    wanted.insert(1, WantedArm(node.id, at, key=key and f"{key}/control"))
    first, control, *others = await arms(episodes, tree, task, wanted, n, turns=turns, counted=counted)
    forks = [
        Fork(node.id, at, edit, "resample", arm, None if i else control, None, _plan(episodes, node, at, edit).diff)
        for i, (edit, arm) in enumerate(zip(checked.values(), (first, *others), strict=True))
    ]
    counts = {name: (f.arm.successes, f.arm.scored) for name, f in zip(checked, forks, strict=True)}
    return forks, evidence((control.successes, control.scored), counts, correction=correction)


def diff_of(episodes: Episodes, node: Node, edit: Mapping[str, Any]) -> str:
    """What an edit changes in the prompt at a node, as a unified diff. Raises UserError and NeedsError where it does not go."""
    node = episodes.load(node.tree).node(node.id)
    return _plan(episodes, node, _offset(episodes, node, None, edit), edit).diff


async def _try(episodes: Episodes, plan: _Plan, offset: int) -> None:
    """Test the user's token ids or hidden-state edit with one discarded token. Raises UserError where the model refuses them."""
    change, inserted = plan.change or Change(), plan.insert
    given = None if inserted is None or inserted.role != "assistant" else inserted.tokens
    if episodes.agent.template is None or (given is None and not change.ban and change.state is None):
        return
    tokens = episodes.prompts.tokens_of(episodes.prompts.shown(plan.node, offset), plan.node.role == "assistant" and offset > 0)
    tokens = tokens if given is None else np.concatenate([tokens, given])
    settings = replace(episodes.agent.sampling, max_tokens=1, ban_first=change.ban)
    with suppress(InfrastructureError):  # which is not about the edit
        taps = None if change.state is None else taps_of(change.state, len(tokens))
        await Sampler(episodes.agent.model).one(Prefix(tokens), settings, ("fork", "try"), taps=taps)


@contextmanager
def interruptible(episodes: Episodes, node: str, offset: int | None, edits: Sequence[Any], n: int, after: str) -> Iterator[str]:
    """A key for :func:`fork` or :func:`compare`: that of the same call before, where it was interrupted; else a new one.

    Attempts are committed as they end (:meth:`Episodes.committing`).
    """
    run = episodes.run
    what = json_hash([node, offset, list(edits), n, after, episodes.provenance.hash])
    key = f"{what}/{sum(entry.key.startswith(what) for entry in run.journal('forked'))}"
    with episodes.committing():
        yield key
    run.log("forked", key)
    run.commit()


def was_interrupted(run: Run) -> bool:
    """Whether a call that :func:`interruptible` keyed was begun in a run and did not end."""
    ended = {entry.key for entry in run.journal("forked")}
    parts = (entry.key.split("/") for entry in run.journal("fork"))
    # `ramify fix` forks under keys of its own, without a number, and says itself what it left off
    return any(number[:1] and number[0].isdigit() and f"{what}/{number[0]}" not in ended for what, *number in parts)


def _start(episodes: Episodes, tree: str, node_id: str, key: str, purpose: str, least: int = 0) -> int:
    """The first sample index of a fork: the next that is free, at ``least`` this, or, of one that was begun under this ``key``,
    its own."""
    children = episodes.load(tree).children(node_id)
    free = max(least, max((child.index for child in children if child.purpose == purpose), default=-1) + 1)
    if not key or episodes.run.log("fork", key, free):
        return free
    return int(episodes.run.journal("fork", key)[0].payload)


def _offset(episodes: Episodes, node: Node, offset: int | None, edit: Mapping[str, Any] | None) -> int:
    if edit and "sentence" in edit:
        if node.role != "assistant" or offset is not None:
            raise UserError(
                f"edit 'sentence' says itself where in an agent's message it goes; node {node.id} takes no offset for it"
            )
        offset = _sentence(node, edit["sentence"])
    if edit and "state" in edit:
        require(episodes.agent.model, ("tokens", "taps"), "a hidden-state edit")
    if node.role != "assistant":
        if offset not in (None, len(node)):
            raise UserError(f"node {node.id} is an observation: fork after it (offset {len(node)}) or replace it, not inside it")
        return len(node)
    offset = node.head if offset is None else offset
    if offset > node.head and node.tokens is None:  # of a message that is text alone, whatever the offset counts
        require(episodes.agent.model, ("tokens", "continue"), "a fork inside a message")
    if not 0 <= offset <= len(node):
        raise UserError(f"offset {offset} is outside node {node.id}, which has {len(node)} tokens or messages")
    if offset > node.head:
        require(episodes.agent.model, ("tokens", "continue"), "a fork inside a message")
        require_splittable(episodes.agent.sampling, "a fork inside a message")
    return max(offset, node.head)


def _tokenizer(episodes: Episodes) -> Tokenizer:
    if episodes.agent.template is None:
        raise NeedsError("this edit needs a model that takes token ids")
    return episodes.agent.template.tokenizer


def _sentence(node: Node, sentence: Mapping[str, Any]) -> int:
    starts, at = sentence_offsets(node, sentence.get("by", "prose"), node.head), int(sentence["at"])
    if at >= len(starts):
        raise UserError(f"node {node.id} has {max(0, len(starts) - 1)} sentences, so there is no position before sentence {at}")
    return starts[at]


@dataclass(frozen=True, eq=False)
class _Plan:
    """An edit resolved: the node it starts from, what is inserted after it, what else changes, and a diff of all of it."""

    node: Node
    insert: Node | None = None
    change: Change | None = None
    diff: str = ""


def _plan(episodes: Episodes, node: Node, offset: int, edit: Mapping[str, Any] | None) -> _Plan:
    """Raises UserError where the edit does not go with the node, NeedsError where it needs tokens and there are none."""
    if edit is None:
        return _Plan(node)
    ((kind, value),) = edit.items()
    if kind in ("ban", "ban_tokens"):
        ids = value if kind == "ban_tokens" else [token for text in value for token in _tokenizer(episodes).encode(text)[:1]]
        return _Plan(node, change=Change(tuple(ids)))
    if kind == "state":
        return _Plan(node, change=Change(state=value))
    if kind == "insert":
        return _inserting(episodes, node, offset, value)
    if kind == "replace":
        insert = None if node.role == "assistant" else episodes.record.replaced(node, value)
        messages = as_messages(episodes.prompts.shown(node, len(node)))
        return _Plan(node, insert, diff=diff(messages, [*messages[:-1], Message(node.role, value)]))
    if kind in (*SENT, *SHOWN):
        position = episodes.prompts.at(node, offset if node.role == "assistant" else None)
        if kind in SENT or _stands_in_requests(episodes, position, edit):
            return _sending(episodes, node, offset, position, edit)
        rewrite, parts = rewriting(edit, episodes.agent.template), episodes.prompts.shown(node, offset)
        return _Plan(node, change=Change(rewrite=rewrite), diff=diff(as_messages(parts), as_messages(rewrite(parts))))
    if node.role != "assistant":
        raise UserError(f"edit '{kind}' goes into an agent's message; node {node.id} is an observation")
    if kind == "sentence" and not (value := value.get("text")):
        return _Plan(node)
    tokenizer = _tokenizer(episodes)
    tokens = value if kind == "append_tokens" else tokenizer.encode(value)
    try:
        text, ends = tokenizer.decode(tokens), tokenizer.ends(tokens)
    except (ValueError, IndexError, OverflowError):
        raise UserError(
            f"edit '{kind}' holds a token that the tokenizer of '{episodes.agent.model.identity.name}' has not"
        ) from None
    fields = {"tokens": tokens, "ends": ends, "opens": False, "data": {"edit": dict(edit)}}
    added = make_node(node.tree, node.id, offset, "assistant", text, **fields)
    parts = episodes.prompts.shown(node, offset)
    return _Plan(node, added, diff=diff(as_messages(parts), as_messages([*parts, (added, 0, len(added))])))


def _inserting(episodes: Episodes, node: Node, offset: int, value: Mapping[str, Any]) -> _Plan:
    """One more message after the observation that ``node`` is, or answers."""
    if node.role == "assistant":
        if offset > node.head:
            raise UserError(f"edit 'insert' goes before an agent's message, not inside node {node.id}")
        node = episodes.load(node.tree).node(str(node.parent))
    added = episodes.record.inserted(node, value["role"], value["text"])
    messages = as_messages(episodes.prompts.shown(node, len(node)))
    return _Plan(node, added, diff=diff(messages, [*messages, Message(value["role"], value["text"])]))


def _sent(episodes: Episodes, position: Position) -> Prefix:
    return episodes.prompts.prompt(position, tools_of(episodes.environment)).prefix


def _stands_in_requests(episodes: Episodes, position: Position, edit: Mapping[str, Any]) -> bool:
    """Whether the message of a ``rule`` or ``history`` edit is one of those that an agent's program sends, perhaps anew at a
    later turn."""
    if not any(chat_of(one.data) for one in position.messages):
        return False
    if "history" in edit:
        return bool(_said(position, edit))
    return any(message.role == "system" for message in _sent(episodes, position).messages)


def _said(position: Position, edit: Mapping[str, Any]) -> list[tuple[Message, int]]:
    """Which of the messages that are sent a ``history`` edit changes. Raises UserError where the prompt has them not."""
    if "history" not in edit:
        return []
    check_history(edit["history"], position.messages)
    return sent_as(position.messages, edit["history"]["message"])


def _sending(episodes: Episodes, node: Node, offset: int, position: Position, edit: Mapping[str, Any]) -> _Plan:
    """An edit of what is sent, now and later. Raises UserError where it changes nothing there."""
    ((kind, value),) = edit.items()
    nothing = UserError(f"edit '{kind}' changes nothing of what the agent is shown at node {node.id[:12]}: {short(value, 120)}")
    template = episodes.agent.template
    if episodes.prompts.sends(position):
        before, change = _sent(episodes, position), sending(edit, _said(position, edit))
        after = change(before)
        same = (after.messages, after.tools, after.asked) == (before.messages, before.tools, before.asked)
        if same and not (kind == "tool" and not (before.tools or before.asked.get("tools"))):
            raise nothing  # but for a request without tools, such as that for a title: later ones have them
        return _Plan(node, change=Change(shown=change, name=json_hash(edit)), diff=diff_sent(before, after))
    if kind == "tool":
        raise NeedsError("edit 'tool' needs a model that takes messages: the template of this one renders the tools")
    parts = episodes.prompts.shown(node, offset)
    messages = as_messages(parts)
    changed = sending(edit)(Prefix(messages=tuple(messages))).messages
    texts = {at: new.text for at, (old, new) in enumerate(zip(messages, changed, strict=True)) if old.text != new.text}
    if not texts:
        raise nothing
    return _Plan(node, change=Change(rewrite=saying(texts, template)), diff=diff(messages, changed))


async def _replay(
    episodes: Episodes, tree: str, task: Task, node: Node, edit: Mapping[str, Any] | None, rest: bool = True
) -> Attempt:
    """The message that replaces ``node`` under ``edit``, and with ``rest`` the recorded later actions after it."""
    if node.role != "assistant" or (edit is not None and "replace" not in edit):
        raise UserError("after='replay' goes with an agent's message and a 'replace' edit or none")
    known = episodes.load(tree)
    actions, here = [edit["replace"] if edit else node.message.written()], node
    while rest and (children := known.children(here.id)):
        here = min(children, key=lambda c: c.index)
        if here.role == "assistant":
            actions.append(here.message.written())
    before = known.path(node.id).segments[-2][0]
    return await episodes.reissue(tree, task, before, actions)


async def _keep(episodes: Episodes, node: Node, offset: int, plan: _Plan) -> float:
    """Log-probability of the recorded rest of the message after the edit, minus the same without it."""
    model: Any = episodes.agent.model
    require(model, ("tokens", "prompt_logprobs"), "after='keep'")
    insert, change = plan.insert, plan.change or Change()
    if (
        node.role != "assistant"
        or node.tokens is None
        or change.ban
        or (insert is None and change == Change())
        or plan.node is not node
    ):
        raise UserError("after='keep' goes with an agent's message and an edit 'append', 'rule', 'history' or 'state'")
    parts = episodes.prompts.shown(node, offset)
    before, rest = episodes.prompts.tokens_of(parts, offset > 0), node.tokens[offset:]
    shown = before if change.rewrite is None else episodes.prompts.tokens_of(change.rewrite(parts), offset > 0)
    more = np.zeros(0, np.int32) if insert is None or insert.tokens is None else insert.tokens
    edited = np.concatenate([shown, more, rest])
    taps = {} if change.state is None else {"taps": taps_of(change.state, len(shown) + len(more))}
    (with_edit,) = await model.logprobs([edited], **taps)
    (without,) = await model.logprobs([np.concatenate([before, rest])])
    if not len(rest):
        return 0.0
    return float(with_edit.logprobs[-len(rest) :].sum()) - float(without.logprobs[-len(rest) :].sum())
