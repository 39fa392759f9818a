"""Diagnostics: does this credit say anything, and what?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ramify.methods.graph_credit.decisive import LEVEL, Comparison, Move
from ramify.score.group import moments
from ramify.trace.graph import MergedGraph

LOUD = 0.9  # share of steps in states visited once above which the graph terms say nothing


_ONE_TASK = " (where records are attempts at one task, `ramify import --task-field` names the field with the task)"


def diagnose(
    graph: MergedGraph,
    found: dict[str, np.ndarray],
    top: int = 5,
    *,
    nodes: Sequence[str | None] = (),
    texts: bool = False,
    comparison: Comparison | None = None,
    level: float = LEVEL,
) -> dict[str, Any]:
    """How much states repeat, how much of the credit comes from where, which moves gained or lost most,
    and which of it is not chance.

    ``found`` as returned by ``credit_graph`` on ``graph``; ``nodes``: the node of each visit, where it is of a run; ``texts``:
    states are texts of observations; without a ``comparison`` nothing is said of chance.
    ``warnings`` holds one sentence for each reason for doubt.
    """
    kept = found["weight"] > 0
    weight, size = found["weight"][kept], found["group_size"][kept]
    attempts = np.unique(graph.visit_attempt[kept], return_index=True)[1]
    task = graph.visit_task[kept][attempts]
    reward, n = moments(found["reward"][kept][attempts], task, ddof=0), np.bincount(task)
    present = n > 0
    constant, lone = present & (reward[1] == 0), present & (n == 1)
    steps = float(weight.sum())
    single = float(weight[size == 1].sum() / steps) if steps else 0.0
    sizes, counts = np.unique(size, return_counts=True)
    _, spread, _ = moments(found["reward"][kept], graph.visit_edge[kept], ddof=0)
    busy = np.bincount(graph.visit_edge[kept]) > 1
    out: dict[str, Any] = {
        "steps": round(steps),
        "attempts": len(attempts),
        "tasks": int(present.sum()),
        "states": len(np.unique(found["group_id"][kept])),
        "dropped_steps": int((~kept).sum()),
        "mean_group_size": float((weight * size).sum() / steps) if steps else 0.0,
        "singleton_share": single,
        "group_sizes": {int(s): int(c) for s, c in zip(sizes, counts, strict=True)},
        "constant_reward_share": float(constant.sum() / max(present.sum(), 1)),
        "hidden_state_spread": float(spread[busy].mean()) if busy.any() else 0.0,
        **{
            f"mean_abs_{name}": float(np.abs(found[name][kept]).mean()) if steps else 0.0
            for name in ("A_ep", "A_nc", "A_ec", "A")
        },
    }
    delta, _, votes = moments(np.nan_to_num(found["delta"]), graph.visit_edge, weights=found["weight"], ddof=0)
    order = np.argsort(np.where(votes > 0, delta, 0.0), kind="stable")
    for name, edges in (("top_gains", order[::-1][:top]), ("top_losses", order[:top])):
        chosen = [int(e) for e in edges if delta[e] * (1 if name == "top_gains" else -1) > 0]
        out[name] = [
            _edge(graph, e)
            | {"delta": float(delta[e]), "count": int(graph.edge_count[e])}
            | ({"node": _node(graph, e, nodes)} if nodes else {})
            | (comparison.of_step(e, level) if comparison else {})
            for e in chosen
        ]
    if comparison is not None:
        out |= {"level": level, "compared": len(comparison.moves), "verdict": comparison.verdict(level)}
        out["decisive"] = [_decisive(graph, move, nodes) for move in comparison.decisive(level)]
    out["warnings"] = []
    if single > LOUD:
        share = f"{100 * single:.0f} % of steps are in a state visited once"
        out["warnings"].append(
            f"no state repetition ({share}): only the episode term is informative; --state-pattern REGEX takes the state out of "
            "a text, "
            "--scrub takes numbers and times out of it"
        )
    elif texts and graph.starts_apart:
        out["warnings"].append(
            "no attempt is ever back in a state that one began in, as where the first observation also holds the task: "
            "--state-pattern REGEX takes the state out of a text"
        )
    if lone.any():
        out["warnings"].append(f"{lone.sum()} of {present.sum()} tasks have one attempt: their episode term is 0{_ONE_TASK}")
    elif len(present) and constant.sum() == present.sum():
        out["warnings"].append("in every task all attempts have one reward: there is nothing to credit")
    return out


def _node(graph: MergedGraph, edge: int, nodes: Sequence[str | None]) -> str | None:
    """The node of the first visit that took an edge."""
    return nodes[int(np.flatnonzero(graph.visit_edge == edge)[0])]


def _decisive(graph: MergedGraph, move: Move, nodes: Sequence[str | None]) -> dict[str, Any]:
    return _edge(graph, move.edges[0]) | ({"node": nodes[move.row]} if nodes else {}) | move.to_json()


def _edge(graph: MergedGraph, edge: int) -> dict[str, Any]:
    source, target = int(graph.edge_source[edge]), int(graph.edge_target[edge])
    return {
        "task": graph.tasks[graph.group_task[source]],
        "from": graph.keys[source],
        "action": graph.actions[graph.edge_action[edge]],
        "to": graph.keys[target],
    }
