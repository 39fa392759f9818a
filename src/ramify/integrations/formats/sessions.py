"""Shared by the readers of agents' sessions: a path that grows message by message, a compaction on it, and the task's tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.base.ids import stable_hash
from ramify.integrations.formats.exchanges import ToolExchange
from ramify.trace.aliases import NOTHING, Judged
from ramify.trace.context import resolve
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, root
from ramify.trace.message import Message
from ramify.trace.node import IMPORT, Annotation, AttemptRecord, Context, Insert, Node, PathRest, Span, make_node
from ramify.trace.notes import opened

_NAME = 80


def task_name(prompt: str) -> str:
    """What a task is called by its prompt: the prompt on one line; of a long one the beginning, and a hash of all of it."""
    text = " ".join(prompt.split())
    return text if len(text) <= _NAME else f"{text[: _NAME - 10]} {stable_hash('task', text)[:8]}"


def grow_tree(run: Run, name: str, known: bool = True) -> str:
    """The tree of that name with its root, added where it is not there yet; ``known``: the name is that of a task."""
    run.add_tree(name, {"id": name} if known else {})
    root(run, name)
    return name


class LooseExchange(ToolExchange):
    """Calls and results of a session as they are: a harness drops results, repeats them, and begins in the middle."""

    def call(self, name: str, spot: str, key: str, waits: bool = True) -> None:
        """Anything goes."""

    def result(self, spot: str, key: str, own: bool = False) -> None:
        """Anything goes."""


@dataclass
class SessionPath:
    """The path of one attempt while a session is read. From a compaction on, each reply has as its context what the harness
    kept, what it added, and what followed."""

    run: Run
    tree: str
    completion: int
    node: Node
    context: Context | None = None
    """What the model is shown now, where that is not the path."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Id -> name of the calls without a result."""
    provenance: str | None = None
    """Who sampled the last reply."""

    @classmethod
    def begin(cls, run: Run, tree: str, completion: int) -> SessionPath:
        """At the root of a tree."""
        return cls(run, tree, completion, root(run, tree))

    def branch(self, completion: int) -> SessionPath:
        """Another attempt that continues from here."""
        return replace(self, completion=completion, waiting=dict(self.waiting))

    def compact(self, parts: Sequence[Span | Insert]) -> None:
        """From here on the model is shown ``parts``, and what follows."""
        self.context = Context((*parts, PathRest(self.node.id)))
        self.run.add(self.context)

    def shown(self) -> tuple[Span | Insert, ...]:
        """What the model is shown now, part by part; nothing where that is the path."""
        if self.context is None:
            return ()
        asked = make_node(self.tree, self.node.id, len(self.node), "assistant", "")
        parts = resolve(self.context, self.run.node, asked)
        return tuple(part if isinstance(part, Insert) else Span(part[0].id, *part[1:]) for part in parts)

    def hang(
        self, message: Message, replied: bool, last: bool = False, about: Mapping[str, Any] | None = None, **fields: Any
    ) -> Node:
        """Add a message; see :meth:`ramify.trace.foreign.Thread.hang`."""
        if replied:
            self.provenance = fields.get("provenance", self.provenance)
            if self.context is not None:
                fields["context"] = self.context.hash
        self._count_calls(message)
        if last and self.waiting:
            opened(len(self.waiting))
            about = {**(about or {}), "unanswered": [{"id": key, "name": name} for key, name in self.waiting.items()]}
        self.node = Thread(self.run, self.tree, self.completion, self.node).hang(message, replied, last, about, **fields)
        return self.node

    def _count_calls(self, message: Message) -> None:
        self.waiting.pop(str(message.data.get("tool_call_id")), None)
        calls = message.data.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if call.get("id") and "block" not in call:
                self.waiting[str(call["id"])] = str(call["function"]["name"])

    def fail(self, why: str, about: Mapping[str, Any] | None = None) -> None:
        """End the attempt with a call to the model that failed."""
        self.hang(Message("assistant", "", {"error": why}), True, True, about, stop="failed", provenance=self.provenance)

    def end(self, judged: Judged = NOTHING) -> None:
        """Store the attempt that ends here."""
        known = AttemptRecord(self.node.id, self.tree, None, 0, IMPORT, self.completion, provenance=self.provenance)
        end_attempt(self.run, self.node, judged, known)


def link_subagent(run: Run, caller: str, end: str, maker: str) -> None:
    """Note at the node whose call started a subagent where the subagent's own conversation ended."""
    run.add(Annotation(caller, 0, "subagent", maker, {"type": "subagent", "node": end}))
