"""From grown trees to training rows: credit every message once, store the credit with its reasons, lay it along the drawn tokens."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from ramify.methods.graph_credit.algorithm import CreditConfig
from ramify.methods.graph_credit.run import StateGraph, node_credit, node_records
from ramify.rollout.run import Attempt
from ramify.trace.db import Run
from ramify.trace.tree import Tree
from ramify.train.batch import Row, rows_from_path


def credit_group(
    run: Run, group: str, trees: Mapping[str, Tree], config: CreditConfig
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Credit every agent message in a group of stored trees: node id -> credit along its tokens, and the diagnostics' warnings.

    Stores for each message a Mark with the numbers behind its credit and a Stream along its tokens. A message that several attempts
    share has one credit. Unscored attempts have no part in it.
    """
    graph = StateGraph.from_run(run, group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        columns = graph.advantages(config)
    nodes = {node.id: node for tree in trees.values() for node in tree.nodes.values()}
    streams: dict[str, np.ndarray] = {}
    for node_id, value in node_credit(graph.columns, columns).items():
        mark, stream = node_records(nodes[node_id], value)
        run.add(mark, stream)
        streams[node_id] = stream.values
    return streams, [str(warning.message) for warning in caught]


def training_rows(
    run: Run,
    trees: Mapping[str, Tree],
    attempts: Mapping[str, Sequence[Attempt]],
    credit: Mapping[str, np.ndarray],
    clip: float,
) -> list[Row]:
    """Rows of attempts (several where one was compacted), each drawn token in one only: a shared message is trained on once.

    Messages without credit, or with none to give, are shown and not trained on. Credit beyond ``clip`` is cut there.
    """
    rows: list[Row] = []
    done: set[str] = set()
    for name, group in attempts.items():
        for attempt in group:
            path = trees[name].path(attempt.leaf)
            fresh = {n.id: credit[n.id] for n, _ in path.segments if n.id in credit and n.id not in done and credit[n.id].any()}
            if not fresh:
                continue
            done |= fresh.keys()
            for row in rows_from_path(path, trees[name].node, run.context, {"advantage": fresh}):
                advantage = row.streams["advantage"].clip(-clip, clip)
                mask = row.mask & (advantage != 0.0)
                if mask.any():
                    rows.append(Row(row.tokens, mask, {**row.streams, "advantage": advantage}))
    return rows


def imitation_rows(run: Run, trees: Mapping[str, Tree], attempts: Mapping[str, Sequence[Attempt]]) -> list[Row]:
    """The successful attempts, every drawn token once per attempt: rows for supervised training."""
    wins = [(trees[name], attempt) for name, group in attempts.items() for attempt in group if attempt.outcome]
    return [row for tree, attempt in wins for row in rows_from_path(tree.path(attempt.leaf), tree.node, run.context)]
