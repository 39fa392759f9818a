"""Storage of an episode: positions in its tree, the trees in memory and in the run, and the nodes that episodes add to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError
from ramify.base.ids import canonical_json
from ramify.env.protocol import Snapshot, Task, Volatile
from ramify.model.chat import ChatTemplate, assistant_node_parts
from ramify.model.protocol import Completion, Prefix
from ramify.model.tokenizer import continued
from ramify.rollout.attempts import Draw
from ramify.trace.context import HISTORY, context_of_parts
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node, Provenance, make_node
from ramify.trace.path import Part
from ramify.trace.tree import Tree
from ramify.trace.view import TokenMessage

_OF_A_SAMPLE = ("usage", "entropy", "model", HISTORY)
"""Data of a reply that say how it was sampled."""


@dataclass
class Position:
    """Where the next message goes: the path so far, in the form the model wants."""

    parent: Node
    offset: int
    tokens: list[np.ndarray]
    messages: list[Message]
    reward: float
    turns: int
    begun: str | None = None
    """Text of the reply begun already, when a fork continues inside it."""
    shown: list[Part] | None = None
    """The model's history where that is not the path: something was compacted or edited.
    What it is shown of it, its template says."""
    insert: Node | None = None
    """The parent where it is an edit, which is stored with what is sampled after it:
    one that the model refuses leaves nothing."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one reply."""

    prefix: Prefix
    rendered: list[Part] | None
    """The template's rendering of the history, where it differs."""
    head: np.ndarray | None
    """The tokens that open the reply."""


class Record:
    """Trees of one run, those that are in use in memory; ``template`` renders messages as tokens,
    None where the model takes messages."""

    def __init__(self, run: Run, template: ChatTemplate | None, group: str = "") -> None:
        self.run, self.template, self.group = run, template, group
        self.trees: dict[str, Tree] = {}

    def load(self, tree: str) -> Tree:
        """The tree in memory, read from the run when it is not there yet. Raises UserError when the run has none of that name."""
        if tree not in self.trees:
            self.trees[tree] = self.run.tree(tree)
        return self.trees[tree]

    def root(self, tree: str, task: Task) -> Node:
        """The root of a tree, which is stored when it is not there yet."""
        if tree not in self.trees:
            self.run.add_tree(tree, {"id": task.id, "data": dict(task.data)}, self.group)
            self.trees[tree] = self.run.tree(tree)
        if not len(self.trees[tree]):
            empty = None if self.template is None else np.zeros(0, np.int32)
            self.add(make_node(tree, None, 0, "root", "", tokens=empty))
        return self.trees[tree].root

    def add(self, *nodes: Node) -> None:
        """Store nodes below those that are there."""
        for node in nodes:
            self.trees[node.tree].add(node)
        self.run.add(*nodes)

    def given(self, parent: Node, role: str, text: str, after: str, **fields: Any) -> Node:
        """An unsampled message after ``parent``, not stored yet;
        ``after`` is the role of the message before it, "" for the first."""
        if self.template is not None:
            fields["tokens"], fields["ends"], text = self.template.render(role, text, after)
        return make_node(parent.tree, parent.id, len(parent), role, text, **fields)

    def held(self, position: Position, reply: TokenMessage) -> Node:
        """A reply that is given at ``position`` as it was said elsewhere, token for token; not stored yet."""
        data = {name: value for name, value in reply.data.items() if name not in _OF_A_SAMPLE}
        data["edit"] = {"hold": reply.nodes[-1].id}
        if self.template is None or reply.tokens is None:
            return self.given(position.parent, "assistant", reply.text, position.messages[-1].role, data=data)
        tokens = {"tokens": reply.tokens, "ends": reply.ends}
        return make_node(position.parent.tree, position.parent.id, position.offset, "assistant", reply.text, data=data, **tokens)

    def durable(self, snapshot: Snapshot | None) -> str | None:
        """A snapshot as a node stores it. Raises InfrastructureError on one that cannot be stored and does not say so."""
        if snapshot is None or isinstance(snapshot, Volatile):
            return None
        if isinstance(snapshot, bytes):
            return "blob:" + self.run.put_blob(snapshot)
        try:
            return canonical_json(snapshot)
        except (TypeError, ValueError) as error:
            raise InfrastructureError("env", f"a snapshot is neither JSON, bytes nor Volatile: {error}") from None

    def replaced(self, node: Node, text: str) -> Node:
        """An observation with ``text`` that replaces ``node``; the environment's state is unchanged."""
        parent = self.load(node.tree).node(str(node.parent))
        after = "" if parent.role == "root" else parent.role
        return self._like(node, parent, node.role, text, after, {"replace": text}, node.reward)

    def inserted(self, node: Node, role: str, text: str) -> Node:
        """One more message, after observation ``node``; the environment's state is unchanged."""
        return self._like(node, node, role, text, node.role, {"insert": {"role": role, "text": text}}, None)

    def _like(self, node: Node, parent: Node, role: str, text: str, after: str, edit: Any, reward: float | None) -> Node:
        fields = {"snapshot": node.snapshot, "state_key": node.state_key, "reward": reward, "data": {"edit": edit}}
        return self.given(parent, role, text, after, **fields)

    def sampled(self, position: Position, prompt: Prompt, completion: Completion, provenance: Provenance, draw: Draw) -> Node:
        """The reply that was sampled at ``position``, not stored yet; the contexts it was shown are."""
        opens = position.begun is None
        fields: dict[str, Any] = {"text": completion.text}
        if self.template is not None:
            before = position.parent.tokens
            if position.begun and before is not None and completion.tokens is not None:
                text, ends = continued(self.template.tokenizer, before[: position.offset], completion.tokens)
                completion = replace(completion, text=text, ends=ends)
            fields = assistant_node_parts(self.template, completion, opens=opens, head=prompt.head)
        data = dict(completion.data or {})
        if completion.entropy is not None and len(completion.entropy):
            data["entropy"] = float(completion.entropy.mean())
        fields["data"] = data
        fields |= {"provenance": provenance.hash, "purpose": draw.purpose, "index": draw.index}
        fields |= {"stop": completion.stop, "opens": opens}
        if position.shown is not None:
            fields["context"] = self._context(position.shown)
        if prompt.rendered is not None:
            data[HISTORY] = fields.get("context", "")
            fields["context"] = self._context(prompt.rendered)
        return make_node(position.parent.tree, position.parent.id, position.offset, "assistant", fields.pop("text"), **fields)

    def known(self, parent: Node, offset: int, draw: Draw, provenance: str) -> tuple[Node, Node] | None:
        """A reply that was sampled at this position before, and its answer, where both are stored."""
        tree = self.trees[parent.tree]
        for node in tree.children(parent.id):
            if (node.index, node.purpose, node.offset, node.provenance) == (draw.index, draw.purpose, offset, provenance):
                for answer in tree.children(node.id):
                    if answer.role != "assistant" and answer.stop != "failed":
                        return node, answer
        return None

    def _context(self, parts: list[Part]) -> str:
        """The hash of the context that shows ``parts``, which is stored."""
        context = context_of_parts(parts)
        self.run.add(context)
        return context.hash
