"""From grown trees to training rows: credit every step once, store the credit with its reasons, lay it along the drawn tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.methods.graph_credit.algorithm import CreditConfig, credit
from ramify.rollout.run import Attempt
from ramify.trace.db import Run
from ramify.trace.node import Mark, Node, Stream
from ramify.trace.tree import Tree
from ramify.train.batch import Row, row_from_path

MAKER = "graph-credit"
WHY = ("A", "A_ep", "A_nc", "A_ec", "V", "V_next", "delta", "reward")


def credit_group(
    trees: Mapping[str, Tree], attempts: Mapping[str, Sequence[Attempt]], config: CreditConfig, run: Run
) -> dict[str, float]:
    """Credit every agent message of a group of trees: node id -> advantage. Unscored attempts have no part in it.

    Stores for each message a Mark ``why`` with the numbers behind its credit and a Stream ``credit`` along its tokens. A message
    that several attempts share gets the mean over them.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("task", "attempt", "step", "key", "reward", "cut", "valid", "node")}
    nodes: dict[str, Node] = {}
    for name, group in attempts.items():
        for number, attempt in enumerate(a for a in group if a.outcome is not None):
            path = [node for node, _ in trees[name].path(attempt.leaf).segments]
            replies = [i for i, node in enumerate(path) if node.role == "assistant"]
            for step, i in enumerate(replies):
                answer = path[i + 1]
                state, cut = path[i - 1].state_key, attempt.truncated and i == replies[-1]
                cells = (name, number, step, state, answer.reward or 0.0, cut, answer.data.get("valid", True), path[i].id)
                for column, value in zip(columns.values(), cells, strict=True):
                    column.append(value)
                nodes[path[i].id] = path[i]
    if not nodes:
        return {}
    c = columns
    out = credit(
        c["task"],
        c["attempt"],
        c["step"],
        c["key"],
        c["reward"],
        config=config,
        truncated=c["cut"],
        valid=c["valid"],
        nodes=c["node"],
    )
    rows_of: dict[str, list[int]] = {}
    for row, node_id in enumerate(c["node"]):
        rows_of.setdefault(node_id, []).append(row)
    advantages: dict[str, float] = {}
    for node_id, rows in rows_of.items():
        why: dict[str, Any] = {name: float(np.mean(out[name][rows])) for name in WHY}
        why |= {name: int(out[name][rows[0]]) for name in ("group_id", "next_group_id", "group_size")}
        why |= {"task": c["task"][rows[0]], "attempts": [c["attempt"][row] for row in rows], "step": c["step"][rows[0]]}
        advantages[node_id] = why["A"]
        run.add(Mark(node_id, 0, "why", MAKER, why), Stream(node_id, "credit", MAKER, along(nodes[node_id], why["A"])))
    return advantages


def along(node: Node, value: float) -> np.ndarray:
    """``value`` on every drawn token of a node, 0 elsewhere; one float for a text-only node."""
    if node.tokens is None or node.sampled is None:
        return np.full(len(node), value, np.float32)
    return np.where(node.sampled, np.float32(value), np.float32(0.0))


def training_rows(
    trees: Mapping[str, Tree], attempts: Mapping[str, Sequence[Attempt]], advantages: Mapping[str, float]
) -> list[Row]:
    """One row per attempt, each drawn token in one row only: a message that several attempts share is trained on once.

    Messages without credit, or with none to give, are shown and not trained on.
    """
    rows: list[Row] = []
    done: set[str] = set()
    for name, group in attempts.items():
        for attempt in group:
            path = trees[name].path(attempt.leaf)
            fresh = {n.id: n for n, _ in path.segments if advantages.get(n.id) and n.id not in done}
            if not fresh:
                continue
            done |= fresh.keys()
            streams = {"advantage": {i: along(node, advantages[i]) for i, node in fresh.items()}}
            row = row_from_path(path, streams)
            rows.append(Row(row.tokens, row.mask & (row.streams["advantage"] != 0.0), row.streams))
    return rows


def imitation_rows(trees: Mapping[str, Tree], attempts: Mapping[str, Sequence[Attempt]]) -> list[Row]:
    """The successful attempts, every drawn token once per attempt: rows for supervised training."""
    return [row_from_path(trees[name].path(a.leaf)) for name, group in attempts.items() for a in group if a.outcome]
