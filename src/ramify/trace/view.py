"""One way to read a path: its messages with their tokens, the agent's steps with what each was shown and what it led to, and how
it ended.

Importers, exporters, graders and audits read attempts of a run through :func:`views`, one path each. Pages show a tree whole:
:func:`walk` reads what its paths share once. Both are made of :class:`SeenSoFar` and :class:`HowEnded`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ramify.base.errors import NeedsError
from ramify.trace.failures import failure_of
from ramify.trace.message import Message
from ramify.trace.node import AttemptRecord, Insert, Node, Score, TreeInfo
from ramify.trace.outcome import NOBODY, Ending, cut_short, decider, ended, paid, settled, succeeded
from ramify.trace.parallel import by_call
from ramify.trace.path import Part, Path, by_message, message_of, opens_after

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.tree import Tree


class TokenMessage(NamedTuple):
    """A message with the tokens that spell it, where it has any. Arrays have shape (T,), the template's tokens included."""

    message: Message
    tokens: np.ndarray | None = None
    """int32."""
    ends: np.ndarray | None = None
    """int32: end of each token's text as a character offset into the message's."""
    sampled: np.ndarray | None = None
    """bool: which tokens a model sampled; None where it sampled none."""
    nodes: tuple[Node, ...] = ()
    """The nodes of a path that hold it, the one that opens it first."""
    start: int = 0
    """Where it begins on the path, in the unit of offsets."""

    @property
    def role(self) -> str:
        """The message's role."""
        return self.message.role

    @property
    def text(self) -> str:
        """The message's text."""
        return self.message.text

    @property
    def data(self) -> Mapping[str, Any]:
        """The message's data."""
        return self.message.data

    @property
    def viewed(self) -> bool:
        """Sampled from an explicit context: the messages before it are not what the model saw."""
        return any(node.context is not None for node in self.nodes)


def token_messages(parts: Sequence[Part]) -> list[TokenMessage]:
    """The messages of consecutive parts, tokens kept as they are; an empty root is none."""
    messages: list[TokenMessage] = []
    at, i = 0, 0
    for group in by_message(parts):
        while parts[i] is not group[0]:
            at, i = at + _length(parts[i]), i + 1
        messages.append(_token_message(group, at))
    return messages


def _length(part: Part) -> int:
    return len(part.tokens or ()) if isinstance(part, Insert) else part[2] - part[1]


def _token_message(group: Sequence[Part], at: int) -> TokenMessage:
    first = group[0]
    if len(group) == 1 and not isinstance(first, Insert) and first[1] == 0 and first[2] == len(first[0]):  # nearly all
        node = first[0]
        return TokenMessage(node.message, node.tokens, node.ends, node.sampled, (node,), at)
    message = message_of(group)
    tokens: list[np.ndarray | None] = []
    sampled: list[np.ndarray] = []
    ends: list[np.ndarray | None] = []
    size = 0
    for part in group:
        if isinstance(part, Insert):
            tokens.append(None if part.tokens is None else np.asarray(part.tokens, np.int32))
            sampled.append(np.zeros(len(part.tokens or ()), np.bool_))
            ends.append(None)
            size += len(part.text)
            continue
        node, start, end = part
        before = 0 if not start or node.ends is None else int(node.ends[start - 1])
        tokens.append(None if node.tokens is None else node.tokens[start:end])
        sampled.append(np.zeros(end - start, np.bool_) if node.sampled is None else node.sampled[start:end])
        ends.append(None if node.ends is None else node.ends[start:end] - before + size)
        size += len(node.text) if end == len(node) or node.ends is None else int(node.ends[end - 1]) if end else 0
        size -= before
    nodes = tuple(part[0] for part in group if not isinstance(part, Insert))
    row = _joined(tokens)
    return TokenMessage(message, row, _joined(ends), None if row is None else np.concatenate(sampled), nodes, at)


def _joined(pieces: Iterable[np.ndarray | None]) -> np.ndarray | None:
    known = list(pieces)
    return None if any(piece is None for piece in known) else np.concatenate([piece for piece in known if piece is not None])


