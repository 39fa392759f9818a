"""A run into other forms and back: JSON lines (exactly), Parquet, Graphviz text; chat logs and step records into a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ramify.base.errors import UserError
from ramify.trace.foreign import read_chats, read_steps
from ramify.trace.graph import dot_quote, short
from ramify.trace.jsonl import read_exported, write_lines
from ramify.trace.lines import read_lines
from ramify.trace.node import Node
from ramify.trace.parquet import write_parquet
from ramify.trace.tree import Tree

__all__ = ["read_chats", "read_exported", "read_run", "read_steps", "tree_dot", "write_lines", "write_parquet"]


def read_run(path: Path, folder: Path) -> str:
    """Make a run in ``folder`` from JSON lines, told apart by the first: an exported run, chats or step records.

    Returns which: run, chats or steps. Raises UserError naming file and line; nothing is left in ``folder`` then.
    """
    number, first = next(read_lines(path), (0, None))
    if first is None:
        raise UserError(f"{path} holds no record")
    if first.get("kind") == "run":
        read_exported(path, folder)
        return "run"
    if "messages" in first:
        read_chats(path, folder)
        return "chats"
    if "task_id" in first or "attempt_id" in first:
        read_steps(path, folder)
        return "steps"
    raise UserError(
        f"{path}:{number}: neither an exported run (kind 'run'), nor a chat ('messages'), nor a step ('task_id', 'attempt_id', ...)"
    )


def tree_dot(tree: Tree, colour: Callable[[Node], str] | None = None) -> str:
    """Graphviz text of a tree; ``colour`` gives a fill such as ``#ffcc00`` (or "") to each node. Edges say where a fork cut in."""
    lines = ["digraph tree {", "  node [shape=box, style=filled, fillcolor=white];"]
    for node in tree.nodes.values():
        label = "\n".join(filter(None, [node.role, short(node.text), node.stop]))
        fill = colour(node) if colour is not None else ""
        lines.append(f"  {dot_quote(node.id)} [label={dot_quote(label)}{f', fillcolor={dot_quote(fill)}' if fill else ''}];")
        if node.parent is not None:
            cut = node.offset < len(tree.nodes[node.parent])
            label = f" [label={dot_quote(f'at {node.offset}')}]" if cut else ""
            lines.append(f"  {dot_quote(node.parent)} -> {dot_quote(node.id)}{label};")
    return "\n".join([*lines, "}"]) + "\n"
