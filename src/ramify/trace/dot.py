"""Trees as Graphviz text."""

from __future__ import annotations

from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.files import whole_file
from ramify.trace.db import Run
from ramify.trace.graph import dot_quote, short
from ramify.trace.tree import Tree


def tree_dot(tree: Tree) -> str:
    """Graphviz text of a tree. Edges say where a fork cut in."""
    lines = ["digraph tree {", "  node [shape=box, style=filled, fillcolor=white];"]
    for node in tree.nodes.values():
        label = "\n".join(filter(None, [node.role, short(node.text), node.stop]))
        lines.append(f"  {dot_quote(node.id)} [label={dot_quote(label)}];")
        if node.parent is not None:
            cut = node.offset < len(tree.nodes[node.parent])
            label = f" [label={dot_quote(f'at {node.offset}')}]" if cut else ""
            lines.append(f"  {dot_quote(node.parent)} -> {dot_quote(node.id)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def write_dot(run: Run, path: Path, tree: str | None = None) -> int:
    """Write one tree, the only one where none is named, whole or not at all. Returns how many nodes it has.

    Raises UserError when there is no such tree, when one must be named, or when the file cannot be written.
    """
    if tree is None:
        trees = run.trees()
        if len(trees) != 1:
            listed = ", ".join(info.name for info in trees[:5]) + (", ..." if len(trees) > 5 else "")
            raise UserError(f"{run.folder} has {len(trees)} trees: choose one with --tree" + (f" ({listed})" if trees else ""))
        tree = trees[0].name
    chosen = run.tree(tree)
    with whole_file(path) as part:
        # text that UTF-8 cannot express has its lone surrogates replaced
        part.write_text(tree_dot(chosen), encoding="utf-8", errors="replace")
    return len(chosen)