class SeenSoFar(NamedTuple):
    """What the agent has been shown at one place of a path. Paths and trees are read by it, message by message."""

    opening: tuple[TokenMessage, ...] = ()
    """The messages of the system that stand before any other."""
    shown: tuple[TokenMessage, ...] = ()
    """The messages since the last reply; before the first one those after the opening."""
    observed: tuple[TokenMessage, ...] = ()
    """What it saw last: the results of tools that came together, as they came, else one message.
    Of two replies in a row both saw the same."""
    before: Mapping[str, Any] = MappingProxyType({})
    """The data of the reply whose calls ``observed`` answers."""
    said: Mapping[str, Any] = MappingProxyType({})
    """The data of the last reply."""
    replies: int = 0
    """How many replies it has given."""

    def then(self, message: TokenMessage) -> SeenSoFar:
        """What it has been shown once ``message`` has come too."""
        opening, shown, observed, before, said, replies = self
        role, new = message.role, (message,)
        if role == "assistant":
            return SeenSoFar(opening, (), observed, before, message.data, replies + 1)
        if role == "system" and not shown and not replies:
            return SeenSoFar((*opening, message), (), new, before, said)
        if not shown:
            return SeenSoFar(opening, new, new, said, said, replies)
        together = role == "tool" and observed[-1].role == "tool"
        return SeenSoFar(opening, (*shown, message), (*observed, message) if together else new, said, said, replies)

    @property
    def lead(self) -> tuple[TokenMessage, ...]:
        """The messages since the last reply; before the first one all of them."""
        return self.shown if self.replies else (*self.opening, *self.shown)

    @property
    def observation(self) -> str:
        """What was observed, as text: results of calls that were made together in the order of the calls, however they came."""
        if len(self.observed) == 1:
            return self.observed[0].text
        return "\n".join([message.text for message in by_call(self.observed, self.before, lambda message: message.data)])


class Step(NamedTuple):
    """One reply of the agent, what it was shown before, and what the environment paid for it."""

    seen: SeenSoFar
    reply: TokenMessage
    reward: float = 0.0
    valid: bool = True
    """False where the environment refused the action."""

    @property
    def shown(self) -> tuple[TokenMessage, ...]:
        """The messages since the reply before; those of the first step begin after the opening."""
        return self.seen.shown

    @property
    def observed(self) -> tuple[TokenMessage, ...]:
        """What it saw last (:attr:`SeenSoFar.observed`)."""
        return self.seen.observed

    @property
    def node(self) -> str:
        """Id of the node the reply ends in."""
        return self.reply.nodes[-1].id

    @property
    def action(self) -> str:
        """What was done: the text, and the calls of tools."""
        return self.reply.message.spoken()

    @property
    def observation(self) -> str:
        """What was observed, as text (:attr:`SeenSoFar.observation`)."""
        return self.seen.observation

    @property
    def state_key(self) -> str | None:
        """The environment's own key of the state that the reply was given in; None where it gave none."""
        return self.observed[-1].nodes[-1].state_key if self.observed else None

    @property
    def span(self) -> tuple[int, int]:
        """Half-open range of the reply on the path, in the unit of offsets."""
        length = 1 if self.reply.tokens is None else len(self.reply.tokens)
        return self.reply.start, self.reply.start + length


@dataclass(frozen=True, slots=True)
class HowEnded:
    """How what ends at a node ended."""

    node: Node
    record: AttemptRecord | None = None
    score: Score | None = None
    paid: float | None = None
    """The sum of the rewards on the way to it; None without any."""

    @property
    def reward(self) -> float | None:
        """The value of the score; without one what its record says, else what was paid on the way. None where nobody said, and
        where a failure ended it."""
        if self.score is not None or self.broken_off is not None:
            return None if self.score is None else self.score.value
        return self.paid if self.record is None or self.record.reward is None else self.record.reward

    @property
    def success(self) -> bool | None:
        """Whether it succeeded: by record and score (:func:`ramify.trace.outcome.succeeded`), else by a reward above 0; None
        where nobody said, and where a failure ended it."""
        if self.node.stop == "failed":
            return None
        recorded = succeeded(self.record, self.score)
        if recorded is not None or self.score is not None or (reward := self.reward) is None:
            return recorded
        return reward > 0

    @property
    def failure(self) -> str | None:
        """The infrastructure failure that ended it (a provider, an environment), None without one."""
        return failure_of(self.node, self.record)

    @property
    def broken_off(self) -> str | None:
        """The infrastructure failure that ended it according to its record: not an attempt to learn from. None without one."""
        return None if self.record is None else self.record.failure

    @property
    def fork(self) -> bool:
        """Whether it is a fork, made to find something out, and not an attempt."""
        return self.record is not None and self.record.fork

    @property
    def cut(self) -> bool:
        """Whether a limit ended it."""
        return cut_short(self.record, self.node.stop)

    @property
    def word(self) -> str:
        """success, cut, failure, or done where nobody said."""
        won = self.success
        return "success" if won else "cut" if self.cut else "done" if won is None else "failure"


