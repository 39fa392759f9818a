"""One tree in memory: append-only nodes by id, their children in order of arrival, and a hash of the whole."""

from __future__ import annotations

from collections.abc import Iterable

from ramify.base import notebook
from ramify.base.errors import UserError, nearest
from ramify.base.ids import stable_hash
from ramify.base.words import plural
from ramify.trace.node import Node
from ramify.trace.path import Path


class Tree:
    """Runs of one task. Every node but the root hangs on a node that came before it."""

    def __init__(self, name: str, nodes: Iterable[Node] = ()) -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self._children: dict[str, list[str]] = {}
        self._root: str | None = None
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> Node:
        """Add a node; one that is there already is left as it is. Returns the node that is in the tree.

        Raises UserError on a foreign tree, an unknown parent, an offset outside the parent, or a second root.
        """
        known = self.nodes.get(node.id)
        if known is not None:
            return known
        if node.tree != self.name:
            raise UserError(f"node {node.id} belongs to tree '{node.tree}', not to '{self.name}'")
        if node.parent is None:
            if self._root is not None:
                raise UserError(f"tree '{self.name}' has a root already ({self._root}); node {node.id} names no parent")
            self._root = node.id
        else:
            parent = self.nodes.get(node.parent)
            if parent is None:
                raise UserError(f"node {node.id} hangs on node {node.parent}, which is not in tree '{self.name}'")
            check_offset(node, len(parent))
            self._children[node.parent].append(node.id)
        self.nodes[node.id] = node
        self._children[node.id] = []
        return node

    def node(self, node_id: str) -> Node:
        """The node of that id. Raises UserError when there is none."""
        if node_id not in self.nodes:
            raise UserError(f"tree '{self.name}' has no node '{node_id}': {nearest(node_id, self.nodes)}")
        return self.nodes[node_id]

    @property
    def root(self) -> Node:
        """The first node. Raises UserError on an empty tree."""
        if self._root is None:
            raise UserError(f"tree '{self.name}' is empty")
        return self.nodes[self._root]

    def children(self, node_id: str) -> list[Node]:
        """Nodes that hang on ``node_id``, in order of arrival. Raises UserError when there is no such node."""
        self.node(node_id)
        return [self.nodes[child] for child in self._children[node_id]]

    def leaves(self) -> list[Node]:
        """Nodes without children, in order of arrival."""
        return [self.nodes[node_id] for node_id, children in self._children.items() if not children]

    def path(self, node_id: str) -> Path:
        """The path from the root to a node. Raises UserError when there is no such node."""
        node = self.node(node_id)
        nodes = [node]
        while node.parent is not None:
            node = self.nodes[node.parent]
            nodes.append(node)
        return Path.of(nodes[::-1])

    @property
    def hash(self) -> str:
        """Hash of the sorted node ids: two trees with one hash hold the same samples, in whatever order they were added."""
        return stable_hash("tree", *sorted(self.nodes))

    def __len__(self) -> int:
        return len(self.nodes)

    def _repr_html_(self) -> str:
        return notebook.html(self)

    def __repr__(self) -> str:
        return f"<tree {self.name[:90]!r}:\n {plural(len(self), 'node')}, {plural(len(self.leaves()), 'leaf')}>"


def check_offset(node: Node, parent_length: int) -> None:
    """Raises UserError when ``node`` starts outside its parent."""
    if not 0 <= node.offset <= parent_length:
        raise UserError(f"node {node.id} starts at offset {node.offset} of node {node.parent}, which has length {parent_length}")
