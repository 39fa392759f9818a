"""A file of trees, one a line, that ramify 0.1.0 wrote, read into a run: the agent's turns as nodes, their ends as scores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramify.base.registry import register
from ramify.methods.tree_rollouts.record import ENTRY, GrownTree, Leaf
from ramify.methods.tree_rollouts.run import report
from ramify.trace.db import Run
from ramify.trace.foreign import import_records, root
from ramify.trace.formats import Reader
from ramify.trace.lines import field
from ramify.trace.node import Node, Score, make_node

LEFT = "what the agent was shown was not kept, so trees hold its turns alone and no training rows can be made of them"


def import_trees(path: Path, folder: Path) -> int:
    """Make a run of a file of trees. Returns how many; raises UserError naming file and line."""

    def add(run: Run, record: dict[str, Any], where: str, number: int) -> None:
        for named in ("prompt_id", "tree"):
            field(record, named, str, where)
        tree = GrownTree.from_json(record)
        report([tree])  # what no report can be made of is refused here
        name = tree.tree if not run.has_tree(tree.tree) else f"{tree.tree}#{number}"
        run.add_tree(name, {"id": tree.prompt_id})
        nodes = _turns(run, name, tree)
        known = {one: node.id for one, node in nodes.items()}
        places = [asdict(one) | {"id": known[one.id], "parent": one.parent and known[one.parent]} for one in tree.places.values()]
        leaves = [asdict(one) | {"node": known[one.node], "stored": _end(run, nodes[one.node], one)} for one in tree.leaves]
        log = [{**one, "node": known.get(one["node"], one["node"])} for one in tree.log]
        payload = {**tree.to_json(), "tree": name, "nodes": places, "leaves": leaves, "log": log}
        run.log(ENTRY, tree.prompt_id if name == tree.tree else f"{tree.prompt_id}#{number}", payload)

    return import_records(path, folder, "trees", add, about={"left": LEFT})


def _turns(run: Run, name: str, tree: GrownTree) -> dict[str, Node]:
    """A node for each position, by the position's id; children of one parent are distinguished by their order."""
    nodes: dict[str, Node] = {}
    for index, place in enumerate(tree.places.values()):
        if place.parent is None:
            nodes[place.id] = root(run, name)
            continue
        above = nodes[place.parent]
        nodes[place.id] = node = make_node(
            name, above.id, len(above), "assistant", place.text,
            tokens=place.turn_tokens, logprobs=place.logprobs, index=index, state_key=place.state_hash,
        )  # fmt: skip
        run.add(node)
    return nodes


def _end(run: Run, turn: Node, leaf: Leaf) -> str:
    """The end of an attempt, an empty observation of its own with what was said of it; its id."""
    stop = "failed" if leaf.failure is not None else "truncated" if leaf.truncated else "terminated"
    data = {} if leaf.failure is None else {"failure": leaf.failure}
    evidence = {"outcome": leaf.outcome, "truncated": leaf.truncated} | data
    end = make_node(turn.tree, turn.id, len(turn), "user", "", index=leaf.index, stop=stop, data=data)
    run.add(end, Score(end.id, "env", None if leaf.outcome is None else leaf.reward, evidence=evidence))
    return end.id


register("reader", "trees")(
    Reader(
        "trees",
        "Trees, one a line, that `ramify tree-rollouts run --out` of version 0.1.0 wrote: the agent's turns and how they ended.",
        lambda path, first: first is not None and {"prompt_id", "selector", "nodes", "leaves"} <= first.keys(),
        import_trees,
    )
)