@dataclass(frozen=True, eq=False)
class View:
    """One attempt in a run's trees: the path to its end, its score, and its record."""

    info: TreeInfo
    tree: Tree
    path: Path
    score: Score | None = None
    record: AttemptRecord | None = None

    @property
    def end(self) -> Node:
        """Its last node."""
        return self.path.segments[-1][0]

    @property
    def leaf(self) -> str:
        """Id of its last node."""
        return self.end.id

    @property
    def task(self) -> str:
        """Id of its task."""
        return str(self.info.task.get("id", self.info.name))

    @property
    def cohort(self) -> str:
        """The task, apart in each group of trees (an update of a training): what attempts are compared within."""
        group = self.info.group
        return f"{group}/{self.task}" if group and not self.task.startswith(f"{group}/") else self.task

    @cached_property
    def messages(self) -> list[TokenMessage]:
        """Its messages."""
        return messages_of(self.path)

    @property
    def ending(self) -> str:
        """What it ends in, as text: its last message, or results of tools that came together (:attr:`SeenSoFar.observation`)."""
        if not self.messages or self.messages[-1].role == "assistant":
            return self.end.text
        return seen_after(self.messages).observation

    @cached_property
    def opening(self) -> tuple[TokenMessage, ...]:
        """What stands before the first observation: the system's messages."""
        return opening_of(self.messages)

    @cached_property
    def steps(self) -> list[Step]:
        """The agent's replies, in order."""
        return steps_of(self.messages)

    @cached_property
    def ended(self) -> HowEnded:
        """How it ended."""
        return HowEnded(self.end, self.record, self.score, paid(self.path))

    @property
    def reward(self) -> float | None:
        """See :attr:`HowEnded.reward`."""
        return self.ended.reward

    @property
    def success(self) -> bool | None:
        """See :attr:`HowEnded.success`."""
        return self.ended.success

    @property
    def failure(self) -> str | None:
        """See :attr:`HowEnded.failure`."""
        return self.ended.failure

    @property
    def broken_off(self) -> str | None:
        """See :attr:`HowEnded.broken_off`."""
        return self.ended.broken_off

    @property
    def fork(self) -> bool:
        """See :attr:`HowEnded.fork`."""
        return self.ended.fork

    @property
    def cut(self) -> bool:
        """See :attr:`HowEnded.cut`."""
        return self.ended.cut


def messages_of(path: Path) -> list[TokenMessage]:
    """The messages along a path with their tokens."""
    return token_messages([(node, 0, kept) for node, kept in path.segments])


def opening_of(messages: Sequence[TokenMessage]) -> tuple[TokenMessage, ...]:
    """The messages of the system that stand before any other."""
    return tuple(messages[: next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))])


def seen_after(messages: Iterable[TokenMessage]) -> SeenSoFar:
    """What the agent has been shown after ``messages``, from the first one on."""
    return functools.reduce(SeenSoFar.then, messages, SeenSoFar())


def steps_of(messages: Sequence[TokenMessage]) -> list[Step]:
    """One step a reply; a reply that was forked inside is one."""
    steps: list[Step] = []
    seen = SeenSoFar()
    for i, message in enumerate(messages):
        if message.role == "assistant":
            answer = messages[i + 1].nodes[:1] if i + 1 < len(messages) and messages[i + 1].role != "assistant" else ()
            paid_then = answer[0].reward or 0.0 if answer else 0.0
            valid = bool(answer[0].data.get("valid", True)) if answer else True
            steps.append(Step(seen, message, paid_then, valid))
        seen = seen.then(message)
    return steps


