"""One way to read a path: its messages with their tokens, the agent's steps with what each was shown and what it led to, and how
it ended.

Importers, exporters, graders, audits and pages read attempts of a run through :func:`views`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ramify.trace.failures import failure_of
from ramify.trace.message import Message
from ramify.trace.node import AttemptRecord, Insert, Node, Score, TreeInfo
from ramify.trace.outcome import NOBODY, Ending, cut_short, decider, ended, paid, settled, succeeded
from ramify.trace.parallel import by_call
from ramify.trace.path import Part, Path, by_message, message_of

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
    made: list[TokenMessage] = []
    at, i = 0, 0
    for group in by_message(parts):
        while parts[i] is not group[0]:
            at, i = at + _length(parts[i]), i + 1
        made.append(_token_message(group, at))
    return made


def _length(part: Part) -> int:
    return len(part.tokens or ()) if isinstance(part, Insert) else part[2] - part[1]


def _token_message(group: list[Part], at: int) -> TokenMessage:
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
    own = tuple(part[0] for part in group if not isinstance(part, Insert))
    row = _joined(tokens)
    return TokenMessage(message, row, _joined(ends), None if row is None else np.concatenate(sampled), own, at)


def _joined(pieces: Iterable[np.ndarray | None]) -> np.ndarray | None:
    known = list(pieces)
    return None if any(piece is None for piece in known) else np.concatenate([piece for piece in known if piece is not None])


class Step(NamedTuple):
    """One reply of the agent, what it was shown before, and what the environment paid for it."""

    shown: tuple[TokenMessage, ...]
    """The messages since the reply before; those of the first step begin after the opening."""
    observed: tuple[TokenMessage, ...]
    """What it saw last: the results of tools that came together, as they came, else one message.
    Of two replies in a row both saw the same."""
    reply: TokenMessage
    reward: float = 0.0
    valid: bool = True
    """False where the environment refused the action."""
    before: Mapping[str, Any] = MappingProxyType({})
    """The data of the reply whose calls ``observed`` answers."""

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
        """What was observed, as text: results of calls that were made together in the order of the calls, however they came."""
        return "\n".join([one.text for one in by_call(self.observed, self.before, lambda one: one.data)])

    @property
    def state_key(self) -> str | None:
        """The environment's own key of the state that the reply was given in; None where it gave none."""
        return self.observed[-1].nodes[-1].state_key if self.observed else None

    @property
    def span(self) -> tuple[int, int]:
        """Half-open range of the reply on the path, in the unit of offsets."""
        length = 1 if self.reply.tokens is None else len(self.reply.tokens)
        return self.reply.start, self.reply.start + length


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
        """What it ends in, as text: its last message, or the results of tools that came together (:attr:`Step.observation`)."""
        last = next((i for i in range(len(self.messages) - 1, -1, -1) if self.messages[i].role != "tool"), -1)
        together = self.messages[last + 1 :]
        if len(together) < 2 or last < 0:
            return self.end.text
        return "\n".join([one.text for one in by_call(together, self.messages[last].data, lambda one: one.data)])

    @cached_property
    def opening(self) -> tuple[TokenMessage, ...]:
        """What stands before the first observation: the system's messages."""
        return opening_of(self.messages)

    @cached_property
    def steps(self) -> list[Step]:
        """The agent's replies, in order."""
        return steps_of(self.messages)

    @property
    def reward(self) -> float | None:
        """The value of the score; without one what its record says, else the rewards along the path. None where nobody said, and
        where a failure ended it."""
        if self.score is not None or self.broken_off is not None:
            return None if self.score is None else self.score.value
        return paid(self.path) if self.record is None or self.record.reward is None else self.record.reward

    @property
    def success(self) -> bool | None:
        """Whether it succeeded: by record and score (:func:`ramify.trace.outcome.succeeded`), else by a reward above 0; None
        where nobody said, and where a failure ended it."""
        if self.end.stop == "failed":
            return None
        found = succeeded(self.record, self.score)
        if found is not None or self.score is not None or (reward := self.reward) is None:
            return found
        return reward > 0

    @property
    def failure(self) -> str | None:
        """The infrastructure failure that ended it (a provider, an environment), None without one."""
        return failure_of(self.end, self.record)

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
        return cut_short(self.record, self.end.stop)


def messages_of(path: Path) -> list[TokenMessage]:
    """The messages along a path with their tokens."""
    return token_messages([(node, 0, kept) for node, kept in path.segments])


def opening_of(messages: Sequence[TokenMessage]) -> tuple[TokenMessage, ...]:
    """The messages of the system that stand before any other."""
    return tuple(messages[: next((i for i, one in enumerate(messages) if one.role != "system"), len(messages))])


def steps_of(messages: Sequence[TokenMessage]) -> list[Step]:
    """One step a reply; a reply that was forked inside is one."""
    steps: list[Step] = []
    shown: list[TokenMessage] = []
    at = len(opening_of(messages))
    observed = tuple(messages[max(at - 1, 0) : at])
    before: Mapping[str, Any] = {}
    said: Mapping[str, Any] = {}
    for i in range(at, len(messages)):
        one = messages[i]
        if one.role != "assistant":
            together = one.role == "tool" and bool(observed) and observed[-1].role == "tool" and bool(shown)
            observed = (*observed, one) if together else (one,)
            before = said
            shown.append(one)
            continue
        answer = messages[i + 1].nodes[:1] if i + 1 < len(messages) and messages[i + 1].role != "assistant" else ()
        paid_then = answer[0].reward or 0.0 if answer else 0.0
        valid = bool(answer[0].data.get("valid", True)) if answer else True
        steps.append(Step(tuple(shown), observed, one, paid_then, valid, before))
        shown, said = [], one.data
    return steps


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
    known = {one.node: one for one in ends}
    if unjudged or not known:
        known = {leaf.id: Ending(leaf.id, None, None) for leaf in tree.leaves()} | known
    for leaf, one in sorted(known.items()):
        yield View(info, tree, tree.path(leaf), one.score, one.record)