class Reached:
    """A node that a walk down a tree came to, and what its path says up to it."""

    __slots__ = ("_message", "_seen", "above", "children", "node", "onward", "paid", "parts", "start", "up")

    def __init__(
        self, node: Node, before: tuple[Part, ...], above: SeenSoFar, up: str | None, start: int, paid: float | None, tree: Tree
    ) -> None:
        size = len(node)
        self.node, self.above, self.up, self.start = node, above, up, start
        """``above``: what the agent had been shown before the message. ``up``: id of the last node before the message, None where
        it is the first. ``start``: where the message begins on the path, in the unit of offsets."""
        self.parts: tuple[Part, ...] = () if node.role == "root" and not node.text else (*before, (node, 0, size))
        """What is kept of the nodes that hold its message, itself the last, whole; none for an empty root."""
        self.paid = paid if node.reward is None else node.reward + (paid or 0.0)
        """The sum of the rewards down to the node; None without any."""
        self.children = tree.children(node.id)
        self.onward = [child for child in self.children if child.offset >= size]
        """The children that follow the node; those that hang inside it replace the rest of it."""
        self._message: TokenMessage | None = None
        self._seen: SeenSoFar | None = None

    @property
    def message(self) -> TokenMessage:
        """The message up to the node; only what the node holds of it where the nodes before it cannot be cut (no ends of their
        tokens)."""
        if self._message is None:
            self._message = _shown_message(self.node, self.parts, self.start)
        return self._message

    @property
    def seen(self) -> SeenSoFar:
        """What the agent has been shown after the node."""
        if self._seen is None:
            self._seen = self.above.then(self.message) if self.parts else self.above
        return self._seen

    @property
    def closed(self) -> bool:
        """Whether its message ends with the node, on some path at least."""
        if not self.parts or not self.onward:
            return bool(self.parts)
        return self.onward[0].opens or any(opens_after(child, self.parts[0]) for child in self.onward)

    def on(self, child: Node, tree: Tree) -> Reached:
        """The walk one node further."""
        parts, whole = self.parts, child.offset >= len(self.node)
        if not parts or (not whole and not child.offset and self.node.opens):  # nothing is kept of the message
            return Reached(child, (), self.above, self.up, self.start, self.paid, tree)
        if not whole:
            parts = (*parts[:-1], (self.node, 0, child.offset))
        if not child.opens and not opens_after(child, parts[0]):
            return Reached(child, parts, self.above, self.up, self.start, self.paid, tree)
        above = self.seen if whole else self.above.then(_shown_message(self.node, parts, self.start))
        return Reached(child, (), above, self.node.id, self.start + sum(map(_length, parts)), self.paid, tree)


def _shown_message(node: Node, parts: tuple[Part, ...], start: int) -> TokenMessage:
    try:
        return _token_message(parts, start)
    except NeedsError:
        return TokenMessage(node.message, nodes=tuple(part[0] for part in parts if not isinstance(part, Insert)), start=start)


def walk(tree: Tree) -> Iterator[Reached]:
    """Every node of a tree, parents before their children and a branch to its end before the next one."""
    waiting = [Reached(tree.root, (), SeenSoFar(), None, 0, None, tree)]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += [here.on(child, tree) for child in reversed(here.children)]


def views(run: Run, group: str | None = None, scorer: str | None = None, unjudged: bool = False) -> Iterator[View]:
    """Every attempt in a run's trees, in an order that does not depend on when they ended, one tree in memory at a time.

    An attempt is a path to a node with a score by ``scorer``, or on record (:func:`ramify.trace.outcome.ended`), and to a leaf in
    trees with neither; without a name, of the one that :func:`ramify.trace.outcome.decider` says. ``unjudged``: also to the
    leaves that nobody judged, and where several scorers could decide nobody did. Raises UserError where there is none of that
    name, or several and none is named.
    """
    deciding = settled(run, scorer) if unjudged else decider(run, scorer)
    for info in sorted(run.trees(group), key=lambda info: info.name):
        tree = run.tree(info.name)
        yield from views_in(info, tree, ended(run, info.name, deciding or NOBODY), unjudged)


def views_in(info: TreeInfo, tree: Tree, ends: Iterable[Ending], unjudged: bool = False) -> Iterator[View]:
    """The attempts of one tree that end as ``ends`` say; ``unjudged``, or without ends: also those to its leaves."""
    known = {ending.node: ending for ending in ends}
    if unjudged or not known:
        known = {leaf.id: Ending(leaf.id, None, None) for leaf in tree.leaves()} | known
    for leaf, ending in sorted(known.items()):
        yield View(info, tree, tree.path(leaf), ending.score, ending.record)
